"""`sparrowmq top`: the live screen, driven by keys, on a real cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from commands import Commands
from sparrowmq import PushConsumer
from sparrowmq.cli import top
from sparrowmq.cli.connecting import ConnectionOptions, open_cluster
from sparrowmq.cli.exit_codes import EXIT_INTERRUPTED
from sparrowmq.cli.top import (
    Examined,
    GroupScreen,
    LagHistory,
    LookFailed,
    Poller,
    Seen,
    TopApp,
    sparkline,
)
from sparrowmq.client.operations.overview import (
    BrokerOverview,
    GroupOverview,
    Overview,
    TopicProgress,
)
from sparrowmq.doctor.group_snapshot import GroupSnapshot, Sample
from sparrowmq.doctor.group_view import examine
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow

EMPTY_SAMPLE = Sample(at_ms=0, timestamp_ms=0, brokers=())


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster with a group that works and one that nobody is in, 20 messages behind."""
    with EmbeddedCluster(flush="async") as running:
        running.create_topic("T", queues=4)
        smq = Commands(running.name_server)
        smq("group", "update", "GID_gone", "--yes")
        smq("send", "T", stdin="".join(f"{n}\n" for n in range(20)))
        smq("group", "reset", "GID_gone", "--topic", "T", "--to", "earliest", "--yes")
        with PushConsumer(
            "GID_works",
            "T",
            name_server=running.name_server,
            listener=lambda messages, context: None,
            start="first",
        ) as consumer:
            assert consumer.wait_assigned()
            assert consumer.wait_idle()
            yield running


@asynccontextmanager
async def screen_of(
    cluster: EmbeddedCluster, width: int = 160, interval_ms: int = 500
) -> AsyncGenerator[tuple[TopApp, Pilot[None]]]:
    with open_cluster(ConnectionOptions(cluster.name_server, timeout=10.0)) as opened:
        app = TopApp(opened, interval_ms)
        try:
            async with app.run_test(size=(width, 40)) as pilot:
                yield app, pilot
        finally:
            await asyncio.to_thread(app.stop)


async def until(what: str, pilot: Pilot[None], is_so: Callable[[], object]) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not is_so():
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail(f"not {what} within 60 s")
        await pilot.pause(0.02)


def names_of(app: TopApp) -> list[str]:
    table = app.screen_stack[0].query_one(DataTable)
    return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]


async def open_without_looks(app: TopApp, pilot: Pilot[None]) -> GroupScreen:
    """Open the first group's screen, where no look comes any more."""
    await until("groups", pilot, lambda: len(names_of(app)) == 2)
    await asyncio.to_thread(app.stop)
    await pilot.press("enter")
    await until("a group's screen", pilot, lambda: isinstance(app.screen, GroupScreen))
    assert isinstance(app.screen, GroupScreen)
    return app.screen


async def test_groups_are_shown_sorted_and_opened_by_keys(cluster: EmbeddedCluster) -> None:
    async with screen_of(cluster) as (app, pilot):
        await until("groups", pilot, lambda: len(names_of(app)) == 2)
        # Who has messages and nobody to consume them comes first.
        assert names_of(app) == ["GID_gone", "GID_works"]
        table = app.query_one(DataTable)
        assert list(map(str, table.get_row_at(0)))[:2] == ["GID_gone", "20"]
        assert str(table.get_row_at(0)[-1]) == "nobody consumes"

        await pilot.press("n", "down", "enter")
        await until("a group's screen", pilot, lambda: isinstance(app.screen, GroupScreen))
        assert isinstance(app.screen, GroupScreen)
        assert app.screen.group == "GID_works"
        matrix = app.screen.query_one("#matrix", Static)
        await until("its matrix", pilot, lambda: "looking" not in str(matrix.content))

        await pilot.press("escape")
        await until("all groups again", pilot, lambda: not isinstance(app.screen, GroupScreen))
        await pilot.press("space")
        assert "(paused)" in app.sub_title
        await pilot.press("q")


async def test_the_cursor_stays_on_its_group_when_the_rows_move(cluster: EmbeddedCluster) -> None:
    def look(*names: str) -> Seen:
        groups = tuple(GroupOverview(group=name, retry_lag=0) for name in names)
        return Seen(Overview(at_ms=0, timestamp_ms=0, brokers=(), topics=(), groups=groups))

    async with screen_of(cluster) as (app, pilot):
        await until("groups", pilot, lambda: len(names_of(app)) == 2)
        await asyncio.to_thread(app.stop)
        table = app.query_one(DataTable)
        app.on_seen(look("a", "b", "c"))
        table.move_cursor(row=1)
        # Once its group is gone, the cursor is on the last row, at the most.
        for names, at in (("bcax", 0), ("yxab", 3), ("ya", 1), ("ay", 0)):
            app.on_seen(look(*names))
            assert (names, table.cursor_row) == (names, at)

        app.on_seen(look())
        app.on_seen(look("z"))
        assert table.cursor_row == 0


