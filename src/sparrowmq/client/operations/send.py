"""Send a message: choose a queue, send the request, and retry at other brokers.

A send that fails for a passing reason is tried again, each time at another broker if there is one.
A message whose queue the user or the sharding key has fixed stays with its queue. An attempt
without an answer may have stored the message, and a retry can then store it twice. Consumers must
expect duplicates, as with RocketMQ.

Hot path, benchmark: benchmarks/client.py. The usual send therefore does not run this operation: if
the route is known, a face prepares the first attempt (`prepare`), writes its request and reads the
answer. After a failed attempt the face calls `go_on`. Both ways consist of the same functions:
`_aim` makes the request, `read_outcome` reads the answer. The simulation drives the face itself.
Why: docs/decisions/sends-around-the-operation.md.
Source: DefaultMQProducerImpl.sendDefaultImpl, sendKernelImpl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from sparrowmq.calling.effects import (
    Invoke,
    Now,
    Oneway,
    Operation,
    Outcome,
    Sleep,
    Timestamp,
    Wait,
    join,
    spawn,
)
from sparrowmq.client.arguments import check_message, check_queue
from sparrowmq.client.config import BATCH_COUNT_MAX
from sparrowmq.client.operations.heartbeats import unregister
from sparrowmq.client.operations.producer_heartbeats import begin_heartbeat, look_again
from sparrowmq.client.operations.request import error_of
from sparrowmq.client.operations.routes import get_publish_route, look_up_publish_route
from sparrowmq.client.operations.send_answer import (
    STATUSES,
    result_at,
    result_of,
    send_failed,
    subject_of,
)
from sparrowmq.client.outgoing import (
    OutgoingMessage,
    check_and_encode,
    check_batch,
    check_sendable_topic,
    encode_message,
    make_half,
    make_parts,
    mark,
)
from sparrowmq.client.publisher import DelayRounded, Publisher
from sparrowmq.client.queue_selector import (
    LATE_MS,
    QueueChoice,
    SelectQueue,
    select_queue_by_key,
    select_queue_by_user,
)
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.errors import (
    NoWritableQueue,
    SendFailed,
    SparrowError,
    TransportError,
    UsageError,
)
from sparrowmq.model import Message, MessageQueue, SendResult, SendStatus
from sparrowmq.model.delay import DELAY_LEVELS_MS, DELAY_MAX
from sparrowmq.protocol.codes import MQ_VERSION_5, RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.protocol.send_request import (
    TRACE_OFF,
    TRACE_SWITCH,
    SendAnswered,
    SendRequest,
    SendTemplate,
    make_fields,
)

# DefaultMQProducer.retryResponseCodes, with SYSTEM_BUSY as from 5.3 on.
_RETRIED_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        # The queue of a static topic has moved.
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)

# The pause before the second attempt at one broker, and how often it doubles.
RETRY_FIRST_MS = 100
RETRY_DOUBLINGS_MAX = 10
# An id as long as all others.
_SOME_MSG_ID = "0" * 32


def send(
    publisher: Publisher,
    message: Message,
    *,
    queue: QueueChoice | None = None,
    is_half: bool = False,
    marks: Mapping[str, str] = MappingProxyType({}),
    code: int = RequestCode.SEND_MESSAGE_V2,
    in_turn: bool = False,
) -> Operation[SendResult]:
    """Send a message and return where it was stored.

    Messages of one sharding key, or of one `queue`, keep the order of the calls: the message waits
    for the answers to those that `send_nowait` has queued before it.

    Args:
        queue: the queue, or a function that chooses one; None for the sharding key's queue, or else
            the next queue in turn.
        is_half: whether the message waits for the end of its transaction; `queue_offset` is then
            the offset in the half topic.
        marks: properties that users must not set.
        code: the request code.
        in_turn: whether the messages before it have their answers.

    Raises: UsageError or ConfigError if the message is not valid; SendFailed if every attempt
    failed, or the messages before it had no answers in time; RouteError or ConnectFailed if the
    topic or the name server is not found; BrokerError if the broker refuses the message for good;
    RemoteProtocolError if an answer cannot be right.
    """
    load, _ = yield from _begin(publisher, message, queue, code=code, in_turn=in_turn)
    if is_half:
        half = make_half(load.outgoing, publisher.config.group)
        load = msgspec.structs.replace(load, outgoing=half)
    if marks:
        load = msgspec.structs.replace(load, outgoing=mark(load.outgoing, marks))
    return (yield from _deliver(publisher, load))


def send_batch(
    publisher: Publisher,
    messages: Sequence[Message],
    *,
    queue: MessageQueue | None = None,
    in_turn: bool = False,
) -> Operation[SendResult]:
    """Send messages of one topic to one queue, in order, in requests as large as brokers take.

    Messages that all have the same sharding key go to the key's queue.

    Returns: `msg_id` and `offset_msg_id` are comma lists; `queue_offset` is the first message's
    offset. If a part has a status other than SEND_OK, the result has that status.
    Raises: as `send`; UsageError if the messages do not make a batch; SendFailed names the number
    of messages that are stored, counted from the first.
    """
    if not in_turn:
        topic = check_batch(messages, has_queue=queue is not None)
        began_ms: int = yield Now()
        key = messages[0].sharding_key
        yield from _await_turn(publisher, topic, queue, key, now_ms=began_ms)
    timestamp_ms: int = yield Timestamp()
    # All messages are checked before the first is sent.
    loads = _load_batch(publisher, messages, queue, timestamp_ms=timestamp_ms)
    results: list[SendResult] = []
    stored_count = 0
    for load in loads:
        # The parts stand in one queue, and each has its own time.
        now_ms: int = yield Now()
        deadline_ms = now_ms + publisher.config.send_timeout_ms
        queue = load.queue
        if results:
            queue = publisher.config.namespace.wrap_queue(results[0].queue)
        load = msgspec.structs.replace(load, queue=queue, deadline_ms=deadline_ms)
        try:
            result = yield from _deliver(publisher, load)
        except SparrowError as error:
            if not results:
                raise
            raise SendFailed(
                f"the first {stored_count} of {len(messages)} messages of a batch to "
                f"{messages[0].topic!r} are stored, but not all others: {error}",
                brokers_tried=getattr(error, "brokers_tried", ()),
                outcome_unknown=True,
            ) from error
        results.append(result)
        stored_count += load.msg_id.count(",") + 1
    if len(results) == 1:
        return results[0]
    statuses = [r.status for r in results if r.status is not SendStatus.SEND_OK]
    return results[0]._replace(
        status=statuses[0] if statuses else SendStatus.SEND_OK,
        msg_id=",".join(result.msg_id for result in results),
        offset_msg_id=",".join(result.offset_msg_id for result in results),
    )


def send_encoded_batch(
    publisher: Publisher, topic: str, body: bytes, *, queue: MessageQueue | None = None
) -> Operation[SendResult]:
    """Send a batch that `protocol.record.encode_batch` or a similar function has encoded.

    A caller that encodes columns has no `Message` objects, so the messages are not checked here.
    The result has no `msg_id`.

    Raises: as `send_batch`.
    """
    timestamp_ms: int = yield Timestamp()
    now_ms: int = yield Now()
    topic, queue = _target_of(publisher, topic, queue)
    deadline_ms = now_ms + publisher.config.send_timeout_ms
    outgoing, code = OutgoingMessage(body, 0, 0, ""), RequestCode.SEND_BATCH_MESSAGE
    load = Load(topic, code, outgoing, queue, None, "", timestamp_ms, deadline_ms)
    return (yield from _deliver(publisher, load))


def send_oneway(
    publisher: Publisher, message: Message, *, queue: QueueChoice | None = None
) -> Operation[None]:
    """Write a message to the connection without an answer: the message may be lost.

    Raises: as `send`, without the errors of an answer; TransportError if the message could not be
    written.
    """
    load, now_ms = yield from _begin(publisher, message, queue)
    route, now_ms = yield from _get_route(
        publisher, load.topic, now_ms=now_ms, deadline_ms=load.deadline_ms
    )
    target, timeout_ms = _choose(publisher, route, load, now_ms=now_ms), load.deadline_ms - now_ms
    invoke = _aim(publisher, load, target, timeout_ms=max(1, timeout_ms)).invoke
    assert isinstance(invoke.request, SendRequest)
    request = invoke.request.command()
    request.flag = ONEWAY_FLAG
    yield Oneway(invoke.address, request, invoke.timeout_ms)


def _begin(
    publisher: Publisher,
    message: Message,
    queue: QueueChoice | None,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    in_turn: bool = False,
) -> Operation[tuple[Load, int]]:
    """Check a message, wait for its turn, and return what its attempts send, and the time."""
    check_message(message)
    if callable(queue):
        queue = yield from _ask_user(publisher, message, queue)
    now_ms: int = yield Now()
    deadline_ms = now_ms + publisher.config.send_timeout_ms
    if not in_turn:
        now_ms = yield from _await_turn(
            publisher, message.topic, queue, message.sharding_key, now_ms=now_ms
        )
    timestamp_ms: int = yield Timestamp()
    topic, queue = _target_of(publisher, message.topic, queue)
    has_timer = message.delay is not None and (
        yield from _has_timer(
            publisher, topic, message, queue, now_ms=now_ms, deadline_ms=deadline_ms
        )
    )
    msg_id = publisher.ids.next_id(timestamp_ms)
    load = Load(
        topic,
        code,
        encode_message(message, msg_id, config=publisher.config, has_timer=has_timer),
        queue,
        message.sharding_key,
        msg_id,
        timestamp_ms,
        deadline_ms,
        has_timer,
    )
    return load, now_ms


def check_outgoing(publisher: Publisher, message: Message, queue: QueueChoice | None) -> None:
    """Check what can be known of a message before its send.

    Raises: UsageError or ConfigError, as `send`.
    """
    # One condition for the usual case.
    is_usual = type(message) is Message and queue is None
    if not is_usual or message.topic not in publisher.topics:
        check_message(message)
        _target_of(publisher, message.topic, None if callable(queue) else queue)
    check_and_encode(message, _SOME_MSG_ID, config=publisher.config)


def _await_turn(
    publisher: Publisher, topic: str, queue: MessageQueue | None, key: str | None, *, now_ms: int
) -> Operation[int]:
    """Wait until the messages of `send_nowait` that are to stand before a message are answered.

    Returns: the time.
    Raises: UsageError for what is not a queue; SendFailed after `send_timeout_ms`; the errors of
    finding the route.
    """
    batcher = publisher.batcher
    if batcher is None or batcher.is_empty or (queue is None and not key):
        return now_ms
    timeout_ms = publisher.config.send_timeout_ms
    deadline_ms = now_ms + timeout_ms
    if queue is None:
        assert key is not None
        queue = select_queue_by_key((yield from get_publish_queues(publisher, topic)), key)
    else:
        queue, key = check_queue(queue), None
    batcher.flush_count += 1
    try:
        is_placed, lane, count = False, None, 0
        while True:
            if not is_placed and not batcher.has_unplaced(topic):
                is_placed, lane = True, batcher.find_lane(queue, key)
                count = 0 if lane is None else lane.placed_count
            if is_placed and (lane is None or lane.ended_count >= count):
                return now_ms
            batcher.wake.set()
            batcher.settled.clear()
            now_ms = yield Now()
            if not (yield Wait(batcher.settled, max(0, deadline_ms - now_ms))):
                raise SendFailed(
                    f"the message to {queue} was not sent: earlier messages of send_nowait for "
                    f"this queue had no answer within {timeout_ms} ms; send it again",
                    brokers_tried=(),
                )
    finally:
        batcher.flush_count -= 1


def _ask_user(
    publisher: Publisher, message: Message, select: SelectQueue
) -> Operation[MessageQueue]:
    queues = yield from get_publish_queues(publisher, message.topic)
    return select_queue_by_user(select, queues, message)


def _target_of(
    publisher: Publisher, topic: str, queue: MessageQueue | None
) -> tuple[str, MessageQueue | None]:
    """Check topic and queue and return them with the namespace, as on the wire."""
    namespace = publisher.config.namespace
    wrapped = publisher.topics.get(topic)
    if wrapped is None:
        wrapped = namespace.wrap(topic)
        check_sendable_topic(wrapped)
        publisher.topics[topic] = wrapped
    if queue is not None:
        queue = namespace.wrap_queue(check_queue(queue))
        if queue.topic != wrapped:
            raise UsageError(
                f"a message to topic {wrapped!r} cannot go to a queue of {queue.topic!r}"
            )
    return wrapped, queue


def _make_fields(publisher: Publisher, topic: str, code: int) -> dict[str, str]:
    config = publisher.config
    return make_fields(
        config.group,
        topic,
        template_topic=config.template_topic,
        template_queues_max=config.template_queues_max,
        code=code,
    )


def _has_timer(
    publisher: Publisher,
    topic: str,
    message: Message,
    queue: MessageQueue | None,
    *,
    now_ms: int,
    deadline_ms: int,
) -> Operation[bool]:
    """Return whether all brokers that may get a message support its exact `delay`.

    RocketMQ 5 supports any delay. An older broker would deliver the message at once, so it gets a
    delay level instead.

    Raises: the errors of finding the route; UsageError if no level is long enough.
    """
    assert message.delay is not None
    route, now_ms = yield from _get_route(publisher, topic, now_ms=now_ms, deadline_ms=deadline_ms)
    queues = route.publish_queues if queue is None else (queue,)
    # A broker that is away may come back as an older one.
    addresses = {
        publisher.routes.master_address(name) or "an unknown address"
        for name in set(map(publisher.routes.host, queues))
    }
    if not addresses <= publisher.versions.keys():
        # Half of the time is kept for the send.
        timeout_ms = max(1, (deadline_ms - now_ms) // 2)
        yield from begin_heartbeat(publisher, topic, timeout_ms, now_ms=now_ms)
    old = [
        address
        for address in sorted(addresses)
        if publisher.versions.get(address, 0) < MQ_VERSION_5
    ]
    if not old:
        return True
    if message.delay > DELAY_MAX:
        raise UsageError(
            f"a message to {topic!r} asks for a delay of {message.delay}, but the broker at "
            f"{old[0]} has levels of delay alone, or its version is not known; brokers of RocketMQ "
            f"5 delay longer than {DELAY_MAX}"
        )
    level = message.delay_level
    waits = timedelta(milliseconds=DELAY_LEVELS_MS[level - 1])
    if publisher.report and waits != message.delay and (topic, level) not in publisher.rounded:
        publisher.rounded.add((topic, level))
        publisher.report(DelayRounded(topic, message.delay, waits, old[0]))
    return False


class Load(msgspec.Struct, frozen=True, gc=False):
    """What all attempts of one send have in common.

    Args:
        topic: the topic, with its namespace.
        code: the request code.
        outgoing: what the request carries.
        queue: the queue that must get the message; None for any.
        key: the sharding key.
        msg_id: the message's id, or those of a batch, separated by commas.
        timestamp_ms: the instant of birth.
        deadline_ms: the end of the time for all attempts.
        has_timer: whether only brokers that delay by any time may get the message.
    """

    topic: str
    code: int
    outgoing: OutgoingMessage
    queue: MessageQueue | None
    key: str | None
    msg_id: str
    timestamp_ms: int
    deadline_ms: int
    has_timer: bool = False


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt of a send: its load, its queue, and its request to the queue's broker."""

    load: Load
    target: MessageQueue
    invoke: Invoke


