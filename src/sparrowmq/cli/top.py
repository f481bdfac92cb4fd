"""`sparrowmq top`: a live screen of consumer groups: lag, rates, members, and who owns what.

One thread looks at the cluster and alone uses the connections; another draws the screen from the
results that it receives.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import typer
from rich.cells import cell_len
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Header, Static

from sparrowmq.calling.effects import Operation, cancel, now, sleep
from sparrowmq.cli import rebalance_view
from sparrowmq.cli.cluster import trouble_of
from sparrowmq.cli.connecting import CommandCluster, on_cluster
from sparrowmq.cli.exit_codes import EXIT_INTERRUPTED
from sparrowmq.cli.language import words
from sparrowmq.cli.output import OutputColumn, format_value, leave_out
from sparrowmq.client.operations.overview import (
    FlowRates,
    GroupOverview,
    Overview,
    group_flows,
    take_overview,
)
from sparrowmq.client.operations.snapshot import begin_snapshot, end_snapshot
from sparrowmq.doctor import GroupSnapshot, diagnose
from sparrowmq.doctor.finding import Finding
from sparrowmq.doctor.group_view import GroupView, examine
from sparrowmq.errors import SparrowError, UsageError

# The number of looks that a sparkline shows.
HISTORY_MAX = 30
_BARS = " ▁▂▃▄▅▆▇█"
# A longer name of a group is folded before it takes the room of a column, and to no less than this.
NAME_WIDTH_MAX, NAME_WIDTH_MIN = 40, 12
# A key is answered so soon while a look waits for its second sample.
PAUSE_MS = 100
# A red that is still read where the terminal has no colours (NO_COLOR), as a grey.
_RED = "bold #ff5f87"
# A narrow terminal leaves out the optional columns, the last first.
COLUMNS = (
    OutputColumn("group"),
    OutputColumn("lag"),
    OutputColumn("in/s", optional=True),
    OutputColumn("out/s", optional=True),
    OutputColumn("members", optional=True),
    OutputColumn("lag before", optional=True),
    OutputColumn("topics", optional=True),
    OutputColumn("trouble", optional=True, keeps=True),
)


class GroupRow(NamedTuple):
    """A group on the screen: the last look, its rates, and its lag at the last looks."""

    group: GroupOverview
    flow: FlowRates | None
    lags: Sequence[int]


# The orders of the rows, and the key that chooses each.
ORDERS: dict[str, tuple[str, Callable[[GroupRow], object]]] = {
    "attention": ("a", lambda row: 0),
    "lag": ("l", lambda row: -row.group.lag),
    "in/s": ("i", lambda row: -(row.flow.produced_per_s if row.flow else 0)),
    "out/s": ("o", lambda row: -(row.flow.consumed_per_s if row.flow else 0)),
    "name": ("n", lambda row: row.group.group),
}


class LagHistory:
    """The lag of every group at the last looks, and the latest look."""

    def __init__(self) -> None:
        self._lags: dict[str, deque[int]] = {}
        self._before: Overview | None = None

    def add(self, seen: Overview) -> list[GroupRow]:
        """Take the result of a look; return the rows, those that need attention first."""
        flows = {} if self._before is None else group_flows(self._before, seen)
        self._before = seen
        # A deleted group is forgotten.
        known = {group.group for group in seen.groups}
        self._lags = {name: lags for name, lags in self._lags.items() if name in known}
        rows = []
        for group in seen.groups:
            lags = self._lags.setdefault(group.group, deque(maxlen=HISTORY_MAX))
            lags.append(group.lag)
            rows.append(GroupRow(group, flows.get(group.group), tuple(lags)))
        return rows


def sparkline(values: Sequence[int]) -> str:
    """Draw numbers as bars, the largest at full height; 0 is a blank."""
    largest = max(values, default=0)
    if not largest:
        return ""
    # The least number that is not 0 stays visible.
    return "".join(_BARS[-(-value * (len(_BARS) - 1) // largest)] for value in values)


class GroupScreen(Screen[None]):
    """One group: the queue × client matrix, and the doctor's findings."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss", words()("back")),
        Binding("q", "app.quit", words()("quit")),
    ]

    def __init__(self, group: str, options: tuple[str, ...]) -> None:
        super().__init__()
        self.group = group
        self._options = options

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Header(icon=" ")
        with VerticalScroll():
            yield Static(words()("looking at {group} …", group=self.group), id="matrix")
            yield Static(id="findings")
        yield Footer()

    def update(self, view: GroupView, findings: list[Finding]) -> None:
        """Show the result of a look."""
        console = self.app.console
        matrix = rebalance_view.render_group(view, console)
        self.query_one("#matrix", Static).update(matrix)
        shown = rebalance_view.render_findings(view, findings, self._options, has_head=False)
        self.query_one("#findings", Static).update(shown if findings else "")

    def fail(self, problem: str) -> None:
        """Say that a look failed."""
        self.query_one("#findings", Static).update(Text(problem, _RED))


