"""AVG_ACROSS_TOPICS: evens out the members' queues of all topics, by few moves.

RocketMQ divides each topic separately: of three topics with one queue each, the first member in
order gets all three queues. Here a member's load counts its queues of all topics.
Tests: test_sparrow_strategies.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparrowmq.model import MessageQueue
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.strategies.group_strategy import (
    NO_OWNERS,
    Owners,
    TopicView,
    WholeGroupStrategy,
    in_order,
    unique,
)
from sparrowmq.strategies.minimal_move import divide


class AllocateMessageQueueAcrossTopics(WholeGroupStrategy):
    """Divides all topics together; loads differ by at most one if all subscribe the same topics.

    If members subscribe different topics, topics with few subscribers are divided first; later
    topics then even out the loads.
    """

    name = "AVG_ACROSS_TOPICS"

    def divide_group(
        self, topics: Sequence[TopicView], owners: Owners = NO_OWNERS
    ) -> dict[MessageQueue, str]:
        """Return the owner of every queue of all topics.

        Topics with the same subscribers are divided together, by the fewest moves; those with the
        fewest subscribers first. A retry topic comes last, since members see it at different times.
        """
        loads = {cid: 0 for view in topics for cid in view.cid_all}
        together: dict[tuple[bool, tuple[str, ...]], list[MessageQueue]] = {}
        for view in in_order(topics):
            is_retry = view.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
            together.setdefault((is_retry, tuple(unique(view.cid_all))), []).extend(view.mq_all)
        now: dict[MessageQueue, str] = {}
        # Sorting is stable: subscribers of equal number keep their order.
        ranked = sorted(together.items(), key=lambda item: (item[0][0], len(item[0][1])))
        for (_, cids), queues in ranked:
            given = divide(queues, cids, owners, floors=_level(loads, cids, len(queues)))
            for queue in queues:
                now[queue] = given[queue]
                loads[given[queue]] += 1
        return now


def _level(loads: Mapping[str, int], cids: Sequence[str], count: int) -> dict[str, int]:
    """Return how many further queues each member gets at least, so that the loads become even.

    Members whose load is above the level that the others reach get none and are left out.
    """
    level = 0
    ranked = sorted(loads[cid] for cid in cids)
    total = count
    for place, load in enumerate(ranked, start=1):
        total += load
        reached = total // place
        if place == len(ranked) or reached < ranked[place]:
            level = reached
            break
    return {cid: level - loads[cid] for cid in cids if loads[cid] <= level}
