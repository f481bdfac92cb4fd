"""The queues to acquire and to give up: from the queues in hand to the wanted queues.

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
        """Whether the queues in hand are the wanted queues."""
        return not self.revoke and not self.acquire


def reconcile(
    assigned: Collection[MessageQueue], target: Collection[MessageQueue]
) -> RebalancePlan:
    """Plan the way from `assigned` to `target`.

    Args:
        assigned: the queues that the member has in hand.
        target: the wanted queues, as the strategy gave them; a queue named twice counts once.
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