def prepare(
    publisher: Publisher,
    message: Message,
    queue: QueueChoice | None,
    *,
    timestamp_ms: int,
    now_ms: int,
) -> Attempt | None:
    """Prepare the first attempt of a send; None if the send needs the operation.

    A send can be prepared if its route and broker are known, no heartbeat is due, no function
    chooses the queue, no queued message comes first, and no observer or record of latencies must
    see the send.

    Raises: UsageError or ConfigError as `send`.
    """
    if callable(queue) or not _is_direct(publisher, now_ms):
        return None
    if type(message) is not Message:
        check_message(message)
    if message.delay is not None:
        # The operation first asks whether the brokers support the delay.
        return None
    topic = publisher.topics.get(message.topic)
    if topic is None or queue is not None:
        topic, queue = _target_of(publisher, message.topic, queue)
    msg_id = publisher.ids.next_id(timestamp_ms)
    outgoing = encode_message(message, msg_id, config=publisher.config)
    load = Load(
        topic,
        RequestCode.SEND_MESSAGE_V2,
        outgoing,
        queue,
        message.sharding_key,
        msg_id,
        timestamp_ms,
        now_ms + publisher.config.send_timeout_ms,
    )
    return _aim_at_known(publisher, load, now_ms=now_ms)


def prepare_batch(
    publisher: Publisher,
    messages: Sequence[Message],
    queue: MessageQueue | None,
    *,
    timestamp_ms: int,
    now_ms: int,
) -> Attempt | None:
    """Prepare a send of messages as `prepare` does; None also if they need several requests.

    Raises: UsageError or ConfigError as `send_batch`.
    """
    # A long batch takes several requests. The check refuses anything but a list or tuple.
    is_long = isinstance(messages, list | tuple) and len(messages) > BATCH_COUNT_MAX
    if is_long or not _is_direct(publisher, now_ms):
        return None
    deadline_ms = now_ms + publisher.config.send_timeout_ms
    loads = _load_batch(
        publisher, messages, queue, timestamp_ms=timestamp_ms, deadline_ms=deadline_ms
    )
    return _aim_at_known(publisher, loads[0], now_ms=now_ms) if len(loads) == 1 else None


