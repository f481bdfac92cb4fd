"""`sparrowmq rebalance`: look at a consumer group of any RocketMQ cluster; simulate; drill.

Data goes to stdout, prose to stderr. Exit codes: 0, success; 1, a finding as severe as `--fail-on`;
2, a wrong argument, also an unknown group or strategy; 3, the cluster cannot be reached, or with
`--fail-on` a group of it could not be looked at; 130, Ctrl-C.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.cli import rebalance_json, rebalance_view
from sparrowmq.cli.cluster import say_troubles
from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.connecting import (
    AsJson,
    CommandCluster,
    GroupName,
    OneTopicOption,
    complete_group,
    on_cluster,
)
from sparrowmq.cli.exit_codes import EXIT_FAILED, EXIT_FOUND, keep_looking, reporting_errors, say
from sparrowmq.cli.language import words
from sparrowmq.cli.option_sets import naming_options
from sparrowmq.cli.output import make_console, print_json, print_on
from sparrowmq.client.operations.groups import take_snapshots
from sparrowmq.client.operations.overview import take_overview
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor import GroupSnapshot, Severity, diagnose
from sparrowmq.doctor.explain import explain as explain_queue
from sparrowmq.doctor.explain import find_queue
from sparrowmq.doctor.finding import Finding
from sparrowmq.doctor.group_view import GroupView, examine, is_watched
from sparrowmq.doctor.whatif import Plan, parse_events, simulate_all
from sparrowmq.doctor.whatif import simulate as simulate_strategy
from sparrowmq.doctor.workloads import (
    DURATION_S,
    MEMBER_COUNT,
    QUEUE_COUNT,
    SEEDS,
    WORKLOADS,
    GroupSize,
    compare,
    parse_workloads,
)
from sparrowmq.drills.kinds import QUEUE_COUNTS, RATES, DrillKind
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model.names import check_group
from sparrowmq.model.plain_text import escape
from sparrowmq.model.spelling import TIME_HELP, parse_time
from sparrowmq.strategies.registry import NEEDS_SETTINGS, strategy_from
from sparrowmq.words import count_of

# The groups that one run of the doctor looks at.
GROUPS_MAX = 500

# The numbers of a simulation, and their options.
_PLAN_OPTIONS = {name: name for name in ("queues", "members", "brokers", "rooms", "events")}
# The defaults of the options that simulate joins alone: strategy, events, brokers, rooms and twins.
_JOIN_DEFAULTS = ("AVG", "join,leave", 1, 1, False)

rebalance = make_group("Show the owners of a group's queues, the reason, and what is wrong.")


class FailOn(StrEnum):
    """The least severity that makes the exit code 1."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"
    NEVER = "never"


Look = Callable[[int], GroupSnapshot]

Interval = Annotated[
    float,
    typer.Option(
        "--interval",
        min=0.0,
        max=600.0,
        help="seconds between the two samples; 0 takes one and shows no rates",
    ),
]
StrategyName = Annotated[
    str | None,
    typer.Option(
        "--strategy", help="the group's strategy; by default the one that members report, else AVG"
    ),
]


@rebalance.command()
@on_cluster
def show(
    cluster: CommandCluster,
    group: GroupName,
    strategy: StrategyName = None,
    interval: Interval = 1.0,
) -> None:
    """Show the queue × client matrix with lag; a queue without an owner is hatched."""
    look = _looking(cluster, group, strategy)
    view = examine(look(_ms(interval)))
    if cluster.as_json:
        print_json(rebalance_json.json_of_group(view))
    else:
        console = make_console()
        print_on(console, rebalance_view.render_group(view, console))


