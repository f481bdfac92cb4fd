from __future__ import annotations

import errno
import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from sparrowmq.broker import transaction_checks
from sparrowmq.broker.transaction_checks import (
    ENDED_PER_STEP,
    OPS_PER_STEP,
    TRANSACTION_GROUP,
    UNENDED_PER_STEP,
)
from sparrowmq.model.names import (
    SCHEDULE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import TRANSACTION_TYPE, Record, decode_record, encode_record
from sparrowmq.protocol.signatures import ACCESS_KEY
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Fact, Output, Push
from sparrowmq.store.config import FlushMode
from sparrowmq.store.file_storage import FileStorageFile
from sparrowmq.store.retention import HOUR_MS, RetentionConfig

NONE, COMMIT, ROLLBACK = 0, 8, 12
GROUP = "GID_p"
TIMEOUT_MS, INTERVAL_MS, CHECK_MAX = 1_000, 2_000, 3
# A tick begins the first interval, a round takes one, and its questions come with the next.
ROUND_MS = INTERVAL_MS + 300
HALF = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}"


@pytest.fixture
def rig(make_rig: Callable[..., Any]) -> Any:
    rig = make_rig(
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_check_interval_ms=INTERVAL_MS,
        transaction_check_max=CHECK_MAX,
    )
    rig.create_topic("T", 4)
    rig.outputs.clear()
    return rig


def send_half(
    rig: Any, *, topic: str = "T", key: str = "K", extra: str = "", clock_ms: int = 0
) -> dict[str, str]:
    """Send a half message, whose producer's clock is so far ahead; returns what ends it."""
    properties = f"UNIQ_KEY\x01{key}\x02{HALF}{extra}"
    reply = rig.send(
        rig.connect(), topic, key.encode(), queue_id=2, properties=properties, f="4",
        g=str(rig.timestamp_ms + clock_ms),
    )  # fmt: skip
    assert reply.code == 0, reply.remark
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": reply.ext_fields["queueOffset"],
        "commitLogOffset": str(decode_offset_msg_id(reply.ext_fields["msgId"])[1]),
        "msgId": key,
        "transactionId": key,
    }


def end(rig: Any, half: dict[str, str], outcome: int, **fields: str) -> RemotingCommand:
    fields = {**half, "commitOrRollback": str(outcome), **fields}
    reply: RemotingCommand = rig.call(rig.connect(), RequestCode.END_TRANSACTION, fields)
    return reply


def join(rig: Any, group: str = GROUP, access_key: str = "") -> Any:
    """Connect a producer of a group."""
    connection = rig.connect()
    body = {"clientID": f"p{connection.number}", "producerDataSet": [{"groupName": group}]}
    signed = {ACCESS_KEY: access_key}
    reply = rig.call(connection, RequestCode.HEART_BEAT, signed, json.dumps(body).encode())
    assert reply.code == 0, reply.remark
    return connection


def questions(outputs: list[Output]) -> list[Push]:
    return [
        output
        for output in outputs
        if isinstance(output, Push) and output.command.code == RequestCode.CHECK_TRANSACTION_STATE
    ]


def asked(outputs: list[Output]) -> list[str]:
    return [str((push.command.ext_fields or {})["msgId"]) for push in questions(outputs)]


def answer(rig: Any, question: Push, outcome: int) -> RemotingCommand:
    """End a transaction as a producer does that was asked."""
    fields = question.command.ext_fields or {}
    return end(rig, {**fields, "producerGroup": GROUP}, outcome, fromTransactionCheck="true")


def have_no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on this disk")


def bodies(rig: Any, topic: str = "T", queue_id: int = 2) -> list[bytes]:
    return [record.body for record in rig.records(topic, queue_id)]


def properties_of(record: Record) -> dict[str, str]:
    found = parse_properties(record.properties)
    del found["__CRC32#"]
    return found


