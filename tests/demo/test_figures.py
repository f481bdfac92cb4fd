from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.demo.figures import (
    OrderCheck,
    check_order,
    count_by_window,
    count_distinct,
    count_per_queue,
    find_duplicates,
)


def integers(*values: int) -> Any:
    return np.array(values, dtype=np.int64)


def test_duplicates_are_all_deliveries_but_the_first() -> None:
    queues, offsets = integers(0, 0, 1, 0, 0), integers(5, 5, 5, 6, 5)
    instants = integers(30, 10, 11, 12, 20)

    assert find_duplicates(queues, offsets, instants).tolist() == [20, 30]


def test_duplicates_of_nothing_are_none() -> None:
    assert find_duplicates(integers(), integers(), integers()).tolist() == []
    assert find_duplicates(integers(0), integers(5), integers(9)).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 99))))
def test_deliveries_are_distinct_messages_plus_duplicates(rows: list[tuple[int, ...]]) -> None:
    queues, offsets, instants = (integers(*(row[i] for row in rows)) for i in range(3))

    distinct = count_distinct(queues, offsets)

    assert len({row[:2] for row in rows}) == distinct
    assert len(rows) - distinct == len(find_duplicates(queues, offsets, instants))


def test_instants_count_to_the_last_window_begun() -> None:
    assert count_by_window(integers(5, 10, 30, 31, 99), [10, 20, 30]) == [2, 0, 3]
    assert count_by_window(integers(), [10, 20]) == [0, 0]
    assert count_by_window(integers(), []) == []


def test_rows_per_queue_name_queues_without_rows() -> None:
    assert count_per_queue(integers(0, 2, 0), queue_count=4) == [2, 0, 1, 0]


def test_order_holds_when_each_aircraft_ascends_in_one_queue() -> None:
    check = check_order(
        integers(7, 8, 7, 8),
        integers(0, 0, 0, 0),
        queue_offsets=integers(0, 1, 2, 3),
        produced_index=integers(10, 11, 12, 13),
    )

    assert check == OrderCheck(2, 4, 0, 0, 0)
    assert check.holds


def test_order_counts_legs_that_overtook_and_aircraft_that_were_split() -> None:
    check = check_order(
        integers(7, 7, 7, 8, 8, 9),
        integers(0, 0, 0, 0, 1, 1),
        queue_offsets=integers(0, 1, 2, 3, 0, 1),
        produced_index=integers(10, 12, 11, 13, 14, -1),
    )

    assert check == OrderCheck(3, 6, 1, 1, 1)
    assert not check.holds
