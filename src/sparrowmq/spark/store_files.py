"""A store's files, read and never written: its queues, their entries, and its commit log.

The store may be ours or Apache's, and its broker may run meanwhile. Both append to the log before
they append to a queue, so every listed message is in the log, or has expired since. A queue is a
series of files of 20-byte entries (commit log position, size, tags code); the entry of queue offset
q stands at byte 20·q. Entries that were never written are zero. Fillers before a queue's first
message have the size 0x7FFFFFFF. Source: `sparrowmq.store.consume_queue`.
Tests: test_store_reader.py.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import convert

from sparrowmq.errors import ProtocolError, StoreError
from sparrowmq.model.names import is_legal_name
from sparrowmq.protocol.bodies import (
    PERM_READ,
    DataVersion,
    TopicConfig,
    TopicConfigTable,
    decode_file,
)
from sparrowmq.protocol.fastjson import loads
from sparrowmq.spark.bounds import QueueBounds
from sparrowmq.store.commit_log import COMMIT_LOG_DIRECTORY
from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.consume_queue import CONSUME_QUEUE_DIRECTORY, ENTRY, FILLER_SIZE
from sparrowmq.store.file_series import is_position
from sparrowmq.store.journal import find_batches
from sparrowmq.store.storage import COPYING_PATH, unfinished_copy

ENTRY_TYPE = np.dtype([("position", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
assert ENTRY_TYPE.itemsize == ENTRY_SIZE
CONFIG_PATH = "config"
TOPICS_PATH = f"{CONFIG_PATH}/topics.json"


def _list_names(directory: Path) -> list[str]:
    """Return the names in a directory; none if it is missing, or another program's file."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