def _load_batch(
    publisher: Publisher,
    messages: Sequence[Message],
    queue: MessageQueue | None,
    *,
    timestamp_ms: int,
    deadline_ms: int = 0,
) -> list[Load]:
    """Return the requests of a batch. Raises: as `send_batch`."""
    config, has_queue = publisher.config, queue is not None
    parts = make_parts(messages, publisher.ids, timestamp_ms, config=config, has_queue=has_queue)
    topic, queue = _target_of(publisher, messages[0].topic, queue)
    key = messages[0].sharding_key
    return [
        Load(topic, code, outgoing, queue, key, msg_id, timestamp_ms, deadline_ms)
        for code, outgoing, msg_id in parts
    ]


def _is_direct(publisher: Publisher, now_ms: int) -> bool:
    """Return whether no heartbeat is due, no message comes first, and nothing sees each send."""
    heartbeat_due_ms = publisher.heartbeat_due_ms
    return (
        heartbeat_due_ms is not None
        and heartbeat_due_ms > now_ms
        and not publisher.observers
        and (publisher.batcher is None or publisher.batcher.is_empty)
        # The operation measures the time of each answer.
        and not publisher.config.avoid_slow_brokers
    )


def _aim_at_known(publisher: Publisher, load: Load, *, now_ms: int) -> Attempt | None:
    """Choose the queue of a send; None if its route or its broker is not known."""
    route = publisher.routes.find(load.topic)
    if route is None or not _is_usable(publisher, route, now_ms):
        return None
    try:
        target = _choose(publisher, route, load, now_ms=now_ms)
        return _aim(publisher, load, target, timeout_ms=load.deadline_ms - now_ms)
    except NoWritableQueue:
        return None


