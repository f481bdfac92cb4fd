"""The views of `sparrowmq rebalance`: queue × client matrix, findings, explanations, simulations.

Colour is never the only sign: owners are named in words, a queue without an owner is hatched, and a
queue with several owners is marked in the column of each. Tests: test_rebalance.py.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from sparrowmq.cli.language import words
from sparrowmq.cli.output import fits
from sparrowmq.cli.plain_text import PlainTable
from sparrowmq.coordination.member_marker import is_marked
from sparrowmq.doctor.explain import Explanation
from sparrowmq.doctor.finding import Finding, Severity, describe_runs
from sparrowmq.doctor.group_snapshot import MemberConnection
from sparrowmq.doctor.group_view import GroupView, QueueView, examine
from sparrowmq.doctor.owner_history import DURATION_TITLES, describe_durations
from sparrowmq.doctor.ownership import OwnerState
from sparrowmq.doctor.whatif import SPARROW_NAMES, Plan, SplitView, Step, StrategyRun
from sparrowmq.doctor.workloads import (
    DURATION_S,
    JUDGED_S,
    SEEDS,
    GroupSize,
    GroupWorkload,
    Policy,
    Result,
)
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import dlq_topic
from sparrowmq.model.plain_text import escape
from sparrowmq.model.queue import java_order
from sparrowmq.model.spelling import spell_queue
from sparrowmq.words import format_duration, format_rate

if TYPE_CHECKING:
    from sparrowmq.drills.drill import Report
    from sparrowmq.drills.stage import LateWork

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# A matrix with more columns is unreadable; owners are then only named.
_COLUMNS_MAX = 26
# Lines around the matrix and the list of members.
_FRAME_ROWS = 7
# Longer lines of prose are hard to read, also on a wide terminal.
PROSE_WIDTH = 100
_SEVERITY_STYLES = {
    Severity.ERROR: "bold white on #c62828",
    Severity.WARN: "bold black on #d98e04",
    Severity.INFO: "bold white on #0a6aa6",
}
_LAG_STYLES = ((10_000, "#e05252"), (1_000, "#d98e04"), (1, "#d8c15a"), (0, "#0b8a66"))


def render_group(view: GroupView, console: Console, *, is_watched: bool = False) -> RenderableType:
    """Make the queue × client matrix with lag, and the list of members below it.

    On a terminal too narrow for a column for each member, owners are only named. A repeated view
    that is too high for the terminal puts queues with the same owners into one row.
    """
    labels = _label(view.ownership.connections)
    columns = list(labels) if len(labels) <= _COLUMNS_MAX else []
    rows = len(view.queues) + len(view.snapshot.topics) + len(labels) + _FRAME_ROWS
    merges = is_watched and rows > console.height
    matrix = _matrix(view, labels, columns, merges=merges)
    if not fits(console, matrix):
        matrix = _matrix(view, labels, [], merges=merges)
    return Group(_head(view), matrix, _members(view, labels), _remarks(view))


def _head(view: GroupView) -> Text:
    snapshot = view.snapshot
    model = words()(
        "strategy {name}" if snapshot.strategy_is_known else "strategy {name} (assumed)",
        name=snapshot.strategy,
    )
    if snapshot.is_broadcasting:
        model = "BROADCASTING"
    if snapshot.is_by_message:
        model = _describe_flights(view)
    parts = [
        model,
        words().count(len(view.user_queues), "queue"),
    ]
    if (members := view.member_count) is not None:
        parts.append(words().count(members, "member"))
    if view.known_lag is not None:
        parts.append(words().phrase(view.describe_backlog(view.progress)))
        if wait_ms := view.wait_ms(view.progress):
            parts.append(words()("the oldest waits for {time}", time=words().duration(wait_ms)))
    if plan := view.describe_plan():
        parts.append(words().phrase(plan))
    # They do not answer, or deny access to the group, or to its dead letters alone.
    missing = list(snapshot.last.failures)
    missing += [
        f"{broker.broker_name} ({dlq_topic(snapshot.group)})"
        for broker in snapshot.last.brokers
        if broker.dead_letters is None
    ]
    if missing:
        parts.append(words()("no report from {brokers}", brokers=", ".join(missing)))
    return Text.assemble((snapshot.group, "bold"), escape("  " + " · ".join(parts)))


def _describe_flights(view: GroupView) -> str:
    if not view.snapshot.reports_pops:
        return words()("offsets move, and no member is connected")
    if view.in_flight is None:
        return words()("by message: the number in flight is not reported")
    told = words()("by message: {n} in flight", n=f"{view.in_flight:,}")
    if (oldest := view.oldest_in_flight) is None:
        return told
    duration = words().phrase(format_duration(oldest[1]))
    return told + words()(", the oldest stored {duration} ago", duration=duration)


def _label(connections: Sequence[MemberConnection]) -> dict[MemberConnection, str]:
    """Give each connection a letter, or a number if there are too many."""
    if len(connections) <= len(_LETTERS):
        return dict(zip(connections, _LETTERS, strict=False))
    return {connection: str(number) for number, connection in enumerate(connections, 1)}


def _matrix(
    view: GroupView,
    labels: dict[MemberConnection, str],
    columns: Sequence[MemberConnection],
    *,
    merges: bool,
) -> PlainTable:
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False)
    # Of what is too wide, names are folded; a number that is cut would be another number.
    table.add_column(words()("queue"), overflow="fold")
    for name in (words()("lag"), words()("in/s"), words()("out/s")):
        table.add_column(name, justify="right", no_wrap=True)
    for connection in columns:
        table.add_column(labels[connection], justify="center", no_wrap=True)
    table.add_column(words()("owner"), no_wrap=True)
    last = ""
    for queues in _runs(view) if merges else [[queue] for queue in view.queues.values()]:
        if queues[0].queue.topic != last:
            last = queues[0].queue.topic
            table.add_row(Text(last, "bold"))
        table.add_row(*_row(queues, columns, labels))
    return table


def _runs(view: GroupView) -> list[list[QueueView]]:
    """Return runs of consecutive queues of one broker that have the same owners."""

    def key(each: QueueView) -> tuple[object, ...]:
        return each.queue.topic, each.queue.broker_name, each.owners, each.state

    return [list(some) for _, some in groupby(view.queues.values(), key=key)]


def _row(
    queues: Sequence[QueueView],
    columns: Sequence[MemberConnection],
    labels: dict[MemberConnection, str],
) -> list[RenderableType]:
    """Make the row of some queues with the same owners; lag and rates are sums."""
    owners, state = queues[0].owners, queues[0].state
    rates = [each.rate for each in queues if each.rate is not None]
    consumed = [each.consumed_per_s for each in queues if each.consumed_per_s is not None]
    lags = [each.lag for each in queues if each.lag is not None]
    style = next(style for floor, style in _LAG_STYLES if sum(lags) >= floor)
    if state == "unowned":
        cells = [Text("╱╱╱", "#e05252") for _ in columns]
    else:
        is_right = state in ("owned", "broadcast", "shared")
        mark, mark_style = ("■", style) if is_right else ("▨", "#c62828")
        cells = [Text(mark, mark_style) if c in owners else Text("·", "dim") for c in columns]
    return [
        f"  {queues[0].queue.broker_name}:{describe_runs([e.queue.queue_id for e in queues])}",
        Text(f"{sum(lags):,}" if lags else "?", style),
        format_rate(sum(rate.produced_per_s for rate in rates)) if rates else "",
        format_rate(sum(consumed)) if consumed else "?" if rates else "",
        *cells,
        _owner_text(state, [labels[c] for c in owners if c in labels]),
    ]


def _owner_text(state: str, names: list[str]) -> Text:
    if state == "unowned":
        return Text(words()("nobody"), "bold #e05252")
    if state == "shared":
        return Text(words()("any member"))
    text = " + ".join(names)
    if state == "double":
        often = words()("twice") if len(names) == 2 else words()("{n} times", n=len(names))
        return Text(f"{text}  {often}", "bold #e05252")
    if state == "disputed":
        return Text(f"{text or words()('nobody')}?  {words()('brokers disagree')}", "bold #d98e04")
    return Text(text)


def _members(view: GroupView, labels: dict[MemberConnection, str]) -> PlainTable:
    table = PlainTable(box=None, pad_edge=False, show_header=False)
    for is_name in (False, True, True, False, False, False):
        table.add_column(no_wrap=not is_name, overflow="fold")
    loads = view.loads
    ids = [c.client_id for c in labels]
    for connection, label in labels.items():
        count = len(view.owned_by(connection.client_id))
        load = loads.get(connection.client_id)
        uses, has = ids.count(connection.client_id), words().count(count, "queue")
        if uses > 1:
            twice = words()("id in use twice")
            has = twice if uses == 2 else words()("id in use {n} times", n=uses)
        table.add_row(
            Text(label, "bold"),
            _flag(uses > 1, connection.client_id),
            connection.address or "?",
            "sparrowmq" if is_marked(connection.version) else connection.language.lower(),
            has,
            "" if load is None else _flag(load > 1, words()("load {n}", n=f"{load:.2f}")),
        )
    return table


def _remarks(view: GroupView) -> Text:
    parts = [
        words()("{queues} {state}", queues=words().count(count, "queue"), state=what)
        for state, what in (
            (OwnerState.UNOWNED, words()("nobody owns")),
            (OwnerState.DOUBLE, words()("consumed by several")),
            (OwnerState.DISPUTED, words()("disputed")),
        )
        if (count := view.count_of(state))
    ]
    return Text("\n" + words()("; ").join(parts) if parts else "", "bold #e05252", end="")


def render_findings(
    view: GroupView, findings: Sequence[Finding], options: Sequence[str], *, has_head: bool = True
) -> RenderableType:
    """Render the doctor's report: the group in a line, then the findings, the worst first.

    Args:
        options: those of commands, which say which cluster is meant.
        has_head: whether the group's line comes first.
    """
    parts: list[RenderableType] = [_head(view), Text()] if has_head else []
    for finding in findings:
        badge = f" {words()(finding.severity.name.lower()).upper()} "
        parts.append(
            Text.assemble(
                (badge, _SEVERITY_STYLES[finding.severity]),
                (f" {finding.rule} ", "bold"),
                escape(words().phrase(finding.title)),
            )
        )
        parts.append(Padding(_finding_lines(finding, options), (0, 0, 1, 2)))
    if not findings:
        parts.append(
            Text(
                words()("nothing is wrong: every queue has one owner, and consumption continues"),
                "#0b8a66",
            )
        )
        if not view.can_see_standstill:
            parts.append(
                Text(
                    words()("the samples were too close to detect a queue that stands still"),
                    "dim",
                )
            )
    return Prose(Group(*parts))


class Prose:
    """What a terminal folds at `PROSE_WIDTH`, and a pipe nowhere."""

    def __init__(self, prose: RenderableType) -> None:
        self._prose = prose

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Constrain the prose on a terminal."""
        yield Constrain(self._prose, PROSE_WIDTH) if console.is_terminal else self._prose


