"""`sparrowmq tail` and `msg`: read, find and resend messages.

The commands read without a group: they join no group and commit no offset.
"""

from __future__ import annotations

import getpass
import heapq
import os
import socket
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Annotated, NamedTuple, NoReturn

import typer
from rich.console import Console

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.confirmation import Yes, arrow, carry_out
from sparrowmq.cli.connecting import (
    CommandCluster,
    QueueOption,
    TopicName,
    TopicOption,
    naming_topic,
    on_cluster,
)
from sparrowmq.cli.exit_codes import EXIT_FOUND, say, say_missing
from sparrowmq.cli.language import words
from sparrowmq.cli.message_view import (
    BodyFormat,
    format_body,
    json_of_message,
    line_of_message,
    print_message,
    print_raw,
)
from sparrowmq.cli.option_sets import parse_pairs
from sparrowmq.cli.output import (
    Json,
    OutputColumn,
    columns_of,
    format_time,
    make_console,
    print_json,
    print_rows,
)
from sparrowmq.cli.send import encode_argument, open_input, read_whole
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.client.operations import administer
from sparrowmq.client.operations.browse import (
    Browser,
    FoundMessages,
    Start,
    browse,
    close_browser,
    open_browser,
    storing_order,
)
from sparrowmq.client.operations.message_trace import message_trace
from sparrowmq.client.operations.resend import Edit, Place, Resend, copy_message, place_of
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageExt, MessageSelector
from sparrowmq.model.message import RESERVED_PROPERTIES
from sparrowmq.model.names import COMMAND_PRODUCER_GROUP
from sparrowmq.model.spelling import TIME_HELP, parse_queue, parse_time

msg = make_group("Find messages by id, key, place or time; send one again.")

_TRACE_COLUMNS = (
    OutputColumn("timestamp_ms", "at"),
    *columns_of("what", "group", "client"),
    OutputColumn("cost_ms", "ms"),
    OutputColumn("outcome"),
    OutputColumn("reconsume_times", "came before"),
)

MessageId = Annotated[
    str, typer.Argument(metavar="ID", help="the producer's or the broker's message id")
]
FormatOption = Annotated[
    BodyFormat,
    typer.Option("--format", help="how to show bodies; raw prints the body alone, as sent"),
]
# The longest wait of a turn of `tail --follow`; Ctrl-C ends the wait at once.
TURN_MS = 60_000
# With a filter, `--last` examines this many messages of each queue.
FILTERED_LOOK_BACK = 10_000


class EditOptions(NamedTuple):
    """The options that change a message that is sent again."""

    set_body: Annotated[str | None, typer.Option("--set-body", help="another body")] = None
    set_body_from: Annotated[
        Path | None, typer.Option("--set-body-from", help="another body: a file's bytes; -: stdin")
    ] = None
    set_tag: Annotated[str | None, typer.Option("--set-tag", help='another tag; "" removes it')] = (
        None
    )
    set_key: Annotated[
        list[str] | None, typer.Option("--set-key", help="another key; may be repeated")
    ] = None
    set_property: Annotated[
        list[str] | None,
        typer.Option("--set-property", help='NAME=VALUE; "NAME=" removes it; may be repeated'),
    ] = None

    def read(self) -> Edit:
        """Return the changes. Raises: UsageError."""
        if self.set_body is not None and self.set_body_from is not None:
            raise UsageError("give --set-body or --set-body-from, not both")
        data = None if self.set_body is None else encode_argument(self.set_body)
        if self.set_body_from is not None:
            with open_input(self.set_body_from) as stream:
                data = read_whole(stream, self.set_body_from)
        return Edit(
            data,
            self.set_tag,
            tuple(self.set_key) if self.set_key else None,
            parse_pairs("--set-property", self.set_property),
        )


