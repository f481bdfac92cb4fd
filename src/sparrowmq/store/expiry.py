"""Remove expired messages: the log's oldest files, and the entries that point into them.

Messages expire when the log loses a file. The log loses whole files, the oldest first, never the
file that is written to. A file is removed only if the entries of its messages are on the disk,
because a queue's last entry determines its next offset. The order of the steps makes a power cut
harmless at any point:

1. The store forgets a file. From then on no reader reads the file, and each queue moves its
   `min_offset` before it answers.
2. `ExpiryWork` removes the file, and syncs the directory before it removes the next file, so that
   the log never has a gap. Index files that point only into removed files are removed as well.
3. A sweep over the queues, some of them in each call, removes the files of entries of expired
   messages, up to the last of these entries: it is on the disk, and determines the next offset if
   the queue loses all later ones. A queue of a deleted topic is removed as a whole once all its
   messages have expired. An earlier removal would let its offsets begin anew, and they would
   contradict records that the log still has. No queue is therefore swept while step 2 is not done.

After a crash between these steps recovery finds entries of records before the log's beginning, and
ignores them. The removals of step 3 are synced with the next checkpoint, and a power cut may undo
any of them: `ConsumeQueue.mend` closes the gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from sparrowmq.store.commit_log import CommitLog
from sparrowmq.store.consume_queue import CONSUME_QUEUE_DIRECTORY, ConsumeQueue
from sparrowmq.store.log_scan import LogScan
from sparrowmq.store.message_index import MessageIndex
from sparrowmq.store.record_check import RecordChecker
from sparrowmq.store.recovery import QueueKey
from sparrowmq.store.storage import Storage, is_lost, parent_directory


@dataclass(slots=True, kw_only=True)
class ExpiryWork:
    """Files to remove, in this order. `run` may be called in another thread.

    Args:
        position: the log's beginning without the files.
        reason: why the files are removed, for the server's log.

    Attributes:
        is_done: whether the disk has none of the files any more.
    """

    storage: Storage
    paths: tuple[str, ...]
    position: int
    reason: str
    is_done: bool = field(default=False, init=False)

    def run(self) -> None:
        """Remove the files; block until the removals are on the disk.

        Raises: OSError; `run` may be called again.
        """
        for path in self.paths:
            self.storage.remove(path)
            self.storage.sync_directory(parent_directory(path))
        self.is_done = True


class Expiry:
    """Finds the expired files of one store.

    Args:
        storage: the store's storage.
        log: the store's log.
        index: the store's index.
        checker: checks the records by whose times files expire.
    """

    def __init__(
        self, storage: Storage, log: CommitLog, index: MessageIndex, checker: RecordChecker
    ) -> None:
        self._storage = storage
        self._log = log
        self._index = index
        self._checker = checker
        self._unswept: list[QueueKey] = []
        # The last work that was returned.
        self._work: ExpiryWork | None = None

    def take(
        self,
        *,
        limit: int,
        before_timestamp_ms: int | None,
        files_max: int,
        reason: str,
        timestamp_ms: int,
    ) -> ExpiryWork | None:
        """Forget the oldest files; return the work that removes them, None without any.

        Args:
            limit: files that end after this position stay.
            before_timestamp_ms: only files with all messages stored before this wall-clock time are
                removed; None removes files of any age.
            files_max: the most files of the log.
            reason: the reason that the work names.
            timestamp_ms: the wall clock; a later store time is not believed.

        Raises: OSError if the disk fails.
        """
        files = self._log.files
        if before_timestamp_ms is None:
            count = sum(base <= limit for base in files.bases[1:])
        else:
            count = self._count_older(limit, before_timestamp_ms, files_max, timestamp_ms)
        paths = [files.pop_first() for _ in range(min(count, files_max))]
        paths += self._index.take_before(files.begin)
        if not paths:
            return None
        self._work = ExpiryWork(
            storage=self._storage, paths=tuple(paths), position=files.begin, reason=reason
        )
        return self._work

    def _count_older(
        self, limit: int, before_timestamp_ms: int, files_max: int, timestamp_ms: int
    ) -> int:
        """Return how many of the first files have only messages stored before a time, if few do.

        Messages are stored in the order of time: the first message of a file is younger than all
        messages of the files before it. A damaged one says nothing. Neither does one whose time is
        before that of an earlier file, or is not yet: the clock was wrong, as of a machine that
        starts without the time, and the messages before it may be young.
        """
        scan, count, latest_ms = LogScan(self._log.files, self._checker), 0, 0
        loss: OSError | None = None
        for at, base in enumerate(self._log.files.bases):
            if count >= files_max or (at > 0 and base > limit):
                break
            try:
                first = scan.record_at(base)
            except OSError as error:
                if not is_lost(error):
                    raise
                # Without the first file's time, the times of the later files still decide.
                if at > 0:
                    loss = error
                continue
            if first is None or not latest_ms <= first.store_timestamp_ms <= timestamp_ms:
                continue
            if first.store_timestamp_ms >= before_timestamp_ms:
                break
            latest_ms, count = first.store_timestamp_ms, at
        if loss is not None and count == 0:
            raise loss
        return count

    def ask_sweep(self, keys: Collection[QueueKey]) -> None:
        """Note these queues for the next sweeps."""
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
        """Remove expired files of some queues; return the queues that lost files.

        Nothing is removed while the disk may have the log's expired files. A file of a queue that
        the disk does not remove stays until the next sweep.

        Args:
            queues: all queues; a queue of a deleted topic is removed from them.
            count_max: the number of queues to sweep.
            has_topic: returns whether a topic's queues stay even without messages.
        """
        changed: list[QueueKey] = []
        if self._work is not None and not self._work.is_done:
            return changed
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
