"""The message store: commit log, consume queues and index behind one face, over a `Storage`.

A message goes through three steps, each by a call of the owner:

1. `append` gathers the message, and `write` writes many gathered messages into the log; `put` does
   both.
2. `flush_work`, `FlushWork.run` (in any thread) and `flush_done` sync the log, many messages at a
   time.
3. `dispatch` adds the consume queue entries of readable messages; only then readers see them. The
   entries are written to their files some kilobytes at a time, or with the next checkpoint.

Readers of a queue call `queues`, readers of single records `records`; records with a key are found
here.

Under SYNC a message is readable once it is on the disk; under ASYNC, once it is written. Under SYNC
no reader therefore sees a message that a power cut could take back. The index is built later: in
calls of `build_index`, or with the next query.

A failed write leaves the store unchanged, and the next write may succeed. A failed *sync* makes the
store read-only until it is loaded again: the kernel may have dropped the pages, and a later sync
would report them as written. A sync that failed for want of descriptors or memory is repeated
instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace

from sparrowmq.errors import LocalProtocolError, StoreError, UsageError
from sparrowmq.protocol.headers import SendMessageRequestHeader
from sparrowmq.protocol.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_NONE,
    TRANSACTION_TYPE,
    Record,
    head_of,
)
from sparrowmq.store.checkpoint import Checkpoint, Mark, read_checkpoint
from sparrowmq.store.clean_stop import resume, write_stop
from sparrowmq.store.commit_log import CommitLog
from sparrowmq.store.config import ENTRY_SIZE, FlushMode, StoreConfig
from sparrowmq.store.consume_queue import ENTRY, ConsumeQueue, take_readable
from sparrowmq.store.expiry import Expiry, ExpiryWork
from sparrowmq.store.flush import FlushWork
from sparrowmq.store.key_search import compare_key
from sparrowmq.store.message_batch import (
    MessageBatch,
    PlacedBatch,
    encode_batch_records,
    encode_plain_batch,
    place_batch,
)
from sparrowmq.store.message_index import LAG_BYTES_MAX, MessageIndex
from sparrowmq.store.queue_reader import read_store_timestamp
from sparrowmq.store.queue_table import QueueTable
from sparrowmq.store.record_check import (
    BLANK_SIZE,
    CRC_PROPERTY_SIZE,
    TIMED_TOPICS,
    RecordChecker,
)
from sparrowmq.store.record_reader import RecordReader
from sparrowmq.store.recovery import Recovery, RecoveryReport
from sparrowmq.store.results import (
    Dispatched,
    PutResult,
    PutStatus,
    QueryResult,
    illegal,
    unwritten,
)
from sparrowmq.store.storage import (
    DiskSpace,
    Storage,
    StorageFile,
    has_no_room,
    is_shortage,
    passing_over_losses,
)
from sparrowmq.store.stored_record import (
    encode_plain,
    encode_stored,
    find_name_fault,
    stored_properties,
)

ABORT_PATH = "abort"
# This file is in every directory whose first message was stored by a version with expiry.
EXPIRING_PATH = "expiring"
# A checkpoint that finds no idle moment is written with the next flush after this many intervals.
_CHECKPOINT_OVERDUE_INTERVALS = 3
# How much of the log one call of `build_index` indexes: some 10 ms.
_INDEX_STEP_BYTES = 1 << 20
# How much of the log a query, or the close of a store, indexes: more than may wait.
_INDEX_REST_BYTES_MAX = 2 * LAG_BYTES_MAX
_PUT_OK = PutStatus.PUT_OK
_OK = PutResult(_PUT_OK)
# Records of other types are in no queue: half messages and rollbacks.
_QUEUED_TYPES = (TRANSACTION_NONE, TRANSACTION_COMMIT)


class MessageStore:
    """The messages of one broker.

    Attributes:
        queues: the consume queues, which hold what readers see.
        records: single records, by position and by queue offset.
        flushed_position: the position up to which the log is on the disk.
        put_timestamp_ms: the store time of the last message, 0 without any.
        dispatched_record_position: the position of the record that was made visible last, None
            before the first; each `dispatch` that makes a record visible changes it.
    """

    def __init__(self, storage: Storage, config: StoreConfig) -> None:
        self._storage = storage
        self._config = config
        self._is_sync = config.flush is FlushMode.SYNC
        self._checker = RecordChecker(config.delay_levels_ms)
        self._log = CommitLog(storage, config)
        self.queues = QueueTable(storage, config, self._log)
        self.records = RecordReader(
            self._log, self.queues, self._checker, readable_position=lambda: self.readable_position
        )
        self._index = MessageIndex(storage, config, self._log.files)
        self._expiry = Expiry(storage, self._log, self._index, self._checker)
        # Messages that were appended but are not in a consume queue yet, in the log's order.
        self._pending: deque[Dispatched] = deque()
        # The work that was returned and is not done; it may be returned again.
        self._work: FlushWork | None = None
        self._is_flushing = False
        # The error of the sync that made the store read-only.
        self.failure: Exception | None = None
        # Why no message is accepted for now; the owner sets it.
        self.refusal: str | None = None
        # The error of a failed write that `write` has not returned yet.
        self._unreported: OSError | None = None
        # The error of the last write to the log, None after a success.
        self.write_error: OSError | None = None
        # The end of the log at the last `dispatch`.
        self._seen_end = 0
        self._is_open = False
        self.flushed_position = 0
        self._checkpoint = Checkpoint()
        # The position up to which the queues' entries are synced.
        self._checkpointed_position = 0
        # Whether the oldest file cannot expire before a checkpoint; a checkpoint is then due at
        # once.
        self.expiry_waits = False
        self.put_timestamp_ms = 0
        self._dispatched_timestamp_ms = 0
        self.dispatched_record_position: int | None = None
        self._checkpoint_from_timestamp_ms = 0

    # -- opening and closing -------------------------------------------------------------------

    def load(self, *, timestamp_ms: int) -> RecoveryReport:
        """Lock the directory, recover, and make the store ready.

        Args:
            timestamp_ms: the wall-clock time from which the next checkpoint is counted.

        Raises: StoreError if the directory is in use, its files do not fit the settings, or the
            disk fails; CorruptRecord if the log has lost synced data in the middle.
        """
        if self._is_open:
            raise UsageError("the store is loaded already")
        self._storage.lock()
        try:
            report = self._recover(timestamp_ms)
        except BaseException as error:
            self._release()
            if not isinstance(error, OSError):
                raise
            hint = "; make room on the disk and start again" if has_no_room(error) else ""
            raise StoreError(f"the store cannot be loaded: {error}{hint}") from error
        self._is_open = True
        return report

    def _recover(self, timestamp_ms: int) -> RecoveryReport:
        self._log.files.load(repair=True, keeps_size=True)
        with passing_over_losses():
            self._checkpoint = read_checkpoint(self._storage)
        mark = self._checkpoint.mark
        self._config = replace(self._config, consume_queue_file_size=self.queues.load(mark))
        self._checker.checksummed_position = None if mark is None else mark.checksummed_position
        is_clean = not self._storage.has(ABORT_PATH)
        is_resumed = False
        if is_clean and not self._log.files.repaired:
            # Recovery finds what the disk has lost.
            with passing_over_losses():
                is_resumed = resume(
                    self._storage, self._checkpoint, self._log.files, self.queues.by_key
                )
        if is_resumed:
            report = self._resumed()
        else:
            report = Recovery(
                self._storage,
                self._config,
                self._checker,
                log=self._log,
                queues=self.queues.by_key,
                checkpoint=self._checkpoint,
                is_clean=is_clean,
            ).run()
        if not self._config.append_crc:
            self._checker.checksummed_position = None
        elif self._checker.checksummed_position is None:
            self._checker.checksummed_position = self._log.end
        self.flushed_position = self._log.end
        self.put_timestamp_ms = report.last_timestamp_ms or self._checkpoint.physic_timestamp_ms
        self._dispatched_timestamp_ms = self.put_timestamp_ms
        self.dispatched_record_position = report.last_record_position
        has_index = False
        with passing_over_losses():
            self._index.load(
                self._checkpoint.index,
                is_clean=report.is_clean,
                index_timestamp_ms=self._checkpoint.index_timestamp_ms,
                log_end=self._log.end,
                end_timestamp_ms=self.put_timestamp_ms,
            )
            has_index = True
        if not has_index:
            self._index.begin_anew()
        self.queues.note_changed(
            key
            for key, queue in self.queues.by_key.items()
            if queue.dirty_files or queue.is_directory_dirty
        )
        self._storage.create(ABORT_PATH, size=0, pinned=True).close()
        if not self._log.files.bases:
            self._storage.create(EXPIRING_PATH, size=0, pinned=True).close()
        self._expiry.ask_sweep(self.queues.by_key if self._log.files.begin > 0 else ())
        # The recovered state, and the mark with the flush mode of later entries, must be on the
        # disk before the first message is accepted.
        work = self._take_work(with_checkpoint=True)
        self._finish(work)
        self._checkpoint_from_timestamp_ms = timestamp_ms
        if work.index is not None:
            # Slots may name discarded entries until they are written.
            self._index.failure = work.index.error
        self._storage.sync_directory("")
        return report

    def _resumed(self) -> RecoveryReport:
        """Return the report of a start after a clean stop, and go on at its end."""
        mark = self._checkpoint.mark
        assert mark is not None
        self._log.set_end(mark.end_position)
        return RecoveryReport(
            is_clean=True,
            min_position=self._log.files.begin,
            max_position=mark.end_position,
            walked_from=mark.end_position,
            last_timestamp_ms=self._checkpoint.physic_timestamp_ms,
            last_record_position=mark.record_position,
        )

    def close(self) -> None:
        """Sync all files and release the directory.

        The stop counts as clean unless a sync has failed, messages remain without consume queue
        entries, or the index has entries that are not on the disk.

        Raises: StoreError if the disk fails; the directory is released in any case.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self.failure is None:
                self._log.write()
                if self._work is not None:
                    self._finish(self._work)
                self._finish(self._take_work(with_checkpoint=False))
                self.dispatch()
                self._index.build(self.readable_position, _INDEX_REST_BYTES_MAX)
                self.queues.write_tails()
                self._finish(self._take_work(with_checkpoint=True))
                if not (self._pending or self._index.failure or self._index.is_dirty):
                    write_stop(
                        self._storage,
                        read_checkpoint(self._storage),
                        self._log.files,
                        self.queues.by_key,
                        verify_bytes=self._config.verify_bytes,
                    )
                    self._storage.sync_directory("")
                    self._storage.remove(ABORT_PATH)
                    self._storage.sync_directory("")
        except OSError as error:
            raise StoreError(f"the store was not stopped cleanly: {error}") from error
        finally:
            self._release()

    def _finish(self, work: FlushWork) -> None:
        work.run()
        if work.checkpoint_error is not None:
            raise work.checkpoint_error
        self._note_synced(work)

    def _release(self) -> None:
        self._log.files.close()
        self.queues.close()
        self._index.close()
        self._storage.unlock()

    @property
    def log_file_size(self) -> int:
        """Bytes of each file of the log: a store keeps the size of its first file."""
        return self._log.files.file_size

    @property
    def is_writable(self) -> bool:
        """Whether messages are accepted."""
        return self._is_open and self.failure is None

    @property
    def obstacle(self) -> Exception | str | None:
        """Why messages were not stored at the last try, or are refused; None if they are stored."""
        return self.failure or self.refusal or self.write_error

    # -- writing -------------------------------------------------------------------------------

    def put(self, record: Record, *, timestamp_ms: int) -> PutResult:
        """Append one record and write it to the log."""
        if (error := self._write()) is not None:
            self._unreported = error
        result = self.append(record, timestamp_ms=timestamp_ms)
        if result.status is PutStatus.PUT_OK and (error := self._write()) is not None:
            return unwritten(error)
        return result

    def append(self, record: Record, *, timestamp_ms: int) -> PutResult:
        """Gather one record; the next `write` writes it into the log with others.

        The record's queue offset, position, store timestamp and size are filled in.

        Args:
            timestamp_ms: wall-clock time, the store timestamp.

        Returns: PUT_OK, or why the record was not accepted.
        """
        queue, refusal = self._queue_for(record.topic, record.queue_id)
        if queue is None:
            return refusal
        if len(record.body) > self._config.message_bytes_max:
            return illegal(f"a body of {len(record.body)} bytes")
        topic_field, append_crc = queue.topic_field, self._config.append_crc
        is_queued = record.sys_flag & TRANSACTION_TYPE in _QUEUED_TYPES
        end = self._log.end
        try:
            properties, has_crc = stored_properties(record, append_crc=append_crc)
            head, _ = head_of(record.born_host, record.store_host)
            size = head.size + len(record.body) + len(topic_field) + 2 + len(properties)
            if has_crc:
                size += CRC_PROPERTY_SIZE
            if size + BLANK_SIZE > self._log.files.file_size:
                return illegal(f"{size} bytes fit into no file of the log")
            position = self._log.reserve(size)
            record.queue_offset = queue.next_offset if is_queued else 0
            record.position = position
            record.store_timestamp_ms = timestamp_ms
            record.size = size
            self._log.append(encode_stored(record, topic_field, properties, has_crc=has_crc))
        except LocalProtocolError as error:
            return illegal(str(error))
        except OSError as error:
            return self._failed_to_write(error, end)
        placed = None
        if is_queued:
            topic, queue_id, offset = queue.topic, queue.queue_id, queue.next_offset + 1
            code = self._checker.tags_code(topic, record.properties, timestamp_ms)
            entry = ENTRY.pack(position, size, code)
            placed = Dispatched(
                topic, queue_id, offset, (code,), timestamp_ms, position, position, entry
            )
        return self._placed(queue, placed, (position,), timestamp_ms)

    def append_plain(
        self,
        header: SendMessageRequestHeader,
        body: bytes,
        properties: str,
        *,
        born_host: bytes,
        store_host: bytes,
        timestamp_ms: int,
    ) -> PutResult | None:
        """Gather a message as `append` does, with fewer steps and properties in stored form.

        Returns: None if the message needs `append`: if it begins a queue or a file, has a checksum
            or nearly too long properties, or cannot be accepted; nothing has changed then.
        """
        topic, queue_id, log = header.topic, header.queue_id, self._log
        queue = self.queues.by_key.get((topic, queue_id))
        if (
            queue is None
            or not self._config.append_crc
            or self.failure is not None
            or self.refusal is not None
            or self._unreported is not None
            or not self._is_open
            or len(body) > self._config.message_bytes_max
        ):
            return None
        position, queue_offset = log.end, queue.next_offset
        found = encode_plain(
            header,
            body,
            properties,
            topic_field=queue.topic_field,
            born_host=born_host,
            store_host=store_host,
            timestamp_ms=timestamp_ms,
            position=position,
            queue_offset=queue_offset,
        )
        if found is None or not log.has_room(size := len(found[0])):
            return None
        data, code = found
        log.append(data)
        if code is None or topic in TIMED_TOPICS:
            code = self._checker.tags_code(topic, properties, timestamp_ms)
        entry = ENTRY.pack(position, size, code)
        next_offset = queue.next_offset = queue_offset + 1
        self.put_timestamp_ms = timestamp_ms
        self._pending.append(
            Dispatched(
                topic, queue_id, next_offset, (code,), timestamp_ms, position, position, entry
            )
        )
        return PutResult(_PUT_OK, position, position + size, queue_offset, (position,))

    def append_plain_batch(
        self, batch: MessageBatch, body: bytes, *, count_max: int
    ) -> PutResult | None:
        """Gather a batch as `append_batch` does, by the extension in C (`encode_plain_batch`).

        Returns: None if the batch needs `append_batch`; nothing has changed then.
        """
        queue, _ = self._queue_for(batch.topic, batch.queue_id)
        if queue is None or not self._config.append_crc:
            return None
        found = encode_plain_batch(
            batch,
            body,
            topic_field=queue.topic_field,
            position=self._log.end,
            queue_offset=queue.next_offset,
            count_max=count_max,
        )
        if found is None or not self._log.fits(len(found.data)):
            return None
        return self._append_placed(queue, found, batch.store_timestamp_ms)

    def _append_placed(
        self, queue: ConsumeQueue, found: PlacedBatch, timestamp_ms: int
    ) -> PutResult:
        end = self._log.end
        try:
            self._log.append(found.data)
        except OSError as error:
            return self._failed_to_write(error, end)
        placed = Dispatched(
            queue.topic,
            queue.queue_id,
            queue.next_offset + len(found.positions),
            found.tags_codes,
            timestamp_ms,
            found.positions[0],
            found.positions[-1],
            found.entries,
        )
        return self._placed(queue, placed, found.positions, timestamp_ms)

    def append_batch(self, batch: MessageBatch) -> PutResult:
        """Gather the messages of a batch as `append` does; the messages stay together."""
        timestamp_ms = batch.store_timestamp_ms
        queue, refusal = self._queue_for(batch.topic, batch.queue_id)
        if queue is None:
            return refusal
        topic, end = batch.topic, self._log.end
        try:
            encoded = encode_batch_records(
                batch, topic_field=queue.topic_field, append_crc=self._config.append_crc
            )
            total = encoded.size
            if total + BLANK_SIZE > self._log.files.file_size:
                return illegal(f"{total} bytes fit into no file of the log")
            found = place_batch(
                batch,
                encoded,
                position=self._log.reserve(total),
                queue_offset=queue.next_offset,
                tags_code=lambda text: self._checker.tags_code(topic, text, timestamp_ms),
            )
        except LocalProtocolError as error:
            return illegal(str(error))
        except OSError as error:
            return self._failed_to_write(error, end)
        return self._append_placed(queue, found, timestamp_ms)

    def _queue_for(self, topic: str, queue_id: int) -> tuple[ConsumeQueue | None, PutResult]:
        """Return the queue, perhaps a new one, or why no message can be put into it."""
        queue = self.queues.by_key.get((topic, queue_id))
        if not self._is_open or self.failure is not None or self.refusal is not None:
            remark = f"the store takes no messages: {self.failure or self.refusal or 'closed'}"
            return None, PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=remark)
        if self._unreported is not None:
            # The senders of lost messages must get the error first, since their positions are
            # reused.
            return None, unwritten(self._unreported)
        if queue is None:
            if (fault := find_name_fault(topic, queue_id)) is not None:
                return None, illegal(fault)
            queue = ConsumeQueue(self._storage, topic, queue_id, config=self._config)
        return queue, _OK

    def _placed(
        self,
        queue: ConsumeQueue,
        placed: Dispatched | None,
        positions: tuple[int, ...],
        timestamp_ms: int,
    ) -> PutResult:
        """Note records that are in the log now; this step cannot fail."""
        self.put_timestamp_ms = timestamp_ms
        queue_offset = 0
        if placed is not None:
            self.queues.by_key[queue.topic, queue.queue_id] = queue
            self._pending.append(placed)
            queue_offset, queue.next_offset = queue.next_offset, placed.next_offset
        return PutResult(PutStatus.PUT_OK, positions[0], self._log.end, queue_offset, positions)

    @property
    def written_position(self) -> int:
        """The position up to which the log is written."""
        return self._log.written

    def write(self) -> PutResult:
        """Write the gathered messages.

        Returns: PUT_OK, or the reason of a failure, also of an earlier write during `append`. After
        a failure all messages appended after `written_position` are lost.
        """
        error = self._write() or self._unreported
        self._unreported = None
        return _OK if error is None else unwritten(error)

    def _write(self) -> OSError | None:
        written = self._log.written
        try:
            self._log.write()
        except OSError as error:
            self.write_error = error
            self._take_back()
            return error
        if self.write_error is not None and self._log.written > written:
            self.write_error = None
        return None

    def _failed_to_write(self, error: OSError, end: int) -> PutResult:
        """Refuse a message; gathered messages before it, up to `end`, may be lost as well."""
        self.write_error = error
        if self._log.end < end:
            self._unreported = error
        self._take_back()
        return unwritten(error)

    def _take_back(self) -> None:
        """Forget the queue entries of records that are not part of the log."""
        pending = self._pending
        while pending and pending[-1].position >= self._log.end:
            item = pending.pop()
            queue = self.queues.by_key[item.topic, item.queue_id]
            queue.next_offset = item.next_offset - len(item.entries) // ENTRY_SIZE
            if queue.next_offset == queue.max_offset == 0:
                del self.queues.by_key[item.topic, item.queue_id]

    # -- flushing ------------------------------------------------------------------------------

    @property
    def appended_position(self) -> int:
        """The end of the log, gathered messages included."""
        return self._log.end

    def flush_work(self) -> FlushWork | None:
        """Return the files to sync, None if nothing is new or the last work is under way.

        At intervals the work is, or includes, a checkpoint, if possible at a moment without waiting
        messages.
        """
        if self._is_flushing or not self.is_writable:
            return None
        if (error := self._write()) is not None:
            self._unreported = error
        if self._work is None:
            self._work = self._next_work()
        self._is_flushing = self._work is not None
        return self._work

    def _next_work(self) -> FlushWork | None:
        has_log = self._log.end > self.flushed_position
        age_ms = self.put_timestamp_ms - self._checkpoint_from_timestamp_ms
        interval_ms = self._config.checkpoint_interval_ms
        if has_log:
            interval_ms *= _CHECKPOINT_OVERDUE_INTERVALS
        # A clock that was set back makes the age negative.
        is_old = not 0 <= age_ms < interval_ms
        is_due = self.expiry_waits or (is_old and (self.queues.is_dirty or self._index.is_dirty))
        if is_due:
            try:
                self.queues.write_tails()
            except OSError:
                is_due = False
        return self._take_work(with_checkpoint=is_due) if has_log or is_due else None

    def flush_done(self, work: FlushWork, error: Exception | None) -> None:
        """Process the outcome of `work.run()`.

        After a shortage of descriptors, memory or threads, the next `flush_work` returns the same
        work. Any other error makes the store read-only.
        """
        if work is not self._work or not self._is_flushing:
            raise UsageError("this flush is not the one under way")
        self._is_flushing = False
        if error is not None and is_shortage(error):
            return
        self._work = None
        if error is not None:
            self.failure = error
            return
        self._note_synced(work)

    def _note_synced(self, work: FlushWork) -> None:
        self.flushed_position = work.end_position
        if work.index is not None:
            self._index.flush_done(work.index)
        checkpoint = work.checkpoint if work.checkpoint_error is None else None
        if checkpoint is not None and checkpoint.mark is not None:
            self._checkpointed_position = checkpoint.mark.end_position

    def _take_work(self, *, with_checkpoint: bool) -> FlushWork:
        log_files, is_log_directory_dirty = self._log.take_dirty()
        directories = [self._log.files.directory] if is_log_directory_dirty else []
        queue_files: list[StorageFile] = []
        checkpoint = index = None
        if with_checkpoint:
            queue_files, queue_directories = self.queues.take_dirty()
            directories += queue_directories
            index = self._index.take_flush()
            checkpoint = self._checkpoint = self._next_checkpoint()
            self.expiry_waits = False
            self._checkpoint_from_timestamp_ms = self.put_timestamp_ms
        return FlushWork(
            storage=self._storage,
            end_position=self._log.end,
            log_files=log_files,
            queue_files=tuple(queue_files),
            directories=tuple(directories),
            index=index,
            checkpoint=checkpoint,
        )

    def _next_checkpoint(self) -> Checkpoint:
        """Return the checkpoint that is true once all bytes written so far are synced."""
        return Checkpoint(
            physic_timestamp_ms=self.put_timestamp_ms,
            logics_timestamp_ms=self._dispatched_timestamp_ms,
            index_timestamp_ms=self._checkpoint.index_timestamp_ms,
            mark=Mark(
                self.dispatched_record_position,
                self._indexable_position,
                self._is_sync,
                self._checker.checksummed_position,
            ),
        ).with_index(self._index.mark)

    # -- making visible ------------------------------------------------------------------------

    @property
    def readable_position(self) -> int:
        """The position up to which readers may see the log."""
        return self.flushed_position if self._is_sync else self._log.written

    @property
    def awaits_dispatch(self) -> bool:
        """Whether messages were appended, or a write failed, since the last `dispatch`."""
        return self._log.end != self._seen_end or self._unreported is not None

    def dispatch(self) -> list[Dispatched]:
        """Show all readable messages in the consume queues; return them in the log's order.

        A queue whose entries cannot be written, as on a full disk, is left to the next call.
        """
        self._seen_end = self._log.end
        ready = take_readable(self._pending, self.readable_position)
        if not ready:
            return []
        if left_out := self.queues.append(ready):
            left = [d for d in ready if (d.topic, d.queue_id) in left_out]
            self._pending.extendleft(reversed(left))
            ready = [d for d in ready if (d.topic, d.queue_id) not in left_out]
        if ready:
            self._dispatched_timestamp_ms = ready[-1].store_timestamp_ms
            self.dispatched_record_position = ready[-1].last_position
            end = self._indexable_position
            if end - self._index.built_position > LAG_BYTES_MAX:
                # Twice the size of the new messages, so that a lagging index catches up.
                self._index.build(end, 2 * (end - ready[0].position))
        return ready

    # -- records by key ------------------------------------------------------------------------

    def build_index(self) -> None:
        """Index a little more of the log; call it in idle moments."""
        if self.is_writable:
            self._index.build(self._indexable_position, _INDEX_STEP_BYTES)

    @property
    def index_failure(self) -> OSError | None:
        """Why no message is indexed until the store is loaded again, None without a failure."""
        return self._index.failure

    @property
    def _indexable_position(self) -> int:
        """The position up to which all records have their consume queue entries."""
        return self._pending[0].position if self._pending else self.readable_position

    def query(
        self,
        topic: str,
        key: str,
        *,
        count_max: int,
        bytes_max: int,
        begin_timestamp_ms: int,
        end_timestamp_ms: int,
    ) -> Generator[None, None, QueryResult]:
        """Return the latest messages of a topic with a key, in the log's order.

        The search yields at points where other work may run. It ends after `COMPARED_BYTES_MAX` of
        records (`key_search.py`). Differs from RocketMQ: there the latest messages of the key's
        hash are the answer, and the caller compares, so that messages with other keys of this hash
        hide older ones.

        Args:
            key: the id that the producer set (UNIQ_KEY), or one of KEYS.
            count_max: the most messages.
            bytes_max: the most bytes, unless the latest message alone has more.
            begin_timestamp_ms: the earliest store time.
            end_timestamp_ms: the latest.

        Raises: OSError if the disk fails.
        """
        limit = self._indexable_position
        if self.is_writable:
            self._index.build(limit, _INDEX_REST_BYTES_MAX)
        unindexed_bytes = max(0, limit - self._index.built_position)
        if unindexed_bytes:
            return QueryResult(unindexed_bytes=unindexed_bytes, failure=self.index_failure)
        last = self._index.last_header
        positions = self._index.find(
            topic, key, begin_ms=begin_timestamp_ms, end_ms=end_timestamp_ms
        )
        compared = yield from compare_key(
            positions, self.records.read, topic, key, count_max=count_max, bytes_max=bytes_max
        )
        lost = [position for position in compared.lost if position >= self._log.files.begin]
        for position in lost:
            self.records.note_lost(position)
        records = b"".join(data for _, data in sorted(compared.found.items()))
        reached = last.end_timestamp_ms, last.end_position
        return QueryResult(records, *reached, is_cut=compared.is_cut, lost_count=len(lost))

    # -- expiry --------------------------------------------------------------------------------

    @property
    def is_expiring(self) -> bool:
        """Whether a version with expiry stored the directory's first message."""
        return self._storage.has(EXPIRING_PATH)

    def disk_space(self) -> DiskSpace:
        """Return the disk's size and its used part. Raises: OSError."""
        return self._storage.disk_space()

    def expire(
        self,
        *,
        before_timestamp_ms: int | None,
        files_max: int,
        reason: str,
        timestamp_ms: int,
    ) -> ExpiryWork | None:
        """Forget the oldest files of the log; return the work that removes them, None for none.

        The messages of these files cannot be read from now on. The arguments are those of
        `Expiry.take`.

        Raises: OSError if the disk fails.
        """
        if not self.is_writable:
            return None
        work = self._expiry.take(
            # A lost entry is made again from its record, and a queue's last entry determines its
            # next offset. No record may therefore be removed before its entry is on the disk.
            limit=self._checkpointed_position,
            before_timestamp_ms=before_timestamp_ms,
            files_max=files_max,
            reason=reason,
            timestamp_ms=timestamp_ms,
        )
        if work is not None:
            self.ask_sweep()
        else:
            bases = self._log.files.bases
            is_whole = len(bases) > 1 and bases[1] <= self.flushed_position
            self.expiry_waits = is_whole and bases[1] > self._checkpointed_position
        return work

    def ask_sweep(self) -> None:
        """Note all queues for the next calls of `sweep`."""
        self._expiry.ask_sweep(self.queues.by_key)

    def sweep(self, count_max: int, *, has_topic: Callable[[str], bool]) -> None:
        """Remove expired files of at most `count_max` queues; none while queues are synced.

        Args:
            has_topic: returns whether a topic's queues stay even without messages.
        """
        is_syncing = self._work is not None and self._work.checkpoint is not None
        if is_syncing or self._expiry.is_swept or not self.is_writable:
            return
        swept = self._expiry.sweep(self.queues.by_key, count_max=count_max, has_topic=has_topic)
        self.queues.note_changed(swept)

    @property
    def begin_position(self) -> int:
        """The position at which the log begins."""
        return self._log.files.begin

    @property
    def begin_timestamp_ms(self) -> int | None:
        """The store time of the first message in the log, None without any. Raises: OSError."""
        return read_store_timestamp(self._log, self._log.files.begin) or None

    @property
    def dispatch_behind_bytes(self) -> int:
        """The bytes of the log that readers do not see yet."""
        return self._log.end - self._indexable_position
