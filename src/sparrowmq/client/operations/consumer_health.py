"""The health of a consumer, for those who probe it. Tests: client/test_consumer_health.py."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, NamedTuple, TypeAlias

from sparrowmq.calling.effects import Now, Operation
from sparrowmq.client.operations.waiting import has_share
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.membership.queue_state import QueueState

MemberState: TypeAlias = Literal["not started", "running", "failed", "closed"]


class ConsumerHealth(NamedTuple):
    """What a consumer knows about itself.

    Attributes:
        state: "failed" if the consumer ended without `close`.
        is_ready: whether the consumer runs, a broker lists it, and it consumes its share of the
            queues, which may be none. By messages: whether it runs, and its last request for
            messages was answered.
        since_heartbeat: the time since a broker last answered a heartbeat; None before the first,
            and by messages.
        assigned_count: the number of queues in its share.
        consumed_count: the number of queues that it consumes now, under their locks where it has
            locks.
        oldest_unfinished: how long the oldest message that the listener has, or that waits for the
            next poll, has been there; None without such messages.
    """

    state: MemberState
    is_ready: bool = False
    since_heartbeat: timedelta | None = None
    assigned_count: int = 0
    consumed_count: int = 0
    oldest_unfinished: timedelta | None = None


def look(subscriber: Subscriber, state: MemberState) -> Operation[ConsumerHealth]:
    """Return the health of a consumer whose loop is in this state."""
    now_ms: int = yield Now()
    member = subscriber.member
    consumed = [
        owned
        for owned in member.owned_queues()
        if owned.state is QueueState.CONSUMING and not owned.lease.is_fenced(now_ms)
    ]
    is_by_message = subscriber.config.balance == "messages"
    is_listed = is_by_message or member.is_listed(now_ms)
    begun_ms = subscriber.handed_ms if is_by_message else member.deliveries.begun_ms
    return ConsumerHealth(
        state=state,
        is_ready=state == "running" and is_listed and has_share(subscriber),
        since_heartbeat=_since(member.heartbeat_answered_ms, now_ms),
        assigned_count=len(member.assigned),
        consumed_count=len(consumed),
        oldest_unfinished=_since(begun_ms, now_ms),
    )


def _since(begun_ms: int | None, now_ms: int) -> timedelta | None:
    return None if begun_ms is None else timedelta(milliseconds=now_ms - begun_ms)
