"""Recovery: make log and consume queues agree after a stop, clean or not.

The log is the truth. Recovery walks the log from a safe place to the first bytes that are not
a record, and ends the log there. Then every consume queue gets exactly the entries that the log
implies.

After a clean stop of a SparrowMQ store (`clean_stop`) no recovery is needed.

*Where the walk begins.* The checkpoint's mark is the position up to which log and queues were
synced; a part before the mark is still walked again. Without a mark of ours Apache's rule applies:
after a clean stop the last three files are walked, otherwise all from the last file whose first
record is older than the checkpoint. Records before the walk are not read. The queues' entries of
these records must be sound and add up (`queue_check`); if they do not, the walk begins there.

*What a bad record means.* If no valid record follows, the bad record is the torn end of the last
write. Its bytes are cut off, zeroed and synced before any message is served, so that they can never
come back as a record. If valid records follow and the bad record had surely been synced, the disk
has lost acknowledged data, and the store refuses to start: it does not drop the records that
follow. If valid records follow and the bad record was not surely synced, a power cut kept a later
sector and lost an earlier one. None of these records was acknowledged, and they are cut off.

*What was surely synced.* All records before the checkpoint's mark were surely synced. If the mark
has `is_dispatch_synced`, all records before a record with a consume queue entry were synced too. Of
a log that Apache wrote, all records count as synced.

*What a lost file means.* A file that is missing or cut before the walk's start is closed where the
queues' entries end, and the report names it. Later starts pass over it, and its messages keep their
offsets, at which readers find no record. Closer to the log's end it is a bad record.

Differs from RocketMQ: Apache cuts at the first bad record whatever follows it, moves pointers in
memory only, and believes the entries of consume queues.
Tests: test_torn_tail.py, test_power_cut.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from sparrowmq.errors import CorruptRecord
from sparrowmq.protocol.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SIZE_AND_MAGIC, head_layout
from sparrowmq.store.checkpoint import Checkpoint, Mark
from sparrowmq.store.commit_log import CommitLog
from sparrowmq.store.config import ENTRY_SIZE, StoreConfig
from sparrowmq.store.consume_queue import (
    ENTRY,
    ConsumeQueue,
    filler_entries,
)
from sparrowmq.store.log_scan import LogScan
from sparrowmq.store.queue_check import QueueCheck, check_queue
from sparrowmq.store.record_check import BLANK_SIZE, CheckedRecord, RecordChecker
from sparrowmq.store.storage import Storage, passing_over_losses

QueueKey = tuple[str, int]
# CommitLog.recoverNormally begins at the third-last file.
_FILES_WALKED = 3
# The most queues that a report of lost messages names.
_QUEUES_NAMED_MAX = 20
_MAGIC_AND_TIMESTAMP = head_layout("magic", "sys_flag", "store_timestamp")


class LostFile(NamedTuple):
    """A file of the log that is missing or cut.

    Args:
        offsets: the queues with messages in the file: the first one's offset, and that after the
            last one.
    """

    path: str
    offsets: tuple[tuple[QueueKey, int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The findings and the changes of a start.

    Args:
        is_clean: whether the last stop was clean.
        min_position: the log's beginning.
        max_position: the log's end.
        walked_from: the position at which the walk of the log began.
        record_count: how many records were checked.
        last_timestamp_ms: the store time of the last checked record, 0 without any; after a clean
            stop the store time of the last record.
        last_record_position: the position of that record, None without any.
        is_torn: whether bytes were cut off after the last whole record.
        lost_synced_bytes: how many of these bytes had surely been synced. Not 0 means that the disk
            has lost acknowledged data at the log's end.
        lost_messages: the number of lost messages of each queue, as far as entries show it.
        lost_files: files of the log that have zeros in the place of their messages.
        rewritten_queues: the consume queues whose entries differed from what the log implies.
        conflict_count: records whose queue offset an earlier record has; the earlier one counts.
    """

    is_clean: bool
    min_position: int
    max_position: int
    walked_from: int
    record_count: int = 0
    last_timestamp_ms: int
    last_record_position: int | None
    is_torn: bool = False
    lost_synced_bytes: int = 0
    lost_messages: tuple[tuple[QueueKey, int], ...] = ()
    lost_files: tuple[LostFile, ...] = ()
    rewritten_queues: tuple[QueueKey, ...] = ()
    conflict_count: int = 0

    def describe(self) -> str:
        """Return the findings and the changes as one line."""
        parts = [
            f"log from {self.min_position} to {self.max_position}",
            "stopped cleanly" if self.is_clean else "not stopped cleanly",
            f"{self.record_count} records checked from {self.walked_from} on",
        ]
        if self.is_torn:
            parts.append("a torn end was cut off")
        if self.rewritten_queues:
            parts.append(f"{len(self.rewritten_queues)} queues were brought up to date")
        return ", ".join(parts)

    def describe_loss(self) -> str | None:
        """Return the lost messages as text, None if no message was lost."""
        losses: list[str] = []
        if self.lost_synced_bytes:
            queues = [f"{topic}:{queue} {count}" for (topic, queue), count in self.lost_messages]
            losses.append(
                f"the log is damaged at position {self.max_position} and was cut off there: "
                f"at least {self.lost_synced_bytes} bytes that had been synced are lost; "
                f"messages lost by their queues' entries: "
                f"{sum(count for _, count in self.lost_messages)} ({_name_some(queues)})"
            )
        for path, offsets in self.lost_files:
            queues = [f"{topic}:{queue} {at} to {end - 1}" for (topic, queue), at, end in offsets]
            losses.append(
                f"{path} of the log was missing or cut, and its messages are lost; their queues "
                f"and offsets: {_name_some(queues)}"
            )
        if self.conflict_count:
            losses.append(
                f"{self.conflict_count} records have the queue offset of an earlier record, and "
                "cannot be read"
            )
        if not losses:
            return None
        return f"{'; '.join(losses)}; restore the store from a copy if they are needed"