class CommandLine:
    """A command that can be copied from a terminal of any width: a fold ends with a backslash."""

    def __init__(self, text: str) -> None:
        # A fold within a quoted word would become a part of it.
        self._words = [shlex.quote(word) for word in shlex.split(text)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Fold at blanks."""
        line = ""
        for word in self._words:
            # Two cells are left for the backslash.
            if line and cell_len(f"{line} {word}") > options.max_width - 2:
                yield Text(f"{line} \\", "bold")
                line = "  "
            line += f" {word}" if line.strip() else word
        yield Text(line, "bold", overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Take all the room that the command needs."""
        width = cell_len(" ".join(self._words))
        return Measurement(min(width, options.max_width), min(width, options.max_width))


def _finding_lines(finding: Finding, options: Sequence[str]) -> PlainTable:
    """Make the lines below a finding's title; of an effect only the title is shown."""
    lines = PlainTable(box=None, pad_edge=False, show_header=False)
    lines.add_column(style="dim", no_wrap=True)
    lines.add_column()
    for number, line in enumerate(finding.evidence):
        lines.add_row("" if number else words()("seen"), words().phrase(line))
    if finding.consequence:
        lines.add_row(words()("means"), words().phrase(finding.consequence))
    if finding.remedy:
        lines.add_row(words()("do"), words().remedy(finding.rule, finding.remedy))
    for command in finding.commands:
        lines.add_row(words().phrase(command.label), CommandLine(command.write(options)))
    for number, effect in enumerate(finding.effects):
        title = f"{effect.rule} {words().phrase(effect.title)}"
        lines.add_row("" if number else words()("explains"), title)
    return lines


def render_explanation(explanation: Explanation) -> RenderableType:
    """Render an explanation of a queue's owner."""
    queue = explanation.queue
    owners = _spell_owners(explanation.owners)
    table = PlainTable(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", no_wrap=True, justify="right")
    table.add_column()
    for number, step in enumerate(explanation.steps, 1):
        table.add_row(f"{number}.", words().phrase(step))
    head = words()(
        "{queue} is owned by {owners}, by the list of {brokers}",
        queue=f"{queue.topic} {spell_queue(queue)}",
        owners=owners,
        brokers=", ".join(explanation.broker_names),
    )
    report = Group(Text(escape(head), "bold"), Padding(table, (0, 0, 1, 2)))
    return Prose(report)


def _spell_owners(owners: Sequence[str]) -> str:
    counts = Counter(owners)
    return words()("; ").join(
        client_id
        if count == 1
        else words()("{n} processes with the id {who}", n=count, who=client_id)
        for client_id, count in counts.items()
    ) or words()("nobody")


def render_drill(report: Report, console: Console) -> RenderableType:
    """Render a drill's report: the group before and after, the durations, the doctor's findings."""
    figures = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False)
    figures.add_column(words()("event"), min_width=20)
    for name in (*DURATION_TITLES, "moved"):
        figures.add_column(words()(name), justify="right")
    for event, rebalance in report.phases:
        settled, *others = map(words().phrase, describe_durations(rebalance))
        figures.add_row(
            words()(event),
            _flag(rebalance.settled_ms is None, settled),
            *others,
            words().count(len(rebalance.moves), "queue"),
        )
    before, after = examine(report.before), examine(report.after)
    left = report.sent - report.consumed
    counts = {"sent": report.sent, "consumed": report.consumed, "twice": report.twice, "left": left}
    messages = words()(
        "messages: {sent} sent, {consumed} consumed, {twice} of them more than once, {left} not "
        "yet when it ended",
        **{name: f"{count:,}" for name, count in counts.items()},
    )

    def heading(text: str) -> Text:
        return Text(f"\n{words()(text)}", "bold underline")

    return Group(
        heading("before"),
        render_group(before, console),
        heading("after"),
        render_group(after, console),
        heading("who owned what, from the event on"),
        _changes(report),
        figures,
        _flag(report.twice or left, messages),
        *([] if report.late_work is None else [_late_work(report.late_work)]),
        heading("the doctor says"),
        # The drill's cluster is gone.
        render_findings(
            after,
            [replace(each, commands=()) for each in report.findings],
            options=(),
            has_head=False,
        ),
    )


def _changes(report: Report) -> PlainTable:
    table = PlainTable(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for change in report.changes:
        held = describe_runs(change.queue_ids) or words()("nothing")
        what = (
            words()("finds queues lost, is left with {queues}", queues=held)
            if change.is_lost
            else words()("has {queues}", queues=held)
        )
        table.add_row(f"+{words().duration(change.after_ms)}", change.member, what)
    return table


def _late_work(late: LateWork) -> Text:
    return Text(
        words()(
            "cut off for {time}: the member delivered {n} messages that were in its hands, the "
            "last after {last}; {again} of them came to others again, since their offsets could "
            "not be committed",
            time=words().duration(late.healed_ms),
            n=f"{late.delivered:,}",
            last=words().duration(late.last_ms),
            again=f"{late.again:,}",
        )
    )


def render_run(plan: Plan, run: StrategyRun) -> RenderableType:
    """Render the assignment before and after each event: members down, events across."""
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    table.add_column(words()("member"), overflow="fold")
    for step in run.steps:
        table.add_column(str(step.event) if step.event else words()("at first"), overflow="fold")
    # Sorted as members sort them, so that a share lists its queues in order.
    members = {member for step in run.steps for member in step.members}
    numbers = [m.number for m in sorted(members, key=lambda m: (java_order(m.client_id), m.number))]
    places = {queue: place for place, queue in enumerate(plan.queues)}
    for number in numbers:
        table.add_row(
            plan.make_member(number).client_id,
            *(_share(step, number, places) for step in run.steps),
        )
    table.add_section()
    rows = (
        ("moved (of these needless)", [f"{s.moved} ({s.needless})" for s in run.steps]),
        ("largest − smallest share", [str(s.skew) for s in run.steps]),
        ("idle members", [_flag(s.idle, str(s.idle)) for s in run.steps]),
        ("owned by nobody", [_flag(s.unowned, _ids(s.unowned, places)) for s in run.steps]),
        ("owned by several", [_flag(s.double, _ids(s.double, places)) for s in run.steps]),
    )
    for name, cells in rows:
        table.add_row(words()(name), *cells)
    head = words()("{strategy}: who has which queues", strategy=run.strategy)
    return Group(Text(head, "bold"), table)


def _share(step: Step, number: int, places: dict[MessageQueue, int]) -> Text:
    if all(member.number != number for member in step.members):
        return Text("")
    mine = step.queue_ids(number)
    return Text(_ids(mine, places)) if mine else Text(words()("idle"), "#d98e04")


def _ids(queues: Sequence[MessageQueue], places: dict[MessageQueue, int]) -> str:
    return describe_runs([places[queue] for queue in queues]) or "–"


def _flag(is_bad: object, text: str) -> Text:
    return Text(escape(text), "bold #e05252" if is_bad else "")


# Columns of the comparison: the resulting shares, and the cost.
SHARE_COLUMNS = ("moved", "needless", "skew", "idle", "nobody", "several")
COST_COLUMNS = ("messages", "trips", "wait ≤", "stopped", "overlap", "split view")
COLUMN_MEANINGS = (
    "moved, messages, stopped, overlap: all events; the rest: the worst event.\n"
    "skew: largest − smallest share. nobody, several: queues with no owner, with two.\n"
    "trips: one-way delays until all agree; wait: what timers may add. stopped: queues\n"
    "that pause meanwhile; overlap: that two may consume meanwhile. split view: queues\n"
    "with no owner / with two / idle members, while every second member has not heard\n"
    "of the last one."
)


def render_comparison(plan: Plan, runs: Sequence[StrategyRun], console: Console) -> RenderableType:
    """Render a row for each strategy: sums over all events, or the worst event.

    A narrow terminal gets two tables instead of one, or more.
    """
    names = ", ".join(SPARROW_NAMES)
    events = ", ".join(str(event) for event in plan.events) or words()("no event")
    end = len(SHARE_COLUMNS + COST_COLUMNS)
    cuts = [
        [_comparison(runs, start, start + count) for start in range(0, end, count)]
        for count in (end, len(SHARE_COLUMNS), 3, 2, 1)
    ]
    fitting = (tables for tables in cuts if all(fits(console, table) for table in tables))
    tables = next(fitting, cuts[-1])
    return Group(
        Text(f"{_size(plan.queue_count, plan.member_count)}: {events}", "bold"),
        *tables,
        Text(
            words()(COLUMN_MEANINGS)
            + "\n"
            + words()("{strategies}: every member must run SparrowMQ.", strategies=names),
            "dim",
        ),
    )


def _size(queues: int, members: int) -> str:
    return ", ".join((words().count(queues, "queue"), words().count(members, "member")))


def render_workloads(
    size: GroupSize, results: Sequence[tuple[GroupWorkload, Mapping[Policy, Result]]]
) -> RenderableType:
    """Render a row for each workload, and a column for each way to divide."""
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(words()("workload"))
    for policy in Policy:
        table.add_column(words()(policy.value), justify="right")
    for workload, by_policy in results:
        figures = [_outcome(workload, by_policy[policy]) for policy in Policy]
        table.add_row(f"{workload.name}: {words()(workload.meaning)}", *figures)
    return Group(
        Text(_size(size.queues, size.members), "bold"),
        table,
        Text(
            words()(
                "Greatest lag of one queue in the last {judged} of {all} minutes, and the queues "
                "moved.\nbacklog: seconds until it is consumed. Medians of {runs} runs. The oracle "
                "knows all rates and divides once.",
                judged=JUDGED_S // 60,
                all=DURATION_S // 60,
                runs=len(SEEDS),
            ),
            "dim",
        ),
    )


def _outcome(workload: GroupWorkload, result: Result) -> str:
    shown = f"{result.lag_max:,}"
    if workload.backlog:
        shown = f"> {DURATION_S:,} s" if result.drained_s is None else f"{result.drained_s} s"
    return f"{shown} ({result.moves})" if result.moves else shown


def _comparison(runs: Sequence[StrategyRun], start: int, end: int) -> PlainTable:
    table = PlainTable(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(words()("strategy"), overflow="fold")
    for name in (*SHARE_COLUMNS, *COST_COLUMNS)[start:end]:
        table.add_column(words()(name), justify="right", no_wrap=True)
    for number, run in enumerate(runs):
        if number and run.school != runs[number - 1].school:
            table.add_section()
        table.add_row(run.strategy, *_figures(run)[start:end])
    return table


def _figures(run: StrategyRun) -> list[RenderableType]:
    steps, events = run.steps, run.steps[1:]
    unowned = max(len(step.unowned) for step in steps)
    double = max(len(step.double) for step in steps)
    idle = max(step.idle for step in steps)
    wait_ms = max((step.cost.wait_ms_max for step in events), default=0)
    worst = max((step.split for step in steps), key=lambda split: (_harm(split), split.idle))
    return [
        str(sum(step.moved for step in events)),
        str(sum(step.needless for step in events)),
        str(max(step.skew for step in steps)),
        _flag(idle, str(idle)),
        _flag(unowned, str(unowned)),
        _flag(double, str(double)),
        str(sum(step.cost.messages for step in events)),
        str(max((step.cost.trips for step in events), default=0)),
        words().duration(wait_ms),
        str(sum(step.cost.stopped for step in events)),
        str(sum(step.cost.overlapping for step in events)),
        _flag(_harm(worst), f"{worst.unowned} / {worst.double} / {worst.idle}"),
    ]


def _harm(split: SplitView) -> int:
    return split.unowned + split.double
