"""Who holds which queue, by what members claim of themselves. Pure.

Members claim queues that they hold with the lock, that they ask for or consume without it, and
that they are giving up. The lock says who has a queue; where nobody has it, the member that wants
it counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparrowmq.model import MessageQueue


class Claim(NamedTuple):
    """What a member says of a queue.

    Args:
        is_locked: it has the queue's lock.
        is_dropped: it is giving the queue up.
    """

    client_id: str
    queue: MessageQueue
    is_locked: bool
    is_dropped: bool


def owners_claimed(claims: Iterable[Claim]) -> dict[MessageQueue, str]:
    """Return the owner of each queue that somebody claims; of equal claims, the lowest id's."""
    owners: dict[MessageQueue, str] = {}
    for claim in sorted(claims, key=lambda claim: (not claim.is_locked, claim.client_id)):
        if claim.is_locked or not claim.is_dropped:
            owners.setdefault(claim.queue, claim.client_id)
    return owners
