from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor_time import takes_less_than
from sparrowmq.nameserver import route_table
from sparrowmq.nameserver.route_table import (
    BROKER_EXPIRY_MS,
    TOPICS_PER_STEP,
    BrokerIdentity,
    RouteTable,
)
from sparrowmq.protocol.bodies import DataVersion, TopicConfig, TopicConfigTable
from sparrowmq.serving.connections import Connection
from steps import run_steps

PEERS = [Connection(number, f"10.0.0.1:{number}", bytes(8)) for number in range(8)]


def identity(name: str, broker_id: int = 0, address: str = "") -> BrokerIdentity:
    return BrokerIdentity("C", name, broker_id, address or f"{name}-{broker_id}:1")


def topics(*names: str, counter: int = 1, queues: int = 4) -> TopicConfigTable:
    return TopicConfigTable(
        topic_config_table={
            name: TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues)
            for name in names
        },
        data_version=DataVersion(timestamp_ms=0, counter=counter),
    )


def register(
    table: RouteTable,
    who: BrokerIdentity,
    what: TopicConfigTable,
    *,
    connection: Connection = PEERS[0],
    now_ms: int = 0,
) -> None:
    run_steps(
        table.register(
            who, what, ha_address=f"ha-{who.address}", connection=connection, now_ms=now_ms
        )
    )


def queue_counts(table: RouteTable, topic: str) -> dict[str, int]:
    route = table.find_route(topic)
    return {} if route is None else {q.broker_name: q.read_queue_nums for q in route.queue_datas}


def addresses(table: RouteTable, topic: str) -> dict[str, dict[int, str]]:
    route = table.find_route(topic)
    return {} if route is None else {b.broker_name: b.broker_addrs for b in route.broker_datas}


def test_route_names_every_broker_of_the_topic() -> None:
    table = RouteTable()
    register(table, identity("b"), topics("T", queues=3))
    register(table, identity("a"), topics("T", "U"))

    assert queue_counts(table, "T") == {"a": 4, "b": 3}
    assert addresses(table, "T") == {"a": {0: "a-0:1"}, "b": {0: "b-0:1"}}
    assert queue_counts(table, "U") == {"a": 4}
    assert table.find_route("V") is None


def test_broker_that_changes_its_name_leaves_nothing_under_the_old_one() -> None:
    table = RouteTable()
    register(table, identity("old", address="x:1"), topics("T"))

    register(table, identity("new", address="x:1"), topics("T"))

    assert addresses(table, "T") == {"new": {0: "x:1"}}
    table.unregister_connection(PEERS[0])
    assert list(table.broker_names()) == []


@pytest.mark.parametrize("other", [identity("b", 0, "a-0:1"), identity("a", 1, "a-0:1")])
def test_broker_is_not_unregistered_in_the_name_of_another(other: BrokerIdentity) -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T"))

    table.unregister(other)

    assert addresses(table, "T") == {"a": {0: "a-0:1"}}
    table.unregister_connection(PEERS[0])
    assert list(table.broker_names()) == []


def test_topics_are_taken_only_when_their_version_changes() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T", counter=1, queues=4))

    register(table, identity("a"), topics("T", counter=1, queues=8))
    same = queue_counts(table, "T")
    register(table, identity("a"), topics("T", counter=2, queues=8))

    assert (same, queue_counts(table, "T")) == ({"a": 4}, {"a": 8})


def test_topic_deleted_at_the_broker_stays_until_it_is_deleted_here() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T", "U", counter=1))

    register(table, identity("a"), topics("T", counter=2))
    before = table.topics()
    table.delete_topic("U")

    assert (before, table.topics()) == (["T", "U"], ["T"])


def test_slave_brings_no_topics_and_learns_its_master() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T"))

    steps = table.register(
        identity("a", 1), topics("U"), ha_address="x", connection=PEERS[1], now_ms=0
    )
    told, _ = run_steps(steps)

    assert told == (True, "a-0:1", "ha-a-0:1", ())
    assert table.topics() == ["T"]
    assert addresses(table, "T") == {"a": {0: "a-0:1", 1: "a-1:1"}}


