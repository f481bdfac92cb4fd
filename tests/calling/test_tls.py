"""TLS of the drivers, against the standard library's TLS sockets: what passes, and what is said."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from certificates import Certificate, Certificates
from frame_server import FrameServer
from harness import Harness
from sparrowmq.calling import async_driver, socket_network, tls
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import invoke, join, spawn
from sparrowmq.calling.tls import TlsSession, client_context, own_server_context, server_context
from sparrowmq.errors import ConfigError, ConnectFailed, ConnectionLost, TransportError
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import FrameDecoder, encode_frame
from sparrowmq.serving.connections import Connection, Reply
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.remoting_server import RemotingServer, bind

LONG_MS = 20_000


def ask(address: str, body: bytes = b"x") -> Any:
    answer = yield from invoke(address, RemotingCommand(code=10, body=body), timeout_ms=LONG_MS)
    return answer.body


def ask_all(address: str, bodies: list[bytes]) -> Any:
    tasks = []
    for body in bodies:
        tasks.append((yield from spawn(ask(address, body), name="ask")))
    answers = []
    for task in tasks:
        answers.append((yield from join(task)))
    return answers


def context_of(certificates: Certificates, server: Certificate | None = None) -> ssl.SSLContext:
    chosen = server or certificates.server
    return server_context(chosen.path, chosen.key)


@pytest.fixture
def tls_server(serve: Callable[..., Any], certificates: Certificates) -> Any:
    return serve(tls=context_of(certificates))


@pytest.fixture
def trusting(certificates: Certificates) -> ssl.SSLContext:
    return client_context(ca_file=certificates.ca.path)


@pytest.fixture
def listening(no_leaks: None) -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Serve each connection by a function of its socket, in threads that end with the test."""
    servers: list[tuple[socket.socket, threading.Thread]] = []
    accepted: list[socket.socket] = []

    def start(handle: Callable[[socket.socket], None]) -> str:
        server = socket.create_server(("127.0.0.1", 0))

        def accept() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:
                    return
                accepted.append(sock)
                with sock, suppress(OSError):
                    handle(sock)

        thread = threading.Thread(target=accept)
        servers.append((server, thread))
        thread.start()
        return f"127.0.0.1:{server.getsockname()[1]}"

    yield start
    for server, thread in servers:
        server.shutdown(socket.SHUT_RDWR)
        for sock in accepted:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        thread.join(60)
        server.close()
        assert not thread.is_alive()


@pytest.mark.parametrize("size", [1, 16 * 1024, 1024 * 1024])
def test_bodies_of_all_sizes_pass(
    make_driver: Callable[..., Harness],
    tls_server: FrameServer,
    trusting: ssl.SSLContext,
    size: int,
) -> None:
    bodies = [bytes([number]) * size for number in range(20)]

    assert bodies == make_driver(tls=trusting).run(ask_all(tls_server.address, bodies))
    assert tls_server.connection_count == 1


def test_host_name_is_checked_as_it_was_given(
    make_driver: Callable[..., Harness], tls_server: FrameServer, trusting: ssl.SSLContext
) -> None:
    address = f"localhost:{tls_server.port}"

    assert make_driver(tls=trusting).run(ask(address)) == b"x"


