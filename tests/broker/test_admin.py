from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import UNSET, UnsetType

from processor_time import measuring
from sparrowmq.broker.journal_records import GroupTableChange, decode_changes, encode_changes
from sparrowmq.broker.processors import admin
from sparrowmq.broker.processors.admin import STATS_QUEUES_PER_STEP
from sparrowmq.errors import InvokeTimeout
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    BrokerStatsData,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    DataVersion,
    GroupList,
    ProducerConnection,
    ProducerInfo,
    ProducerTableInfo,
    QuerySubscriptionResponseBody,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicStatsTable,
    decode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RESPONSE_FLAG, RemotingCommand
from sparrowmq.protocol.record import decode_record
from sparrowmq.serving.connections import Aside, Fact, Reply
from steps import make_in_steps

CREATE = {
    "topic": "new",
    "defaultTopic": "TBW102",
    "readQueueNums": "3",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def ask(rig: Any, code: int, **fields: str) -> Any:
    return rig.call(rig.connect(), code, fields)


def heartbeat(rig: Any, connection: Any, **settings: str) -> None:
    topics = [{"topic": "T", "subString": "*"}]
    consumer = {"groupName": "GID_c", "subscriptionDataSet": topics, **settings}
    body = {
        "clientID": "a",
        "consumerDataSet": [consumer],
        "producerDataSet": [{"groupName": "GID_p"}],
    }
    rig.call(connection, RequestCode.HEART_BEAT, None, json.dumps(body).encode())


def test_system_topics_are_there_from_the_start(rig: Any) -> None:
    table = rig.broker.state.topics

    assert {topic.topic_name: (topic.read_queue_nums, topic.perm) for topic in table} == {
        "SELF_TEST_TOPIC": (1, 6),
        "TBW102": (8, 7),
        "BenchmarkTest": (1024, 6),
        "DefaultCluster": (16, 7),
        "broker-a": (1, 7),
        "OFFSET_MOVED_EVENT": (1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 6),
        "RMQ_SYS_TRACE_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 6),
        "TRANS_CHECK_MAX_TIME_TOPIC": (1, 6),
        "T": (4, 6),
    }


def test_topic_is_answered_when_it_is_written_and_registered(rig: Any) -> None:
    rig.holds_work = True
    connection = rig.connect()
    command = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=CREATE)

    at_once = rig.handle(connection, command)
    journal = rig.broker.journal_work(now_ms=rig.now_ms)
    after_journal = rig.broker.journaled(journal, None)
    registration = rig.broker.registration_work()
    after_registration = rig.broker.registered(is_complete=True, now_ms=rig.now_ms)

    assert [type(output) for output in at_once] == [Fact]
    assert after_journal == []
    assert [change.name for change in journal.changes] == ["new"]
    assert list(registration.changed.topic_config_table) == ["new"]
    registered = registration.table.topic_config_table["new"]
    assert (registered.read_queue_nums, registered.write_queue_nums) == (3, 2)
    assert [reply.code for reply in rig.replies(after_registration)] == [0]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_group_is_answered_when_its_change_is_written(rig: Any, is_deleted: bool) -> None:
    command = RemotingCommand(
        code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"GID_c"}'
    )
    if is_deleted:
        rig.handle(rig.connect(), command)
        code = RequestCode.DELETE_SUBSCRIPTIONGROUP
        command = RemotingCommand(code=code, ext_fields={"groupName": "GID_c"})
    rig.holds_work = True

    at_once = rig.handle(rig.connect(), command)
    journal = rig.broker.journal_work(now_ms=rig.now_ms)
    after_journal = rig.broker.journaled(journal, None)

    assert rig.replies(at_once) == []
    assert [change.name for change in journal.changes] == ["GID_c"]
    assert [reply.code for reply in rig.replies(after_journal)] == [0]


