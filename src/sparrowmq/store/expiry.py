"""Letting go of old messages: files of the log from its front, and what points there.

The log loses whole files, the oldest first, never the one it is written to. That is what makes
messages expire; everything else follows. Only files go whose messages have their entries on the
disk: from these a queue knows which offset comes next. The order makes a power cut harmless at any
point:

1. The store forgets a file; from then on nobody reads it, and each queue that is asked for moves
   its `min_offset` before it answers.
2. `ExpiryWork` removes the file, and syncs the directory before it removes the next one, so that
   the log never has a gap. The files of the index that lead nowhere else go with it.
3. A sweep over the queues, some of them in each call, removes the files of entries of expired
   messages. A queue keeps its last entry, which says which offset comes next. A queue whose topic
   was deleted goes as a whole once all its messages have expired; not before, as offsets that begin
   anew would contradict records that the log still has.

After a crash between these steps recovery finds entries of records before the log's beginning,
which stand for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from sparrowmq.store.commit_log import CommitLog
from sparrowmq.store.consume_queue import CONSUME_QUEUE_DIRECTORY, ConsumeQueue
from sparrowmq.store.message_index import MessageIndex
from sparrowmq.store.queue_reader import read_store_timestamp
from sparrowmq.store.recovery import QueueKey
from sparrowmq.store.storage import Storage, parent_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryWork:
    """Files to remove, in this order. `run` may be called in another thread.

    Args:
        storage: where they are.
        paths: the files.
        position: where the log begins without them.
        reason: why they go, for the log of the server.
    """

    storage: Storage
    paths: tuple[str, ...]
    position: int
    reason: str

    def run(self) -> None:
        """Remove the files; blocks until the disk has forgotten them.

        Raises: OSError; it may be run again.
        """
        for path in self.paths:
            self.storage.remove(path)
            self.storage.sync_directory(parent_directory(path))


class Expiry:
    """What of one store has expired.

    Args:
        storage: where it is kept.
        log: the log.
        index: the index.
    """

    def __init__(self, storage: Storage, log: CommitLog, index: MessageIndex) -> None:
        self._storage = storage
        self._log = log
        self._index = index
        self._unswept: list[QueueKey] = []

    def take(
        self, *, limit: int, before_timestamp_ms: int | None, files_max: int, reason: str
    ) -> ExpiryWork | None:
        """Forget the oldest files; returns the work that removes them, None without any.

        Args:
            limit: files that end behind this position stay.
            before_timestamp_ms: files go whose messages were all stored before this wall-clock
                time; None for whatever time.
            files_max: the most files of the log.
            reason: for the work.

        Raises: OSError if the disk fails.
        """
        files = self._log.files
        paths: list[str] = []
        while len(paths) < files_max and len(files.bases) > 1 and files.bases[1] <= limit:
            # Messages are stored in the order of time: the next file's first is younger than all.
            next_timestamp_ms = read_store_timestamp(self._log, files.bases[1])
            if not next_timestamp_ms:
                break
            if before_timestamp_ms is not None and next_timestamp_ms >= before_timestamp_ms:
                break
            paths.append(files.pop_first())
        paths += self._index.take_before(files.begin)
        if not paths:
            return None
        return ExpiryWork(
            storage=self._storage, paths=tuple(paths), position=files.begin, reason=reason
        )

    def ask_sweep(self, keys: Collection[QueueKey]) -> None:
        """Have these queues swept."""
        self._unswept = list(keys)

    @property
    def is_swept(self) -> bool:
        """Whether no queue waits to be swept."""
        return not self._unswept

    def sweep(
        self,
        queues: dict[QueueKey, ConsumeQueue],
        *,
        count_max: int,
        has_topic: Callable[[str], bool],
    ) -> list[QueueKey]:
        """Remove what has expired of some queues; returns those of which files went.

        A file that the disk does not remove stays until the next sweep.

        Args:
            queues: all queues; those are removed whose topic is gone.
            count_max: how many to look at.
            has_topic: says whether a topic's queues stay though they have no message.
        """
        changed: list[QueueKey] = []
        for _ in range(min(count_max, len(self._unswept))):
            key = self._unswept.pop()
            queue = queues.get(key)
            if queue is None:
                continue
            try:
                queue.expire(self._log.files.begin)
                if queue.min_offset == queue.next_offset and not has_topic(queue.topic):
                    changed.append(key)
                    self._drop(queue)
                    del queues[key]
                elif queue.has_expired_files:
                    changed.append(key)
                    queue.remove_expired_files()
            except OSError:
                continue
        return changed

    def _drop(self, queue: ConsumeQueue) -> None:
        while queue.files.bases:
            queue.files.remove_first()
        self._storage.remove_directory(queue.files.directory)
        self._storage.remove_directory(f"{CONSUME_QUEUE_DIRECTORY}/{queue.topic}")
