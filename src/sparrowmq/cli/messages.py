"""`sparrowmq tail`, `msg` and `dlq`: read, find and resend messages.

`tail`, `msg` and `dlq show` read without a group: they join no group and commit no offset.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.cli.confirmation import Yes, carry_out
from sparrowmq.cli.connecting import (
    CommandCluster,
    GroupName,
    TopicName,
    naming_topic,
    on_cluster,
)
from sparrowmq.cli.exit_codes import EXIT_FOUND, say
from sparrowmq.cli.message_view import (
    BodyFormat,
    format_body,
    json_of_message,
    line_of_message,
    print_message,
)
from sparrowmq.cli.output import (
    Json,
    OutputColumn,
    columns_of,
    make_console,
    print_json,
    print_rows,
)
from sparrowmq.client.operations import administer
from sparrowmq.client.operations.browse import (
    Browser,
    FoundMessages,
    Start,
    browse,
    close_browser,
    open_browser,
)
from sparrowmq.client.operations.dead_letters import (
    DeadLetters,
    list_dead_letters,
    resend_dead_letter,
)
from sparrowmq.client.operations.message_trace import message_trace
from sparrowmq.errors import TopicRouteNotFound, UsageError
from sparrowmq.model import MessageExt, MessageSelector
from sparrowmq.model.names import dlq_topic
from sparrowmq.model.spelling import TIME_HELP, parse_queue, parse_time

msg = typer.Typer(
    help="Find messages by id, key, place or time.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
dlq = typer.Typer(
    help="Dead letters: list, show, send again.", no_args_is_help=True, rich_markup_mode=None
)

_TRACE_COLUMNS = (
    OutputColumn("timestamp_ms", "at"),
    OutputColumn("what"),
    OutputColumn("group"),
    OutputColumn("client"),
    OutputColumn("cost_ms", "ms"),
    OutputColumn("outcome"),
    OutputColumn("reconsume_times", "came before"),
)

TopicOption = Annotated[str, typer.Option("--topic", "-t", help="the topic")]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", help="only this queue, as BROKER:ID, such as broker-a:3; may be repeated"
    ),
]
FormatOption = Annotated[BodyFormat, typer.Option("--format", help="how to show bodies")]
# The longest wait of a turn of `tail --follow`; Ctrl-C ends the wait at once.
TURN_MS = 60_000
# With a filter, `--last` examines this many messages of each queue.
FILTERED_LOOK_BACK = 10_000


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
    )
    with naming_topic(cluster, topic):
        browser = cluster.run(operation)
    console = make_console()
    shown = 0
    for message in _tail(cluster, browser, last if since is None else None, key, follows=follow):
        if cluster.as_json:
            print_json(json_of_message(message), is_one_line=True)
        elif body:
            print(format_body(message.body, body_format), flush=True)
        else:
            console.print(line_of_message(message, body_format), soft_wrap=True)
        shown += 1
        if shown == limit:
            break
    if not follow and not shown:
        say(f"topic {topic} has no message in this range")


def _tail(
    cluster: CommandCluster,
    browser: Browser,
    last: int | None,
    key: str | None,
    *,
    follows: bool = False,
) -> Iterator[MessageExt]:
    """Yield the stored messages as they are read, and with `follows` each new one.

    With `last`, yield only the last N stored messages, in the order of storing.
    """
    if last is None:
        yield from _read(cluster, browser, key)
    else:
        yield from sorted(heapq.nlargest(last, _read(cluster, browser, key), key=_age), key=_age)
    if follows:
        browser.follow()
        yield from _read(cluster, browser, key)


def _age(message: MessageExt) -> tuple[int, int]:
    return message.store_timestamp_ms, message.queue_offset


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
            for message in sorted(found.messages, key=_age):
                if key is None or key in message.keys:
                    yield message
    finally:
        cluster.run(close_browser(browser))


def _parse_start(text: str) -> Start:
    if text in ("earliest", "latest"):
        return Start(is_earliest=text == "earliest", is_latest=text == "latest")
    return Start(timestamp_ms=parse_time(text, now_timestamp_ms=timestamp_ms()))


@msg.command("get")
@on_cluster
def get_message(
    cluster: CommandCluster,
    msg_id: Annotated[
        str, typer.Argument(metavar="ID", help="the producer's or the broker's message id")
    ],
    topic: TopicOption,
    body_format: FormatOption = BodyFormat.AUTO,
) -> None:
    """Show the message with an id, as `send` and producers print the id.

    \b
    Examples:
      sparrowmq msg get 7F0000010001... --topic flights
    """
    with naming_topic(cluster, topic):
        found = cluster.run(administer.view_message(cluster.directory, topic, msg_id))
    if found is None:
        say(f"topic {topic} has no message {msg_id}, or has deleted it")
        raise typer.Exit(EXIT_FOUND)
    _print_messages(cluster, [found], body_format)


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
    operation = administer.query_message(
        cluster.directory,
        topic,
        key,
        count_max=limit,
        begin_timestamp_ms=0 if since is None else parse_time(since, now_timestamp_ms=now_ms),
        end_timestamp_ms=None if until is None else parse_time(until, now_timestamp_ms=now_ms),
    )
    with naming_topic(cluster, topic):
        found = cluster.run(operation)
    if not found:
        say(f"topic {topic} has no message with key {key!r} in this range")
        raise typer.Exit(EXIT_FOUND)
    _print_messages(cluster, found, body_format)


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
    if not cursor.offset <= offset < (cursor.end or 0):
        raise UsageError(
            f"queue {queue} of {topic} has messages {cursor.offset} to {(cursor.end or 0) - 1}, "
            f"and none at {offset}"
        )
    cursor.offset, cursor.end = offset, offset + 1
    found = list(_read(cluster, browser))
    _print_messages(cluster, found, body_format)


def _print_messages(
    cluster: CommandCluster, found: list[MessageExt], body_format: BodyFormat
) -> None:
    if cluster.as_json:
        print_json([json_of_message(message) for message in found])
        return
    console: Console = make_console()
    for message in found:
        print_message(console, message, body_format)


@dlq.command("ls")
@on_cluster
def list_dlq(cluster: CommandCluster) -> None:
    """List the groups that have dead letters: messages that failed too often."""
    found: list[DeadLetters] = cluster.run(list_dead_letters(cluster.directory))
    rows: list[Json] = [
        {
            "group": each.group,
            "messages": each.message_count,
            "last_timestamp_ms": each.last_timestamp_ms,
        }
        for each in found
    ]
    if cluster.as_json:
        print_json(rows)
    else:
        columns = columns_of("group", "messages", "last_timestamp_ms")
        where = cluster.context.name_server
        print_rows(rows, columns, empty=f"no group has dead letters at {where}")


LastOption = Annotated[
    int, typer.Option("--last", "-l", min=1, max=100_000, help="only the last N")
]
KeyOption = Annotated[str | None, typer.Option("--key", help="only messages with this key")]


@dlq.command("show")
@on_cluster
def show_dlq(
    cluster: CommandCluster,
    group: GroupName,
    last: LastOption = 10,
    key: KeyOption = None,
    body_format: FormatOption = BodyFormat.AUTO,
) -> None:
    """Show a group's dead letters in full, the newest last."""
    _print_messages(cluster, _dead_letters(cluster, group, last, key), body_format)


