"""An acceptor on both event loops: connections, a lack of descriptors, the end."""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna  # noqa: F401 - no file can be opened once descriptors lack
import errno
import logging
import os
import resource
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Iterator

import pytest
import uvloop

from sparrowmq.serving import acceptor
from sparrowmq.serving.acceptor import Acceptor
from sparrowmq.serving.remoting_server import bind

LOOPS = (asyncio.new_event_loop, uvloop.new_event_loop)


class Echo(asyncio.Protocol):
    """Answers with what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@contextlib.asynccontextmanager
async def accepting() -> AsyncGenerator[tuple[str, int]]:
    listening = bind("127.0.0.1", 0)
    address: tuple[str, int] = listening.getsockname()
    opened = Acceptor(listening, Echo)
    try:
        yield address
    finally:
        opened.close()


async def echo(address: tuple[str, int], *, count: int = 1) -> list[bytes]:
    """Return what so many connections, open at once, are answered."""
    streams = [await asyncio.open_connection(*address) for _ in range(count)]
    for _, writer in streams:
        writer.write(b"x")
    answers = [await reader.readexactly(1) for reader, _ in streams]
    for _, writer in streams:
        writer.close()
        await writer.wait_closed()
    return answers


def test_more_connections_than_one_turn_accepts_are_served(runner: asyncio.Runner) -> None:
    async def run() -> list[bytes]:
        async with accepting() as address:
            return await echo(address, count=200)

    assert runner.run(run()) == [b"x"] * 200


def test_accepted_connections_do_not_wait_to_gather_bytes(runner: asyncio.Runner) -> None:
    transports: list[asyncio.BaseTransport] = []

    class Kept(Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            transports.append(transport)

    async def run() -> int:
        listening = bind("127.0.0.1", 0)
        opened = Acceptor(listening, Kept)
        await echo(listening.getsockname())
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"x")
        await reader.readexactly(1)
        option = (
            transports[-1]
            .get_extra_info("socket")
            .getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        )
        writer.close()
        opened.close()
        return int(option)

    assert runner.run(run()) != 0


def test_a_lack_of_descriptors_is_logged_once_and_ends(
    runner: asyncio.Runner, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 0.01)
    retries: list[None] = []
    pause = Acceptor._pause

    def counted(self: Acceptor, error: OSError) -> None:
        assert error.errno == errno.EMFILE
        retries.append(None)
        pause(self, error)

    monkeypatch.setattr(Acceptor, "_pause", counted)

    async def run() -> bytes:
        async with accepting() as address:
            waiting = socket.socket()
            waiting.setblocking(False)
            with no_descriptors():
                await asyncio.get_running_loop().sock_connect(waiting, address)
                while len(retries) < 5:
                    await asyncio.sleep(0.01)
            await asyncio.get_running_loop().sock_sendall(waiting, b"x")
            answer = await asyncio.get_running_loop().sock_recv(waiting, 1)
            waiting.close()
            return answer

    with caplog.at_level(logging.WARNING):
        answer = runner.run(run())

    assert answer == b"x"
    assert [each.levelname for each in caplog.records] == ["ERROR", "WARNING"]
    assert "ulimit -n" in caplog.records[0].message
    assert "accepted again" in caplog.records[1].message


class Aborted(socket.socket):
    """A listening socket whose first peer has gone before it is accepted."""

    aborts = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.aborts:
            self.aborts = 0
            raise ConnectionAbortedError(errno.ECONNABORTED, "gone")
        return super().accept()


def test_a_peer_that_has_gone_keeps_nobody_waiting(
    runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(acceptor, "RETRY_S", 60)

    async def run() -> list[bytes]:
        listening = Aborted(fileno=bind("127.0.0.1", 0).detach())
        opened = Acceptor(listening, Echo)
        try:
            return await echo(listening.getsockname())
        finally:
            opened.close()

    assert runner.run(run()) == [b"x"]
    assert caplog.records == []


@contextlib.contextmanager
def no_descriptors() -> Generator[None]:
    """Leave the process no free descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_closed_acceptor_lets_nobody_in(runner: asyncio.Runner) -> None:
    async def run(connect: Callable[[tuple[str, int]], socket.socket]) -> None:
        async with accepting() as address:
            pass
        with pytest.raises(ConnectionRefusedError):
            connect(address)

    runner.run(run(socket.create_connection))
