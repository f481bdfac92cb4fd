"""The usual answer to a pull is a template, of the bytes that the encoder of commands writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from sparrowmq.protocol.bodies import PERM_WRITE, SubscriptionGroupConfig
from sparrowmq.protocol.codes import RequestCode, SerializeType
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, decode_request, encode_frame
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.protocol.signatures import signed as sign
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Output, Reply, Written

MESSAGES = 40


def make_frame(opaque: int, *, flag: int = 0, body: bytes | None = None, **fields: str) -> bytes:
    values = {
        "consumerGroup": "GID_c",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "3",
        "maxMsgNums": "32",
        "sysFlag": "3",
        "commitOffset": "2",
        "suspendTimeoutMillis": "15000",
        "subVersion": "1",
        "expressionType": "TAG",
    }
    code = RequestCode.PULL_MESSAGE
    return encode_frame(
        RemotingCommand(code=code, flag=flag, ext_fields=values | fields, body=body, opaque=opaque)
    )


def decode(frame: bytes) -> RemotingCommand:
    (command,) = FrameDecoder(decode=decode_request).receive_data(frame)
    return command


def frames_of(outputs: Sequence[Output]) -> list[bytes]:
    frames = []
    for output in outputs:
        if isinstance(output, Written):
            frames.append(output.head + (output.body or b""))
        elif isinstance(output, Reply):
            frames.append(encode_frame(output.command))
    return frames


def subscribe(rig: Any, connection: Any, group: str, expression: str, model: str) -> None:
    subscription = {
        "topic": "T",
        "subString": expression,
        "subVersion": 1,
        "classFilterMode": False,
        "tagsSet": [] if expression == "*" else [expression],
        "codeSet": [] if expression == "*" else [java_hash(expression)],
        "expressionType": "TAG",
    }
    member = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "unitMode": False,
        "subscriptionDataSet": [subscription],
    }
    body = {"clientID": f"c-{group}", "producerDataSet": [], "consumerDataSet": [member]}
    rig.call(connection, RequestCode.HEART_BEAT, None, json.dumps(body).encode())


def java_hash(tag: str) -> int:
    assert len(tag) == 1
    return ord(tag)


def make_pair(make_rig: Callable[..., Any]) -> list[tuple[Any, Any]]:
    made = []
    for _ in range(2):
        rig = make_rig()
        rig.create_topic("T", 2)
        rig.create_topic("WRITE", 1)
        connection = rig.connect(5_000)
        for number in range(MESSAGES):
            for queue_id in range(2):
                tag = f"TAGS\x01{'AB'[number % 2]}"
                rig.send(connection, queue_id=queue_id, properties=tag)
        rig.send(connection, "WRITE")
        rig.create_topic("WRITE", 1, perm=PERM_WRITE)
        subscribe(rig, connection, "GID_c", "*", "CLUSTERING")
        subscribe(rig, connection, "GID_off", "*", "CLUSTERING")
        subscribe(rig, connection, "GID_broadcast", "*", "BROADCASTING")
        subscribe(rig, connection, "GID_tag", "A", "CLUSTERING")
        off = SubscriptionGroupConfig(group_name="GID_off", consume_enable=False)
        rig.broker.state.put_group(off, timestamp_ms=1)
        rig.work()
        made.append((rig, connection))
    return made


CASES: list[tuple[dict[str, Any], bool]] = [
    ({}, True),
    ({"queueOffset": "0"}, True),
    ({"queueOffset": str(MESSAGES - 1)}, True),
    ({"maxMsgNums": "1"}, True),
    ({"maxMsgNums": "9999"}, True),
    ({"sysFlag": "2"}, True),
    ({"commitOffset": "-1"}, True),
    ({"commitOffset": "9999"}, True),
    ({"queueId": "1", "commitOffset": "7"}, True),
    ({"queueId": "1", "commitOffset": "5"}, True),
    ({"consumerGroup": "GID_c", "subVersion": "0"}, True),
    ({"consumerGroup": "GID_broadcast"}, True),
    ({"consumerGroup": "GID_tag"}, True),
    ({"consumerGroup": "GID_off"}, False),
    ({"consumerGroup": "GID_unknown"}, False),
    ({"subVersion": "9"}, False),
    ({"topic": "unknown"}, False),
    ({"topic": "WRITE"}, False),
    ({"queueId": "2"}, False),
    ({"queueId": "-1"}, False),
    ({"maxMsgNums": "0"}, True),
    ({"maxMsgBytes": "300"}, True),
    ({"sysFlag": "7", "subscription": "*"}, True),
    ({"queueOffset": "-1"}, False),
    ({"queueOffset": str(MESSAGES)}, False),
    ({"queueOffset": "9999"}, False),
    ({"flag": ONEWAY_FLAG}, False),
    ({"body": b"body"}, True),
]


def test_found_messages_are_answered_by_the_template(make_rig: Callable[..., Any]) -> None:
    (rig, peer), (signed, signed_peer) = make_pair(make_rig)
    keys = Credentials(access_key="consumer", secret_key="secret-of-the-consumer")
    account = {"accessKey": keys.access_key, "secretKey": keys.secret_key, "admin": "true"}
    signed.broker.state.access = AccessControl({"accounts": [account]}, lambda _: None)
    wrong = []
    for opaque, (fields, is_found) in enumerate(CASES):
        command = decode(make_frame(opaque, **fields))
        outputs = rig.handle(peer, command)
        (unsigned,) = FrameDecoder().receive_data(make_frame(opaque, **fields))
        command = decode(encode_frame(sign(unsigned, keys)))
        others = signed.handle(signed_peer, command)

        was_found = any(isinstance(output, Written) for output in outputs)
        anew = [encode_frame(output.command) for output in outputs]
        if was_found != is_found or not frames_of(outputs) == frames_of(others) == anew:
            wrong.append((fields, was_found, frames_of(outputs), frames_of(others)))
        rig.work()

    assert wrong == []
    states = (rig.broker.state, signed.broker.state)
    assert states[0].offsets.table() == states[1].offsets.table()
    assert states[0].counters.gets == states[1].counters.gets
    assert len(states[0].holds) == len(states[1].holds) == 1


def test_pulls_with_a_binary_header_are_answered_in_kind(make_rig: Callable[..., Any]) -> None:
    ((rig, peer), _) = make_pair(make_rig)
    (usual,) = rig.handle(peer, decode(make_frame(7)))
    (command,) = FrameDecoder().receive_data(make_frame(7))
    command.serialize_type = SerializeType.ROCKETMQ

    (answer,) = rig.handle(peer, decode(encode_frame(command)))

    assert answer.command.serialize_type is SerializeType.ROCKETMQ
    assert answer.command.body == usual.command.body
    assert answer.command.ext_fields == usual.command.ext_fields


def test_reader_forgets_what_the_log_has_lost(make_rig: Callable[..., Any]) -> None:
    ((rig, peer), _) = make_pair(make_rig)
    command = decode(make_frame(7))
    queue = rig.store.queues.by_key["T", 0]
    expected = frames_of(rig.handle(peer, command))

    # As after the removal of a file, until a reader has looked.
    queue.log_begin = -1

    assert frames_of(rig.handle(peer, command)) == expected
    assert queue.log_begin == 0
