"""Checks whether consume queue entries can match the log, without reading the log.

Entries have no checksum, so a queue file is believed only as far as it is *sound*: positions
ascend, records do not overlap, and no record lies beyond the log. Fillers between them stand for
offsets without a record. Then the sizes in all queues' entries are added up for each file of the
log. The sum must fill the file exactly, up to the BLANK at its end. A queue that lost an entry, or
has an entry of another queue, breaks the sum.
Tests: test_queue_damage.py.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add, le

from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from sparrowmq.store.record_check import RECORD_SIZE_MIN

_CHUNK_ENTRIES = 4096


@dataclass(slots=True)
class QueueCheck:
    """The sound entries in the files of one queue.

    `first_offset` is the offset of the first entry that is not a filler. `sound_end` is the offset
    after the last sound entry, which is not a filler either. `is_lost`: whether the disk has lost a
    part of the files, which are to be written anew.
    """

    queue: ConsumeQueue
    first_offset: int = 0
    sound_end: int = 0
    bytes_by_file: dict[int, int] = field(default_factory=dict)
    is_lost: bool = False

    def last_record(self, offset: int) -> tuple[int, int, int]:
        """Return offset, log position and size of the last sound entry up to an offset."""
        while True:
            data = self.queue.files.read(offset * ENTRY_SIZE, ENTRY_SIZE)
            position, size, _ = ENTRY.unpack(data)
            if size != FILLER_SIZE or offset == self.first_offset:
                return offset, position, size
            offset -= 1

    def count_before(self, position: int) -> int:
        """Return the offset of the first sound entry whose record is not before `position`."""
        low, high = self.first_offset, self.sound_end
        while low < high:
            middle = (low + high) // 2
            found, found_position, _ = self.last_record(middle)
            if found_position < position:
                low = middle + 1
            else:
                high = found
        return low

    def spans_from(self, position: int) -> list[tuple[int, int]]:
        """Return log position and size from each sound entry from `position` on."""
        offset = self.count_before(position)
        count = self.sound_end - offset
        data = self.queue.files.read(offset * ENTRY_SIZE, count * ENTRY_SIZE)
        return [
            (position, size) for position, size, _ in ENTRY.iter_unpack(data) if size != FILLER_SIZE
        ]


def check_queue(
    queue: ConsumeQueue, *, log_end: int, sum_before: int, log_file_size: int, log_begin: int
) -> QueueCheck:
    """Find the sound entries of a queue, and add up the sizes of records before `sum_before`.

    Args:
        queue: the queue, with its files loaded.
        log_end: the end of the log's last file.
        sum_before: the position from which records are not added up.
        log_file_size: bytes of each file of the log.
        log_begin: the beginning of the log; records before it were removed.
    """
    check = QueueCheck(queue)
    if not queue.files.bases:
        return check
    offset = queue.files.begin // ENTRY_SIZE
    offset = check.first_offset = check.sound_end = _skip_fillers(queue, offset)
    previous_end = 0
    while True:
        data = queue.files.read(offset * ENTRY_SIZE, _CHUNK_ENTRIES * ENTRY_SIZE)
        used = -(-len(data.rstrip(b"\0")) // ENTRY_SIZE)
        # Without their tags' codes: two numbers for each entry, and no tuple.
        flat = _spans(used).unpack_from(data)
        positions, sizes = flat[::2], flat[1::2]
        count = _count_sound(positions, sizes, previous_end, log_end)
        if count:
            previous_end = positions[count - 1] + sizes[count - 1]
            _add_up(
                check.bytes_by_file,
                positions[:count],
                sizes,
                range(log_begin, sum_before),
                log_file_size,
            )
            check.sound_end = offset + count
        offset += count
        if count < _CHUNK_ENTRIES:
            behind = _skip_fillers(queue, offset)
            if behind == offset:
                return check
            offset = behind


@lru_cache(maxsize=2)
def _spans(count: int) -> struct.Struct:
    """Return the layout of entries of which position and size are read."""
    return struct.Struct(">" + "qi8x" * count)


def _skip_fillers(queue: ConsumeQueue, offset: int) -> int:
    while True:
        data = queue.files.read(offset * ENTRY_SIZE, _CHUNK_ENTRIES * ENTRY_SIZE)
        for position, size, _ in ENTRY.iter_unpack(data):
            if size != FILLER_SIZE or position != 0:
                return offset
            offset += 1
        if not data:
            return offset


def _count_sound(
    positions: Sequence[int], sizes: Sequence[int], previous_end: int, log_end: int
) -> int:
    if not positions:
        return 0
    if (
        positions[0] >= previous_end
        and min(sizes) >= RECORD_SIZE_MIN
        and positions[-1] + sizes[-1] <= log_end
        and all(map(le, map(add, positions, sizes), positions[1:]))
    ):
        return len(positions)
    count = 0
    for position, size in zip(positions, sizes, strict=True):
        if position < previous_end or size < RECORD_SIZE_MIN or position + size > log_end:
            break
        previous_end = position + size
        count += 1
    return count


def _add_up(
    bytes_by_file: dict[int, int],
    positions: Sequence[int],
    sizes: Sequence[int],
    within: range,
    log_file_size: int,
) -> None:
    """Add up the sizes of the records within a part of the log; positions ascend."""
    at, end = bisect_left(positions, within.start), bisect_left(positions, within.stop)
    while at < end:
        base = positions[at] - positions[at] % log_file_size
        file_end = bisect_left(positions, base + log_file_size, at, end)
        bytes_by_file[base] = bytes_by_file.get(base, 0) + sum(sizes[at:file_end])
        at = file_end
