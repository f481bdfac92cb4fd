"""Ways to choose a queue, for `queue=` of producers' sends."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from sparrowmq.client.queue_selector import QueueSelector, SelectQueue, select_queue_by_key
from sparrowmq.model import Message, MessageQueue


def select_by_hash(key_of: Callable[[Message], str]) -> SelectQueue:
    """Return a function that chooses the queue by a text of the message: equal texts, equal queues.

    As SelectMessageQueueByHash.java, as long as the topic has as many queues. A message's
    `sharding_key` does the same and goes with the message.
    """
    return lambda queues, message: select_queue_by_key(queues, key_of(message))


def select_at_random(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """Choose any queue; as SelectMessageQueueByRandom.java."""
    del message
    return random.choice(queues)


def select_in_turn() -> SelectQueue:
    """Return a function that chooses each topic's queues in turn, with counters of its own."""
    selector = QueueSelector(lambda: 0)
    return lambda queues, message: selector.next_queue(queues)


def select_by_machine_room(*rooms: str) -> SelectQueue:
    """Return a function that chooses machine rooms' queues in turn, or all if these have none.

    Args:
        rooms: names, which brokers' names have before an '@': `room-1@broker-a`.
    """
    wanted = frozenset(rooms)
    selector = QueueSelector(lambda: 0)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [q for q in queues if q.broker_name.partition("@")[0] in wanted]
        return selector.next_queue(near or queues)

    return select