@dlq.command("resend")
@on_cluster
def resend(
    cluster: CommandCluster,
    group: GroupName,
    last: LastOption = 10,
    key: KeyOption = None,
    yes: Yes = False,
) -> None:
    """Send dead letters again, to their own group only; the dead letters also stay in place.

    \b
    Examples:
      sparrowmq dlq resend GID_board --key order-4711          # shows which
      sparrowmq dlq resend GID_board --key order-4711 --yes
    """
    chosen = _dead_letters(cluster, group, last, key)
    named = "" if key is None else f" with key {key!r}"
    rows: list[Json] = [
        {
            "msg_id": message.msg_id,
            "keys": list(message.keys),
            "store_timestamp_ms": message.store_timestamp_ms,
            "body": format_body(message.body[:60], BodyFormat.AUTO),
        }
        for message in chosen
    ]

    def apply() -> None:
        for message in chosen:
            cluster.run(resend_dead_letter(cluster.directory, group, message))

    columns = [
        OutputColumn("msg_id", "id"),
        OutputColumn("keys"),
        OutputColumn("store_timestamp_ms", "dead since"),
        OutputColumn("body", optional=True),
    ]
    carry_out(
        cluster,
        rows,
        columns,
        is_confirmed=yes,
        apply=apply,
        done=f"{len(chosen)} messages were sent to {group} again; they arrive in about 10 s",
        unchanged=f"group {group} has no dead letter{named}",
    )


def _dead_letters(
    cluster: CommandCluster, group: str, last: int, key: str | None
) -> list[MessageExt]:
    look_back = last if key is None else max(last, FILTERED_LOOK_BACK)
    operation = open_browser(cluster.directory, dlq_topic(group), start=Start(last_count=look_back))
    try:
        browser = cluster.run(operation)
    except TopicRouteNotFound:
        say(
            f"group {group} has no dead letters; `sparrowmq dlq ls` lists the groups that have some"
        )
        return []
    return list(_tail(cluster, browser, last, key))
