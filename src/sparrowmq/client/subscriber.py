"""The state of a push consumer: its membership, routes and subscriptions, and its callbacks.

The operations of `operations/member_loop.py` work on it; one driver owns it. A comment marks what
another thread may do. Tests: test_push_consumer.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol, TypeAlias

from sparrowmq.calling.effects import Event, Task
from sparrowmq.client.config import ConsumerConfig
from sparrowmq.client.listener_calls import ListenerCalls, ListenersStuck
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.publisher import ObserverFailed
from sparrowmq.client.route_cache import RouteCache
from sparrowmq.client.tracer import Tracer
from sparrowmq.errors import NoWritableQueue, SparrowError
from sparrowmq.membership.actions import CallOnAssign, CallOnRevoke, Fact, QueueLost
from sparrowmq.membership.group_offset import KnownOffsets
from sparrowmq.membership.member import GroupMember, MemberConfig
from sparrowmq.model import (
    ConsumeContext,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    UnreadablePolicy,
)
from sparrowmq.model.names import retry_topic
from sparrowmq.protocol.bodies import ConsumerData, SubscriptionData
from sparrowmq.strategies.by_load import FollowedPlan
from sparrowmq.strategies.registry import strategy_from
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

# DefaultMQPushConsumerImpl.getMaxReconsumeTimes, where nothing is configured.
MAX_RECONSUME_TIMES = 16
# DefaultMQPushConsumer.consumeTimestamp: half an hour before the start.
CONSUME_TIMESTAMP_BACK_MS = 30 * 60 * 1000

Listener: TypeAlias = Callable[[list[MessageExt], ConsumeContext], ConsumeStatus | None]
OrderlyListener: TypeAlias = Callable[
    [list[MessageExt], ConsumeOrderlyContext], ConsumeOrderlyStatus | None
]
RebalanceListener: TypeAlias = Callable[[list[MessageQueue]], None]
# The asyncio face also takes coroutine functions.
AsyncListener: TypeAlias = (
    Listener | Callable[[list[MessageExt], ConsumeContext], Awaitable[ConsumeStatus | None]]
)
AsyncOrderlyListener: TypeAlias = (
    OrderlyListener
    | Callable[[list[MessageExt], ConsumeOrderlyContext], Awaitable[ConsumeOrderlyStatus | None]]
)
AsyncRebalanceListener: TypeAlias = (
    RebalanceListener | Callable[[list[MessageQueue]], Awaitable[None]]
)
# What a consumer consumes: a topic, several, or topics with their expressions.
Topics: TypeAlias = str | Sequence[str] | Mapping[str, str | MessageSelector]


class RebalanceCallbacks(NamedTuple):
    """The user's functions for changes of ownership; each is called with queues in order.

    One rebalance may take several calls of a function, as its queues settle one by one.

    Args:
        on_assign: the member has gained queues; their messages are delivered only after it returns.
        on_revoke: the member gives queues up and delivers none of their messages any more; the next
            owner begins after it returns.
        on_lost: queues went to another member without on_revoke: their lock expired while this
            member stood still or was cut off. The other member gets uncommitted messages again.
    """

    on_assign: AsyncRebalanceListener | None = None
    on_revoke: AsyncRebalanceListener | None = None
    on_lost: AsyncRebalanceListener | None = None

    def of(self, kind: type) -> AsyncRebalanceListener | None:
        """Return the function for a change of this kind."""
        if kind is CallOnAssign:
            return self.on_assign
        return self.on_revoke if kind is CallOnRevoke else self.on_lost


class JoinedGroup(NamedTuple):
    """The first broker knows this consumer: it is a member of its group."""

    client_id: str
    topics: tuple[str, ...]


class BegunAtEnd(NamedTuple):
    """A queue with messages has no committed offset, and consumption begins at its end."""

    queue: MessageQueue
    offset: int


class FirstMessage(NamedTuple):
    """The first message of this consumer has arrived."""

    queue: MessageQueue
    message: MessageExt


class LeftGroup(NamedTuple):
    """The consumer is closed."""

    client_id: str
    succeeded: int
    failed: int


class ConsumerFailed(NamedTuple):
    """The consumer's loop has ended although the consumer was not closed."""

    client_id: str
    error: BaseException