@on_cluster
def tail(
    cluster: CommandCluster,
    topic: TopicName,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="continue with new messages, until Ctrl-C")
    ] = False,
    last: Annotated[
        int,
        typer.Option(
            "--last",
            "-l",
            min=0,
            max=100_000,
            help="begin with the last N; a filter searches the last 10,000 of a queue",
        ),
    ] = 10,
    since: Annotated[
        str | None,
        typer.Option("--from", help=f"begin at earliest, latest, or a time: {TIME_HELP}"),
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="only tags, as 'TagA || TagB'")] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", help='only by properties: "price > 10"')
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="only messages with this key")] = None,
    queue: QueueOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="end after N messages; 0: no limit")
    ] = 0,
    body_format: FormatOption = BodyFormat.AUTO,
    body: Annotated[bool, typer.Option("--body", help="print only bodies, one a line")] = False,
) -> None:
    """Print a topic's last messages, and with --follow each new one.

    The command reads without a group: it joins no group and commits no offset.

    \b
    Examples:
      sparrowmq tail flights --follow
      sparrowmq tail flights --from 10m --tag 'UA || DL'
      sparrowmq tail flights --sql 'delay > 30' --from earliest --limit 5
      sparrowmq tail flights -f --json | jq -r '.keys[0]'
    """
    if tag is not None and sql is not None:
        raise UsageError("give --tag or --sql, not both")
    is_filtered = tag is not None or sql is not None or key is not None
    look_back = max(last, FILTERED_LOOK_BACK) if is_filtered else last
    operation = open_browser(
        cluster.directory,
        topic,
        start=Start(last_count=look_back) if since is None else _parse_start(since),
        selection=MessageSelector.by_sql(sql) if sql is not None else tag or "*",
        queues=[parse_queue(each) for each in queue or []],
        leaves_out=True,
    )
    with naming_topic(cluster, topic):
        browser = cluster.run(operation)
    say_missing(browser.missing)
    console = make_console()
    shown = 0
    for message in tail_messages(
        cluster, browser, last if since is None else None, key, follows=follow
    ):
        _print_one(cluster, console, message, body_format, is_body=body)
        shown += 1
        if shown == limit:
            break
    if not follow and not shown:
        say(f"topic {topic} has no message in this range")


def _print_one(
    cluster: CommandCluster,
    console: Console,
    message: MessageExt,
    body_format: BodyFormat,
    *,
    is_body: bool,
) -> None:
    if cluster.as_json:
        print_json(json_of_message(message), is_one_line=True)
    elif body_format is BodyFormat.RAW:
        print_raw(message)
    elif is_body:
        print(format_body(message.body, body_format), flush=True)
    else:
        console.print(line_of_message(message, body_format), soft_wrap=True)


def tail_messages(
    cluster: CommandCluster,
    browser: Browser,
    last: int | None,
    key: str | None,
    *,
    follows: bool = False,
) -> Generator[MessageExt]:
    """Yield the stored messages as they are read, and with `follows` each new one.

    With `last`, yield only the last N stored messages, in the order of storing.
    """
    if last is None:
        yield from _read(cluster, browser, key)
    else:
        newest = heapq.nlargest(last, _read(cluster, browser, key), key=storing_order)
        yield from reversed(newest)
    if follows:
        browser.follow()
        yield from _read(cluster, browser, key)


def _read(
    cluster: CommandCluster, browser: Browser, key: str | None = None
) -> Iterator[MessageExt]:
    try:
        while not browser.is_done:
            found: FoundMessages = cluster.run(
                browse(cluster.directory, browser, timeout_ms=TURN_MS)
            )
            for problem in found.problems:
                say(problem)
            for message in sorted(found.messages, key=storing_order):
                if key is None or key in message.keys:
                    yield message
    finally:
        cluster.run(close_browser(browser))


def _parse_start(text: str) -> Start:
    if text in ("earliest", "latest"):
        return Start(is_earliest=text == "earliest", is_latest=text == "latest")
    others = "earliest, latest, "
    return Start(timestamp_ms=parse_time(text, now_timestamp_ms=timestamp_ms(), others=others))