@rebalance.command()
@on_cluster
def watch(
    cluster: CommandCluster,
    group: GroupName,
    strategy: StrategyName = None,
    interval: Interval = 2.0,
    count: Annotated[
        int,
        typer.Option(
            "--count",
            min=0,
            max=1_000_000_000,
            help="number of snapshots; 0 goes on until Ctrl-C",
        ),
    ] = 0,
) -> None:
    """Show the matrix repeatedly; with --json, print one object a line."""
    look = _looking(cluster, group, strategy)
    pause_ms = max(_ms(interval), 100)
    last: GroupView | None = None

    def look_again() -> GroupView:
        nonlocal last
        snapshot = look(pause_ms)
        known = {} if last is None else last.standings
        last = examine(snapshot, known, is_watched=is_watched(last, snapshot.last.timestamp_ms))
        return last

    looks = keep_looking(look_again, partial(time.sleep, pause_ms / 1000))
    views = islice(looks, count or None)
    console = make_console()
    if cluster.as_json:
        for view in views:
            print_json(rebalance_json.json_of_group(view), is_one_line=True)
    elif not console.is_terminal:
        for view in views:
            print_on(console, rebalance_view.render_group(view, console))
    else:
        from rich.live import Live

        with Live(console=console, auto_refresh=False) as live:
            for view in views:
                shown = rebalance_view.render_group(view, console, is_watched=True)
                live.update(shown, refresh=True)


@rebalance.command()
@on_cluster
def doctor(
    cluster: CommandCluster,
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[GROUP]",
            help="the consumer group; by default all groups",
            autocompletion=complete_group,
        ),
    ] = None,
    strategy: StrategyName = None,
    interval: Interval = 6.0,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            min=1,
            max=GROUPS_MAX,
            help="without a group: look at N groups at most, those with the most lag first",
        ),
    ] = GROUPS_MAX,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="exit with 1 if a finding is at least this severe")
    ] = FailOn.NEVER,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            help="do not look now, but say what happened since then by the live page's history: "
            + TIME_HELP,
        ),
    ] = None,
    data: Annotated[
        Path, typer.Option("--data", help="with --since: the directory of the live page's history")
    ] = Path("sparrowmq-data"),
) -> None:
    """Report what is wrong with a group, or with all: evidence, consequence and remedy.

    \b
    Examples:
      sparrowmq rebalance doctor GID_board
      sparrowmq rebalance doctor --fail-on error      # all groups; for a job
      sparrowmq rebalance doctor GID_board --since 03:00      # what happened in the night
    """
    if since is not None:
        if strategy is not None or fail_on is not FailOn.NEVER:
            raise UsageError("--strategy and --fail-on are for a look now; leave out --since")
        now_ms = timestamp_ms()
        if (since_ms := parse_time(since, now_timestamp_ms=now_ms)) > now_ms:
            raise UsageError(f"--since {since} lies in the future; leave it out for a look now")
        _report_past(cluster, group, since_ms, data)
        return
    _report_now(cluster, group, strategy, interval, limit, fail_on)


def _report_now(
    cluster: CommandCluster,
    group: str | None,
    strategy: str | None,
    interval: float,
    limit: int,
    fail_on: FailOn,
) -> None:
    """Look at a group, or at all, and print the findings. Raises: typer.Exit by `fail_on`."""
    left_out: list[str] = []
    failures: Mapping[str, SparrowError] = {}
    if group is not None:
        look = _looking(cluster, group, strategy)
        if interval:
            say(f"looking at group {group} twice, {interval:g} s apart")
        snapshots = [look(_ms(interval))]
    else:
        if strategy is not None:
            raise UsageError("--strategy applies to one group; name the group")
        snapshots, failures, behind = _look_at_all(cluster, limit, interval)
        left_out = [*failures, *behind]
    diagnoses = [(examine(snapshot), diagnose(snapshot)) for snapshot in snapshots]
    diagnoses.sort(key=lambda pair: _urgency(*pair))
    if cluster.as_json:
        reports = [rebalance_json.json_of_findings(*pair) for pair in diagnoses]
        if group is None:
            print_json({"groups": reports, "not_looked_at": left_out})
        else:
            print_json(reports[0])
    else:
        _print_diagnoses(diagnoses, cluster.options, is_all=group is None)
        if left_out:
            count = words().count(len(diagnoses) + len(left_out), "group")
            print(words()("not looked at: {n} of {groups}", n=len(left_out), groups=count))
    if fail_on is not FailOn.NEVER:
        worst = Severity[fail_on.name]
        if any(finding.severity >= worst for _, found in diagnoses for finding in found):
            raise typer.Exit(EXIT_FOUND)
        if failures:
            raise typer.Exit(EXIT_FAILED)