class ListenerFailed(NamedTuple):
    """The listener raised, or returned an invalid value.

    The last `ended_count` messages are not delivered again: they are dead letters, or, in
    BROADCASTING, lost.
    """

    queue: MessageQueue
    first_offset: int
    message_count: int
    ended_count: int
    is_broadcasting: bool
    error: BaseException


class GivenUp(NamedTuple):
    """Messages that failed too often and are not delivered again.

    The broker keeps them as dead letters; in BROADCASTING they are lost.
    """

    queue: MessageQueue
    messages: tuple[MessageExt, ...]
    is_broadcasting: bool


class DeadLetterChosen(NamedTuple):
    """The listener made a message a dead letter, for its own reason; in BROADCASTING it is lost."""

    queue: MessageQueue
    message: MessageExt
    reason: str
    is_broadcasting: bool


class RebalanceListenerFailed(NamedTuple):
    """`on_assign`, `on_revoke` or `on_lost` raised; consumption continues."""

    error: BaseException


class RequestFailed(NamedTuple):
    """A request failed and will be repeated: `what` was asked, for `queue` if it concerned one."""

    what: str
    queue: MessageQueue | None
    error: SparrowError


class AllocationFailed(NamedTuple):
    """The strategy raised for a topic, or returned queues that do not exist; see `error`."""

    topic: str
    strategy: str
    error: BaseException


class NoPlanRegister(NamedTuple):
    """A broker keeps no plans, so that queues are divided by their number, not by load."""

    broker_name: str


class PlanKnown(NamedTuple):
    """The plan that a member follows, and the broker that has it."""

    broker_name: str
    epoch: int
    plan: FollowedPlan


class MessagePassedOver(NamedTuple):
    """A message that cannot be read was skipped or put among the dead letters."""

    queue: MessageQueue
    message: MessageExt
    reason: str
    policy: UnreadablePolicy


Notice: TypeAlias = (
    Fact
    | JoinedGroup
    | BegunAtEnd
    | FirstMessage
    | LeftGroup
    | ConsumerFailed
    | MessagePassedOver
    | ListenersStuck
    | ListenerFailed
    | GivenUp
    | DeadLetterChosen
    | RebalanceListenerFailed
    | RequestFailed
    | AllocationFailed
    | NoPlanRegister
    | ObserverFailed
)


@dataclass(slots=True)
class ConsumeCounters:
    """A consumer's counts of messages so far; any thread may read them. None goes down."""

    delivered: int = 0
    succeeded: int = 0
    failed: int = 0
    sent_back: int = 0
    pulled: int = 0
    # Passed over because they cannot be read.
    unreadable: int = 0
    # Counted as delivered, and taken back before their calls began.
    _taken_back: int = field(default=0, init=False, repr=False, compare=False)

    def note_delivered(self, count: int) -> None:
        """Count messages for the listener, each once though its call was taken back before."""
        counted = min(count, self._taken_back)
        self._taken_back -= counted
        self.delivered += count - counted

    def note_taken_back(self, count: int) -> None:
        """Note messages whose calls did not begin: they are for the listener again later."""
        self._taken_back += count


# One member of a process asks a silent broker again this often; each of the others asks for itself
# after `HELD_MS_MAX`, as the fault may lie with the one that asks.
ASKED_AGAIN_MS = 1_000
HELD_MS_MAX = 8_000


class SilentBrokers:
    """The brokers that left heartbeats of this process's members unanswered, by address.

    The members share the repetition of such heartbeats, as those of many members would take the
    processor time whose lack may be the cause. Any thread may call this: each step is one of the
    dictionary's.
    """

    def __init__(self) -> None:
        # Who asked last, and when another member may ask.
        self._asked: dict[str, tuple[str, int]] = {}

    def may_ask(self, address: str, client_id: str, *, now_ms: int, timeout_ms: int) -> bool:
        """Return whether a member that got no answer is to ask again; it is the one that asks."""
        who, next_ms = self._asked.get(address, (client_id, 0))
        if who != client_id and now_ms < next_ms:
            return False
        self._asked[address] = client_id, now_ms + timeout_ms + ASKED_AGAIN_MS
        return True

    def note(self, address: str, client_id: str, *, has_answered: bool, now_ms: int) -> None:
        """Note the end of a heartbeat."""
        if has_answered:
            self._asked.pop(address, None)
        else:
            self._asked[address] = client_id, now_ms + ASKED_AGAIN_MS