def test_topic_that_cannot_be_written_is_answered_with_an_error(rig: Any) -> None:
    rig.holds_work = True
    command = RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=CREATE)
    rig.handle(rig.connect(), command)
    journal = rig.broker.journal_work(now_ms=rig.now_ms)

    outputs = rig.broker.journaled(journal, OSError("disk full"))

    (reply,) = rig.replies(outputs)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "disk full" in reply.remark


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topic": "bad topic!"}, "contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ({"topic": ""}, "is blank"),
        ({"topic": "../../etc"}, "illegal characters"),
        ({"topic": "TBW102"}, "is conflict with system topic"),
        ({"topic": "broker-a"}, "is conflict with system topic"),
        ({"readQueueNums": "-1"}, "from 0 to 65536 queues"),
        ({"writeQueueNums": "65537"}, "from 0 to 65536 queues"),
        ({"topicFilterType": ""}, "topicFilterType is ''; give SINGLE_TAG or MULTI_TAG"),
        ({"topicFilterType": "SINGLE_TAG 6"}, "topicFilterType is 'SINGLE_TAG 6'"),
        ({"perm": "x"}, "the custom field <perm> is 'x', not a number of its size"),
    ],
)
def test_refused_topic_names_the_reason(rig: Any, fields: dict[str, str], words: str) -> None:
    reply = ask(rig, RequestCode.UPDATE_AND_CREATE_TOPIC, **{**CREATE, **fields})

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert words in reply.remark


def test_each_change_of_topics_has_a_new_version(rig: Any) -> None:
    before = rig.broker.state.topics.version
    rig.timestamp_ms += 5

    ask(rig, RequestCode.UPDATE_AND_CREATE_TOPIC, **CREATE)

    after = rig.broker.state.topics.version
    assert (before.counter + 1, rig.timestamp_ms) == (after.counter, after.timestamp_ms)


def test_restart_keeps_topics_and_their_version(rig: Any) -> None:
    version = rig.broker.state.topics.version

    again = rig.restart()

    assert version == again.broker.state.topics.version
    assert again.broker.state.topics.find("T") is not None
    again.store.close()