def test_producers_that_may_not_send_to_the_topic_are_not_asked(rig: Any) -> None:
    sender, _ = join(rig, access_key="sender-key"), join(rig, access_key="other-key")
    for key in "abcd":
        send_half(rig, key=key)
    accounts = [
        {"accessKey": "sender-key", "secretKey": "12345678", "topicPerms": ["T=PUB"]},
        {"accessKey": "other-key", "secretKey": "12345678", "topicPerms": ["T=SUB"]},
    ]
    rig.broker.state.access = AccessControl({"accounts": accounts}, lambda _: None)
    outputs = rig.advance(2 * ROUND_MS)

    assert len(questions(outputs)) == 8
    assert {push.connection for push in questions(outputs)} == {sender}
    rig.broker.state.access.replace({"accounts": accounts[1:]})
    assert questions(rig.advance(ROUND_MS)) == []


def test_half_message_waits_where_rocketmq_keeps_it(rig: Any) -> None:
    reply = rig.send(rig.connect(), queue_id=2, properties=f"{HALF}\x02TAGS\x01A", f="4")

    assert rig.records("T", 2) == []
    assert (reply.ext_fields["queueId"], reply.ext_fields["queueOffset"]) == ("2", "0")
    (half,) = rig.records(TRANS_HALF_TOPIC)
    assert half.sys_flag & TRANSACTION_TYPE == 0
    assert properties_of(half) == {
        "TRAN_MSG": "true",
        "PGROUP": GROUP,
        "TAGS": "A",
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
        "MSG_REGION": "DefaultRegion",
        "CLUSTER": "DefaultCluster",
    }


def test_commit_stores_the_message_where_it_belongs_and_notes_its_end(rig: Any) -> None:
    send_half(rig, key="first")
    half = send_half(rig, key="second", extra="\x02TAGS\x01A")

    reply = end(rig, half, COMMIT)

    assert reply.code == 0, reply.remark
    (record,) = rig.records("T", 2)
    assert (record.body, record.sys_flag & TRANSACTION_TYPE) == (b"second", COMMIT)
    assert half["commitLogOffset"] == str(record.prepared_transaction_position)
    origin = {"MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster"}
    # As RocketMQ: by TRAN_MSG Java's consumers give the message its transaction's id.
    waited = {"TRAN_MSG": "true", "REAL_TOPIC": "T", "REAL_QID": "2"}
    expected = {"UNIQ_KEY": "second", "PGROUP": GROUP, "TAGS": "A", **origin, **waited}
    assert properties_of(record) == expected
    (op,) = rig.records(TRANS_OP_HALF_TOPIC)
    assert (op.body, op.queue_id, properties_of(op)) == (b"1", 0, {"TAGS": "d"})


def test_rollback_notes_the_end_alone(rig: Any) -> None:
    half = send_half(rig)

    reply = end(rig, half, ROLLBACK)

    assert reply.code == 0, reply.remark
    assert rig.records("T", 2) == []
    assert bodies(rig, TRANS_OP_HALF_TOPIC, 0) == [b"0"]


@pytest.mark.parametrize(("attempts", "topic"), [("1", SCHEDULE_TOPIC), ("16", "%DLQ%GID_c")])
def test_committed_message_that_an_old_client_retries_is_not_half(
    rig: Any, attempts: str, topic: str
) -> None:
    """Java's clients before 4.6.1 send it again with all properties when it has failed in order."""
    rig.create_topic("%RETRY%GID_c", 1)
    assert end(rig, send_half(rig), COMMIT).code == 0
    (committed,) = rig.records("T", 2)
    properties = committed.properties + "DELAY\x014"

    reply = rig.send(
        rig.connect(), "%RETRY%GID_c", b"again", properties=properties, j=attempts, l="16"
    )

    assert reply.code == 0, reply.remark
    assert [record.body for record in rig.records(topic, 3 if topic == SCHEDULE_TOPIC else 0)] == [
        b"again"
    ]
    assert len(rig.records(TRANS_HALF_TOPIC)) == 1


def test_unknown_outcome_leaves_the_message_half(rig: Any) -> None:
    half = send_half(rig)

    assert end(rig, half, NONE).code == 0
    assert rig.records(TRANS_OP_HALF_TOPIC) == []


