"""One file of the index: from a key's hash to the positions of its records in the commit log.

Layout (big-endian), with RocketMQ's default numbers of slots and entries:

| at              | bytes           | field                                                      |
|-----------------|-----------------|------------------------------------------------------------|
| 0               | 8               | beginTimestamp: store time of the first record             |
| 8               | 8               | endTimestamp: store time of the last one                   |
| 16              | 8               | beginPhyOffset: position of the first record               |
| 24              | 8               | endPhyOffset: position of the last one                     |
| 32              | 4               | hashSlotCount: slots in use                                |
| 36              | 4               | indexCount: the number of the next entry; the first is 1   |
| 40              | 4 x 5,000,000   | slots: the number of the latest entry of a slot, 0 if none |
| 20,000,040      | 20 x 20,000,000 | entries; entry 0 is unused                                 |

An entry: 4 bytes hash of the key, 8 position in the log, 4 seconds from beginTimestamp to the
record's store time, 4 number of the slot's previous entry. A key's slot is its hash modulo the
number of slots. The hash is the absolute value of Java's `hashCode` of `topic#key`.

Slots are changed in memory. They are written only once the entries that they name are on the disk,
so that after a crash every slot in the file leads to whole entries (`IndexFlush`).

Source: IndexFile.java, IndexHeader.java, 4.9. Tests: test_message_index.py.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import NamedTuple, TypeAlias

from sparrowmq.protocol import speedups
from sparrowmq.store.storage import StorageFile

HEADER_SIZE = 40
_SLOT_SIZE = 4
_ENTRY_SIZE = 20
_HEADER = Struct(">qqqqii")
assert _HEADER.size == HEADER_SIZE
_ENTRY = Struct(">iqii")
assert _ENTRY.size == _ENTRY_SIZE
_SLOT = Struct(">i")
_POSITION = Struct(">q")
# How much of a file is searched at once.
_SEARCHED_BYTES = 1 << 20
_INT_MAX = 0x7FFFFFFF
# The number of entries that are read within 5 ms.
ENTRIES_PER_STEP = 2_048
# Slots are written in pieces of this many, which are 4 KiB.
_PAGE_SLOTS = 1024
assert array("i").itemsize == _SLOT_SIZE
Numbers: TypeAlias = "array[int] | memoryview[int]"


class IndexHeader(NamedTuple):
    """The fields of the header; `next_number` is the number of the next entry."""

    begin_timestamp_ms: int = 0
    end_timestamp_ms: int = 0
    begin_position: int = 0
    end_position: int = 0
    used_slot_count: int = 0
    next_number: int = 1

    def encode(self) -> bytes:
        """Return the header's bytes."""
        return _HEADER.pack(*self)


def decode_index_header(data: bytes) -> IndexHeader:
    """Decode a header; a file that was never written to has no entry."""
    header = IndexHeader(*_HEADER.unpack(data))
    return header if header.next_number > 0 else header._replace(next_number=1)


def index_file_size(slot_count: int, entry_count: int) -> int:
    """Return the size of a file."""
    return HEADER_SIZE + _SLOT_SIZE * slot_count + _ENTRY_SIZE * entry_count


def find_index_counts(file: StorageFile, slot_count: int, entry_count: int) -> tuple[int, int]:
    """Return the numbers of slots and entries of a file that a broker of other settings made.

    The header names the position of the last entry's record: the place of this position in the
    file shows where the entries begin.

    Returns: the configured numbers, if the file has their size or shows no others.
    """
    if file.size < HEADER_SIZE or file.size == index_file_size(slot_count, entry_count):
        return slot_count, entry_count
    header = decode_index_header(file.read(0, HEADER_SIZE))
    last, wanted = header.next_number - 1, _POSITION.pack(header.end_position)
    at = HEADER_SIZE if last > 0 and header.end_position > 0 else None
    while at is not None and (at := file.next_data(at)) is not None:
        chunk = file.read(at, _SEARCHED_BYTES)
        hit = chunk.find(wanted)
        while hit >= 0:
            entries_at = at + hit - _SLOT_SIZE - _ENTRY_SIZE * last
            slots, rest = divmod(entries_at - HEADER_SIZE, _SLOT_SIZE)
            if rest == 0 and slots > 0 and _has_counts(file, slots, last):
                return slots, (file.size - entries_at) // _ENTRY_SIZE
            hit = chunk.find(wanted, hit + 1)
        at += max(1, len(chunk) - len(wanted) + 1)
    return slot_count, entry_count


