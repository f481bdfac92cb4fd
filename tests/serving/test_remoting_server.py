"""The server on real sockets, with a machine of a few lines: whom it serves, how much it makes."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from sparrowmq.errors import ConnectionLost, InvokeTimeout
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand, response_to
from sparrowmq.protocol.foreign import Foreign
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.serving.connections import (
    Aside,
    Connection,
    Fact,
    Output,
    PauseReading,
    Produce,
    Push,
    Reply,
    ResumeReading,
)
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.link import Link
from sparrowmq.serving.local_connection import LocalConnection
from sparrowmq.serving.remoting_server import PEER_LINES_MAX, RemotingServer, bind
from sparrowmq.serving.world import LoopWorld

ANSWER, PAUSE, PRODUCE, BURN, PUSH, ASIDE, FAIL_ASIDE, FACT = range(100, 108)
MIB = 1 << 20


@dataclass
class Machine:
    """Answers with bodies of a size, pauses, produces, burns time; says what it has served."""

    body: bytes = b""
    served: list[tuple[str, int]] = field(default_factory=list)
    made: int = 0
    # What a request that is served aside waits for, at most this long.
    gate: threading.Event = field(default_factory=threading.Event)
    connections: list[Connection] = field(default_factory=list)
    closed: list[Connection] = field(default_factory=list)

    def handle(
        self, command: RemotingCommand, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        del now_ms, timestamp_ms
        if connection not in self.connections:
            self.connections.append(connection)
        self.served.append((connection.address, command.opaque))
        reply = Reply(connection, response_to(command, body=self.body or None))
        if command.code == PAUSE:
            return [reply, PauseReading(connection), PauseReading(connection)]
        if command.code == PRODUCE:
            return [Produce(connection, lambda: self._make(reply))] * 50
        if command.code == PUSH:
            return [Push(c, RemotingCommand(code=1, body=self.body)) for c in self.connections]
        if command.code == ASIDE:
            return [Aside(connection, command, lambda: [reply] if self.gate.wait(30) else [])]
        if command.code == FAIL_ASIDE:
            return [Aside(connection, command, self._fail)]
        if command.code == FACT:
            return [reply, Fact("something has happened")]
        if command.code == BURN:
            sum(range(20_000))
        return [reply]

    def _fail(self) -> Sequence[Output]:
        raise KeyError("nothing")

    def _make(self, reply: Reply) -> Sequence[Output]:
        self.made += 1
        return [reply]

    def connection_closed(
        self, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        del now_ms, timestamp_ms
        self.closed.append(connection)
        return ()


class Peer:
    """A socket that reads when it is asked to."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = FrameDecoder()
        self.address = "{}:{}".format(*connected.getsockname())

    async def send(self, *commands: RemotingCommand) -> None:
        data = b"".join(map(encode_frame, commands))
        await self.send_bytes(data)

    async def send_bytes(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._socket, data)

    async def read(self, count: int) -> list[RemotingCommand]:
        """Return so many commands; fewer, if the connection ends before."""
        commands: list[RemotingCommand] = []
        async with asyncio.timeout(30):
            while len(commands) < count:
                try:
                    data = await asyncio.get_running_loop().sock_recv(self._socket, MIB)
                except ConnectionResetError:
                    data = b""
                if not data:
                    break
                commands += self._decoder.receive_data(data)
        return commands

    async def read_bytes(self) -> bytes:
        """Return all bytes until the server closes the connection."""
        data = b""
        async with asyncio.timeout(30):
            while part := await asyncio.get_running_loop().sock_recv(self._socket, MIB):
                data += part
        return data

    def close(self) -> None:
        self._socket.close()


Serve = Callable[..., Awaitable[tuple[RemotingServer, Callable[[], Awaitable[Peer]]]]]