class OffsetFile(Protocol):
    """The offset store of a BROADCASTING member."""

    def put(self, queue: MessageQueue, offset: int) -> None:
        """Store an offset. Raises: StoreError if that fails."""
        ...


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Subscriber:
    """A push consumer's state.

    Args:
        config: the consumer's configuration.
        name_servers: the source of routes.
        subscriptions: by topic, the group's retry topic included.
        listener: is called with the messages.
        callbacks: called when queues are gained, given up or lost.
        report: called with each fact worth a log line.
        start_timestamp_ms: the wall-clock time at which the consumer was made.
        strategy: divides the queues.
        member: decides the next steps.
        wake: set whenever something has happened.
    """

    config: ConsumerConfig
    name_servers: NameServers
    subscriptions: dict[str, SubscriptionData]
    listener: AsyncListener | AsyncOrderlyListener
    callbacks: RebalanceCallbacks
    report: Callable[[Notice], None]
    start_timestamp_ms: int = 0
    # The topic from which this group's failed messages are delivered again.
    retry_topic: str = field(init=False)
    strategy: AllocateMessageQueueStrategy = field(init=False)
    member: GroupMember = field(init=False)
    routes: RouteCache = field(default_factory=RouteCache)
    wake: Event = field(default_factory=Event)
    # The consumers that share its connections, by group, this one included while it runs.
    companions: dict[str, Subscriber] = field(default_factory=dict)
    # Topics that the name server does not know.
    missing_topics: set[str] = field(default_factory=set)
    # Whether a broker has accepted a heartbeat of this consumer.
    has_joined: bool = False
    # A heartbeat under way counts as well.
    is_beating: bool = False
    # The brokers that the last heartbeat with our group went to: also those of other consumers that
    # share our connections.
    named_at: frozenset[str] = frozenset()
    # The brokers that answered the last heartbeat, without those whose connection was lost since.
    answered: frozenset[str] = frozenset()
    known_offsets: KnownOffsets = field(default_factory=KnownOffsets)
    # The brokers that left its last heartbeat unanswered, what the process's members share about
    # them, and since when this one leaves the repetition to another.
    unanswered: frozenset[str] = frozenset()
    silent: SilentBrokers = field(default_factory=SilentBrokers)
    held_since_ms: int | None = None
    counters: ConsumeCounters = field(default_factory=ConsumeCounters)
    # Queues were given by `assign`: heartbeats then carry no subscription.
    is_assigned: bool = False
    # When the next pull may begin, if the rate is limited.
    next_pull_ms: float = 0.0
    # By messages: whether the last pop was answered, None before the first; and when the messages
    # were handed over that the listener has had for longest.
    has_popped: bool | None = None
    handed_ms: int | None = None
    # The topics that have another expression than requests under way may have, or none any more.
    resubscribed: set[str] = field(default_factory=set)
    # Pulls under way, to abandon them.
    pulls: dict[MessageQueue, Task] = field(default_factory=dict)
    listener_calls: ListenerCalls = field(default_factory=ListenerCalls)
    # Changes not yet passed to the callbacks, in order, and the task that calls the callbacks.
    calls: deque[CallOnAssign | CallOnRevoke | QueueLost] = field(default_factory=deque)
    notifying: Task | None = None
    # BROADCASTING: each member stores its own offsets.
    local_offsets: dict[MessageQueue, int] = field(default_factory=dict)
    local_store: OffsetFile | None = None
    # AVG_BY_LOAD: the plan that the group follows.
    plan: PlanKnown | None = None
    has_no_register: bool = False
    # The tracer of its deliveries, if trace is on.
    tracer: Tracer | None = None

    def __post_init__(self) -> None:
        self.retry_topic = retry_topic(self.config.group)
        self.strategy = strategy_from(self.config.strategy)
        self.member = GroupMember(
            member_config_from(self.config, has_callbacks=any(self.callbacks)),
            topics=self.subscriptions,
            now_ms=0,
        )

    @property
    def consumer_data(self) -> ConsumerData:
        """The part of a heartbeat for this consumer."""
        config = self.config
        subscriptions = {} if self.is_assigned else self.subscriptions
        return ConsumerData(
            group_name=config.group,
            consume_type=config.consume_type,
            message_model=config.message_model,
            consume_from_where=config.consume_from_where,
            subscription_data_set=[subscriptions[topic] for topic in sorted(subscriptions)],
        )

    @property
    def consume_timestamp_ms(self) -> int:
        """The wall-clock time of CONSUME_FROM_TIMESTAMP."""
        start = self.config.start
        if isinstance(start, datetime):
            return round(start.timestamp() * 1000)
        return self.start_timestamp_ms - CONSUME_TIMESTAMP_BACK_MS

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member consumes every queue."""
        return self.config.message_model is MessageModel.BROADCASTING

    def comes_again(self, message: MessageExt, *, delay_level: int = 0) -> bool:
        """Return whether a message is delivered again after the listener fails with it."""
        config = self.config
        if delay_level < 0:
            return False
        if config.orderly:
            limit = config.max_reconsume_times
        else:
            limit = 0 if self.is_broadcasting else max_reconsume_times(config.max_reconsume_times)
        return limit is None or message.reconsume_times < limit

    @property
    def user_topics(self) -> list[str]:
        """The topics that the user subscribed, as users name them."""
        own, unwrap = self.retry_topic, self.config.namespace.unwrap
        return [unwrap(topic) for topic in sorted(self.subscriptions) if topic != own]

    @property
    def user_group(self) -> str:
        """The group without its namespace."""
        return self.config.namespace.unwrap(self.config.group)

    def user_queues(self, queues: tuple[MessageQueue, ...]) -> list[MessageQueue]:
        """Return the queues as users name them, without those of the retry topic."""
        own, namespace = self.retry_topic, self.config.namespace
        return [namespace.unwrap_queue(queue) for queue in queues if queue.topic != own]

    def queues_served_by(self, broker_names: Collection[str]) -> frozenset[MessageQueue]:
        """Return the queues in hand that these brokers serve."""
        in_hand, host = self.member.owned_queues(), self.routes.host
        return frozenset(owned.queue for owned in in_hand if host(owned.queue) in broker_names)

    def get_broker_address(self, queue: MessageQueue) -> str:
        """Return the broker address for a queue's requests: the master's, or any without one.

        Raises: NoWritableQueue if no address of its broker is known.
        """
        broker_name = self.routes.host(queue)
        address = self.routes.address(broker_name)
        if address is None:
            raise NoWritableQueue(f"no address of broker {broker_name!r} is known")
        return address

    def get_stored_address(self, message: MessageExt) -> str:
        """Return the address of the broker that stores a message.

        Raises: NoWritableQueue if no address of the broker is known.
        """
        address = self.routes.stored_at(message)
        if address is None:
            raise NoWritableQueue(f"the broker that stores {message.msg_id} is in no known route")
        return address


def max_reconsume_times(configured: int | None) -> int:
    """Return how often a failed message is delivered again at most, if not consumed in order."""
    return MAX_RECONSUME_TIMES if configured is None else configured


def member_config_from(config: ConsumerConfig, *, has_callbacks: bool) -> MemberConfig:
    """Return the group-member machine's part of a consumer's configuration."""
    return MemberConfig(
        group=config.group,
        client_id=config.client_id,
        is_broadcasting=config.message_model is MessageModel.BROADCASTING,
        is_orderly=config.orderly,
        orderly_reconsume_times_max=config.max_reconsume_times,
        has_callbacks=has_callbacks,
        batch_size=config.consume_message_batch_max_size,
        deliveries_max=config.consume_thread_count,
        flow=config.flow,
        heartbeat_ms=config.times.heartbeat_ms,
        rebalance_ms=config.rebalance_interval_ms,
        route_refresh_ms=config.times.route_refresh_ms,
        route_retry_max_ms=config.times.route_retry_max_ms,
        commit_ms=config.commit_interval_ms,
        drain_timeout_ms=config.drain_timeout_ms,
        consume_timeout_ms=config.consume_timeout_ms,
    )
