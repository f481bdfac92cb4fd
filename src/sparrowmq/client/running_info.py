"""A consumer's answers to requests of brokers, offset resets included. Pure.

Brokers pass on the requests of administrators' tools: `mqadmin consumerStatus`,
`resetOffsetByTime`.
Source: ClientRemotingProcessor.java, ConsumerRunningInfo.java, MQClientInstance.resetOffset.
"""

from __future__ import annotations

from sparrowmq.client.listener_calls import Pace
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.model.queue import OFFSET_MAX
from sparrowmq.protocol.bodies import (
    ConsumeRates,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ProcessQueueInfo,
    ResetOffsetBody,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import (
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ResetOffsetRequestHeader,
    decode_header,
)
from sparrowmq.strategies.registry import reported_name


def answer_about(
    subscriber: Subscriber, request: RemotingCommand, *, now_ms: int, timestamp_ms: int
) -> RemotingCommand | None:
    """Answer a request about the consumer; None for a request without an answer.

    Raises: RemoteProtocolError for a header or body that cannot be read.
    """
    if request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
        _reset_offsets(subscriber, request, now_ms=now_ms)
        return None
    if request.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
        running = decode_header(GetConsumerRunningInfoRequestHeader, request.ext_fields)
        if running.consumer_group != subscriber.config.group:
            return _unknown_group(subscriber, request, running.consumer_group)
        info = describe(subscriber, now_ms=now_ms, timestamp_ms=timestamp_ms)
        return response_to(request, body=encode_body(info))
    if request.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
        status = decode_header(GetConsumerStatusRequestHeader, request.ext_fields)
        if status.group != subscriber.config.group:
            return _unknown_group(subscriber, request, status.group)
        offsets = {
            owned.queue: owned.process_queue.commit_offset
            for owned in subscriber.member.owned_queues()
            if owned.queue.topic == status.topic
        }
        known = {queue: offset for queue, offset in offsets.items() if offset is not None}
        return response_to(
            request, body=encode_body(GetConsumerStatusBody(message_queue_table=known))
        )
    if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        # A push consumer's listener answers this request (`operations/deliver.py`).
        fields = request.ext_fields or {}
        return _unknown_group(subscriber, request, fields.get("consumerGroup", ""))
    return response_to(
        request,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f" request type {request.code} not supported",
    )


def _unknown_group(subscriber: Subscriber, request: RemotingCommand, group: str) -> RemotingCommand:
    return response_to(
        request,
        ResponseCode.SYSTEM_ERROR,
        remark=f"The Consumer Group <{group}> not exist in this consumer, "
        f"which is of {subscriber.config.group}",
    )


def _reset_offsets(subscriber: Subscriber, request: RemotingCommand, *, now_ms: int) -> None:
    """Move to the new offsets in this member's queues; other owners get the same request."""
    header = decode_header(ResetOffsetRequestHeader, request.ext_fields)
    if header.group != subscriber.config.group:
        return
    wanted = decode_body(ResetOffsetBody, request.body).offset_table
    for queue, offset in sorted(wanted.items()):
        if queue.topic == header.topic and 0 <= offset <= OFFSET_MAX:
            subscriber.known_offsets.forget(queue)
            subscriber.member.reset(queue, offset, now_ms=now_ms)
    subscriber.wake.set()


def describe(subscriber: Subscriber, *, now_ms: int, timestamp_ms: int) -> ConsumerRunningInfo:
    """Return the consumer's state, under the names that RocketMQ's tools read."""
    config, calls = subscriber.config, subscriber.member.deliveries
    boot_timestamp_ms = timestamp_ms - now_ms
    return ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": ";".join(subscriber.name_servers.in_order()),
            "PROP_CONSUME_TYPE": config.consume_type.name,
            # Java's consumers report this under their field's name.
            "allocateMessageQueueStrategy": reported_name(subscriber.strategy),
            "messageModel": config.message_model.value,
            "PROP_CONSUMEORDERLY": "true" if config.orderly else "false",
            "PROP_THREADPOOL_CORE_SIZE": str(config.consume_thread_count),
            "PROP_CLIENT_VERSION": "SparrowMQ",
            # SparrowMQ's own: distinguishes a consumer whose listeners hang from an idle one.
            "listenerCalls": str(len(calls)),
            "listenerCallsLongestMs": str(0 if calls.begun_ms is None else now_ms - calls.begun_ms),
            "PROP_CONSUMER_START_TIMESTAMP": str(subscriber.start_timestamp_ms),
            "messagesPerSMax": str(config.messages_per_s_max or 0),
        },
        subscription_set=[
            subscriber.subscriptions[topic] for topic in sorted(subscriber.subscriptions)
        ],
        mq_table={
            owned.queue: _describe_queue(owned, boot_timestamp_ms)
            for owned in subscriber.member.owned_queues()
        },
        status_table={
            topic: _describe_pace(subscriber.listener_calls.pace(topic, now_ms))
            for topic in sorted(subscriber.subscriptions)
        },
    )


def _describe_pace(pace: Pace) -> ConsumeRates:
    return ConsumeRates(
        consume_rt_ms=pace.mean_ms,
        consume_ok_tps=pace.done_per_s,
        consume_failed_tps=pace.failed_per_s,
    )


def holding_of(owned: OwnedQueue) -> tuple[bool, bool]:
    """Return whether this member has the queue's lock, and whether it is giving the queue up."""
    return owned.lease.is_held, owned.is_revoked


def _describe_queue(owned: OwnedQueue, boot_timestamp_ms: int) -> ProcessQueueInfo:
    queue, lease = owned.process_queue, owned.lease
    is_locked, is_dropped = holding_of(owned)
    first = queue.commit_offset or 0
    return ProcessQueueInfo(
        # Java too reports what was consumed, committed or not.
        commit_offset=first,
        cached_msg_min_offset=first if queue.count else 0,
        cached_msg_max_offset=first + queue.span if queue.count else 0,
        cached_msg_count=queue.count,
        cached_msg_size_mib=queue.size_bytes >> 20,
        sparrowmq_state=owned.state.value,
        locked=is_locked,
        last_lock_timestamp_ms=boot_timestamp_ms + lease.sent_ms if is_locked else 0,
        dropped=is_dropped,
        last_pull_timestamp_ms=boot_timestamp_ms + queue.last_pull_ms,
        last_consume_timestamp_ms=(
            0 if queue.last_consume_ms is None else boot_timestamp_ms + queue.last_consume_ms
        ),
    )
