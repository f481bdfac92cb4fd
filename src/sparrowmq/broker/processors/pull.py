"""PULL_MESSAGE, and the waking of held pulls.

Source: PullMessageProcessor.java, PullRequestHoldService.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import msgspec

from sparrowmq.broker.message_filter import (
    EXAMINED_COUNT_MAX,
    MessageFilter,
    keep_matching,
    make_filter,
)
from sparrowmq.broker.pop_queues import GROUPS_PER_TOPIC_MAX
from sparrowmq.broker.pull_hold import SUSPEND_MS_MAX, HeldPull, notice_place, pop_place
from sparrowmq.broker.state import COMMIT_AHEAD_MAX, BrokerState
from sparrowmq.errors import LocalProtocolError
from sparrowmq.model import MessageModel
from sparrowmq.protocol.bodies import PERM_READ, SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.codes import MQ_VERSION, LanguageCode, ResponseCode, SerializeType
from sparrowmq.protocol.command import ONEWAY_FLAG, RESPONSE_FLAG, RemotingCommand, response_to
from sparrowmq.protocol.framing import FRAME_BYTES_MAX, HEADER_BYTES_MAX, frame_json_header
from sparrowmq.protocol.headers import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
)
from sparrowmq.protocol.sql92 import EXPRESSION_LENGTH_MAX
from sparrowmq.protocol.subscription import parse_subscription
from sparrowmq.serving.connections import (
    Connection,
    Output,
    PauseReading,
    Produce,
    Reply,
    ResumeReading,
    Written,
)
from sparrowmq.serving.requests import FAQ, Refusal, Request, answer_later, typed_header
from sparrowmq.store.results import Dispatched, GetResult, GetStatus

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
# The queue id of a pop from all queues.
ALL_QUEUES = -1
# A look-up in an enumeration costs as much as a small object.
_FOUND = GetStatus.FOUND
_BROADCASTING = MessageModel.BROADCASTING
_JSON = SerializeType.JSON
# The head that `framing.encode_head` writes, with places for the three offsets and the opaque.
_FOUND_HEAD = (
    f'{{"code":{ResponseCode.SUCCESS.value},"extFields":{{"suggestWhichBrokerId":"0",'
    '"nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"},'
    f'"flag":{RESPONSE_FLAG},"language":"{LanguageCode.PYTHON.name}","opaque":%d,'
    f'"remark":"{GetStatus.FOUND.name}","version":{MQ_VERSION},"serializeTypeCurrentRPC":"JSON"}}'
).encode()


def pull(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with messages, with the reason why there are none, or hold the pull."""
    command = request.command
    header = typed_header(request, PullMessageRequestHeader)
    try:
        wanted = _check(state, request, header)
    except Refusal as refusal:
        refusal.ext_fields = {}
        raise
    result = _read(state, header, wanted)
    name, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    begin = min(max(header.queue_offset, result.min_offset), result.max_offset)
    state.offsets.note_begin(name, topic, queue_id, offset=begin)
    offset, offset_max = header.commit_offset, result.max_offset + COMMIT_AHEAD_MAX
    if header.sys_flag & PULL_COMMIT_OFFSET and 0 <= offset <= offset_max:
        state.offsets.raise_to(name, topic, queue_id, offset=offset)
    if (
        result.status is not _FOUND
        and _code(result, header) == ResponseCode.PULL_NOT_FOUND
        and header.sys_flag & PULL_SUSPEND
        and header.suspend_timeout_ms > 0
        and not command.is_oneway
    ):
        wait_ms = min(header.suspend_timeout_ms, SUSPEND_MS_MAX)
        held = HeldPull(
            request.connection,
            command,
            (header.topic, header.queue_id),
            header.queue_offset,
            wanted,
            request.now_ms + wait_ms,
            partial(_answer, state, header),
        )
        return hold(state, held)
    if command.flag & ONEWAY_FLAG:
        return ()
    return [_reply(request.connection, command, header, result)]