def test_one_way_end_is_not_answered(rig: Any) -> None:
    fields = {**send_half(rig), "commitOrRollback": str(COMMIT)}
    command = RemotingCommand(code=RequestCode.END_TRANSACTION, ext_fields=fields, flag=ONEWAY_FLAG)

    outputs = rig.handle(rig.connect(), command)

    assert rig.replies(outputs) == []
    assert bodies(rig) == [b"K"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"producerGroup": "GID_other"}, "The producer group wrong"),
        ({"tranStateTableOffset": "1"}, "The transaction state table offset wrong"),
        ({"msgId": "other"}, "The message id wrong"),
        ({"commitLogOffset": "7"}, "Find prepared transaction message failed"),
        ({"commitLogOffset": "-1"}, "Find prepared transaction message failed"),
        ({"commitOrRollback": "4"}, "commitOrRollback field wrong: 4"),
    ],
)
def test_end_that_fits_no_half_message_is_refused(
    rig: Any, fields: dict[str, str], words: str
) -> None:
    half = send_half(rig)

    reply = end(rig, half, COMMIT, **fields)

    assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, words)
    assert rig.records("T", 2) == []


def test_a_committed_message_is_none_to_commit(rig: Any) -> None:
    end(rig, send_half(rig), COMMIT)
    (record,) = rig.records("T", 2)

    fields = {"commitLogOffset": str(record.position), "tranStateTableOffset": "0"}
    reply = end(rig, {"producerGroup": GROUP, "msgId": "K"}, COMMIT, **fields)

    assert reply.remark == "Find prepared transaction message failed"
    assert bodies(rig) == [b"K"]


def test_a_second_commit_is_answered_and_stores_nothing(rig: Any) -> None:
    half = send_half(rig)

    codes = [end(rig, half, COMMIT).code for _ in range(2)]

    assert codes == [0, 0]
    assert bodies(rig) == [b"K"]


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_commit_that_crosses_the_answer_to_a_question_stores_nothing(
    rig: Any, *, answers_first: bool
) -> None:
    join(rig)
    half = send_half(rig)
    (question,) = questions(rig.advance(ROUND_MS))

    ends: list[Callable[[], RemotingCommand]] = [
        lambda: answer(rig, question, COMMIT),
        lambda: end(rig, half, COMMIT),
    ]
    if not answers_first:
        ends.reverse()
    codes = [each().code for each in ends]

    assert codes == [0, 0]
    assert bodies(rig) == [b"K"]
    # Each copy has its end, as RocketMQ's brokers need it.
    assert set(bodies(rig, TRANS_OP_HALF_TOPIC, 0)) == {b"0", b"1"}
    assert asked(rig.advance(3 * INTERVAL_MS)) == []


def test_a_commit_that_was_not_written_is_none(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    half = send_half(rig)
    with monkeypatch.context() as full:
        full.setattr(FileStorageFile, "write", have_no_space)
        lost = end(rig, half, COMMIT)
    before = bodies(rig)

    again = end(rig, half, COMMIT)

    assert (lost.code, before) == (ResponseCode.SERVICE_NOT_AVAILABLE, [])
    assert (again.code, bodies(rig)) == (0, [b"K"])


def test_only_the_latest_commits_are_remembered(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "COMMITTED_MAX", 2)
    halves = [send_half(rig, key=key) for key in "abc"]

    for half in (*halves, halves[2], halves[1], halves[0]):
        assert end(rig, half, COMMIT).code == 0

    assert bodies(rig) == [b"a", b"b", b"c", b"a"]


def test_a_record_within_a_body_is_no_half_message(rig: Any) -> None:
    half = send_half(rig)
    properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "REAL_TOPIC": "T", "REAL_QID": "2"}
    forged = Record(
        topic=TRANS_HALF_TOPIC,
        queue_id=0,
        body=b"forged",
        properties=encode_properties(properties),
        queue_offset=int(half["tranStateTableOffset"]),
        # Behind the head of the message that carries it.
        position=rig.store.appended_position + 88,
    )
    assert rig.send(rig.connect(), "T", encode_record(forged)).code == 0
    assert encode_record(forged) == rig.store.records.read(forged.position)

    reply = end(rig, half, ROLLBACK, commitLogOffset=str(forged.position))

    assert reply.remark == "Find prepared transaction message failed"
    assert rig.records(TRANS_OP_HALF_TOPIC) == []


