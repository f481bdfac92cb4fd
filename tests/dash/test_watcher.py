"""How often a cluster is looked at, what is kept, and a cluster of thousands of groups."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter

import pytest

from group_stage import GroupStage
from large_cluster import cpu_s, large_cluster
from live_page import Reader, reading
from processor_time import python_start_s
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.effects import Invoke, Oneway
from sparrowmq.calling.scheduler import Waiter
from sparrowmq.client.operations.overview import (
    GROUPS_ASKED_MAX,
    Overview,
    list_all_groups,
    take_overview,
)
from sparrowmq.dash import watcher as watcher_module
from sparrowmq.dash.watcher import KEPT_MS, TURNS_MAX, Watcher
from steps_of_pages import eventually, read_table, words_of

pytestmark = pytest.mark.slow

GROUPS, TOPICS, MEMBERS = 2_300, 900, 8


class CountingDriver(AsyncDriver):
    """Counts requests by the address that they go to."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

        submit = self._scheduler.submit

        def count(waiter: Waiter, effect: Invoke | Oneway) -> None:
            self.counts[effect.address] += 1
            submit(waiter, effect)

        self._scheduler.submit = count


@pytest.mark.long
async def test_overview_of_thousands_of_groups_takes_few_requests_and_less_than_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # After its first look the page looks at nothing by itself: its looks would be measured too.
    monkeypatch.setattr(watcher_module, "OVERVIEW_MS", 3_600_000)
    monkeypatch.setattr(watcher_module, "TURN_MS", 3_600_000)
    async with (
        large_cluster(topics=TOPICS, groups=GROUPS, members=MEMBERS) as cluster,
        reading(cluster.name_server) as reader,
        CountingDriver() as driver,
    ):

        async def first() -> bool:
            return reader.watcher.overview is not None

        await eventually("a first look", first)

        async def take() -> tuple[float, Overview, str]:
            driver.counts.clear()
            begun = time.process_time() + cpu_s(cluster.pid)
            overview = await driver.run(take_overview(reader.watcher.directory))
            names = await driver.run(list_all_groups(reader.watcher.directory, overview, ()))
            reader.watcher._take_overview(overview, names)
            page = await reader.read("/")
            return time.process_time() + cpu_s(cluster.pid) - begun, overview, page

        taken = [await take() for _ in range(3)]
        _, overview, page = taken[-1]

        # A second of a machine on which Python starts in 0.08 s.
        assert min(seconds / python_start_s() for seconds, _, _ in taken) < 12
        # Of the groups that are asked for, each is asked for its members and for what waits.
        assert 2 < driver.counts[cluster.broker] <= 8 + 2 * GROUPS_ASKED_MAX
        assert len(overview.groups[0].members or ()) == MEMBERS
        assert page.count('<a href="/groups/') == 100
        assert "1 of 23 · 2,300 rows" in words_of(page)
        assert "1 of 9 · 900 rows" in words_of(await reader.read("/topics"))
        assert len(page) < 200_000
        rows = await read_table(reader, "/?sort=-group", "groups")
        assert (len(rows), rows[0]["group"]) == (GROUPS, "GID_2299")
        assert len(reader.watcher.groups) <= TURNS_MAX


async def test_a_group_on_a_screen_is_looked_at_more_often_than_others(
    reader: Reader, stage: GroupStage
) -> None:
    stage.join("a")
    group = await reader.watcher.find(stage.group)

    assert watcher_module._pause_ms(group) == watcher_module.OTHERS_MS
    with reader.watcher.showing(stage.group):
        assert watcher_module._pause_ms(group) == watcher_module.MOVING_MS
        group.moved_ms = None
        assert watcher_module._pause_ms(group) == watcher_module.SHOWN_MS
    assert group.shown == 0


async def test_a_group_that_cannot_be_understood_is_said_and_harms_no_other(
    reader: Reader,
    stage: GroupStage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage.join("a")
    group = await reader.watcher.find(stage.group)

    def fail(*_: object) -> None:
        raise KeyError("odd")

    monkeypatch.setattr(Watcher, "_take", fail)
    with reader.watcher.showing(stage.group), caplog.at_level(logging.ERROR):

        async def failed() -> str:
            return group.failure

        await eventually("the failure", failed)
    text = words_of(await reader.read(f"/groups/{stage.group}"))
    (row,) = [row for row in await read_table(reader, "/", "groups") if row["group"] == stage.group]

    # What was found before is not what is.
    assert row["trouble"] == "cannot be looked at"
    assert "an error of this page; its log has more" in text
    assert "172.17.0.1@a" in text
    assert (
        sum(f"group {stage.group} cannot be looked at" in r.getMessage() for r in caplog.records)
        == 1
    )


async def test_a_group_that_nobody_wants_is_kept_for_a_while(reader: Reader) -> None:
    watcher = reader.watcher
    old, _, shown = [watcher._group(name) for name in ("G_old", "G_wanted", "G_shown")]
    for group in (old, shown):
        group.wanted_ms -= KEPT_MS + 1
        await watcher.announce(group.name)
    with watcher.showing("G_shown"):
        shown.wanted_ms = old.wanted_ms
        nothing = Overview(at_ms=0, timestamp_ms=0, brokers=(), topics=(), groups=())
        watcher._take_overview(nothing, [])

    assert set(watcher.groups) & {"G_old", "G_wanted", "G_shown"} == {"G_wanted", "G_shown"}
    assert (watcher.version("G_old"), watcher.version("G_shown") > 0) == (0, True)


async def test_waiting_for_news_ends_with_its_time(reader: Reader) -> None:
    seen = reader.watcher.version("nothing")

    async with asyncio.timeout(10):
        assert seen == await reader.watcher.wait("nothing", seen, timeout_s=0.01)
