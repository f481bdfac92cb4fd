"""AVG_BY_LOAD's pure function: what a period's moves promise, and what follows a change."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from processor_time import takes_less_than
from sparrowmq.model import MessageQueue
from sparrowmq.strategies.by_load import (
    AllocateMessageQueueByLoad,
    FollowedPlan,
    GroupLoads,
    QueueLoad,
    follow,
    moves_max,
    plan_next,
    rebalance_loads,
)
from sparrowmq.strategies.group_strategy import TopicView
from sparrowmq.strategies.minimal_move import divide


class Group(NamedTuple):
    queues: list[MessageQueue]
    cids: list[str]
    owners: dict[MessageQueue, str]
    loads: GroupLoads


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "broker-a", queue_id) for queue_id in range(count)]


@st.composite
def groups(draw: st.DrawFn) -> Group:
    queues = queues_of(draw(st.integers(1, 80)))
    cids = [f"10.0.0.{n}@1" for n in range(draw(st.integers(1, 9)))]
    rates = st.floats(0, 500) | st.just(0.0)
    lags = st.just(0) | st.integers(0, 10**6)
    loads = GroupLoads(
        queues={queue: QueueLoad(draw(rates), draw(lags)) for queue in queues},
        capacities={cid: draw(st.just(0.0) | st.floats(1, 1_000)) for cid in cids},
        resting=frozenset(draw(st.lists(st.sampled_from(queues), max_size=3))),
    )
    owners = {queue: draw(st.sampled_from(cids)) for queue in queues}
    return Group(queues, cids, owners, loads)


def excess(group: Group, owners: dict[MessageQueue, str]) -> float:
    capacities = group.loads.capacities_of(group.cids)
    loads = group.loads.member_loads(owners, group.cids)
    mean = sum(loads[cid] * capacities[cid] for cid in loads) / (sum(capacities.values()) or 1)
    return sum(capacities[cid] * (load - mean) ** 2 for cid, load in loads.items())


class TestOnePeriod:
    @given(group=groups())
    @settings(max_examples=200, deadline=None)
    def test_every_queue_keeps_one_listed_owner_and_few_move(self, group: Group) -> None:
        now, gain = rebalance_loads(group.owners, group.cids, group.loads)

        moved = {queue for queue in group.queues if now[queue] != group.owners[queue]}
        assert set(now) == set(group.queues)
        assert set(now.values()) <= set(group.cids)
        assert set(gain.moved) == moved
        assert len(moved) <= moves_max(len(group.queues))
        assert not moved & set(group.loads.resting)

    @given(group=groups())
    @settings(max_examples=200, deadline=None)
    def test_moves_take_a_tenth_of_the_excess_or_do_not_happen(self, group: Group) -> None:
        now, gain = rebalance_loads(group.owners, group.cids, group.loads)

        if gain.moved:
            before = excess(group, group.owners)
            assert excess(group, now) <= 0.9 * before * (1 + 1e-6)
            assert gain.load_before > 0.3
        else:
            assert now == group.owners

    @given(group=groups())
    @settings(max_examples=200, deadline=None)
    def test_no_move_would_have_been_better_than_the_first(self, group: Group) -> None:
        now, gain = rebalance_loads(group.owners, group.cids, group.loads)
        if not gain.moved or moves_max(len(group.queues)) > 2:
            return
        loads = group.loads.member_loads(group.owners, group.cids)
        fullest = sorted(loads, key=lambda cid: (-loads[cid], cid))[:2]

        def gained(queue: MessageQueue, taker: str) -> float:
            return excess(group, group.owners) - excess(group, group.owners | {queue: taker})

        best = max(
            gained(queue, taker)
            for queue in set(group.queues) - set(group.loads.resting)
            for taker in group.cids
            if group.owners[queue] in fullest
        )
        first = gain.moved[0]
        assert gained(first, now[first]) == pytest.approx(best, rel=1e-6, abs=1e-6)

    def test_a_period_of_the_largest_group_takes_little_of_the_processor(self) -> None:
        queues, cids = queues_of(16_384), [f"10.0.0.{n}@1" for n in range(64)]
        loads = GroupLoads(
            queues={queue: QueueLoad(1 + queue.queue_id % 997, 0) for queue in queues},
            capacities=dict.fromkeys(cids, 250_000.0),
        )
        owners = {queue: cids[0 if n % 4 else n % 64] for n, queue in enumerate(queues)}

        with takes_less_than(5):
            _, gain = rebalance_loads(owners, cids, loads)

        assert len(gain.moved) == moves_max(16_384) == 1_024

    @given(group=groups())
    @settings(max_examples=100, deadline=None)
    def test_the_order_of_the_tables_changes_nothing(self, group: Group) -> None:
        backwards = GroupLoads(
            queues=dict(reversed(list(group.loads.queues.items()))),
            capacities=dict(reversed(list(group.loads.capacities.items()))),
            resting=group.loads.resting,
        )
        owners = dict(reversed(list(group.owners.items())))

        first, _ = rebalance_loads(group.owners, group.cids, group.loads)
        assert rebalance_loads(owners, group.cids, backwards)[0] == first

    @given(group=groups())
    @settings(max_examples=60, deadline=None)
    def test_steady_loads_end_in_a_division_that_stays(self, group: Group) -> None:
        owners = group.owners
        loads = GroupLoads(queues=group.loads.queues, capacities=group.loads.capacities)
        for _ in range(200):
            now, gain = rebalance_loads(owners, group.cids, loads)
            if not gain.moved:
                break
            owners = now

        assert rebalance_loads(owners, group.cids, loads)[1].moved == ()

    def test_members_of_one_to_four_end_with_queues_of_one_to_four(self) -> None:
        queues, cids = queues_of(40), ["a", "b"]
        loads = GroupLoads(
            queues=dict.fromkeys(queues, QueueLoad(10.0, 0)), capacities={"a": 100, "b": 400}
        )
        owners = divide(queues, cids)
        for _ in range(20):
            owners, _ = rebalance_loads(owners, cids, loads)

        assert Counter(owners.values())["a"] == pytest.approx(8, abs=1)

    @pytest.mark.parametrize(
        ("rates", "moves"),
        [
            pytest.param([10, 10, 10, 10], 0, id="even"),
            pytest.param([14, 14, 1, 1], 0, id="uneven, and nobody is busy"),
            pytest.param([40, 40, 10, 10], 2, id="one is busy by far"),
            pytest.param([90, 0, 0, 0], 0, id="one queue cannot be shared"),
        ],
    )
    def test_queues_move_only_for_a_member_that_needs_it(
        self, rates: list[float], moves: int
    ) -> None:
        queues = queues_of(4)
        owners = dict(zip(queues, ["a", "a", "b", "b"], strict=True))
        loads = GroupLoads(
            queues={queue: QueueLoad(rate, 0) for queue, rate in zip(queues, rates, strict=True)},
            capacities={"a": 100.0, "b": 100.0},
        )

        _, gain = rebalance_loads(owners, ["a", "b"], loads)

        assert len(gain.moved) == moves

    @pytest.mark.parametrize(("rate", "moves"), [(1.2, 0), (2.0, 1)])
    def test_a_queue_moves_only_if_that_takes_a_tenth_of_the_excess(
        self, rate: float, moves: int
    ) -> None:
        queues = queues_of(3)
        rates = [90.0 - rate, rate, 150.0]
        loads = GroupLoads(
            queues={queue: QueueLoad(rate, 0) for queue, rate in zip(queues, rates, strict=True)},
            capacities={"a": 100.0, "b": 300.0},
        )
        owners = dict(zip(queues, ["a", "a", "b"], strict=True))

        assert len(rebalance_loads(owners, ["a", "b"], loads)[1].moved) == moves

    def test_a_queue_does_not_move_to_a_member_that_would_be_fuller_than_the_giver(self) -> None:
        queues = queues_of(2)
        loads = GroupLoads(
            queues={queues[0]: QueueLoad(700.0, 0), queues[1]: QueueLoad(300.0, 0)},
            capacities={"a": 1_000.0, "b": 250.0},
        )

        # The move would take three quarters of the excess, and leave b with a load of 1.2.
        _, gain = rebalance_loads(dict.fromkeys(queues, "a"), ["a", "b"], loads)

        assert gain.moved == ()

    def test_a_hot_queue_is_left_alone_on_its_member(self) -> None:
        queues = queues_of(6)
        owners = dict(zip(queues, ["a", "a", "a", "b", "b", "b"], strict=True))
        loads = GroupLoads(
            queues={queue: QueueLoad(150.0 if queue == queues[0] else 10.0, 0) for queue in queues},
            capacities={"a": 100.0, "b": 100.0},
        )
        owners, gain = rebalance_loads(owners, ["a", "b"], loads)

        assert [queue for queue, owner in owners.items() if owner == "a"] == [queues[0]]
        assert (round(gain.load_before, 2), round(gain.load_after, 2)) == (1.7, 1.5)

    def test_members_that_are_all_busy_alike_exchange_no_queues(self) -> None:
        queues = queues_of(4)
        rates = [90.0, 5.0, 95.0, 80.0]
        loads = GroupLoads(
            queues={queue: QueueLoad(rate, 0) for queue, rate in zip(queues, rates, strict=True)},
            capacities=dict.fromkeys("abc", 100.0),
        )
        owners = dict(zip(queues, ["a", "a", "b", "c"], strict=True))

        assert rebalance_loads(owners, [*"abc"], loads)[1].moved == ()

    def test_second_fullest_member_is_relieved_where_the_fullest_has_one_queue(self) -> None:
        queues = queues_of(4)
        rates = [150.0, 60.0, 50.0, 10.0]
        loads = GroupLoads(
            queues={queue: QueueLoad(rate, 0) for queue, rate in zip(queues, rates, strict=True)},
            capacities=dict.fromkeys("abc", 100.0),
        )
        owners = dict(zip(queues, ["a", "b", "b", "c"], strict=True))

        now, _ = rebalance_loads(owners, [*"abc"], loads)

        assert now == owners | {queues[2]: "c"}

    def test_lag_counts_as_if_it_were_to_be_consumed_in_300_s(self) -> None:
        (queue,) = queues_of(1)
        loads = GroupLoads(queues={queue: QueueLoad(10.0, 3_000)}, capacities={"a": 100.0})

        assert loads.member_loads({queue: "a"}, ["a"]) == {"a": pytest.approx(0.2)}

    def test_member_that_has_not_measured_itself_counts_as_the_mean_of_the_others(self) -> None:
        loads = GroupLoads(queues={}, capacities={"a": 100.0, "b": 300.0, "new": 0.0, "gone": 9.0})

        assert loads.capacities_of(["a", "b", "new"]) == {"a": 100.0, "b": 300.0, "new": 200.0}

    def test_without_a_capacity_nothing_moves(self) -> None:
        queues = queues_of(2)
        loads = GroupLoads(queues={queues[0]: QueueLoad(100.0, 10**6)}, capacities={})

        assert rebalance_loads(dict.fromkeys(queues, "a"), ["a", "b"], loads)[1].moved == ()


class TestShares:
    @pytest.mark.parametrize("has_plan", [False, True])
    def test_members_get_what_the_plan_gives_them_and_without_one_equal_shares(
        self, has_plan: bool
    ) -> None:
        queues, cids = queues_of(6), ["a", "b"]
        given = dict(zip(queues, ["b", "a", "b", "b", "b", "b"], strict=True))
        topics = [TopicView("T", queues, cids)]
        plan = FollowedPlan(given, cids) if has_plan else None

        shares = {
            cid: AllocateMessageQueueByLoad().follow_plan(cid, topics, given, plan) for cid in cids
        }

        assert sorted(queue.queue_id for share in shares.values() for queue in share) == [*range(6)]
        assert len(shares["a"]) == (1 if has_plan else 3)
        assert all(given[queue] == "b" for queue in shares["b"])
        assert queues[1] in shares["a"]

    def test_a_member_that_joins_after_the_plan_does_not_get_the_retry_topics_queue_alone(
        self,
    ) -> None:
        queues, retry = queues_of(4), MessageQueue("%RETRY%G", "broker-a", 0)

        for first in "abcdefgh":
            given = zip((*queues, retry), (first, first, "y", "y", first), strict=True)
            plan, cids = FollowedPlan(dict(given), [first, "y"]), [first, "y", "z"]
            topics = [TopicView("T", queues, cids), TopicView("%RETRY%G", [retry], cids)]
            share = AllocateMessageQueueByLoad().follow_plan("z", topics, {}, plan)

            assert [queue.topic for queue in share] == ["T"]


class TestNextPlan:
    LOADS = GroupLoads(queues={}, capacities={})

    def test_plan_that_nothing_has_changed_since_stays(self) -> None:
        queues, cids = queues_of(2), ["a", "b"]
        plan = FollowedPlan({queues[0]: "a", queues[1]: "b"}, cids)

        assert plan_next([TopicView("T", queues, cids)], plan, {}, self.LOADS) is None

    def test_plan_is_made_anew_where_a_member_without_queues_has_left(self) -> None:
        queues = queues_of(2)
        plan = FollowedPlan(dict.fromkeys(queues, "a"), ["a", "b"])

        found = plan_next([TopicView("T", queues, ["a"])], plan, {}, self.LOADS)

        assert found is not None
        assert found[0] == FollowedPlan(plan.owners, ("a",))

    def test_no_plan_is_made_while_brokers_list_different_members(self) -> None:
        topics = [
            TopicView(topic, [MessageQueue(topic, "broker-a", 0)], cids)
            for topic, cids in (("T", ["a", "b"]), ("U", ["a"]))
        ]

        assert plan_next(topics, None, {}, self.LOADS) is None


class TestFollow:
    def test_queues_of_other_topics_do_not_count(self) -> None:
        queues = queues_of(4)
        plan = dict(zip(queues, "aabb", strict=True))
        others = {MessageQueue("U", "broker-a", n): "a" for n in range(6)}

        assert follow(plan | others, ["a", "b"], queues, ["a", "b"]) == plan

    def test_member_that_the_plan_gave_nothing_gets_no_queue_that_is_added(self) -> None:
        queues = queues_of(4)
        plan = dict(zip(queues, "aac", strict=False))
        for n in range(100):
            cids = ["a", "c", f"10.0.0.{n}@1"]
            assert set(follow(plan, cids, queues, cids).values()) == {"a", "c"}

    @given(group=groups())
    @settings(max_examples=100, deadline=None)
    def test_an_unchanged_group_has_the_plan(self, group: Group) -> None:
        assert follow(group.owners, group.cids, group.queues, group.cids) == group.owners

    @given(
        group=groups(), joins=st.integers(0, 3), leaves=st.integers(0, 8), more=st.integers(0, 9)
    )
    @settings(max_examples=200, deadline=None)
    def test_every_queue_has_one_listed_owner_after_any_change(
        self, group: Group, joins: int, leaves: int, more: int
    ) -> None:
        cids = [*group.cids[leaves:], *(f"10.0.1.{n}@1" for n in range(joins))] or ["last"]
        queues = queues_of(len(group.queues) + more)

        owners = follow(group.owners, group.cids, queues, cids)

        assert set(owners) == set(queues)
        assert set(owners.values()) <= set(cids)

    def test_a_new_member_takes_from_each_in_proportion(self) -> None:
        queues = queues_of(30)
        plan = dict(zip(queues, ["a"] * 20 + ["b"] * 10, strict=True))

        owners = follow(plan, ["a", "b"], queues, ["a", "b", "c"])

        moved = sum(plan[queue] != owner for queue, owner in owners.items())
        assert Counter(owners.values()) == {"a": 13, "b": 7, "c": 10}
        assert moved == 10

    def test_a_leavers_queues_go_to_the_others_in_proportion(self) -> None:
        queues = queues_of(30)
        plan = dict(zip(queues, ["a"] * 16 + ["b"] * 4 + ["c"] * 10, strict=True))

        owners = follow(plan, ["a", "b", "c"], queues, ["a", "b"])

        assert Counter(owners.values()) == {"a": 24, "b": 6}
        assert all(owners[queue] == plan[queue] for queue in queues[:20])
