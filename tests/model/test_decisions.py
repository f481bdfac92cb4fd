"""What a listener decides on single messages, and the levels of delay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from queue_messages import message
from sparrowmq import ConsumeContext, MessageQueue, shortest_delay_level
from sparrowmq.errors import UsageError
from sparrowmq.model.message import Decision

MESSAGES = tuple(map(message, range(4)))
DONE, LATER = Decision(None), Decision(0)


@pytest.fixture
def context() -> ConsumeContext:
    return ConsumeContext(MessageQueue("T", "b", 0), messages=MESSAGES)


def test_each_message_may_be_decided_on_by_itself(context: ConsumeContext) -> None:
    context.ack(MESSAGES[0])
    context.retry(MESSAGES[1], MESSAGES[2], delay=timedelta(seconds=40))
    context.dead_letter(MESSAGES[3], reason="no such flight")

    assert context.end() == {
        0: DONE,
        1: Decision(5),
        2: Decision(5),
        3: Decision(-1, "no such flight"),
    }


def test_without_messages_it_is_all_that_are_not_decided_yet(context: ConsumeContext) -> None:
    context.retry(MESSAGES[2])
    context.ack()

    assert context.end() == {0: DONE, 1: DONE, 2: LATER, 3: DONE}


def test_last_decision_counts(context: ConsumeContext) -> None:
    context.dead_letter(MESSAGES[2], reason="gone")
    context.retry(MESSAGES[2])

    assert context.end() == {2: LATER}


@pytest.mark.parametrize("other", [message(7), "message", None])
def test_what_is_no_message_of_the_delivery_is_refused(context: ConsumeContext, other: Any) -> None:
    with pytest.raises(UsageError, match="is not a message of this delivery"):
        context.ack(MESSAGES[0], other)

    assert context.end() == {}


def test_nothing_is_decided_after_the_return(context: ConsumeContext) -> None:
    context.end()

    with pytest.raises(UsageError, match="the listener has returned"):
        context.ack()


@pytest.mark.parametrize(
    ("delay", "level"),
    [
        (timedelta(milliseconds=1), 1),
        (timedelta(seconds=1), 1),
        (timedelta(seconds=3), 2),
        (timedelta(seconds=7), 3),
        (timedelta(seconds=29), 4),
        (timedelta(seconds=30, microseconds=1), 5),
        (timedelta(seconds=61), 6),
        (timedelta(minutes=10), 14),
        (timedelta(minutes=11), 15),
        (timedelta(hours=1.4), 18),
        (timedelta(hours=2), 18),
    ],
    ids=str,
)
def test_level_of_a_delay_never_ends_before_the_delay(delay: timedelta, level: int) -> None:
    assert shortest_delay_level(delay) == level


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(hours=2, seconds=1), 30, None])
def test_delay_that_no_level_lasts_is_refused(delay: Any) -> None:
    with pytest.raises(UsageError, match="above zero, of 2 hours at most"):
        shortest_delay_level(delay)