@pytest_asyncio.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers; each comes with a function that connects to it."""
    servers: list[RemotingServer] = []
    peers: list[Peer] = []

    async def start(
        machine: Machine,
        on_turn: Callable[[], None] | None = None,
        awaits_turn: Callable[[], bool] | None = None,
        world: LoopWorld | None = None,
        **limits: Any,
    ) -> Any:
        server = RemotingServer(
            machine,
            limits=ServerLimits(**limits),
            on_turn=on_turn,
            awaits_turn=awaits_turn,
            world=world,
        )
        listening = bind("127.0.0.1", 0)
        address = listening.getsockname()
        await server.start(listening)
        servers.append(server)

        async def connect() -> Peer:
            connected = socket.socket()
            # So that little is on its way between the two.
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            connected.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connected, address)
            peers.append(Peer(connected))
            return peers[-1]

        return server, connect

    yield start
    for peer in peers:
        peer.close()
    for server in servers:
        await server.stop()


class Clock(LoopWorld):
    """The loop, with a clock that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 1_000
        self.monotonic_ms = lambda: self.now_ms


def requests(count: int, code: int = ANSWER) -> list[RemotingCommand]:
    return [RemotingCommand(code=code, opaque=opaque) for opaque in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def holds(link: Link, count: int) -> Callable[[], bool]:
    """Return whether so many bytes of a connection wait, as a condition."""
    return lambda: link.decoder.buffered_bytes == count


async def rest(server: RemotingServer) -> None:
    """Wait until the server has nothing to do that its peers let it do."""
    await until(lambda: not (server._behind or server._unwritten or server._is_turn_due))


async def test_no_more_answers_are_made_than_fit_a_peer_that_takes_none(serve: Serve) -> None:
    machine = Machine(body=bytes(MIB // 4))
    server, connect = await serve(machine, send_buffer_bytes_max=2 * MIB)
    peer, other = await connect(), await connect()

    await peer.send(*requests(300))
    await until(lambda: len(machine.served) >= 4)
    await other.send(*requests(1))
    await other.read(1)
    await rest(server)
    made = len(machine.served) - 1
    unsent = sum(link.unsent_bytes for link in server._links.values())

    # What the kernel takes, some MiB, comes on top of what is unsent.
    assert made <= 40
    assert unsent <= 2 * MIB
    assert list(range(300)) == [reply.opaque for reply in await peer.read(300)]


async def test_what_is_served_aside_stops_no_other_peer(serve: Serve) -> None:
    machine = Machine()
    server, connect = await serve(machine)
    peer, other, leaver = await connect(), await connect(), await connect()
    await leaver.send(*requests(1, ASIDE))
    await until(lambda: len(machine.served) == 1)
    leaver.close()
    await peer.send(*requests(1, ASIDE), RemotingCommand(code=ANSWER, opaque=1))
    await until(lambda: len(machine.served) == 2)

    await other.send(*requests(1))
    (answered,) = await other.read(1)
    machine.gate.set()
    in_order = await peer.read(2)
    await peer.send(*requests(1, FAIL_ASIDE), RemotingCommand(code=ANSWER, opaque=1))
    failed, _ = await peer.read(2)
    await until(lambda: server.connection_count == 2)

    assert answered.opaque == 0
    assert [reply.opaque for reply in in_order] == [0, 1]
    assert (failed.code, failed.remark) == (ResponseCode.SYSTEM_ERROR, "KeyError: 'nothing'")


@pytest.mark.parametrize("foreign", Foreign)
async def test_whoever_speaks_another_protocol_is_told_so_and_logged_once(
    serve: Serve, foreign: Foreign, caplog: pytest.LogCaptureFixture
) -> None:
    first_bytes = {
        Foreign.HTTP_2: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        Foreign.HTTP_1: b"GET / HTTP/1.1\r\n\r\n",
        Foreign.TLS: bytes.fromhex("16030100c8010000c4"),
    }
    _, connect = await serve(Machine())
    answers: list[bytes] = []
    for _ in range(3):
        peer = await connect()
        await peer.send_bytes(first_bytes[foreign])
        answers.append(await peer.read_bytes())

    assert answers == [foreign.answer] * 3
    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (
        "was sent away: the peer does not speak RocketMQ's remoting protocol" in line.getMessage()
    )


async def test_lines_of_one_host_are_bounded_whatever_it_sends(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    count = 2 * PEER_LINES_MAX
    _, connect = await serve(Machine())
    with caplog.at_level(logging.INFO, "sparrowmq.serving"):
        for _ in range(20):
            peer = await connect()
            await peer.send_bytes(bytes(100))
            assert await peer.read_bytes() == b""
        bad_bytes = list(caplog.messages)
        caplog.clear()

        peer = await connect()
        await peer.send(*requests(count, FAIL_ASIDE))
        await peer.read(count)
        failures = list(caplog.messages)
        caplog.clear()

        await peer.send(*requests(count, FACT))
        await peer.read(count)
        facts = caplog.messages

    assert [len(bad_bytes), len(failures), len(facts)] == [1, 1, PEER_LINES_MAX]


async def test_a_failed_sweep_is_not_the_last(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[BaseException] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    _, connect = await serve(Machine(), sweep_ms=10, first_frame_ms=200)
    overdue = Link.overdue

    def fail(link: Link, now_ms: int) -> str | None:
        monkeypatch.setattr(Link, "overdue", overdue)
        raise MemoryError

    monkeypatch.setattr(Link, "overdue", fail)
    peer = await connect()

    assert await peer.read(1) == []
    assert [type(failure) for failure in failures] == [MemoryError]


async def test_answers_made_later_wait_for_room_too(serve: Serve) -> None:
    machine = Machine(body=bytes(MIB))
    server, connect = await serve(machine, send_buffer_bytes_max=8 * MIB)
    peer, lost = await connect(), await connect()
    await peer.send(*requests(1, PRODUCE))
    await lost.send(*requests(1, PRODUCE))

    await until(lambda: machine.made >= 8)
    await rest(server)
    made = machine.made
    lost.close()
    replies = await peer.read(50)
    await until(lambda: len(machine.closed) == 1)

    assert made <= 40
    assert len(replies) == 50
    # Those of a closed connection are not made at all.
    assert machine.made < 75


async def test_peers_that_leave_too_much_in_all_are_cut_off_and_others_served(serve: Serve) -> None:
    machine = Machine(body=bytes(MIB))
    server, connect = await serve(machine, unsent_bytes_max=32 * MIB, sweep_ms=20)
    reader = await connect()
    await reader.send(*requests(1))
    await reader.read(1)
    idlers = [await connect() for _ in range(24)]
    for idler in idlers:
        await idler.send(*requests(30))

    await until(lambda: len(machine.closed) >= 4)
    await reader.send(*requests(30))
    replies = await reader.read(30)
    await rest(server)

    assert len(replies) == 30
    assert sum(link.unsent_bytes for link in server._links.values()) <= 40 * MIB


async def test_peer_that_is_sent_more_than_it_takes_is_cut_off(serve: Serve) -> None:
    machine = Machine(body=bytes(MIB))
    limits = {"send_buffer_bytes_max": 2 * MIB, "frame_bytes_max": 2 * MIB}
    _, connect = await serve(machine, **limits)
    idler, sender = await connect(), await connect()
    await idler.send(*requests(1))
    await until(lambda: len(machine.connections) == 1)

    for opaque in range(40):
        await sender.send(RemotingCommand(code=PUSH, opaque=opaque))
        await sender.read(1)

    await until(lambda: len(machine.closed) == 1)
    assert idler.address == machine.closed[0].address


async def test_peer_with_much_to_do_leaves_time_to_others(serve: Serve) -> None:
    machine, turns = Machine(), [0]
    _, connect = await serve(machine, lambda: turns.append(len(machine.served)), turn_ms_max=5)
    busy, other = await connect(), await connect()
    await busy.send(*requests(500, BURN))
    await other.send(*requests(1))

    await other.read(1)
    served = len(machine.served)
    replies = await busy.read(500)

    assert served < 500
    await until(lambda: turns[-1] == 501)
    assert list(range(500)) == [reply.opaque for reply in replies]


async def test_turn_ends_for_what_awaits_it_and_for_what_lasts(serve: Serve) -> None:
    machine, turns, awaited = Machine(), [0], [True]

    def end_turn() -> None:
        turns.append(len(machine.served))

    _, connect = await serve(machine, on_turn=end_turn, awaits_turn=lambda: awaited[0])
    peer = await connect()
    await peer.send(*requests(1))
    assert len(await peer.read(1)) == 1
    assert turns[-1] == 1
    awaited[0] = False
    # Those that begin and end within a millisecond need no end of a turn.
    count = 1
    while turns[-1] == count:
        count += 1
        await peer.send(*requests(1))
        assert len(await peer.read(1)) == 1
    # These last longer.
    await peer.send(*requests(2_000, BURN))
    assert len(await peer.read(2_000)) == 2_000
    assert turns[-1] > count


async def test_paused_connection_is_served_when_all_pauses_are_taken_back(serve: Serve) -> None:
    machine = Machine()
    server, connect = await serve(machine)
    peer, other = await connect(), await connect()
    await peer.send(*requests(1, PAUSE), *requests(5))
    await peer.read(1)
    connection = machine.connections[0]

    server.perform([ResumeReading(connection)])
    await other.send(*requests(1))
    await other.read(1)
    paused = [address for address, _ in machine.served].count(peer.address)
    server.perform([ResumeReading(connection)])
    replies = await peer.read(5)

    assert paused == 1
    assert [reply.opaque for reply in replies] == [0, 1, 2, 3, 4]


def json_frame(opaque: int, *, flag: int = 0, value: str) -> bytes:
    fields = f'"flag":{flag},"language":"JAVA","opaque":{opaque},"version":399'
    header = f'{{"code":310,"extFields":{{"i":"{value}"}},{fields}}}'.encode()
    return (len(header) + 4).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header


@pytest.mark.parametrize(
    ("size", "words"),
    [(33_000, "33000 characters"), (70_000, "at most 65536"), (2_000_000, "at most 65536")],
)
async def test_header_beyond_a_limit_is_answered_and_the_connection_stays(
    serve: Serve, size: int, words: str
) -> None:
    machine = Machine()
    _, connect = await serve(machine)
    peer = await connect()

    await peer.send_bytes(
        json_frame(7, value="x" * size)
        + json_frame(8, value="x" * size, flag=ONEWAY_FLAG)
        + encode_frame(RemotingCommand(code=ANSWER, opaque=9))
    )
    refused, answered = await peer.read(2)

    assert (refused.code, refused.opaque) == (ResponseCode.MESSAGE_ILLEGAL, 7)
    assert words in str(refused.remark)
    assert (answered.code, answered.opaque) == (0, 9)
    assert [(peer.address, 9)] == machine.served


async def test_requests_before_a_frame_that_is_none_are_answered(serve: Serve) -> None:
    _, connect = await serve(Machine())
    peer = await connect()

    await peer.send_bytes(encode_frame(RemotingCommand(code=ANSWER, opaque=1)) + b"\xff" * 8)

    assert [reply.opaque for reply in await peer.read(9)] == [1]


async def test_bytes_of_requests_not_finished_are_bounded_over_all_connections(
    serve: Serve,
) -> None:
    server, connect = await serve(Machine(), started_frame_bytes_max=200_000)
    frame = encode_frame(RemotingCommand(code=ANSWER, body=bytes(60_000)))

    for _ in range(4):
        peer = await connect()
        await peer.send_bytes(frame[:-1])

    await until(lambda: server.connection_count == 3)
    assert server._started_bytes <= 200_000
    for link in list(server._links.values()):
        link.transport.abort()
    await until(lambda: server.connection_count == 0)
    assert server._started_bytes == 0


async def test_too_many_bytes_of_others_end_no_connection_that_has_none(serve: Serve) -> None:
    server, connect = await serve(Machine(), started_frame_bytes_max=50_000)
    (first, second) = peers = [await connect() for _ in range(2)]
    for peer in peers:
        await peer.send(*requests(1))
        assert len(await peer.read(1)) == 1
    sender, other = server._links.values()

    # In one step of the loop: the first connection is not gone yet.
    sender.data_received(encode_frame(RemotingCommand(code=ANSWER, body=bytes(60_000)))[:-1])
    other.data_received(encode_frame(RemotingCommand(code=ANSWER, opaque=2)))

    assert await first.read(1) == []
    assert [reply.opaque for reply in await second.read(1)] == [2]
    assert server.connection_count == 1


async def test_peers_that_finish_nothing_keep_no_other_from_finishing(serve: Serve) -> None:
    server, connect = await serve(Machine(), started_frame_bytes_max=200_000)
    frame = encode_frame(RemotingCommand(code=ANSWER, opaque=7, body=bytes(60_000)))
    silent = [await connect() for _ in range(3)]
    for peer in silent:
        await peer.send_bytes(frame[:-1])
    await until(lambda: server._started_bytes == 3 * (len(frame) - 1))
    honest = await connect()

    await honest.send_bytes(frame[:-1])
    await until(lambda: server.connection_count == 3)
    await honest.send_bytes(frame[-1:])

    assert [reply.opaque for reply in await honest.read(1)] == [7]
    assert await silent[0].read(1) == []


async def test_a_connection_that_opens_during_the_stop_is_closed(serve: Serve) -> None:
    server, _ = await serve(Machine())
    await server.stop()
    accepted, theirs = socket.socketpair()
    for each in (accepted, theirs):
        each.setblocking(False)

    loop = asyncio.get_running_loop()
    await loop.connect_accepted_socket(server.make_link, accepted)

    async with asyncio.timeout(30):
        assert await loop.sock_recv(theirs, 1) == b""
    theirs.close()


async def test_local_connection_is_a_peer_like_others_until_one_of_both_ends_it(
    serve: Serve,
) -> None:
    machine, closed, given_up = Machine(), [0], list[int]()
    server, _ = await serve(machine)

    def count() -> None:
        closed[0] += 1

    local = LocalConnection(
        server.make_local_link(),
        "10.0.0.9:5",
        on_request=lambda _: None,
        on_closed=count,
        on_given_up=given_up.append,
    )
    assert (await local.ask(RemotingCommand(code=ANSWER), timeout_ms=30_000)).code == 0
    assert machine.served[-1][0] == "10.0.0.9:5"
    with pytest.raises(InvokeTimeout, match="within 1 ms"):
        await local.ask(RemotingCommand(code=ASIDE), timeout_ms=1)
    assert list(local._session.outstanding) == []

    nobody = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(
        local.ask(RemotingCommand(code=ASIDE), timeout_ms=30_000, given_up=nobody)
    )
    await asyncio.sleep(0)
    nobody.set_result(None)
    await asyncio.sleep(0)
    assert given_up == [local._session.find_opaque(*local._session.outstanding)]
    waiting.cancel()

    asking = asyncio.create_task(local.ask(RemotingCommand(code=ANSWER), timeout_ms=30_000))
    await asyncio.sleep(0)
    (link,) = server._links.values()
    link.close("the server ends it")
    for ended in (asking, local.ask(RemotingCommand(code=ANSWER), timeout_ms=30_000)):
        with pytest.raises(ConnectionLost):
            await ended

    assert (local.is_closed, closed, server.connection_count) == (True, [1], 0)
    machine.gate.set()


async def test_answer_that_has_waited_is_made_while_a_request_is_served_aside(
    serve: Serve,
) -> None:
    machine = Machine()
    server, connect = await serve(machine)
    peer = await connect()
    await peer.send(RemotingCommand(code=ASIDE))
    await until(lambda: len(machine.served) == 1)
    (connection,) = machine.connections
    late = response_to(RemotingCommand(code=ANSWER, opaque=77))

    server.perform([Produce(connection, lambda: [Reply(connection, late)])])

    assert [each.opaque for each in await peer.read(1)] == [77]
    machine.gate.set()
    assert len(await peer.read(1)) == 1


async def test_one_way_request_that_fails_aside_keeps_no_later_one_waiting(serve: Serve) -> None:
    _, connect = await serve(Machine())
    peer = await connect()
    await peer.send(
        RemotingCommand(code=FAIL_ASIDE, flag=ONEWAY_FLAG), RemotingCommand(code=ANSWER, opaque=5)
    )

    assert [each.opaque for each in await peer.read(1)] == [5]


async def test_peer_that_takes_nothing_of_what_is_pushed_to_it_is_cut_off(serve: Serve) -> None:
    machine = Machine()
    server, connect = await serve(machine, send_buffer_bytes_max=2 * MIB, frame_bytes_max=4 * MIB)
    peer = await connect()
    await peer.send(RemotingCommand(code=ANSWER))
    await until(lambda: bool(machine.connections))
    push = Push(machine.connections[0], RemotingCommand(code=1, body=bytes(MIB)))
    # The system's buffers take some of them.
    for _ in range(40):
        server.perform([push])
        await rest(server)

    await until(lambda: bool(machine.closed))


async def test_only_a_frame_that_is_long_in_coming_ends_a_connection(serve: Serve) -> None:
    machine, clock = Machine(), Clock()
    server, connect = await serve(
        machine, world=clock, first_frame_ms=60_000, started_frame_ms=30_000
    )
    frame = encode_frame(RemotingCommand(code=ANSWER, body=bytes(1_000)))
    steady, slow, waiting = [await connect() for _ in range(3)]
    aside = encode_frame(RemotingCommand(code=ASIDE))
    await steady.send_bytes(frame[:100])
    await slow.send_bytes(frame[:100])
    await waiting.send_bytes(aside[:20])
    await until(lambda: server._started_bytes == 220)
    # Its next frame begins while the server serves this one.
    await waiting.send_bytes(aside[20:] + frame[:100])
    await until(lambda: len(machine.served) == 1)

    (link,) = [each for each in server._links.values() if each.connection.address == slow.address]
    for count in (101, 102):
        clock.now_ms += 20_000
        # Further bytes of a frame are not its end.
        await slow.send_bytes(frame[count - 1 : count])
        await until(holds(link, count))
        await steady.send_bytes(frame[100:] + frame[:100])
        assert len(await steady.read(1)) == 1
        server._sweep()

    await until(lambda: bool(machine.closed))
    assert [each.address for each in machine.closed] == [slow.address]
    await steady.send_bytes(frame[100:])
    assert len(await steady.read(1)) == 1
    machine.gate.set()
    assert len(await waiting.read(1)) == 1


async def test_no_more_connections_are_open_than_are_allowed(serve: Serve) -> None:
    server, connect = await serve(Machine(), connections_max=2)
    for expected in (1, 1, 0):
        peer = await connect()
        await peer.send(RemotingCommand(code=ANSWER))
        assert len(await peer.read(1)) == expected

    assert server.connection_count == 2


async def test_only_a_silent_connection_ends_after_the_longest_silence(serve: Serve) -> None:
    machine, clock = Machine(), Clock()
    server, connect = await serve(machine, world=clock, idle_ms=30_000)
    talking, silent = await connect(), await connect()
    for peer in (silent, talking, talking):
        await peer.send(RemotingCommand(code=ANSWER))
        assert len(await peer.read(1)) == 1
        server._sweep()
        clock.now_ms += 20_000
    server._sweep()

    await until(lambda: bool(machine.closed))
    assert [each.address for each in machine.closed] == [silent.address]


async def test_peer_that_takes_nothing_for_long_ends(serve: Serve) -> None:
    machine, clock = Machine(body=bytes(MIB)), Clock()
    server, connect = await serve(
        machine, world=clock, send_buffer_bytes_max=2 * MIB, send_stall_ms=30_000
    )
    peer = await connect()
    await peer.send(*requests(20))
    await until(lambda: bool(machine.served))
    await rest(server)

    clock.now_ms += 30_000
    server._sweep()
    assert not next(iter(server._links.values())).transport.is_closing()
    clock.now_ms += 1
    server._sweep()

    await until(lambda: len(machine.closed) == 1)


async def test_a_closed_connection_whose_answers_nobody_takes_ends(serve: Serve) -> None:
    machine = Machine(body=bytes(8 * MIB))
    server, connect = await serve(
        machine, idle_ms=100, sweep_ms=20, send_buffer_bytes_max=64 * MIB, frame_bytes_max=16 * MIB
    )
    peer = await connect()

    await peer.send(*requests(2))
    await until(lambda: bool(machine.served))

    await until(lambda: bool(machine.closed))
    assert server.connection_count == 0
