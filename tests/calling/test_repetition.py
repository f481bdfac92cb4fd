"""Work that is repeated whatever happens."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sparrowmq.calling.repetition import repeat


async def test_a_failure_ends_no_repetition_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    script = iter(["a", "a", "b", "", "b", "stop"])

    async def work() -> None:
        if (text := next(script)) == "stop":
            raise asyncio.CancelledError
        if text:
            raise RecursionError(text)

    with contextlib.suppress(asyncio.CancelledError):
        await repeat(work, name="the work", pause_s=lambda: 0)

    assert list(script) == []
    assert caplog.messages == ["the work failed, and is repeated"] * 3
    assert all(record.exc_info for record in caplog.records)
