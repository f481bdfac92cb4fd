"""Clients' requests: heartbeats, lists of members, and queue locks.

Source: ClientManageProcessor.java, ConsumerManageProcessor.java, AdminBrokerProcessor.java,
DefaultConsumerIdsChangeListener.java.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.config import DuplicateClientIdPolicy
from sparrowmq.broker.consumer_groups import SUBSCRIPTIONS_MAX, ListedMember
from sparrowmq.broker.lock_waits import LOCK_WAIT_MS_MAX, LockWait
from sparrowmq.broker.message_filter import make_filter
from sparrowmq.broker.processors.send import find_or_create_plain
from sparrowmq.broker.state import BrokerRefusal, BrokerState
from sparrowmq.broker.subscription_groups import GROUPS_MAX, find_group_fault
from sparrowmq.coordination.member_marker import (
    EXPIRY_FIELD,
    MARKED_LEASE_MS,
    QUEUE_LEASE_CLIENT_MS,
    is_marked,
    mark_version,
)
from sparrowmq.errors import LocalProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import (
    GROUP_LENGTH_MAX,
    is_legal_name,
    retry_topic,
)
from sparrowmq.protocol.bodies import (
    CheckClientRequestBody,
    ConsumerData,
    HeartbeatData,
    LockBatchRequestBody,
    LockBatchResponseBody,
    OwnersListBody,
    UnlockBatchRequestBody,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import MQ_VERSION, ResponseCode
from sparrowmq.protocol.command import response_to
from sparrowmq.protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    LockBatchRequestHeader,
    UnregisterClientRequestHeader,
    decode_header,
)
from sparrowmq.protocol.signatures import ACCESS_KEY
from sparrowmq.protocol.sql92 import EXPRESSION_LENGTH_MAX
from sparrowmq.serving.connections import Connection, Fact, Output, Reply
from sparrowmq.serving.requests import Refusal, Request, answer

LOCKS_PER_REQUEST_MAX = 1_024
CLIENT_ID_LENGTH_MAX = 512
GROUPS_PER_CLIENT_MAX = 1_024
# TopicSysFlag.buildSysFlag(true, false).
_TOPIC_SYS_FLAG_UNIT = 1


def heartbeat(state: BrokerState, request: Request) -> Sequence[Output]:
    """Apply a client's heartbeat: a sign of life, with its groups and their subscriptions."""
    command = request.command
    data = decode_body(HeartbeatData, command.body or b"")
    fault = _find_fault(state, data)
    if fault is not None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, fault)
    for consumer in data.consumer_data_set:
        fault = find_group_fault(consumer.group_name)
        if fault is not None:
            raise state.refusal(BrokerRefusal.GROUP_NAME, request, ResponseCode.SYSTEM_ERROR, fault)
    access_key = (command.ext_fields or {}).get(ACCESS_KEY, "")
    member = ListedMember(
        data.client_id, command.language, command.version, request.now_ms, access_key
    )
    outputs, refusal = _check_client_id(state, request, data)
    if refusal is not None:
        return [*answer(request, ResponseCode.SYSTEM_ERROR, remark=refusal), *outputs]
    for consumer in data.consumer_data_set:
        outputs += _consumer_heartbeat(state, request, consumer, member)
    for producer in data.producer_data_set:
        state.producers.heartbeat(producer.group_name, member, request.connection)
    if command.is_oneway or not is_marked(member.version):
        return [*answer(request), *outputs]
    # The answer gives a SparrowMQ member the expiry that sets its interval, and the mark by which
    # its producers know that this broker keeps a message's own time (member_marker).
    reply = response_to(command, ext_fields={EXPIRY_FIELD: str(member.expiry_ms)})
    reply.version = mark_version(MQ_VERSION)
    return [Reply(request.connection, reply), *outputs]


