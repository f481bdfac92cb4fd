"""Addresses and connecting."""

from __future__ import annotations

import errno
import select
import socket

import pytest

from sparrowmq.calling.sockets import (
    RECEIVE_BYTES,
    RECEIVE_BYTES_MAX,
    Candidate,
    SocketWire,
    begin_connect,
    end_connect,
    is_quick,
    look_up,
    split_address,
)

PATIENCE_S = 60


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        ("name.test:1", ("name.test", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:10911", ("::1", 10911)),
    ],
)
def test_address_is_split_at_its_last_colon(address: str, expected: tuple[str, int]) -> None:
    assert split_address(address) == expected


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:0", "host:65536", "h:１"])
def test_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="port"):
        split_address(address)


def test_names_that_ask_no_server_are_known() -> None:
    hosts = ["localhost", "10.0.0.1", "::1", "name.test", "127.1"]

    assert [is_quick(host) for host in hosts] == [True, True, True, False, False]


def test_looking_an_address_up_names_each_once() -> None:
    assert look_up("127.0.0.1", 5) == [Candidate(socket.AF_INET, ("127.0.0.1", 5))]


def test_connection_of_a_socket_to_itself_counts_as_refused() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.connect(sock.getsockname())

        with pytest.raises(ConnectionRefusedError) as caught:
            end_connect(sock)

    assert caught.value.errno == errno.ECONNREFUSED


def test_connection_is_made_without_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sock = begin_connect(Candidate(socket.AF_INET, listening.getsockname()))
        with sock:
            select.select([], [sock], [], PATIENCE_S)
            end_connect(sock)

            assert listening.getsockname() == sock.getpeername()
            assert sock.gettimeout() == 0.0


def test_more_is_received_at_once_while_much_comes() -> None:
    near, far = socket.socketpair()
    with near, far:
        far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * RECEIVE_BYTES)
        far.sendall(bytes(3 * RECEIVE_BYTES))
        wire = SocketWire(near)

        sizes = []
        for _ in range(2):
            sizes.append(len(wire.receive() or b""))
        far.sendall(b"little")
        sizes.append(len(wire.receive() or b""))
        far.sendall(bytes(2 * RECEIVE_BYTES))
        sizes.append(len(wire.receive() or b""))

    assert sizes == [RECEIVE_BYTES, 2 * RECEIVE_BYTES, 6, RECEIVE_BYTES]
    assert RECEIVE_BYTES_MAX > 2 * RECEIVE_BYTES