def test_the_end_of_a_copy_of_an_asked_message_is_not_that_of_another(rig: Any) -> None:
    join(rig)
    other = send_half(rig, key="other")["tranStateTableOffset"]
    copied = send_half(rig, key="copy", extra=f"\x02TRAN_PREPARED_QUEUE_OFFSET\x01{other}")

    assert end(rig, copied, ROLLBACK).code == 0

    assert asked(rig.advance(ROUND_MS)) == ["other"]


def test_half_message_of_no_group_is_refused(rig: Any) -> None:
    reply = rig.send(rig.connect(), properties="TRAN_MSG\x01true", f="4")

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert "PGROUP" in reply.remark
    assert rig.store.appended_position == 0


def test_delay_of_a_half_message_begins_with_its_commit(rig: Any) -> None:
    half = send_half(rig, extra="\x02DELAY\x011")
    rig.advance(1_500)

    end(rig, half, COMMIT)
    early = bodies(rig)
    waiting = bodies(rig, SCHEDULE_TOPIC, 0)
    rig.advance(1_200)

    assert (early, waiting) == ([], [b"K"])
    assert bodies(rig) == [b"K"]
    (record,) = rig.records("T", 2)
    assert "TRAN_MSG" not in parse_properties(record.properties), "as from RocketMQ"


def test_commit_into_a_topic_that_is_gone_leaves_the_message_half(rig: Any) -> None:
    half = send_half(rig)
    rig.call(rig.connect(), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})

    reply = end(rig, half, COMMIT)

    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert rig.records(TRANS_OP_HALF_TOPIC) == []


def test_commit_for_a_queue_that_the_topic_has_no_more_comes_where_it_is_read(rig: Any) -> None:
    half = send_half(rig)
    rig.create_topic("T", 2)

    assert end(rig, half, COMMIT).code == 0

    assert (bodies(rig, queue_id=0), bodies(rig, queue_id=2)) == ([b"K"], [])


def test_producer_of_the_group_is_asked_and_its_outcome_counts(rig: Any) -> None:
    producer = join(rig)
    join(rig, "GID_other")
    half = send_half(rig, key="unknown", extra="\x02TAGS\x01A")

    (question,) = questions(rig.advance(ROUND_MS))

    command = question.command
    assert producer is question.connection
    assert command.flag & ONEWAY_FLAG
    fields = command.ext_fields or {}
    assert (
        fields["msgId"], fields["transactionId"], fields["tranStateTableOffset"]
    ) == ("unknown", "unknown", "1")  # fmt: skip
    assert decode_offset_msg_id(fields["offsetMsgId"])[1] == int(fields["commitLogOffset"])
    assert int(half["commitLogOffset"]) < int(fields["commitLogOffset"])
    shown = decode_record(command.body or b"")
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 2, b"unknown")
    assert parse_properties(shown.properties)["TAGS"] == "A"

    assert answer(rig, question, COMMIT).code == 0
    assert bodies(rig) == [b"unknown"]
    assert asked(rig.advance(3 * INTERVAL_MS)) == []


def test_what_was_ended_or_is_fresh_is_not_asked_for(rig: Any) -> None:
    join(rig)
    end(rig, send_half(rig, key="committed"), COMMIT)
    end(rig, send_half(rig, key="rolled back"), ROLLBACK)
    rig.advance(INTERVAL_MS - TIMEOUT_MS + 100)
    send_half(rig, key="fresh")

    assert asked(rig.advance(TIMEOUT_MS)) == []
    assert asked(rig.advance(INTERVAL_MS)) == ["fresh"]


