from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparrowmq.broker import message_filter
from sparrowmq.broker.message_filter import EXAMINATION_COST_MAX, EXAMINED_COUNT_MAX
from sparrowmq.broker.pull_hold import SUSPEND_MS_MAX, PullHold
from sparrowmq.broker.state import COMMIT_AHEAD_MAX
from sparrowmq.protocol.bodies import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, decode_request, encode_frame
from sparrowmq.protocol.record import BatchEntry, decode_messages, encode_batch
from sparrowmq.serving.connections import Written

HEARTBEAT = (
    b'{"clientID":"c1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"GID_c","messageModel":"%s",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[%s],"expressionType":"%s",'
    b'"subString":"%s","subVersion":5,"tagsSet":[],"topic":"T"}],"unitMode":false}],'
    b'"producerDataSet":[]}'
)
SUSPEND = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}


def heartbeat(
    rig: Any,
    connection: Any,
    *,
    model: bytes = b"CLUSTERING",
    codes: bytes = b"",
    kind: bytes = b"TAG",
    expression: bytes = b"*",
) -> None:
    body = HEARTBEAT % (model, codes, kind, expression)
    assert rig.call(connection, RequestCode.HEART_BEAT, None, body).code == 0


def bodies(reply: Any) -> list[bytes]:
    return [
        message.body for message in decode_messages(reply.body, broker_name="broker-a").messages
    ]


def test_pull_returns_the_messages_from_its_offset_on(rig: Any) -> None:
    connection = rig.connect()
    for body in (b"a", b"b", b"c"):
        rig.send(connection, body=body)

    (reply,) = rig.replies(rig.pull(connection, queueOffset="1"))

    assert (reply.code, reply.remark) == (ResponseCode.SUCCESS, "FOUND")
    assert bodies(reply) == [b"b", b"c"]
    assert reply.ext_fields == {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "3",
        "minOffset": "0",
        "maxOffset": "3",
    }


