"""MINIMAL_MOVE where the broker does not give owners: members ask each other through Apache's."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

import waiting
from churn import least_moves
from sparrowmq import PushConsumer

wait_until = partial(waiting.wait_until, timeout_s=60)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_members_that_come_and_go_move_the_least_plus_one(java: Any, cluster: Any) -> None:
    topic, group = cluster.create_topic("known-owners", queues=8), "GID_known_owners"
    members: list[PushConsumer] = []

    def owners() -> dict[Any, str]:
        return {queue: str(m.client_id) for m in members for queue in m.assignment()}

    def is_shared() -> bool:
        held = [queue for member in members for queue in member.assignment()]
        loads = [len(member.assignment()) for member in members]
        # The retry topic's queue counts too, and is not among the assignment.
        return len(held) == len(set(held)) == 8 and max(loads) - min(loads) <= 2

    with ExitStack() as stack:

        def join() -> None:
            member = PushConsumer(
                group,
                name_server=cluster.name_server,
                listener=lambda messages, context: None,
                strategy="MINIMAL_MOVE",
            )
            stack.enter_context(member)
            member.subscribe(topic)
            member.start()
            members.append(member)

        def leave() -> None:
            members.pop(0).close()

        join()
        wait_until("all queues at the first member", is_shared)
        for event in (join, join, leave, join, leave, leave):
            before = owners()
            event()
            wait_until("one owner for each queue", lambda: all(m.assignment() for m in members))
            wait_until("loads within one", is_shared)
            after = owners()
            moved = sum(before[queue] != owner for queue, owner in after.items())
            cids = [str(member.client_id) for member in members]
            assert moved <= least_moves(before, list(after), cids) + 1