def _find_fault(state: BrokerState, data: HeartbeatData) -> str | None:
    """Return why a heartbeat is too large or illegal, or None."""
    if len(data.client_id) > CLIENT_ID_LENGTH_MAX:
        return f"the client id has more than {CLIENT_ID_LENGTH_MAX} characters"
    names = [
        *(consumer.group_name for consumer in data.consumer_data_set),
        *(producer.group_name for producer in data.producer_data_set),
    ]
    group_count = max(len(state.consumers), len(state.producers))
    if len(names) > GROUPS_PER_CLIENT_MAX or group_count > GROUPS_MAX:
        return "too many groups"
    for name in names:
        if not is_legal_name(name) or len(name) > GROUP_LENGTH_MAX:
            return f"the group name {name[:40]!r} is illegal"
    for consumer in data.consumer_data_set:
        if len(consumer.subscription_data_set) > SUBSCRIPTIONS_MAX:
            return f"group {consumer.group_name} subscribes to more than {SUBSCRIPTIONS_MAX} topics"
        for subscription in consumer.subscription_data_set:
            if (
                len(subscription.sub_string) > EXPRESSION_LENGTH_MAX
                or len(subscription.code_set) > EXPRESSION_LENGTH_MAX
            ):
                return f"the expression for topic {subscription.topic[:40]!r} is too long"
    return None


def _check_client_id(
    state: BrokerState, request: Request, data: HeartbeatData
) -> tuple[list[Output], str | None]:
    """Warn once of a newcomer whose client id another connection of its group has.

    Returns: the facts for the operator, and the reason of a refusal, None if the heartbeat is
    taken.
    """
    outputs: list[Output] = []
    for consumer in data.consumer_data_set:
        sharing = state.consumers.find_sharing(consumer, data.client_id, request.connection)
        if not sharing:
            continue
        text = (
            f"group {consumer.group_name!r}: client id {data.client_id!r} at "
            f"{request.connection.address} is in use at {', '.join(sharing)} too"
        )
        is_rejected = state.config.duplicate_client_id is DuplicateClientIdPolicy.REJECT
        if state.consumers.note_duplicate(request.connection):
            state.counters.duplicate_client_ids += 1
            effect = "its heartbeats are refused" if is_rejected else "queues may stay unread"
            outputs.append(Fact(f"{text}; {effect}", warning=True))
        if is_rejected:
            remedy = "give each consumer its own instance name, or wait until the other is gone"
            return outputs, f"{text}; {remedy}"
    return outputs, None


def _consumer_heartbeat(
    state: BrokerState, request: Request, consumer: ConsumerData, member: ListedMember
) -> list[Output]:
    settings = state.find_group(consumer.group_name, timestamp_ms=request.timestamp_ms)
    if settings is not None and settings.retry_queue_nums > 0:
        find_or_create_plain(
            state,
            retry_topic(consumer.group_name),
            queue_count=settings.retry_queue_nums,
            sys_flag=_TOPIC_SYS_FLAG_UNIT if consumer.unit_mode else 0,
            timestamp_ms=request.timestamp_ms,
        )
    joined = state.consumers.heartbeat(consumer, member, request.connection)
    outputs: list[Output] = []
    if joined.is_new_member:
        outputs.append(
            Fact(
                f"group {consumer.group_name!r}: {member.client_id!r} at "
                f"{request.connection.address} has come"
            )
        )
    if joined.is_changed:
        outputs += state.notify_group(consumer.group_name, now_ms=request.now_ms)
    return outputs


def unregister_client(state: BrokerState, request: Request) -> Sequence[Output]:
    """Remove this connection from the groups named, and notify the other members.

    Locks that the member did not give back are cut as those of a closed connection. Differs from
    RocketMQ, where they last for 60 s.
    """
    header = decode_header(UnregisterClientRequestHeader, request.command.ext_fields)
    outputs = list(answer(request, ext_fields={}))
    if header.producer_group:
        state.producers.leave(header.producer_group, request.connection)
    if header.consumer_group:
        group = state.consumers.find(header.consumer_group)
        member = None if group is None else group.members.get(request.connection)
        if state.consumers.leave(header.consumer_group, request.connection):
            outputs.append(_gone(header.consumer_group, request.connection))
        if member is not None:
            outputs += _cut_locks(state, header.consumer_group, member, now_ms=request.now_ms)
        outputs += state.notify_group(header.consumer_group, now_ms=request.now_ms)
    return outputs


