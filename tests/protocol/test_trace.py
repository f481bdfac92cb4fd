"""Trace entries, field by field as Java's TraceDataEncoder writes them."""

from __future__ import annotations

from sparrowmq.protocol.trace import (
    ConsumedCode,
    ConsumedEntry,
    DeliveredEntry,
    SentEntry,
    TracedType,
    TransactionEntry,
    consumed,
    delivered,
    published,
    read_entries,
)

S, E = "\x01", "\x02"


def test_entry_of_a_sent_message() -> None:
    entry = published(
        timestamp_ms=1_700_000_000_000,
        cost_ms=7,
        region="DefaultRegion",
        group="GID_p",
        topic="orders",
        msg_id="7F0000010001",
        offset_msg_id="7F00000100002A9F0000000000000000",
        tags="paid",
        keys=("k1", "k2"),
        store_host="127.0.0.1:10911",
        body_bytes=12,
        kind=TracedType.DELAY,
        is_success=True,
    )

    assert (
        S.join(
            [
                *("Pub", "1700000000000", "DefaultRegion", "GID_p", "orders", "7F0000010001"),
                *("paid", "k1 k2", "127.0.0.1:10911", "12", "7", "3"),
                *("7F00000100002A9F0000000000000000", "true"),
            ]
        )
        + E
        == entry.text
    )
    assert entry.keys == ("7F0000010001", "k1", "k2")


def test_entries_of_a_delivery() -> None:
    before = delivered(
        timestamp_ms=1_700_000_000_000,
        region="DefaultRegion",
        group="GID_c",
        request_id="R1",
        msg_id="M1",
        reconsume_times=2,
        keys=("k1",),
    )
    after = consumed(
        timestamp_ms=1_700_000_000_000,
        cost_ms=3,
        group="GID_c",
        request_id="R1",
        msg_id="M1",
        keys=(),
        code=ConsumedCode.FAILED,
    )

    fields = ["SubBefore", "1700000000000", "DefaultRegion", "GID_c", "R1", "M1", "2", "k1"]
    assert S.join(fields) + E == before.text
    fields = ["SubAfter", "R1", "M1", "3", "false", "null", "4", "1700000000000", "GID_c"]
    assert S.join(fields) + E == after.text
    assert (before.keys, after.keys) == (("M1", "k1"), ("M1",))


def test_java_reads_the_entry_of_a_message_without_keys() -> None:
    entry = delivered(
        timestamp_ms=1_700_000_000_000,
        region="DefaultRegion",
        group="GID_c",
        request_id="R1",
        msg_id="M1",
        reconsume_times=0,
        keys=(),
    )

    fields = entry.text.removesuffix(E).split(S)
    while not fields[-1]:
        # String.split leaves out the empty texts at the end.
        fields.pop()
    # TraceDataEncoder.decoderFromTraceDataString looks at the eighth field.
    assert fields[7] == "null"
    assert entry.keys == ("M1",)


def test_entries_of_javas_clients_are_read() -> None:
    fields = ["1700", "R", "GID_p", "orders", "M1", "paid", "k1 k2", "10.0.0.1:10911", "12", "7"]
    lines = [
        ["Pub", *fields, "0", "OFFSET-ID", "true"],
        # RocketMQ 5 adds the client; the first versions had no id of the broker's.
        ["Pub", *fields, "0", "OFFSET-ID", "false", "10.0.0.9"],
        ["Pub", *fields, "0", "true"],
        ["SubBefore", "1800", "R", "GID_c", "CALL", "M1", "2", "k1"],
        ["SubAfter", "CALL", "M1", "3", "false", "k1", "1", "1800", "GID_c"],
        ["SubAfter", "CALL", "M1", "3", "true", "k1"],
        ["EndTransaction", *fields[:8], "2", "TX", "ROLLBACK_MESSAGE", "true"],
    ]
    body = "".join(S.join(line) + E for line in lines).encode()

    sent = SentEntry(1700, 7, "GID_p", "orders", "M1", "10.0.0.1:10911", True)
    assert [
        sent,
        sent._replace(is_success=False),
        sent,
        DeliveredEntry(1800, "GID_c", "CALL", "M1", 2),
        ConsumedEntry("CALL", "M1", 3, False, ConsumedCode.TIME_OUT),
        ConsumedEntry("CALL", "M1", 3, True, None),
        TransactionEntry(1700, "GID_p", "orders", "M1", "ROLLBACK_MESSAGE", True),
    ] == list(read_entries(body))


def test_lines_that_are_no_entries_are_left_out() -> None:
    hostile = [
        b"",
        b"\x02\x01\x02",
        b"\xff\xfe",
        b"Pub\x01x\x01y\x02",
        b"SubAfter\x01a\x01b\x01nine\x02",
        b"SubAfter\x01a\x01b\x011\x01true\x01k\x0199\x02",
        b"Recall\x011\x02",
    ]

    assert [entry for body in hostile for entry in read_entries(body)] == []
