"""The two kinds of message ids. Pure.

The broker makes the offset message id: store host and commit-log position, upper-case hex.

| bytes | v4 | v6 |
|---|---|---|
| ip | 0-3 | 0-15 |
| port, int | 4-7 | 16-19 |
| commit-log position, long | 8-15 | 20-27 |

The producer makes the uniq id (property UNIQ_KEY), upper-case hex:

| v4 | v6 | content |
|---|---|---|
| 0-3 | 0-15 | ip |
| 4-5 | 16-17 | low 16 bits of the process id |
| 6-9 | 18-21 | any number of the process; Java takes a hash of its class loader |
| 10-13 | 22-25 | milliseconds since the start of the month |
| 14-15 | 26-27 | counter, one more per id |

Source: RocketMQ 4.9.3 common/message/MessageDecoder.java, MessageClientIDSetter.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from struct import pack

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError

_ID_BYTES_V4 = 16
_ID_BYTES_V6 = 28
# MessageClientIDSetter: a smaller step back of the clock does not begin another month.
_CLOCK_STEP_BACK_MS_MAX = 1_000_000
_DIGITS = tuple(f"{number:02X}" for number in range(256))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode_offset_msg_id(store_host: bytes, position: int) -> str:
    """Return the id of the record at `position` on the broker `store_host` (ip and port bytes)."""
    return f"{store_host.hex().upper()}{position & 0xFFFF_FFFF_FFFF_FFFF:016X}"


def encode_offset_msg_ids(store_host: bytes, positions: Sequence[int]) -> str:
    """Return the ids of several records of one broker as a comma list."""
    if len(positions) == 1:
        return encode_offset_msg_id(store_host, positions[0])
    host = store_host.hex().upper()
    digits = pack(f">{len(positions)}q", *positions).hex(",", 8).upper()
    return host + digits.replace(",", f",{host}")


def decode_offset_msg_id(text: str) -> tuple[bytes, int]:
    """Return the store host (4 or 16 ip bytes, 4 port bytes) and the commit-log position.

    Raises: RemoteProtocolError if the text is not an offset message id.
    """
    data = _decode_hex(text)
    return data[:-8], int.from_bytes(data[-8:], "big", signed=True)


class UniqIdGenerator:
    """Makes the ids that a producer gives to its messages.

    Args:
        ip: the producer's address, 4 or 16 bytes.
        process_id: only its low 16 bits are used.
        process_number: distinguishes producers with one process id.
        counter: the start of the 16 bit counter.
        utc_offset_ms: the offset of the zone in which months begin; producers may differ in it.
    """

    __slots__ = (
        "_counter",
        "_month_end_ms",
        "_month_start_ms",
        "_newest_ms",
        "_newest_start",
        "_prefix",
        "_utc_offset_ms",
    )

    def __init__(
        self,
        ip: bytes,
        process_id: int,
        *,
        process_number: int,
        counter: int = 0,
        utc_offset_ms: int = 0,
    ) -> None:
        if len(ip) not in (4, 16):
            raise LocalProtocolError(f"an ip has 4 or 16 bytes, not {len(ip)}: {ip.hex()}")
        self._prefix = (
            f"{ip.hex().upper()}{process_id & 0xFFFF:04X}{process_number & 0xFFFFFFFF:08X}"
        )
        self._counter = counter & 0xFFFF
        self._utc_offset_ms = utc_offset_ms
        self._month_start_ms = self._month_end_ms = 0
        # All ids of one millisecond have one beginning.
        self._newest_ms, self._newest_start = -1, ""

    def next_id(self, timestamp_ms: int) -> str:
        """Return a new id. Ids differ while fewer than 65,536 are made in a millisecond."""
        if timestamp_ms != self._newest_ms:
            self._begin_ms(timestamp_ms)
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._newest_start}{counter:04X}"

    def reserve(self, timestamp_ms: int, count: int) -> tuple[str, int]:
        """Reserve at most 65,536 ids, the same as those of successive calls of `next_id`.

        Returns: the common beginning of the ids, and the number of the first. Each id ends with
            its number, modulo 65,536, as four digits of hex (`list_ids`).
        """
        assert count <= 1 << 16
        if timestamp_ms != self._newest_ms:
            self._begin_ms(timestamp_ms)
        counter = self._counter
        self._counter = (counter + count) & 0xFFFF
        return self._newest_start, counter

    def _begin_ms(self, timestamp_ms: int) -> None:
        if not self._month_start_ms <= timestamp_ms < self._month_end_ms:
            self._begin_month(timestamp_ms)
        span_ms = max(0, timestamp_ms - self._month_start_ms)
        self._newest_ms = timestamp_ms
        self._newest_start = f"{self._prefix}{span_ms & 0xFFFFFFFF:08X}"

    def _begin_month(self, timestamp_ms: int) -> None:
        if 0 < self._month_start_ms - timestamp_ms < _CLOCK_STEP_BACK_MS_MAX:
            return
        self._month_start_ms, self._month_end_ms = month_bounds(
            timestamp_ms, utc_offset_ms=self._utc_offset_ms
        )


def list_ids(start: str, number: int, count: int) -> list[str]:
    """Return ids that `UniqIdGenerator.reserve` has reserved."""
    ids: list[str] = []
    while len(ids) < count:
        # In one step, the ids with the same first two of their four digits.
        head, last = f"{start}{number >> 8:02X}", number & 0xFF
        ids += [head + digits for digits in _DIGITS[last : last + count - len(ids)]]
        number = (number + 0x100 - last) & 0xFFFF
    return ids


def month_bounds(timestamp_ms: int, *, utc_offset_ms: int = 0) -> tuple[int, int]:
    """Return the first instants of the month and of the next one, in wall-clock milliseconds."""
    local = _EPOCH + timedelta(milliseconds=timestamp_ms + utc_offset_ms)
    start = datetime(local.year, local.month, 1, tzinfo=UTC)
    end = datetime(local.year + local.month // 12, local.month % 12 + 1, 1, tzinfo=UTC)
    return _to_ms(start) - utc_offset_ms, _to_ms(end) - utc_offset_ms


def _to_ms(instant: datetime) -> int:
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def _decode_hex(text: str) -> bytes:
    if len(text) not in (2 * _ID_BYTES_V4, 2 * _ID_BYTES_V6):
        raise RemoteProtocolError(f"a message id has 32 or 56 digits, not {len(text)}")
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise RemoteProtocolError(f"no message id: {text!r}") from error
    if 2 * len(data) != len(text):
        # bytes.fromhex skips blanks.
        raise RemoteProtocolError(f"no message id: {text!r}")
    return data
