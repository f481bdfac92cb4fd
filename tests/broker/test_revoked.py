"""Requests that wait at a broker while the account that signed them loses its permission."""

from __future__ import annotations

from typing import Any

import pytest
from tests.broker.conftest import pull_fields, send_fields

from sparrowmq.broker.state import BrokerRefusal
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.signatures import Credentials, signed
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Connection, Output

READER, OTHER, SENDER = (
    Credentials(access_key=f"{name}-account", secret_key=f"{name}-secret")
    for name in ("reader", "other", "sender")
)
PULL = pull_fields("T", 0, sysFlag="6", suspendTimeoutMillis="15000")
POP = {
    "consumerGroup": "GID_c",
    "topic": "T",
    "queueId": "0",
    "maxMsgNums": "32",
    "invisibleTime": "60000",
    "pollTime": "15000",
    "bornTime": "0",
    "initMode": "0",
}
WAITING = [
    pytest.param(RequestCode.PULL_MESSAGE, PULL, id="pull"),
    pytest.param(RequestCode.POP_MESSAGE, POP, id="pop"),
    pytest.param(RequestCode.NOTIFICATION, POP, id="notification"),
]


def rule(rig: Any, reader: dict[str, Any] | None) -> None:
    """Put rules in force: what the reader may do, None if the account is gone."""
    accounts = [
        {"accessKey": keys.access_key, "secretKey": keys.secret_key} | permitted
        for keys, permitted in (
            (READER, reader),
            (OTHER, {"defaultTopicPerm": "SUB", "defaultGroupPerm": "SUB"}),
            (SENDER, {"defaultTopicPerm": "PUB"}),
        )
        if permitted is not None
    ]
    document = {"accounts": accounts}
    if rig.broker.state.access is None:
        rig.broker.state.access = AccessControl(document, lambda _: None)
    else:
        rig.broker.state.access.replace(document)


MAY = {"topicPerms": ["T=SUB"], "groupPerms": ["GID_c=SUB"]}


def wait(rig: Any, code: RequestCode, fields: dict[str, str], keys: Credentials) -> Connection:
    connection: Connection = rig.connect()
    request = signed(RemotingCommand(code=code, ext_fields=dict(fields)), keys)
    assert rig.handle(connection, request) == []
    return connection


def send(rig: Any, body: bytes = b"secret") -> None:
    fields = send_fields("T", 0)
    request = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=body)
    sender = rig.connect()
    outputs = rig.handle(sender, signed(request, SENDER))
    (reply,) = rig.replies([o for o in outputs if getattr(o, "connection", None) is sender])
    assert reply.code == 0
    rig.work()


def answers(rig: Any, connection: Connection) -> list[RemotingCommand]:
    mine: list[Output] = [o for o in rig.outputs if getattr(o, "connection", None) is connection]
    replies: list[RemotingCommand] = rig.replies(mine)
    return replies


@pytest.mark.parametrize(("code", "fields"), WAITING)
@pytest.mark.parametrize(
    "left",
    [
        pytest.param(None, id="the account is gone"),
        pytest.param(MAY | {"topicPerms": ["U=SUB"]}, id="its topic"),
        pytest.param(MAY | {"groupPerms": []}, id="its group"),
        pytest.param(MAY | {"secretKey": "another-secret"}, id="its secret is changed"),
        pytest.param(MAY | {"whiteRemoteAddress": "10.9.9.9"}, id="it comes from elsewhere"),
    ],
)
def test_what_waits_gets_nothing_that_its_account_may_not_have_any_more(
    rig: Any, code: RequestCode, fields: dict[str, str], left: dict[str, Any] | None
) -> None:
    rule(rig, MAY)
    waiting = wait(rig, code, fields, READER)
    rule(rig, left)
    send(rig)

    (answer,) = answers(rig, waiting)
    assert (answer.code, answer.body) == (ResponseCode.SYSTEM_ERROR, None)
    assert "AclException" in (answer.remark or "")
    assert rig.broker.state.refusals.counts[BrokerRefusal.ACCESS] == 1


@pytest.mark.parametrize(("code", "fields"), WAITING)
def test_what_waits_goes_on_while_rules_change_that_are_not_its_own(
    rig: Any, code: RequestCode, fields: dict[str, str]
) -> None:
    rule(rig, MAY)
    waiting = wait(rig, code, fields, READER)
    rule(rig, MAY | {"topicPerms": ["T=SUB", "U=SUB"]})
    send(rig)

    assert [answer.code for answer in answers(rig, waiting)] == [0]


def test_message_that_woke_a_refused_pop_goes_to_the_next_one(rig: Any) -> None:
    rule(rig, MAY)
    refused = wait(rig, RequestCode.POP_MESSAGE, POP, READER)
    served = wait(rig, RequestCode.POP_MESSAGE, POP, OTHER)
    rule(rig, None)
    send(rig)

    assert [answer.code for answer in answers(rig, refused)] == [ResponseCode.SYSTEM_ERROR]
    assert [answer.code for answer in answers(rig, served)] == [0]


def test_wait_that_ends_without_a_message_is_refused_too(rig: Any) -> None:
    rule(rig, MAY)
    waiting = wait(rig, RequestCode.PULL_MESSAGE, PULL, READER)
    rule(rig, None)
    rig.advance(16_000)

    assert [answer.code for answer in answers(rig, waiting)] == [ResponseCode.SYSTEM_ERROR]
