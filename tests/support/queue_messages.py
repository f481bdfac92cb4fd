"""A member's queues in hand, and messages as pulls of a queue return them."""

from __future__ import annotations

from sparrowmq.membership.member import GroupMember
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.model import MessageExt, MessageQueue

QUEUE = MessageQueue("T", "b", 0)


def message(offset: int, queue: MessageQueue = QUEUE, body: bytes = b"x") -> MessageExt:
    """Return the message at an offset of a queue."""
    return MessageExt(
        topic=queue.topic,
        body=body,
        properties={},
        broker_name=queue.broker_name,
        queue_id=queue.queue_id,
        queue_offset=offset,
        commit_log_position=100 * offset,
    )


def all_queues(member: GroupMember) -> list[MessageQueue]:
    """Return the queues that a member has in hand."""
    return [owned.queue for owned in member.owned_queues()]


def in_hand(member: GroupMember, queue: MessageQueue, epoch: int) -> OwnedQueue:
    """Return the queue of that epoch, which the member must have in hand."""
    owned = member.find_queue(queue, epoch)
    assert owned is not None
    return owned