class Seen(Message):
    """The cluster was looked at."""

    def __init__(self, overview: Overview) -> None:
        super().__init__()
        self.overview = overview


class Examined(Message):
    """A group was looked at."""

    def __init__(self, view: GroupView, findings: list[Finding]) -> None:
        super().__init__()
        self.view = view
        self.findings = findings


class LookFailed(Message):
    """A look failed; the next one may not."""

    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem


class Broken(Message):
    """The thread that looks has ended by an error."""


class Poller(threading.Thread):
    """Looks at the cluster, or at one group, repeatedly, and posts the results.

    Args:
        post: hands a message to the screen, from any thread.
    """

    def __init__(
        self, cluster: CommandCluster, interval_ms: int, post: Callable[[Message], object]
    ) -> None:
        super().__init__(name="poller", daemon=True)
        self._cluster = cluster
        self._interval_ms = interval_ms
        self._post = post
        self._error: BaseException | None = None
        # Set by the screen: the group to look at (None for all), and whether looking is paused.
        self.group: str | None = None
        self.is_paused = False
        self.stopped = threading.Event()
        self.hurried = threading.Event()

    def run(self) -> None:
        """Look until it is stopped; an error that nobody foresaw ends the screen too."""
        try:
            self._look_until_stopped()
        except BaseException as error:
            self._error = error
            self._post(Broken())

    def _look_until_stopped(self) -> None:
        while not self.stopped.is_set():
            try:
                if not self.is_paused and (found := self._look(self.group)) is not None:
                    self._post(found)
            except SparrowError as error:
                self._post(LookFailed(str(error)))
            self.hurried.wait(self._interval_ms / 1000)
            # Before the look at `stopped`: a stop that comes in between is not forgotten.
            self.hurried.clear()

    def _look(self, group: str | None) -> Message | None:
        if group is None:
            return Seen(self._cluster.run(take_overview(self._cluster.directory)))
        snapshot = self._cluster.run(self._look_twice(group))
        return None if snapshot is None else Examined(examine(snapshot), diagnose(snapshot))

    def _look_twice(self, group: str) -> Operation[GroupSnapshot | None]:
        """Take a snapshot; None once the screen wants another look, or none."""
        begun = yield from begin_snapshot(self._cluster.directory, group)
        due_ms = begun.first.at_ms + self._interval_ms
        while (left_ms := due_ms - (yield from now())) > 0:
            if self.hurried.is_set():
                yield from cancel(begun.asking)
                return None
            yield from sleep(min(left_ms, PAUSE_MS))
        directory, interval_ms = self._cluster.directory, self._interval_ms
        return (yield from end_snapshot(directory, begun, interval_ms=interval_ms))

    def look_at(self, group: str | None) -> None:
        """Look at a group from now on, or at the cluster."""
        self.group = group
        self.hurried.set()

    def stop(self) -> None:
        """End after the current look. Raises: the error that ended the thread before."""
        self.stopped.set()
        self.hurried.set()
        self.join()
        if self._error is not None:
            raise self._error


