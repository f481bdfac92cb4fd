"""A push consumer's loop for consumption by messages: pop, call the listener, acknowledge.

The broker has all state: what is in flight, until when, and how often it was tried. The loop pops
no more messages than the listener can take at once, so that none waits here while another member is
idle; for a quick listener (`client/listener_calls.py`) it pops ahead, by several pops at once while
each finds as many as it may, and gives back what waits for long. It acknowledges messages together
that are done together. It lets the messages in hand be invisible for longer while the listener
works, for at most `consume_timeout_ms`; so a killed consumer delays its messages by `INVISIBLE_MS`,
whatever time the listener needs. A failed message becomes invisible for the delay of its attempt,
as in a group that shares queues. Differs from RocketMQ: Java's consumer pops 32 messages ahead,
renews nothing, and drops a message after 16 attempts.

Source: DefaultMQPushConsumerImpl.popMessage and ConsumeMessagePopConcurrentlyService.java of 5.5.0.
Tests: test_pop.py, client/test_consumption_by_messages.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from sparrowmq.calling.effects import (
    Cancel,
    Join,
    Now,
    Operation,
    Sleep,
    Spawn,
    Task,
    Wait,
)
from sparrowmq.client.directory import Directory
from sparrowmq.client.listener_calls import Ended, Handed
from sparrowmq.client.operations.deliver import Judged, call_listener, judge, note_done
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.member_loop import run_member
from sparrowmq.client.operations.pop import (
    PopSource,
    acknowledge,
    change_invisible,
    give_back,
    put_dead_letter,
    receive,
)
from sparrowmq.client.operations.send_back import FIRST_RETRY_LEVEL
from sparrowmq.client.subscriber import FirstMessage, GivenUp, RequestFailed, Subscriber
from sparrowmq.errors import BrokerError, SparrowError, TopicRouteNotFound, TransportError
from sparrowmq.membership.actions import Deliver
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.message import PROPERTY_POP_CK, Decision
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.pop_handle import INIT_MAX, INIT_MIN, POP_COUNT_MAX, parse_handle
from sparrowmq.protocol.trace import ConsumedCode

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
# How long messages wait here for the listener before other members may have them.
WAITING_MS_MAX = 1_000
# The pops under way at once for a quick listener; so many messages more it may have.
POPS_MAX = 8
# So many messages may be done without being acknowledged before no more are popped.
UNACKNOWLEDGED_MAX = 1_024
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
    popped_ms: int
    # When they were handed to the listener's calls; None while they wait.
    begun_ms: int | None = None
    renewal: Task | None = None


@dataclass(slots=True)
class _Popping:
    """The state of the loop."""

    subscriber: Subscriber
    source: PopSource
    waiting: deque[_Batch] = field(default_factory=deque)
    # Handed to the listener's calls, by the identity of the delivery that names them.
    handed: dict[int, tuple[Deliver, _Batch]] = field(default_factory=dict)
    # Done, and not acknowledged; the last acknowledgement, and the messages of its request.
    done: list[MessageExt] = field(default_factory=list)
    acking: Task | None = None
    acking_count: int = 0
    # Calls whose messages do not all end alike; and what ends batches or gives them back.
    settled: list[tuple[_Batch, Judged]] = field(default_factory=list)
    endings: list[Task] = field(default_factory=list)
    # The pops under way, perhaps ended ones too; and whether the last one found all that it asked.
    pops: list[Task] = field(default_factory=list)
    is_behind: bool = False

    @property
    def is_acking(self) -> bool:
        """Whether an acknowledgement is under way."""
        return self.acking is not None and not self.acking.done

    @property
    def has_open_ends(self) -> bool:
        """Whether the listener has messages, or the broker does not know their end."""
        is_ending = self.is_acking or not all(task.done for task in self.endings)
        return bool(self.handed or self.done or self.settled or is_ending)

    @property
    def handed_ms(self) -> int | None:
        """When the messages were handed over that the listener has had for longest."""
        # The first are the oldest.
        return next((batch.begun_ms for _, batch in self.handed.values()), None)

    def take_waiting(self, popped_until_ms: int) -> list[_Batch]:
        """Take waiting messages that were popped until an instant, for `_give_back`."""
        taken = [batch for batch in self.waiting if batch.popped_ms <= popped_until_ms]
        if taken:
            self.waiting = deque(b for b in self.waiting if b.popped_ms > popped_until_ms)
        return taken


def push_loop(subscriber: Subscriber) -> Callable[[], Operation[None]]:
    """Return what runs a push consumer, by queues or by messages, until it has left its group.

    If a run fails, the next one goes on with the messages in hand.
    """
    if subscriber.config.balance == "messages":
        return partial(_run, _Popping(subscriber, _source_of(subscriber)))
    return partial(run_member, subscriber)


def _source_of(subscriber: Subscriber) -> PopSource:
    config = subscriber.config
    directory = Directory(
        name_servers=subscriber.name_servers,
        routes=subscriber.routes,
        timeout_ms=config.times.invoke_timeout_ms,
        namespace=config.namespace,
        client=config.client,
    )
    init_mode = INIT_MIN if config.start == "first" else INIT_MAX
    return PopSource(directory, config.group, subscriber.subscriptions, init_mode)


def _run(popping: _Popping) -> Operation[None]:
    subscriber = popping.subscriber
    member, wake, calls = subscriber.member, subscriber.wake, subscriber.listener_calls
    while not member.is_leaving and not member.is_done:
        wake.clear()
        now_ms: int = yield Now()
        yield from _settle_ended(popping, now_ms)
        _take_back(popping, now_ms)
        yield from _renew_due(popping, now_ms)
        yield from _end_former_pops(popping)
        if not member.is_suspended:
            yield from _begin_due(popping, now_ms)
        popped_until_ms = now_ms if member.is_suspended else now_ms - WAITING_MS_MAX
        if old := popping.take_waiting(popped_until_ms):
            popping.endings.append((yield Spawn(_give_back(popping, old), "give messages back")))
        subscriber.handed_ms = popping.handed_ms
        due_ms = calls.next_due_ms(now_ms)
        yield Wait(wake, LOOK_MS if due_ms is None else max(0, due_ms - now_ms))
    yield from _leave(popping)
    member.left()


def _end_former_pops(popping: _Popping) -> Operation[None]:
    """End pops that may wait with a topic's former expression; others take their places.

    They still wait at their brokers, and what they find there is given back. What they pass over
    there is lost: SparrowMQ's broker ends them once it has the next heartbeat, RocketMQ's does not.
    """
    if not popping.subscriber.resubscribed:
        return
    popping.subscriber.resubscribed.clear()
    for task in popping.pops:
        yield Cancel(task)
    popping.pops.clear()


def _begin_due(popping: _Popping, now_ms: int) -> Operation[None]:
    """Hand popped messages to the listener's calls, and pop more for calls that are free."""
    waiting, handed, subscriber = popping.waiting, popping.handed, popping.subscriber
    config, calls = subscriber.config, subscriber.listener_calls
    count_max = config.consume_thread_count + calls.ahead_max
    while waiting and len(handed) < count_max:
        batch = waiting.popleft()
        if now_ms < batch.until_ms:
            batch.begun_ms, messages = now_ms, tuple(batch.messages)
            subscriber.counters.note_delivered(len(messages))
            delivery = Deliver(batch.queue, 0, 0, (messages,))
            handed[id(delivery)] = delivery, batch
            calls.add(Handed.of(delivery, batch.queue, delivery.batches))
    task_count = calls.begin_tasks(
        now_ms, call_count=len(handed), task_count_max=config.consume_thread_count
    )
    for _ in range(task_count):
        yield Spawn(call_listener(subscriber, partial(_settle, popping)), "calls of the listener")
    size = config.consume_message_batch_max_size
    acking_count = popping.acking_count if popping.is_acking else 0
    has_room = len(popping.done) + acking_count < UNACKNOWLEDGED_MAX
    if not has_room or waiting or not popping.source.subscriptions:
        return
    pops = popping.pops = [task for task in popping.pops if not task.done]
    if calls.ahead_max:
        # A quick listener gets the next messages while it has these.
        held = len(handed) * size + len(pops) * POP_COUNT_MAX
        pops_max = POPS_MAX if popping.is_behind else 1
        count = min(pops_max - len(pops), POPS_MAX - held // POP_COUNT_MAX)
        asked = POP_COUNT_MAX
    else:
        asked = min((config.consume_thread_count - len(handed)) * size, POP_COUNT_MAX)
        count = 1 if asked > 0 and not pops else 0
    for _ in range(count):
        pops.append((yield Spawn(_pop(popping, asked), "pop")))


def _take_back(popping: _Popping, now_ms: int) -> None:
    """Let messages wait here again whose calls cannot begin soon."""
    member, calls = popping.subscriber.member, popping.subscriber.listener_calls
    is_suspended = member.is_suspended or member.is_leaving
    for delivery, _ in calls.take_back(now_ms, is_suspended=is_suspended):
        _, batch = popping.handed.pop(id(delivery))
        popping.subscriber.counters.note_taken_back(len(batch.messages))
        batch.begun_ms = None
        popping.waiting.appendleft(batch)


def _pop(popping: _Popping, count_max: int) -> Operation[None]:
    subscriber = popping.subscriber
    found: list[MessageExt] = []
    # The first answer comes at once: who waits for it may send messages then, also to a new group
    # that begins at the end.
    wait_ms = POLL_MS if subscriber.has_popped else 0
    try:
        found = yield from receive(
            popping.source, count_max=count_max, invisible_ms=INVISIBLE_MS, wait_ms=wait_ms
        )
        subscriber.has_popped = True
        for topic, missing in popping.source.missing.items():
            subscriber.report(RequestFailed(f"route of {topic}", None, missing))
    except SparrowError as error:
        # Topics that do not exist yet are not waited for.
        subscriber.has_popped = isinstance(error, TopicRouteNotFound)
        subscriber.report(RequestFailed("messages to pop", None, error))
        yield Sleep(PAUSE_MS)
    now_ms: int = yield Now()
    if found and not subscriber.counters.pulled:
        subscriber.report(FirstMessage(found[0].queue, found[0]))
    subscriber.counters.pulled += len(found)
    size = subscriber.config.consume_message_batch_max_size
    popping.waiting += [
        _Batch(queue, messages, now_ms + INVISIBLE_MS, now_ms)
        for queue, messages in _split(found, size)
    ]
    popping.is_behind = len(found) == count_max
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


def _settle_ended(popping: _Popping, now_ms: int) -> Operation[None]:
    """End the messages of calls that have ended: all that are done by one request."""
    for ended in popping.subscriber.listener_calls.take_ended():
        _settle(popping, ended, now_ms)
    popping.endings = [task for task in popping.endings if not task.done]
    for batch, judged in popping.settled:
        ending = _return_failed(popping, batch, judged)
        popping.endings.append((yield Spawn(ending, f"end of {batch.queue}")))
    popping.settled.clear()
    if popping.done and not popping.is_acking:
        popping.acking = yield Spawn(_acknowledge_done(popping), "acknowledgements")


def _settle(popping: _Popping, ended: Ended, now_ms: int) -> ConsumedCode:
    """Take the result of a delivery's one call of the listener."""
    subscriber, delivery = popping.subscriber, ended.handed.delivery
    _, batch = popping.handed.pop(id(delivery))
    judged = Judged(len(batch.messages), 0, {}, ConsumedCode.SUCCESS)
    if ended.done:
        note_done(subscriber, ended, len(batch.messages), now_ms)
    for returned in ended.others:
        judged = judge(subscriber, delivery, returned, now_ms)
    if judged.acked_count == len(batch.messages) and not judged.decided and batch.renewal is None:
        popping.done += batch.messages
    else:
        popping.settled.append((batch, judged))
    return judged.code


def _acknowledge_done(popping: _Popping) -> Operation[None]:
    """Acknowledge messages that are done; those that are done meanwhile are the next requests."""
    while popping.done:
        messages, popping.done = popping.done, []
        popping.acking_count = len(messages)
        # A broker that does not answer is asked again; the others are not.
        of_brokers: dict[str, list[MessageExt]] = {}
        for message in messages:
            of_brokers.setdefault(message.broker_name, []).append(message)
        telling = [
            _tell(popping, each[0], partial(acknowledge, popping.source, each))
            for each in of_brokers.values()
        ]
        yield from gather(telling, name="acknowledgements")
    popping.subscriber.wake.set()


def _return_failed(popping: _Popping, batch: _Batch, judged: Judged) -> Operation[None]:
    """End the messages of a call one by one."""
    if batch.renewal is not None:
        yield Join(batch.renewal, None)
    # A renewal has given the messages new handles.
    for message, decision in judged.decisions(batch.messages):
        yield from _end(popping, message, decision)
    popping.subscriber.wake.set()


def _end(popping: _Popping, message: MessageExt, decision: Decision) -> Operation[None]:
    """Acknowledge a message, have it come again later, or make it a dead letter."""
    subscriber, source, level = popping.subscriber, popping.source, decision.level
    if level is None:
        popping.done.append(message)
        return
    subscriber.counters.sent_back += 1
    if not subscriber.comes_again(message, delay_level=level):
        put = partial(put_dead_letter, source, message)
        # Its acknowledgement is repeated by itself, so that there is one dead letter.
        if (yield from _tell(popping, message, put, what="dead letter")):
            subscriber.report(GivenUp(message.queue, (message,), is_broadcasting=False))
            popping.done.append(message)
        return
    level = level or FIRST_RETRY_LEVEL + message.reconsume_times
    delay_ms = DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1]
    change = partial(change_invisible, source, message, invisible_ms=delay_ms)
    yield from _tell(popping, message, change, what="return of a message")


