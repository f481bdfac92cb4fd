"""What a member has seen of each topic: its queues at first, and the last two views of it. Pure.

From the view before the last one follows which member had a queue before us: whether a refused
lock is worth waiting for. From the first follows which queues were added while we looked on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.group_strategy import Owners, is_group_strategy
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

# Of so many members that have left, shares are computed; one beyond is taken to be still there.
# A strategy may take long, and a wait is bounded.
SHARES_COMPUTED_MAX = 200


@dataclass(slots=True)
class _View:
    mq_all: tuple[MessageQueue, ...]
    cid_all: tuple[str, ...]


@dataclass(slots=True)
class QueueHistory:
    """Views by topic."""

    _first: dict[str, frozenset[MessageQueue]] = field(default_factory=dict)
    _last: dict[str, _View] = field(default_factory=dict)
    _before: dict[str, _View] = field(default_factory=dict)
    # By topic: the queues of members that the last view does not list any more, once asked for.
    _freed: dict[str, frozenset[MessageQueue]] = field(default_factory=dict)
    # Who was seen to hold which queue, for strategies that take it into account.
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
        """Take in who holds which queue, as it was seen just now."""
        self._holders = holders

    def note(
        self, topic: str, mq_all: Sequence[MessageQueue], *, cid_all: Sequence[str] = ()
    ) -> None:
        """Take in a view of a topic: its queues and, where it is shared out, the members."""
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
        """Return whether the queue was added to its topic since we saw it first."""
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
        """Return whether the member that had the queue before is still in the group.

        Where the strategy does not show that member, or it was this one, any other member counts.
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
        """Return the queues that members of the view before had that have left since."""
        view = self._before.get(topic)
        if view is None:
            return frozenset()
        listed = frozenset(self._last[topic].cid_all)
        gone = [cid for cid in dict.fromkeys(view.cid_all) if cid not in listed]
        freed: set[MessageQueue] = set()
        try:
            for cid in gone[:SHARES_COMPUTED_MAX]:
                freed.update(_share(strategy, group, cid, view))
            # What a strategy gives us too, it gives everybody: nothing shows whose it was.
            return frozenset(freed.difference(_share(strategy, group, client_id, view)))
        except Exception:
            # A strategy may be the user's own; its failure is reported where it decides.
            return frozenset()


def _share(
    strategy: AllocateMessageQueueStrategy, group: str, cid: str, view: _View
) -> Sequence[MessageQueue]:
    return strategy.allocate(group, cid, list(view.mq_all), list(view.cid_all)) or ()
