"""The live page's connections against peers that break off, say nothing, or take nothing."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sparrowmq.dash.app import make_server
from sparrowmq.dash.login import Access, Guard, read_form
from sparrowmq.errors import UsageError
from sparrowmq.serving.open_connections import OpenConnections
from sparrowmq.serving.remoting_server import bind

Address = tuple[str, int]
LARGE = b"x" * (32 << 20)


class Pages:
    """A small page, a large one, a form, and one that fails; they count how often they begin."""

    def __init__(self) -> None:
        self.begun = 0

    async def serve(self, request: Request) -> Response:
        self.begun += 1
        if request.method == "POST":
            with suppress(UsageError):
                await read_form(request)
        if request.url.path == "/failing":
            raise KeyError("a fault of the page")
        return PlainTextResponse(LARGE if request.url.path == "/large" else "small")


@asynccontextmanager
async def serving(pages: Pages, opened: OpenConnections) -> AsyncGenerator[Address]:
    routes = [Route("/{path}", pages.serve, methods=["GET", "POST"])]
    access = Access("password", port=1)
    server = make_server(Guard(Starlette(routes=routes), access), opened)
    listening = bind("127.0.0.1", 0)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    async with asyncio.timeout(60):
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            yield listening.getsockname()[:2]
        finally:
            server.should_exit = True
            await task


def request(line: str, *fields: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "Host: 127.0.0.1", *fields, "", ""]).encode()


async def ask(address: Address) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request("GET /small", "Connection: close"))
    answer = await reader.read()
    writer.close()
    return answer


async def test_who_takes_no_answer_gives_its_place() -> None:
    pages = Pages()
    opened = OpenConnections(2, request_timeout_s=60, taking_timeout_s=60)
    async with serving(pages, opened) as address:
        deaf = [socket.create_connection(address) for _ in range(2)]
        for each in deaf:
            # What follows a request does not make it taken.
            each.sendall(request("GET /large") + request("GET /small"))
        while pages.begun < 2 or opened.answered:
            await asyncio.sleep(0.001)
        answer = await ask(address)
        for each in deaf:
            each.close()

    assert answer.endswith(b"small")


async def test_who_takes_no_answer_is_closed_in_time() -> None:
    pages, opened = Pages(), OpenConnections(2, taking_timeout_s=0.05)
    async with serving(pages, opened) as address:
        with socket.create_connection(address) as deaf:
            deaf.sendall(request("GET /large"))
            while not pages.begun or len(opened):
                await asyncio.sleep(0.001)


async def test_half_a_form_keeps_no_place() -> None:
    pages, opened = Pages(), OpenConnections(2, request_timeout_s=60)
    async with serving(pages, opened) as address:
        slow = [socket.create_connection(address) for _ in range(2)]
        for each in slow:
            each.sendall(request("POST /form", "Content-Length: 100") + b"password=")
        while pages.begun < 2:
            await asyncio.sleep(0.001)
        answer = await ask(address)
        for each in slow:
            each.close()

    assert answer.endswith(b"small")


async def test_a_large_answer_that_is_taken_comes_whole() -> None:
    opened = OpenConnections(1)
    async with serving(Pages(), opened) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request("GET /large") + request("GET /small", "Connection: close"))
        answer = await reader.read()
        writer.close()

    assert LARGE in answer
    assert answer.endswith(b"small")


BROKEN = (
    b"\x16\x03\x01 no HTTP\r\n\r\n",
    b"GET /small HTTP/1.1\r\n\r\n",
    request("GET /small", "Upgrade: websocket", "Connection: Upgrade"),
    request("POST /form", "Content-Length: 100") + b"password=",
    request("POST /form", "Transfer-Encoding: chunked") + b"5\r\nabc",
    request("GET /failing"),
)


async def test_peers_cause_no_line_and_a_fault_of_the_page_one_in_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # uvicorn's loggers do not propagate to pytest's.
    logging.getLogger("uvicorn").propagate = True
    pages, opened = Pages(), OpenConnections(64)
    async with serving(pages, opened) as address:
        for number in range(3):
            for data in BROKEN:
                before = pages.begun
                peer = socket.create_connection(address)
                peer.sendall(data)
                while b"POST" in data and pages.begun == before:
                    await asyncio.sleep(0.001)
                if number:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                peer.close()
        await ask(address)

    assert [re.sub(r" \(.*", "", line) for line in caplog.messages] == ["a page cannot be made"]


@pytest.mark.parametrize("is_guarded", [False, True], ids=["a page", "a refusal"])
async def test_a_peer_that_breaks_its_request_and_waits_causes_no_line(
    caplog: pytest.LogCaptureFixture, is_guarded: bool
) -> None:
    logging.getLogger("uvicorn").propagate = True
    method = "DELETE" if is_guarded else "GET"
    async with serving(Pages(), OpenConnections(64)) as address:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request(f"{method} /small", "Transfer-Encoding: chunked") + b"ZZ\r\nabc")
            await reader.read()
            writer.close()
        await ask(address)

    assert caplog.messages == []
