"""The queues to acquire and to give up: from a member's last share to its new share.

Source: RebalanceImpl.updateProcessQueueTableInRebalance.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order


@dataclass(frozen=True, slots=True)
class RebalancePlan:
    """The queues to keep, to acquire and to give up, each tuple in queue order."""

    revoke: tuple[MessageQueue, ...]
    acquire: tuple[MessageQueue, ...]
    keep: tuple[MessageQueue, ...]

    @property
    def is_balanced(self) -> bool:
        """Whether no queue is to be acquired or given up."""
        return not self.revoke and not self.acquire


def reconcile(
    assigned: Collection[MessageQueue], target: Collection[MessageQueue]
) -> RebalancePlan:
    """Plan the way from `assigned` to `target`.

    Args:
        assigned: the member's last share.
        target: the new share, as the strategy gave it; a queue named twice counts once.
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
