"""A poll consumer's operations: its member loop and the user's calls.

The loop is the push consumer's loop with other operations to deliver, to commit and to find shares.
Offsets that the user asks for by queue are an administrator's operations (`Polling.directory`).
Source: DefaultLitePullConsumerImpl.java. Tests: client/test_poll_consumer.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from sparrowmq.calling.effects import Now, Operation, Sleep, Wait
from sparrowmq.client.arguments import (
    check_milliseconds,
    check_offset,
    check_queue,
    check_queues,
    check_timestamp,
)
from sparrowmq.client.operations.administer import (
    committed_offset,
    queue_max_offset,
    queue_min_offset,
    queue_offset_at,
)
from sparrowmq.client.operations.member_loop import (
    Carrier,
    keep_local_offset,
    run_member,
    store_offset,
)
from sparrowmq.client.operations.offsets import commit_all
from sparrowmq.client.operations.pull import (
    PULL_TIMEOUT_MS,
    make_pull_header,
    pull,
)
from sparrowmq.client.operations.pull_answer import read_answer
from sparrowmq.client.operations.rebalance import find_shares
from sparrowmq.client.operations.routes import get_broker_address, get_route
from sparrowmq.client.polling import Polling, PullResult
from sparrowmq.client.subscriber import RequestFailed, Subscriber
from sparrowmq.errors import InvokeTimeout, SparrowError, UsageError
from sparrowmq.membership.actions import Commit, Rebalance, SendBack
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageQueue, MessageSelector, UnreadablePolicy
from sparrowmq.model.message import INFLATED_BYTES_MAX
from sparrowmq.model.names import check_topic
from sparrowmq.model.queue import queue_order
from sparrowmq.protocol.subscription import parse_selection, parse_subscription

# How long `seek` waits for a queue that was just acquired, and how often it checks.
SEEK_TIMEOUT_MS = 10_000
SEEK_RETRY_MS = 10
# DefaultLitePullConsumer.pollTimeoutMillis.
POLL_TIMEOUT_MS = 5_000


def serve(state: Polling) -> Operation[None]:
    """Run the member until it has left the group, and keep messages ready for polls."""
    carriers: dict[type, Carrier] = {
        Rebalance: partial(_rebalance, state),
        SendBack: _keep,
        Commit: partial(_commit, state),
    }
    yield from run_member(state.subscriber, carriers, lambda _, taken: state.deliver(taken))


def _rebalance(state: Polling, subscriber: Subscriber, _: Rebalance) -> Operation[None]:
    member = subscriber.member
    if state.assigned is None:
        shares = yield from find_shares(subscriber)
    else:
        shares = [
            TopicShare(topic, tuple(queue for queue in state.assigned if queue.topic == topic))
            for topic in member.topics
        ]
    now_ms: int = yield Now()
    member.rebalanced(shares, now_ms)
    subscriber.wake.set()


def _keep(subscriber: Subscriber, action: SendBack) -> Operation[None]:
    """Leave messages that were not given to the user to the queue's next owner."""
    offsets = [message.queue_offset for message in action.messages]
    now_ms: int = yield Now()
    if (owned := subscriber.member.find_queue(action.queue, action.epoch)) is not None:
        owned.sent_back(done=(), failed=offsets, now_ms=now_ms)
    subscriber.wake.set()


def _commit(state: Polling, subscriber: Subscriber, action: Commit) -> Operation[None]:
    """Commit, or check the user's commit if the user commits.

    The start position is committed in either case. Otherwise, if the queue is given up before the
    user commits, the next owner could begin after messages that came meanwhile.
    """
    queue, epoch, offset, is_last = action
    is_done = not is_last or state.is_closed or state.is_committed(queue)
    if state.is_auto_commit or state.is_untouched(queue):
        try:
            # The user's own commit may lie ahead, inside a batch.
            yield from _store_offset(state, queue, max(offset, state.committed.get(queue, 0)))
            is_done = True
        except SparrowError as error:
            subscriber.report(RequestFailed("commit", queue, error))
            is_done = False
    now_ms: int = yield Now()
    if is_done:
        subscriber.member.committed(queue, epoch, offset=offset, now_ms=now_ms)
    elif (owned := subscriber.member.find_queue(queue, epoch)) is not None:
        owned.commit_failed(now_ms)
    subscriber.wake.set()


def _store_offset(state: Polling, queue: MessageQueue, offset: int) -> Operation[None]:
    subscriber = state.subscriber
    if subscriber.is_broadcasting:
        yield from keep_local_offset(subscriber, queue, offset)
    else:
        address = yield from get_broker_address(state.directory, queue)
        try:
            yield from store_offset(subscriber, queue, offset, address=address)
        except SparrowError as error:
            if error.refresh_route:
                now_ms: int = yield Now()
                subscriber.member.queue_moved(now_ms)
                subscriber.wake.set()
            raise


