"""The gate's floods and wrong requests: that they see a server that keeps silent or lets in."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from gate import access, connections, floods, frames, grpc_wire, rows, wire
from gate.server import Server
from waiting import wait_until

Serve = Callable[[socket.socket], None]
CODES = (wire.PULL_MESSAGE, wire.CREATE_TOPIC, wire.GET_ALL_TOPICS, wire.SEND_MESSAGE_V2)


@contextmanager
def serving(serve: Serve) -> Generator[int]:
    """Serve each connection by a function, in a thread; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(60)


def keep_silent(connection: socket.socket) -> None:
    """Read all and say nothing, not even that the connection ends."""
    while connection.recv(1 << 16):
        pass


def hang_up(connection: socket.socket) -> None:
    """Read once, and end the connection."""
    connection.recv(1 << 16)


def answer_but_one(connection: socket.socket) -> None:
    """Answer each remoting request but the tenth."""
    received = bytearray()
    while data := connection.recv(1 << 16):
        received += data
        for opaque in [each for each in opaques_of(received) if each != 10]:
            connection.sendall(wire.request(0, {}, opaque=opaque, flag=wire.RESPONSE))


def opaques_of(received: bytearray) -> Iterator[int]:
    """Take whole frames away; yield the opaques of requests, in either encoding."""
    while len(received) >= 8:
        end = 4 + int.from_bytes(received[:4], "big")
        if len(received) < end:
            return
        frame = bytes(received[:end])
        del received[:end]
        if (opaque := floods.opaque_to_answer(frame)) is not None:
            yield opaque


@pytest.mark.parametrize(
    "flood", [floods.flood_remoting, floods.flood_http, floods.flood_grpc], ids=lambda f: f.__name__
)
def test_flood_sees_a_server_that_keeps_silent(
    flood: floods.Flood, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floods, "PATIENCE_S", 0.05)
    choice, sent = random.Random(1), floods.Sent()
    with serving(keep_silent) as port:
        for _ in range(8):
            sent.add(flood(port, choice))

    assert sent.silent
    assert sent.answered == 0


@pytest.mark.parametrize(
    "flood", [floods.flood_remoting, floods.flood_grpc], ids=lambda f: f.__name__
)
def test_flood_counts_no_frames_that_a_server_has_not_read(flood: floods.Flood) -> None:
    choice, sent = random.Random(1), floods.Sent()
    with serving(hang_up) as port:
        for _ in range(8):
            sent.add(flood(port, choice))

    assert sent.frames <= 8
    assert sent.silent == 0


def test_flood_sees_one_request_that_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floods, "PATIENCE_S", 0.2)
    monkeypatch.setattr(floods, "_in_step", lambda valid, choice, former: valid)
    monkeypatch.setattr(
        floods, "_valid", lambda choice, opaque: wire.request(35, {}, opaque=opaque)
    )
    with serving(answer_but_one) as port:
        sent = floods.flood_remoting(port, random.Random(1))

    assert (sent.silent, sent.answered) == (1, floods.IN_STEP)


def test_flood_of_a_dead_port_is_given_up_and_breaks_the_promise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    found = frames.flood(
        port, frames.PORTS["broker"], 100, choice=random.Random(1), is_healthy=lambda: False
    )

    assert found.unanswered > frames.FAILED_MAX


@pytest.mark.slow
def test_servers_stand_a_flood_of_all_their_ports(tmp_path: Path) -> None:
    figures = frames.run(4_000, seed=1, data=tmp_path / "data")

    assert frames.is_kept(figures), figures
    assert all(figures["ports"].values())
    assert figures["whole"] > figures["frames"] * 0.9
    for broken in ({"silent": 1}, {"unanswered": 1}, {"growth_mb": 65}, {"processes": 2}):
        assert not frames.is_kept(figures | broken)
    assert "1 whole requests without" in _figure("frames", figures | {"silent": 1})


@pytest.mark.slow
def test_servers_answer_a_healthy_client_beside_connections_of_all_kinds(tmp_path: Path) -> None:
    figures = connections.run(100, data=tmp_path / "data")

    assert set(figures["p99_ms"]) == {"none", "none, by TLS", "pulls", *connections.KINDS}
    # How long a client waits is not for a machine that runs other tests.
    assert connections.is_kept(figures | {"p99_ms": {"none": 1}}), figures
    for broken in ({"pulls_answered": 1}, {"open": 94}, {"p99_ms": {"pulls": 21}}):
        assert not connections.is_kept(figures | broken)


