"""Owners from what members tell of themselves."""

from __future__ import annotations

from itertools import permutations

from sparrowmq.coordination.owner_claims import Claim, owners_claimed
from sparrowmq.model import MessageQueue

QUEUES = [MessageQueue("T", "b", number) for number in range(4)]


def test_lock_says_who_has_a_queue_and_else_who_wants_it() -> None:
    claims = [
        # Handed over: one still has the lock, the other asks for it.
        Claim("a", QUEUES[0], is_locked=False, is_dropped=False),
        Claim("b", QUEUES[0], is_locked=True, is_dropped=True),
        # Nobody has the lock: two want the queue, one gives it up.
        Claim("a", QUEUES[1], is_locked=False, is_dropped=True),
        Claim("b", QUEUES[1], is_locked=False, is_dropped=False),
        Claim("c", QUEUES[1], is_locked=False, is_dropped=False),
        # Given up by the only one that had it.
        Claim("a", QUEUES[2], is_locked=False, is_dropped=True),
    ]

    told = [owners_claimed(order) for order in permutations(claims)]

    assert {QUEUES[0]: "b", QUEUES[1]: "b"} == told[0]
    assert all(told[0] == owners for owners in told)
