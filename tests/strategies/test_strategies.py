"""The six strategies: worked examples, promises, and how a user's choice becomes one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.errors import ConfigError
from sparrowmq.model.queue import java_order, queue_order
from sparrowmq.strategies import (
    STRATEGIES,
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueConsistentHashBounded,
    AllocateMessageQueueStrategy,
    FunctionStrategy,
    MessageQueue,
    PrefixMachineRoomResolver,
    strategy_from,
)
from sparrowmq.strategies.consistent_hash import ConsistentHashRing, md5_hash
from sparrowmq.strategies.registry import join_reported, reported_name

AVG = AllocateMessageQueueAveragely()
CIRCLE = AllocateMessageQueueAveragelyByCircle()
RING = AllocateMessageQueueConsistentHash()


def queues_of(count: int, *, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("T", broker, queue_id) for queue_id in range(count)]


def queue_ids(
    strategy: AllocateMessageQueueStrategy, cid: str, *, queues: int, cids: Sequence[str]
) -> list[int]:
    share = strategy.allocate("G", cid, queues_of(queues), cids)
    return [queue.queue_id for queue in share or []]


def loads(strategy: AllocateMessageQueueStrategy, *, queues: int, members: int) -> list[int]:
    cids = [f"c{index}" for index in range(members)]
    return [len(queue_ids(strategy, cid, queues=queues, cids=cids)) for cid in cids]


class TestWorkedExamples:
    def test_eight_queues_with_a_client_id_listed_twice_by_circle(self) -> None:
        cids = ["0", "2", "2"]

        assert queue_ids(CIRCLE, "0", queues=8, cids=cids) == [0, 3, 6]
        assert queue_ids(CIRCLE, "2", queues=8, cids=cids) == [1, 4, 7]

    def test_queues_of_the_second_of_two_equal_ids_are_owned_by_nobody(self) -> None:
        cids = ["0", "2", "2"]

        owned = {queue for cid in cids for queue in queue_ids(CIRCLE, cid, queues=8, cids=cids)}

        assert set(range(8)) - owned == {2, 5}

    def test_twelve_queues_over_five_members(self) -> None:
        assert loads(AVG, queues=12, members=5) == [3, 3, 2, 2, 2]

    def test_thirteen_queues_over_five_members(self) -> None:
        assert loads(AVG, queues=13, members=5) == [3, 3, 3, 2, 2]

    def test_seven_queues_over_two_members(self) -> None:
        assert loads(AVG, queues=7, members=2) == [4, 3]

    def test_four_queues_and_two_equal_ids_take_the_same_half(self) -> None:
        cids = ["172.17.0.1@9", "172.17.0.1@9"]

        assert queue_ids(AVG, cids[0], queues=4, cids=cids) == [0, 1]
        assert queue_ids(AVG, cids[1], queues=4, cids=cids) == [0, 1]

    def test_eight_queues_over_three_members(self) -> None:
        cids = ["c0", "c1", "c2"]

        assert [queue_ids(AVG, cid, queues=8, cids=cids) for cid in cids] == [
            [0, 1, 2],
            [3, 4, 5],
            [6, 7],
        ]
        assert [queue_ids(CIRCLE, cid, queues=8, cids=cids) for cid in cids] == [
            [0, 3, 6],
            [1, 4, 7],
            [2, 5],
        ]

    def test_more_members_than_queues_leaves_the_last_idle(self) -> None:
        assert loads(AVG, queues=2, members=3) == [1, 1, 0]
        assert loads(CIRCLE, queues=2, members=3) == [1, 1, 0]


class TestArguments:
    @pytest.mark.parametrize("strategy", [AVG, CIRCLE, RING], ids=lambda s: str(s.name))
    @pytest.mark.parametrize(
        ("current", "queues", "cids", "message"),
        [
            (None, None, None, "currentCID is empty"),
            ("", queues_of(1), ["a"], "currentCID is empty"),
            ("a", None, None, "mqAll is null or mqAll empty"),
            ("a", [], ["a"], "mqAll is null or mqAll empty"),
            ("a", queues_of(1), None, "cidAll is null or cidAll empty"),
            ("a", queues_of(1), [], "cidAll is null or cidAll empty"),
        ],
    )
    def test_empty_arguments_are_refused_in_javas_words(
        self,
        strategy: AllocateMessageQueueStrategy,
        current: str | None,
        queues: list[MessageQueue] | None,
        cids: list[str] | None,
        message: str,
    ) -> None:
        with pytest.raises(ValueError, match=f"^{message}$"):
            strategy.allocate("G", current, queues, cids)

    @pytest.mark.parametrize("strategy", [AVG, CIRCLE, RING], ids=lambda s: str(s.name))
    def test_a_member_not_in_the_list_gets_nothing(
        self, strategy: AllocateMessageQueueStrategy
    ) -> None:
        assert strategy.allocate("G", "b", queues_of(4), ["a"]) == []

    def test_machine_room_refuses_a_blank_client_id(self) -> None:
        with pytest.raises(ValueError, match=r"^currentCID is empty$"):
            AllocateMessageQueueByMachineRoom({"r"}).allocate("G", " \t", queues_of(1), ["a"])

    def test_machine_room_takes_a_no_break_blank_as_java_does(self) -> None:
        assert (
            AllocateMessageQueueByMachineRoom({"r"}).allocate("G", "\u00a0", queues_of(1), ["a"])
            == []
        )

    def test_machine_room_without_rooms_fails_at_the_first_broker_in_a_room(self) -> None:
        strategy = AllocateMessageQueueByMachineRoom()

        assert strategy.allocate("G", "a", queues_of(2), ["a"]) == []
        with pytest.raises(TypeError, match="consumeridcs is None"):
            strategy.allocate("G", "a", queues_of(2, broker="r1@broker-a"), ["a"])

    def test_config_looks_at_no_argument(self) -> None:
        queues = queues_of(2)

        assert queues == AllocateMessageQueueByConfig(queues).allocate("G", None, None, None)
        assert AllocateMessageQueueByConfig().allocate("G", None, None, None) is None

    def test_negative_count_of_virtual_nodes_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^illegal virtualNodeCnt :-1$"):
            AllocateMessageQueueConsistentHash(-1)

    def test_nearby_without_an_inner_strategy_is_refused(self) -> None:
        with pytest.raises(TypeError, match="allocateMessageQueueStrategy is null"):
            AllocateMachineRoomNearby(None)  # type: ignore[arg-type]

    def test_nearby_refuses_an_inner_strategy_that_gives_none(self) -> None:
        nearby = AllocateMachineRoomNearby(AllocateMessageQueueByConfig())

        with pytest.raises(TypeError, match="strategy CONFIG within MACHINE_ROOM_NEARBY-CONFIG"):
            nearby.allocate("G", "r1-a", queues_of(1, broker="r1-b"), ["r1-a"])


class TestNearby:
    def test_each_room_is_shared_by_its_own_members(self) -> None:
        nearby = AllocateMachineRoomNearby(AVG)
        queues = [*queues_of(2, broker="r1-b"), *queues_of(2, broker="r2-b")]

        assert queues_of(2, broker="r2-b") == nearby.allocate("G", "r2-c", queues, ["r1-c", "r2-c"])

    def test_rooms_without_members_are_shared_by_all_in_the_order_of_rooms(self) -> None:
        nearby = AllocateMachineRoomNearby(AVG)
        queues = [*queues_of(2, broker="r9-b"), *queues_of(2, broker="r8-b")]

        assert nearby.allocate("G", "r1-c", queues, ["r1-c", "r2-c"]) == [
            MessageQueue("T", "r8-b", 0),
            MessageQueue("T", "r9-b", 0),
        ]


class TestChoice:
    @pytest.mark.parametrize("name", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
    def test_a_name_becomes_its_strategy(self, name: str) -> None:
        strategy = strategy_from(name)

        assert name == strategy.name
        assert type(strategy) is STRATEGIES[name]

    def test_nearby_may_be_named_with_its_inner_strategy(self) -> None:
        assert strategy_from("MACHINE_ROOM_NEARBY-AVG").name == "MACHINE_ROOM_NEARBY-AVG"

    def test_nearby_within_nearby_is_refused(self) -> None:
        # A member may report any name.
        with pytest.raises(ConfigError, match="unknown strategy"):
            strategy_from("MACHINE_ROOM_NEARBY-" * 2_000 + "AVG")

    def test_an_unknown_name_is_refused_and_the_nearest_told(self) -> None:
        with pytest.raises(ConfigError, match=r"unknown strategy 'avg'; did you mean AVG\?"):
            strategy_from("avg")
        with pytest.raises(ConfigError, match=r"did you mean CONSISTENT_HASH\?"):
            strategy_from("CONSISTENT-HASHING")

    @pytest.mark.parametrize("name", ["CONFIG", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY"])
    def test_a_name_that_says_too_little_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigError, match=f"strategy {name} needs settings"):
            strategy_from(name)
        with pytest.raises(ConfigError, match=f"strategy {name} needs settings"):
            strategy_from(STRATEGIES[name])

    def test_a_strategy_is_taken_as_it_is(self) -> None:
        assert strategy_from(AVG) is AVG

    def test_a_class_is_constructed(self) -> None:
        assert strategy_from(AllocateMessageQueueAveragely).name == "AVG"

    def test_a_plain_function_is_a_strategy(self) -> None:
        def first_takes_all(
            group: str, current: str, queues: Sequence[MessageQueue], cids: Sequence[str]
        ) -> Sequence[MessageQueue] | None:
            return tuple(queues) if cids[0] == current else None

        strategy = strategy_from(first_takes_all)

        assert isinstance(strategy, FunctionStrategy)
        assert strategy.name == "first_takes_all"
        assert queues_of(2) == strategy.allocate("G", "a", queues_of(2), ["a", "b"])
        assert strategy.allocate("G", "b", queues_of(2), ["a", "b"]) == []

    def test_a_strategy_without_a_name_is_refused(self) -> None:
        class Nameless:
            def allocate(self, group: str, current: str, queues: object, cids: object) -> object:
                return []

        with pytest.raises(ConfigError, match="has no name"):
            strategy_from(Nameless())  # type: ignore[arg-type]

    def test_anything_else_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="strategy is 7: it must be a name"):
            strategy_from(7)  # type: ignore[arg-type]


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[MessageQueue], list[str]]:
    brokers = draw(st.lists(st.sampled_from(["r1-a", "r1-b", "r2-a", "r3@c"]), unique=True))
    count = draw(st.integers(min_value=1, max_value=20))
    queues = [queue for broker in brokers or ["r1-a"] for queue in queues_of(count, broker=broker)]
    members = draw(
        st.lists(
            st.builds(
                "{}-{}@{}".format, st.sampled_from(["r1", "r2", "r9"]), st.integers(), st.text()
            ),
            min_size=1,
            max_size=12,
            unique=True,
        )
    )
    return sorted(queues, key=queue_order), sorted(members, key=java_order)


EVERY_QUEUE_ONCE: list[AllocateMessageQueueStrategy] = [
    AVG,
    CIRCLE,
    RING,
    AllocateMessageQueueConsistentHash(1),
]


@pytest.mark.parametrize("strategy", EVERY_QUEUE_ONCE, ids=repr)
@given(group=groups())
def test_every_queue_has_exactly_one_owner(
    strategy: AllocateMessageQueueStrategy, group: tuple[list[MessageQueue], list[str]]
) -> None:
    queues, cids = group

    shares = [strategy.allocate("G", cid, queues, cids) or [] for cid in cids]

    assert queues == sorted((queue for share in shares for queue in share), key=queue_order)


@pytest.mark.parametrize("inner", [AVG, CIRCLE, RING], ids=repr)
@given(group=groups())
def test_nearby_gives_every_queue_exactly_one_owner(
    inner: AllocateMessageQueueStrategy, group: tuple[list[MessageQueue], list[str]]
) -> None:
    queues, cids = group
    queues = [queue for queue in queues if "-" in queue.broker_name] or queues_of(3, broker="r1-a")
    nearby = AllocateMachineRoomNearby(inner)

    shares = [nearby.allocate("G", cid, queues, cids) for cid in cids]

    assert queues == sorted((queue for share in shares for queue in share), key=queue_order)


@pytest.mark.parametrize("strategy", [AVG, CIRCLE], ids=repr)
@given(group=groups())
def test_loads_differ_by_at_most_one(
    strategy: AllocateMessageQueueStrategy, group: tuple[list[MessageQueue], list[str]]
) -> None:
    queues, cids = group

    counts = [len(strategy.allocate("G", cid, queues, cids) or []) for cid in cids]

    assert max(counts) - min(counts) <= 1


@given(group=groups(), rooms=st.sets(st.sampled_from(["r3", "r4"])))
def test_machine_room_gives_each_queue_of_its_rooms_one_owner(
    group: tuple[list[MessageQueue], list[str]], rooms: set[str]
) -> None:
    queues, cids = group
    strategy = AllocateMessageQueueByMachineRoom(rooms)

    shares = [strategy.allocate("G", cid, queues, cids) for cid in cids]

    expected = [queue for queue in queues if "r3" in rooms and queue.broker_name == "r3@c"]
    assert sorted((queue for share in shares for queue in share), key=queue_order) == expected


@given(group=groups(), leaver=st.integers(min_value=0))
def test_on_the_ring_only_the_leavers_queues_move(
    group: tuple[list[MessageQueue], list[str]], leaver: int
) -> None:
    queues, cids = group
    gone = cids[leaver % len(cids)]
    rest = [cid for cid in cids if cid != gone]
    for cid in rest:
        before = RING.allocate("G", cid, queues, cids)
        after = RING.allocate("G", cid, queues, rest)

        assert set(before) <= set(after)


@given(group=groups())
def test_a_strategy_is_a_function_of_its_arguments(
    group: tuple[list[MessageQueue], list[str]],
) -> None:
    queues, cids = group
    for strategy in EVERY_QUEUE_ONCE:
        fresh = type(strategy)()
        if repr(fresh) != repr(strategy):
            continue
        # A member that asked in another order, or never before, must reach the same answer.
        for cid in reversed(cids):
            strategy.allocate("G", cid, queues, cids)

        assert fresh.allocate("G", cids[0], list(queues), list(cids)) == strategy.allocate(
            "G", cids[0], tuple(queues), tuple(cids)
        )


def test_lone_surrogate_is_hashed_as_javas_question_mark() -> None:
    assert md5_hash("a\ud800") == md5_hash("a?") != md5_hash("a")


def test_an_id_that_is_listed_twice_gets_a_node_for_each_that_it_lost_on_the_ring() -> None:
    places = {"a-0": 1, "a-1": 2, "b-0": 1, "b-1": 3, "a-2": 4, "a-3": 5, "queue": 5}

    ring = ConsistentHashRing(["a", "b", "a"], virtual_node_cnt=2, hash_function=places.__getitem__)

    # b takes a's first node, so the second a has the numbers 1 and 2, and nothing is at 5.
    assert [ring.owner_at(place) for place in (1, 2, 3, 4)] == ["b", "a", "b", "a"]
    assert ring.find_owner("queue") == "b"


class _OneRoom(PrefixMachineRoomResolver):
    """Finds every broker and member in one room."""

    def __repr__(self) -> str:
        return "_OneRoom()"

    def broker_deploy_in(self, message_queue: MessageQueue) -> str:
        return "room"

    def consumer_deploy_in(self, client_id: str) -> str:
        return "room"


@pytest.mark.parametrize(
    ("strategy", "name"),
    [
        (AVG, "AVG"),
        (RING, "CONSISTENT_HASH"),
        (AllocateMessageQueueConsistentHash(10), "CONSISTENT_HASH"),
        (AllocateMessageQueueConsistentHash(100), "CONSISTENT_HASH (own settings)"),
        (
            AllocateMessageQueueConsistentHash(custom_hash_function=len),
            "CONSISTENT_HASH (own settings)",
        ),
        (
            AllocateMessageQueueConsistentHashBounded(1.5),
            "CONSISTENT_HASH_BOUNDED (own settings)",
        ),
        (AllocateMachineRoomNearby(AVG), "MACHINE_ROOM_NEARBY-AVG"),
        (
            AllocateMachineRoomNearby(AVG, _OneRoom()),
            "MACHINE_ROOM_NEARBY-AVG (own settings)",
        ),
        (AllocateMessageQueueByConfig([]), "CONFIG"),
        (FunctionStrategy(lambda *_: []), "<lambda>"),
    ],
    ids=str,
)
def test_a_reported_name_is_marked_if_it_does_not_make_the_strategy(
    strategy: AllocateMessageQueueStrategy, name: str
) -> None:
    assert reported_name(strategy) == name


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        ([], None),
        (["AVG", "AVG"], "AVG"),
        (["AVG", "CONSISTENT_HASH"], None),
        (
            ["CONSISTENT_HASH", "CONSISTENT_HASH (own settings)"],
            "CONSISTENT_HASH (own settings)",
        ),
        (["MACHINE_ROOM_NEARBY", "MACHINE_ROOM_NEARBY-AVG"], "MACHINE_ROOM_NEARBY"),
        (["MACHINE_ROOM_NEARBY-AVG", "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE"], None),
        (["MACHINE_ROOM_NEARBY", "AVG"], None),
    ],
)
def test_reported_names_are_joined_where_the_strategies_may_be_one(
    names: list[str], joined: str | None
) -> None:
    assert join_reported(names) == joined
