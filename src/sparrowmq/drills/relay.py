"""A relay: a member's only way to the cluster, which a drill can cut and heal.

The member knows only the relay as its name server. The relay forwards the member's requests and
puts its own port in the place of the broker's in routes. So all frames from and to the member pass
through the relay. While the relay is cut, it forwards nothing in either direction and closes no
connection, as when a cable is pulled. Once it is healed, delayed frames arrive late, as by TCP.
Tests: test_drill.py.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial

# The size of a read on a connection that is forwarded unchanged.
_CHUNK_BYTES = 65_536
# The first bytes of a frame, which have its length.
_LENGTH_BYTES = 4
_PATIENCE_S = 5.0


class Relay:
    """Forwards frames to a name server and a broker, in a thread of its own.

    Args:
        name_server, broker: the addresses of the cluster, `host:port`.

    Attributes:
        name_server: the address that the member uses as its name server, `host:port`.
    """

    def __init__(self, name_server: str, broker: str) -> None:
        self._upstream_name_server, self._upstream_broker = name_server, broker
        self._loop = asyncio.new_event_loop()
        self._is_open = asyncio.Event()
        self._links: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="drill-relay")
        self._thread.start()
        try:
            started = asyncio.run_coroutine_threadsafe(self._start(), self._loop)
            self.name_server = started.result(_PATIENCE_S)
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        """Stop forwarding, in both directions, before this call returns."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(_PATIENCE_S)

    def heal(self) -> None:
        """Forward again, the delayed bytes first."""
        self._loop.call_soon_threadsafe(self._is_open.set)

    def close(self) -> None:
        """Close every connection and end the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    async def _start(self) -> str:
        self._is_open.set()
        broker = await self._listen(self._upstream_broker, {})
        replaced = {self._upstream_broker.encode(): broker.encode()}
        return await self._listen(self._upstream_name_server, replaced)

    async def _listen(self, upstream: str, replaced: dict[bytes, bytes]) -> str:
        serve = partial(self._serve, upstream, replaced)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def _cut(self) -> None:
        self._is_open.clear()

    async def _stop(self) -> None:
        for server in self._servers:
            server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(
        self,
        upstream: str,
        replaced: dict[bytes, bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Forward one connection until either side closes it."""
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        writers = [writer]
        try:
            await self._is_open.wait()
            host, _, port = upstream.rpartition(":")
            there_reader, there = await asyncio.open_connection(host, int(port))
            writers.append(there)
            await asyncio.gather(
                self._carry(reader, there, {}), self._carry(there_reader, writer, replaced)
            )
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            # Either side, or this relay, closed the connection.
            pass
        finally:
            self._links.discard(link)
            for each in writers:
                each.close()

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        replaced: dict[bytes, bytes],
    ) -> None:
        while True:
            data = await (_read_frame(reader, replaced) if replaced else reader.read(_CHUNK_BYTES))
            # A cut delays the end of a connection too.
            await self._is_open.wait()
            if not data:
                raise ConnectionResetError("closed by the other side")
            writer.write(data)
            await writer.drain()


async def _read_frame(reader: asyncio.StreamReader, replaced: dict[bytes, bytes]) -> bytes:
    """Read one frame and replace texts in it; the first four bytes are the frame's length."""
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    frame = await reader.readexactly(length)
    for old, new in replaced.items():
        frame = frame.replace(old, new)
    return len(frame).to_bytes(_LENGTH_BYTES, "big") + frame
