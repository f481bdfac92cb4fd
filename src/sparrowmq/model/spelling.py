"""The text forms of a point in time and of a queue."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta

from sparrowmq.errors import UsageError
from sparrowmq.model.message import MessageExt
from sparrowmq.model.queue import MessageQueue
from sparrowmq.model.whole_number import read_whole_number

_AGO = re.compile(r"-?([0-9]{1,9})(ms|s|m|h|d)")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_MILLISECONDS = re.compile(r"[0-9]{11,14}")
TIME_HELP = "2026-01-31T12:00, 12:00 (the last), 30m (ago), or milliseconds since 1970"


def parse_time(text: str, *, now_timestamp_ms: int, others: str = "") -> int:
    """Return the wall-clock milliseconds of a text.

    Args:
        text: ISO 8601, in this machine's zone unless the text names a zone; a time of day, which
            is the last one; `30m`, `2h`, `1d` ago; or milliseconds since 1970.
        others: what else the user may write, for the error, such as "earliest, ".

    Raises: UsageError if the text is not a time.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_timestamp_ms - int(ago[1]) * _UNITS_MS[ago[2]]
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        if ":" in text[:3]:
            return _last_time_of_day(time.fromisoformat(text), now_timestamp_ms)
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise UsageError(f"{text!r} is not a time; write {others}{TIME_HELP}") from None


def _last_time_of_day(clock: time, now_timestamp_ms: int) -> int:
    today = datetime.fromtimestamp(now_timestamp_ms / 1000, clock.tzinfo).date()
    # On the day on which clocks are set, a time may come twice (`fold`), or not at all.
    moments = [
        datetime.combine(today - timedelta(days=days), clock.replace(fold=fold)).timestamp()
        for days in (0, 1)
        for fold in (0, 1)
    ]
    found = [round(moment * 1000) for moment in moments]
    return max(moment_ms for moment_ms in found if moment_ms <= now_timestamp_ms)


def spell_queue(place: MessageQueue | MessageExt) -> str:
    """Return a queue, or that of a message, as `parse_queue` reads it: `broker-a:3`."""
    return f"{place.broker_name}:{place.queue_id}"


def parse_queue(text: str) -> tuple[str, int]:
    """Return the broker name and queue id of a text such as `broker-a:3`. Raises: UsageError."""
    broker_name, _, number = text.rpartition(":")
    queue_id = read_whole_number(number)
    if not broker_name or queue_id is None:
        raise UsageError(f"{text!r} is not a queue; write BROKER:ID, such as broker-a:3")
    return broker_name, queue_id
