"""QUERY_ASSIGNMENT and the request modes: the broker divides a topic for members that ask it.

Java's members with `clientRebalance=false` ask one broker, which divides the queues of all brokers
among the members that it lists. The mode tells them to pull these queues or to pop messages.

The route is asked of the name servers for each question. RocketMQ's broker keeps routes for 30 s,
and a new broker's queues stay unowned for as long. A set mode is announced to the members, which
ask again at once; in RocketMQ they ask within 20 s.

Source: QueryAssignmentProcessor.java of 5.5.0. Tests: broker/test_assignments.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.processors.pull import ALL_QUEUES
from sparrowmq.broker.request_modes import MODES_MAX
from sparrowmq.broker.route_questions import QUESTIONS_MAX, RouteQuestion
from sparrowmq.broker.state import BrokerState
from sparrowmq.model import MessageModel, MessageQueue
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.protocol.bodies import (
    PERM_READ,
    AssignmentsBody,
    QueryAssignmentBody,
    QueueAssignment,
    RequestMode,
    TopicRouteData,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import response_to
from sparrowmq.serving.connections import Output, Reply
from sparrowmq.serving.requests import Refusal, Request, answer, serve_aside
from sparrowmq.strategies.averagely import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
)

_STRATEGIES = {
    each.name: each
    for each in (AllocateMessageQueueAveragely(), AllocateMessageQueueAveragelyByCircle())
}


def query(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with a member's queues of a topic once the name servers have told the route."""
    body = decode_body(QueryAssignmentBody, request.command.body)
    if not state.route_questions.add(RouteQuestion(request, body)):
        raise Refusal(
            ResponseCode.SYSTEM_BUSY, f"the limit is {QUESTIONS_MAX} members that wait for a route"
        )
    return ()


def assign(state: BrokerState, topic: str, route: TopicRouteData | None) -> list[Output]:
    """Answer the members that asked for their queues of a topic."""
    queues = None if route is None else _readable_queues(topic, route)
    outputs: list[Output] = []
    for request, body in state.route_questions.end(topic):
        mode = state.modes.get(topic, body.consumer_group)
        share = _share(state, body, mode, queues) if queues else None
        found = AssignmentsBody(
            message_queue_assignments=None
            if share is None
            else [QueueAssignment(message_queue=queue, mode=mode.mode) for queue in share]
        )
        if not request.command.is_oneway:
            response = response_to(request.command, body=encode_body(found))
            outputs.append(Reply(request.connection, response))
    return outputs


def _readable_queues(topic: str, route: TopicRouteData) -> list[MessageQueue]:
    return sorted(
        MessageQueue(topic, each.broker_name, queue_id)
        for each in route.queue_datas
        if each.perm & PERM_READ
        for queue_id in range(each.read_queue_nums)
    )


def _share(
    state: BrokerState, body: QueryAssignmentBody, mode: RequestMode, queues: list[MessageQueue]
) -> list[MessageQueue] | None:
    """Return a member's queues; None if it is to keep those that it has."""
    if body.message_model is MessageModel.BROADCASTING:
        return queues
    group = state.consumers.find(body.consumer_group)
    strategy = _STRATEGIES.get(body.strategy_name)
    if group is None or strategy is None or not body.client_id:
        return None
    ids, shared = sorted(group.client_ids()), mode.pop_share_queue_num
    if mode.mode == "PULL":
        return strategy.allocate(group.name, body.client_id, queues, ids)
    if shared <= 0 or shared >= len(ids) - 1:
        brokers = dict.fromkeys(queue.broker_name for queue in queues)
        return [MessageQueue(body.topic, broker, ALL_QUEUES) for broker in brokers]
    if body.client_id not in ids:
        return []
    index = ids.index(body.client_id)
    if len(ids) > len(queues):
        return [queues[index % len(queues)]]
    # The queues of the member itself and of the members after it.
    sharing = [ids[(index + after) % len(ids)] for after in range(shared + 1)]
    return list(
        dict.fromkeys(
            queue
            for client_id in sharing
            for queue in strategy.allocate(group.name, client_id, queues, ids)
        )
    )


def set_mode(state: BrokerState, request: Request) -> Sequence[Output]:
    """Set how a group's members consume a topic; the answer waits for the journal."""
    mode = decode_body(RequestMode, request.command.body)
    topic, group = mode.topic, mode.consumer_group
    if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
        raise Refusal(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if state.topics.find(topic) is None:
        raise Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    if state.find_group(group, timestamp_ms=request.timestamp_ms) is None:
        remark = f"subscription group {group} does not exist"
        raise Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark)
    if len(state.modes) >= MODES_MAX and not state.modes.has(topic, group):
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"the limit is {MODES_MAX} request modes")
    before = state.modes.get(topic, group)
    state.modes.put(mode)
    outputs = state.after_journal(answer(request, ext_fields={}), now_ms=request.now_ms)
    if mode == before:
        return outputs
    detail = f"mode {before.mode} → {mode.mode}"
    outputs += state.audit.note(request, "settings", group, topic=topic, detail=detail)
    return [*outputs, *state.notify_group(group, now_ms=request.now_ms)]


def all_modes(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with the table of request modes."""
    table = state.modes.table()
    return serve_aside(request, lambda: answer(request, ext_fields={}, body=encode_body(table)))
