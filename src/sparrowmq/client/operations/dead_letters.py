"""List, read and resend the dead letters of consumer groups. Tests: cli/test_messages.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import structs

from sparrowmq.calling.effects import Operation, timestamp
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.browse import (
    Start,
    browse,
    close_browser,
    open_browser,
    storing_order,
)
from sparrowmq.client.operations.gather import WIDTH, gather, gather_outcomes
from sparrowmq.client.operations.groups import look_at_group_settings
from sparrowmq.client.operations.request import ask
from sparrowmq.client.operations.resend import UNCHANGED, Edit, mark_resent
from sparrowmq.client.operations.routes import find_all_brokers, get_broker_address, get_route
from sparrowmq.client.operations.send_back import (
    FIRST_RETRY_LEVEL,
    queues_for_again,
    send_again,
    send_back,
)
from sparrowmq.client.operations.topics import list_topics, look_at_topic
from sparrowmq.doctor.group_snapshot import LETTERS_READ_MAX
from sparrowmq.errors import SendFailed, SparrowError, TopicRouteNotFound, UsageError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import PROPERTY_RETRY_TOPIC
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, dlq_topic, retry_topic
from sparrowmq.protocol.codes import MQ_VERSION_5, RequestCode
from sparrowmq.protocol.headers import GetMaxOffsetRequestHeader

# SubscriptionGroupConfig.retryMaxTimes, used if no broker returns another.
RETRY_TIMES_MAX = 16
# The letters that an error names at most.
FAILED_SHOWN_MAX = 10


class DeadLetters(NamedTuple):
    """A group's number of dead letters, and the time of the last one; None if none is left."""

    group: str
    message_count: int
    last_timestamp_ms: int | None


def list_dead_letters(
    directory: Directory,
) -> Operation[tuple[list[DeadLetters], dict[str, SparrowError]]]:
    """Return the groups that ever had dead letters, the group with most letters first.

    The errors of brokers whose dead letters are missing come second, by the brokers' names.

    Raises: ConnectFailed; RouteError if no broker is known; TransportError, BrokerError if none of
        a group's brokers answers.
    """
    names = yield from list_topics(directory)
    topics = [name for name in names if name.startswith(DLQ_GROUP_TOPIC_PREFIX)]
    if not topics:
        # Name servers forget the topics of brokers that are gone.
        yield from find_all_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    found: list[DeadLetters] = []
    missing: dict[str, SparrowError] = {}
    asked = [look_at_topic(directory, topic) for topic in topics]
    for status, failures in (yield from gather(asked, name="dead letters", at_once=WIDTH)):
        missing |= failures
        times = [at.last_timestamp_ms for at in status.queues if at.last_timestamp_ms]
        count = sum(at.max_offset - at.min_offset for at in status.queues)
        group = status.topic.removeprefix(DLQ_GROUP_TOPIC_PREFIX)
        found.append(DeadLetters(group, count, max(times, default=None)))
    return sorted(found, key=lambda each: (-each.message_count, each.group)), missing