def _aim(publisher: Publisher, load: Load, target: MessageQueue, *, timeout_ms: int) -> Attempt:
    """Make the request of an attempt. Raises: NoWritableQueue."""
    address = publisher.routes.master_address(target.broker_name)
    if address is None or load.has_timer:
        address = _check_master(publisher, target, has_timer=load.has_timer)
    template = publisher.templates.get((load.code, load.topic))
    if template is None:
        template = SendTemplate(load.code, _make_fields(publisher, load.topic, load.code))
        publisher.templates[load.code, load.topic] = template
    outgoing = load.outgoing
    fields = (target.queue_id, outgoing.sys_flag, load.timestamp_ms, outgoing.flag)
    request = SendRequest(template, fields, outgoing.properties, outgoing.body)
    return Attempt(load, target, Invoke(address, request, timeout_ms))


def read_outcome(
    publisher: Publisher, load: Load, target: MessageQueue, outcome: Outcome
) -> SendResult | None:
    """Return the result of an attempt, None if the message is not stored.

    Raises: RemoteProtocolError if the answer cannot be right.
    """
    if publisher.config.namespace.name:
        target = publisher.config.namespace.unwrap_queue(target)
    if isinstance(outcome, SendAnswered):
        return result_at(
            SendStatus.SEND_OK,
            load.msg_id,
            outcome.offset_msg_id,
            target,
            outcome.queue_id,
            outcome.queue_offset,
        )
    if isinstance(outcome, TransportError):
        return None
    status = STATUSES.get(outcome.code)
    return None if status is None else result_of(outcome, status, target, load.msg_id)


