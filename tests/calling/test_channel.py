"""The channel over a wire of lists: bounds and idle times, without sockets or waiting."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import pytest

from sparrowmq.calling.channel import IDLE_MS, Channel
from sparrowmq.calling.channel_table import ChannelTable
from sparrowmq.calling.effects import Effect, Oneway, Operation, invoke
from sparrowmq.calling.scheduler import OperationTask, Scheduler
from sparrowmq.errors import (
    ConnectFailed,
    ConnectionLost,
    InvokeTimeout,
    LocalProtocolError,
    RemoteProtocolError,
    TooManyInFlight,
)
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import FrameDecoder, encode_frame


class ListWire:
    """Keeps what is written until `take` sends it."""

    def __init__(self) -> None:
        self.room = 1_000
        self.written: list[bytes] = []
        self.takes_all = True
        self.is_closed = False

    def write(self, frames: Sequence[bytes]) -> None:
        self.written += frames

    def flush(self) -> bool:
        return self.takes_all and self.room > 0

    def close(self) -> None:
        self.is_closed = True


def no_calls(_: OperationTask, effect: Effect) -> None:
    raise AssertionError(effect)


class World:
    """A scheduler whose tasks all use one channel."""

    def __init__(self, **settings: Any) -> None:
        self.time_ms = 1_000
        self.scheduler = Scheduler(
            monotonic_ms=lambda: self.time_ms,
            timestamp_ms=lambda: 7,
            carry=no_calls,
            drop=lambda waiter, place: place.forget(waiter),
        )
        self.scheduler.submit = lambda waiter, effect: self.channel.submit(waiter, effect)
        self.unflushed: list[Channel] = []
        self.failures: list[str] = []
        self.channel = Channel(
            "a:1",
            self.unflushed,
            on_failure=lambda what, error: self.failures.append(f"{what}: {error}"),
            **settings,
        )
        self.wire = ListWire()

    def open(self) -> None:
        self.scheduler.read_clock()
        self.channel.opened(self.wire, self.scheduler)
        self.run()

    def start(self, operation: Operation[Any]) -> OperationTask:
        task = OperationTask(operation, "task")
        self.scheduler.add(task)
        self.run()
        return task

    def run(self) -> None:
        while True:
            self.scheduler.run_ready()
            if not self.unflushed:
                return
            for channel in self.unflushed.copy():
                self.unflushed.remove(channel)
                channel.flush(self.scheduler)

    def answer_last(self) -> None:
        (command,) = FrameDecoder().receive_data(self.wire.written[-1])
        self.channel.received(encode_frame(response_to(command)), self.scheduler)
        self.run()


def ask() -> Operation[Any]:
    return invoke("a:1", RemotingCommand(code=10), timeout_ms=3_000)


def tell() -> Operation[Any]:
    yield Oneway("a:1", RemotingCommand(code=35), 3_000)


def test_requests_wait_for_the_connection_in_their_order() -> None:
    world = World()
    world.start(ask())
    world.start(tell())
    assert world.wire.written == []

    world.open()

    codes = [FrameDecoder().receive_data(frame)[0].code for frame in world.wire.written]
    assert codes == [10, 35]


def test_full_wire_makes_requests_wait_behind_each_other() -> None:
    world = World()
    world.open()
    world.wire.room = 0
    first, second, third = (world.start(ask()) for _ in range(3))
    assert world.wire.written == []

    error = world.channel.time_out(first)
    world.scheduler.throw(first, error)
    world.wire.room, world.wire.takes_all = 1, False
    world.channel.drained(world.scheduler)
    world.run()

    assert TooManyInFlight is type(error)
    assert len(world.wire.written) == 1
    world.answer_last()
    assert second.outcome().is_response
    assert not third.done


def test_one_way_request_that_timed_out_ends_no_later_wait() -> None:
    def tell_then_ask() -> Operation[Any]:
        with pytest.raises(InvokeTimeout):
            yield from tell()
        return (yield from ask())

    world = World()
    world.open()
    world.wire.takes_all = False
    task = world.start(tell_then_ask())
    world.scheduler.throw(task, world.channel.time_out(task))
    world.run()

    world.channel.drained(world.scheduler)
    world.run()

    assert not task.done
    world.answer_last()
    assert task.outcome().is_response


def test_request_that_cannot_be_sent_fails_alone() -> None:
    world = World()
    world.open()
    wrong = invoke("a:1", RemotingCommand(code=10, flag=1), timeout_ms=3_000)
    operations = (ask(), wrong, ask())

    first, refused, last = (OperationTask(each, "task") for each in operations)
    for task in (first, refused, last):
        world.scheduler.add(task)
    world.run()

    assert LocalProtocolError is type(refused.error)
    assert len(world.wire.written) == 2
    assert not first.done
    assert not last.done


def test_request_that_is_cancelled_before_the_flush_is_not_sent() -> None:
    world = World()
    world.open()
    cancelled, other = (OperationTask(ask(), "task") for _ in range(2))
    for task in (cancelled, other):
        world.scheduler.add(task)
    world.scheduler.run_ready()

    world.scheduler.cancel(cancelled)
    world.run()

    assert len(world.wire.written) == 1
    world.answer_last()
    assert other.outcome().is_response


def test_oneway_ends_when_its_bytes_are_sent() -> None:
    world = World()
    world.open()
    world.wire.takes_all = False
    task = world.start(tell())
    assert not task.done

    world.channel.drained(world.scheduler)
    world.run()

    assert task.done


def test_close_tells_what_was_written_from_what_was_not() -> None:
    world = World()
    world.open()
    written = world.start(ask())
    world.wire.room = 0
    unwritten = world.start(ask())
    cause = OSError("gone")

    assert world.channel.close("gone", cause, world.scheduler)
    assert not world.channel.close("again", None, world.scheduler)
    world.run()

    assert world.wire.is_closed
    assert ConnectionLost is type(written.error)
    assert ConnectFailed is type(unwritten.error)
    assert str(unwritten.error) == "connection to a:1 lost before the request was sent: gone"
    assert [task.error and task.error.__cause__ for task in (written, unwritten)] == [cause, cause]


def test_process_without_a_descriptor_is_told_so_and_not_to_look_at_the_server() -> None:
    world = World()
    task = world.start(ask())

    lack = OSError(errno.EMFILE, "Too many open files")
    world.channel.close("Too many open files", lack, world.scheduler)
    world.run()

    said = "cannot connect to a:1: Too many open files; close some, or raise this process's limit"
    assert str(task.error) == f"{said} (ulimit -n)"


def test_connection_is_idle_only_after_its_last_byte_either_way() -> None:
    world = World()
    world.open()
    world.time_ms += IDLE_MS - 1
    task = world.start(ask())
    assert not world.channel.is_idle

    world.time_ms += 1
    assert world.channel not in world.scheduler.expire(world.time_ms)
    world.scheduler.read_clock()
    world.answer_last()

    assert task.done
    assert world.channel.is_idle
    assert world.time_ms + IDLE_MS == world.channel.deadline_ms
    world.time_ms += IDLE_MS
    assert [world.channel] == world.scheduler.expire(world.time_ms)


def test_peer_that_asks_and_takes_no_answers_is_refused() -> None:
    world = World(on_request=lambda _, command: response_to(command))
    world.open()
    world.wire.room = 0

    with pytest.raises(RemoteProtocolError, match="takes no answers"):
        world.channel.received(encode_frame(RemotingCommand(code=307)), world.scheduler)


def test_connection_on_which_an_answer_is_due_is_not_idle() -> None:
    world = World()
    lost: list[str] = []
    table = ChannelTable(
        world.scheduler, lambda _: None, on_request=None, on_connection_lost=lost.append
    )
    table.unflushed = world.unflushed
    task = world.start(invoke("a:1", RemotingCommand(code=10), timeout_ms=10 * IDLE_MS))
    (world.channel,) = table._by_address.values()
    world.open()
    for _ in range(3):
        world.time_ms += IDLE_MS
        for timed in world.scheduler.expire(world.time_ms):
            table.expire(timed)
    assert lost == []
    world.answer_last()
    assert task.done
    world.time_ms += IDLE_MS
    for timed in world.scheduler.expire(world.time_ms):
        table.expire(timed)

    assert lost == ["a:1"]


def test_request_ends_once_though_its_time_is_up_when_its_connection_is_given_up() -> None:
    world = World()
    table = ChannelTable(world.scheduler, lambda _: None, on_request=None, on_connection_lost=None)
    task = world.start(ask())
    (channel,) = table._by_address.values()
    world.scheduler.set_deadline(channel, task.deadline_ms - 1)

    given_up, request = world.scheduler.expire(task.deadline_ms)
    table.lose(channel, "no answer", None)
    table.expire(request)
    world.run()

    assert given_up is channel
    assert isinstance(task.error, ConnectFailed)