def _report_past(cluster: CommandCluster, group: str | None, since_ms: int, data: Path) -> None:
    """Say what happened to a group, or to all, since a time."""
    from sparrowmq.cli.past_groups import json_of_past, read_past, render_past

    name_server = cluster.context.name_server
    found = read_past(data, name_server, group, since_ms=since_ms, until_ms=timestamp_ms())
    if cluster.as_json:
        reports = [json_of_past(past) for past in found]
        print_json(reports[0] if group is not None else {"groups": reports})
        return
    console = make_console()
    for past in found:
        print_on(console, render_past(past))
    if not any(past.watched for past in found):
        say("nobody looked since then; the live page keeps a history while it runs")


def _look_at_all(
    cluster: CommandCluster, limit: int, interval_s: float
) -> tuple[list[GroupSnapshot], Mapping[str, SparrowError], list[str]]:
    """Look at the groups with the most lag.

    Returns: what was seen, the errors of groups that could not be looked at, and the other groups.
    """
    seen = cluster.run(take_overview(cluster.directory))
    say_troubles(seen)
    names = [group.group for group in seen.groups]
    if len(names) > limit:
        say(f"looking at the {limit} of {len(names)} groups with the most lag; see --limit")
    if interval_s and names:
        count = count_of(min(limit, len(names)), "group")
        say(f"looking at {count} twice, {interval_s:g} s apart")
    operation = take_snapshots(cluster.directory, names[:limit], interval_ms=_ms(interval_s))
    found, failures = cluster.run(operation)
    if failures and not found:
        raise next(iter(failures.values()))
    for name, error in failures.items():
        say(f"group {name} was left out: {error}")
    return found, failures, names[limit:]


def _urgency(view: GroupView, findings: list[Finding]) -> tuple[int, int, str]:
    worst = max((finding.severity for finding in findings), default=0)
    return -worst, -(view.known_lag or 0), view.snapshot.group


def _print_diagnoses(
    diagnoses: list[tuple[GroupView, list[Finding]]],
    options: tuple[str, ...],
    *,
    is_all: bool,
) -> None:
    """Print the findings. Of all groups, those without a finding are only named."""
    console = make_console()
    fine = []
    for view, findings in diagnoses:
        if findings or not is_all:
            print_on(console, rebalance_view.render_findings(view, findings, options))
        else:
            fine.append(view.snapshot.group)
    if fine:
        print(escape(f"nothing is wrong with {', '.join(fine)}"))
        if not all(view.can_see_standstill for view, _ in diagnoses):
            print(words()("the samples were too close to detect a queue that stands still"))
    elif is_all and not diagnoses:
        say("the cluster has no consumer group")


@rebalance.command()
@on_cluster
def explain(
    cluster: CommandCluster,
    group: GroupName,
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="the queue as BROKER:ID, such as broker-a:3")
    ],
    topic: OneTopicOption = None,
    strategy: StrategyName = None,
) -> None:
    """Explain a queue's owner: the sorted client ids, the sorted queues and the arithmetic."""
    look = _looking(cluster, group, strategy)
    snapshot = look(0)
    found = explain_queue(snapshot, find_queue(snapshot, queue, topic=topic))
    if cluster.as_json:
        print_json(rebalance_json.json_of_explanations(snapshot, found))
        return
    if len(found) > 1:
        say(f"the brokers return {len(found)} different lists of members")
    if not snapshot.strategy_is_known:
        say("no member reported its strategy: AVG, RocketMQ's default, is assumed")
    console = make_console()
    for explanation in found:
        print_on(console, rebalance_view.render_explanation(explanation))