def test_topics_of_a_registration_that_another_follows_are_left_out() -> None:
    names = [f"T{number}" for number in range(2 * TOPICS_PER_STEP)]
    for later in ([*names[:1], "U"], None):
        table = RouteTable()
        steps = table.register(
            identity("a"), topics(*names), ha_address="x", connection=PEERS[0], now_ms=0
        )
        next(steps)
        if later is None:
            table.unregister(identity("a"))
        else:
            register(table, identity("a"), topics(*later, counter=2))

        run_steps(steps)

        entered = set() if later is None else {*names[:TOPICS_PER_STEP], "U"}
        assert set(table.topics()) == entered


def test_registration_that_is_repeated_while_its_topics_are_entered_enters_them_all() -> None:
    names = [f"T{number}" for number in range(2 * TOPICS_PER_STEP)]
    table = RouteTable()
    steps = table.register(
        identity("a"), topics(*names), ha_address="x", connection=PEERS[0], now_ms=0
    )
    next(steps)
    assert table.note_alive("a-0:1", now_ms=0) is None, "the broker must register again"

    register(table, identity("a"), topics(*names), connection=PEERS[1])
    run_steps(steps)

    assert len(table.topics()) == len(names)
    assert table.note_alive("a-0:1", now_ms=0) == topics().data_version


def test_queues_of_a_name_stay_while_any_broker_of_it_is_there() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T"))
    register(table, identity("a", 1), topics("T"))

    table.unregister(identity("a"))
    only_slave = addresses(table, "T")
    table.unregister(identity("a", 1))

    assert only_slave == {"a": {1: "a-1:1"}}
    assert table.find_route("T") is None
    assert table.topics() == []


def test_address_that_takes_another_id_leaves_the_old_one() -> None:
    table = RouteTable()
    register(table, identity("a", 1, "x:1"), topics())
    register(table, identity("a", 0, "x:1"), topics("T"))

    assert addresses(table, "T") == {"a": {0: "x:1"}}


def test_late_unregistration_of_a_replaced_broker_harms_nobody() -> None:
    table = RouteTable()
    register(table, identity("a", 0, "old:1"), topics("T"))
    register(table, identity("a", 0, "new:1"), topics("T"))

    table.unregister(identity("a", 0, "old:1"))

    assert addresses(table, "T") == {"a": {0: "new:1"}}


def test_closed_connection_takes_its_brokers_with_it() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T"), connection=PEERS[1])
    register(table, identity("b"), topics("T"), connection=PEERS[2])

    lost = table.unregister_connection(PEERS[1])

    assert [identity("a")] == lost
    assert queue_counts(table, "T") == {"b": 4}


def test_connection_of_many_brokers_is_forgotten_in_linear_time() -> None:
    table = RouteTable()
    for number in range(500):
        register(table, identity(f"small-{number}"), topics("T"), connection=PEERS[1])
    many = topics(*(f"T{number}" for number in range(40_000)))
    register(table, identity("large"), many, connection=PEERS[1])
    register(table, identity("other"), topics("T"), connection=PEERS[2])
    with takes_less_than(0.25):
        lost = table.unregister_connection(PEERS[1])

    assert len(lost) == 501
    assert (table.topics(), queue_counts(table, "T")) == (["T"], {"other": 4})


def test_old_connection_of_a_broker_that_registered_anew_does_not_count() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T"), connection=PEERS[1])
    register(table, identity("a"), topics("T"), connection=PEERS[2])

    assert table.unregister_connection(PEERS[1]) == []
    assert queue_counts(table, "T") == {"a": 4}


def test_silent_broker_is_forgotten_after_the_expiry() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T"), now_ms=0)
    register(table, identity("b"), topics("T"), now_ms=5, connection=PEERS[1])

    assert table.expire(BROKER_EXPIRY_MS) == []
    assert [(identity("a"), PEERS[0])] == table.expire(BROKER_EXPIRY_MS + 1)
    assert queue_counts(table, "T") == {"b": 4}


def test_broker_that_asks_for_its_version_is_alive() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T", counter=3), now_ms=0)

    version = table.note_alive("a-0:1", now_ms=BROKER_EXPIRY_MS)

    assert version == DataVersion(timestamp_ms=0, counter=3)
    assert table.note_alive("nobody:1", now_ms=0) is None
    assert table.expire(BROKER_EXPIRY_MS + 1) == []


