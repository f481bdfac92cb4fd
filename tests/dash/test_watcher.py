"""How often a cluster is looked at, what is kept, and a cluster of thousands of groups."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from group_stage import GroupStage
from live_page import Reader
from sparrowmq.client.operations.overview import (
    GroupOverview,
    Overview,
    TopicOverview,
    TopicPlace,
    TopicProgress,
)
from sparrowmq.dash import watcher as watcher_module
from sparrowmq.dash.watcher import TURNS_MAX, Watcher
from steps_of_pages import eventually, read_table, words_of

pytestmark = pytest.mark.slow

GROUPS, TOPICS, MEMBERS = 2_300, 900, 20


def large_overview() -> Overview:
    topics = [f"topic-{number:03}" for number in range(TOPICS)]
    return Overview(
        at_ms=0,
        timestamp_ms=0,
        brokers=(),
        topics=tuple(
            TopicOverview(
                topic=topic,
                places=(TopicPlace("broker-a", 16, 16, True, True),),
                groups=("GID_0001",),
                broker_offset=1_000,
            )
            for topic in topics
        ),
        groups=tuple(
            GroupOverview(
                group=f"GID_{number:04}",
                topics=(
                    TopicProgress(topics[number % TOPICS], 16, 900, 900 - number, number, 9, 1),
                ),
                members=tuple(f"10.0.0.{n}@1" for n in range(MEMBERS)) if number < 12 else None,
            )
            for number in range(GROUPS)
        ),
    )


async def test_thousands_of_groups_are_shown_within_a_second_of_processor(reader: Reader) -> None:
    async def first() -> bool:
        return reader.watcher.overview is not None

    await eventually("a first look", first)
    overview = large_overview()
    names = [group.group for group in overview.groups]
    reader.watcher._take_overview(overview, names)
    begun = time.process_time()

    overview_page = await reader.read("/")
    topics_page = await reader.read("/topics")

    assert time.process_time() - begun < 1.0
    assert 100 == overview_page.count('<tr>\n  <td class="text "><a href="/groups/')
    assert "1 of 23 · 2,300 rows" in words_of(overview_page)
    assert "1 of 9 · 900 rows" in words_of(topics_page)
    assert len(overview_page) < 200_000
    rows = await read_table(reader, "/?sort=-lag", "groups")
    assert (GROUPS, "GID_2299") == (len(rows), rows[0]["group"])
    assert len(reader.watcher.groups) <= TURNS_MAX + len(names[:TURNS_MAX])


async def test_a_group_on_a_screen_is_looked_at_more_often_than_others(
    reader: Reader, stage: GroupStage
) -> None:
    stage.join("a")
    group = await reader.watcher.find(stage.group)

    assert watcher_module.OTHERS_MS == watcher_module._pause_ms(group)
    with reader.watcher.showing(stage.group):
        assert watcher_module.MOVING_MS == watcher_module._pause_ms(group)
        group.moved_ms = None
        assert watcher_module.SHOWN_MS == watcher_module._pause_ms(group)
    assert 0 == group.shown


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

    assert "an error of this page; its log has more" in text
    assert "172.17.0.1@a" in text
    assert 1 == sum(f"group {stage.group} cannot be looked at" in r.message for r in caplog.records)


async def test_waiting_for_news_ends_with_its_time(reader: Reader) -> None:
    seen = reader.watcher.version("nothing")

    async with asyncio.timeout(10):
        assert seen == await reader.watcher.wait("nothing", seen, timeout_s=0.01)