def _name_some(queues: list[str]) -> str:
    """Return the first queues of a list as text."""
    if len(queues) > _QUEUES_NAMED_MAX:
        queues[_QUEUES_NAMED_MAX:] = [f"{len(queues) - _QUEUES_NAMED_MAX} queues more"]
    return ", ".join(queues) or "none"


@dataclass(slots=True)
class _Rebuilt:
    """The entries that the walked part of the log implies for one queue."""

    begin: int
    entries: bytearray = field(default_factory=bytearray)

    @property
    def end(self) -> int:
        return self.begin + len(self.entries) // ENTRY_SIZE


class _MissingEntries(Exception):
    """A queue lacks entries of records before the place where the walk began."""


class Recovery:
    """One recovery, of a log and its queues.

    Args:
        storage: the storage of the log and the queues.
        config: the store's settings.
        log: the log, with its files loaded.
        queues: the consume queues, with their files loaded; queues are added and changed.
        is_clean: whether the last stop was clean.
    """

    def __init__(
        self,
        storage: Storage,
        config: StoreConfig,
        checker: RecordChecker,
        *,
        log: CommitLog,
        queues: dict[QueueKey, ConsumeQueue],
        checkpoint: Checkpoint,
        is_clean: bool,
    ) -> None:
        self._storage = storage
        self._config = config
        self._log = log
        self._files = log.files
        self._queues = queues
        self._checkpoint = checkpoint
        self._is_clean = is_clean
        self._scan = LogScan(log.files, checker)
        self._checks: dict[QueueKey, QueueCheck] = {}
        self._rebuilt: dict[QueueKey, _Rebuilt] = {}
        self._last: CheckedRecord | None = None
        self._record_count = 0
        self._conflict_count = 0

    def run(self) -> RecoveryReport:
        """Recover: make log and queues agree; they may be served once they are synced.

        Raises: CorruptRecord; OSError.
        """
        bound = self._choose_bound()
        self._check_queues(bound)
        lost_files = self._close_repaired(bound)
        start = self._choose_start(bound)
        try:
            self._walk(start)
        except _MissingEntries:
            start = self._files.begin
            self._walk(start)
        end = self._scan.position
        followers_end = self._check_followers(end)
        lost_bytes = max(self._synced_end(end), followers_end) - end
        lost_messages = self._count_messages(end) if lost_bytes > 0 else ()
        is_torn = self._cut_log(start, end)
        rewritten = self._write_queues(start)
        last = self._last
        return RecoveryReport(
            is_clean=self._is_clean,
            min_position=self._files.begin,
            max_position=end,
            walked_from=start,
            record_count=self._record_count,
            last_timestamp_ms=0 if last is None else last.store_timestamp_ms,
            last_record_position=None if last is None else last.position,
            is_torn=is_torn,
            lost_synced_bytes=max(0, lost_bytes),
            lost_messages=lost_messages,
            lost_files=tuple(lost_files),
            rewritten_queues=tuple(rewritten),
            conflict_count=self._conflict_count,
        )

    # -- where to begin ------------------------------------------------------------------------

    def _choose_bound(self) -> int:
        """Return the latest position at which the walk of the log may begin."""
        bases = self._files.bases
        begin = self._files.begin
        mark = self._checkpoint.mark
        if mark is not None:
            return max(begin, self._marked_bound(mark))
        if not bases:
            return begin
        if self._is_clean:
            return bases[max(0, len(bases) - _FILES_WALKED)]
        for base in reversed(bases):
            magic, sys_flag, timestamp_ms = self._first_record(base)
            if (
                magic in (MAGIC_V1, MAGIC_V2)
                and sys_flag & 0x10 == 0
                and 0 < timestamp_ms <= self._checkpoint.min_timestamp_ms
            ):
                return base
        return begin

    def _marked_bound(self, mark: Mark) -> int:
        if mark.record_position is None:
            return mark.end_position - self._config.verify_bytes
        return min(mark.record_position, mark.end_position - self._config.verify_bytes)

    def _first_record(self, base: int) -> tuple[int, int, int]:
        data = self._files.read(base, _MAGIC_AND_TIMESTAMP.size)
        magic, sys_flag, timestamp_ms = _MAGIC_AND_TIMESTAMP.unpack(data)
        return magic, sys_flag, timestamp_ms

    def _check_queues(self, bound: int) -> None:
        for key, queue in self._queues.items():
            # If they are lost, its files go once the log is read.
            self._checks[key] = QueueCheck(queue, is_lost=True)
            with passing_over_losses():
                self._checks[key] = check_queue(
                    queue,
                    log_begin=self._files.begin,
                    log_end=self._files.end,
                    log_file_size=self._files.file_size,
                    sum_before=bound,
                )

    def _choose_start(self, bound: int) -> int:
        """Return the walk's start: a record at or before `bound`, with whole queues before it."""
        begin = self._files.begin
        if bound <= begin:
            return begin
        start, covered_end = begin, begin
        for check in self._checks.values():
            offset = check.count_before(bound)
            if offset > check.first_offset:
                _, position, size = check.last_record(offset - 1)
                if position > start:
                    start, covered_end = position, position + size
        if covered_end <= begin or self._scan.record_at(start) is None:
            return begin
        for base in self._files.bases:
            if base >= covered_end:
                break
            if not self._is_filled(base, covered_end):
                return base
        return start

    def _filled_end(self, base: int) -> int:
        """Return where a file of the log ends by the entries of all queues."""
        return base + sum(check.bytes_by_file.get(base, 0) for check in self._checks.values())

    def _close_repaired(self, bound: int) -> list[LostFile]:
        """Close the repaired files whose records all queues have on the disk, and return them.

        The walk then begins after such a file, as the queues lack none of its entries.
        """
        closed: list[LostFile] = []
        for base in self._files.repaired if self._checkpoint.mark is not None else ():
            file, end = self._files.file_at(base), base + self._files.file_size
            at = self._filled_end(base)
            if end <= bound and end - at >= BLANK_SIZE and file.next_data(at - base) is None:
                file.write(at - base, SIZE_AND_MAGIC.pack(end - at, MAGIC_BLANK))
                file.sync()
                closed.append(LostFile(file.path, tuple(self._find_offsets(base, end))))
        return closed

    def _find_offsets(self, begin: int, end: int) -> Iterator[tuple[QueueKey, int, int]]:
        """Yield the queues with records in a part of the log, and their offsets there."""
        for key, check in sorted(self._checks.items()):
            first, after = check.count_before(begin), check.count_before(end)
            if first < after:
                yield key, first, after

    def _is_filled(self, base: int, covered_end: int) -> bool:
        """Return whether the entries of all queues fill a file of the log, without a gap."""
        filled = self._filled_end(base)
        if filled == covered_end:
            return True
        left = base + self._files.file_size - filled
        if left < BLANK_SIZE:
            return False
        return self._files.read(filled, BLANK_SIZE) == SIZE_AND_MAGIC.pack(left, MAGIC_BLANK)

    # -- the walk ------------------------------------------------------------------------------

    def _walk(self, start: int) -> None:
        """Walk the log from `start`, collecting the entries it implies."""
        self._rebuilt.clear()
        self._record_count = self._conflict_count = 0
        rebuilt = self._rebuilt
        may_miss = start > self._files.begin
        record = None
        for record in self._scan.run(start):
            self._record_count += 1
            position, size, topic, queue_id, queue_offset, tags_code, _, is_queued = record
            if not is_queued:
                continue
            key = (topic, queue_id)
            queue = rebuilt.get(key)
            if queue is None:
                queue = rebuilt[key] = _Rebuilt(self._kept_end(key, start, queue_offset))
            missing = queue_offset - queue.end
            if missing > 0:
                if may_miss:
                    raise _MissingEntries
                queue.entries += filler_entries(missing)
            elif missing < 0:
                self._conflict_count += 1
                continue
            queue.entries += ENTRY.pack(position, size, tags_code)
        self._last = record

    def _kept_end(self, key: QueueKey, start: int, queue_offset: int) -> int:
        """Return the offset after a queue's kept entries, those of records before `start`."""
        check = self._checks.get(key)
        first_offset = 0 if check is None else check.first_offset
        kept_end = 0 if check is None else check.count_before(start)
        if check is not None and kept_end > first_offset:
            if queue_offset < kept_end and check.count_before(self._files.begin) == kept_end:
                # All messages of the queue have expired, and its topic was deleted and made again.
                return queue_offset
            return kept_end
        if start == self._files.begin:
            # No earlier entry of the queue is known: believe its first record.
            return queue_offset
        # The queue's first files may be missing.
        return min(first_offset, queue_offset)

    def _synced_end(self, end: int) -> int:
        """Return the position up to which the log had surely been synced, as far as known."""
        mark = self._checkpoint.mark
        if mark is None:
            return end
        if not mark.is_dispatch_synced:
            return mark.end_position
        spans = [span for check in self._checks.values() for span in check.spans_from(end)]
        if not any(position == end for position, _ in spans):
            return mark.end_position
        return max(mark.end_position, *(position + size for position, size in spans))

    def _count_messages(self, end: int) -> tuple[tuple[QueueKey, int], ...]:
        """Return the number of each queue's entries for records from the log's end on."""
        counts = {key: len(check.spans_from(end)) for key, check in self._checks.items()}
        return tuple(sorted((key, count) for key, count in counts.items() if count > 0))

    def _check_followers(self, end: int) -> int:
        """Look for valid records after the log's end, and refuse if they had been synced.

        Returns: the end of the last such record if the log is cut in spite of them, else `end`.
        """
        followers = self._find_followers(end)
        first = next(followers, None)
        if first is None or not self._were_synced(end, first, followers):
            return end
        if not self._config.salvage:
            self._refuse(end, first)
        return max(record.position + record.size for record in self._find_followers(end))

    def _cut_log(self, start: int, end: int) -> bool:
        """End the log at `end` and sync it; return whether bytes after the end were cut off."""
        is_torn = self._files.next_data(end) is not None
        self._files.cut(end)
        self._log.set_end(end)
        # A killed process, or a failed sync, leaves records that only the page cache has. They are
        # about to be served and to get queue entries, which prove a sync, so they must be on the
        # disk first.
        mark = self._checkpoint.mark
        if mark is not None and not self._is_clean:
            self._files.rewrite(max(start, mark.end_position), end)
        for base in self._files.bases:
            if base + self._files.file_size >= start and not (self._is_clean and not is_torn):
                self._files.file_at(base).sync()
        if self._files.bases:
            self._storage.sync_directory(self._files.directory)
        return is_torn

    def _find_followers(self, end: int) -> Iterator[CheckedRecord]:
        """Yield the valid records after the log's end that were a part of the log.

        Without a mark of ours they are not older than its last record: older ones remain from an
        Apache broker that cut the log in memory only. With one they may be, as the clock may have
        been set back.
        """
        is_ours = self._checkpoint.mark is not None
        floor_ms = 0 if self._last is None or is_ours else self._last.store_timestamp_ms
        for record in self._scan.find_after(end):
            if record.store_timestamp_ms >= floor_ms:
                yield record

    def _were_synced(self, end: int, first: CheckedRecord, others: Iterator[CheckedRecord]) -> bool:
        """Return whether the bad record, or valid records after it, had surely been synced."""
        mark = self._checkpoint.mark
        if mark is None or end < mark.end_position:
            return True
        if not mark.is_dispatch_synced:
            return False
        dispatched: set[int] = set()
        for check in self._checks.values():
            dispatched.update(position for position, _ in check.spans_from(end))
        return bool(dispatched) and (
            end in dispatched
            or first.position in dispatched
            or any(record.position in dispatched for record in others)
        )

    def _refuse(self, end: int, first: CheckedRecord) -> NoReturn:
        path = self._files.path_of(end)
        base = self._files.base_of(end)
        raise CorruptRecord(
            f"the record at byte {end - (base or 0)} of {path} (log position {end}) is damaged, "
            f"but valid records follow it, the first at log position {first.position}: the disk "
            f"has lost data that was synced; restore the file from a copy, or start once with "
            f"--salvage, which cuts the log there and loses what follows",
            position=end,
        )

    # -- the queues ----------------------------------------------------------------------------

    def _write_queues(self, start: int) -> list[QueueKey]:
        """Write the entries that each queue must have; return the queues with other entries."""
        rewritten: list[QueueKey] = []
        for key in sorted(self._queues.keys() | self._rebuilt.keys()):
            queue = self._queues.get(key)
            if queue is None:
                queue = ConsumeQueue(self._storage, key[0], key[1], config=self._config)
                self._queues[key] = queue
            check = self._checks.get(key) or QueueCheck(queue)
            kept_end = check.count_before(start)
            rebuilt = self._rebuilt.get(key) or _Rebuilt(kept_end)
            has_past = kept_end > check.first_offset and rebuilt.begin == kept_end
            min_offset = check.count_before(self._files.begin) if has_past else rebuilt.begin
            if self._write_queue(queue, rebuilt, check):
                rewritten.append(key)
            queue.min_offset = min(min_offset, queue.max_offset)
        return rewritten

    def _write_queue(self, queue: ConsumeQueue, rebuilt: _Rebuilt, check: QueueCheck) -> bool:
        files = queue.files
        position = rebuilt.begin * ENTRY_SIZE
        # Without its fillers a queue has the next start walk the whole log again.
        is_void = check.is_lost or rebuilt.begin > check.sound_end
        if files.bases and (is_void or not files.begin <= position <= files.end):
            files.discard()
        is_same = files.read(position, len(rebuilt.entries)) == bytes(rebuilt.entries)
        # Entries that only the page cache has are written again, as the log's records are.
        if not is_same or (rebuilt.entries and not self._is_clean):
            queue.write(rebuilt.begin, rebuilt.entries)
        is_cut = queue.cut(rebuilt.end)
        queue.is_directory_dirty |= not self._is_clean
        return is_cut or not is_same
