"""From the queues a member has to the queues it should have.

Source: RebalanceImpl.updateProcessQueueTableInRebalance.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """What to do, each part in queue order."""

    revoke: tuple[MessageQueue, ...]
    acquire: tuple[MessageQueue, ...]
    keep: tuple[MessageQueue, ...]

    @property
    def is_balanced(self) -> bool:
        """Whether there is nothing to do."""
        return not self.revoke and not self.acquire


def reconcile(
    assigned: Collection[MessageQueue], target: Collection[MessageQueue]
) -> RebalancePlan:
    """Plan the way from `assigned` to `target`.

    Args:
        assigned: the queues the member has.
        target: what its strategy gave; a queue named twice counts once.
    """
    have, want = set(assigned), set(target)
    keep = have & want
    return RebalancePlan(
        revoke=_in_order(have - keep),
        acquire=_in_order(want - keep),
        keep=_in_order(keep),
    )


def _in_order(queues: Collection[MessageQueue]) -> tuple[MessageQueue, ...]:
    return tuple(sorted(queues, key=queue_order))