def test_write_permission_is_taken_and_given_back() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T", "U"))

    wiped = table.set_write_perm("a", may_write=False)
    perms = [q.perm for q in table.find_route("T").queue_datas]  # type: ignore[union-attr]
    added = table.set_write_perm("a", may_write=True)
    again = [q.perm for q in table.find_route("T").queue_datas]  # type: ignore[union-attr]

    assert (wiped, perms, added, again) == (2, [4], 2, [6])
    assert table.set_write_perm("nobody", may_write=True) == 0


def test_clusters_and_their_topics_are_listed() -> None:
    table = RouteTable()
    register(table, identity("b"), topics("T"))
    register(table, identity("a"), topics("U"))

    info = table.cluster_info()

    assert info.cluster_addr_table == {"C": ["a", "b"]}
    assert list(info.broker_addr_table) == ["a", "b"]
    assert (table.topics_of_cluster("C"), table.topics_of_cluster("D")) == (["T", "U"], [])
    assert table.system_topics() == (["C", "a", "b"], "a-0:1")


def test_broker_that_moves_to_another_cluster_is_listed_there_alone() -> None:
    table = RouteTable()
    register(table, identity("a"), topics("T"))
    register(table, identity("a")._replace(cluster_name="D"), topics("T"))

    assert table.cluster_info().cluster_addr_table == {"D": ["a"]}
    assert (table.topics_of_cluster("C"), table.topics_of_cluster("D")) == ([], ["T"])


def test_numbers_of_brokers_and_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BROKERS_MAX", "BROKERS_PER_TOPIC_MAX", "TOPICS_MAX"):
        assert getattr(route_table, name) > 1_000
        monkeypatch.setattr(route_table, name, 2)
    table = RouteTable()
    for name in ("a", "b"):
        register(table, identity(name), topics("T"), connection=PEERS[1])

    full = [
        table.find_contradiction(who, connection=PEERS[2], now_ms=0)
        for who in (identity("c"), identity("a", 1))
    ]
    register(table, identity("c"), topics("T", "U", "V", "W" * 256))

    assert full == ["there are 2 brokers, which is the limit"] * 2
    assert table.find_contradiction(identity("a"), connection=PEERS[2], now_ms=0) is None
    assert queue_counts(table, "T") == {"a": 4, "b": 4}
    assert table.topics() == ["T", "U"]
    register(table, identity("a"), topics("T", counter=2, queues=8))
    assert queue_counts(table, "T") == {"a": 8, "b": 4}


def test_routes_are_bounded_in_all_and_leave_room_with_their_broker_or_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(route_table, "ROUTES_MAX", 3)
    table = RouteTable()
    register(table, identity("a"), topics("T", "U"))
    register(table, identity("b"), topics("T", "U"))
    assert (queue_counts(table, "T"), queue_counts(table, "U")) == ({"a": 4, "b": 4}, {"a": 4})

    register(table, identity("a"), topics("T", "U", counter=2, queues=8))
    assert queue_counts(table, "U") == {"a": 8}, "a known route is not a further one"
    table.delete_topic("T")
    register(table, identity("b"), topics("U", "V", "W", counter=2))
    assert (queue_counts(table, "U"), table.topics()) == ({"a": 8, "b": 4}, ["U", "V"])
    table.unregister(identity("b"))
    register(table, identity("c"), topics("U", "X", "Y"))
    assert table.topics() == ["U", "X"]


STEPS = st.tuples(
    st.sampled_from(["register", "unregister", "close", "expire"]),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 1),
    st.integers(0, 7),
)


@given(st.lists(STEPS, max_size=60))
def test_routes_name_only_brokers_that_are_there(steps: list[tuple[str, str, int, int]]) -> None:
    table = RouteTable()
    now_ms = 0
    for number, (action, name, broker_id, peer) in enumerate(steps):
        now_ms += 30_000
        who = identity(name, broker_id)
        if action == "register":
            register(
                table,
                who,
                topics("T", counter=number),
                connection=PEERS[peer],
                now_ms=now_ms,
            )
        elif action == "unregister":
            table.unregister(who)
        elif action == "close":
            table.unregister_connection(PEERS[peer])
        else:
            table.expire(now_ms)

        known = table.cluster_info().broker_addr_table
        assert set(queue_counts(table, "T")) <= set(known)
        assert all(data.broker_addrs for data in known.values())
        assert set(addresses(table, "T")) == set(queue_counts(table, "T"))
