"""The seam between the store and a disk.

The store is a machine: it decides what to write, and a `Storage` writes it. Production uses
`FileStorage` (`store/file_storage.py`). Tests and simulations use storages that tear writes, fail,
and lose unsynced data.

Rules that the store relies on:

- A file's bytes are durable once `StorageFile.sync` has returned. A file's name is durable once
  `Storage.sync_directory` of its directory has returned.
- Every method raises `OSError` if the disk fails. A failed write may have written a part.
- `sync` and `sync_directory` may be called from another thread while the owner goes on writing.

Paths are relative to the store's root, with `/` between names. Tests: test_file_storage.py.
"""

from __future__ import annotations

import errno
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol, TypeAlias

from sparrowmq.errors import StoreError

Bytes: TypeAlias = bytes | bytearray | memoryview

# This file is in a directory from the beginning of a backup into it until the backup is complete.
COPYING_PATH = "copying"

# Temporary shortages of the process. They say nothing about the disk, and the call can be repeated.
_SHORTAGES = frozenset({errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})


def is_shortage(error: Exception) -> bool:
    """Return whether a sync failed for want of descriptors, memory or threads, not of the disk."""
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def has_no_room(error: OSError) -> bool:
    """Return whether a write failed because the disk, or what its user may have of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_lost(error: OSError) -> bool:
    """Return whether a read failed because the disk has lost the content."""
    return error.errno == errno.EIO


@contextmanager
def passing_over_losses() -> Generator[None]:
    """Leave the block where a read fails because the disk has lost the content."""
    try:
        yield
    except OSError as error:
        if not is_lost(error):
            raise


class DiskSpace(NamedTuple):
    """A disk's space. Space reserved for the super-user counts neither as used nor as free."""

    total_bytes: int
    used_bytes: int
    free_bytes: int

    @property
    def used_percent(self) -> int:
        """The used part of the disk in percent, rounded up, as `df` counts.

        Source: UtilAll.getDiskPartitionSpaceUsedPercent, 4.9.
        """
        entire = self.used_bytes + self.free_bytes
        return -(-self.used_bytes * 100 // entire) if entire else 0


class StorageFile(Protocol):
    """A file of a fixed size. Positions are relative to its first byte."""

    @property
    def path(self) -> str:
        """The path under the store's root."""
        ...

    @property
    def size(self) -> int:
        """The size in bytes."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes from `position` on: `size` of them, fewer only at the file's end."""
        ...

    def write(self, position: int, data: Bytes) -> None:
        """Write all of `data` at `position`."""
        ...

    def zero_from(self, position: int) -> None:
        """Make every byte from `position` to the end of the file zero."""
        ...

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        ...

    def next_data(self, position: int) -> int | None:
        """Return the first position, not before `position`, that may have a byte other than zero.

        None if all bytes from `position` on are zero. The holes of a sparse file are not read.
        """
        ...

    def sync(self) -> None:
        """Make written bytes durable."""
        ...

    def close(self) -> None:
        """Release the file; it must not be used afterwards."""
        ...


class Storage(Protocol):
    """A directory tree on a disk."""

    def lock(self) -> None:
        """Lock the tree for this store.

        Raises: StoreError if another store has locked the tree, in this process or another.
        """
        ...

    def unlock(self) -> None:
        """Release the tree."""
        ...

    def list_names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if there is no such directory."""
        ...

    def has(self, path: str) -> bool:
        """Return whether there is a file or directory of this path."""
        ...

    def create(self, path: str, *, size: int, pinned: bool = False) -> StorageFile:
        """Create a file of `size` zero bytes, replacing any, and the directories it needs.

        A pinned file keeps its descriptor open. Other files may be closed and opened again as
        needed.
        """
        ...

    def open(self, path: str, *, pinned: bool = False) -> StorageFile:
        """Open an existing file.

        Raises: FileNotFoundError.
        """
        ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove a directory, if it exists and is empty."""
        ...

    def disk_space(self) -> DiskSpace:
        """Return the disk's size and its used part."""
        ...

    def rename(self, old_path: str, new_path: str) -> None:
        """Give a file another name, replacing any file of that name at once."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in this directory, and its own in its parents, durable."""
        ...

    def sync_all(self, files: Sequence[StorageFile], directories: Sequence[str]) -> None:
        """Do `sync` for all files and `sync_directory` for all directories, in any order.

        Raises: OSError if a sync fails; other syncs may not have been tried then.
        """
        ...


def unfinished_copy(root: object) -> StoreError:
    """Return the error for a directory that has the file `COPYING_PATH`."""
    return StoreError(
        f"the directory {str(root)!r} is an unfinished copy, which lacks messages; "
        f"copy the store again"
    )


def write_file(storage: Storage, path: str, data: bytes) -> None:
    """Make a file with this content, and sync it; its name is not durable yet. Raises: OSError."""
    file = storage.create(path, size=len(data), pinned=True)
    try:
        file.write(0, data)
        file.sync()
    finally:
        file.close()


def parent_directory(path: str) -> str:
    """Return the directory of a path, "" for the root."""
    return path.rpartition("/")[0]