def hold(state: BrokerState, held: HeldPull) -> list[Output]:
    """Hold a pull or a pop."""
    outputs: list[Output] = []
    if held.rules is None and state.access is not None:
        held.rules = state.access.table
    evicted = state.holds.hold(held)
    if evicted is not None:
        outputs.append(_answer_later(state, evicted))
    if state.holds.is_now_full(held.connection):
        outputs.append(PauseReading(held.connection))
    return outputs


def wake(state: BrokerState, dispatched: Iterable[Dispatched]) -> None:
    """Wake the held pulls that new messages concern; `answer_released` answers them."""
    holds = state.holds
    for item in dispatched:
        if len(holds) == 0:
            break
        holds.wake(
            item.topic, item.queue_id, next_offset=item.next_offset, tags_codes=item.tags_codes
        )


def answer_released(state: BrokerState) -> list[Output]:
    """Answer some of the pulls that no longer wait; call again while `PullHold.has_ended`."""
    holds = state.holds
    outputs: list[Output] = [_answer_later(state, held) for held in holds.release()]
    outputs += map(ResumeReading, holds.take_drained())
    return outputs


def _answer_later(state: BrokerState, held: HeldPull) -> Produce:
    request = Request(held.command, held.connection, state.now_ms, state.timestamp_ms)
    return answer_later(request, partial(held.answer, held))


def _answer(
    state: BrokerState, header: PullMessageRequestHeader, held: HeldPull
) -> Sequence[Output]:
    """Answer a pull that waited, unless its condition was examined for all new messages.

    The pull then waits on from the offset after these messages, so that each message is examined
    once for each waiting pull.
    """
    try:
        state.check_held(held)
        # Group and topic may be deleted or closed by now, or the topic has fewer queues. A pull
        # that waited makes no group again.
        check_consuming(header.consumer_group, state.groups.find(header.consumer_group))
        _check_queue(state, held.connection, header)
    except Refusal as refusal:
        refusal.ext_fields = {}
        raise
    wanted = _newest_filter(state, header, held.wanted)
    result = _read(state, header, wanted)
    if (
        wanted.condition is None
        or result.status is not GetStatus.NO_MATCHED_MESSAGE
        or result.next_offset < result.max_offset
        or state.holds.is_overdue(held)
    ):
        return [_reply(held.connection, held.command, header, result)]
    header = msgspec.structs.replace(header, queue_offset=result.next_offset)
    answer = partial(_answer, state, header)
    return hold(state, replace(held, queue_offset=result.next_offset, wanted=wanted, answer=answer))


def _newest_filter(
    state: BrokerState, header: PullMessageRequestHeader, wanted: MessageFilter
) -> MessageFilter:
    """Return the filter of a pull that waited: its group may have another subscription by now."""
    if header.sys_flag & PULL_SUBSCRIPTION:
        return wanted
    group = state.consumers.find(header.consumer_group)
    subscription = None if group is None else group.subscriptions.get(header.topic)
    if subscription is None or subscription.wanted is None:
        return wanted
    return subscription.wanted


def _check(state: BrokerState, request: Request, header: PullMessageRequestHeader) -> MessageFilter:
    """Refuse a pull that is not allowed; return the filter of the messages."""
    group_name = header.consumer_group
    settings = find_consuming_group(state, request, group_name)
    _check_queue(state, request.connection, header)
    if not state.pops.may_pull(group_name, header.topic, now_ms=request.now_ms):
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"group {group_name} pops messages of topic {header.topic}: a group consumes by "
            "messages or by queues, and changes while all its members are stopped",
        )
    if header.sys_flag & PULL_SUBSCRIPTION:
        return given_filter(
            header.topic,
            header.subscription,
            sub_version=header.sub_version,
            expression_type=header.expression_type,
        )
    return _subscribed_filter(state, header, settings.consume_broadcast_enable)


