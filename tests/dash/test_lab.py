"""The Lab's picture of a drill: who had which queue, and until when."""

from __future__ import annotations

import asyncio
import errno

import pytest

from live_page import PASSWORD, READER_PASSWORD, Reader
from sparrowmq.dash import lab
from sparrowmq.dash.lab import picture_length_ms
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.doctor.owner_history import GroupRebalance, OwnedSpan
from sparrowmq.drills.drill import Phase, Report
from sparrowmq.drills.kinds import DrillKind
from sparrowmq.drills.stage import GROUP, TOPIC
from sparrowmq.model import MessageQueue
from steps_of_pages import eventually

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


def result(*, last_ms: int, settled_ms: int | None) -> Report:
    seen = GroupSnapshot(group=GROUP, samples=())
    return Report(
        kind=DrillKind.JOIN,
        phases=(
            Phase(
                "a third member joins two",
                GroupRebalance(begun_ms=0, ended_ms=0, settled_ms=settled_ms),
            ),
        ),
        before=seen,
        after=seen,
        sent=0,
        consumed=0,
        twice=0,
        changes=(),
        spans=(
            OwnedSpan(QUEUE, -300, last_ms, ("member-1",)),
            OwnedSpan(QUEUE, last_ms, 41_000, ("member-2",)),
        ),
        late_work=None,
    )


async def test_a_drill_that_cannot_start_has_failed(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def have_no_descriptor(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", have_no_descriptor)
    answer = await reader.http.post("/lab", data={"token": reader.token(), "drill": "join"})
    assert answer.status_code == 303

    async def is_said() -> bool:
        return "Too many open files" in await reader.read("/lab")

    await eventually("the failure on the page", is_said)


async def test_a_drill_that_was_ended_says_so(
    reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def never_start(*_: object, **__: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", never_start)
    await reader.http.post("/lab", data={"token": reader.token(), "drill": "join"})
    await begun.wait()
    await reader.http.post("/lab", data={"token": reader.token(), "drill": "stop"})

    assert "the drill was ended before its result" in await reader.read("/lab")


async def test_who_may_only_read_neither_starts_nor_ends_a_drill(
    writer: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never_start(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    async def log_in(password: str) -> None:
        writer.http.cookies.clear()
        await writer.http.post("/login", data={"password": password})

    async def ask(drill: str) -> int:
        form = {"token": writer.token(), "drill": drill}
        return (await writer.http.post("/lab", data=form)).status_code

    monkeypatch.setattr(asyncio, "create_subprocess_exec", never_start)
    await log_in(READER_PASSWORD)
    page = await writer.read("/lab")
    started = await ask("join")
    was_running = writer.lab.is_running
    await log_in(PASSWORD)
    await ask("join")
    await log_in(READER_PASSWORD)
    ended = await ask("stop")

    assert page.count("<button disabled>") == len(DrillKind)
    assert (started, was_running) == (400, False)
    assert (ended, writer.lab.is_running) == (400, True)
    assert 'value="stop"' not in await writer.read("/lab")


async def test_a_drill_that_says_too_much_is_read_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lab, "OUTPUT_BYTES_MAX", 10)
    stream = asyncio.StreamReader()
    stream.feed_data(b"x" * 11)
    stream.feed_eof()

    with pytest.raises(ValueError, match="more than 10 bytes"):
        await lab._read_all(stream)


def test_picture_ends_shortly_after_the_last_change() -> None:
    assert picture_length_ms(result(last_ms=1_000, settled_ms=1_000)) == 1_400


def test_picture_of_what_never_settles_is_as_long_as_the_drill() -> None:
    assert picture_length_ms(result(last_ms=1_000, settled_ms=None)) == 41_000
