"""How long a group took to agree, from what its members held and when."""

from __future__ import annotations

from sparrowmq.doctor.owner_history import Holding, describe_durations, list_spans, measure
from sparrowmq.model import MessageQueue

QUEUES = [MessageQueue("T", "b", queue_id) for queue_id in range(4)]


def holding(at_ms: int, member: str, *ids: int) -> Holding:
    return Holding(at_ms, member, frozenset(QUEUES[queue_id] for queue_id in ids))


def figures(holdings: list[Holding]) -> tuple[int | None, int, int, int, int, int]:
    """Return when the group settled, the times without owner and with several, and the moves."""
    found = measure(holdings, QUEUES, since_ms=100, until_ms=500)
    return (
        *(found.settled_ms, found.longest_unowned_ms, found.any_unowned_ms),
        *(found.longest_double_ms, found.any_double_ms, len(found.moves)),
    )


BEGIN = [holding(0, "a", 0, 1), holding(5, "b", 2, 3)]


def test_quiet_group_has_settled_at_once() -> None:
    assert figures(BEGIN) == (0, 0, 0, 0, 0, 0)


def test_join_with_a_moment_of_two_owners() -> None:
    join = [holding(120, "c", 3), holding(150, "b", 2)]

    assert figures(BEGIN + join) == (50, 0, 0, 30, 30, 1)


def test_times_of_exact_holdings_are_no_bounds() -> None:
    join = [*BEGIN, holding(150, "c", 3)]
    found = measure(join, QUEUES, since_ms=100, until_ms=500)

    assert describe_durations(found) == ("never", "0 ms, 0 ms", "350 ms, 350 ms")
    agreed = measure([*join, holding(160, "b", 2)], QUEUES, since_ms=100, until_ms=500)
    assert describe_durations(agreed) == ("60 ms", "0 ms, 0 ms", "10 ms, 10 ms")


def test_kill_leaves_queues_without_an_owner_for_a_while() -> None:
    kill = [holding(100, "a"), holding(160, "b", 0, 1, 2, 3)]

    assert figures(kill + BEGIN) == (60, 60, 60, 0, 0, 2)


def test_group_that_does_not_agree_has_no_time() -> None:
    twins = [holding(100, "c", 0, 1), holding(110, "b", 3)]

    assert figures(BEGIN + twins) == (None, 390, 390, 400, 400, 3)


def test_what_comes_after_the_end_does_not_count() -> None:
    late = [holding(600, "a")]

    assert figures(BEGIN + late) == (0, 0, 0, 0, 0, 0)


def test_spans_show_nobody_one_and_two_owners() -> None:
    holdings = [holding(10, "a", 0, 1), holding(28, "b", 0), holding(30, "a", 1), holding(40, "a")]

    spans = list_spans(holdings, QUEUES[:2], since_ms=0, until_ms=50)

    assert [(span.queue.queue_id, *span[1:]) for span in spans] == [
        (0, 0, 10, ()),
        (0, 10, 28, ("a",)),
        (0, 28, 30, ("a", "b")),
        (0, 30, 50, ("b",)),
        (1, 0, 10, ()),
        (1, 10, 40, ("a",)),
        (1, 40, 50, ()),
    ]


def test_spans_begin_with_what_was_held_before_and_join_where_owners_stay_the_same() -> None:
    holdings = [*BEGIN, holding(120, "a", 0), holding(120, "b", 1, 2, 3), holding(150, "a", 0)]

    spans = list_spans(holdings, QUEUES[:2], since_ms=100, until_ms=200)

    assert [(span.queue.queue_id, *span[1:]) for span in spans] == [
        (0, 100, 200, ("a",)),
        (1, 100, 120, ("a",)),
        (1, 120, 200, ("b",)),
    ]
