"""What can be seen of a consumer group from outside, as one value. Pure.

Everything here comes from requests that every RocketMQ broker answers; what nobody reported is
None or empty, and rules must live with that. Two samples some seconds apart give rates; one gives
none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.model import MessageQueue
from sparrowmq.model.names import retry_topic
from sparrowmq.model.queue import queue_order

BROADCASTING = "BROADCASTING"


class Seat(NamedTuple):
    """One connection of a member. `address` is "" where a broker listed only the id."""

    client_id: str
    address: str
    language: str = ""
    version: int = 0

    def __str__(self) -> str:
        return f"{self.client_id} from {self.address or 'an unknown address'}"


class SubscriptionView(NamedTuple):
    """What a group, or one member, wants of a topic."""

    topic: str
    expression: str
    version: int = 0
    expression_type: str = "TAG"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """What one broker says of the group.

    Args:
        broker_name: its name.
        cluster: the cluster that it says it belongs to.
        address: where it was asked.
        cid_all: the client ids it lists, duplicates kept; None if it did not answer.
        seats: who is connected.
        subscriptions: the group's, as the last heartbeat left them here.
        consume_type, message_model, consume_from_where: by RocketMQ's names, "" if unknown.
        failure: why something is missing, "" if nothing is.
        answer_ms: how long it took to answer with the ids; None if it did not, or nobody measured.
    """

    broker_name: str
    cluster: str = ""
    address: str = ""
    cid_all: tuple[str, ...] | None = ()
    seats: tuple[Seat, ...] = ()
    subscriptions: tuple[SubscriptionView, ...] = ()
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    failure: str = ""
    answer_ms: int | None = None


class QueueProgress(NamedTuple):
    """How far the group is in one queue.

    `committed_offset` None or 0 may mean that nothing was ever committed: brokers say 0 for both.
    `last_timestamp_ms` is when the last message consumed was stored; 0 is unknown.
    """

    queue: MessageQueue
    max_offset: int
    committed_offset: int | None
    last_timestamp_ms: int = 0

    @property
    def lag(self) -> int:
        """How many messages are not consumed yet."""
        return max(0, self.max_offset - (self.committed_offset or 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at all brokers."""

    at_ms: int
    timestamp_ms: int
    brokers: tuple[BrokerView, ...]
    progress: tuple[QueueProgress, ...] = ()


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
    """A topic as name servers know it.

    Args:
        topic: its name.
        queues: by broker; empty if no name server knows the topic.
        surplus_offsets: how many messages are in each queue that takes messages and is not read.
        broker_names_by_server: which brokers each name server names, if several were asked.
    """

    topic: str
    queues: tuple[TopicQueues, ...] = ()
    surplus_offsets: tuple[tuple[MessageQueue, int], ...] = ()
    broker_names_by_server: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def subscribe_queues(self) -> list[MessageQueue]:
        """The queues that members divide, in the order that every member sorts them."""
        found = [
            MessageQueue(self.topic, at.broker_name, queue_id)
            for at in self.queues
            if at.is_readable
            for queue_id in range(at.read_count)
        ]
        return sorted(found, key=queue_order)


class HeldQueue(NamedTuple):
    """A queue that a member says it has.

    `commit_offset` is what it has consumed up to, whether the broker knows it yet or not.
    """

    queue: MessageQueue
    is_locked: bool = False
    is_dropped: bool = False
    cached_count: int = 0
    commit_offset: int = 0
    last_pull_timestamp_ms: int = 0
    last_consume_timestamp_ms: int = 0


class TopicPace(NamedTuple):
    """How fast a member says it consumes a topic, over the last minute or so.

    `listener_ms` is how long a call of its listener takes on average; 0 is unknown.
    """

    topic: str
    listener_ms: float
    done_per_s: float = 0.0
    failed_per_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReport:
    """What a member reports of itself, if it is asked and can answer.

    Args:
        client_id: the member; of several with one id, the one that the broker chose to ask.
        held: its queues.
        subscriptions: its own.
        paces: how fast it consumes, by topic.
        strategy: its allocation strategy's name, "" if it does not say.
        is_orderly: whether it needs a lock for each queue.
        is_silent: it was asked and did not answer in time.
        failure: why nothing is known, "" if it answered.
    """

    client_id: str
    held: tuple[HeldQueue, ...] = ()
    subscriptions: tuple[SubscriptionView, ...] = ()
    paces: tuple[TopicPace, ...] = ()
    strategy: str = ""
    is_orderly: bool = False
    is_silent: bool = False
    failure: str = ""

    @property
    def topics(self) -> frozenset[str]:
        """The topics it subscribes."""
        return frozenset(subscription.topic for subscription in self.subscriptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A consumer group, seen from outside.

    Args:
        group: its name.
        samples: one look, or two some seconds apart; the last is the newest.
        topics: what the group subscribes or has offsets in, the retry topic included.
        reports: the reports of the members that were asked.
        strategy: the allocation strategy that ownership is computed with.
        strategy_is_known: False if no member reported one and RocketMQ's default is assumed.
    """

    group: str
    samples: tuple[Sample, ...]
    topics: tuple[TopicSnapshot, ...] = ()
    reports: tuple[MemberReport, ...] = ()
    strategy: str = "AVG"
    strategy_is_known: bool = False

    @property
    def last(self) -> Sample:
        """The newest look."""
        return self.samples[-1]

    @property
    def first(self) -> Sample:
        """The oldest look; the newest too if there is only one."""
        return self.samples[0]

    @property
    def interval_ms(self) -> int:
        """The time between the looks, 0 if there is only one."""
        return self.last.at_ms - self.first.at_ms

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member reads all queues."""
        return any(broker.message_model == BROADCASTING for broker in self.last.brokers)

    @property
    def user_topics(self) -> tuple[TopicSnapshot, ...]:
        """The topics without the group's retry topic."""
        retry = retry_topic(self.group)
        return tuple(topic for topic in self.topics if topic.topic != retry)

    def find_topic(self, name: str) -> TopicSnapshot | None:
        """Return a topic of the group."""
        return next((topic for topic in self.topics if topic.topic == name), None)

    def find_report(self, client_id: str) -> MemberReport | None:
        """Return a member's report, or None if there is none."""
        found = (r for r in self.reports if r.client_id == client_id and not r.failure)
        return next(found, None)

    def progress(self) -> Mapping[MessageQueue, QueueProgress]:
        """Return how far the group is now, by queue."""
        return {progress.queue: progress for progress in self.last.progress}
