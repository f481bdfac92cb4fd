"""Checks whether a store that is not in use is sound: every record, every entry, every file.

The check changes nothing. The log is walked from its first record to its last, and the walk goes on
after a damaged record. Each consume queue must have exactly the entries that the records imply.
Each entry of the index must belong to a key of its record. A fault that the next start mends, as
after a crash, is *unfinished* and no damage.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from operator import ne
from struct import Struct
from typing import NamedTuple

from sparrowmq.errors import StoreError
from sparrowmq.store.checkpoint import CHECKPOINT_PATH, read_checkpoint
from sparrowmq.store.commit_log import COMMIT_LOG_DIRECTORY
from sparrowmq.store.config import ENTRY_SIZE, StoreConfig
from sparrowmq.store.consume_queue import (
    CONSUME_QUEUE_DIRECTORY,
    ENTRY,
    FILLER_SIZE,
    filler_entries,
)
from sparrowmq.store.file_series import FileSeries, is_position, list_visible
from sparrowmq.store.index_file import (
    HEADER_SIZE,
    decode_index_header,
    index_file_size,
    read_slots,
)
from sparrowmq.store.log_scan import LogScan
from sparrowmq.store.message_index import INDEX_DIRECTORY, LogKeys, find_counts, is_index_name
from sparrowmq.store.record_check import RECORD_SIZE_MIN, RecordChecker
from sparrowmq.store.storage import Storage

ABORT_PATH = "abort"
# The bytes of expected entries that wait to be compared with their queues' files, in all queues.
_WAITING_BYTES_MAX = 32 << 20
_CHUNK_BYTES = 1 << 20
_INDEX_ENTRY = Struct(">iqii")
_SLOT_SIZE = 4

QueueKey = tuple[str, int]


class Soundness(StrEnum):
    """The state of a file. UNFINISHED: the next start mends the file, and nothing is lost."""

    SOUND = "sound"
    UNFINISHED = "unfinished"
    DAMAGED = "damaged"


class FileFinding(NamedTuple):
    """The state of one file, or of the files of one queue."""

    path: str
    state: Soundness
    text: str


@dataclass(slots=True)
class _LogFile:
    """The findings in one file of the log."""

    records: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Queue:
    """The entries that a queue must have, and the differences found."""

    files: FileSeries | None
    # The offset after the compared entries, and the entries that wait to be compared.
    end: int
    waiting: bytearray = field(default_factory=bytearray)
    entries: int = 0
    wrong: int = 0
    missing: int = 0

    def compare(self) -> None:
        """Compare the waiting entries with the queue's files."""
        begin, expected = self.end, bytes(self.waiting)
        self.end += len(expected) // ENTRY_SIZE
        self.entries += len(expected) // ENTRY_SIZE
        self.waiting.clear()
        found = b"" if self.files is None else _padded(self.files, begin, len(expected))
        if found == expected:
            return
        found = found.ljust(len(expected), b"\0")
        for at in range(0, len(expected), ENTRY_SIZE):
            entry = found[at : at + ENTRY_SIZE]
            if entry != expected[at : at + ENTRY_SIZE]:
                if entry.strip(b"\0"):
                    self.wrong += 1
                else:
                    self.missing += 1


def _describe_others(count: int) -> str:
    """Return the text about files of other programs, which a start leaves alone."""
    return f"files that are not the store's: {count:,}"


def _padded(files: FileSeries, offset: int, size: int) -> bytes:
    position = offset * ENTRY_SIZE
    if position < files.begin:
        missing = min(size, files.begin - position)
        return bytes(missing) + files.read(files.begin, size - missing)
    return files.read(position, size)


