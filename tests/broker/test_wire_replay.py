"""Requests of a real transcript, sent to our servers: the answers must have RocketMQ's shape.

The transcript is of RocketMQ 4.9.3 (tests/golden/README.md). Compared are the code, the remark, the
names of the header's fields and the names in the body; places, times and offsets differ per run.
"""

from __future__ import annotations

import re
from typing import Any

from sparrowmq.protocol import fastjson
from sparrowmq.protocol.codes import LanguageCode, RequestCode, SerializeType
from sparrowmq.protocol.command import RESPONSE_FLAG, RemotingCommand

# What we do not serve yet is answered with code 3; where we differ, why.
NOT_SERVED = {
    RequestCode.QUERY_MESSAGE,
    RequestCode.END_TRANSACTION,
    RequestCode.QUERY_CONSUME_TIME_SPAN,
    RequestCode.QUERY_CONSUME_QUEUE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
}
PASSED_ON = (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY)
DIFFERENT = {
    "wire-27": "an unknown code at the name server is answered",
    "wire-66": "a missing field is named",
    "wire-94": "no transactions",
    "wire-96": "no transactions",
    "wire-98": "no transactions, so nothing was committed to the queue",
    "wire-113": "no system topics of its own for transactions",
    "wire-125": "another parser's words",
}
NO_REMARK = {None, "", "not set any response code"}


def to_command(wire: dict[str, Any]) -> RemotingCommand:
    fields = wire["fields"]
    body = fields.get("bodyHex")
    return RemotingCommand(
        code=fields["code"],
        ext_fields=fields.get("extFields"),
        body=bytes.fromhex(body) if body else None,
        remark=fields.get("remark"),
        opaque=fields["opaque"],
        flag=fields["flag"],
        language=LanguageCode[fields["language"]],
        version=fields["version"],
        serialize_type=SerializeType[wire["serializeType"]],
    )


def remark_shape(remark: str | None) -> str:
    if remark in NO_REMARK:
        return ""
    return re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", remark or "")


def names(body: bytes | None) -> Any:
    """Return the names in a JSON body, without values."""
    if not body or body[:1] not in b"{[":
        return None if not body else "bytes"
    return _names(fastjson.loads(body))


def _names(value: Any) -> Any:
    if isinstance(value, dict):
        keys = {str(key) if isinstance(key, str) else "KEY" for key in value}
        return sorted(keys & _FIELDS) or None
    return None


_FIELDS = {
    *("brokerDatas", "queueDatas", "filterServerTable", "brokerAddrTable", "clusterAddrTable"),
    *("table", "topicList", "consumerIdList", "lockOKMQSet", "connectionSet", "offsetTable"),
    *("subscriptionTable", "consumeType", "messageModel", "consumeFromWhere", "consumeTps"),
    *("groupList", "dataVersion", "topicConfigTable", "subscriptionGroupTable", "counter"),
}


async def test_answers_have_the_shape_of_rocketmqs(live: Any, golden: Any) -> None:
    peers = {
        "namesrv": await live.connect(live.name_server),
        "broker#1": await live.connect(live.broker),
        "broker#2": await live.connect(live.broker),
    }
    wrong: list[str] = []
    compared = 0
    for case in golden.cases("wire.jsonl"):
        request = case.get("request")
        if request is None:
            continue
        command = to_command(request)
        if case["note"] == "send v2 queueId -1":
            # The broker that was recorded chose queue 0 at random.
            command.ext_fields = {**(command.ext_fields or {}), "e": "0"}
        if case["note"].startswith("held pull answered on arrival"):
            continue
        if command.code in PASSED_ON:
            # Passed on to a client, which nobody plays here: test_relays.py.
            continue
        peers[case["conn"]].write(command)
        if command.is_oneway:
            continue
        reply = await peers[case["conn"]].read_reply(command.opaque)
        if command.code in NOT_SERVED:
            assert 3 == reply.code
            continue
        assert RESPONSE_FLAG == reply.flag
        if case["id"] in DIFFERENT:
            continue
        compared += 1
        theirs, ours = _shape_of_golden(case["response"]), _shape_of(reply)
        if theirs != ours:
            wrong.append(f"{case['id']} {case['note']}:\n  {theirs}\n  {ours}")

    for peer in peers.values():
        await peer.close()
    assert [] == wrong, "\n".join(wrong)
    assert compared > 80


def _shape_of(reply: RemotingCommand) -> tuple[Any, ...]:
    return (
        int(reply.code),
        remark_shape(reply.remark),
        sorted(reply.ext_fields or ()),
        names(reply.body),
    )


def _shape_of_golden(wire: dict[str, Any]) -> tuple[Any, ...]:
    return _shape_of(to_command(wire))
