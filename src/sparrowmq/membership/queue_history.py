"""A member's views of each topic: the queues it saw first, and the last views. Pure.

The views before the last one show which members owned a queue before us, and so whether a refused
lock is worth waiting for. All views count that were valid within the time of a handover: who owned
the queue two views ago may still drain it, and the member that the next view gave it to may have
left without it. The first view shows which queues were added since.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.group_strategy import Owners, is_group_strategy
from sparrowmq.strategies.strategy import AllocateMessageQueueStrategy

# The shares of this many members that have left are computed; further ones count as still there.
# A strategy may take long, and a needless wait is bounded.
SHARES_COMPUTED_MAX = 200
# The views of one topic that are kept. Where more were valid within a handover, every former owner
# counts as listed.
VIEWS_MAX = 16


class _View(NamedTuple):
    mq_all: tuple[MessageQueue, ...]
    cid_all: tuple[str, ...]
    since_ms: int


@dataclass(slots=True)
class QueueHistory:
    """The views of each topic, the queues' last known owners, and each broker's silences.

    Args:
        handover_ms: how long the former owner of a queue may take to give it back.
    """

    handover_ms: int
    _first: dict[str, frozenset[MessageQueue]] = field(default_factory=dict)
    # By topic, the last view at the end.
    _views: dict[str, list[_View]] = field(default_factory=dict)
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

    def held_by(self, client_id: str) -> frozenset[MessageQueue]:
        """Return the queues whose owner is a member, as recorded last."""
        return frozenset(queue for queue, owner in self._holders.items() if owner == client_id)

    def note(
        self,
        topic: str,
        mq_all: Sequence[MessageQueue],
        *,
        now_ms: int,
        cid_all: Sequence[str] = (),
    ) -> None:
        """Record a view of a topic: its queues and, if members share them, the client ids."""
        if topic not in self._first:
            self._first[topic] = frozenset(mq_all)
        views = self._views.setdefault(topic, [])
        view = _View(tuple(mq_all), tuple(cid_all), now_ms)
        if views and view[:2] == views[-1][:2]:
            return
        # A view was valid until the next one.
        while len(views) > 1 and views[1].since_ms <= now_ms - self.handover_ms:
            del views[0]
        views.append(view)
        del views[:-VIEWS_MAX]
        self._freed.pop(topic, None)

    def members(self, topic: str) -> tuple[str, ...]:
        """Return the client ids that the last view of a topic lists."""
        views = self._views.get(topic)
        return () if views is None else views[-1].cid_all

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that the last view of a topic has."""
        views = self._views.get(topic)
        return () if views is None else views[-1].mq_all

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
        """Return whether a member that may still have the queue is in the group.

        If the views do not show all former owners, or this member was one of them, the result is
        whether the group has any other member.
        """
        cid_all = self.members(queue.topic)
        if all(cid == client_id for cid in cid_all):
            return False
        if is_group_strategy(strategy):
            owner = self._holders.get(queue)
            return owner in (None, client_id) or owner in cid_all
        if queue.topic not in self._freed:
            self._freed[queue.topic] = self._find_freed(queue.topic, strategy, group, client_id)
        return queue not in self._freed[queue.topic]

    def _find_freed(
        self, topic: str, strategy: AllocateMessageQueueStrategy, group: str, client_id: str
    ) -> frozenset[MessageQueue]:
        """Return the queues that each view before gave to members that have left since."""
        *before, last = self._views[topic]
        if not before or before[0].since_ms > last.since_ms - self.handover_ms:
            return frozenset()
        listed = frozenset(last.cid_all)
        freed: set[MessageQueue] | None = None
        try:
            for view in reversed(before):
                gone = [cid for cid in dict.fromkeys(view.cid_all) if cid not in listed]
                queues: set[MessageQueue] = set()
                for cid in gone[:SHARES_COMPUTED_MAX]:
                    queues.update(_share(strategy, group, cid, view))
                ours = _share(strategy, group, client_id, view)
                if freed is None:
                    # A queue that the strategy gives this member as well has no single owner.
                    freed = queues.difference(ours)
                else:
                    # Earlier owners may still drain; this member waits for itself anyway.
                    freed &= queues.union(ours)
                if not freed:
                    break
        except Exception:
            # A strategy may be the user's own; the rebalance that uses it reports the failure.
            return frozenset()
        return frozenset(freed or ())


def _share(
    strategy: AllocateMessageQueueStrategy, group: str, cid: str, view: _View
) -> Sequence[MessageQueue]:
    return strategy.allocate(group, cid, list(view.mq_all), list(view.cid_all)) or ()
