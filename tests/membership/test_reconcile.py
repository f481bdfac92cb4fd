from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.membership.reconcile import RebalancePlan, reconcile
from sparrowmq.model import MessageQueue

A, B, C, D = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(4))
QUEUES = st.sets(st.sampled_from([A, B, C, D, MessageQueue("S", "broker-b", 0)]))


def test_lost_queues_are_revoked_and_gained_ones_acquired() -> None:
    assert reconcile([A, B], [B, C]) == RebalancePlan(revoke=(A,), acquire=(C,), keep=(B,))


def test_every_part_is_in_queue_order_and_without_doubles() -> None:
    plan = reconcile([], [A, MessageQueue("S", "b", 10), MessageQueue("S", "b", 9), A])

    assert plan.acquire == (MessageQueue("S", "b", 9), MessageQueue("S", "b", 10), A)


def test_nothing_to_do_is_balanced() -> None:
    assert reconcile([A, B], [B, A]).is_balanced
    assert not reconcile([A], []).is_balanced


@given(assigned=QUEUES, target=QUEUES)
def test_carrying_the_plan_out_leads_to_the_target(
    assigned: set[MessageQueue], target: set[MessageQueue]
) -> None:
    plan = reconcile(assigned, target)

    assert target == (assigned - set(plan.revoke)) | set(plan.acquire)
    assert set(plan.keep) == assigned - set(plan.revoke)
    assert set(plan.revoke) <= assigned
    assert not set(plan.acquire) & assigned
