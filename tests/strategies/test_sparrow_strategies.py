"""Our own strategies: their promises, over many groups and many events."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from churn import least_moves
from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.strategies import (
    SPARROW_STRATEGIES,
    STRATEGIES,
    AllocateMessageQueueAcrossTopics,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueByLoad,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueConsistentHashBounded,
    AllocateMessageQueueMinimalMove,
    AllocateMessageQueueStrategy,
    TopicView,
    strategy_from,
)
from sparrowmq.strategies.group_strategy import WholeGroupStrategy, is_group_strategy
from sparrowmq.strategies.minimal_move import divide

MINIMAL = AllocateMessageQueueMinimalMove()
BOUNDED = AllocateMessageQueueConsistentHashBounded()
ACROSS = AllocateMessageQueueAcrossTopics()
BY_LOAD = AllocateMessageQueueByLoad()
AVG = AllocateMessageQueueAveragely()
EVENT_COUNT = 10_000

Owners = dict[MessageQueue, str]

group_sizes = st.tuples(st.integers(1, 40), st.integers(1, 12))


def queues_of(count: int, *, topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, "broker-a", queue_id) for queue_id in range(count)]


def cids_of(count: int) -> list[str]:
    return sorted(f"10.0.0.{number}@{number * 7919 % 1000}#{number}" for number in range(count))


def owners_by(
    strategy: AllocateMessageQueueStrategy, queues: Sequence[MessageQueue], cids: Sequence[str]
) -> Owners:
    """Return who owns what when every member computes its own share; nobody may overlap."""
    shares = [(queue, cid) for cid in cids for queue in strategy.allocate("G", cid, queues, cids)]  # type: ignore[union-attr]
    assert len(shares) == len(dict(shares))
    return dict(shares)


def spread(owners: Mapping[MessageQueue, str], cids: Sequence[str]) -> int:
    loads = Counter(owners.values())
    return max(loads[cid] for cid in cids) - min(loads[cid] for cid in cids)


def moves(before: Owners, after: Owners) -> int:
    return sum(before[queue] != owner for queue, owner in after.items() if queue in before)


def random_event(
    dice: random.Random, queues: Sequence[MessageQueue], cids: Sequence[str]
) -> tuple[list[MessageQueue], list[str]]:
    """Let a member join or leave, or the topic grow or shrink."""
    kind = dice.choice(["join", "leave", "join", "leave", "queues"])
    if kind == "queues":
        return queues_of(dice.randint(1, 32)), list(cids)
    if kind == "join" and len(cids) < 10:
        born = f"10.0.{dice.randrange(256)}.{dice.randrange(256)}@{dice.randrange(10**6)}"
        return list(queues), sorted({*cids, born})
    if len(cids) > 1:
        gone = dice.choice(cids)
        return list(queues), [cid for cid in cids if cid != gone]
    return list(queues), list(cids)


class TestEveryStrategy:
    @pytest.mark.parametrize("strategy", [MINIMAL, BOUNDED, ACROSS], ids=lambda s: str(s.name))
    @given(size=group_sizes)
    @settings(max_examples=60, deadline=None)
    def test_every_queue_has_exactly_one_owner(
        self, strategy: AllocateMessageQueueStrategy, size: tuple[int, int]
    ) -> None:
        queues, cids = queues_of(size[0]), cids_of(size[1])

        assert set(queues) == set(owners_by(strategy, queues, cids))

    @pytest.mark.parametrize("strategy", [MINIMAL, BOUNDED, ACROSS], ids=lambda s: str(s.name))
    def test_an_id_listed_again_has_one_share_and_no_queue_is_left(
        self, strategy: AllocateMessageQueueStrategy
    ) -> None:
        queues, cids = queues_of(8), ["a", "b", "b", "b"]

        owned = {q for cid in ("a", "b") for q in strategy.allocate("G", cid, queues, cids) or []}

        assert set(queues) == owned

    @pytest.mark.parametrize("strategy", [MINIMAL, BOUNDED, ACROSS], ids=lambda s: str(s.name))
    def test_a_member_not_in_the_list_gets_nothing(
        self, strategy: AllocateMessageQueueStrategy
    ) -> None:
        assert strategy.allocate("G", "stranger", queues_of(8), ["a", "b"]) == []

    @pytest.mark.parametrize("strategy", [MINIMAL, BOUNDED, ACROSS], ids=lambda s: str(s.name))
    def test_empty_lists_are_refused_in_javas_words(
        self, strategy: AllocateMessageQueueStrategy
    ) -> None:
        with pytest.raises(ValueError, match=r"^mqAll is null or mqAll empty$"):
            strategy.allocate("G", "a", [], ["a"])
        with pytest.raises(ValueError, match=r"^cidAll is null or cidAll empty$"):
            strategy.allocate("G", "a", queues_of(1), [])

    @pytest.mark.parametrize("name", sorted(SPARROW_STRATEGIES))
    def test_each_is_named_and_marked_as_ours(self, name: str) -> None:
        strategy = strategy_from(name)

        assert name == strategy.name
        assert getattr(strategy, "requires_sparrow", False)
        assert name not in STRATEGIES
        assert type(strategy_from(SPARROW_STRATEGIES[name])) is SPARROW_STRATEGIES[name]

    def test_none_of_rocketmqs_is_marked_as_ours(self) -> None:
        assert not any(hasattr(strategy, "requires_sparrow") for strategy in STRATEGIES.values())

    def test_a_misspelt_name_of_ours_is_told_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match="did you mean MINIMAL_MOVE"):
            strategy_from("minimal-moves")


class TestMinimalMove:
    def test_moves_are_the_least_possible_over_ten_thousand_events(self) -> None:
        dice = random.Random(20)
        queues, cids = queues_of(8), cids_of(3)
        owners = divide(queues, cids)
        for _ in range(EVENT_COUNT):
            queues, cids = random_event(dice, queues, cids)
            before, owners = owners, divide(queues, cids, owners)

            assert spread(owners, cids) <= 1
            assert least_moves(before, queues, cids) == moves(before, owners)

    @given(
        size=group_sizes,
        before=st.lists(st.integers(0, 14), max_size=40),
        progress=st.lists(st.sampled_from(["still there", "given up", "taken"]), min_size=40),
    )
    @settings(max_examples=300, deadline=None)
    def test_from_any_state_on_the_way_the_same_division_comes_out(
        self, size: tuple[int, int], before: list[int], progress: list[str]
    ) -> None:
        queues, cids = queues_of(size[0]), cids_of(size[1])
        everybody = cids_of(15)
        old = {q: everybody[n] for q, n in zip(queues, before, strict=False)}
        target = divide(queues, cids, old)
        on_the_way = {}
        for queue, where in zip(queues, progress, strict=False):
            if target[queue] == old.get(queue) or where == "taken":
                on_the_way[queue] = target[queue]
            elif where == "still there" and queue in old:
                on_the_way[queue] = old[queue]

        assert target == divide(queues, cids, on_the_way)

    def test_the_order_of_queues_and_members_does_not_matter(self) -> None:
        queues, cids = queues_of(16), cids_of(5)

        assert divide(queues, cids) == divide(queues[::-1], cids[::-1])
        # So do their order and the present owners, of whom one holds too much.
        held = dict.fromkeys(queues, cids[0])
        assert divide(queues, cids, held) == divide(queues[::-1], cids[::-1], held)

    def test_with_owners_unknown_loads_are_within_one_and_moves_far_fewer_than_avgs(self) -> None:
        dice = random.Random(3)
        queues, cids = queues_of(32), cids_of(6)
        extra: dict[str, int] = {"AVG": 0, "MINIMAL_MOVE": 0}
        for _ in range(100):
            _, later = random_event(dice, queues, cids)
            for strategy in (AVG, MINIMAL):
                before, after = (owners_by(strategy, queues, each) for each in (cids, later))
                assert spread(after, later) <= 1
                extra[strategy.name] += moves(before, after) - least_moves(before, queues, later)
            cids = later

        assert 2 * extra["MINIMAL_MOVE"] < extra["AVG"]

    def test_with_owners_unknown_no_bound_of_the_least_plus_one_holds(self) -> None:
        # What must happen somewhere by Ramsey's theorem is found soon in one's own strategy.
        dice = random.Random(5)
        queues, cids = queues_of(8), cids_of(8)
        worst = 0
        for _ in range(200):
            _, later = random_event(dice, queues, cids)
            before = divide(queues, cids)
            extra = moves(before, divide(queues, later)) - least_moves(before, queues, later)
            worst, cids = max(worst, extra), later

        assert worst > 1

    def test_topics_with_the_same_members_are_balanced_together(self) -> None:
        cids = cids_of(3)
        views = [TopicView(name, queues_of(1, topic=name), cids) for name in ("A", "B", "C")]

        assert [len(MINIMAL.allocate_group("G", cid, views)) for cid in cids] == [1, 1, 1]

    def test_present_owners_keep_their_queues(self) -> None:
        queues = queues_of(8)
        owners = dict.fromkeys(queues[:4], "b") | dict.fromkeys(queues[4:], "a")
        view = TopicView("T", queues, ["a", "b", "c"])

        shares = [MINIMAL.allocate_group("G", cid, [view], owners) for cid in ("a", "b", "c")]

        assert set(shares[0]) < set(queues[4:])
        assert set(shares[1]) < set(queues[:4])
        assert sorted(map(len, shares), reverse=True) == [3, 3, 2]


class TestConsistentHashBounded:
    @given(size=group_sizes, factor=st.floats(1, 3))
    @settings(max_examples=100, deadline=None)
    def test_no_member_has_more_than_the_factor_allows(
        self, size: tuple[int, int], factor: float
    ) -> None:
        queues, cids = queues_of(size[0]), cids_of(size[1])
        strategy = AllocateMessageQueueConsistentHashBounded(factor)

        loads = Counter(owners_by(strategy, queues, cids).values())

        assert max(loads.values()) <= math.ceil(factor * len(queues) / len(cids))

    def test_with_a_large_factor_it_is_the_plain_ring(self) -> None:
        queues, cids = queues_of(20), cids_of(5)
        plain = AllocateMessageQueueConsistentHash()

        wide = AllocateMessageQueueConsistentHashBounded(len(cids))

        assert owners_by(plain, queues, cids) == owners_by(wide, queues, cids)

    def test_queue_that_is_listed_first_or_last_has_the_same_owner(self) -> None:
        queues, cids = queues_of(20), cids_of(5)

        assert BOUNDED.divide(queues, cids) == BOUNDED.divide(queues[::-1], cids)

    def test_fewer_queues_move_than_under_avg(self) -> None:
        queues, cids = queues_of(64), cids_of(8)
        totals = {"AVG": 0, "CONSISTENT_HASH_BOUNDED": 0}
        for gone in cids:
            left = [cid for cid in cids if cid != gone]
            for strategy in (AVG, BOUNDED):
                before, after = (owners_by(strategy, queues, each) for each in (cids, left))
                totals[strategy.name] += moves(before, after)

        assert totals["CONSISTENT_HASH_BOUNDED"] < totals["AVG"]

    def test_a_member_without_a_node_still_takes_what_no_other_has_room_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "sparrowmq.strategies.consistent_hash_bounded.ConsistentHashRing.walk",
            lambda ring, key: iter(["a"] * 10),
        )
        strict = AllocateMessageQueueConsistentHashBounded(1)

        assert Counter(owners_by(strict, queues_of(8), ["a", "b"]).values()) == {"a": 4, "b": 4}

    @pytest.mark.parametrize("factor", [0.99, math.nan, math.inf])
    def test_a_factor_that_leaves_no_room_is_refused(self, factor: float) -> None:
        with pytest.raises(ValueError, match="load_factor is"):
            AllocateMessageQueueConsistentHashBounded(factor)

    def test_a_ring_without_nodes_is_refused(self) -> None:
        with pytest.raises(ValueError, match="virtual_node_cnt is 0"):
            AllocateMessageQueueConsistentHashBounded(virtual_node_cnt=0)


class TestAcrossTopics:
    @given(counts=st.lists(st.integers(1, 9), min_size=1, max_size=6), members=st.integers(1, 8))
    @settings(max_examples=100, deadline=None)
    def test_loads_over_all_topics_are_within_one(self, counts: list[int], members: int) -> None:
        cids = cids_of(members)
        views = [
            TopicView(f"T{n}", queues_of(c, topic=f"T{n}"), cids) for n, c in enumerate(counts)
        ]

        shares = {cid: ACROSS.allocate_group("G", cid, views) for cid in cids}

        owners = {queue: cid for cid, share in shares.items() for queue in share}
        assert sum(counts) == sum(map(len, shares.values())) == len(owners)
        assert spread(owners, cids) <= 1

    def test_moves_are_the_least_possible_where_owners_are_known(self) -> None:
        dice = random.Random(24)
        queues, cids = queues_of(8), cids_of(3)
        owners: Owners = {}
        for _ in range(2_000):
            queues, cids = random_event(dice, queues, cids)
            halves = [
                [queue._replace(topic=topic) for queue in queues[at::2]]
                for at, topic in enumerate(("A", "B"))
            ]
            views = [TopicView(half[0].topic, half, cids) for half in halves if half]
            before, owners = owners, ACROSS.divide_group(views, owners)

            assert spread(owners, cids) <= 1
            if before:
                least = least_moves(before, list(owners), cids)
                assert moves(before, owners) == least

    def test_three_topics_of_one_queue_go_to_three_members(self) -> None:
        cids = ["a", "b", "c"]
        views = [TopicView(name, queues_of(1, topic=name), cids) for name in ("A", "B", "C")]

        assert [len(ACROSS.allocate_group("G", cid, views)) for cid in cids] == [1, 1, 1]
        assert [
            sum(len(AVG.allocate("G", cid, view.mq_all, cids)) for view in views) for cid in cids
        ] == [3, 0, 0]

    @pytest.mark.parametrize(("alone", "shared", "further"), [(2, 4, 1), (4, 2, 0), (1, 1, 0)])
    def test_whoever_has_a_topic_alone_gets_the_less_of_another(
        self, alone: int, shared: int, further: int
    ) -> None:
        only_a = TopicView("A", queues_of(alone, topic="A"), ["a"])
        both = TopicView("B", queues_of(shared, topic="B"), ["a", "b"])

        assert len(ACROSS.allocate_group("G", "a", [only_a, both])) == alone + further
        assert len(ACROSS.allocate_group("G", "b", [only_a, both])) == shared - further

    def test_whoever_subscribes_more_gets_less_of_what_all_subscribe(self) -> None:
        both = TopicView("A", queues_of(4, topic="A"), ["a", "b"])
        only_b = TopicView("B", queues_of(4, topic="B"), ["b"])

        assert list(both.mq_all) == ACROSS.allocate_group("G", "a", [both, only_b])
        assert list(only_b.mq_all) == ACROSS.allocate_group("G", "b", [both, only_b])


@pytest.mark.parametrize("strategy", [MINIMAL, ACROSS, BY_LOAD], ids=lambda s: str(s.name))
class TestRetryTopic:
    RETRIES = (MessageQueue("%RETRY%G", "broker-a", 0),)

    @given(size=group_sizes, held=st.lists(st.integers(0, 12), min_size=41, max_size=41))
    @settings(max_examples=40, deadline=None)
    def test_its_queue_takes_no_other_from_a_member(
        self, strategy: WholeGroupStrategy, size: tuple[int, int], held: list[int]
    ) -> None:
        queues, cids = queues_of(size[0]), cids_of(size[1])
        views = [TopicView("T", queues, cids), TopicView("%RETRY%G", self.RETRIES, cids)]
        everybody = cids_of(13)
        owners = {q: everybody[n] for q, n in zip((*queues, *self.RETRIES), held, strict=False)}

        now = strategy.divide_group(views, owners)

        assert spread(now, cids) <= 1
        assert spread({queue: now[queue] for queue in queues}, cids) <= 1

    def test_a_member_that_joins_does_not_get_its_queue_alone(
        self, strategy: WholeGroupStrategy
    ) -> None:
        queues = queues_of(4)

        for first in "abcdefgh":
            cids = [first, "y", "z"]
            owners = dict(
                zip((*queues, *self.RETRIES), (first, first, "y", "y", first), strict=True)
            )
            views = [TopicView("%RETRY%G", self.RETRIES, cids), TopicView("T", queues, cids)]
            now = strategy.divide_group(views, owners)

            assert "z" in {now[queue] for queue in queues}

    def test_few_members_that_see_it_yet_divide_other_queues_as_all_do(
        self, strategy: WholeGroupStrategy
    ) -> None:
        view = TopicView("T", queues_of(3, topic="T"), ["a", "b"])
        alone = strategy.divide_group([view])

        for cid in view.cid_all:
            both = strategy.divide_group([TopicView("%RETRY%G", self.RETRIES, [cid]), view])

            assert {queue: both[queue] for queue in view.mq_all} == alone

    def test_it_moves_nothing_when_it_appears(self, strategy: WholeGroupStrategy) -> None:
        cids = ["a", "b"]
        view, retry = TopicView("T", queues_of(5), cids), TopicView("%RETRY%G", self.RETRIES, cids)

        for cid in cids:
            before = strategy.allocate_group("G", cid, [view])
            after = strategy.allocate_group("G", cid, [retry, view])
            assert before == [queue for queue in after if queue.topic == "T"]


def test_a_function_and_rocketmqs_strategies_see_one_topic_at_a_time() -> None:
    assert not is_group_strategy(strategy_from("AVG"))
    assert not is_group_strategy(strategy_from(lambda group, cid, queues, cids: queues))
    assert is_group_strategy(MINIMAL)