def fetch(state: Polling, count_max: int, *, timeout_ms: int | None) -> Operation[bool]:
    """Wait until messages can be taken; False if the time runs out or the consumer has ended.

    Raises: UsageError if `count_max` is below 1, or if nothing was subscribed or assigned.
    """
    _check_count(count_max)
    if not isinstance(timeout_ms, int | None):
        # Kafka's clients take seconds.
        raise UsageError(
            f"timeout_ms is {timeout_ms!r}; give whole milliseconds, or None for no limit"
        )
    state.check_has_source()
    now_ms: int = yield Now()
    deadline_ms = None if timeout_ms is None else now_ms + timeout_ms
    while not (state.is_closed or state.has_failed):
        state.arrived.clear()
        if state.fetch(count_max):
            return True
        remaining_ms = None if deadline_ms is None else max(0, deadline_ms - now_ms)
        has_arrived: bool = yield Wait(state.arrived, remaining_ms)
        if not has_arrived:
            return False
        now_ms = yield Now()
    return False


def pause(state: Polling, queues: Sequence[MessageQueue]) -> Operation[None]:
    """Return no messages of these queues until `resume`. Raises: UsageError for others' queues."""
    wrapped = [state.namespace.wrap_queue(queue) for queue in check_queues(queues)]
    for queue in wrapped:
        state.check_ours(queue)
    state.paused.update(wrapped)
    yield from ()


def resume(state: Polling, queues: Sequence[MessageQueue]) -> Operation[None]:
    """Return messages of these queues again."""
    wrap = state.namespace.wrap_queue
    state.paused.difference_update(wrap(queue) for queue in check_queues(queues))
    state.arrived.set()
    yield from ()


def seek(state: Polling, queue: MessageQueue, offset: int) -> Operation[None]:
    """Go on at another offset of a queue; cached messages of the queue are dropped.

    Raises: UsageError if the queue is not in hand or has no such offset; RouteError,
    TransportError, BrokerError.
    """
    check_offset(offset)
    queue = state.namespace.wrap_queue(check_queue(queue))
    state.check_ours(queue)
    begin = yield from queue_min_offset(state.directory, queue)
    end = yield from queue_max_offset(state.directory, queue)
    if not begin <= offset <= end:
        raise UsageError(f"{queue} has the offsets {begin} to {end}; {offset} is not among them")
    yield from _go_on_at(state, queue, offset)


def seek_to_begin(state: Polling, queues: Sequence[MessageQueue]) -> Operation[None]:
    """Go on at the oldest message of each queue. Raises: as `seek`."""
    for queue in map(state.namespace.wrap_queue, check_queues(queues)):
        state.check_ours(queue)
        yield from _go_on_at(state, queue, (yield from queue_min_offset(state.directory, queue)))


def seek_to_end(state: Polling, queues: Sequence[MessageQueue]) -> Operation[None]:
    """Go on after the newest message of each queue. Raises: as `seek`."""
    for queue in map(state.namespace.wrap_queue, check_queues(queues)):
        state.check_ours(queue)
        yield from _go_on_at(state, queue, (yield from queue_max_offset(state.directory, queue)))


def seek_to_time(
    state: Polling, queues: Sequence[MessageQueue], *, timestamp_ms: int
) -> Operation[None]:
    """Go on at the first message stored at or after a wall-clock time. Raises: as `seek`."""
    check_timestamp(timestamp_ms)
    for queue in map(state.namespace.wrap_queue, check_queues(queues)):
        state.check_ours(queue)
        found = yield from queue_offset_at(state.directory, queue, timestamp_ms=timestamp_ms)
        yield from _go_on_at(state, queue, found)


def _go_on_at(state: Polling, queue: MessageQueue, offset: int) -> Operation[None]:
    subscriber = state.subscriber
    now_ms: int = yield Now()
    deadline_ms = now_ms + SEEK_TIMEOUT_MS
    while not subscriber.member.seek(queue, offset, now_ms=now_ms):
        # The queue is in hand, but its start position is not known yet.
        state.check_ours(queue)
        if now_ms >= deadline_ms:
            raise InvokeTimeout(f"{queue} could not be begun within {SEEK_TIMEOUT_MS} ms")
        yield Sleep(SEEK_RETRY_MS)
        now_ms = yield Now()
    state.forget((queue,))
    state.withdraw((queue,))
    subscriber.wake.set()


