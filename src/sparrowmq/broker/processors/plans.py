"""SparrowMQ's own requests about a group's plan: look at it, and offer the next one.

Tests: broker/test_plan_register.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.broker.consumer_groups import ConsumerGroup
from sparrowmq.broker.plan_register import Progress
from sparrowmq.broker.state import BrokerState
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import GroupPlan, decode_body, encode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.headers import (
    GetGroupPlanRequestHeader,
    OfferGroupPlanRequestHeader,
    decode_header,
)
from sparrowmq.serving.connections import Fact, Output
from sparrowmq.serving.requests import Refusal, Request, answer


def group_plan(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with a group's plan, and with the measured loads if the member is to plan now."""
    header = decode_header(GetGroupPlanRequestHeader, request.command.ext_fields)
    group = _get_group(state, header.consumer_group)
    member = group.members.get(request.connection)
    found = state.plans.look(
        group.name,
        client_id=None if member is None else member.client_id,
        capacity_per_s=header.capacity_per_minute / 60,
        known_epoch=header.known_epoch,
        needs_loads=header.needs_loads,
        listed=group.client_ids(),
        progress=lambda: _progress(state, group),
        now_ms=request.now_ms,
    )
    return answer(request, ext_fields={}, body=encode_body(found))


def offer_plan(state: BrokerState, request: Request) -> Sequence[Output]:
    """Take a plan that follows the present one, journal it, and notify the members."""
    header = decode_header(OfferGroupPlanRequestHeader, request.command.ext_fields)
    group = _get_group(state, header.consumer_group)
    if request.connection not in group.members:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"group {group.name} does not list the client")
    offer = decode_body(GroupPlan, request.command.body or b"")
    refusal = state.plans.offer(
        group.name,
        offer,
        listed=group.client_ids(),
        now_ms=request.now_ms,
        timestamp_ms=request.timestamp_ms,
    )
    if refusal is not None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, refusal, ext_fields={})
    # A plan must survive a crash from the moment at which its members hear that it is taken.
    late = state.after_journal(answer(request, ext_fields={}), now_ms=request.now_ms)
    if offer.moved:
        moved = "1 queue moves" if len(offer.moved) == 1 else f"{len(offer.moved)} queues move"
        late.append(
            Fact(
                f"group {group.name!r}: {moved} for load: the fullest member's falls from "
                f"{offer.load_before:.2f} to {offer.load_after:.2f}"
            )
        )
    return [*late, *state.notify_group(group.name, now_ms=request.now_ms)]


def _get_group(state: BrokerState, name: str) -> ConsumerGroup:
    group = state.consumers.find(name)
    if group is None:
        raise Refusal(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
    return group


def _progress(state: BrokerState, group: ConsumerGroup) -> Progress:
    """Return the end of each queue of the group's topics at this broker, and the group's lag."""
    found: dict[MessageQueue, tuple[int, int]] = {}
    for name in sorted(group.subscriptions):
        topic = state.topics.find(name)
        for queue_id in range(0 if topic is None else topic.read_queue_nums):
            end = state.store.queues.max_offset(name, queue_id)
            committed = state.offsets.find(group.name, name, queue_id)
            lag = 0 if committed is None else max(0, end - committed)
            found[MessageQueue(name, state.config.broker_name, queue_id)] = end, lag
    return found
