"""Held pulls and pops: they found nothing and wait for a message or for their deadline.

One event may end many pulls: a message that all of them want, a common deadline, or a closed
connection. The event is noted at once; `release` returns the pulls, a bounded number at a time.
Of the pops of a group, one message ends one (`wake_first`): only one of them can have it.

Source: PullRequestHoldService.java. Differs from RocketMQ: a held pull is answered at the end of
its suspend time, not at the next scan after it (every 5 s). A held pull is forgotten when its
connection closes.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, TypeAlias

from sparrowmq.broker.message_filter import MessageFilter
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.access_control import AccessTable
from sparrowmq.serving.connections import Connection, Output

HELD_MAX = 100_000
# Above it the broker stops reading from the connection. A client has one pull for each queue.
HELD_PER_CONNECTION_MAX = 8_192
SUSPEND_MS_MAX = 30_000
# The pulls that one call of `release` returns, and the pulls of closed connections that it forgets.
# Both together take less than a millisecond.
RELEASED_MAX = 256
FORGOTTEN_MAX = 512


@dataclass(slots=True, eq=False)
class HeldPull:
    """A pull that waits.

    Args:
        place: the topic and queue id; for pops `pop_place`.
        queue_offset: the first offset that the pull wants; 0 for pops.
        wanted: the filter of the messages that end the wait.
        deadline_ms: when the pull is answered without messages.
        answer: answers the pull, or holds it again.
        group: the pulls that wait for the same message, this pull included.
        rules: the rules of access control by which the request was allowed; None without any.
    """

    connection: Connection
    command: RemotingCommand
    place: Place
    queue_offset: int
    wanted: MessageFilter
    deadline_ms: int
    answer: Callable[[HeldPull], Sequence[Output]]
    group: _Pulls = field(default_factory=dict)
    rules: AccessTable | None = None


Place: TypeAlias = tuple[str, int]
# Pulls in the order in which they came.
_Pulls: TypeAlias = dict[HeldPull, None]


def pop_place(group: str, topic: str, queue_id: int) -> Place:
    """Return where pops wait; neither a topic's name nor a group's contains the separator."""
    return f"{topic}@{group}", queue_id


def notice_place(group: str, topic: str, queue_id: int) -> Place:
    """Return where those wait who only ask whether there is something to pop."""
    return f"{topic}@{group}@", queue_id


class _Wanted(NamedTuple):
    """The message that the pulls of one group wait for."""

    queue_offset: int
    tags_codes: frozenset[int] | None


class PullHold:
    """The table of held pulls, by queue, by connection and by deadline."""

    def __init__(
        self, *, held_max: int = HELD_MAX, per_connection_max: int = HELD_PER_CONNECTION_MAX
    ) -> None:
        self._held_max = held_max
        self._per_connection_max = per_connection_max
        self._by_queue: dict[Place, dict[_Wanted, _Pulls]] = {}
        self._by_connection: dict[Connection, _Pulls] = {}
        self._by_deadline: dict[int, _Pulls] = {}
        # The keys of the table above, as a heap.
        self._deadlines: list[int] = []
        self._woken: deque[_Pulls] = deque()
        self._discarded: deque[_Pulls] = deque()
        self._full: set[Connection] = set()
        self._drained: list[Connection] = []
        self._now_ms = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def has_ended(self) -> bool:
        """Whether `release` has pulls to return or to forget."""
        return bool(
            self._woken or self._discarded or (self._deadlines and self._first_due() is not None)
        )

    @property
    def has_drained(self) -> bool:
        """Whether `take_drained` has connections to return."""
        return bool(self._drained)

    def hold(self, held: HeldPull) -> HeldPull | None:
        """Hold a pull; if the table is full, return the pull to answer early instead."""
        evicted = self._evict() if self._count >= self._held_max else None
        groups = self._by_queue.setdefault(held.place, {})
        held.group = groups.setdefault(_Wanted(held.queue_offset, held.wanted.tags_codes), {})
        held.group[held] = None
        self._by_connection.setdefault(held.connection, {})[held] = None
        bucket = self._by_deadline.get(held.deadline_ms)
        if bucket is None:
            bucket = self._by_deadline[held.deadline_ms] = {}
            heapq.heappush(self._deadlines, held.deadline_ms)
        bucket[held] = None
        self._count += 1
        return evicted

    def is_now_full(self, connection: Connection) -> bool:
        """Return True once when a connection reaches its bound of held pulls."""
        if len(self._by_connection[connection]) < self._per_connection_max:
            return False
        if connection in self._full:
            return False
        self._full.add(connection)
        return True

    def take_drained(self) -> list[Connection]:
        """Return the full connections that have drained to half their bound, each once."""
        drained, self._drained = self._drained, []
        return drained

    def wake(
        self, topic: str, queue_id: int, *, next_offset: int, tags_codes: Collection[int]
    ) -> None:
        """End the wait of the pulls that want one of the messages before `next_offset`.

        A pull stays held if its tags match none of the messages, whose codes are given. The caller
        evaluates conditions.
        """
        groups = self._by_queue.get((topic, queue_id))
        if not groups:
            return
        # Once for all messages of a batch, which may have a tag each.
        codes = frozenset(tags_codes)
        met = [
            wanted
            for wanted in groups
            if next_offset > wanted.queue_offset
            and (wanted.tags_codes is None or not codes.isdisjoint(wanted.tags_codes))
        ]
        for wanted in met:
            self._woken.append(groups.pop(wanted))
        if not groups:
            del self._by_queue[topic, queue_id]

    def wake_first(self, place: Place, *, tags_codes: Collection[int] | None = None) -> None:
        """End the wait of the pop that has waited longest at a place, if any waits there.

        Args:
            tags_codes: the codes of the messages that have come: for each of them one pop is woken
                that wants it; None wakes one whatever the tags.
        """
        groups = self._by_queue.get(place)
        if not groups:
            return
        left = None if tags_codes is None else frozenset(tags_codes)
        for wanted in list(groups):
            if left is not None and wanted.tags_codes is not None:
                if left.isdisjoint(wanted.tags_codes):
                    continue
                left -= wanted.tags_codes
            else:
                left = frozenset()
            pulls = groups[wanted]
            first = next(iter(pulls))
            del pulls[first]
            if not pulls:
                del groups[wanted]
            first.group = {first: None}
            self._woken.append(first.group)
            if not left:
                break
        if not groups:
            del self._by_queue[place]

    def count_at(self, place: Place) -> int:
        """Return how many pulls wait at a place."""
        return sum(map(len, self._by_queue.get(place, {}).values()))

    def expire(self, now_ms: int) -> None:
        """End the wait of the pulls whose deadline is reached."""
        self._now_ms = now_ms

    def is_overdue(self, held: HeldPull) -> bool:
        """Return whether a pull must be answered now, even without messages."""
        return held.deadline_ms <= self._now_ms

    def discard(self, connection: Connection) -> None:
        """Forget the pulls of a closed connection."""
        pulls = self._by_connection.pop(connection, None)
        if pulls is not None:
            self._count -= len(pulls)
            self._discarded.append(pulls)
        self._full.discard(connection)

    def take(self, connection: Connection, opaque: int) -> HeldPull | None:
        """Remove one pull of a connection, to be answered now; None if it does not wait."""
        mine = self._by_connection.get(connection, {})
        held = next((held for held in mine if held.command.opaque == opaque), None)
        return held if held is not None and self._remove(held) else None

    def release(self, count_max: int = RELEASED_MAX) -> list[HeldPull]:
        """Return pulls that no longer wait, at most `count_max`; call again while `has_ended`."""
        released: list[HeldPull] = []
        left = count_max
        while left > 0 and (pulls := self._first_woken() or self._first_due()):
            some = list(islice(pulls, left))
            left -= len(some)
            released += [held for held in some if self._remove(held)]
        left = FORGOTTEN_MAX
        while left > 0 and self._discarded:
            some = list(islice(self._discarded[0], left))
            left -= len(some)
            for held in some:
                del self._discarded[0][held]
                self._remove(held)
            if not self._discarded[0]:
                self._discarded.popleft()
        return released

    def _first_woken(self) -> _Pulls | None:
        while self._woken and not self._woken[0]:
            self._woken.popleft()
        return self._woken[0] if self._woken else None

    def _first_due(self) -> _Pulls | None:
        first = self._first_deadline()
        return None if first is None or first > self._now_ms else self._by_deadline[first]

    def _first_deadline(self) -> int | None:
        while self._deadlines and not self._by_deadline[self._deadlines[0]]:
            del self._by_deadline[heapq.heappop(self._deadlines)]
        return self._deadlines[0] if self._deadlines else None

    def _evict(self) -> HeldPull | None:
        """Remove a pull with the nearest deadline, to be answered even without messages."""
        while (first := self._first_deadline()) is not None:
            held = next(iter(self._by_deadline[first]))
            if self._remove(held):
                held.deadline_ms = min(held.deadline_ms, self._now_ms)
                return held
        return None

    def _remove(self, held: HeldPull) -> bool:
        """Take a pull out of every table; return whether its connection is open."""
        self._by_deadline.get(held.deadline_ms, {}).pop(held, None)
        place, group = held.place, held.group
        group.pop(held, None)
        if not group:
            groups = self._by_queue.get(place, {})
            wanted = _Wanted(held.queue_offset, held.wanted.tags_codes)
            # A woken group has left the table, where a new group may have its key.
            if groups.get(wanted) is group:
                del groups[wanted]
                if not groups:
                    del self._by_queue[place]
        mine = self._by_connection.get(held.connection)
        if mine is None or held not in mine:
            return False
        del mine[held]
        self._count -= 1
        if held.connection in self._full and len(mine) <= self._per_connection_max // 2:
            self._full.discard(held.connection)
            self._drained.append(held.connection)
        if not mine:
            del self._by_connection[held.connection]
        return True
