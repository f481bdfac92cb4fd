"""Delivery in order: how a queue's batch is settled once its listener has returned. Pure.

A queue's next batch begins when the last one is settled:

| status | with `auto_commit` | without |
|---|---|---|
| SUCCESS | committed | held, and the next batch begins |
| COMMIT | committed | committed, with all that was held |
| ROLLBACK | committed | comes again after a moment, with all that was held |
| SUSPEND_CURRENT_QUEUE_A_MOMENT | comes again after a moment | comes again after a moment |

A message that has come again as often as allowed becomes a dead letter, and the queue goes on with
the next message. Differs from RocketMQ: Java keeps a thread on one queue for up to 60 s before
other queues have their turn; here every queue has its turn after each batch.

Source: ConsumeMessageOrderlyService.java.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from sparrowmq.membership.process_queue import ProcessQueue
from sparrowmq.model import ConsumeOrderlyStatus, MessageExt

# ConsumeMessageOrderlyService.submitConsumeRequestLater keeps the moment within these bounds.
SUSPEND_MIN_MS = 10
SUSPEND_MAX_MS = 30_000


class OrderlyOutcome(NamedTuple):
    """The status that a listener in order returned for its batch."""

    status: ConsumeOrderlyStatus
    auto_commit: bool
    suspend_ms: int


class InOrder:
    """Decides when the next batch of one queue may begin.

    Args:
        max_reconsume_times: how often a message may come again; None for no limit.
    """

    __slots__ = ("_max_reconsume_times", "resume_ms")

    def __init__(self, *, max_reconsume_times: int | None) -> None:
        self._max_reconsume_times = max_reconsume_times
        # The time at which the queue's suspension ends.
        self.resume_ms = 0

    def settle(
        self,
        process_queue: ProcessQueue,
        messages: Sequence[MessageExt],
        outcome: OrderlyOutcome,
        *,
        now_ms: int,
    ) -> tuple[MessageExt, ...]:
        """Commit a batch, hold it, or let it come again; return the dead letters in the batch."""
        status, auto_commit, suspend_ms = outcome
        if status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            dead = tuple(message for message in messages if self._is_dead(message))
            again = [_counted(message) for message in messages if not self._is_dead(message)]
            process_queue.make_again(again)
            if again:
                self._suspend(suspend_ms, now_ms)
            return dead
        if status is ConsumeOrderlyStatus.ROLLBACK and not auto_commit:
            process_queue.rollback_in_order()
            self._suspend(suspend_ms, now_ms)
        elif auto_commit or status is ConsumeOrderlyStatus.COMMIT:
            process_queue.commit_in_order()
        return ()

    def _is_dead(self, message: MessageExt) -> bool:
        limit = self._max_reconsume_times
        return limit is not None and message.reconsume_times >= limit

    def _suspend(self, suspend_ms: int, now_ms: int) -> None:
        self.resume_ms = now_ms + max(SUSPEND_MIN_MS, min(suspend_ms, SUSPEND_MAX_MS))


def _counted(message: MessageExt) -> MessageExt:
    return msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1)
