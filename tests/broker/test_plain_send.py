"""A plain message is stored and answered as any other, by fewer steps.

The store encodes a plain message from its request, and the answer is a template. Here the same
sends go to a broker whose store takes each message as a record, and answers are written anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sparrowmq.model.names import SCHEDULE_TOPIC, retry_topic
from sparrowmq.protocol.bodies import TopicConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode, SerializeType
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, decode_request, encode_frame
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.protocol.signatures import signed as sign
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Output, Reply, Written
from sparrowmq.store.config import FlushMode

WAIT = "WAIT\x01true"
PLAIN_TEXTS = (
    "",
    "K\x01v",
    "K\x01v\x02",
    f"UNIQ_KEY\x017F00\x02{WAIT}",
    f"UNIQ_KEY\x017F00\x02{WAIT}\x02TAGS\x01A\x02KEYS\x01a b",
    f"K\x01v\x02{WAIT}\x02",
    "TAGS\x01日本語",
    "TAGS\x01first\x02TAGS\x01last\x02",
    "n\x01" + "v" * 30_000,
)
OTHER_TEXTS = (
    WAIT,
    f"{WAIT}\x02K\x01v",
    f"K\x01v\x02{WAIT}\x02{WAIT}",
    "K\x01v\x02WAIT\x01trues",
    "K\x01v\x02WAIT\x01false",
    f"K\x01v\x02X{WAIT}",
    "DELAY\x013",
    "XDELAY\x013",
    "TRAN_MSG\x01true\x02PGROUP\x01GID_p",
    "TRAN_MSG\x01true",
    "TIMER_DELAY_SEC\x0130",
    "__CRC32#\x010123456789\x02",
    "n\x01" + "v" * 32_650,
    "n\x01" + "v" * 32_750,
)


KEYS = Credentials(access_key="producer", secret_key="secret-of-the-producer")
ACCOUNT = {"accessKey": KEYS.access_key, "secretKey": KEYS.secret_key, "admin": "true"}


def make_frame(text: str, opaque: int, body: bytes | None = b"body", **fields: Any) -> bytes:
    extra = {name: value for name, value in fields.items() if len(name) == 1}
    values = {
        "a": "GID_p",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": str(opaque % 4),
        "f": "0",
        "g": "1700000000000",
        "h": str(opaque),
        "i": text,
        "j": "3",
        "k": "false",
        "m": "false",
    }
    return encode_frame(
        RemotingCommand(
            code=fields.get("code", RequestCode.SEND_MESSAGE_V2),
            flag=fields.get("flag", 0),
            ext_fields=values | extra,
            body=body,
            opaque=opaque,
        )
    )


def serve(rig: Any, connection: Any, frame: bytes) -> list[Output]:
    (command,) = FrameDecoder(decode=decode_request).receive_data(frame)
    outputs: list[Output] = rig.handle(connection, command)
    return outputs


def frames_of(outputs: Sequence[Output]) -> list[bytes]:
    return [
        output.head if isinstance(output, Written) else encode_frame(output.command)
        for output in outputs
        if isinstance(output, Written | Reply)
    ]


def written_anew(outputs: Sequence[Output]) -> list[bytes]:
    return [
        encode_frame(output.command) for output in outputs if isinstance(output, Written | Reply)
    ]


def refuse(*_: object, **__: object) -> None:
    """Take no message as plain, as a store whose file is full."""


def pair(make_rig: Callable[..., Any], **settings: Any) -> list[tuple[Any, Any]]:
    rigs = []
    for _ in range(2):
        rig = make_rig(**settings)
        rig.create_topic("T", 4)
        rig.broker.state.topics.put(
            TopicConfig(
                topic_name="MULTI", write_queue_nums=4, read_queue_nums=4,
                topic_filter_type="MULTI_TAG",
            ),
            timestamp_ms=1,
        )  # fmt: skip
        rig.create_topic("READ", 4, perm=4)
        connection = rig.connect(5_000)
        # A queue's first message is not plain.
        for queue_id in range(4):
            serve(rig, connection, make_frame("", queue_id))
        rigs.append((rig, connection))
    rigs[1][0].store.append_plain = refuse
    return rigs


def log_of(rig: Any) -> bytes:
    data: bytes = rig.store._log.read(0, rig.store._log.end)
    return data


def entries_of(rig: Any) -> dict[Any, bytes]:
    return {key: queue.read(0, 10_000) for key, queue in rig.store.queues.by_key.items()}


CASES: list[dict[str, Any]] = [
    *[{"text": text} for text in PLAIN_TEXTS + OTHER_TEXTS],
    *[{"text": "K\x01v", **fields} for fields in ({"f": "2"}, {"f": "1"})],
    {"text": "K\x01v", "body": b"b" * 100_000},
    *[
        {"text": "K\x01v", **fields}
        for fields in (
            {"e": "-1"},
            {"e": "4"},
            {"f": "4"},
            {"f": "8"},
            {"b": "MULTI"},
            {"b": "READ"},
            {"b": "unknown", "c": "nothing"},
            {"b": "new"},
            {"b": SCHEDULE_TOPIC},
            {"b": retry_topic("GID_c"), "j": "20"},
            {"body": None},
            {"body": b"b" * 5_000_000},
            {"flag": ONEWAY_FLAG},
            {"m": "true"},
            {"code": RequestCode.SEND_BATCH_MESSAGE, "m": "true"},
        )
    ],
]


def make_case(case: dict[str, Any], opaque: int) -> bytes:
    fields = {name: value for name, value in case.items() if name != "text"}
    return make_frame(case["text"], opaque, **fields)


@pytest.mark.parametrize("flush", FlushMode)
def test_plain_messages_are_stored_and_answered_as_records(
    make_rig: Callable[..., Any], flush: FlushMode
) -> None:
    (plain, plain_peer), (other, other_peer) = pair(make_rig, flush=flush)
    wrong = []
    for opaque, case in enumerate(CASES, 4):
        frame = make_case(case, opaque)

        outputs = serve(plain, plain_peer, frame)
        expected = serve(other, other_peer, frame)

        if not frames_of(outputs) == frames_of(expected) == written_anew(expected):
            wrong.append((str(case)[:80], frames_of(expected), frames_of(outputs)))

    assert wrong == []
    assert log_of(plain) == log_of(other)
    assert entries_of(plain) == entries_of(other)
    counters = (plain.broker.state.counters, other.broker.state.counters)
    assert counters[0].puts == counters[1].puts
    assert counters[0].put_bytes == counters[1].put_bytes


def test_plain_texts_make_no_record(make_rig: Callable[..., Any]) -> None:
    (rig, peer), _ = pair(make_rig)
    rig.store.append = None

    for opaque, text in enumerate(PLAIN_TEXTS, 4):
        (answer,) = serve(rig, peer, make_frame(text, opaque))
        assert isinstance(answer, Written)
        assert answer.command.code == ResponseCode.SUCCESS


def test_signed_sends_are_stored_and_answered_alike(make_rig: Callable[..., Any]) -> None:
    (signed, signed_peer), (other, other_peer) = pair(make_rig)
    signed.broker.state.access = AccessControl({"accounts": [ACCOUNT]}, lambda _: None)
    wrong = []
    for opaque, case in enumerate(CASES, 4):
        frame = make_case(case, opaque)
        (command,) = FrameDecoder().receive_data(frame)

        outputs = serve(signed, signed_peer, encode_frame(sign(command, KEYS)))
        expected = serve(other, other_peer, frame)

        if frames_of(outputs) != frames_of(expected):
            wrong.append((str(case)[:80], frames_of(expected), frames_of(outputs)))

    assert wrong == []
    assert log_of(signed) == log_of(other)
    assert entries_of(signed) == entries_of(other)


def test_sends_with_a_binary_header_are_answered_in_kind(make_rig: Callable[..., Any]) -> None:
    (rig, peer), _ = pair(make_rig)
    (command,) = FrameDecoder().receive_data(make_frame("", 5))
    command.serialize_type = SerializeType.ROCKETMQ

    (answer,) = serve(rig, peer, encode_frame(command))

    assert isinstance(answer, Reply)
    assert answer.command.serialize_type is SerializeType.ROCKETMQ
    assert (answer.command.ext_fields or {})["queueOffset"] == "1"


def test_what_may_not_be_sent_is_refused(make_rig: Callable[..., Any]) -> None:
    (rig, peer), _ = pair(make_rig)
    reader = {**ACCOUNT, "admin": "false", "topicPerms": ["T=SUB"]}
    rig.broker.state.access = AccessControl({"accounts": [reader]}, lambda _: None)
    end = rig.store.appended_position
    for credentials in (
        KEYS,
        Credentials(access_key=KEYS.access_key, secret_key="another-secret"),
        None,
    ):
        (command,) = FrameDecoder().receive_data(make_frame("", 5))
        if credentials is not None:
            command = sign(command, credentials)
        refused = serve(rig, peer, encode_frame(command))[0]

        assert isinstance(refused, Reply)
        assert refused.command.code == ResponseCode.SYSTEM_ERROR
    assert end == rig.store.appended_position


def test_plain_sends_follow_changes_of_the_topic(make_rig: Callable[..., Any]) -> None:
    (rig, peer), _ = pair(make_rig)
    (taken,) = serve(rig, peer, make_frame("", 5))
    assert isinstance(taken, Written)

    rig.create_topic("T", 4, perm=4)
    (refused,) = serve(rig, peer, make_frame("", 6))

    assert isinstance(refused, Reply)
    assert refused.command.code == ResponseCode.NO_PERMISSION


def test_message_that_begins_a_file_is_a_record(make_rig: Callable[..., Any]) -> None:
    (plain, plain_peer), (other, other_peer) = pair(make_rig)
    for opaque in range(5, 30):
        frame = make_frame("K\x01v", opaque, b"b" * 99_000)
        expected = frames_of(serve(other, other_peer, frame))
        assert frames_of(serve(plain, plain_peer, frame)) == expected

    assert len(plain.store._log.files.bases) == 3
    assert entries_of(plain) == entries_of(other)


def test_what_the_disk_does_not_flush_is_answered_with_its_place(
    make_rig: Callable[..., Any],
) -> None:
    (rig, peer), _ = pair(make_rig, flush=FlushMode.SYNC)
    rig.holds_work = True
    assert serve(rig, peer, make_frame("", 5)) == []

    (late,) = rig.broker.tick(now_ms=rig.now_ms + 6_000, timestamp_ms=rig.timestamp_ms)

    assert isinstance(late, Reply)
    assert late.command.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert (late.command.ext_fields or {})["queueOffset"] == "1"
    assert late.command.opaque == 5
