"""Health and readiness over HTTP, for supervisors and monitors: `--health-port`.

`GET /health` answers whether the process works: 503 means that only a restart helps. `GET /ready`
answers whether the servers serve clients now: 503 may pass. Both answer with JSON,
`{"status": "ok"}` or `{"status": "failing", "reasons": [...]}`. The answers come from the servers'
loop: no answer means that the servers hang.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

import msgspec

from sparrowmq.serving.http_pages import Head, MakePage, Page, serve_pages

# Returns the reasons for a failing status; none if all is well.
Check = Callable[[], Sequence[str]]


@asynccontextmanager
async def serve_health(
    listening: socket.socket, *, health: Check, ready: Check
) -> AsyncGenerator[None]:
    """Answer HTTP requests on a bound socket."""
    async with serve_pages(listening, {"/health": _page(health), "/ready": _page(ready)}):
        yield


def _page(check: Check) -> MakePage:
    async def make(head: Head) -> Page:
        del head
        reasons = list(check())
        if not reasons:
            return Page(b'{"status":"ok"}\n', "application/json")
        body = msgspec.json.encode({"status": "failing", "reasons": reasons}) + b"\n"
        return Page(body, "application/json", HTTPStatus.SERVICE_UNAVAILABLE)

    return make
