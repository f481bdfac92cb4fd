"""Pop messages of a topic, acknowledge them, and change for how long they are invisible.

Source: PopMessageRequestHeader, DefaultMQPushConsumerImpl.popMessage, ackAsync and
changePopInvisibleTimeAsync of 5.5.0. Tests: test_pop.py, client/test_simple_consumer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from sparrowmq.calling.effects import (
    Cancelled,
    Invoke,
    Join,
    Operation,
    Sleep,
    Spawn,
    Task,
    now,
    sleep,
)
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.gather import WIDTH, gather, gather_outcomes
from sparrowmq.client.operations.request import ask, error_of, make_request
from sparrowmq.client.operations.routes import get_broker_address, get_route
from sparrowmq.client.operations.send_back import send_dead_letter
from sparrowmq.errors import (
    BrokerError,
    RemoteProtocolError,
    SparrowError,
    TransportError,
    UsageError,
)
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import (
    INFLATED_BYTES_MAX,
    PROPERTY_FIRST_POP_TIME,
    PROPERTY_POP_CK,
)
from sparrowmq.model.names import retry_topic
from sparrowmq.protocol.bodies import SubscriptionData, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.compression import COMPRESSED
from sparrowmq.protocol.headers import decode_header
from sparrowmq.protocol.pop_handle import (
    INIT_MIN,
    NORMAL_MARK,
    RETRY_MARK_V1,
    BatchAckBody,
    BatchAckResponseHeader,
    ChangeInvisibleTimeResponseHeader,
    PopHandle,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    batch_acks,
    decode_stored,
    decode_turn,
    handle_of,
    parse_handle,
    start_offsets,
)
from sparrowmq.protocol.subscription import tags_code

# How long one pop waits at one of several brokers or topics before the next is asked.
TURN_MS = 1_000
# The pause if the brokers answer at once without messages.
PAUSE_MS = 500
# What an answer may take beyond the wait, as of Java's pops (25 s for 15 s).
ANSWER_MS = 10_000
# The messages that one request acknowledges, as of Apache's proxy.
ACKS_PER_BATCH_MAX = 1_024
# The most bytes of inflated bodies of one answer. Without a bound 32 messages of a few kilobytes
# take 512 MiB, and a quick listener has several answers at once.
INFLATED_SUM_MAX = 4 * INFLATED_BYTES_MAX
_NONE_FOUND = (ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_FULL, ResponseCode.PULL_NOT_FOUND)


@dataclass(slots=True)
class PopSource:
    """What a consumer pops: topics for a group, from the brokers of the directory.

    Args:
        group: the consumer group, with its namespace.
        subscriptions: by topic, with its namespace.
        missing: by topic, why its route is not known.
    """

    directory: Directory
    group: str
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    # Where a new group begins.
    init_mode: int = INIT_MIN
    # Counts the pops: the next one asks the next broker and topic first.
    turn: int = 0
    missing: dict[str, SparrowError] = field(default_factory=dict)


@dataclass(slots=True)
class ReceivedMessages:
    """The messages that a `receive` has returned, for a caller that may not get them."""

    messages: list[MessageExt] = field(default_factory=list)


def receive(
    source: PopSource,
    *,
    count_max: int,
    invisible_ms: int,
    wait_ms: int,
    received: ReceivedMessages | None = None,
) -> Operation[list[MessageExt]]:
    """Pop messages of any of the topics; wait for the first of them.

    If the operation is cancelled, what its last pop finds is given back.

    Args:
        received: gets the messages too.

    Raises: TopicRouteNotFound if no topic's route is known; TransportError if no broker of the
        topics answers; BrokerError.
    """
    now_ms = yield from now()
    deadline_ms, is_first = now_ms + wait_ms, True
    while True:
        began_ms = now_ms
        places = yield from _find_places(source)
        failures: list[TransportError] = []
        for _ in places:
            source.turn += 1
            subscription, queue = places[source.turn % len(places)]
            poll_ms = max(0, deadline_ms - now_ms)
            if len(places) > 1:
                poll_ms = 0 if is_first else min(poll_ms, TURN_MS)
            try:
                popping = _pop(source, subscription, queue, count_max, invisible_ms, poll_ms)
                found = yield from _pop_beside(source, popping)
            except TransportError as error:
                failures.append(error)
                with suppress(SparrowError):
                    yield from get_route(source.directory, queue.topic, is_fresh=True)
                found = []
            if found:
                if received is not None:
                    received.messages = found
                return found
            now_ms = yield from now()
        if failures and len(failures) == len(places):
            raise failures[0]
        if now_ms >= deadline_ms:
            return []
        if not is_first and now_ms - began_ms < PAUSE_MS:
            # A broker with too many waiting pops answers at once.
            yield from sleep(min(PAUSE_MS, deadline_ms - now_ms))
            now_ms = yield from now()
        is_first = False


def _pop_beside(
    source: PopSource, popping: Operation[list[MessageExt]]
) -> Operation[list[MessageExt]]:
    """Return the messages of a pop, which goes on if the operation is cancelled."""
    task: Task = yield Spawn(popping, "pop")
    try:
        found: list[MessageExt] = yield Join(task, None)
    except Cancelled:
        # The pop may have ended in this very step.
        yield Spawn(_give_back_found(source, task), "return of messages")
        raise
    return found


def _give_back_found(source: PopSource, popping: Task) -> Operation[None]:
    """Give back what a pop finds that nobody waits for any more."""
    with suppress(SparrowError):
        found: list[MessageExt] = yield Join(popping, None)
        yield from give_back(source, found)


def _find_places(source: PopSource) -> Operation[list[tuple[SubscriptionData, MessageQueue]]]:
    """Return the topics and their brokers, each broker as its queue of the number -1."""
    if not source.subscriptions:
        raise UsageError("there is nothing to receive: subscribe a topic first")
    places: list[tuple[SubscriptionData, MessageQueue]] = []
    missing: dict[str, SparrowError] = {}
    for topic, subscription in list(source.subscriptions.items()):
        try:
            route = yield from get_route(source.directory, topic)
        except SparrowError as error:
            missing[topic] = error
            continue
        if route.hosts:
            raise UsageError(
                f"topic {topic!r} is a static topic, whose messages brokers of RocketMQ do not pop "
                f"by its queues; consume it with a push or a poll consumer"
            )
        names = dict.fromkeys(queue.broker_name for queue in route.subscribe_queues)
        places += [(subscription, MessageQueue(topic, name, -1)) for name in names]
    if missing and not places:
        raise next(iter(missing.values()))
    source.missing = missing
    return places


def _pop(
    source: PopSource,
    subscription: SubscriptionData,
    queue: MessageQueue,
    count_max: int,
    invisible_ms: int,
    poll_ms: int,
) -> Operation[list[MessageExt]]:
    address = yield from get_broker_address(source.directory, queue)
    header = PopMessageRequestHeader(
        consumer_group=source.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        max_msg_nums=count_max,
        invisible_time_ms=invisible_ms,
        poll_time_ms=poll_ms,
        # The broker's own time. It refuses pops that seem older than their wait, as all those of a
        # client whose clock is behind do.
        born_timestamp_ms=0,
        init_mode=source.init_mode,
        exp_type=subscription.expression_type,
        exp=subscription.sub_string,
    )
    reply: RemotingCommand = yield Invoke(
        address, make_request(RequestCode.POP_MESSAGE, header), poll_ms + ANSWER_MS
    )
    if reply.code in _NONE_FOUND:
        return []
    if reply.code != ResponseCode.SUCCESS:
        raise error_of(reply, address)
    messages = yield from read_popped(source, reply, broker_name=queue.broker_name, address=address)
    unwanted = [message for message in messages if _is_unwanted(message, subscription)]
    if unwanted:
        # If it fails, they come again at the end of their time.
        with suppress(SparrowError):
            yield from acknowledge(source, unwanted)
        messages = [message for message in messages if not _is_unwanted(message, subscription)]
    return messages


def _is_unwanted(message: MessageExt, subscription: SubscriptionData) -> bool:
    """Return whether a message's tag has only the hash code of a wanted one.

    RocketMQ's brokers compare the codes alone. What a group received under other tags before comes
    again whatever its tag.
    """
    tag = message.tags
    return tag not in subscription.tags_set and tags_code(tag) in subscription.code_set


def read_popped(
    source: PopSource, reply: RemotingCommand, *, broker_name: str, address: str
) -> Operation[list[MessageExt]]:
    """Return the messages of an answer, with their handles; give back those without room.

    The driver does other work between the turns in which bodies are inflated.

    Raises: RemoteProtocolError.
    """
    answer = decode_header(PopMessageResponseHeader, reply.ext_fields)
    starts, body = start_offsets(answer), reply.body or b""
    found: list[MessageExt] = []
    at, room_bytes = 0, INFLATED_SUM_MAX
    while at < len(body):
        part, end = decode_turn(body, at, broker_name=broker_name, room_bytes=room_bytes)
        if end == at:
            break
        found += part
        at = end
        if at < len(body):
            room_bytes -= sum(len(each.body) for each in part if each.sys_flag & COMPRESSED)
            yield Sleep(0)
    unwrap = source.directory.namespace.unwrap_messages
    messages = unwrap([_with_handle(answer, each, starts, address) for each in found])
    left = unwrap(
        [
            _with_handle(answer, each, starts, address)
            for each in decode_stored(body, at, broker_name=broker_name)
        ]
    )
    yield from give_back(source, left)
    return messages


def _with_handle(
    answer: PopMessageResponseHeader,
    message: MessageExt,
    starts: dict[tuple[str, int], int],
    address: str,
) -> MessageExt:
    """Add the handle to a message's properties, as Java's client does."""
    if _is_named(message, answer):
        return message
    handle = handle_of(message, answer, starts, address=address)
    return _replace_handle(message, handle, answer.pop_timestamp_ms)


def _is_named(message: MessageExt, answer: PopMessageResponseHeader) -> bool:
    """Return whether the broker has named the handle, as Apache's do for redelivered messages.

    Differs from RocketMQ: the handle of another message, whose properties the producer has copied,
    does not count. Apache's brokers remove it when they store the copy.
    """
    try:
        handle = parse_handle(message.properties.get(PROPERTY_POP_CK, ""))
    except RemoteProtocolError:
        return False
    place = handle.pop_timestamp_ms, handle.queue_id, handle.queue_offset
    return place == (answer.pop_timestamp_ms, message.queue_id, message.queue_offset)


def _replace_handle(message: MessageExt, handle: PopHandle, pop_timestamp_ms: int) -> MessageExt:
    properties = {
        PROPERTY_FIRST_POP_TIME: str(pop_timestamp_ms),
        **message.properties,
        PROPERTY_POP_CK: handle.encode(),
    }
    return msgspec.structs.replace(message, properties=properties)


def _handle_of(message: MessageExt) -> PopHandle:
    if not isinstance(message, MessageExt):
        raise UsageError(f"{message!r} is not a message; give one that `receive` returned")
    text = message.properties.get(PROPERTY_POP_CK)
    if text is None:
        raise UsageError(
            f"message {message.msg_id} of topic {message.topic} was not received by a "
            "SimpleConsumer: it has no handle"
        )
    return parse_handle(text)


def _place_of(
    source: PopSource, message: MessageExt, handle: PopHandle
) -> Operation[tuple[str, str]]:
    """Return the address of a message's broker, and the topic that the handle means."""
    topic = source.directory.namespace.wrap(message.topic)
    queue = MessageQueue(topic, handle.broker_name, handle.queue_id)
    address = yield from get_broker_address(source.directory, queue)
    if handle.mark != NORMAL_MARK:
        separator = "_" if handle.mark == RETRY_MARK_V1 else "+"
        topic = f"{retry_topic(source.group)}{separator}{topic}"
    return address, topic


