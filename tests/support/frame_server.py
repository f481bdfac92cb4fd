"""A server of sockets and threads that hands every command to a function."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.framing import FrameDecoder, encode_frame

PATIENCE_S = 60  # Bounds what would otherwise hang; no test is meant to wait for it.


class Peer:
    """One accepted connection, as the server's handler sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def reply(self, request: RemotingCommand, **fields: Any) -> None:
        self.send(encode_frame(response_to(request, **fields)))

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


Handler = Callable[[Peer, RemotingCommand], None]


def echo(peer: Peer, request: RemotingCommand) -> None:
    if not request.is_oneway and not request.is_response:
        peer.reply(request, body=request.body, remark=request.remark)


class FrameServer:
    """Calls the handler for every command; one thread per connection.

    Args:
        reads: waited for before anything is read from a connection, but for a TLS handshake.
        tls: the context of a server that speaks TLS.
    """

    def __init__(
        self,
        handler: Handler,
        reads: threading.Event | None = None,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._handler = handler
        self._reads = reads
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self.port: int = self._listening.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self.peers: list[Peer] = []
        self.accepted = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._accepting = self._start(self._accept)

    @property
    def connection_count(self) -> int:
        return len(self.peers)

    def stop(self) -> None:
        if self._reads is not None:
            self._reads.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        # Once it has ended, no peer and no thread comes any more.
        self._accepting.join(PATIENCE_S)
        for thread in self._threads:
            for peer in self.peers:
                if peer.sock.fileno() >= 0:
                    with suppress(OSError):
                        peer.close()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        self._listening.close()

    def _start(self, function: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=function, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            peer = Peer(sock)
            self.peers.append(peer)
            self._start(self._serve, peer)
            self.accepted.release()

    def _serve(self, peer: Peer) -> None:
        decoder = FrameDecoder()
        if self._tls is not None:
            try:
                peer.sock = self._tls.wrap_socket(peer.sock, server_side=True)
            except OSError:
                peer.sock.close()
                return
        if self._reads is not None:
            self._reads.wait(PATIENCE_S)
        try:
            with peer.sock:
                while data := peer.sock.recv(65_536):
                    for command in decoder.receive_data(data):
                        self._handler(peer, command)
        except OSError:
            pass
