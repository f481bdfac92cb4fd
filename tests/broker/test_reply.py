"""Request-reply: a reply goes to the producer that asked, by way of its broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.broker.conftest import send_fields

from sparrowmq.broker import relays
from sparrowmq.broker.relays import RELAY_TIMEOUT_MS
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import ReplyMessageRequestHeader, decode_header
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.signatures import Credentials, signed
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Connection, Push

REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
PROPERTIES = "MSG_TYPE\x01reply\x02CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01a\x02TTL\x013000"
REGION = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
FIELDS = {
    "producerGroup": "GID_replier",
    "topic": REPLY_TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "7",
    "properties": PROPERTIES,
}


def join(rig: Any, client_id: str = "a", *groups: str) -> Connection:
    connection: Connection = rig.connect()
    producers = [{"groupName": group} for group in groups or ("GID_asker",)]
    body = json.dumps({"clientID": client_id, "producerDataSet": producers}).encode()
    assert rig.call(connection, RequestCode.HEART_BEAT, None, body).code == 0
    return connection


def send_reply(rig: Any, **fields: str) -> list[Any]:
    request = RemotingCommand(
        code=RequestCode.SEND_REPLY_MESSAGE, ext_fields={**FIELDS, **fields}, body=b"yes", opaque=7
    )
    return list(rig.handle(rig.connect(), request))


def test_reply_is_pushed_to_the_one_who_asked_and_stored(rig: Any) -> None:
    asker = join(rig)
    join(rig, "b")

    (push,) = send_reply(rig)
    answers = rig.replies(rig.handle(asker, response_to(push.command, 0)))

    assert isinstance(push, Push)
    assert asker is push.connection
    command = push.command
    assert (command.code, command.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"yes")
    assert not command.is_oneway
    header = decode_header(ReplyMessageRequestHeader, command.ext_fields)
    assert (header.topic, header.queue_id, header.flag) == (REPLY_TOPIC, 0, 7)
    assert ("127.0.0.1:10911", rig.timestamp_ms) == (header.store_host, header.store_timestamp_ms)
    assert {
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "c-1",
        "REPLY_TO_CLIENT": "a",
        "TTL": "3000",
        "PUSH_REPLY_TIME": str(rig.timestamp_ms),
    } == parse_properties(header.properties or "")
    (record,) = rig.records(REPLY_TOPIC)
    assert record.body == b"yes"
    (answer,) = answers
    assert (answer.opaque, answer.code) == (7, 0)
    assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("0", "0")
    assert REGION.items() <= answer.ext_fields.items()


KEYS = {
    name: Credentials(access_key=f"{name}-account", secret_key=f"{name}-secret")
    for name in ("asker", "other")
}


def let_in(rig: Any) -> None:
    """Let two accounts ask, and reply."""
    accounts = [
        {
            "accessKey": each.access_key,
            "secretKey": each.secret_key,
            "topicPerms": [f"{REPLY_TOPIC}=PUB", "T=PUB"],
        }
        for each in KEYS.values()
    ]
    rig.broker.state.access = AccessControl({"accounts": accounts}, lambda _: None)


def beat(rig: Any, connection: Connection, name: str, client_id: str = "a") -> None:
    body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": name}]}).encode()
    request = signed(RemotingCommand(code=RequestCode.HEART_BEAT, body=body), KEYS[name])
    assert rig.replies(rig.handle(connection, request))[0].code == 0


def test_reply_goes_to_nobody_who_takes_the_id_of_another_account_s_client(rig: Any) -> None:
    let_in(rig)

    def find_asked() -> Connection:
        request = RemotingCommand(
            code=RequestCode.SEND_REPLY_MESSAGE, ext_fields=FIELDS, body=b"yes"
        )
        (push,) = rig.handle(rig.connect(), signed(request, KEYS["asker"]))
        asked: Connection = push.connection
        return asked

    first, second, other = rig.connect(), rig.connect(), rig.connect()
    asked = []
    for connection, name in ((first, "asker"), (other, "other"), (second, "asker")):
        beat(rig, connection, name)
        asked.append(find_asked())
    rig.broker.connection_closed(second, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    beat(rig, other, "other")

    assert [*asked, find_asked()] == [first, first, second, other]


def test_request_whose_reply_would_go_to_another_account_is_refused(rig: Any) -> None:
    let_in(rig)
    other, again, asker, relay = (rig.connect() for _ in range(4))

    def ask(connection: Connection, properties: str, name: str = "asker") -> int:
        fields = send_fields("T", 0, properties)
        request = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=b"?")
        outputs = rig.handle(connection, signed(request, KEYS[name]))
        (reply,) = rig.replies([o for o in outputs if getattr(o, "connection", 0) is connection])
        code: int = reply.code
        return code

    wanted = "CORRELATION_ID\x01c-1\x02REPLY_TO_CLIENT\x01a"
    beat(rig, other, "other")
    beat(rig, asker, "asker")
    beat(rig, relay, "asker", "b")

    assert ask(asker, wanted) == ResponseCode.NO_PERMISSION
    assert rig.records("T") == []
    # Who waits for no reply may send, and who has the id may ask.
    assert ask(asker, "KEYS\x01k") == ask(other, wanted, "other") == 0
    # Who passes a request on does not wait for its reply.
    assert ask(relay, wanted) == ask(asker, wanted.replace("CLIENT\x01a", "CLIENT\x01b")) == 0
    # Replies to an account find any of its connections.
    beat(rig, again, "other")
    assert ask(other, wanted, "other") == 0
    for gone in (other, again):
        rig.broker.connection_closed(gone, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    beat(rig, asker, "asker")
    assert ask(asker, wanted) == 0


def test_short_names_mean_the_same(rig: Any) -> None:
    asker = join(rig)
    reply_fields = dict(zip("abcdefghi", FIELDS.values(), strict=True))
    request = RemotingCommand(
        code=RequestCode.SEND_REPLY_MESSAGE_V2, ext_fields=reply_fields, body=b"yes"
    )

    (push,) = rig.handle(rig.connect(), request)

    assert asker is push.connection
    assert FIELDS["bornTimestamp"] == push.command.ext_fields["bornTimestamp"]


def test_requester_that_refuses_is_an_error(rig: Any) -> None:
    asker = join(rig)

    (push,) = send_reply(rig)
    refused = response_to(push.command, ResponseCode.SYSTEM_ERROR, remark="process reply fail")
    (answer,) = rig.replies(rig.handle(asker, refused))

    remark = "push reply message to a fail. process reply fail"
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)


def test_requester_that_does_not_answer_is_an_error_in_time(rig: Any) -> None:
    join(rig)
    send_reply(rig)

    (answer,) = rig.replies(rig.advance(RELAY_TIMEOUT_MS + 100))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "did not answer" in answer.remark


@pytest.mark.parametrize(
    ("properties", "words"),
    [
        (PROPERTIES.replace("CLIENT\x01a", "CLIENT\x01gone"), "channel of <gone> not found."),
        ("MSG_TYPE\x01reply", "reply message properties[REPLY_TO_CLIENT] is null"),
    ],
)
def test_reply_to_nobody_is_refused_and_not_stored(rig: Any, properties: str, words: str) -> None:
    join(rig)

    (answer,) = rig.replies(send_reply(rig, properties=properties))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert words in answer.remark
    assert answer.ext_fields == REGION
    assert rig.records(REPLY_TOPIC) == []


def test_reply_is_not_stored_while_too_many_wait_for_their_requesters(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "RELAYS_MAX", 1)
    join(rig)
    send_reply(rig)

    (answer,) = rig.replies(send_reply(rig))

    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert len(rig.records(REPLY_TOPIC)) == 1


def test_requester_that_stands_still_leaves_the_replies_of_others(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replies took every place for 10 s, and those of all other requesters were refused."""
    monkeypatch.setattr(relays, "RELAYS_PER_CLIENT_MAX", 2)
    asker = join(rig)
    join(rig, "b")
    (first,), _ = send_reply(rig), send_reply(rig)

    (refused,) = rig.replies(send_reply(rig))
    (to_other,) = send_reply(rig, properties=PROPERTIES.replace("CLIENT\x01a", "CLIENT\x01b"))
    rig.handle(asker, response_to(first.command, 0))
    (again,) = send_reply(rig)

    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert isinstance(to_other, Push)
    assert again.connection is asker
    rig.advance(RELAY_TIMEOUT_MS)
    assert [type(output) for output in send_reply(rig)] == [Push]


def test_requester_is_known_as_long_as_one_of_its_groups_is(rig: Any) -> None:
    asker = join(rig, "a", "GID_one", "GID_two")
    for group in ("GID_one", "GID_two"):
        assert len([o for o in send_reply(rig) if isinstance(o, Push)]) == 1
        fields = {"clientID": "a", "producerGroup": group}
        rig.call(asker, RequestCode.UNREGISTER_CLIENT, fields)

    (answer,) = rig.replies(send_reply(rig))
    assert "channel of <a> not found." in answer.remark


def test_requester_is_known_by_its_other_connection_when_one_closes(rig: Any) -> None:
    first, second = join(rig), join(rig)
    rig.broker.connection_closed(first, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)

    (push,) = send_reply(rig)

    assert push.connection is second
