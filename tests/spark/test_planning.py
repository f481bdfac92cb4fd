from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.model import MessageQueue
from sparrowmq.spark.planning import QueueRange, apportion, limit_ranges, plan_partitions

Q = [MessageQueue("T", "broker-a", number) for number in range(12)]


@st.composite
def range_lists(draw: st.DrawFn) -> list[QueueRange]:
    sizes = draw(st.lists(st.integers(0, 60), max_size=12))
    return [
        QueueRange(queue, start, start + size)
        for queue, size, start in zip(
            Q, sizes, draw(st.lists(st.integers(0, 5), min_size=12, max_size=12)), strict=False
        )
    ]


def offsets_of(ranges: list[QueueRange]) -> Counter[tuple[MessageQueue, int]]:
    return Counter((each.queue, at) for each in ranges for at in range(each.start, each.end))


@given(range_lists(), st.integers(0, 40), st.integers(1, 80))
def test_plan_holds_every_offset_exactly_once(
    ranges: list[QueueRange], partitions_min: int, rows_min: int
) -> None:
    plan = plan_partitions(ranges, partitions_min=partitions_min, rows_min=rows_min)

    assert offsets_of(ranges) == offsets_of([each for part in plan for each in part])


@given(range_lists(), st.integers(0, 40), st.integers(1, 80))
def test_plan_has_the_partitions_asked_for_as_far_as_there_are_rows(
    ranges: list[QueueRange], partitions_min: int, rows_min: int
) -> None:
    plan = plan_partitions(ranges, partitions_min=partitions_min, rows_min=rows_min)

    assert len(plan) >= min(partitions_min, sum(each.rows for each in ranges))
    assert all(each.rows > 0 for part in plan for each in part)


def test_small_queues_share_a_partition_and_large_ones_do_not() -> None:
    ranges = [QueueRange(Q[0], 0, 100), QueueRange(Q[1], 0, 3), QueueRange(Q[2], 5, 8)]

    plan = plan_partitions(ranges, partitions_min=0, rows_min=50)

    assert [(ranges[0],), (ranges[1], ranges[2])] == plan


def test_queues_share_a_partition_until_it_has_enough() -> None:
    ranges = [QueueRange(each, 0, 30) for each in Q[:5]]

    plan = plan_partitions(ranges, partitions_min=0, rows_min=50)
    bounded = plan_partitions(ranges, partitions_min=0, rows_min=50, rows_max=59)

    assert [len(part) for part in plan] == [2, 2, 1]
    assert [len(part) for part in bounded] == [1, 1, 1, 1, 1]


def test_what_is_left_for_the_last_partition_is_evened_out() -> None:
    ranges = [QueueRange(each, 0, 15) for each in Q[:5]]
    large = QueueRange(Q[5], 0, 60)

    plan = plan_partitions(ranges, partitions_min=0, rows_min=60)
    beside_large = plan_partitions([*ranges, large], partitions_min=0, rows_min=60)

    assert [len(part) for part in plan] == [3, 2]
    assert [len(part) for part in beside_large] == [3, 2, 1]


def test_the_larger_queue_is_split_into_more_pieces() -> None:
    ranges = [QueueRange(Q[0], 0, 30), QueueRange(Q[1], 0, 10)]

    plan = plan_partitions(ranges, partitions_min=4, rows_min=1)
    bounded = plan_partitions(ranges, partitions_min=4, rows_min=1, rows_max=20)

    assert (
        bounded
        == plan
        == [
            (QueueRange(Q[0], 0, 10),),
            (QueueRange(Q[0], 10, 20),),
            (QueueRange(Q[0], 20, 30),),
            (QueueRange(Q[1], 0, 10),),
        ]
    )


@given(range_lists(), st.integers(1, 500))
def test_limit_keeps_starts_and_holds_exactly_what_is_allowed(
    ranges: list[QueueRange], rows_max: int
) -> None:
    limited = limit_ranges(ranges, rows_max)

    assert [(each.queue, each.start) for each in ranges] == [
        (each.queue, each.start) for each in limited
    ]
    assert all(small.end <= whole.end for small, whole in zip(limited, ranges, strict=True))
    assert min(rows_max, sum(each.rows for each in ranges)) == sum(each.rows for each in limited)


@given(range_lists(), st.integers(12, 500))
def test_limit_starves_no_queue(ranges: list[QueueRange], rows_max: int) -> None:
    limited = limit_ranges(ranges, rows_max)

    assert [each.rows > 0 for each in ranges] == [each.rows > 0 for each in limited]


@given(range_lists(), st.integers(1, 12))
def test_fewer_rows_than_queues_starve_no_queue(ranges: list[QueueRange], rows_max: int) -> None:
    starts = {each.queue: each.start for each in ranges if each.rows > 0}
    read = dict(starts)
    # As many batches as there are queues, whose messages never end.
    for _ in starts:
        waiting = [QueueRange(queue, read[queue], read[queue] + 1_000_000) for queue in read]
        read = {each.queue: each.end for each in limit_ranges(waiting, rows_max)}

    assert all(read[queue] > start for queue, start in starts.items())


def test_message_larger_than_the_limit_is_read_alone() -> None:
    ranges = [QueueRange(Q[0], 3, 9), QueueRange(Q[1], 0, 4)]

    cut = limit_ranges(ranges, 100, row_sizes={Q[0]: 1_000, Q[1]: 1_000})

    assert [each.rows for each in cut] == [1, 1]


def test_shares_follow_sizes() -> None:
    assert apportion([600_000, 300_000, 100_000, 0], 1000) == [599, 300, 101, 0]


@given(st.lists(st.integers(0, 100), max_size=9), st.data())
def test_apportion_deals_out_everything_within_sizes(sizes: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(sizes)))

    counts = apportion(sizes, total)

    assert total == sum(counts)
    assert all(0 <= count <= size for count, size in zip(counts, sizes, strict=True))
