"""Messages as pulls of a queue return them."""

from __future__ import annotations

from sparrowmq.model import MessageExt, MessageQueue

QUEUE = MessageQueue("T", "b", 0)


def message(offset: int, queue: MessageQueue = QUEUE) -> MessageExt:
    """Return the message at an offset of a queue."""
    return MessageExt(
        topic=queue.topic,
        body=b"x",
        properties={},
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        queue_offset=offset,
        commit_log_position=100 * offset,
    )
