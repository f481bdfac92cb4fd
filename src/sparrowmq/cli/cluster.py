"""`sparrowmq ls`: the parts of a cluster, and what is visibly wrong with them.

Tests: test_topics_and_groups.py.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparrowmq.calling.effects import Operation, sleep
from sparrowmq.cli.connecting import CommandCluster, SamplesInterval, on_cluster
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
from sparrowmq.doctor.group_snapshot import LATE_MS, LETTER_IS_NEW_MS
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
    OutputColumn("trouble", optional=True, keeps=True),
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
    interval: SamplesInterval = 0.0,
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
        "groups": [
            group_row(group, flows.get(group.group), seen.timestamp_ms) for group in seen.groups
        ],
    }
    say_troubles(seen)
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
        "obstacle": broker.obstacle,
    }


def broker_trouble(broker: BrokerOverview) -> str:
    """Return why a broker does not answer or stores no messages, "" if it does both."""
    if not broker.failure and broker.obstacle:
        return Phrase("it stores no messages: {why}", why=broker.obstacle)
    return broker.failure


def say_troubles(seen: Overview) -> None:
    """Say which brokers do not answer, and are missing from what is shown, or store nothing."""
    for broker in seen.brokers:
        if trouble := broker_trouble(broker):
            say(f"{broker.name}: {words().phrase(trouble)}")


def topic_row(topic: TopicOverview, rate: float | None) -> Json:
    """Make the row of a topic."""
    return {
        "topic": topic.topic,
        "queues": topic.queue_count,
        "brokers": [place.broker_name for place in topic.places],
        "end_offsets": topic.max_offset,
        "in_per_s": rate,
        "groups": list(topic.groups),
        "trouble": topic_trouble(topic),
    }


def topic_trouble(topic: TopicOverview) -> str:
    """Return why nobody may use a topic, "" if its brokers permit it."""
    if not any(place.is_writable for place in topic.places):
        return Phrase("no broker accepts messages for topic {topic}", topic=topic.topic)
    if not any(place.is_readable for place in topic.places):
        return Phrase("no broker lets members read topic {topic}", topic=topic.topic)
    return ""


def group_row(group: GroupOverview, flow: FlowRates | None, timestamp_ms: int) -> Json:
    """Make the row of a group at a time."""
    oldest = group.oldest_waiting
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
        "behind_since_timestamp_ms": None if oldest is None else timestamp_ms - oldest.age_ms,
        "topics": [t.topic for t in group.topics],
        "trouble": trouble_of(group),
    }


def trouble_of(group: GroupOverview, *, late_ms: int = LATE_MS) -> str:
    """Return a group's visible faults in a few words, "" if there is none."""
    found: list[str] = []
    if group.duplicate_ids:
        found.append(
            Phrase("{ids} used twice", ids=count_of(len(group.duplicate_ids), "client id"))
        )
    if group.is_abandoned:
        found.append(Phrase("nobody consumes"))
    oldest = group.oldest_waiting
    if oldest is not None and oldest.age_ms >= late_ms:
        age, topic = format_duration(oldest.age_ms), oldest.queue.topic
        found.append(Phrase("a message of {topic} has waited for {time}", topic=topic, time=age))
    age_ms = group.last_dead_letter_age_ms
    if age_ms is not None and age_ms <= LETTER_IS_NEW_MS:
        count = count_of(group.dead_letters or 0, "message")
        age = format_duration(age_ms)
        found.append(
            Phrase("dead letters: {messages}, the last {time} ago", messages=count, time=age)
        )
    return Phrase("{troubles}", troubles=tuple(found)) if found else ""
