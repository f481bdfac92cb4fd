"""The brokers' delay levels. Pure."""

from __future__ import annotations

from datetime import timedelta

from sparrowmq.errors import UsageError

# MessageStoreConfig.messageDelayLevel: the delay of level 1, 2 and so on.
DELAY_LEVELS_MS = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 20 * 60, 30 * 60, 3600, 7200)
)
assert len(DELAY_LEVELS_MS) == 18
DELAY_MIN, DELAY_MAX = timedelta(milliseconds=1), timedelta(milliseconds=DELAY_LEVELS_MS[-1])


def nearest_delay_level(delay: timedelta) -> int:
    """Return the level with the nearest delay, the longer of two equally near ones.

    Levels are 1, 5, 10 and 30 s, each minute from 1 to 10, 20 and 30 min, 1 and 2 h, unless the
    broker is configured otherwise (messageDelayLevel).

    Raises: UsageError for a delay of zero or less, or of more than 2 h.
    """
    delay_ms = round(delay.total_seconds() * 1000) if isinstance(delay, timedelta) else 0
    if not 0 < delay_ms <= DELAY_LEVELS_MS[-1]:
        raise UsageError(f"delay is {delay!r}; give a timedelta above zero, of 2 hours at most")
    levels = range(len(DELAY_LEVELS_MS), 0, -1)
    return min(levels, key=lambda level: abs(DELAY_LEVELS_MS[level - 1] - delay_ms))
