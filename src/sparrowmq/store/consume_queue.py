"""The consume queue: the commit log positions of one queue's messages, in queue order.

Entry (20 bytes, big-endian); the entry of queue offset q stands at byte 20·q:

| at | bytes | field                                                                        |
|----|-------|------------------------------------------------------------------------------|
| 0  | 8     | position in the commit log                                                   |
| 8  | 4     | size of the record                                                           |
| 12 | 8     | tags code: hash of the tag; for delayed messages the wall-clock delivery time |

The log is the truth, and the queue is derived from it: missing entries can be written again from
the log. The first file of a queue that does not begin at 0 begins with filler entries.

Speed matters here: a write for each message, or for each queue of a turn's messages, is a large
part of the cost of a send. New entries are therefore gathered in memory, where readers find them.
They are written some kilobytes at a time or with the next checkpoint. A crash loses gathered
entries, and recovery writes them again (benchmarks/broker.py).
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from struct import Struct

from sparrowmq.store.config import ENTRY_SIZE, StoreConfig
from sparrowmq.store.file_series import DamagedSeries, FileSeries
from sparrowmq.store.results import Dispatched
from sparrowmq.store.storage import Storage, StorageFile, passing_over_losses

CONSUME_QUEUE_DIRECTORY = "consumequeue"
ENTRY = Struct(">qiq")
assert ENTRY.size == ENTRY_SIZE
# ConsumeQueue.fillPreBlank.
FILLER_SIZE = 0x7FFFFFFF
_FILLER = ENTRY.pack(0, FILLER_SIZE, 0)


def filler_entries(count: int) -> bytes:
    """Return entries without messages, to fill the place before a queue's first offset."""
    return _FILLER * count


def take_readable(pending: deque[Dispatched], limit: int) -> list[Dispatched]:
    """Take from the front the messages that begin in the log before a position."""
    if not pending or pending[0].position >= limit:
        return []
    if pending[-1].position < limit:
        ready = list(pending)
        pending.clear()
        return ready
    ready = []
    while pending[0].position < limit:
        ready.append(pending.popleft())
    return ready


