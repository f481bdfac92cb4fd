"""AVG_ACROSS_TOPICS: evens out the members' queues of all topics, by few moves.

RocketMQ divides each topic separately: of three topics with one queue each, the first member in
order gets all three queues. Here a member's load counts its queues of all topics.
Tests: test_sparrow_strategies.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.group_strategy import (
    NO_OWNERS,
    Owners,
    TopicView,
    WholeGroupStrategy,
)
from sparrowmq.strategies.minimal_move import divide, level, together


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
        now: dict[MessageQueue, str] = {}
        # Sorting is stable: subscribers of equal number keep their order.
        ranked = sorted(together(topics).items(), key=lambda item: (item[0][0], len(item[0][1])))
        for (_, cids), queues in ranked:
            given = divide(queues, cids, owners, floors=level(loads, cids, len(queues)))
            for queue in queues:
                now[queue] = given[queue]
                loads[given[queue]] += 1
        return now
