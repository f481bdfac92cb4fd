from __future__ import annotations

import json
from typing import Any

import pytest

from sparrowmq.nameserver.name_server import KVConfig, NameServerRefusal
from sparrowmq.nameserver.route_table import (
    BROKER_ALIVE_MS,
    BROKER_EXPIRY_MS,
    QUEUES_PER_TOPIC_MAX,
    TOPIC_LENGTH_MAX,
)
from sparrowmq.protocol.bodies import ClusterInfo, TopicList, TopicRouteData, decode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.protocol.register_body import decode_register_body
from sparrowmq.serving.connections import Close

IDENTITY = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
}


def route(rig: Any, topic: str = "T", **extra: Any) -> Any:
    return rig.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, **extra)


@pytest.mark.parametrize("compressed", [False, True])
def test_registered_topic_has_a_route(rig: Any, compressed: bool) -> None:
    registered = rig.register(compressed=compressed)

    data = decode_body(TopicRouteData, route(rig).body)
    assert (registered.code, registered.body) == (0, None)
    assert [(q.read_queue_nums, q.write_queue_nums, q.perm) for q in data.queue_datas] == [
        (4, 4, 6)
    ]


def test_unknown_topic_has_none(rig: Any) -> None:
    reply = route(rig)

    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark.startswith("No topic route info in name server for the topic: T\n")


def test_broker_ids_are_quoted_for_those_who_can_read_that(rig: Any) -> None:
    rig.register()

    old = route(rig, version=399).body
    new = route(rig, version=401).body
    asked = rig.call(
        RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T", "acceptStandardJsonOnly": "true"}
    ).body

    assert b'{0:"10.0.0.1:10911"}' in old
    assert json.loads(new)["brokerDatas"][0]["brokerAddrs"] == {"0": "10.0.0.1:10911"}
    assert new == asked
    assert decode_body(TopicRouteData, old) == decode_body(TopicRouteData, new)


def test_damaged_registration_is_refused(rig: Any) -> None:
    reply = rig.register(bodyCrc32="12345")

    assert (reply.code, reply.remark) == (1, "crc32 not match")
    assert route(rig).code == 17


def test_registration_without_a_checksum_is_taken(rig: Any) -> None:
    assert rig.register(bodyCrc32="0").code == 0
    assert route(rig).code == 0


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[]", b"x\x9c\x00"])
@pytest.mark.parametrize("compressed", ["true", "false"])
def test_malformed_registration_is_answered_with_an_error(
    rig: Any, body: bytes, compressed: str
) -> None:
    fields = {**IDENTITY, "haServerAddr": "x", "compressed": compressed}
    reply = rig.call(RequestCode.REGISTER_BROKER, fields, body)

    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_old_broker_registers_with_the_bare_table(rig: Any) -> None:
    body = b'{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":2,"writeQueueNums":2}}}'
    fields = {**IDENTITY, "haServerAddr": "x"}

    rig.call(RequestCode.REGISTER_BROKER, fields, body, version=36)

    data = decode_body(TopicRouteData, route(rig).body)
    assert [q.read_queue_nums for q in data.queue_datas] == [2]


def test_slave_is_told_its_master(rig: Any) -> None:
    rig.register()

    reply = rig.register("10.0.0.2:10911", broker_id=1)

    assert reply.ext_fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:109112"}


CLAIMS = [
    ({"address": "10.6.6.6:10911"}, "its name and id at another address"),
    ({"address": "10.6.6.6:10911", "broker_id": 7, "clusterName": "C"}, "its name in a cluster"),
    ({"name": "evil"}, "its address under a name"),
    ({"broker_id": 1}, "its address under an id"),
    ({"clusterName": "C"}, "another cluster"),
]


@pytest.mark.parametrize("claim", [claim for claim, _ in CLAIMS], ids=[name for _, name in CLAIMS])
def test_what_is_registered_and_alive_is_not_taken_over(rig: Any, claim: dict[str, Any]) -> None:
    broker, stranger = rig.connect(), rig.connect()
    rig.register(connection=broker)
    before = route(rig).body

    replies = [
        rig.register(**{"topics": {"T": 1}, "counter": 2, **claim}, connection=stranger)
        for _ in range(2)
    ]
    rig.server.connection_closed(stranger, now_ms=0, timestamp_ms=0)

    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_ERROR] * 2
    assert "broker broker-a:0 of cluster DefaultCluster at 10.0.0.1:10911 is alive" in (
        replies[0].remark
    )
    assert before == route(rig).body
    assert rig.server.refusals.counts[NameServerRefusal.REGISTRATION] == 2
    (fact,) = (fact for fact in rig.facts if fact.warning)
    assert stranger.address in fact.text
    assert broker.address in fact.text