def _tell(
    popping: _Popping,
    message: MessageExt,
    tell: Callable[[], Operation[object]],
    *,
    what: str = "acknowledgement",
) -> Operation[bool]:
    """Tell the broker the end of messages, of which one is named in reports.

    Returns: whether it has confirmed it. If not, the message comes again at the end of its time.
    """
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            yield Sleep(PAUSE_MS)
        try:
            yield from tell()
            return True
        except SparrowError as error:
            popping.subscriber.report(RequestFailed(what, message.queue, error))
            if not isinstance(error, TransportError):
                break
    return False


# --- renewals and the end -----------------------------------------------------------------------


def _renew_due(popping: _Popping, now_ms: int) -> Operation[None]:
    """Let the messages in hand be invisible for longer, unless their listener takes too long."""
    timeout_ms = popping.subscriber.config.consume_timeout_ms
    for batch in (*(batch for _, batch in popping.handed.values()), *popping.waiting):
        is_late = batch.begun_ms is not None and now_ms - batch.begun_ms > timeout_ms
        is_due = now_ms >= batch.until_ms - RENEWAL_MS and not is_late
        if is_due and (batch.renewal is None or batch.renewal.done):
            batch.renewal = yield Spawn(_renew(popping, batch), f"renew {batch.queue}")


