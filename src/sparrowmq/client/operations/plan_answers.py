"""A group's plan and measured loads, as a broker's register answers members and tools.

Tests: simulation/test_plans.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.errors import SparrowError
from sparrowmq.protocol.bodies import GroupLoadsBody, GroupPlan, GroupPlanAnswer
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import GetGroupPlanRequestHeader
from sparrowmq.strategies.by_load import FollowedPlan, GroupLoads, QueueLoad


def ask_plan_at(
    address: str, header: GetGroupPlanRequestHeader, *, timeout_ms: int
) -> Operation[GroupPlanAnswer]:
    """Ask a broker for a group's plan. Raises: TransportError, BrokerError."""
    reply = yield from ask(address, RequestCode.GET_GROUP_PLAN, header, timeout_ms=timeout_ms)
    return decode_answer(GroupPlanAnswer, reply, address)


def followed(plan: GroupPlan) -> FollowedPlan:
    """Return a plan of the wire as the strategy takes it."""
    owners = {queue: cid for cid, queues in plan.owners.items() for queue in queues}
    return FollowedPlan(owners, tuple(plan.client_ids))


def merge_loads(answers: Sequence[GroupPlanAnswer | SparrowError]) -> GroupLoads | None:
    """Return the loads that all brokers measured, the register's first; None if one has none."""
    parts: list[GroupLoadsBody] = []
    for answer in answers:
        if isinstance(answer, SparrowError) or answer.loads is None:
            return None
        parts.append(answer.loads)
    return GroupLoads(
        queues={
            each.queue: QueueLoad(each.rate_per_s, each.lag)
            for part in parts
            for each in part.queues
        },
        # Members send their capacities to the register alone.
        capacities=parts[0].capacities,
        resting=frozenset(parts[0].resting),
    )