def test_broker_that_came_while_a_registration_was_read_is_not_taken_over(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "sparrowmq.nameserver.name_server.decode_register_body"

    def read_late(body: bytes | None, *, compressed: bool) -> Any:
        monkeypatch.setattr(place, decode_register_body)
        rig.register(connection=rig.connect("10.0.0.1"))
        return (yield from decode_register_body(body, compressed=compressed))

    monkeypatch.setattr(place, read_late)
    late = rig.register("10.0.0.2:10911", connection=rig.connect("10.0.0.2"))

    assert (late.code, "is alive" in str(late.remark)) == (1, True)
    (broker,) = decode_body(TopicRouteData, route(rig).body).broker_datas
    assert broker.broker_addrs == {0: "10.0.0.1:10911"}


@pytest.mark.parametrize("ending", ["closed", "silent", "unregistered"])
def test_name_of_a_broker_that_is_gone_is_free(rig: Any, ending: str) -> None:
    broker = rig.connect()
    rig.register(connection=broker)
    if ending == "closed":
        rig.server.connection_closed(broker, now_ms=0, timestamp_ms=0)
    elif ending == "silent":
        rig.now_ms = BROKER_ALIVE_MS
    else:
        rig.call(RequestCode.UNREGISTER_BROKER, IDENTITY, connection=broker)

    assert rig.register("10.0.0.2:10911").code == 0
    data = decode_body(TopicRouteData, route(rig).body)
    assert [each.broker_addrs for each in data.broker_datas] == [{0: "10.0.0.2:10911"}]


def test_broker_comes_back_over_another_connection_from_its_own_host_alone(rig: Any) -> None:
    first, second, elsewhere = rig.connect(), rig.connect(), rig.connect("10.6.6.6")
    rig.register(connection=first)

    codes = [rig.register(connection=each).code for each in (elsewhere, second)]
    rig.server.connection_closed(first, now_ms=0, timestamp_ms=0)

    assert codes == [ResponseCode.SYSTEM_ERROR, 0]
    assert route(rig).code == 0


def test_broker_is_not_unregistered_from_another_host(rig: Any) -> None:
    rig.register()
    code = RequestCode.UNREGISTER_BROKER

    refused = rig.call(code, IDENTITY, connection=rig.connect("10.6.6.6"))
    unknown = rig.call(code, {**IDENTITY, "brokerAddr": "10.0.0.7:1"})

    assert (refused.code, unknown.code) == (ResponseCode.SYSTEM_ERROR, 0)
    assert route(rig).code == 0
    assert rig.server.refusals.counts[NameServerRefusal.UNREGISTRATION] == 1


@pytest.mark.parametrize("count", [-1, QUEUES_PER_TOPIC_MAX + 1, 2**31 - 1])
def test_topic_with_queues_beyond_the_bound_is_left_out_and_warned_of(rig: Any, count: int) -> None:
    reply = rig.register(topics={"T": 4, "huge": count, "large": QUEUES_PER_TOPIC_MAX})

    (fact,) = (fact for fact in rig.facts if fact.warning)
    assert reply.code == 0
    assert [route(rig, name).code for name in ("T", "huge", "large")] == [0, 17, 0]
    assert f"'huge': {count} queues; from 0 to 65536 are possible" in fact.text
    assert rig.server.refusals.counts[NameServerRefusal.TOPIC] == 1


def test_topic_with_a_name_beyond_the_bound_is_left_out(rig: Any) -> None:
    longest = "t" * TOPIC_LENGTH_MAX

    rig.register(topics={longest: 4, f"{longest}t": 4})

    assert [route(rig, name).code for name in (longest, f"{longest}t")] == [0, 17]


def test_version_is_compared(rig: Any) -> None:
    rig.register(counter=1)
    code = RequestCode.QUERY_DATA_VERSION

    same = rig.call(code, IDENTITY, b'{"counter":1,"timestamp":7}')
    other = rig.call(code, IDENTITY, b'{"counter":2,"timestamp":7}')
    stranger = rig.call(
        code, {**IDENTITY, "brokerAddr": "10.0.0.7:1"}, b'{"counter":1,"timestamp":7}'
    )

    assert (same.ext_fields, other.ext_fields) == ({"changed": "false"}, {"changed": "true"})
    assert other.body == b'{"counter":1,"timestamp":7}'
    assert (stranger.ext_fields, stranger.body) == ({"changed": "true"}, None)


def test_unregistered_and_disconnected_brokers_are_gone(rig: Any) -> None:
    rig.register()
    rig.call(RequestCode.UNREGISTER_BROKER, IDENTITY)
    unregistered = route(rig).code
    connection = rig.connect()
    rig.register(connection=connection)

    facts = rig.server.connection_closed(connection, now_ms=0, timestamp_ms=0)

    assert (unregistered, route(rig).code) == (17, 17)
    assert [fact.text for fact in facts] == ["broker broker-a:0 at 10.0.0.1:10911 is gone"]


def test_silent_broker_is_gone_and_its_connection_closed(rig: Any) -> None:
    connection = rig.connect()
    rig.register(connection=connection)

    early = rig.server.tick(now_ms=BROKER_EXPIRY_MS)
    late = rig.server.tick(now_ms=BROKER_EXPIRY_MS + 10_000)

    assert early == []
    assert Close(connection, "the broker is silent") in late
    assert route(rig).code == 17


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (RequestCode.GET_UNIT_TOPIC_LIST, ["both", "unit"]),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, ["both", "consumed"]),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, ["consumed"]),
    ],
)
def test_topics_of_units_are_told_by_their_flags(rig: Any, code: int, expected: list[str]) -> None:
    flags = {"plain": 0, "unit": 1, "consumed": 2, "both": 3}
    rig.register(topics=dict.fromkeys(flags, 1), flags=flags)

    assert decode_body(TopicList, rig.call(code).body).topic_list == expected


