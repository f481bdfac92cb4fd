"""Requests of a real transcript, sent to our servers: the answers must have RocketMQ's shape.

The transcript is of RocketMQ 4.9.3 (tests/golden/README.md). Compared are the code, the remark, the
names of the header's fields and the names in the body; places, times and offsets differ per run.
"""

from __future__ import annotations

import re
from typing import Any

from golden import Case, GoldenDirectory, check_cases
from sparrowmq.protocol import fastjson
from sparrowmq.protocol.codes import LanguageCode, RequestCode, SerializeType
from sparrowmq.protocol.command import RESPONSE_FLAG, RemotingCommand
from sparrowmq.protocol.headers import (
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    decode_header,
)
from sparrowmq.protocol.message_id import decode_offset_msg_id

# Passed on to a client, which nobody plays here: test_relays.py.
PASSED_ON = {RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY}
SENDS = {RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE}
TRANSACTION = "TRAN_MSG\x01true"
JAVA_EXCEPTION = re.compile(r"(java|org)\.[\w.]+Exception: ")
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


class Transcript:
    """The requests of a transcript, as they must be put to another broker."""

    def __init__(self) -> None:
        # Where the half message sent last stands in our log.
        self._half_position = 0

    def to_request(self, case: Case) -> RemotingCommand:
        """Return the request of a case, with the queue that the recorded broker chose at random."""
        command = to_command(case["request"])
        header, fields = send_header(command), command.ext_fields or {}
        if header is not None and header.queue_id < 0 and case["response"] is not None:
            chosen = to_command(case["response"]).ext_fields or {}
            name = "queueId" if command.code == RequestCode.SEND_MESSAGE else "e"
            command.ext_fields = {**fields, name: chosen.get("queueId", fields[name])}
        if command.code == RequestCode.END_TRANSACTION:
            command.ext_fields = {**fields, "commitLogOffset": str(self._half_position)}
        return command

    def note(self, command: RemotingCommand, reply: RemotingCommand) -> None:
        """Take note of where a half message was stored."""
        header = send_header(command)
        if header is not None and TRANSACTION in (header.properties or ""):
            msg_id = (reply.ext_fields or {})["msgId"]
            self._half_position = decode_offset_msg_id(msg_id)[1]


def send_header(command: RemotingCommand) -> SendMessageRequestHeader | None:
    if command.code not in SENDS:
        return None
    header_type = (
        SendMessageRequestHeader
        if command.code == RequestCode.SEND_MESSAGE
        else SendMessageRequestHeaderV2
    )
    return decode_header(header_type, command.ext_fields)


async def test_answers_have_the_shape_of_rocketmqs(live: Any, golden: GoldenDirectory) -> None:
    addresses = {"namesrv": live.name_server, "broker#1": live.broker, "broker#2": live.broker}
    peers: dict[str, Any] = {}
    transcript = Transcript()
    compared: list[Case] = []
    replies: dict[str, RemotingCommand] = {}
    for case in golden.cases("wire.jsonl"):
        # What waits for a message of a later request cannot be asked in this order.
        if case.get("request") is None or case.get("held"):
            continue
        command = transcript.to_request(case)
        if command.code in PASSED_ON:
            continue
        if case["conn"] not in peers:
            # Not before: a connection without a frame is closed after some seconds.
            peers[case["conn"]] = await live.connect(addresses[case["conn"]])
        peer = peers[case["conn"]]
        peer.write(command)
        if command.is_oneway:
            continue
        reply = await peer.read_reply(command.opaque)
        transcript.note(command, reply)
        assert reply.flag == RESPONSE_FLAG
        if case["response"] is not None:
            # RocketMQ's name server does not answer an unknown code.
            compared.append(case)
            replies[case["id"]] = reply
    for peer in peers.values():
        await peer.close()

    def check(case: Case) -> None:
        theirs, ours = to_command(case["response"]), replies[case["id"]]
        if JAVA_EXCEPTION.match(theirs.remark or ""):
            # Java's own words. Ours name the field that is missing, or what cannot be parsed.
            assert ours.remark
            theirs.remark = ours.remark
        assert _shape_of(theirs) == _shape_of(ours)

    assert compared
    check_cases(compared, check)


def _shape_of(reply: RemotingCommand) -> tuple[Any, ...]:
    return (
        int(reply.code),
        remark_shape(reply.remark),
        sorted(reply.ext_fields or ()),
        names(reply.body),
    )
