"""What only the async driver does: asyncio's cancelling, coroutine functions, its own loop."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from frame_server import FrameServer, Peer, echo
from harness import Numbers
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.effects import (
    CallEach,
    Cancelled,
    Event,
    Invoke,
    Outcome,
    call,
    cancel,
    invoke,
    join,
    now,
    sleep,
    spawn,
    wait,
)
from sparrowmq.errors import (
    ConnectFailed,
    ConnectionLost,
    InvokeTimeout,
    UsageError,
)
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.send_request import SendRequest, SendTemplate, make_fields
from sparrowmq.protocol.signatures import Credentials, is_signature_valid

LONG_MS = 20_000
PATIENCE_S = 60


@pytest.fixture
async def driver() -> AsyncIterator[AsyncDriver]:
    async with AsyncDriver() as driver:
        yield driver


def ask(address: str, body: bytes) -> Any:
    answer = yield from invoke(address, RemotingCommand(code=10, body=body), timeout_ms=LONG_MS)
    return answer.body


async def test_callers_share_one_connection(
    driver: AsyncDriver, serve: Callable[..., FrameServer]
) -> None:
    server = serve()
    bodies = [b"%d" % number for number in range(200)]

    answers = await asyncio.gather(*(driver.run(ask(server.address, body)) for body in bodies))

    assert bodies == answers
    assert server.connection_count == 1
    await driver.aclose()


async def test_operation_that_never_waits_returns_at_once(driver: AsyncDriver) -> None:
    instant = driver.run(now())

    with pytest.raises(StopIteration):
        instant.send(None)


async def test_cancelled_caller_cancels_its_operation(driver: AsyncDriver) -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()

    def operation() -> Any:
        begun.set()
        try:
            yield from wait(Event())
        except Cancelled:
            ended.set()
            raise

    caller = asyncio.create_task(driver.run(operation()))
    await begun.wait()
    caller.cancel()

    with pytest.raises(asyncio.CancelledError):
        await caller
    await ended.wait()


async def test_event_set_by_other_code_on_the_loop_ends_a_wait(driver: AsyncDriver) -> None:
    event = Event()
    waiting = asyncio.create_task(driver.run(wait(event, timeout_ms=LONG_MS)))
    await asyncio.sleep(0)

    event.set()

    assert await waiting


async def add(left: int, right: int) -> int:
    await asyncio.sleep(0)
    return left + right


class Adder:
    """A listener that is an object."""

    async def __call__(self, left: int, right: int) -> int:
        return await add(left, right)


@pytest.mark.parametrize("function", [add, partial(add, right=2), Adder()])
async def test_coroutine_function_is_awaited_on_the_loop(
    driver: AsyncDriver, function: Any
) -> None:
    args = (5,) if isinstance(function, partial) else (5, 2)

    assert await driver.run(call(function, *args)) == 7


async def test_coroutine_functions_error_is_raised(driver: AsyncDriver) -> None:
    async def fails() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError):
        await driver.run(call(fails))


async def test_cancel_cancels_a_coroutine_call(driver: AsyncDriver) -> None:
    cancelled = asyncio.Event()
    begun = asyncio.Event()

    async def listener() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    def operation() -> Any:
        task = yield from spawn(call(listener), name="listener")
        yield from call(begun.wait)
        yield from cancel(task)
        yield from join(task)

    with pytest.raises(UsageError, match="task listener was cancelled"):
        await driver.run(operation())
    await cancelled.wait()


async def test_coroutine_calls_one_by_one_tell_how_each_ended(driver: AsyncDriver) -> None:
    async def listener(number: int) -> float:
        await asyncio.sleep(0)
        if number == 2:
            raise asyncio.CancelledError
        return 12 / number

    calls = Numbers(3, 0, 2, 4)

    def operation() -> Any:
        while calls.waiting:
            yield CallEach(listener, deque((calls,)))

    await driver.run(operation())

    ended = [(each.number, each.value, type(each.error)) for each in calls.returned]
    assert [
        (3, 4, type(None)),
        (0, None, ZeroDivisionError),
        (2, None, UsageError),
        (4, 3, type(None)),
    ] == ended


async def test_cancel_cancels_the_coroutine_call_under_way_and_no_other_begins(
    driver: AsyncDriver,
) -> None:
    begun = asyncio.Event()

    async def listener(_: int) -> None:
        begun.set()
        await asyncio.Event().wait()

    calls = Numbers(1, 2)

    def run_calls() -> Any:
        yield CallEach(listener, deque((calls,)))

    def operation() -> Any:
        task = yield from spawn(run_calls(), name="calls")
        yield from call(begun.wait)
        yield from cancel(task)
        while not calls.returned:
            yield from sleep(1)

    await driver.run(operation())

    assert [returned.number for returned in calls.returned] == [1]
    assert list(calls.waiting) == [2]


async def test_spawned_task_runs_beside_the_loop(driver: AsyncDriver) -> None:
    ran = asyncio.Event()

    async def note() -> None:
        ran.set()

    driver.spawn(call(note), name="notes")

    await ran.wait()


async def test_aclose_ends_coroutine_calls_and_callers() -> None:
    driver = AsyncDriver()
    begun, ended = asyncio.Event(), asyncio.Event()

    async def listener() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    caller = asyncio.create_task(driver.run(call(listener)))
    await begun.wait()
    await driver.aclose()

    assert ended.is_set()
    with pytest.raises(UsageError, match="closed meanwhile"):
        await caller


@pytest.mark.parametrize("turns", [1, 2])
async def test_address_is_connected_to_anew_after_the_task_that_connects_was_cancelled(
    turns: int, serve: Callable[..., FrameServer], driver: AsyncDriver
) -> None:
    server = serve()
    caller = asyncio.create_task(driver.run(ask(server.address, b"x")))
    for _ in range(turns):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task(), caller}:
        task.cancel()

    with pytest.raises(ConnectFailed, match="was cancelled"):
        await caller
    assert await driver.run(ask(server.address, b"y")) == b"y"


async def test_aclose_gives_up_connecting() -> None:
    driver = AsyncDriver()
    # A port that takes no further connections: one waits in its queue already.
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
            fillers.append(filler)
        caller = asyncio.create_task(driver.run(ask(address, b"x")))
        await asyncio.sleep(0)
        async with asyncio.timeout(2):
            await driver.aclose()
        for filler in fillers:
            filler.close()

    with pytest.raises(UsageError, match="closed meanwhile"):
        await caller


def test_driver_belongs_to_one_loop() -> None:
    driver = AsyncDriver()

    async def use() -> int:
        return await driver.run(now())

    async def close() -> None:
        await driver.aclose()

    assert asyncio.run(use()) > 0
    for again in (use, close):
        with pytest.raises(UsageError, match="another event loop"):
            asyncio.run(again())


async def test_operation_of_clocks_and_requests_needs_no_task(
    serve: Callable[..., FrameServer], driver: AsyncDriver
) -> None:
    server = serve()
    tasks: list[int] = []

    def operation() -> Any:
        for _ in range(3):
            yield from now()
            yield from invoke(server.address, RemotingCommand(code=10), timeout_ms=LONG_MS)
            tasks.append(len(driver._scheduler.tasks))
        yield from sleep(1)
        tasks.append(len(driver._scheduler.tasks))

    await driver.run(operation())

    assert tasks == [0, 0, 0, 1]


# Requests for which no task waits.


def body_of(answer: Outcome) -> bytes | None:
    assert isinstance(answer, RemotingCommand)
    return answer.body


async def ask_directly(
    driver: AsyncDriver, address: str, body: bytes, *, timeout_ms: int = LONG_MS
) -> Outcome:
    fields = make_fields("G", "T", template_topic="TBW102", template_queues_max=4, code=310)
    request = SendRequest(SendTemplate(310, fields), (0, 0, 0, 0), "", body)
    return await driver.ask(Invoke(address, request, timeout_ms))


async def test_requests_without_tasks_are_answered_each_with_its_own(
    serve: Callable[..., FrameServer], driver: AsyncDriver
) -> None:
    server = serve()
    bodies = [b"%d" % number for number in range(200)]

    # The first ones wait for the connection.
    for _ in range(2):
        answers = await asyncio.gather(
            *(ask_directly(driver, server.address, body) for body in bodies)
        )
        assert bodies == [body_of(answer) for answer in answers]

    assert server.connection_count == 1


async def test_request_without_a_task_runs_out_of_time(
    serve: Callable[..., FrameServer], driver: AsyncDriver
) -> None:
    held: SimpleQueue[tuple[Peer, RemotingCommand]] = SimpleQueue()

    def hold(peer: Peer, request: RemotingCommand) -> None:
        if request.body == b"held":
            held.put((peer, request))
        else:
            echo(peer, request)

    server = serve(hold)
    await ask_directly(driver, server.address, b"x")

    outcome = await ask_directly(driver, server.address, b"held", timeout_ms=30)

    assert isinstance(outcome, InvokeTimeout)
    assert "did not answer request 310 within 30 ms" in str(outcome)
    # Its late answer is nobody's.
    peer, request = held.get(timeout=PATIENCE_S)
    peer.reply(request, body=b"late")
    answer = await ask_directly(driver, server.address, b"y", timeout_ms=30_000)

    assert body_of(answer) == b"y"


async def test_request_without_a_task_ends_with_its_connection(
    serve: Callable[..., FrameServer], driver: AsyncDriver
) -> None:
    server = serve(
        lambda peer, request: peer.close() if request.body == b"end" else echo(peer, request)
    )
    await ask_directly(driver, server.address, b"x")

    assert isinstance(await ask_directly(driver, server.address, b"end"), ConnectionLost)


@pytest.mark.parametrize("how", ["cancel", "close"])
async def test_request_without_a_task_is_given_up(
    serve: Callable[..., FrameServer], driver: AsyncDriver, how: str
) -> None:
    server = serve(lambda peer, request: None if request.body == b"held" else echo(peer, request))
    await ask_directly(driver, server.address, b"x")
    asking = asyncio.create_task(ask_directly(driver, server.address, b"held"))
    await asyncio.sleep(0)

    if how == "cancel":
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        answer = await ask_directly(driver, server.address, b"y")
        assert body_of(answer) == b"y"
    else:
        await driver.aclose()
        with pytest.raises(UsageError, match="closed meanwhile"):
            await asking
        with pytest.raises(UsageError, match="is closed"):
            await ask_directly(driver, server.address, b"y")


async def test_request_that_was_given_up_is_forgotten_when_its_time_is_up(
    serve: Callable[..., FrameServer], driver: AsyncDriver
) -> None:
    server = serve(lambda peer, request: None if request.body == b"held" else echo(peer, request))
    await ask_directly(driver, server.address, b"x")
    asking = asyncio.create_task(ask_directly(driver, server.address, b"held", timeout_ms=30))
    await asyncio.sleep(0)
    channel = driver._channels._by_address[server.address]
    assert not channel.is_idle
    asking.cancel()
    # Begins after it and has the same time, so both are taken out together.
    outcome = await ask_directly(driver, server.address, b"held", timeout_ms=30)

    assert isinstance(outcome, InvokeTimeout)
    assert channel.is_idle


async def test_answered_requests_leave_nothing_to_the_garbage_collector(
    serve: Callable[..., FrameServer], driver: AsyncDriver
) -> None:
    server = serve()
    await ask_directly(driver, server.address, b"x")
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            await ask_directly(driver, server.address, b"x")

        assert gc.collect() < 50
    finally:
        gc.enable()


async def test_request_without_a_task_is_signed(serve: Callable[..., FrameServer]) -> None:
    seen: list[RemotingCommand] = []

    def answer(peer: Peer, request: RemotingCommand) -> None:
        seen.append(request)
        echo(peer, request)

    server = serve(answer)
    async with AsyncDriver(
        credentials=Credentials(access_key="key", secret_key="secret")
    ) as driver:
        for _ in range(2):
            await ask_directly(driver, server.address, b"x")

    for request in seen:
        assert is_signature_valid(request.ext_fields or {}, request.body, secret_key="secret")


@pytest.mark.parametrize("was_open", [True, False])
async def test_request_after_a_lost_connection_is_written_at_once(
    driver: AsyncDriver, serve: Callable[..., FrameServer], free_port: int, was_open: bool
) -> None:
    kept, lost = serve(), serve(lambda peer, _: peer.close())
    address = lost.address if was_open else f"127.0.0.1:{free_port}"

    def go_on_elsewhere() -> Any:
        with pytest.raises(ConnectionLost if was_open else ConnectFailed):
            yield from ask(address, b"a")
        return (yield from ask(kept.address, b"b"))

    assert await driver.run(ask(kept.address, b"open")) == b"open"
    async with asyncio.timeout(LONG_MS / 2_000):
        assert await driver.run(go_on_elsewhere()) == b"b"
    await driver.aclose()
