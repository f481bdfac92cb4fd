"""Health and readiness over HTTP, for supervisors and monitors: `--health-port`.

`GET /health` answers whether the process works: 503 means that only a restart helps. `GET /ready`
answers whether the servers serve clients now: 503 may pass. Both answer with JSON,
`{"status": "ok"}` or `{"status": "failing", "reasons": [...]}`. The answers come from the servers'
loop: no answer means that the servers hang.

A connection carries one request, of at most `REQUEST_BYTES_MAX` and within `REQUEST_TIMEOUT_S`.
Beyond `CONNECTIONS_MAX` open connections, a new one is closed at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

import msgspec

REQUEST_BYTES_MAX = 4096
REQUEST_TIMEOUT_S = 5
CONNECTIONS_MAX = 32

# Returns the reasons for a failing status; none if all is well.
Check = Callable[[], Sequence[str]]


@asynccontextmanager
async def serve_health(
    listening: socket.socket, *, health: Check, ready: Check
) -> AsyncGenerator[None]:
    """Answer HTTP requests on a bound socket."""
    endpoint = _HealthPages({"/health": health, "/ready": ready})
    server = await asyncio.start_server(endpoint.serve, sock=listening, limit=REQUEST_BYTES_MAX)
    try:
        yield
    finally:
        server.close()
        endpoint.close()


class _HealthPages:
    def __init__(self, checks: dict[str, Check]) -> None:
        self._checks = checks
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        if len(self._open) >= CONNECTIONS_MAX:
            writer.close()
            return
        self._open.add(writer)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(self._answer(await reader.readuntil(b"\r\n\r\n")))
                await writer.drain()
        except asyncio.LimitOverrunError:
            writer.write(_encode(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
        except (TimeoutError, EOFError, OSError):
            # The connection is closed below; no peer waits for an answer.
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    def close(self) -> None:
        """Close every connection."""
        for writer in self._open:
            writer.close()

    def _answer(self, request: bytes) -> bytes:
        parts = request.partition(b"\r\n")[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return _encode(HTTPStatus.BAD_REQUEST)
        method, target, _ = parts
        check = self._checks.get(target.partition(b"?")[0].decode("latin-1"))
        if check is None:
            return _encode(HTTPStatus.NOT_FOUND)
        if method not in (b"GET", b"HEAD"):
            return _encode(HTTPStatus.METHOD_NOT_ALLOWED)
        reasons = check()
        status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
        return _encode(status, reasons, has_body=method == b"GET")


def _encode(status: HTTPStatus, reasons: Sequence[str] = (), *, has_body: bool = True) -> bytes:
    said: dict[str, object] = {"status": "ok"}
    if status is not HTTPStatus.OK:
        said = {"status": "failing", "reasons": list(reasons) or [status.phrase]}
    body = msgspec.json.encode(said) + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if has_body else b"")
