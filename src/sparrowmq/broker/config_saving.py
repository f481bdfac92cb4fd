"""Decides when the broker's configuration is written, and which tables.

Changes of topics, consumer groups, queue locks, plans and request modes are appended to a journal.
A reply that depends on a change waits until the journal has the change. The tables' files
(topics.json, subscriptionGroup.json and messageRequestMode.json are RocketMQ's) are written when no
change came for an interval, when the journal has grown long, and at the end. The files replace the
journal before them; after a clean stop there is no journal.

Committed offsets and the progress of delayed messages change constantly, and only the deletion of
a topic or a group waits for them: its offsets must not come back. Their tables are copied once in
an interval, as in RocketMQ, and each copy is written once the log is flushed as far as it was
written at the copy (`FlushGate`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from sparrowmq.broker import queue_lock_file
from sparrowmq.broker.audit_log import AuditTable
from sparrowmq.broker.flush_gate import FlushGate
from sparrowmq.broker.journal_records import (
    Change,
    FiledVersions,
    GroupTableChange,
    LockChange,
    PlanChange,
    RequestModeChange,
    TopicTableChange,
    encode_changes,
)
from sparrowmq.broker.pop_changes import PopTable
from sparrowmq.broker.queue_lock_file import LockTable
from sparrowmq.broker.state import BrokerState
from sparrowmq.broker.timer_check_file import TIMER_CHECK_FILE, encode_timer_check
from sparrowmq.broker.timer_messages import TimerTable
from sparrowmq.protocol.bodies import (
    ConsumerOffsetTable,
    DelayOffsetTable,
    GroupPlanTable,
    RequestModeTable,
    SubscriptionGroupTable,
    TopicConfigTable,
    encode_body,
)
from sparrowmq.serving.connections import Output

TOPICS_FILE = "topics.json"
GROUPS_FILE = "subscriptionGroup.json"
OFFSETS_FILE = "consumerOffset.json"
DELAYS_FILE = "delayOffset.json"
MODES_FILE = "messageRequestMode.json"
# These files are SparrowMQ's own; RocketMQ forgets its locks when it stops.
LOCKS_FILE = "queueLock.json"
PLANS_FILE = "groupPlan.json"
AUDIT_FILE = "auditLog.json"
POPS_FILE = "popState.json"
# Their tables precede all others in a `SaveWork`, and need no versions in the journal.
PROGRESS_FILES = (OFFSETS_FILE, POPS_FILE, DELAYS_FILE, TIMER_CHECK_FILE, AUDIT_FILE)
# After this many changes in the journal the files are written even if more changes keep coming.
JOURNAL_CHANGES_MAX = 20_000


class SavedTables(NamedTuple):
    """The tables of the config files, None for a missing file, and the journal's later changes.

    Args:
        changes: the changes in the journal.
        segment: the number of the journal's last segment, 0 if there is none.
        damaged: the damaged files, whose backups were read instead.
    """

    topics: TopicConfigTable | None = None
    groups: SubscriptionGroupTable | None = None
    offsets: ConsumerOffsetTable | None = None
    delays: DelayOffsetTable | None = None
    timers: TimerTable | None = None
    locks: LockTable | None = None
    plans: GroupPlanTable | None = None
    modes: RequestModeTable | None = None
    audit: AuditTable | None = None
    pops: PopTable | None = None
    changes: Sequence[Change] = ()
    segment: int = 0
    damaged: frozenset[str] = frozenset()


class JournalWork(NamedTuple):
    """Changes to append to a segment of the journal."""

    number: int
    segment: int
    filed: FiledVersions
    changes: Sequence[Change]

    def encode(self) -> bytes:
        """Return the batch to append."""
        return encode_changes([self.filed, *self.changes])


class SaveWork(NamedTuple):
    """Tables to write to config files, by file name; the tables are copies.

    Args:
        locks: the locks to write to queueLock.json; None leaves the file.
        filed: the versions of the files after the write; None if the journal does not need them.
        segment: the journal's segment to which these versions are written first, so that the next
            start recognizes the files.
        ends_journal: whether the files contain all changes of the journal up to that segment, so
            that the segments are removed.
        damaged: the files that are damaged until they are written, so that their backups stay.
    """

    number: int
    tables: Mapping[str, Struct]
    locks: Sequence[LockChange] | None = None
    filed: FiledVersions | None = None
    segment: int = 0
    ends_journal: bool = False
    damaged: frozenset[str] = frozenset()

    @property
    def files(self) -> list[str]:
        """The names of the files."""
        return [*self.tables, *([] if self.locks is None else [LOCKS_FILE])]

    def encode(self) -> Iterator[tuple[str, bytes]]:
        """Yield each file's name and content; call it in a thread, since large tables take long."""
        for name, table in self.tables.items():
            if isinstance(table, TimerTable):
                yield name, encode_timer_check(table)
            else:
                yield name, encode_body(table, pretty=True)
        if self.locks is not None:
            yield LOCKS_FILE, queue_lock_file.encode(self.locks)


