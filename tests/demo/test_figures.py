from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.demo.figures import (
    Holding,
    OrderCheck,
    Recovery,
    Span,
    check_order,
    count_by_window,
    count_distinct,
    count_per_queue,
    find_duplicates,
    has_one_owner_each,
    list_holdings,
    list_spans,
    measure_recovery,
    owners_at,
)


def integers(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def test_holdings_follow_the_assignments_of_each_member() -> None:
    assignments = {"a": [(10, [0, 1]), (30, [1])], "b": [(20, []), (32, [0])]}

    holdings = list_holdings(assignments, ends={}, until_ms=50)

    assert [
        Holding("a", 0, 10, 30),
        Holding("a", 1, 10, 50),
        Holding("b", 0, 32, 50),
    ] == holdings


def test_holdings_of_a_killed_member_end_with_it() -> None:
    holdings = list_holdings({"a": [(10, [0])]}, ends={"a": 25}, until_ms=50)

    assert [Holding("a", 0, 10, 25)] == holdings


def test_assignment_written_after_the_end_gives_nothing() -> None:
    holdings = list_holdings({"a": [(10, [0]), (26, [1])]}, ends={"a": 25}, until_ms=50)

    assert [Holding("a", 0, 10, 25)] == holdings


def test_spans_show_nobody_one_and_two_owners() -> None:
    holdings = [Holding("a", 0, 10, 30), Holding("b", 0, 28, 50), Holding("a", 1, 10, 40)]

    spans = list_spans(holdings, queue_count=2, start_ms=0, until_ms=50)

    assert [
        Span(0, 0, 10, ()),
        Span(0, 10, 28, ("a",)),
        Span(0, 28, 30, ("a", "b")),
        Span(0, 30, 50, ("b",)),
        Span(1, 0, 10, ()),
        Span(1, 10, 40, ("a",)),
        Span(1, 40, 50, ()),
    ] == spans


def test_spans_join_where_the_owners_stay_the_same() -> None:
    holdings = [Holding("a", 0, 0, 10), Holding("a", 0, 10, 20)]

    assert [Span(0, 0, 20, ("a",))] == list_spans(holdings, queue_count=1, start_ms=0, until_ms=20)


def test_recovery_lasts_until_the_last_change_and_names_the_longest_gaps() -> None:
    holdings = [
        Holding("a", 0, 0, 105),
        Holding("b", 0, 125, 200),
        Holding("a", 1, 0, 110),
        Holding("b", 1, 107, 200),
    ]
    spans = list_spans(holdings, queue_count=2, start_ms=0, until_ms=200)

    recovery = measure_recovery(spans, 100, until_ms=200, queue_count=2)

    assert Recovery(settled_ms=25, unowned_ms_max=20, double_ms_max=3, queues_moved=2) == recovery


def test_recovery_never_comes_if_a_queue_stays_without_owner() -> None:
    spans = list_spans([Holding("a", 0, 0, 105)], queue_count=2, start_ms=0, until_ms=200)

    recovery = measure_recovery(spans, 100, until_ms=200, queue_count=2)

    assert Recovery(None, 100, 0, 1) == recovery


def test_recovery_looks_no_further_than_the_next_event() -> None:
    holdings = [Holding("a", 0, 0, 120), Holding("b", 0, 150, 300)]
    spans = list_spans(holdings, queue_count=1, start_ms=0, until_ms=300)

    assert Recovery(0, 0, 0, 0) == measure_recovery(spans, 50, until_ms=100, queue_count=1)
    assert Recovery(50, 30, 0, 1) == measure_recovery(spans, 100, until_ms=200, queue_count=1)


def test_owners_at_an_instant() -> None:
    spans = [Span(0, 0, 10, ("a",)), Span(0, 10, 20, ("b",)), Span(1, 0, 20, ())]

    assert {0: ("b",), 1: ()} == owners_at(spans, 20)
    assert {0: ("a",), 1: ()} == owners_at(spans, 5)
    assert not has_one_owner_each(owners_at(spans, 20), queue_count=2)
    assert not has_one_owner_each({0: ("a",)}, queue_count=2)
    assert has_one_owner_each({0: ("a",), 1: ("a",)}, queue_count=2)


def test_duplicates_are_all_deliveries_but_the_first() -> None:
    queues, offsets = integers(0, 0, 1, 0, 0), integers(5, 5, 5, 6, 5)
    instants = integers(30, 10, 11, 12, 20)

    assert [20, 30] == find_duplicates(queues, offsets, instants).tolist()


def test_duplicates_of_nothing_are_none() -> None:
    assert [] == find_duplicates(integers(), integers(), integers()).tolist()
    assert [] == find_duplicates(integers(0), integers(5), integers(9)).tolist()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 99))))
def test_deliveries_are_distinct_messages_plus_duplicates(rows: list[tuple[int, ...]]) -> None:
    queues, offsets, instants = (integers(*(row[i] for row in rows)) for i in range(3))

    distinct = count_distinct(queues, offsets)

    assert len({row[:2] for row in rows}) == distinct
    assert len(rows) - distinct == len(find_duplicates(queues, offsets, instants))


def test_instants_count_to_the_last_window_begun() -> None:
    assert [2, 0, 3] == count_by_window(integers(5, 10, 30, 31, 99), [10, 20, 30])
    assert [0, 0] == count_by_window(integers(), [10, 20])
    assert [] == count_by_window(integers(), [])


def test_rows_per_queue_name_queues_without_rows() -> None:
    assert [2, 0, 1, 0] == count_per_queue(integers(0, 2, 0), queue_count=4)


def test_order_holds_when_each_aircraft_ascends_in_one_queue() -> None:
    check = check_order(
        integers(7, 8, 7, 8),
        integers(0, 0, 0, 0),
        queue_offsets=integers(0, 1, 2, 3),
        produced_index=integers(10, 11, 12, 13),
    )

    assert OrderCheck(2, 4, 0, 0, 0) == check
    assert check.holds


def test_order_counts_legs_that_overtook_and_aircraft_that_were_split() -> None:
    check = check_order(
        integers(7, 7, 7, 8, 8, 9),
        integers(0, 0, 0, 0, 1, 1),
        queue_offsets=integers(0, 1, 2, 3, 0, 1),
        produced_index=integers(10, 12, 11, 13, 14, -1),
    )

    assert OrderCheck(3, 6, 1, 1, 1) == check
    assert not check.holds
