"""Walk the commit log record by record, and search for records after damage.

Tests: test_torn_tail.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparrowmq.protocol.record import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    head_layout,
)
from sparrowmq.store.file_series import FileSeries
from sparrowmq.store.record_check import BLANK_SIZE, RECORD_SIZE_MIN, CheckedRecord, RecordChecker

_CHUNK_SIZE = 4 << 20
# No broker is configured for longer records; a record that claims to be longer is damaged.
_RECORD_SIZE_MAX = 256 << 20
_MAGICS = (MAGIC_V1, MAGIC_V2)
_MAGIC_PREFIX = MAGIC_V1.to_bytes(4, "big")[:3]
_MAGIC_AT = 4
_POSITION = head_layout("position")


def find_head(chunk: bytes, position: int) -> int:
    """Return where the next record may begin after the first byte of a piece of the log.

    Args:
        position: the piece's position in the log, which a record's head names.

    Returns: the place of a head, or the first place whose head is not in the piece as a whole.
    """
    last_at = len(chunk) - _POSITION.size
    at = chunk.find(_MAGIC_PREFIX, 1 + _MAGIC_AT) - _MAGIC_AT
    while 0 < at <= last_at:
        if _POSITION.unpack_from(chunk, at) == (position + at,):
            return at
        at = chunk.find(_MAGIC_PREFIX, at + 1 + _MAGIC_AT) - _MAGIC_AT
    return last_at + 1 if last_at >= 0 else len(chunk)


class LogScan:
    """A walk over the records of a log.

    After `run` is exhausted, `position` is the first position that belongs to no valid record.
    """

    __slots__ = ("_checker", "_files", "position")

    def __init__(self, files: FileSeries, checker: RecordChecker) -> None:
        self._files = files
        self._checker = checker
        self.position = 0

    def run(self, start: int) -> Iterator[CheckedRecord]:
        """Yield the valid records from `start` on, up to the first bytes that are not a record."""
        self.position = start
        chunk_size = _CHUNK_SIZE
        while True:
            begin = self.position
            left = self._left(begin)
            chunk = self._files.read(begin, min(chunk_size, left))
            chunk_size = _CHUNK_SIZE
            for record in self._checker.check_all(chunk, begin):
                self.position = record.position + record.size
                yield record
            at = self.position - begin
            left -= at
            if left < BLANK_SIZE:
                return
            size, magic = self._size_and_magic(self.position)
            if magic == MAGIC_BLANK and size == left:
                self.position += left
                if self._files.base_of(self.position) is None:
                    return
            elif magic in _MAGICS and len(chunk) - at < size <= min(left, _RECORD_SIZE_MAX):
                # The chunk ends within the record: read on from its beginning.
                chunk_size = max(size, _CHUNK_SIZE)
            else:
                return

    def record_at(self, position: int) -> CheckedRecord | None:
        """Return the valid record at a position, None if there is none."""
        left = self._left(position)
        if left < RECORD_SIZE_MIN:
            return None
        size, _ = self._size_and_magic(position)
        if size > min(left, _RECORD_SIZE_MAX):
            return None
        return self._checker.check(self._files.read(position, size), 0, position)

    def find_after(self, position: int) -> Iterator[CheckedRecord]:
        """Yield every valid record that begins after `position`; none begins at `position`."""
        at = position + 1 + _MAGIC_AT
        while (found := self._files.next_data(at)) is not None:
            at = found
            chunk = self._files.read(at, min(_CHUNK_SIZE, self._left(at)))
            hit = chunk.find(_MAGIC_PREFIX)
            if hit < 0:
                # The chunk's end may cut the magic, unless the file ends there too.
                at += max(len(chunk) - len(_MAGIC_PREFIX) + 1, 1)
                continue
            record = self.record_at(at + hit - _MAGIC_AT)
            if record is None:
                at += hit + 1
                continue
            yield record
            at = record.position + record.size + _MAGIC_AT

    def _left(self, position: int) -> int:
        base = self._files.base_of(position)
        return 0 if base is None else base + self._files.file_size - position

    def _size_and_magic(self, position: int) -> tuple[int, int]:
        data = self._files.read(position, BLANK_SIZE)
        if len(data) < BLANK_SIZE:
            return 0, 0
        size, magic = SIZE_AND_MAGIC.unpack(data)
        return size, magic