class TopApp(App[None]):
    """The live screen."""

    TITLE = "sparrowmq top"
    # Textual's palette is in English, and its key takes the room of ours.
    ENABLE_COMMAND_PALETTE = False
    CSS = (
        "#status, #left-out { height: auto; max-height: 5; color: $text-muted; }"
        "DataTable { height: 1fr; }"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", words()("quit")),
        # Textual's own names another key, in English.
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        *(Binding(key, f"sort('{name}')", words()(name)) for name, (key, _) in ORDERS.items()),
        Binding("space", "pause", words()("pause")),
    ]

    def __init__(self, cluster: CommandCluster, interval_ms: int) -> None:
        super().__init__()
        self._name_server = self.sub_title = cluster.context.name_server
        self._options = cluster.options
        self._poller = Poller(cluster, interval_ms, self.post_message)
        self._history = LagHistory()
        self._rows: list[GroupRow] = []
        self._order = "attention"

    def compose(self) -> ComposeResult:
        """Make the widgets."""
        yield Header(icon=" ")
        table: DataTable[Text] = DataTable(cursor_type="row")
        yield table
        yield Static(id="left-out")
        yield Static(words()("looking …"), id="status")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look; end by a signal as by a key, which gives the terminal back."""
        if sys.platform != "win32":
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                end = partial(self.exit, return_code=128 + number)
                asyncio.get_running_loop().add_signal_handler(number, end)
        self._poller.start()

    def stop(self) -> None:
        """End the thread that looks, once the screen is closed. Raises: as `Poller.stop`."""
        self._poller.stop()

    def on_resize(self) -> None:
        """Choose the columns that fit the new width."""
        self._draw()

    def on_seen(self, event: Seen) -> None:
        """Show a look at the cluster."""
        if not self._is_shown:
            return
        seen = event.overview
        self._rows = self._history.add(seen)
        failing = [broker.name for broker in seen.brokers if broker.failure]
        lag = sum(group.lag for group in seen.groups)
        counts = (
            words().count(len(seen.brokers), "broker"),
            words().count(len(seen.topics), "topic"),
            words().count(len(seen.groups), "group"),
            words()("{messages} behind", messages=words().count(lag, "message")),
        )
        text = " · ".join(counts)
        if failing:
            text += " · " + words()("no report from {brokers}", brokers=", ".join(failing))
        self._status.update(Text(text))
        self._draw()

    def on_examined(self, event: Examined) -> None:
        """Show a look at the group on the screen."""
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, GroupScreen) and screen.group == event.view.snapshot.group:
            screen.update(event.view, event.findings)

    def on_look_failed(self, event: LookFailed) -> None:
        """Say that a look failed."""
        screen = self.screen_stack[-1] if self.screen_stack else None
        if isinstance(screen, GroupScreen):
            screen.fail(event.problem)
        elif self._is_shown:
            self._status.update(Text(event.problem, _RED))

    def on_broken(self) -> None:
        """End: a screen without new looks would seem to be of now."""
        self.exit()

    @property
    def _is_shown(self) -> bool:
        # At the end a screen loses its widgets before it leaves the stack.
        return bool(self.screen_stack) and bool(self.screen_stack[0].query("#status"))

    @property
    def _status(self) -> Static:
        # The status line of the lowest screen, whichever screen is on top.
        return self.screen_stack[0].query_one("#status", Static)

    def action_sort(self, order: str) -> None:
        """Sort by another column."""
        self._order = order
        self._draw()

    def action_interrupt(self) -> None:
        """End as Ctrl-C ends every command."""
        self.exit(return_code=EXIT_INTERRUPTED)

    def action_pause(self) -> None:
        """Pause, or continue."""
        self._poller.is_paused = not self._poller.is_paused
        self.sub_title = self._name_server + (
            f" ({words()('paused')})" if self._poller.is_paused else ""
        )

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the group of the selected row, until Escape."""
        if event.row_key.value is not None:
            self._poller.look_at(event.row_key.value)
            screen = GroupScreen(event.row_key.value, self._options)
            self.push_screen(screen, lambda _: self._poller.look_at(None))

    def _draw(self) -> None:
        table = self.screen_stack[0].query_one(DataTable)
        # The cursor stays on its group, wherever its row goes.
        at = table.cursor_row
        chosen = table.ordered_rows[at].key.value if table.is_valid_row_index(at) else None
        rows = sorted(self._rows, key=ORDERS[self._order][1])  # type: ignore[arg-type]
        cells = {row.group.group: dict(zip(COLUMNS, cells_of(row), strict=True)) for row in rows}

        widths = {
            c: max(cell_len(c.heading), *(each[c].cell_len for each in cells.values()), 0)
            for c in COLUMNS
        }
        names, *_ = COLUMNS

        def room_for_names(columns: Sequence[OutputColumn]) -> int:
            others = sum(widths[column] for column in columns if column is not names)
            return self.size.width - others - 2 * table.cell_padding * len(columns)

        shown, left_out = leave_out(
            COLUMNS, lambda columns: room_for_names(columns) >= min(widths[names], NAME_WIDTH_MAX)
        )
        room = max(NAME_WIDTH_MIN, room_for_names(shown))
        is_folded = room < widths[names]
        table.clear(columns=True)
        for column in shown:
            width = room if is_folded and column is names else None
            table.add_column(column.heading, key=column.key, width=width)
        for group, each in cells.items():
            height = None if is_folded else 1
            table.add_row(*(each[column] for column in shown), key=group, height=height)
        note = words()("too narrow for {columns}", columns=", ".join(left_out)) if left_out else ""
        said = self.screen_stack[0].query_one("#left-out", Static)
        said.update(note)
        said.display = bool(note)
        table.move_cursor(row=list(cells).index(chosen) if chosen in cells else at)