@msg.command("get")
@on_cluster
def get_message(
    cluster: CommandCluster,
    msg_id: MessageId,
    topic: TopicOption,
    body_format: FormatOption = BodyFormat.AUTO,
) -> None:
    """Show the message with an id, as `send` and producers print the id.

    \b
    Examples:
      sparrowmq msg get 7F0000010001... --topic flights
    """
    message = _get_message(cluster, topic, msg_id, as_list=cluster.as_json)
    print_messages(cluster, [message], body_format)


def _end_without_messages(text: str, *, as_list: bool) -> NoReturn:
    """Say that nothing was found, for programs by an empty list, and end."""
    if as_list:
        print_json([])
    say(text)
    raise typer.Exit(EXIT_FOUND)


def _get_message(
    cluster: CommandCluster, topic: str, msg_id: str, *, as_list: bool = False
) -> MessageExt:
    with naming_topic(cluster, topic):
        found: MessageExt | None = cluster.run(
            administer.view_message(cluster.directory, topic, msg_id)
        )
    if found is None:
        _end_without_messages(
            f"topic {topic} has no message {msg_id}, or has deleted it", as_list=as_list
        )
    return found


@msg.command("find")
@on_cluster
def find_messages(
    cluster: CommandCluster,
    key: Annotated[str, typer.Argument(metavar="KEY", help="a key of the messages")],
    topic: TopicOption,
    since: Annotated[str | None, typer.Option("--from", help=f"a time: {TIME_HELP}")] = None,
    until: Annotated[str | None, typer.Option("--to", help="a time in the same form")] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=64, help="the most messages from each broker")
    ] = 64,
    body_format: FormatOption = BodyFormat.AUTO,
) -> None:
    """Show the messages with a key, oldest first.

    \b
    Examples:
      sparrowmq msg find order-4711 --topic orders --from 1d
    """
    now_ms = timestamp_ms()
    operation = administer.look_for_messages(
        cluster.directory,
        topic,
        key,
        count_max=limit,
        begin_timestamp_ms=0 if since is None else parse_time(since, now_timestamp_ms=now_ms),
        end_timestamp_ms=None if until is None else parse_time(until, now_timestamp_ms=now_ms),
    )
    with naming_topic(cluster, topic):
        found, failures = cluster.run(operation)
    for failure in () if found else failures.values():
        raise failure
    say_missing(failures)
    if not found:
        _end_without_messages(
            f"topic {topic} has no message with key {key!r} in this range",
            as_list=cluster.as_json,
        )
    print_messages(cluster, found, body_format)


@msg.command("trace")
@on_cluster
def trace_message(
    cluster: CommandCluster,
    msg_id: Annotated[str, typer.Argument(metavar="ID", help="the producer's message id")],
) -> None:
    """Show a message's path: producer, consumers, when and how long they ran, and the result.

    Producers and consumers record the path if their `trace` is on.

    \b
    Examples:
      sparrowmq msg trace 7F0000010001...
    """
    steps = cluster.run(message_trace(cluster.directory, msg_id))
    rows = [step._asdict() for step in steps]
    if cluster.as_json:
        print_json(rows)
    elif steps:
        print_rows(rows, _TRACE_COLUMNS)
    if not steps:
        say(f"no trace of message {msg_id}; `trace` may be off in its producer and consumers")
        raise typer.Exit(EXIT_FOUND)


@msg.command("at")
@on_cluster
def show_place(
    cluster: CommandCluster,
    topic: TopicName,
    queue: Annotated[str, typer.Argument(metavar="BROKER:ID", help="the queue")],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="the message's offset")],
    body_format: FormatOption = BodyFormat.AUTO,
) -> None:
    """Show the message at an offset of a queue, such as a group's committed offset.

    \b
    Examples:
      sparrowmq msg at flights broker-a:3 4711
    """
    operation = open_browser(
        cluster.directory, topic, start=Start(is_earliest=True), queues=[parse_queue(queue)]
    )
    with naming_topic(cluster, topic):
        browser = cluster.run(operation)
    (cursor,) = browser.cursors
    end = cursor.end or 0
    if not cursor.offset <= offset < end:
        is_empty = cursor.offset >= end
        held = "no message" if is_empty else f"messages {cursor.offset} to {end - 1}, and none"
        _end_without_messages(
            f"queue {queue} of {topic} has {held} at {offset}", as_list=cluster.as_json
        )
    cursor.offset, cursor.end = offset, offset + 1
    found = list(_read(cluster, browser))
    print_messages(cluster, found, body_format)