def commit(state: Polling, offsets: Mapping[MessageQueue, int] | None) -> Operation[None]:
    """Commit the messages returned so far, or these offsets, and wait for the answers.

    Raises: UsageError for a queue that is not in hand; TransportError, BrokerError.
    """
    chosen = state.offsets_to_commit(offsets)
    commits = {queue: _commit_chosen(state, queue, offset) for queue, offset in chosen.items()}
    yield from commit_all(commits, state.directory.routes.host)


def _commit_chosen(state: Polling, queue: MessageQueue, offset: int) -> Operation[None]:
    yield from _store_offset(state, queue, offset)
    state.committed[queue] = offset


def committed(state: Polling, queue: MessageQueue) -> Operation[int | None]:
    """Return the offset that the group has committed for a queue; None for none.

    Raises: RouteError, TransportError, BrokerError.
    """
    subscriber = state.subscriber
    queue = state.namespace.wrap_queue(check_queue(queue))
    if subscriber.is_broadcasting:
        return subscriber.local_offsets.get(queue)
    return (yield from committed_offset(state.directory, subscriber.config.group, queue))


def assign(state: Polling, queues: Sequence[MessageQueue]) -> Operation[None]:
    """Consume exactly these queues, without a share of the group's queues.

    Raises: UsageError if topics are subscribed.
    """
    queues = check_queues(queues)
    if state.assigned is None and state.subscriber.subscriptions:
        raise UsageError("topics are subscribed; make another consumer to assign queues by hand")
    member, subscriptions = state.subscriber.member, state.subscriber.subscriptions
    now_ms: int = yield Now()
    state.assigned = tuple(map(state.namespace.wrap_queue, queues))
    # Queues that leave before their membership began are never announced as revoked.
    state.paused.intersection_update(state.assigned)
    state.subscriber.is_assigned = True
    member.locks_queues = False
    topics = {queue.topic for queue in state.assigned}
    for topic in set(member.topics) - topics:
        del subscriptions[topic]
        member.unsubscribe(topic, now_ms=now_ms)
    for topic in sorted(topics):
        subscriptions[topic] = parse_subscription(topic, "*", sub_version=0)
        member.subscribe(topic, now_ms=now_ms)
    state.subscriber.wake.set()


def subscribe_queues(state: Polling, topic: str) -> Operation[list[MessageQueue]]:
    """Return the queues of a topic that can be read, in order.

    Raises: ConfigError for a bad name; TopicRouteNotFound; ConnectFailed, BrokerError.
    """
    route = yield from get_route(state.directory, check_topic(topic), is_fresh=True)
    queues = sorted(route.subscribe_queues, key=queue_order)
    return [state.namespace.unwrap_queue(queue) for queue in queues]


def pull_queue(
    state: Polling,
    queue: MessageQueue,
    offset: int,
    *,
    count_max: int,
    expression: str | MessageSelector,
    suspend_ms: int,
) -> Operation[PullResult]:
    """Pull once from any queue at any offset, without a commit or a change of position.

    Raises: UsageError; RouteError, TransportError, BrokerError; UnreadableMessage if the first
    message cannot be read and the policy is to stop.
    """
    config = state.subscriber.config
    queue = state.namespace.wrap_queue(check_queue(queue))
    check_offset(offset)
    _check_count(count_max)
    check_milliseconds("suspend_ms", suspend_ms)
    subscription = parse_selection(queue.topic, expression, sub_version=0)
    header = make_pull_header(
        config.group,
        queue,
        offset=offset,
        count_max=count_max,
        suspend_ms=suspend_ms,
        expression=subscription.sub_string,
        expression_type=subscription.expression_type,
    )
    address = yield from get_broker_address(state.directory, queue)
    result = yield from pull(address, header, timeout_ms=PULL_TIMEOUT_MS + suspend_ms)
    is_stopped = config.unreadable_policy is UnreadablePolicy.STOP
    messages, next_offset, _ = yield from read_answer(
        state.subscriber,
        queue,
        result,
        offset=offset,
        room_bytes=lambda: max(config.flow.room_bytes(0), INFLATED_BYTES_MAX),
        # The user may pull the same offsets repeatedly, so no dead letter is written here.
        policy=UnreadablePolicy.STOP if is_stopped else UnreadablePolicy.SKIP,
    )
    if subscription.tags_set:
        # The broker compared only the hash codes of tags.
        messages = [message for message in messages if message.tags in subscription.tags_set]
    messages = state.namespace.unwrap_messages(messages)
    return PullResult(result.status, messages, next_offset, result.min_offset, result.max_offset)


def _check_count(count_max: int) -> None:
    if not isinstance(count_max, int) or count_max < 1:
        raise UsageError(f"count_max is {count_max!r}; it must be a whole number from 1 on")
