"""The live page on Apache's brokers: members, moves, messages and twins, as on our own."""

from __future__ import annotations

from typing import Any

import pytest

from group_stage import GroupStage
from live_page import Reader, reading
from steps_of_pages import eventually, read_table, words_of
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


async def states(reader: Reader, stage: GroupStage) -> list[tuple[str, str]]:
    await reader.watcher.look_now(stage.group)
    rows = await read_table(reader, f"/groups/{stage.group}?topic={stage.topic}", "queues")
    return [(row["state"], row["owners"]) for row in rows]


async def test_the_page_follows_a_group_on_apaches_broker(apache_cluster: Any) -> None:
    with GroupStage(apache_cluster) as stage:
        stage.send([b"%d" % number for number in range(20)], keys=["needle"])
        async with reading(apache_cluster.name_server) as reader:
            a = stage.join("a")
            wait_until("all messages", lambda: a.counters.succeeded == 20, timeout_s=60)
            await reader.read(f"/groups/{stage.group}")
            with reader.watcher.showing(stage.group):
                stage.join("b")

                async def moves() -> list[dict[str, Any]]:
                    table = f"/groups/{stage.group}"
                    found = await read_table(reader, table, "rebalances")
                    return [each for each in found if each["moved"] == 2]

                (found,) = await eventually("a rebalance", moves)

            async def row() -> dict[str, Any] | None:
                rows = await read_table(reader, "/", "groups")
                return next((r for r in rows if r["group"] == stage.group and r["lag"] == 0), None)

            shown = await eventually("the group, all consumed", row)
            topic = words_of(await reader.read(f"/topics/{stage.topic}"))
            messages = words_of(await reader.read(f"/messages?topic={stage.topic}&key=needle"))
            brokers = words_of(await reader.read("/brokers"))

            async def producers() -> list[dict[str, Any]]:
                return await read_table(reader, f"/topics/{stage.topic}", "producers")

            (producer, *_) = await eventually("the producer", producers)

            async def is_well() -> bool:
                await reader.watcher.look_now(stage.group)
                page = words_of(await reader.read(f"/groups/{stage.group}"))
                return "Nothing is wrong." in page

            await eventually("a group of which the doctor has nothing to say", is_well)

    assert found["reason"] == "B (172.17.0.1@b) joined"
    assert found["moves"] == "A → B: broker-a:2, 3"
    assert (shown["members"], shown["unowned"], shown["double"]) == (2, 0, 0)
    assert stage.group in topic
    assert "needle" in messages
    assert "broker-a" in brokers
    assert (producer["language"], producer["brokers"]) == ("PYTHON", "broker-a")


async def test_twins_on_apaches_broker_are_shown_where_they_hurt(apache_cluster: Any) -> None:
    with GroupStage(apache_cluster) as stage:
        async with reading(apache_cluster.name_server) as reader:
            stage.start_process("twin")
            stage.join("b")
            stage.start_process("twin")

            async def both() -> list[tuple[str, str]] | None:
                found = await states(reader, stage)
                kinds = {state for state, _ in found}
                return found if {"double", "unowned"} <= kinds else None

            await eventually("double and unowned queues", both)
            text = words_of(await reader.read(f"/groups/{stage.group}"))

    assert "172.17.0.1@twin 2 processes have this id" in text
    assert "Remedy" in text
