"""`sparrowmq ls` and `check`: the parts of a cluster, the groups that lag, and its health.

Tests: test_check.py, test_topics_and_groups.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Any, NamedTuple

import typer

from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.cli.connecting import CommandCluster, on_cluster
from sparrowmq.cli.exit_codes import say
from sparrowmq.cli.language import words
from sparrowmq.cli.output import Json, OutputColumn, make_console, print_json, print_rows
from sparrowmq.client.operations.overview import (
    BrokerOverview,
    FlowRates,
    GroupOverview,
    Overview,
    TopicOverview,
    group_flows,
    take_overview,
    topic_rates,
)
from sparrowmq.doctor.group_snapshot import LETTER_IS_NEW_MS
from sparrowmq.errors import UsageError, did_you_mean
from sparrowmq.words import Phrase, count_of, format_duration

BROKER_COLUMNS = (
    OutputColumn("broker"),
    OutputColumn("cluster", optional=True),
    OutputColumn("address"),
    OutputColumn("version", optional=True),
    OutputColumn("puts_per_s", "in/s"),
    OutputColumn("gets_per_s", "out/s"),
)
TOPIC_COLUMNS = (
    OutputColumn("topic"),
    OutputColumn("queues"),
    OutputColumn("end_offsets", "written"),
    OutputColumn("in_per_s", "in/s", optional=True),
    OutputColumn("groups", optional=True),
)
GROUP_COLUMNS = (
    OutputColumn("group"),
    OutputColumn("lag"),
    OutputColumn("in_flight", "in flight", optional=True),
    OutputColumn("oldest_in_flight_timestamp_ms", optional=True),
    OutputColumn("renewals", optional=True),
    OutputColumn("retries", optional=True),
    OutputColumn("dead_letters", "dead", optional=True),
    OutputColumn("in_per_s", "in/s", optional=True),
    OutputColumn("out_per_s", "out/s", optional=True),
    OutputColumn("retried_per_s", "retried/s", optional=True),
    OutputColumn("member_count", "members"),
    OutputColumn("behind_since_timestamp_ms", optional=True),
    OutputColumn("topics", optional=True),
    OutputColumn("trouble", optional=True, keeps=True),
)


@on_cluster
def ls(
    cluster: CommandCluster,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="also show RocketMQ's internal topics")
    ] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            min=0.0,
            max=600.0,
            help="seconds between the two samples from which rates are computed",
        ),
    ] = 0.0,
    limit: Annotated[
        int,
        typer.Option("--limit", min=0, help="rows that each table has on a terminal; 0 shows all"),
    ] = 30,
) -> None:
    """List brokers, topics and consumer groups; those that need attention come first.

    \b
    Examples:
      sparrowmq ls
      sparrowmq ls --interval 2        # with messages a second
      sparrowmq ls --json | jq '.groups[] | select(.lag > 1000) | .group'
    """
    console = make_console()
    shown = limit if limit and console.is_terminal and not cluster.as_json else None
    before, seen = cluster.run(look_twice(cluster, round(interval * 1000), asked_max=shown))
    topics = [t for t in seen.topics if every or not t.is_internal]
    flows = {} if before is None else group_flows(before, seen)
    rates = {} if before is None else topic_rates(before, seen)
    found: dict[str, Any] = {
        "timestamp_ms": seen.timestamp_ms,
        "brokers": [broker_row(broker) for broker in seen.brokers],
        "topics": [topic_row(topic, rates.get(topic.topic)) for topic in topics],
        "groups": [group_row(group, flows.get(group.group)) for group in seen.groups],
    }
    for broker in seen.brokers:
        if broker.failure:
            say(f"{broker.name}: {broker.failure}")
    if cluster.as_json:
        print_json(found)
        return
    for title, rows, columns in (
        ("Brokers", found["brokers"], BROKER_COLUMNS),
        ("Topics", found["topics"], TOPIC_COLUMNS),
        ("Groups", found["groups"], GROUP_COLUMNS),
    ):
        print_rows(rows[:shown], columns, title=title, console=console)
        if shown is not None and len(rows) > shown:
            say(f"{len(rows) - shown} more {title.lower()}; --limit 0 shows all")


def look_twice(
    cluster: CommandCluster, interval_ms: int, *, asked_max: int | None
) -> Operation[tuple[Overview | None, Overview]]:
    """Look at the cluster, twice if an interval is given. Args and raises: as `take_overview`."""
    before = None
    if interval_ms:
        before = yield from take_overview(cluster.directory, asked_max=0)
        yield from sleep(interval_ms)
    return before, (yield from take_overview(cluster.directory, asked_max=asked_max))


def broker_row(broker: BrokerOverview) -> Json:
    """Make the row of a broker."""
    return {
        "broker": broker.name,
        "cluster": broker.cluster,
        "address": broker.address,
        "version": broker.version,
        "puts_per_s": broker.puts_per_s,
        "gets_per_s": broker.gets_per_s,
        "failure": broker.failure,
    }


def topic_row(topic: TopicOverview, rate: float | None) -> Json:
    """Make the row of a topic."""
    return {
        "topic": topic.topic,
        "queues": topic.queue_count,
        "brokers": [place.broker_name for place in topic.places],
        "end_offsets": topic.max_offset,
        "in_per_s": rate,
        "groups": list(topic.groups),
    }


def group_row(group: GroupOverview, flow: FlowRates | None) -> Json:
    """Make the row of a group."""
    times = [t.last_timestamp_ms for t in group.topics if t.last_timestamp_ms is not None]
    return {
        "group": group.group,
        "lag": group.known_lag,
        "in_flight": group.in_flight,
        "oldest_in_flight_timestamp_ms": group.oldest_timestamp_ms,
        "renewals": group.renewals or None,
        "retries": group.retry_lag,
        "dead_letters": group.dead_letters,
        "in_per_s": None if flow is None else flow.produced_per_s,
        "out_per_s": None if flow is None else flow.consumed_per_s,
        "retried_per_s": None if flow is None else flow.retried_per_s,
        "member_count": group.member_count,
        "members": group.members,
        "behind_since_timestamp_ms": min(times, default=None),
        "topics": [t.topic for t in group.topics],
        "trouble": trouble_of(group),
    }


def trouble_of(group: GroupOverview) -> str:
    """Return a group's visible fault in a few words, "" if there is none."""
    if group.duplicate_ids:
        return Phrase("{ids} used twice", ids=count_of(len(group.duplicate_ids), "client id"))
    if group.is_abandoned:
        return Phrase("nobody consumes")
    age_ms = group.last_dead_letter_age_ms
    if age_ms is not None and age_ms <= LETTER_IS_NEW_MS:
        count = count_of(group.dead_letters or 0, "message")
        age = format_duration(age_ms)
        return Phrase("dead letters: {messages}, the last {time} ago", messages=count, time=age)
    return ""