def test_the_answer_to_an_older_question_ends_the_later_copies_too(rig: Any) -> None:
    join(rig)
    send_half(rig)
    (older,) = questions(rig.advance(ROUND_MS))
    assert asked(rig.advance(INTERVAL_MS)) == ["K"]

    assert answer(rig, older, ROLLBACK).code == 0

    assert asked(rig.advance(2 * INTERVAL_MS)) == []


def test_producers_of_a_group_are_asked_in_turn(rig: Any) -> None:
    producers = {join(rig), join(rig)}
    send_half(rig, key="1")
    send_half(rig, key="2")

    assert producers == {q.connection for q in questions(rig.advance(ROUND_MS))}


def test_after_the_last_question_the_message_is_put_away_and_may_be_resumed(rig: Any) -> None:
    join(rig)
    send_half(rig)
    questions_asked = questions(rig.advance(6 * INTERVAL_MS))

    assert len(questions_asked) == CHECK_MAX
    (away,) = rig.records(TRANS_CHECK_MAX_TIME_TOPIC)
    assert away.body == b"K"
    assert str(CHECK_MAX) == properties_of(away)["TRANSACTION_CHECK_TIMES"]
    (fact,) = [output for output in rig.outputs if isinstance(output, Fact) and output.warning]
    assert "1 half messages were put into TRANS_CHECK_MAX_TIME_TOPIC" in fact.text

    # An end that comes too late is not that of the resumed message.
    answer(rig, questions_asked[-1], ROLLBACK)
    host = away.store_host.hex().upper()
    resumed = rig.call(
        rig.connect(),
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        {"msgId": f"{host}{away.position:016X}"},
    )
    assert resumed.code == 0, resumed.remark
    question, *_ = questions(rig.advance(ROUND_MS))
    answer(rig, question, COMMIT)
    assert bodies(rig) == [b"K"]


def test_only_what_was_put_away_is_resumed(rig: Any) -> None:
    end(rig, send_half(rig), COMMIT)
    (record,) = rig.records("T", 2)

    host = record.store_host.hex().upper()
    reply = rig.call(
        rig.connect(),
        RequestCode.RESUME_CHECK_HALF_MESSAGE,
        {"msgId": f"{host}{record.position:016X}"},
    )

    assert (reply.code, reply.remark) == (1, "Find prepared transaction message failed")


def test_messages_of_producers_that_are_gone_are_put_away_too(rig: Any) -> None:
    send_half(rig)

    rig.advance((CHECK_MAX + 2) * INTERVAL_MS)

    assert bodies(rig, TRANS_CHECK_MAX_TIME_TOPIC, 0) == [b"K"]


@pytest.mark.parametrize(
    ("retention_hours", "age_hours", "is_asked"),
    [(None, 71, True), (None, 73, False), (240, 239, True), (240, 241, False), (0, 9_999, True)],
)
def test_a_message_older_than_others_are_kept_is_asked_for_no_more(
    make_rig: Callable[..., Any], retention_hours: int | None, age_hours: int, *, is_asked: bool
) -> None:
    rig = make_rig(
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_check_interval_ms=INTERVAL_MS,
        retention=RetentionConfig(
            retention_hours=retention_hours,
            disk_expire_percent=100,
            disk_force_percent=100,
            disk_full_percent=100,
        ),
    )
    rig.create_topic("T", 4)
    join(rig)
    send_half(rig)
    rig.outputs.clear()
    rig.timestamp_ms += age_hours * 3_600_000

    assert is_asked is bool(asked(rig.advance(ROUND_MS)))
    assert ([] if is_asked else [b"K"]) == bodies(rig, TRANS_CHECK_MAX_TIME_TOPIC, 0)