def forget_connection(state: BrokerState, connection: Connection, *, now_ms: int) -> list[Output]:
    """Remove a closed or silent connection from every group, and notify the other members."""
    memberships = [
        (name, group.members[connection])
        for name in state.consumers.groups_of(connection)
        if (group := state.consumers.find(name)) is not None
    ]
    names = state.consumers.leave_all(connection)
    state.lock_waits.discard(connection)
    state.producers.leave_all(connection)
    outputs: list[Output] = []
    for name, member in memberships:
        outputs += _cut_locks(state, name, member, now_ms=now_ms)
    outputs += [_gone(name, connection) for name in names]
    for name in names:
        outputs += state.notify_group(name, now_ms=now_ms)
    return outputs


def _cut_locks(state: BrokerState, name: str, member: ListedMember, *, now_ms: int) -> list[Output]:
    """Cut the locks of a member that has left to the rest of the member's own lease."""
    group = state.consumers.find(name)
    if group is not None and group.lists(member.client_id):
        return []
    lease_ms = MARKED_LEASE_MS if is_marked(member.version) else QUEUE_LEASE_CLIENT_MS
    state.locks.shorten(name, member.client_id, lease_ms=lease_ms, now_ms=now_ms)
    outputs: list[Output] = []
    for wait in state.lock_waits.take(name, state.locks.queues_of(name, member.client_id)):
        outputs += _lock(state, wait, now_ms=now_ms)
    return outputs


def _gone(group: str, connection: Connection) -> Fact:
    return Fact(f"group {group!r}: the member at {connection.address} is gone")


