"""A push consumer's loop for consumption by messages: pop, call the listener, acknowledge.

The broker has all state: what is in flight, until when, and how often it was tried. The loop pops
no more messages than the listener can take at once, so that none waits here while another member
is idle. It lets the messages in hand be invisible for longer while the listener works, for at most
`consume_timeout_ms`; so a killed consumer delays its messages by `INVISIBLE_MS`, whatever time the
listener needs. A failed message becomes invisible for the delay of its attempt, as in a group that
shares queues. Differs from RocketMQ: Java's consumer pops 32 messages ahead, renews nothing, and
drops a message after 16 attempts.

Source: DefaultMQPushConsumerImpl.popMessage and ConsumeMessagePopConcurrentlyService.java of 5.5.0.
Tests: client/test_consumption_by_messages.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from sparrowmq.calling.effects import (
    CallEach,
    Cancel,
    Join,
    Now,
    Operation,
    Returned,
    Sleep,
    Spawn,
    Task,
    Wait,
)
from sparrowmq.client.directory import Directory
from sparrowmq.client.listener_calls import Handed
from sparrowmq.client.operations.deliver import judge
from sparrowmq.client.operations.member_loop import run_member
from sparrowmq.client.operations.pop import (
    PopSource,
    acknowledge,
    change_invisible,
    receive,
    reject,
)
from sparrowmq.client.operations.send_back import FIRST_RETRY_LEVEL
from sparrowmq.client.operations.trace_reports import trace_consumed, trace_delivery
from sparrowmq.client.subscriber import FirstMessage, RequestFailed, Subscriber
from sparrowmq.errors import SparrowError, TransportError
from sparrowmq.membership.actions import Deliver
from sparrowmq.model import ConsumeContext, MessageExt, MessageQueue
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.message import PROPERTY_POP_CK, Decision
from sparrowmq.protocol.pop_handle import INIT_MAX, INIT_MIN, POP_COUNT_MAX, parse_handle

# DefaultMQPushConsumer.popInvisibleTime.
INVISIBLE_MS = 60_000
# The time is renewed when so much of it is left.
RENEWAL_MS = 30_000
# DefaultMQPushConsumerImpl.BROKER_SUSPEND_MAX_TIME_MILLIS.
POLL_MS = 15_000
# The pause after a failed request. DefaultMQPushConsumerImpl.pullTimeDelayMillsWhenException.
PAUSE_MS = 1_000
# How often a message's end is told to a broker that does not answer.
ATTEMPTS_MAX = 3
# The time between two looks at the messages in hand if nothing happens.
LOOK_MS = 1_000


@dataclass(slots=True, eq=False)
class _Batch:
    """The messages of one call of the listener.

    Args:
        until_ms: the end of their invisibility, at the latest.
    """

    queue: MessageQueue
    messages: list[MessageExt]
    until_ms: int
    # When the listener was called with them; None while they wait.
    begun_ms: int | None = None
    renewal: Task | None = None
    # Whether the listener has returned.
    has_ended: bool = False


@dataclass(slots=True)
class _Popping:
    """The state of the loop."""

    subscriber: Subscriber
    source: PopSource
    waiting: deque[_Batch] = field(default_factory=deque)
    # In the listener's calls, until the broker has heard of their end.
    running: dict[int, _Batch] = field(default_factory=dict)
    pop: Task | None = None


def run_push(subscriber: Subscriber) -> Operation[None]:
    """Run a push consumer, by queues or by messages, until it has left its group."""
    if subscriber.config.balance == "messages":
        return _run(subscriber)
    return run_member(subscriber)


def _run(subscriber: Subscriber) -> Operation[None]:
    config, member, wake = subscriber.config, subscriber.member, subscriber.wake
    directory = Directory(
        name_servers=subscriber.name_servers,
        routes=subscriber.routes,
        timeout_ms=config.times.invoke_timeout_ms,
        namespace=config.namespace,
        client=config.client,
    )
    init_mode = INIT_MIN if config.start == "first" else INIT_MAX
    source = PopSource(directory, config.group, subscriber.subscriptions, init_mode)
    popping = _Popping(subscriber, source)
    while not member.is_leaving and not member.is_done:
        wake.clear()
        now_ms: int = yield Now()
        yield from _renew_due(popping, now_ms)
        if member.is_suspended:
            yield from _give_back(popping)
        else:
            yield from _begin_due(popping, now_ms)
        yield Wait(wake, LOOK_MS)
    yield from _leave(popping)
    member.left()


def _begin_due(popping: _Popping, now_ms: int) -> Operation[None]:
    """Call the listener with the popped messages, and pop more for calls that are free."""
    waiting, running, config = popping.waiting, popping.running, popping.subscriber.config
    while waiting and len(running) < config.consume_thread_count:
        batch = waiting.popleft()
        if now_ms < batch.until_ms:
            running[id(batch)] = batch
            batch.begun_ms = now_ms
            yield Spawn(_consume(popping, batch), f"consume {batch.queue}")
    free = (config.consume_thread_count - len(running)) * config.consume_message_batch_max_size
    if popping.pop is None and popping.source.subscriptions and free > 0 and not waiting:
        popping.pop = yield Spawn(_pop(popping, min(free, POP_COUNT_MAX)), "pop")


def _pop(popping: _Popping, count_max: int) -> Operation[None]:
    subscriber = popping.subscriber
    found: list[MessageExt] = []
    try:
        found = yield from receive(
            popping.source, count_max=count_max, invisible_ms=INVISIBLE_MS, wait_ms=POLL_MS
        )
    except SparrowError as error:
        subscriber.report(RequestFailed("messages to pop", None, error))
        yield Sleep(PAUSE_MS)
    now_ms: int = yield Now()
    if found and not subscriber.counters.pulled:
        subscriber.report(FirstMessage(found[0].queue, found[0]))
    subscriber.counters.pulled += len(found)
    size = subscriber.config.consume_message_batch_max_size
    popping.waiting += [
        _Batch(queue, messages, now_ms + INVISIBLE_MS) for queue, messages in _split(found, size)
    ]
    popping.pop = None
    subscriber.wake.set()


def _split(
    messages: Iterable[MessageExt], size: int
) -> Iterator[tuple[MessageQueue, list[MessageExt]]]:
    # Redelivered messages of Apache's brokers have the queue ids and offsets of a retry topic.
    by_queue: dict[tuple[MessageQueue, str], list[MessageExt]] = {}
    for message in messages:
        mark = parse_handle(message.properties[PROPERTY_POP_CK]).mark
        by_queue.setdefault((message.queue, mark), []).append(message)
    for (queue, _), found in by_queue.items():
        for at in range(0, len(found), size):
            yield queue, found[at : at + size]


# --- the listener and the end of messages -------------------------------------------------------


def _consume(popping: _Popping, batch: _Batch) -> Operation[None]:
    """Call the listener, and tell the broker about each message."""
    subscriber, messages = popping.subscriber, tuple(batch.messages)
    try:
        subscriber.counters.delivered += len(messages)
        context = ConsumeContext(batch.queue, messages=messages)
        call = Handed(Deliver(batch.queue, 0, 0, messages), messages, context)
        returned: deque[Returned] = deque()
        traced = yield from trace_delivery(subscriber.tracer, messages)
        calls = deque([((list(messages), context), call)])
        yield CallEach(subscriber.listener, calls, returned)
        now_ms: int = yield Now()
        judged = judge(subscriber, returned.popleft(), now_ms)
        yield from trace_consumed(traced, judged.code)
        batch.has_ended = True
        if batch.renewal is not None:
            yield Join(batch.renewal, None)
        # A renewal has given the messages new handles.
        for message, decision in judged.decisions(batch.messages):
            yield from _end(popping, message, decision)
    finally:
        del popping.running[id(batch)]
        subscriber.wake.set()


def _end(popping: _Popping, message: MessageExt, decision: Decision) -> Operation[None]:
    """Acknowledge a message, have it come again later, or make it a dead letter."""
    subscriber, source, level = popping.subscriber, popping.source, decision.level
    tell: Callable[[], Operation[object]]
    if level is None:
        tell = partial(acknowledge, source, [message])
    elif not subscriber.comes_again(message, delay_level=level):
        tell = partial(reject, source, message)
    else:
        level = level or FIRST_RETRY_LEVEL + message.reconsume_times
        delay_ms = DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
        tell = partial(change_invisible, source, message, invisible_ms=delay_ms)
    subscriber.counters.sent_back += level is not None
    what = "acknowledgement" if level is None else "return of a message"
    for attempt in range(ATTEMPTS_MAX):
        try:
            yield from tell()
            return
        except SparrowError as error:
            # If all attempts fail, the message comes again at the end of its time.
            subscriber.report(RequestFailed(what, message.queue, error))
            if not isinstance(error, TransportError) or attempt == ATTEMPTS_MAX - 1:
                return
        yield Sleep(PAUSE_MS)


# --- renewals and the end -----------------------------------------------------------------------


def _renew_due(popping: _Popping, now_ms: int) -> Operation[None]:
    """Let the messages in hand be invisible for longer, unless their listener takes too long."""
    timeout_ms = popping.subscriber.config.consume_timeout_ms
    for batch in (*popping.running.values(), *popping.waiting):
        is_late = batch.begun_ms is not None and now_ms - batch.begun_ms > timeout_ms
        is_due = now_ms >= batch.until_ms - RENEWAL_MS and not batch.has_ended and not is_late
        if is_due and (batch.renewal is None or batch.renewal.done):
            batch.renewal = yield Spawn(_renew(popping, batch), f"renew {batch.queue}")


def _renew(popping: _Popping, batch: _Batch) -> Operation[None]:
    now_ms: int = yield Now()
    try:
        for at, message in enumerate(batch.messages):
            batch.messages[at] = yield from change_invisible(
                popping.source, message, invisible_ms=INVISIBLE_MS, is_attempt=False
            )
        batch.until_ms = now_ms + INVISIBLE_MS
    except SparrowError as error:
        popping.subscriber.report(RequestFailed("renewal", batch.queue, error))
        yield Sleep(PAUSE_MS)


def _leave(popping: _Popping) -> Operation[None]:
    """Give waiting messages back at once, and wait for the listener's calls."""
    subscriber = popping.subscriber
    if popping.pop is not None:
        yield Cancel(popping.pop)
    now_ms: int = yield Now()
    deadline_ms = now_ms + subscriber.config.drain_timeout_ms
    yield from _give_back(popping)
    while popping.running and now_ms < deadline_ms and not subscriber.member.is_done:
        subscriber.wake.clear()
        yield Wait(subscriber.wake, min(LOOK_MS, deadline_ms - now_ms))
        now_ms = yield Now()


def _give_back(popping: _Popping) -> Operation[None]:
    """Let other members have the messages that wait for the listener; nothing counts as tried."""
    while popping.waiting:
        batch = popping.waiting.popleft()
        if batch.renewal is not None:
            yield Join(batch.renewal, None)
        # Messages that stay here come again at the end of their time.
        with suppress(SparrowError):
            for message in batch.messages:
                yield from change_invisible(
                    popping.source, message, invisible_ms=0, is_attempt=False
                )
