"""A small HTTP server for pages that only this process's state makes: health, and metrics.

A connection carries one request of at most `HEAD_BYTES_MAX`, which `OpenConnections` bounds in
number and time; the answer must be made and taken within `ANSWER_TIMEOUT_S`.

Tests: serving/test_open_connections.py, hosting/test_health.py.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import NamedTuple, TypeAlias, cast

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.serving.acceptor import Acceptor
from sparrowmq.serving.open_connections import OpenConnections

LOG = logging.getLogger("sparrowmq.serving")

CONNECTIONS_MAX = 32
HEAD_BYTES_MAX = 8_192
ANSWER_TIMEOUT_S = 30.0


class Page(NamedTuple):
    """An answer to a request."""

    body: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK


class Head(NamedTuple):
    """The head of a request: its target without the query, and its fields by lower-case name."""

    method: str
    path: str
    query: str
    fields: Mapping[str, str]


MakePage: TypeAlias = Callable[[Head], Awaitable[Page]]


@asynccontextmanager
async def serve_pages(
    listening: socket.socket,
    pages: Mapping[str, MakePage],
    *,
    connections: OpenConnections | None = None,
) -> AsyncGenerator[None]:
    """Serve pages, by their paths, on a bound socket while the block runs."""
    opened = OpenConnections(CONNECTIONS_MAX) if connections is None else connections
    log = BoundedLog(LOG)
    acceptor = Acceptor(listening, lambda: _Exchange(pages, opened, log))
    try:
        yield
    finally:
        acceptor.close()
        opened.abort_all()


class _Exchange(asyncio.Protocol):
    """One connection: a request, and its answer."""

    def __init__(
        self, pages: Mapping[str, MakePage], opened: OpenConnections, log: BoundedLog
    ) -> None:
        self._log = log
        self._pages = pages
        self._opened = opened
        self._received = bytearray()
        self._answer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._opened.open(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.close(self._transport)
        if self._answer is not None:
            self._answer.cancel()
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._answer is not None:
            return
        self._received += data
        head, separator, _ = bytes(self._received[:HEAD_BYTES_MAX]).partition(b"\r\n\r\n")
        if not separator and len(self._received) < HEAD_BYTES_MAX:
            return
        self._opened.request_came(self._transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(ANSWER_TIMEOUT_S, self._transport.abort)
        self._answer = loop.create_task(self._serve(head if separator else None))

    async def _serve(self, raw: bytes | None) -> None:
        head = None if raw is None else _parse(raw)
        try:
            page = await self._make(head, is_too_large=raw is None)
        except Exception as error:
            kind = ("page", type(error))
            self._log.log(logging.ERROR, kind, "a page cannot be made", error=error)
            page = _error(HTTPStatus.INTERNAL_SERVER_ERROR)
        has_body = head is None or head.method != "HEAD"
        self._transport.write(_encode(page, has_body=has_body))
        self._transport.close()
        self._opened.await_taking(self._transport)

    async def _make(self, head: Head | None, *, is_too_large: bool) -> Page:
        if is_too_large:
            return _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if head is None:
            return _error(HTTPStatus.BAD_REQUEST)
        make = self._pages.get(head.path)
        if make is None:
            return _error(HTTPStatus.NOT_FOUND)
        if head.method not in ("GET", "HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED)
        return await make(head)


def _parse(raw: bytes) -> Head | None:
    first, *lines = raw.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        return None
    path, _, query = parts[1].partition("?")
    pairs = (line.partition(":") for line in lines)
    fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Head(parts[0], path, query, fields)


def _error(status: HTTPStatus) -> Page:
    body = b'{"status":"failing","reasons":["%b"]}\n' % status.phrase.encode()
    return Page(body, "application/json", status)


def _encode(page: Page, *, has_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\nContent-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (page.body if has_body else b"")
