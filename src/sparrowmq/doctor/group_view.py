"""The view of a consumer group: for each queue its share, owners, state, lag and rates. Pure.

`examine` computes the view from a snapshot, which is what brokers and members answered. The
doctor's rules read the view; the command line, `top`, the page, the exporter, the drills and the
jobs draw it.
Tests: test_diagnosis_queues.py, test_one_owner.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from sparrowmq.coordination.member_marker import is_marked
from sparrowmq.doctor.group_snapshot import (
    BROADCASTING,
    LATE_MS,
    BrokerView,
    GroupSnapshot,
    HeldQueue,
    MemberConnection,
    QueueProgress,
    Sample,
)
from sparrowmq.doctor.ownership import Ownership, OwnerState, compute_ownership
from sparrowmq.model import MessageQueue
from sparrowmq.words import Phrase, count_of, format_duration, format_rate

# Looks that are closer together give no reliable rate.
INTERVAL_MS_MIN = 500
# Looks that are further apart leave a gap, in which nobody looked.
GAP_MS = 60_000
# Members commit every 5 s (persistConsumerOffsetInterval). Within a shorter time an offset may
# stand still although its member works.
STILL_MS_MIN = 5_500
# Members may have consumed, but not yet committed, the input of two commit intervals. A backlog of
# that size is not evidence that a group falls behind.
COMMITTED_S = 11.0
# Between two samples 6 s apart, members that keep up commit at least this share of the input.
KEEPS_UP_SHARE = 0.6
# So few messages are under way in every group.
UNDER_WAY_MIN = 10

_Progress: TypeAlias = Mapping[MessageQueue, QueueProgress]


class QueueRate(NamedTuple):
    """The rates of one queue between the samples.

    `stood_still` is False if the samples were too close together to show a standstill.
    """

    produced_per_s: float
    consumed_per_s: float
    stood_still: bool

    @property
    def growth_per_s(self) -> float:
        """The growth of the backlog in messages a second; negative while the backlog shrinks."""
        return self.produced_per_s - self.consumed_per_s


class Flow(NamedTuple):
    """The input, output and backlog of some queues.

    `is_on_its_way` is True if members may have consumed the whole backlog without committing it
    yet. Members commit every few seconds, so between two samples a group may seem to fall behind by
    its whole input.
    """

    produced_per_s: float
    consumed_per_s: float
    lag: int
    is_on_its_way: bool

    @property
    def growth_per_s(self) -> float:
        """The growth of the backlog in messages a second; negative while the backlog shrinks."""
        return self.produced_per_s - self.consumed_per_s

    @property
    def drain_s(self) -> float:
        """The seconds until the backlog is consumed at this pace; infinite unless it shrinks."""
        return self.lag / -self.growth_per_s if self.growth_per_s < 0 else float("inf")


class Standing(NamedTuple):
    """A queue's owners, and the wall-clock time at which they took it.

    They took it earlier than `since_ms` unless `is_exact`: then it is the time of the first view.
    """

    owners: tuple[str, ...]
    since_ms: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """One queue of a group.

    Args:
        share: the connections of the members to whom the queue falls.
        owners: the connections of the members that consume the queue now.
        progress: the group's progress; None if no broker reported it.
        rate: the rates; None unless the snapshot has two samples.
        in_hand: the number of uncommitted messages that the owner holds.
        uncommitted: those of them that the owner has consumed.
        standing: since when the queue has these owners.
    """

    queue: MessageQueue
    share: tuple[MemberConnection, ...]
    owners: tuple[MemberConnection, ...]
    state: OwnerState
    progress: QueueProgress | None
    rate: QueueRate | None
    in_hand: int
    uncommitted: int
    standing: Standing

    @property
    def owner_ids(self) -> tuple[str, ...]:
        """The owners' client ids; an id twice if two processes have it."""
        return self.standing.owners

    @property
    def lag(self) -> int | None:
        """The number of unconsumed messages; None if unknown, as for BROADCASTING members."""
        if self.progress is None or self.state is OwnerState.BROADCAST:
            return None
        return self.progress.lag

    @property
    def consumed_per_s(self) -> float | None:
        """The messages consumed a second; None if unknown, as for BROADCASTING members."""
        if self.rate is None or self.state is OwnerState.BROADCAST:
            return None
        return self.rate.consumed_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A consumer group.

    Args:
        rates: the rates of each queue; empty after a single sample.
        queues: the queues that members divide, those of the retry topic included.
        progress: the group's progress in each queue at the newest sample.
        held: what members report of each queue that they have.
        filtered: the topics of which the group subscribes some messages only.
    """

    snapshot: GroupSnapshot
    ownership: Ownership
    rates: Mapping[MessageQueue, QueueRate]
    queues: Mapping[MessageQueue, QueueView]
    progress: _Progress
    held: Mapping[MessageQueue, Sequence[HeldQueue]]
    filtered: frozenset[str]

    @property
    def timestamp_ms(self) -> int:
        """The wall-clock time of the snapshot."""
        return self.snapshot.last.timestamp_ms

    @property
    def members(self) -> Counter[str]:
        """The number of connections that carry each client id."""
        return Counter(c.client_id for c in self.ownership.connections)

    @property
    def member_count(self) -> int | None:
        """The number of connections; None of a group whose consumers only pop."""
        count = len(self.ownership.connections)
        return None if self.ownership.is_by_message and not count else count

    @property
    def marked(self) -> frozenset[str]:
        """The client ids of members that run SparrowMQ and so hand over under locks."""
        return frozenset(c.client_id for c in self.ownership.connections if is_marked(c.version))

    @property
    def user_queues(self) -> list[MessageQueue]:
        """The queues of all topics but the retry topic."""
        return [queue for topic in self.snapshot.user_topics for queue in topic.subscribe_queues]

    @property
    def subscriptions(self) -> Mapping[str, str]:
        """The group's subscription to each topic."""
        found = [s for broker in self.snapshot.last.brokers for s in broker.subscriptions]
        return {subscription.topic: subscription.expression for subscription in found}

    @property
    def standings(self) -> dict[MessageQueue, Standing]:
        """Each queue's owners and since when."""
        return {queue: each.standing for queue, each in self.queues.items()}

    @property
    def loads(self) -> Mapping[str, float]:
        """Each member's load; empty unless the group divides by load and brokers measured it."""
        plan = self.snapshot.plan
        if plan is None or not plan.queue_loads:
            return {}
        owners = {queue: ids[0] for queue, each in self.queues.items() if (ids := each.owner_ids)}
        return plan.loads.member_loads(owners, list(self.members))

    def owned_by(self, client_id: str) -> list[MessageQueue]:
        """Return the queues that a client id consumes, without the retry topic's."""
        return [queue for queue in self.user_queues if client_id in self.queues[queue].owner_ids]

    @property
    def in_flight(self) -> int | None:
        """The messages that consumers by message have received and not acknowledged.

        None if no broker reports them: RocketMQ's do not.
        """
        last = self.snapshot.last
        count = sum(progress.in_flight for progress in last.progress)
        return count if count or any(broker.is_popped for broker in last.brokers) else None

    @property
    def oldest_in_flight(self) -> tuple[MessageQueue, int] | None:
        """The queue and the age in milliseconds of the oldest message in flight; None if unknown.

        The age counts from the time at which the message was stored.
        """
        last = self.snapshot.last
        known = [(p.oldest_timestamp_ms, p.queue) for p in last.progress if p.oldest_timestamp_ms]
        if not known:
            return None
        stored_ms, queue = min(known)
        return queue, max(0, last.timestamp_ms - stored_ms)

    @property
    def renewals(self) -> int:
        """How often consumers extended the times of the messages that are in flight."""
        return sum(progress.renewals for progress in self.snapshot.last.progress)

    @property
    def unowned(self) -> int:
        """The number of queues that nobody consumes."""
        return self.count_of(OwnerState.UNOWNED)

    @property
    def double(self) -> int:
        """The number of queues that several members consume."""
        return self.count_of(OwnerState.DOUBLE)

    def count_of(self, state: OwnerState) -> int:
        """Return the number of queues in a state, without the retry topic's."""
        return sum(self.queues[queue].state is state for queue in self.user_queues)

    def offset_of(self, queue: MessageQueue) -> int:
        """Return the group's committed offset in a queue; 0 if none is known."""
        view = self.queues.get(queue)
        return (view.progress.committed_offset or 0) if view and view.progress else 0

    @property
    def can_see_standstill(self) -> bool:
        """Whether the samples were far enough apart to show that an offset stands still."""
        return self.snapshot.interval_ms >= STILL_MS_MIN

    def stands_still(self, queue: MessageQueue, *, is_silent: bool = False) -> bool:
        """Return whether a queue has a backlog and its offset did not move between the samples.

        What came since the first sample does not count, as it may be consumed and not committed
        yet, unless the owner does not answer (`is_silent`). A queue does not count while members
        hand it over, while its owner waits for a message that its subscription matches, or if the
        owner has consumed most of the backlog and not committed, or has a limit of its own under
        which not each of its queues has a message between the samples.
        """
        rate = self.rates.get(queue)
        return (
            rate is not None
            and rate.stood_still
            and self.lag([queue]) > (0 if is_silent else self._count_new(queue))
            and not self.is_handed_over(queue)
            and not self.waits_for_match(queue)
            and 2 * self.uncommitted(queue) < self.lag([queue])
            and not self._has_no_turn(queue)
        )

    def has_only_new(self, queue: MessageQueue) -> bool:
        """Return whether nothing is known of a queue's pace, as its backlog came meanwhile.

        All of it came between the samples, and the offset did not move.
        """
        rate = self.rates.get(queue)
        stood_still = rate is not None and rate.stood_still
        return stood_still and 0 < self.lag([queue]) <= self._count_new(queue)

    def _count_new(self, queue: MessageQueue) -> int:
        """Return how many messages of a queue came between the samples."""
        rate = self.rates.get(queue)
        return 0 if rate is None else round(rate.produced_per_s * self.snapshot.interval_ms / 1000)

    def may_be_in_calls(self, queues: Iterable[MessageQueue]) -> bool:
        """Return whether all that is behind may be in calls that last longer than the look."""
        flow = self.flow(queues)
        is_long = 1000 * self.listener_s >= self.snapshot.interval_ms
        return flow is not None and flow.is_on_its_way and is_long

    def _has_no_turn(self, queue: MessageQueue) -> bool:
        """Return whether an owner's own limit is too low for a message of each of its queues."""
        each = self.queues.get(queue)
        for client_id in each.owner_ids if each else ():
            report = self.snapshot.find_report(client_id)
            if report is not None and (rate := report.messages_per_s_max):
                # Turns are not strict: two rounds, to be sure of one.
                return rate * self.snapshot.interval_ms < 2_000 * len(report.held)
        return False

    def uncommitted(self, queue: MessageQueue) -> int:
        """Return how many messages the queue's owner has consumed and not committed."""
        view = self.queues.get(queue)
        return view.uncommitted if view else 0

    def is_user_queue(self, queue: MessageQueue) -> bool:
        """Return whether a queue belongs to a topic that the group subscribes."""
        return queue.topic in {topic.topic for topic in self.snapshot.user_topics}

    def is_handed_over(self, queue: MessageQueue) -> bool:
        """Return whether a member gives the queue up, or waits until it may begin to consume."""
        return any(each.is_dropped or not each.is_consumed for each in self.held.get(queue, ()))

    def waits_for_match(self, queue: MessageQueue) -> bool:
        """Return whether the queue's owner filters, and has no message of the queue in hand.

        A broker holds a pull until a message matches. Meanwhile other messages arrive and the
        offset stands still, although nothing is to be consumed. A hold ends long before a message
        is late, and the offset then passes what does not match.
        """
        if queue.topic not in self.filtered or self.is_late([queue]):
            return False
        owners = {c.client_id for c in self.ownership.falls_to.get(queue, ())}
        if any(r.is_silent for r in self.snapshot.reports if r.client_id in owners):
            return False
        return not any(each.cached_count for each in self.held.get(queue, ()))

    def lag(self, queues: Iterable[MessageQueue] | None = None) -> int:
        """Return the number of unconsumed messages in these queues; None means all queues."""
        known = self.progress
        return sum(known[q].lag for q in (known if queues is None else queues) if q in known)

    @property
    def known_lag(self) -> int | None:
        """The number of unconsumed messages; None if unknown, as for BROADCASTING members."""
        is_known = bool(self.progress) and not self.snapshot.is_broadcasting
        return self.lag() if is_known else None

    def wait_ms(self, queues: Iterable[MessageQueue]) -> int:
        """Return how long the oldest unconsumed message of these queues waits; 0 if not for long.

        The time counts from the time at which the message was stored.
        """
        known = self.progress
        return max((known[queue].wait_ms for queue in queues if queue in known), default=0)

    def is_late(self, queues: Iterable[MessageQueue]) -> bool:
        """Return whether a message of these queues waits too long."""
        return self.wait_ms(queues) >= LATE_MS

    def flow(self, queues: Iterable[MessageQueue]) -> Flow | None:
        """Return the input and output of these queues; None if the rate of none is known."""
        rates = [(queue, self.rates[queue]) for queue in queues if queue in self.rates]
        if not rates:
            return None
        produced_per_s = sum(rate.produced_per_s for _, rate in rates)
        consumed_per_s = sum(rate.consumed_per_s for _, rate in rates)
        by_message = self.ownership.is_by_message
        is_owned = by_message or all(self.ownership.falls_to.get(queue) for queue, _ in rates)
        counted = {queue: rate for queue, rate in rates if not self.waits_for_match(queue)}
        arrived_per_s = sum(rate.produced_per_s for rate in counted.values())
        done_per_s = sum(rate.consumed_per_s for rate in counted.values())
        keeps_up = not self.can_see_standstill or done_per_s >= KEEPS_UP_SHARE * arrived_per_s
        under_way = arrived_per_s * (COMMITTED_S + self.listener_s) if keeps_up else 0
        if by_message:
            under_way = self.in_flight or 0
        return Flow(
            produced_per_s=produced_per_s,
            consumed_per_s=consumed_per_s,
            lag=self.lag([queue for queue, _ in rates]),
            is_on_its_way=is_owned and self.lag(counted) <= max(UNDER_WAY_MIN, under_way),
        )

    @property
    def listener_s(self) -> float:
        """The longest mean time of a listener's call that a member reports, in seconds."""
        paces = [pace for report in self.snapshot.reports for pace in report.paces]
        return max((pace.listener_ms for pace in paces), default=0.0) / 1000

    def describe_backlog(self, queues: Iterable[MessageQueue]) -> Phrase:
        """Describe the backlog of these queues and its growth."""
        chosen = list(queues)
        lag = self.lag(chosen)
        messages = count_of(lag, "message")
        flow = self.flow(chosen)
        if flow is None or not (lag or flow.growth_per_s > 0):
            return Phrase("{messages} behind", messages=messages)
        if flow.is_on_its_way and not self._is_behind(chosen):
            if not lag:
                return Phrase("{messages} behind", messages=messages)
            return Phrase(
                "{messages} behind, perhaps consumed but not yet committed", messages=messages
            )
        if abs(flow.growth_per_s) < 0.05:
            return Phrase("{messages} behind, not growing now", messages=messages)
        if flow.growth_per_s > 0:
            return Phrase(
                "{messages} behind, growing by {rate} a second",
                messages=messages,
                rate=format_rate(flow.growth_per_s),
            )
        return Phrase(
            "{messages} behind, shrinking by {rate} a second: none left in {time}",
            messages=messages,
            rate=format_rate(-flow.growth_per_s),
            time=format_duration(1000 * flow.drain_s),
        )

    def _is_behind(self, queues: Iterable[MessageQueue]) -> bool:
        """Return whether a message is late, a queue stands still, or one owner is behind alone."""
        by_owners: dict[tuple[str, ...], list[MessageQueue]] = {}
        for queue in queues:
            owners = self.queues[queue].owner_ids if queue in self.queues else ()
            by_owners.setdefault(owners, []).append(queue)
        return any(
            self.is_late(mine)
            or any(map(self.stands_still, mine))
            or ((flow := self.flow(mine)) is not None and not flow.is_on_its_way)
            for mine in by_owners.values()
        )

    def describe_plan(self) -> Phrase | None:
        """Describe what the group's plan moved for load; None if it moved nothing."""
        plan = self.snapshot.plan
        if plan is None or not plan.moved:
            return None
        # An epoch is not below the broker's clock at the time of the plan.
        return Phrase(
            "{queues} moved for load {time} ago: {change}",
            queues=count_of(len(plan.moved), "queue"),
            time=format_duration(max(0, self.timestamp_ms - plan.epoch)),
            change=plan.fall,
        )

    def describe_interval(self) -> Phrase:
        """Write the time between the samples."""
        return Phrase("{n} s", n=f"{self.snapshot.interval_ms / 1000:.1f}")

    def describe_size(self, queues: int, members: int) -> Phrase:
        """Write the group's numbers of queues and members, and its strategy."""
        return Phrase(
            "{queues}, {members}, strategy {name}",
            queues=count_of(queues, "queue"),
            members=count_of(members, "member"),
            name=self.snapshot.strategy,
        )