def _note_trace_switch(publisher: Publisher, broker_name: str, outcome: Outcome) -> None:
    fields = outcome.ext_fields if isinstance(outcome, RemotingCommand) else None
    if (fields or {}).get(TRACE_SWITCH) == TRACE_OFF:
        publisher.untraced.add(broker_name)
    else:
        publisher.untraced.discard(broker_name)


def go_on(publisher: Publisher, attempt: Attempt, outcome: Outcome) -> Operation[SendResult]:
    """Go on as `send` does after a prepared attempt that failed."""
    tried = _Tried(attempt.target, attempt.invoke.address, outcome)
    return _deliver(publisher, attempt.load, tried=tried)


class _Tried(NamedTuple):
    """An attempt that was made: its queue, its broker's address, and what came of it."""

    target: MessageQueue
    address: str
    outcome: Outcome | NoWritableQueue


def _deliver(
    publisher: Publisher, load: Load, *, tried: _Tried | None = None
) -> Operation[SendResult]:
    """Send the request, and send it again while a retry may help and time is left.

    Args:
        tried: a first attempt that a face has made.
    """
    config, topic = publisher.config, load.topic
    now_ms: int = yield Now()
    if publisher.heartbeat_due_ms is None or publisher.heartbeat_due_ms <= now_ms:
        heartbeat = begin_heartbeat(publisher, topic, config.times.invoke_timeout_ms, now_ms=now_ms)
        yield from spawn(heartbeat, name=f"heartbeat of {config.group}")
    names: list[str] = []
    failure: SparrowError | None = None
    # Whether a broker may have stored the message without an answer; whether only one may take it.
    is_unknown = is_alone = False
    for number in range(1 + config.retry_times):
        if number:
            pauses = number if is_alone else 0
            now_ms = yield from _prepare_retry(
                publisher, topic, pauses=pauses, now_ms=now_ms, deadline_ms=load.deadline_ms
            )
            if now_ms >= load.deadline_ms:
                break
        if number or tried is None:
            avoid = names[-1] if names else None
            try:
                tried = yield from _try_once(publisher, load, avoid=avoid, now_ms=now_ms)
            except SparrowError as error:
                if not is_unknown:
                    raise
                failure = error
                break
        target, address, outcome = tried
        is_alone = load.queue is not None or bool(load.key) or _has_one_broker(publisher, topic)
        names.append(publisher.routes.host(target))
        if isinstance(outcome, SparrowError):
            failure = outcome
            is_unknown = is_unknown or outcome.outcome_unknown
            now_ms = yield Now()
            continue
        result = read_outcome(publisher, load, target, outcome)
        if result is not None:
            if publisher.observers:
                _note_trace_switch(publisher, target.broker_name, outcome)
            return result
        assert isinstance(outcome, RemotingCommand)
        failure = error_of(outcome, address)
        # Differs from RocketMQ: after NO_PERMISSION, a message's only broker is not asked again.
        is_forbidden = outcome.code == ResponseCode.NO_PERMISSION and is_alone
        if outcome.code not in _RETRIED_CODES or failure.is_denial or is_forbidden:
            if is_unknown:
                break
            what = f"{subject_of(topic, load.msg_id)} is not stored"
            raise error_of(outcome, address, subject=what)
        now_ms = yield Now()
    what = subject_of(topic, load.msg_id)
    raise send_failed(what, tuple(names), failure, is_unknown=is_unknown) from failure


