"""Virtual time, and processes that stand still or are gone."""

from __future__ import annotations

from functools import partial
from typing import Any

from sparrowmq.simulation.virtual_time import START_MS


def test_events_happen_by_time_and_then_in_the_order_in_which_they_were_planned(world: Any) -> None:
    seen: list[tuple[str, int]] = []

    def note(name: str) -> None:
        seen.append((name, world.timeline.now_ms - START_MS))

    for name, delay_ms in (("c", 20), ("a", 10), ("b", 10)):
        world.timeline.call_in(delay_ms, partial(note, name))
    world.timeline.call_in(5, partial(note, "never")).cancel()
    world.run(30)

    assert seen == [("a", 10), ("b", 10), ("c", 20)]
    assert world.timeline.event_count == 3


def test_frozen_process_takes_everything_in_when_it_is_thawed_and_time_has_passed(
    world: Any,
) -> None:
    process = world.process("10.0.0.1")
    seen: list[int] = []
    process.call_in(10, lambda: seen.append(process.monotonic_ms()))
    process.freeze()
    world.run(5_000)

    assert seen == []
    process.thaw()
    assert seen == [START_MS + 5_000]


def test_killed_process_takes_nothing_in(world: Any) -> None:
    process = world.process("10.0.0.1")
    seen: list[int] = []
    process.call_in(10, lambda: seen.append(1))
    process.freeze()
    world.run(20)
    process.kill()
    process.thaw()
    process.enter(lambda: seen.append(2))

    assert seen == []


def test_process_that_freezes_again_while_it_is_thawed_keeps_the_rest(world: Any) -> None:
    process = world.process("10.0.0.1")
    seen: list[int] = []
    process.freeze()
    process.enter(process.freeze)
    process.enter(lambda: seen.append(1))
    process.thaw()

    assert seen == []
    process.thaw()
    assert seen == [1]