class StoreCheck:
    """The check of one store.

    Args:
        storage: the storage of the store; created and extended files must not persist.
        config: the store's settings; the files' own sizes override the sizes in the settings.
    """

    def __init__(self, storage: Storage, config: StoreConfig) -> None:
        self._storage = storage
        self._config = config
        self._is_stopped = not storage.has(ABORT_PATH)
        self._checkpoint = read_checkpoint(storage)
        self._checker = RecordChecker(config.delay_levels_ms)
        mark = self._checkpoint.mark
        self._checker.checksummed_position = None if mark is None else mark.checksummed_position
        self._log: FileSeries | None = None
        self._log_end = 0
        self._is_log_damaged = False
        self._queues: dict[QueueKey, _Queue] = {}

    @property
    def is_stopped(self) -> bool:
        """Whether the store was stopped cleanly."""
        return self._is_stopped

    @property
    def has_messages(self) -> bool:
        """Whether `run` has found a message that readers see."""
        return bool(self._queues)

    def run(self) -> Iterator[FileFinding]:
        """Yield a finding for each log file, each queue, each index file, and the other files.

        Raises: OSError if the disk fails.
        """
        yield from self._check_log()
        yield from self._check_queues()
        yield from self._check_index()
        yield self._check_end()

    # -- the log -------------------------------------------------------------------------------

    def _check_log(self) -> Iterator[FileFinding]:
        size = self._size_of_files(COMMIT_LOG_DIRECTORY)
        log = FileSeries(
            self._storage,
            COMMIT_LOG_DIRECTORY,
            file_size=size or self._config.commit_log_file_size,
        )
        sizes = self._sizes(COMMIT_LOG_DIRECTORY)
        try:
            log.load(repair=True)
        except StoreError as error:
            yield FileFinding(COMMIT_LOG_DIRECTORY, Soundness.DAMAGED, str(error))
            return
        self._log = log
        files = {base: _LogFile() for base in log.bases}
        for base in log.bases:
            path = log.path_of(base)
            if path not in sizes:
                files[base].problems.append("the file is missing")
            elif sizes[path] < log.file_size:
                files[base].problems.append(f"{sizes[path]} bytes are left of {log.file_size}")
        self._walk(log, files)
        for base, found in files.items():
            text = "; ".join([f"{found.records:,} records", *found.problems, *found.notes])
            state = Soundness.UNFINISHED if found.notes else Soundness.SOUND
            if found.problems:
                state = Soundness.DAMAGED
                self._is_log_damaged = True
            yield FileFinding(log.path_of(base), state, text)
        self._is_log_damaged |= self._lost_bytes > 0

    def _walk(self, log: FileSeries, files: dict[int, _LogFile]) -> None:
        scan = LogScan(log, self._checker)
        at: int | None = log.begin
        while at is not None and log.bases:
            self._walk_run(scan, at, log, files)
            self._log_end = scan.position
            at = self._find_next(scan, log, files)

    def _walk_run(
        self, scan: LogScan, begin: int, log: FileSeries, files: dict[int, _LogFile]
    ) -> None:
        waiting = 0
        for record in scan.run(begin):
            found = files[record.position - record.position % log.file_size]
            found.records += 1
            if not record.is_queued:
                continue
            key = (record.topic, record.queue_id)
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = _Queue(self._open_queue(key), record.queue_offset)
            gap = record.queue_offset - queue.end - len(queue.waiting) // ENTRY_SIZE
            if gap < 0:
                found.problems.append(
                    f"the record at {record.position} has the queue offset of an earlier one"
                )
                continue
            queue.waiting += filler_entries(gap)
            queue.waiting += ENTRY.pack(record.position, record.size, record.tags_code)
            waiting += ENTRY_SIZE * (gap + 1)
            if waiting > _WAITING_BYTES_MAX:
                waiting = 0
                for each in self._queues.values():
                    each.compare()
        for each in self._queues.values():
            each.compare()

    def _find_next(self, scan: LogScan, log: FileSeries, files: dict[int, _LogFile]) -> int | None:
        """Search after the position where the walk ended; return the position to go on at."""
        end = scan.position
        base = log.base_of(end)
        if base is None or log.next_data(end) is None:
            return None
        follower = next(LogScan(log, self._checker).find_after(end), None)
        if follower is not None:
            files[base].problems.append(
                f"the record at byte {end - base} is damaged; valid ones follow from log position "
                f"{follower.position} on"
            )
            return follower.position
        mark = self._checkpoint.mark
        if self._is_stopped or (mark is not None and end < mark.end_position):
            files[base].problems.append(f"from byte {end - base} on is not a record")
        else:
            files[base].notes.append(f"what was written last, from byte {end - base} on, is torn")
        return None

    # -- the queues ----------------------------------------------------------------------------

    def _open_queue(self, key: QueueKey) -> FileSeries | None:
        directory = f"{CONSUME_QUEUE_DIRECTORY}/{key[0]}/{key[1]}"
        size = self._size_of_files(directory)
        if not size:
            return None
        files = FileSeries(self._storage, directory, file_size=size)
        try:
            files.open(passes_over=True)
            files.mend(repair=True)
        except StoreError:
            return None
        return files

    def _check_queues(self) -> Iterator[FileFinding]:
        if self._log is None:
            return
        keys = set(self._queues)
        for topic in self._storage.list_names(CONSUME_QUEUE_DIRECTORY):
            for name in self._storage.list_names(f"{CONSUME_QUEUE_DIRECTORY}/{topic}"):
                if name.isascii() and name.isdigit():
                    keys.add((topic, int(name)))
        for key in sorted(keys):
            queue = self._queues.get(key) or _Queue(self._open_queue(key), -1)
            yield self._check_queue(key, queue)
            if queue.files is not None:
                queue.files.close()

    def _check_queue(self, key: QueueKey, queue: _Queue) -> FileFinding:
        path = f"{CONSUME_QUEUE_DIRECTORY}/{key[0]}/{key[1]}"
        stray = self._count_stray(queue)
        text = f"{queue.entries:,} entries"
        for count, what in (
            (queue.missing, "are missing"),
            (queue.wrong, "are not what the log says"),
            (stray, "are of no record"),
        ):
            if count:
                text += f", {count:,} {what}"
        names = list_visible(self._storage, path)
        if others := len([name for name in names if not is_position(name)]):
            text += f"; {_describe_others(others)}"
        if not (queue.missing or queue.wrong or stray):
            return FileFinding(path, Soundness.SOUND, text)
        if not self._is_stopped and not queue.wrong:
            return FileFinding(path, Soundness.UNFINISHED, f"{text}; a start writes them anew")
        if queue.end < 0 and not self._is_log_damaged:
            advice = f"leave {path} in its place: it alone has the queue's next offset"
        else:
            advice = self._advise(path)
        return FileFinding(path, Soundness.DAMAGED, f"{text}; {advice}")

    def _advise(self, path: str) -> str:
        """Return what to do about files that do not fit the log."""
        if self._is_log_damaged:
            # Without a queue, the next start would read the whole log, and refuse it.
            return f"leave {path} in its place: the log is damaged"
        return f"move {path} away: the next start makes it of the log"

    def _count_stray(self, queue: _Queue) -> int:
        """Return how many entries of a queue have no record in the log."""
        files, log = queue.files, self._log
        if files is None or not files.bases or log is None:
            return 0
        if queue.end >= 0:
            return 0 if files.next_data(queue.end * ENTRY_SIZE) is None else 1
        # The log has no message of this queue: the remaining entries have expired.
        count, position = 0, files.begin
        while data := files.read(position, _CHUNK_BYTES - _CHUNK_BYTES % ENTRY_SIZE):
            count += sum(
                1
                for at, size, _ in ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_SIZE])
                if RECORD_SIZE_MIN <= size < FILLER_SIZE and at >= log.begin
            )
            position += len(data)
        return count

    # -- the index -----------------------------------------------------------------------------

    def _check_index(self) -> Iterator[FileFinding]:
        log = self._log
        slot_count, entry_count = find_counts(self._storage, self._config)
        size = index_file_size(slot_count, entry_count)
        keys = None if log is None else _KeysOfLog(log, self._log_end)
        names = list_visible(self._storage, INDEX_DIRECTORY)
        if others := len([name for name in names if not is_index_name(name)]):
            yield FileFinding(INDEX_DIRECTORY, Soundness.SOUND, _describe_others(others))
        for name in filter(is_index_name, names):
            path = f"{INDEX_DIRECTORY}/{name}"
            file = self._storage.open(path)
            try:
                if keys is None or file.size != size:
                    text = f"{file.size} bytes; a start makes it of the log"
                    yield FileFinding(path, Soundness.UNFINISHED, text)
                    continue
                header = decode_index_header(file.read(0, HEADER_SIZE))
                at = HEADER_SIZE + _SLOT_SIZE * slot_count + _INDEX_ENTRY.size
                count = header.next_number - 1
                end = at + _INDEX_ENTRY.size * min(count, entry_count - 1)
                wrong, number = max(0, count - entry_count + 1), 0
                # A search goes from a slot to its latest entry, and on to each previous one.
                latest, breaks = array("i", bytes(_SLOT_SIZE * slot_count)), 0
                while at < end:
                    data = file.read(at, min(end - at, 1000 * _INDEX_ENTRY.size))
                    at += len(data)
                    for key_hash, position, _, previous in _INDEX_ENTRY.iter_unpack(data):
                        wrong += not keys.has(key_hash, position)
                        slot, number = key_hash % slot_count, number + 1
                        breaks += previous != latest[slot]
                        latest[slot] = number
                if self._is_stopped:
                    breaks += sum(map(ne, read_slots(file, slot_count), latest))
            finally:
                file.close()
            text = f"{count:,} entries"
            if not (wrong or breaks):
                yield FileFinding(path, Soundness.SOUND, text)
                continue
            if wrong:
                text += f", {wrong:,} of which are of no key of their record"
            if breaks:
                text += f", {breaks:,} places that do not lead to the entry before them"
            if self._is_stopped:
                text += f"; {self._advise(INDEX_DIRECTORY)}"
            state = Soundness.DAMAGED if self._is_stopped else Soundness.UNFINISHED
            yield FileFinding(path, state, text)

    # -- the rest ------------------------------------------------------------------------------

    def _check_end(self) -> FileFinding:
        mark = self._checkpoint.mark
        if not self._is_stopped:
            text = "the store was not stopped cleanly; the next start checks what was written last"
            return FileFinding(CHECKPOINT_PATH, Soundness.UNFINISHED, text)
        if mark is None:
            return FileFinding(CHECKPOINT_PATH, Soundness.SOUND, "of another broker")
        if lost := self._lost_bytes:
            text = f"{lost:,} bytes of the log that had been synced are not there"
            return FileFinding(CHECKPOINT_PATH, Soundness.DAMAGED, text)
        return FileFinding(CHECKPOINT_PATH, Soundness.SOUND, "stopped cleanly")

    @property
    def _lost_bytes(self) -> int:
        """How many bytes of the log's end had been synced, and are not there."""
        mark = self._checkpoint.mark
        return 0 if mark is None else max(0, mark.end_position - self._log_end)

    def _sizes(self, directory: str) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name in filter(is_position, self._storage.list_names(directory)):
            file = self._storage.open(f"{directory}/{name}")
            sizes[file.path] = file.size
            file.close()
        return sizes

    def _size_of_files(self, directory: str) -> int:
        return max(self._sizes(directory).values(), default=0)


