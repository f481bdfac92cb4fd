"""Which messages are invisible, to whom and until when: the state of consumption by pops.

A group that pops a queue has three parts of it: messages before the committed offset are finished;
messages from `next_offset` on were never popped; of the messages between, those in `flights` are
*in flight*, and the others are finished too. The committed offset is that of the first message in
flight. So the state needs memory only for messages in flight, and a queue without any needs none:
its committed offset says all. A pull, an older version or a broker of Apache's that goes on at the
committed offset repeats messages and loses none.

A message in flight is invisible until its time. Then it is *ready*: the next pop delivers it
again, as one attempt more, without a copy in a retry topic. A heap has the times.

All changes go into the pop log, a topic of the commit log: the changes of a turn are one record,
appended after the turn's messages. An answer to a pop or to an acknowledgement waits for this
record as an answer to a send waits for its message. Under SYNC flush a message whose
acknowledgement was answered with success is therefore never delivered again, and a delivered
message stays invisible for its time, whatever crash comes; under ASYNC a power cut may take both
back, so that messages come again. At the start the state is read from the table of a file and the
log's records after it.

Times count on the monotonic clock, so a step of the wall clock moves none. After a restart a
message is invisible for the rest of its time by the wall clock, at most for all of it.

Differs from RocketMQ: its check points are revived some seconds late, and only the committed offset
tells about other groups. Tests: test_pop_queues.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from sparrowmq.broker.pop_changes import (
    Changed,
    Finished,
    Flight,
    Moved,
    PopChange,
    Popped,
    PopTable,
    QueueKey,
    SavedQueue,
)
from sparrowmq.broker.pull_hold import SUSPEND_MS_MAX, Place
from sparrowmq.serving.connections import Connection

# MessageStoreConfig.popInflightMessageThreshold: the messages of one queue that a group may have in
# flight; and of all queues and groups together, some 100 MB. A group has at most as many of these
# as are free, so that one which acknowledges nothing leaves some to the others.
IN_FLIGHT_PER_QUEUE_MAX = 10_000
POPPED_MAX = 300_000
# The longest time of a message, as of RocketMQ's gRPC proxy (maxInvisibleTimeMills).
INVISIBLE_MS_MAX = 12 * 3_600_000
# So long after its last pop a group may not pull from the topic, and the reverse: longer than a
# pull or a pop waits.
WAY_MS = SUSPEND_MS_MAX + 1_000
# The table is written after this many changes, or if the log has older changes than this.
CHANGES_PER_TABLE = 20_000
TABLE_INTERVAL_MS = 600_000
# The places of one connection's pops that are known; older ones are forgotten.
PLACES_PER_CONNECTION_MAX = 8_192
# The queues that one look for expired messages takes, some 10 ms.
LOOKED_AT_ONCE_MAX = 10_000
# The groups that consume one topic by pops: each message of the topic looks for their waiting pops.
GROUPS_PER_TOPIC_MAX = 1_024
# Outdated times that the heap may have beside one for each message in flight.
_OUTDATED_MAX = 4_096


@dataclass(slots=True, eq=False)
class PopQueue:
    """A group's view of a queue with messages in flight.

    Args:
        next_offset: the first offset that the group has not popped yet.
        flights: the messages in flight, ascending by offset.
        ready: the messages in flight whose time has come.
        attempt_id: names the last pop in order; empty for none.
        renewals: how often the time of messages in flight was extended since their last pop, by
            offset; a restart forgets the numbers.
    """

    key: QueueKey
    next_offset: int
    flights: OrderedDict[int, Flight] = field(default_factory=OrderedDict)
    ready: set[int] = field(default_factory=set)
    attempt_id: str = ""
    renewals: dict[int, int] = field(default_factory=dict)

    @property
    def commit_offset(self) -> int:
        """The offset of the first message in flight, or else of the next message."""
        return next(iter(self.flights), self.next_offset)

    @property
    def acknowledged(self) -> int:
        """The number of messages done beyond the first message in flight."""
        return self.next_offset - self.commit_offset - len(self.flights)

    @property
    def visible_timestamp_ms(self) -> int:
        """When the last message in flight becomes visible again; 0 if there is none."""
        return max((each.visible_timestamp_ms for each in self.flights.values()), default=0)

    @property
    def deliveries(self) -> int:
        """How often a message in flight was delivered at most."""
        return max((each.times + 1 for each in self.flights.values()), default=0)

    @property
    def is_blocked(self) -> bool:
        """Whether a message is invisible, so that a pop in order must wait."""
        return len(self.flights) > len(self.ready)

    def find_ready(self, count_max: int, taken: Sequence[int] = ()) -> list[int]:
        """Return the lowest offsets that are ready, behind those taken before; ascending."""
        if count_max <= 0 or len(self.ready) == len(taken):
            return []
        return nsmallest(count_max, self.ready.difference(taken))


class _Due(NamedTuple):
    """When messages in flight of a pop become ready, by the monotonic clock."""

    due_ms: int
    group: str
    topic: str
    queue_id: int
    offsets: Sequence[int]
    pop_timestamp_ms: int


class PopQueues:
    """The messages in flight of all groups.

    Attributes:
        is_changed: whether a table is to be written.
        read_error: why a message could not be read when it should have become a dead letter.
        passed_ms: how far the wall clock was moved, which the clients' clocks do not follow.
    """

    def __init__(self) -> None:
        self.passed_ms = 0
        self._queues: dict[QueueKey, PopQueue] = {}
        # The ids of these queues by group and topic.
        self._queue_ids: dict[tuple[str, str], set[int]] = {}
        self._turn = 0
        # When a group last popped from a topic, or pulled.
        self._popped: dict[tuple[str, str], int] = {}
        self._pulled: dict[tuple[str, str], int] = {}
        # By topic the groups that have popped lately; by connection the places where pops wait.
        self._groups: dict[str, set[str]] = {}
        self._places: dict[Connection, dict[Place, None]] = {}
        # An entry is void if the message in flight has another time.
        self._due: list[_Due] = []
        self._in_flight = 0
        self._in_flight_of: dict[str, int] = {}
        # The queues that `find_expired` has not looked at in its present round.
        self._unlooked: list[QueueKey] = []
        # The changes that the log does not have yet.
        self._changes: list[PopChange] = []
        self._log_offset = 0
        # The queues with changes in the log that no written table replaces, by the number of the
        # table that will.
        self._logged: dict[QueueKey, int] = {}
        self._table_number = 0
        self._changes_since_table = 0
        self._table_due_ms = 0
        self.is_changed = False
        self.read_error: OSError | None = None

    def __len__(self) -> int:
        """The number of messages in flight."""
        return self._in_flight

    def find(self, group: str, topic: str, queue_id: int) -> PopQueue | None:
        """Return a group's queue, None if it has no message in flight."""
        return self._queues.get(QueueKey(group, topic, queue_id))

    def get(self, key: QueueKey) -> PopQueue | None:
        """Return a queue by its key, None if it has no message in flight."""
        return self._queues.get(key)

    def all(self) -> Iterable[PopQueue]:
        """Return all queues with messages in flight."""
        return self._queues.values()

    def hidden_ids(self, group: str, topic: str, *, count: int) -> list[int]:
        """Return the queues from id `count` on that have messages in flight, ascending.

        A topic that has fewer queues than before hides the others. What is in flight there still
        comes again, as in RocketMQ, where a retry topic has it.
        """
        ids = self._queue_ids.get((group, topic))
        if ids is None or max(ids) < count:
            return []
        return sorted(queue_id for queue_id in ids if queue_id >= count)

    def queue_ids(self, group: str, topic: str) -> Collection[int]:
        """Return the queues of a topic in which a group has messages in flight."""
        return self._queue_ids.get((group, topic), ())

    def _add_queue(self, key: QueueKey, next_offset: int) -> PopQueue:
        queue = self._queues[key] = PopQueue(key, next_offset)
        self._queue_ids.setdefault((key.group, key.topic), set()).add(key.queue_id)
        return queue

    def _drop_queue(self, key: QueueKey) -> PopQueue | None:
        queue = self._queues.pop(key, None)
        if queue is not None:
            ids = self._queue_ids[key.group, key.topic]
            ids.discard(key.queue_id)
            if not ids:
                del self._queue_ids[key.group, key.topic]
        return queue

    def next_turn(self) -> int:
        """Return another number each time: the queue at which a pop from all queues begins."""
        self._turn += 1
        return self._turn

    def room(self, group: str, queue: PopQueue | None) -> int:
        """Return how many further messages of a group's queue may be in flight."""
        count = 0 if queue is None else len(queue.flights)
        left = POPPED_MAX - self._in_flight - self._in_flight_of.get(group, 0)
        return max(0, min(IN_FLIGHT_PER_QUEUE_MAX - count, left))

    def _count(self, group: str, added: int) -> None:
        """Count messages of a group that are in flight from now on, or no more."""
        self._in_flight += added
        count = self._in_flight_of.pop(group, 0) + added
        if count:
            self._in_flight_of[group] = count

    # -- changes -------------------------------------------------------------------------------

    def pop(
        self,
        key: QueueKey,
        offsets: list[int],
        *,
        next_offset: int,
        pop_timestamp_ms: int,
        invisible_ms: int,
        now_ms: int,
        attempt_id: str = "",
    ) -> list[int]:
        """Make messages invisible; return how often each was delivered before.

        Args:
            offsets: ready ones, and new ones before `next_offset`; ascending.
        """
        queue = self._queues.get(key)
        if queue is None:
            queue = self._add_queue(key, next_offset)
        flights, known = queue.flights, len(queue.flights)
        # The messages of a pop share one state in flight, unless some were popped before.
        shared = Flight(pop_timestamp_ms, invisible_ms, 0)
        if flights.keys().isdisjoint(offsets):
            times = [0] * len(offsets)
        else:
            times = [flights[offset].next_times if offset in flights else 0 for offset in offsets]
        flights.update(dict.fromkeys(offsets, shared))
        if any(times):
            for offset, count in zip(offsets, times, strict=True):
                flights[offset] = shared._replace(times=count)
        self._count(key.group, len(flights) - known)
        self._note_due(key, offsets, pop_timestamp_ms, now_ms + invisible_ms)
        queue.ready.difference_update(offsets)
        _forget_renewals(queue, offsets)
        queue.next_offset = next_offset
        queue.attempt_id = attempt_id
        self._note(Popped(key, next_offset, pop_timestamp_ms, invisible_ms, list(offsets), times))
        return times

    def finish(self, queue: PopQueue, offsets: list[int]) -> None:
        """End messages in flight: they are acknowledged, or became dead letters."""
        for offset in offsets:
            del queue.flights[offset]
        self._count(queue.key.group, -len(offsets))
        queue.ready.difference_update(offsets)
        _forget_renewals(queue, offsets)
        if not queue.flights:
            self._drop_queue(queue.key)
        self._note(Finished(queue.key, offsets))

    def change(
        self,
        queue: PopQueue,
        offset: int,
        *,
        pop_timestamp_ms: int,
        invisible_ms: int,
        is_suspended: bool,
        now_ms: int,
    ) -> None:
        """Make a message in flight invisible for another time, from now on."""
        known = queue.flights[offset]
        changed = Flight(pop_timestamp_ms, invisible_ms, known.times, is_suspended)
        if changed.visible_timestamp_ms > known.visible_timestamp_ms:
            queue.renewals[offset] = queue.renewals.get(offset, 0) + 1
        queue.flights[offset] = changed
        queue.ready.discard(offset)
        self._note_due(queue.key, [offset], pop_timestamp_ms, now_ms + invisible_ms)
        self._note(Changed(queue.key, offset, pop_timestamp_ms, invisible_ms, is_suspended))

    def give_back(self, changes: Iterable[PopChange], *, now_ms: int) -> None:
        """Make messages ready of pops that are answered with a refusal, as the same attempt."""
        for change in changes:
            queue = self._queues.get(change.key)
            if queue is None or not isinstance(change, Popped):
                continue
            for offset in change.offsets:
                flight = queue.flights.get(offset)
                # A message that was given back has another time.
                if flight is not None and flight.pop_timestamp_ms == change.pop_timestamp_ms:
                    self.change(
                        queue,
                        offset,
                        pop_timestamp_ms=flight.pop_timestamp_ms + 1,
                        invisible_ms=0,
                        is_suspended=True,
                        now_ms=now_ms,
                    )

    def move(self, key: QueueKey, offset: int | None) -> None:
        """Let a group go on at an offset that was set for it, and forget its messages in flight."""
        queue = self._drop_queue(key)
        if queue is not None:
            self._count(key.group, -len(queue.flights))
        if queue is not None or key in self._logged:
            self._note(Moved(key, offset))

    def begin(self, key: QueueKey, offset: int) -> None:
        """Note the first offset of a group in a queue."""
        self._note(Moved(key, offset))

    def _note(self, change: PopChange) -> None:
        self._changes.append(change)
        self._logged[change.key] = self._table_number

    def _note_due(self, key: QueueKey, offsets: Sequence[int], popped_ms: int, due_ms: int) -> None:
        place = key.group, key.topic, key.queue_id
        heappush(self._due, _Due(due_ms, *place, offsets, popped_ms))
        if len(self._due) > 2 * self._in_flight + _OUTDATED_MAX:
            self._due = [due for due in self._due if self._find_due(due)]
            heapify(self._due)

    def _find_due(self, due: _Due) -> list[tuple[PopQueue, int]]:
        """Return the messages in flight that still have this time, each with its queue."""
        queue = self._queues.get(QueueKey(due.group, due.topic, due.queue_id))
        if queue is None:
            return []
        return [
            (queue, offset)
            for offset in due.offsets
            if (flight := queue.flights.get(offset)) is not None
            and flight.pop_timestamp_ms == due.pop_timestamp_ms
        ]

    def repeat_attempt(self, queue: PopQueue) -> None:
        """Make messages ready that the same attempt of a pop in order asks for again."""
        for offset, flight in queue.flights.items():
            queue.flights[offset] = flight._replace(is_suspended=True)
        queue.ready.update(queue.flights)

    # -- ways of consuming, and waiting pops ---------------------------------------------------

    def note_pop(self, group: str, topic: str, *, now_ms: int) -> None:
        """Note that a group consumes a topic by pops."""
        self._popped[group, topic] = now_ms
        self._groups.setdefault(topic, set()).add(group)

    def may_pop(self, group: str, topic: str) -> bool:
        """Return whether one more group may consume the topic by pops, unless it does already."""
        groups = self._groups.get(topic, ())
        return group in groups or len(groups) < GROUPS_PER_TOPIC_MAX

    def may_pull(self, group: str, topic: str, *, now_ms: int) -> bool:
        """Note a pull; return False if the group consumes the topic by pops."""
        popped_ms = self._popped.get((group, topic)) if self._popped else None
        if popped_ms is not None and now_ms - popped_ms < WAY_MS:
            return False
        self._pulled[group, topic] = now_ms
        return True

    def popped_groups(self, *, now_ms: int) -> set[str]:
        """Return the groups whose consumers have popped lately."""
        return {
            group for (group, _), popped_ms in self._popped.items() if now_ms - popped_ms < WAY_MS
        }

    def is_pulled(self, group: str, topic: str, *, now_ms: int) -> bool:
        """Return whether a group consumes a topic by pulls."""
        pulled_ms = self._pulled.get((group, topic))
        return pulled_ms is not None and now_ms - pulled_ms < WAY_MS

    def forget_ways(self, now_ms: int) -> None:
        """Forget the ways of consuming of groups that have stopped."""
        for uses in (self._popped, self._pulled):
            for key in [key for key, used_ms in uses.items() if now_ms - used_ms >= WAY_MS]:
                del uses[key]
        topics: dict[str, set[str]] = {}
        for group, topic in self._popped:
            topics.setdefault(topic, set()).add(group)
        self._groups = topics

    def note_waiting(self, connection: Connection, place: Place) -> None:
        """Note that a pop waits at a place."""
        places = self._places.setdefault(connection, {})
        places[place] = None
        if len(places) > PLACES_PER_CONNECTION_MAX:
            del places[next(iter(places))]

    def waiting_groups(self, topic: str) -> list[str]:
        """Return the groups whose pops may wait for a topic's messages, sorted."""
        return sorted(self._groups[topic]) if topic in self._groups else []

    def forget_waiting(self, connection: Connection) -> Iterable[Place]:
        """Forget a closed connection; return the places where its pops waited."""
        return self._places.pop(connection, ())

    # -- times ---------------------------------------------------------------------------------

    def take_due(self, now_ms: int, count_max: int) -> list[tuple[PopQueue, int]]:
        """Return messages whose time has come, each once: `show`, `finish` or `delay` them."""
        found: list[tuple[PopQueue, int]] = []
        while self._due and self._due[0].due_ms <= now_ms and len(found) < count_max:
            due, left = heappop(self._due), count_max - len(found)
            if len(due.offsets) > left:
                heappush(self._due, due._replace(offsets=due.offsets[left:]))
                due = due._replace(offsets=due.offsets[:left])
            found += self._find_due(due)
        return found

    def find_expired(self, begin_of: Callable[[str, int], int]) -> list[tuple[PopQueue, list[int]]]:
        """Return messages in flight that no reader gets any more; `finish` them.

        A group that pops no more would keep their places, of which all groups have `POPPED_MAX`.
        A call looks at `LOOKED_AT_ONCE_MAX` queues, and the next one at the next.

        Args:
            begin_of: returns the first offset that is left of a topic's queue.
        """
        if not self._unlooked:
            self._unlooked = list(self._queues)
        keys = self._unlooked[-LOOKED_AT_ONCE_MAX:]
        del self._unlooked[-LOOKED_AT_ONCE_MAX:]
        found: list[tuple[PopQueue, list[int]]] = []
        for key in keys:
            queue, begin = self._queues.get(key), begin_of(key.topic, key.queue_id)
            if queue is not None and queue.commit_offset < begin:
                found.append((queue, [offset for offset in queue.flights if offset < begin]))
        return found

    def pass_time(self, duration_ms: int) -> None:
        """Make messages in flight ready sooner, as if the time had passed."""
        self.passed_ms += duration_ms
        self._due = [due._replace(due_ms=due.due_ms - duration_ms) for due in self._due]

    def show(self, queue: PopQueue, offset: int) -> None:
        """Make a message ready for the next pop."""
        queue.ready.add(offset)

    def delay(self, queue: PopQueue, offset: int, *, due_ms: int) -> None:
        """Look at a message again at another time."""
        self._note_due(queue.key, [offset], queue.flights[offset].pop_timestamp_ms, due_ms)

    # -- the log and the table -----------------------------------------------------------------

    @property
    def has_changes(self) -> bool:
        """Whether there are changes that the log does not have."""
        return bool(self._changes)

    def peek_changes(self) -> list[PopChange]:
        """Return the changes that the log does not have; `changes_logged` removes them."""
        return self._changes

    def changes_logged(self, log_offset: int, *, now_ms: int) -> None:
        """Note that the log has all changes, in its records before `log_offset`."""
        if self._changes_since_table == 0:
            self._table_due_ms = now_ms + TABLE_INTERVAL_MS
        self._changes_since_table += len(self._changes)
        self._changes = []
        self._log_offset = log_offset
        if self._changes_since_table >= CHANGES_PER_TABLE:
            self.is_changed = True

    def note_time(self, now_ms: int) -> None:
        """Ask for a table if the log's changes are old."""
        if self._changes_since_table > 0 and now_ms >= self._table_due_ms:
            self.is_changed = True

    @property
    def needs_table(self) -> bool:
        """Whether the log has changes that no table has."""
        return self._changes_since_table > 0

    def table(self) -> PopTable:
        """Return the table, and begin the next one."""
        self._table_number += 1
        self._changes_since_table = 0
        return PopTable(
            log_offset=self._log_offset,
            queues=[
                SavedQueue(
                    group=key.group,
                    topic=key.topic,
                    queue_id=key.queue_id,
                    next_offset=queue.next_offset,
                    flights=dict(queue.flights),
                )
                for key, queue in self._queues.items()
            ],
        )

    def table_written(self) -> None:
        """Note that the last table, and the offsets of its time, are on the disk."""
        number = self._table_number
        self._logged = {key: at for key, at in self._logged.items() if at >= number}

    def load(
        self,
        table: PopTable,
        changes: Iterable[PopChange],
        *,
        log_offset: int,
        now_ms: int,
        timestamp_ms: int,
        end_of: Callable[[str, int], int],
    ) -> dict[QueueKey, int | None]:
        """Load a table and the changes after it.

        Args:
            log_offset: the end of the pop log.
            end_of: returns the end of a topic's queue; messages beyond it were lost.

        Returns: the committed offsets of the queues, None for those to remove.
        """
        for saved in table.queues:
            key = QueueKey(saved.group, saved.topic, saved.queue_id)
            queue = self._add_queue(key, saved.next_offset)
            queue.flights.update(saved.flights)
        committed = dict[QueueKey, int | None]()
        for change in changes:
            self._replay(change, committed)
        self._log_offset = log_offset
        self.is_changed = log_offset != table.log_offset
        for key, queue in list(self._queues.items()):
            end = end_of(key.topic, key.queue_id)
            queue.next_offset = min(queue.next_offset, end)
            # A log that failed has the changes of a turn twice, the second time in part.
            flights = sorted(queue.flights.items())
            queue.flights = OrderedDict(each for each in flights if each[0] < end)
            committed[key] = queue.commit_offset
            if not queue.flights:
                self._drop_queue(key)
        for key, queue in self._queues.items():
            self._count(key.group, len(queue.flights))
            for offset, flight in queue.flights.items():
                left_ms = flight.visible_timestamp_ms - timestamp_ms
                due_ms = now_ms + max(0, min(left_ms, flight.invisible_ms))
                self._note_due(key, [offset], flight.pop_timestamp_ms, due_ms)
        self._logged = dict.fromkeys(committed, 0)
        return committed

    def _replay(self, change: PopChange, committed: dict[QueueKey, int | None]) -> None:
        key = change.key
        queue = self._queues.get(key)
        if isinstance(change, Moved):
            self._drop_queue(key)
            committed[key] = change.offset
            return
        if isinstance(change, Popped):
            if queue is None:
                queue = self._add_queue(key, change.next_offset)
            queue.next_offset = max(queue.next_offset, change.next_offset)
            popped, invisible_ms = change.pop_timestamp_ms, change.invisible_ms
            for offset, times in zip(change.offsets, change.times, strict=False):
                queue.flights[offset] = Flight(popped, invisible_ms, times)
        elif queue is None:
            return
        elif isinstance(change, Finished):
            for offset in change.offsets:
                queue.flights.pop(offset, None)
        elif (flight := queue.flights.get(change.offset)) is not None:
            queue.flights[change.offset] = Flight(
                change.pop_timestamp_ms, change.invisible_ms, flight.times, change.is_suspended
            )
        committed[key] = queue.commit_offset
        if not queue.flights:
            # Later changes of the log name the offset anew.
            self._drop_queue(key)


def _forget_renewals(queue: PopQueue, offsets: Iterable[int]) -> None:
    if queue.renewals:
        for offset in offsets:
            queue.renewals.pop(offset, None)