def _has_counts(file: StorageFile, slot_count: int, last: int) -> bool:
    """Return whether entry `last` is a file's last entry, if the file has so many slots."""
    entries_at = HEADER_SIZE + _SLOT_SIZE * slot_count
    entry_count, rest = divmod(file.size - entries_at, _ENTRY_SIZE)
    if rest or last >= entry_count:
        return False
    data = file.read(entries_at + _ENTRY_SIZE * last, 2 * _ENTRY_SIZE)
    key_hash = _ENTRY.unpack_from(data)[0]
    slot_at = HEADER_SIZE + _SLOT_SIZE * (key_hash % slot_count)
    is_last = not any(data[_ENTRY_SIZE:])
    return is_last and _SLOT.unpack(file.read(slot_at, _SLOT_SIZE)) == (last,)


def read_slots(file: StorageFile, slot_count: int) -> array[int]:
    """Return a file's slots: the number of the latest entry of each, 0 without any."""
    return _to_array(file.read(HEADER_SIZE, _SLOT_SIZE * slot_count))


def slot_hash(java_hash: int) -> int:
    """Return the index's hash of a key, from Java's hash as an unsigned number of 32 bits."""
    return java_hash if java_hash < 0x80000000 else -java_hash & _INT_MAX


class SlotWrites(NamedTuple):
    """The slots and the header to write to the file of a path, copied at one moment."""

    path: str
    header: bytes
    # The start of each run of slots, counted in slots, and the slots, in this machine's byte order.
    runs: tuple[tuple[int, bytes], ...]

    def write(self, file: StorageFile) -> None:
        """Write the slots and the header. Raises: OSError."""
        for first, data in self.runs:
            file.write(HEADER_SIZE + _SLOT_SIZE * first, _swap(data))
        file.write(0, self.header)


