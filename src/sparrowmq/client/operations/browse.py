"""Read a topic's messages without a group: nothing is joined, nothing is committed.

Each queue has a cursor and at most one pull under way, so that what is held at once is bounded by
an answer for each queue, and a queue that stands still delays no other. Pulls name RocketMQ's group
of tools, which every broker has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparrowmq.calling.effects import Event, Operation, Task, cancel, join, sleep, spawn, wait
from sparrowmq.client.arguments import check_offset, check_queue, check_range
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.administer import (
    get_broker_address,
    get_route,
    queue_offset_at,
)
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.offsets import max_offset, min_offset
from sparrowmq.client.operations.pull import (
    PullReply,
    PullStatus,
    check_records,
    corrected_offset,
    make_pull_header,
    pull,
)
from sparrowmq.errors import TransportError, UsageError
from sparrowmq.model import MessageExt, MessageQueue, MessageSelector
from sparrowmq.model.names import TOOLS_GROUP
from sparrowmq.model.queue import queue_order
from sparrowmq.protocol.bodies import SubscriptionData
from sparrowmq.protocol.record import decode_messages
from sparrowmq.protocol.subscription import EXPRESSION_TYPE_TAG, parse_selection

# Messages asked for at once; Apache's brokers give 32 at most.
PULL_COUNT = 32
# Messages that one call returns at most.
READ_COUNT_MAX = 10_000
# How long a broker may hold a pull while nothing comes, and how long its answer is waited for.
SUSPEND_MS = 15_000
# After a failure of a broker.
RETRY_MS = 1_000


class Start(NamedTuple):
    """Where to begin in each queue: its first message, its end, a time, or so many before its end.

    Exactly one is given.
    """

    is_earliest: bool = False
    is_latest: bool = False
    timestamp_ms: int | None = None
    last_count: int | None = None


class FoundMessages(NamedTuple):
    """What was read: messages by queue, in the order of offsets, and what went wrong, in words."""

    messages: list[MessageExt]
    problems: list[str]


@dataclass(slots=True)
class Cursor:
    """How far one queue is read, and where its reading ends; None if never."""

    queue: MessageQueue
    offset: int
    end: int | None

    @property
    def is_done(self) -> bool:
        """Whether everything up to the end is read."""
        return self.end is not None and self.offset >= self.end


@dataclass(slots=True)
class Browser:
    """Reads a topic on from its cursors.

    Args:
        subscription: which messages.
        cursors: one for each queue.
    """

    subscription: SubscriptionData
    cursors: list[Cursor]
    pulls: dict[MessageQueue, Task] = field(default_factory=dict)
    arrived: Event = field(default_factory=Event)

    @property
    def is_done(self) -> bool:
        """Whether every queue is read to its end."""
        return all(cursor.is_done for cursor in self.cursors)

    def follow(self) -> None:
        """Go on with what comes, wherever the queues ended so far."""
        for cursor in self.cursors:
            cursor.end = None


def open_browser(
    directory: Directory,
    topic: str,
    *,
    start: Start,
    selection: str | MessageSelector = "*",
    queues: Sequence[tuple[str, int]] = (),
) -> Operation[Browser]:
    """Find where to begin, and where each queue ends now, which is where reading ends.

    Args:
        selection: which messages, by tags or by SQL; brokers refuse SQL unless it is enabled.
        queues: only these, by broker name and queue id; all of the topic's by default.

    Raises: TopicRouteNotFound; UsageError for a queue that the topic does not have;
    LocalProtocolError for a wrong expression; TransportError; BrokerError.
    """
    topic = directory.namespace.wrap(topic)
    subscription = parse_selection(topic, selection, sub_version=0)
    route = yield from get_route(directory, topic, is_fresh=True)
    known = {(q.broker_name, q.queue_id): q for q in route.subscribe_queues}
    unknown = sorted(set(queues) - known.keys())
    if unknown:
        raise UsageError(f"topic {topic!r} has no queue {unknown[0][0]}:{unknown[0][1]}")
    chosen = [known[each] for each in queues] if queues else list(known.values())
    cursors = yield from gather(
        [_place_cursor(directory, queue, start) for queue in sorted(chosen, key=queue_order)],
        name=f"cursors of {topic}",
    )
    return Browser(subscription, cursors)


def _place_cursor(directory: Directory, queue: MessageQueue, start: Start) -> Operation[Cursor]:
    address = yield from get_broker_address(directory, queue)
    timeout_ms = directory.timeout_ms
    end = yield from max_offset(address, queue, timeout_ms=timeout_ms)
    if start.is_latest:
        offset = end
    elif start.timestamp_ms is not None:
        plain = directory.namespace.unwrap_queue(queue)
        offset = yield from queue_offset_at(directory, plain, timestamp_ms=start.timestamp_ms)
    else:
        first = yield from min_offset(address, queue, timeout_ms=timeout_ms)
        count = start.last_count
        offset = first if count is None else max(first, end - count)
    return Cursor(queue, offset, end)


def browse(directory: Directory, browser: Browser, *, timeout_ms: int) -> Operation[FoundMessages]:
    """Return what comes next, as soon as one queue has something; nothing if time runs out first.

    Args:
        timeout_ms: how long to wait.

    Raises: TransportError, BrokerError, RemoteProtocolError; a browser that follows goes on after a
    failure of the transport, and reports it as a problem.
    """
    found = FoundMessages([], [])
    browser.arrived.clear()
    for cursor in browser.cursors:
        if not cursor.is_done and cursor.queue not in browser.pulls:
            task = yield from spawn(_pull(directory, browser, cursor), name="browse")
            browser.pulls[cursor.queue] = task
    if browser.pulls and not any(task.done for task in browser.pulls.values()):
        yield from wait(browser.arrived, timeout_ms=timeout_ms)
    for queue in [queue for queue, task in browser.pulls.items() if task.done]:
        part: FoundMessages = yield from join(browser.pulls.pop(queue))
        found.messages.extend(directory.namespace.unwrap_messages(part.messages))
        found.problems.extend(part.problems)
    return found


def close_browser(browser: Browser) -> Operation[None]:
    """Give up the pulls under way."""
    for task in browser.pulls.values():
        yield from cancel(task)
    browser.pulls.clear()


def _pull(directory: Directory, browser: Browser, cursor: Cursor) -> Operation[FoundMessages]:
    try:
        return (yield from _pull_once(directory, browser.subscription, cursor))
    except TransportError as error:
        if cursor.end is not None:
            raise
        yield from sleep(RETRY_MS)
        return FoundMessages([], [str(error)])
    finally:
        browser.arrived.set()


def _pull_once(
    directory: Directory, subscription: SubscriptionData, cursor: Cursor
) -> Operation[FoundMessages]:
    queue, offset = cursor.queue, cursor.offset
    count_max = PULL_COUNT if cursor.end is None else min(PULL_COUNT, cursor.end - offset)
    header = make_pull_header(
        TOOLS_GROUP,
        queue,
        offset=offset,
        count_max=count_max,
        suspend_ms=SUSPEND_MS if cursor.end is None else 0,
        expression=subscription.sub_string,
        expression_type=subscription.expression_type,
    )
    address = yield from get_broker_address(directory, queue)
    timeout_ms = directory.timeout_ms + (SUSPEND_MS if cursor.end is None else 0)
    result = yield from pull(address, header, timeout_ms=timeout_ms)
    if result.status is PullStatus.OFFSET_ILLEGAL:
        cursor.offset = corrected_offset(offset, result)
        return FoundMessages([], [])
    check_records(queue, result, offset=offset)
    if result.status is PullStatus.NO_NEW_MSG and cursor.end is not None:
        # The queue ends before it did: its broker lost what was last.
        cursor.offset = cursor.end
        return FoundMessages([], [])
    cursor.offset = result.next_offset
    return _decode(result, queue, _selects(subscription), end=cursor.end)


def _selects(subscription: SubscriptionData) -> Callable[[MessageExt], bool]:
    """Return what decides whether a message is wanted: brokers compare the hashes of tags only."""
    tags = subscription.tags_set
    if not tags or subscription.expression_type != EXPRESSION_TYPE_TAG:
        return lambda message: True
    return lambda message: message.tags in tags


def _decode(
    result: PullReply,
    queue: MessageQueue,
    is_wanted: Callable[[MessageExt], bool],
    *,
    end: int | None,
) -> FoundMessages:
    found = FoundMessages([], [])
    at = 0
    while at < len(result.records):
        part = decode_messages(result.records, broker_name=queue.broker_name, at=at)
        found.messages.extend(
            m for m in part.messages if is_wanted(m) and (end is None or m.queue_offset < end)
        )
        if part.unreadable is not None:
            message, reason = part.unreadable
            found.problems.append(f"message {message.msg_id} cannot be read: {reason}")
        elif part.fault is not None:
            where = f"{queue.broker_name}:{queue.queue_id} of {queue.topic}"
            found.problems.append(f"a damaged record before {result.next_offset} of {where}")
            return found
        at = part.end
    return found


def read_at(
    directory: Directory, queue: MessageQueue, offset: int, *, count_max: int
) -> Operation[list[MessageExt]]:
    """Return messages of a queue from an offset on, as far as it has them.

    Raises: UsageError for what is no queue or offset; RouteError; TransportError; BrokerError.
    """
    check_offset(offset)
    check_range("count_max", count_max, 1, READ_COUNT_MAX)
    queue = directory.namespace.wrap_queue(check_queue(queue))
    address = yield from get_broker_address(directory, queue)
    end = yield from max_offset(address, queue, timeout_ms=directory.timeout_ms)
    subscription = parse_selection(queue.topic, "*", sub_version=0)
    cursor = Cursor(queue, offset, min(end, offset + count_max))
    found = yield from _read_all(directory, Browser(subscription, [cursor]), count_max)
    return found[:count_max]


def read_since(
    directory: Directory, topic: str, timestamp_ms: int, *, count_max: int
) -> Operation[list[MessageExt]]:
    """Return messages of a topic stored at or after a wall-clock time, the oldest first.

    Raises: TopicRouteNotFound; ConfigError; TransportError; BrokerError.
    """
    check_range("count_max", count_max, 1, READ_COUNT_MAX)
    start = Start(timestamp_ms=timestamp_ms)
    browser = yield from open_browser(directory, topic, start=start)
    # Of each queue so many at most: any queue may have the oldest.
    for cursor in browser.cursors:
        assert cursor.end is not None
        # Brokers answer with the last message where all are older.
        cursor.end = min(cursor.end, cursor.offset + count_max + 1)
    found = yield from _read_all(directory, browser, count_max * len(browser.cursors) + 1)
    recent = [message for message in found if message.store_timestamp_ms >= timestamp_ms]
    recent.sort(key=lambda m: (m.store_timestamp_ms, m.broker_name, m.queue_id, m.queue_offset))
    return recent[:count_max]


def _read_all(
    directory: Directory, browser: Browser, count_max: int
) -> Operation[list[MessageExt]]:
    found: list[MessageExt] = []
    while not browser.is_done and len(found) < count_max:
        part = yield from browse(directory, browser, timeout_ms=directory.timeout_ms)
        if not part.messages and not part.problems and browser.pulls:
            # Nothing came in time.
            break
        found += part.messages
    yield from close_browser(browser)
    return found
