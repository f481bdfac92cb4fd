"""Disks for the store's tests: one in memory that fails on demand, and forgets at a power cut."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from sparrowmq.errors import StoreError
from sparrowmq.protocol.record import Record, encode_host
from sparrowmq.store import StorageFile
from sparrowmq.store.storage import Bytes, parent_directory

SECTOR_SIZE = 512
HOST = encode_host("127.0.0.1:10911")


class PowerCut(BaseException):
    """The machine has lost power in the midst of an operation."""


class Inode:
    """A file's content: what a reader sees, and what the disk has."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        self.durable = bytearray()
        self.dirty_sectors: set[int] = set()

    def replace(self, data: bytes) -> None:
        """Have the disk itself hold something else."""
        self.data[:] = data
        self.durable[:] = data
        self.dirty_sectors.clear()

    def touch(self, begin: int, end: int) -> None:
        self.dirty_sectors.update(range(begin // SECTOR_SIZE, -(-end // SECTOR_SIZE)))

    def sync(self) -> None:
        self._persist(self.dirty_sectors)
        self.dirty_sectors.clear()

    def lose_power(self, rng: Random) -> None:
        if len(self.durable) != len(self.data) and rng.random() < 0.5:
            # The size had not reached the disk.
            self.data = self.data[: len(self.durable)]
            self.data.extend(bytes(len(self.durable) - len(self.data)))
        kept_share = rng.choice((0.0, 0.5, 0.9, 1.0))
        self._persist({s for s in sorted(self.dirty_sectors) if rng.random() < kept_share})
        self.data = bytearray(self.durable)
        self.dirty_sectors = set()

    def _persist(self, sectors: set[int]) -> None:
        size = len(self.data)
        del self.durable[size:]
        self.durable.extend(bytes(size - len(self.durable)))
        for sector in sectors:
            begin = sector * SECTOR_SIZE
            self.durable[begin : begin + SECTOR_SIZE] = self.data[begin : begin + SECTOR_SIZE]


class MemoryFile:
    def __init__(self, storage: MemoryStorage, path: str, inode: Inode) -> None:
        self._storage = storage
        self._inode = inode
        self.path = path

    @property
    def size(self) -> int:
        return len(self._inode.data)

    def read(self, position: int, size: int) -> bytes:
        self._storage.reads += 1
        return bytes(self._inode.data[position : position + size])

    def write(self, position: int, data: Bytes) -> None:
        assert position + len(data) <= self.size
        count = self._storage.before_write(position, len(data))
        self._inode.data[position : position + count] = data[:count]
        self._inode.touch(position, position + count)
        if count < len(data):
            self._storage.fail_write()

    def zero_from(self, position: int) -> None:
        self._storage.count()
        self._inode.data[position:] = bytes(self.size - position)
        self._inode.touch(position, self.size)

    def resize(self, size: int) -> None:
        self._storage.count()
        data = self._inode.data
        self._inode.touch(min(size, len(data)), max(size, len(data)))
        del data[size:]
        data.extend(bytes(size - len(data)))

    def next_data(self, position: int) -> int | None:
        rest = bytes(self._inode.data[position:])
        zeros = len(rest) - len(rest.lstrip(b"\0"))
        return None if zeros == len(rest) else position + zeros

    def sync(self) -> None:
        self._storage.count()
        if self._storage.sync_error is not None:
            raise self._storage.sync_error
        self._inode.sync()

    def close(self) -> None:
        pass


class MemoryStorage:
    """A disk in memory.

    Attributes:
        bytes_left: what the disk still takes; a write beyond it writes a part and fails.
        sync_error: raised by every sync, if set.
        operations_left: power is cut when it has run down, in the midst of an operation.
        reads: how many reads there were.
    """

    def __init__(self) -> None:
        self.inodes: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        # Each is done by the disk as a whole or not at all: a rename is two names.
        self._name_changes: list[dict[str, Inode | None]] = []
        self._is_locked = False
        self.bytes_left: int | None = None
        self.sync_error: OSError | None = None
        self.operations_left: int | None = None
        self.cut_rng = Random(0)
        self.reads = 0

    # -- faults --

    def count(self) -> None:
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left < 0:
                raise PowerCut

    def before_write(self, position: int, size: int) -> int:
        if self.operations_left == 0:
            # Power goes while the bytes are on their way; a sector is written as a whole.
            self.operations_left = -1
            end = position + self.cut_rng.randrange(size)
            return max(0, end - end % SECTOR_SIZE - position)
        self.count()
        if self.bytes_left is None:
            return size
        count = min(size, self.bytes_left)
        self.bytes_left -= count
        return count

    def fail_write(self) -> None:
        if self.operations_left == -1:
            raise PowerCut
        raise OSError(errno.ENOSPC, "no space left on this disk")

    def lose_power(self, rng: Random) -> MemoryStorage:
        """Return the disk as the machine finds it when power is back."""
        after = MemoryStorage()
        names = dict(self._durable_names)
        for change in self._name_changes:
            if rng.random() < 0.5:
                _apply(names, change)
        for inode in {id(i): i for i in names.values()}.values():
            inode.lose_power(rng)
        after.inodes = dict(names)
        after._durable_names = dict(names)
        return after

    def kill(self) -> MemoryStorage:
        """Return the disk as the next process finds it: the machine has gone on."""
        after = MemoryStorage()
        after.inodes = dict(self.inodes)
        after._durable_names = dict(self._durable_names)
        after._name_changes = list(self._name_changes)
        return after

    def copy(self) -> MemoryStorage:
        """Return another disk with the same content, all of it durable."""
        after = MemoryStorage()
        for path, inode in self.inodes.items():
            copy = after.inodes[path] = after._durable_names[path] = Inode(0)
            copy.data[:] = inode.data
            copy.durable[:] = inode.data
        return after

    # -- Storage --

    def lock(self) -> None:
        if self._is_locked:
            raise StoreError("in use")
        self._is_locked = True

    def unlock(self) -> None:
        self._is_locked = False

    def list_names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        below = [p[len(prefix) :] for p in self.inodes if p.startswith(prefix)]
        return sorted({name.partition("/")[0] for name in below})

    def has(self, path: str) -> bool:
        return path in self.inodes or any(p.startswith(f"{path}/") for p in self.inodes)

    def create(self, path: str, *, size: int, pinned: bool = False) -> StorageFile:
        self.count()
        inode = Inode(size)
        inode.touch(0, size)
        self._name({path: inode})
        return MemoryFile(self, path, inode)

    def open(self, path: str, *, pinned: bool = False) -> StorageFile:
        if path not in self.inodes:
            raise FileNotFoundError(path)
        return MemoryFile(self, path, self.inodes[path])

    def remove(self, path: str) -> None:
        self.count()
        if path in self.inodes:
            self._name({path: None})

    def rename(self, old_path: str, new_path: str) -> None:
        self.count()
        self._name({new_path: self.inodes[old_path], old_path: None})

    def sync_directory(self, path: str) -> None:
        self.count()
        if self.sync_error is not None:
            raise self.sync_error
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


@pytest.fixture
def new_storage() -> Callable[[], MemoryStorage]:
    """Makes empty disks in memory."""
    return MemoryStorage


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def power_cut() -> type[PowerCut]:
    return PowerCut


@pytest.fixture
def new_record() -> Callable[..., Record]:
    """Makes records: `new_record(body, topic=..., queue_id=..., ...)`."""

    def make(body: bytes, *, topic: str = "T", queue_id: int = 0, **fields: object) -> Record:
        fields.setdefault("properties", "TAGS\x01A\x02UNIQ_KEY\x010001")
        return Record(
            topic=topic,
            queue_id=queue_id,
            body=body,
            born_host=HOST,
            store_host=HOST,
            **fields,  # type: ignore[arg-type]
        )

    return make
