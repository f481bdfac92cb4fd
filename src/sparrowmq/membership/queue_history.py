"""A member's views of each topic: the queues it saw first, and the last two views. Pure.

The view before the last one shows which member owned a queue before us, and so whether a refused
lock is worth waiting for. The first view shows which queues were added since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.group_strategy import Owners, is_group_strategy
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

# The shares of this many members that have left are computed; further ones count as still there.
# A strategy may take long, and a needless wait is bounded.
SHARES_COMPUTED_MAX = 200


@dataclass(slots=True)
class _View:
    mq_all: tuple[MessageQueue, ...]
    cid_all: tuple[str, ...]


@dataclass(slots=True)
class QueueHistory:
    """The views of each topic, the queues' last known owners, and each broker's silences."""

    _first: dict[str, frozenset[MessageQueue]] = field(default_factory=dict)
    _last: dict[str, _View] = field(default_factory=dict)
    _before: dict[str, _View] = field(default_factory=dict)
    # By topic: the queues of members that the last view no longer lists, once computed.
    _freed: dict[str, frozenset[MessageQueue]] = field(default_factory=dict)
    # The last known owner of each queue, for strategies that use the owners.
    _holders: Owners = field(default_factory=dict)
    # How often in a row a broker did not answer.
    _silences: dict[str, int] = field(default_factory=dict)

    def note_answer(self, broker_name: str, *, is_silent: bool) -> None:
        """Note whether a broker answered for the group."""
        self._silences[broker_name] = self.silence_of(broker_name) + 1 if is_silent else 0

    def silence_of(self, broker_name: str) -> int:
        """Return how often in a row a broker did not answer for the group."""
        return self._silences.get(broker_name, 0)

    def note_holders(self, holders: Owners) -> None:
        """Record the current owner of each queue."""
        self._holders = holders

    def note(
        self, topic: str, mq_all: Sequence[MessageQueue], *, cid_all: Sequence[str] = ()
    ) -> None:
        """Record a view of a topic: its queues and, if members share them, the client ids."""
        if topic not in self._first:
            self._first[topic] = frozenset(mq_all)
        view, last = _View(tuple(mq_all), tuple(cid_all)), self._last.get(topic)
        if view == last:
            return
        if last is not None:
            self._before[topic] = last
        self._last[topic] = view
        self._freed.pop(topic, None)

    def members(self, topic: str) -> tuple[str, ...]:
        """Return the client ids that the last view of a topic lists."""
        last = self._last.get(topic)
        return () if last is None else last.cid_all

    def is_new(self, queue: MessageQueue) -> bool:
        """Return whether the queue was added after the member's first view of the topic."""
        first = self._first.get(queue.topic)
        return first is not None and queue not in first

    def is_owner_listed(
        self,
        queue: MessageQueue,
        strategy: AllocateMessageQueueStrategy,
        *,
        group: str,
        client_id: str,
    ) -> bool:
        """Return whether the queue's former owner is still in the group.

        If the strategy does not show the former owner, or this member was the former owner, the
        result is whether the group has any other member.
        """
        last = self._last.get(queue.topic)
        if last is None:
            return False
        if all(cid == client_id for cid in last.cid_all):
            return False
        if is_group_strategy(strategy):
            owner = self._holders.get(queue)
            return owner in (None, client_id) or owner in last.cid_all
        if queue.topic not in self._freed:
            self._freed[queue.topic] = self._find_freed(queue.topic, strategy, group, client_id)
        return queue not in self._freed[queue.topic]

    def _find_freed(
        self, topic: str, strategy: AllocateMessageQueueStrategy, group: str, client_id: str
    ) -> frozenset[MessageQueue]:
        """Return the queues that the view before gave to members that have left since."""
        view = self._before.get(topic)
        if view is None:
            return frozenset()
        listed = frozenset(self._last[topic].cid_all)
        gone = [cid for cid in dict.fromkeys(view.cid_all) if cid not in listed]
        freed: set[MessageQueue] = set()
        try:
            for cid in gone[:SHARES_COMPUTED_MAX]:
                freed.update(_share(strategy, group, cid, view))
            # A queue that the strategy gives this member as well has no single former owner.
            return frozenset(freed.difference(_share(strategy, group, client_id, view)))
        except Exception:
            # A strategy may be the user's own; the rebalance that uses it reports the failure.
            return frozenset()


def _share(
    strategy: AllocateMessageQueueStrategy, group: str, cid: str, view: _View
) -> Sequence[MessageQueue]:
    return strategy.allocate(group, cid, list(view.mq_all), list(view.cid_all)) or ()
