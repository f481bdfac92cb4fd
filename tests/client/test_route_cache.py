"""Routes: queues to publish to and to subscribe, brokers' addresses."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from golden import each_case
from sparrowmq.client.route_cache import (
    QUEUES_MAX,
    RouteCache,
    TopicRoute,
    check_route,
    route_from,
    route_from_template,
)
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.queue import queue_order
from sparrowmq.protocol.bodies import (
    BrokerData,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteAnswer,
    decode_body,
)


def route_data(
    *queues: tuple[str, int, int, int],
    brokers: dict[str, dict[int, str]] | None = None,
    order: str | None = None,
) -> TopicRouteAnswer:
    """Make a route of (broker name, read queues, write queues, permission)."""
    addresses = {name: {0: f"{name}:1"} for name, *_ in queues} if brokers is None else brokers
    return TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name=n, broker_addrs=a) for n, a in addresses.items()],
        queue_datas=[
            QueueData(broker_name=n, read_queue_nums=r, write_queue_nums=w, perm=p)
            for n, r, w, p in queues
        ],
        order_topic_conf=order,
    )


def queues_of(*names: str) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue("T", name[0], int(name[1])) for name in names)


def test_queues_come_by_broker_name_permission_and_count() -> None:
    route = route_from("T", route_data(("b", 1, 2, 6), ("a", 3, 1, 4), ("c", 1, 1, 2)), now_ms=5)

    assert queues_of("b0", "b1", "c0") == route.publish_queues
    assert queues_of("a0", "a1", "a2", "b0") == route.subscribe_queues
    assert route.fetched_ms == 5


def test_broker_without_master_takes_no_messages_but_gives_them() -> None:
    route = route_from("T", route_data(("a", 1, 1, 6), brokers={"a": {1: "slave:1"}}), now_ms=0)

    assert route.publish_queues == ()
    assert queues_of("a0") == route.subscribe_queues


def test_order_topic_conf_says_where_to_publish() -> None:
    route = route_from("T", route_data(("a", 4, 4, 6), order="b:1;a:2"), now_ms=0)

    assert queues_of("b0", "a0", "a1") == route.publish_queues


def test_route_of_a_topic_to_be_created_takes_some_of_the_templates_queues() -> None:
    template = route_from("TBW102", route_data(("a", 8, 8, 7), ("b", 2, 2, 7)), now_ms=0)

    route = route_from_template("T", template, queue_count_max=4, now_ms=9)

    assert queues_of("a0", "a1", "a2", "a3", "b0", "b1") == route.publish_queues
    assert route.subscribe_queues == ()
    assert route.is_template


def test_cache_tells_whether_a_route_says_anything_new() -> None:
    cache = RouteCache()
    data = route_data(("a", 1, 1, 6))

    assert cache.update(route_from("T", data, now_ms=0))
    assert not cache.update(route_from("T", data, now_ms=7))
    assert cache.update(route_from("T", route_data(("a", 2, 1, 6)), now_ms=8))
    assert cache.update(
        route_from("T", route_data(("a", 2, 1, 6), brokers={"a": {0: "x:2"}}), now_ms=9)
    )


def test_addresses_come_from_the_newest_route_and_go_with_the_last() -> None:
    cache = RouteCache()
    cache.update(route_from("T", route_data(("a", 1, 1, 6), ("b", 1, 1, 6)), now_ms=0))
    moved = route_data(("a", 1, 1, 6), brokers={"a": {0: "new:1", 1: "slave:1"}})
    cache.update(route_from("U", moved, now_ms=0))

    assert cache.master_address("a") == "new:1"
    assert cache.addresses() == ("new:1", "slave:1", "b:1")
    assert cache.addresses(masters_only=True) == ("new:1", "b:1")
    assert frozenset({"a"}) == cache.broker_names_at("slave:1")
    cache.remove("U")
    assert cache.master_address("a") == "a:1"
    cache.remove("T")
    assert cache.addresses() == ()
    assert cache.find("T") is None


def test_a_changed_route_takes_its_masters_and_brokers_away() -> None:
    cache, without = RouteCache(), {"a": {1: "slave:1"}}
    cache.update(route_from("T", route_data(("a", 1, 1, 6), ("b", 1, 1, 6)), now_ms=0))
    cache.update(route_from("T", route_data(("a", 1, 1, 6), brokers=without), now_ms=0))

    assert (cache.addresses(), cache.master_address("a")) == (("slave:1",), None)
    cache.update(route_from("U", route_data(("a", 1, 1, 6)), now_ms=0))
    assert cache.addresses() == ("a:1",)
    cache.update(route_from("V", route_data(("a", 1, 1, 6), brokers=without), now_ms=0))
    assert (cache.addresses(), cache.master_address("a")) == (("slave:1",), None)


def test_old_routes_are_removed_together() -> None:
    cache = RouteCache()
    for at_ms, topic in enumerate("ABCD"):
        cache.update(route_from(topic, route_data((topic, 1, 1, 6)), now_ms=at_ms))
    cache.keep("A", 9)
    cache.update(route_from("A", route_data(("A", 1, 1, 6)), now_ms=9))

    assert cache.remove_old(5, kept_ms=6) == []
    assert cache.remove_old(8, kept_ms=6) == ["B", "C"]
    assert cache.remove_old(13, kept_ms=6) == []
    assert cache.remove_old(14, kept_ms=6) == ["D"]
    assert (cache.topics, cache.addresses()) == (("A",), ("A:1",))


def test_address_falls_back_to_the_lowest_id() -> None:
    cache = RouteCache()
    data = route_data(("a", 1, 1, 6), brokers={"a": {1: "one:1", 3: "three:1"}})
    cache.update(route_from("T", data, now_ms=0))

    assert cache.address("a") == "one:1"
    assert cache.address("b") is None


@each_case("bodies.jsonl", "route-")
def test_queues_are_those_of_apaches_client(case: dict[str, Any]) -> None:
    data = decode_body(TopicRouteAnswer, bytes.fromhex(case["hex"]))

    route = route_from("T", data, now_ms=0)

    publish = [MessageQueue("T", name, n) for name, n in case["publishQueues"]]
    subscribe = [MessageQueue("T", name, n) for name, n in case["subscribeQueues"]]
    assert publish == list(route.publish_queues)
    assert sorted(subscribe, key=queue_order) == list(route.subscribe_queues)


def mapping(name: str, epoch: int, *ids: int, total: int = 3, **scope: str) -> Any:
    ids_here = dict(zip(ids, range(len(ids)), strict=True))
    return TopicQueueMappingInfo(
        bname=name, epoch=epoch, total_queues=total, curr_id_map=ids_here, **scope
    )


def static_route(*mappings: Any, order: str | None = None) -> TopicRoute:
    data = route_data(("a", 2, 2, 6), ("b", 2, 2, 6), order=order)
    by_broker = {each.bname: each for each in mappings}
    return route_from("T", replace(data, topic_queue_mapping_by_broker=by_broker), now_ms=0)


def test_queues_of_a_static_topic_are_where_the_newest_mapping_has_them() -> None:
    route = static_route(mapping("a", 8, 1, 2), mapping("b", 7, 0, 1, total=2))

    queues = [MessageQueue("T", "__syslo__global__", n) for n in range(3)]
    assert queues == list(route.publish_queues) == list(route.subscribe_queues)
    assert [route.host(queue) for queue in queues] == ["b", "a", "a"]
    cache = RouteCache()
    cache.update(route)
    assert [cache.host(queue) for queue in queues] == ["b", "a", "a"]
    assert cache.master_of(queues[0]) == "b:1"


def test_queue_that_no_broker_serves_keeps_its_place() -> None:
    route = static_route(mapping("b", 7, 2, scope="C"))
    cache = RouteCache()
    cache.update(route)

    assert [str(q.queue_id) + q.broker_name for q in route.subscribe_queues] == [
        "0__syslo__C",
        "1__syslo__C",
        "2__syslo__C",
    ]
    assert [cache.master_of(queue) for queue in route.subscribe_queues] == [None, None, "b:1"]


def test_static_topic_is_written_where_its_order_says() -> None:
    route = static_route(mapping("b", 7, 0), order="a:1")

    assert queues_of("a0") == route.publish_queues
    assert {queue.broker_name for queue in route.subscribe_queues} == {"__syslo__global__"}


def test_route_has_changed_when_a_queue_has_moved() -> None:
    cache = RouteCache()
    cache.update(static_route(mapping("a", 7, 0, 1, 2), mapping("b", 7)))

    assert not cache.update(static_route(mapping("a", 7, 0, 1, 2), mapping("b", 7)))
    assert cache.update(static_route(mapping("a", 8, 0, 1), mapping("b", 8, 2)))


def test_address_of_a_moved_messages_broker_is_its_own() -> None:
    cache = RouteCache()
    cache.update(static_route(mapping("b", 7, 0)))
    message = MessageExt(
        topic="T",
        body=b"",
        properties={},
        broker_name="__syslo__global__",
        queue_id=0,
        queue_offset=0,
        commit_log_position=0,
    )

    at_a, elsewhere = (replace(message, store_host=h) for h in ("a:1", "x:1"))

    assert cache.stored_at(at_a) == "a:1"
    assert cache.stored_at(elsewhere) is None


@pytest.mark.parametrize("total", [-1, QUEUES_MAX + 1])
def test_static_topic_with_impossible_queues_is_refused(total: int) -> None:
    data = replace(route_data(), topic_queue_mapping_by_broker={"a": mapping("a", 1, total=total)})

    with pytest.raises(RemoteProtocolError, match="queues"):
        check_route(data)


def test_queues_to_divide_are_in_javas_order_of_brokers() -> None:
    # Java compares UTF-16 code units: U+1F600 begins with D83D and comes before U+FF21.
    data = route_data(("\uff21", 1, 1, 6), ("\U0001f600", 2, 2, 6), ("a", 1, 1, 6))

    route = route_from("T", data, now_ms=0)

    brokers = ["a", "\U0001f600", "\U0001f600", "\uff21"]
    assert brokers == [queue.broker_name for queue in route.subscribe_queues]


def test_equal_routes_of_two_clients_share_their_queues() -> None:
    data = route_data(("a", 512, 512, 6))

    first, second = (route_from("T", data, now_ms=now_ms) for now_ms in (0, 7))

    assert all(a is b for a, b in zip(first.subscribe_queues, second.publish_queues, strict=True))


def test_newest_route_says_where_a_broker_is() -> None:
    routes = RouteCache()
    for topic, address in (("A", "a:1"), ("B", "a:2"), ("A", "a:3")):
        data = route_data(("a", 1, 1, 6), brokers={"a": {0: address}})
        routes.update(route_from(topic, data, now_ms=0))

    assert (routes.address("a"), routes.master_address("a")) == ("a:3", "a:3")