class _KeysOfLog:
    """The keys of the log's records, for lookups with mostly ascending positions."""

    def __init__(self, log: FileSeries, end: int) -> None:
        self._log = log
        self._end = end
        self._begin = self._stop = 0
        self._found: set[tuple[int, int]] = set()
        self._topics: dict[bytes, list[int]] = {}

    def has(self, key_hash: int, position: int) -> bool:
        """Return whether the record at a position has a key with this hash; True once expired."""
        if position < self._log.begin:
            return True
        if not self._begin <= position < self._stop:
            self._read(position)
        return (key_hash, position) in self._found

    def _read(self, position: int) -> None:
        self._begin, self._stop = position, position + 1
        self._found = set()
        if position >= self._end:
            return
        file_end = self._log.file_size - position % self._log.file_size
        chunk = self._log.read(position, min(_CHUNK_BYTES, file_end))
        keys = LogKeys(self._topics)
        at = keys.collect(chunk, position)
        if at == 0 and len(chunk) == _CHUNK_BYTES:
            # The record is longer than a piece.
            size = int.from_bytes(chunk[:4], "big")
            at = keys.collect(self._log.read(position, min(size, file_end)), position)
        self._found = set(zip(keys.hashes(), keys.positions, strict=True))
        self._stop = position + max(at, 1)
