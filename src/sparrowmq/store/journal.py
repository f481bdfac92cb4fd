"""The journal: changes of configuration, each appended and synced.

Rewriting a config file for each change costs a write of the whole file and several syncs. A change
therefore goes into the journal first, and its reply waits for the journal only. The files are
rewritten later, and then the journal before them is removed. A start reads the files and then the
journal. The files may have the journal's changes already; a change that is applied twice has no
further effect.

The journal is a series of segments, `config/journal.00000001` and so on. A segment grows by
batches, each written and synced at once:

| bytes | type | field |
|---|---|---|
| 4 | bytes | `SMQJ` |
| 4 | int | size of the batch |
| 4 | int | CRC-32 of the batch |
| n | bytes | the batch |

Zeros, or the torn end of a batch that was not acknowledged, follow the last batch. A segment in
which a write or a sync has failed takes no more batches: the next batch begins another segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from sparrowmq.store.storage import Storage, StorageFile

# The step by which a segment's file grows.
GROWTH_BYTES = 65_536
_MAGIC = b"SMQJ"
_HEAD = Struct(">4sII")
_PREFIX = "journal."


class JournalContent(NamedTuple):
    """The content of a journal.

    Args:
        batches: the batches in the order of writing.
        last_segment: the number of the last segment, 0 without any.
        damages: texts about synced data that could not be read.
    """

    batches: list[bytes]
    last_segment: int
    damages: list[str]


class Journal:
    """The writing end of a journal; one thread uses it.

    Attributes:
        last_batch: the batch that was appended last, b"" before the first.
    """

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage = storage
        self._directory = directory
        self._segment = 0
        self._file: StorageFile | None = None
        self._end = 0
        self.last_batch = b""

    def append(self, segment: int, batch: bytes) -> None:
        """Append a batch to a segment durably; a number other than the last one begins a segment.

        Raises: OSError; the segment then takes no more batches.
        """
        frame = _HEAD.pack(_MAGIC, len(batch), crc32(batch)) + batch
        file = self._file
        if file is None or segment != self._segment:
            file = self._begin(segment)
        end = self._end + len(frame)
        try:
            if end > file.size:
                file.resize(-(-end // GROWTH_BYTES) * GROWTH_BYTES)
            file.write(self._end, frame)
            file.sync()
            if self._end == 0:
                self._storage.sync_directory(self._directory)
        except OSError:
            if self._end == 0:
                # Otherwise each try on a full disk would leave another segment.
                self.close()
                self._storage.remove(_path(self._directory, segment))
            raise
        self._end = end
        self.last_batch = batch

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
    """Return the content of all segments, and make sure that the disk has it.

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
            # A killed process leaves batches that only the page cache has. From now on they count.
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
    """Return the numbers of the existing segments, ascending."""
    suffixes = (
        name.removeprefix(_PREFIX)
        for name in storage.list_names(directory)
        if name.startswith(_PREFIX)
    )
    return sorted(int(suffix) for suffix in suffixes if suffix.isascii() and suffix.isdigit())


def drop_segments(storage: Storage, directory: str, *, up_to: int) -> None:
    """Remove the segments up to `up_to`, whose changes are in the files now.

    The oldest segment is removed first, and its removal is synced before the next removal.
    Otherwise a power cut could bring back an older change without the newer ones, and undo them.

    Raises: OSError.
    """
    for segment in list_segments(storage, directory):
        if segment <= up_to:
            storage.remove(_path(directory, segment))
            storage.sync_directory(directory)


def _path(directory: str, segment: int) -> str:
    return f"{directory}/{_PREFIX}{segment:08d}"


def find_batches(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each whole batch of a segment with its position, also batches after damage."""
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
    # The zeros after a torn head would make an empty batch.
    return batch if batch and len(batch) == size and crc32(batch) == checksum else None
