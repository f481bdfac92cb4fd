"""The plans of a run's groups, and the shares that members take by them.

An epoch of a register stands for one plan. Members that follow it, and know the same members and
queues, divide the queues without a queue for two. Tests: test_plans.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from sparrowmq.client.subscriber import PlanKnown
from sparrowmq.model import MessageQueue


class PlanLedger:
    """What the registers of a run have published, and what its members have made of it."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        # By broker and epoch: the plan. By these, the members and the queues known: the owners.
        self._plans: dict[tuple[str, int], Mapping[MessageQueue, str]] = {}
        self._owners: dict[object, dict[MessageQueue, str]] = {}

    @property
    def reached(self) -> dict[str, int]:
        """How many plans members have followed."""
        return {"plans followed": len(self._plans)}

    def check_share(
        self,
        client_id: str,
        share: Iterable[MessageQueue],
        *,
        known: PlanKnown,
        cid_all: Sequence[Sequence[str]],
        queues: frozenset[MessageQueue],
    ) -> None:
        """Check a share that follows a plan against the other members' shares by that plan.

        Args:
            known: the plan that the member follows.
            cid_all: the members that it knows, by topic.
        """
        key = known.broker_name, known.epoch
        if self._plans.setdefault(key, known.plan.owners) != known.plan.owners:
            self._fail(f"epoch {known.epoch} of {known.broker_name} stands for two plans")
        owners = self._owners.setdefault((*key, tuple(cid_all), queues), {})
        for queue in share:
            other = owners.setdefault(queue, client_id)
            if other != client_id:
                self._fail(f"{queue} is {client_id}'s and {other}'s by the plan {known.epoch}")
