"""A directory of files of one size that together are one long byte sequence.

Each file is named by the position of its first byte, in 20 digits. Both the commit log and every
consume queue are such a series. Source: RocketMQ's MappedFileQueue, without the mapping.
Tests: test_file_storage.py.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from sparrowmq.errors import StoreError
from sparrowmq.store.storage import Bytes, Storage, StorageFile

_NAME_DIGITS = 20
# A crash loses the names of files made since the last sync. Filling a longer gap with zeros would
# hide other damage, and take the room of that many files.
_MISSING_FILES_MAX = 64
_REWRITE_BYTES = 4 << 20
PAGE_BYTES = 4096


class DamagedSeries(StoreError):
    """A file of a series is missing or shorter than it was."""


def list_visible(storage: Storage, directory: str) -> list[str]:
    """Return the sorted names in a directory that are not hidden, as `.DS_Store` is."""
    return [name for name in storage.list_names(directory) if not name.startswith(".")]


def is_position(name: str) -> bool:
    """Return whether a name is that of a file of a series."""
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


class FileSeries:
    """A series of files.

    Args:
        file_size: bytes of each file.
        pinned: whether the files' descriptors stay open.

    Attributes:
        repaired: the beginnings of the files that `mend` made or extended before others with data.
    """

    __slots__ = ("_bases", "_directory", "_files", "_pinned", "_storage", "file_size", "repaired")

    def __init__(
        self, storage: Storage, directory: str, *, file_size: int, pinned: bool = False
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._pinned = pinned
        self.file_size = file_size
        self._bases: list[int] = []
        self._files: dict[int, StorageFile] = {}
        self.repaired: list[int] = []

    def load(self, *, repair: bool = False, keeps_size: bool = False) -> None:
        """Open the existing files, and repair them.

        Args:
            keeps_size: whether the size of the existing files counts, and not the configured one.
            repair: as in `mend`.

        Raises: as `open` and `mend`.
        """
        self.open()
        if keeps_size:
            self.file_size = self._kept_size()
        self.mend(repair=repair)

    def open(self, *, passes_over: bool = False) -> None:
        """Open the existing files, but for hidden ones, which other programs leave.

        Args:
            passes_over: whether other names that are not positions are passed over too.

        Raises: DamagedSeries for such a name.
        """
        for name in list_visible(self._storage, self._directory):
            if is_position(name):
                self._bases.append(int(name))
            elif not passes_over:
                raise DamagedSeries(
                    f"{self._directory}/{name} is not a file of the store; move it elsewhere"
                )
        for base in self._bases:
            self._files[base] = self._storage.open(self._path(base), pinned=self._pinned)

    def mend(self, *, repair: bool = False) -> None:
        """Extend the files at the end with zeros, if a crash has cut them.

        Args:
            repair: whether missing and cut files within the series are replaced by zeros, for a
                reader that finds out which data is lost.

        Raises: DamagedSeries if files are missing or cut and `repair` is False; StoreError if the
            files cannot have the size of the series.
        """
        for file in self._files.values():
            if file.size > self.file_size:
                raise StoreError(self._size_problem(file))
        for before, after in pairwise(list(self._bases)):
            if after - before != self.file_size:
                self._fill_gap(before, after, repair=repair)
        self._check_sizes(repair=repair)

    def sizes(self) -> list[int]:
        """Return the sizes of the files, and the distances from each file to the next."""
        distances = [after - before for before, after in pairwise(self._bases)]
        return [file.size for file in self._files.values()] + distances

    def _kept_size(self) -> int:
        """Return the size of the files that were made, or the configured size without any.

        A damaged file may be cut. A single one counts only with whole pages, as all sizes have that
        an operator can choose.
        """
        size = max((file.size for file in self._files.values()), default=0)
        is_known = len(self._files) > 1 or size % PAGE_BYTES == 0
        return size if size and is_known else self.file_size

    def _fill_gap(self, before: int, after: int, *, repair: bool) -> None:
        missing = (after - before) // self.file_size - 1
        problem = (
            f"from {self._path(before)} to {self._path(after)} are {after - before} bytes, but "
            f"files of {self.file_size} bytes are configured: a file is missing, or the configured "
            f"size is wrong"
        )
        if (after - before) % self.file_size:
            raise StoreError(problem)
        if not repair:
            raise DamagedSeries(problem)
        if missing > _MISSING_FILES_MAX:
            raise StoreError(problem)
        for base in range(before + self.file_size, after, self.file_size):
            self._files[base] = self._storage.create(
                self._path(base), size=self.file_size, pinned=self._pinned
            )
            self.repaired.append(base)
        self._bases = sorted(self._files)

    def _check_sizes(self, *, repair: bool) -> None:
        # The files after `tail` have no data. Most series need no check, since all files are whole.
        tail = len(self._bases)
        for at in reversed(range(len(self._bases))):
            file = self._files[self._bases[at]]
            if file.size == self.file_size:
                continue
            while tail > at + 1 and self._files[self._bases[tail - 1]].next_data(0) is None:
                tail -= 1
            if tail > at + 1:
                if not repair:
                    raise DamagedSeries(self._size_problem(file))
                self.repaired.append(self._bases[at])
            file.resize(self.file_size)

    def _size_problem(self, file: StorageFile) -> str:
        return f"{file.path} has {file.size} bytes; {self.file_size} are configured"

    @property
    def bases(self) -> list[int]:
        """The positions at which the files begin, ascending. Not to be changed."""
        return self._bases

    @property
    def begin(self) -> int:
        """The position of the first file; 0 without any file."""
        return self._bases[0] if self._bases else 0

    @property
    def end(self) -> int:
        """The position after the last file; 0 without any file."""
        return self._bases[-1] + self.file_size if self._bases else 0

    def base_of(self, position: int) -> int | None:
        """Return the beginning of the file that contains a position, None if no file does."""
        at = bisect_right(self._bases, position) - 1
        if at < 0 or position >= self._bases[at] + self.file_size:
            return None
        return self._bases[at]

    def file_at(self, base: int) -> StorageFile:
        """Return the file that begins at a position; the file must exist."""
        return self._files[base]

    def add_file(self, base: int) -> StorageFile:
        """Create the file that begins at `base`, after the last file or as the first."""
        assert not self._bases or base == self.end
        file = self._storage.create(self._path(base), size=self.file_size, pinned=self._pinned)
        self._bases.append(base)
        self._files[base] = file
        return file

    def read(self, position: int, size: int) -> bytes:
        """Return the bytes from `position` on, fewer at the end of the files."""
        # Usually one file has them all, and begins at a multiple of its size.
        begin = position - position % self.file_size
        file = self._files.get(begin)
        if file is not None and position + size <= begin + self.file_size:
            return file.read(position - begin, size)
        base = self.base_of(position)
        if base is None:
            return b""
        data = self._files[base].read(position - base, min(size, base + self.file_size - position))
        if len(data) == size:
            return data
        parts = [data]
        at = position + len(data)
        while at < position + size and at in self._files:
            data = self._files[at].read(0, min(position + size - at, self.file_size))
            parts.append(data)
            at += len(data)
        return b"".join(parts)

    def write(self, position: int, data: Bytes) -> list[StorageFile]:
        """Write `data` at `position`, adding files as needed; return the files written to."""
        written: list[StorageFile] = []
        at, view = position, memoryview(data)
        while view:
            base = self.base_of(at)
            file = self.add_file(self.end) if base is None else self._files[base]
            base = self.end - self.file_size if base is None else base
            count = min(len(view), base + self.file_size - at)
            file.write(at - base, view[:count])
            written.append(file)
            at += count
            view = view[count:]
        return written

    def rewrite(self, begin: int, end: int) -> None:
        """Write the bytes from `begin` to `end` again, so that the next sync brings them to disk.

        After a failed sync the kernel may count pages as written that the disk never got. A later
        sync, also by another process, then writes nothing of them and succeeds.
        """
        while begin < end:
            data = self.read(begin, min(_REWRITE_BYTES, end - begin))
            self.write(begin, data)
            begin += len(data)

    def cut(self, position: int) -> StorageFile | None:
        """Zero everything from `position` on and remove the files that begin after it.

        The file that begins at `position` is kept. Returns the file with bytes that were zeroed.
        Callers sync the file and, since files may have been removed, the directory.
        """
        while self._bases and self._bases[-1] > position:
            self.remove_last()
        base = self.base_of(position)
        if base is None or self._files[base].next_data(position - base) is None:
            return None
        self._files[base].zero_from(position - base)
        return self._files[base]

    def discard(self) -> None:
        """Remove all files."""
        while self._bases:
            self.remove_last()

    def remove_first(self) -> str:
        """Remove the first file; return its path."""
        self._storage.remove(self._path(self._bases[0]))
        return self.pop_first()

    def remove_last(self) -> None:
        """Remove the last file."""
        base = self._bases.pop()
        self._files.pop(base).close()
        self._storage.remove(self._path(base))

    def pop_first(self) -> str:
        """Forget the first file; return its path, so that the caller can remove the file."""
        base = self._bases.pop(0)
        path = self._path(base)
        self._files.pop(base).close()
        return path

    def next_data(self, position: int) -> int | None:
        """Return the first position from `position` on that may have a byte other than zero."""
        for base in self._bases:
            if base + self.file_size > position:
                found = self._files[base].next_data(max(position - base, 0))
                if found is not None:
                    return base + found
        return None

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._bases.clear()

    @property
    def directory(self) -> str:
        """The files' directory."""
        return self._directory

    def path_of(self, position: int) -> str:
        """Return the path of the file that contains a position, for messages."""
        base = self.base_of(position)
        return self._directory if base is None else self._path(base)

    def _path(self, base: int) -> str:
        return f"{self._directory}/{base:0{_NAME_DIGITS}d}"
