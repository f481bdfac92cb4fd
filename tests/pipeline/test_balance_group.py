from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.doctor.whatif import Plan, parse_events, simulate
from sparrowmq.pipeline.balance.evaluation import (
    Figures,
    TopicLayout,
    add_up,
    evaluate,
    known_strategies,
    make_places,
)
from sparrowmq.strategies.group_strategy import TopicView, is_group_strategy
from sparrowmq.strategies.kafka_assignors import KAFKA_ASSIGNORS
from sparrowmq.strategies.registry import SPARROW_STRATEGIES, strategy_from

EIGHT = TopicLayout("orders", (("broker-a", 8),))


def test_two_members_with_one_id_leave_half_of_the_queues_to_nobody() -> None:
    places = make_places(["10.0.0.1@7", "10.0.0.1@7"])

    found = evaluate("AVG", "GID", [EIGHT], places)

    assert found == Figures(
        loads=(4, 4),
        unowned=4,
        doubled=4,
        join_moved=1,
        leave_moved=0,
        leaver_queues=4,
        joiner_queues=2,
        leave_unowned=0,
    )
    for assignor in ("sticky", "cooperative-sticky"):
        assert evaluate(assignor, "GID", [EIGHT], places) == Figures(
            loads=(4, 4),
            unowned=0,
            doubled=0,
            join_moved=2,
            leave_moved=0,
            leaver_queues=4,
            joiner_queues=2,
            leave_unowned=0,
        )


def test_config_moves_nothing_because_it_ignores_who_joins_and_who_leaves() -> None:
    found = evaluate("CONFIG", "GID", [EIGHT], make_places(["a", "b"]))

    assert (found.join_moved, found.joiner_queues) == (0, 0)
    assert (found.leave_moved, found.leave_unowned) == (0, 4)


def test_the_member_that_joins_stands_in_the_middle_of_the_order() -> None:
    places = make_places(["10.0.0.2@1", "10.0.0.1@10", "10.0.0.1@1"])

    assert places.now == ("10.0.0.1@1", "10.0.0.1@10", "10.0.0.2@1")
    assert places.joined == ("10.0.0.1@1", "10.0.0.1@10", "10.0.0.1@10+", "10.0.0.2@1")
    assert places.left == ("10.0.0.1@1", "10.0.0.2@1")
    assert places.leaver == "10.0.0.1@10"


def test_the_last_member_that_leaves_moves_nothing() -> None:
    found = evaluate("AVG", "GID", [EIGHT], make_places(["a"]))

    assert (
        found.loads,
        found.leave_moved,
        found.join_moved,
        found.leaver_queues,
    ) == ((8,), 0, 4, 8)


def test_topics_add_up_member_by_member() -> None:
    small = TopicLayout("small", (("broker-a", 1),))
    places = make_places(["a", "b"])

    assert (
        evaluate("AVG", "GID", [small._replace(topic=f"t{n}") for n in range(3)], places).skew == 3
    )
    assert (
        evaluate(
            "roundrobin", "GID", [small._replace(topic=f"t{n}") for n in range(3)], places
        ).skew
        == 1
    )
    with pytest.raises(ValueError, match="zip"):
        add_up(
            [
                evaluate("AVG", "GID", [small], places),
                evaluate("AVG", "GID", [small], make_places(["a"])),
            ]
        )


@pytest.mark.parametrize("strategy", known_strategies())
def test_figures_of_one_topic_are_those_of_the_simulator(strategy: str) -> None:
    plan = Plan(queue_count=12, member_count=5, broker_count=2, room_count=2)
    start = simulate(plan, strategy).steps[0]
    middle = len(start.members) // 2
    last = simulate(
        Plan(
            queue_count=12,
            member_count=5,
            broker_count=2,
            room_count=2,
            events=parse_events(f"leave:{middle}"),
        ),
        strategy,
    ).steps[1]
    counts: dict[str, int] = {}
    for queue in plan.queues:
        counts[queue.broker_name] = counts.get(queue.broker_name, 0) + 1
    topic = TopicLayout(plan.queues[0].topic, tuple(counts.items()))
    places = make_places([member.client_id for member in start.members])
    if strategy == "MACHINE_ROOM_NEARBY-AVG":
        # The simulator names rooms in another way than RocketMQ's example does.
        with pytest.raises(ValueError, match="room"):
            evaluate(strategy, "G", [TopicLayout("T", (("x", 12),))], places)
        return

    found = evaluate(strategy, "G", [topic], places)

    assert (start.skew, start.idle, len(start.unowned), len(start.double)) == (
        found.skew,
        found.idle,
        found.unowned,
        found.doubled,
    )
    assert last.moved == found.leave_moved