def resend_dead_letter(
    directory: Directory, group: str, message: MessageExt, *, edit: Edit = UNCHANGED, by: str = ""
) -> Operation[None]:
    """Send a dead letter to its group again, as a retry of a message that has failed once.

    No other group gets the message, and the dead letter itself stays in its topic.

    SparrowMQ's members lock their queues. RocketMQ 5 takes a group with locks for one that consumes
    in order, and moves messages sent to its retry topic to the dead letters at once. At such a
    broker the message is sent back instead, unchanged and without marks, and becomes a dead letter
    again after one more failure.
    Source: SendMessageProcessor.handleRetryAndDLQ of 5.3.3.

    Args:
        message: the message as read from the group's topic of dead letters.
        edit: what the copy has instead.
        by: who sends it, for the copy's marks and the broker's record.

    Raises: UsageError if the message does not name its first topic, or the group has no retry
    topic, or RocketMQ 5 would have to change the message; TransportError; BrokerError.
    """
    if message.topic != dlq_topic(group):
        raise UsageError(
            f"message {message.msg_id} is in {message.topic}, not in {dlq_topic(group)}"
        )
    if PROPERTY_RETRY_TOPIC not in message.properties:
        raise UsageError(f"message {message.msg_id} does not say from which topic it came")
    retries = directory.namespace.wrap(retry_topic(group))
    route = yield from get_route(directory, retries)
    all_queues = route.publish_queues
    # The letter's own broker notes which letter was sent again.
    own = [queue for queue in all_queues if queue.broker_name == message.broker_name]
    queues = queues_for_again(message, own or all_queues)
    if not queues:
        raise UsageError(f"group {group} has no queue for retries; start one of its members")
    address = yield from get_broker_address(directory, queues[0])
    if (yield from _is_of_5(directory, message.queue)):
        if not edit.is_empty:
            raise UsageError(
                f"broker {message.broker_name} runs RocketMQ 5, which sends dead letters to group "
                f"{group} only unchanged; send a new message to the topic instead"
            )
        yield from send_back(
            (yield from get_broker_address(directory, message.queue)),
            directory.namespace.wrap(group),
            message=message,
            delay_level=FIRST_RETRY_LEVEL,
            max_reconsume_times=message.reconsume_times + 1,
            timeout_ms=directory.timeout_ms,
        )
        return
    # A broker that does not answer keeps no letter of another from being sent.
    known, _ = yield from look_at_group_settings(directory, group)
    times = [found.retry_max_times for _, found in known if found is not None]
    timestamp_ms = yield from timestamp()
    copy = edit.apply(message)
    marks = mark_resent(message, by=by, timestamp_ms=timestamp_ms)
    yield from send_again(
        address,
        retries,
        # The message has failed as often as allowed. The count restarts, so that it may fail again.
        message=structs.replace(copy, reconsume_times=0, properties={**copy.properties, **marks}),
        queue_id=queues[0].queue_id,
        max_reconsume_times=max(times, default=RETRY_TIMES_MAX),
        timestamp_ms=timestamp_ms,
        timeout_ms=directory.timeout_ms,
    )


def _is_of_5(directory: Directory, queue: MessageQueue) -> Operation[bool]:
    """Return whether a queue's broker runs RocketMQ 5, by its answer to a small request."""
    queue = directory.namespace.wrap_queue(queue)
    address = yield from get_broker_address(directory, queue)
    header = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id)
    code, timeout_ms = RequestCode.GET_MAX_OFFSET, directory.timeout_ms
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return reply.version >= MQ_VERSION_5


def read_dead_letters(
    directory: Directory, group: str, *, count_max: int
) -> Operation[list[MessageExt]]:
    """Return a group's newest dead letters that can be read, in the order of storing.

    Args:
        count_max: the largest number from each queue, and from all queues together.

    Raises: UsageError for a wrong count; ConnectFailed, TransportError, BrokerError.
    """
    if not 0 < count_max <= LETTERS_READ_MAX:
        raise UsageError(f"count_max is {count_max}; it must be from 1 to {LETTERS_READ_MAX}")
    try:
        browser = yield from open_browser(
            directory, dlq_topic(group), start=Start(last_count=count_max)
        )
    except TopicRouteNotFound:
        return []
    found: list[MessageExt] = []
    while not browser.is_done:
        try:
            part = yield from browse(directory, browser, timeout_ms=directory.timeout_ms)
        except SparrowError:
            yield from close_browser(browser)
            raise
        found += part.messages
    found.sort(key=storing_order)
    return found[-count_max:]


def resend_dead_letters(
    directory: Directory,
    group: str,
    messages: Sequence[MessageExt],
    *,
    edit: Edit = UNCHANGED,
    by: str = "",
) -> Operation[int]:
    """Send each dead letter to its group again, as `resend_dead_letter` does.

    Raises: the first error if no letter was sent; else SendFailed, which names the others.
    """
    each = [resend_dead_letter(directory, group, m, edit=edit, by=by) for m in messages]
    outcomes = yield from gather_outcomes(each, name=f"resends of {group}", at_once=WIDTH)
    failures = [
        (message.msg_id, outcome)
        for message, outcome in zip(messages, outcomes, strict=True)
        if isinstance(outcome, SparrowError)
    ]
    if not failures:
        return len(messages)
    _, error = failures[0]
    if len(failures) == len(messages):
        raise error
    left = ", ".join(msg_id for msg_id, _ in failures[:FAILED_SHOWN_MAX])
    more = len(failures) - FAILED_SHOWN_MAX
    raise SendFailed(
        f"{len(messages) - len(failures)} of {len(messages)} dead letters were sent to {group} "
        f"again, and the others were not: {left}{f' and {more} more' if more > 0 else ''}; {error}",
        outcome_unknown=True,
    ) from error