def describe_rates(pace: Flow | QueueRate) -> Phrase:
    """Write an input rate and an output rate."""
    return Phrase(
        "{produced} messages a second in, {consumed} out",
        produced=format_rate(pace.produced_per_s),
        consumed=format_rate(pace.consumed_per_s),
    )


def examine(
    snapshot: GroupSnapshot,
    known: Mapping[MessageQueue, Standing] = MappingProxyType({}),
    *,
    is_watched: bool = True,
) -> GroupView:
    """Compute the view of a group.

    Args:
        known: the standings of the view before; empty if this is the first.
        is_watched: whether the view before is so recent that a change of owners happened now.
    """
    return make_view(snapshot, compute_ownership(snapshot), known, is_watched=is_watched)


def is_watched(before: GroupView | None, timestamp_ms: int) -> bool:
    """Return whether a view was so short a time ago that no change since then was missed."""
    return before is not None and 0 <= timestamp_ms - before.timestamp_ms <= GAP_MS


def make_view(
    snapshot: GroupSnapshot,
    ownership: Ownership,
    known: Mapping[MessageQueue, Standing] = MappingProxyType({}),
    *,
    is_watched: bool = True,
) -> GroupView:
    """Make the view of a group whose owners are known: see `examine`."""
    progress, rates = {p.queue: p for p in snapshot.last.progress}, compute_rates(snapshot)
    in_hand, uncommitted = _in_hand(snapshot, progress), _uncommitted(snapshot, progress)
    queues = {}
    for queue, owners in ownership.owners.items():
        standing, owner_ids = known.get(queue), ownership.owner_ids(queue)
        if standing is None or standing.owners != owner_ids:
            is_exact = is_watched and bool(known)
            standing = Standing(owner_ids, snapshot.last.timestamp_ms, is_exact)
        queues[queue] = QueueView(
            queue=queue,
            share=ownership.falls_to[queue],
            owners=owners,
            state=ownership.state_of(queue),
            progress=progress.get(queue),
            rate=rates.get(queue),
            in_hand=in_hand.get(queue, 0),
            uncommitted=uncommitted.get(queue, 0),
            standing=standing,
        )
    held: dict[MessageQueue, list[HeldQueue]] = {}
    for each in (each for report in snapshot.reports for each in report.held):
        held.setdefault(each.queue, []).append(each)
    said = [s for broker in snapshot.last.brokers for s in broker.subscriptions]
    said += [s for report in snapshot.reports for s in report.subscriptions]
    return GroupView(
        snapshot=snapshot,
        ownership=ownership,
        rates=rates,
        queues=queues,
        progress=progress,
        held=held,
        filtered=frozenset(s.topic for s in said if s.expression.strip() not in ("", "*")),
    )


