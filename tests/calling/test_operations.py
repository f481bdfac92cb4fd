"""The same operations under every driver, against a server of real sockets."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from queue import Queue
from typing import Any

import pytest

from frame_server import FrameServer, Handler, Peer
from harness import Harness, Numbers
from sparrowmq.calling.effects import (
    CALLS_MS,
    CallEach,
    Cancelled,
    Event,
    Oneway,
    WaitingCalls,
    bounded,
    call,
    cancel,
    invoke,
    join,
    now,
    sleep,
    spawn,
    timestamp,
    wait,
)
from sparrowmq.errors import (
    ConnectFailed,
    ConnectionLost,
    InvokeTimeout,
    LocalProtocolError,
    RemoteProtocolError,
    TooManyInFlight,
    TransportError,
    UsageError,
)
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import encode_frame
from sparrowmq.protocol.signatures import Credentials, is_signature_valid

SOON_MS = 30
LONG_MS = 20_000
PATIENCE_S = 60


def request(code: int = 10, body: bytes | None = None) -> RemotingCommand:
    return RemotingCommand(code=code, body=body)


def ask(address: str, body: bytes | None = None, timeout_ms: int = LONG_MS) -> Any:
    answer = yield from invoke(address, request(body=body), timeout_ms=timeout_ms)
    return answer.body


def oneway(address: str, request: RemotingCommand, *, timeout_ms: int) -> Any:
    yield Oneway(address, request, timeout_ms)


def failure_of(operation: Any) -> Any:
    """Run an operation that must fail and return its error."""
    try:
        yield from operation
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


def together(operations: list[Any]) -> Any:
    tasks = []
    for operation in operations:
        tasks.append((yield from spawn(operation, name="one of many")))
    results = []
    for task in tasks:
        results.append((yield from join(task)))
    return results


# Invoke.


def test_invoke_returns_the_answer(driver: Harness, serve: Callable[..., FrameServer]) -> None:
    server = serve()

    answer = driver.run(invoke(server.address, request(body=b"hello"), timeout_ms=LONG_MS))

    assert (answer.code, answer.body, answer.is_response) == (0, b"hello", True)


def test_answers_in_any_order_reach_their_own_tasks(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    kept = []

    def answer_in_reverse(peer: Peer, command: RemotingCommand) -> None:
        kept.append(command)
        if len(kept) == 5:
            for earlier in reversed(kept):
                peer.reply(earlier, body=earlier.body)

    server = serve(answer_in_reverse)
    bodies = [b"%d" % number for number in range(5)]

    answers = driver.run(together([ask(server.address, body) for body in bodies]))

    assert bodies == answers
    assert server.connection_count == 1


def test_hundreds_of_tasks_share_one_connection(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    server = serve()
    bodies = [b"%d" % number for number in range(500)]

    answers = driver.run(together([ask(server.address, body) for body in bodies]))

    assert bodies == answers
    assert server.connection_count == 1


def test_connection_is_kept_between_operations(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    server = serve()

    assert driver.run(ask(server.address, b"1")) == b"1"
    assert driver.run(ask(server.address, b"2")) == b"2"
    assert server.connection_count == 1


def test_large_bodies_travel_both_ways(driver: Harness, serve: Callable[..., FrameServer]) -> None:
    server = serve()
    body = bytes(range(256)) * 16_384

    answers = driver.run(together([ask(server.address, body) for _ in range(3)]))

    assert answers == [body] * 3


def test_answer_may_come_byte_by_byte(driver: Harness, serve: Callable[..., FrameServer]) -> None:
    def answer_slowly(peer: Peer, command: RemotingCommand) -> None:
        for byte in encode_frame(response_to(command, body=b"slow")):
            peer.send(bytes([byte]))

    server = serve(answer_slowly)

    assert driver.run(ask(server.address)) == b"slow"


def test_refused_connection_names_address_and_remedy(driver: Harness, free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"

    error = driver.run(failure_of(ask(address)))

    assert ConnectFailed is type(error)
    assert address == error.address
    assert f"cannot connect to {address}: Connection refused; check the address" in str(error)
    assert (error.retriable, error.outcome_unknown) == (True, False)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("nonsense", "not of the form host:port"),
        ("127.0.0.1:http", "port 'http' is not between 1 and 65535"),
        ("127.0.0.1:0", "port '0' is not between 1 and 65535"),
    ],
)
def test_malformed_address_is_a_failed_connection(
    driver: Harness, address: str, reason: str
) -> None:
    error = driver.run(failure_of(ask(address)))

    assert ConnectFailed is type(error)
    assert reason in str(error)


def test_host_name_that_cannot_exist_is_a_failed_connection(driver: Harness) -> None:
    error = driver.run(failure_of(ask("x" * 64 + ".test:9876")))

    assert ConnectFailed is type(error)


def test_names_are_looked_up(driver: Harness, serve: Callable[..., FrameServer]) -> None:
    server = serve()

    # The first is known without asking; the second only `getaddrinfo` understands.
    assert driver.run(ask(f"localhost:{server.port}", b"1")) == b"1"
    assert driver.run(ask(f"127.1:{server.port}", b"2")) == b"2"


def test_address_that_drops_packets_leaves_time_for_the_next_one_of_the_name(
    driver: Harness, serve: Callable[..., FrameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()

    def find(*_: object, **__: object) -> list[Any]:
        kind = socket.AF_INET, socket.SOCK_STREAM, 6, ""
        return [(*kind, (host, server.port)) for host in ("127.0.0.2", "127.0.0.1")]

    # A port that takes no further connections: one waits in its queue already.
    with ExitStack() as fillers, socket.create_server(("127.0.0.2", server.port), backlog=0):
        for _ in range(3):
            filler = fillers.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.2", server.port))
        monkeypatch.setattr(socket, "getaddrinfo", find)

        assert driver.run(ask(f"two-addresses.test:{server.port}", b"2")) == b"2"


def test_address_may_be_of_ip_version_6(driver: Harness, serve: Callable[..., FrameServer]) -> None:
    try:
        server = serve(host="::1")
    except OSError:
        pytest.skip("no IPv6 on this machine")

    assert driver.run(ask(f"[::1]:{server.port}", b"6")) == b"6"


def test_connecting_is_tried_anew_after_a_failure(
    driver: Harness, serve: Callable[..., FrameServer], free_port: int
) -> None:
    server = serve()

    assert ConnectFailed is type(driver.run(failure_of(ask(f"127.0.0.1:{free_port}"))))
    assert driver.run(ask(server.address, b"x")) == b"x"


def test_peer_that_closes_in_the_middle_of_an_answer_loses_the_connection(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    def answer_half(peer: Peer, command: RemotingCommand) -> None:
        if command.body == b"half":
            peer.send(encode_frame(response_to(command, body=b"hidden"))[:-3])
            peer.close()
        else:
            peer.reply(command, body=b"whole")

    server = serve(answer_half)

    error = driver.run(failure_of(ask(server.address, b"half")))

    assert ConnectionLost is type(error)
    assert (error.retriable, error.outcome_unknown) == (True, True)
    assert str(error) == f"connection to {server.address} lost: closed by the peer"
    assert driver.run(ask(server.address)) == b"whole"


def test_reset_fails_every_waiting_task(driver: Harness, serve: Callable[..., FrameServer]) -> None:
    count = 0

    def reset_at_third(peer: Peer, _: RemotingCommand) -> None:
        nonlocal count
        count += 1
        if count == 3:
            peer.reset()

    server = serve(reset_at_third)

    errors = driver.run(together([failure_of(ask(server.address)) for _ in range(3)]))

    assert [type(error) for error in errors] == [ConnectionLost] * 3


def test_bytes_that_are_no_frame_lose_the_connection(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    server = serve(lambda peer, _: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"))

    error = driver.run(failure_of(ask(server.address)))

    assert ConnectionLost is type(error)
    assert isinstance(error.__cause__, RemoteProtocolError)


def test_time_out_keeps_the_connection_and_drops_the_late_answer(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    kept = []

    def answer_late(peer: Peer, command: RemotingCommand) -> None:
        if command.body == b"late":
            kept.append(command)
            return
        # Nothing is kept yet when the connection is made.
        for earlier in kept:
            peer.reply(earlier, body=b"too late")
        peer.reply(command, body=b"in time")

    server = serve(answer_late)
    driver.run(ask(server.address))

    error = driver.run(failure_of(ask(server.address, b"late", timeout_ms=SOON_MS)))
    assert InvokeTimeout is type(error)
    assert str(error) == f"{server.address} did not answer request 10 within {SOON_MS} ms"

    assert driver.run(ask(server.address)) == b"in time"
    assert server.connection_count == 1


def test_request_that_cannot_be_encoded_fails_alone(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    server = serve()
    too_large = bytes(17 * 1024 * 1024)

    results = driver.run(
        together([ask(server.address, b"1"), failure_of(ask(server.address, too_large))])
    )

    assert results[0] == b"1"
    assert LocalProtocolError is type(results[1])
    assert driver.run(ask(server.address, b"2")) == b"2"


def test_peer_that_does_not_read_bounds_what_is_buffered(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    reads = threading.Event()
    server = serve(reads=reads)
    megabyte = bytes(1024 * 1024)

    driver.run(oneway(server.address, request(), timeout_ms=LONG_MS))

    asks = [failure_of(ask(server.address, megabyte, timeout_ms=100)) for _ in range(60)]
    errors = driver.run(together(asks))

    kinds = {type(error) for error in errors}
    assert kinds == {InvokeTimeout, TooManyInFlight}
    unwritten = sum(type(error) is TooManyInFlight for error in errors)
    assert unwritten >= 30


def test_requests_wait_for_room_in_the_buffer(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    reads = threading.Event()
    server = serve(reads=reads)
    megabyte = bytes(1024 * 1024)

    def read_after_a_while() -> Any:
        yield from sleep(SOON_MS)
        reads.set()

    asks = [ask(server.address, megabyte) for _ in range(40)]
    results = driver.run(together([*asks, read_after_a_while()]))

    assert results[:-1] == [megabyte] * 40


# One-way.


def test_oneway_is_written_and_not_answered(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    seen = []
    arrived = threading.Event()

    def note(peer: Peer, command: RemotingCommand) -> None:
        seen.append((command.code, command.is_oneway))
        arrived.set()

    server = serve(note)

    assert driver.run(oneway(server.address, request(35), timeout_ms=LONG_MS)) is None
    assert arrived.wait(PATIENCE_S)
    assert seen == [(35, True)]


def test_oneway_to_nobody_fails(driver: Harness, free_port: int) -> None:
    error = driver.run(failure_of(oneway(f"127.0.0.1:{free_port}", request(), timeout_ms=LONG_MS)))

    assert ConnectFailed is type(error)


def test_oneways_to_a_peer_that_does_not_read_time_out(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    server = serve(reads=threading.Event())
    body = bytes(4 * 1024 * 1024)
    driver.run(oneway(server.address, request(), timeout_ms=LONG_MS))

    def flood() -> Any:
        for _ in range(20):
            yield from oneway(server.address, request(body=body), timeout_ms=SOON_MS)

    error = driver.run(failure_of(flood()))

    assert type(error) in (InvokeTimeout, TooManyInFlight)


# Requests of the peer.


def push_then_reply(
    push: RemotingCommand, answers: list[RemotingCommand], got: threading.Event
) -> Handler:
    """Handle a request by pushing one to the client first."""

    def handle(peer: Peer, command: RemotingCommand) -> None:
        if command.is_response:
            answers.append(command)
            got.set()
            return
        peer.send(encode_frame(push))
        peer.reply(command, body=b"done")

    return handle


def test_request_of_the_peer_is_answered(
    make_driver: Callable[..., Harness], serve: Callable[..., FrameServer]
) -> None:
    seen = []
    answers: list[RemotingCommand] = []
    got = threading.Event()
    server = serve(push_then_reply(RemotingCommand(code=307, opaque=77), answers, got))

    def on_request(address: str, command: RemotingCommand) -> RemotingCommand:
        seen.append((address, command.code))
        return response_to(command, body=b"running")

    driver = make_driver(on_request=on_request)

    assert driver.run(ask(server.address)) == b"done"
    assert got.wait(PATIENCE_S)
    assert [(server.address, 307)] == seen
    assert [(a.opaque, a.code, a.body) for a in answers] == [(77, 0, b"running")]


def test_oneway_request_of_the_peer_is_not_answered(
    make_driver: Callable[..., Harness], serve: Callable[..., FrameServer]
) -> None:
    answers: list[RemotingCommand] = []
    got = threading.Event()
    server = serve(push_then_reply(RemotingCommand(code=40, flag=2), answers, got))
    driver = make_driver(on_request=lambda _, command: response_to(command))

    assert driver.run(ask(server.address)) == b"done"
    assert driver.run(ask(server.address)) == b"done"
    assert answers == []


def test_request_of_the_peer_without_a_handler_is_not_supported(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    answers: list[RemotingCommand] = []
    got = threading.Event()
    server = serve(push_then_reply(RemotingCommand(code=999, opaque=5), answers, got))

    driver.run(ask(server.address))
    assert got.wait(PATIENCE_S)

    assert [(a.opaque, a.code) for a in answers] == [(5, ResponseCode.REQUEST_CODE_NOT_SUPPORTED)]


def test_handler_that_fails_answers_an_error_and_keeps_the_connection(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[RemotingCommand] = []
    got = threading.Event()
    server = serve(push_then_reply(RemotingCommand(code=307), answers, got))

    def on_request(_: str, command: RemotingCommand) -> RemotingCommand:
        raise ValueError("no such table")

    driver = make_driver(on_request=on_request)
    driver.run(ask(server.address))
    assert got.wait(PATIENCE_S)
    driver.run(ask(server.address))

    assert answers[0].code == ResponseCode.SYSTEM_ERROR
    assert answers[0].remark == "ValueError('no such table')"
    assert server.connection_count == 1
    assert "request 307" in caplog.text


def test_lost_connection_is_told_once(
    make_driver: Callable[..., Harness], serve: Callable[..., FrameServer]
) -> None:
    lost: list[str] = []
    server = serve(lambda peer, _: peer.close())
    driver = make_driver(on_connection_lost=lost.append)

    driver.run(failure_of(ask(server.address)))

    assert [server.address] == lost


def test_failed_connect_and_close_are_no_lost_connections(
    make_driver: Callable[..., Harness], serve: Callable[..., FrameServer], free_port: int
) -> None:
    lost: list[str] = []
    server = serve()
    driver = make_driver(on_connection_lost=lost.append)

    driver.run(failure_of(ask(f"127.0.0.1:{free_port}")))
    driver.run(ask(server.address))
    driver.close_driver()

    assert lost == []


# Tasks.


def returns(value: Any) -> Any:
    yield from sleep(0)
    return value


def fails(error: Exception) -> Any:
    yield from sleep(0)
    raise error


def test_join_returns_the_result_whenever_it_comes(driver: Harness) -> None:
    def operation() -> Any:
        task = yield from spawn(returns(5), name="five")
        early = yield from join(task)
        late = yield from join(task)
        return early, late, task.done, task.name

    assert driver.run(operation()) == (5, 5, True, "five")


def test_join_raises_the_error(driver: Harness) -> None:
    def operation() -> Any:
        task = yield from spawn(fails(KeyError("k")), name="fails")
        first = yield from failure_of(join(task))
        second = yield from failure_of(join(task))
        return first is second, type(first)

    assert driver.run(operation()) == (True, KeyError)


def test_join_gives_up_after_its_time(driver: Harness) -> None:
    event = Event()

    def operation() -> Any:
        task = yield from spawn(wait(event), name="waits")
        error = yield from failure_of(join(task, timeout_ms=SOON_MS))
        event.set()
        return type(error), str(error), (yield from join(task))

    expected = (InvokeTimeout, f"task waits did not end within {SOON_MS} ms", True)
    assert driver.run(operation()) == expected


def test_joining_oneself_or_a_stranger_is_a_mistake(driver: Harness) -> None:
    tasks: list[Any] = []

    def itself() -> Any:
        yield from sleep(0)
        yield from join(tasks[0])

    def operation() -> Any:
        tasks.append((yield from spawn(itself(), name="itself")))
        first = yield from failure_of(join(tasks[0]))
        second = yield from failure_of(join("no task"))  # type: ignore[arg-type]
        return type(first), type(second)

    assert driver.run(operation()) == (UsageError, UsageError)


def test_what_is_no_effect_is_a_mistake(driver: Harness) -> None:
    def operation() -> Any:
        yield "no effect"

    assert UsageError is type(driver.run(failure_of(operation())))


def test_error_that_nobody_joins_is_logged_at_close(
    driver: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    def operation() -> Any:
        yield from spawn(fails(ValueError("unseen")), name="lonely")
        yield from sleep(1)

    driver.run(operation())
    driver.close_driver()

    assert [
        record.getMessage() for record in caplog.records if record.levelno == logging.ERROR
    ] == ["task lonely failed and nobody joined it"]
    assert "unseen" in caplog.text


def test_error_that_is_joined_is_not_logged(
    driver: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    def operation() -> Any:
        task = yield from spawn(fails(ValueError("seen")), name="watched")
        yield from sleep(1)
        yield from failure_of(join(task))

    driver.run(operation())
    driver.close_driver()

    assert [record for record in caplog.records if record.levelno == logging.ERROR] == []


def test_sleeps_end_in_the_order_of_their_deadlines(driver: Harness) -> None:
    order: list[int] = []

    def sleeper(duration_ms: int) -> Any:
        yield from sleep(duration_ms)
        order.append(duration_ms)

    driver.run(together([sleeper(40), sleeper(0), sleeper(20)]))

    assert order == [0, 20, 40]


def test_sleep_lasts_as_long_as_it_says(driver: Harness) -> None:
    def operation() -> Any:
        begin = yield from now()
        yield from sleep(SOON_MS)
        end = yield from now()
        return end - begin >= SOON_MS

    assert driver.run(operation())


def test_clocks_tell_different_times(driver: Harness) -> None:
    def operation() -> Any:
        return (yield from now()), (yield from timestamp())

    monotonic, wall = driver.run(operation())

    assert wall > 1_600_000_000_000
    assert monotonic < wall


def test_wait_ends_when_the_event_is_set(driver: Harness) -> None:
    event = Event()

    def setter() -> Any:
        yield from sleep(1)
        event.set()

    def operation() -> Any:
        yield from spawn(setter(), name="setter")
        woken = yield from wait(event, timeout_ms=LONG_MS)
        again = yield from wait(event)
        event.clear()
        late = yield from wait(event, timeout_ms=1)
        return woken, again, late

    assert driver.run(operation()) == (True, True, False)


def test_event_set_from_another_thread_through_the_driver_ends_a_wait(driver: Harness) -> None:
    event = Event()
    threads: list[threading.Thread] = []

    def operation() -> Any:
        thread = threading.Thread(target=driver.call_soon_threadsafe, args=(event.set,))
        threads.append(thread)
        thread.start()
        return (yield from wait(event, timeout_ms=LONG_MS))

    assert driver.run(operation())
    threads[0].join()


# Calls.


def test_call_runs_a_plain_function_in_another_thread(driver: Harness) -> None:
    ident = driver.run(call(threading.get_ident))

    assert ident != threading.get_ident()


def test_call_passes_arguments_and_errors(driver: Harness) -> None:
    def operation() -> Any:
        value = yield from call(divmod, 7, 2)
        error = yield from failure_of(call(divmod, 7, 0))
        return value, type(error)

    assert driver.run(operation()) == ((3, 1), ZeroDivisionError)


def test_calls_are_bounded_by_the_pool(make_driver: Callable[..., Harness]) -> None:
    driver = make_driver(pool_size=2)
    lock = threading.Lock()
    both_in = threading.Barrier(2)
    running = peak = 0

    def listener() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        both_in.wait(PATIENCE_S)
        with lock:
            running -= 1

    driver.run(together([call(listener) for _ in range(6)]))

    assert peak == 2


def test_pool_exists_only_after_a_call(driver: Harness, serve: Callable[..., FrameServer]) -> None:
    server = serve()
    driver.run(ask(server.address))
    before = {thread.name for thread in threading.enumerate()}
    driver.run(call(int))
    after = {thread.name for thread in threading.enumerate()}

    assert after - before == {"sparrowmq-call-0"}


def run_each(function: Callable[..., Any], *calls: Numbers) -> Any:
    waiting: deque[WaitingCalls] = deque(calls)
    while waiting:
        yield CallEach(function, waiting)


def test_calls_one_by_one_tell_how_each_ended(driver: Harness) -> None:
    calls = [Numbers(3, 0), Numbers(), Numbers(4)]

    assert driver.run(run_each(lambda number: 12 // number, *calls)) is None

    ended = [(end.number, end.value, type(end.error)) for each in calls for end in each.returned]
    assert [(3, 4, type(None)), (0, None, ZeroDivisionError), (4, 3, type(None))] == ended


def test_what_a_call_returned_shows_before_the_next_one_ends(driver: Harness) -> None:
    release = threading.Event()
    calls = Numbers(1, 2)

    def function(number: int) -> None:
        assert number < 2 or release.wait(PATIENCE_S)

    def operation() -> Any:
        task = yield from spawn(run_each(function, calls), name="calls")
        while not calls.returned:
            yield from sleep(1)
        is_done = task.done
        release.set()
        yield from join(task)
        return is_done

    assert driver.run(operation()) is False
    assert [returned.number for returned in calls.returned] == [1, 2]


def test_calls_that_take_their_time_are_left_to_others(driver: Harness) -> None:
    calls = Numbers(*range(3))

    def operation() -> Any:
        yield CallEach(lambda _: time.sleep(2 * CALLS_MS / 1_000), deque((calls,)))

    driver.run(operation())

    assert ([returned.number for returned in calls.returned], len(calls.waiting)) == ([0], 2)
    assert calls.returned[0].duration_ms >= CALLS_MS


def test_no_call_begins_after_the_one_in_which_all_were_cancelled(driver: Harness) -> None:
    begun, release = threading.Event(), threading.Event()
    calls = Numbers(1, 2)

    def listener(_: int) -> None:
        begun.set()
        release.wait(PATIENCE_S)

    def operation() -> Any:
        task = yield from spawn(run_each(listener, calls), name="calls")
        yield from call(begun.wait, PATIENCE_S)
        yield from cancel(task)
        yield from failure_of(join(task))
        release.set()
        while not calls.returned:
            yield from sleep(1)

    driver.run(operation())

    assert (calls.returned[0].number, list(calls.waiting)) == (1, [2])


# Cancelling.


def note_cancel(operation: Any, seen: list[str]) -> Any:
    try:
        yield from operation
    except Cancelled:
        seen.append("cancelled")
        raise


def cancelled_at(operation: Any, seen: list[str]) -> Any:
    """Start an operation, let it wait, cancel it, and return what joining it raises."""
    task = yield from spawn(note_cancel(operation, seen), name="victim")
    yield from sleep(1)
    yield from cancel(task)
    error = yield from failure_of(join(task, timeout_ms=LONG_MS))
    return task.done, type(error), str(error)


CANCELLED = (True, UsageError, "task victim was cancelled")


def test_cancel_ends_a_sleep_and_a_wait(driver: Harness) -> None:
    for operation in (sleep(LONG_MS), wait(Event()), wait(Event(), timeout_ms=LONG_MS)):
        seen: list[str] = []

        assert driver.run(cancelled_at(operation, seen)) == CANCELLED
        assert seen == ["cancelled"]


def test_cancel_ends_a_join_but_not_the_joined_task(driver: Harness) -> None:
    event = Event()
    seen: list[str] = []

    def operation() -> Any:
        task = yield from spawn(wait(event), name="joined")
        result = yield from cancelled_at(join(task), seen)
        event.set()
        return result, (yield from join(task))

    assert driver.run(operation()) == (CANCELLED, True)


def test_cancel_ends_an_invoke_and_its_answer_is_dropped(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    held: list[Any] = []
    arrived = threading.Event()

    def hold_first(peer: Peer, command: RemotingCommand) -> None:
        if not held:
            held.append(command)
            arrived.set()
            return
        peer.reply(held[0], body=b"for nobody")
        peer.reply(command, body=b"for you")

    server = serve(hold_first)

    def operation() -> Any:
        task = yield from spawn(ask(server.address), name="victim")
        yield from call(arrived.wait, PATIENCE_S)
        yield from cancel(task)
        error = yield from failure_of(join(task))
        return task.done, type(error), str(error)

    assert driver.run(operation()) == CANCELLED
    assert driver.run(ask(server.address)) == b"for you"
    assert server.connection_count == 1


def test_cancel_ends_a_call_whose_result_is_dropped(driver: Harness) -> None:
    release = threading.Event()
    results: list[Any] = []

    def operation() -> Any:
        result = yield from cancelled_at(call(release.wait, PATIENCE_S), [])
        release.set()
        results.append((yield from call(int)))
        return result

    assert driver.run(operation()) == CANCELLED
    assert results == [0]


def test_cancel_before_the_first_step_runs_nothing(driver: Harness) -> None:
    ran: list[int] = []

    def victim() -> Any:
        ran.append(1)
        yield from sleep(0)

    def operation() -> Any:
        task = yield from spawn(victim(), name="victim")
        yield from cancel(task)
        error = yield from failure_of(join(task))
        yield from cancel(task)
        return task.done, type(error), str(error)

    assert driver.run(operation()) == CANCELLED
    assert ran == []


def test_task_may_cancel_itself(driver: Harness) -> None:
    tasks: list[Any] = []

    def victim() -> Any:
        yield from sleep(0)
        yield from cancel(tasks[0])
        raise AssertionError("not reached")

    def operation() -> Any:
        tasks.append((yield from spawn(victim(), name="victim")))
        error = yield from failure_of(join(tasks[0]))
        return tasks[0].done, type(error), str(error)

    assert driver.run(operation()) == CANCELLED


def test_cancelled_operation_may_return_instead(driver: Harness) -> None:
    def stubborn() -> Any:
        try:
            yield from sleep(LONG_MS)
        except Cancelled:
            return "cleaned up"

    def operation() -> Any:
        task = yield from spawn(stubborn(), name="stubborn")
        yield from sleep(1)
        yield from cancel(task)
        return (yield from join(task))

    assert driver.run(operation()) == "cleaned up"


# The end.


def test_close_cancels_tasks_and_refuses_new_ones(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    server = serve(lambda peer, command: None)
    seen: list[str] = []

    def operation() -> Any:
        yield from spawn(note_cancel(sleep(LONG_MS), seen), name="sleeps")
        yield from spawn(note_cancel(ask(server.address), seen), name="asks")
        yield from sleep(1)

    driver.run(operation())
    driver.close_driver()
    driver.close_driver()

    assert seen == ["cancelled"] * 2
    with pytest.raises(UsageError, match="this client is closed"):
        driver.run(now())


def test_close_ends_operations_that_go_on_after_cancelled(
    driver: Harness, serve: Callable[..., FrameServer]
) -> None:
    server = serve(lambda peer, command: None)
    ended: list[str] = []

    def undying() -> Any:
        try:
            while True:
                try:
                    yield from ask(server.address, timeout_ms=LONG_MS)
                except (Cancelled, TransportError):
                    ended.append("again")
        finally:
            ended.append("ended")

    def operation() -> Any:
        yield from spawn(undying(), name="undying")
        yield from sleep(1)

    driver.run(operation())
    driver.close_driver()

    assert ended == ["again", "ended"]


def test_close_does_not_wait_for_a_listener_without_end(
    make_driver: Callable[..., Harness], caplog: pytest.LogCaptureFixture
) -> None:
    driver = make_driver(pool_size=1)
    begun, release = threading.Event(), threading.Event()

    def listener() -> None:
        begun.set()
        release.wait(PATIENCE_S)

    def operation() -> Any:
        yield from spawn(call(listener), name="calls")
        yield from call(int) if begun.wait(0) else sleep(1)

    driver.run(operation())
    assert begun.wait(PATIENCE_S)
    driver.close_driver(timeout_ms=SOON_MS)

    assert "threads left in their calls: sparrowmq-call-0" in caplog.text
    release.set()
    for thread in threading.enumerate():
        if thread.name == "sparrowmq-call-0":
            thread.join(PATIENCE_S)


def test_time_out_bounds_the_whole_operation_and_cancels_it(driver: Harness) -> None:
    ended: list[str] = []

    def operation() -> Any:
        try:
            yield from sleep(LONG_MS)
        except Cancelled:
            ended.append("cancelled")
            raise

    with pytest.raises(InvokeTimeout, match="task slow did not end within 20 ms"):
        driver.run(bounded(operation(), timeout_ms=20, name="slow"))

    assert ended == ["cancelled"]
    assert driver.run(bounded(call(int, "5"), timeout_ms=LONG_MS, name="quick")) == 5


@pytest.mark.parametrize("send", [invoke, oneway])
def test_driver_with_credentials_signs_copies_of_requests(
    make_driver: Callable[..., Harness], serve: Callable[..., FrameServer], send: Any
) -> None:
    came: Queue[RemotingCommand] = Queue()

    def note(peer: Peer, command: RemotingCommand) -> None:
        came.put(command)
        if not command.is_oneway:
            peer.reply(command)

    server = serve(note)
    driver = make_driver(credentials=Credentials(access_key="me", secret_key="s" * 8))
    sent = RemotingCommand(code=10, ext_fields={"topic": "T"}, body=b"x")

    for _ in range(2):
        driver.run(send(server.address, sent, timeout_ms=LONG_MS))
        fields = came.get(timeout=PATIENCE_S).ext_fields
        assert fields is not None
        assert (fields["topic"], fields["AccessKey"]) == ("T", "me")
        assert is_signature_valid(fields, b"x", secret_key="s" * 8)
    assert sent.ext_fields == {"topic": "T"}