def test_only_what_a_turn_must_end_for_awaits_its_end(rig: Any) -> None:
    connection = rig.connect()
    rig.send(connection)
    broker = rig.broker

    def awaits_turn(code: int, fields: dict[str, str], body: bytes | None = None) -> bool:
        command = RemotingCommand(code=code, ext_fields=fields, body=body)
        broker.handle(command, connection, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
        awaits: bool = broker.awaits_turn()
        rig.work()
        assert not broker.awaits_turn()
        return awaits

    pull = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0", "maxMsgNums": "32"}
    pull |= {"sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": "15000"}
    pull |= {"subscription": "*", "subVersion": "0"}
    # The first pull of a group makes the group.
    assert awaits_turn(RequestCode.PULL_MESSAGE, {**pull, "queueOffset": "0"})
    assert not awaits_turn(RequestCode.PULL_MESSAGE, {**pull, "queueOffset": "0"})
    assert not awaits_turn(RequestCode.PULL_MESSAGE, {**pull, "queueOffset": "1"})
    assert len(broker.state.holds) == 1
    send = {"a": "GID_p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1"}
    send |= {"h": "0", "i": "", "j": "0", "k": "false", "m": "false"}
    assert awaits_turn(RequestCode.SEND_MESSAGE_V2, send, b"body")
    assert len(broker.state.holds) == 0


def test_lite_pull_is_a_pull(rig: Any) -> None:
    connection = rig.connect()
    rig.send(connection)
    fields = {**_fields(), "sysFlag": "20"}

    assert rig.call(connection, RequestCode.LITE_PULL_MESSAGE, fields).code == 0


def test_pull_is_bounded_by_count_and_bytes(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(pull_count_max=3, pull_bytes_max=1_000)
    rig.create_topic("T")
    connection = rig.connect()
    for body in (b"a", b"b", b"c", b"d"):
        rig.send(connection, body=body)
    for body in (b"x" * 2_000, b"y" * 600, b"z" * 600):
        rig.send(connection, body=body, queue_id=1)

    (by_count,) = rig.replies(rig.pull(connection, maxMsgNums="1000000"))
    (by_bytes,) = rig.replies(rig.pull(connection, maxMsgBytes="1"))
    (unbounded,) = rig.replies(rig.pull(connection, maxMsgBytes="0"))
    (large,) = rig.replies(rig.pull(connection, queue_id=1))
    fields = {"queueOffset": "1", "maxMsgBytes": "1000000"}
    (by_broker,) = rig.replies(rig.pull(connection, queue_id=1, **fields))

    assert bodies(by_count) == [b"a", b"b", b"c"]
    assert bodies(by_bytes) == [b"a"]
    assert bodies(unbounded) == [b"a", b"b", b"c"]
    assert bodies(large) == [b"x" * 2_000]
    assert bodies(by_broker) == [b"y" * 600]


@pytest.mark.parametrize(
    ("offset", "queue_id", "code", "remark"),
    [
        ("1", 0, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
        ("9", 0, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY"),
        ("-1", 0, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL"),
        ("0", 1, ResponseCode.PULL_NOT_FOUND, None),
        ("7", 1, ResponseCode.PULL_OFFSET_MOVED, None),
    ],
)
def test_pull_without_messages_says_why(
    rig: Any, offset: str, queue_id: int, code: int, remark: str | None
) -> None:
    connection = rig.connect()
    rig.send(connection)

    (reply,) = rig.replies(rig.pull(connection, queue_id=queue_id, queueOffset=offset))

    assert code == reply.code
    assert remark in (None, reply.remark)
    assert reply.body is None


def test_tags_that_match_nothing_move_the_offset_on(rig: Any) -> None:
    connection = rig.connect()
    rig.send(connection, properties="TAGS\x01A")

    (reply,) = rig.replies(rig.pull(connection, subscription="B || C"))

    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply.ext_fields["nextBeginOffset"] == "1"


def test_pull_that_brings_no_filter_takes_that_of_the_heartbeats(rig: Any) -> None:
    connection = rig.connect()
    heartbeat(rig, connection, codes=b"65", expression=b"A")
    for tag in "ABA":
        rig.send(connection, body=tag.encode(), properties=f"TAGS\x01{tag}")

    (reply,) = rig.replies(rig.pull(connection, sysFlag="0", subVersion="5"))

    assert bodies(reply) == [b"A", b"A"]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "Absent"}, 17, "topic[Absent] not exist, apply first please!"),
        ({"queueId": "4"}, 1, "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4]"),
        ({"queueId": "-1"}, 1, "queueId[-1] is illegal"),
        ({"subscription": "||"}, 23, "parse the consumer's subscription failed"),
        ({"subscription": "a" * 5_000}, 23, "parse the consumer's subscription failed"),
        ({"expressionType": "SQL92", "subscription": "a >"}, 23, "wrong at character 4, the end"),
        ({"expressionType": "JEXL", "subscription": "a"}, 23, "a filter of type 'JEXL'"),
        ({"sysFlag": "0"}, 24, "the consumer's group info not exist"),
        ({"consumerGroup": "bad group"}, 26, "subscription group [bad group] does not exist"),
        ({"topic": "W"}, 16, "the topic[W] pulling message is forbidden"),
    ],
)
def test_refused_pull_names_the_reason(
    rig: Any, fields: dict[str, str], code: int, words: str
) -> None:
    rig.create_topic("W", perm=2)

    (reply,) = rig.replies(rig.pull(rig.connect(), **{"topic": "T", **fields}))

    assert code == reply.code
    assert words in reply.remark


def test_pull_ahead_of_the_heartbeat_is_told_to_wait(rig: Any) -> None:
    connection = rig.connect()
    heartbeat(rig, connection)

    (reply,) = rig.replies(rig.pull(connection, sysFlag="0", subVersion="6"))
    (other,) = rig.replies(rig.pull(connection, "TBW102", sysFlag="0", subVersion="5"))

    assert (reply.code, reply.remark) == (25, "the consumer's subscription not latest")
    assert other.code == 24


def test_missing_header_is_named(rig: Any) -> None:
    reply = rig.call(rig.connect(), RequestCode.PULL_MESSAGE)

    assert (reply.code, reply.remark) == (1, "the custom field <consumerGroup> is null")


def test_held_pull_is_answered_when_its_message_is_flushed(rig: Any) -> None:
    puller, sender = rig.connect(), rig.connect()
    assert rig.pull(puller, **SUSPEND) == []
    rig.outputs.clear()

    rig.send(sender, body=b"news")

    (mine,) = [o.command for o in rig.outputs if o.connection is puller]
    assert bodies(mine) == [b"news"]
    assert rig.advance(20_000) == []


@pytest.mark.parametrize("is_subscribed", [False, True])
def test_held_pull_of_another_tag_waits_for_its_own(rig: Any, is_subscribed: bool) -> None:
    puller, sender = rig.connect(), rig.connect()
    if is_subscribed:
        # The filter of the pull counts, not that of its group.
        heartbeat(rig, puller, codes=b"65", expression=b"A")
    rig.pull(puller, subscription="B", **SUSPEND)
    rig.outputs.clear()

    rig.send(sender, properties="TAGS\x01A")
    answered_by_a = [o for o in rig.outputs if o.connection is puller]
    rig.send(sender, body=b"b", properties="TAGS\x01B")
    (answer,) = [o.command for o in rig.outputs if o.connection is puller]

    assert answered_by_a == []
    assert bodies(answer) == [b"b"]


@pytest.mark.parametrize("kind", [b"TAG", b"SQL92"])
def test_held_pull_is_answered_by_the_newest_subscription_of_its_group(
    rig: Any, kind: bytes
) -> None:
    expressions = {b"TAG": (b"A", b"B"), b"SQL92": (b"TAGS = 'A'", b"TAGS = 'B'")}
    former, newest = expressions[kind]
    puller, sender = rig.connect(), rig.connect()
    heartbeat(rig, puller, codes=b"65" * (kind == b"TAG"), kind=kind, expression=former)
    assert rig.pull(puller, **{**SUSPEND, "sysFlag": "2"}) == []

    newer = HEARTBEAT.replace(b'"subVersion":5', b'"subVersion":6')
    body = newer % (b"CLUSTERING", b"66" * (kind == b"TAG"), kind, newest)
    assert rig.call(puller, RequestCode.HEART_BEAT, None, body).code == 0
    rig.outputs.clear()
    rig.send(sender, body=b"b", properties="TAGS\x01B")
    rig.advance(15_000)

    # Who pulls on behind the message never gets it.
    (answer,) = [o.command for o in rig.outputs if o.connection is puller]
    assert bodies(answer) == [b"b"]


def test_held_pull_is_answered_with_nothing_when_its_time_is_over(rig: Any) -> None:
    rig.pull(rig.connect(), **SUSPEND)

    early = rig.advance(14_900)
    (reply,) = rig.replies(rig.advance(100))

    assert early == []
    assert reply.code == ResponseCode.PULL_NOT_FOUND


def test_pull_is_never_held_longer_than_half_a_minute(rig: Any) -> None:
    rig.pull(rig.connect(), **{**SUSPEND, "suspendTimeoutMillis": "9000000"})

    assert len(rig.replies(rig.advance(SUSPEND_MS_MAX))) == 1


@pytest.mark.parametrize(
    ("gone", "code"),
    [
        ("group", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ("open group", ResponseCode.NO_PERMISSION),
        ("open topic", ResponseCode.NO_PERMISSION),
        ("topic", ResponseCode.TOPIC_NOT_EXIST),
        ("queue", ResponseCode.SYSTEM_ERROR),
    ],
)
def test_held_pull_gets_no_message_that_its_group_may_not_have_any_more(
    rig: Any, gone: str, code: ResponseCode
) -> None:
    puller, other = rig.connect(), rig.connect()
    rig.pull(puller, **SUSPEND)
    if gone == "group":
        rig.call(other, RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "GID_c"})
    elif gone == "open group":
        group = SubscriptionGroupConfig(group_name="GID_c", consume_enable=False)
        rig.broker.state.put_group(group, timestamp_ms=0)
    elif gone == "open topic":
        rig.broker.state.put_topic(TopicConfig(topic_name="T", perm=PERM_WRITE), timestamp_ms=0)
    elif gone == "queue":
        topic = TopicConfig(topic_name="T", read_queue_nums=0, write_queue_nums=1)
        rig.broker.state.put_topic(topic, timestamp_ms=0)
    else:
        rig.call(other, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    if gone != "topic":
        rig.send(other, body=b"a")
    rig.advance(16_000)

    (answer,) = [o.command for o in rig.outputs if getattr(o, "connection", None) is puller]
    assert (answer.code, answer.body) == (code, None)
    assert rig.broker.state.groups.find("GID_c") is None or gone != "group"


def test_pull_that_leaves_its_place_to_a_later_one_is_answered(rig: Any) -> None:
    rig.broker.state.holds = PullHold(held_max=1)
    first, second = rig.connect(), rig.connect()
    rig.pull(first, **SUSPEND)

    outputs = rig.pull(second, **SUSPEND)

    assert [each.connection for each in outputs] == [first]
    assert [reply.code for reply in rig.replies(outputs)] == [ResponseCode.PULL_NOT_FOUND]


def test_held_pulls_of_a_closed_connection_are_forgotten(rig: Any) -> None:
    puller = rig.connect()
    rig.pull(puller, **SUSPEND)

    rig.broker.connection_closed(puller, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)

    assert rig.advance(16_000) == []
    assert len(rig.broker.state.holds) == 0


def test_pull_carries_a_commit_that_never_lowers_the_offset(rig: Any) -> None:
    connection = rig.connect()
    offsets = rig.broker.state.offsets
    rig.pull(connection, sysFlag="5", commitOffset="7")
    first = offsets.find("GID_c", "T", 0)

    rig.pull(connection, sysFlag="5", commitOffset="3")
    rig.pull(connection, sysFlag="4", commitOffset="9")

    assert (first, offsets.find("GID_c", "T", 0)) == (7, 7)


@pytest.mark.parametrize("offset", [-1, COMMIT_AHEAD_MAX + 1])
def test_pull_carries_no_commit_of_what_the_queue_cannot_have(rig: Any, offset: int) -> None:
    rig.pull(rig.connect(), sysFlag="5", commitOffset=str(offset))

    assert rig.broker.state.offsets.find("GID_c", "T", 0) is None


def test_group_may_be_forbidden_to_consume_and_to_broadcast(rig: Any) -> None:
    connection = rig.connect()
    heartbeat(rig, connection, model=b"BROADCASTING")
    settings = b'{"groupName":"GID_c","consumeBroadcastEnable":false}'
    rig.call(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings)
    (broadcast,) = rig.replies(rig.pull(connection, sysFlag="0", subVersion="5"))
    settings = b'{"groupName":"GID_c","consumeEnable":false}'
    rig.call(connection, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings)
    (consume,) = rig.replies(rig.pull(connection))

    assert broadcast.code == ResponseCode.NO_PERMISSION
    assert consume.code == ResponseCode.NO_PERMISSION


def send_numbers(rig: Any, connection: Any, numbers: range) -> None:
    for number in numbers:
        rig.send(connection, body=b"%d" % number, properties=f"n\x01{number}")


def test_condition_chooses_messages_by_their_properties(rig: Any) -> None:
    connection = rig.connect()
    send_numbers(rig, connection, range(10))
    condition = {"expressionType": "SQL92", "subscription": "n BETWEEN 2 AND 8"}

    (some,) = rig.replies(rig.pull(connection, **condition, maxMsgNums="5"))
    (rest,) = rig.replies(rig.pull(connection, **condition, queueOffset="7"))
    (none,) = rig.replies(rig.pull(connection, **condition, queueOffset="9"))

    assert (
        bodies(some),
        some.ext_fields["nextBeginOffset"],
    ) == ([b"2", b"3", b"4", b"5", b"6"], "7")
    assert (bodies(rest), rest.ext_fields["nextBeginOffset"]) == ([b"7", b"8"], "10")
    assert (
        none.code,
        none.ext_fields["nextBeginOffset"],
    ) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "10")


def test_condition_keeps_to_the_bytes_asked_for(rig: Any) -> None:
    connection = rig.connect()
    send_numbers(rig, connection, range(4))
    condition = {"expressionType": "SQL92", "subscription": "n > 0"}

    (reply,) = rig.replies(rig.pull(connection, **condition, maxMsgBytes="200"))

    assert bodies(reply) == [b"1"]
    assert reply.ext_fields["nextBeginOffset"] == "2"


def test_one_pull_examines_a_bounded_number_of_messages(rig: Any) -> None:
    connection = rig.connect()
    send_numbers(rig, connection, range(EXAMINED_COUNT_MAX + 1))
    condition = {"expressionType": "SQL92", "subscription": f"n = {EXAMINED_COUNT_MAX}"}

    (first,) = rig.replies(rig.pull(connection, **condition))
    offset = first.ext_fields["nextBeginOffset"]
    (second,) = rig.replies(rig.pull(connection, **condition, queueOffset=offset))

    assert (ResponseCode.PULL_RETRY_IMMEDIATELY, str(EXAMINED_COUNT_MAX)) == (first.code, offset)
    assert bodies(second) == [b"%d" % EXAMINED_COUNT_MAX]


def test_one_pull_with_a_long_condition_examines_fewer_messages(rig: Any) -> None:
    connection = rig.connect()
    send_numbers(rig, connection, range(200))
    condition = " OR ".join(["n<-1"] * 500)
    fields = {"expressionType": "SQL92", "subscription": condition}
    examined = EXAMINATION_COST_MAX // (4 * len(condition))

    (reply,) = rig.replies(rig.pull(connection, **fields))

    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert examined <= int(reply.ext_fields["nextBeginOffset"]) <= examined + 1
    assert examined < 200


def test_held_pull_with_a_condition_waits_for_a_message_that_fulfils_it(rig: Any) -> None:
    puller, sender = rig.connect(), rig.connect()
    rig.pull(puller, expressionType="SQL92", subscription="n > 4", **SUSPEND)
    rig.outputs.clear()

    send_numbers(rig, sender, range(5))
    early = [o for o in rig.outputs if o.connection is puller]
    send_numbers(rig, sender, range(5, 6))
    (answer,) = [o.command for o in rig.outputs if o.connection is puller]

    assert early == []
    assert (bodies(answer), answer.ext_fields["nextBeginOffset"]) == ([b"5"], "6")


def test_held_pull_whose_condition_is_not_examined_for_all_messages_is_to_ask_again(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_filter, "EXAMINATION_COST_MAX", 1)
    puller = rig.connect()
    rig.pull(puller, expressionType="SQL92", subscription="n > 2", **SUSPEND)
    body = encode_batch([BatchEntry(0, b"%d" % n, f"n\x01{n}") for n in range(4)])
    rig.outputs.clear()
    rig.send(rig.connect(), body=body, code=RequestCode.SEND_BATCH_MESSAGE)

    (reply,) = [each.command for each in rig.outputs if getattr(each, "connection", 0) is puller]
    assert reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert reply.ext_fields["nextBeginOffset"] == "1"


def test_held_pull_whose_condition_nothing_fulfils_says_how_far_it_looked(rig: Any) -> None:
    puller, sender = rig.connect(), rig.connect()
    rig.pull(puller, expressionType="SQL92", subscription="n > 4", **SUSPEND)
    rig.advance(14_000)
    send_numbers(rig, sender, range(3))

    (reply,) = rig.replies(rig.advance(1_000))

    assert (reply.code, reply.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "3")


def test_condition_of_a_heartbeat_filters_pulls_without_one(rig: Any) -> None:
    connection = rig.connect()
    send_numbers(rig, connection, range(8))
    heartbeat(rig, connection, kind=b"SQL92", expression=b"n > 5")

    (reply,) = rig.replies(rig.pull(connection, sysFlag="0", subVersion="5"))

    assert bodies(reply) == [b"6", b"7"]


def test_condition_of_a_heartbeat_that_is_wrong_is_named_at_the_pull(rig: Any) -> None:
    connection = rig.connect()
    heartbeat(rig, connection, kind=b"SQL92", expression=b"n >")

    (reply,) = rig.replies(rig.pull(connection, sysFlag="0", subVersion="5"))

    assert reply.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "wrong at character 4, the end" in reply.remark


def _fields() -> dict[str, str]:
    return {
        "consumerGroup": "GID_c",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queueOffset": "1", "maxMsgNums": "1"},
        {"queueOffset": "2"},
        {"queueOffset": "9"},
        {"queueId": "1"},
        {"queueId": "9"},
        {"subscription": "B"},
        {"topic": "unknown"},
        {"consumerGroup": "%"},
    ],
    ids=str,
)
def test_pull_is_answered_alike_however_its_header_was_read(
    rig: Any, fields: dict[str, str]
) -> None:
    connection = rig.connect()
    for body in (b"a", b"b"):
        rig.send(connection, body=body, properties="TAGS\x01A")
    values = {
        "consumerGroup": "GID_c",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **fields,
    }
    frame = encode_frame(
        RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=values, opaque=-5)
    )
    (command,) = FrameDecoder(decode=decode_request).receive_data(frame)
    assert command.header is not None

    (short,) = rig.handle(connection, command)
    (long,) = rig.handle(connection, FrameDecoder().receive_data(frame)[0])

    assert isinstance(short, Written) == (short.command.code == ResponseCode.SUCCESS)
    if isinstance(short, Written):
        assert encode_frame(long.command) == short.head + (short.body or b"")
    else:
        assert encode_frame(long.command) == encode_frame(short.command)