async def test_a_terminal_of_60_columns_shows_what_matters_and_names_the_rest(
    cluster: EmbeddedCluster,
) -> None:
    async with screen_of(cluster, 60) as (app, pilot):
        await until("groups", pilot, lambda: len(names_of(app)) == 2)
        table = app.query_one(DataTable)
        left_out = app.query_one("#left-out", Static)

        titles = [str(column.label) for column in table.ordered_columns]
        assert (titles[:2], titles[-1]) == (["group", "lag"], "trouble")
        assert "topics" not in titles
        assert str(left_out.content).startswith("too narrow for ")
        assert str(left_out.content).endswith("topics")
        assert table.virtual_size.width <= 60
        await pilot.resize_terminal(160, 40)
        await until("all columns", pilot, lambda: len(table.ordered_columns) == 8)
        assert not left_out.display


async def test_a_long_name_is_folded_and_hides_neither_a_lag_nor_a_silent_broker(
    cluster: EmbeddedCluster,
) -> None:
    silent = BrokerOverview(
        name="broker-with-a-long-name", cluster="C", address="10.0.0.1:1", failure="no answer"
    )
    groups = tuple(GroupOverview(group=name, retry_lag=0) for name in ("GID_g" + "x" * 200, "b"))
    async with screen_of(cluster, 60) as (app, pilot):
        await asyncio.to_thread(app.stop)
        app.on_seen(
            Seen(Overview(at_ms=0, timestamp_ms=0, brokers=(silent,), topics=(), groups=groups))
        )
        await pilot.pause()
        table = app.query_one(DataTable)
        status = app.query_one("#status", Static)

        assert [str(column.label) for column in table.ordered_columns][:2] == ["group", "lag"]
        assert table.virtual_size.width <= 60
        assert str(status.content).endswith("no report from broker-with-a-long-name")
        assert status.size.width * status.size.height >= len(str(status.content))


async def test_a_finding_leaves_the_screen_once_it_holds_no_more(cluster: EmbeddedCluster) -> None:
    async with screen_of(cluster) as (app, pilot):
        screen = await open_without_looks(app, pilot)
        view = examine(GroupSnapshot(group="GID_gone", samples=(EMPTY_SAMPLE,)))
        findings = screen.query_one("#findings", Static)

        screen.fail("no answer")
        assert "no answer" in str(findings.content)
        screen.update(view, [])

        assert str(findings.content) == ""


async def test_ctrl_c_ends_at_once_while_a_look_waits_for_its_second_sample(
    cluster: EmbeddedCluster,
) -> None:
    async with screen_of(cluster, interval_ms=600_000) as (app, pilot):
        await until("groups", pilot, lambda: len(names_of(app)) == 2)
        await pilot.press("enter")
        await until("a group's screen", pilot, lambda: isinstance(app.screen, GroupScreen))
        await pilot.press("ctrl+c")

    assert app.return_code == EXIT_INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_gives_the_terminal_back(
    cluster: EmbeddedCluster, number: signal.Signals
) -> None:
    async with screen_of(cluster) as (app, pilot):
        await until("groups", pilot, lambda: len(names_of(app)) == 2)
        os.kill(os.getpid(), number)
        await until("the end", pilot, lambda: app.return_code is not None)

    assert app.return_code == 128 + number


async def test_a_cluster_that_goes_is_said_and_the_screen_stays(tmp_path: object) -> None:
    with EmbeddedCluster(flush="async") as cluster:
        async with screen_of(cluster) as (app, pilot):
            status = app.query_one("#status", Static)
            await until("a look", pilot, lambda: "1 broker" in str(status.content))
            await asyncio.to_thread(cluster.close)
            await until("a problem", pilot, lambda: "no name server" in str(status.content))