def cells_of(row: GroupRow) -> Iterator[Text]:
    """Return the cells of a group's row."""
    group, flow, lags = row
    trouble = trouble_of(group)
    yield Text(group.group, _RED if trouble else "bold", overflow="fold")
    yield Text(format_value(group.known_lag), justify="right")
    yield Text(format_value(flow and flow.produced_per_s), justify="right")
    yield Text(format_value(flow and flow.consumed_per_s), justify="right")
    count = format_value(group.member_count)
    if group.in_flight is not None:
        count = words()("{n} in flight", n=f"{group.in_flight:,}")
    yield Text(count, justify="right")
    yield Text(sparkline(lags), "yellow")
    yield Text(format_value([topic.topic for topic in group.topics]))
    yield Text(words().phrase(trouble), _RED)


@on_cluster
def top(
    cluster: CommandCluster,
    interval: Annotated[
        float, typer.Option("--interval", min=0.5, max=60.0, help="seconds between two snapshots")
    ] = 2.0,
) -> None:
    """Watch all consumer groups on a live screen: lag, rates, members, and a group's owners.

    \b
    Keys:
      Enter      the queue × client matrix of a group, and what is wrong with it
      Escape     back to all groups
      a l i o n  sort by attention, lag, messages in or out a second, or name
      space      pause
      q, Ctrl-C  quit
    """
    if cluster.as_json or not sys.stdout.isatty():
        raise UsageError(
            "top needs a terminal; in a program, use `sparrowmq ls --json --interval 2`"
        )
    # Before the screen takes the terminal, so that an error about the address stays visible.
    cluster.run(take_overview(cluster.directory))
    app = TopApp(cluster, round(interval * 1000))
    try:
        app.run()
    finally:
        app.stop()
    if app.return_code:
        raise typer.Exit(app.return_code)
