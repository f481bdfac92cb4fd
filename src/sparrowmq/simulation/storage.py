"""A disk in memory: it is slow, fails, is full, and forgets what was not synced at a power cut.

What a program wrote and what the disk has are kept apart, sector by sector and name by name. A
sync brings the one to the other; a power cut leaves any part of the difference.
"""

from __future__ import annotations

import errno

from sparrowmq.errors import StoreError
from sparrowmq.simulation.dice import Dice
from sparrowmq.store.storage import Bytes, StorageFile, parent_directory

SECTOR_SIZE = 512


class PowerCut(Exception):
    """Power goes in the midst of work on the disk."""


class _Content:
    """One file's bytes: as written, and as the disk has them."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.durable = bytearray()
        self.dirty: set[int] = set()
        # Sectors that have room on the disk; the others are holes.
        self.allocated: set[int] = set()

    def touch(self, begin: int, end: int) -> None:
        sectors = range(begin // SECTOR_SIZE, -(-end // SECTOR_SIZE))
        self.dirty.update(sectors)
        self.allocated.update(sectors)

    def room(self, begin: int, end: int) -> int:
        """Return how many of these bytes can be written without another sector."""
        for sector in range(begin // SECTOR_SIZE, -(-end // SECTOR_SIZE)):
            if sector not in self.allocated:
                return max(0, sector * SECTOR_SIZE - begin)
        return end - begin

    def sync(self) -> None:
        self._persist(sorted(self.dirty))
        self.dirty.clear()

    def lose_power(self, dice: Dice) -> None:
        """Keep some of what was not synced."""
        share = dice.choice((0.0, 0.5, 0.9, 1.0))
        has_size = len(self.durable) == len(self.data) or dice.random() < 0.5
        kept = [sector for sector in sorted(self.dirty) if dice.random() < share]
        if has_size:
            self._persist(kept)
        else:
            last = len(self.durable) // SECTOR_SIZE
            for sector in kept:
                if sector < last:
                    self._copy(sector)
        self.data = bytearray(self.durable)
        self.dirty = set()

    def _persist(self, sectors: list[int]) -> None:
        size = len(self.data)
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))
        for sector in sectors:
            self._copy(sector)

    def _copy(self, sector: int) -> None:
        begin = sector * SECTOR_SIZE
        self.durable[begin : begin + SECTOR_SIZE] = self.data[begin : begin + SECTOR_SIZE]


class SimulatedFile:
    """A file of a `SimulatedStorage`."""

    def __init__(self, storage: SimulatedStorage, path: str, content: _Content) -> None:
        self._storage = storage
        self._content = content
        self._path = path

    @property
    def path(self) -> str:
        """The path under the root."""
        return self._path

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self._content.data)

    def read(self, position: int, size: int) -> bytes:
        """Return bytes as written."""
        return bytes(self._content.data[position : position + size])

    def write(self, position: int, data: Bytes) -> None:
        """Write bytes, or a part of them where the disk is full."""
        assert position + len(data) <= self.size
        storage, count = self._storage, len(data)
        storage.write_count += 1
        if storage.is_full:
            count = self._content.room(position, position + count)
        self._content.data[position : position + count] = data[:count]
        self._content.touch(position, position + count)
        if count < len(data):
            raise OSError(errno.ENOSPC, "no space left on this disk")

    def zero_from(self, position: int) -> None:
        """Make the rest zero."""
        self._content.data[position:] = bytes(self.size - position)
        self._content.touch(position, self.size)

    def resize(self, size: int) -> None:
        """Cut or extend."""
        data = self._content.data
        self._content.touch(min(size, len(data)), max(size, len(data)))
        del data[size:]
        data.extend(bytes(size - len(data)))

    def next_data(self, position: int) -> int | None:
        """Return where the next byte other than zero is."""
        rest = bytes(self._content.data[position:])
        stripped = rest.lstrip(b"\0")
        return position + len(rest) - len(stripped) if stripped else None

    def sync(self) -> None:
        """Bring the content to the disk."""
        self._storage.count_sync()
        self._content.sync()

    def close(self) -> None:
        """Do nothing: there is no descriptor."""


class SimulatedStorage:
    """A disk.

    Attributes:
        is_full: what needs another sector raises ENOSPC, after a part of the bytes.
        is_failing: syncs raise EIO.
        syncs_left: power goes when so many syncs are done; None for never.
        write_count: how many writes there were.
    """

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._contents: dict[str, _Content] = {}
        self._durable_names: dict[str, _Content] = {}
        # Each reaches the disk as a whole or not at all: a rename is two names.
        self._name_changes: list[dict[str, _Content | None]] = []
        self._is_locked = False
        self.is_full = False
        self.is_failing = False
        self.syncs_left: int | None = None
        self.write_count = 0

    # --- faults -----------------------------------------------------------------------------

    def count_sync(self) -> None:
        """Let a sync begin, or not. For `SimulatedFile`."""
        if self.syncs_left is not None:
            self.syncs_left -= 1
            if self.syncs_left < 0:
                raise PowerCut
        if self.is_failing:
            raise OSError(errno.EIO, "the disk does not answer")

    def stop_process(self) -> None:
        """Let go of what a killed process held; everything it wrote is still there."""
        self._is_locked = False
        self.syncs_left = None

    def lose_power(self) -> None:
        """Become what the machine finds when power is back."""
        self.stop_process()
        names = dict(self._durable_names)
        for change in self._name_changes:
            if self._dice.random() < 0.5:
                _apply(names, change)
        for path in sorted(names):
            names[path].lose_power(self._dice)
        self._contents = dict(names)
        self._durable_names = dict(names)
        self._name_changes = []

    # --- Storage ----------------------------------------------------------------------------

    def lock(self) -> None:
        """Take the tree for one store."""
        if self._is_locked:
            raise StoreError("another store has this disk")
        self._is_locked = True

    def unlock(self) -> None:
        """Release the tree."""
        self._is_locked = False

    def list_names(self, directory: str) -> list[str]:
        """Return the sorted names in a directory."""
        prefix = f"{directory}/" if directory else ""
        below = [path[len(prefix) :] for path in self._contents if path.startswith(prefix)]
        return sorted({name.partition("/")[0] for name in below})

    def has(self, path: str) -> bool:
        """Tell whether there is a file or directory."""
        return path in self._contents or any(p.startswith(f"{path}/") for p in self._contents)

    def create(self, path: str, *, size: int, pinned: bool = False) -> StorageFile:
        """Create a file of zeros."""
        del pinned
        if self.is_full and size:
            raise OSError(errno.ENOSPC, "no space left on this disk")
        content = _Content(size)
        # Zeros need no writing: only the size has to reach the disk.
        self._name({path: content})
        return SimulatedFile(self, path, content)

    def open(self, path: str, *, pinned: bool = False) -> StorageFile:
        """Open a file."""
        del pinned
        content = self._contents.get(path)
        if content is None:
            raise FileNotFoundError(path)
        return SimulatedFile(self, path, content)

    def remove(self, path: str) -> None:
        """Remove a file."""
        if path in self._contents:
            self._name({path: None})

    def rename(self, old_path: str, new_path: str) -> None:
        """Give a file another name."""
        self._name({new_path: self._contents[old_path], old_path: None})

    def sync_directory(self, path: str) -> None:
        """Bring the names of a directory, and of those above it, to the disk."""
        self.count_sync()
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

    def _name(self, change: dict[str, _Content | None]) -> None:
        _apply(self._contents, change)
        self._name_changes.append(change)


def _apply(names: dict[str, _Content], change: dict[str, _Content | None]) -> None:
    for path, content in change.items():
        if content is None:
            names.pop(path, None)
        else:
            names[path] = content
