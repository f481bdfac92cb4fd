"""Changes of configuration, appended and synced: the cost of a change is that of the change alone.

A config file that is rewritten for each change costs what all of it costs, and several syncs. So a
change goes into a journal first, and what waits for the change waits for that; files are rewritten
later, and then the journal before them is dropped. A start reads the files, then the journal: its
changes may be in the files already, and are the same once more.

The journal is a series of segments, `config/journal.00000001` and so on. A segment grows by
batches, each written and synced at once:

| bytes | type | field |
|---|---|---|
| 4 | bytes | `SMQJ` |
| 4 | int | size of the batch |
| 4 | int | CRC-32 of the batch |
| n | bytes | the batch |

Zeros follow the last batch, or the torn end of one that was not acknowledged. A segment in which a
write or a sync has failed takes no more: the next batch begins another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from sparrowmq.store.storage import Storage, StorageFile

# By how much a segment's file grows.
GROWTH_BYTES = 65_536
_MAGIC = b"SMQJ"
_HEAD = Struct(">4sII")
_PREFIX = "journal."


class JournalContent(NamedTuple):
    """What a journal holds.

    Args:
        batches: in the order in which they were written.
        last_segment: its number, 0 if there is none.
        damages: what could not be read although it had been synced.
    """

    batches: list[bytes]
    last_segment: int
    damages: list[str]


class Journal:
    """The writing end of a journal; one thread uses it.

    Args:
        storage: where it is.
        directory: in which directory.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._segment = 0
        self._file: StorageFile | None = None
        self._end = 0

    def append(self, segment: int, batch: bytes) -> None:
        """Append a batch to a segment, durably; another segment than the last one is begun.

        Raises: OSError; the segment takes no more then.
        """
        frame = _HEAD.pack(_MAGIC, len(batch), crc32(batch)) + batch
        file = self._file
        if file is None or segment != self._segment:
            file = self._begin(segment)
        end = self._end + len(frame)
        if end > file.size:
            file.resize(-(-end // GROWTH_BYTES) * GROWTH_BYTES)
        file.write(self._end, frame)
        file.sync()
        if self._end == 0:
            self._storage.sync_directory(self._directory)
        self._end = end

    def _begin(self, segment: int) -> StorageFile:
        self.close()
        path = _path(self._directory, segment)
        self._file = self._storage.create(path, size=GROWTH_BYTES, pinned=True)
        self._segment, self._end = segment, 0
        return self._file

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_journal(storage: Storage, directory: str) -> JournalContent:
    """Return what all segments hold, and make sure that the disk has it.

    Raises: OSError.
    """
    batches: list[bytes] = []
    damages: list[str] = []
    segments = list_segments(storage, directory)
    for segment in segments:
        path = _path(directory, segment)
        file = storage.open(path, pinned=True)
        try:
            data = file.read(0, file.size)
            # A killed process leaves batches that only the page cache has; they count from now on.
            file.sync()
        finally:
            file.close()
        at = 0
        for position, batch in find_batches(data):
            if position != at:
                damages.append(f"{position - at} bytes at byte {at} of {path} are damaged")
            batches.append(batch)
            at = position + _HEAD.size + len(batch)
    if segments:
        storage.sync_directory(directory)
    return JournalContent(batches, segments[-1] if segments else 0, damages)


def list_segments(storage: Storage, directory: str) -> list[int]:
    """Return the numbers of the segments that are there, rising."""
    suffixes = (
        name.removeprefix(_PREFIX)
        for name in storage.list_names(directory)
        if name.startswith(_PREFIX)
    )
    return sorted(int(suffix) for suffix in suffixes if suffix.isascii() and suffix.isdigit())


def drop_segments(storage: Storage, directory: str, *, up_to: int) -> None:
    """Remove the segments up to one, whose changes are in the files now.

    The oldest goes first, and is gone for good before the next goes: an older change that a power
    cut brought back without the newer ones would undo what the files have.

    Raises: OSError.
    """
    for segment in list_segments(storage, directory):
        if segment <= up_to:
            storage.remove(_path(directory, segment))
            storage.sync_directory(directory)


def _path(directory: str, segment: int) -> str:
    return f"{directory}/{_PREFIX}{segment:08d}"


def find_batches(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield where each whole batch of a segment begins, and the batch; also those behind damage."""
    at = data.find(_MAGIC)
    while at >= 0:
        batch = _batch_at(data, at)
        if batch is None:
            at = data.find(_MAGIC, at + 1)
            continue
        yield at, batch
        at = data.find(_MAGIC, at + _HEAD.size + len(batch))


def _batch_at(data: bytes, at: int) -> bytes | None:
    begin = at + _HEAD.size
    if begin > len(data):
        return None
    _, size, checksum = _HEAD.unpack_from(data, at)
    batch = data[begin : begin + size]
    # Of a torn head the zeros behind it would make an empty batch.
    return batch if batch and len(batch) == size and crc32(batch) == checksum else None
