"""A pull that goes the short way is answered as one that goes the long way."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sparrowmq.broker.processors.pull import pull_plain
from sparrowmq.protocol.bodies import PERM_WRITE, SubscriptionGroupConfig
from sparrowmq.protocol.codes import RequestCode
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


def decode(frame: bytes, *, short: bool) -> RemotingCommand:
    decoder = FrameDecoder(decode=decode_request) if short else FrameDecoder()
    (command,) = decoder.receive_data(frame)
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
    ({"consumerGroup": "GID_broadcast"}, False),
    ({"consumerGroup": "GID_tag"}, False),
    ({"consumerGroup": "GID_off"}, False),
    ({"consumerGroup": "GID_unknown"}, False),
    ({"subVersion": "9"}, False),
    ({"topic": "unknown"}, False),
    ({"topic": "WRITE"}, False),
    ({"queueId": "2"}, False),
    ({"queueId": "-1"}, False),
    ({"maxMsgNums": "0"}, False),
    ({"maxMsgBytes": "300"}, False),
    ({"sysFlag": "7", "subscription": "*"}, False),
    ({"queueOffset": "-1"}, False),
    ({"queueOffset": str(MESSAGES)}, False),
    ({"queueOffset": "9999"}, False),
    ({"flag": ONEWAY_FLAG}, False),
    ({"body": b"body"}, False),
]


def test_short_way_answers_as_the_long_way(make_rig: Callable[..., Any]) -> None:
    (short, short_peer), (long, long_peer) = make_pair(make_rig)
    wrong = []
    for opaque, (fields, is_plain) in enumerate(CASES):
        frame = make_frame(opaque, **fields)
        command = decode(frame, short=True)

        outputs = pull_plain(short.broker.state, command, short_peer)
        was_plain = outputs is not None
        if outputs is None:
            outputs = short.handle(short_peer, command)
        expected = frames_of(long.handle(long_peer, decode(frame, short=False)))

        if was_plain != is_plain or expected != frames_of(outputs):
            wrong.append((fields, was_plain, expected, frames_of(outputs)))
        short.work()

    assert wrong == []
    states = (long.broker.state, short.broker.state)
    assert states[0].offsets.table() == states[1].offsets.table()
    assert states[0].counters.gets == states[1].counters.gets
    assert len(states[0].holds) == len(states[1].holds) == 1


def test_signed_pulls_are_answered_alike(make_rig: Callable[..., Any]) -> None:
    (signed, signed_peer), (long, long_peer) = make_pair(make_rig)
    keys = Credentials(access_key="consumer", secret_key="secret-of-the-consumer")
    account = {"accessKey": keys.access_key, "secretKey": keys.secret_key, "admin": "true"}
    signed.broker.state.access = AccessControl({"accounts": [account]}, lambda _: None)
    wrong = []
    for opaque, (fields, is_plain) in enumerate(CASES):
        frame = make_frame(opaque, **fields)
        command = decode(frame, short=False)
        command = sign(command, keys)

        outputs = signed.handle(signed_peer, decode(encode_frame(command), short=True))
        expected = frames_of(long.handle(long_peer, decode(frame, short=False)))

        if expected != frames_of(outputs) or (is_plain and not isinstance(outputs[0], Written)):
            wrong.append((fields, expected, frames_of(outputs)))

    assert wrong == []


def test_what_the_log_has_lost_or_the_disk_refuses_goes_the_long_way(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ((rig, peer), _) = make_pair(make_rig)
    command = decode(make_frame(7), short=True)
    state = rig.broker.state
    queue = state.store.queues.by_key["T", 0]
    expected = frames_of(rig.handle(peer, command))

    # As after the removal of a file, until a reader has looked.
    queue.log_begin = -1
    assert None is pull_plain(state, command, peer)
    assert frames_of(rig.handle(peer, command)) == expected
    assert queue.log_begin == 0

    def fail(*_: Any) -> Any:
        raise OSError("the disk fails")

    monkeypatch.setattr(state.store.queues, "read_all", fail)
    assert None is pull_plain(state, command, peer)
    assert frames_of(rig.handle(peer, command)) == expected
