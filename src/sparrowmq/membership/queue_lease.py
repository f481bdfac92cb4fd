"""A member's side of one queue's lock: what it may believe, and when it must ask again.

```
        asked ──refused──> asked again, every 10 to 50 ms, while the former owner may still drain
          │ granted                         │ it is gone, or its time is up
          v                                 v
        HELD until sent + lease           UNLOCKED: as RocketMQ consumes; asked for on the side
          │ renewed in time: longer         │ granted: held
          │ refused, or not in time
          v
        FENCED: nothing is delivered and nothing committed until it is asked for anew
```

A refused lock delays and never blocks. The lease counts from the sending of the request that was
granted, so it ends before the broker's.
"""

from __future__ import annotations

from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.coordination.queue_lock_table import QUEUE_LEASE_BROKER_MS
from sparrowmq.membership.repeated_job import RepeatedJob

# Between two requests for a lock that is refused: at first, while short listeners end, and then.
LOCK_RETRY_FIRST_MS = 10
LOCK_RETRY_MS = 50
LOCK_RETRY_SOON_MS = 100
# ConsumeMessageOrderlyService.tryLockLaterAndReconsume, where consumption needs the lock.
ORDERLY_LOCK_RETRY_MS = 100
# A renewal is answered long before this, or it never is.
RENEWAL_LOST_MS = 3_000
# Beyond the former owner's drain: its last commit and the release of the lock.
PATIENCE_MARGIN_MS = 1_000

assert MARKED_LEASE_MS < QUEUE_LEASE_BROKER_MS


class QueueLease:
    """What a member may believe of its lock of one queue.

    Args:
        is_wanted: whether the queue is to be locked at all.
        is_required: whether it may be consumed with the lock only, as in order.
    """

    __slots__ = (
        "_unheld_ms",
        "asks_first",
        "is_required",
        "is_wanted",
        "may_hold",
        "renewal",
        "sent_ms",
        "until_ms",
        "waits_since_ms",
    )

    def __init__(self, *, is_wanted: bool, is_required: bool = False) -> None:
        self.is_wanted = is_wanted
        self.is_required = is_required
        # Whether consumption begins with the lock; not so once patience has ended.
        self.asks_first = is_wanted
        self.renewal = RepeatedJob(0, lost_ms=RENEWAL_LOST_MS)
        # Until when the lock is believed in; None while the queue is consumed without.
        self.until_ms: int | None = None
        # When the last request that was granted was sent.
        self.sent_ms = 0
        # Whether the broker may hold the lock for us, so that it has to be given back.
        self.may_hold = False
        # Since when consumption has waited for a lock that is refused, where it may do without.
        self.waits_since_ms: int | None = None
        # When all others had answered that none of them has the queue in hand.
        self._unheld_ms: int | None = None

    def is_fenced(self, now_ms: int) -> bool:
        """Return whether the lock that was held is not ours for sure any more."""
        return self.until_ms is not None and now_ms >= self.until_ms

    def is_renewing(self, now_ms: int) -> bool:
        """Return whether the answer to a renewal may still come."""
        return self.renewal.is_under_way(now_ms)

    def ask(self) -> None:
        """Note that the lock is asked for."""
        self.may_hold = True

    def grant(self, sent_ms: int) -> None:
        """Note that the request sent then was granted; an older answer changes nothing."""
        self.sent_ms = max(self.sent_ms, sent_ms)
        self.until_ms = self.sent_ms + MARKED_LEASE_MS
        self.asks_first = True
        self.waits_since_ms = None

    def refuse(self, sent_ms: int, now_ms: int) -> None:
        """Note that a renewal sent then was refused: somebody else may be at work."""
        if sent_ms >= self.sent_ms:
            self.may_hold = False
            if self.until_ms is not None:
                self.until_ms = min(self.until_ms, now_ms)

    def nobody_has_it(self, now_ms: int) -> None:
        """Note that no other member has the queue: what holds a lock from now on is dead."""
        self._unheld_ms = now_ms

    def wait_or_go_on(
        self, sent_ms: int, now_ms: int, *, is_owner_listed: bool, drain_timeout_ms: int
    ) -> int | None:
        """Take a refusal at the start; return when to ask again, None to go on without the lock.

        Args:
            sent_ms: when the request was sent.
            is_owner_listed: whether the member that had the queue is still in the group.
            drain_timeout_ms: how long that may take to give the queue up.
        """
        self.may_hold = False
        if self.is_required:
            return now_ms + ORDERLY_LOCK_RETRY_MS
        if self.waits_since_ms is None:
            self.waits_since_ms = now_ms
        patience_ms = drain_timeout_ms + PATIENCE_MARGIN_MS
        if self._unheld_ms is not None and sent_ms < self._unheld_ms:
            # Whoever had the queue may have given it back since.
            return now_ms
        is_unheld = self._unheld_ms is not None
        if is_unheld or not is_owner_listed or now_ms - self.waits_since_ms >= patience_ms:
            self.asks_first = False
            self.waits_since_ms = None
            return None
        is_recent = now_ms - self.waits_since_ms < LOCK_RETRY_SOON_MS
        return now_ms + (LOCK_RETRY_FIRST_MS if is_recent else LOCK_RETRY_MS)
