"""The pages of messages and dead letters: to browse, to search, to follow, to send again.

Tests: test_message_pages.py, test_cluster_pages.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple
from urllib.parse import quote, urlencode

from starlette.responses import Response

from sparrowmq.calling.clock import monotonic_ms, timestamp_ms
from sparrowmq.client.operations.administer import committed_offset, look_for_messages, view_message
from sparrowmq.client.operations.browse import (
    Browser,
    Order,
    Start,
    browse,
    close_browser,
    make_filter,
    open_browser,
    storing_order,
)
from sparrowmq.client.operations.dead_letters import list_dead_letters
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.message_trace import TraceStep, message_trace
from sparrowmq.client.operations.resend import Place, Resend, find_resends, place_of
from sparrowmq.dash.tables import Cell, PageTable, TableColumn, describe_missing
from sparrowmq.dash.watcher import Watcher
from sparrowmq.dash.web import (
    FOLLOWED,
    Site,
    View,
    Visit,
    group_href,
    letters_href,
    messages_href,
)
from sparrowmq.errors import SparrowError, TopicRouteNotFound, UsageError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import RESERVED_PROPERTIES
from sparrowmq.model.names import check_group, check_topic, dlq_topic
from sparrowmq.model.spelling import parse_queue, parse_time, spell_queue
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.words.body import BODY_BYTES_MAX, decode_beginning, json_parts
from sparrowmq.words.catalog import Words

# The messages of one page.
COUNT = 50
# A page reads about so many messages of all queues together, and searches so many.
_READ_MAX, SEARCHED_MAX = 800, 10_000
# A search by key finds so many messages of each broker, the newest; brokers answer with no more.
FOUND_MAX = 64
# The longest time that a page reads.
_READ_TIMEOUT_MS = 5_000
# The groups that a message's page asks for, besides those that are watched anyway.
_GROUPS_ASKED_MAX = 32
# The characters shown of a key or property. A message's own page links to the whole body.
_LINE_LENGTH = 120
_HEX_WIDTH = 16
# The characters of JSON on lines.
_JSON_LENGTH_MAX = 4 * BODY_BYTES_MAX


class Read(NamedTuple):
    """The messages read, and the problems met, in words.

    Args:
        searched: the messages at the end of each queue that were searched; None if the page did
            not search from the end.
        rest: the queues that were not read to their end, and the offset where each goes on.
    """

    messages: list[MessageExt]
    problems: list[str]
    searched: int | None = None
    rest: tuple[tuple[MessageQueue, int], ...] = ()


class _Asked(NamedTuple):
    """What a page is asked for, besides a key: fields that select together."""

    queues: list[tuple[str, int]]
    offset: int | None
    since_ms: int | None
    tags: str
    text: str

    def selects(self, topic: str) -> Callable[[MessageExt], bool]:
        """Return the function that selects messages. Raises: UsageError for wrong tags."""
        has_tag = make_filter(topic, self.tags, since_ms=self.since_ms)
        has_text, first = text_filter(self.text), self.offset or 0
        return lambda message: (
            (not self.queues or _queue_of(message) in self.queues)
            and message.queue_offset >= first
            and has_tag(message)
            and has_text(message)
        )


async def show_messages(watcher: Watcher, visit: Visit) -> View:
    """Browse, search or follow a topic's messages. Raises: SparrowError."""
    query = visit.query
    topic = query.get("topic", "").strip()
    if not topic:
        return _messages_view(watcher, visit, topic="", read=Read([], []))
    check_topic(topic)
    wanted, asked = query.get("key", "").strip(), _parse_asked(query)
    if wanted:
        read = await _search(watcher, topic, wanted, asked)
    else:
        read = await _browse(watcher, topic, asked)
    return _messages_view(watcher, visit, topic=topic, read=read)


async def _search(watcher: Watcher, topic: str, wanted: str, asked: _Asked) -> Read:
    """Return the messages with a key or an id that the other fields select too."""
    run, directory, is_wanted = watcher.driver.run, watcher.directory, asked.selects(topic)
    operation = look_for_messages(
        directory,
        topic,
        wanted,
        count_max=FOUND_MAX,
        begin_timestamp_ms=asked.since_ms or 0,
    )
    found, failures = await run(operation)
    if not found:
        one = await run(view_message(directory, topic, wanted))
        found = [] if one is None else [one]
    found = [message for message in found if is_wanted(message)]
    starts = asked.offset is not None or asked.since_ms is not None
    return Read(found if starts else found[::-1], describe_missing(failures))


