"""What the pictures of owners and the simulator's table say, without a browser or a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from group_views import Q0
from sparrowmq.dash.matrix import MatrixColumn
from sparrowmq.dash.simulator_page import show_simulator
from sparrowmq.dash.strips import TimeWindow, draw_bands
from sparrowmq.dash.web import View, Visit
from sparrowmq.doctor.owner_history import OwnedSpan
from sparrowmq.words.catalog import Words

COLUMNS = {each: MatrixColumn(each, each.upper(), f"c{n}") for n, each in enumerate("ab", 1)}


def draw(*spans: tuple[int, int, tuple[str, ...] | None]) -> str:
    found = [OwnedSpan(Q0, start, end, owners) for start, end, owners in spans]
    return str(draw_bands(found, COLUMNS, TimeWindow(1_000, 2_000), marks=(), nobody="nobody"))


def test_a_moment_has_its_place_in_the_window_and_none_outside() -> None:
    places = [TimeWindow(1_000, 3_000).percent(at) for at in (500, 1_000, 2_000, 3_000, 9_000)]

    assert places == [0.0, 0.0, 50.0, 100.0, 100.0]


@pytest.mark.parametrize(
    ("owners", "hatch", "name"),
    [(("a",), None, "A"), ((), "hatch-none", "nobody"), (("a", "b"), "hatch-both", "A + B")],
)
def test_a_band_shows_its_owner_or_that_it_has_none_or_several(
    owners: tuple[str, ...], hatch: str | None, name: str
) -> None:
    drawn = draw((1_000, 2_000, owners))

    assert f">{name}<" in drawn
    assert [each for each in ("hatch-none", "hatch-both") if each in drawn] == [hatch] * bool(hatch)


def test_a_moment_without_owner_is_seen_and_has_no_name() -> None:
    drawn = draw((1_000, 1_500, ("a",)), (1_500, 1_501, ()), (1_501, 2_000, None))

    assert 'width="0.4%"' in drawn
    assert "nobody" not in drawn


async def simulator(**asked: str) -> tuple[dict[str, dict[str, Any]], Any]:
    """Return the rows of the table, by strategy, and the first picture."""
    visit = Visit(request=cast(Any, None), session=cast(Any, None), words=Words("en"), query=asked)
    shown = await show_simulator(visit)
    assert isinstance(shown, View)
    (table,) = shown.tables
    rows = [
        {column.key: cell.value for column, cell in zip(table.columns, row, strict=True)}
        for row in table.rows
    ]
    return {str(row["strategy"]): row for row in rows}, cast(Any, shown.context["pictures"])[0]


async def test_the_simulators_table_counts_over_all_events() -> None:
    rows, picture = await simulator(queues="4", members="5", events="leave:4,join")

    # One of five has no queue until the last leaves, and again once it joins.
    assert (rows["AVG"]["idle"], rows["AVG"]["moved"]) == (1, 0)
    assert rows["AVG_BY_CIRCLE"]["unowned"] == 0
    changed = [[square.has_moved for square in squares] for _, squares in picture.rows]
    assert changed == [[False, False, False]] * 4
    assert picture.moved == (0, 0, 0)


async def test_the_simulators_picture_marks_what_an_event_moves_and_not_the_start() -> None:
    rows, picture = await simulator(queues="4", members="1", events="join")

    marked = [[square.has_moved for square in squares] for _, squares in picture.rows]
    assert marked == [[False, False], [False, False], [False, True], [False, True]]
    assert (rows["AVG"]["moved"], rows["CONFIG"]["idle"]) == (2, 1)


async def test_the_simulators_table_remembers_who_was_idle_at_first() -> None:
    rows, _ = await simulator(queues="2", members="3", events="leave:0")

    assert rows["AVG"]["idle"] == 1
