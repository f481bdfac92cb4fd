"""The owner of each queue, from the claims of the members. Pure.

A member claims each queue that it has in hand: with the lock, without the lock, or while it gives
the queue up. The lock's holder is the owner. If no member holds the lock, the member that asks for
the queue or consumes it is the owner. A member that gives a queue up without the lock is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparrowmq.model import MessageQueue


class Claim(NamedTuple):
    """A member's claim of a queue.

    Args:
        is_locked: whether the member holds the queue's lock.
        is_dropped: whether the member is giving the queue up.
    """

    client_id: str
    queue: MessageQueue
    is_locked: bool
    is_dropped: bool


def owners_claimed(claims: Iterable[Claim]) -> dict[MessageQueue, str]:
    """Return the owner of each claimed queue; among equal claims, the lowest client id wins."""
    owners: dict[MessageQueue, str] = {}
    for claim in sorted(claims, key=lambda claim: (not claim.is_locked, claim.client_id)):
        if claim.is_locked or not claim.is_dropped:
            owners.setdefault(claim.queue, claim.client_id)
    return owners