def _try_once(
    publisher: Publisher, load: Load, *, avoid: str | None, now_ms: int
) -> Operation[_Tried]:
    """Send the request to the next queue. Raises: the errors of finding the route."""
    route, now_ms = yield from _get_route(
        publisher, load.topic, now_ms=now_ms, deadline_ms=load.deadline_ms
    )
    target, address = _choose(publisher, route, load, avoid=avoid, now_ms=now_ms), ""
    outcome: Outcome | NoWritableQueue
    try:
        timeout_ms = max(1, load.deadline_ms - now_ms)
        attempt = _aim(publisher, load, target, timeout_ms=timeout_ms)
        address = attempt.invoke.address
        outcome = yield attempt.invoke
    except (TransportError, NoWritableQueue) as error:
        outcome = error
    if publisher.config.avoid_slow_brokers and address:
        ended_ms: int = yield Now()
        # DefaultMQProducerImpl isolates a broker after a refusal, too.
        is_refused = isinstance(outcome, RemotingCommand) and outcome.code in _RETRIED_CODES
        is_failed = is_refused or isinstance(outcome, SparrowError)
        latency_ms = LATE_MS if is_failed else ended_ms - now_ms
        publisher.selector.note_latency(route.host(target), latency_ms, ended_ms)
    return _Tried(target, address, outcome)