async def test_an_error_that_nobody_foresaw_ends_the_screen(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def watch() -> None:
        async with screen_of(cluster) as (app, pilot):
            await until("groups", pilot, lambda: len(names_of(app)) == 2)
            monkeypatch.setattr(top, "take_overview", lambda directory: 1 // 0)
            await until("the end", pilot, lambda: app.return_code == 0)

    with pytest.raises(ZeroDivisionError):
        await watch()


async def test_a_look_that_comes_after_the_end_changes_nothing(cluster: EmbeddedCluster) -> None:
    async with screen_of(cluster) as (app, _):
        pass

    assert app.screen_stack == []
    app.on_seen(Seen(Overview(at_ms=0, timestamp_ms=0, brokers=(), topics=(), groups=())))
    app.on_look_failed(LookFailed("no answer"))


def test_top_is_for_a_terminal(cluster: EmbeddedCluster) -> None:
    result = Commands(cluster.name_server)("top")

    assert (result.exit_code, "ls --json" in result.stderr) == (2, True)


def test_sparkline_shows_the_least_and_the_largest() -> None:
    assert "" == sparkline([]) == sparkline([0, 0])
    assert sparkline([0, 1, 1_000]) == " ▁█"
    assert sparkline([50, 100]) == "▄█"


def test_history_is_of_the_groups_that_are_there_and_bounded() -> None:
    history = LagHistory()

    def look(at_ms: int, *names: str) -> Overview:
        groups = tuple(GroupOverview(group=name, retry_lag=at_ms) for name in names)
        return Overview(at_ms=at_ms, timestamp_ms=at_ms, brokers=(), topics=(), groups=groups)

    for at_ms in range(99):
        history.add(look(at_ms, "a", "b"))
    rows = history.add(look(99, "a", "b"))
    assert [len(row.lags) for row in rows] == [30, 30]
    assert [row.group.group for row in history.add(look(100, "a"))] == ["a"]
    assert [row.lags for row in history.add(look(101, "b"))] == [(101,)]


class OneTurn(threading.Event):
    """The pause after a turn of a poller, at which the poller ends."""

    def __init__(self, poller: Poller) -> None:
        super().__init__()
        self._poller = poller

    def wait(self, timeout: float | None = None) -> bool:
        self._poller.stopped.set()
        return True


def test_a_paused_screen_takes_no_look(cluster: EmbeddedCluster) -> None:
    posted: list[object] = []
    with open_cluster(ConnectionOptions(cluster.name_server, timeout=10.0)) as opened:
        for is_paused in (True, False):
            poller = Poller(opened, 1, posted.append)
            poller.is_paused, poller.hurried = is_paused, OneTurn(poller)
            poller.run()
            assert len(posted) == (not is_paused)


async def test_groups_are_looked_at_again_after_escape(cluster: EmbeddedCluster) -> None:
    async with screen_of(cluster) as (app, pilot):
        await until("groups", pilot, lambda: len(names_of(app)) == 2)
        await pilot.press("enter")
        await until("a group's screen", pilot, lambda: isinstance(app.screen, GroupScreen))
        await pilot.press("escape")
        await until("all groups again", pilot, lambda: not isinstance(app.screen, GroupScreen))
        status = app.query_one("#status", Static)
        status.update("")

        await until("a look", pilot, lambda: "1 broker" in str(status.content))


async def test_a_look_at_a_group_that_was_left_is_not_shown_as_another(
    cluster: EmbeddedCluster,
) -> None:
    async with screen_of(cluster) as (app, pilot):
        screen = await open_without_looks(app, pilot)
        matrix = screen.query_one("#matrix", Static)
        findings = screen.query_one("#findings", Static)
        before = str(matrix.content)

        for group in ("GID_other", screen.group):
            view = examine(GroupSnapshot(group=group, samples=(EMPTY_SAMPLE,)))
            app.on_examined(Examined(view, []))
            assert (str(matrix.content) == before) == (group == "GID_other")
        app.on_look_failed(LookFailed("no answer"))
        assert "no answer" in str(findings.content)


async def test_keys_sort_by_what_they_name(cluster: EmbeddedCluster) -> None:
    def look(at_ms: int, **offsets: tuple[int, int]) -> Seen:
        """Make a look at groups by name, with the end and the committed offset of each."""
        groups = tuple(
            GroupOverview(
                group=name,
                topics=(TopicProgress("T", 1, end, committed, end - committed, 0, None),),
            )
            for name, (end, committed) in offsets.items()
        )
        seen = Overview(at_ms=at_ms, timestamp_ms=0, brokers=(), topics=(), groups=groups)
        return Seen(seen)

    async with screen_of(cluster) as (app, pilot):
        await until("groups", pilot, lambda: len(names_of(app)) == 2)
        await asyncio.to_thread(app.stop)
        app.on_seen(look(0, b=(0, 0), c=(0, 0), a=(9, 0)))
        app.on_seen(look(1_000, b=(5, 1), c=(3, 3), a=(9, 2)))

        found = {}
        for key in "lioan":
            await pilot.press(key)
            await pilot.pause()
            found[key] = "".join(names_of(app))
        rows = [list(map(str, app.query_one(DataTable).get_row_at(row)))[:4] for row in range(3)]

    assert found == {"l": "abc", "i": "bca", "o": "cab", "a": "bca", "n": "abc"}
    assert rows == [["a", "7", "0", "2"], ["b", "4", "5", "1"], ["c", "0", "3", "3"]]


class StopAtClear(threading.Event):
    """A hurry that a stop follows at once; notes the pauses that begin after the stop."""

    def __init__(self, poller: Poller) -> None:
        super().__init__()
        self._poller = poller
        self.late_pauses = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.late_pauses += self._poller.stopped.is_set()
        return True

    def clear(self) -> None:
        self._poller.stopped.set()
        self.set()
        super().clear()


def test_a_stop_between_two_looks_is_not_waited_out(cluster: EmbeddedCluster) -> None:
    with open_cluster(ConnectionOptions(cluster.name_server, timeout=10.0)) as opened:
        poller = Poller(opened, 60_000, lambda message: None)
        poller.hurried = hurried = StopAtClear(poller)

        poller.run()

    assert hurried.late_pauses == 0