def print_messages(
    cluster: CommandCluster,
    found: list[MessageExt],
    body_format: BodyFormat,
    resends: Mapping[Place, Resend] | None = None,
) -> None:
    """Print messages in full; `resends` says which dead letters were sent again."""
    if cluster.as_json:
        print_json([json_of_message(each) | describe_resend(each, resends) for each in found])
        return
    console: Console = make_console()
    for message in found:
        if body_format is BodyFormat.RAW:
            print_raw(message)
            continue
        resend = (resends or {}).get(place_of(message))
        again = resend and words()(
            "{time} by {who}", time=format_time(resend.timestamp_ms), who=resend.who
        )
        print_message(console, message, body_format, sent_again=again or "")


def describe_resend(message: MessageExt, resends: Mapping[Place, Resend] | None) -> Json:
    """Return the fields that say when a dead letter was sent again, and by whom."""
    if resends is None:
        return {}
    found = resends.get(place_of(message))
    return {"resent_timestamp_ms": found and found.timestamp_ms, "resent_by": found and found.who}


@msg.command("resend")
@on_cluster
def resend_message(
    cluster: CommandCluster,
    msg_id: MessageId,
    topic: TopicOption,
    options: EditOptions,
    yes: Yes = False,
) -> None:
    """Send a message to its topic again, changed or not; every group of the topic gets the copy.

    \b
    Examples:
      sparrowmq msg resend 7F0000010001... --topic orders              # shows the copy
      sparrowmq msg resend 7F0000010001... --topic orders --yes
      sparrowmq msg resend 7F0000010001... -t orders --set-body-from fixed.json --yes
    """
    message = _get_message(cluster, topic, msg_id)
    edit = options.read()
    copy = copy_message(edit.apply(message), by=find_operator(), timestamp_ms=timestamp_ms())

    def apply() -> None:
        with Producer(COMMAND_PRODUCER_GROUP, **cluster.client_settings) as producer:
            say(f"the copy's id is {producer.send(copy).msg_id}")

    carry_out(
        cluster,
        [row_of_copy(message, edit)],
        COPY_COLUMNS,
        is_confirmed=yes,
        apply=apply,
        done=f"the message was sent to {topic} again",
    )


def find_operator() -> str:
    """Return who runs the command, for the marks of messages sent again: USER@HOST."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # The account of a container may have no name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def row_of_copy(message: MessageExt, edit: Edit) -> Json:
    """Return the row that shows a message and what its copy changes."""
    copy = edit.apply(message)
    before, after = (
        {n: v for n, v in each.properties.items() if n not in RESERVED_PROPERTIES}
        for each in (message, copy)
    )
    return {
        "msg_id": message.msg_id,
        "tag": arrow(message.tags, copy.tags),
        "keys": arrow(" ".join(message.keys), " ".join(copy.keys)),
        "store_timestamp_ms": message.store_timestamp_ms,
        "properties": arrow(
            *(" ".join(f"{n}={v}" for n, v in sorted(each.items())) for each in (before, after))
        ),
        "body": arrow(*(format_body(each.body[:60], BodyFormat.AUTO) for each in (message, copy))),
    }


COPY_COLUMNS = (
    OutputColumn("msg_id", "id"),
    OutputColumn("tag", optional=True),
    OutputColumn("keys", optional=True),
    OutputColumn("store_timestamp_ms", "stored"),
    OutputColumn("properties", optional=True),
    OutputColumn("body", optional=True),
)