class Entry(NamedTuple):
    """The place of a message in the log, and its tags code."""

    position: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Whether the entry is a filler without a message."""
        return self.size == FILLER_SIZE


class ReadOnlySeries:
    """Files named by the position of their first byte, as one long byte sequence.

    Args:
        directory: the files' directory; a missing directory is a series without files.
        passes_over: whether files of other programs may be beside them, as the broker has it too;
            hidden ones, such as `.DS_Store`, may be everywhere.

    Raises: StoreError if the directory has a file that does not belong to a series.
    """

    def __init__(self, directory: Path, *, passes_over: bool = False) -> None:
        self._directory = directory
        self.bases: list[int] = []
        for name in sorted(_list_names(directory)):
            if is_position(name):
                self.bases.append(int(name))
            elif not passes_over and not name.startswith("."):
                raise StoreError(f"{directory / name} is not a file of a store; move it elsewhere")

    def base_of(self, position: int) -> int:
        """Return the start of the file that a position lies in.

        Raises: StoreError if all files begin later.
        """
        at = bisect_right(self.bases, position) - 1
        if at < 0:
            raise StoreError(f"{self._directory} has no file with byte {position} any more")
        return self.bases[at]

    def size_of(self, base: int) -> int:
        """Return the size of the file that begins at `base`. Raises: StoreError if it is gone."""
        try:
            return os.stat(self._path(base)).st_size
        except FileNotFoundError as error:
            raise StoreError(f"{self._path(base)} was removed while it was read") from error

    def read(self, position: int, size: int) -> bytes:
        """Return bytes that lie in one file.

        Raises: StoreError if bytes are missing, for example because the file has expired.
        """
        base = self.base_of(position)
        try:
            # Python's buffered file reads on where a disk gives the bytes in parts.
            with self._path(base).open("rb") as file:
                file.seek(position - base)
                data = file.read(size)
        except FileNotFoundError as error:
            raise StoreError(f"{self._path(base)} was removed while it was read") from error
        if len(data) != size:
            raise StoreError(
                f"{self._path(base)} has {len(data)} of the {size} bytes from {position - base} on"
            )
        return data

    def _path(self, base: int) -> Path:
        return self._directory / f"{base:020d}"


class StoredQueue:
    """One queue of a store, as of the time when this object was made.

    Args:
        directory: the directory of the queue's files.
        log_begin: the first position that the log still has.
    """

    def __init__(self, directory: Path, *, log_begin: int) -> None:
        self._files = ReadOnlySeries(directory, passes_over=True)
        end = self._find_end()
        begin = self._files.bases[0] // ENTRY_SIZE if self._files.bases else 0
        first = self._first(
            begin, end, lambda entry: not entry.is_filler and entry.position >= log_begin
        )
        self.bounds = QueueBounds(first, end)

    def entry(self, offset: int) -> Entry:
        """Return one entry, which must exist."""
        return Entry(*ENTRY.unpack(self._files.read(offset * ENTRY_SIZE, ENTRY_SIZE)))

    def read(self, start: int, end: int) -> npt.NDArray[np.void]:
        """Return the entries of a range of offsets, as records of ENTRY_TYPE."""
        parts: list[bytes] = []
        at, stop = start * ENTRY_SIZE, end * ENTRY_SIZE
        while at < stop:
            base = self._files.base_of(at)
            size = min(stop, base + self._files.size_of(base)) - at
            parts.append(self._files.read(at, size))
            at += size
        return np.frombuffer(b"".join(parts), dtype=ENTRY_TYPE)

    def first_from(self, position: int, *, start: int, end: int) -> int:
        """Return the first offset of a range whose record stands at or after a position."""
        return self._first(start, end, lambda entry: entry.position >= position)

    def _find_end(self) -> int:
        """Return the offset of the next message; the last files may be empty."""
        for base in reversed(self._files.bases):
            begin = base // ENTRY_SIZE
            end = begin + self._files.size_of(base) // ENTRY_SIZE
            found = self._first(begin, end, lambda entry: entry.size == 0)
            if found > begin:
                return found
        return self._files.bases[0] // ENTRY_SIZE if self._files.bases else 0

    def _first(self, low: int, high: int, is_so: Callable[[Entry], bool]) -> int:
        """Return the first offset of a range for which `is_so` is true, as for all later ones."""
        while low < high:
            middle = (low + high) // 2
            if is_so(self.entry(middle)):
                high = middle
            else:
                low = middle + 1
        return high


class StoreFiles:
    """A store directory.

    Args:
        path: the store's root, Apache's `storePathRootDir`.

    Raises: StoreError if the directory is not a store, or is an unfinished copy.
    """

    def __init__(self, path: str) -> None:
        self.root = Path(path)
        for name in (COMMIT_LOG_DIRECTORY, CONSUME_QUEUE_DIRECTORY):
            if not (self.root / name).is_dir():
                raise StoreError(
                    f"{self.root} is not a store: it has no directory {name!r}; give the directory "
                    f"that holds {COMMIT_LOG_DIRECTORY!r} and {CONSUME_QUEUE_DIRECTORY!r}, on "
                    f"every machine that reads"
                )
        if (self.root / COPYING_PATH).exists():
            raise unfinished_copy(self.root)
        self.log = ReadOnlySeries(self.root / COMMIT_LOG_DIRECTORY)

    def topics(self) -> list[str]:
        """Return the broker's topics and the topics with messages, in order."""
        names = filter(is_legal_name, os.listdir(self.root / CONSUME_QUEUE_DIRECTORY))
        return sorted({*self._queue_counts(), *names})

    def queue_ids(self, topic: str) -> Iterable[int]:
        """Return the ids of a topic's readable queues; without settings, of its queues on disk."""
        count = self._queue_counts().get(topic)
        if count is not None:
            return range(count)
        names = _list_names(self.root / CONSUME_QUEUE_DIRECTORY / topic)
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def queue(self, topic: str, queue_id: int) -> StoredQueue:
        """Open a queue; a queue without files is empty."""
        directory = self.root / CONSUME_QUEUE_DIRECTORY / topic / str(queue_id)
        return StoredQueue(directory, log_begin=self.log.bases[0] if self.log.bases else 0)

    def _queue_counts(self) -> dict[str, int]:
        # The journal is read first: if the file is written meanwhile, it has the journal's changes.
        changes = self._journal()
        try:
            table = decode_file(TopicConfigTable, (self.root / TOPICS_PATH).read_bytes())
        except (OSError, ProtocolError):
            # Without the file, as in a copy of log and queues only, the directories show the
            # topics.
            table = TopicConfigTable()
        topics: dict[str, TopicConfig | None] = dict(table.topic_config_table)
        filed = [each["topics"] for each in changes if each["what"] == "files"]
        # Otherwise another broker has written the file since, and the changes are void.
        if table.data_version in convert(filed, list[DataVersion]):
            topics.update(
                (each["name"], convert(each["config"], TopicConfig | None))
                for each in changes
                if each["what"] == "topic"
            )
        return {
            name: topic.read_queue_nums if topic.perm & PERM_READ else 0
            for name, topic in topics.items()
            if topic is not None
        }

    def _journal(self) -> list[dict[str, Any]]:
        """Return the changes of configuration that a running SparrowMQ broker has not filed yet."""
        batches: list[bytes] = []
        for path in sorted((self.root / CONFIG_PATH).glob("journal.*")):
            # The changes of a segment that is removed meanwhile are in the file that is read next.
            with suppress(FileNotFoundError):
                batches += [batch for _, batch in find_batches(path.read_bytes())]
        return [change for batch in batches for change in loads(batch, marks_max=None)]