def _in_hand(snapshot: GroupSnapshot, known: _Progress) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for held in (held for report in snapshot.reports for held in report.held):
        committed = known[held.queue].committed_offset if held.queue in known else None
        done = max(0, held.commit_offset - committed) if committed else 0
        found[held.queue] = max(found.get(held.queue, 0), held.cached_count + done)
    return found


def _uncommitted(snapshot: GroupSnapshot, known: _Progress) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for report in snapshot.reports:
        # No broker knows the offsets of a member in BROADCASTING.
        if report.message_model == BROADCASTING:
            continue
        for held in report.held:
            progress = known.get(held.queue)
            committed = (progress.committed_offset or 0) if progress else 0
            found[held.queue] = max(found.get(held.queue, 0), held.commit_offset - committed)
    return found


def compute_rates(snapshot: GroupSnapshot) -> dict[MessageQueue, QueueRate]:
    """Return each queue's rates between the samples; empty unless there are two samples."""
    if snapshot.interval_ms < INTERVAL_MS_MIN:
        return {}
    seconds = snapshot.interval_ms / 1000
    before = {progress.queue: progress for progress in snapshot.first.progress}
    rates = {}
    for now in snapshot.last.progress:
        then = before.get(now.queue)
        if then is None:
            continue
        consumed = now.consumed - then.consumed
        # Offsets go back with a reset, or when a topic is made anew.
        rates[now.queue] = QueueRate(
            produced_per_s=max(0, now.max_offset - then.max_offset) / seconds,
            consumed_per_s=max(0, consumed) / seconds,
            stood_still=consumed == 0 and snapshot.interval_ms >= STILL_MS_MIN,
        )
    return rates


