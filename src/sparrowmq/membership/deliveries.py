"""The one book of the listener's calls that are under way. Pure.

The `ProcessQueue` of a queue knows which of its messages the listener has, and since when.
Tests: test_owned_queue.py.
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping, Sequence

import msgspec

from sparrowmq.membership.actions import Deliver
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.model import MessageExt, MessageQueue


class _UnderWay(msgspec.Struct, frozen=True, gc=False):
    """A delivery, its owned queue, when it was handed out, and the places of the calls left."""

    delivery: Deliver
    owned: OwnedQueue
    begun_ms: int
    left: set[int]


class Deliveries:
    """The calls under way, also for queues that were given up meanwhile: each call uses a thread.

    Args:
        count_max: the number of calls that may be under way at once.
        batch_size: the messages of one call, at most.
        is_in_order: whether a queue has at most one call under way at once.
    """

    __slots__ = (
        "_batch_size",
        "_call_count",
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
        # By delivery id, the oldest first.
        self._under_way: dict[int, _UnderWay] = {}
        self._call_count = 0

    def __len__(self) -> int:
        return self._call_count

    @property
    def begun_ms(self) -> int | None:
        """The time at which the oldest call began, None without calls."""
        return next((each.begun_ms for each in self._under_way.values()), None)

    @property
    def newest_ms(self) -> int | None:
        """The time at which the newest call began, None without calls."""
        return next((each.begun_ms for each in reversed(self._under_way.values())), None)

    @property
    def firsts(self) -> list[MessageExt]:
        """The first message of each call under way, the oldest call first."""
        return [
            each.delivery.batches[at][0]
            for each in self._under_way.values()
            for at in sorted(each.left)
        ]

    def begin(self, queues: MutableMapping[MessageQueue, OwnedQueue], now_ms: int) -> list[Deliver]:
        """Take batches from the queues, from each an equal share of the calls that are free.

        Queues that were served last move to the end, so that no queue starves. Benchmark:
        benchmarks/against_apache.py, a drain by 1.
        """
        found: list[Deliver] = []
        free = self._count_max + self.ahead_max - self._call_count
        if free <= 0:
            return found
        busy: set[MessageQueue] = set()
        if self._is_in_order:
            # A call of an earlier epoch keeps the queue busy too.
            busy.update(each.delivery.queue for each in self._under_way.values())
        waiting = [
            owned
            for owned in queues.values()
            if owned.process_queue.pending_count
            and owned.queue not in busy
            and owned.may_deliver(now_ms)
        ]
        under_way, delivery_id = self._under_way, self._last_id
        served: dict[MessageQueue, None] = {}
        while waiting and free > 0:
            turn, waiting = waiting, []
            for place, owned in enumerate(turn):
                # An equal part of what is left, rounded up.
                share = 1 if self._is_in_order else -(-free // (len(turn) - place))
                batches = owned.take(self._batch_size, min(share, free), now_ms)
                if not batches:
                    continue
                queue, count = owned.queue, len(batches)
                delivery_id += 1
                delivery = Deliver(queue, owned.epoch, delivery_id, tuple(batches))
                under_way[delivery_id] = _UnderWay(delivery, owned, now_ms, set(range(count)))
                found.append(delivery)
                free -= count
                self._call_count += count
                served.pop(queue, None)
                served[queue] = None
                if owned.process_queue.pending_count and not self._is_in_order:
                    waiting.append(owned)
        self._last_id = delivery_id
        for queue in served:
            queues[queue] = queues.pop(queue)
        return found

    def end(
        self, delivery: Deliver, calls: Collection[int]
    ) -> tuple[OwnedQueue | None, Sequence[tuple[MessageExt, ...]]]:
        """Note that calls have returned; return their queue and the batches not noted before."""
        each = self._under_way.get(delivery.delivery_id)
        if each is None:
            return None, ()
        left = each.left
        ended = left.intersection(calls)
        left -= ended
        self._call_count -= len(ended)
        batches = delivery.batches
        if not left:
            del self._under_way[delivery.delivery_id]
        if len(ended) == len(batches):
            return each.owned, batches
        return each.owned, [batches[at] for at in sorted(ended)]