def test_peer_that_reads_late_gets_everything(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
    trusting: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = threading.Event()
    server = serve(tls=context_of(certificates), reads=reads)
    harness = make_driver(tls=trusting)
    bodies = [bytes(4 * 1024 * 1024)] * 4
    looks = 0
    if harness.is_blocking:
        network = harness.driver._network
        attend = network.attend

        def count(deadline_ms: int) -> int:
            nonlocal looks
            looks += 1
            return int(attend(deadline_ms))

        monkeypatch.setattr(network, "attend", count)
    threading.Timer(0.3, reads.set).start()

    assert bodies == harness.run(ask_all(server.address, bodies))
    # No look without something to do: a few for the handshake, one for each piece that passes.
    assert looks < 16 * 1024 * 1024 // 4096


def test_client_shows_its_certificate_where_one_is_asked_for(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
) -> None:
    context = server_context(
        certificates.server.path, certificates.server.key, client_ca_file=certificates.ca.path
    )
    server = serve(tls=context)
    mine = client_context(
        ca_file=certificates.ca.path,
        certificate_file=certificates.client.path,
        key_file=certificates.client.key,
    )

    assert make_driver(tls=mine).run(ask(server.address)) == b"x"


def test_client_without_a_certificate_is_told_to_give_one(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
    trusting: ssl.SSLContext,
) -> None:
    server = serve(
        tls=server_context(
            certificates.server.path, certificates.server.key, client_ca_file=certificates.ca.path
        )
    )

    # The server's alert may be lost with the connection, which it resets.
    with pytest.raises(TransportError, match=r"(asks for|may want) a client certificate"):
        make_driver(tls=trusting).run(ask(server.address))


def failure_of(make_driver: Any, address: str, context: ssl.SSLContext) -> str:
    with pytest.raises(ConnectFailed) as caught:
        make_driver(tls=context).run(ask(address))
    text = str(caught.value)
    assert text.startswith(f"cannot connect to {address}: ")
    return text


def test_unknown_authority_is_named_as_such(
    make_driver: Callable[..., Harness], tls_server: FrameServer, certificates: Certificates
) -> None:
    context = client_context(ca_file=certificates.other_ca.path)

    text = failure_of(make_driver, tls_server.address, context)

    assert "certificate is not trusted" in text
    assert text.endswith("give the file of the CA that signed it")


def test_expired_certificate_is_named_as_such(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
    trusting: ssl.SSLContext,
) -> None:
    server = serve(tls=context_of(certificates, certificates.issue("expired", has_expired=True)))

    assert "certificate has expired" in failure_of(make_driver, server.address, trusting)


def test_certificate_of_another_host_is_refused(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
    trusting: ssl.SSLContext,
) -> None:
    server = serve(tls=context_of(certificates, certificates.issue("other", san="IP:127.0.0.2")))

    text = failure_of(make_driver, server.address, trusting)

    assert "certificate is for another host" in text
    assert "127.0.0.1" in text


def test_certificate_of_another_host_passes_where_hosts_are_not_checked(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
) -> None:
    server = serve(tls=context_of(certificates, certificates.issue("other", san="IP:127.0.0.2")))
    context = client_context(ca_file=certificates.ca.path, check_hostname=False)

    assert make_driver(tls=context).run(ask(server.address)) == b"x"


def test_own_server_is_trusted_by_its_certificate_alone(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
) -> None:
    elsewhere = certificates.issue("elsewhere", san="DNS:broker.test")
    server = serve(tls=context_of(certificates, elsewhere))
    other = serve(tls=context_of(certificates))
    context = own_server_context(elsewhere.path, elsewhere.key)

    assert make_driver(tls=context).run(ask(server.address)) == b"x"
    assert "not trusted" in failure_of(make_driver, other.address, context)


def read_and_close(sock: socket.socket) -> None:
    sock.recv(65_536)


def answer_in_plain_text(sock: socket.socket) -> None:
    sock.recv(65_536)
    sock.sendall(b"\0\0\0\5\0\0\0\1{")
    while sock.recv(65_536):
        pass


def say_nothing(sock: socket.socket) -> None:
    while sock.recv(65_536):
        pass


@pytest.mark.parametrize("handle", [read_and_close, answer_in_plain_text])
def test_server_without_tls_is_named_as_such(
    make_driver: Callable[..., Harness],
    listening: Callable[..., str],
    trusting: ssl.SSLContext,
    handle: Callable[[socket.socket], None],
) -> None:
    text = failure_of(make_driver, listening(handle), trusting)

    assert "not speak TLS" in text


def test_server_that_never_shakes_hands_is_left_in_time(
    make_driver: Callable[..., Harness],
    listening: Callable[..., str],
    trusting: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (async_driver, socket_network):
        monkeypatch.setattr(module, "HANDSHAKE_TIMEOUT_MS", 100)

    text = failure_of(make_driver, listening(say_nothing), trusting)

    assert tls.HANDSHAKE_TIMED_OUT in text


def test_request_that_runs_out_of_time_in_the_handshake_says_so(
    make_driver: Callable[..., Harness], listening: Callable[..., str], trusting: ssl.SSLContext
) -> None:
    address = listening(say_nothing)

    with pytest.raises(ConnectFailed, match="no TLS connection within 100 ms"):
        make_driver(tls=trusting).run(invoke(address, RemotingCommand(code=10), timeout_ms=100))


def test_client_without_tls_hears_that_the_server_may_want_it(
    make_driver: Callable[..., Harness], tls_server: FrameServer
) -> None:
    with pytest.raises(ConnectionLost, match="may want TLS"):
        make_driver().run(ask(tls_server.address))


def test_version_before_1_2_is_refused(
    make_driver: Callable[..., Harness],
    serve: Callable[..., FrameServer],
    certificates: Certificates,
    trusting: ssl.SSLContext,
) -> None:
    context = context_of(certificates)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    server = serve(tls=context)

    text = failure_of(make_driver, server.address, trusting)

    assert "TLS" in text


@pytest.mark.parametrize("make", [BlockingDriver, AsyncDriver])
def test_what_is_no_context_is_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"tls is True; give an ssl\.SSLContext"):
        make(tls=True)


class EchoMachine:
    """Answers each request with its body."""

    def __init__(self) -> None:
        self.handled = 0

    def handle(self, command: RemotingCommand, connection: Connection, **_: int) -> list[Reply]:
        self.handled += 1
        return [Reply(connection, response_to(command, body=command.body))]

    def connection_closed(self, connection: Connection, **_: int) -> list[Reply]:
        return []


@pytest.fixture
async def our_server(certificates: Certificates) -> AsyncIterator[tuple[EchoMachine, int]]:
    machine = EchoMachine()
    limits = ServerLimits(first_frame_ms=200, sweep_ms=20)
    server = RemotingServer(machine, limits=limits, tls=context_of(certificates))
    listening = bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    await server.start(listening)
    yield machine, port
    await server.stop()


async def talk(port: int, data: bytes) -> bytes:
    """Send bytes, and return what comes until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    answer = b""
    async with asyncio.timeout(20):
        with suppress(ConnectionResetError):
            answer = await reader.read()
    writer.close()
    return answer


FRAME = encode_frame(RemotingCommand(code=10, body=b"x"))
# The beginning of a ClientHello, of which the rest never comes; and one that is none.
HALF_HELLO = bytes.fromhex("16030102000100")
NO_HELLO = bytes.fromhex("160301000501000001ff")


@pytest.mark.parametrize("data", [FRAME, b"GET / HTTP/1.1\r\n\r\n", HALF_HELLO, b"", b"\x16"])
async def test_our_server_hears_nothing_without_a_handshake(
    our_server: tuple[EchoMachine, int], data: bytes
) -> None:
    machine, port = our_server

    assert await talk(port, data) == b""
    assert machine.handled == 0


async def test_our_server_answers_a_broken_handshake_by_an_alert(
    our_server: tuple[EchoMachine, int],
) -> None:
    machine, port = our_server

    assert (await talk(port, NO_HELLO))[:2] == b"\x15\x03"
    assert machine.handled == 0


async def test_our_server_takes_a_handshake_byte_by_byte(
    our_server: tuple[EchoMachine, int], trusting: ssl.SSLContext
) -> None:
    _, port = our_server
    session = TlsSession(trusting, server_hostname="127.0.0.1")
    session.receive_data(b"")
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    decoder = FrameDecoder()
    answers: list[RemotingCommand] = []
    asked = False
    async with asyncio.timeout(20):
        while not answers:
            for byte in session.take_output():
                writer.write(bytes([byte]))
                await writer.drain()
            answers += decoder.receive_data(session.receive_data(await reader.read(100)))
            if session.is_established and not asked:
                session.encrypt(FRAME)
                asked = True
    writer.close()

    assert answers[0].body == b"x"


def test_files_that_cannot_be_used_are_named(tmp_path: Path, certificates: Certificates) -> None:
    broken = tmp_path / "broken.pem"
    broken.write_text("no PEM")
    missing = tmp_path / "missing.pem"
    make: list[tuple[Callable[[], ssl.SSLContext], str]] = [
        (partial(client_context, ca_file=missing), "missing.pem"),
        (partial(client_context, ca_file=broken), "broken.pem"),
        (partial(server_context, missing), "missing.pem"),
        (partial(server_context, certificates.server.path, missing), "missing.pem"),
        (partial(server_context, certificates.server.path, broken), "broken.pem"),
        (partial(server_context, certificates.server.path, certificates.ca.key), "ca.key"),
    ]
    for call, name in make:
        with pytest.raises(ConfigError, match=f"TLS: .*{name}"):
            call()
