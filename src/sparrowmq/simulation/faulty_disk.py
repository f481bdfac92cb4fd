"""A disk in memory that can fail, be full, and lose unsynced data at a power cut.

The disk keeps written and durable content apart, sector by sector and name by name. A sync makes
written content durable; a power cut keeps any part of the difference. The simulation's brokers and
the tests of the store run on this disk.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Self

from sparrowmq.errors import StoreError
from sparrowmq.simulation.dice import Dice
from sparrowmq.store.storage import Bytes, DiskSpace, StorageFile, is_shortage, parent_directory

SECTOR_SIZE = 512


class PowerCut(BaseException):
    """The power fails during work on the disk; the program cannot handle this error."""


class Inode:
    """One file's bytes, written and durable."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.durable = bytearray()
        self.dirty: set[int] = set()
        # The allocated sectors; the others are holes.
        self.allocated: set[int] = set()

    def replace(self, data: bytes) -> None:
        """Replace the durable and the written content."""
        self.data[:] = data
        self.durable[:] = data
        self.dirty.clear()

    def touch(self, begin: int, end: int) -> None:
        """Note that these bytes were written."""
        sectors = _sectors(begin, end)
        self.dirty.update(sectors)
        self.allocated.update(sectors)

    def resize(self, size: int) -> None:
        """Cut the content, or extend it with a hole."""
        before = len(self.data)
        self.dirty.update(_sectors(min(size, before), max(size, before)))
        self.allocated.difference_update(_sectors(size + SECTOR_SIZE - 1, before))
        _resize(self.data, size)

    def room(self, begin: int, end: int) -> int:
        """Return the number of these bytes that can be written without another sector."""
        for sector in _sectors(begin, end):
            if sector not in self.allocated:
                return max(0, sector * SECTOR_SIZE - begin)
        return end - begin

    def sync(self) -> None:
        """Make the written content durable."""
        self._persist(sorted(self.dirty))
        self.dirty.clear()

    def fail_to_sync(self) -> None:
        """Take unsynced content for written, as a kernel does after a failed sync."""
        self.dirty.clear()

    def lose_power(self, dice: Dice) -> None:
        """Keep some of the unsynced content."""
        if len(self.durable) != len(self.data) and dice.random() < 0.5:
            # The new size was not durable.
            _resize(self.data, len(self.durable))
        share = dice.choice((0.0, 0.5, 1.0, 1.0))
        kept = [sector for sector in sorted(self.dirty) if dice.random() < share]
        if kept and dice.random() < 0.5:
            # A record is torn in its midst, and its end is there.
            kept.remove(dice.choice(kept))
        self._persist(kept)
        self.data = bytearray(self.durable)
        self.dirty = set()

    def _persist(self, sectors: list[int]) -> None:
        _resize(self.durable, len(self.data))
        for sector in sectors:
            begin = sector * SECTOR_SIZE
            self.durable[begin : begin + SECTOR_SIZE] = self.data[begin : begin + SECTOR_SIZE]