@pytest.mark.slow
def test_pulls_that_are_answered_and_connections_that_are_ended_are_counted(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", "--flush", "async")
    server.start()
    try:
        connection = wire.Connection(server.broker_port)
        wire.create_topic(connection, connections.TOPIC, connections.QUEUES)
        connection.close()
        with connections.held_pulls(server.broker_port, 10, wait_ms=0) as refused:
            pass
        with connections.held_pulls(server.broker_port, 10, wait_ms=600) as short:

            def count_answers() -> int:
                short.attend()
                return short.answered

            wait_until("answered", lambda: count_answers() == 10)
        # Half a handshake is no frame: a server without TLS ends the connection at once.
        with connections.Crowd(server, connections.KINDS["half-shaken"], 20, 0) as crowd:

            def count_ends() -> int:
                crowd.attend()
                return crowd.ended

            wait_until("ended", lambda: count_ends() >= 20)
    finally:
        server.kill()

    assert refused.answered == 10


@pytest.mark.slow
def test_servers_with_accounts_refuse_whoever_asks_wrongly(tmp_path: Path) -> None:
    figures = access.run(CODES, seed=1, directory=tmp_path)

    assert access.is_kept(figures), figures
    assert "0 served, 0 hang-ups, 0 changes" in _figure("access", figures)
    for broken in ({"served": 1}, {"hung_up": 1}, {"changed": 1}, {"served_to_administrator": 1}):
        assert not access.is_kept(figures | broken)


@pytest.mark.slow
def test_servers_without_accounts_are_seen_to_serve_and_to_change(tmp_path: Path) -> None:
    figures = access.run(CODES, seed=1, directory=tmp_path, has_accounts=False)

    assert figures["changed"]
    # Every way of every method, and of every code at its server.
    assert figures["served"] >= len(access.FORGED_CALLS) * figures["methods"] + len(
        access.FORGED
    ) * len(CODES)


@pytest.mark.parametrize("change", ["lock", "unlock", "member", "offset", "pop", "account"])
@pytest.mark.slow
def test_state_shows_a_change_that_no_command_of_the_attack_shows(
    tmp_path: Path, change: str
) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text(access.ACCOUNTS)
    server = Server(tmp_path / "data", "--acl", str(rules), more=("gRPC",))
    server.start()
    try:
        askers = access.open_askers(server)
        requests = access.prepare(askers)
        before = access.state_of(askers, rules, is_held=True)
        was_there = True
        code = {"lock": 41, "unlock": 42, "member": 34, "offset": 15, "pop": wire.POP}.get(change)
        if code is None:
            rules.write_text(access.ACCOUNTS + "\n")
        else:
            fields, body = requests.of(code)
            askers.broker.ask(code, access.signed(fields, body, access.ADMIN), body)
        after = access.state_of(askers, rules, is_held=True)
        if change == "pop":
            was_there = access.is_message_there(askers.broker)
        askers.close()
    finally:
        server.kill()

    assert before != after or not was_there


def test_hang_up_is_no_refusal() -> None:
    tally = access.Tally()
    with serving(hang_up) as port:
        asker = access.Asker(port)
        access.ask_wrongly(asker, "broker", 11, "unsigned", ({}, b""), tally)
        asker.close()
        service = access.Service(port)
        access.call_wrongly(service, "QueryRoute", "unsigned", tally)
        service.close()

    assert tally.hung_up == ["11 unsigned at the broker", "QueryRoute unsigned"]
    assert tally.served == []


def test_messages_of_grpc_are_read_as_they_are_written() -> None:
    data = grpc_wire.message((1, grpc_wire.message((1, 20_000), (2, "é" * 100))), (3, b""))

    assert list(grpc_wire.fields_of(data))[1] == (3, b"")
    assert grpc_wire.status_of(data) == 20_000
    assert grpc_wire.first(data, 1, 2) == ("é" * 100).encode()
    assert grpc_wire.first(data, 1, 1, 5) is None


def _figure(name: str, figures: Mapping[str, object]) -> str:
    (row,) = (each for each in rows.ROWS if each.name == name)
    return row.figure(json.dumps(figures))
