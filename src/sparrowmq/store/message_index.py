"""The index: finds messages by their keys, through files of hashes (`index_file`).

Like a consume queue, the index is derived from the log, and only from readable messages. The index
is built in the background, so that a send costs nothing: `build` goes on from `built_position`. Up
to `LAG_BYTES_MAX` of the log may wait to be indexed. A query first builds the rest.

*Crashes.* The checkpoint's `IndexMark` records what was synced: the name and header of the last
file, and the position up to which the log is indexed. After a crash all later entries are discarded
and built again. Without a mark, because another broker wrote the files or the checkpoint,
RocketMQ's rule applies: after a clean stop the files are right; otherwise files that end after the
checkpoint's `indexMsgTimestamp` are removed. The index then goes on with the last record that it
has, and not behind it: a file may end amid the keys of a record. An entry that is there twice is
found once; Apache's broker finds it twice.

*Keys.* A record is found by UNIQ_KEY, the id that its producer set, and by each blank-separated
part of KEYS. A key is looked for within its topic.

The names of files only order them. RocketMQ takes its local time as the name. Our names lie 12
hours behind UTC, so that a file that RocketMQ makes later sorts after ours in any time zone.

Source: IndexService.java, DefaultMessageStore.queryMessage, 4.9.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from struct import Struct
from typing import NamedTuple

from sparrowmq.model.message import PROPERTY_KEYS, PROPERTY_UNIQ_KEY
from sparrowmq.protocol import speedups
from sparrowmq.protocol.record import (
    BORN_HOST_AT,
    BORN_HOST_V6,
    HEAD_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    SIZE_AND_MAGIC,
    STORE_HOST_V6,
    V6_BITS,
    head_layout,
)
from sparrowmq.store.checkpoint import IndexMark
from sparrowmq.store.config import StoreConfig
from sparrowmq.store.file_series import PAGE_BYTES, FileSeries
from sparrowmq.store.index_file import (
    HEADER_SIZE,
    IndexFile,
    IndexHeader,
    Numbers,
    SlotWrites,
    decode_index_header,
    find_index_counts,
    index_file_size,
    slot_hash,
)
from sparrowmq.store.key_hash import KEY_BYTES_MAX, POWERS, hash_keys, hash_text
from sparrowmq.store.log_scan import find_head
from sparrowmq.store.storage import (
    Storage,
    StorageFile,
    is_lost,
    is_shortage,
    passing_over_losses,
)

INDEX_DIRECTORY = "index"
# How much of the log may wait before sends index it themselves: below a second's work.
LAG_BYTES_MAX = 32 << 20
# How much of the log one step indexes: some milliseconds' work.
_CHUNK_BYTES = 256 << 10
# How many pages behind a lost one are looked at for the log's next readable one.
_PAGES_LOST_MAX = 16
_NAME_FORMAT = "%Y%m%d%H%M%S"
_NAME_DIGITS = 17
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES_BEHIND = timedelta(hours=12)

# What the index reads of a record with IPv4 hosts; a negative size is too large here.
_HEAD = head_layout(
    *("size", "magic", "sys_flag", "store_timestamp", "body_size"), size="I", body_size="I"
)
_STORE_TIMESTAMP = Struct(">q")
_INT = Struct(">I")
_TRANSACTION = _TRANSACTION_ROLLBACK = 0xC
_UNIQ_KEY = f"{PROPERTY_UNIQ_KEY}\x01".encode()
_KEYS = f"{PROPERTY_KEYS}\x01".encode()
_NAMES = (_UNIQ_KEY, _KEYS)
_SEPARATOR = b"\x02"
_SEPARATOR_CODE = 2
_MASK = 0xFFFFFFFF
_TOPICS_MAX = 10_000


class IndexFlush:
    """The writes and syncs for a new mark. `run` may be called in another thread.

    Args:
        mark: the mark after a success.
        before: the mark after a failure.
        writes: slots and headers, by file.
        has_new_file: whether a file's name is new.

    Attributes:
        error: the error of a failure, None after a success.
        has_lost: whether a sync has failed, so that earlier writes may be lost as well.
    """

    def __init__(
        self,
        mark: IndexMark,
        before: IndexMark | None,
        writes: tuple[SlotWrites, ...],
        *,
        has_new_file: bool,
        storage: Storage,
    ) -> None:
        self.mark = mark
        self._before = before
        self.writes = writes
        self.has_new_file = has_new_file
        self._storage = storage
        self.error: OSError | None = None
        self.has_lost = False

    def run(self) -> IndexMark | None:
        """Sync entries, write the slots that name them, sync the slots; return the valid mark."""
        self.error, self.has_lost = None, False
        files: list[StorageFile] = []
        is_written = False
        try:
            # The store's thread may close its own descriptors of the files meanwhile.
            for each in self.writes:
                files.append(self._storage.open(each.path, pinned=True))
            is_written = True
            _sync(files)
            is_written = False
            for each, file in zip(self.writes, files, strict=True):
                each.write(file)
            is_written = True
            _sync(files)
            if self.has_new_file:
                self._storage.sync_directory(INDEX_DIRECTORY)
        except OSError as error:
            self.error = error
            # Slots that do not fit on a full disk can be written later.
            self.has_lost = is_written and not is_shortage(error)
            return self._before
        finally:
            for file in files:
                file.close()
        return self.mark


class MessageIndex:
    """The index of one store.

    Args:
        config: the store's settings.
        log_files: the log's files.

    Attributes:
        built_position: the position up to which the log is indexed.
        mark: the mark of the index on the disk.
        failure: why nothing is indexed until the store is loaded again, None without a failure.
    """

    def __init__(self, storage: Storage, config: StoreConfig, log_files: FileSeries) -> None:
        self._storage = storage
        self._config = config
        self._log_files = log_files
        self._files: list[IndexFile] = []
        # The slots and entries of a file.
        self._counts = (config.index_slot_count, config.index_entry_count)
        self.mark: IndexMark | None = None
        self._has_new_file = False
        self._flush: IndexFlush | None = None
        # By topic: the addend of `topic#` to the hash of a key, by the key's length.
        self._topics: dict[bytes, list[int]] = {}
        self.built_position = 0
        self.failure: OSError | None = None

    # -- opening and closing -------------------------------------------------------------------

    def load(
        self,
        mark: IndexMark | None,
        *,
        is_clean: bool,
        index_timestamp_ms: int,
        log_end: int,
        end_timestamp_ms: int,
    ) -> None:
        """Open the files, and discard entries that a crash has left unfinished.

        Args:
            mark: the checkpoint's mark, if the checkpoint can be believed.
            is_clean: whether the last stop was clean.
            index_timestamp_ms: the checkpoint's indexMsgTimestamp.
            log_end: the end of the log.
            end_timestamp_ms: the store time of the log's last record, 0 if unknown.
        """
        self._open_files()
        # A killed process leaves names that only the page cache has. From now on they count.
        self._has_new_file |= bool(self._files) and not is_clean
        if mark is not None and (mark.name == 0 or mark.name in {f.name for f in self._files}):
            self._keep(sum(file.name <= mark.name for file in self._files))
            if self._files and not (is_clean and self._files[-1].header == mark.header):
                self._files[-1].restore(mark.header)
            self.built_position = mark.position
        else:
            if not is_clean:
                times_ms = (file.header.end_timestamp_ms for file in self._files)
                self._keep(sum(1 for _ in takewhile(lambda ms: ms <= index_timestamp_ms, times_ms)))
            # The last file may lack the later keys of its last record: index this record again. If
            # all files of a clean stop are there, Apache's broker would then find it twice.
            self.built_position = self._end_position if self._files else 0
            if self._files and is_clean and mark is None and not self._has_new_file:
                self.built_position += self._size_of_record(self._end_position)
        if self.built_position > log_end or (self._files and self._end_position >= log_end):
            self._cut(log_end, end_timestamp_ms)
        self.built_position = max(self.built_position, self._log_files.begin)
        for path in self.take_before(self._log_files.begin):
            self._storage.remove(path)

    def begin_anew(self) -> None:
        """Remove all files, of which the disk has lost a part: the log has what they had."""
        self.close()
        self._remove_files(_list_names(self._storage))
        self.built_position = self._log_files.begin

    def _size_of_record(self, position: int) -> int:
        size, magic = _size_and_magic(self._log_files.read(position, SIZE_AND_MAGIC.size))
        return size if magic in (MAGIC_V1, MAGIC_V2) else 0

    def _open_files(self) -> None:
        self._counts = find_counts(self._storage, self._config)
        names = _list_names(self._storage)
        for at, name in enumerate(names):
            file = self._storage.open(_path_of(name))
            # A file of another size than the first, cut by a crash, or with an impossible header is
            # built again from the log. So are the files after it: the index must have all records
            # before the last file's end.
            header = _read_header(file, *self._counts)
            if header is None:
                file.close()
                self._remove_files(names[at:])
                return
            self._append_file(file, name, header)

    def _remove_files(self, names: list[int]) -> None:
        """Remove all files from one on, the last one first and each durably.

        A start that finds the last file takes those before it for complete, so no crash may leave
        the last file without one of these.
        """
        for name in reversed(names):
            self._storage.remove(_path_of(name))
            self._storage.sync_directory(INDEX_DIRECTORY)
            self._has_new_file = True

    def _keep(self, count: int) -> None:
        """Remove all files but so many at the front."""
        removed = self._files[count:]
        del self._files[count:]
        for file in removed:
            file.close()
        self._remove_files([file.name for file in removed])

    @property
    def _end_position(self) -> int:
        return self._files[-1].header.end_position

    def _cut(self, log_end: int, end_timestamp_ms: int) -> None:
        """Forget records after the log's end, which the log has lost."""
        count = len(self._files)
        while count and self._files[count - 1].count_before(log_end) == 1:
            count -= 1
        self._keep(count)
        if self._files:
            file = self._files[-1]
            file.restore(file.header_before(log_end, end_timestamp_ms))
        self.built_position = min(self.built_position, log_end)

    def close(self) -> None:
        """Release the files."""
        for file in self._files:
            file.close()
        self._files.clear()

    # -- building ------------------------------------------------------------------------------

    def build(self, limit: int, bytes_max: int) -> None:
        """Index at least `bytes_max` more of the log, or all of it up to `limit`.

        A record that is damaged, or that the disk has lost, keeps none behind it from the index. On
        a full disk, or one that does not answer, nothing is indexed; the next call tries again. A
        file of the index whose content the disk has lost is built again at the next start.
        """
        end = min(limit, self.built_position + bytes_max)
        while self.built_position < end and self.failure is None:
            try:
                self._build_chunk(limit)
            except OSError:
                return

    def _build_chunk(self, limit: int) -> None:
        position = max(self.built_position, self._log_files.begin)
        base = self._log_files.base_of(position)
        if base is None:
            self.built_position = limit
            return
        file_end = base + self._log_files.file_size
        end = min(file_end, limit)
        chunk = self._read_piece(position, end)
        if chunk is None:
            self.built_position = self._find_readable(position, limit)
            return
        at, found = self._collect(chunk, position)
        if at == 0:
            size, magic = _size_and_magic(chunk)
            if magic == MAGIC_BLANK and size == file_end - position:
                self.built_position = end
                return
            if magic in (MAGIC_V1, MAGIC_V2) and len(chunk) < size <= file_end - position:
                whole = self._read_log(position, size)
                if whole is not None:
                    at, found = self._collect(whole, position)
                else:
                    # Raises if the disk does not answer at all.
                    self._find_readable(position + len(chunk), limit)
        if at == 0:
            # A damaged record, which keeps none of the later ones from the index.
            self.built_position = position + find_head(chunk, position)
            return
        try:
            self._add(found)
        except OSError as error:
            if is_lost(error):
                self.failure = error
            raise
        self.built_position = position + at

    def _read_piece(self, position: int, end: int) -> bytes | None:
        """Return the log from a position on, at most a page if the disk has lost the rest.

        Returns: None if the disk has lost the bytes at the position too.
        """
        page_end = position - position % PAGE_BYTES + PAGE_BYTES
        chunk = self._read_log(position, min(_CHUNK_BYTES, end - position))
        return self._read_log(position, min(page_end, end) - position) if chunk is None else chunk

    def _read_log(self, position: int, size: int) -> bytes | None:
        """Return bytes of the log, None if the disk has lost some of them."""
        with passing_over_losses():
            return self._log_files.read(position, size)
        return None

    def _find_readable(self, position: int, limit: int) -> int:
        """Return where the log can be read again behind a lost position.

        Raises: OSError if it cannot be, as on a disk that does not answer for a while: nothing is
            passed over then.
        """
        page = position - position % PAGE_BYTES
        for at in range(page + PAGE_BYTES, limit, PAGE_BYTES)[:_PAGES_LOST_MAX]:
            with passing_over_losses():
                self._log_files.read(at, 1)
                return at
        raise OSError(errno.EIO, "the disk does not answer")

    def _collect(self, chunk: bytes, position: int) -> tuple[int, _Found]:
        """Return the end of the last whole record in a chunk of the log, and the keys before it."""
        if (functions := speedups.functions) is not None:
            collected = functions.collect_keys(chunk, position)
            if collected is not None:
                at, hashes, positions, timestamps_ms = collected
                return at, _Found(
                    memoryview(hashes).cast("i"),
                    memoryview(positions).cast("q"),
                    memoryview(timestamps_ms).cast("q"),
                )
        keys = LogKeys(self._topics)
        at = keys.collect(chunk, position)
        return at, _Found(
            array("i", keys.hashes()), array("q", keys.positions), array("q", keys.timestamps_ms)
        )

    def _add(self, found: _Found) -> None:
        hashes, at = found.hashes, 0
        while at < len(hashes):
            file = self._file_to_add_to(found.timestamps_ms[at])
            stop = min(len(hashes), at + file.room)
            file.add(hashes[at:stop], found.positions[at:stop], found.timestamps_ms[at:stop])
            at = stop

    def _file_to_add_to(self, timestamp_ms: int) -> IndexFile:
        if self._files and self._files[-1].room:
            return self._files[-1]
        last = self._files[-1] if self._files else None
        name = _name_of(timestamp_ms)
        header = IndexHeader()
        if last is not None:
            name = max(name, last.name + 1)
            header = IndexHeader(
                begin_timestamp_ms=last.header.end_timestamp_ms,
                end_timestamp_ms=last.header.end_timestamp_ms,
                begin_position=last.header.end_position,
                end_position=last.header.end_position,
            )
        file = self._storage.create(_path_of(name), size=index_file_size(*self._counts))
        self._has_new_file = True
        self._append_file(file, name, header)
        return self._files[-1]

    def _append_file(self, file: StorageFile, name: int, header: IndexHeader) -> None:
        slot_count, entry_count = self._counts
        self._files.append(
            IndexFile(file, name, header, slot_count=slot_count, entry_count=entry_count)
        )

    # -- the disk ------------------------------------------------------------------------------

    def take_flush(self) -> IndexFlush | None:
        """Return the syncs that make all entries durable; None if all are durable."""
        mark = self._next_mark()
        if self.failure is not None or (mark == self.mark and not self._has_new_file):
            return None
        dirty = [file for file in self._files if file.is_dirty]
        flush = IndexFlush(
            mark,
            self.mark,
            tuple(file.take_dirty() for file in dirty),
            has_new_file=self._has_new_file,
            storage=self._storage,
        )
        self._has_new_file = False
        self._flush = flush
        return flush

    def _next_mark(self) -> IndexMark:
        if not self._files:
            return IndexMark(self.built_position, 0, IndexHeader())
        return IndexMark(self.built_position, self._files[-1].name, self._files[-1].header)

    @property
    def is_dirty(self) -> bool:
        """Whether entries are not synced yet."""
        return self.failure is None and self._next_mark() != self.mark

    def flush_done(self, flush: IndexFlush) -> None:
        """Process the outcome of `flush.run()`.

        After a failed sync the content of the disk is unknown: the index waits for the next start.
        """
        self._flush = None
        self._has_new_file |= flush.error is not None and flush.has_new_file
        if flush.has_lost:
            self.failure = flush.error
        elif flush.error is not None:
            for file in self._files:
                for writes in flush.writes:
                    file.put_back(writes)
        else:
            self.mark = flush.mark
            for file in self._files[:-1]:
                if not file.is_dirty:
                    file.let_go()

    def take_before(self, position: int) -> list[str]:
        """Forget the files without a record at or after `position`; the last file stays.

        Returns: the files' paths, so that the caller can remove the files.
        """
        if self._flush is not None:
            # The flush may be about to sync one of the files.
            return []
        expired = [f for f in self._files[:-1] if f.header.end_position < position]
        del self._files[: len(expired)]
        for file in expired:
            file.close()
        self._has_new_file |= bool(expired)
        return [_path_of(file.name) for file in expired]

    # -- finding -------------------------------------------------------------------------------

    @property
    def last_header(self) -> IndexHeader:
        """The header of the last file, an empty header without a file."""
        return self._files[-1].header if self._files else IndexHeader()

    def find(self, topic: str, key: str, *, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Yield the positions of records that may have a topic and key, the latest first.

        Other topics and keys may have the same hash; the caller compares. A position may come
        twice. Other work may run after each position, and at each None.

        Args:
            key: UNIQ_KEY, or one of KEYS.
            begin_ms: the earliest store time, in wall-clock milliseconds.
            end_ms: the latest store time.

        Raises: OSError if the disk fails.
        """
        key_hash = slot_hash(hash_text(f"{topic}#{key}"))
        for file in reversed(tuple(self._files)):
            if file.overlaps(begin_ms, end_ms):
                yield from file.find(key_hash, begin_ms=begin_ms, end_ms=end_ms)
            if file.header.begin_timestamp_ms < begin_ms:
                break


def find_counts(storage: Storage, config: StoreConfig) -> tuple[int, int]:
    """Return the numbers of slots and entries of the first file, the configured ones without any.

    A broker of Apache's reads files of other numbers than its own wrongly, so a store keeps the
    numbers with which it was begun.
    """
    counts = (config.index_slot_count, config.index_entry_count)
    for name in _list_names(storage):
        file = storage.open(_path_of(name))
        try:
            return find_index_counts(file, *counts)
        finally:
            file.close()
    return counts


def _sync(files: list[StorageFile]) -> None:
    for file in files:
        file.sync()


def _read_header(file: StorageFile, slot_count: int, entry_count: int) -> IndexHeader | None:
    """Return a file's header; None for a file of another size, or with too many entries."""
    if file.size != index_file_size(slot_count, entry_count):
        return None
    header = decode_index_header(file.read(0, HEADER_SIZE))
    return header if header.next_number <= entry_count else None


def is_index_name(name: str) -> bool:
    """Return whether a name is that of a file of the index."""
    return len(name) == _NAME_DIGITS and name.isascii() and name.isdigit()


def _list_names(storage: Storage) -> list[int]:
    return [int(name) for name in storage.list_names(INDEX_DIRECTORY) if is_index_name(name)]


class _Found(NamedTuple):
    """The `slot_hash` of keys and the positions of their records, in the log's order."""

    hashes: Numbers
    positions: Numbers
    timestamps_ms: Numbers


class LogKeys:
    """The keys of a piece of the log, with the positions of their records.

    Args:
        topics: by topic, the addend of its name to a key's hash; new topics are added.
    """

    __slots__ = ("_added", "_keys", "_topics", "positions", "timestamps_ms")

    def __init__(self, topics: dict[bytes, list[int]]) -> None:
        self._topics = topics
        self._keys: list[bytes] = []
        self._added: list[int] = []
        self.positions: list[int] = []
        self.timestamps_ms: list[int] = []

    def hashes(self) -> list[int]:
        """Return the `slot_hash` of `topic#key` for each key."""
        return [
            value if (value := (key_hash + added) & _MASK) < 0x80000000 else -value & 0x7FFFFFFF
            for key_hash, added in zip(hash_keys(self._keys), self._added, strict=True)
        ]

    def collect(self, chunk: bytes, position: int) -> int:
        """Collect the keys of a chunk's whole records; return the end of the last one.

        Args:
            position: the chunk's position in the log.
        """
        at, last_at, unpack = 0, len(chunk) - HEAD_SIZE, _HEAD.unpack_from
        while at <= last_at:
            size, magic, sys_flag, store_ms, body_size = unpack(chunk, at)
            end = at + size
            if end > len(chunk) or (magic != MAGIC_V1 and magic != MAGIC_V2):
                break
            topic_at = at + HEAD_SIZE + body_size
            if sys_flag & V6_BITS:
                topic_at, store_ms = _look_past_hosts(chunk, at, sys_flag)
            if topic_at + 2 >= end:
                break
            if magic == MAGIC_V1:
                topic_at, topic_end = topic_at + 1, topic_at + 1 + chunk[topic_at]
            else:
                topic_at += 2
                topic_end = topic_at + (chunk[topic_at - 2] << 8 | chunk[topic_at - 1])
            if sys_flag & _TRANSACTION != _TRANSACTION_ROLLBACK:
                topic = chunk[topic_at:topic_end]
                for name in _NAMES:
                    found = chunk.rfind(name, topic_end + 2, end)
                    if found >= 0:
                        value = _value_at(chunk, topic_end + 2, end, name, found)
                        for key in value.split(b" ") if b" " in value else (value,):
                            if key:
                                self._add(topic, key, position + at, store_ms)
            at = end
        return at

    def _add(self, topic: bytes, key: bytes, position: int, timestamp_ms: int) -> None:
        powers = self._powers(topic)
        if len(key) <= KEY_BYTES_MAX and key.isascii():
            self._keys.append(key)
            self._added.append(powers[len(key)])
        else:
            self._keys.append(b"")
            self._added.append(hash_text((topic + b"#" + key).decode("utf-8", "replace")))
        self.positions.append(position)
        self.timestamps_ms.append(timestamp_ms)

    def _powers(self, topic: bytes) -> list[int]:
        """Return the addend of a topic to the hash of a key, by the key's length."""
        powers = self._topics.get(topic)
        if powers is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            of_topic = hash_text(topic.decode("utf-8", "replace") + "#")
            powers = self._topics[topic] = [of_topic * power & _MASK for power in POWERS]
        return powers


def _value_at(chunk: bytes, begin: int, end: int, name: bytes, found: int) -> bytes:
    """Return the value of a property whose last occurrence is at `found`, b"" without a value.

    The last of several properties of one name counts, as in Java's map; empty values do not count.
    """
    while found >= 0:
        if found == begin or chunk[found - 1] == _SEPARATOR_CODE:
            value_at = found + len(name)
            value_end = chunk.find(_SEPARATOR, value_at, end)
            if value_end != value_at:
                return chunk[value_at : end if value_end < 0 else value_end]
        found = chunk.rfind(name, begin, found)
    return b""


def _look_past_hosts(chunk: bytes, at: int, sys_flag: int) -> tuple[int, int]:
    """Return the place of the topic's field, and the store time, of a record with IPv6 hosts."""
    born_size = 20 if sys_flag & BORN_HOST_V6 else 8
    store_size = 20 if sys_flag & STORE_HOST_V6 else 8
    (store_ms,) = _STORE_TIMESTAMP.unpack_from(chunk, at + BORN_HOST_AT + born_size)
    body_at = at + HEAD_SIZE + (born_size - 8) + (store_size - 8)
    (body_size,) = _INT.unpack_from(chunk, body_at - 4)
    return body_at + body_size, store_ms


def _size_and_magic(chunk: bytes) -> tuple[int, int]:
    return SIZE_AND_MAGIC.unpack_from(chunk) if len(chunk) >= SIZE_AND_MAGIC.size else (0, 0)


def _path_of(name: int) -> str:
    return f"{INDEX_DIRECTORY}/{name:0{_NAME_DIGITS}d}"


def _name_of(timestamp_ms: int) -> int:
    instant = _EPOCH + timedelta(milliseconds=timestamp_ms) - _NAMES_BEHIND
    return int(f"{instant:{_NAME_FORMAT}}{timestamp_ms % 1000:03d}")
