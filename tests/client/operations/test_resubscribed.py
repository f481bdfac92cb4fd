"""A topic whose expression changes while brokers hold pulls with the former one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from play import Handler, Play, PlayedTask, make_unrun_subscriber
from sparrowmq.client.assembly import add_subscription, make_subscription
from sparrowmq.client.operations.member_loop import _pull_resubscribed
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.membership.actions import Acquire, Pull
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageQueue

QUEUE, OTHER = (MessageQueue(topic, "a", 0) for topic in ("T", "U"))
NOW_MS = 1_000_000
# A pull that was ended is begun again after 100 ms.
SOON_MS = NOW_MS + 200


@pytest.fixture
def run(play: Callable[[Handler], Play]) -> Play:
    def refuse(address: str, _: object) -> None:
        raise AssertionError(f"nothing is asked of {address}")

    return play(refuse)  # type: ignore[arg-type]


@pytest.fixture
def subscriber() -> Subscriber:
    """A member that pulls a queue of each of two topics."""
    made = make_unrun_subscriber("GID_r", "T", "U", expression="a")
    member = made.member
    shares = [TopicShare(queue.topic, (queue,), ("me",), (queue,)) for queue in (QUEUE, OTHER)]
    member.rebalanced(shares, NOW_MS)
    for action in member.due(NOW_MS):
        if isinstance(action, Acquire):
            member.acquired(action.queue, action.epoch, offset=9, is_committed=True, now_ms=NOW_MS)
    assert {action.queue for action in pulls(made, NOW_MS)} == {QUEUE, OTHER}
    made.pulls.update({queue: PlayedTask("pull") for queue in (QUEUE, OTHER)})
    return made


def pulls(subscriber: Subscriber, now_ms: int) -> list[Pull]:
    return [action for action in subscriber.member.due(now_ms) if isinstance(action, Pull)]


def test_its_pulls_end_and_begin_again_at_the_same_offset(
    subscriber: Subscriber, run: Play
) -> None:
    add_subscription(subscriber, make_subscription(subscriber, "T", "a || b"))

    assert subscriber.wake.is_set
    run(_pull_resubscribed(subscriber, NOW_MS))

    assert set(subscriber.pulls) == {OTHER}
    assert [(action.queue, action.offset) for action in pulls(subscriber, SOON_MS)] == [(QUEUE, 9)]
    # Once for each change.
    subscriber.pulls[QUEUE] = PlayedTask("pull")
    run(_pull_resubscribed(subscriber, SOON_MS))
    assert set(subscriber.pulls) == {QUEUE, OTHER}
