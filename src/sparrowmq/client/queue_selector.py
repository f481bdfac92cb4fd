"""The choice of a message's queue.

Round robin over the topic's queues; after a failed attempt, over those of other brokers, if there
are any. A sharding key always finds the same queue, as with RocketMQ's SelectMessageQueueByHash:
Java's hash of the key, modulo the number of queues, without its sign.

A producer may avoid brokers that answered late: the later the answer, the longer.

Source: TopicPublishInfo.selectOneMessageQueue, SelectMessageQueueByHash.java, MQFaultStrategy.java.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias

from sparrowmq.client.arguments import check_queue
from sparrowmq.errors import UsageError
from sparrowmq.model import Message, MessageQueue
from sparrowmq.protocol.subscription import java_hash

# Chooses one of a topic's writable queues; MessageQueueSelector.java.
SelectQueue: TypeAlias = Callable[[Sequence[MessageQueue], Message], MessageQueue]
QueueChoice: TypeAlias = MessageQueue | SelectQueue

# MQFaultStrategy.latencyMax and notAvailableDuration: from each latency on, a broker is avoided for
# the time beside it. No answer and a refusal count as the longest latency.
LATE_MS = 15_000
_AVOIDED_MS = (
    (LATE_MS, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
)


class QueueSelector:
    """Round robin, one counter for each topic.

    With one counter for all topics, a producer that sends to two topics in turn would use every
    second queue of each.

    Args:
        choose_start: returns the start of a topic's counter; random starts spread producers.
    """

    __slots__ = ("_avoided_until_ms", "_choose_start", "_counters")

    def __init__(self, choose_start: Callable[[], int]) -> None:
        self._choose_start = choose_start
        # One entry for each topic that the client sends to.
        self._counters: dict[str, int] = {}
        # By the name of brokers that answered late or failed; at most one for each broker.
        self._avoided_until_ms: dict[str, int] = {}

    def note_latency(self, broker_name: str, latency_ms: int, now_ms: int) -> None:
        """Record a broker's latency, and avoid the broker for a while if the latency was long."""
        for late_ms, avoided_ms in _AVOIDED_MS:
            if latency_ms >= late_ms:
                self._avoided_until_ms[broker_name] = now_ms + avoided_ms
                return
        self._avoided_until_ms.pop(broker_name, None)

    def forget(self, topics: Iterable[str]) -> None:
        """Forget the counters of topics."""
        for topic in topics:
            self._counters.pop(topic, None)

    def next_queue(
        self,
        queues: Sequence[MessageQueue],
        host: Callable[[MessageQueue], str] = attrgetter("broker_name"),
        *,
        avoid_broker: str | None = None,
        now_ms: int = 0,
    ) -> MessageQueue:
        """Return the next queue, preferably not of a broker to avoid.

        Args:
            queues: those of one topic, at least one.
            host: gives the name of the broker that serves a queue.
            avoid_broker: the name of the broker that failed last.
        """
        if self._avoided_until_ms:
            until_ms = self._avoided_until_ms
            well = [q for q in queues if until_ms.get(host(q), now_ms) <= now_ms]
            queues = well or queues
        topic = queues[0].topic
        counter = self._counters.get(topic)
        counter = self._choose_start() if counter is None else counter + 1
        queue = queues[counter % len(queues)]
        if avoid_broker is not None and host(queue) == avoid_broker:
            for _ in queues:
                counter += 1
                queue = queues[counter % len(queues)]
                if host(queue) != avoid_broker:
                    break
        self._counters[topic] = counter
        return queue


def select_queue_by_key(queues: Sequence[MessageQueue], sharding_key: str) -> MessageQueue:
    """Return the queue of a sharding key; `queues` holds at least one."""
    # Java's remainder takes the sign of the hash, and abs removes it: that is abs(hash) % n.
    return queues[abs(java_hash(sharding_key)) % len(queues)]


def select_queue_by_user(
    select: SelectQueue, queues: Sequence[MessageQueue], message: Message
) -> MessageQueue:
    """Return the queue that a user's function chooses.

    Raises: UsageError if the function returns none of the queues, or raises what would end a
        thread, such as SystemExit: the thread may not be the caller's. The function's own errors.
    """
    try:
        chosen = check_queue(select(queues, message))
    except Exception:
        raise
    except BaseException as error:
        raise UsageError(f"{select!r} raised {error!r}") from error
    if chosen not in queues:
        raise UsageError(
            f"{select!r} chose {chosen}, which is not a writable queue of topic {message.topic!r}; "
            "return one of the given queues"
        )
    return chosen
