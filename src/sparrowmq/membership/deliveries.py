"""The calls of a member's listener that are under way. Pure."""

from __future__ import annotations

from collections.abc import MutableMapping

from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.model import MessageQueue


class Deliveries:
    """Calls under way, also of queues that were given up meanwhile: each uses a thread.

    Args:
        count_max: how many may be under way at once.
        batch_size: messages of one call, at most.
        is_in_order: whether a queue has one call under way at once, at most.
    """

    __slots__ = ("_batch_size", "_count_max", "_is_in_order", "_last_id", "_under_way")

    def __init__(self, *, count_max: int, batch_size: int, is_in_order: bool) -> None:
        self._count_max = count_max
        self._batch_size = batch_size
        self._is_in_order = is_in_order
        self._last_id = 0
        self._under_way: dict[int, OwnedQueue] = {}

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, queues: MutableMapping[MessageQueue, OwnedQueue], now_ms: int) -> list[Deliver]:
        """Take one batch of each queue in turn, while calls are free.

        Queues that were served last are put last, so that none starves.
        """
        found: list[Deliver] = []
        free = self._count_max - len(self._under_way)
        waiting = [owned for owned in queues.values() if owned.process_queue.pending_count]
        # Also of an earlier time that the queue was ours.
        busy = {owned.queue for owned in self._under_way.values()} if self._is_in_order else set()
        while free > 0 and waiting:
            owned = waiting.pop(0)
            if owned.queue in busy:
                continue
            delivery = owned.take(self._last_id + 1, self._batch_size, now_ms)
            if delivery is None:
                continue
            self._last_id = delivery.delivery_id
            self._under_way[delivery.delivery_id] = owned
            found.append(delivery)
            free -= 1
            queues[owned.queue] = queues.pop(owned.queue)
            if self._is_in_order:
                busy.add(owned.queue)
            elif owned.process_queue.pending_count:
                waiting.append(owned)
        return found

    def end(self, delivery_id: int) -> OwnedQueue | None:
        """Note that a call has returned; return whose it was, None if it was noted before."""
        return self._under_way.pop(delivery_id, None)
