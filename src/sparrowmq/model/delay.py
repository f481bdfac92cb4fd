"""The brokers' delay levels. Pure. Tests: test_message_delay.py."""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta

from sparrowmq.errors import UsageError

# MessageStoreConfig.messageDelayLevel: the delay of level 1, 2 and so on.
DELAY_LEVELS_MS = tuple(
    1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 20 * 60, 30 * 60, 3600, 7200)
)
assert len(DELAY_LEVELS_MS) == 18
_MILLISECOND = timedelta(milliseconds=1)
DELAY_MIN, DELAY_MAX = _MILLISECOND, timedelta(milliseconds=DELAY_LEVELS_MS[-1])


def shortest_delay_level(delay: timedelta) -> int:
    """Return the shortest level that lasts at least as long as the delay.

    Levels are 1, 5, 10 and 30 s, each minute from 1 to 10, 20 and 30 min, 1 and 2 h, unless the
    broker is configured otherwise (messageDelayLevel).

    Raises: UsageError for a delay of zero or less, or of more than 2 h.
    """
    # Rounded up to a millisecond.
    delay_ms = -(-delay // _MILLISECOND) if isinstance(delay, timedelta) else 0
    if not 0 < delay_ms <= DELAY_LEVELS_MS[-1]:
        raise UsageError(f"delay is {delay!r}; give a timedelta above zero, of 2 hours at most")
    return 1 + bisect_left(DELAY_LEVELS_MS, delay_ms)
