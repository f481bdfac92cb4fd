"""Copies of messages that are sent again, and the record of what was."""

from __future__ import annotations

import pytest

from play import Play
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.resend import Edit, Resend, copy_message, find_resends
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageExt
from sparrowmq.model.message import RESERVED_PROPERTIES
from sparrowmq.protocol.bodies import (
    SENT_AGAIN,
    AuditedStats,
    AuditRecord,
    BrokerData,
    ClusterInfo,
    OffsetMove,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

MESSAGE = MessageExt(
    "T",
    b"body",
    {
        "UNIQ_KEY": "U",
        "TAGS": "new",
        "KEYS": "k1 k2",
        "__SHARDINGKEY": "LH-1",
        "REAL_TOPIC": "other",
        "host": "h",
        "why": "w",
    },
    "a",
    3,
    7,
    4_096,
    flag=5,
)


def test_copy_has_all_that_its_user_gave_and_nothing_that_brokers_noted() -> None:
    copy = copy_message(MESSAGE, by="me", timestamp_ms=9)

    assert (copy.topic, copy.body, copy.tags, copy.keys) == ("T", b"body", "new", ("k1", "k2"))
    assert (copy.sharding_key, copy.flag) == ("LH-1", 5)
    marks = {"RESENT_FROM": "T a:3:7", "RESENT_AT": "9", "RESENT_BY": "me"}
    assert copy.properties == {"host": "h", "why": "w", **marks}
    assert "RESENT_BY" not in copy_message(MESSAGE, by="", timestamp_ms=9).properties


def test_edit_changes_what_it_names_and_removes_what_it_empties() -> None:
    assert Edit().apply(MESSAGE) == MESSAGE
    edited = Edit(b"x", "", ("k3",), {"host": "", "added": "a", "why": "v"}).apply(MESSAGE)

    assert (edited.body, edited.tags, edited.keys) == (b"x", None, ("k3",))
    before = {n: v for n, v in MESSAGE.properties.items() if n not in ("TAGS", "KEYS", "host")}
    assert edited.properties == {**before, "KEYS": "k3", "added": "a", "why": "v"}
    with pytest.raises(UsageError, match="reserved"):
        Edit(properties={min(RESERVED_PROPERTIES): "x"}).apply(MESSAGE)


def record(timestamp_ms: int, kind: str, *moves: OffsetMove, detail: str = "") -> AuditRecord:
    return AuditRecord(
        timestamp_ms=timestamp_ms,
        since_timestamp_ms=timestamp_ms,
        kind=kind,
        group="G",
        account="",
        address="10.0.0.1:1",
        detail=detail,
        moves=list(moves),
    )


def test_letter_was_sent_again_when_and_by_whom_its_newest_record_says() -> None:
    records = [
        record(30, SENT_AGAIN, OffsetMove(queue_id=0, before=5, after=6), detail="by me"),
        record(25, "reset", OffsetMove(queue_id=0, before=0, after=9)),
        record(20, SENT_AGAIN, OffsetMove(queue_id=0, before=4, after=6), detail="by you"),
        record(10, SENT_AGAIN, OffsetMove(queue_id=0, before=3, after=5)),
    ]
    brokers = {n: BrokerData(broker_name=n, broker_addrs={0: f"{n}:1"}) for n in "ab"}
    asked: list[str] = []

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return response_to(request, body=encode_body(ClusterInfo(broker_addr_table=brokers)))
        asked.append(address)
        return response_to(request, body=encode_body(AuditedStats(sparrowmq_audit=records)))

    letter = MessageExt("%DLQ%G", b"", {}, "a", 0, 5, 0)
    found = Play(answer)(find_resends(make_directory("ns:1"), "G", [letter]))

    assert found == {
        ("a", 0, 3): Resend(10, "10.0.0.1:1"),
        ("a", 0, 4): Resend(20, "you"),
        ("a", 0, 5): Resend(30, "me"),
    }
    assert asked == ["a:1"]
