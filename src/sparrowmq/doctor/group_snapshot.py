"""A consumer group seen from outside, as one value. Pure.

All fields come from requests that every RocketMQ broker answers. A field that nobody reported is
None or empty, and rules must allow for this. Two samples some seconds apart give rates; one sample
gives none. Tests: test_diagnosis_members.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.model import MessageQueue
from sparrowmq.model.names import retry_topic
from sparrowmq.model.queue import queue_order
from sparrowmq.strategies.by_load import FollowedPlan, GroupLoads, QueueLoad

BROADCASTING = "BROADCASTING"


class MemberConnection(NamedTuple):
    """One connection of a member; `address` is "" if the broker listed only the client id."""

    client_id: str
    address: str
    language: str = ""
    version: int = 0

    def __str__(self) -> str:
        return f"{self.client_id} from {self.address or 'an unknown address'}"


class SubscriptionView(NamedTuple):
    """The subscription of a group, or of one member, to a topic."""

    topic: str
    expression: str
    version: int = 0
    expression_type: str = "TAG"


# The dead letters that one command or call reads into memory.
LETTERS_READ_MAX = 100_000
# A dead letter counts as new for so long.
LETTER_IS_NEW_MS = 600_000
# A message that has waited for so long is late, however few wait behind it.
LATE_MS = 300_000


class DeadLetterCount(NamedTuple):
    """The dead letters of a group that brokers keep; `last_timestamp_ms` is 0 without one."""

    message_count: int = 0
    last_timestamp_ms: int = 0


def add_dead_letters(counts: Collection[DeadLetterCount]) -> DeadLetterCount:
    """Return the dead letters of several brokers as one count."""
    return DeadLetterCount(
        sum(each.message_count for each in counts),
        max((each.last_timestamp_ms for each in counts), default=0),
    )


class WaitingRetries(NamedTuple):
    """The failed messages of a group that wait for their next attempt, which no lag counts.

    `failed_times` is how often one of them has failed at most. The count is an estimate where more
    messages wait than were looked at.
    """

    message_count: int = 0
    is_estimate: bool = False
    failed_times: int = 0


def add_waiting_retries(counts: Collection[WaitingRetries]) -> WaitingRetries:
    """Return the waiting messages of several levels or brokers as one count."""
    return WaitingRetries(
        sum(each.message_count for each in counts),
        any(each.is_estimate for each in counts),
        max((each.failed_times for each in counts), default=0),
    )


class ProgressChange(NamedTuple):
    """A change of progress that no member made, as a SparrowMQ broker noted it.

    Args:
        timestamp_ms: when; of several joined requests, the last.
        kind: reset, set, copied, sent, sent again, made, settings, or deleted.
        who: the account, if there is one, and the address.
        request_count: the number of joined requests.
        detail: what changed, if it is not an offset.
        moves: queue id, and the group's offset before and after; None stands for no commit. For
            messages sent, the end of the queue before and after; for dead letters sent again,
            their offsets.
    """

    timestamp_ms: int
    kind: str
    who: str
    topic: str = ""
    request_count: int = 1
    detail: str = ""
    moves: tuple[tuple[int, int | None, int | None], ...] = ()

    @property
    def back(self) -> int:
        """The number of messages that come again."""
        return sum(max(0, -step) for step in self._steps())

    @property
    def forward(self) -> int:
        """The number of messages that were skipped, or that members have consumed since."""
        return sum(max(0, step) for step in self._steps())

    def _steps(self) -> list[int]:
        if self.kind in ("sent", "sent again"):
            return []
        return [(after or 0) - (before or 0) for _, before, after in self.moves]


_NO_DEAD_LETTERS = DeadLetterCount()
_NO_WAITING_RETRIES = WaitingRetries()


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """One broker's report of the group.

    Args:
        cluster: the cluster that the broker names as its own.
        address: the address at which the broker was asked.
        cid_all: the client ids that the broker lists, duplicates kept; None without an answer.
        subscriptions: the group's subscriptions by the last heartbeat that this broker received.
        consume_type, message_model, consume_from_where: RocketMQ's names; "" if unknown.
        failure: the reason why a field is missing; "" if none is.
        is_denied: whether access control keeps who looks from the group.
        answer_ms: the time of the answer with the client ids; None without one, or unmeasured.
        dead_letters: the group's dead letters at this broker; None if access control hides them.
        waiting_retries: the group's failed messages that wait at this broker.
        changes: the newest changes of the group's progress that no member made, the newest first.
        is_popped: whether consumers of the group have popped messages lately.
        is_disabled: whether the group's settings at this broker keep its messages back; asked only
            where messages wait and no member has one in hand.
        refused_filter: why the broker refuses an SQL92 expression of the group; "" if it does not.
    """

    broker_name: str
    cluster: str = ""
    address: str = ""
    cid_all: tuple[str, ...] | None = ()
    connections: tuple[MemberConnection, ...] = ()
    subscriptions: tuple[SubscriptionView, ...] = ()
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    failure: str = ""
    is_denied: bool = False
    answer_ms: int | None = None
    dead_letters: DeadLetterCount | None = _NO_DEAD_LETTERS
    waiting_retries: WaitingRetries = _NO_WAITING_RETRIES
    changes: tuple[ProgressChange, ...] = ()
    is_popped: bool = False
    is_disabled: bool = False
    refused_filter: str = ""


class QueueProgress(NamedTuple):
    """The group's progress in one queue.

    A `committed_offset` of None or 0 may mean that nothing was ever committed: brokers report 0 in
    both cases. `last_timestamp_ms` is the store time of the last consumed message, `wait_ms` the
    time since the first message that is not consumed was stored; 0 is unknown, or too short to ask.
    `expired` is the number of messages that were removed before the group committed them.
    Of a group that consumes by message, the broker gives the messages in flight, when the last of
    them is visible again, how often one of them was delivered at most, how often consumers
    extended their times, the store time of the oldest, and the messages that consumers acknowledged
    beyond the committed offset.
    """

    queue: MessageQueue
    max_offset: int
    committed_offset: int | None
    last_timestamp_ms: int = 0
    in_flight: int = 0
    acknowledged: int = 0
    visible_timestamp_ms: int = 0
    deliveries: int = 0
    renewals: int = 0
    oldest_timestamp_ms: int = 0
    wait_ms: int = 0
    expired: int = 0

    @property
    def consumed(self) -> int:
        """The number of messages consumed since the queue's first offset."""
        return (self.committed_offset or 0) + self.acknowledged

    @property
    def lag(self) -> int:
        """The number of unconsumed messages."""
        return max(0, self.max_offset - self.consumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of all brokers; `at_ms` is monotonic, `timestamp_ms` is wall-clock time."""

    at_ms: int
    timestamp_ms: int
    brokers: tuple[BrokerView, ...]
    progress: tuple[QueueProgress, ...] = ()

    @property
    def failures(self) -> dict[str, str]:
        """Why the reports of some brokers are missing, by the brokers' names."""
        return {broker.broker_name: broker.failure for broker in self.brokers if broker.failure}

    @property
    def changes(self) -> list[tuple[str, ProgressChange]]:
        """The changes at each broker, by its name, the newest first."""
        found = [(b.broker_name, change) for b in self.brokers for change in b.changes]
        return sorted(found, key=lambda each: -each[1].timestamp_ms)

    @property
    def dead_letters(self) -> DeadLetterCount:
        """The group's dead letters at all brokers that show them."""
        shown = [broker.dead_letters for broker in self.brokers]
        return add_dead_letters([each for each in shown if each is not None])

    @property
    def dead_letter_count(self) -> int | None:
        """The number of the group's dead letters; None if no broker shows them."""
        is_shown = any(broker.dead_letters is not None for broker in self.brokers)
        return self.dead_letters.message_count if is_shown else None

    @property
    def waiting_retries(self) -> WaitingRetries:
        """The group's failed messages that wait for their next attempt at all brokers."""
        return add_waiting_retries([broker.waiting_retries for broker in self.brokers])


class TopicQueues(NamedTuple):
    """A topic's queues at one broker."""

    broker_name: str
    read_count: int
    write_count: int
    is_readable: bool = True
    is_writable: bool = True
    cluster: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSnapshot:
    """A topic by the routes of the name servers.

    Args:
        topic: the topic's name.
        queues: the topic's queues by broker; empty if no name server knows the topic.
        surplus_offsets: the number of messages in each queue that accepts messages but cannot be
            read.
        broker_names_by_server: the topic's brokers by each name server, if several were asked.
        static_queues: the queues of a static topic of RocketMQ 5, which members divide in the
            place of the brokers' own; empty for other topics.
    """

    topic: str
    queues: tuple[TopicQueues, ...] = ()
    surplus_offsets: tuple[tuple[MessageQueue, int], ...] = ()
    broker_names_by_server: tuple[tuple[str, tuple[str, ...]], ...] = ()
    static_queues: tuple[MessageQueue, ...] = ()

    @property
    def subscribe_queues(self) -> list[MessageQueue]:
        """The queues that members divide, in the members' order."""
        found = list(self.static_queues) or [
            MessageQueue(self.topic, at.broker_name, queue_id)
            for at in self.queues
            if at.is_readable
            for queue_id in range(at.read_count)
        ]
        return sorted(found, key=queue_order)


# The states in which a member that runs SparrowMQ pulls, delivers or commits.
_CONSUMED = frozenset({"CONSUMING", "DRAINING", "COMMITTING"})


class HeldQueue(NamedTuple):
    """A queue that a member reports to have in hand.

    Args:
        is_dropped: whether the member is giving the queue up.
        cached_count: the number of messages that the member pulled and has not consumed.
        commit_offset: the offset up to which the member has consumed, committed or not.
        state: the queue's state, which members that run SparrowMQ report (`QueueState`); else "".
    """

    queue: MessageQueue
    is_locked: bool = False
    is_dropped: bool = False
    cached_count: int = 0
    commit_offset: int = 0
    last_pull_timestamp_ms: int = 0
    last_consume_timestamp_ms: int = 0
    state: str = ""

    @property
    def is_consumed(self) -> bool:
        """Whether the member consumes the queue: until it has drained, and not before it may."""
        return self.state in _CONSUMED if self.state else not self.is_dropped


class TopicPace(NamedTuple):
    """A member's own report of its pace in a topic, over about the last minute.

    `listener_ms` is the mean time of a call of the listener; 0 is unknown.
    """

    topic: str
    listener_ms: float
    done_per_s: float = 0.0
    failed_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """A member's report about itself.

    Args:
        client_id: the member; of several with one id, the member that the broker chose to ask.
        held: the member's queues.
        strategy: the name of the member's allocation strategy; "" if not reported.
        message_model: RocketMQ's name of the model, CLUSTERING or BROADCASTING; "" if not reported.
        is_orderly: whether the member consumes in order, and so needs a lock for each queue; None
            if not reported.
        thread_count: the threads that call the member's listener; 0 if not reported.
        longest_call_ms: how long the oldest unfinished call of the listener has taken; 0 without
            one, and for members that do not run SparrowMQ, which do not report it.
        messages_per_s_max: the member's own limit; 0 without one, or if not reported.
        is_silent: whether the member was asked and did not answer in time.
        failure: the reason for a missing report; "" if the member answered.
    """

    client_id: str
    held: tuple[HeldQueue, ...] = ()
    subscriptions: tuple[SubscriptionView, ...] = ()
    paces: tuple[TopicPace, ...] = ()
    strategy: str = ""
    message_model: str = ""
    is_orderly: bool | None = None
    thread_count: int = 0
    longest_call_ms: int = 0
    messages_per_s_max: int = 0
    is_silent: bool = False
    failure: str = ""

    @property
    def topics(self) -> frozenset[str]:
        """The topics that the member subscribes."""
        return frozenset(subscription.topic for subscription in self.subscriptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSnapshot:
    """The plan register of a group that divides by load, and the loads that brokers measured.

    Args:
        epoch: the plan's number; 0 if no plan was taken yet.
        owners: each queue's owner by the plan.
        client_ids: the members for which the plan was computed.
        moved: the queues that the plan moved for load.
        load_before, load_after: the load of the fullest member before and after these moves.
        queue_loads: the measured load of each queue; empty until brokers have measured it.
        capacities: the messages a second that each member could consume.
    """

    epoch: int = 0
    owners: tuple[tuple[MessageQueue, str], ...] = ()
    client_ids: tuple[str, ...] = ()
    moved: tuple[MessageQueue, ...] = ()
    load_before: float = 0.0
    load_after: float = 0.0
    queue_loads: tuple[tuple[MessageQueue, QueueLoad], ...] = ()
    capacities: tuple[tuple[str, float], ...] = ()

    @property
    def followed(self) -> FollowedPlan | None:
        """The plan as members follow it; None if none was taken yet."""
        return FollowedPlan(dict(self.owners), self.client_ids) if self.epoch else None

    @property
    def fall(self) -> str:
        """The load of the fullest member before and after the moves."""
        return f"{self.load_before:.2f} → {self.load_after:.2f}"

    @property
    def loads(self) -> GroupLoads:
        """What brokers measured of the group."""
        return GroupLoads(queues=dict(self.queue_loads), capacities=dict(self.capacities))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A consumer group, seen from outside.

    Args:
        group: the group's name.
        samples: one, or two some seconds apart, the newest last.
        topics: the topics that the group subscribes or has offsets in, its retry topic included.
        reports: the reports of the members that were asked.
        strategy: the allocation strategy by which ownership is computed.
        strategy_is_known: False if no member reported a strategy; RocketMQ's default is assumed.
        plan: the plan register; None unless the group divides by load and a broker has a register.
    """

    group: str
    samples: tuple[Sample, ...]
    topics: tuple[TopicSnapshot, ...] = ()
    reports: tuple[MemberReport, ...] = ()
    strategy: str = "AVG"
    strategy_is_known: bool = False
    plan: PlanSnapshot | None = None

    @property
    def last(self) -> Sample:
        """The newest sample."""
        return self.samples[-1]

    @property
    def first(self) -> Sample:
        """The oldest sample, which is the newest too if there is only one."""
        return self.samples[0]

    @property
    def interval_ms(self) -> int:
        """The time between the samples; 0 if there is only one."""
        return self.last.at_ms - self.first.at_ms

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member reads all queues."""
        return any(broker.message_model == BROADCASTING for broker in self.last.brokers)

    @property
    def reports_pops(self) -> bool:
        """Whether a broker reports that the group pops, or has messages in flight.

        What consumers by message have left in flight stays there while members pull, who have
        queues in hand.
        """
        last = self.last
        if any(b.is_popped or b.consume_type == "CONSUME_POP" for b in last.brokers):
            return True
        in_flight = any(progress.in_flight for progress in last.progress)
        return in_flight and not any(report.held for report in self.reports)

    @property
    def is_by_message(self) -> bool:
        """Whether any member receives messages of any queue, so that no queue has an owner.

        SparrowMQ's broker says which groups pop; elsewhere offsets that move without a member do.
        """
        if self.reports_pops:
            return True
        if any(broker.cid_all or broker.connections for s in self.samples for broker in s.brokers):
            return False
        before = {progress.queue: progress.consumed for progress in self.first.progress}
        return any(0 < before.get(p.queue, p.consumed) < p.consumed for p in self.last.progress)

    @property
    def divides_queues(self) -> bool:
        """Whether members divide the queues, so that each queue should have one owner."""
        return not (self.is_broadcasting or self.is_by_message)

    @property
    def user_topics(self) -> tuple[TopicSnapshot, ...]:
        """All topics but the group's retry topic."""
        retry = retry_topic(self.group)
        return tuple(topic for topic in self.topics if topic.topic != retry)

    def find_topic(self, name: str) -> TopicSnapshot | None:
        """Return a topic of the group; None if the group has no topic of this name."""
        return next((topic for topic in self.topics if topic.topic == name), None)

    def find_report(self, client_id: str) -> MemberReport | None:
        """Return a member's report; None if the member was not asked or did not answer."""
        found = (r for r in self.reports if r.client_id == client_id and not r.failure)
        return next(found, None)
