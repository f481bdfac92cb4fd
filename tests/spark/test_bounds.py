from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import (
    OffsetChoice,
    QueueBounds,
    choose_end,
    ranges_between,
    resolve_choice,
)
from sparrowmq.spark.checkpoint_offsets import EARLIEST, LATEST
from sparrowmq.spark.planning import QueueRange

A, B, C = (MessageQueue("T", "broker-a", number) for number in range(3))
offsets = st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 30))
bounds = st.dictionaries(
    st.sampled_from([A, B, C]),
    st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: QueueBounds(*sorted(pair))),
)


def test_stand_ins_are_resolved() -> None:
    found = {A: QueueBounds(3, 9), B: QueueBounds(0, 4), C: QueueBounds(1, 2)}

    answer = resolve_choice(OffsetChoice(EARLIEST, {A: LATEST, B: 2}), found)

    assert answer == ({A: 9, B: 2, C: 1}, [])


def test_an_offset_that_is_gone_is_a_loss() -> None:
    answer = resolve_choice(
        OffsetChoice(EARLIEST, {A: 1, B: 9}), {A: QueueBounds(3, 9), B: QueueBounds(0, 4)}
    )

    assert answer.offsets == {A: 3, B: 4}
    assert [str(loss) for loss in answer.losses] == [
        "queue T/broker-a/0: offset 1 was to be read, but the queue begins at 3 now; "
        "2 messages are gone",
        "queue T/broker-a/1: offset 9 was to be read next, but the queue ends at 4 now",
    ]


def test_offsets_of_an_unknown_queue_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_choice(OffsetChoice(EARLIEST, {C: 0}), {A: QueueBounds(0, 1)})

    assert "name queue T/broker-a/2, which is not read; the queues are T/broker-a/0" in str(
        caught.value
    )


def test_a_new_queue_is_read_from_its_first_message() -> None:
    answer = choose_end(
        {A: 5}, {A: QueueBounds(0, 7), B: QueueBounds(0, 3)}, frozen=None, rows_max=None
    )

    offsets, losses = answer
    assert offsets == {A: 7, B: 3}
    assert losses == []
    assert ranges_between({A: 5}, offsets) == [QueueRange(A, 5, 7), QueueRange(B, 0, 3)]


def test_a_frozen_end_is_kept_and_new_queues_wait() -> None:
    found = {A: QueueBounds(0, 100), B: QueueBounds(0, 100)}

    answer = choose_end({A: 5}, found, frozen={A: 20}, rows_max=None)
    # B was away when the end was fixed, and keeps its offset.
    later = choose_end({A: 5, B: 7}, found, frozen={A: 20}, rows_max=None)

    assert answer == ({A: 20}, [])
    assert later == ({A: 20, B: 7}, [])


@pytest.mark.parametrize(
    ("found", "end", "words"),
    [
        ({A: QueueBounds(8, 12)}, {A: 12}, "begins at 8 now; 3 messages are gone"),
        ({A: QueueBounds(0, 2)}, {A: 2}, "offset 5 was to be read next, but the queue ends at 2"),
        ({}, {A: 5}, "it is not there any more; offset 5 was to be read next"),
        (
            {A: QueueBounds(0, 5), B: QueueBounds(4, 6)},
            {A: 5, B: 6},
            "it is new and begins at offset 4; what came before is gone",
        ),
    ],
)
def test_every_kind_of_loss_is_told(
    found: dict[MessageQueue, QueueBounds], end: dict[MessageQueue, int], words: str
) -> None:
    answer = choose_end({A: 5}, found, frozen=None, rows_max=None)

    assert end == answer.offsets
    assert len(answer.losses) == 1
    assert words in str(answer.losses[0])


@given(offsets, bounds, st.one_of(st.none(), offsets), st.one_of(st.none(), st.integers(1, 40)))
def test_every_query_with_a_frozen_end_comes_to_rest(
    start: dict[MessageQueue, int],
    found: dict[MessageQueue, QueueBounds],
    frozen: dict[MessageQueue, int] | None,
    rows_max: int | None,
) -> None:
    for _ in range(200):
        end = choose_end(start, found, frozen=frozen, rows_max=rows_max).offsets
        if end == start:
            return
        start = end

    pytest.fail("the query goes on for ever")


@given(offsets, bounds, st.integers(1, 40))
def test_batches_read_each_offset_once_and_keep_their_limit(
    start: dict[MessageQueue, int], found: dict[MessageQueue, QueueBounds], rows_max: int
) -> None:
    begin = dict(start)
    read: set[tuple[MessageQueue, int]] = set()
    for _ in range(200):
        end = choose_end(start, found, frozen=None, rows_max=rows_max).offsets
        if end == start:
            break
        batch = [
            (each.queue, offset)
            for each in ranges_between(start, end)
            for offset in range(max(each.start, found[each.queue].min_offset), each.end)
        ]
        assert len(batch) <= rows_max
        assert read.isdisjoint(batch)
        read.update(batch)
        start = end

    assert {
        (queue, offset)
        for queue, at in found.items()
        if begin.get(queue, 0) <= at.max_offset
        for offset in range(max(begin.get(queue, 0), at.min_offset), at.max_offset)
    } == read


def test_a_batch_begins_with_as_many_rows_as_are_asked_for() -> None:
    found = {A: QueueBounds(0, 7), B: QueueBounds(0, 9)}

    ends = [
        choose_end({A: 5, B: 7}, found, frozen=None, rows_max=None, rows_min=rows_min).offsets
        for rows_min in (4, 5)
    ]

    assert ends == [{A: 7, B: 9}, {A: 5, B: 7}]
