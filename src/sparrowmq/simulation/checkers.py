"""The invariants, checked after every event against a model.

The model knows the place of each message (from the stores, as records become readable), the
messages that listeners have finished, and the acknowledged messages and committed offsets. It uses
none of the clients' own records.

1. An acknowledged message is readable at its offset, now and after every restart. A broker that
   acknowledges before the flush (ASYNC) may lose the end of its log in a power cut, as far as it
   was not flushed, and nothing follows from the lost messages: no offset lies beyond a queue's end,
   and the messages that take the lost ones' offsets are consumed.
2. A consume queue entry points at its record, and the record holds what a producer sent.
3. A committed offset lies within the contiguous prefix of finished messages: consumed, or stored
   again for a retry or among the dead letters. No message of the group is skipped.
4. A committed offset never goes back, with three exceptions: a crash loses the commits since the
   broker's last periodic write; a former owner commits late while no listed member holds the
   queue's lock; a commit arrives over a connection that its member has given up. A group must bear
   and repair these (`find_unfinished`). The commits of one connection come in order.
5. If members only come and go, no message is delivered twice; nor if a member stays alone while
   brokers are killed.
6. No two members believe at once to hold a queue's lock, except after a broker has lost its locks,
   until the owners notice.
7. In an orderly group, no message is delivered before all earlier ones are finished.
8. A queue is released only after its listeners have ended, or after the bound for them has passed.
9. No operation or request fails with an error that no code handles.
10. Only the messages in removed files of the log expire: each queue begins at its first message
   behind these files. The group need not have consumed the expired messages.
11. The rules of `ListLedger` for the brokers' lists of members, and the members' shares.
12. The rules of `TransactionLedger` for transactions.
13. A message that a broker has confirmed to take back comes again with one more retry; once it has
    all its retries behind it, it is among the dead letters (`find_unfinished`).
14. A member that stood still for longer than a lease gives its listener no message of a queue
   before it has asked for the group's offset of the queue.
15. If a member stays alone, commits that its killed broker has forgotten are soon committed again.
16. The rules of `PlanLedger` for plans, of `DelayLedger` for delays and recalls, and of `PopLedger`
    for groups that consume by messages.

After the heal (`judge_ownership`, `find_unfinished`): every queue has exactly one owner, and every
message is finished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from sparrowmq.broker.pop_changes import decode_pop_changes
from sparrowmq.errors import ProtocolError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.names import (
    POP_LOG_TOPIC,
    TIMER_TOPIC,
    TRANS_OP_HALF_TOPIC,
    dlq_topic,
    retry_topic,
)
from sparrowmq.model.queue import queue_order
from sparrowmq.protocol.record import decode_record
from sparrowmq.simulation.delay_ledger import DelayLedger
from sparrowmq.simulation.event_log import Trace
from sparrowmq.simulation.ledger import TransactionLedger
from sparrowmq.simulation.list_ledger import ListLedger
from sparrowmq.simulation.plan_ledger import PlanLedger
from sparrowmq.simulation.pop_ledger import PopLedger
from sparrowmq.store.message_store import MessageStore

# The broker itself writes the end marks of half messages, the records of recalls, and the pop log.
_OWN_TOPICS = (TRANS_OP_HALF_TOPIC, TIMER_TOPIC, POP_LOG_TOPIC)
# A member connects again, registers and asks within this.
AGAIN_MS = 3_500
_NEVER_MS = 2**62
# The delay level of a message's first retry; each further one is the next level.
_FIRST_RETRY_LEVEL = 3


class Copy(NamedTuple):
    """One record of a queue: its message, and how often the message was consumed before."""

    payload: bytes
    reconsume_times: int


class _Commit(NamedTuple):
    """A broker's committed offset, and the instant of the commit."""

    at_ms: int
    offset: int


