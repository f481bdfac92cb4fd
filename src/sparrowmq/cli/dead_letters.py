"""`sparrowmq dlq`: list, show and resend dead letters. Tests: test_messages.py."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.confirmation import Yes, carry_out
from sparrowmq.cli.connecting import CommandCluster, GroupName, on_cluster
from sparrowmq.cli.exit_codes import EXIT_FOUND, say, say_missing
from sparrowmq.cli.message_view import BodyFormat
from sparrowmq.cli.messages import (
    COPY_COLUMNS,
    FILTERED_LOOK_BACK,
    EditOptions,
    FormatOption,
    describe_resend,
    find_operator,
    print_messages,
    row_of_copy,
    tail_messages,
)
from sparrowmq.cli.output import Json, OutputColumn, columns_of, print_json, print_rows
from sparrowmq.client.operations.browse import Start, open_browser
from sparrowmq.client.operations.dead_letters import (
    list_dead_letters,
    resend_dead_letters,
)
from sparrowmq.client.operations.resend import find_resends, place_of
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor.group_snapshot import LETTERS_READ_MAX
from sparrowmq.errors import TopicRouteNotFound, UsageError
from sparrowmq.model import MessageExt
from sparrowmq.model.names import check_group, dlq_topic
from sparrowmq.words import count_of

dlq = make_group("Dead letters: list, show, send again.")


@dlq.command("ls")
@on_cluster
def list_dlq(cluster: CommandCluster) -> None:
    """List the groups that have dead letters: messages that failed too often."""
    found, failures = cluster.run(list_dead_letters(cluster.directory))
    say_missing(failures)
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


_LETTER_COLUMNS = (
    *COPY_COLUMNS,
    OutputColumn("resent_timestamp_ms", "sent again", optional=True),
    OutputColumn("resent_by", "by", optional=True),
)


class _Chosen(NamedTuple):
    """The options that choose dead letters."""

    last: Annotated[
        int, typer.Option("--last", "-l", min=1, max=LETTERS_READ_MAX, help="only the last N")
    ] = 10
    key: Annotated[str | None, typer.Option("--key", help="only messages with this key")] = None
    msg_id: Annotated[str | None, typer.Option("--id", help="only the message with this id")] = None


@dlq.command("show")
@on_cluster
def show_dlq(
    cluster: CommandCluster,
    group: GroupName,
    chosen: _Chosen,
    body_format: FormatOption = BodyFormat.AUTO,
) -> None:
    """Show a group's dead letters in full, the newest last, and who sent them again.

    \b
    Examples:
      sparrowmq dlq show GID_board --key order-4711
      sparrowmq dlq show GID_board --id 7F0000010001... --format raw > order.json
    """
    letters, unreadable = _dead_letters(cluster, group, chosen)
    resends = cluster.run(find_resends(cluster.directory, group, letters)) if letters else {}
    print_messages(cluster, letters, body_format, resends)
    if not letters and (chosen.key is not None or chosen.msg_id is not None):
        # A file that the bytes of the letter were to come into is empty now.
        say(f"group {group} has no dead letter{_named(chosen, unreadable)}")
        raise typer.Exit(EXIT_FOUND)


@dlq.command("resend")
@on_cluster
def resend(
    cluster: CommandCluster,
    group: GroupName,
    chosen: _Chosen,
    options: EditOptions,
    again: Annotated[
        bool, typer.Option("--again", help="also those that were sent again before")
    ] = False,
    yes: Yes = False,
) -> None:
    """Send dead letters again, changed or not, to their own group only, and each once.

    The dead letters also stay in place. The copies name in RESENT_BY, RESENT_AT and RESENT_FROM who
    sent which letter and when; `dlq show` and `group show` say so too.

    \b
    Examples:
      sparrowmq dlq resend GID_board --key order-4711          # shows which
      sparrowmq dlq resend GID_board --key order-4711 --yes
      sparrowmq dlq resend GID_board --id 7F0000010001... --set-body-from order.json --yes
    """
    edit = options.read()
    found, unreadable = _dead_letters(cluster, group, chosen)
    resends = cluster.run(find_resends(cluster.directory, group, found)) if found else {}
    letters = [each for each in found if again or place_of(each) not in resends]
    if edit.body is not None and len(letters) > 1:
        raise UsageError(
            f"{len(letters)} dead letters would get one body; choose one by --id or --key"
        )
    named = _named(chosen, unreadable)
    if left_out := len(found) - len(letters):
        say(f"left out: {count_of(left_out, 'message')} sent again before; --again sends these too")

    def apply() -> None:
        by = find_operator()
        cluster.run(resend_dead_letters(cluster.directory, group, letters, edit=edit, by=by))

    carry_out(
        cluster,
        [row_of_copy(each, edit) | describe_resend(each, resends) for each in letters],
        _LETTER_COLUMNS,
        is_confirmed=yes,
        apply=apply,
        done=f"{count_of(len(letters), 'message')} went to {group} again, to arrive in about 10 s",
        unchanged=f"group {group} has no {'other ' if left_out else ''}dead letter{named}",
    )


def _named(chosen: _Chosen, unreadable: int) -> str:
    """Return how the options describe the letters, where there are none."""
    key, msg_id = chosen.key, chosen.msg_id
    named = f" with id {msg_id}" if msg_id else "" if key is None else f" with key {key!r}"
    if unreadable:
        named += f" that can be read; {count_of(unreadable, 'message')} cannot be read"
    return named


def _dead_letters(
    cluster: CommandCluster, group: str, chosen: _Chosen
) -> tuple[list[MessageExt], int]:
    """Return the chosen dead letters, and how many letters cannot be read."""
    check_group(group)
    last, key, msg_id = chosen
    look_back = last if key is None and msg_id is None else max(last, FILTERED_LOOK_BACK)
    operation = open_browser(
        cluster.directory, dlq_topic(group), start=Start(last_count=look_back), leaves_out=True
    )
    try:
        browser = cluster.run(operation)
    except TopicRouteNotFound:
        # A misspelt group has none either: this raises if no broker knows the group.
        cluster.run(take_snapshot(cluster.directory, group, asks_members=False))
        say(
            f"group {group} has no dead letters; `sparrowmq dlq ls` lists the groups that have some"
        )
        return [], 0
    say_missing(browser.missing)
    found = tail_messages(cluster, browser, look_back, key)
    letters = [each for each in found if msg_id in (None, each.msg_id, each.offset_msg_id)]
    return letters[-last:], browser.problem_count
