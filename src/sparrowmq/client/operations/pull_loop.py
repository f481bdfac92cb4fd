"""The pull loop: pull a queue for a member, again and again while its next pull is due at once.

Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

from functools import partial

from sparrowmq.calling.effects import Now, Operation, Sleep
from sparrowmq.client.operations.pull import (
    PullStatus,
    corrected_offset,
    make_pull_header,
    pull,
)
from sparrowmq.client.operations.pull_answer import read_answer
from sparrowmq.client.subscriber import FirstMessage, RequestFailed, Subscriber
from sparrowmq.errors import BrokerError, SparrowError, UsageError
from sparrowmq.membership.actions import Pull
from sparrowmq.model import ConsumeType
from sparrowmq.protocol.codes import ResponseCode

# A broker that answers a pull with one of these does not know us or our newest subscription.
_REGISTRATION_CODES = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)


def keep_pulling(subscriber: Subscriber, action: Pull) -> Operation[None]:
    """Pull, and go on as long as the queue's next pull is due at once."""
    following: Pull | None = action
    while following is not None:
        queue, epoch, offset = following
        member = subscriber.member
        try:
            following = yield from _pull_once(subscriber, following)
        except SparrowError as error:
            now_ms = yield Now()
            if isinstance(error, BrokerError) and error.code in _REGISTRATION_CODES:
                # A restarted broker knows no member for a moment.
                member.registration_missing(now_ms)
            else:
                subscriber.report(RequestFailed("pull", queue, error))
                if error.refresh_route:
                    member.queue_moved(now_ms)
            if (owned := member.find_queue(queue, epoch)) is not None:
                owned.pull_failed(offset, now_ms)
            following = member.next_pull(queue, epoch, now_ms)
        subscriber.wake.set()


def _wait_for_turn(subscriber: Subscriber, rate: int) -> Operation[None]:
    """Wait for the turn of a first message, which the pull takes."""
    now_ms: int = yield Now()
    begin_ms = max(now_ms, subscriber.next_pull_ms)
    subscriber.next_pull_ms = begin_ms + 1000 / rate
    while now_ms < begin_ms:
        yield Sleep(int(begin_ms - now_ms) + 1)
        now_ms = yield Now()


def _count_pulled(subscriber: Subscriber, rate: int, count: int, now_ms: int) -> None:
    """Take the turns of a pull's other messages, or give back that of the first."""
    turn_ms = 1000 / rate
    subscriber.next_pull_ms = max(
        subscriber.next_pull_ms + (count - 1) * turn_ms, now_ms + count * turn_ms
    )


def _pull_once(subscriber: Subscriber, action: Pull) -> Operation[Pull | None]:
    """Pull once and report the answer to the member; return the next pull if it is due at once."""
    queue, epoch, offset = action
    config, member = subscriber.config, subscriber.member
    rate, count_max = config.messages_per_s_max, config.pull_batch_size
    if rate is not None:
        # All queues together ask for no more than a second's messages.
        count_max = min(count_max, max(1, rate // len(subscriber.pulls)))
    subscription = subscriber.subscriptions.get(queue.topic)
    if subscription is None:
        raise UsageError(f"topic {queue.topic!r} is not subscribed any more")
    is_active = config.consume_type is ConsumeType.CONSUME_ACTIVELY
    header = make_pull_header(
        config.group,
        queue,
        offset=offset,
        count_max=count_max,
        suspend_ms=config.pull_suspend_ms,
        expression=subscription.sub_string if is_active else None,
        expression_type=subscription.expression_type,
        sub_version=subscription.sub_version,
    )
    address = subscriber.get_broker_address(queue)
    if rate is not None:
        yield from _wait_for_turn(subscriber, rate)
    result = yield from pull(address, header, timeout_ms=config.pull_timeout_ms)
    if result.status is PullStatus.OFFSET_ILLEGAL:
        now_ms: int = yield Now()
        corrected = corrected_offset(offset, result)
        member.pull_moved(queue, epoch, offset=offset, corrected_offset=corrected, now_ms=now_ms)
        return member.next_pull(queue, epoch, now_ms)
    messages, next_offset, is_cut = yield from read_answer(
        subscriber,
        queue,
        result,
        offset=offset,
        room_bytes=partial(member.room_bytes, queue),
        policy=config.unreadable_policy,
    )
    now_ms = yield Now()
    if messages and not subscriber.counters.pulled:
        subscriber.report(FirstMessage(action.queue, messages[0]))
    subscriber.counters.pulled += len(messages)
    if rate is not None:
        # Messages that the tags leave out count as pulled.
        _count_pulled(subscriber, rate, len(messages), now_ms)
    if subscription.tags_set:
        # The broker compared only the hash codes of tags.
        messages = [message for message in messages if message.tags in subscription.tags_set]
    return member.pulled(
        queue,
        epoch,
        offset=offset,
        messages=messages,
        next_offset=next_offset,
        now_ms=now_ms,
        is_cut=is_cut,
        goes_on=True,
    )