def _sectors(begin: int, end: int) -> range:
    """Return the sectors that contain these bytes."""
    return range(begin // SECTOR_SIZE, -(-end // SECTOR_SIZE))


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


class SimulatedFile:
    """A file of a `SimulatedStorage`."""

    def __init__(self, storage: SimulatedStorage, path: str, inode: Inode) -> None:
        self._storage = storage
        self._inode = inode
        self._path = path

    @property
    def path(self) -> str:
        """The path under the root."""
        return self._path

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self._inode.data)

    def read(self, position: int, size: int) -> bytes:
        """Return written bytes."""
        self._storage.begin_read()
        return bytes(self._inode.data[position : position + size])

    def write(self, position: int, data: Bytes) -> None:
        """Write bytes, or a part of them if the disk is full or the power fails."""
        assert position + len(data) <= self.size
        count, failure = self._storage.begin_write(self._inode, position, len(data))
        self._inode.data[position : position + count] = data[:count]
        self._inode.touch(position, position + count)
        if failure is not None:
            raise failure

    def zero_from(self, position: int) -> None:
        """Fill the rest with zeros."""
        self._storage.begin_change()
        self._inode.data[position:] = bytes(self.size - position)
        self._inode.touch(position, self.size)

    def resize(self, size: int) -> None:
        """Cut or extend."""
        self._storage.begin_change()
        self._inode.resize(size)

    def next_data(self, position: int) -> int | None:
        """Return the position of the next byte other than zero."""
        rest = bytes(self._inode.data[position:])
        stripped = rest.lstrip(b"\0")
        return position + len(rest) - len(stripped) if stripped else None

    def sync(self) -> None:
        """Make the content durable. Raises: OSError; no later sync writes the content then."""
        try:
            self._storage.begin_sync()
        except OSError as error:
            if not is_shortage(error):
                self._inode.fail_to_sync()
            raise
        self._inode.sync()

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class SimulatedStorage:
    """A disk.

    Args:
        dice: chooses the content that a power cut leaves.

    Attributes:
        inodes: the files by path.
        is_full: whether a write that needs another sector raises ENOSPC, after a part of its bytes.
        bytes_left: the bytes that the disk still accepts; a larger write writes a part and raises
            ENOSPC.
        sync_error: the error of every sync; None for none.
        read_error: the error of every read of a file's content; None for none.
        percent_used: the reported use of the disk.
        changes_left: the changes before the power fails, during the next one; None for never.
        read_count: the number of reads.
    """

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self.inodes: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        # Each change becomes durable as a whole or not at all: a rename changes two names.
        self._name_changes: list[dict[str, Inode | None]] = []
        self._is_locked = False
        self.is_full = False
        self.bytes_left: int | None = None
        self.sync_error: OSError | None = None
        self.read_error: OSError | None = None
        self._is_lasting = True
        self.percent_used = 0
        self.changes_left: int | None = None
        self.read_count = 0

    # --- faults -----------------------------------------------------------------------------

    def begin_change(self) -> None:
        """Begin a change, unless the power fails. For `SimulatedFile`."""
        if self.changes_left is not None:
            self.changes_left -= 1
            if self.changes_left < 0:
                raise PowerCut

    def begin_write(
        self, inode: Inode, position: int, size: int
    ) -> tuple[int, OSError | PowerCut | None]:
        """Return the number of bytes to write, and the error for the rest. For `SimulatedFile`."""
        if self.changes_left == 0:
            # The power fails during the write; a sector is written as a whole.
            self.changes_left = -1
            end = position + self._dice.randrange(0, size)
            return max(0, end - end % SECTOR_SIZE - position), PowerCut()
        self.begin_change()
        count = inode.room(position, position + size) if self.is_full else size
        if self.bytes_left is not None:
            count = min(count, self.bytes_left)
            self.bytes_left -= count
        return count, _no_space() if count < size else None

    def begin_read(self) -> None:
        """Begin a read, unless reads fail. For `SimulatedFile`."""
        self.read_count += 1
        if self.read_error is not None:
            raise self.read_error

    def begin_sync(self) -> None:
        """Begin a sync, unless syncs fail. For `SimulatedFile`."""
        self.begin_change()
        error = self.sync_error
        if error is not None:
            if not self._is_lasting:
                self.sync_error = None
            raise error

    @property
    def is_failing(self) -> bool:
        """Whether every sync fails."""
        return self.sync_error is not None and self._is_lasting

    def fail(self, *, is_lasting: bool = True) -> None:
        """Let every sync fail from now on, as a broken disk does, or only the next one."""
        self.sync_error = OSError(errno.EIO, "the disk does not answer")
        self._is_lasting = is_lasting

    def mend(self) -> None:
        """Repair the disk, and give it room again."""
        self.sync_error = self.read_error = self.bytes_left = None
        self.is_full = False

    def kill(self) -> Self:
        """Release the lock of a killed process; all its writes stay."""
        self._is_locked = False
        self.changes_left = None
        return self

    def lose_power(self) -> Self:
        """Become the disk that the machine finds after a power cut."""
        self.kill()
        names = dict(self._durable_names)
        for change in self._name_changes:
            if self._dice.random() < 0.5:
                _apply(names, change)
        for path in sorted(names):
            names[path].lose_power(self._dice)
        self.inodes = dict(names)
        self._durable_names = dict(names)
        self._name_changes = []
        return self

    def copy(self) -> SimulatedStorage:
        """Return another disk with the same content, all durable."""
        other = SimulatedStorage(self._dice)
        for path, inode in self.inodes.items():
            copied = other.inodes[path] = other._durable_names[path] = Inode(0)
            copied.replace(bytes(inode.data))
        return other

    # --- Storage ----------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the tree for one store."""
        if self._is_locked:
            raise StoreError("this disk is in use")
        self._is_locked = True

    def unlock(self) -> None:
        """Release the tree."""
        self._is_locked = False

    def list_names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""
        prefix = f"{directory}/" if directory else ""
        below = [path[len(prefix) :] for path in self.inodes if path.startswith(prefix)]
        return sorted({name.partition("/")[0] for name in below})

    def has(self, path: str) -> bool:
        """Return whether there is a file or directory."""
        return path in self.inodes or any(p.startswith(f"{path}/") for p in self.inodes)

    def create(self, path: str, *, size: int, pinned: bool = False) -> StorageFile:
        """Create a file of zeros."""
        del pinned
        if self.is_full and size:
            raise _no_space()
        self.begin_change()
        inode = Inode(size)
        # Zeros need no write: only the size must become durable.
        self._name({path: inode})
        return SimulatedFile(self, path, inode)

    def open(self, path: str, *, pinned: bool = False) -> StorageFile:
        """Open a file."""
        del pinned
        inode = self.inodes.get(path)
        if inode is None:
            raise FileNotFoundError(path)
        return SimulatedFile(self, path, inode)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self.begin_change()
        if path in self.inodes:
            self._name({path: None})

    def remove_directory(self, path: str) -> None:
        """Do nothing: a directory exists as long as it has a file."""

    def disk_space(self) -> DiskSpace:
        """Return the reported use of the disk."""
        return DiskSpace(100, self.percent_used, 100 - self.percent_used)

    def rename(self, old_path: str, new_path: str) -> None:
        """Give a file another name."""
        self.begin_change()
        self._name({new_path: self.inodes[old_path], old_path: None})

    def sync_all(self, files: Sequence[StorageFile], directories: Sequence[str]) -> None:
        """Make all files and directories durable, one after another."""
        for file in files:
            file.sync()
        for directory in directories:
            self.sync_directory(directory)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory, and in those above it, durable."""
        self.begin_sync()
        above = {path}
        while path:
            path = parent_directory(path)
            above.add(path)
        left = []
        for change in self._name_changes:
            if any(parent_directory(name) in above for name in change):
                _apply(self._durable_names, change)
            else:
                left.append(change)
        self._name_changes = left

    def _name(self, change: dict[str, Inode | None]) -> None:
        _apply(self.inodes, change)
        self._name_changes.append(change)


def _apply(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def _no_space() -> OSError:
    return OSError(errno.ENOSPC, "no space left on this disk")
