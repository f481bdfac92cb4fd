"""`sparrowmq rebalance`: look at a consumer group of any RocketMQ cluster; simulate; drill.

Data goes to stdout, prose to stderr. Exit code 0 is fine; 1 is a finding as bad as `--fail-on`; 2
is a wrong argument, an unknown group or strategy included; 3 is a cluster that could not be
looked at; 130 is Ctrl-C.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer
from rich.live import Live

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.cli import rebalance_json, rebalance_view
from sparrowmq.cli.connecting import TlsCa, client_tls
from sparrowmq.cli.failures import reporting_errors, say
from sparrowmq.client.assembly import make_directory
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor import GroupSnapshot, Severity, diagnose
from sparrowmq.doctor.case import Case, examine
from sparrowmq.doctor.explain import explain as explain_queue
from sparrowmq.doctor.explain import find_queue
from sparrowmq.doctor.whatif import Plan, parse_events, simulate_all
from sparrowmq.doctor.whatif import simulate as simulate_strategy
from sparrowmq.drills.drill import DrillKind, run_drill
from sparrowmq.errors import SparrowError
from sparrowmq.model.names import check_group
from sparrowmq.strategies.registry import strategy_from

EXIT_FOUND = 1
# Nobody outside knows their settings: owners are what members tell.
_STRATEGIES_WITH_SETTINGS = frozenset({"CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY"})

rebalance = typer.Typer(
    help="Who owns which queue of a consumer group, why, and what is wrong.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class FailOn(StrEnum):
    """From which severity on the exit code is 1."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"
    NEVER = "never"


Look = Callable[[int], GroupSnapshot]

GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="the consumer group")]
NameServer = Annotated[
    str, typer.Option("--nameserver", "-n", help="host:port of name servers, separated by ';'")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on stdout")]
Interval = Annotated[
    float,
    typer.Option(
        "--interval", min=0.0, max=600.0, help="seconds between two looks; 0 looks once, no rates"
    ),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=60.0, help="seconds to wait for each answer")
]
StrategyName = Annotated[
    str | None,
    typer.Option("--strategy", help="the group's strategy; else what members tell, or AVG"),
]


@rebalance.command()
def show(
    group: GroupName,
    nameserver: NameServer = "127.0.0.1:9876",
    tls_ca: TlsCa = "",
    strategy: StrategyName = None,
    interval: Interval = 1.0,
    timeout: Timeout = 3.0,
    as_json: AsJson = False,
) -> None:
    """Show the queue × client matrix, with lag; hatched where nobody owns a queue."""
    with _looking(group, nameserver, tls_ca, strategy, timeout) as look:
        case = examine(look(_ms(interval)))
        if as_json:
            _print_json(rebalance_json.json_of_group(case))
        else:
            console = rebalance_view.make_console()
            rebalance_view.show(console, rebalance_view.render_group(case, console))


