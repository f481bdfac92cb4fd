"""The consume queues of one store, which readers see.

The store adds the entries of each turn in the log's order, and takes the changed files to sync with
each checkpoint. Readers ask by topic and queue id. A queue begins with its first message; before
that, readers see an empty queue. Tests: test_consume_queue.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sparrowmq.model.names import is_legal_name
from sparrowmq.store.checkpoint import Mark
from sparrowmq.store.commit_log import CommitLog
from sparrowmq.store.config import ENTRY_SIZE, StoreConfig
from sparrowmq.store.consume_queue import CONSUME_QUEUE_DIRECTORY, ENTRY, ConsumeQueue
from sparrowmq.store.file_series import PAGE_BYTES
from sparrowmq.store.queue_reader import (
    find_boundary,
    find_offset_by_time,
    read_messages,
    read_store_timestamp,
)
from sparrowmq.store.recovery import QueueKey
from sparrowmq.store.results import Dispatched, GetResult, GetStatus
from sparrowmq.store.storage import Storage, StorageFile

# With more queues in use each entry is written at once. The checkpoint writes the gathered entries
# of all queues in one go, which takes a few milliseconds with this many.
_GATHERING_QUEUES_MAX = 256


class QueueTable:
    """All queues of all topics.

    Args:
        config: the store's settings.
        log: the log that the entries point into.

    Attributes:
        by_key: the queues by topic and queue id, for the writers (the store, recovery,
            expiry).
        write_error: why entries could not be written at the last try; they stay in memory.
    """

    def __init__(self, storage: Storage, config: StoreConfig, log: CommitLog) -> None:
        self._storage = storage
        self._config = config
        self._log = log
        self.by_key: dict[QueueKey, ConsumeQueue] = {}
        self._dirty: set[QueueKey] = set()
        self.write_error: OSError | None = None

    def load(self, mark: Mark | None) -> int:
        """Open all existing queues, and mend them; return the size of their files.

        Other programs' files are passed over: without its last entry, a queue whose messages have
        all expired would begin anew. Apache's broker does not start with such a file.

        Args:
            mark: up to which position all entries are on the disk, None if unknown.

        Raises: StoreError if the files cannot have one size.
        """
        self._dirty.clear()
        for topic in self._storage.list_names(CONSUME_QUEUE_DIRECTORY):
            if not is_legal_name(topic):
                continue
            for name in self._storage.list_names(f"{CONSUME_QUEUE_DIRECTORY}/{topic}"):
                if not name.isascii() or not name.isdigit():
                    continue
                queue = ConsumeQueue(self._storage, topic, int(name), config=self._config)
                queue.files.open(passes_over=True)
                self.by_key[topic, int(name)] = queue
        synced_position = self._log.files.end if mark is None else mark.end_position
        file_size = self._find_file_size()
        for queue in self.by_key.values():
            queue.files.file_size = file_size
            queue.mend(synced_position)
        return file_size

    def _find_file_size(self) -> int:
        """Return the size with which the queues were begun, or the configured size.

        A broker of Apache's takes no queue with files of another size than its
        mappedFileSizeConsumeQueue, so a store keeps its first size. A crash may have cut files,
        usually at the end of a page: a size that was seen once counts only if it is another.
        """
        configured = self._config.consume_queue_file_size
        seen = Counter(size for queue in self.by_key.values() for size in queue.files.sizes())
        if configured in seen:
            return configured
        sizes = {
            size: count
            for size, count in seen.items()
            if size > 0
            and size % ENTRY_SIZE == 0
            and (count > 1 or (size > PAGE_BYTES and size % PAGE_BYTES))
        }
        return max(sizes, key=lambda size: (sizes[size], size), default=configured)

    def close(self) -> None:
        """Close the files and forget the queues."""
        for queue in self.by_key.values():
            queue.files.close()
        self.by_key.clear()

    # -- writing -------------------------------------------------------------------------------

    def append(self, items: Iterable[Dispatched]) -> set[QueueKey]:
        """Add the entries of messages, so that readers see the messages.

        Returns: the queues whose entries could not be written, as on a full disk; none of their
            entries were added.
        """
        entries: dict[QueueKey, bytearray] = {}
        for item in items:
            key = (item.topic, item.queue_id)
            if key in entries:
                entries[key] += item.entries
            else:
                entries[key] = bytearray(item.entries)
        left_out = set[QueueKey]()
        gathers = len(self._dirty) + len(entries) <= _GATHERING_QUEUES_MAX
        for key, added in entries.items():
            try:
                self.by_key[key].append(added, gathers=gathers)
            except OSError as error:
                self.write_error = _without_frames(error)
                left_out.add(key)
        if not (left_out or gathers):
            self.write_error = None
        self._dirty.update(entries)
        return left_out

    def note_changed(self, keys: Iterable[QueueKey]) -> None:
        """Mark queues with written or removed files to be synced; a queue may be gone by now."""
        self._dirty.update(keys)
        self._dirty.intersection_update(self.by_key)

    @property
    def is_dirty(self) -> bool:
        """Whether a queue has a change that is not on the disk."""
        return bool(self._dirty)

    def write_tails(self) -> None:
        """Write the entries that are gathered in memory.

        Raises: OSError; some queues' entries are written then, the others stay in memory.
        """
        try:
            for key in sorted(self._dirty):
                self.by_key[key].write_tail()
        except OSError as error:
            self.write_error = _without_frames(error)
            raise
        self.write_error = None

    def take_dirty(self) -> tuple[list[StorageFile], list[str]]:
        """Return the files and the directories to sync; call `write_tails` before."""
        found: list[StorageFile] = []
        directories: list[str] = []
        for key in sorted(self._dirty):
            queue = self.by_key[key]
            files, is_directory_dirty = queue.take_dirty()
            found += files
            if is_directory_dirty:
                directories.append(queue.files.directory)
        self._dirty.clear()
        return found, directories

    # -- reading -------------------------------------------------------------------------------

    def _find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Return a queue for a reader. Raises: OSError if the disk fails."""
        queue = self.by_key.get((topic, queue_id))
        if queue is not None and queue.log_begin != self._log.files.begin:
            queue.expire(self._log.files.begin)
        return queue

    def get(
        self,
        topic: str,
        queue_id: int,
        *,
        queue_offset: int,
        count_max: int,
        bytes_max: int,
        tags_codes: frozenset[int] | None = None,
    ) -> GetResult:
        """Return messages of a queue from an offset on; at least one, if there is one.

        Args:
            queue_offset: the first offset to return.
            count_max: the most messages.
            bytes_max: the most bytes, unless the first message alone has more.
            tags_codes: the codes of the messages to return; None for all messages.

        Raises: OSError if the disk fails.
        """
        queue = self._find(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        return read_messages(
            queue,
            self._log,
            queue_offset=queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            tags_codes=tags_codes,
        )

    def __iter__(self) -> Iterator[QueueKey]:
        """Iterate over the keys of all queues that have held messages, sorted."""
        return iter(sorted(self.by_key))

    def totals(self) -> dict[str, int]:
        """Return how many messages each topic has stored in all, for topics with messages."""
        totals: dict[str, int] = {}
        for (topic, _), queue in self.by_key.items():
            totals[topic] = totals.get(topic, 0) + queue.max_offset
        return totals

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the first message that is left; 0 for an unknown queue."""
        queue = self._find(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset after the last readable message; 0 for an unknown queue."""
        queue = self._find(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def entry(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """Return (position, size, tags code) of a readable message, None if there is none."""
        queue = self._find(topic, queue_id)
        return None if queue is None else queue.entry(offset)

    def tags_codes(self, topic: str, queue_id: int, offset: int, count: int) -> list[int]:
        """Return the tags codes of at most `count` readable messages from an offset on."""
        queue = self._find(topic, queue_id)
        data = b"" if queue is None else queue.read(offset, count)
        return [tags_code for _, _, tags_code in ENTRY.iter_unpack(data)]

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the offset of the message stored at a time, or nearest to it, as RocketMQ 4.9."""
        queue = self._find(topic, queue_id)
        return 0 if queue is None else find_offset_by_time(queue, self._log, timestamp_ms)

    def boundary(
        self, topic: str, queue_id: int, timestamp_ms: int, *, is_upper: bool = False
    ) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end.

        Args:
            is_upper: whether to return that of the last message stored at or before it instead.
        """
        queue = self._find(topic, queue_id)
        if queue is None:
            return 0
        return find_boundary(queue, self._log, timestamp_ms, is_upper=is_upper)

    def store_timestamp(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of a message, None if the message does not exist."""
        entry = self.entry(topic, queue_id, offset)
        return None if entry is None else read_store_timestamp(self._log, entry[0])

    def earliest_timestamp(self, topic: str, queue_id: int) -> int | None:
        """Return the store time of a queue's first message, None for an empty queue."""
        return self.store_timestamp(topic, queue_id, self.min_offset(topic, queue_id))


def _without_frames(error: OSError) -> OSError:
    """Return an error that can be kept: a traceback's frames would hold parts of the tails."""
    return OSError(*error.args)
