"""`sparrowmq group`: list, show, reset, update and delete consumer groups, and set their modes.

Tests: test_topics_and_groups.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, NamedTuple

import typer

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.calling.effects import sleep
from sparrowmq.cli.cluster import GROUP_COLUMNS, group_row, look_twice, say_troubles
from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.confirmation import Yes, arrow, carry_out
from sparrowmq.cli.connecting import (
    ClusterOption,
    CommandCluster,
    GroupName,
    OneTopicOption,
    QueueOption,
    SamplesInterval,
    TopicOption,
    complete_topic,
    find_broker_names,
    naming_topic,
    on_cluster,
)
from sparrowmq.cli.exit_codes import describe_missing, keep_looking, say, say_missing
from sparrowmq.cli.language import words
from sparrowmq.cli.output import (
    Json,
    OutputColumn,
    arrange_table,
    columns_of,
    make_console,
    print_json,
    print_rows,
)
from sparrowmq.client.operations import groups as settings
from sparrowmq.client.operations.overview import group_flows
from sparrowmq.client.operations.reset import QueueReset, Target, apply_reset, plan_reset
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor.group_snapshot import GroupSnapshot, QueueProgress
from sparrowmq.errors import UsageError
from sparrowmq.model.names import check_group, retry_topic
from sparrowmq.model.plain_text import escape
from sparrowmq.model.spelling import TIME_HELP, parse_queue, parse_time
from sparrowmq.words import count_of

group = make_group("List, show, reset, update and delete consumer groups.")

# The shortest time between two looks of a command that watches.
WATCH_MS_MIN = 500
# The changes that `group show` shows on a terminal.
CHANGES_SHOWN_MAX = 10


@group.command("ls")
@on_cluster
def list_groups(
    cluster: CommandCluster,
    interval: SamplesInterval = 0.0,
) -> None:
    """List consumer groups; those that need attention come first."""
    before, seen = cluster.run(look_twice(cluster, round(interval * 1000), asked_max=None))
    flows = {} if before is None else group_flows(before, seen)
    rows = [group_row(each, flows.get(each.group), seen.timestamp_ms) for each in seen.groups]
    say_troubles(seen)
    if cluster.as_json:
        print_json(rows)
    else:
        where = cluster.context.name_server
        print_rows(rows, GROUP_COLUMNS, empty=f"there is no consumer group at {where}")


@group.command("show")
@on_cluster
def show_group(cluster: CommandCluster, name: GroupName) -> None:
    """Show a group: members, subscriptions, lag by topic, settings, and changes by operators.

    `sparrowmq rebalance show` shows the owner of each queue, `rebalance doctor` what is wrong.
    """
    snapshot = _look(cluster, name)
    known, failures = cluster.run(settings.look_at_group_settings(cluster.directory, name))
    missing = {name: str(each) for name, each in failures.items()} | snapshot.last.failures
    say_missing(missing)
    settings_rows = [
        {
            "broker": broker.name,
            "enabled": None if found is None else found.consume_enable,
            "max_reconsume_times": None if found is None else found.retry_max_times,
            "retry_queues": None if found is None else found.retry_queue_nums,
        }
        for broker, found in known
    ]
    changes = _change_rows(snapshot)
    found: dict[str, list[Json]] = {
        "topics": _topic_rows(snapshot),
        "members": _member_rows(snapshot),
        "failed": [_failed_row(snapshot)],
        "settings": settings_rows,
        "changes": changes,
    }
    if cluster.as_json:
        print_json({"group": name, **found, "failed": found["failed"][0], "failures": missing})
        return
    console = make_console()
    newest = changes[:CHANGES_SHOWN_MAX]
    found["changes"] = [{**change, "kind": words()(change["kind"])} for change in newest]
    for key, section in _SECTIONS.items():
        if found[key] or key != "changes":
            title = words()(section.title, name=name)
            print_rows(found[key], section.columns, title=title, console=console)
    if len(changes) > CHANGES_SHOWN_MAX:
        say(f"{len(changes) - CHANGES_SHOWN_MAX} older changes; --json shows all")


@group.command("lag")
@on_cluster
def show_lag(
    cluster: CommandCluster,
    name: GroupName,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic",
            "-t",
            help="only this topic; by default all that the group reads",
            autocompletion=complete_topic,
        ),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="repeat until Ctrl-C")] = False,
    interval: Annotated[
        float,
        typer.Option("--interval", min=0.5, help="with --watch: seconds between two snapshots"),
    ] = 2.0,
) -> None:
    """Show a group's lag in each queue, the largest first.

    \b
    Examples:
      sparrowmq group lag GID_board
      sparrowmq group lag GID_board --watch --json     # one object a line
    """
    if not watch:
        seen = _look(cluster, name)
        say_missing(seen.last.failures)
        rows = _lag_rows(seen, topic)
        if cluster.as_json:
            print_json(rows)
        else:
            print_rows(rows, _LAG_COLUMNS, empty=f"group {name} has no offset in any queue")
        return
    looks = watch_lag(cluster, name, topic, round(interval * 1000))
    console = make_console()
    if cluster.as_json:
        for rows, failures in looks:
            shown = {"timestamp_ms": timestamp_ms(), "queues": rows, "failures": failures}
            print_json(shown, is_one_line=True)
    elif not console.is_terminal:
        for rows, failures in looks:
            say_missing(failures)
            print_rows(rows, _LAG_COLUMNS, console=console)
    else:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        with Live(console=console, auto_refresh=False) as live:
            for rows, failures in looks:
                table, left_out = arrange_table(rows, _LAG_COLUMNS, console)
                notes = [Text(left_out, "dim")] if left_out else []
                notes += [Text(escape(line), "bold red") for line in describe_missing(failures)]
                live.update(Group(table, *notes), refresh=True)


@group.command("reset")
@on_cluster
def reset_group(
    cluster: CommandCluster,
    name: GroupName,
    to: Annotated[
        str, typer.Option("--to", help=f"earliest, latest, an offset, or a time: {TIME_HELP}")
    ],
    topic: OneTopicOption = None,
    queue: QueueOption = None,
    yes: Yes = False,
) -> None:
    """Show the new offset of a group in each queue, and with --yes move the group there.

    Brokers notify the connected members, which continue from the new offsets at once.

    \b
    Examples:
      sparrowmq group reset GID_board --to 2h                # from 2 hours ago
      sparrowmq group reset GID_board --to earliest --yes
      sparrowmq group reset GID_board --to 4711 --queue broker-a:3 --yes
    """
    _reset(cluster, name, topic, queue or [], target=_parse_target(to), is_confirmed=yes)


@group.command("skip")
@on_cluster
def skip_backlog(
    cluster: CommandCluster,
    name: GroupName,
    topic: OneTopicOption = None,
    queue: QueueOption = None,
    yes: Yes = False,
) -> None:
    """Show how many messages a group would skip to reach the end, and with --yes skip them."""
    _reset(cluster, name, topic, queue or [], target=Target(is_latest=True), is_confirmed=yes)


@group.command("update")
@on_cluster
def update_group(
    cluster: CommandCluster,
    name: GroupName,
    enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="whether brokers deliver messages to the group"),
    ] = None,
    retries: Annotated[
        int | None,
        typer.Option("--retries", min=0, help="how often a failed message is delivered again"),
    ] = None,
    retry_queues: Annotated[
        int | None, typer.Option("--retry-queues", min=0, help="queues of the group's retry topic")
    ] = None,
    yes: Yes = False,
) -> None:
    """Change a group's settings at every broker, or create the group.

    \b
    Examples:
      sparrowmq group update GID_board --retries 5 --yes
    """
    operation = settings.plan_group_update(
        cluster.directory,
        name,
        is_enabled=enabled,
        max_reconsume_times=retries,
        retry_queues=retry_queues,
    )
    planned = [each for each in cluster.run(operation) if each.before != each.after]
    is_new = all(change.before is None for change in planned)
    rows: list[Json] = [
        {
            "broker": change.broker.name,
            "enabled": arrow(
                change.before and change.before.consume_enable, change.after.consume_enable
            ),
            "max_reconsume_times": arrow(
                change.before and change.before.retry_max_times, change.after.retry_max_times
            ),
            "retry_queues": arrow(
                change.before and change.before.retry_queue_nums, change.after.retry_queue_nums
            ),
        }
        for change in planned
    ]
    carry_out(
        cluster,
        rows,
        _SETTINGS_COLUMNS,
        is_confirmed=yes,
        apply=lambda: cluster.run(settings.update_group(cluster.directory, planned)),
        done=f"group {name} was {'created' if is_new else 'changed'}",
        unchanged=f"every broker has these settings of group {name}",
    )


@group.command("mode")
@on_cluster
def set_mode(
    cluster: CommandCluster,
    name: GroupName,
    topic: TopicOption,
    mode: Annotated[
        str, typer.Option("--mode", help="pull: by queues, or pop: message by message")
    ],
    share: Annotated[
        int,
        typer.Option("--share", min=0, help="pop: members that share a queue; 0 shares all queues"),
    ] = 0,
    cluster_name: ClusterOption = None,
    yes: Yes = False,
) -> None:
    """Set how a group's members consume a topic if they let the brokers divide it.

    Members of Java with setClientRebalance(false) follow the mode; other members choose themselves.

    \b
    Examples:
      sparrowmq group mode GID_board --topic flights --mode pop --yes
    """
    if mode.lower() not in ("pull", "pop"):
        raise UsageError(f"--mode {mode}: give pull or pop")
    operation = settings.plan_request_mode(
        cluster.directory,
        name,
        topic,
        "POP" if mode.lower() == "pop" else "PULL",
        share=share,
        cluster=cluster_name,
    )
    with naming_topic(cluster, topic):
        planned = [each for each in cluster.run(operation) if each.before != each.after]
    rows: list[Json] = [
        {
            "broker": change.broker.name,
            "mode": arrow(change.before.mode.lower(), change.after.mode.lower()),
            "share": arrow(change.before.pop_share_queue_num, change.after.pop_share_queue_num),
        }
        for change in planned
    ]
    carry_out(
        cluster,
        rows,
        columns_of("broker", "mode", "share"),
        is_confirmed=yes,
        apply=lambda: cluster.run(settings.set_request_mode(cluster.directory, planned)),
        done=f"group {name} was changed",
        unchanged=f"every broker has this mode of group {name}",
    )


@group.command("delete")
@on_cluster
def delete_group(
    cluster: CommandCluster, name: GroupName, cluster_name: ClusterOption = None, yes: Yes = False
) -> None:
    """Delete a group: its settings, offsets, retries and dead letters.

    Refused while members are connected, because they would create the group again.
    """
    settings.check_own(cluster.directory, name)
    # The members at a broker that does not answer would make the group again.
    cluster.run(settings.find_group_settings(cluster.directory, name))
    snapshot = _look(cluster, name)
    there = find_broker_names(cluster, cluster_name)
    if cluster_name is not None:
        snapshot = _look_at(snapshot, there)
    members = _member_rows(snapshot)
    if members:
        raise UsageError(
            f"group {name} has {count_of(len(members), 'member')} connected; stop them first"
        )
    rows: list[Json] = [
        {"topic": row["topic"], "queues": row["queues"], "lag": row["lag"]}
        for row in _topic_rows(snapshot)
    ]
    carry_out(
        cluster,
        rows,
        columns_of("topic", "queues", "lag"),
        is_confirmed=yes,
        apply=lambda: cluster.run(
            settings.delete_group(cluster.directory, name, cluster=cluster_name)
        ),
        done=f"group {name} was deleted",
    )


_SETTINGS_COLUMNS = (
    OutputColumn("broker"),
    OutputColumn("enabled"),
    OutputColumn("max_reconsume_times", "max retries"),
    OutputColumn("retry_queues"),
)


class _Section(NamedTuple):
    """A table of `group show`."""

    title: str
    columns: tuple[OutputColumn, ...]


_SECTIONS = {
    "topics": _Section(
        title="Topics of {name}",
        columns=(
            *columns_of("topic", "expression", "queues", "lag"),
            OutputColumn("behind_since_timestamp_ms", optional=True),
        ),
    ),
    "members": _Section(
        title="Members",
        columns=(
            OutputColumn("client_id"),
            OutputColumn("address"),
            OutputColumn("language", optional=True),
            OutputColumn("brokers", optional=True),
        ),
    ),
    "failed": _Section(
        title="Failed messages",
        columns=(
            OutputColumn("retries", "waiting for a retry"),
            OutputColumn("retried", "retried so far"),
            OutputColumn("dead_letters"),
            OutputColumn("last_dead_letter_timestamp_ms", optional=True),
        ),
    ),
    "settings": _Section(title="Settings", columns=_SETTINGS_COLUMNS),
    "changes": _Section(
        title="Changed by operators, the newest first",
        columns=(
            OutputColumn("timestamp_ms", "when"),
            OutputColumn("kind", "what"),
            OutputColumn("who"),
            OutputColumn("topic", optional=True),
            OutputColumn("from", "before", optional=True, keeps=True),
            OutputColumn("to", "after", optional=True, keeps=True),
            OutputColumn("requests", optional=True),
            OutputColumn("broker", optional=True),
            OutputColumn("detail", optional=True),
        ),
    ),
}
_LAG_COLUMNS = (
    *columns_of("topic", "broker", "queue", "lag"),
    OutputColumn("in_flight", "in flight", optional=True),
    OutputColumn("oldest_in_flight_timestamp_ms", optional=True),
    OutputColumn("renewals", optional=True),
    OutputColumn("committed"),
    OutputColumn("end"),
    OutputColumn("behind_since_timestamp_ms", optional=True),
)


def _look(cluster: CommandCluster, name: str) -> GroupSnapshot:
    check_group(name)
    return cluster.run(take_snapshot(cluster.directory, name, asks_members=False))


def watch_lag(
    cluster: CommandCluster, name: str, topic: str | None, pause_ms: int
) -> Iterator[tuple[list[Json], dict[str, str]]]:
    """Return the rows of each look, and why the queues of some brokers are missing."""

    def pause() -> None:
        cluster.run(sleep(max(pause_ms, WATCH_MS_MIN)))

    def look() -> tuple[list[Json], dict[str, str]]:
        snapshot = _look(cluster, name)
        return _lag_rows(snapshot, topic), snapshot.last.failures

    for found in keep_looking(look, pause):
        yield found
        pause()


def _lag_rows(snapshot: GroupSnapshot, topic: str | None) -> list[Json]:
    known = [p for p in snapshot.last.progress if topic is None or p.queue.topic == topic]
    if topic is not None and not known:
        topics = sorted({p.queue.topic for p in snapshot.last.progress})
        raise UsageError(
            f"group {snapshot.group} has no offsets in topic {topic!r}; it has in: "
            f"{', '.join(topics) or 'none'}"
        )
    return [
        {
            "topic": p.queue.topic,
            "broker": p.queue.broker_name,
            "queue": p.queue.queue_id,
            "lag": _lag(snapshot, [p]),
            "in_flight": p.in_flight or None,
            "oldest_in_flight_timestamp_ms": p.oldest_timestamp_ms or None,
            "renewals": p.renewals or None,
            "committed": p.committed_offset,
            "end": p.max_offset,
            "behind_since_timestamp_ms": _behind_since(snapshot, [p]),
        }
        for p in sorted(known, key=lambda p: (-p.lag, p.queue))
    ]


def _look_at(snapshot: GroupSnapshot, broker_names: Collection[str]) -> GroupSnapshot:
    """Return what a snapshot has of some brokers, for the rows of members and topics."""
    last = replace(
        snapshot.last,
        brokers=tuple(each for each in snapshot.last.brokers if each.broker_name in broker_names),
        progress=tuple(
            each for each in snapshot.last.progress if each.queue.broker_name in broker_names
        ),
    )
    topics = [
        replace(each, queues=tuple(at for at in each.queues if at.broker_name in broker_names))
        for each in snapshot.topics
    ]
    return replace(snapshot, samples=(last,), topics=tuple(each for each in topics if each.queues))


def _lag(snapshot: GroupSnapshot, progress: Sequence[QueueProgress]) -> int | None:
    """Return the number of unconsumed messages; None if unknown, as for BROADCASTING members."""
    return None if snapshot.is_broadcasting else sum(p.lag for p in progress)


def _behind_since(snapshot: GroupSnapshot, progress: Sequence[QueueProgress]) -> int | None:
    """Return when the first message that is not consumed was stored; None if none waits long."""
    if snapshot.is_broadcasting:
        return None
    wait_ms = max((p.wait_ms for p in progress), default=0)
    return snapshot.last.timestamp_ms - wait_ms if wait_ms else None


def _member_rows(snapshot: GroupSnapshot) -> list[Json]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for broker in snapshot.last.brokers:
        for connection in broker.connections:
            # A client uses another port at each broker, so that only the host identifies its
            # machine.
            host = connection.address.rpartition(":")[0]
            found.setdefault((connection.client_id, host, connection.language), []).append(
                broker.broker_name
            )
    return [
        {"client_id": client_id, "address": host, "language": language, "brokers": brokers}
        for (client_id, host, language), brokers in sorted(found.items())
    ]


def _topic_rows(snapshot: GroupSnapshot) -> list[Json]:
    expressions = {
        s.topic: s.expression for broker in snapshot.last.brokers for s in broker.subscriptions
    }
    rows: list[Json] = []
    for view in snapshot.topics:
        progress = [p for p in snapshot.last.progress if p.queue.topic == view.topic]
        rows.append(
            {
                "topic": view.topic,
                "expression": expressions.get(view.topic, ""),
                "queues": len(view.subscribe_queues),
                "lag": _lag(snapshot, progress),
                "behind_since_timestamp_ms": _behind_since(snapshot, progress),
            }
        )
    return rows


def _failed_row(snapshot: GroupSnapshot) -> Json:
    letters = snapshot.last.dead_letters
    retry = retry_topic(snapshot.group)
    retries = [p for p in snapshot.last.progress if p.queue.topic == retry]
    return {
        "retries": sum(p.lag for p in retries),
        "retried": sum(p.max_offset for p in retries),
        "dead_letters": snapshot.last.dead_letter_count,
        "last_dead_letter_timestamp_ms": letters.last_timestamp_ms or None,
    }


def _change_rows(snapshot: GroupSnapshot) -> list[Json]:
    return [
        {
            "timestamp_ms": change.timestamp_ms,
            "kind": change.kind,
            "who": change.who,
            "broker": broker,
            "topic": change.topic,
            "from": {str(queue_id): before for queue_id, before, _ in change.moves},
            "to": {str(queue_id): after for queue_id, _, after in change.moves},
            "requests": change.request_count,
            "detail": change.detail,
        }
        for broker, change in snapshot.last.changes
    ]


def _parse_target(text: str) -> Target:
    if text in ("earliest", "latest"):
        return Target(is_earliest=text == "earliest", is_latest=text == "latest")
    # Milliseconds since 1970 have more digits than any offset in practice.
    if text.isascii() and text.isdigit() and len(text) <= 10:
        return Target(offset=int(text))
    others = "earliest, latest, an offset, "
    return Target(timestamp_ms=parse_time(text, now_timestamp_ms=timestamp_ms(), others=others))


def _reset(
    cluster: CommandCluster,
    name: str,
    topic: str | None,
    queues: list[str],
    *,
    target: Target,
    is_confirmed: bool,
) -> None:
    # Brokers would commit offsets for a misspelt name too, and the group that was meant stays.
    seen = _look(cluster, name)
    chosen = topic or _only_topic(seen)
    operation = plan_reset(
        cluster.directory,
        name,
        chosen,
        target=target,
        queues=[parse_queue(each) for each in queues],
    )
    with naming_topic(cluster, chosen):
        plan = cluster.run(operation)
    read = _topics_of(seen)
    if read and not seen.find_topic(chosen):
        say(f"group {name} has no offset in {chosen} so far; it has in {', '.join(read)}")
    # No broker knows what members in BROADCASTING have consumed.
    is_known = not plan.is_broadcasting
    rows = [
        _reset_row(each) | ({} if is_known else {"before": None, "skipped": None})
        for each in plan.queues
        if each.is_needed or not is_known
    ]
    same = len(plan.queues) - len(rows)
    columns = columns_of("topic", "broker", "queue", "before", "after", "end", "skipped")
    skipped = sum(max(0, each.skipped) for each in plan.queues)
    again = sum(max(0, -each.skipped) for each in plan.queues)
    if rows:
        if plan.members:
            say(f"the brokers will notify {count_of(len(plan.members), 'connected member')}")
        say(
            f"{count_of(skipped, 'message')} will be skipped, {again:,} will be delivered again"
            if is_known
            else f"group {name} is BROADCASTING: no broker knows what its members have consumed"
        )
        if same:
            say(f"{count_of(same, 'more queue')} would not change")
    carry_out(
        cluster,
        rows,
        columns,
        is_confirmed=is_confirmed,
        apply=lambda: cluster.run(apply_reset(cluster.directory, plan)),
        done=f"group {name} continues from the new offsets",
        # A broker reports 0 also without a commit, and members are ahead of their commits.
        unchanged=None
        if is_confirmed
        else f"group {name} is at these offsets in {count_of(same, 'queue')} of {chosen}; "
        "--yes commits them again",
    )


def _reset_row(reset: QueueReset) -> Json:
    queue = reset.queue
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "before": reset.before,
        "after": reset.after,
        "end": reset.end,
        "skipped": reset.skipped,
    }


def _topics_of(snapshot: GroupSnapshot) -> list[str]:
    """Return the topics that a group reads, without its retry topic."""
    return [view.topic for view in snapshot.topics if view.topic != retry_topic(snapshot.group)]


def _only_topic(snapshot: GroupSnapshot) -> str:
    topics = _topics_of(snapshot)
    if len(topics) != 1:
        raise UsageError(
            f"group {snapshot.group} reads {', '.join(topics) or 'no topic'}; say which by --topic"
        )
    return topics[0]
