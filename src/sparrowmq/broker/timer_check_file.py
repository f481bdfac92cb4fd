"""The progress of the timer topic as RocketMQ 5's file, so that waiting messages move both ways.

| bytes | number | here |
|---|---|---|
| 0 | lastReadTimeMs: every message before this time is delivered | `delivered_ms` + 1 |
| 8 | lastTimerLogFlushPos | 0: there is no timer log |
| 16 | lastTimerQueueOffset: the topic is read up to this offset | `read` |
| 24 | masterTimerQueueOffset: a broker without a timer log reads on from here | `begin` |
| 2048 | a mark, and `begin`, which RocketMQ changes to its own | |
| 2064 | zeros | `former_read`, `former_ms` |

All are big-endian. RocketMQ maps the file, which has 4 KiB.
Source: TimerCheckpoint.java, TimerMessageStore.recover of 5.5.0.
Tests: test_timer_messages.py, interop/test_store_exchange.py.
"""

from __future__ import annotations

from struct import Struct as Layout

from sparrowmq.broker.timer_messages import TimerTable
from sparrowmq.errors import ProtocolError

TIMER_CHECK_FILE = "timercheck"
_FILE_BYTES = 4_096
_NUMBERS = Layout(">qqqq")
_MARKED = Layout(">8sqqq")
_MARKED_AT = 2_048
_MARK = b"SPARROW1"


def encode_timer_check(table: TimerTable) -> bytes:
    """Return the file's content."""
    content = bytearray(_FILE_BYTES)
    _NUMBERS.pack_into(content, 0, table.delivered_ms + 1, 0, table.read, table.begin)
    marked = (table.begin, table.former_read, table.former_ms)
    _MARKED.pack_into(content, _MARKED_AT, _MARK, *marked)
    return bytes(content)


def decode_timer_check(content: bytes) -> TimerTable:
    """Return the progress in a file of SparrowMQ's or of RocketMQ's. Raises: ProtocolError."""
    if len(content) < _NUMBERS.size:
        raise ProtocolError(f"{TIMER_CHECK_FILE} has {len(content)} bytes, and needs 32")
    read_ms, _, read, _ = _NUMBERS.unpack_from(content)
    begin = former_read = former_ms = 0
    if len(content) >= _MARKED_AT + _MARKED.size:
        mark, *marked = _MARKED.unpack_from(content, _MARKED_AT)
        if mark == _MARK:
            begin, former_read, former_ms = marked
    numbers = (read_ms, read, begin, former_read, former_ms)
    if min(numbers) < 0:
        raise ProtocolError(f"{TIMER_CHECK_FILE} has a negative number: {numbers}")
    return TimerTable(
        begin=begin,
        read=read,
        delivered_ms=max(0, read_ms - 1),
        former_read=former_read,
        former_ms=former_ms,
    )
