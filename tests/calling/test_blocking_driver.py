"""What only the blocking driver does: threads that share it, serving, interrupts, forks."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest

from frame_server import FrameServer, Peer, echo
from harness import Numbers
from sparrowmq.calling.blocking_driver import BlockingDriver, _Run
from sparrowmq.calling.call_run import UserCalls
from sparrowmq.calling.channel_table import ChannelTable
from sparrowmq.calling.effects import (
    CallEach,
    Cancelled,
    Event,
    Invoke,
    Outcome,
    call,
    invoke,
    now,
    sleep,
    spawn,
    wait,
)
from sparrowmq.errors import ConnectionLost, InvokeTimeout, TransportError, UsageError
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.send_request import SendRequest, SendTemplate, make_fields

PATIENCE_S = 60
LONG_MS = 20_000


@pytest.fixture
def blocking(no_leaks: None) -> Iterator[BlockingDriver]:
    with BlockingDriver() as driver:
        yield driver


class Result:
    """What a function returned or raised in a thread of its own."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.value: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def _run(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:
            self.error = error

    def join(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.value


def ask(address: str, body: bytes) -> Any:
    answer = yield from invoke(address, RemotingCommand(code=10, body=body), timeout_ms=LONG_MS)
    return answer.body


def signals(event: threading.Event) -> Any:
    """Say that the driver runs, and wait for ever."""
    event.set()
    yield from wait(Event())


def test_threads_share_the_driver_and_its_connection(
    blocking: BlockingDriver, serve: Callable[..., FrameServer]
) -> None:
    server = serve()

    def ask_often(number: int) -> list[bytes]:
        return [blocking.run(ask(server.address, b"%d-%d" % (number, i))) for i in range(50)]

    threads = [Result(partial(ask_often, number)) for number in range(8)]

    for number, thread in enumerate(threads):
        assert [b"%d-%d" % (number, i) for i in range(50)] == thread.join()
    assert server.connection_count == 1


def test_calls_of_several_threads_overlap(
    blocking: BlockingDriver, serve: Callable[..., FrameServer]
) -> None:
    kept = []

    def answer_when_all_came(peer: Peer, command: RemotingCommand) -> None:
        kept.append(command)
        if len(kept) == 4:
            for earlier in kept:
                peer.reply(earlier, body=earlier.body)

    server = serve(answer_when_all_came)

    threads = [Result(lambda: blocking.run(ask(server.address, b"x"))) for _ in range(4)]

    assert [thread.join() for thread in threads] == [b"x"] * 4


def test_served_driver_runs_tasks_and_calls_of_other_threads(
    blocking: BlockingDriver, serve: Callable[..., FrameServer]
) -> None:
    server = serve()
    stop = Event()
    serving = Result(lambda: blocking.run(wait(stop)))

    spawned = threading.Event()
    task = blocking.spawn(call(spawned.set), name="spawned")
    assert blocking.run(ask(server.address, b"y")) == b"y"
    assert spawned.wait(PATIENCE_S)
    blocking.call_soon_threadsafe(stop.set)

    serving.join()
    assert serving.error is None
    assert task.name == "spawned"


def test_cancel_from_another_thread_ends_a_task(blocking: BlockingDriver) -> None:
    ended = threading.Event()
    begun = threading.Event()

    def victim() -> Any:
        try:
            yield from signals(begun)
        except Cancelled:
            ended.set()
            raise

    stop = Event()
    serving = Result(lambda: blocking.run(wait(stop)))
    task = blocking.spawn(victim(), name="victim")
    assert begun.wait(PATIENCE_S)

    blocking.cancel(task)

    assert ended.wait(PATIENCE_S)
    blocking.call_soon_threadsafe(stop.set)
    serving.join()


def test_spawned_task_runs_when_somebody_leads(blocking: BlockingDriver) -> None:
    ran: list[int] = []

    def operation() -> Any:
        ran.append(1)
        yield from sleep(0)

    blocking.spawn(operation(), name="waits for a leader")
    assert ran == []
    blocking.run(now())

    assert ran == [1]


def test_spawn_from_within_an_operation_needs_no_other_wake(blocking: BlockingDriver) -> None:
    stop = Event()

    def stopper() -> Any:
        stop.set()
        yield from sleep(0)

    def operation() -> Any:
        blocking.spawn(stopper(), name="stopper")
        return (yield from wait(stop, timeout_ms=LONG_MS))

    assert blocking.run(operation())


def test_failing_callback_is_logged_and_stops_nothing(
    blocking: BlockingDriver, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("from a callback")

    blocking.call_soon_threadsafe(fail)
    blocking.run(now())

    assert "from a callback" in caplog.text


def test_run_within_the_driver_is_refused(blocking: BlockingDriver) -> None:
    def operation() -> Any:
        yield from sleep(0)
        blocking.run(now())

    with pytest.raises(UsageError, match="in a callback of its own"):
        blocking.run(operation())


def test_close_within_the_driver_is_refused(blocking: BlockingDriver) -> None:
    def operation() -> Any:
        yield from sleep(0)
        blocking.close()

    with pytest.raises(UsageError, match="in a callback of its own"):
        blocking.run(operation())


def test_close_ends_the_calls_of_all_other_threads(no_leaks: None) -> None:
    driver = BlockingDriver()
    begun = [threading.Event() for _ in range(3)]
    threads = [Result(partial(driver.run, signals(event), name="for ever")) for event in begun]
    for event in begun:
        assert event.wait(PATIENCE_S)

    driver.close()

    for thread in threads:
        thread.join()
        assert isinstance(thread.error, UsageError)
        assert str(thread.error) == "this client was closed meanwhile"


def test_close_that_waits_in_vain_is_left_to_the_thread_that_leads(
    serve: Callable[..., FrameServer], no_leaks: None, caplog: pytest.LogCaptureFixture
) -> None:
    """What an operation computes cannot be broken off; its connections go when it ends."""
    driver, server = BlockingDriver(), serve()
    computing, released = threading.Event(), threading.Event()

    def operation() -> Any:
        yield from invoke(server.address, RemotingCommand(code=1), timeout_ms=LONG_MS)
        computing.set()
        released.wait(PATIENCE_S)
        yield from sleep(LONG_MS)

    thread = Result(lambda: driver.run(operation()))
    assert computing.wait(PATIENCE_S)

    driver.close(timeout_ms=10)
    released.set()
    thread.join()

    assert isinstance(thread.error, UsageError)
    assert "driver not closed yet" in caplog.text


def test_close_drops_what_threads_hand_over_later(no_leaks: None) -> None:
    driver = BlockingDriver()
    driver.close()

    driver.call_soon_threadsafe(lambda: None)
    with pytest.raises(UsageError, match="closed"):
        driver.spawn(now(), name="late")


def test_signal_handler_wakes_the_driver(blocking: BlockingDriver) -> None:
    stop = Event()
    previous = signal.signal(signal.SIGUSR1, lambda *_: blocking.call_soon_threadsafe(stop.set))

    def operation() -> Any:
        yield from spawn(call(os.kill, os.getpid(), signal.SIGUSR1), name="signals")
        return (yield from wait(stop, timeout_ms=LONG_MS))

    try:
        assert blocking.run(operation())
    finally:
        signal.signal(signal.SIGUSR1, previous)


def test_interrupt_cancels_the_operation_and_the_driver_goes_on(
    blocking: BlockingDriver, serve: Callable[..., FrameServer]
) -> None:
    server = serve()
    ended: list[str] = []

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def operation() -> Any:
        yield from spawn(call(os.kill, os.getpid(), signal.SIGUSR1), name="signals")
        try:
            yield from sleep(LONG_MS)
        except Cancelled:
            ended.append("cancelled")
            raise

    previous = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            blocking.run(operation())
    finally:
        signal.signal(signal.SIGUSR1, previous)

    assert ended == ["cancelled"]
    assert blocking.run(ask(server.address, b"z")) == b"z"


def test_lead_passes_to_a_thread_that_still_waits(blocking: BlockingDriver) -> None:
    stop, first_ended, second_runs = Event(), Event(), threading.Event()

    def lead() -> Any:
        yield from wait(stop, timeout_ms=LONG_MS)

    def second() -> Any:
        second_runs.set()
        yield from wait(first_ended, timeout_ms=LONG_MS)
        return threading.get_ident()

    first_runs = threading.Event()
    blocking.call_soon_threadsafe(first_runs.set)
    first = Result(lambda: blocking.run(lead()))
    assert first_runs.wait(PATIENCE_S)
    follower = Result(lambda: (blocking.run(second()), threading.get_ident()))
    assert second_runs.wait(PATIENCE_S)
    blocking.call_soon_threadsafe(stop.set)
    first.join()
    blocking.call_soon_threadsafe(first_ended.set)

    led_by, own = follower.join()
    assert own == led_by


def test_connection_closed_between_two_calls_is_made_anew(
    serve: Callable[..., FrameServer], no_leaks: None
) -> None:
    lost: list[str] = []
    server = serve()
    with BlockingDriver(on_connection_lost=lost.append) as driver:
        driver.run(ask(server.address, b"1"))
        server.peers[0].close()
        driver._network.attended_ms -= 1_000  # As if a second had passed.

        assert driver.run(ask(server.address, b"2")) == b"2"

    assert [server.address] == lost
    assert server.connection_count == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("is_locked", [False, True])
def test_driver_of_the_parent_is_refused_after_a_fork(
    blocking: BlockingDriver, is_locked: bool
) -> None:
    # As if another thread had the mutex in this moment.
    status = 0
    with blocking._mutex if is_locked else nullcontext():
        pid = os.fork()
        if pid:
            _, status = os.waitpid(pid, 0)
    if pid == 0:
        signal.alarm(PATIENCE_S)
        try:
            blocking.run(now())
        except UsageError:
            blocking.close()
            os._exit(42)
        os._exit(1)

    assert os.waitstatus_to_exitcode(status) == 42
    assert blocking.run(now()) > 0


# Requests for which no task waits.


def body_of(answer: Outcome) -> bytes | None:
    assert isinstance(answer, RemotingCommand)
    return answer.body


def ask_directly(
    driver: BlockingDriver, address: str, body: bytes, *, timeout_ms: int = LONG_MS
) -> Outcome:
    fields = make_fields("G", "T", template_topic="TBW102", template_queues_max=4, code=310)
    request = SendRequest(SendTemplate(310, fields), (0, 0, 0, 0), "", body)
    return driver.ask(Invoke(address, request, timeout_ms))


def hold(peer: Peer, request: RemotingCommand) -> None:
    """Answer all but some."""
    if request.body == b"end":
        peer.close()
    elif request.body != b"held":
        echo(peer, request)


def test_requests_of_several_threads_share_one_connection(
    serve: Callable[..., FrameServer], blocking: BlockingDriver
) -> None:
    server = serve()
    answers: dict[bytes, bytes | None] = {}

    def send(first: int) -> None:
        for number in range(first, first + 50):
            body = b"%d" % number
            answers[body] = body_of(ask_directly(blocking, server.address, body))

    threads = [threading.Thread(target=send, args=(50 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)

    assert {b"%d" % n: b"%d" % n for n in range(200)} == answers
    assert server.connection_count == 1


def test_request_without_a_task_runs_out_of_time_while_others_go_on(
    serve: Callable[..., FrameServer], blocking: BlockingDriver
) -> None:
    server = serve(hold)
    ask_directly(blocking, server.address, b"x")
    spawned = threading.Event()
    blocking.spawn(call(spawned.set), name="spawned")

    outcome = ask_directly(blocking, server.address, b"held", timeout_ms=30)

    assert isinstance(outcome, InvokeTimeout)
    assert "did not answer request 310 within 30 ms" in str(outcome)
    assert spawned.wait(PATIENCE_S)
    answer = ask_directly(blocking, server.address, b"y")
    assert body_of(answer) == b"y"


def test_request_without_a_task_ends_with_its_connection(
    serve: Callable[..., FrameServer], blocking: BlockingDriver
) -> None:
    server = serve(hold)
    ask_directly(blocking, server.address, b"x")

    assert isinstance(ask_directly(blocking, server.address, b"end"), ConnectionLost)
    # The next one makes another.
    answer = ask_directly(blocking, server.address, b"y")
    assert body_of(answer) == b"y"


def test_request_without_a_task_ends_when_the_driver_is_closed(
    serve: Callable[..., FrameServer], blocking: BlockingDriver
) -> None:
    arrived = threading.Event()

    def note(peer: Peer, request: RemotingCommand) -> None:
        hold(peer, request)
        if request.body == b"held":
            arrived.set()

    server = serve(note)
    ask_directly(blocking, server.address, b"x")
    errors: list[str] = []

    def ask() -> None:
        with pytest.raises(UsageError) as caught:
            ask_directly(blocking, server.address, b"held")
        errors.append(str(caught.value))

    thread = threading.Thread(target=ask)
    thread.start()
    assert arrived.wait(PATIENCE_S)
    blocking.close()
    thread.join(PATIENCE_S)

    assert errors == ["this client was closed meanwhile"]
    with pytest.raises(UsageError, match="is closed"):
        ask_directly(blocking, server.address, b"y")


class Calls:
    """A served operation that has a driver call a quick function, once for each argument."""

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.numbers = Numbers()
        self.wake = Event()
        self.is_over = False
        self._function = function

    def ask(self, number: int) -> None:
        """Add a call; on the leading thread."""
        self.numbers.waiting.append(number)
        self.wake.set()

    def end(self) -> None:
        self.is_over = True
        self.wake.set()

    def serve(self) -> Any:
        while not self.is_over:
            self.wake.clear()
            if self.numbers.waiting:
                yield CallEach(self._function, deque((self.numbers,)), is_quick=True)
            else:
                yield from wait(self.wake)


class Served:
    """A driver's thread in `serve`."""

    def __init__(self, driver: BlockingDriver, calls: Calls) -> None:
        self._driver, self._calls = driver, calls
        self.result = Result(lambda: driver.serve(calls.serve(), name="served"))

    def ask(self, number: int) -> None:
        self._driver.call_soon_threadsafe(partial(self._calls.ask, number))

    def end(self) -> None:
        self._driver.call_soon_threadsafe(self._calls.end)
        self.result.join()
        assert self.result.error is None
        assert {each.error for each in self._calls.numbers.returned} <= {None}


def test_the_serving_thread_makes_quick_calls_itself(blocking: BlockingDriver) -> None:
    threads: SimpleQueue[int] = SimpleQueue()
    calls = Calls(lambda _: threads.put(threading.get_ident()))
    served = Served(blocking, calls)
    for number in range(3):
        served.ask(number)
        threads_of = threads.get(timeout=PATIENCE_S)
        assert threads_of == served.result.ident
    served.end()
    assert [each.number for each in calls.numbers.returned] == [0, 1, 2]


def test_a_quick_call_that_nobody_can_watch_is_made_in_the_pool(
    blocking: BlockingDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse_stand_in(thread: threading.Thread) -> None:
        if thread.name == "sparrowmq-stand-in":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_stand_in)
    names: SimpleQueue[str] = SimpleQueue()
    served = Served(blocking, Calls(lambda _: names.put(threading.current_thread().name)))
    served.ask(0)

    assert names.get(timeout=PATIENCE_S) == "sparrowmq-call-0"
    served.end()


def test_other_operations_go_on_while_a_quick_call_lasts(
    blocking: BlockingDriver, serve: Callable[..., FrameServer]
) -> None:
    server = serve()
    begun, may_end = SimpleQueue[int](), threading.Semaphore(0)

    def function(number: int) -> None:
        begun.put(number)
        assert may_end.acquire(timeout=PATIENCE_S)

    calls = Calls(function)
    served = Served(blocking, calls)
    # The second call finds the lead back at the serving thread, which lasts again.
    for number in range(2):
        served.ask(number)
        assert begun.get(timeout=PATIENCE_S) == number
        assert blocking.run(ask(server.address, b"meanwhile")) == b"meanwhile"
        may_end.release()
    served.end()
    assert [each.number for each in calls.numbers.returned] == [0, 1]


def test_a_quick_call_may_call_the_driver(
    blocking: BlockingDriver, serve: Callable[..., FrameServer]
) -> None:
    server = serve()
    answers: SimpleQueue[bytes] = SimpleQueue()
    calls = Calls(lambda number: answers.put(blocking.run(ask(server.address, b"%d" % number))))
    served = Served(blocking, calls)
    for number in range(20):
        served.ask(number)
        assert answers.get(timeout=PATIENCE_S) == b"%d" % number
    served.end()


def test_a_quick_call_may_close_the_driver(no_leaks: None) -> None:
    driver = BlockingDriver()
    served = Served(driver, Calls(lambda _: driver.close()))
    served.ask(0)
    served.result.join()
    assert isinstance(served.result.error, UsageError)
    with pytest.raises(UsageError, match="this client is closed"):
        driver.run(now())


def test_close_does_not_wait_for_a_quick_call_that_lasts(no_leaks: None) -> None:
    driver = BlockingDriver()
    begun, may_end = threading.Event(), threading.Event()

    def function(_: int) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)

    served = Served(driver, Calls(function))
    served.ask(0)
    assert begun.wait(PATIENCE_S)
    driver.close()
    may_end.set()
    served.result.join()
    assert isinstance(served.result.error, UsageError)


def test_an_operation_that_ends_while_a_quick_call_lasts_ends_when_the_call_returns(
    blocking: BlockingDriver,
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def function(_: int) -> None:
        begun.set()
        assert may_end.wait(PATIENCE_S)

    calls = Calls(function)

    def serve() -> Any:
        yield from spawn(calls.serve(), name="calls")
        yield from wait(calls.wake)
        calls.wake.clear()
        yield from wait(calls.wake)

    result = Result(lambda: blocking.serve(serve(), name="served"))
    blocking.call_soon_threadsafe(partial(calls.ask, 0))
    assert begun.wait(PATIENCE_S)
    blocking.call_soon_threadsafe(calls.end)
    blocking.run(sleep(0))
    may_end.set()
    result.join()
    assert result.error is None


def test_code_is_still_inside_a_call_after_a_call_of_another_driver() -> None:
    outer, inner = UserCalls(), UserCalls()

    def nested() -> bool:
        return inner.make(lambda: inner.is_inside) and outer.is_inside

    assert outer.make(nested)
    assert not outer.is_inside
    assert not inner.is_inside


def test_interrupt_during_the_end_of_an_interrupted_run_leaves_the_driver_usable(
    blocking: BlockingDriver,
) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt
        yield

    def operation() -> Any:
        try:
            yield from spawn(interrupted(), name="Ctrl-C")
            yield from wait(Event())
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blocking.run(operation())

    assert blocking.run(now()) > 0


class InterruptAt:
    """Raises a KeyboardInterrupt at the n-th place where Python looks for signals.

    Those are the begin of a function and the return of one of C.
    """

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if (
            event in ("call", "c_return")
            and f"{os.sep}sparrowmq{os.sep}" in frame.f_code.co_filename
        ):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("leads", [True, False], ids=["leads", "follows"])
def test_driver_stays_usable_wherever_an_interrupt_comes(
    blocking: BlockingDriver, serve: Callable[..., FrameServer], leads: bool
) -> None:
    """Ctrl-C, or a signal handler of the user that raises, may come between any two steps."""
    server, before = serve(), sys.getprofile()
    stop, other_leads = Event(), threading.Event()
    leader: Result | None = None
    if not leads:
        blocking.call_soon_threadsafe(other_leads.set)
        leader = Result(lambda: blocking.run(wait(stop, timeout_ms=LONG_MS)))
        assert other_leads.wait(PATIENCE_S)
    count, interrupt = 0, InterruptAt(0)
    while interrupt.left <= 0:
        count += 1
        interrupt = InterruptAt(count)
        if leads:
            # Each time with a new connection.
            blocking._network.recover()
        # Python drops an interrupt in a generator that the collector ends.
        gc.disable()
        try:
            sys.setprofile(interrupt)
            blocking.run(ask(server.address, b"interrupted"))
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
            gc.enable()

        assert blocking.run(ask(server.address, b"after")) == b"after"

    assert count > (100 if leads else 10)
    if leader is not None:
        blocking.call_soon_threadsafe(stop.set)
        assert leader.join()


@pytest.mark.parametrize("amid", [_Run.end, ChannelTable.submit], ids=["end", "request"])
def test_interrupt_of_the_thread_that_leads_lets_no_other_wait_for_ever(
    blocking: BlockingDriver, serve: Callable[..., FrameServer], amid: Callable[..., Any]
) -> None:
    server, before, leads = serve(), sys.getprofile(), threading.Event()

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is amid.__code__:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def lead() -> Any:
        leads.set()
        yield from wait(Event(), timeout_ms=LONG_MS)

    def follow() -> Any:
        assert leads.wait(PATIENCE_S)
        return blocking.run(ask(server.address, b"other"))

    other = Result(follow)
    try:
        sys.setprofile(interrupt)
        with pytest.raises(KeyboardInterrupt):
            blocking.run(lead())
    finally:
        sys.setprofile(before)

    other.join()
    assert isinstance(other.error, TransportError)
    assert blocking.run(ask(server.address, b"after")) == b"after"