class ConsumeQueue:
    """One queue of one topic.

    `next_offset` is the offset of the next message put. `max_offset` is the offset after the last
    entry, which readers see. `min_offset` is the offset of the first entry whose record the log
    still has, if the log still begins at `log_begin`.
    """

    __slots__ = (
        "_tail",
        "_tail_bytes_max",
        "dirty_files",
        "files",
        "is_directory_dirty",
        "log_begin",
        "max_offset",
        "min_offset",
        "next_offset",
        "queue_id",
        "topic",
        "topic_field",
    )

    def __init__(self, storage: Storage, topic: str, queue_id: int, *, config: StoreConfig) -> None:
        self.topic = topic
        self.queue_id = queue_id
        name = topic.encode()
        # The topic's field in a record: one byte of length, then the name.
        self.topic_field = bytes([len(name)]) + name if len(name) <= 0x7F else b""
        self.files = FileSeries(
            storage,
            f"{CONSUME_QUEUE_DIRECTORY}/{topic}/{queue_id}",
            file_size=config.consume_queue_file_size,
        )
        self.log_begin = 0
        self.min_offset = 0
        self.max_offset = 0
        self.next_offset = 0
        # The last entries, which are not in the files yet.
        self._tail = bytearray()
        self._tail_bytes_max = config.queue_tail_bytes_max
        self.dirty_files: dict[str, StorageFile] = {}
        self.is_directory_dirty = False

    def mend(self, synced_position: int) -> None:
        """Make the files one series again, if a crash has left gaps or cut files.

        A power cut may bring back some of the files that were removed, and lose some that were
        begun since the checkpoint. The files between these stay: once all messages have expired,
        they alone tell the next offset. Recovery writes the other entries again from the log.

        Args:
            synced_position: the log position up to which all entries are on the disk.

        Raises: StoreError if the files cannot have the size of the series; OSError.
        """
        files = self.files
        with suppress(DamagedSeries):
            files.mend()
            return
        self.is_directory_dirty = True
        while files.bases and not self._has_entry_before(synced_position):
            files.remove_last()
        while files.bases:
            with suppress(DamagedSeries):
                files.mend()
                return
            files.remove_first()

    def _has_entry_before(self, synced_position: int) -> bool:
        """Return whether the last file begins with an entry of a record before a position."""
        entry = b""
        with passing_over_losses():
            entry = self.files.file_at(self.files.bases[-1]).read(0, ENTRY_SIZE)
        position, size, _ = ENTRY.unpack(entry.ljust(ENTRY_SIZE, b"\0"))
        return bool(size > 0 and position < synced_position)

    def append(self, entries: bytes | bytearray, *, gathers: bool = True) -> None:
        """Add entries from `max_offset` on.

        Args:
            gathers: whether the entries may be only in memory for a while.

        Raises: OSError; `max_offset` is unchanged then.
        """
        bytes_max = self._tail_bytes_max if gathers else 0
        if len(self._tail) + len(entries) > bytes_max:
            self.write_tail()
        # A queue with entries must have a file.
        if len(entries) > bytes_max or not self.files.bases:
            self.write(self.max_offset, entries)
        else:
            self._tail += entries
        self.max_offset += len(entries) // ENTRY_SIZE

    def write_tail(self) -> None:
        """Write the entries that are not in the files yet.

        Raises: OSError; the entries stay in memory then.
        """
        if self._tail:
            self.write(self.max_offset - len(self._tail) // ENTRY_SIZE, self._tail)
            self._tail = bytearray()

    def write(self, offset: int, entries: bytes | bytearray) -> None:
        """Write entries from queue offset `offset` on; earlier ones must exist or be fillers."""
        position = offset * ENTRY_SIZE
        count = len(self.files.bases)
        if count == 0 and position:
            self._begin_at(position)
        try:
            for file in self.files.write(position, entries):
                self.dirty_files[file.path] = file
        finally:
            # A file that a full disk does not fill is there all the same.
            self.is_directory_dirty |= len(self.files.bases) != count

    def _begin_at(self, position: int) -> None:
        base = position - position % self.files.file_size
        self.files.add_file(base)
        self.is_directory_dirty = True
        self.min_offset = position // ENTRY_SIZE
        if position > base:
            self.files.write(base, filler_entries((position - base) // ENTRY_SIZE))

    def read(self, offset: int, count: int) -> bytes:
        """Return at most `count` entries from queue offset `offset` on, in their stored form."""
        end = min(offset + count, self.max_offset)
        if end <= offset:
            return b""
        written_end = self.max_offset - len(self._tail) // ENTRY_SIZE
        if end <= written_end:
            return self.files.read(offset * ENTRY_SIZE, (end - offset) * ENTRY_SIZE)
        begin = max(offset, written_end)
        tail = self._tail[(begin - written_end) * ENTRY_SIZE : (end - written_end) * ENTRY_SIZE]
        if begin == offset:
            return bytes(tail)
        return self.files.read(offset * ENTRY_SIZE, (begin - offset) * ENTRY_SIZE) + tail

    def entry(self, offset: int) -> tuple[int, int, int] | None:
        """Return (position, size, tags code) of one message, None for a missing entry."""
        if not self.min_offset <= offset < self.max_offset:
            return None
        position, size, tags_code = ENTRY.unpack(self.read(offset, 1))
        return position, size, tags_code

    def expire(self, log_begin: int) -> None:
        """Move `min_offset` past the entries of records before `log_begin`.

        Raises: OSError.
        """
        low, high = self.min_offset, self.max_offset
        if low < high and self.last_message(low, low)[1] < log_begin:
            low += 1
            while low < high:
                middle = (low + high) // 2
                at, position = self.last_message(middle, low)
                if position < log_begin:
                    low = middle + 1
                else:
                    high = at
        self.min_offset = low
        self.log_begin = log_begin

    def last_message(self, offset: int, low: int) -> tuple[int, int]:
        """Return the offset and log position of the last message up to an offset, or of `low`."""
        while True:
            position, size, _ = ENTRY.unpack(self.read(offset, 1))
            if size != FILLER_SIZE or offset == low:
                return offset, position
            offset -= 1

    @property
    def has_expired_files(self) -> bool:
        """Whether the first file ends before the last entry of an expired message."""
        # That entry stays: unlike later ones it is surely on the disk, and tells the next offset.
        kept = (self.min_offset - 1) * ENTRY_SIZE
        bases = self.files.bases
        return len(bases) > 1 and bases[0] + self.files.file_size <= kept

    def remove_expired_files(self) -> None:
        """Remove the files of expired messages from the front; a later sync removes their names.

        Raises: OSError.
        """
        while self.has_expired_files:
            self.dirty_files.pop(self.files.remove_first(), None)
            self.is_directory_dirty = True

    def cut(self, offset: int) -> bool:
        """Zero all entries from `offset` on, and show readers the entries before it.

        Returns: whether anything had to change.
        """
        assert not self._tail
        count = len(self.files.bases)
        file = self.files.cut(offset * ENTRY_SIZE)
        if file is not None:
            self.dirty_files[file.path] = file
        if len(self.files.bases) != count:
            self.is_directory_dirty = True
        self.max_offset = offset
        self.next_offset = offset
        return file is not None or self.is_directory_dirty

    def take_dirty(self) -> tuple[tuple[StorageFile, ...], bool]:
        """Return the files written since the last call, and whether its directory changed."""
        assert not self._tail
        files = tuple(self.dirty_files.values())
        is_directory_dirty = self.is_directory_dirty
        self.dirty_files.clear()
        self.is_directory_dirty = False
        return files, is_directory_dirty
