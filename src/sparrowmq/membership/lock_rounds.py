"""A member's requests about the locks of all its queues at once. Pure.

- The member renews the locks that it holds, with one request to each broker.
- When a lock stays refused, the member asks the other members which queues they have in hand. A
  member that drains keeps its lock, and the drain is worth waiting for. A member that was killed
  keeps its lock too, until the broker lets the lock expire. Only the members' answers distinguish
  the two. A queue that no listed member has in hand is taken at once: with the lock if the lock is
  free by now, else without the lock, as RocketMQ does. A member has a queue in hand also while it
  asks for the lock or drains, so a queue in a handover is waited for. A SparrowMQ broker knows
  its dead holders itself, and no member is asked there.

A member that does not answer may have any queue in hand; the wait then goes on unchanged.
"""

from __future__ import annotations

from collections.abc import Collection

from sparrowmq.coordination.member_marker import MARKED_LEASE_RENEWAL_MS
from sparrowmq.membership.actions import Action, AskMembers, RenewLocks
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.membership.repeated_job import LOST_MS, RepeatedJob
from sparrowmq.model import MessageQueue

# A queue consumed without its lock asks for the lock again after this.
LOCK_ASK_MS = 1_000
# The members are asked once a lock has been refused for this long; handovers under short listeners
# take less. A large group waits longer, by this for each member: its handovers take longer, and a
# question costs a request to each member. The members are asked again after twice this, and then at
# doubled intervals.
MEMBERS_ASKED_MS = 40
MEMBER_ASKED_MS = 1
# The wait after a member did not answer: a thread of Apache's broker waits 10 s for each answer.
MEMBERS_SILENT_MS = 10_000


class LockRounds:
    """Plans the requests about the locks of a member's queues: renewals, questions to members."""

    def __init__(self, now_ms: int) -> None:
        self._renewals_due_ms = now_ms
        self._question = RepeatedJob(now_ms)
        self._first_wait_ms = self._question_wait_ms = MEMBERS_ASKED_MS

    def note_members(self, count: int) -> None:
        """Record how many members the group has."""
        self._first_wait_ms = max(MEMBERS_ASKED_MS, count * MEMBER_ASKED_MS)

    def collect(self, queues: Collection[OwnedQueue], now_ms: int, actions: list[Action]) -> None:
        """Add the renewals and questions that are due now."""
        if now_ms >= self._renewals_due_ms:
            self._collect_renewals(queues, now_ms, actions)
        waits = _waits(queues)
        if not waits and self._question_wait_ms > self._first_wait_ms:
            # The members are asked about the next refused lock as soon as about the first.
            self._question_wait_ms = self._first_wait_ms
            self._question.hurry(now_ms)
        first_ms = now_ms - self._first_wait_ms
        refused = tuple([queue for queue, since_ms in waits if since_ms <= first_ms])
        if refused and self._question.begin(now_ms):
            actions.append(AskMembers(refused))

    def next_due_ms(self, queues: Collection[OwnedQueue], now_ms: int) -> int:
        """Return the time at which `collect` may add an action although no event has come."""
        if not queues:
            return now_ms + LOST_MS
        dues_ms = [since_ms + self._first_wait_ms for _, since_ms in _waits(queues)]
        first_ms = min(dues_ms, default=now_ms + LOST_MS)
        return min(self._renewals_due_ms, max(first_ms, self._question.next_due_ms(now_ms)))

    def _collect_renewals(
        self, queues: Collection[OwnedQueue], now_ms: int, actions: list[Action]
    ) -> None:
        asked: dict[str, list[MessageQueue]] = {}
        has_all = True
        for owned in queues:
            if owned.begin_renewal(now_ms):
                asked.setdefault(owned.queue.broker_name, []).append(owned.queue)
                has_all = has_all and owned.lease.is_held
        for broker_name, names in asked.items():
            actions.append(RenewLocks(broker_name, tuple(names), now_ms))
        self._renewals_due_ms = now_ms + (MARKED_LEASE_RENEWAL_MS if has_all else LOCK_ASK_MS)

    def renew_soon(self, now_ms: int) -> None:
        """Ask a little later for the locks that are not held, or may be lost."""
        self._renewals_due_ms = min(self._renewals_due_ms, now_ms + LOCK_ASK_MS)

    def members_asked(
        self,
        refused: Collection[OwnedQueue],
        in_hand: Collection[MessageQueue] | None,
        now_ms: int,
    ) -> None:
        """Record the queues that other members have in hand; None if a member did not answer."""
        if in_hand is None:
            self._question.end(now_ms, next_in_ms=MEMBERS_SILENT_MS)
            return
        still = [owned for owned in refused if owned.queue in in_hand]
        for owned in refused:
            if owned.queue not in in_hand:
                owned.nobody_has_it(now_ms)
        self._question_wait_ms = 2 * self._question_wait_ms if still else self._first_wait_ms
        self._question.end(now_ms, next_in_ms=self._question_wait_ms)


def _waits(queues: Collection[OwnedQueue]) -> list[tuple[MessageQueue, int]]:
    """Return the queues that wait for a lock whose broker knows no dead holders; since when."""
    return [
        (owned.queue, since_ms)
        for owned in queues
        if (since_ms := owned.lease.waits_since_ms) is not None and owned.lease.stands_in is None
    ]
