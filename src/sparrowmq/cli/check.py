"""`sparrowmq check`: a cluster's health in a line and an exit code. Tests: test_check.py."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from enum import IntEnum
from typing import Annotated, NamedTuple

import typer

from sparrowmq.cli.cluster import broker_trouble, topic_trouble, trouble_of
from sparrowmq.cli.connecting import CommandCluster, GroupsOption, on_cluster
from sparrowmq.cli.exit_codes import say
from sparrowmq.cli.language import words
from sparrowmq.cli.output import print_json
from sparrowmq.client.operations.overview import (
    BrokerOverview,
    GroupOverview,
    Overview,
    take_overview,
)
from sparrowmq.client.operations.snapshot import unknown_group
from sparrowmq.client.operations.waiting_messages import WAIT_MS_MIN
from sparrowmq.doctor.finding import NextCommand
from sparrowmq.doctor.group_snapshot import LATE_MS
from sparrowmq.doctor.topic_rules import command_to_permit
from sparrowmq.errors import UsageError
from sparrowmq.model.plain_text import escape
from sparrowmq.words import Phrase, count_of

# The lag in messages that gives a warning, unless a lower one is critical.
WARN_LAG = 10_000
# The faults for which `check` prints the command that says more.
COMMANDS_SHOWN_MAX = 3


class Health(IntEnum):
    """The health of a cluster; the value is the exit code that monitoring systems expect."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


class Trouble(NamedTuple):
    """One fault of a cluster, and the command that says more or ends it."""

    health: Health
    what: str
    why: str
    command: NextCommand


@on_cluster
def check(
    cluster: CommandCluster,
    group: GroupsOption = None,
    warn_lag: Annotated[
        int | None,
        typer.Option(
            "--warn-lag",
            min=1,
            help="lag in messages that gives a warning; by default 10000, or --max-lag if that is "
            "less",
        ),
    ] = None,
    max_lag: Annotated[
        int, typer.Option("--max-lag", min=1, help="lag in messages that is critical")
    ] = 100_000,
    warn_wait: Annotated[
        int,
        typer.Option(
            "--warn-wait",
            min=WAIT_MS_MIN // 1000,
            help="seconds that a message waits to be consumed that give a warning, however few "
            "messages wait",
        ),
    ] = LATE_MS // 1000,
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

    The check reads the brokers and their disks, and every group's lag, members, oldest message
    that waits, and dead letters of the last 10 minutes. Exit code 3: the cluster cannot be reached.

    \b
    Examples:
      sparrowmq check --max-lag 5000
      sparrowmq check --group GID_board || page-somebody
    """
    if warn_lag is None:
        warn_lag = min(WARN_LAG, max_lag)
    if warn_lag > max_lag:
        raise UsageError(f"--warn-lag {warn_lag} is more than --max-lag {max_lag}")
    wanted = group or []
    seen = cluster.run(take_overview(cluster.directory, asked_first=wanted, asked_max=None))
    chosen = _choose(seen, wanted)
    troubles = list(_find_troubles(seen, chosen, max_disk))
    for each in chosen:
        trouble = _judge(
            each,
            warn_lag=warn_lag,
            max_lag=max_lag,
            late_ms=warn_wait * 1000,
            is_wanted=bool(wanted),
        )
        if trouble is not None:
            troubles.append(trouble)
    troubles.sort(key=lambda trouble: -trouble.health)
    health = troubles[0].health if troubles else Health.OK
    _print(cluster, seen, chosen, health, troubles)
    raise typer.Exit(health)


def _print(
    cluster: CommandCluster,
    seen: Overview,
    chosen: Sequence[GroupOverview],
    health: Health,
    troubles: Sequence[Trouble],
) -> None:
    """Print the health and the troubles, the worst first."""
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
            why = words().phrase(trouble.why)
            print(escape(f"{trouble.health.name}: {trouble.what}: {why}"))
        for trouble in troubles[:COMMANDS_SHOWN_MAX]:
            label = words().phrase(trouble.command.label)
            say(f"{label}: {trouble.command.write(cluster.options)}")


def _choose(seen: Overview, wanted: Collection[str]) -> list[GroupOverview]:
    """Return the groups to check, all by default. Raises: UsageError for an unknown group."""
    known = {each.group for each in seen.groups}
    for name in wanted:
        if name not in known:
            raise unknown_group(name, known)
    return [each for each in seen.groups if not wanted or each.group in wanted]


def _find_troubles(
    seen: Overview, chosen: Collection[GroupOverview], max_disk: int
) -> Iterator[Trouble]:
    """Return the faults of brokers, and of the topics that the chosen groups consume."""
    for broker in seen.brokers:
        shows = NextCommand(Phrase("more"), ("broker", "show", broker.name))
        if why := broker_trouble(broker) or _disk_trouble(broker, max_disk):
            yield Trouble(Health.CRITICAL, broker.name, why, shows)
        if (days := broker.clock_lead_days) > 0:
            why = Phrase(
                "at its start its clock was {days} days ahead of its last message; if the clock is "
                "wrong, messages expire early",
                days=f"{days:,.0f}",
            )
            yield Trouble(Health.WARNING, broker.name, why, shows)
    consumed = {progress.topic for group in chosen for progress in group.topics}
    for topic in seen.topics:
        if topic.topic in consumed and (why := topic_trouble(topic)):
            yield Trouble(Health.WARNING, topic.topic, why, command_to_permit(topic.topic))


def _disk_trouble(broker: BrokerOverview, max_percent: int) -> str:
    """Return the fault of a broker's disk, "" if there is none."""
    used = broker.disk_used_ratio
    if used is None or used * 100 <= max_percent:
        return ""
    return Phrase("its disk is {percent} full", percent=f"{used:.0%}")


def _judge(
    group: GroupOverview, *, warn_lag: int, max_lag: int, late_ms: int, is_wanted: bool
) -> Trouble | None:
    """Return the worst fault of a group, None if there is none.

    Args:
        is_wanted: whether the group is asked for by name, so that it should have consumed by now.
    """
    trouble = trouble_of(group, late_ms=late_ms)
    why = Phrase("{messages} behind", messages=count_of(group.lag, "message"))
    if is_wanted and group.known_lag is None and group.member_count == 0:
        trouble, why = Phrase("nobody consumes"), Phrase("brokers know no offset of the group")
    if trouble:
        why = Phrase("{trouble}, {behind}", trouble=trouble, behind=why)
    command = NextCommand(Phrase("more"), ("rebalance", "doctor", group.group))
    if (
        group.duplicate_ids
        or group.lag >= max_lag
        or (group.is_abandoned and group.lag >= warn_lag)
    ):
        return Trouble(Health.CRITICAL, group.group, why, command)
    if group.lag >= warn_lag or trouble:
        return Trouble(Health.WARNING, group.group, why, command)
    return None