def test_deleted_topic_takes_its_offsets_with_it(rig: Any) -> None:
    fields = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0", "commitOffset": "1"}
    ask(rig, RequestCode.UPDATE_CONSUMER_OFFSET, **fields)

    reply = ask(rig, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")

    assert reply.code == 0
    assert rig.broker.state.topics.find("T") is None
    assert rig.broker.state.offsets.table().offset_table == {}
    assert ask(rig, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
    assert ask(rig, RequestCode.DELETE_TOPIC_IN_BROKER, topic="TBW102").code == 1


def test_topic_made_again_goes_on_at_its_old_offset(rig: Any) -> None:
    """Differs from RocketMQ: docs/howto/keep-messages.md gives the reason and the way out."""
    connection = rig.connect()
    for number in range(3):
        rig.send(connection, "T", b"%d" % number)
    fields = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0", "commitOffset": "3"}
    ask(rig, RequestCode.UPDATE_CONSUMER_OFFSET, **fields)

    assert ask(rig, RequestCode.DELETE_TOPIC_IN_BROKER, topic="T").code == 0
    (gone,) = rig.pull(rig.connect(), "T", commitOffset="0")
    rig = rig.restart()
    assert ask(rig, RequestCode.UPDATE_AND_CREATE_TOPIC, **(CREATE | {"topic": "T"})).code == 0
    rig.send(rig.connect(), "T", b"3")

    assert gone.command.code == ResponseCode.TOPIC_NOT_EXIST
    places = [(record.queue_offset, record.body) for record in rig.records("T")]
    assert places == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]
    # Its groups begin anew, as groups of a new topic do.
    query = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0"}
    found = ask(rig, RequestCode.QUERY_CONSUMER_OFFSET, **query)
    assert found.code == ResponseCode.SUCCESS
    assert found.ext_fields == {"offset": "0"}
    rig.store.close()


@pytest.mark.parametrize("field", ["removeOffset", "cleanOffset"])
def test_group_settings_are_kept_listed_and_deleted(rig: Any, field: str) -> None:
    connection = rig.connect()
    body = b'{"groupName":"GID_new","retryMaxTimes":3}'
    created = rig.call(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
    listed = rig.call(connection, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    rig.broker.state.offsets.commit("GID_new", "T", 0, offset=4)

    # 4.9.7 names the field in the first way, 5.x in the second.
    fields = {"groupName": "GID_new", field: "true"}
    deleted = rig.call(connection, RequestCode.DELETE_SUBSCRIPTIONGROUP, fields)

    table = decode_body(SubscriptionGroupTable, listed.body).subscription_group_table
    assert (created.code, deleted.code) == (0, 0)
    assert table["GID_new"].retry_max_times == 3
    assert "TOOLS_CONSUMER" in table
    assert rig.broker.state.groups.find("GID_new") is None
    assert rig.broker.state.offsets.find("GID_new", "T", 0) is None


def test_group_has_no_more_retry_queues_than_a_topic_may_have(rig: Any) -> None:
    """Without a bound each member's heartbeat made a retry topic that nothing could go through."""
    create = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    body = b'{"groupName":"GID_c","retryQueueNums":65537}'

    refused = rig.call(rig.connect(), create, None, body)
    heartbeat(rig, rig.connect())

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == "a group has at most 65536 retry queues, not 65537"
    assert rig.broker.state.topics.find("%RETRY%GID_c").read_queue_nums == 1


def test_group_of_another_brokers_store_has_a_retry_topic_that_can_be_served(rig: Any) -> None:
    group = SubscriptionGroupConfig(group_name="GID_c", retry_queue_nums=2**31 - 1)
    rig.broker.state.put_group(group, timestamp_ms=rig.timestamp_ms)

    heartbeat(rig, rig.connect())

    topic = rig.broker.state.topics.find("%RETRY%GID_c")
    assert (topic.read_queue_nums, topic.write_queue_nums) == (65_536, 65_536)


@pytest.mark.parametrize("count", [1, 2])
def test_broker_takes_no_more_groups_than_its_limit(
    rig: Any, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(admin, "GROUPS_MAX", len(rig.broker.state.groups) + count - 1)
    groups = [{"groupName": f"GID_{number}"} for number in range(count)]
    create = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    changed = b'{"groupName":"TOOLS_CONSUMER","retryMaxTimes":3}'

    refused = rig.call(
        rig.connect(), create, None, json.dumps({"groupConfigList": groups}).encode()
    )
    change = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    taken = rig.call(rig.connect(), change, None, changed)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "groups at most" in refused.remark
    assert rig.broker.state.groups.find("GID_0") is None
    assert taken.code == ResponseCode.SUCCESS


# What SubscriptionGroupConfig of 5.x has beside the fields of 4.9.7.
SETTINGS_OF_5 = {
    "consumeMessageOrderly": True,
    "groupRetryPolicy": {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1_000, "max": 60_000, "multiplier": 3},
        "customizedRetryPolicy": {"next": [1, 2, 3]},
    },
    "groupSysFlag": 1,
    "consumeTimeoutMinute": 30,
    "subscriptionDataSet": [
        {"topic": "T", "expressionType": "TAG", "expression": "a", "version": 7}
    ],
}


def test_settings_of_a_group_that_only_rocketmq_5_has_are_kept(rig: Any) -> None:
    body = json.dumps({"groupName": "GID_5", **SETTINGS_OF_5, "attributes": {"+a": "1"}})
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    created = rig.call(rig.connect(), code, None, body.encode())
    # The file has the form of this answer; the journal has its own.
    listed = ask(rig, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG).body
    config = decode_body(SubscriptionGroupTable, listed).subscription_group_table["GID_5"]
    change = GroupTableChange("GID_5", config, DataVersion())

    assert created.code == 0
    found = json.loads(listed)["subscriptionGroupTable"]["GID_5"]
    wanted = {**SETTINGS_OF_5, "attributes": {"a": "1"}}
    assert {name: found.get(name) for name in wanted} == wanted
    assert decode_changes(encode_changes([change])) == [change]


def test_attributes_of_a_group_are_changed_by_name(rig: Any) -> None:
    def change(attributes: dict[str, str]) -> tuple[int, dict[str, str] | UnsetType]:
        body = json.dumps({"groupName": "GID_5", "attributes": attributes}).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        reply = rig.call(rig.connect(), code, None, body)
        return reply.code, rig.broker.state.groups.find("GID_5").attributes

    assert change({"+a": "1", "+b": "2"}) == (0, {"a": "1", "b": "2"})
    assert change({}) == (0, {"a": "1", "b": "2"})
    assert change({"a": "3"}) == (ResponseCode.SYSTEM_ERROR, {"a": "1", "b": "2"})
    assert change({"-a": "", "+b": "4"}) == (0, {"b": "4"})
    assert change({"-b": ""}) == (0, UNSET)
    assert change({"+c": "x" * 8_192}) == (ResponseCode.SYSTEM_ERROR, UNSET)


@pytest.mark.parametrize("body", [None, b"{}", b'{"groupName":"bad group"}', b'{"groupName":""}'])
def test_refused_group_is_answered_with_an_error(rig: Any, body: bytes | None) -> None:
    reply = rig.call(rig.connect(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)

    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_all_topics_are_listed(rig: Any) -> None:
    table = decode_body(TopicConfigTable, ask(rig, RequestCode.GET_ALL_TOPIC_CONFIG).body)
    system = decode_body(TopicList, ask(rig, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER).body)

    assert table.topic_config_table["T"].write_queue_nums == 4
    assert {"TBW102", "broker-a", "RMQ_SYS_TRANS_HALF_TOPIC"} <= set(system.topic_list)


def test_topic_stats_tell_where_queues_begin_and_end(rig: Any) -> None:
    rig.send(rig.connect())
    rig.timestamp_ms += 1_000
    rig.send(rig.connect())
    reply = ask(rig, RequestCode.GET_TOPIC_STATS_INFO, topic="T")

    table = decode_body(TopicStatsTable, reply.body).offset_table

    assert len(table) == 4
    first = table[MessageQueue("T", "broker-a", 0)]
    assert (0, 2, rig.timestamp_ms) == (
        first.min_offset,
        first.max_offset,
        first.last_update_timestamp_ms,
    )
    assert ask(rig, RequestCode.GET_TOPIC_STATS_INFO, topic="Absent").code == 17


@pytest.mark.parametrize("topic", [{"topic": "T"}, {}])
def test_consume_stats_tell_how_far_a_group_is(rig: Any, topic: dict[str, str]) -> None:
    for _ in range(3):
        rig.send(rig.connect())
        rig.timestamp_ms += 1_000
    rig.broker.state.offsets.commit("GID_c", "T", 0, offset=2)
    heartbeat(rig, rig.connect())

    reply = ask(rig, RequestCode.GET_CONSUME_STATS, consumerGroup="GID_c", **topic)

    table = decode_body(ConsumeStats, reply.body).offset_table
    first = table[MessageQueue("T", "broker-a", 0)]
    assert len(table) == 4
    # Of the message at offset 1.
    assert (3, 2, 2, rig.timestamp_ms - 2_000) == (
        first.broker_offset,
        first.consumer_offset,
        first.pull_offset,
        first.last_timestamp_ms,
    )


def test_queues_that_a_topic_has_no_more_are_told_to_our_tools_while_they_have_messages(
    rig: Any,
) -> None:
    for queue_id in range(4):
        rig.send(rig.connect(), queue_id=queue_id)
    for queue_id, offset in enumerate((0, 0, 1, 0)):
        rig.broker.state.offsets.commit("GID_c", "T", queue_id, offset=offset)

    def told(**fields: str) -> dict[int, int | None]:
        reply = ask(rig, RequestCode.GET_CONSUME_STATS, consumerGroup="GID_c", topic="T", **fields)
        table = decode_body(ConsumeStats, reply.body).offset_table
        return {queue.queue_id: at.consumer_offset for queue, at in table.items()}

    rig.create_topic("T", queues=1)

    assert told() == {0: 0}
    # All of queue 2 is consumed.
    assert told(sparrowmqAudit="true") == {0: 0, 1: 0, 3: 0}
    rig.create_topic("T", queues=4)
    assert told() == told(sparrowmqAudit="true") == {0: 0, 1: 0, 2: 1, 3: 0}


def test_topic_that_a_live_group_has_left_is_told_to_our_tools_alone(rig: Any) -> None:
    rig.create_topic("left")
    rig.broker.state.offsets.commit("GID_c", "left", 0, offset=0)

    def topics_told(**fields: str) -> set[str]:
        reply = ask(rig, RequestCode.GET_CONSUME_STATS, consumerGroup="GID_c", **fields)
        return {queue.topic for queue in decode_body(ConsumeStats, reply.body).offset_table}

    offline = topics_told()
    heartbeat(rig, rig.connect())

    assert offline == {"left"}
    assert topics_told() == {"T"}
    assert topics_told(topic="left") == set()
    # 5.x: whoever names a list of topics wants to hear of all of them.
    assert topics_told(topicList="left;T;none;") == {"left", "T"}
    assert topics_told(sparrowmqAudit="true") == {"left", "T"}


def test_topics_of_a_live_group_that_subscribes_to_none_are_told(rig: Any) -> None:
    rig.broker.state.offsets.commit("GID_c", "T", 0, offset=0)
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"GID_c"}]}'
    assert rig.call(rig.connect(), RequestCode.HEART_BEAT, None, body).code == 0

    reply = ask(rig, RequestCode.GET_CONSUME_STATS, consumerGroup="GID_c")

    table = decode_body(ConsumeStats, reply.body).offset_table
    assert {queue.topic for queue in table} == {"T"}


def test_topic_that_a_live_group_has_left_is_told_for_all_groups_to_our_tools_alone(
    rig: Any,
) -> None:
    for name in ("left", "T"):
        rig.create_topic(name)
        rig.broker.state.offsets.commit("GID_c", name, 0, offset=0)
    rig.send(rig.connect(), topic="left")

    def told(**fields: str) -> tuple[set[str], int]:
        reply = ask(rig, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false", **fields)
        body = decode_body(ConsumeStatsList, reply.body)
        stats = [each for groups in body.consume_stats_list for each in groups.get("GID_c", ())]
        return {queue.topic for each in stats for queue in each.offset_table}, body.total_diff

    rig.broker.state.put_group(SubscriptionGroupConfig(group_name="GID_c"), timestamp_ms=0)
    offline = told()
    heartbeat(rig, rig.connect())

    assert offline == ({"left", "T"}, 1)
    assert told() == ({"T"}, 0)
    assert told(sparrowmqLeft="true") == ({"left", "T"}, 1)


def test_offsets_of_a_broadcasting_group_are_told_to_rocketmqs_tools_alone(rig: Any) -> None:
    rig.create_topic("T")
    rig.broker.state.offsets.commit("GID_c", "T", 0, offset=0)
    heartbeat(rig, rig.connect(), messageModel="BROADCASTING")

    def told(**fields: str) -> list[ConsumeStats]:
        reply = ask(rig, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false", **fields)
        body = decode_body(ConsumeStatsList, reply.body)
        return [each for groups in body.consume_stats_list for each in groups.get("GID_c", ())]

    assert len(told()) == 1
    assert told(sparrowmqLeft="true") == []


def test_every_groups_progress_is_told_at_once(rig: Any) -> None:
    for _ in range(3):
        rig.send(rig.connect())
    rig.broker.state.offsets.commit("GID_c", "T", 0, offset=2)
    heartbeat(rig, rig.connect())

    every, ordered = (
        decode_body(
            ConsumeStatsList, ask(rig, RequestCode.GET_BROKER_CONSUME_STATS, isOrder=is_order).body
        )
        for is_order in ("false", "true")
    )

    (stats,) = next(groups["GID_c"] for groups in every.consume_stats_list if "GID_c" in groups)
    first = stats.offset_table[MessageQueue("T", "broker-a", 0)]
    assert (first.broker_offset, first.consumer_offset) == (3, 2)
    assert (every.total_diff, ordered.total_diff) == (1, 0)
    assert [g["GID_c"] for g in ordered.consume_stats_list if "GID_c" in g] == [[]]


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.GET_BROKER_CONSUME_STATS,
    ],
)
def test_stats_of_many_queues_let_others_be_served_in_between(rig: Any, code: int) -> None:
    rig.create_topic("Wide", 2_000)
    heartbeat(rig, rig.connect())
    rig.broker.state.offsets.commit("GID_c", "Wide", 0, offset=0)
    fields = {
        "topic": "Wide",
        "consumerGroup": "GID_c",
        "isOrder": "false",
        "topicList": "Wide",
        "sparrowmqLeft": "true",
    }
    command = RemotingCommand(code=code, ext_fields=fields)

    (output,) = rig.broker.handle(command, rig.connect(), now_ms=0, timestamp_ms=0)
    output, steps = make_in_steps(output)

    assert steps > 2_000 // STATS_QUEUES_PER_STEP
    assert isinstance(output, Reply)
    assert (output.command.body or b"").count(b'"topic":"Wide"') == 2_000


@pytest.mark.parametrize(
    "code",
    [RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE],
)
def test_lists_that_take_long_to_encode_are_made_beside_the_loop(rig: Any, code: int) -> None:
    command = RemotingCommand(code=code)

    (output,) = rig.broker.handle(command, rig.connect(), now_ms=0, timestamp_ms=0)

    assert isinstance(output, Aside)


def test_progress_of_many_groups_is_found_in_linear_time(rig: Any) -> None:
    def seconds(count: int) -> float:
        for number in range(count):
            name = f"GID_{number}"
            rig.broker.state.put_group(SubscriptionGroupConfig(group_name=name), timestamp_ms=0)
            rig.broker.state.offsets.commit(name, f"Absent{number}", 0, offset=1)
        return min(seconds_of_a_request() for _ in range(3))

    def seconds_of_a_request() -> float:
        with measuring() as taken:
            ask(rig, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
        return taken.seconds

    few, many = seconds(1_000), seconds(8_000)

    # Eight times as many; looking for each group at every offset took 64 times as long.
    assert many < 30 * few


def test_stats_of_a_topic_and_of_a_group_in_it(rig: Any) -> None:
    rig.advance(100)
    for _ in range(3):
        rig.send(rig.connect())
    heartbeat(rig, rig.connect())
    rig.pull(rig.connect())
    rig.broker.state.offsets.commit("GID_c", "T", 0, offset=2)
    rig.advance(2_000)

    put, got = (
        decode_body(
            BrokerStatsData,
            ask(rig, RequestCode.VIEW_BROKER_STATS_DATA, statsName=name, statsKey=key).body,
        )
        for name, key in (("TOPIC_PUT_NUMS", "T"), ("GROUP_GET_NUMS", "T@GID_c"))
    )
    unknown = ask(
        rig, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="Absent"
    )

    assert (put.stats_minute.sum, put.stats_minute.tps, put.stats_day.sum) == (3, 1.5, 3)
    assert (got.stats_minute.sum, got.stats_minute.tps, got.stats_hour.sum) == (2, 1.0, 2)
    assert (unknown.code, unknown.remark) == (1, "The stats <TOPIC_PUT_NUMS> <Absent> not exist")


@pytest.mark.parametrize(
    ("begins_at", "commits", "consumed"),
    [(0, (2, 5), 5), (40, (40, 50), 10), (40, (45,), 5), (None, (40, 50), 10)],
)
def test_group_has_consumed_what_came_since_it_began(
    rig: Any, begins_at: int | None, commits: Sequence[int], consumed: int
) -> None:
    """A group that begins at a queue's end has not consumed what the queue had before."""
    for _ in range(50):
        rig.send(rig.connect())
    rig.advance(100)
    heartbeat(rig, rig.connect())
    if begins_at is not None:
        rig.pull(rig.connect(), queueOffset=str(begins_at))
    for offset in commits:
        fields = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0"}
        ask(rig, RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=str(offset), **fields)
    rig.advance(5_000)

    counted = ask(
        rig, RequestCode.VIEW_BROKER_STATS_DATA, statsName="GROUP_GET_NUMS", statsKey="T@GID_c"
    )
    progress = ask(rig, RequestCode.GET_CONSUME_STATS, consumerGroup="GID_c")
    of_all = ask(rig, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")

    assert decode_body(BrokerStatsData, counted.body).stats_day.sum == consumed
    assert decode_body(ConsumeStats, progress.body).consume_tps == consumed / 5
    stats = decode_body(ConsumeStatsList, of_all.body).consume_stats_list
    (found,) = [each for groups in stats for each in groups.get("GID_c", ())]
    assert found.consume_tps == consumed / 5


def test_connections_of_groups_are_listed(rig: Any) -> None:
    connection = rig.connect()
    heartbeat(rig, connection)
    consumers = ask(rig, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="GID_c")
    producers = ask(rig, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="GID_p")

    answers = (
        decode_body(ConsumerConnection, consumers.body),
        decode_body(ProducerConnection, producers.body),
    )
    for answer in answers:
        (found,) = answer.connection_set
        assert ("a", connection.address, "PYTHON", 399) == (
            found.client_id,
            found.client_addr,
            found.language,
            found.version,
        )


def test_connections_of_absent_groups_are_errors(rig: Any) -> None:
    consumers = ask(rig, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="none")
    producers = ask(rig, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="none")

    assert (consumers.code, consumers.remark) == (206, "the consumer group[none] not online")
    assert producers.code == 1


def test_groups_of_a_topic_are_those_online_and_those_with_offsets(rig: Any) -> None:
    heartbeat(rig, rig.connect())
    rig.broker.state.offsets.commit("GID_old", "T", 0, offset=1)

    reply = ask(rig, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")

    assert decode_body(GroupList, reply.body).group_list == ["GID_c", "GID_old"]


def test_topic_tells_its_settings(rig: Any) -> None:
    known = ask(rig, RequestCode.GET_TOPIC_CONFIG, topic="T")
    unknown = ask(rig, RequestCode.GET_TOPIC_CONFIG, topic="U")

    expected = rig.broker.state.topics.find("T")
    assert decode_body(TopicConfig, known.body) == expected
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


def test_message_is_found_by_its_position(rig: Any) -> None:
    rig.send(rig.connect(), body=b"one")
    rig.send(rig.connect(), body=b"two")
    second = rig.records("T")[1]

    found = ask(rig, RequestCode.VIEW_MESSAGE_BY_ID, offset=str(second.position))
    absent = ask(rig, RequestCode.VIEW_MESSAGE_BY_ID, offset="987654321")

    assert decode_record(found.body).body == b"two"
    assert (absent.code, absent.remark) == (1, "can not find message by the offset, 987654321")


@pytest.mark.parametrize("code", [9999, 0, -1, 39, 200_056])
def test_unknown_code_is_answered_as_not_supported(rig: Any, code: int) -> None:
    reply = ask(rig, code)

    assert (reply.code, reply.remark) == (3, f" request type {code} not supported")


def test_body_beyond_the_limit_is_refused_unread(rig: Any) -> None:
    body = b"[" * (4 * 1024 * 1024 + 1)

    reply = rig.call(rig.connect(), RequestCode.HEART_BEAT, None, body)

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL


def test_lost_name_server_is_told_again_after_a_second(rig: Any) -> None:
    rig.advance(1_000)
    rig.holds_work = True
    rig.broker.ask_registration(now_ms=rig.now_ms)
    rig.now_ms += 999
    rig.broker.tick(now_ms=rig.now_ms, timestamp_ms=0)
    early = rig.broker.registration_work()
    rig.now_ms += 1
    rig.broker.tick(now_ms=rig.now_ms, timestamp_ms=0)

    assert early is None
    assert rig.broker.registration_work() is not None


@pytest.mark.parametrize("is_lost", [False, True])
def test_whole_table_is_registered_again_over_a_new_connection(
    make_rig: Callable[..., Any], is_lost: bool
) -> None:
    rig = make_rig(name_servers=("n:1",))

    def register() -> int:
        operation = rig.operations.pop()
        code: int = operation.send(None).request.code
        with suppress(StopIteration):
            operation.send(RemotingCommand(code=0, ext_fields={"changed": "false"}))
        return code

    assert register() == RequestCode.REGISTER_BROKER
    rig.host.connection_lost("n:1" if is_lost else "n:2")
    rig.advance(1_000 if is_lost else rig.config.registration_interval_ms)

    assert (register() == RequestCode.QUERY_DATA_VERSION) is not is_lost


@pytest.mark.parametrize("name_servers", [("silent", "other"), ("other", "silent")])
def test_silent_name_server_does_not_hold_the_answer_of_a_new_topic(
    make_rig: Callable[..., Any], name_servers: tuple[str, str]
) -> None:
    rig = make_rig(name_servers=name_servers)

    def step(operation: Any, answer: RemotingCommand | Exception | None = None) -> str | None:
        """Step an operation, and on while the other one is asked; return whom it asks then."""
        answered = RemotingCommand(code=0, ext_fields={"changed": "false"})
        try:
            thrown = isinstance(answer, Exception)
            asked = operation.throw(answer) if thrown else operation.send(answer)
            while asked.address == "other":
                asked = operation.send(answered)
        except StopIteration:
            return None
        return str(asked.address)

    first = rig.operations.pop()
    assert step(first) == "silent"
    assert step(first, InvokeTimeout("no answer")) is None
    rig.outputs.clear()
    rig.handle(
        rig.connect(), RemotingCommand(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext_fields=CREATE)
    )
    assert rig.replies(rig.outputs) == []
    (second,) = rig.operations
    assert step(second) is None
    assert [reply.code for reply in rig.replies(rig.outputs)] == [ResponseCode.SUCCESS]

    # The silent one is asked beside, by one operation at a time, and gets what changed meanwhile.
    beside = rig.operations.pop()
    assert step(beside) == "silent"
    rig.broker.ask_registration(now_ms=rig.now_ms)
    rig.advance(1_000)
    (third,) = rig.operations[1:]
    assert step(third) is None
    assert step(beside, RemotingCommand(code=0)) is None
    rig.advance(1_000)
    assert step(rig.operations.pop()) == "silent"


def test_stray_response_is_ignored(rig: Any) -> None:
    command = RemotingCommand(code=0, flag=RESPONSE_FLAG)

    assert rig.handle(rig.connect(), command) == []


def test_many_topics_are_made_at_once_or_none(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(topics_max=16)
    topics = rig.broker.state.topics

    def create(*names: str, queues: int = 2) -> Any:
        configs = [
            {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
            for name in names
        ]
        body = json.dumps({"topicConfigList": configs}).encode()
        return rig.call(rig.connect(), RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body)

    assert create("A", "B").code == 0
    assert (topics.find("A").read_queue_nums, topics.find("B").write_queue_nums) == (2, 2)
    for names in (("C", "no name!"), ("C", "TBW102"), ("C", "D", "E")):
        assert create(*names).code == ResponseCode.SYSTEM_ERROR
    assert create("A", queues=70_000).code == ResponseCode.SYSTEM_ERROR
    assert topics.find("C") is None
    assert topics.find("A").read_queue_nums == 2


def test_attributes_of_many_topics_are_changes_as_those_of_one(rig: Any) -> None:
    topics = rig.broker.state.topics

    def put(attributes: dict[str, str] | None) -> int:
        config: dict[str, Any] = {"topicName": "F", "readQueueNums": 2, "writeQueueNums": 2}
        if attributes is not None:
            config["attributes"] = attributes
        body = json.dumps({"topicConfigList": [config]}).encode()
        code: int = rig.call(
            rig.connect(), RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, body
        ).code
        return code

    found: list[Any] = []
    for attributes in ({"+message.type": "FIFO"}, None, {"-message.type": ""}):
        assert put(attributes) == 0
        found.append(topics.find("F").attributes)
    refused = [put({name: "FIFO"}) for name in ("message.type", "+other", "+")]

    assert found == [{"message.type": "FIFO"}, {"message.type": "FIFO"}, UNSET]
    assert refused == [ResponseCode.SYSTEM_ERROR] * 3


def test_many_groups_are_made_at_once_or_none(rig: Any) -> None:
    def create(*names: str) -> Any:
        configs = [{"groupName": name, "retryMaxTimes": 3} for name in names]
        body = json.dumps({"groupConfigList": configs}).encode()
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
        return rig.call(rig.connect(), code, None, body)

    assert create("GID_1", "GID_2").code == 0
    assert create("GID_3", "no name!").code == ResponseCode.SYSTEM_ERROR

    known = ask(rig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="GID_2")
    unknown = ask(rig, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="GID_3")
    assert decode_body(SubscriptionGroupConfig, known.body).retry_max_times == 3
    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert unknown.remark == "No group in this broker. group: GID_3"


def test_all_producers_and_when_they_were_heard(rig: Any) -> None:
    connection = rig.connect(5678)
    groups = [{"groupName": "GID_p1"}, {"groupName": "GID_p2"}]
    body = json.dumps({"clientID": "p", "producerDataSet": groups}).encode()
    rig.call(connection, RequestCode.HEART_BEAT, None, body)
    heard_ms = rig.timestamp_ms
    rig.advance(3_000)

    table = decode_body(ProducerTableInfo, ask(rig, RequestCode.GET_ALL_PRODUCER_INFO).body).data

    expected = ProducerInfo(
        client_id="p",
        remote_ip="/10.0.0.1:5678",
        language="PYTHON",
        version=399,
        last_update_timestamp_ms=heard_ms,
    )
    assert table == {"GID_p1": [expected], "GID_p2": [expected]}


def test_what_a_group_has_and_subscribes(rig: Any) -> None:
    rig.broker.state.offsets.commit("GID_c", "T", 0, offset=1)
    data = {"topic": "T", "subString": "A || B", "subVersion": 1}
    consumer = {"groupName": "GID_c", "subscriptionDataSet": [data]}
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    rig.call(rig.connect(), RequestCode.HEART_BEAT, None, body)

    topics = ask(rig, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="GID_c")
    found, missing = (
        decode_body(
            QuerySubscriptionResponseBody,
            ask(rig, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="GID_c", topic=name).body,
        ).subscription_data
        for name in ("T", "U")
    )

    assert decode_body(TopicList, topics.body).topic_list == ["T"]
    assert found is not None
    assert found.sub_string == "A || B"
    assert missing is None