def _parse_asked(query: Mapping[str, str]) -> _Asked:
    """Read the fields of the page's form. Raises: UsageError."""
    queues = [parse_queue(query["queue"])] if query.get("queue") else []
    offset, since = query.get("offset", "").strip(), query.get("from", "").strip()
    if offset and not queues:
        raise UsageError("an offset is one of a queue: name the queue, such as broker-a:3")
    return _Asked(
        queues=queues,
        offset=_read_offset(offset) if offset else None,
        since_ms=parse_time(since, now_timestamp_ms=timestamp_ms()) if since else None,
        tags=query.get("tag", "").strip() or "*",
        text=query.get("text", ""),
    )


def _read_offset(text: str) -> int:
    offset = read_whole_number(text)
    if offset is None:
        raise UsageError(f"{text!r} is not an offset; write a number from 0")
    return offset


async def _browse(watcher: Watcher, topic: str, asked: _Asked) -> Read:
    queues, offset, since_ms, tags, text = asked
    if offset is not None:
        start = Start(is_earliest=True)
        return await read_messages(
            watcher, topic, start, queues, tags=tags, text=text, offset=offset
        )
    if since_ms is not None:
        start = Start(timestamp_ms=since_ms)
        return await read_messages(watcher, topic, start, queues, tags=tags, text=text)
    known = {each.topic: each.queue_count for each in watcher.seen_topics}
    queue_count = 1 if queues else known.get(topic) or 1
    searched = max(COUNT, SEARCHED_MAX // queue_count) if text or tags != "*" else None
    count = searched or min(COUNT, 1 + _READ_MAX // queue_count)
    start = Start(last_count=count)
    read = await read_messages(watcher, topic, start, queues, tags=tags, text=text)
    newest = read.messages[-COUNT:]
    counts = Counter(map(_queue_of, newest))
    # Before these messages of a queue there may be others that are as new.
    full = [queue for queue, number in counts.items() if number == count < COUNT]
    if full:
        more = await read_messages(watcher, topic, Start(last_count=COUNT), full)
        others = [m for m in newest if _queue_of(m) not in full]
        newest = sorted([*others, *more.messages], key=storing_order)[-COUNT:]
        problems = [*read.problems, *more.problems]
        read = read._replace(problems=problems, rest=(*read.rest, *more.rest))
    return read._replace(messages=newest[::-1], searched=searched)


def text_filter(text: str) -> Callable[[MessageExt], bool]:
    """Return the function that finds a text in a body, a key, a tag or a user's property.

    A body of JSON may have the text with escapes. An id is found only whole: a number
    stands in many.
    """
    text = text.strip()
    needles = {text.encode(), json.dumps(text)[1:-1].encode()}
    return lambda message: (
        any(needle in message.body for needle in needles)
        or any(text in each for each in (*message.keys, message.tags or ""))
        or any(text in v for n, v in message.properties.items() if n not in RESERVED_PROPERTIES)
        or text in (message.msg_id, message.offset_msg_id)
    )


async def read_messages(
    watcher: Watcher,
    topic: str,
    start: Start,
    queues: Sequence[tuple[str, int]],
    *,
    tags: str = "*",
    text: str = "",
    offset: int | None = None,
    count: int = COUNT,
) -> Read:
    """Read messages in the order of storing, for at most `_READ_TIMEOUT_MS`.

    Args:
        start: the start in each queue.
        queues: the broker name and id of each queue to read.
        tags: a subscription expression; `*` takes all messages.
        text: a text that the messages have, as `text_filter` finds it.
        offset: the start in the only queue of `queues`.
        count: the number of messages to read from a time or an offset on.

    Raises: SparrowError.
    """
    run, directory = watcher.driver.run, watcher.directory
    operation = open_browser(
        directory, topic, start=start, selection=tags, queues=queues, leaves_out=True
    )
    browser = await run(operation)
    if offset is not None:
        browser.cursors[0].offset = offset
    read, has_text = Read([], describe_missing(browser.missing)), text_filter(text)
    until_ms, examined = monotonic_ms() + _READ_TIMEOUT_MS, 0
    newest: dict[tuple[str, int], Order] = {}
    # An answer that is not taken yet may have moved its cursor.
    reached = {cursor.queue: cursor.offset for cursor in browser.cursors}
    try:
        while not browser.is_done and examined < SEARCHED_MAX:
            if (left_ms := until_ms - monotonic_ms()) <= 0:
                break
            found = await run(browse(directory, browser, timeout_ms=left_ms))
            examined += len(found.messages)
            newest |= {_queue_of(m): storing_order(m) for m in found.messages}
            reached |= {c.queue: c.offset for c in browser.cursors if c.queue not in browser.pulls}
            read.messages.extend(m for m in found.messages if has_text(m))
            read.messages.sort(key=storing_order)
            read.problems.extend(found.problems)
            if start.last_count is None and len(read.messages) >= count:
                del read.messages[count:]
                _end_queues(browser, newest, storing_order(read.messages[-1]))
    finally:
        await run(close_browser(browser))
    ends = {cursor.queue: cursor.end or 0 for cursor in browser.cursors}
    return read._replace(rest=tuple((q, at) for q, at in reached.items() if at < ends[q]))


def _end_queues(browser: Browser, newest: Mapping[tuple[str, int], Order], last: Order) -> None:
    """Read no further in queues that have no message before the last one of the page.

    Args:
        newest: the newest message read of each queue, by broker and queue id.
    """
    for cursor in browser.cursors:
        found = newest.get((cursor.queue.broker_name, cursor.queue.queue_id))
        if found is not None and found >= last:
            cursor.end = cursor.offset


def _queue_of(message: MessageExt) -> tuple[str, int]:
    """Return the broker and the id of a message's queue."""
    return message.broker_name, message.queue_id


def message_href(message: MessageExt) -> str:
    """Return the URL of a message's page."""
    parts = (message.topic, message.broker_name, message.queue_id, message.queue_offset)
    return "/messages/" + "/".join(quote(str(part), safe="") for part in parts)


def _messages_view(watcher: Watcher, visit: Visit, *, topic: str, read: Read) -> View:
    topics = sorted(each.topic for each in watcher.seen_topics if not each.is_internal)
    follows = visit.query.get("follow") == "yes" and bool(topic)
    return View(
        template="messages.html",
        title="Messages",
        tables=(_message_table(read.messages),),
        news=FOLLOWED if follows else None,
        problems=_problems(read, visit.words),
        context={
            "topic": topic,
            "topics": topics,
            "follows": follows,
            "searched": read.searched,
            "found_max": FOUND_MAX,
            "rest": _rest_links(topic, visit.query, read),
            "asked": {
                name: visit.query.get(name, "").strip()
                for name in ("queue", "offset", "from", "key", "tag", "text")
            },
        },
    )


def _problems(read: Read, words: Words) -> list[str]:
    """Say why messages may be missing from a page."""
    stopped = words(
        "The search has stopped before its end; each link goes on in a queue where it stopped."
    )
    return [*read.problems[:5], *([stopped] if read.rest else [])]


def _rest_links(topic: str, query: Mapping[str, str], read: Read) -> list[tuple[str, str]]:
    """Return the places where a search has stopped, and the URLs that go on there."""
    kept = {name: query[name] for name in ("tag", "text") if query.get(name)}
    return [
        (f"{place}@{offset}", messages_href(topic, queue=place, offset=str(offset), **kept))
        for place, offset in ((spell_queue(queue), offset) for queue, offset in read.rest)
    ]


def _message_table(messages: Sequence[MessageExt]) -> PageTable:
    return PageTable(
        name="messages",
        title="Messages",
        columns=(
            TableColumn("stored_ms", "stored", "time"),
            TableColumn("queue", "queue"),
            TableColumn("offset", "offset", "number"),
            TableColumn("tag", "tag"),
            TableColumn("keys", "keys", "prose"),
            TableColumn("body", "body", "prose"),
            TableColumn("bytes", "bytes", "number"),
            TableColumn("again", "consumed again", "number"),
            TableColumn("id", "id"),
        ),
        rows=[
            [
                Cell(message.store_timestamp_ms, message_href(message)),
                Cell(spell_queue(message)),
                Cell(message.queue_offset),
                Cell(shorten(message.tags or "") or None),
                Cell(shorten(" ".join(message.keys)) or None),
                Cell(preview(message.body)),
                Cell(len(message.body)),
                Cell(message.reconsume_times),
                Cell(message.msg_id),
            ]
            for message in messages
        ],
        empty="There is no message.",
    )


def preview(body: bytes) -> str:
    """Return the beginning of a body as one line of text, or of hex."""
    # A character has at most four bytes.
    bytes_max = 4 * _LINE_LENGTH + 4
    text, _ = decode_beginning(body, bytes_max)
    return shorten(body[:bytes_max].hex(" ") if text is None else " ".join(text.split()))


class Body(NamedTuple):
    """A body for people; `kind` is json, text or hex; `is_whole` is False for a beginning."""

    kind: str
    text: str
    is_whole: bool


def describe_body(body: bytes) -> Body:
    """Write at most the first 64 KiB of a body as JSON, as text, or as hex.

    JSON that lines would make too long, because it nests deep, is text.
    """
    text, is_whole = decode_beginning(body)
    if is_whole and (lines := _write_json(body)) is not None:
        return Body("json", lines, True)
    if text is None or any(ord(sign) < 32 and sign not in "\t\r\n" for sign in text):
        return Body("hex", _dump(body[:BODY_BYTES_MAX]), is_whole)
    return Body("text", text, is_whole)


def _write_json(body: bytes) -> str | None:
    """Write JSON on indented lines; None for what is not JSON, or would take too much room."""
    parts: list[str] = []
    size = 0
    try:
        for part in _indent(json_parts(body)):
            parts.append(part)
            size += len(part)
            if size > _JSON_LENGTH_MAX:
                return None
    except (ValueError, RecursionError):
        return None
    return "".join(parts)


def _indent(parts: Iterable[str]) -> Iterator[str]:
    """Break JSON into lines, one for each value, two blanks deeper in each object and list."""
    depth, before = 0, ""
    for part in parts:
        if is_end := part in ("}", "]"):
            depth -= 1
        is_empty = is_end and before in ("{", "[")
        if (is_end or before in ("{", "[", ",")) and not is_empty:
            yield f"\n{'  ' * depth}"
        yield ": " if part == ":" else part
        if part in ("{", "["):
            depth += 1
        before = part


def _dump(part: bytes) -> str:
    lines = []
    for start in range(0, len(part), _HEX_WIDTH):
        some = part[start : start + _HEX_WIDTH]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{start:08x}  {some.hex(' '):<{3 * _HEX_WIDTH}} {text}")
    return "\n".join(lines)


def shorten(text: str) -> str:
    """Return at most `_LINE_LENGTH` characters of a text, with `·` for each invisible one."""
    shown = "".join(sign if sign.isprintable() else "·" for sign in text[: _LINE_LENGTH + 1])
    return shown if len(text) <= _LINE_LENGTH else f"{shown[:_LINE_LENGTH]}…"


async def show_message(watcher: Watcher, visit: Visit) -> View | Response:
    """Show one message, or return its body as a file. Raises: SparrowError."""
    message = await find_message(watcher, visit.request.path_params)
    if visit.query.get("format") == "body":
        return Response(
            message.body,
            media_type="application/octet-stream",
            headers={"content-disposition": 'attachment; filename="message.bin"'},
        )
    table = PageTable(
        name="properties",
        title="Properties",
        columns=(TableColumn("name", "name"), TableColumn("value", "value", "prose")),
        rows=[
            [Cell(shorten(name)), Cell(_cut(value))]
            for name, value in sorted(message.properties.items())
        ],
        empty="The message has no properties.",
    )
    trace = PageTable(
        name="trace",
        title="Trace",
        columns=(
            TableColumn("at", "at", "time"),
            TableColumn("what", "what"),
            TableColumn("group", "group"),
            TableColumn("client", "client"),
            TableColumn("cost_ms", "took", "duration"),
            TableColumn("outcome", "outcome"),
            TableColumn("reconsume_times", "earlier deliveries", "number"),
        ),
        rows=[
            [
                Cell(step.timestamp_ms),
                Cell(visit.words(step.what)),
                Cell(
                    shorten(step.group), group_href(step.group) if step.what == "consumed" else ""
                ),
                Cell(step.client),
                Cell(step.cost_ms),
                Cell(step.outcome, tone="" if step.outcome in ("", "SUCCESS") else "warn"),
                Cell(step.reconsume_times),
            ]
            for step in await _trace(watcher, message.msg_id)
        ],
        empty="There is no trace: producers and consumers trace only with trace on.",
    )
    return View(
        template="message.html",
        title="Message",
        tables=(table, trace, await _consumer_table(watcher, visit, message)),
        news=None,
        context={
            "message": message,
            "send_href": f"{message_href(message)}/send",
            "body": describe_body(message.body),
            "keys": [shorten(key) for key in message.keys],
            "tag": shorten(message.tags or ""),
        },
    )


async def _consumer_table(watcher: Watcher, visit: Visit, message: MessageExt) -> PageTable:
    """Return the groups that read the message's queue, and whether they are beyond it."""
    committed = {
        name: at.committed_offset
        for name, group in watcher.groups.items()
        for at in (() if group.view is None else group.view.snapshot.last.progress)
        if at.queue == message.queue
    }
    known = {each.topic: each.groups for each in watcher.seen_topics}
    others = [name for name in known.get(message.topic, ()) if name not in committed]
    others = others[:_GROUPS_ASKED_MAX]
    asked = [committed_offset(watcher.directory, name, message.queue) for name in others]
    offsets = await watcher.driver.run(gather(asked, name="groups of a message"))
    committed |= {
        n: offset for n, offset in zip(others, offsets, strict=True) if offset is not None
    }
    rows = []
    for name, offset in sorted(committed.items()):
        is_done = (offset or 0) > message.queue_offset
        state = Cell(visit.words("yes" if is_done else "no"), tone="" if is_done else "warn")
        rows.append([Cell(name, group_href(name)), state, Cell(offset)])
    return PageTable(
        name="consumers",
        title="Groups that read the queue",
        columns=(
            TableColumn("group", "group"),
            TableColumn("done", "done with the message"),
            TableColumn("committed", "committed offset", "number"),
        ),
        rows=rows,
        empty="No group reads this queue.",
    )


async def _trace(watcher: Watcher, msg_id: str) -> tuple[TraceStep, ...]:
    """Return a message's trace; () also if the trace topic cannot be read."""
    try:
        return await watcher.driver.run(message_trace(watcher.directory, msg_id))
    except SparrowError:
        return ()


def _cut(text: str) -> str:
    return text if len(text) <= BODY_BYTES_MAX else f"{text[:BODY_BYTES_MAX]}…"


async def find_message(watcher: Watcher, place: Mapping[str, str]) -> MessageExt:
    """Return the message of a page's path. Raises: UsageError without one; SparrowError."""
    topic, broker_name, number, at = (
        place["topic"],
        place["broker"],
        place["queue"],
        place["offset"],
    )
    check_topic(topic)
    queue = parse_queue(f"{broker_name}:{number}")
    read = await read_messages(
        watcher, topic, Start(is_earliest=True), [queue], offset=_read_offset(at), count=1
    )
    for message in read.messages:
        if message.queue_offset == int(at):
            return message
    problem = read.problems[0] if read.problems else "it has gone, or has not come yet"
    raise UsageError(f"there is no message {at} in {broker_name}:{number} of {topic}: {problem}")


async def show_dead_letters(site: Site, visit: Visit) -> View:
    """List the groups with dead letters, or those of one group. Raises: SparrowError."""
    group = visit.query.get("group", "").strip()
    watcher = site.watcher
    if group:
        return await _show_letters(site, visit, check_group(group))
    found, failures = await watcher.driver.run(list_dead_letters(watcher.directory))
    table = PageTable(
        name="dead_letters",
        title="Dead letters",
        columns=(
            TableColumn("group", "group"),
            TableColumn("messages", "messages", "number"),
            TableColumn("last_ms", "last message", "time"),
        ),
        rows=[
            [
                Cell(each.group, letters_href(each.group)),
                Cell(each.message_count, tone="bad" if each.message_count else ""),
                Cell(each.last_timestamp_ms),
            ]
            for each in found
        ],
        empty="No group has dead letters.",
    )
    return View(
        template="table.html",
        title="Dead letters",
        tables=(table,),
        problems=describe_missing(failures),
    )


async def _show_letters(site: Site, visit: Visit, group: str) -> View:
    text = visit.query.get("text", "").strip()
    start = Start(last_count=SEARCHED_MAX if text else COUNT)
    try:
        read = await read_messages(site.watcher, dlq_topic(group), start, (), text=text)
    except TopicRouteNotFound:
        read = Read([], [])
    letters = read.messages[-COUNT:][::-1]
    resends = await site.watcher.driver.run(find_resends(site.watcher.directory, group, letters))
    return View(
        template="letters.html",
        title="Dead letters",
        tables=(_letter_table(letters, resends),),
        news=None,
        problems=_problems(read, visit.words),
        context={
            "group": group,
            "group_href": group_href(group),
            "has_letters": bool(letters),
            "text": text,
            "rest": _rest_links(dlq_topic(group), visit.query, read),
            "resend_href": f"/dead-letters/resend?{urlencode({'group': group, 'text': text})}",
            "done": read_whole_number(visit.query.get("done"), 9) or 0,
        },
    )


def _letter_table(letters: Sequence[MessageExt], resends: Mapping[Place, Resend]) -> PageTable:
    """Return the table of messages, with when each was sent again, and by whom."""
    table = _message_table(letters)
    columns = (TableColumn("resent_ms", "sent again", "time"), TableColumn("resent_by", "by"))
    again = [resends.get(place_of(m)) for m in letters]
    rows = [
        [*row[:3], Cell(found and found.timestamp_ms), Cell(found and found.who), *row[3:]]
        for row, found in zip(table.rows, again, strict=True)
    ]
    return replace(table, columns=(*table.columns[:3], *columns, *table.columns[3:]), rows=rows)