def test_lists(rig: Any) -> None:
    rig.register(topics={"T": 4, "U": 4})
    rig.register("10.0.0.2:10911", name="broker-b", topics={"V": 1})

    topics = rig.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    of_cluster = rig.call(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"})
    system = rig.call(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
    cluster = rig.call(RequestCode.GET_BROKER_CLUSTER_INFO)

    assert decode_body(TopicList, topics.body).topic_list == ["T", "U", "V"]
    assert decode_body(TopicList, of_cluster.body).topic_list == ["T", "U", "V"]
    names = decode_body(TopicList, system.body)
    assert names.topic_list == ["DefaultCluster", "broker-a", "broker-b"]
    assert names.broker_addr == "10.0.0.1:10911"
    info = decode_body(ClusterInfo, cluster.body)
    assert info.cluster_addr_table == {"DefaultCluster": ["broker-a", "broker-b"]}


def test_topic_is_deleted(rig: Any) -> None:
    rig.register()

    assert rig.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"}).code == 0
    assert route(rig).code == 17


def test_topic_of_one_cluster_is_deleted_and_stays_in_the_other(rig: Any) -> None:
    rig.register()
    rig.register("10.0.0.2:10911", name="broker-b", clusterName="other")

    def delete(cluster_name: str) -> list[str]:
        fields = {"topic": "T", "clusterName": cluster_name}
        assert rig.call(RequestCode.DELETE_TOPIC_IN_NAMESRV, fields).code == 0
        body = route(rig).body
        routed = [] if body is None else decode_body(TopicRouteData, body).queue_datas
        return [queue.broker_name for queue in routed]

    left = [delete(name) for name in ("none", "other", "DefaultCluster")]

    assert left == [["broker-a", "broker-b"], ["broker-a"], []]


def test_write_permission_is_wiped_and_added(rig: Any) -> None:
    rig.register()
    name = {"brokerName": "broker-a"}

    wiped = rig.call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
    added = rig.call(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)

    assert (
        wiped.ext_fields,
        added.ext_fields,
    ) == ({"wipeTopicCount": "1"}, {"addTopicCount": "1"})


def test_texts_are_kept_by_namespace_and_key(rig: Any) -> None:
    item = {"namespace": "n", "key": "k"}
    absent = rig.call(RequestCode.GET_KV_CONFIG, item)
    rig.call(RequestCode.PUT_KV_CONFIG, {**item, "value": "v"})
    found = rig.call(RequestCode.GET_KV_CONFIG, item)
    listed = rig.call(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
    rig.call(RequestCode.DELETE_KV_CONFIG, item)
    gone = rig.call(RequestCode.GET_KV_CONFIG, item)

    assert (absent.code, absent.remark) == (22, "No config item, Namespace: n Key: k")
    assert (found.ext_fields, listed.body) == ({"value": "v"}, b'{"table":{"k":"v"}}')
    assert gone.code == 22
    assert rig.call(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "m"}).code == 22


def test_order_of_a_topic_is_part_of_its_route_and_of_registrations(rig: Any) -> None:
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    rig.call(RequestCode.PUT_KV_CONFIG, item)

    registered = rig.register()

    assert registered.body == b'{"table":{"T":"broker-a:4"}}'
    assert decode_body(TopicRouteData, route(rig).body).order_topic_conf == "broker-a:4"


def test_texts_survive_their_file() -> None:
    kv_config = KVConfig({"n": {"k": "v\u2028"}})

    again = KVConfig.decode(kv_config.encode())

    assert again.find("n", "k") == "v\u2028"
    assert b'"configTable"' in kv_config.encode()


def test_number_of_texts_is_bounded(rig: Any) -> None:
    rig.server.kv_config = KVConfig({"n": {str(number): "v" for number in range(10_000)}})

    item = {"namespace": "m", "key": "k", "value": "v"}
    assert rig.call(RequestCode.PUT_KV_CONFIG, item).code == 1
    assert rig.call(RequestCode.PUT_KV_CONFIG, {**item, "namespace": "n", "key": "1"}).code == 0
    assert rig.call(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "m"}).code == 22


def test_number_of_namespaces_is_bounded_and_empty_ones_make_room(rig: Any) -> None:
    item = {"namespace": "m", "key": "k", "value": "v"}
    rig.server.kv_config = KVConfig({f"n{number}": {"k": "v"} for number in range(1_000)})
    full = rig.call(RequestCode.PUT_KV_CONFIG, item).code
    for number in range(2):
        rig.call(RequestCode.DELETE_KV_CONFIG, {"namespace": f"n{number}", "key": "k"})
    empty = rig.call(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n0"})

    codes = [
        rig.call(RequestCode.PUT_KV_CONFIG, {**item, "namespace": name}).code
        for name in ("m", "o", "p", "n9")
    ]

    assert (full, empty.code, empty.body) == (1, 0, b'{"table":{}}')
    assert codes == [0, 0, 1, 0]
    assert rig.server.kv_config.table("n0") is None


@pytest.mark.parametrize("code", [9999, RequestCode.SEND_MESSAGE])
def test_unknown_code_is_answered_as_not_supported(rig: Any, code: int) -> None:
    reply = rig.call(code)

    assert (reply.code, reply.remark) == (3, f" request type {int(code)} not supported")


def test_settings_cannot_be_changed(rig: Any) -> None:
    reply = rig.call(RequestCode.UPDATE_NAMESRV_CONFIG, None, b"configStorePath=/etc/passwd")

    assert reply.code == ResponseCode.NO_PERMISSION


def test_missing_field_is_named(rig: Any) -> None:
    reply = rig.call(RequestCode.GET_ROUTEINFO_BY_TOPIC)

    assert (reply.code, reply.remark) == (1, "the custom field <topic> is null")


def test_oneway_requests_and_responses_are_not_answered(rig: Any) -> None:
    for flag in (ONEWAY_FLAG, 1, 3):
        command = RemotingCommand(code=105, ext_fields={"topic": "T"}, flag=flag)
        outputs = rig.server.handle(command, rig.connect(), now_ms=0, timestamp_ms=0)

        assert list(outputs) == []


def test_settings_are_shown_without_paths(rig: Any) -> None:
    body = rig.call(RequestCode.GET_NAMESRV_CONFIG).body

    # Routes have the order of a topic, as another test shows.
    assert b"orderMessageEnable=true\n" in body
    assert b"/" not in body
