"""The user's callbacks of a queue: `on_assign` before its first delivery, `on_revoke` between its
last delivery and the commit that gives it up. Pure.

The member waits for both calls, within a bound, so that the user's work in `on_revoke` is done
before another member begins. Tests: test_owned_queue.py.
"""

from __future__ import annotations

from sparrowmq.membership.actions import CallOnAssign, CallOnRevoke

# The longest wait for a callback.
CALL_WAIT_MAX_MS = 10_000


class QueueCallbacks:
    """Whether the user's `on_assign` and `on_revoke` were called for one queue.

    Args:
        is_wanted: whether the user has set these callbacks.
        epoch: when the member was given the queue; it may begin anew since, in later epochs.
    """

    __slots__ = ("_assign_ms", "_is_assigned", "_is_revoked", "_revoke_ms", "epoch", "is_wanted")

    def __init__(self, *, is_wanted: bool, epoch: int = 0) -> None:
        self.is_wanted = is_wanted
        self.epoch = epoch
        self._is_assigned = self._is_revoked = not is_wanted
        # When each call was asked for.
        self._assign_ms: int | None = None
        self._revoke_ms: int | None = None

    def begin_assign(self, now_ms: int) -> bool:
        """Return whether to call `on_assign` now; the call then counts as under way."""
        if not self.is_wanted or self._assign_ms is not None:
            return False
        self._assign_ms = now_ms
        return True

    def begin_revoke(self, now_ms: int) -> bool:
        """Return whether to call `on_revoke` now; the call then counts as under way."""
        if not self.is_wanted or self._assign_ms is None or self._revoke_ms is not None:
            return False
        self._revoke_ms = now_ms
        return True

    def may_deliver(self, now_ms: int) -> bool:
        """Return whether `on_assign` has returned or its wait has ended."""
        return self._is_assigned or _is_over(self._assign_ms, now_ms)

    def may_release(self, now_ms: int) -> bool:
        """Return whether `on_revoke` has returned or its wait has ended."""
        return self._is_revoked or self._assign_ms is None or _is_over(self._revoke_ms, now_ms)

    def next_due_ms(self, now_ms: int) -> list[int]:
        """Return when the wait for a call ends; empty without a call under way."""
        asked = (None if self._is_assigned else self._assign_ms, self._revoke_ms)
        ends = [asked_ms + CALL_WAIT_MAX_MS for asked_ms in asked if asked_ms is not None]
        return [end_ms for end_ms in ends if end_ms > now_ms]

    def returned(self, call: CallOnAssign | CallOnRevoke) -> None:
        """Note that a call has returned, unless the member had let go of the queue since."""
        if call.epoch < self.epoch:
            return
        if isinstance(call, CallOnAssign):
            self._is_assigned = True
        else:
            self._is_revoked = True


def _is_over(asked_ms: int | None, now_ms: int) -> bool:
    return asked_ms is not None and now_ms - asked_ms >= CALL_WAIT_MAX_MS
