"""The bounds on connections of small HTTP servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sparrowmq.serving import http_pages
from sparrowmq.serving.http_pages import Head, Page, serve_pages
from sparrowmq.serving.open_connections import OpenConnections
from sparrowmq.serving.remoting_server import bind


class Gate:
    """A page that is made once the gate is open."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.entered = 0
        self.body = b"made"

    async def make(self, head: Head) -> Page:
        del head
        self.entered += 1
        await self.open.wait()
        return Page(self.body, "text/plain")


@asynccontextmanager
async def serving(gate: Gate, opened: OpenConnections) -> AsyncGenerator[tuple[str, int]]:
    listening = bind("127.0.0.1", 0)
    async with serve_pages(listening, {"/": gate.make}, connections=opened):
        yield listening.getsockname()[:2]
    listening.close()


async def test_a_silent_connection_ends_in_time() -> None:
    opened = OpenConnections(2, request_timeout_s=0.05)
    async with serving(Gate(), opened) as address, asyncio.timeout(30):
        dripping, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\n")
        assert await dripping.read() == b""
        writer.close()

    assert len(opened) == 0


async def test_the_longest_silent_gives_its_place_and_who_is_answered_keeps_it() -> None:
    opened, gate = OpenConnections(2, request_timeout_s=60), Gate()
    async with serving(gate, opened) as address, asyncio.timeout(30):
        asked, asking = await asyncio.open_connection(*address)
        asking.write(b"GET / HTTP/1.1\r\n\r\n")
        while not gate.entered:
            await asyncio.sleep(0.001)
        silent, silence = await asyncio.open_connection(*address)
        second, seconding = await asyncio.open_connection(*address)
        assert await silent.read() == b""
        seconding.write(b"GET / HTTP/1.1\r\n\r\n")
        while gate.entered < 2:
            await asyncio.sleep(0.001)
        refused, refusing = await asyncio.open_connection(*address)
        assert await refused.read() == b""
        gate.open.set()
        answers = [await asked.read(), await second.read()]
        for writer in (asking, silence, seconding, refusing):
            writer.close()

    assert [answer.endswith(b"made") for answer in answers] == [True, True]


async def test_an_answer_that_nobody_takes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pages, "ANSWER_TIMEOUT_S", 0.05)
    opened, gate = OpenConnections(2), Gate()
    async with serving(gate, opened) as address, asyncio.timeout(30):
        asked, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await asked.read() == b""
        writer.close()

    assert len(opened) == 0


async def test_who_takes_no_answer_gives_its_place() -> None:
    opened, gate = OpenConnections(2, request_timeout_s=60, taking_timeout_s=60), Gate()
    gate.body = bytes(32 << 20)
    gate.open.set()
    async with serving(gate, opened) as address, asyncio.timeout(30):
        deaf = [socket.create_connection(address) for _ in range(2)]
        for each in deaf:
            each.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while gate.entered < 2 or opened.answered:
            await asyncio.sleep(0.001)
        gate.body = b"made"
        asked, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        answer = await asked.read()
        writer.close()
        for each in deaf:
            each.close()

    assert answer.endswith(b"made")


async def test_who_takes_no_answer_is_closed_in_time() -> None:
    opened, gate = OpenConnections(2, taking_timeout_s=0.05), Gate()
    gate.body = bytes(32 << 20)
    gate.open.set()
    async with serving(gate, opened) as address, asyncio.timeout(30):
        with socket.create_connection(address) as deaf:
            deaf.sendall(b"GET / HTTP/1.1\r\n\r\n")
            while not gate.entered or len(opened):
                await asyncio.sleep(0.001)


async def test_a_page_that_cannot_be_made_is_an_answer_and_a_line_in_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail(head: Head) -> Page:
        raise KeyError(head.path)

    listening = bind("127.0.0.1", 0)
    async with serve_pages(listening, {"/": fail}):
        answers: list[bytes] = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            answers.append(await reader.read())
            writer.close()
    listening.close()

    assert [answer[:13] for answer in answers] == [b"HTTP/1.1 500 "] * 3
    assert caplog.messages == ["a page cannot be made"]
