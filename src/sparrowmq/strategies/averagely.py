"""AVG and AVG_BY_CIRCLE: equal shares by the member's index in the list.

With n queues and m members, the member at index i takes

- AVG: a run of consecutive queues; each of the first n mod m members takes one queue more;
- AVG_BY_CIRCLE: the queues i, i + m, i + 2m, ...

Source: AllocateMessageQueueAveragely.java, AllocateMessageQueueAveragelyByCircle.java.
Tests: test_strategies.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.strategy import TopicStrategy, find_index


class AllocateMessageQueueAveragely(TopicStrategy):
    """Gives each member consecutive queues; loads differ by at most one. RocketMQ's default."""

    name = "AVG"

    def share(
        self, current_cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return this member's run of queues; empty if the member is not in the list."""
        index = find_index(cids, current_cid)
        if index is None:
            return []
        share, surplus = divmod(len(queues), len(cids))
        start = index * share + min(index, surplus)
        size = share + (1 if index < surplus else 0)
        return list(queues[start : start + size])


class AllocateMessageQueueAveragelyByCircle(TopicStrategy):
    """Deals queues to members in turn; loads differ by at most one."""

    name = "AVG_BY_CIRCLE"

    def share(
        self, current_cid: str, queues: Sequence[MessageQueue], cids: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every m-th queue from the member's index on; empty if it is not in the list."""
        index = find_index(cids, current_cid)
        if index is None:
            return []
        return list(queues[index :: len(cids)])