class ConfigSaving:
    """Decides which changes go to the journal and to the files, and when.

    Args:
        state: the broker's state, before it is loaded.
        saved: the tables of the config files and the journal's changes.
    """

    def __init__(self, state: BrokerState, saved: SavedTables) -> None:
        self._state = state
        self._segment = saved.segment + 1
        # Whether the segment has a batch. After a failed append a new segment begins, so that the
        # batch is not endangered.
        self._has_begun = False
        self._filed = FiledVersions(
            (saved.topics or TopicConfigTable()).data_version,
            (saved.groups or SubscriptionGroupTable()).data_version,
        )
        # Files without all of the journal's changes, by the journalling round of their last change.
        self._unfiled = dict.fromkeys(_FILES.values(), 0) if saved.segment else {}
        self._damaged = saved.damaged
        self._change_count = 0
        self._seen_round = 0
        self._due_files: set[str] = set()
        # Whether the progress is to be copied: once in an interval, not after each flush.
        self._is_copy_due = False
        self._locks_writing = 0
        self._gates: dict[str, FlushGate[dict[str, Struct]]] = {
            OFFSETS_FILE: FlushGate(),
            DELAYS_FILE: FlushGate(),
            TIMER_CHECK_FILE: FlushGate(),
        }
        # The committed offsets that were beyond their queue's end at the start.
        self.offsets_cut = 0

    def load(self, saved: SavedTables, *, now_ms: int, timestamp_ms: int) -> None:
        """Load the saved tables and changes into the state."""
        state = self._state
        state.topics.load(saved.topics or TopicConfigTable())
        state.groups.load(saved.groups or SubscriptionGroupTable())
        self.offsets_cut = state.offsets.load(
            saved.offsets or ConsumerOffsetTable(), end_of=state.store.queues.max_offset
        )
        # Both files of the offsets exist from the start: on a full disk they have no other room.
        state.offsets.is_changed |= saved.offsets is None
        state.delays.load(saved.delays or DelayOffsetTable(), timestamp_ms=timestamp_ms)
        state.timers.load(saved.timers or TimerTable(), timestamp_ms=timestamp_ms)
        state.audit.load(saved.audit or AuditTable())
        if saved.locks is not None:
            queue_lock_file.restore(state.locks, saved.locks, now_ms=now_ms)
        for name, plan in (saved.plans or GroupPlanTable()).plans.items():
            state.plans.restore(name, plan, now_ms=now_ms)
        state.modes.load(saved.modes or RequestModeTable())
        for change in saved.changes:
            if isinstance(change, TopicTableChange):
                state.topics.replay(change.name, change.config, change.version)
            elif isinstance(change, GroupTableChange):
                state.groups.replay(change.name, change.config, change.version)
            elif isinstance(change, LockChange):
                state.locks.restore([change], now_ms=now_ms)
            elif isinstance(change, PlanChange):
                state.plans.restore(change.group, change.plan, now_ms=now_ms)
            elif isinstance(change, RequestModeChange):
                state.modes.replay(change)
        if state.topics.add_missing(timestamp_ms=timestamp_ms):
            state.note_topics_changed()

    def _note_unfiled(self, changes: Sequence[Change], number: int) -> None:
        for change_type, name in _FILES.items():
            if any(isinstance(change, change_type) for change in changes):
                self._unfiled[name] = number
        self._change_count += len(changes)

    @property
    def _unwritten(self) -> Mapping[str, Collection[object]]:
        """The keys of the changes that the journal lacks, by their table's file."""
        state = self._state
        return {
            TOPICS_FILE: state.topics.unwritten,
            GROUPS_FILE: state.groups.unwritten,
            LOCKS_FILE: state.locks.unwritten,
            PLANS_FILE: state.plans.unwritten,
            MODES_FILE: state.modes.unwritten,
        }

    def tick(self) -> None:
        """Ask for the files that are due; call it once in each interval of saving."""
        state = self._state
        if any(self._unwritten.values()):
            state.journal.ask()
        is_long = self._change_count >= JOURNAL_CHANGES_MAX
        self._due_files = {
            name for name, number in self._unfiled.items() if is_long or number <= self._seen_round
        }
        self._seen_round = state.journal.finished
        is_progress_due = (
            state.offsets.is_changed
            or state.delays.is_changed
            or state.timers.is_changed
            or state.pops.is_changed
        )
        self._is_copy_due = True
        is_held = any(not gate.is_empty for gate in self._gates.values())
        if self._due_files or is_progress_due or is_held or state.audit.is_changed:
            state.saves.ask()

    def note_flushed(self) -> None:
        """Ask for the files whose progress the log's flush has reached."""
        position = self._state.store.flushed_position
        if any(gate.is_open(position) for gate in self._gates.values()):
            self._state.saves.ask()

    def ask_last(self) -> None:
        """Ask for every file that lacks a change, before the broker stops."""
        state = self._state
        changed = {name for name, keys in self._unwritten.items() if keys}
        self._due_files = changed.union(self._unfiled, [LOCKS_FILE] if len(state.locks) else [])
        state.pops.is_changed |= state.pops.needs_table
        self._is_copy_due = True
        state.saves.ask()

    # -- the journal ---------------------------------------------------------------------------

    def journal_work(self, *, now_ms: int) -> JournalWork | None:
        """Return what to append to the journal, or None."""
        state = self._state
        number = state.journal.begin()
        if number is None:
            return None
        self._locks_writing = state.locks.changes
        changes: list[Change] = [
            *state.topics.take_changes(),
            *state.groups.take_changes(),
            *state.locks.take_changes(now_ms=now_ms),
            *state.plans.take_changes(),
            *state.modes.take_changes(),
        ]
        self._note_unfiled(changes, number)
        return JournalWork(number, self._segment, self._filed, changes)

    def journaled(self, work: JournalWork, error: Exception | None) -> list[Output]:
        """Process the end of a journalling round; return the replies that waited for it."""
        state = self._state
        state.journal.finish()
        if error is None:
            self._has_begun |= work.segment == self._segment
            state.locks_written = self._locks_writing
            for change in work.changes:
                if isinstance(change, TopicTableChange):
                    state.topics.note_written(change.name)
            return state.pending.note_rounds()
        if work.segment == self._segment and self._has_begun:
            self._begin_segment()
        for change in work.changes:
            if isinstance(change, TopicTableChange):
                state.topics.unwritten[change.name] = None
            elif isinstance(change, GroupTableChange):
                state.groups.unwritten[change.name] = None
            elif isinstance(change, LockChange):
                state.locks.unwritten[change.group, change.queue] = None
            elif isinstance(change, PlanChange):
                state.plans.unwritten[change.group] = None
            elif isinstance(change, RequestModeChange):
                state.modes.unwritten[change.topic, change.group] = None
        return state.pending.fail_journal(work.number, str(error))

    def _begin_segment(self) -> None:
        self._segment += 1
        self._has_begun = False

    # -- the files -----------------------------------------------------------------------------

    def save_work(self, *, now_ms: int) -> SaveWork | None:
        """Return the config files to write, or None."""
        state = self._state
        number = state.saves.begin()
        if number is None:
            return None
        tables = self._take_progress()
        if state.audit.is_changed:
            tables[AUDIT_FILE] = state.audit.table()
            state.audit.is_changed = False
        due, self._due_files = self._due_files, set()
        if not due and not tables:
            # All that changed waits for the flush.
            state.saves.finish()
            return None
        if not due:
            return SaveWork(number, tables, damaged=self._damaged)
        filed = self._filed
        if TOPICS_FILE in due:
            tables[TOPICS_FILE] = state.topics.table()
            filed = FiledVersions(state.topics.version, filed.groups)
        if GROUPS_FILE in due:
            tables[GROUPS_FILE] = state.groups.table()
            filed = FiledVersions(filed.topics, state.groups.version)
        if PLANS_FILE in due:
            tables[PLANS_FILE] = state.plans.table()
        if MODES_FILE in due:
            tables[MODES_FILE] = state.modes.table()
        locks = state.locks.save(now_ms=now_ms) if LOCKS_FILE in due else None
        # Later changes are added to these versions, whether or not the files get written.
        self._filed = filed
        self._begin_segment()
        segment = self._segment
        self._begin_segment()
        for name in due:
            self._unfiled.pop(name, None)
        return SaveWork(
            number,
            tables,
            locks,
            filed,
            segment,
            ends_journal=not self._unfiled,
            damaged=self._damaged,
        )

    def _take_progress(self) -> dict[str, Struct]:
        """Return the copies of progress that may be written now.

        The copies are new ones, if they are due, or those that have waited for the flush.
        """
        state = self._state
        store = state.store
        tables: dict[str, Struct] = {}
        # Groups that pull consume what they can read; popped messages are acknowledged, and
        # delayed ones delivered, in the last records of the log.
        offsets_position = (
            store.appended_position if state.offsets.has_popped else store.readable_position
        )
        # A copy that a reply waits for is written before the next one is made.
        is_blocked = state.offset_saves.is_running and self._gates[OFFSETS_FILE].is_open(
            store.flushed_position
        )
        for name, progress, position in (
            (OFFSETS_FILE, state.offsets, offsets_position),
            (DELAYS_FILE, state.delays, store.appended_position),
            (TIMER_CHECK_FILE, state.timers, store.appended_position),
        ):
            gate, is_of_offsets = self._gates[name], name == OFFSETS_FILE
            tables |= gate.take(store.flushed_position) or {}
            # The table of pops needs the offsets of its time in their file, which is written first.
            is_with_pops = is_of_offsets and state.pops.is_changed
            is_awaited = is_of_offsets and state.offset_saves.is_asked
            is_due = self._is_copy_due or is_awaited
            is_due &= progress.is_changed or is_with_pops
            if is_due and gate.is_empty and not (is_of_offsets and is_blocked):
                progress.is_changed = False
                held: dict[str, Struct] = {name: progress.table()}
                if is_with_pops:
                    state.pops.is_changed = False
                    held[POPS_FILE] = state.pops.table()
                gate.hold(held, position=position)
                if is_of_offsets:
                    state.offset_saves.begin()
                tables |= gate.take(store.flushed_position) or {}
        self._is_copy_due &= is_blocked
        return tables

    def saved(self, work: SaveWork, error: Exception | None) -> list[Output]:
        """Process the end of a round of config writing; return the replies that waited for it."""
        state = self._state
        state.saves.finish()
        failed: list[Output] = []
        # The copy that a reply waits for is held until this round has it.
        if state.offset_saves.is_running and self._gates[OFFSETS_FILE].is_empty:
            if error is not None:
                failed = state.pending.fail_offsets(str(error))
            state.offset_saves.finish()
        # The copy that a reply waited for has kept the next one back.
        if state.offset_saves.is_asked or self._is_copy_due:
            state.saves.ask()
        if error is None:
            self._damaged = self._damaged.difference(work.files)
            if work.ends_journal:
                self._change_count = 0
            if POPS_FILE in work.tables:
                state.pops.table_written()
            return state.pending.note_rounds()
        state.offsets.is_changed |= OFFSETS_FILE in work.tables
        state.delays.is_changed |= DELAYS_FILE in work.tables
        state.timers.is_changed |= TIMER_CHECK_FILE in work.tables
        state.audit.is_changed |= AUDIT_FILE in work.tables
        state.pops.is_changed |= POPS_FILE in work.tables
        for name in _FILES.values():
            if name in work.files:
                self._unfiled.setdefault(name, 0)
        return failed


_FILES: Mapping[type[Struct], str] = {
    TopicTableChange: TOPICS_FILE,
    GroupTableChange: GROUPS_FILE,
    LockChange: LOCKS_FILE,
    PlanChange: PLANS_FILE,
    RequestModeChange: MODES_FILE,
}
