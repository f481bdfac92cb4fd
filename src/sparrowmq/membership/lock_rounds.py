"""What a member asks about the locks of all its queues at once. Pure.

- It renews those that it holds, one request to each broker.
- It asks the other members what they have in hand when a lock stays refused. Nobody else can say
  the lock of a member that drains, which is worth waiting for, from that of one that was killed,
  which its broker keeps until it expires. What no listed member has in hand is taken at once: with
  the lock if it is free by now, else without it, as RocketMQ does. A member has a queue in hand
  also while it asks for the lock itself or drains; so a queue on its way is waited for.

A member that does not answer may have anything, and then the wait goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Collection

from sparrowmq.coordination.member_marker import MARKED_LEASE_RENEWAL_MS
from sparrowmq.membership.actions import Action, AskMembers, RenewLocks
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.membership.repeated_job import LOST_MS, RepeatedJob
from sparrowmq.model import MessageQueue

# A lock that is not held is asked for again after this, beside consumption.
LOCK_ASK_MS = 1_000
# A lock is refused for so long before the members are asked; handovers under short listeners take
# less. They are asked again after twice this, and then at doubled intervals.
MEMBERS_ASKED_MS = 40
# After a member did not answer. Apache's broker has a thread wait 10 s for each such answer.
MEMBERS_SILENT_MS = 10_000


class LockRounds:
    """Asks about the locks of all queues of a member: renewals, and questions to other members.

    Args:
        now_ms: the time.
    """

    def __init__(self, now_ms: int) -> None:
        self._renewals_due_ms = now_ms
        self._question = RepeatedJob(now_ms)
        self._question_wait_ms = MEMBERS_ASKED_MS

    def collect(self, queues: Collection[OwnedQueue], now_ms: int, actions: list[Action]) -> None:
        """Add what is to be asked now."""
        if now_ms >= self._renewals_due_ms:
            self._collect_renewals(queues, now_ms, actions)
        refused = tuple(owned.queue for owned in queues if _is_refused(owned, now_ms))
        if refused and self._question.begin(now_ms):
            actions.append(AskMembers(refused))

    def next_due_ms(self, queues: Collection[OwnedQueue], now_ms: int) -> int:
        """Return when `collect` may have something without an event."""
        if not queues:
            return now_ms + LOST_MS
        waits = [owned.lease.waits_since_ms for owned in queues]
        dues_ms = [since_ms + MEMBERS_ASKED_MS for since_ms in waits if since_ms is not None]
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
                has_all = has_all and owned.lease.until_ms is not None
        for broker_name, names in asked.items():
            actions.append(RenewLocks(broker_name, tuple(names), now_ms))
        self._renewals_due_ms = now_ms + (MARKED_LEASE_RENEWAL_MS if has_all else LOCK_ASK_MS)

    def renew_soon(self, now_ms: int) -> None:
        """Ask for what is not held, or may not be any more, a little later."""
        self._renewals_due_ms = min(self._renewals_due_ms, now_ms + LOCK_ASK_MS)

    def members_asked(
        self,
        refused: Collection[OwnedQueue],
        in_hand: Collection[MessageQueue] | None,
        now_ms: int,
    ) -> None:
        """Take what the other members have in hand; None if one of them did not answer."""
        if in_hand is None:
            self._question.end(now_ms, next_in_ms=MEMBERS_SILENT_MS)
            return
        still = [owned for owned in refused if owned.queue in in_hand]
        for owned in refused:
            if owned.queue not in in_hand:
                owned.nobody_has_it(now_ms)
        self._question_wait_ms = 2 * self._question_wait_ms if still else MEMBERS_ASKED_MS
        self._question.end(now_ms, next_in_ms=self._question_wait_ms)


def _is_refused(owned: OwnedQueue, now_ms: int) -> bool:
    since_ms = owned.lease.waits_since_ms
    return since_ms is not None and now_ms - since_ms >= MEMBERS_ASKED_MS
