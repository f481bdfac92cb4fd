"""The message queue, RocketMQ's unit of load balancing, and the order Java gives to it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

# A consume queue has 20 bytes for each message, and a position in it is a Java long.
OFFSET_MAX = (2**63 - 1) // 20


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker.

    `str()` gives Java's text, which CONSISTENT_HASH hashes.
    Source: RocketMQ 4.9.3 common/message/MessageQueue.java.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return (
            f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, "
            f"queueId={self.queue_id}]"
        )


def java_order(text: str) -> bytes:
    """Return the sort key that puts strings in the order of Java's `String.compareTo`.

    Java compares UTF-16 code units, Python code points: they differ above U+FFFF.
    """
    return text.encode("utf-16-be", "surrogatepass")


def in_java_order(texts: Collection[str]) -> list[str]:
    """Return strings sorted as Java's `String.compareTo` sorts them."""
    # ASCII texts, such as client ids, have one order in Java and Python and need no sort keys.
    return sorted(texts) if "".join(texts).isascii() else sorted(texts, key=java_order)


def queue_order(queue: MessageQueue) -> tuple[bytes, bytes, int]:
    """Return the sort key of Java's `MessageQueue.compareTo`: topic, broker name, queue id."""
    return java_order(queue.topic), java_order(queue.broker_name), queue.queue_id