class IndexFile:
    """One file of the index.

    Args:
        file: the file, of the right size.
        name: the file's name as a number.
        header: the file's header, or the header to write.
        entry_count: the number of entries, the unused one included.
    """

    __slots__ = (
        "_dirty_pages",
        "_entries_at",
        "_entry_count",
        "_file",
        "_slot_count",
        "_slots",
        "header",
        "name",
    )

    def __init__(
        self,
        file: StorageFile,
        name: int,
        header: IndexHeader,
        *,
        slot_count: int,
        entry_count: int,
    ) -> None:
        self._file = file
        self.name = name
        self.header = header
        self._slot_count = slot_count
        self._entry_count = entry_count
        self._entries_at = HEADER_SIZE + _SLOT_SIZE * slot_count
        # All slots, as long as entries are added to the file.
        self._slots: array[int] | None = None
        # A 1 for each page of slots that the file does not have yet.
        self._dirty_pages = bytearray(-(-slot_count // _PAGE_SLOTS))

    @property
    def room(self) -> int:
        """The number of entries that still fit."""
        return self._entry_count - self.header.next_number

    @property
    def is_dirty(self) -> bool:
        """Whether entries were added that the slots in the file do not name yet."""
        return 1 in self._dirty_pages

    # -- adding --------------------------------------------------------------------------------

    def add(self, hashes: Numbers, positions: Numbers, timestamps_ms: Numbers) -> None:
        """Add entries, at least one and at most `room`.

        Args:
            hashes: the `slot_hash` of each key, of 4 bytes.
            positions: the records' positions in the log, of 8 bytes, ascending.
            timestamps_ms: the records' store times, of 8 bytes.

        Raises: OSError; no entry is added then.
        """
        functions, header = speedups.functions, self.header
        data, used_slots = (_add_entries if functions is None else functions.add_entries)(
            self._load_slots(),
            self._dirty_pages,
            _PAGE_SLOTS,
            hashes,
            positions,
            timestamps_ms,
            header.begin_timestamp_ms,
            header.next_number,
        )
        self._write(data)
        self._extend(positions, timestamps_ms, used_slots=used_slots)

    def _write(self, data: bytes) -> None:
        """Write entries; if the write fails, restore the slots that the entries use."""
        try:
            self._file.write(self._entries_at + _ENTRY_SIZE * self.header.next_number, data)
        except OSError:
            slots = self._load_slots()
            for key_hash, _, _, previous in reversed(list(_ENTRY.iter_unpack(data))):
                slots[key_hash % self._slot_count] = previous
            raise

    def _extend(
        self, positions: Sequence[int], timestamps_ms: Sequence[int], *, used_slots: int
    ) -> None:
        """Count written entries in the header."""
        header = self.header
        is_first = header.next_number == 1
        self.header = IndexHeader(
            begin_timestamp_ms=timestamps_ms[0] if is_first else header.begin_timestamp_ms,
            end_timestamp_ms=timestamps_ms[-1],
            begin_position=positions[0] if is_first else header.begin_position,
            end_position=positions[-1],
            used_slot_count=header.used_slot_count + used_slots,
            next_number=header.next_number + len(positions),
        )

    def _load_slots(self) -> array[int]:
        if self._slots is None:
            self._slots = read_slots(self._file, self._slot_count)
        return self._slots

    # -- the disk ------------------------------------------------------------------------------

    def take_dirty(self) -> SlotWrites:
        """Return the slots that changed since the last call, and the header."""
        slots = self._load_slots()
        runs: list[tuple[int, bytes]] = []
        pages = self._dirty_pages
        at = pages.find(1)
        while at >= 0:
            stop = pages.find(0, at)
            stop = len(pages) if stop < 0 else stop
            first, last = at * _PAGE_SLOTS, stop * _PAGE_SLOTS
            runs.append((first, slots[first:last].tobytes()))
            at = pages.find(1, stop)
        self._dirty_pages = bytearray(len(pages))
        return SlotWrites(self._file.path, self.header.encode(), tuple(runs))

    def put_back(self, writes: SlotWrites) -> None:
        """Let `take_dirty` return slots of this file again that could not be written."""
        if writes.path != self._file.path:
            return
        for first, data in writes.runs:
            begin, end = first // _PAGE_SLOTS, first + len(data) // _SLOT_SIZE
            count = -(-end // _PAGE_SLOTS) - begin
            self._dirty_pages[begin : begin + count] = b"\1" * count

    def let_go(self) -> None:
        """Forget the slots in memory: the file has them, and no more entries are added."""
        assert not self.is_dirty
        self._slots = None

    def close(self) -> None:
        """Release the file; later searches find nothing in it."""
        self.header = IndexHeader()
        self._file.close()

    # -- after a crash -------------------------------------------------------------------------

    def count_before(self, position: int) -> int:
        """Return the number of the first entry whose record is not before `position`."""
        low, high = 1, self.header.next_number
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] < position:
                low = middle + 1
            else:
                high = middle
        return low

    def restore(self, header: IndexHeader) -> None:
        """Return the file to an earlier header, as if later entries had never been added.

        Every slot in the file leads to whole entries, so the slot's earlier entry is found. The
        slots must be on the disk before entries are added again.
        """
        slots, next_number = self._load_slots(), header.next_number
        if max(slots) >= next_number or min(slots) < 0:
            for slot, number in enumerate(slots):
                if not 0 <= number < next_number:
                    slots[slot] = self._entry_of_slot(number, next_number)
                    self._dirty_pages[slot // _PAGE_SLOTS] = 1
        self.header = header._replace(used_slot_count=self._slot_count - slots.count(0))
        if self.header.encode() != self._file.read(0, HEADER_SIZE):
            self._dirty_pages[0] = 1

    def _entry_of_slot(self, number: int, next_number: int) -> int:
        while number >= next_number:
            previous = self._entry(number)[3] if number < self._entry_count else 0
            number = previous if previous < number else 0
        return max(0, number)

    def header_before(self, position: int, timestamp_ms: int) -> IndexHeader:
        """Return the header of the time when only records before `position` had entries.

        Args:
            timestamp_ms: the store time of the last of these records.
        """
        next_number = self.count_before(position)
        if next_number == 1:
            return IndexHeader()
        return self.header._replace(
            end_position=self._entry(next_number - 1)[1],
            end_timestamp_ms=timestamp_ms,
            next_number=next_number,
        )

    # -- finding -------------------------------------------------------------------------------

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return whether the file may have records of this time."""
        return begin_ms <= self.header.end_timestamp_ms and end_ms >= self.header.begin_timestamp_ms

    def find(self, key_hash: int, *, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield the positions of records that may have a key, the latest first.

        A position may come twice. Many records may share a slot, so None follows every
        `ENTRIES_PER_STEP` of them: other work may run there. Entries may be added, or the file
        closed, after each position and each None.

        Args:
            key_hash: the key's `slot_hash`.
            begin_ms: the earliest store time, in wall-clock milliseconds; entries have whole
                seconds.
            end_ms: the latest store time.
        """
        if self.header.next_number == 1:
            # Closed, and perhaps removed.
            return
        number = self._slot(key_hash % self._slot_count)
        read = 0
        while 0 < number < self.header.next_number:
            entry_hash, position, seconds, previous = self._entry(number)
            timestamp_ms = self.header.begin_timestamp_ms + 1000 * seconds
            if entry_hash == key_hash and begin_ms <= timestamp_ms <= end_ms:
                yield position
            if seconds < 0 or timestamp_ms < begin_ms or previous >= number:
                break
            number = previous
            read += 1
            if read % ENTRIES_PER_STEP == 0:
                yield None

    def _slot(self, slot: int) -> int:
        if self._slots is not None:
            return self._slots[slot]
        (number,) = _SLOT.unpack(self._file.read(HEADER_SIZE + _SLOT_SIZE * slot, _SLOT_SIZE))
        return int(number)

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        data = self._file.read(self._entries_at + _ENTRY_SIZE * number, _ENTRY_SIZE)
        key_hash, position, seconds, previous = _ENTRY.unpack(data)
        return key_hash, position, seconds, previous


def _add_entries(
    slots: array[int],
    pages: bytearray,
    page_slots: int,
    hashes: Numbers,
    positions: Numbers,
    timestamps_ms: Numbers,
    begin_ms: int,
    number: int,
) -> tuple[bytes, int]:
    """Do in Python what `Speedups.add_entries` does in C."""
    slot_count, seconds = len(slots), _seconds(begin_ms, timestamps_ms, number)
    previous: list[int] = []
    for key_hash in hashes:
        slot = key_hash % slot_count
        previous.append(slots[slot])
        slots[slot] = number
        pages[slot // page_slots] = 1
        number += 1
    return b"".join(map(_ENTRY.pack, hashes, positions, seconds, previous)), previous.count(0)


def _seconds(begin_ms: int, timestamps_ms: Sequence[int], number: int) -> list[int]:
    """Return store times as the seconds that entries have, from entry `number` on.

    The first entry of a file counts from the end of the previous file, as in RocketMQ.
    """
    first = timestamps_ms[0]
    if number == 1:
        rest = _seconds(first, timestamps_ms[1:], 2) if len(timestamps_ms) > 1 else []
        return [_seconds_between(begin_ms, first), *rest]
    least, most = min(timestamps_ms), max(timestamps_ms)
    if (second := _seconds_between(begin_ms, least)) == _seconds_between(begin_ms, most):
        return [second] * len(timestamps_ms)
    return [_seconds_between(begin_ms, each) for each in timestamps_ms]


def _seconds_between(begin_ms: int, timestamp_ms: int) -> int:
    if begin_ms <= 0 or timestamp_ms <= begin_ms:
        return 0
    return min((timestamp_ms - begin_ms) // 1000, _INT_MAX)


def _to_array(data: bytes) -> array[int]:
    slots = array("i", data)
    if sys.byteorder == "little":
        slots.byteswap()
    return slots


def _swap(data: bytes) -> bytes:
    """Swap the byte order of slots, between this machine's and the file's."""
    return _to_array(data).tobytes()
