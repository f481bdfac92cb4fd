"""Checks whether bytes in the commit log are a whole record, and reads the record's fields.

A record is valid only if every check succeeds: the magic, lengths that add up, the record's own
position, the body's checksum, the whole record's checksum if present, and a legal topic and queue.
These checks are stricter than Apache's recovery, which serves records with torn properties.

Layout (big-endian; hosts have 8 bytes, or 20 if SYSFLAG says that they are IPv6):

| at | bytes | field                        |
|----|-------|------------------------------|
| 0  | 4     | TOTALSIZE                    |
| 4  | 4     | MAGIC                        |
| 8  | 4     | BODYCRC                      |
| 12 | 4     | QUEUEID                      |
| 16 | 4     | FLAG                         |
| 20 | 8     | QUEUEOFFSET                  |
| 28 | 8     | PHYSICALOFFSET               |
| 36 | 4     | SYSFLAG                      |
| 40 | 8     | BORNTIMESTAMP                |
| 48 | 8, 20 | BORNHOST                     |
| 56 | 8     | STORETIMESTAMP               |
| 64 | 8, 20 | STOREHOST                    |
| 72 | 4     | RECONSUMETIMES               |
| 76 | 8     | PREPAREDTRANSACTIONOFFSET    |
| 84 | 4 + n | BODY                         |
|    | 1 + n | TOPIC (2 + n in version 2)   |
|    | 2 + n | PROPERTIES                   |

5.x's checksum of the whole record is a property at the record's end: `__CRC32#`, 0x01, ten decimal
digits with the lowest first, 0x02. The checksum covers all bytes before these 20 bytes. In the part
of the log that this store has written, a record without the checksum either has lost its end or was
written by an Apache broker since. The properties distinguish the two: a torn end leaves zeros or
bytes that are not text.
Source: CommitLog.checkMessageAndReturnSize, MessageDecoder.createCrc32 (5.x).
Tests: test_corruption.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from sparrowmq.model.message import (
    PROPERTY_DELAY_LEVEL,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DEL_UNIQKEY,
    PROPERTY_TIMER_OUT_MS,
)
from sparrowmq.model.names import SCHEDULE_TOPIC, TIMER_TOPIC, is_legal_name
from sparrowmq.protocol import speedups
from sparrowmq.protocol.java_numbers import parse_like
from sparrowmq.protocol.properties import (
    PROPERTIES_BYTES_MAX,
    PROPERTY_SEPARATOR,
    find_property,
)
from sparrowmq.protocol.record import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    HEAD_FIELDS,
    HEAD_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    STORE_HOST_V6,
    V6_BITS,
    head_layout,
)
from sparrowmq.protocol.subscription import tags_code

# The end of a file that no record fits into begins with its size and MAGIC_BLANK.
BLANK_SIZE = 8
# The size with IPv4 hosts, one byte of topic, and neither body nor properties.
RECORD_SIZE_MIN = 92

# All fields but the hosts; a negative size is too large here.
_HEAD = head_layout(*(HEAD_FIELDS.keys() - {"born_host", "store_host"}), size="I", body_crc="I")
_INT = Struct(">i")
_LONG = Struct(">q")
_SHORT = Struct(">H")
_TRANSACTION = 0xC
_TRANSACTION_COMMIT = 0x8

# Control characters except the two separators, tab and line breaks.
_NO_TEXT = bytes(code for code in range(32) if code not in (1, 2, 9, 10, 13))

_CRC_NAME = b"__CRC32#\x01"
# The lowest digit comes first, so the property is formatted backwards.
_CRC_BACKWARDS = b"\x02%010d" + _CRC_NAME[::-1]
CRC_PROPERTY_SIZE = len(_CRC_NAME) + 11
CRC_PROPERTY = "__CRC32#"
_SEPARATOR = ord(PROPERTY_SEPARATOR)
# Longer properties leave no room for a separator and the checksum.
CHECKSUMMED_PROPERTIES_SIZE_MAX = PROPERTIES_BYTES_MAX - CRC_PROPERTY_SIZE - 1
# Topics whose tags codes are not hashes.
TIMED_TOPICS = frozenset({SCHEDULE_TOPIC, TIMER_TOPIC})
# As many digits as a time of 31 millennia has, in milliseconds.
_TIME_DIGITS_MAX = 15
_CACHE_MAX = 100_000


class CheckedRecord(NamedTuple):
    """The fields of a valid record that the store needs.

    `tags_code` is the code in the consume queue entry; `is_queued` is whether there is an entry.
    """

    position: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    tags_code: int
    store_timestamp_ms: int
    is_queued: bool


def encode_crc_property(crc: int) -> bytes:
    """Return the checksum property that ends a record."""
    return (_CRC_BACKWARDS % (crc & 0x7FFFFFFF))[::-1]


def encode_crc_properties(crcs: Iterable[int]) -> list[bytes]:
    """Return the checksum properties that end several records."""
    backwards = _CRC_BACKWARDS
    return [(backwards % (crc & 0x7FFFFFFF))[::-1] for crc in crcs]


class RecordChecker:
    """Checks records, and caches the topics and tags that it has seen.

    Args:
        delay_levels_ms: the delay of level 1, 2 and so on.

    Attributes:
        checksummed_position: the position from which records have a checksum of the whole record.
    """

    __slots__ = (
        "_delay_levels_ms",
        "_tags_codes",
        "_topics",
        "_usual_topics",
        "checksummed_position",
    )

    def __init__(self, delay_levels_ms: Sequence[int]) -> None:
        self._delay_levels_ms = delay_levels_ms
        self.checksummed_position: int | None = None
        self._topics: dict[bytes, str | None] = {}
        # The legal ones whose tags codes are hashes.
        self._usual_topics: dict[bytes, str] = {}
        self._tags_codes: dict[str, int] = {}

    def check_all(self, buffer: bytes, position: int) -> Iterator[CheckedRecord]:
        """Yield the valid records from the buffer's beginning on, up to the first other bytes.

        Args:
            position: the position of the buffer in the log.
        """
        functions = speedups.functions
        at = 0
        while True:
            if functions is not None:
                records: list[CheckedRecord] = []
                at = functions.check_records(
                    buffer, at, position + at, self._usual_topics, CheckedRecord, records
                )
                yield from records
            record = self.check(buffer, at, position + at)
            if record is None:
                return
            yield record
            at += record.size

    def check(self, buffer: bytes, at: int, position: int) -> CheckedRecord | None:
        """Return the fields of the record at `at` in `buffer`, None if there is no valid record.

        Args:
            position: the record's position in the log, which the record must name too.
        """
        if at + RECORD_SIZE_MIN > len(buffer):
            return None
        (size, magic, body_crc, queue_id, _, queue_offset, own_position, sys_flag, _, store_ms, _,
         _, body_size) = _HEAD.unpack_from(buffer, at)  # fmt: skip
        end = at + size
        if (
            (magic != MAGIC_V1 and magic != MAGIC_V2)
            or own_position != position
            or size < RECORD_SIZE_MIN
            or end > len(buffer)
        ):
            return None
        body_at = at + HEAD_SIZE
        if sys_flag & V6_BITS:
            born_size = 20 if sys_flag & BORN_HOST_V6 else 8
            body_at += (born_size - 8) + (12 if sys_flag & STORE_HOST_V6 else 0)
            if body_at > end:
                return None
            (store_ms,) = _LONG.unpack_from(buffer, at + BORN_HOST_AT + born_size)
            (body_size,) = _INT.unpack_from(buffer, body_at - 4)
        topic_at = topic_field_at = body_at + body_size
        topic_length_size = 1 if magic == MAGIC_V1 else 2
        # Recovery writes an entry for every earlier offset, so as many records must fit before.
        can_be = queue_id >= 0 and 0 <= queue_offset <= position // RECORD_SIZE_MIN
        if body_size < 0 or topic_at + topic_length_size > end or not can_be:
            return None
        if topic_length_size == 1:
            topic_size = buffer[topic_at]
        else:
            (topic_size,) = _SHORT.unpack_from(buffer, topic_at)
        topic_at += topic_length_size
        properties_at = topic_at + topic_size + 2
        if properties_at > end:
            return None
        (properties_size,) = _SHORT.unpack_from(buffer, properties_at - 2)
        if properties_at + properties_size != end:
            return None
        # The view spares a copy of the body.
        view = memoryview(buffer)
        # As in Java, the checksum of an empty body is ignored.
        if body_size and crc32(view[body_at:topic_field_at]) & 0x7FFFFFFF != body_crc:
            return None
        crc_at = end - CRC_PROPERTY_SIZE
        if self._is_checksummed(buffer, crc_at, position, properties_size):
            if buffer[crc_at:end] != encode_crc_property(crc32(view[at:crc_at])):
                return None
        elif self._must_be_checksummed(position, properties_size) and not _is_text(
            buffer[properties_at:end]
        ):
            return None
        topic = self._topic(buffer[topic_at : topic_at + topic_size])
        if topic is None:
            return None
        transaction = sys_flag & _TRANSACTION
        return CheckedRecord(
            position,
            size,
            topic,
            queue_id,
            queue_offset,
            self.tags_code(topic, buffer[properties_at:end].decode("utf-8", "replace"), store_ms),
            store_ms,
            transaction == 0 or transaction == _TRANSACTION_COMMIT,
        )

    def _is_checksummed(
        self, buffer: bytes, crc_at: int, position: int, properties_size: int
    ) -> bool:
        """Return whether a record's last property, at `crc_at`, is the checksum of the whole."""
        return (
            properties_size >= CRC_PROPERTY_SIZE
            and buffer.startswith(_CRC_NAME, crc_at)
            # Behind anything but a separator this is another property, whose name ends alike, or
            # the separator is damaged.
            and (
                buffer[crc_at - 1] == _SEPARATOR
                or properties_size == CRC_PROPERTY_SIZE
                or self._must_be_checksummed(position, properties_size)
            )
        )

    def _must_be_checksummed(self, position: int, properties_size: int) -> bool:
        return (
            self.checksummed_position is not None
            and position >= self.checksummed_position
            and properties_size <= CHECKSUMMED_PROPERTIES_SIZE_MAX
        )

    def tags_code(self, topic: str, properties: str, store_timestamp_ms: int) -> int:
        """Return the tags code of a consume queue entry.

        The code is the hash of the tag, 0 without a tag; for a delayed message it is the wall-clock
        time of the delivery, and 0 for the recall of a message.
        """
        if topic == SCHEDULE_TOPIC:
            levels = self._delay_levels_ms
            text = find_property(properties, PROPERTY_DELAY_LEVEL)
            try:
                level = parse_delay_level(text, level_max=len(levels))
            except ValueError:
                level = 0
            if level > 0:
                return store_timestamp_ms + levels[level - 1]
        if topic == TIMER_TOPIC:
            is_recall = find_property(properties, PROPERTY_TIMER_DEL_UNIQKEY)
            text = find_property(properties, PROPERTY_TIMER_OUT_MS)
            is_time = 0 < len(text) <= _TIME_DIGITS_MAX and text.isascii() and text.isdigit()
            return int(text) if is_time and not is_recall else 0
        tag = find_property(properties, PROPERTY_TAGS)
        code = self._tags_codes.get(tag)
        if code is None:
            if len(self._tags_codes) >= _CACHE_MAX:
                self._tags_codes.clear()
            code = self._tags_codes[tag] = tags_code(tag)
        return code

    def _topic(self, name: bytes) -> str | None:
        try:
            return self._topics[name]
        except KeyError:
            pass
        try:
            topic: str | None = name.decode("ascii")
        except UnicodeDecodeError:
            topic = None
        if topic is not None and not is_legal_name(topic):
            topic = None
        if len(self._topics) >= _CACHE_MAX:
            self._topics.clear()
            self._usual_topics.clear()
        self._topics[name] = topic
        if topic is not None and topic not in TIMED_TOPICS:
            self._usual_topics[name] = topic
        return topic


def _is_text(properties: bytes) -> bool:
    if properties.translate(None, _NO_TEXT) != properties:
        return False
    try:
        properties.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def parse_delay_level(text: str, *, level_max: int) -> int:
    """Return the delay level that a property's value names, 0 for none.

    Raises: ValueError for a text that is not a number.
    """
    return max(0, min(int(parse_like(0, text)), level_max)) if text else 0
