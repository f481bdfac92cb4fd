"""A send that goes the short way is stored and answered as one that goes the long way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sparrowmq.model.names import SCHEDULE_TOPIC, retry_topic
from sparrowmq.protocol.bodies import TopicConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
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


def serve(rig: Any, connection: Any, frame: bytes, *, short: bool) -> list[Output]:
    decoder = FrameDecoder(decode=decode_request) if short else FrameDecoder()
    (command,) = decoder.receive_data(frame)
    outputs: list[Output] = rig.handle(connection, command)
    return outputs


def frames_of(outputs: Sequence[Output]) -> list[bytes]:
    return [
        output.head if isinstance(output, Written) else encode_frame(output.command)
        for output in outputs
        if isinstance(output, Written | Reply)
    ]


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
        # A queue's first message goes the long way.
        for queue_id in range(4):
            serve(rig, connection, make_frame("", queue_id), short=False)
        rigs.append((rig, connection))
    return rigs


def log_of(rig: Any) -> bytes:
    data: bytes = rig.store._log.read(0, rig.store._log.end)
    return data


def entries_of(rig: Any) -> dict[Any, bytes]:
    return {key: queue.read(0, 10_000) for key, queue in rig.store.queues.by_key.items()}


CASES: list[dict[str, Any]] = [
    *[{"text": text, "plain": True} for text in PLAIN_TEXTS],
    *[{"text": text, "plain": False} for text in OTHER_TEXTS],
    *[{"text": "K\x01v", "plain": True, **fields} for fields in ({"f": "2"}, {"f": "1"})],
    {"text": "K\x01v", "plain": True, "body": b"b" * 100_000},
    *[
        {"text": "K\x01v", "plain": False, **fields}
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


@pytest.mark.parametrize("flush", FlushMode)
def test_short_way_stores_and_answers_as_the_long_way(
    make_rig: Callable[..., Any], flush: FlushMode
) -> None:
    (short, short_peer), (long, long_peer) = pair(make_rig, flush=flush)
    wrong = []
    for opaque, case in enumerate(CASES, 4):
        fields = {name: value for name, value in case.items() if name not in ("text", "plain")}
        frame = make_frame(case["text"], opaque, **fields)

        outputs = serve(short, short_peer, frame, short=True)
        expected = frames_of(serve(long, long_peer, frame, short=False))

        is_plain = any(isinstance(output, Written) for output in outputs)
        if is_plain != case["plain"] or expected != frames_of(outputs):
            wrong.append((str(case)[:80], is_plain, expected, frames_of(outputs)))

    assert wrong == []
    assert log_of(long) == log_of(short)
    assert entries_of(long) == entries_of(short)
    counters = (long.broker.state.counters, short.broker.state.counters)
    assert counters[0].puts == counters[1].puts
    assert counters[0].put_bytes == counters[1].put_bytes


def test_signed_sends_go_the_short_way_too(make_rig: Callable[..., Any]) -> None:
    (signed, signed_peer), (long, long_peer) = pair(make_rig)
    signed.broker.state.access = AccessControl({"accounts": [ACCOUNT]}, lambda _: None)
    wrong = []
    for opaque, case in enumerate(CASES, 4):
        fields = {name: value for name, value in case.items() if name not in ("text", "plain")}
        frame = make_frame(case["text"], opaque, **fields)
        (command,) = FrameDecoder().receive_data(frame)
        command = sign(command, KEYS)

        outputs = serve(signed, signed_peer, encode_frame(command), short=True)
        expected = frames_of(serve(long, long_peer, frame, short=False))

        is_plain = any(isinstance(output, Written) for output in outputs)
        if is_plain < case["plain"] or expected != frames_of(outputs):
            wrong.append((str(case)[:80], is_plain, expected, frames_of(outputs)))

    assert wrong == []
    assert log_of(long) == log_of(signed)
    assert entries_of(long) == entries_of(signed)


def test_what_may_not_be_sent_does_not_go_the_short_way(make_rig: Callable[..., Any]) -> None:
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
        refused = serve(rig, peer, encode_frame(command), short=True)[0]

        assert isinstance(refused, Reply)
        assert refused.command.code == ResponseCode.SYSTEM_ERROR
    assert end == rig.store.appended_position


def test_short_way_follows_changes_of_the_topic(make_rig: Callable[..., Any]) -> None:
    (rig, peer), _ = pair(make_rig)
    assert [isinstance(o, Written) for o in serve(rig, peer, make_frame("", 5), short=True)] == [
        True
    ]

    rig.create_topic("T", 4, perm=4)
    (refused,) = serve(rig, peer, make_frame("", 6), short=True)

    assert isinstance(refused, Reply)
    assert refused.command.code == ResponseCode.NO_PERMISSION


def test_short_way_ends_where_a_file_of_the_log_does(make_rig: Callable[..., Any]) -> None:
    (short, short_peer), (long, long_peer) = pair(make_rig)
    for opaque in range(5, 30):
        frame = make_frame("K\x01v", opaque, b"b" * 99_000)
        expected = frames_of(serve(long, long_peer, frame, short=False))
        assert frames_of(serve(short, short_peer, frame, short=True)) == expected

    assert len(short.store._log.files.bases) == 3
    assert entries_of(long) == entries_of(short)


def test_what_the_disk_does_not_flush_is_answered_with_its_place(
    make_rig: Callable[..., Any],
) -> None:
    (rig, peer), _ = pair(make_rig, flush=FlushMode.SYNC)
    rig.holds_work = True
    assert serve(rig, peer, make_frame("", 5), short=True) == []

    (late,) = rig.broker.tick(now_ms=rig.now_ms + 6_000, timestamp_ms=rig.timestamp_ms)

    assert isinstance(late, Reply)
    assert late.command.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert (late.command.ext_fields or {})["queueOffset"] == "1"
    assert late.command.opaque == 5