def _check_queue(
    state: BrokerState, connection: Connection, header: PullMessageRequestHeader
) -> None:
    name, queue_id, code = header.topic, header.queue_id, ResponseCode.SYSTEM_ERROR
    find_queues(state, connection, name, queue_id, first=0, code=code)


# --- the checks of pulls and pops ---------------------------------------------------------------


def find_consuming_group(
    state: BrokerState, request: Request, name: str
) -> SubscriptionGroupConfig:
    """Return a group's settings. Raises: Refusal if there is no such group, or it is closed."""
    return check_consuming(name, state.find_group(name, timestamp_ms=request.timestamp_ms))


def check_consuming(name: str, settings: SubscriptionGroupConfig | None) -> SubscriptionGroupConfig:
    """Return a group's settings. Raises: as `find_consuming_group`."""
    if settings is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{name}] does not exist, {FAQ}",
        )
    if not settings.consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {name}")
    return settings


def find_readable_topic(state: BrokerState, name: str) -> TopicConfig:
    """Return a topic's settings. Raises: Refusal if there is no such topic, or it is closed."""
    topic = state.topics.find(name)
    if topic is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please! {FAQ}"
        )
    if not topic.perm & PERM_READ:
        raise Refusal(ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden")
    return topic


def find_queues(
    state: BrokerState,
    connection: Connection,
    name: str,
    queue_id: int,
    *,
    first: int = ALL_QUEUES,
    code: ResponseCode = ResponseCode.INVALID_PARAMETER,
) -> TopicConfig:
    """Return the settings of a topic that has this queue, or any if a pop is from ALL_QUEUES.

    Args:
        first: the lowest id that is allowed; a pull names one queue.
        code: the code of the refusal of another queue.
    """
    topic = find_readable_topic(state, name)
    if not first <= queue_id < topic.read_queue_nums:
        raise Refusal(
            code,
            f"queueId[{queue_id}] is illegal, topic:[{topic.topic_name}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
            f"consumer:[/{connection.address}]",
        )
    return topic


def check_way(state: BrokerState, request: Request, group: str, topic: str) -> None:
    """Refuse a pop, or a wait for one, of a group that may not consume the topic by pops."""
    if state.pops.is_pulled(group, topic, now_ms=request.now_ms):
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"group {group} pulls from topic {topic}: a group consumes by queues or by messages, "
            "and changes while all its members are stopped",
        )
    if not state.pops.may_pop(group, topic):
        raise Refusal(
            ResponseCode.SYSTEM_BUSY,
            f"{GROUPS_PER_TOPIC_MAX} groups consume topic {topic} by messages, which is the limit",
        )


def check_held_pop(state: BrokerState, held: HeldPull) -> None:
    """Refuse a pop, or a wait for one, as `BrokerState.check_held`; another gets what woke it."""
    try:
        state.check_held(held)
    except Refusal:
        state.holds.wake_first(held.place)
        raise


def given_filter(
    topic: str, expression: str | None, *, sub_version: int, expression_type: str | None
) -> MessageFilter:
    """Return the filter in the request itself. Raises: Refusal if it cannot be parsed."""
    try:
        if expression and len(expression) > EXPRESSION_LENGTH_MAX:
            raise LocalProtocolError(f"an expression of {len(expression)} characters")
        return make_filter(
            parse_subscription(
                topic, expression, sub_version=sub_version, expression_type=expression_type
            )
        )
    except LocalProtocolError as error:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {error}",
        ) from error


