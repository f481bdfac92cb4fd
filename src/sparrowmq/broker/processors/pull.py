"""PULL_MESSAGE, and the waking of held pulls.

Source: PullMessageProcessor.java, PullRequestHoldService.java.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sparrowmq.broker.consumer_groups import wanted_tags_codes
from sparrowmq.broker.pull_hold import SUSPEND_MS_MAX, HeldPull
from sparrowmq.broker.state import BrokerState
from sparrowmq.errors import ProtocolError
from sparrowmq.model import MessageModel
from sparrowmq.protocol.bodies import PERM_READ
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullMessageRequestHeader,
    decode_header,
)
from sparrowmq.protocol.subscription import EXPRESSION_TYPE_TAG, parse_subscription
from sparrowmq.runtime.connections import Output, Reply
from sparrowmq.runtime.requests import FAQ, Refusal, Request
from sparrowmq.store.results import Dispatched, GetResult, GetStatus

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
EXPRESSION_BYTES_MAX = 4_096


def pull(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with messages, with the reason why there are none, or hold the pull."""
    command = request.command
    header = decode_header(PullMessageRequestHeader, command.ext_fields)
    try:
        tags_codes = _check(state, request, header)
    except Refusal as refusal:
        refusal.ext_fields = {}
        raise
    if header.sys_flag & PULL_COMMIT_OFFSET and header.commit_offset >= 0:
        state.offsets.raise_to(
            header.consumer_group, header.topic, header.queue_id, offset=header.commit_offset
        )
    result = _read(state, header, tags_codes)
    if (
        _code(result, header) == ResponseCode.PULL_NOT_FOUND
        and header.sys_flag & PULL_SUSPEND
        and header.suspend_timeout_ms > 0
        and not command.is_oneway
    ):
        wait_ms = min(header.suspend_timeout_ms, SUSPEND_MS_MAX)
        held = HeldPull(request.connection, command, header, tags_codes, request.now_ms + wait_ms)
        evicted = state.holds.hold(held)
        return [] if evicted is None else answer_held(state, [evicted])
    if command.is_oneway:
        return ()
    return [Reply(request.connection, _response(command, header, result))]


def wake(state: BrokerState, dispatched: Iterable[Dispatched]) -> list[Output]:
    """Answer the held pulls that the new messages concern."""
    outputs: list[Output] = []
    holds = state.holds
    for message in dispatched:
        if len(holds) == 0:
            break
        woken = holds.wake(
            message.topic,
            message.queue_id,
            next_offset=message.next_offset,
            tags_code=message.tags_code,
        )
        if woken:
            outputs += answer_held(state, woken)
    return outputs


def answer_held(state: BrokerState, pulls: Iterable[HeldPull]) -> list[Output]:
    """Read once more for each pull and answer it, whatever there is."""
    outputs: list[Output] = []
    for held in pulls:
        result = _read(state, held.header, held.tags_codes)
        outputs.append(Reply(held.connection, _response(held.command, held.header, result)))
    return outputs


def _check(
    state: BrokerState, request: Request, header: PullMessageRequestHeader
) -> frozenset[int] | None:
    """Refuse what may not be pulled; returns the tags' codes wanted, None for all."""
    group_name = header.consumer_group
    settings = state.find_group(group_name, timestamp_ms=request.timestamp_ms)
    if settings is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"subscription group [{group_name}] does not exist, {FAQ}",
        )
    if not settings.consume_enable:
        raise Refusal(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group_name}")
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic[{header.topic}] not exist, apply first please! {FAQ}",
        )
    if not topic.perm & PERM_READ:
        raise Refusal(
            ResponseCode.NO_PERMISSION, f"the topic[{header.topic}] pulling message is forbidden"
        )
    if not 0 <= header.queue_id < topic.read_queue_nums:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] "
            f"consumer:[/{request.connection.address}]",
        )
    if header.sys_flag & PULL_SUBSCRIPTION:
        return _given_tags_codes(header)
    return _subscribed_tags_codes(state, header, settings.consume_broadcast_enable)


def _given_tags_codes(header: PullMessageRequestHeader) -> frozenset[int] | None:
    """Take the filter that the pull itself carries."""
    expression = header.subscription
    if (header.expression_type or EXPRESSION_TYPE_TAG) != EXPRESSION_TYPE_TAG:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {header.expression_type}",
        )
    if not expression or expression == "*":
        return None
    try:
        if len(expression) > EXPRESSION_BYTES_MAX:
            raise Refusal(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                "parse the consumer's subscription failed",
            )
        data = parse_subscription(header.topic, expression, sub_version=header.sub_version)
    except ProtocolError as error:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
        ) from error
    return wanted_tags_codes(data)


def _subscribed_tags_codes(
    state: BrokerState, header: PullMessageRequestHeader, may_broadcast: bool
) -> frozenset[int] | None:
    """Take the filter that the group's heartbeats gave."""
    group = state.consumers.find(header.consumer_group)
    if group is None:
        raise Refusal(
            ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{FAQ}"
        )
    if not may_broadcast and group.message_model is MessageModel.BROADCASTING:
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
    if subscription.data.expression_type != EXPRESSION_TYPE_TAG:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            "The broker does not support consumer to filter message by "
            f"{subscription.data.expression_type}",
        )
    return subscription.tags_codes


def _read(
    state: BrokerState, header: PullMessageRequestHeader, tags_codes: frozenset[int] | None
) -> GetResult:
    config = state.config
    bytes_max = config.pull_bytes_max
    if header.max_msg_bytes is not None and header.max_msg_bytes > 0:
        bytes_max = min(bytes_max, header.max_msg_bytes)
    result = state.store.get(
        header.topic,
        header.queue_id,
        queue_offset=header.queue_offset,
        count_max=max(1, min(header.max_msg_nums, config.pull_count_max)),
        bytes_max=bytes_max,
        tags_codes=tags_codes,
    )
    state.counters.gets += result.count
    return result


def _code(result: GetResult, header: PullMessageRequestHeader) -> ResponseCode:
    code = _CODES.get(result.status)
    if code is not None:
        return code
    # NO_MESSAGE_IN_QUEUE and NO_MATCHED_LOGIC_QUEUE: right only for who begins at 0.
    if header.queue_offset == 0:
        return ResponseCode.PULL_NOT_FOUND
    return ResponseCode.PULL_OFFSET_MOVED


def _response(
    command: RemotingCommand, header: PullMessageRequestHeader, result: GetResult
) -> RemotingCommand:
    status = result.status
    if status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
        # RocketMQ makes a queue when it is first looked for, and then finds it empty.
        status = GetStatus.NO_MESSAGE_IN_QUEUE
    return response_to(
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
