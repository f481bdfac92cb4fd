"""Ways to choose a queue, for `queue=` of producers' sends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sparrowmq.client.queue_selector import QueueSelector, SelectQueue, select_queue_by_key
from sparrowmq.model import Message, MessageQueue


def select_by_hash(key_of: Callable[[Message], str]) -> SelectQueue:
    """Return what chooses a queue by a text of the message: the same text, the same queue.

    As SelectMessageQueueByHash.java, as long as the topic has as many queues. A message's
    `sharding_key` does the same and goes with the message.
    """
    return lambda queues, message: select_queue_by_key(queues, key_of(message))


def select_at_random(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """Choose any queue; as SelectMessageQueueByRandom.java."""
    del message
    return random.choice(queues)


def select_in_turn() -> SelectQueue:
    """Return what chooses one queue after the other, by topic, whatever else the producer sends."""
    selector = QueueSelector(lambda: 0)
    return lambda queues, message: selector.next_queue(queues)


def select_by_machine_room(*rooms: str) -> SelectQueue:
    """Return what chooses the queues of machine rooms in turn; all while none of these is there.

    Args:
        rooms: names, as brokers have them before an '@': `room-1@broker-a`.
    """
    wanted = frozenset(rooms)
    selector = QueueSelector(lambda: 0)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [q for q in queues if q.broker_name.partition("@")[0] in wanted]
        return selector.next_queue(near or queues)

    return select