@rebalance.command()
def watch(
    group: GroupName,
    nameserver: NameServer = "127.0.0.1:9876",
    tls_ca: TlsCa = "",
    strategy: StrategyName = None,
    interval: Interval = 2.0,
    timeout: Timeout = 3.0,
    count: Annotated[
        int, typer.Option("--count", min=0, help="how many times; 0 until Ctrl-C")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the matrix again and again; with --json, one object a line."""
    with _looking(group, nameserver, tls_ca, strategy, timeout) as look:
        pause_ms = max(_ms(interval), 100)
        cases = _watch(look, pause_ms, count)
        console = rebalance_view.make_console()
        if as_json:
            for case in cases:
                _print_json(rebalance_json.json_of_group(case), is_one_line=True)
        elif not console.is_terminal:
            for case in cases:
                rebalance_view.show(console, rebalance_view.render_group(case, console))
        else:
            with Live(console=console, auto_refresh=False) as live:
                for case in cases:
                    shown = rebalance_view.render_group(case, console, is_watched=True)
                    live.update(shown, refresh=True)


@rebalance.command()
def doctor(
    group: GroupName,
    nameserver: NameServer = "127.0.0.1:9876",
    tls_ca: TlsCa = "",
    strategy: StrategyName = None,
    interval: Interval = 6.0,
    timeout: Timeout = 3.0,
    fail_on: Annotated[
        FailOn, typer.Option("--fail-on", help="exit with 1 if a finding is as bad as this")
    ] = FailOn.NEVER,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with a group: what was seen, what it means, what to do."""
    with _looking(group, nameserver, tls_ca, strategy, timeout) as look:
        if interval:
            say(f"looking at group {group} twice, {interval:g} s apart")
        snapshot = look(_ms(interval))
        case, findings = examine(snapshot), diagnose(snapshot)
        if as_json:
            _print_json(rebalance_json.json_of_findings(case, findings))
        else:
            console = rebalance_view.make_console()
            rebalance_view.show(console, rebalance_view.render_findings(case, findings))
    if fail_on is not FailOn.NEVER:
        limit = Severity[fail_on.name]
        if any(finding.severity >= limit for finding in findings):
            raise typer.Exit(EXIT_FOUND)


@rebalance.command()
def explain(
    group: GroupName,
    queue: Annotated[str, typer.Option("--queue", "-q", help="BROKER:ID, such as broker-a:3")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="the topic, if the group has several")
    ] = None,
    nameserver: NameServer = "127.0.0.1:9876",
    tls_ca: TlsCa = "",
    strategy: StrategyName = None,
    timeout: Timeout = 3.0,
    as_json: AsJson = False,
) -> None:
    """Say why a queue has the owner it has: sorted ids, sorted queues, the arithmetic."""
    with _looking(group, nameserver, tls_ca, strategy, timeout) as look:
        snapshot = look(0)
        found = explain_queue(snapshot, find_queue(snapshot, queue, topic=topic))
        if as_json:
            _print_json(rebalance_json.json_of_explanations(snapshot, found))
            return
        if len(found) > 1:
            say(f"brokers give out {len(found)} different lists of members")
        if not snapshot.strategy_is_known:
            say("no member told its strategy: AVG, RocketMQ's default, is assumed")
        console = rebalance_view.make_console()
        for explanation in found:
            rebalance_view.show(console, rebalance_view.render_explanation(explanation))


@rebalance.command()
def simulate(
    queues: Annotated[int, typer.Option("--queues", help="queues of the topic")] = 8,
    members: Annotated[int, typer.Option("--members", help="members at first")] = 3,
    strategy: Annotated[
        str, typer.Option("--strategy", help="whose assignments to show; all are compared")
    ] = "AVG",
    events: Annotated[
        str, typer.Option("--events", help="join, leave[:N], kill[:N], separated by commas")
    ] = "join,leave",
    brokers: Annotated[int, typer.Option("--brokers", help="brokers that share the queues")] = 1,
    rooms: Annotated[int, typer.Option("--rooms", help="machine rooms they stand in")] = 1,
    duplicate_id: Annotated[
        bool, typer.Option("--duplicate-id", help="the last member carries the first one's id")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Simulate joins and leaves under RocketMQ's strategies, SparrowMQ's and Kafka's."""
    with reporting_errors():
        plan = Plan(
            queue_count=queues,
            member_count=members,
            events=parse_events(events),
            broker_count=brokers,
            room_count=rooms,
            has_duplicate_id=duplicate_id,
        )
        chosen = simulate_strategy(plan, strategy)
        courses = simulate_all(plan)
        if as_json:
            known = {course.strategy for course in courses}
            extra = [] if chosen.strategy in known else [chosen]
            _print_json(rebalance_json.json_of_courses(plan, [*extra, *courses]))
            return
        console = rebalance_view.make_console()
        rebalance_view.show(console, rebalance_view.render_course(plan, chosen))
        rebalance_view.show(console, rebalance_view.render_comparison(plan, courses, console))


@rebalance.command()
def drill(
    kind: Annotated[DrillKind, typer.Argument(metavar="DRILL", help="what to stage")],
    queues: Annotated[int, typer.Option("--queues", min=3, max=64, help="queues of the topic")] = 8,
    rate: Annotated[
        int, typer.Option("--rate", min=1, max=1_000, help="messages sent a second")
    ] = 200,
    as_json: AsJson = False,
) -> None:
    """Stage kill, join, leave, duplicate-id, partition or slow on a cluster of its own."""
    with reporting_errors():
        report = run_drill(kind, queue_count=queues, rate=rate, on_event=say)
        if as_json:
            _print_json(rebalance_json.json_of_drill(report))
            return
        console = rebalance_view.make_console()
        rebalance_view.show(console, rebalance_view.render_drill(report, console))


@contextmanager
def _looking(
    group: str, nameserver: str, tls_ca: str, strategy: str | None, timeout_s: float
) -> Iterator[Look]:
    """Give a function that looks at the group, with one set of connections for all its looks."""
    with reporting_errors():
        check_group(group)
        if strategy is not None and strategy not in _STRATEGIES_WITH_SETTINGS:
            strategy_from(strategy)
        directory = make_directory(nameserver, timeout_ms=_ms(timeout_s))
        driver = BlockingDriver(tls=client_tls(tls_ca))
        try:
            yield lambda interval_ms: driver.run(
                take_snapshot(directory, group, interval_ms=interval_ms, strategy=strategy)
            )
        finally:
            driver.close()


def _watch(look: Look, pause_ms: int, count: int) -> Iterator[Case]:
    """Look again and again; a cluster that fails once it was seen may well come back."""
    seen = 0
    while not count or seen < count:
        try:
            case = examine(look(pause_ms))
        except SparrowError as error:
            if not seen:
                raise
            say(str(error))
            time.sleep(pause_ms / 1000)
            continue
        seen += 1
        yield case


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _print_json(value: rebalance_json.Json, *, is_one_line: bool = False) -> None:
    print(json.dumps(value, indent=None if is_one_line else 2, ensure_ascii=False), flush=True)
