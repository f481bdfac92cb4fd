"""CONFIG: the queues the user wrote down, whoever the other members are.

Source: AllocateMessageQueueByConfig.java.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.model import MessageQueue


class AllocateMessageQueueByConfig:
    """The configured list as it is, unchecked.

    Args:
        message_queue_list: this member's queues; None, as in Java, until it is set.
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
        """Return the configured queues; None if none were ever set. No argument is looked at."""
        return None if self.message_queue_list is None else list(self.message_queue_list)