def _subscribed_filter(
    state: BrokerState, header: PullMessageRequestHeader, may_broadcast: bool
) -> MessageFilter:
    """Return the filter of the group's heartbeats."""
    group = state.consumers.find(header.consumer_group)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
        )
    if not may_broadcast and group.message_model is _BROADCASTING:
        raise Refusal(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{header.consumer_group}] can not consume by broadcast way",
        )
    subscription = group.subscriptions.get(header.topic)
    if subscription is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{FAQ}"
        )
    if subscription.data.sub_version < header.sub_version:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
        )
    if subscription.wanted is None:
        raise Refusal(
            ResponseCode.FILTER_DATA_NOT_EXIST,
            f"The broker's consumer filter data is not exist! {subscription.fault}",
        )
    return subscription.wanted


def _read(state: BrokerState, header: PullMessageRequestHeader, wanted: MessageFilter) -> GetResult:
    config = state.config
    bytes_max, own_max = config.pull_bytes_max, header.max_msg_bytes
    if own_max is not None and own_max > 0:
        bytes_max = min(bytes_max, own_max)
    count_max = max(1, min(header.max_msg_nums, config.pull_count_max))
    is_conditional = wanted.condition is not None
    result = state.store.queues.get(
        header.topic,
        header.queue_id,
        queue_offset=header.queue_offset,
        count_max=EXAMINED_COUNT_MAX if is_conditional else count_max,
        bytes_max=config.pull_bytes_max if is_conditional else bytes_max,
        tags_codes=wanted.tags_codes,
    )
    if wanted.condition is not None:
        result = keep_matching(result, wanted.condition, count_max=count_max, bytes_max=bytes_max)
    state.counters.gets += result.count
    return result


def _code(result: GetResult, header: PullMessageRequestHeader) -> ResponseCode:
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # NO_MESSAGE_IN_QUEUE and NO_MATCHED_LOGIC_QUEUE: only offset 0 is right there.
    if header.queue_offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return ResponseCode.PULL_OFFSET_MOVED


def _reply(
    connection: Connection,
    command: RemotingCommand,
    header: PullMessageRequestHeader,
    result: GetResult,
) -> Output:
    status = result.status
    if (
        status is _FOUND
        and command.flag == 0
        and command.serialize_type is _JSON
        and len(result.records) <= FRAME_BYTES_MAX - HEADER_BYTES_MAX
    ):
        # The usual answer is a template (benchmarks/against_apache.py).
        text = _FOUND_HEAD % (
            result.next_offset,
            result.min_offset,
            result.max_offset,
            command.opaque,
        )
        head = frame_json_header(text, len(result.records))
        return Written(connection, head, result.records)
    if status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
        # RocketMQ makes a queue at its first look-up, and then finds the queue empty.
        status = GetStatus.NO_MESSAGE_IN_QUEUE
    response = response_to(
        command,
        _code(result, header),
        remark=status.name,
        ext_fields={
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(result.next_offset),
            "minOffset": str(result.min_offset),
            "maxOffset": str(result.max_offset),
        },
        body=result.records or None,
    )
    return Reply(connection, response)


def without_finished(
    state: BrokerState, group: str, topic: str, queue_ids: Iterable[int]
) -> Iterator[int]:
    """Yield the queues without those of which the group has finished all messages.

    A pop from a topic of 65,536 queues looks at each of them. This takes a tenth of its time.
    """
    committed, in_flight = state.offsets.queues(group, topic), state.pops.queue_ids(group, topic)
    max_offset = state.store.queues.max_offset
    for queue_id in queue_ids:
        if queue_id in in_flight or committed.get(queue_id) != max_offset(topic, queue_id):
            yield queue_id


def wake_waiting(state: BrokerState, group: str, topic: str, *queue_ids: int) -> None:
    """Wake one pop that waits for all queues of a topic, and one for each of these queues."""
    # A pop from any queue visits those that the topic no longer has.
    count = state.count_readable(topic)
    others = range(count) if max(queue_ids) >= count else ()
    places = (place(group, topic, ALL_QUEUES)[0] for place in (pop_place, notice_place))
    for name, each in product(places, sorted({ALL_QUEUES, *queue_ids, *others})):
        state.holds.wake_first((name, each))