def _prepare_retry(
    publisher: Publisher, topic: str, *, pauses: int, now_ms: int, deadline_ms: int
) -> Operation[int]:
    """Pause if asked to, refresh the route, and return the time.

    Args:
        pauses: the number of this pause, from 1; 0 for no pause. A pause gives the only broker
            that can take the message time to restart.
    """
    if pauses:
        pause_ms = RETRY_FIRST_MS << min(pauses - 1, RETRY_DOUBLINGS_MAX)
        yield Sleep(max(0, min(pause_ms, deadline_ms - now_ms)))
        now_ms = yield Now()
    yield from look_again(publisher, topic, timeout_ms=deadline_ms - now_ms)
    now_ms = yield Now()
    return now_ms


def _get_route(
    publisher: Publisher, topic: str, *, now_ms: int, deadline_ms: int
) -> Operation[tuple[TopicRoute, int]]:
    """Return the topic's route and the time; ask the name server if no usable route is known."""
    route = publisher.routes.find(topic)
    if route is None or not _is_usable(publisher, route, now_ms):
        timeout_ms = max(0, deadline_ms - now_ms)
        route = yield from get_publish_route(publisher, topic, now_ms=now_ms, timeout_ms=timeout_ms)
        now_ms = yield Now()
    return route, now_ms


def _is_usable(publisher: Publisher, route: TopicRoute, now_ms: int) -> bool:
    return (
        not route.is_template
        and bool(route.publish_queues)
        and now_ms - route.fetched_ms <= publisher.config.times.route_refresh_ms
    )


