"""CONFIG: the queues that the user configured, whatever members the group has.

Source: AllocateMessageQueueByConfig.java. Tests: test_strategies.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.model import MessageQueue


class AllocateMessageQueueByConfig:
    """Gives the member its configured queues, without any check.

    Args:
        message_queue_list: this member's queues; None, as in Java, until the user sets them.
    """

    name = "CONFIG"

    def __init__(self, message_queue_list: Sequence[MessageQueue] | None = None) -> None:
        self.message_queue_list = message_queue_list

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.message_queue_list!r})"

    def allocate(
        self,
        consumer_group: str,
        current_cid: str | None,
        mq_all: Sequence[MessageQueue] | None,
        cid_all: Sequence[str] | None,
    ) -> list[MessageQueue] | None:
        """Return the configured queues; None if none were set. The arguments have no effect."""
        return None if self.message_queue_list is None else list(self.message_queue_list)
