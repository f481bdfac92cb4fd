"""Pulls that found nothing and wait for a message, or for the end of their patience.

Source: PullRequestHoldService.java. Differs from RocketMQ: a held pull is answered when its own
suspend time is over, not at the next scan every 5 s after that, and it is forgotten when its
connection closes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from sparrowmq.broker.message_filter import MessageFilter
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import PullMessageRequestHeader
from sparrowmq.serving.connections import Connection

HELD_MAX = 100_000
SUSPEND_MS_MAX = 30_000


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits.

    Args:
        wanted: which messages.
        deadline_ms: when it is answered with nothing.
    """

    connection: Connection
    command: RemotingCommand
    header: PullMessageRequestHeader
    wanted: MessageFilter
    deadline_ms: int
    is_held: bool = True


class PullHold:
    """The table of held pulls, by queue, by connection and by deadline."""

    def __init__(self, *, held_max: int = HELD_MAX) -> None:
        self._held_max = held_max
        self._by_queue: dict[tuple[str, int], list[HeldPull]] = {}
        self._by_connection: dict[Connection, set[HeldPull]] = {}
        self._by_deadline: list[tuple[int, int, HeldPull]] = []
        self._sequence = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def hold(self, held: HeldPull) -> HeldPull | None:
        """Hold a pull; if the table is full, returns the one to be answered early instead."""
        evicted = self._evict() if self._count >= self._held_max else None
        key = (held.header.topic, held.header.queue_id)
        self._by_queue.setdefault(key, []).append(held)
        self._by_connection.setdefault(held.connection, set()).add(held)
        self._sequence += 1
        heapq.heappush(self._by_deadline, (held.deadline_ms, self._sequence, held))
        self._count += 1
        return evicted

    def wake(
        self, topic: str, queue_id: int, *, next_offset: int, tags_code: int
    ) -> list[HeldPull]:
        """Release the pulls that want the message just before `next_offset`.

        A pull whose tags do not want the message stays held; whether a condition does is for the
        caller to find out.
        """
        waiting = self._by_queue.get((topic, queue_id))
        if not waiting:
            return []
        woken = [
            held
            for held in waiting
            if next_offset > held.header.queue_offset
            and (held.wanted.tags_codes is None or tags_code in held.wanted.tags_codes)
        ]
        for held in woken:
            self._remove(held)
        return woken

    def due(self, now_ms: int) -> list[HeldPull]:
        """Release the pulls whose deadline is reached."""
        released: list[HeldPull] = []
        heap = self._by_deadline
        while heap and (heap[0][0] <= now_ms or not heap[0][2].is_held):
            held = heapq.heappop(heap)[2]
            if held.is_held:
                self._remove(held)
                released.append(held)
        return released

    def discard(self, connection: Connection) -> None:
        """Forget the pulls of a closed connection."""
        for held in list(self._by_connection.get(connection, ())):
            self._remove(held)

    def _evict(self) -> HeldPull | None:
        heap = self._by_deadline
        while heap:
            held = heapq.heappop(heap)[2]
            if held.is_held:
                self._remove(held)
                return held
        return None

    def _remove(self, held: HeldPull) -> None:
        held.is_held = False
        self._count -= 1
        key = (held.header.topic, held.header.queue_id)
        waiting = self._by_queue[key]
        waiting.remove(held)
        if not waiting:
            del self._by_queue[key]
        mine = self._by_connection[held.connection]
        mine.discard(held)
        if not mine:
            del self._by_connection[held.connection]
        # Most pulls are woken long before their deadline: let the heap not keep them all.
        if len(self._by_deadline) > 64 and len(self._by_deadline) > 4 * self._count:
            self._by_deadline = [entry for entry in self._by_deadline if entry[2].is_held]
            heapq.heapify(self._by_deadline)
