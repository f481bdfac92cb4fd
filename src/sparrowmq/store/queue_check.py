"""Checks whether consume queue entries can match the log, without reading the log.

Entries have no checksum, so a queue file is believed only as far as it is *sound*: positions
ascend, records do not overlap, and no record lies beyond the log. Then the sizes in all queues'
entries are added up for each file of the log. The sum must fill the file exactly, up to the BLANK
at its end. A queue that lost an entry, or has an entry of another queue, breaks the sum.
Tests: test_queue_damage.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import add, le

from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.consume_queue import ENTRY, FILLER_SIZE, ConsumeQueue
from sparrowmq.store.record_check import RECORD_SIZE_MIN

_CHUNK_ENTRIES = 50_000
_FIRST_CHUNK_ENTRIES = 2048


@dataclass(slots=True)
class QueueCheck:
    """The sound entries in the files of one queue.

    `first_offset` is the offset of the first entry that is not a filler. `sound_end` is the offset
    after the last sound entry.
    """

    queue: ConsumeQueue
    first_offset: int = 0
    sound_end: int = 0
    bytes_by_file: dict[int, int] = field(default_factory=dict)

    def position(self, offset: int) -> int:
        """Return the log position in the entry of a queue offset."""
        data = self.queue.files.read(offset * ENTRY_SIZE, ENTRY_SIZE)
        position, _, _ = ENTRY.unpack(data)
        return int(position)

    def count_before(self, position: int) -> int:
        """Return the offset of the first sound entry whose record is not before `position`."""
        low, high = self.first_offset, self.sound_end
        while low < high:
            middle = (low + high) // 2
            if self.position(middle) < position:
                low = middle + 1
            else:
                high = middle
        return low

    def spans_from(self, position: int) -> list[tuple[int, int]]:
        """Return log position and size from each sound entry from `position` on."""
        offset = self.count_before(position)
        count = self.sound_end - offset
        data = self.queue.files.read(offset * ENTRY_SIZE, count * ENTRY_SIZE)
        return [(entry[0], entry[1]) for entry in ENTRY.iter_unpack(data)]


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
    chunk_entries = _FIRST_CHUNK_ENTRIES
    while True:
        data = queue.files.read(offset * ENTRY_SIZE, chunk_entries * ENTRY_SIZE)
        used = -(-len(data.rstrip(b"\0")) // ENTRY_SIZE)
        count = _count_sound(data[: used * ENTRY_SIZE], previous_end, log_end)
        if count:
            entries = list(ENTRY.iter_unpack(data[: count * ENTRY_SIZE]))
            previous_end = entries[-1][0] + entries[-1][1]
            _add_up(check.bytes_by_file, entries, sum_before, log_begin, log_file_size)
        offset += count
        check.sound_end = offset
        if count < chunk_entries:
            return check
        chunk_entries = _CHUNK_ENTRIES


def _skip_fillers(queue: ConsumeQueue, offset: int) -> int:
    while True:
        data = queue.files.read(offset * ENTRY_SIZE, _FIRST_CHUNK_ENTRIES * ENTRY_SIZE)
        for position, size, _ in ENTRY.iter_unpack(data):
            if size != FILLER_SIZE or position != 0:
                return offset
            offset += 1
        if not data:
            return offset


def _count_sound(data: bytes, previous_end: int, log_end: int) -> int:
    entries = list(ENTRY.iter_unpack(data))
    if not entries:
        return 0
    positions, sizes, _ = zip(*entries, strict=True)
    ends = list(map(add, positions, sizes))
    if (
        positions[0] >= previous_end
        and min(sizes) >= RECORD_SIZE_MIN
        and ends[-1] <= log_end
        and all(map(le, ends, positions[1:]))
    ):
        return len(entries)
    count = 0
    for position, size, _ in entries:
        if position < previous_end or size < RECORD_SIZE_MIN or position + size > log_end:
            break
        previous_end = position + size
        count += 1
    return count


def _add_up(
    bytes_by_file: dict[int, int],
    entries: list[tuple[int, int, int]],
    before: int,
    log_begin: int,
    log_file_size: int,
) -> None:
    first, last = entries[0][0], entries[-1][0]
    base = first - first % log_file_size
    if first >= log_begin and last < before and last < base + log_file_size:
        bytes_by_file[base] = bytes_by_file.get(base, 0) + sum([entry[1] for entry in entries])
        return
    for position, size, _ in entries:
        if log_begin <= position < before:
            base = position - position % log_file_size
            bytes_by_file[base] = bytes_by_file.get(base, 0) + size