@rebalance.command()
def simulate(
    queues: Annotated[
        int | None,
        typer.Option("--queues", help="queues of the topic; by default 8, or 64 for a workload"),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option("--members", help="members at the start; by default 3, or 8 for a workload"),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload",
            help="simulate lags instead of joins: "
            f"{', '.join(each.name for each in WORKLOADS)} or all; may be repeated",
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy", help="the strategy whose assignments are shown; the comparison has all"
        ),
    ] = "AVG",
    events: Annotated[
        str, typer.Option("--events", help="join, leave[:N], kill[:N], separated by commas")
    ] = "join,leave",
    brokers: Annotated[int, typer.Option("--brokers", help="brokers that share the queues")] = 1,
    rooms: Annotated[int, typer.Option("--rooms", help="machine rooms of the brokers")] = 1,
    duplicate_id: Annotated[
        bool, typer.Option("--duplicate-id", help="the last member has the client id of the first")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate joins and leaves under RocketMQ's strategies, SparrowMQ's and Kafka's.

    With --workload, simulate 20 minutes of messages instead: equal or unequal queues and members.

    \b
    Examples:
      sparrowmq rebalance simulate --queues 16 --members 4 --events join,kill
      sparrowmq rebalance simulate --workload all
    """
    with reporting_errors(), naming_options(_PLAN_OPTIONS):
        if workload:
            if (strategy, events, brokers, rooms, duplicate_id) != _JOIN_DEFAULTS:
                raise UsageError(
                    "--strategy, --events, --brokers, --rooms and --duplicate-id are for joins; "
                    "leave out --workload"
                )
            _simulate_workloads(workload, queues, members, as_json=as_json)
            return
        plan = Plan(
            queue_count=8 if queues is None else queues,
            member_count=3 if members is None else members,
            events=parse_events(events),
            broker_count=brokers,
            room_count=rooms,
            has_duplicate_id=duplicate_id,
        )
        chosen = simulate_strategy(plan, strategy)
        runs = simulate_all(plan)
        if as_json:
            known = {run.strategy for run in runs}
            extra = [] if chosen.strategy in known else [chosen]
            print_json(rebalance_json.json_of_runs(plan, [*extra, *runs]))
            return
        console = make_console()
        print_on(console, rebalance_view.render_run(plan, chosen))
        print_on(console, rebalance_view.render_comparison(plan, runs, console))


def _simulate_workloads(
    names: list[str], queues: int | None, members: int | None, *, as_json: bool
) -> None:
    chosen = parse_workloads(names)
    size = GroupSize(
        QUEUE_COUNT if queues is None else queues, MEMBER_COUNT if members is None else members
    )
    say(f"simulating {count_of(DURATION_S // 60, 'minute')}, {len(SEEDS)} times each")
    results = [(each, compare(each, random.Random, size=size)) for each in chosen]
    if as_json:
        print_json(rebalance_json.json_of_workloads(size, results))
        return
    print_on(make_console(), rebalance_view.render_workloads(size, results))


@rebalance.command()
def drill(
    kind: Annotated[DrillKind, typer.Argument(metavar="DRILL", help="the failure to stage")],
    queues: Annotated[
        int,
        typer.Option(
            "--queues", min=QUEUE_COUNTS[0], max=QUEUE_COUNTS[-1], help="queues of the topic"
        ),
    ] = 8,
    rate: Annotated[
        int, typer.Option("--rate", min=RATES[0], max=RATES[-1], help="messages sent a second")
    ] = 200,
    as_json: AsJson = False,
) -> None:
    """Stage a failure (kill, join, leave, duplicate-id, partition or slow) on a private cluster."""
    from sparrowmq.drills.drill import run_drill

    with reporting_errors():
        report = run_drill(kind, queue_count=queues, rate=rate, on_event=say)
        if as_json:
            print_json(rebalance_json.json_of_drill(report))
            return
        console = make_console()
        print_on(console, rebalance_view.render_drill(report, console))


def _looking(cluster: CommandCluster, group: str, strategy: str | None) -> Look:
    """Return a function that looks at the group. Raises: ConfigError."""
    check_group(group)
    # Only the members know the settings of some strategies: owners come from their reports.
    if strategy is not None and strategy not in NEEDS_SETTINGS:
        strategy_from(strategy)
    return lambda interval_ms: cluster.run(
        take_snapshot(cluster.directory, group, interval_ms=interval_ms, strategy=strategy)
    )


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