def acknowledge(source: PopSource, messages: Sequence[MessageExt]) -> Operation[None]:
    """Acknowledge messages: several of one broker by one request.

    Raises: UsageError for a message without a handle, before anything is acknowledged; else once
        all brokers were asked: TransportError; BrokerError, also for a message that came again
        meanwhile. RocketMQ's brokers do not say whether a message came again.
    """
    requests: list[Operation[None]] = []
    of_brokers: dict[str, list[tuple[MessageExt, PopHandle]]] = {}
    for message, handle in [(message, _handle_of(message)) for message in messages]:
        if len(messages) == 1 or not handle.fits_batch:
            requests.append(_acknowledge_one(source, message, handle))
        else:
            of_brokers.setdefault(handle.broker_name, []).append((message, handle))
    for acknowledged in of_brokers.values():
        for at in range(0, len(acknowledged), ACKS_PER_BATCH_MAX):
            batch = acknowledged[at : at + ACKS_PER_BATCH_MAX]
            requests.append(_acknowledge_batch(source, batch))
    yield from gather(requests, name="acknowledgements")


def _acknowledge_one(source: PopSource, message: MessageExt, handle: PopHandle) -> Operation[None]:
    address, topic = yield from _place_of(source, message, handle)
    header = handle.ack_header(source.group, topic)
    timeout_ms = source.directory.timeout_ms
    yield from ask(address, RequestCode.ACK_MESSAGE, header, timeout_ms=timeout_ms)