@pytest.mark.parametrize("days", [-365, 0, 1])
def test_a_message_s_age_does_not_depend_on_its_producer_s_clock(rig: Any, days: int) -> None:
    rig.advance(INTERVAL_MS // 2)
    join(rig)
    send_half(rig, clock_ms=days * 24 * HOUR_MS)

    first = rig.advance(TIMEOUT_MS - 1)
    rest = rig.advance(2 * INTERVAL_MS)

    assert (asked(first), asked(rest)[:1]) == ([], ["K"])
    assert bodies(rig, TRANS_CHECK_MAX_TIME_TOPIC, 0) == []


def test_a_clock_that_is_set_back_delays_no_question(rig: Any) -> None:
    join(rig)
    send_half(rig)
    rig.timestamp_ms -= HOUR_MS

    assert asked(rig.advance(ROUND_MS)) == ["K"]


IMMUNE = "\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x017"


def test_a_producer_s_own_time_is_waited_for_and_holds_nobody_up(rig: Any) -> None:
    join(rig)
    send_half(rig, key="slow", extra=IMMUNE)
    send_half(rig, key="unknown")

    assert asked(rig.advance(ROUND_MS)) == ["unknown"]
    assert "slow" not in asked(rig.advance(2 * INTERVAL_MS))
    assert "slow" in asked(rig.advance(2 * INTERVAL_MS))
    # As it was sent, and then asked for.
    assert check_times(rig, b"slow")[:2] == [None, "1"]


def check_times(rig: Any, body: bytes) -> list[str | None]:
    """Return how often each stored copy of a half message says that its producer was asked."""
    copies = [record for record in rig.records(TRANS_HALF_TOPIC) if record.body == body]
    return [properties_of(record).get("TRANSACTION_CHECK_TIMES") for record in copies]


def test_rounds_over_a_message_that_waits_repeat_nothing_that_they_decided(
    make_rig: Callable[..., Any],
) -> None:
    """Its producer's own time is days; behind it, others are asked, discarded, and ended."""
    rig = make_rig(
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_check_interval_ms=INTERVAL_MS,
        transaction_check_max=2,
    )
    rig.create_topic("T", 4)
    join(rig)
    send_half(rig, key="slow", extra=IMMUNE.replace("7", "200000"))
    send_half(rig, key="unknown")
    half = send_half(rig, key="ended")

    outputs = rig.advance(ROUND_MS)
    end(rig, half, COMMIT)
    outputs += rig.advance(20 * INTERVAL_MS)

    assert asked(outputs).count("slow") == 0
    assert asked(outputs).count("unknown") == 2
    assert check_times(rig, b"slow") == [None]
    assert check_times(rig, b"unknown") == [None, "1", "2"]
    assert bodies(rig, TRANS_CHECK_MAX_TIME_TOPIC, 0) == [b"unknown"]
    assert bodies(rig) == [b"ended"]


def test_a_message_that_waits_is_appended_again_once_many_are_behind_it(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "WAITING_SPAN", 3)
    send_half(rig, key="slow", extra=IMMUNE.replace("7", "200000"))
    rig.advance(5 * INTERVAL_MS)
    before = check_times(rig, b"slow")
    for key in "abcd":
        end(rig, send_half(rig, key=key), COMMIT)
    rig.advance(5 * INTERVAL_MS)

    assert before == [None]
    assert check_times(rig, b"slow") == [None, None]
    assert rig.broker.state.offsets.find(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 5


def test_a_message_that_is_appended_again_waits_for_no_more_than_its_producer_s_own_time(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "WAITING_SPAN", 0)
    join(rig)
    send_half(rig, key="slow", extra=IMMUNE)

    outputs = rig.advance(5 * INTERVAL_MS)

    assert "slow" in asked(outputs)
    assert check_times(rig, b"slow")[:3] == [None] * 3


def test_a_step_reads_few_bytes(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_checks, "UNENDED_BYTES_PER_STEP", 1_000)
    for key in range(40):
        send_half(rig, key=f"{key}")
    half_end = rig.store.queues.max_offset(TRANS_HALF_TOPIC, 0)
    ends: list[int] = []
    for _ in range(ROUND_MS // 100 + 20):
        rig.advance(100)
        ends.append(rig.store.queues.max_offset(TRANS_HALF_TOPIC, 0))

    grown = [after - before for before, after in pairwise([half_end, *ends])]
    assert sum(grown) >= 40
    assert max(grown) <= 5


@pytest.mark.parametrize(("hours", "is_asked"), [(0, True), (48, False)])
def test_a_producer_s_own_time_has_a_bound(
    make_rig: Callable[..., Any], hours: int, is_asked: bool
) -> None:
    """No longer than messages are kept, and three days where they are kept without a bound."""
    rig = make_rig(
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_check_interval_ms=INTERVAL_MS,
        retention=RetentionConfig(retention_hours=hours, disk_full_percent=100),
    )
    rig.create_topic("T")
    join(rig)
    send_half(rig, key="endless", extra=IMMUNE.replace("7", "1000000000"))
    before = asked(rig.advance(ROUND_MS))
    rig.timestamp_ms += 72 * HOUR_MS

    after = asked(rig.advance(ROUND_MS))

    assert before == []
    assert ("endless" in after) is is_asked
    discarded = [record.body for record in rig.records(TRANS_CHECK_MAX_TIME_TOPIC)]
    assert discarded == ([] if is_asked else [b"endless"])


@pytest.mark.parametrize("restarts", [False, True])
def test_an_end_that_comes_within_the_producer_s_own_time_counts(rig: Any, restarts: bool) -> None:
    half = send_half(rig, key="slow", extra=IMMUNE)
    rig.advance(ROUND_MS)
    end(rig, half, COMMIT)
    if restarts:
        rig = rig.restart()
    join(rig)

    assert asked(rig.advance(6 * INTERVAL_MS)) == []
    assert bodies(rig) == [b"slow"]
    if restarts:
        rig.store.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_an_end_that_is_read_before_the_later_copy_counts(
    make_rig: Callable[..., Any], restarts: bool
) -> None:
    rig = make_rig(transaction_timeout_ms=6_000, transaction_check_interval_ms=INTERVAL_MS)
    rig.create_topic("T", 4)
    join(rig)
    half = send_half(rig, key="ended")
    rig.advance(5_000)
    send_half(rig, key="fresh")
    assert asked(rig.advance(1_500)) == ["ended"]
    end(rig, half, ROLLBACK)
    if restarts:
        rig = rig.restart()
        join(rig)

    # Two rounds read the end, and do not come to the copy, which is behind the fresh message.
    assert asked(rig.advance(4_500)) == []
    assert asked(rig.advance(3_000)) == ["fresh"]
    if restarts:
        rig.store.close()


def test_questions_that_wait_for_the_disk_are_bounded(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_checks, "UNENDED_PER_STEP", 1)
    monkeypatch.setattr(transaction_checks, "TO_ASK_MAX", 2)
    for key in "abcd":
        send_half(rig, key=key)
    rig.advance(100)
    hold_a_round(rig)
    rig.holds_work = False
    rig.work()

    assert len(rig.records(TRANS_HALF_TOPIC)) == 4 + 2


def test_a_message_with_no_room_for_its_times_is_put_away(rig: Any) -> None:
    join(rig)
    used = len(rig.config.region) + len(rig.config.cluster_name) + 110
    send_half(rig, extra=f"\x02p\x01{'v' * (32_767 - used - 20)}")

    assert asked(rig.advance(ROUND_MS)) == []
    assert bodies(rig, TRANS_CHECK_MAX_TIME_TOPIC, 0) == [b"K"]


def test_restart_goes_on_where_the_last_round_ended(rig: Any) -> None:
    producer = join(rig)
    first = send_half(rig, key="before")
    end(rig, send_half(rig, key="committed"), COMMIT)
    assert asked(rig.advance(ROUND_MS)) == ["before"]
    late = send_half(rig, key="late")

    again = rig.restart()
    join(again)
    end(again, late, COMMIT)
    (question,) = questions(again.advance(ROUND_MS))
    answer(again, question, ROLLBACK)
    again.advance(2 * INTERVAL_MS)

    assert producer is not question.connection
    assert first["tranStateTableOffset"] != (question.command.ext_fields or {})["msgId"]
    assert (question.command.ext_fields or {})["msgId"] == "before"
    assert bodies(again) == [b"committed", b"late"]
    offsets = again.broker.state.offsets
    ends = [
        again.store.queues.max_offset(topic, 0) for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
    ]
    assert ends == [
        offsets.find(TRANSACTION_GROUP, topic, 0)
        for topic in (TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC)
    ]
    again.store.close()


def test_message_that_a_full_disk_does_not_put_away_is_put_away_later(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_half(rig)
    rig.advance(CHECK_MAX * INTERVAL_MS + 500)
    with monkeypatch.context() as full:
        full.setattr(FileStorageFile, "write", have_no_space)
        rig.advance(2 * INTERVAL_MS)
    before = bodies(rig, TRANS_CHECK_MAX_TIME_TOPIC, 0)
    rig.advance(2 * ROUND_MS)

    assert (before, bodies(rig, TRANS_CHECK_MAX_TIME_TOPIC, 0)) == ([], [b"K"])


def hold_a_round(rig: Any) -> None:
    """Let a round decide on everything; what it has written is not on the disk yet."""
    rig.holds_work = True
    for _ in range(INTERVAL_MS // 100 + 5):
        rig.now_ms += 100
        rig.timestamp_ms += 100
        rig.outputs += rig.broker.tick(now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
        rig.outputs += rig.broker.settle(now_ms=rig.now_ms)


def test_a_message_that_ends_before_its_question_is_not_asked_for(rig: Any) -> None:
    join(rig)
    ending = {**send_half(rig), "commitOrRollback": str(COMMIT)}
    hold_a_round(rig)
    request = RemotingCommand(code=RequestCode.END_TRANSACTION, ext_fields=ending)
    rig.handle(rig.connect(), request)

    rig.holds_work = False
    rig.work()

    assert asked(rig.advance(ROUND_MS)) == []


def test_a_round_commits_nothing_before_what_it_wrote_is_on_the_disk(rig: Any) -> None:
    join(rig)
    send_half(rig)
    hold_a_round(rig)
    before = rig.broker.state.offsets.find(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0)
    held = asked(rig.outputs)

    rig.holds_work = False
    rig.work()

    assert (before, held) == (None, [])
    assert asked(rig.advance(100)) == ["K"]
    assert rig.broker.state.offsets.find(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0) == 1


def test_offsets_beyond_a_shortened_topic_hide_nothing(rig: Any) -> None:
    join(rig)
    rig.broker.state.offsets.commit(TRANSACTION_GROUP, TRANS_HALF_TOPIC, 0, offset=1_000)
    rig.broker.state.offsets.commit(TRANSACTION_GROUP, TRANS_OP_HALF_TOPIC, 0, offset=1_000)
    rig.advance(ROUND_MS)

    send_half(rig)

    assert set(asked(rig.advance(2 * INTERVAL_MS))) == {"K"}


def test_a_round_takes_many_small_steps(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_check_interval_ms=10_000,
        flush=FlushMode.ASYNC,
    )
    rig.create_topic("T", 4)
    join(rig)
    count = 3 * UNENDED_PER_STEP
    for number in range(count):
        send_half(rig, key=str(number))
    steps = [len(asked(rig.advance(100))) for _ in range(120)]

    assert count == sum(steps)
    assert max(steps) <= UNENDED_PER_STEP
    assert sorted(map(str, range(count))) == sorted(asked(rig.outputs))


def test_ends_written_together_are_read_and_each_step_reads_few(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(
        transaction_timeout_ms=TIMEOUT_MS,
        transaction_check_interval_ms=INTERVAL_MS,
        flush=FlushMode.ASYNC,
    )
    rig.create_topic("T", 4)
    join(rig)
    for number in range(6):
        send_half(rig, key=str(number))
    # As 5.x writes them, and with what is not a number.
    for body in (b"0,1,", b"x", b"4,5,"):
        record = Record(topic=TRANS_OP_HALF_TOPIC, queue_id=0, body=body, properties="TAGS\x01d")
        rig.store.put(record, timestamp_ms=rig.timestamp_ms)

    assert set(asked(rig.advance(ROUND_MS))) == {"2", "3"}
    assert ENDED_PER_STEP > OPS_PER_STEP > UNENDED_PER_STEP
