"""How long messages wait: the age of the first message that a group has not consumed.

Lag counts messages, and a handful that has waited for hours is worse than thousands of a second
ago. Brokers report the age of each queue's first unconsumed message for one topic of a group at a
time, so that only those topics are asked where a message may have waited for a while.

Source: AdminBrokerProcessor.queryConsumeTimeSpan. Tests: test_overview.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparrowmq.calling.effects import Operation, timestamp
from sparrowmq.client.operations.gather import WIDTH, gather
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import QueryConsumeTimeSpanBody
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import QueryConsumeTimeSpanRequestHeader

# Members commit every 5 s (persistConsumerOffsetInterval), so that a shorter wait says nothing.
WAIT_MS_MIN = 10_000
# The topics of a group that one broker is asked about: those that may have waited longest.
TOPICS_ASKED_MAX = 4


def _choose_topics(last_consumed: Mapping[str, int], now_timestamp_ms: int) -> list[str]:
    """Return the topics of a group to ask one broker about.

    Args:
        last_consumed: of each topic with lag, the earliest time at which a lagging queue's last
            consumed message was stored, 0 if unknown. No later message was stored earlier. A time
            well ahead says nothing: our clock is behind the broker's.
    """
    chosen = sorted(
        (at_ms, topic)
        for topic, at_ms in last_consumed.items()
        if abs(now_timestamp_ms - at_ms) >= WAIT_MS_MIN
    )
    return [topic for _, topic in chosen[:TOPICS_ASKED_MAX]]


def find_waits(
    group: str,
    last_consumed: Mapping[str, Mapping[str, int]],
    *,
    now_timestamp_ms: int,
    timeout_ms: int,
) -> Operation[dict[MessageQueue, int]]:
    """Return how long each queue's first unconsumed message has been stored, in milliseconds.

    Queues whose messages are all consumed, or have not waited for a while, are left out, as are
    those of brokers that do not say.

    Args:
        last_consumed: by the address of each broker, what `_choose_topics` takes.
    """
    asking = [
        _ask(address, group, topic, timeout_ms=timeout_ms)
        for address, last in last_consumed.items()
        for topic in _choose_topics(last, now_timestamp_ms)
    ]
    waits: dict[MessageQueue, int] = {}
    for found in (yield from gather(asking, name=f"waits of {group}", at_once=WIDTH)):
        waits |= found
    return waits


def _ask(
    address: str, group: str, topic: str, *, timeout_ms: int
) -> Operation[dict[MessageQueue, int]]:
    """Ask a broker for a topic; empty if it does not say."""
    header = QueryConsumeTimeSpanRequestHeader(topic=topic, group=group)
    code = RequestCode.QUERY_CONSUME_TIME_SPAN
    try:
        reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
        answer = decode_answer(QueryConsumeTimeSpanBody, reply, address)
    except SparrowError:
        return {}
    now_ms = yield from timestamp()
    waits = {}
    for span in answer.consume_time_span_set:
        wait_ms = span.delay_time_ms
        if wait_ms > now_ms // 2:
            # The broker takes -1 as the store time of a message that has expired, so that the wait
            # is its clock, and 1 more. The group goes on with the queue's first message.
            wait_ms = wait_ms - 1 - span.min_timestamp_ms if span.min_timestamp_ms > 0 else 0
        if wait_ms > 0:
            waits[span.message_queue] = wait_ms
    return waits
