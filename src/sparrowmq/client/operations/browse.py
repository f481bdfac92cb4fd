"""Read a topic's messages without joining a group and without a commit.

Each queue has a cursor and at most one pull under way. The messages in memory are therefore bounded
by one answer for each queue, and an idle queue delays no other queue. Pulls name RocketMQ's group
of tools, which every broker has. Tests: test_browse.py, cli/test_messages.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from sparrowmq.calling.effects import Event, Operation, Task, cancel, join, sleep, spawn, wait
from sparrowmq.client.arguments import check_offset, check_queue
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.administer import queue_offset_at
from sparrowmq.client.operations.gather import gather_outcomes, raise_first
from sparrowmq.client.operations.offsets import max_offset, min_offset
from sparrowmq.client.operations.pull import (
    PullReply,
    PullStatus,
    check_records,
    corrected_offset,
    make_pull_header,
    pull,
)
from sparrowmq.client.operations.routes import check_queues, get_broker_address, get_route
from sparrowmq.config import check_range
from sparrowmq.errors import SparrowError, TransportError
from sparrowmq.model import MessageExt, MessageQueue, MessageSelector
from sparrowmq.model.names import TOOLS_GROUP
from sparrowmq.model.queue import queue_order
from sparrowmq.model.spelling import spell_queue
from sparrowmq.protocol.bodies import SubscriptionData
from sparrowmq.protocol.record import decode_messages
from sparrowmq.protocol.subscription import EXPRESSION_TYPE_TAG, parse_selection

# Messages asked for by one pull; Apache's brokers return at most 32.
PULL_COUNT = 32
# Messages that one call returns at most.
READ_COUNT_MAX = 10_000
# How long a broker may hold a pull that finds nothing, and how long its answer is waited for.
SUSPEND_MS = 15_000
# The pause after a failed pull.
RETRY_MS = 1_000

# The time of storing, the broker, and the position in its log.
Order: TypeAlias = tuple[int, str, int]


class Start(NamedTuple):
    """The start in each queue: the first message, the end, a time, or a number before the end.

    Exactly one field is set.
    """

    is_earliest: bool = False
    is_latest: bool = False
    timestamp_ms: int | None = None
    last_count: int | None = None


class FoundMessages(NamedTuple):
    """The messages read, by queue in the order of offsets, and the problems, as texts."""

    messages: list[MessageExt]
    problems: list[str]


@dataclass(slots=True)
class Cursor:
    """The next offset to read in one queue, and the end at which reading stops; None for no end."""

    queue: MessageQueue
    offset: int
    end: int | None

    @property
    def is_done(self) -> bool:
        """Whether every message up to the end is read."""
        return self.end is not None and self.offset >= self.end


@dataclass(slots=True)
class Browser:
    """Reads a topic on from its cursors.

    Args:
        subscription: the messages to return.
        cursors: one cursor for each queue.
        missing: the errors of the brokers whose queues are left out, by the brokers' names.
        since_ms: the wall-clock time of storing of the first message to return; None for any time.
        problem_count: the problems met so far, such as messages that cannot be read.
    """

    subscription: SubscriptionData
    cursors: list[Cursor]
    missing: Mapping[str, SparrowError] = field(default_factory=dict)
    since_ms: int | None = None
    pulls: dict[MessageQueue, Task] = field(default_factory=dict)
    arrived: Event = field(default_factory=Event)
    problem_count: int = 0

    @property
    def is_done(self) -> bool:
        """Whether every queue is read to its end, and `browse` has returned every answer."""
        return not self.pulls and all(cursor.is_done for cursor in self.cursors)

    def follow(self) -> None:
        """Remove the end of every queue, so that new messages are read as they come."""
        # The clock of a broker may be behind.
        self.since_ms = None
        for cursor in self.cursors:
            cursor.end = None


def open_browser(
    directory: Directory,
    topic: str,
    *,
    start: Start,
    selection: str | MessageSelector = "*",
    queues: Sequence[tuple[str, int]] = (),
    leaves_out: bool = False,
) -> Operation[Browser]:
    """Find each queue's start, and its current end, at which reading ends.

    Args:
        selection: the messages to read, by tags or by SQL; brokers refuse SQL unless it is enabled.
        queues: the queues to read, by broker name and queue id; all queues of the topic by default.
        leaves_out: whether to leave out the queues of brokers that fail, unless all of them do.

    Raises: TopicRouteNotFound; UsageError for a queue that the topic does not have, or a wrong
    expression; TransportError; BrokerError.
    """
    topic = directory.namespace.wrap(topic)
    subscription = parse_selection(topic, selection, sub_version=0)
    route = yield from get_route(directory, topic, is_fresh=True)
    known = {(q.broker_name, q.queue_id): q for q in route.subscribe_queues}
    check_queues(topic, queues, route.subscribe_queues)
    chosen = [known[each] for each in queues] if queues else list(known.values())
    chosen.sort(key=queue_order)
    outcomes = yield from gather_outcomes(
        [_place_cursor(directory, queue, start) for queue in chosen], name=f"cursors of {topic}"
    )
    cursors = [each for each in outcomes if not isinstance(each, SparrowError)]
    missing = {
        queue.broker_name: each
        for queue, each in zip(chosen, outcomes, strict=True)
        if isinstance(each, SparrowError)
    }
    if not (leaves_out and cursors):
        raise_first(missing)
    return Browser(subscription, cursors, missing, start.timestamp_ms)


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
    """Return the next messages as soon as one queue has any; none if the time runs out first.

    Args:
        timeout_ms: how long to wait.

    Raises: TransportError, BrokerError, RemoteProtocolError. A browser that follows does not raise
    TransportError; it reports the failure as a problem and goes on.
    """
    found = FoundMessages([], [])
    failure: SparrowError | None = None
    browser.arrived.clear()
    for cursor in browser.cursors:
        if not cursor.is_done and cursor.queue not in browser.pulls:
            task = yield from spawn(_pull(directory, browser, cursor), name="browse")
            browser.pulls[cursor.queue] = task
    if browser.pulls and not any(task.done for task in browser.pulls.values()):
        yield from wait(browser.arrived, timeout_ms=timeout_ms)
    for queue in [queue for queue, task in browser.pulls.items() if task.done]:
        part: FoundMessages | SparrowError = yield from join(browser.pulls.pop(queue))
        if isinstance(part, SparrowError):
            failure = failure or part
            continue
        found.messages.extend(directory.namespace.unwrap_messages(part.messages))
        found.problems.extend(part.problems)
    browser.problem_count += len(found.problems)
    if failure is not None:
        raise failure
    return found


def close_browser(browser: Browser) -> Operation[None]:
    """Give up the pulls under way."""
    for task in browser.pulls.values():
        yield from cancel(task)
    browser.pulls.clear()


def _pull(
    directory: Directory, browser: Browser, cursor: Cursor
) -> Operation[FoundMessages | SparrowError]:
    # An uncaught error would count as lost: several queues may fail together.
    try:
        return (yield from _pull_once(directory, browser, cursor))
    except SparrowError as error:
        if cursor.end is not None or not isinstance(error, TransportError):
            return error
        yield from sleep(RETRY_MS)
        return FoundMessages([], [str(error)])
    finally:
        browser.arrived.set()


def _pull_once(directory: Directory, browser: Browser, cursor: Cursor) -> Operation[FoundMessages]:
    subscription, queue, offset = browser.subscription, cursor.queue, cursor.offset
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
        # The queue's end has moved back: its broker lost the last messages.
        cursor.offset = cursor.end
        return FoundMessages([], [])
    cursor.offset = result.next_offset
    is_wanted = _make_filter(subscription, browser.since_ms)
    return _decode(result, queue, is_wanted, end=cursor.end)


def make_filter(
    topic: str, tags: str, *, since_ms: int | None = None
) -> Callable[[MessageExt], bool]:
    """Return the function that selects messages by their tags and their time of storing.

    Raises: UsageError for a wrong expression.
    """
    return _make_filter(parse_selection(topic, tags, sub_version=0), since_ms)


def _make_filter(
    subscription: SubscriptionData, since_ms: int | None
) -> Callable[[MessageExt], bool]:
    """Return the function that selects messages.

    Brokers compare only the hashes of tags. Of a time, RocketMQ 4's brokers find the message
    nearest to it, which may be an older one.
    """
    is_by_tag = subscription.expression_type == EXPRESSION_TYPE_TAG
    tags = subscription.tags_set if is_by_tag else None
    return lambda message: (
        (not tags or message.tags in tags)
        and (since_ms is None or message.store_timestamp_ms >= since_ms)
    )


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
            where = f"{spell_queue(queue)} of {queue.topic}"
            found.problems.append(f"a damaged record before {result.next_offset} of {where}")
            return found
        at = part.end
    return found


def read_at(
    directory: Directory, queue: MessageQueue, offset: int, *, count_max: int
) -> Operation[list[MessageExt]]:
    """Return messages of a queue from an offset on, as far as the queue has them.

    Raises: UsageError for a wrong queue or offset; RouteError; TransportError; BrokerError.
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
    # Up to `count_max` messages are read from each queue, since any queue may have the oldest.
    for cursor in browser.cursors:
        assert cursor.end is not None
        # The first one may be too old.
        cursor.end = min(cursor.end, cursor.offset + count_max + 1)
    found = yield from _read_all(directory, browser, (count_max + 1) * len(browser.cursors))
    found.sort(key=storing_order)
    return found[:count_max]


def storing_order(message: MessageExt) -> Order:
    """Return the key that sorts messages as they were stored, also within a millisecond."""
    return message.store_timestamp_ms, message.broker_name, message.commit_log_position


def _read_all(
    directory: Directory, browser: Browser, count_max: int
) -> Operation[list[MessageExt]]:
    """Read to the ends of the queues, or so many messages. Raises: as `browse`."""
    found: list[MessageExt] = []
    while not browser.is_done and len(found) < count_max:
        try:
            # A pull that nobody answers ends with an error of its own.
            part = yield from browse(directory, browser, timeout_ms=directory.timeout_ms)
        except SparrowError:
            yield from close_browser(browser)
            raise
        found += part.messages
    yield from close_browser(browser)
    return found
