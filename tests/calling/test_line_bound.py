"""The bound on lines, and the logger that keeps it."""

from __future__ import annotations

import logging
import threading

import pytest

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.calling.line_bound import KINDS_MAX, PERIOD_MS, LineBound


def test_lines_beyond_the_bound_are_counted_until_the_next_period() -> None:
    bound = LineBound(lines_max=2)

    first = [bound.admit("a", now_ms) for now_ms in (0, 1, 2, 3, PERIOD_MS - 1)]
    second = [bound.admit("a", PERIOD_MS + step) for step in range(3)]
    third = bound.admit("a", 5 * PERIOD_MS)

    assert first == [0, 0, None, None, None]
    assert second == [3, 0, None]
    assert third == 1


def test_kinds_have_bounds_of_their_own() -> None:
    bound = LineBound()

    assert [bound.admit(kind, 0) for kind in "abab"] == [0, 0, None, None]


def test_kinds_without_end_share_one_bound_until_a_period_is_over() -> None:
    """A peer that finds ever new kinds fills neither the log nor the memory."""
    bound = LineBound()

    admitted = [bound.admit(kind, 0) for kind in range(3 * KINDS_MAX)]
    later = bound.admit("new", PERIOD_MS)

    assert sum(each is not None for each in admitted) == KINDS_MAX + 1
    assert later == 0


def test_line_says_how_many_were_left_out_before_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 0
    monkeypatch.setattr("sparrowmq.calling.clock.monotonic_ms", lambda: now_ms)
    log = BoundedLog(logging.getLogger("sparrowmq.calling"))

    for number in range(5):
        log.log(logging.WARNING, "kind", "number %d", number)
    now_ms = PERIOD_MS
    log.log(logging.WARNING, "kind", "number %d", 5)

    assert caplog.messages == ["number 0", "number 5 (4 more like this were left out)"]


def test_line_of_what_the_collector_ends_meanwhile_is_written(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cyclic collector may run while the lock is held, and end a client that logs."""
    log = BoundedLog(logging.getLogger("sparrowmq.calling"))

    def admit(self: LineBound, kind: str, now_ms: int) -> int:
        if kind == "first":
            log.log(logging.WARNING, "second", "the client was dropped")
        return 0

    monkeypatch.setattr(LineBound, "admit", admit)
    thread = threading.Thread(
        target=log.log, args=(logging.WARNING, "first", "a line"), daemon=True
    )
    thread.start()
    thread.join(20)

    assert caplog.messages == ["the client was dropped", "a line"]
