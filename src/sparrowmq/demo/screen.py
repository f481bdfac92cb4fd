"""The terminal's view of a running demo: bars of progress, and the live queue × client matrix.

Without a terminal, plain lines report events, and the progress now and then.
Tests: test_progress.py.
"""

from __future__ import annotations

from typing import Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo.progress import DemoState
from sparrowmq.processes.member_log import MemberLog, MemberState

_PLAIN_INTERVAL_MS = 4_000
_GAP = 3
# One colour for each member, in the order of the starts, with a readable text colour.
_MEMBER_STYLES = (
    "bold white on #0a6aa6",
    "bold black on #d98e04",
    "bold white on #0b8a66",
    "bold white on #b4568c",
    "bold black on #58b0ea",
    "bold black on #d8c15a",
)
_TROUBLE_STYLE = "bold white on #c62828"
_ORPHAN_STYLE = "bold #e05252"


class Screen:
    """Redraws one view in place in a terminal, or prints lines to a file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, auto_refresh=False, transient=True)
            if console.is_terminal
            else None
        )
        self._due_ms = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def draw(self, state: DemoState) -> None:
        """Show the present state, or print a line of progress now and then."""
        if self._live is not None:
            self._live.update(render_state(state, width=self._console.width), refresh=True)
        elif (now_ms := monotonic_ms()) >= self._due_ms:
            self._due_ms = now_ms + _PLAIN_INTERVAL_MS
            self.say(describe_progress(state))

    def say(self, line: str) -> None:
        """Show a line that stays above the view."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def describe_progress(state: DemoState) -> str:
    """Return the progress of all parts in one line."""
    parts = [
        f"{_elapsed(state)}  {_stage(state)}",
        f"produced {state.production.count:,}{_of_total(state)}",
        f"in Parquet {state.ingest.count:,}",
        _spark(state),
    ]
    for group in (state.first_group, state.second_group):
        lag = state.lag(group)
        if lag is not None and state.members.of(group):
            parts.append(f"{group} is {sum(lag):,} behind")
    return " · ".join(parts)


def render_state(state: DemoState, *, width: int) -> RenderableType:
    """Make the whole view: the progress, and one matrix for each group."""
    groups = [group for group in (state.first_group, state.second_group) if state.members.of(group)]
    matrices = [render_matrix(state, group) for group in groups]
    widths = [Console(width=10 * width).measure(matrix).maximum for matrix in matrices]
    if sum(widths) + _GAP > width:
        matrices = matrices[-1:]
    side_by_side = Table.grid(padding=(0, _GAP))
    side_by_side.add_row(*matrices)
    return Group(Text(), _render_head(state, width=width), Text(), side_by_side)


def render_matrix(state: DemoState, group: str) -> Table:
    """Make a group's matrix: rows are queues, columns members, filled cells ownership."""
    members = state.members.of(group)
    owners, lag = state.members.owners(group), state.lag(group)
    table = Table(
        title=f"group {group}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
    )
    table.add_column("queue", justify="right")
    for index, member in enumerate(members):
        table.add_column(_render_name(member, index), justify="right", min_width=9)
    table.add_column("behind", justify="right", min_width=7)
    table.add_column("", min_width=6)
    for queue_id in range(len(state.members.queues)):
        cells = [
            _render_cell(member, index, queue_id=queue_id, owners=owners[queue_id])
            for index, member in enumerate(members)
        ]
        behind = f"{lag[queue_id]:,}" if lag is not None else ""
        table.add_row(str(queue_id), *cells, behind, _render_trouble(owners[queue_id]))
    return table


def _render_name(member: MemberLog, index: int) -> Text:
    style = _MEMBER_STYLES[index % len(_MEMBER_STYLES)].removeprefix("bold ").split(" on ")[-1]
    name = Text()
    name.append(member.name, style="dim strike" if member.state.is_over else f"bold {style}")
    if member.state is not MemberState.RUNNING:
        name.append(f"\n{member.state.value}", style="dim")
    return name


def _render_cell(member: MemberLog, index: int, *, queue_id: int, owners: list[str]) -> Text:
    count = member.counts.get(queue_id, 0)
    if member.name not in owners:
        return Text(f"{count:,} " if count else "· ", style="dim")
    style = _MEMBER_STYLES[index % len(_MEMBER_STYLES)]
    return Text(f" {count:,} ", style=_TROUBLE_STYLE if len(owners) > 1 else style)


def _render_trouble(owners: list[str]) -> Text:
    if not owners:
        return Text("nobody", style=_ORPHAN_STYLE)
    return Text("two", style=_ORPHAN_STYLE) if len(owners) > 1 else Text("")


def _render_head(state: DemoState, *, width: int) -> RenderableType:
    production, ingest = state.production, state.ingest
    grid = Table.grid(padding=(0, 2))
    for what, count, note in (
        ("produced", production.count, f"{rate:,.0f}/s" if (rate := _current_rate(state)) else ""),
        ("in Parquet", ingest.count, _spark(state)),
    ):
        grid.add_row(
            Text(what, style="dim"),
            ProgressBar(total=production.total or 1, completed=count, width=min(36, width // 3)),
            Text(f"{count:,}{_of_total(state)}"),
            Text(note, style="dim"),
        )
    return Group(Text.assemble((_elapsed(state), "bold"), "  ", (_stage(state), "bold")), grid)


def _of_total(state: DemoState) -> str:
    total = state.production.total
    return "" if total is None else f" of {total:,}"


def _spark(state: DemoState) -> str:
    """Say what Spark does, since when, and what it has spent: something that moves always."""
    since_ms = monotonic_ms() - max(state.ingest.step_ms, state.begun_ms)
    spent = state.usage.cpu_s.get("spark", 0.0)
    return f"Spark {state.ingest.step} for {since_ms // 1000} s, {spent:.0f} s of a core in all"


def _stage(state: DemoState) -> str:
    return state.stages[-1].name if state.stages else ""


def _current_rate(state: DemoState) -> float:
    """Return the rate over the last two seconds."""
    if state.production.is_done or len(state.production.reports) < 2:
        return 0.0
    last = state.production.reports[-1]
    recent = [event for event in state.production.reports if event.at_ms >= last.at_ms - 2_000]
    elapsed_ms = last.at_ms - recent[0].at_ms
    return 1000 * (last.count - recent[0].count) / elapsed_ms if elapsed_ms else 0.0


def _elapsed(state: DemoState) -> str:
    seconds = (monotonic_ms() - state.begun_ms) // 1000
    return f"{seconds // 60}:{seconds % 60:02d}"