def _renew(popping: _Popping, batch: _Batch) -> Operation[None]:
    now_ms: int = yield Now()
    # What a listener has is tried: a message whose work ends its process becomes a dead letter.
    is_tried = batch.begun_ms is not None
    try:
        for at, message in enumerate(batch.messages):
            try:
                batch.messages[at] = yield from change_invisible(
                    popping.source, message, invisible_ms=INVISIBLE_MS, is_attempt=is_tried
                )
            except BrokerError as error:
                # The handle is void if the answer to the last change was lost. The acknowledgement
                # will say so; others of the call are renewed.
                if error.code != ResponseCode.NO_MESSAGE:
                    raise
        batch.until_ms = now_ms + INVISIBLE_MS
    except SparrowError as error:
        popping.subscriber.report(RequestFailed("renewal", batch.queue, error))
        yield Sleep(PAUSE_MS)


def _leave(popping: _Popping) -> Operation[None]:
    """Give waiting messages back at once, and wait for the listener's calls."""
    subscriber = popping.subscriber
    for task in popping.pops:
        if popping.is_behind and not task.done:
            # The broker answers at once, and what it pops is to be given back.
            try:
                yield Join(task, PAUSE_MS)
            except SparrowError:
                # If it does not, closing has no time to wait for each.
                popping.is_behind = False
        yield Cancel(task)
    now_ms: int = yield Now()
    deadline_ms = now_ms + subscriber.config.drain_timeout_ms
    _take_back(popping, now_ms)
    # The acknowledgements of what is done do not wait for a broker that does not answer.
    returning = _give_back(popping, popping.take_waiting(now_ms))
    popping.endings.append((yield Spawn(returning, "give messages back")))
    while now_ms < deadline_ms and not subscriber.member.is_done:
        subscriber.wake.clear()
        yield from _settle_ended(popping, now_ms)
        if not popping.has_open_ends:
            return
        yield from _renew_due(popping, now_ms)
        yield Wait(subscriber.wake, min(LOOK_MS, deadline_ms - now_ms))
        now_ms = yield Now()


def _give_back(popping: _Popping, batches: list[_Batch]) -> Operation[None]:
    """Let other members have messages that wait for the listener."""
    for batch in batches:
        if batch.renewal is not None:
            yield Join(batch.renewal, None)
    # A renewal has given the messages new handles.
    yield from give_back(popping.source, [each for batch in batches for each in batch.messages])
    popping.subscriber.wake.set()