def consumer_list(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the client id of every member of a group, one for each connection.

    A member that asks for owners also gets the owners of the queues, at the same instant.
    """
    header = decode_header(GetConsumerListByGroupRequestHeader, request.command.ext_fields)
    group = state.consumers.find(header.consumer_group)
    if group is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"no consumer for this group, {header.consumer_group}",
            ext_fields={},
        )
    if not header.sparrowmq_owners:
        return answer(request, ext_fields={}, body=group.encoded_ids())
    cid_all = group.client_ids()
    owners = state.locks.find_owners(group.name, frozenset(cid_all), now_ms=request.now_ms)
    body = OwnersListBody(consumer_id_list=cid_all, sparrowmq_owners=owners)
    return answer(request, ext_fields={}, body=encode_body(body))


def lock_batch(state: BrokerState, request: Request) -> Sequence[Output]:
    """Lock queues for a client; answer with the queues whose locks the client holds now.

    Differs from RocketMQ: only a listed member gets locks that it does not hold yet, and only locks
    of existing queues. A holder may renew its locks even while it is not listed, because no member
    is listed for up to 30 s after a restart of the broker. A SparrowMQ member may let a refused
    request wait for the lock (`LockWaits`), and hears for which queues it stands in.
    """
    header = decode_header(LockBatchRequestHeader, request.command.ext_fields)
    body = decode_body(LockBatchRequestBody, request.command.body or b"")
    _check_lock_count(len(body.mq_set))
    wait_ms = min(header.sparrowmq_wait_ms or 0, LOCK_WAIT_MS_MAX)
    is_ours = header.sparrowmq_wait_ms is not None
    wait = LockWait(request, body, request.now_ms + wait_ms, is_ours)
    return _lock(state, wait, now_ms=request.now_ms)


def serve_lock_waits(state: BrokerState, *, now_ms: int) -> list[Output]:
    """Serve the waiting requests whose deadline has come, or whose lock has run out."""
    outputs: list[Output] = []
    waits = state.lock_waits.take_due(
        now_ms,
        is_held=lambda group, queue: (
            state.locks.find_owner(group, queue, now_ms=now_ms) is not None
        ),
    )
    for wait in waits:
        outputs += _lock(state, wait, now_ms=now_ms)
    return outputs


def _lock(state: BrokerState, wait: LockWait, *, now_ms: int) -> Sequence[Output]:
    """Lock the queues of a request; no output while the request waits."""
    request, body = wait.request, wait.body
    group = state.consumers.find(body.consumer_group)
    is_listed = group is not None and group.lists(body.client_id)
    refused: list[MessageQueue] = []

    def may_take(queue: MessageQueue) -> bool:
        may = is_listed and state.has_queue(queue)
        if not may:
            refused.append(queue)
        return may

    locked = state.locks.try_lock_batch(
        body.consumer_group,
        body.mq_set,
        body.client_id,
        now_ms=now_ms,
        may_take=may_take,
        lists=lambda client_id: group is not None and group.lists(client_id),
    )
    stood_in = state.locks.stood_in(body.consumer_group, body.mq_set, body.client_id)
    is_held = not locked and not refused and not stood_in and len(body.mq_set) == 1
    if is_held and wait.deadline_ms > now_ms and state.lock_waits.add(wait):
        return ()
    # A renewal need not be written: a restart restores the lease with its first length.
    given = LockBatchResponseBody(
        lock_ok_mq_set=locked, sparrowmq_stood_in=stood_in if wait.is_ours else None
    )
    outputs = answer(request, body=encode_body(given))
    if refused:
        outputs = [*outputs, *_note_refused_locks(state, wait, refused, is_listed, now_ms)]
    if state.locks.last_change(body.consumer_group, locked) <= state.locks_written:
        return outputs
    # A lock must survive a crash from the moment at which its holder believes in it.
    return state.after_journal(outputs, now_ms=now_ms)


def _note_refused_locks(
    state: BrokerState,
    wait: LockWait,
    refused: Sequence[MessageQueue],
    is_listed: bool,
    now_ms: int,
) -> Sequence[Output]:
    body = wait.body
    why = f"there is no {refused[0]}" if is_listed else "the group does not list it"
    text = (
        f"refused {wait.request.connection.address}: {len(refused)} locks of client "
        f"{body.client_id!r} for group {body.consumer_group!r}, as {why}"
    )
    return state.refusals.note(BrokerRefusal.LOCK, text, now_ms=now_ms)


def unlock_batch(state: BrokerState, request: Request) -> Sequence[Output]:
    """Release the locks that the client holds among those of the queues."""
    body = decode_body(UnlockBatchRequestBody, request.command.body or b"")
    _check_lock_count(len(body.mq_set))
    state.locks.unlock_batch(body.consumer_group, body.mq_set, body.client_id)
    outputs = list(answer(request))
    for wait in state.lock_waits.take(body.consumer_group, body.mq_set):
        if wait.body.client_id == body.client_id:
            # The member wants the queue no longer; a lock granted now would have no end.
            nothing = encode_body(LockBatchResponseBody(lock_ok_mq_set=[]))
            outputs += answer(wait.request, body=nothing)
        else:
            outputs += _lock(state, wait, now_ms=request.now_ms)
    return outputs


def _check_lock_count(count: int) -> None:
    if count > LOCKS_PER_REQUEST_MAX:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR,
            f"{count} queues in one request; the limit is {LOCKS_PER_REQUEST_MAX}",
        )


def check_client_config(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer whether a subscription is valid: by tags, or by a condition that can be parsed."""
    del state
    body = decode_body(CheckClientRequestBody, request.command.body or b"")
    try:
        make_filter(body.subscription_data)
    except LocalProtocolError as error:
        raise Refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error
    return answer(request)
