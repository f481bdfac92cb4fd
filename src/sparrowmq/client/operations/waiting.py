"""Wait until a member consumes its share, or has consumed all messages of its queues.

Tests: testing/test_embedded.py.
"""

from __future__ import annotations

from sparrowmq.calling.effects import Now, Operation, Sleep
from sparrowmq.client.arguments import check_milliseconds
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.offsets import max_offset
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.errors import UsageError
from sparrowmq.membership.queue_state import QueueState
from sparrowmq.model import MessageQueue

# The default timeout of the waits.
WAIT_MS = 30_000
# How long entering a consumer waits for its share.
SHARE_WAIT_MS = 10_000
# The pause between two checks of the member.
LOOK_MS = 20


def wait_assigned(subscriber: Subscriber, *, timeout_ms: int) -> Operation[list[MessageQueue]]:
    """Wait until the member has queues and consumes each of them; [] if the time runs out."""
    check_milliseconds("timeout_ms", timeout_ms)
    if subscriber.config.balance == "messages":
        raise UsageError('a consumer with balance="messages" has no queues to wait for')
    now_ms: int = yield Now()
    deadline_ms = now_ms + timeout_ms
    while now_ms < deadline_ms:
        assigned = subscriber.user_queues(subscriber.member.assigned)
        # A topic that was subscribed a moment ago has no share yet.
        if assigned and has_share(subscriber):
            return assigned
        yield Sleep(min(LOOK_MS, deadline_ms - now_ms))
        now_ms = yield Now()
    return []


def wait_share(subscriber: Subscriber) -> Operation[None]:
    """Wait until `has_share`."""
    now_ms: int = yield Now()
    deadline_ms = now_ms + SHARE_WAIT_MS
    while now_ms < deadline_ms and not has_share(subscriber):
        yield Sleep(min(LOOK_MS, deadline_ms - now_ms))
        now_ms = yield Now()


def has_share(subscriber: Subscriber) -> bool:
    """Return whether the member consumes its share, perhaps none, of every topic that there is.

    A member by messages has none. It consumes once its pops are answered.
    """
    if subscriber.config.balance == "messages":
        return bool(subscriber.has_popped)
    # The first heartbeat makes the retry topic, which may be long after the others.
    shared = set(subscriber.subscriptions) - {subscriber.retry_topic} - subscriber.missing_topics
    member = subscriber.member
    return all(member.has_share(topic) for topic in shared) and _is_consuming_all(subscriber)


def _is_consuming_all(subscriber: Subscriber) -> bool:
    member = subscriber.member
    states = {owned.queue: owned.state for owned in member.owned_queues()}
    return all(states.get(queue) is QueueState.CONSUMING for queue in member.assigned)


def wait_idle(subscriber: Subscriber, *, timeout_ms: int) -> Operation[bool]:
    """Wait until all messages that the member's queues have now are consumed and committed.

    A message that is to be delivered again later counts as consumed. A queue that goes to another
    member meanwhile is not waited for.

    Returns: False if the time runs out first.
    Raises: RouteError, TransportError, BrokerError.
    """
    check_milliseconds("timeout_ms", timeout_ms)
    now_ms: int = yield Now()
    deadline_ms = now_ms + timeout_ms
    if not (yield from wait_assigned(subscriber, timeout_ms=timeout_ms)):
        return False
    queues = subscriber.member.assigned
    wait_ms = subscriber.config.times.invoke_timeout_ms
    ends = yield from gather(
        [
            max_offset(subscriber.get_broker_address(queue), queue, timeout_ms=wait_ms)
            for queue in queues
        ],
        name="ends of queues",
    )
    missing = dict(zip(queues, ends, strict=True))
    while True:
        assigned = set(subscriber.member.assigned)
        missing = {
            queue: end
            for queue, end in missing.items()
            if queue in assigned and (subscriber.member.committed_offset(queue) or 0) < end
        }
        now_ms = yield Now()
        if not missing or now_ms >= deadline_ms:
            return not missing
        yield Sleep(min(LOOK_MS, deadline_ms - now_ms))
