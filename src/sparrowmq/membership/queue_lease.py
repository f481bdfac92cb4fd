"""A member's side of one queue's lock: how long the lock is believed in, when to ask again.

```
        asked ──refused──> asked again, every 10 to 50 ms, while the former owner may still drain
          │ granted                         │ it is gone, or its time is up
          v                                 v
        HELD until sent + lease           UNLOCKED: as RocketMQ consumes; asked for on the side
          │ renewed in time: longer         │ granted: held
          │ refused, or not in time         │ no answer at all in time
          v                                 v
        FENCED: nothing is delivered and nothing committed until the broker is asked anew
```

A refused lock delays consumption and never blocks it. The lease counts from the sending of the
granted request, so the lease ends before the broker's does. Without the lock, every answer about
it, even a refusal, counts as long: a member that stood still for longer finds itself fenced, as
another member may have consumed the queue meanwhile.
"""

from __future__ import annotations

from sparrowmq.coordination.member_marker import MARKED_LEASE_MS, QUEUE_LEASE_BROKER_MS
from sparrowmq.membership.repeated_job import RepeatedJob

# Between two requests for a refused lock: at first, while short listeners end, and afterwards.
LOCK_RETRY_FIRST_MS = 10
LOCK_RETRY_MS = 50
LOCK_RETRY_SOON_MS = 100
# After this the request has waited at the broker, and the next follows soon.
WAITED_MS = 250
# ConsumeMessageOrderlyService.tryLockLaterAndReconsume, where consumption needs the lock.
ORDERLY_LOCK_RETRY_MS = 100
# A renewal is answered long before this, or it never is.
RENEWAL_LOST_MS = 3_000
# The time added to the former owner's drain for its last commit and the release of the lock.
PATIENCE_MARGIN_MS = 1_000

assert MARKED_LEASE_MS < QUEUE_LEASE_BROKER_MS


def handover_ms(drain_timeout_ms: int) -> int:
    """Return how long a queue's former owner may take to give it back."""
    return drain_timeout_ms + PATIENCE_MARGIN_MS


class QueueLease:
    """A member's belief in its lock of one queue.

    Args:
        is_wanted: whether the queue is to be locked at all.
        is_required: whether the queue may only be consumed with the lock, as in order.
    """

    __slots__ = (
        "_unheld_ms",
        "asks_first",
        "is_held",
        "is_required",
        "is_wanted",
        "may_hold",
        "renewal",
        "sent_ms",
        "stands_in",
        "until_ms",
        "waits_since_ms",
    )

    def __init__(self, *, is_wanted: bool, is_required: bool = False) -> None:
        self.is_wanted = is_wanted
        self.is_required = is_required
        # Whether consumption waits for the lock at the start; False once the wait has ended.
        self.asks_first = is_wanted
        self.renewal = RepeatedJob(0, lost_ms=RENEWAL_LOST_MS)
        # When the belief ends: in the lock, or in the last answer about it where the queue is
        # consumed without it. None before the first answer.
        self.until_ms: int | None = None
        self.is_held = False
        # When the last granted request was sent.
        self.sent_ms = 0
        # Whether the broker may have the lock for us, so that the lock must be given back.
        self.may_hold = False
        # Whether the broker lets us consume the queue in the place of its lock's holder, which is
        # gone; the place is given back like a lock. None if the broker does not say.
        self.stands_in: bool | None = None
        # Since when a queue that may go without the lock has waited for its refused lock.
        self.waits_since_ms: int | None = None
        # When all other members had answered that they do not have the queue in hand.
        self._unheld_ms: int | None = None

    def is_fenced(self, now_ms: int) -> bool:
        """Return whether another member may have consumed the queue by now."""
        return self.until_ms is not None and now_ms >= self.until_ms

    def is_renewing(self, now_ms: int) -> bool:
        """Return whether the answer to a renewal may still come."""
        return self.renewal.is_under_way(now_ms)

    def ask(self) -> None:
        """Note that the lock is asked for."""
        self.may_hold = True

    def grant(self, sent_ms: int) -> None:
        """Note that the request of `sent_ms` was granted; an older answer changes nothing."""
        self.sent_ms = max(self.sent_ms, sent_ms)
        self.until_ms = self.sent_ms + MARKED_LEASE_MS
        self.is_held = self.asks_first = True
        self.waits_since_ms = None

    def go_without(self, sent_ms: int) -> None:
        """Note that the queue is consumed without the lock; the broker answered `sent_ms`."""
        self.is_held = False
        self.until_ms = max(self.until_ms or 0, sent_ms + MARKED_LEASE_MS)

    def give_back(self) -> None:
        """Note that the broker no longer has us for the lock's holder, nor in its place."""
        self.may_hold, self.stands_in = False, None

    def refuse(self, sent_ms: int, now_ms: int) -> None:
        """Note that the request of `sent_ms` was refused: another member holds the lock."""
        if sent_ms < self.sent_ms:
            return
        self.may_hold = False
        if self.is_held:
            assert self.until_ms is not None
            self.until_ms = min(self.until_ms, now_ms)
        else:
            self.go_without(sent_ms)

    def nobody_has_it(self, now_ms: int) -> None:
        """Note that no other member has the queue in hand: the lock's holder is dead."""
        self._unheld_ms = now_ms

    def wait_or_go_on(
        self,
        sent_ms: int,
        now_ms: int,
        *,
        is_owner_listed: bool,
        drain_timeout_ms: int,
        stands_in: bool | None = None,
    ) -> int | None:
        """Process a refusal at the start; return when to ask again, None to begin without the lock.

        Args:
            sent_ms: when the request was sent.
            is_owner_listed: whether the queue's former owner is still in the group.
            drain_timeout_ms: how long the former owner may take to drain.
            stands_in: see the attribute.
        """
        self.may_hold, self.stands_in = False, stands_in
        has_waited = now_ms - sent_ms >= WAITED_MS
        if self.is_required:
            return now_ms + (LOCK_RETRY_FIRST_MS if has_waited else ORDERLY_LOCK_RETRY_MS)
        if self.waits_since_ms is None:
            self.waits_since_ms = now_ms
        patience_ms = handover_ms(drain_timeout_ms)
        if self._unheld_ms is not None and sent_ms < self._unheld_ms:
            # The former owner may have released the lock after our request.
            return now_ms
        is_unheld = stands_in or self._unheld_ms is not None
        if is_unheld or not is_owner_listed or now_ms - self.waits_since_ms >= patience_ms:
            self.asks_first = False
            self.waits_since_ms = None
            # The start position may have come with the refusal: then nothing more is asked.
            self.go_without(sent_ms)
            return None
        is_recent = now_ms - self.waits_since_ms < LOCK_RETRY_SOON_MS
        return now_ms + (LOCK_RETRY_FIRST_MS if is_recent or has_waited else LOCK_RETRY_MS)