def _acknowledge_batch(
    source: PopSource, batch: Sequence[tuple[MessageExt, PopHandle]]
) -> Operation[None]:
    """Acknowledge messages of one broker. Raises: BrokerError for those that came again."""
    wrap = source.directory.namespace.wrap
    address, _ = yield from _place_of(source, *batch[0])
    acks, places = batch_acks(
        (handle, source.group, wrap(message.topic)) for message, handle in batch
    )
    body = encode_body(BatchAckBody(broker_name=batch[0][1].broker_name, acks=acks))
    code, timeout_ms = RequestCode.BATCH_ACK_MESSAGE, source.directory.timeout_ms
    reply = yield from ask(address, code, body=body, timeout_ms=timeout_ms)
    left_out = decode_header(BatchAckResponseHeader, reply.ext_fields).read()
    gone = [
        f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        for (message, _), place in zip(batch, places, strict=True)
        if place in left_out
    ]
    if gone:
        remark = f"{len(gone)} of {len(batch)} messages came again meanwhile: {', '.join(gone[:8])}"
        raise BrokerError(ResponseCode.NO_MESSAGE, remark, address=address)


def change_invisible(
    source: PopSource, message: MessageExt, *, invisible_ms: int, is_attempt: bool = True
) -> Operation[MessageExt]:
    """Let a message be invisible for another time, from now on; return it with its new handle.

    Args:
        is_attempt: whether the message counts one attempt more when it comes again.

    Raises: as `acknowledge`.
    """
    handle = _handle_of(message)
    address, topic = yield from _place_of(source, message, handle)
    header = handle.change_header(
        source.group, topic, invisible_ms=invisible_ms, suspend=not is_attempt
    )
    code, timeout_ms = RequestCode.CHANGE_MESSAGE_INVISIBLETIME, source.directory.timeout_ms
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    answer = decode_header(ChangeInvisibleTimeResponseHeader, reply.ext_fields)
    return _replace_handle(message, handle.changed(answer), answer.pop_timestamp_ms)


def give_back(source: PopSource, messages: Sequence[MessageExt]) -> Operation[None]:
    """Let other consumers have messages at once; nothing counts as tried.

    A message whose return fails comes again at the end of its time.
    """
    returns = [change_invisible(source, m, invisible_ms=0, is_attempt=False) for m in messages]
    yield from gather_outcomes(returns, name="return of messages", at_once=WIDTH)


def reject(source: PopSource, message: MessageExt) -> Operation[None]:
    """Put a message among the group's dead letters, and acknowledge it then.

    Raises: as `acknowledge`. If the second step fails, the message comes again too.
    """
    yield from put_dead_letter(source, message)
    yield from acknowledge(source, [message])


def put_dead_letter(source: PopSource, message: MessageExt) -> Operation[None]:
    """Put a message among the group's dead letters; it is to be acknowledged then.

    Raises: as `acknowledge`.
    """
    address, _ = yield from _place_of(source, message, _handle_of(message))
    timeout_ms = source.directory.timeout_ms
    yield from send_dead_letter(address, source.group, message=message, timeout_ms=timeout_ms)
