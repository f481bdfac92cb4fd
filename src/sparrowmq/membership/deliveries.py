"""The one book of the listener's calls that are under way. Pure.

The `ProcessQueue` of a queue knows which of its messages the listener has, and since when.
Tests: test_owned_queue.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import MutableMapping, Sequence

import msgspec

from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.model import MessageQueue


class CallUnderWay(msgspec.Struct, frozen=True, gc=False):
    """One call of the listener: its delivery, its owned queue, and the time it was handed out."""

    delivery: Deliver
    owned: OwnedQueue
    begun_ms: int


class Deliveries:
    """The calls under way, also for queues that were given up meanwhile: each call uses a thread.

    Args:
        count_max: the number of calls that may be under way at once.
        batch_size: the messages of one call, at most.
        is_in_order: whether a queue has at most one call under way at once.
    """

    __slots__ = (
        "_batch_size",
        "_count_max",
        "_is_in_order",
        "_last_id",
        "_under_way",
        "ahead_max",
    )

    def __init__(self, *, count_max: int, batch_size: int, is_in_order: bool) -> None:
        self._count_max = count_max
        self._batch_size = batch_size
        self._is_in_order = is_in_order
        self._last_id = 0
        # The number of further calls that may be handed out to wait for a free thread.
        self.ahead_max = 0
        # By delivery id, the oldest call first.
        self._under_way: dict[int, CallUnderWay] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def under_way(self) -> list[CallUnderWay]:
        """The calls under way, the oldest first."""
        return list(self._under_way.values())

    @property
    def begun_ms(self) -> int | None:
        """The time at which the oldest call began, None without calls."""
        return next((call.begun_ms for call in self.under_way), None)

    def begin(self, queues: MutableMapping[MessageQueue, OwnedQueue], now_ms: int) -> list[Deliver]:
        """Take batches from the queues in turn while calls are free, from each its share of them.

        Queues that were served last move to the end, so that no queue starves. Benchmark:
        benchmarks/against_apache.py, a drain by 1.
        """
        found: list[Deliver] = []
        free = self._count_max + self.ahead_max - len(self._under_way)
        if free <= 0:
            return found
        busy: set[MessageQueue] = set()
        if self._is_in_order:
            # A call of an earlier epoch keeps the queue busy too.
            busy.update(call.delivery.queue for call in self._under_way.values())
        waiting = deque(
            owned
            for owned in queues.values()
            if owned.process_queue.pending_count
            and owned.queue not in busy
            and owned.may_deliver(now_ms)
        )
        under_way, delivery_id = self._under_way, self._last_id
        served: dict[MessageQueue, None] = {}
        while waiting and len(found) < free:
            share = 1 if self._is_in_order else max(1, (free - len(found)) // len(waiting))
            owned = waiting.popleft()
            batches = owned.take(self._batch_size, share, now_ms)
            if not batches:
                continue
            queue, epoch = owned.queue, owned.epoch
            for messages in batches:
                delivery_id += 1
                delivery = Deliver(queue, epoch, delivery_id, messages)
                under_way[delivery_id] = CallUnderWay(delivery, owned, now_ms)
                found.append(delivery)
            served.pop(queue, None)
            served[queue] = None
            if owned.process_queue.pending_count and not self._is_in_order:
                waiting.append(owned)
        self._last_id = delivery_id
        for queue in served:
            queues[queue] = queues.pop(queue)
        return found

    def end(self, delivery_id: int) -> OwnedQueue | None:
        """Note that a call has returned; return its queue, None if the return was noted before."""
        call = self._under_way.pop(delivery_id, None)
        if call is None:
            return None
        call.owned.quiet_until_ms = 0
        return call.owned

    def end_all(self, deliveries: Sequence[Deliver]) -> dict[OwnedQueue, list[Deliver]]:
        """Note that calls have returned; return those not noted before, by owned queue."""
        found: dict[OwnedQueue, list[Deliver]] = {}
        for delivery in deliveries:
            call = self._under_way.pop(delivery.delivery_id, None)
            if call is None:
                continue
            if call.owned in found:
                found[call.owned].append(delivery)
            else:
                found[call.owned] = [delivery]
                call.owned.quiet_until_ms = 0
        return found
