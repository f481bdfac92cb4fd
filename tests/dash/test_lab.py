"""The Lab's picture of a drill: who had which queue, and until when."""

from __future__ import annotations

from typing import Any

from sparrowmq.dash.lab import picture_length_ms


def result(*, last_ms: int, settled_ms: int | None) -> dict[str, Any]:
    return {
        "phases": [{"settled_ms": settled_ms}],
        "changes": [{"after_ms": last_ms, "member": "member-2", "queue_ids": [0]}],
        "watched_ms": 41_000,
    }


def test_picture_ends_shortly_after_the_last_change() -> None:
    assert picture_length_ms(result(last_ms=1_000, settled_ms=1_000)) == 1_400


def test_picture_of_what_never_settles_is_as_long_as_the_drill() -> None:
    assert picture_length_ms(result(last_ms=1_000, settled_ms=None)) == 41_000
