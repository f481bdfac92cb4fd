"""What a tool asks of a consumer goes through the broker, and never waits for ever."""

from __future__ import annotations

from typing import Any

import pytest

from golden import Case, GoldenDirectory, check_cases
from sparrowmq.broker.relays import RELAY_TIMEOUT_MS, RELAYS_MAX
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.record import decode_messages
from sparrowmq.protocol.signatures import Credentials, signed
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Connection, Push

CODE = RequestCode.GET_CONSUMER_RUNNING_INFO
FIELDS = {"consumerGroup": "GID_c", "clientId": "a", "jstackEnable": "false"}


@pytest.fixture
def consumer(rig: Any) -> Connection:
    """A member `a` of GID_c, connected."""
    connection: Connection = rig.connect()
    body = b'{"clientID":"a","consumerDataSet":[{"groupName":"GID_c"}],"producerDataSet":[]}'
    assert rig.call(connection, RequestCode.HEART_BEAT, None, body).code == 0
    return connection


def ask(rig: Any, tool: Connection, /, opaque: int = 7, **fields: Any) -> list[Any]:
    request = RemotingCommand(code=CODE, ext_fields={**FIELDS, **fields}, opaque=opaque)
    return list(rig.handle(tool, request))


def test_question_is_passed_on_and_the_answer_back(rig: Any, consumer: Connection) -> None:
    tool = rig.connect()

    (question,) = ask(rig, tool, opaque=7)
    back = response_to(question.command, 0, body=b"{}", remark="ok")
    (answer,) = rig.handle(consumer, back)

    assert isinstance(question, Push)
    assert consumer is question.connection
    assert (question.command.code, question.command.ext_fields) == (CODE, FIELDS)
    assert not question.command.is_oneway
    assert tool is answer.connection
    assert (answer.command.opaque, answer.command.code, answer.command.body) == (7, 0, b"{}")
    # A second answer is nobody's.
    assert list(rig.handle(consumer, back)) == []


def test_answer_counts_from_the_one_who_was_asked_only(rig: Any, consumer: Connection) -> None:
    (question,) = ask(rig, rig.connect())

    assert list(rig.handle(rig.connect(), response_to(question.command, 0))) == []
    assert len(list(rig.handle(consumer, response_to(question.command, 0)))) == 1


def test_client_that_does_not_answer_is_an_error_in_time(rig: Any, consumer: Connection) -> None:
    ask(rig, rig.connect())

    assert rig.replies(rig.advance(RELAY_TIMEOUT_MS - 200)) == []
    (late,) = rig.replies(rig.advance(400))
    assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert len(rig.broker.state.relays) == 0


def test_client_that_goes_away_is_an_error_at_once(rig: Any, consumer: Connection) -> None:
    ask(rig, rig.connect())

    outputs = rig.broker.connection_closed(
        consumer, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms
    )

    assert [reply.code for reply in rig.replies(outputs)] == [ResponseCode.SYSTEM_ERROR]


def test_tool_that_goes_away_is_forgotten(rig: Any, consumer: Connection) -> None:
    tool = rig.connect()
    ask(rig, tool)

    rig.broker.connection_closed(tool, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)

    assert len(rig.broker.state.relays) == 0
    assert rig.replies(rig.advance(RELAY_TIMEOUT_MS + 200)) == []


@pytest.mark.parametrize("fields", [{"clientId": "b"}, {"consumerGroup": "GID_d"}])
def test_consumer_that_is_not_there_is_an_error(
    rig: Any, consumer: Connection, fields: dict[str, Any]
) -> None:
    (reply,) = rig.replies(ask(rig, rig.connect(), **fields))

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert (reply.remark or "").endswith("not online")


def test_questions_under_way_are_bounded(rig: Any, consumer: Connection) -> None:
    tool = rig.connect()
    for number in range(RELAYS_MAX):
        ask(rig, tool, opaque=number)

    (reply,) = rig.replies(ask(rig, tool, opaque=9_999))

    assert reply.code == ResponseCode.SYSTEM_BUSY


def test_question_is_passed_on_as_rocketmqs_broker_does(rig: Any, golden: GoldenDirectory) -> None:
    def check(case: Case) -> None:
        asked, pushed = case["request"]["fields"], case["push"]["fields"]
        group, client_id = asked["extFields"]["consumerGroup"], asked["extFields"]["clientId"]
        body = f'{{"clientID":"{client_id}","consumerDataSet":[{{"groupName":"{group}"}}]}}'
        rig.call(rig.connect(), RequestCode.HEART_BEAT, None, body.encode())

        (question,) = ask(rig, rig.connect(), **asked["extFields"])

        assert pushed["extFields"] == question.command.ext_fields
        assert (pushed["code"], pushed["flag"]) == (question.command.code, question.command.flag)

    cases = golden.cases("wire.jsonl")
    check_cases([case for case in cases if "push" in case and code_asked(case) == CODE], check)


def code_asked(case: Case) -> int | None:
    return case["request"]["fields"]["code"] if case.get("request") else None


def test_message_to_consume_goes_along_with_its_broker(rig: Any, consumer: Connection) -> None:
    tool = rig.connect()
    rig.create_topic("T")
    sent = rig.send(tool, "T", b"hello")
    fields = {"consumerGroup": "GID_c", "clientId": "a", "msgId": sent.ext_fields["msgId"]}
    request = RemotingCommand(
        code=RequestCode.CONSUME_MESSAGE_DIRECTLY, ext_fields=fields, opaque=9
    )

    (question,) = rig.handle(tool, request)
    (answer,) = rig.handle(consumer, response_to(question.command, 0, body=b"{}"))

    (message,) = decode_messages(question.command.body, broker_name="broker-a").messages
    assert message.body == b"hello"
    assert question.command.ext_fields == {**fields, "brokerName": "broker-a"}
    assert (answer.command.opaque, answer.command.code, answer.command.body) == (9, 0, b"{}")


@pytest.mark.parametrize("code", [CODE, RequestCode.CONSUME_MESSAGE_DIRECTLY])
def test_consumer_does_not_see_the_signature_of_the_question(
    rig: Any, consumer: Connection, code: int
) -> None:
    rig.create_topic("T")
    sent = rig.send(rig.connect(), "T", b"hello")
    fields = {"consumerGroup": "GID_c", "clientId": "a", "msgId": sent.ext_fields["msgId"]}
    account = {"accessKey": "administrator", "secretKey": "secret-of-one", "admin": "true"}
    rig.broker.state.access = AccessControl({"accounts": [account]}, lambda _: None)
    keys = Credentials(
        access_key="administrator", secret_key="secret-of-one", security_token="token"
    )

    (question,) = rig.handle(
        rig.connect(), signed(RemotingCommand(code=code, ext_fields=fields), keys)
    )

    passed = question.command.ext_fields.keys() - {"brokerName"}
    assert passed == fields.keys()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"msgId": "7F00000100002A9F" + "0" * 12 + "FFFF"}, "can not find message"),
        ({"msgId": "7F00000100002A9F" + "F" * 16}, "can not find message"),
        ({"msgId": "no id"}, ""),
        ({}, ""),
        ({"clientId": "b"}, "<GID_c> <b> not online"),
    ],
)
def test_message_that_is_not_there_is_an_error(
    rig: Any, consumer: Connection, fields: dict[str, str], words: str
) -> None:
    fields = {"consumerGroup": "GID_c", "clientId": "a", **fields}

    reply = rig.call(rig.connect(), RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)

    assert reply.code == 1
    assert words in (reply.remark or "")
