"""Trace entries, field by field as Java's TraceDataEncoder writes them."""

from __future__ import annotations

from sparrowmq.protocol.trace import ConsumedCode, TracedType, consumed, delivered, published

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
    assert ("7F0000010001", "k1", "k2") == entry.keys


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
    fields = ["SubAfter", "R1", "M1", "3", "false", "", "4", "1700000000000", "GID_c"]
    assert S.join(fields) + E == after.text
    assert (("M1", "k1"), ("M1",)) == (before.keys, after.keys)
