"""The commit log: every message of the broker, one after the other, in files of one size.

A record never crosses from one file into the next. If a record does not fit with 8 bytes to spare,
the rest of the file becomes a BLANK (its size and a magic number), and the record begins the next
file.

The next record goes to `end`; the files are written up to `written`. The records between the two
positions are gathered, and one call writes all of them. Bytes after `end`, such as the beginning of
a record that a full disk cut short, are not part of the log and will be overwritten.

Speed matters here: a separate write costs more than all other steps of a small record, so the owner
writes once a turn (benchmarks/broker.py, benchmarks/against_apache.py).
Tests: test_message_store.py, test_corruption.py.
"""

from __future__ import annotations

import contextlib

from sparrowmq.protocol.record import MAGIC_BLANK, SIZE_AND_MAGIC
from sparrowmq.store.config import StoreConfig
from sparrowmq.store.file_series import FileSeries
from sparrowmq.store.record_check import BLANK_SIZE
from sparrowmq.store.storage import Storage, StorageFile

COMMIT_LOG_DIRECTORY = "commitlog"
# Gathered records are written at the latest when they have this many bytes.
UNWRITTEN_BYTES_MAX = 1 << 20


class CommitLog:
    """The log's writing end.

    Args:
        storage: the storage of the log's files.
        config: the store's settings.
    """

    __slots__ = (
        "_file",
        "_file_base",
        "_file_end",
        "_unwritten",
        "dirty_files",
        "end",
        "files",
        "has_new_file",
        "written",
    )

    def __init__(self, storage: Storage, config: StoreConfig) -> None:
        self.files = FileSeries(
            storage, COMMIT_LOG_DIRECTORY, file_size=config.commit_log_file_size, pinned=True
        )
        self.end = 0
        self.written = 0
        self._unwritten: list[bytes] = []
        self.dirty_files: dict[str, StorageFile] = {}
        self.has_new_file = False
        self._file: StorageFile | None = None
        self._file_base = 0
        self._file_end = 0

    def set_end(self, position: int) -> None:
        """Set the end that recovery found; `append` goes on there."""
        self.end = self.written = position
        self._use_file_of(position)

    def _use_file_of(self, position: int) -> None:
        base = self.files.base_of(position)
        self._file = None if base is None else self.files.file_at(base)
        self._file_base = position if base is None else base
        self._file_end = self._file_base + (0 if base is None else self.files.file_size)

    def reserve(self, size: int) -> int:
        """Return the position for a record, or for a batch that stays together, of `size` bytes.

        If the current file has no room, close it with a BLANK and begin the next file.

        Raises: OSError if that fails; records not written yet are no longer part of the log.
        """
        if self.fits(size):
            return self.end
        self.write()
        next_base = self._file_end
        if self.files.base_of(next_base) is None:
            self.files.add_file(next_base)
            self.has_new_file = True
        if self._file is not None and self.end < self._file_end:
            blank = SIZE_AND_MAGIC.pack(self._file_end - self.end, MAGIC_BLANK)
            self._file.write(self.end - self._file_base, blank)
            self.dirty_files[self._file.path] = self._file
        self.set_end(next_base)
        return next_base

    def has_room(self, size: int) -> bool:
        """Return whether `append` takes a record of `size` bytes at `end` without work on files."""
        return self.fits(size) and self.end + size - self.written < UNWRITTEN_BYTES_MAX

    def fits(self, size: int) -> bool:
        """Return whether `reserve` returns `end`."""
        return self.end + size + BLANK_SIZE <= self._file_end

    def append(self, data: bytes) -> None:
        """Gather whole records at `end`, for which `reserve` has made room.

        Raises: OSError, as `write`.
        """
        self._unwritten.append(data)
        self.end += len(data)
        if self.end - self.written >= UNWRITTEN_BYTES_MAX:
            self.write()

    def write(self) -> None:
        """Write the gathered records.

        Raises: OSError; the bytes already written are zeroed if possible, and none of the records
            is part of the log.
        """
        if not self._unwritten:
            return
        file = self._file
        assert file is not None
        unwritten, self._unwritten = self._unwritten, []
        at = self.written - self._file_base
        try:
            file.write(at, unwritten[0] if len(unwritten) == 1 else b"".join(unwritten))
        except OSError:
            self.end = self.written
            with contextlib.suppress(OSError):
                file.zero_from(at)
            raise
        self.dirty_files[file.path] = file
        self.written = self.end

    def read(self, position: int, size: int) -> bytes:
        """Return bytes of the log."""
        file = self._file
        at = position - self._file_base
        if file is not None and at >= 0:
            return file.read(at, size)
        return self.files.read(position, size)

    def take_dirty(self) -> tuple[tuple[StorageFile, ...], bool]:
        """Return the files written since the last call, and whether one of them is new."""
        files, has_new_file = tuple(self.dirty_files.values()), self.has_new_file
        self.dirty_files.clear()
        self.has_new_file = False
        return files, has_new_file