class Health(IntEnum):
    """The health of a cluster; the value is the exit code that monitoring systems expect."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


class Trouble(NamedTuple):
    """One fault of a cluster."""

    health: Health
    what: str
    why: str


@on_cluster
def check(
    cluster: CommandCluster,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="check only this group; may be repeated"),
    ] = None,
    warn_lag: Annotated[
        int, typer.Option("--warn-lag", min=1, help="lag in messages that gives a warning")
    ] = 10_000,
    max_lag: Annotated[
        int, typer.Option("--max-lag", min=1, help="lag in messages that is critical")
    ] = 100_000,
    max_disk: Annotated[
        int,
        typer.Option(
            min=0,
            max=100,
            help="percentage of a broker's disk in use that is critical; by default brokers "
            "refuse messages above 90",
        ),
    ] = 90,
) -> None:
    """Print a cluster's health in one line; exit with 0 for OK, 1 for a warning, 2 for critical.

    The check reads the brokers and their disks, and every group's lag, members and dead letters of
    the last 10 minutes. Exit code 3: the cluster cannot be reached.

    \b
    Examples:
      sparrowmq check --max-lag 5000
      sparrowmq check --group GID_board || page-somebody
    """
    if warn_lag > max_lag:
        raise UsageError(f"--warn-lag {warn_lag} is more than --max-lag {max_lag}")
    wanted = group or []
    seen = cluster.run(take_overview(cluster.directory, asked_first=wanted, asked_max=None))
    known = {each.group for each in seen.groups}
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UsageError(f"no broker knows consumer group {name!r}{hint}")
    chosen = [each for each in seen.groups if not wanted or each.group in wanted]
    troubles = [
        Trouble(Health.CRITICAL, broker.name, why)
        for broker in seen.brokers
        if (why := broker.failure or _disk_trouble(broker, max_disk))
    ]
    for each in chosen:
        trouble = _judge(each, warn_lag=warn_lag, max_lag=max_lag)
        if trouble is not None:
            troubles.append(trouble)
    troubles.sort(key=lambda trouble: -trouble.health)
    health = troubles[0].health if troubles else Health.OK
    lag = sum(each.lag for each in chosen)
    if cluster.as_json:
        found = [{"health": t.health.name, "what": t.what, "why": t.why} for t in troubles]
        print_json({"health": health.name, "lag": lag, "troubles": found})
    else:
        summary = words()(
            "{brokers}, {groups}, {messages} behind",
            brokers=words().count(len(seen.brokers), "broker"),
            groups=words().count(len(chosen), "group"),
            messages=words().count(lag, "message"),
        )
        print(f"{health.name}: {summary}")
        for trouble in troubles:
            print(f"{trouble.health.name}: {trouble.what}: {words().phrase(trouble.why)}")
    raise typer.Exit(health)


def _disk_trouble(broker: BrokerOverview, max_percent: int) -> str:
    """Return the fault of a broker's disk, "" if there is none."""
    used = broker.disk_used_ratio
    if used is None or used * 100 <= max_percent:
        return ""
    return Phrase("its disk is {percent} full", percent=f"{used:.0%}")


def _judge(group: GroupOverview, *, warn_lag: int, max_lag: int) -> Trouble | None:
    """Return the worst fault of a group, None if there is none."""
    trouble = trouble_of(group)
    why = Phrase("{messages} behind", messages=count_of(group.lag, "message"))
    if trouble:
        why = Phrase("{trouble}, {behind}", trouble=trouble, behind=why)
    if (
        group.duplicate_ids
        or group.lag >= max_lag
        or (group.is_abandoned and group.lag >= warn_lag)
    ):
        return Trouble(Health.CRITICAL, group.group, why)
    if group.lag >= warn_lag or trouble:
        return Trouble(Health.WARNING, group.group, why)
    return None
