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

# So many members' shares are computed to find a queue's former owner; one beyond is taken
# to be still there. A strategy may take long, and a wait is bounded.
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
    # Former owners found so far, of the topics' last views.
    _owners: dict[MessageQueue, str | None] = field(default_factory=dict)
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
        self._first.setdefault(topic, frozenset(mq_all))
        view, last = _View(tuple(mq_all), tuple(cid_all)), self._last.get(topic)
        if view == last:
            return
        if last is not None:
            self._before[topic] = last
        self._last[topic] = view
        for queue in [queue for queue in self._owners if queue.topic == topic]:
            del self._owners[queue]

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
        others = [cid for cid in last.cid_all if cid != client_id]
        if is_group_strategy(strategy):
            owner = self._holders.get(queue)
            return bool(others) if owner in (None, client_id) else owner in others
        before = self._before.get(queue.topic)
        if before is None or set(before.cid_all) <= set(last.cid_all):
            return bool(others)
        if queue not in self._owners:
            self._owners[queue] = self._find_owner(queue, strategy, group, client_id)
        owner = self._owners[queue]
        return bool(others) if owner in (None, client_id) else owner in others

    def _find_owner(
        self,
        queue: MessageQueue,
        strategy: AllocateMessageQueueStrategy,
        group: str,
        client_id: str,
    ) -> str | None:
        view = self._before[queue.topic]
        for cid in list(dict.fromkeys(view.cid_all))[:SHARES_COMPUTED_MAX]:
            try:
                share = strategy.allocate(group, cid, list(view.mq_all), list(view.cid_all))
            except Exception:
                # A strategy may be the user's own; its failure is reported where it decides.
                return None
            if queue in (share or ()):
                return cid
        return None