def find_duplicates(sample: Sample) -> dict[str, tuple[MemberConnection, ...]]:
    """Return the client ids that some broker lists more than once, with their connections there."""
    found: dict[str, tuple[MemberConnection, ...]] = {}
    for broker in sample.brokers:
        counts = Counter(broker.cid_all or ())
        counts |= Counter(c.client_id for c in broker.connections)
        for client_id, count in counts.items():
            if count < 2 or count <= len(found.get(client_id, ())):
                continue
            known = [c for c in broker.connections if c.client_id == client_id]
            known += [MemberConnection(client_id, "")] * (count - len(known))
            found[client_id] = tuple(sorted(known, key=lambda c: c.address))
    return found


def member_ids(broker: BrokerView) -> frozenset[str]:
    """Return the distinct client ids that a broker lists."""
    return frozenset(broker.cid_all or ()) | {c.client_id for c in broker.connections}


def changed_members(first: Sample, last: Sample) -> tuple[frozenset[str], frozenset[str]]:
    """Return the client ids that brokers list in the last sample alone, and in the first alone.

    What a broker lists that did not answer one of them is not known.
    """
    then = {b.broker_name: member_ids(b) for b in first.brokers if b.cid_all is not None}
    pairs = [
        (then[broker.broker_name], member_ids(broker))
        for broker in last.brokers
        if broker.broker_name in then and broker.cid_all is not None
    ]
    came = frozenset(cid for before, after in pairs for cid in after - before)
    went = frozenset(cid for before, after in pairs for cid in before - after)
    return came, went
