"""Kafka's assignors against the examples its documents publish, and their promises."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.model import MessageQueue
from sparrowmq.strategies.kafka_assignors import (
    KAFKA_ASSIGNORS,
    assign_cooperative_sticky,
    assign_range,
    assign_round_robin,
    assign_sticky,
)


def queues(text: str) -> list[MessageQueue]:
    """Read "T0-1 T1-0" as queues of the topics T0 and T1."""
    pairs = (name.split("-") for name in text.split())
    return [MessageQueue(topic, "kafka", int(number)) for topic, number in pairs]


def text_of(assignment: Mapping[str, list[MessageQueue]]) -> dict[str, str]:
    return {
        member: " ".join(f"{queue.topic}-{queue.queue_id}" for queue in mine)
        for member, mine in assignment.items()
    }


TWO_BY_THREE = queues("T0-0 T0-1 T0-2 T1-0 T1-1 T1-2")
SEVEN = queues("T-0 T-1 T-2 T-3 T-4 T-5 T-6")


def test_range_gives_the_first_members_one_more_of_every_topic() -> None:
    members = {"A": ["T0", "T1"], "B": ["T0", "T1"]}

    assert text_of(assign_range(TWO_BY_THREE, members, {})) == {
        "A": "T0-0 T0-1 T1-0 T1-1",
        "B": "T0-2 T1-2",
    }


def test_round_robin_goes_on_from_topic_to_topic() -> None:
    members = {"A": ["T0", "T1"], "B": ["T0", "T1"]}

    assert text_of(assign_round_robin(TWO_BY_THREE, members, {})) == {
        "A": "T0-0 T0-2 T1-1",
        "B": "T0-1 T1-0 T1-2",
    }


def test_seven_queues_over_three_members() -> None:
    members = {"M0": ["T"], "M1": ["T"], "M2": ["T"]}
    dealt = {"M0": "T-0 T-3 T-6", "M1": "T-1 T-4", "M2": "T-2 T-5"}

    assert text_of(assign_range(SEVEN, members, {})) == {
        "M0": "T-0 T-1 T-2",
        "M1": "T-3 T-4",
        "M2": "T-5 T-6",
    }
    assert dealt == text_of(assign_round_robin(SEVEN, members, {}))
    assert dealt == text_of(assign_sticky(SEVEN, members, {}))


def test_sticky_moves_only_what_a_dead_member_owned() -> None:
    topics = ["T0", "T1", "T2"]
    owned = {"A": queues("T0-0 T1-1"), "B": queues("T0-1 T2-0"), "C": queues("T1-0 T2-1")}
    every = [queue for mine in owned.values() for queue in mine]

    assert text_of(assign_sticky(every, {"A": topics, "C": topics}, owned)) == {
        "A": "T0-0 T0-1 T1-1",
        "C": "T1-0 T2-0 T2-1",
    }


def test_cooperative_sticky_withholds_what_its_owner_must_first_give_up() -> None:
    four = queues("P-0 P-1 P-2 P-3")
    members = {"A": ["P"], "B": ["P"]}

    first = assign_cooperative_sticky(four, members, {"A": four})
    second = assign_cooperative_sticky(four, members, first)

    assert text_of(first) == {"A": "P-0 P-1", "B": ""}
    assert text_of(second) == {"A": "P-0 P-1", "B": "P-2 P-3"}


def test_sticky_leaves_a_queue_that_two_members_claim_with_the_first() -> None:
    two = queues("T-0 T-1")

    assigned = assign_sticky(two, {"A": ["T"], "B": ["T"]}, {"A": two[:1], "B": two})

    assert text_of(assigned) == {"A": "T-0", "B": "T-1"}


def test_sticky_takes_queues_of_a_topic_that_their_member_has_left() -> None:
    three = queues("T0-0 T0-1 T1-0")
    owned = {"A": [three[0], three[2]], "B": [three[1]]}

    assigned = assign_sticky(three, {"A": ["T1"], "B": ["T0"]}, owned)

    assert text_of(assigned) == {"A": "T1-0", "B": "T0-0 T0-1"}


def test_sticky_evens_out_members_also_where_the_fullest_can_give_nothing() -> None:
    every = queues("T0-0 T0-1 T0-2 T0-3 T1-0 T1-1 T1-2")
    owned = {"A": every[:4], "B": every[4:]}

    assigned = assign_sticky(every, {"A": ["T0"], "B": ["T1"], "C": ["T1"]}, owned)

    assert text_of(assigned) == {"A": "T0-0 T0-1 T0-2 T0-3", "B": "T1-0 T1-1", "C": "T1-2"}


def test_a_member_without_the_topic_gets_none_of_its_queues() -> None:
    members = {"A": ["T0"], "B": ["T1"], "C": ["T2"]}

    for assign in KAFKA_ASSIGNORS.values():
        assert text_of(assign(TWO_BY_THREE, members, {})) == {
            "A": "T0-0 T0-1 T0-2",
            "B": "T1-0 T1-1 T1-2",
            "C": "",
        }


@given(
    queue_count=st.integers(0, 24),
    before=st.sets(st.sampled_from("ABCDEFG"), max_size=7),
    after=st.sets(st.sampled_from("ABCDEFG"), min_size=1, max_size=7),
)
def test_sticky_is_balanced_whole_and_moves_least(
    queue_count: int, before: set[str], after: set[str]
) -> None:
    every = [MessageQueue("T", "kafka", number) for number in range(queue_count)]
    owned = assign_sticky(every, {member: ["T"] for member in before}, {})

    result = assign_sticky(every, {member: ["T"] for member in after}, owned)

    sizes = sorted(len(mine) for mine in result.values())
    assert sizes[-1] - sizes[0] <= 1
    assert every == sorted(queue for mine in result.values() for queue in mine)
    # The optimum: survivors keep up to the larger share, as many of them as there is a rest,
    # the others up to the smaller; all else must move.
    small, rest = divmod(queue_count, len(after))
    kept_sizes = sorted((len(owned.get(member, [])) for member in after), reverse=True)
    kept_most = sum(min(size, small + (index < rest)) for index, size in enumerate(kept_sizes))
    kept = sum(len(set(result[member]) & set(owned.get(member, []))) for member in after)
    assert kept_most == kept
