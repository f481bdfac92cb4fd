"""Files on a disk, without mmap: positioned reads and writes on sparse files.

A full or failing disk then raises an `OSError` in the current call. With mmap the process would get
a SIGBUS, which ends a Python process (docs/decisions/store-files-without-mmap.md).

Two locks guard the directory. The first is an `flock` on the directory itself, which also refuses a
second store in this process. The second is RocketMQ's own, a record lock on byte 0 of the file
`lock`. The order matters: a process that closes any descriptor of `lock` loses its record locks on
the file. `lock` is therefore opened only once the `flock` is held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from sparrowmq.errors import StoreError
from sparrowmq.store.storage import (
    COPYING_PATH,
    Bytes,
    DiskSpace,
    StorageFile,
    is_shortage,
    unfinished_copy,
)

# Descriptors of unpinned files that stay open; a broker with 100,000 queues must not run out.
_OPEN_FILES_MAX = 512
# The share of the process's descriptors that is used if the process may open few files.
_OPEN_FILES_SHARE = 4
# This many files are synced one after the other; more files by this many threads.
_SYNCS_ALONE_MAX = 32
_SYNC_THREADS = 16
_DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_ZERO_CHUNK_SIZE = 1 << 20
# A run of zeros usually ends with its page, or lasts to the file's end.
_FIRST_ZERO_CHUNK_SIZE = 4096


class FileStorageFile:
    """A file of a `FileStorage`."""

    __slots__ = ("_fd", "_full_path", "_pinned", "_storage", "path", "size")

    def __init__(
        self, storage: FileStorage, path: str, *, fd: int, size: int, pinned: bool
    ) -> None:
        self._storage = storage
        self._full_path = storage.full_path(path)
        self._fd = fd
        self._pinned = pinned
        self.path = path
        self.size = size

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes from `position` on."""
        fd = self._fd if self._fd >= 0 else self._reopen()
        try:
            data = os.pread(fd, size, position)
            if len(data) == size or position + len(data) >= self.size:
                return data
            missing = min(size, self.size - position) - len(data)
            rest = read_bytes(fd, missing, position + len(data))
            if len(rest) < missing:
                raise OSError(errno.EIO, "the file is shorter than it was")
        except OSError as error:
            error.filename = self._full_path
            raise
        return data + rest

    def write(self, position: int, data: Bytes) -> None:
        """Write all of `data` at `position`."""
        size = len(data)
        if position + size > self.size:
            raise OSError(errno.EFBIG, "write beyond the file's fixed size", self._full_path)
        fd = self._fd if self._fd >= 0 else self._reopen()
        try:
            written = os.pwrite(fd, data, position)
            while written < size:
                count = os.pwrite(fd, memoryview(data)[written:], position + written)
                if count == 0:
                    raise OSError(errno.ENOSPC, "the disk takes no more bytes")
                written += count
        except OSError as error:
            error.filename = self._full_path
            raise

    def zero_from(self, position: int) -> None:
        """Make every byte from `position` on zero, and return the blocks to the disk."""
        fd = self._fd if self._fd >= 0 else self._reopen()
        with _naming(self._full_path):
            os.ftruncate(fd, position)
            os.ftruncate(fd, self.size)

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        fd = self._fd if self._fd >= 0 else self._reopen()
        with _naming(self._full_path):
            os.ftruncate(fd, size)
        self.size = size

    def next_data(self, position: int) -> int | None:
        """Return the first position from `position` on that may hold a byte other than zero."""
        fd = self._fd if self._fd >= 0 else self._reopen()
        with _naming(self._full_path):
            return _find_data(fd, position, self.size)

    def sync(self) -> None:
        """Make written bytes durable.

        An unpinned file is synced through a separate descriptor, because `sync` may run in another
        thread while the owner's thread closes the shared descriptor.
        """
        with _naming(self._full_path):
            if self._pinned:
                _sync_data(self._fd)
                return
            fd = os.open(self._full_path, os.O_RDWR | os.O_CLOEXEC)
            try:
                _sync_data(fd)
            finally:
                os.close(fd)

    def close(self) -> None:
        """Release the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _reopen(self) -> int:
        self._fd = os.open(self._full_path, os.O_RDWR | os.O_CLOEXEC)
        self._storage.count_open(self)
        return self._fd


class FileStorage:
    """A directory on a local disk.

    Args:
        root: the directory; a missing one is made with mode 0700.
        open_files_max: descriptors of unpinned files that may be open at once; None takes 512, or
            a quarter of the process's descriptors if that is less.
    """

    def __init__(self, root: str | Path, *, open_files_max: int | None = None) -> None:
        self._root = os.path.abspath(root)
        self._open_files_max = _open_files_max() if open_files_max is None else open_files_max
        self._open_files: deque[FileStorageFile] = deque()
        self._directory_fd = -1
        self._lock_fd = -1
        make_root(self._root)

    def full_path(self, path: str) -> str:
        """Return the absolute path of a relative one.

        Raises: StoreError for a path outside the root.
        """
        full_path = os.path.normpath(os.path.join(self._root, path))
        if full_path != self._root and not full_path.startswith(self._root + os.sep):
            raise StoreError(f"the path {path!r} leaves the store's directory {self._root!r}")
        return full_path

    def lock(self) -> None:
        """Take both locks of the directory.

        Raises: StoreError if another store has one, or the directory is an unfinished copy.
        """
        check_copied(self._root)
        directory_fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(directory_fd)
            raise _not_locked(self._root, error) from error
        self._directory_fd = directory_fd
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock_fd = os.open(self.full_path("lock"), flags, _FILE_MODE)
            self._take_record_lock()
            with _naming(self.full_path("lock")):
                os.pwrite(self._lock_fd, b"lock", 0)
        except BaseException:
            self.unlock()
            raise

    def _take_record_lock(self) -> None:
        try:
            fcntl.lockf(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            raise _not_locked(self._root, error) from error

    def unlock(self) -> None:
        """Release both locks of the directory."""
        for fd in (self._lock_fd, self._directory_fd):
            if fd >= 0:
                os.close(fd)
        self._lock_fd = self._directory_fd = -1

    def list_names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if there is no such directory."""
        try:
            return sorted(os.listdir(self.full_path(directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def has(self, path: str) -> bool:
        """Return whether there is a file or directory of this path."""
        return os.path.lexists(self.full_path(path))

    def create(self, path: str, *, size: int, pinned: bool = False) -> FileStorageFile:
        """Create a sparse file of `size` zero bytes, and the directories it needs."""
        full_path = self.full_path(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            fd = os.open(full_path, flags, _FILE_MODE)
        except FileNotFoundError:
            _make_directories(os.path.dirname(full_path))
            fd = os.open(full_path, flags, _FILE_MODE)
        try:
            with _naming(full_path):
                os.ftruncate(fd, size)
        except OSError:
            os.close(fd)
            raise
        return self._file(path, fd=fd, size=size, pinned=pinned)

    def open(self, path: str, *, pinned: bool = False) -> FileStorageFile:
        """Open an existing file; symbolic links are refused."""
        fd = os.open(self.full_path(path), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        return self._file(path, fd=fd, size=os.fstat(fd).st_size, pinned=pinned)

    def _file(self, path: str, *, fd: int, size: int, pinned: bool) -> FileStorageFile:
        file = FileStorageFile(self, path, fd=fd, size=size, pinned=pinned)
        if not pinned:
            self.count_open(file)
        return file

    def count_open(self, file: FileStorageFile) -> None:
        """Note that an unpinned file was opened; if too many are open, close the oldest."""
        self._open_files.append(file)
        while len(self._open_files) > self._open_files_max:
            self._open_files.popleft().close()

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""
        try:
            os.unlink(self.full_path(path))
        except FileNotFoundError:
            return

    def remove_directory(self, path: str) -> None:
        """Remove a directory, if it exists and is empty."""
        try:
            os.rmdir(self.full_path(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise

    def disk_space(self) -> DiskSpace:
        """Return the disk's size and its used part."""
        found = os.statvfs(self._root)
        return DiskSpace(
            found.f_blocks * found.f_frsize,
            (found.f_blocks - found.f_bfree) * found.f_frsize,
            found.f_bavail * found.f_frsize,
        )

    def rename(self, old_path: str, new_path: str) -> None:
        """Give a file another name, replacing any file of that name at once."""
        os.replace(self.full_path(old_path), self.full_path(new_path))

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable, and its own name in its parents up to the root."""
        for each in self._with_parents([path]):
            sync_names(each)

    def sync_all(self, files: Sequence[StorageFile], directories: Sequence[str]) -> None:
        """Sync files and directories, several at once: the file system's journal combines them.

        A checkpoint after the first messages of 80,000 queues then takes seconds instead of
        minutes.
        """
        names = self._with_parents(directories)
        syncs: list[Callable[[], None]] = [file.sync for file in files]
        syncs += [partial(sync_names, each) for each in names]
        if len(syncs) <= _SYNCS_ALONE_MAX:
            for sync in syncs:
                sync()
            return
        errors: list[OSError] = []

        def note_error(sync: Callable[[], None]) -> None:
            try:
                sync()
            except OSError as error:
                errors.append(error)

        try:
            with ThreadPoolExecutor(_SYNC_THREADS, thread_name_prefix="sparrowmq-sync") as threads:
                deque(threads.map(note_error, syncs), maxlen=0)
        except RuntimeError:
            # No more threads can be started.
            for sync in syncs:
                note_error(sync)
        if errors:
            # After a shortage the syncs are repeated, which would hide an error of the disk.
            raise min(errors, key=is_shortage)

    def _with_parents(self, directories: Sequence[str]) -> list[str]:
        """Return the full paths of directories and of all their parents, the lowest first."""
        found: set[str] = set()
        for directory in directories:
            full_path = self.full_path(directory)
            while full_path not in found:
                found.add(full_path)
                if full_path == self._root:
                    break
                full_path = os.path.dirname(full_path)
        return sorted(found, reverse=True)


class ReadOnlyFile:
    """A file of a `ReadOnlyStorage`; it is open only while it is read.

    Args:
        path: the path under the root.
        full_path: the absolute path, None for a file that does not exist.
        size: the apparent size.
    """

    def __init__(self, path: str, *, full_path: str | None, size: int) -> None:
        self._full_path = full_path
        self.path = path
        self.size = size

    @contextlib.contextmanager
    def _opened(self) -> Generator[int]:
        assert self._full_path is not None
        fd = os.open(self._full_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with _naming(self._full_path):
                yield fd
        finally:
            os.close(fd)

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes from `position` on; zeros after the file's real end."""
        wanted = max(0, min(size, self.size - position))
        if self._full_path is None:
            return bytes(wanted)
        with self._opened() as fd:
            return read_bytes(fd, wanted, position).ljust(wanted, b"\0")

    def write(self, position: int, data: Bytes) -> None:
        """Refuse. Raises: OSError."""
        raise OSError(errno.EROFS, "the store is only read", self.path)

    def zero_from(self, position: int) -> None:
        """Refuse. Raises: OSError."""
        raise OSError(errno.EROFS, "the store is only read", self.path)

    def resize(self, size: int) -> None:
        """Change the apparent size."""
        self.size = size

    def next_data(self, position: int) -> int | None:
        """Return the first position from `position` on that may hold a byte other than zero."""
        if self._full_path is None:
            return None
        with self._opened() as fd:
            return _find_data(fd, position, os.fstat(fd).st_size)

    def sync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ReadOnlyStorage:
    """A directory whose files are only read: a change is simulated or refused.

    Created and extended files appear as zeros; removals have no effect.

    Raises: StoreError if the directory does not exist.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = os.path.abspath(root)
        if not os.path.isdir(self._root):
            raise StoreError(f"{self._root!r} is not a directory")
        self._fds: list[int] = []

    def lock(self) -> None:
        """Lock out processes that write here.

        Raises: StoreError if one is writing, or the directory is an unfinished copy.
        """
        check_copied(self._root)
        self._fds.append(os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            fcntl.flock(self._fds[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = os.path.join(self._root, "lock")
            if os.path.exists(path):
                # A shared lock needs no right to write, and no broker gets its own beside it.
                self._fds.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                fcntl.lockf(self._fds[1], fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 0)
        except OSError as error:
            self.unlock()
            raise _not_locked(self._root, error) from error

    def unlock(self) -> None:
        """Release the lock."""
        while self._fds:
            os.close(self._fds.pop())

    def list_names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory; none if there is no such directory."""
        try:
            return sorted(os.listdir(os.path.join(self._root, directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def has(self, path: str) -> bool:
        """Return whether there is a file or directory of this path."""
        return os.path.lexists(os.path.join(self._root, path))

    def create(self, path: str, *, size: int, pinned: bool = False) -> ReadOnlyFile:
        """Return a file of zeros that exists only in memory."""
        return ReadOnlyFile(path, full_path=None, size=size)

    def open(self, path: str, *, pinned: bool = False) -> ReadOnlyFile:
        """Open an existing file; symbolic links are refused."""
        full_path = os.path.join(self._root, path)
        return ReadOnlyFile(path, full_path=full_path, size=os.lstat(full_path).st_size)

    def remove(self, path: str) -> None:
        """Do nothing."""

    def remove_directory(self, path: str) -> None:
        """Do nothing."""

    def disk_space(self) -> DiskSpace:
        """Return an unused disk, since nothing is written."""
        return DiskSpace(0, 0, 0)

    def rename(self, old_path: str, new_path: str) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def sync_all(self, files: Sequence[StorageFile], directories: Sequence[str]) -> None:
        """Do nothing."""


def check_copied(root: str | Path) -> None:
    """Raise StoreError for an unfinished copy: any of its messages may be missing."""
    if os.path.lexists(os.path.join(root, COPYING_PATH)):
        raise unfinished_copy(root)


def _not_locked(root: str, error: OSError) -> StoreError:
    """Return the error for a directory of which one lock was not given."""
    # The error of a lock has no file's name, that of a file that may not be opened has one.
    if error.errno in (errno.EAGAIN, errno.EACCES) and error.filename is None:
        return StoreError(
            f"the directory {root!r} is in use by another process; "
            f"stop that one or choose another directory"
        )
    return StoreError(
        f"the directory {root!r} cannot be locked: {error.strerror}; "
        f"choose one on a local disk whose files you may open"
    )


def open_files_max(limit: int) -> int:
    """Return how many unpinned files stay open if the process may have `limit` descriptors."""
    return min(_OPEN_FILES_MAX, limit // _OPEN_FILES_SHARE)


def _open_files_max() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _OPEN_FILES_MAX if limit == resource.RLIM_INFINITY else open_files_max(limit)


def read_bytes(fd: int, size: int, position: int) -> bytes:
    """Return bytes of a file, which the disk may give in parts; fewer only where the file ends."""
    parts: list[bytes] = []
    while size and (data := os.pread(fd, size, position)):
        parts.append(data)
        size, position = size - len(data), position + len(data)
    return b"".join(parts)


def sync_names(full_path: str | Path) -> None:
    """Make the names in a directory durable."""
    fd = os.open(full_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with _naming(full_path):
            os.fsync(fd)
    finally:
        os.close(fd)


def _sync_data(fd: int) -> None:
    """Make a file's bytes durable."""
    if sys.platform == "darwin":
        # On macOS fsync leaves the bytes in the drive's cache; some file systems offer only fsync.
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
        else:
            return
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        os.fsync(fd)


@contextlib.contextmanager
def _naming(full_path: str | Path) -> Generator[None]:
    """Name the file in an error of its descriptor, which knows no name.

    Reads and writes, of which there are many, do so without the cost of a generator.
    """
    try:
        yield
    except OSError as error:
        error.filename = str(full_path)
        raise


def _find_data(fd: int, position: int, size: int) -> int | None:
    """Return the next position of a byte that may not be zero, None if none precedes `size`."""
    at, chunk_size = position, _FIRST_ZERO_CHUNK_SIZE
    while at < size:
        data_at = _seek_data(fd, at)
        if data_at is None:
            return None
        at = data_at
        chunk = os.pread(fd, chunk_size, at)
        chunk_size = _ZERO_CHUNK_SIZE
        zeros = len(chunk) - len(chunk.lstrip(b"\0"))
        if zeros < len(chunk):
            return at + zeros
        at += max(zeros, 1)
    return None


def _seek_data(fd: int, position: int) -> int | None:
    """Return the position of the next data from `position` on, None if only a hole follows.

    If the file system shows no holes, data begins at `position`.
    """
    if not hasattr(os, "SEEK_DATA"):
        return position
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        if error.errno in (errno.EINVAL, errno.ENOTSUP, errno.ENOTTY):
            return position
        raise


def make_root(path: str | Path) -> None:
    """Make a missing directory and those that it is in, and make their names durable.

    What is synced below a directory is lost with the directory's own name.
    """
    for made in _make_directories(os.path.abspath(path)):
        # Whoever may make a directory there may perhaps not list the others.
        with contextlib.suppress(PermissionError):
            sync_names(os.path.dirname(made))


def _make_directories(path: str) -> list[str]:
    """Make a missing directory and those that it is in; return them, the lowest first."""
    # os.makedirs would apply the mode to the last directory only.
    missing: list[str] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory, _DIRECTORY_MODE)
    return missing
