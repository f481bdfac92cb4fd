"""Questions about what could be popped, and acknowledgements of many messages."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from tests.broker.conftest import send_fields

from sparrowmq.broker import pop_queues
from sparrowmq.broker.processors import pop as pop_processor
from sparrowmq.broker.processors import pop_questions
from sparrowmq.protocol.bodies import SubscriptionGroupConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.record import decode_record
from sparrowmq.serving import access_control
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Output, Produce


def call(rig: Any, code: int, body: bytes | None = None, **fields: Any) -> RemotingCommand:
    given = {"consumerGroup": "G", "topic": "T", "queueId": 0} | fields
    texts = {name: str(value) for name, value in given.items()}
    reply: RemotingCommand = rig.call(rig.connect(), code, texts, body)
    return reply


def pop(rig: Any, **fields: Any) -> dict[str, str]:
    asked: dict[str, Any] = {
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    }
    reply = call(rig, RequestCode.POP_MESSAGE, **(asked | fields))
    assert reply.code == 0, reply.remark
    return dict(reply.ext_fields or {})


def fill(rig: Any, count: int) -> None:
    for number in range(count):
        rig.send(rig.connect(), body=str(number).encode())


def batch(popped: dict[str, str], bits: bytes, **changed: Any) -> dict[str, Any]:
    ack = {
        "c": "G",
        "t": "T",
        "r": "0",
        "so": 0,
        "q": 0,
        "rq": 0,
        "pt": int(popped["popTime"]),
        "it": int(popped["invisibleTime"]),
        "b": b64encode(bits).decode(),
    }
    return ack | changed


def ack(rig: Any, *acks: dict[str, Any]) -> int | str:
    """Acknowledge; return the code, or what the answer says was left out."""
    body = json.dumps({"brokerName": "broker-a", "acks": acks}).encode()
    reply: RemotingCommand = rig.call(rig.connect(), RequestCode.BATCH_ACK_MESSAGE, None, body)
    return (reply.ext_fields or {}).get("leftOut") or reply.code


def left(rig: Any) -> list[int]:
    queue = rig.broker.state.pops.find("G", "T", 0)
    return [] if queue is None else list(queue.flights)


def test_batch_acknowledges_the_messages_of_its_bits(rig: Any) -> None:
    fill(rig, 10)
    popped = pop(rig)

    assert ack(rig, batch(popped, b"\x05\x02")) == 0
    assert left(rig) == [1, 3, 4, 5, 6, 7, 8]
    assert ack(rig, batch(popped, b"\x05\x02")) == 0, "again"
    found = ack(rig, batch(popped, b"\xff", so=1), batch(popped, b"\x03", q=3, so=4))
    assert found == "1 4,5"
    assert left(rig) == []


@pytest.mark.parametrize("changed", [{"pt": 1}, {"it": 1}, {"c": "H"}, {"r": "1"}, {"t": "X"}])
def test_forged_batch_acknowledges_nothing(rig: Any, changed: dict[str, Any]) -> None:
    fill(rig, 2)
    popped = pop(rig)
    assert ack(rig, batch(popped, b"\x03", **changed)) == "0 0,1"
    assert left(rig) == [0, 1]


def test_batch_ends_no_message_that_another_has_popped_meanwhile(rig: Any) -> None:
    fill(rig, 2)
    first = pop(rig, maxMsgNums=1)
    rig.timestamp_ms += 1
    pop(rig, maxMsgNums=1)

    assert ack(rig, batch(first, b"\x03")) == "0 1"
    assert left(rig) == [1]


def test_batch_without_or_with_too_many_acknowledgements_is_refused(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "ACKS_PER_BATCH_MAX", 1)
    fill(rig, 1)
    one = batch(pop(rig), b"\x01")
    assert ack(rig) == ResponseCode.NO_MESSAGE
    assert ack(rig, one, one) == ResponseCode.MESSAGE_ILLEGAL
    assert ack(rig, one | {"b": "A" * 5_000}) == ResponseCode.SYSTEM_ERROR
    monkeypatch.setattr(pop_processor, "ACKED_PER_BATCH_MAX", 1)
    assert ack(rig, one | {"b": b64encode(b"\x03").decode()}) == ResponseCode.MESSAGE_ILLEGAL
    assert left(rig) == [0]


def test_batch_needs_the_rights_of_each_group_and_topic() -> None:
    document = {
        "accounts": [
            {
                "accessKey": "somebody",
                "secretKey": "secret-of-somebody",
                "topicPerms": ["T=SUB"],
                "groupPerms": ["G=SUB"],
            }
        ]
    }
    access = AccessControl(document, lambda _: None)
    account = access.table.accounts["somebody"]
    needs = access_control._NEEDS[RequestCode.BATCH_ACK_MESSAGE]
    popped = {"popTime": "1", "invisibleTime": "1"}
    body = json.dumps({"acks": [batch(popped, b"\x01"), batch(popped, b"\x01", c="H", t="X")]})
    assert [account.may(need) for need in needs({}, body.encode())] == [True, True, False, False]


def test_peek_shows_the_next_messages_and_pops_none(rig: Any) -> None:
    fill(rig, 3)
    pop(rig, maxMsgNums=1)
    for _ in range(2):
        reply = call(rig, RequestCode.PEEK_MESSAGE, maxMsgNums=1)
        assert decode_record(reply.body or b"").body == b"1"
        # Java's client reads the answer as one to a pop, and wants all its fields.
        fields = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "1"}
        assert (reply.remark, reply.ext_fields) == ("FOUND", fields)
    pop(rig, queueId=-1)
    assert call(rig, RequestCode.PEEK_MESSAGE, maxMsgNums=1).code == ResponseCode.PULL_NOT_FOUND
    fill(rig, 40)
    many = call(rig, RequestCode.PEEK_MESSAGE, maxMsgNums=100)
    assert (many.ext_fields or {})["restNum"] == "8"
    wrong = call(rig, RequestCode.PEEK_MESSAGE, maxMsgNums=1, queueId=9)
    assert wrong.code == ResponseCode.INVALID_PARAMETER


def test_peek_shows_what_is_left_of_a_queue_that_has_lost_its_begin(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(rig, 2)
    monkeypatch.setattr(rig.store.queues.by_key["T", 0], "min_offset", 1)

    reply = call(rig, RequestCode.PEEK_MESSAGE, maxMsgNums=1)

    assert decode_record(reply.body or b"").body == b"1"


def test_notification_waits_for_something_to_pop(rig: Any) -> None:
    asked = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "bornTime": "0"}
    connection = rig.connect()
    command = RemotingCommand(
        code=RequestCode.NOTIFICATION, ext_fields={**asked, "pollTime": "5000"}
    )
    rig.handle(connection, command)

    def answers() -> list[dict[str, str]]:
        mine: list[Output] = [o for o in rig.outputs if getattr(o, "connection", 0) is connection]
        return [dict(reply.ext_fields or {}) for reply in rig.replies(mine)]

    assert answers() == []
    fill(rig, 1)
    rig.work()
    assert answers() == [{"hasMsg": "true", "pollingFull": "false"}]
    pop(rig)
    none = call(rig, RequestCode.NOTIFICATION, queueId=-1, bornTime=0, pollTime=0)
    assert none.ext_fields == {"hasMsg": "false", "pollingFull": "false"}


def test_notification_tells_of_a_message_that_comes_again(rig: Any) -> None:
    fill(rig, 1)
    pop(rig, invisibleTime=500)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "bornTime": "0"}
    fields["pollTime"] = "5000"
    rig.outputs.clear()
    rig.handle(rig.connect(), RemotingCommand(code=RequestCode.NOTIFICATION, ext_fields=fields))
    assert rig.replies(rig.outputs) == []
    rig.advance(600)

    (told,) = rig.replies(rig.outputs)
    assert told.ext_fields == {"hasMsg": "true", "pollingFull": "false"}


def test_notification_tells_of_a_message_in_a_queue_that_the_topic_hides(rig: Any) -> None:
    rig.send(rig.connect(), queue_id=3)
    pop(rig, queueId=3, invisibleTime=500)
    rig.create_topic("T", 2)
    rig.advance(600)

    told = call(rig, RequestCode.NOTIFICATION, queueId=-1, bornTime=0, pollTime=0)
    assert told.ext_fields == {"hasMsg": "true", "pollingFull": "false"}


def test_waiting_notification_hears_of_the_message_for_one_whose_client_has_gone(rig: Any) -> None:
    asked = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "bornTime": "0"}
    command = RemotingCommand(
        code=RequestCode.NOTIFICATION, ext_fields={**asked, "pollTime": "5000"}
    )
    first, second = rig.connect(), rig.connect()
    for connection in (first, second):
        rig.handle(connection, command)
    rig.holds_work = True
    sent = RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2, ext_fields=send_fields("T", 0), body=b"a"
    )
    rig.handle(rig.connect(), sent)
    flush = rig.broker.flush_work(now_ms=rig.now_ms)
    flush.run()
    # The message wakes the first, whose connection closes before the answer.
    woken = rig.broker.flushed(flush, None, now_ms=rig.now_ms)
    assert [each.connection for each in woken if isinstance(each, Produce)] == [first]
    rig.broker.connection_closed(first, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    rig.work()

    told = [each for each in rig.outputs if getattr(each, "connection", 0) is second]
    assert [reply.ext_fields["hasMsg"] for reply in rig.replies(told)] == ["true"]


def test_notification_in_order_knows_that_a_message_of_a_hidden_queue_is_in_flight(
    rig: Any,
) -> None:
    for invisible_ms in (500, 60_000):
        rig.send(rig.connect(), queue_id=3)
        pop(rig, queueId=3, invisibleTime=invisible_ms)
    rig.create_topic("T", 2)
    rig.advance(600)

    asked: dict[str, Any] = {"queueId": -1, "bornTime": 0, "pollTime": 0}
    found = [
        call(rig, RequestCode.NOTIFICATION, **asked, order=order).ext_fields
        for order in ("true", "false")
    ]
    assert [(fields or {})["hasMsg"] for fields in found] == ["false", "true"]


def test_notification_in_order_knows_that_a_message_is_in_flight(rig: Any) -> None:
    fill(rig, 2)
    pop(rig, maxMsgNums=1, order="true")
    asked: dict[str, Any] = {"bornTime": 0, "pollTime": 0}

    found = [
        call(rig, RequestCode.NOTIFICATION, **asked, order=order).ext_fields
        for order in ("true", "false")
    ]
    assert [(fields or {})["hasMsg"] for fields in found] == ["false", "true"]


def test_waiting_notifications_are_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_questions, "HELD_MAX", 0)
    full = call(rig, RequestCode.NOTIFICATION, bornTime=0, pollTime=5_000)
    assert full.ext_fields == {"hasMsg": "false", "pollingFull": "true"}


def test_notification_of_a_group_that_pulls_is_refused_and_keeps_it_from_no_pull(rig: Any) -> None:
    rig.pull(rig.connect(), consumerGroup="G")
    refused = call(rig, RequestCode.NOTIFICATION, bornTime=0, pollTime=5_000)

    (pulled,) = rig.replies(rig.pull(rig.connect(), consumerGroup="G"))
    assert refused.code == ResponseCode.NO_PERMISSION
    assert pulled.code == ResponseCode.PULL_NOT_FOUND


def test_groups_that_consume_a_topic_by_messages_are_bounded(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_queues, "GROUPS_PER_TOPIC_MAX", 2)
    rig.create_topic("U", 1)
    pop_of = {"maxMsgNums": 1, "invisibleTime": 1, "pollTime": 0, "bornTime": 0, "initMode": 0}
    wait = {"pollTime": 30_000, "bornTime": 0}

    def asked(code: int, **fields: Any) -> int:
        texts = {name: str(value) for name, value in ({"queueId": 0} | fields).items()}
        request = RemotingCommand(code=code, ext_fields=texts)
        return sum(reply.code for reply in rig.replies(rig.handle(rig.connect(), request)))

    codes = [
        asked(RequestCode.NOTIFICATION, consumerGroup="G", topic="T", **wait),
        asked(RequestCode.NOTIFICATION, consumerGroup="H", topic="T", **wait),
        asked(RequestCode.NOTIFICATION, consumerGroup="I", topic="T", **wait),
        asked(RequestCode.POP_MESSAGE, consumerGroup="I", topic="T", **pop_of),
        asked(RequestCode.POP_MESSAGE, consumerGroup="G", topic="T", **pop_of),
        asked(RequestCode.POP_MESSAGE, consumerGroup="I", topic="U", **pop_of),
    ]

    busy, empty = ResponseCode.SYSTEM_BUSY, ResponseCode.POLLING_TIMEOUT
    assert codes == [0, 0, busy, busy, empty, empty]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.NOTIFICATION, {"pollTime": 30_000, "bornTime": 0}),
        (RequestCode.PEEK_MESSAGE, {"maxMsgNums": 1}),
    ],
)
def test_question_needs_a_group_that_may_consume(
    rig: Any, code: RequestCode, fields: dict[str, Any]
) -> None:
    fill(rig, 1)
    rig.broker.state.groups.auto_create = False
    unknown = call(rig, code, **fields)
    close(rig, "G")

    closed = call(rig, code, **fields)

    assert unknown.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert (closed.code, closed.body) == (ResponseCode.NO_PERMISSION, None)


def close(rig: Any, group: str) -> None:
    settings = SubscriptionGroupConfig(group_name=group, consume_enable=False)
    rig.broker.state.put_group(settings, timestamp_ms=0)


@pytest.mark.parametrize("gone", ["group", "topic", "open group"])
def test_waiting_notification_hears_that_nothing_may_be_popped_any_more(
    rig: Any, gone: str
) -> None:
    connection = rig.connect()
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "bornTime": "0"}
    fields["pollTime"] = "5000"
    rig.handle(connection, RemotingCommand(code=RequestCode.NOTIFICATION, ext_fields=fields))
    if gone == "topic":
        rig.call(rig.connect(), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    elif gone == "group":
        rig.call(rig.connect(), RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "G"})
    else:
        close(rig, "G")
    rig.advance(10_000)

    mine: list[Output] = [o for o in rig.outputs if getattr(o, "connection", 0) is connection]
    assert [reply.code for reply in rig.replies(mine)] == [
        {
            "topic": ResponseCode.TOPIC_NOT_EXIST,
            "group": ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "open group": ResponseCode.NO_PERMISSION,
        }[gone]
    ]


def test_polling_info_counts_waiting_pops(rig: Any) -> None:
    for _ in range(2):
        fields = {"consumerGroup": "G", "topic": "T", "queueId": "-1", "maxMsgNums": "1"}
        fields |= {"invisibleTime": "1", "pollTime": "9000", "bornTime": "0", "initMode": "0"}
        rig.handle(rig.connect(), RemotingCommand(code=RequestCode.POP_MESSAGE, ext_fields=fields))
    reply = call(rig, RequestCode.POLLING_INFO, queueId=-1)
    assert reply.ext_fields == {"pollingNum": "2"}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"consumerGroup": "bad name"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"topic": "X"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 99}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_polling_info_is_refused_without_such_a_group_topic_or_queue(
    rig: Any, changed: dict[str, Any], code: ResponseCode
) -> None:
    assert call(rig, RequestCode.POLLING_INFO, **changed).code == code