@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    ids=st.lists(st.sampled_from(["a@1", "a@10", "b@1", "c@1", "d"]), min_size=1, max_size=6),
    name=st.sampled_from(["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]),
)
def test_what_is_remembered_or_shared_equals_what_members_compute(
    counts: list[int], ids: list[str], name: str
) -> None:
    topics = [TopicLayout(f"t{n}", (("b", count),)) for n, count in enumerate(counts)]
    places = make_places(ids)
    strategy = strategy_from(name)

    def share(cid: str, cid_all: tuple[str, ...]) -> set[object]:
        return {
            queue
            for topic in topics
            for queue in strategy.allocate("G", cid, topic.queues, cid_all) or ()
        }

    now = [share(cid, places.now) for cid in places.now]
    owned = [queue for mine in now for queue in mine]

    found = evaluate(name, "G", topics, places)

    assert tuple(map(len, now)) == found.loads
    assert sum(counts) - len(set(owned)) == found.unowned
    assert sum(owned.count(queue) > 1 for queue in set(owned)) == found.doubled
    assert (
        sum(len(share(cid, places.now) - share(cid, places.joined)) for cid in set(places.now))
        == found.join_moved
    )


def test_strategies_that_need_rooms_say_so() -> None:
    places = make_places(["a"])

    with pytest.raises(ValueError, match="room@broker"):
        evaluate("MACHINE_ROOM", "GID", [EIGHT], places)


def test_our_own_see_all_topics_at_once() -> None:
    topics = [TopicLayout(f"t{n}", (("b", 1),)) for n in range(4)]
    places = make_places(["a", "b"])

    assert evaluate("AVG", "GID", topics, places).loads == (4, 0)
    assert evaluate("AVG_ACROSS_TOPICS", "GID", topics, places).loads == (2, 2)
    assert evaluate("MINIMAL_MOVE", "GID", topics, places).loads == (2, 2)


def test_every_strategy_of_ours_is_compared() -> None:
    ours = {name for name, family in known_strategies().items() if family == "SparrowMQ"}

    assert SPARROW_STRATEGIES.keys() == ours


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    ids=st.lists(st.sampled_from(["a@1", "a@10", "b@1", "c@1", "d"]), min_size=1, max_size=6),
    name=st.sampled_from(sorted(SPARROW_STRATEGIES)),
)
def test_dividing_at_once_equals_what_members_of_ours_compute(
    counts: list[int], ids: list[str], name: str
) -> None:
    topics = [TopicLayout(f"t{n}", (("b", count),)) for n, count in enumerate(counts)]
    places = make_places(ids)
    strategy = strategy_from(name)

    def load(cid: str) -> int:
        if is_group_strategy(strategy):
            views = [TopicView(topic.topic, topic.queues, places.now) for topic in topics]
            return len(strategy.allocate_group("G", cid, views))
        return sum(
            len(strategy.allocate("G", cid, topic.queues, places.now) or ()) for topic in topics
        )

    assert tuple(map(load, places.now)) == evaluate(name, "G", topics, places).loads


def test_rocketmq_comes_first_and_kafka_last() -> None:
    assert next(iter(known_strategies())) == "AVG"
    assert list(KAFKA_ASSIGNORS) == list(known_strategies())[-4:]


def test_minimal_move_is_told_who_holds_what() -> None:
    topics = [TopicLayout("t", (("b", 64),))]
    places = make_places([f"m{number}" for number in range(7)])

    found = evaluate("MINIMAL_MOVE", "G", topics, places)

    # 64 queues over 7 are 10 or 9 each; the eighth member gets 8, and of a leaver's all stay put.
    assert (found.join_moved, found.leave_moved) == (8, 0)
