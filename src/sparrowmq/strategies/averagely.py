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
from sparrowmq.strategies.strategy import check_arguments, find_index


class AllocateMessageQueueAveragely:
    """Gives each member consecutive queues; loads differ by at most one. RocketMQ's default."""

    name = "AVG"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return this member's run of queues; empty if the member is not in the list.

        Raises: ValueError if an argument is empty.
        """
        current, queues, cids = check_arguments(current_cid, mq_all, cid_all)
        index = find_index(cids, current)
        if index is None:
            return []
        share, surplus = divmod(len(queues), len(cids))
        start = index * share + min(index, surplus)
        size = share + (1 if index < surplus else 0)
        return list(queues[start : start + size])


class AllocateMessageQueueAveragelyByCircle:
    """Deals queues to members in turn; loads differ by at most one."""

    name = "AVG_BY_CIRCLE"

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue]:
        """Return every m-th queue from the member's index on; empty if it is not in the list.

        Raises: ValueError if an argument is empty.
        """
        current, queues, cids = check_arguments(current_cid, mq_all, cid_all)
        index = find_index(cids, current)
        if index is None:
            return []
        return list(queues[index :: len(cids)])