class Holder(Protocol):
    """The part of a member that the checks of releases and leases need."""

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether the member holds a queue, also while the queue drains."""
        ...

    def sure_queues(self, now_ms: int) -> Iterable[MessageQueue]:
        """Return the queues whose locks the member believes to hold."""
        ...


class Checkers:
    """The model, and the first violation.

    Args:
        topic: the group's topic.
        trace: also gets the violation.
        may_share_queues: whether members share a client id: two members then consume one queue for
            long and set each other's offsets back.
        is_orderly: whether listeners consume each queue in order.
        may_redeliver: whether a message may be delivered again, and a former owner may commit late.
            Neither may happen if members only come and go, and hand their queues over, nor if one
            stays alone.
        lock_notice_ms: the time in which a member must notice that its broker has lost its locks.
        is_calm: whether nothing fails: each transaction then has one outcome.
        retries_max: how often a failed message comes again; None without a bound to check.
        keeps_members: whether one member stays alone, and only brokers are killed.
    """

    def __init__(
        self,
        group: str,
        topic: str,
        trace: Trace,
        *,
        may_share_queues: bool = False,
        is_orderly: bool = False,
        may_redeliver: bool = True,
        lock_notice_ms: int = 0,
        is_calm: bool = False,
        retries_max: int | None = None,
        keeps_members: bool = False,
    ) -> None:
        self._group = group
        self._topics = (topic, retry_topic(group))
        self._dlq = dlq_topic(group)
        self._trace = trace
        self._may_share_queues = may_share_queues
        self._is_orderly = is_orderly
        self._may_redeliver = may_redeliver
        self._lock_notice_ms = lock_notice_ms
        self._keeps_members = keeps_members
        self.violation: str | None = None
        self.ledger = TransactionLedger(self.fail, is_calm=is_calm)
        self.plans = PlanLedger(self.fail)
        self.delays = DelayLedger(self.fail, topic, is_calm=is_calm)
        self.lists = ListLedger(self.fail)
        self.pops: dict[str, PopLedger] = {}
        self.duplicates = self.steps_back = 0
        # What members gave notice of, by the kind, and what befell routes.
        self.notices: Counter[str] = Counter()
        self.acked: dict[bytes, MessageQueue] = {}
        self._sent: set[bytes] = set()
        self._acked_at: dict[MessageQueue, dict[int, bytes]] = {}
        self._full_disks: set[str] = set()
        self._copies: dict[MessageQueue, list[Copy]] = {}
        self._places: dict[tuple[str, int], tuple[MessageQueue, int]] = {}
        self._finished: dict[MessageQueue, set[int]] = {}
        self._prefix: dict[MessageQueue, int] = {}
        self._retries_max = retries_max
        # The copies that must come after a confirmed send-back, by topics; and those that came.
        self._owed: dict[Copy, Sequence[str]] = {}
        self._again: set[tuple[str, Copy]] = set()
        # Messages that a power cut has taken, and their places.
        self.lost: set[bytes] = set()
        self._lost_at: set[tuple[MessageQueue, int, bytes]] = set()
        self._expired: set[bytes] = set()
        self._dead: set[bytes] = set()
        self._consumed: set[bytes] = set()
        # The first offsets of queues with expired messages.
        self._expired_to: dict[MessageQueue, int] = {}
        self._committed: dict[MessageQueue, int] = {}
        # The client of the commit under way, and the client of the committed offset.
        self._committer: dict[MessageQueue, str] = {}
        # The listed holder of the queue's lock at that time.
        self._holder: dict[MessageQueue, str | None] = {}
        self._committed_by: dict[MessageQueue, str] = {}
        self._asked_ms: dict[tuple[str, MessageQueue], int] = {}
        # The offsets in the broker's file, and the later commits.
        self._saved: dict[MessageQueue, int] = {}
        self._unsaved: dict[MessageQueue, list[_Commit]] = {}
        self._delivered: dict[MessageQueue, set[int]] = {}
        # The instants until which a broker's locks may have two owners.
        self._locks_lost_until_ms: dict[str, int] = {}
        # The offsets that a killed broker has forgotten, and the instants of its start.
        self._forgotten: dict[MessageQueue, tuple[int, int]] = {}

    @property
    def reached(self) -> Counter[str]:
        """How often the run came to each situation that it came to."""
        found = self.notices + Counter(
            {
                "messages delivered again": self.duplicates,
                "messages sent back": len(self._owed),
                "messages expired": len(self._expired),
                "messages lost with a log's end": len(self.lost),
                "dead letters": len(self._dead),
                "offsets set back": self.steps_back,
            }
        )
        pops = [pop.reached for pop in self.pops.values()]
        for each in (self.ledger.reached, self.delays.reached, self.plans.reached, *pops):
            found.update(each)
        return found

    def fail(self, text: str) -> None:
        """Note a violation; the first counts."""
        if self.violation is None:
            self.violation = text
            self._trace.add(f"VIOLATION {text}")

    def note_failure(self, name: str, error: BaseException) -> None:
        """Note an error that no code handled."""
        self.fail(f"{name} failed: {type(error).__name__}: {error}")

    # --- the store --------------------------------------------------------------------------

    def check_stored(self, broker_name: str, store: MessageStore, *, wall_ms: int = 0) -> None:
        """Add the records that became readable since the last call, and check their entries.

        Args:
            wall_ms: the lead of the broker's wall clock.
        """
        for topic, queue_id in store.queues:
            queue = MessageQueue(topic, broker_name, queue_id)
            copies = self._copies.setdefault(queue, [])
            for offset in range(len(copies), store.queues.max_offset(topic, queue_id)):
                self._check_entry(queue, offset, store, None, wall_ms)

    def check_restarted(self, broker_name: str, store: MessageStore, *, wall_ms: int = 0) -> None:
        """Check after a restart that every readable message is in its place."""
        for queue, copies in self._copies.items():
            if queue.broker_name == broker_name:
                # A power cut may bring back files whose removal was not synced.
                begin = store.queues.min_offset(queue.topic, queue.queue_id)
                if begin > self._expired_to.get(queue, 0):
                    self.fail(f"{_name(queue)} begins at {begin} after a restart")
                for offset, copy in enumerate(copies[begin:], begin):
                    self._check_entry(queue, offset, store, copy, wall_ms)
        self.check_stored(broker_name, store, wall_ms=wall_ms)

    def note_lost(self, broker_name: str, store: MessageStore, *, flushed_position: int) -> None:
        """Note what a broker with asynchronous flush has lost since its log was flushed so far."""
        lost: list[tuple[MessageQueue, int, Copy]] = []
        for queue in [q for q in self._copies if q.broker_name == broker_name]:
            end = store.queues.max_offset(queue.topic, queue.queue_id)
            copies = self._copies[queue]
            lost += [(queue, offset, copies[offset]) for offset in range(end, len(copies))]
            del copies[end:]
            self._prefix[queue] = min(self.prefix(queue), end)
            self._finished[queue] = {o for o in self._finished.get(queue, ()) if o < end}
            acked = self._acked_at.get(queue, {})
            for offset in [o for o in acked if o >= end]:
                del acked[offset]
        if not lost:
            return
        self.lost.update(copy.payload for _, _, copy in lost)
        self._lost_at.update((queue, offset, copy.payload) for queue, offset, copy in lost)
        for (name, position), (queue, offset) in tuple(self._places.items()):
            if name == broker_name and offset >= len(self._copies[queue]):
                del self._places[name, position]
                if position < flushed_position:
                    self.fail(f"{_name(queue)} offset {offset}: lost, and it was flushed")
        kept = {copy.payload for copies in self._copies.values() for copy in copies}
        for _, _, copy in lost:
            # A message that was sent back is finished where it stood first.
            if copy.payload not in kept or copy.reconsume_times:
                self.acked.pop(copy.payload, None)
                self._owed = {c: t for c, t in self._owed.items() if c.payload != copy.payload}
        self._trace.add(f"{broker_name} has lost {len(lost)} messages")
        self.ledger.note_lost()
        self.delays.note_lost(broker_name)

    def note_clock_jump(self, broker_name: str, ms: int) -> None:
        """Note that a broker's wall clock was set forward, or back."""
        self.delays.note_clock_jump(ms)
        for ledger in self.pops.values():
            ledger.note_clock_jump(broker_name, ms)

    def is_lost(self, queue: MessageQueue, message: MessageExt) -> bool:
        """Return whether a power cut has taken a message from its place."""
        offset, copies = message.queue_offset, self._copies.get(queue, [])
        is_there = offset < len(copies) and copies[offset].payload == message.body
        return (queue, offset, message.body) in self._lost_at and not is_there

    def _check_entry(
        self,
        queue: MessageQueue,
        offset: int,
        store: MessageStore,
        known: Copy | None,
        wall_ms: int,
    ) -> None:
        place = f"{_name(queue)} offset {offset}"
        entry = store.queues.entry(queue.topic, queue.queue_id, offset)
        if entry is None:
            acked = self._acked_at.get(queue, {}).get(offset)
            self.fail(f"{place}: no entry any more (message {acked!r} was acknowledged)")
            return
        position, size, _ = entry
        data = store.records.read(position, size)
        if data is None:
            self.fail(f"{place}: its entry points at no record (position {position})")
            return
        try:
            record = decode_record(data)
        except ProtocolError as error:
            self.fail(f"{place}: its record cannot be read: {error}")
            return
        if (record.topic, record.queue_id, record.queue_offset) != (
            queue.topic,
            queue.queue_id,
            offset,
        ):
            self.fail(f"{place}: its entry points at the record of another place")
            return
        copy = Copy(record.body, record.reconsume_times)
        if copy.payload not in self._sent and queue.topic not in _OWN_TOPICS:
            self.fail(f"{place}: holds {copy.payload!r}, which nobody has sent")
            return
        if known is not None:
            if copy != known:
                self.fail(f"{place}: holds {copy} where {known} was")
            return
        acked = self._acked_at.get(queue, {}).get(offset)
        if acked is not None and acked != copy.payload:
            self.fail(f"{place}: holds {copy.payload!r} where {acked!r} was acknowledged")
        self.ledger.note_copy(queue, copy.payload, record.properties)
        self.delays.note_copy(
            queue.broker_name,
            queue.topic,
            copy.payload,
            record.properties,
            now_ms=self._trace.now_ms,
        )
        for ledger in self.pops.values():
            ledger.note_copy(queue, offset, *copy)
            for change in decode_pop_changes(record.body) if queue.topic == POP_LOG_TOPIC else ():
                ledger.note_change(change, queue.broker_name, wall_ms=wall_ms)
        self._copies[queue].append(copy)
        self._places[queue.broker_name, position] = (queue, offset)
        if queue.topic in (self._dlq, retry_topic(self._group)):
            self._again.add((queue.topic, copy))
        if queue.topic == self._dlq:
            self._dead.add(copy.payload)
            if self._retries_max is not None and copy.reconsume_times < self._retries_max:
                self.fail(f"{place}: a dead letter after {copy.reconsume_times - 1} retries")

    def note_expired(self, broker_name: str, store: MessageStore, position: int) -> None:
        """Note that a broker's log now begins at a position."""
        places = [
            place
            for (name, at), place in self._places.items()
            if name == broker_name and at < position
        ]
        for queue, offset in sorted(places, key=lambda place: (queue_order(place[0]), place[1])):
            if offset < self._expired_to.get(queue, 0):
                continue
            self._expired_to[queue] = offset + 1
            self._finish(queue, offset)
            for ledger in self.pops.values():
                ledger.note_expired(queue, offset)
            payload = self._copies[queue][offset].payload
            self._consumed.add(payload)
            self._expired.add(payload)
        for queue in [q for q in self._copies if q.broker_name == broker_name]:
            begin = store.queues.min_offset(queue.topic, queue.queue_id)
            if begin != self._expired_to.get(queue, 0):
                self.fail(
                    f"{_name(queue)} begins at {begin} where messages up to "
                    f"{self._expired_to.get(queue, 0)} have expired"
                )

    def note_disk(self, broker_name: str, *, is_full: bool) -> None:
        """Note, at the end of a broker's turn, whether its disk is full."""
        if is_full:
            self._full_disks.add(broker_name)
        else:
            self._full_disks.discard(broker_name)

    def note_sent(self, payload: bytes, *, delay_ms: int = 0) -> None:
        """Note that a producer is about to send a message, to be delivered after a delay."""
        self._sent.add(payload)
        self.delays.note_sent(payload, delay_ms, now_ms=self._trace.now_ms)

    def note_begun(self, payload: bytes) -> None:
        """Note that a producer is about to begin a transaction."""
        self.note_sent(payload)
        self.ledger.begin(payload)

    def note_acked(self, payload: bytes, queue: MessageQueue, offset: int) -> None:
        """Note the acknowledgement of a message, and check that the message is readable.

        If the disk has no room for the queue entry, the check waits for the entry, at most until
        the end of the run.
        """
        shown = payload.decode().rstrip(".")
        self._trace.add(f"{shown} acknowledged at {_name(queue)} {offset}")
        if payload in self.lost:
            # It may have been lost before this answer came.
            return
        self.acked[payload] = queue
        self.delays.note_acked(payload, now_ms=self._trace.now_ms)
        if self.delays.is_delayed(payload):
            # The offset is that of the topic in which the message waits.
            return
        self._acked_at.setdefault(queue, {})[offset] = payload
        copies = self._copies.get(queue, [])
        if offset >= len(copies) and queue.broker_name in self._full_disks:
            return
        if offset >= len(copies):
            self.fail(f"{_name(queue)} offset {offset}: acknowledged and not readable")
        elif copies[offset].payload != payload:
            held = copies[offset].payload
            self.fail(f"{_name(queue)} offset {offset}: {payload!r} acknowledged, holds {held!r}")

    # --- consumption ------------------------------------------------------------------------

    def note_delivered(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> None:
        """Note that a listener gets messages."""
        copies = self._copies.get(queue, [])
        # A member may have had a lost message before.
        messages = [message for message in messages if not self.is_lost(queue, message)]
        if self._is_orderly and messages:
            self._check_order(queue, [message.queue_offset for message in messages])
        for message in messages:
            offset = message.queue_offset
            self._trace.add(f"{_name(queue)} {offset} is delivered")
            if offset >= len(copies) or copies[offset].payload != message.body:
                self.fail(f"{_name(queue)} offset {offset}: delivered and not stored")
            elif offset in self._finished.get(queue, ()) or offset < self.prefix(queue):
                self.duplicates += 1
            if not self._may_redeliver:
                self._check_once(queue, offset)

    def note_given_up(self, queue: MessageQueue) -> None:
        """Note that a queue was given up: what is not committed may come again."""
        prefix = self.prefix(queue)
        self._delivered[queue] = {at for at in self._delivered.get(queue, ()) if at < prefix}

    def _check_once(self, queue: MessageQueue, offset: int) -> None:
        delivered = self._delivered.setdefault(queue, set())
        if offset in delivered:
            self.fail(f"{_name(queue)} offset {offset}: delivered again after a handover")
        delivered.add(offset)

    def _check_order(self, queue: MessageQueue, offsets: Sequence[int]) -> None:
        begin = offsets[0]
        if begin > self.prefix(queue) or list(offsets) != list(range(begin, begin + len(offsets))):
            self.fail(
                f"{_name(queue)}: {list(offsets)} delivered, finished only up to "
                f"{self.prefix(queue)}"
            )

    def note_consumed(self, queue: MessageQueue, offsets: Iterable[int]) -> None:
        """Note that a listener has finished messages."""
        copies = self._copies.get(queue, [])
        for offset in offsets:
            self._finish(queue, offset)
            if offset < len(copies):
                self._consumed.add(copies[offset].payload)

    def note_sent_back(self, broker_name: str, position: int) -> None:
        """Note that a broker has stored a message again for its group."""
        place = self._places.get((broker_name, position))
        if place is None:
            self.fail(f"{broker_name}: sent back from position {position}, where nothing stands")
            return
        queue, offset = place
        copy = self._copies[queue][offset]
        is_dead = self._retries_max is not None and copy.reconsume_times >= self._retries_max
        # In order, a member counts the retries itself.
        is_dead |= self._is_orderly
        again = copy._replace(reconsume_times=copy.reconsume_times + 1)
        self._owed[again] = (self._dlq if is_dead else retry_topic(self._group),)
        self._finish(queue, offset)

    def note_sent_again(self, payload: bytes, *, reconsume_times: int) -> None:
        """Note that a client has stored a consumed message for its group as a new message."""
        # The broker counts otherwise than for a send-back, as RocketMQ's does.
        self._owed[Copy(payload, reconsume_times)] = (retry_topic(self._group), self._dlq)
        # A member counts the retries itself: in order all, else those after a refused send-back.
        times = range(reconsume_times)
        for queue in [q for q in self._copies if q.topic in self._topics]:
            for offset, copy in enumerate(self._copies[queue]):
                if copy.payload == payload and copy.reconsume_times in times:
                    self._finish(queue, offset)

    def _finish(self, queue: MessageQueue, offset: int) -> None:
        self._trace.add(f"{_name(queue)} {offset} is finished")
        self._finished.setdefault(queue, set()).add(offset)

    def prefix(self, queue: MessageQueue) -> int:
        """Return the offset before which every message of a queue is finished."""
        offset = self._prefix.get(queue, 0)
        finished = self._finished.get(queue)
        if finished is not None:
            while offset in finished:
                finished.discard(offset)
                offset += 1
            self._prefix[queue] = offset
        return offset

    def check_release(
        self,
        name: str,
        member: Holder,
        running: Iterable[MessageQueue],
    ) -> None:
        """Check that the member still holds every queue with a running listener.

        Args:
            running: the queues of the listener's calls, without queues given up for a reason.
        """
        for queue in running:
            if not member.holds(queue):
                self.fail(f"{name} released {_name(queue)} while its listener ran")

    def check_drain(self, name: str, queue: MessageQueue, *, waited_ms: int, bound_ms: int) -> None:
        """Check that a member waited for a running listener before it gave up the queue.

        Args:
            waited_ms: the instant at which the listener's call began.
            bound_ms: how long the call may last after the revocation.
        """
        if waited_ms < bound_ms:
            self.fail(f"{name} gave {_name(queue)} up {waited_ms} ms after its listener began")

    def note_locks_lost(self, broker_name: str, *, now_ms: int) -> None:
        """Note that a broker has lost its locks: others may get what owners believe to hold."""
        self._locks_lost_until_ms[broker_name] = now_ms + self._lock_notice_ms

    def check_leases(self, members: Iterable[tuple[str, Holder]], *, now_ms: int) -> None:
        """Check that no two members believe to hold one queue's lock; names go with members."""
        if self._may_share_queues:
            return
        owners: dict[MessageQueue, str] = {}
        for name, member in members:
            for queue in member.sure_queues(now_ms):
                owner = owners.setdefault(queue, name)
                if owner == name or now_ms < self._locks_lost_until_ms.get(queue.broker_name, 0):
                    continue
                self.fail(f"{_name(queue)}: locked by {owner} and {name} at once")

    def note_asked(self, host: str, queue: MessageQueue, *, now_ms: int) -> None:
        """Note that a host asks for the group's offset of a queue."""
        self._asked_ms[host, queue] = now_ms

    def check_asked(self, host: str, queue: MessageQueue, *, woken_ms: int) -> None:
        """Check that a host has asked for a queue's offset since it stood still for long."""
        if self._asked_ms.get((host, queue), 0) < woken_ms:
            self.fail(
                f"{host} delivers messages of {_name(queue)}, but stood still and did not ask"
            )

    # --- offsets ----------------------------------------------------------------------------

    def note_committer(
        self, queue: MessageQueue, connection: str, *, holder: str | None = None
    ) -> None:
        """Note that the client of a connection asks to commit an offset.

        Args:
            connection: begins with the client's host.
            holder: the client id of the listed member that holds the queue's lock.
        """
        self._committer[queue] = connection
        self._holder[queue] = holder

    def check_commits(
        self, broker_name: str, tables: Mapping[str, Mapping[int, int]], *, now_ms: int
    ) -> None:
        """Check the commits since the last call; `tables` is by topic and queue id."""
        for topic in self._topics:
            for queue_id, offset in tables[topic].items():
                queue = MessageQueue(topic, broker_name, queue_id)
                known = self._committed.get(queue)
                if offset == known:
                    continue
                self._trace.add(f"{_name(queue)} {offset} is committed")
                self._committed[queue] = offset
                commit = _Commit(now_ms, offset)
                self._unsaved.setdefault(queue, []).append(commit)
                if offset > self.prefix(queue):
                    self.fail(
                        f"{_name(queue)}: {offset} committed, finished only up to "
                        f"{self.prefix(queue)}"
                    )
                elif known is not None and offset < known:
                    self._check_step_back(queue, offset, known)
                self._committed_by[queue] = self._committer.get(queue, "")
        self._check_forgotten(now_ms)

    def _check_forgotten(self, now_ms: int) -> None:
        for queue, (offset, started_ms) in tuple(self._forgotten.items()):
            if self._committed.get(queue, 0) >= offset:
                del self._forgotten[queue]
            elif now_ms - started_ms > AGAIN_MS:
                self.fail(f"{_name(queue)}: {offset}, which was forgotten, is not committed again")

    def _check_step_back(self, queue: MessageQueue, offset: int, known: int) -> None:
        committer = self._committer.get(queue, "")
        holder = self._holder.get(queue)
        may_be_late = holder is None or _host_of(holder) == _host_of(committer)
        is_other = self._committed_by.get(queue) != committer and self._may_redeliver
        is_other = is_other and may_be_late
        if self._may_share_queues or is_other:
            self._trace.add(f"{committer} sets {_name(queue)} back from {known} to {offset}")
            self.steps_back += 1
        else:
            self.fail(f"{_name(queue)}: {offset} committed after {known} by {committer}")

    def note_saved(self, broker_name: str, tables: Mapping[str, Mapping[int, int]]) -> None:
        """Note that a broker has written offsets; `tables` is by topic and queue id."""
        for queue, commits in self._unsaved.items():
            offset = tables.get(queue.topic, {}).get(queue.queue_id)
            if queue.broker_name == broker_name and offset is not None:
                self._saved[queue] = offset
                same = [at for at, commit in enumerate(commits, 1) if commit.offset == offset]
                del commits[: max(same, default=0)]

    def check_saving(self, broker_name: str, *, last_ms: int, latest_ms: int) -> None:
        """Check that a broker that writes no offsets now does not delay the write for long.

        Args:
            last_ms: the instant of the last beginning or end of a write.
            latest_ms: commits before this instant should be written, or under way.
        """
        if last_ms >= latest_ms:
            return
        for queue, commits in self._unsaved.items():
            if queue.broker_name == broker_name and commits and commits[0].at_ms < latest_ms:
                self.fail(f"{_name(queue)}: offset {commits[0].offset} is not written")

    def note_stopped(self, broker_name: str) -> None:
        """Note that a broker is down: until it is back nobody can commit there."""
        for queue, (offset, _) in self._forgotten.items():
            if queue.broker_name == broker_name:
                self._forgotten[queue] = offset, _NEVER_MS

    def check_reloaded(
        self, broker_name: str, tables: Mapping[str, Mapping[int, int]], *, now_ms: int
    ) -> None:
        """Check the offsets after a crash: the written ones, or any later commit."""
        for queue in [q for q in self._committed if q.broker_name == broker_name]:
            loaded = tables[queue.topic].get(queue.queue_id)
            before = max(self._committed[queue], self._forgotten.get(queue, (0, 0))[0])
            if self._keeps_members and (loaded or 0) < before:
                self._forgotten[queue] = before, now_ms
            saved = self._saved.get(queue)
            allowed = {saved, *(commit.offset for commit in self._unsaved[queue])}
            end = len(self._copies.get(queue, ()))
            if any(offset is not None and offset > end for offset in allowed):
                allowed.add(end)
            if loaded is not None and loaded > end:
                self.fail(f"{_name(queue)}: {loaded} after a restart, and the queue ends at {end}")
            if loaded not in allowed:
                self.fail(f"{_name(queue)}: {loaded} after a restart, {saved} was written")
            self._unsaved[queue].clear()
            # The file does not name the client of a commit.
            self._committed_by.pop(queue, None)
            if loaded is None:
                del self._committed[queue]
            else:
                self._committed[queue] = self._saved[queue] = loaded

    # --- after the heal ---------------------------------------------------------------------

    def find_unfinished(self) -> str | None:
        """Return the group's unfinished work, None for none."""
        for queue, acked in self._acked_at.items():
            if acked and max(acked) >= len(self._copies.get(queue, ())):
                return f"{_name(queue)} offset {max(acked)} is not readable"
        for queue in sorted(self._copies, key=queue_order):
            if queue.topic not in self._topics:
                continue
            count = len(self._copies[queue])
            if self.prefix(queue) < count:
                return f"{_name(queue)} finished up to {self.prefix(queue)} of {count}"
            if self._committed.get(queue, 0) < count:
                return f"{_name(queue)} committed {self._committed.get(queue)} of {count}"
        wanted = (*self.acked, *self.ledger.committed)
        found = self._consumed | self._dead
        lost = [p for p in wanted if p not in found and not self.delays.may_be_gone(p)]
        if lost:
            return f"message {lost[0]!r} consumed by nobody"
        unpopped = (ledger.find_unfinished() for ledger in self.pops.values())
        return self.find_owed() or next(filter(None, unpopped), None)

    def find_owed(self) -> str | None:
        """Return a message that was sent back and is nowhere again, None for none."""
        for copy, topics in self._list_owed():
            return (
                f"message {copy.payload!r} sent back, and no retry {copy.reconsume_times} "
                f"in {topics[0]}"
            )
        return None

    def longest_retry_ms(self) -> int:
        """Return the longest delay of the messages that were sent back and are nowhere again."""
        times = max((copy.reconsume_times for copy, _ in self._list_owed()), default=0)
        level = min(_FIRST_RETRY_LEVEL - 1 + times, len(DELAY_LEVELS_MS))
        return DELAY_LEVELS_MS[level - 1] if times else 0

    def _list_owed(self) -> Iterator[tuple[Copy, Sequence[str]]]:
        for copy, topics in self._owed.items():
            is_here = any((topic, copy) in self._again for topic in topics)
            if not is_here and copy.payload not in self._expired:
                yield copy, topics

    def find_open_transaction(self) -> str | None:
        """Return the fault of a transaction after the decision on all half messages."""
        return self.ledger.find_open(self._consumed)


def _host_of(name: str) -> str:
    """Return the host at the begin of a client id or of a connection's name."""
    return name.partition("@")[0].partition(":")[0]


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker_name}:{queue.queue_id}"
