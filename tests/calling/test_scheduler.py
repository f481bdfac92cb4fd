"""The scheduler as a machine: a clock that stands still, effects carried out by hand."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from sparrowmq.calling.effects import (
    Effect,
    Event,
    Invoke,
    Operation,
    call,
    invoke,
    join,
    sleep,
    spawn,
    wait,
)
from sparrowmq.calling.scheduler import (
    HEAP_SLACK,
    NEVER_MS,
    UNJOINED_ERROR_MS,
    OperationTask,
    Scheduler,
    Waiter,
)
from sparrowmq.errors import InvokeTimeout
from sparrowmq.protocol.command import RemotingCommand


class World:
    """A scheduler, its clock, and what it asked to be carried out and dropped."""

    def __init__(self) -> None:
        self.time_ms = 1_000
        self.carried: list[tuple[Waiter, Effect]] = []
        self.dropped: list[Waiter] = []
        self.scheduler = Scheduler(
            monotonic_ms=lambda: self.time_ms,
            timestamp_ms=lambda: 7,
            carry=self.carry,
            drop=lambda waiter, _: self.dropped.append(waiter),
        )
        self.scheduler.submit = self.carry

    def carry(self, waiter: Waiter, effect: Effect) -> None:
        self.carried.append((waiter, effect))

    def start(self, operation: Operation[Any], name: str = "task") -> OperationTask:
        task = OperationTask(operation, name)
        self.scheduler.add(task)
        self.run()
        return task

    def run(self) -> None:
        self.scheduler.run_ready()

    def advance(self, duration_ms: int) -> list[Any]:
        self.time_ms += duration_ms
        due = self.scheduler.expire(self.time_ms)
        self.run()
        return due


def ask(timeout_ms: int = 3_000) -> Operation[Any]:
    return invoke("a:1", RemotingCommand(code=10), timeout_ms=timeout_ms)


def test_io_effects_are_handed_out_and_resumed() -> None:
    world = World()
    task = world.start(ask())

    ((waiting, effect),) = world.carried
    world.scheduler.resume(task, "answer")
    world.scheduler.resume(task, "a second answer")
    world.run()

    assert waiting is task
    assert isinstance(effect, Invoke)
    assert task.outcome() == "answer"


def test_wait_is_handed_back_once_though_others_of_its_task_had_its_deadline() -> None:
    def operation() -> Operation[Any]:
        for _ in range(3):
            yield from ask(timeout_ms=50)
        yield from sleep(50)
        return (yield from ask(timeout_ms=50))

    world = World()
    task = world.start(operation())
    for _ in range(3):
        # All three answers come at once: each wait has the deadline of the others.
        world.scheduler.resume(task, "answer")
        world.run()

    assert world.advance(50) == []
    assert world.advance(50) == [task]


def test_task_that_waits_too_long_is_handed_back() -> None:
    world = World()
    task = world.start(ask(timeout_ms=50))

    assert world.advance(49) == []
    assert world.advance(1) == [task]
    world.scheduler.throw(task, KeyError("late"))
    world.run()

    assert isinstance(task.error, KeyError)


def test_thousands_of_invokes_leave_one_timer() -> None:
    world = World()

    def many() -> Operation[None]:
        for _ in range(5_000):
            yield from ask()

    task = world.start(many())
    while not task.done:
        world.scheduler.resume(task, None)
        world.run()
        world.time_ms += 1 if len(world.carried) % 100 == 0 else 0

    assert len(world.scheduler._heap) == 1


def test_timers_of_tasks_that_ended_do_not_pile_up() -> None:
    world = World()

    for _ in range(5_000):
        world.scheduler.resume(world.start(ask()), None)
        world.run()

    assert len(world.scheduler._heap) <= HEAP_SLACK
    assert world.scheduler.tasks == ()


def test_earlier_deadline_comes_first_and_the_later_one_still_comes() -> None:
    world = World()
    ends: list[int] = []

    def sleeper() -> Operation[None]:
        yield from ask(timeout_ms=5_000)
        for duration_ms in (10, 20):
            yield from sleep(duration_ms)
            ends.append(world.time_ms)

    task = world.start(sleeper())
    world.scheduler.resume(task, None)
    world.run()
    assert world.scheduler.next_deadline_ms() == 1_010
    world.advance(10)
    world.advance(20)
    world.advance(5_000)

    assert ends == [1_010, 1_030]
    assert world.scheduler.next_deadline_ms() == NEVER_MS


def test_cancelled_io_is_dropped_before_the_task_goes_on() -> None:
    world = World()
    seen: list[list[Waiter]] = []

    def victim() -> Operation[None]:
        try:
            yield from call(int)
        finally:
            seen.append(list(world.dropped))

    task = world.start(victim())
    world.scheduler.cancel(task)
    world.run()

    assert seen == [[task]]
    assert task.done


def fails() -> Operation[None]:
    yield from sleep(0)
    raise ValueError("lonely")


def test_error_nobody_joins_is_handed_back_after_a_while() -> None:
    world = World()
    spawned: list[Any] = []

    def parent() -> Operation[None]:
        spawned.append((yield from spawn(fails(), name="fails")))

    world.start(parent())
    assert world.advance(1) == []
    assert spawned == world.scheduler.unjoined()

    assert world.advance(UNJOINED_ERROR_MS - 1) == []
    assert spawned == world.advance(1)


def test_joined_error_is_not_handed_back() -> None:
    world = World()
    task = world.start(fails())
    world.advance(0)

    with pytest.raises(ValueError, match="lonely"):
        task.outcome()
    assert world.scheduler.unjoined() == []
    assert world.advance(UNJOINED_ERROR_MS) == []


def test_interrupt_ends_its_task_and_goes_on_to_the_caller() -> None:
    world = World()

    def interrupted() -> Operation[None]:
        yield from sleep(0)
        raise KeyboardInterrupt

    task = world.start(interrupted())
    with pytest.raises(KeyboardInterrupt):
        world.advance(0)

    assert task.done
    assert world.scheduler.tasks == ()


def test_waiting_task_may_be_cancelled_when_an_interrupt_cut_the_end_of_the_other_off() -> None:
    world = World()
    target = world.start(sleep(1_000))
    waiting = world.start(join(target))
    world.advance(0)
    target.joiners.clear()

    world.scheduler.cancel(waiting)
    world.advance(0)

    assert waiting.done


def test_finished_error_holds_no_frame_of_the_scheduler() -> None:
    world = World()
    task = world.start(fails())
    world.advance(0)

    assert task.error is not None
    assert task.error.__traceback__ is not None
    assert task.error.__traceback__.tb_frame.f_code.co_name == "fails"


@pytest.mark.parametrize("is_join", [False, True])
def test_what_a_task_waited_for_too_long_does_not_end_its_next_wait(is_join: bool) -> None:
    world, event = World(), Event()
    other = world.start(wait(event))

    def operation() -> Operation[Any]:
        if is_join:
            with suppress(InvokeTimeout):
                yield from join(other, timeout_ms=10)
        else:
            assert not (yield from wait(event, timeout_ms=10))
        return (yield from ask())

    task = world.start(operation())
    world.advance(10)
    event.set()
    world.run()
    assert other.done
    assert not task.done
    world.scheduler.resume(task, "answer")
    world.run()

    assert task.outcome() == "answer"


def test_waits_that_ended_early_do_not_pile_up() -> None:
    world = World()
    for _ in range(10 * HEAP_SLACK):
        event = Event()
        task = world.start(wait(event, timeout_ms=3_600_000))
        event.set()
        world.run()
        assert task.outcome()

    assert len(world.scheduler._heap) <= HEAP_SLACK + 1
