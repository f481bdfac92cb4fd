"""A copy of a broker's directory, also while the broker runs: consistent by the order of copying.

A part that is copied earlier refers only to parts that are copied later: the checkpoint refers to
entries and records, queues and index refer to records. The log comes last; a record under way is a
torn end. Of a directory the newest files come first: the oldest may expire meanwhile, and the copy
then begins later, without a gap. The copy has the file `abort`: the next start recovers as after a
crash, and keeps every message that was acknowledged before the copying began. Until the copy is on
the disk as a whole, it has the file `copying`: without its first files it would look like a store
whose first messages have expired.

The configuration is a journal and files that replace it from time to time. It is copied again
until no file was replaced during the copying. Tests: test_backup.py.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from sparrowmq.broker.config_files import CONFIG_DIRECTORY
from sparrowmq.errors import StoreError, UsageError
from sparrowmq.hosting.directory_check import ensure_store
from sparrowmq.store.checkpoint import CHECKPOINT_PATH
from sparrowmq.store.commit_log import COMMIT_LOG_DIRECTORY
from sparrowmq.store.consume_queue import CONSUME_QUEUE_DIRECTORY
from sparrowmq.store.file_storage import check_copied, make_root, read_bytes, sync_names
from sparrowmq.store.message_index import INDEX_DIRECTORY
from sparrowmq.store.message_store import ABORT_PATH, EXPIRING_PATH
from sparrowmq.store.storage import COPYING_PATH

# Files are replaced once in a few seconds at most; a copy takes hundredths of a second.
_TRIES_MAX = 20
_CHUNK_SIZE = 1 << 20
_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700


def back_up(source: Path, target: Path) -> int:
    """Copy a store root; return the number of copied bytes, without holes.

    Args:
        source: the store root of a broker, which may run.
        target: an empty or missing directory.

    Raises: UsageError if `source` is not a store root, or `target` is not empty; StoreError if the
        copy fails, or `source` is an unfinished copy.
    """
    try:
        _check_places(source, target)
        make_root(target)
    except OSError as error:
        reason = f"{error.filename or target}: {error.strerror}"
        raise StoreError(f"the copy cannot begin: {reason}") from error
    try:
        return _back_up(source, target)
    except OSError as error:
        reason = f"{error.filename or target}: {error.strerror}"
        raise StoreError(f"the copy is not complete: {reason}; remove {target}") from error


def _check_places(source: Path, target: Path) -> None:
    """Raise UsageError or StoreError for a wrong source or target; OSError for a hidden one."""
    ensure_store(source)
    check_copied(source)
    if target.resolve().is_relative_to(source.resolve()):
        raise UsageError(f"{target} is in {source}, which is to be copied; give another directory")
    if (target / COPYING_PATH).exists():
        raise UsageError(f"{target} is an unfinished copy; remove it, or give another directory")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already; give a directory that is empty or new")


def _back_up(source: Path, target: Path) -> int:
    (target / COPYING_PATH).touch(_FILE_MODE)
    sync_names(target)
    (target / ABORT_PATH).touch(_FILE_MODE)
    copied = 0
    for name in (CHECKPOINT_PATH, EXPIRING_PATH):
        copied += _copy_file(source / name, target / name)
    copied += _copy_config(source / CONFIG_DIRECTORY, target / CONFIG_DIRECTORY)
    copied += _copy_tree(source / INDEX_DIRECTORY, target / INDEX_DIRECTORY, begin_first=True)
    for name in (CONSUME_QUEUE_DIRECTORY, COMMIT_LOG_DIRECTORY):
        copied += _copy_tree(source / name, target / name)
    sync_names(target)
    (target / COPYING_PATH).unlink()
    sync_names(target)
    return copied


def _copy_config(source: Path, target: Path) -> int:
    for _ in range(_TRIES_MAX):
        before = _inodes(source)
        copied = _copy_tree(source, target)
        if before == _inodes(source):
            return copied
        for path in target.iterdir():
            path.unlink()
    raise StoreError(
        f"the files of {source} were replaced during each of {_TRIES_MAX} tries to copy them; "
        "try again when fewer topics and groups are changed"
    )


def _inodes(directory: Path) -> dict[str, int]:
    """Return the inodes of a directory's files by path, without unfinished files."""
    if not directory.is_dir():
        return {}
    with os.scandir(directory) as entries:
        return {each.name: each.inode() for each in entries if not each.name.endswith(".tmp")}


def _copy_tree(source: Path, target: Path, *, begin_first: bool = False) -> int:
    """Copy a directory with everything below; what disappears meanwhile has expired."""
    try:
        paths = sorted(source.iterdir(), reverse=True)
    except FileNotFoundError:
        return 0
    target.mkdir(_DIRECTORY_MODE, exist_ok=True)
    copied = 0
    for path in paths:
        if path.is_dir():
            copied += _copy_tree(path, target / path.name)
        elif not path.name.endswith(".tmp"):
            copied += _copy_file(path, target / path.name, begin_first=begin_first)
    sync_names(target)
    return copied


def _copy_file(source: Path, target: Path, *, begin_first: bool = False) -> int:
    """Copy a file with its holes; a missing file is not an error."""
    try:
        source_fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        target_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.ftruncate(target_fd, os.fstat(source_fd).st_size)
            pieces = _pieces(source_fd) if begin_first else reversed(list(_pieces(source_fd)))
            copied = sum(_copy_piece(source_fd, target_fd, *piece) for piece in pieces)
            os.fsync(target_fd)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)
    return copied


def _copy_piece(source_fd: int, target_fd: int, at: int, size: int) -> int:
    data = read_bytes(source_fd, size, at)
    left = data
    while left:
        written = os.pwrite(target_fd, left, at)
        at, left = at + written, left[written:]
    return len(data)


def _pieces(fd: int) -> Iterator[tuple[int, int]]:
    """Yield the position and the size of each piece of a file's data, as it is at that moment.

    A broker goes on writing, and a piece that refers to others is copied before them. Of a log and
    its queues that is the end: without a part before it, the copy had a gap before its last record.
    Of an index it is the beginning, whose slots name entries behind them.
    """
    end = 0
    while True:
        try:
            begin = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        end = os.lseek(fd, begin, os.SEEK_HOLE)
        for at in range(begin, end, _CHUNK_SIZE):
            yield at, min(_CHUNK_SIZE, end - at)