def _choose(
    publisher: Publisher,
    route: TopicRoute,
    load: Load,
    *,
    now_ms: int,
    avoid: str | None = None,
) -> MessageQueue:
    if load.queue is not None:
        return load.queue
    if load.key:
        return select_queue_by_key(route.publish_queues, load.key)
    return publisher.selector.next_queue(
        route.publish_queues, route.host, avoid_broker=avoid, now_ms=now_ms
    )


def select_queue(publisher: Publisher, message: Message) -> Operation[MessageQueue]:
    """Return the queue that `send` would choose, and advance the round robin.

    Raises: RouteError, ConnectFailed, BrokerError, RemoteProtocolError.
    """
    check_message(message)
    now_ms: int = yield Now()
    topic, _ = _target_of(publisher, message.topic, None)
    route, _ = yield from _get_route(
        publisher, topic, now_ms=now_ms, deadline_ms=now_ms + publisher.config.send_timeout_ms
    )
    if message.sharding_key:
        queue = select_queue_by_key(route.publish_queues, message.sharding_key)
    else:
        queue = publisher.selector.next_queue(route.publish_queues, route.host, now_ms=now_ms)
    return publisher.config.namespace.unwrap_queue(queue)


def fetch_publish_queues(publisher: Publisher, topic: str) -> Operation[list[MessageQueue]]:
    """Ask the name server for the queues that take messages of a topic, in round robin's order.

    Raises: RouteError, ConnectFailed, BrokerError, RemoteProtocolError.
    """
    topic, _ = _target_of(publisher, topic, None)
    timeout_ms = publisher.config.send_timeout_ms
    yield from look_up_publish_route(publisher, topic, timeout_ms=timeout_ms)
    now_ms: int = yield Now()
    route = yield from get_publish_route(publisher, topic, now_ms=now_ms, timeout_ms=timeout_ms)
    return [publisher.config.namespace.unwrap_queue(queue) for queue in route.publish_queues]


def get_publish_queues(publisher: Publisher, topic: str) -> Operation[list[MessageQueue]]:
    """Return the queues that take messages of a topic, from the known route if it is fresh.

    Raises: as `fetch_publish_queues`.
    """
    topic, _ = _target_of(publisher, topic, None)
    now_ms: int = yield Now()
    deadline_ms = now_ms + publisher.config.send_timeout_ms
    route, _ = yield from _get_route(publisher, topic, now_ms=now_ms, deadline_ms=deadline_ms)
    return [publisher.config.namespace.unwrap_queue(queue) for queue in route.publish_queues]


def leave(publisher: Publisher) -> Operation[None]:
    """Unregister this producer at every broker where it is registered; ignore failures."""
    if publisher.heartbeat_due_ms is None:
        return
    config = publisher.config
    tasks = []
    for address in publisher.routes.addresses(masters_only=True):
        operation = unregister(address, config.client_id, producer_group=config.group)
        tasks.append((yield from spawn(operation, name=f"unregister at {address}")))
    for task in tasks:
        try:
            yield from join(task)
        except SparrowError:
            continue


def _has_one_broker(publisher: Publisher, topic: str) -> bool:
    route = publisher.routes.find(topic)
    return route is not None and len(set(map(route.host, route.publish_queues))) == 1


def _check_master(publisher: Publisher, queue: MessageQueue, *, has_timer: bool) -> str:
    address = publisher.routes.master_of(queue)
    if address is None:
        raise NoWritableQueue(
            f"broker {publisher.routes.host(queue)!r} of {queue} has no master in the route of "
            f"{queue.topic!r}; check the queue's broker name"
        )
    if has_timer and publisher.versions.get(address, 0) < MQ_VERSION_5:
        raise NoWritableQueue(
            f"the broker at {address} came into the route after the message had its delay, and may "
            f"know levels of delay alone"
        )
    return address
