"""Two members, two queues; at second 30 queue 1 moves from a to b, who reads three again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline import duplicates
from sparrowmq.pipeline.duplicates import (
    DuplicatesResult,
    DuplicatesSettings,
    EventFigures,
    GroupFigures,
    LostMessage,
    StrategyFigures,
    job,
    judging,
    records,
    report,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def write_records(path: Path) -> None:
    rows: list[tuple[str, float, int, int]] = []
    rows += [("a", float(n), 0, n) for n in range(10)]
    rows += [("a", n + 0.5, 1, n) for n in range(10)]
    rows += [("b", 30.0 + n, 1, 7 + n) for n in range(8) if n != 5]
    # a has one message of its own queue twice.
    rows += [("a", 40.0, 0, 9)]
    lines = [
        json.dumps(
            {
                "consumerGroup": "GID",
                "clientId": client_id,
                "consumedTimestamp": (BEGIN + timedelta(seconds=at)).isoformat(),
                "topic": "orders",
                "brokerName": "broker-a",
                "queueId": queue_id,
                "queueOffset": offset,
            }
        )
        for client_id, at, queue_id, offset in rows
    ]
    # It was sent back, so that its second delivery was asked for.
    back = json.loads(lines[0])
    lines += [
        json.dumps({**back, "reconsumeTimes": 1, "consumedTimestamp": "2026-01-01T12:00:50Z"})
    ]
    path.write_text("\n".join(lines))


def test_duplicates_are_put_down_to_the_event_before_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_records(tmp_path / "consumed.jsonl")
    produced = spark.range(16).selectExpr(
        "'orders' as topic", "'broker-a' as brokerName", "1 as queueId", "id as queueOffset"
    )
    produced.write.parquet(f"{tmp_path}/produced")

    out = f"{tmp_path}/out"
    result = duplicates.run(
        spark,
        DuplicatesSettings(
            consumed=f"{tmp_path}/consumed.jsonl", produced=f"{tmp_path}/produced", out=out
        ),
    )

    again = spark.read.parquet(f"{out}/duplicates").orderBy("consumedTimestamp").collect()
    assert [
        (row["queueId"], row["queueOffset"], row["clientId"], row["firstClientId"]) for row in again
    ] == [(1, 7, "b", "a"), (1, 8, "b", "a"), (1, 9, "b", "a"), (0, 9, "a", "a")]
    assert sorted(
        (row["queueOffset"], row["state"]) for row in spark.read.parquet(f"{out}/missing").collect()
    ) == [(12, "lost"), (15, "pending")]
    assert [
        ("before the first event", 20, 0, 0, None),
        ("1 queue moved", 9, 4, 1, BEGIN + timedelta(seconds=30)),
    ] == [(e.event, e.deliveries, e.duplicates, e.by_same_member, e.at) for e in result.events]
    assert result.groups == [GroupFigures("GID", 29, 24, 4, 2, 1, 1)]
    assert result.strategies == [StrategyFigures("unknown", 1, 29, 4)]
    assert result.lost == [LostMessage("GID", "orders", "broker-a", 1, 12, None)]
    text = duplicates.render(result)
    assert "1 message lost: later ones of the same queues were consumed." in text
    assert "1 lost, the first orders broker-a:1 at 12; 1 pending" in text
    assert "No message was passed over" not in text
    assert "1. 1 queue moved" in text


def test_times_are_instants_also_where_timestamps_have_no_zone(
    without_zones: SparkSession, tmp_path: Path
) -> None:
    write_records(tmp_path / "consumed.jsonl")
    settings = DuplicatesSettings(consumed=f"{tmp_path}/consumed.jsonl", out=f"{tmp_path}/out")

    result = duplicates.run(without_zones, settings)

    assert [each.at for each in result.events] == [None, BEGIN + timedelta(seconds=30)]


def test_a_page_says_that_nothing_was_lost_only_where_losses_were_looked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_records(tmp_path / "consumed.jsonl")

    result = duplicates.run(
        spark, DuplicatesSettings(consumed=f"{tmp_path}/consumed.jsonl", out=f"{tmp_path}/out")
    )

    text = duplicates.render(result)
    assert [group.lost for group in result.groups] == [None]
    assert "Nothing was lost" not in text
    assert "losses were not looked for" in text


def test_events_that_are_given_name_the_strategy(spark: SparkSession, tmp_path: Path) -> None:
    write_records(tmp_path / "consumed.jsonl")
    (tmp_path / "events.jsonl").write_text(
        "\n".join(
            json.dumps(
                {
                    "consumerGroup": "GID",
                    "eventTimestamp": at,
                    "event": event,
                    "strategy": strategy,
                }
            )
            for at, event, strategy in (
                ("2026-01-01T12:00:00Z", "a starts", "AVG"),
                ("2026-01-01T12:00:31.500Z", "b joins", "MINIMAL_MOVE"),
            )
        )
    )

    result = duplicates.run(
        spark,
        DuplicatesSettings(
            consumed=f"{tmp_path}/consumed.jsonl",
            events=f"{tmp_path}/events.jsonl",
            out=f"{tmp_path}/out",
        ),
    )

    assert result.strategies == [
        StrategyFigures("MINIMAL_MOVE", 1, 7, 2),
        StrategyFigures("AVG", 1, 22, 2),
    ]


def test_message_trace_in_javas_format_tells_the_same(spark: SparkSession) -> None:
    def entry(*fields: object) -> str:
        return "\x01".join(map(str, fields)) + "\x02"

    def pub(msg_id: str, ok: str) -> str:
        return entry(
            *("Pub", 1767268800000, "DefaultRegion", "GID_p", "orders", msg_id, "tag", "key"),
            *("10.0.0.9:10911", 12, 3, 0, "0A000009", ok),
        )

    def before(at: int, msg_id: str, times: int) -> str:
        head = ("SubBefore", 1767268800000 + at, "DefaultRegion", "GID", "request")
        return entry(*head, msg_id, times, "key")

    after = entry("SubAfter", "request", "M1", 5, "true", "key", 0, 1767268800005, "GID")
    trace = spark.createDataFrame(
        [
            (
                (pub("M1", "true") + pub("M2", "true") + pub("M3", "false")).encode(),
                "10.0.0.1:50000",
            ),
            ((before(10, "M1", 0) + after + before(99, "M1", 1)).encode(), "10.0.0.2:50000"),
            (before(50, "M1", 0).encode(), "10.0.0.3:50000"),
        ],
        "body binary, bornHost string",
    )

    consumed, produced = records.split_trace(trace)
    deliveries = judging.attribute(consumed, judging.find_events(consumed))
    missing = judging.find_missing(consumed, produced)

    (again,) = deliveries.where("nth > 1").collect()
    assert (
        again["topic"],
        again["msgId"],
        again["clientId"],
        again["firstClientId"],
    ) == ("orders", "M1", "10.0.0.3:50000", "10.0.0.2:50000")
    # M3 was not sent; M2 may still come.
    assert [(row["msgId"], row["state"]) for row in missing.collect()] == [("M2", "pending")]


@pytest.mark.parametrize(
    "given",
    [
        {"consumed": "deliveries"},
        {"consumed": "deliveries/batchId=0/"},
        {"consumed": "c.jsonl", "events": "./events"},
        {"consumed": "c.jsonl", "produced": "link/missing/*.parquet"},
    ],
)
def test_an_input_in_a_table_of_the_job_is_refused(tmp_path: Path, given: dict[str, str]) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    inputs = {name: f"{tmp_path}/{path}" for name, path in given.items()}

    with pytest.raises(ConfigError, match="a table that this job replaces"):
        DuplicatesSettings(out=f"{tmp_path}/", **inputs)  # type: ignore[arg-type]
    assert DuplicatesSettings(out=f"{tmp_path}/out", **inputs)  # type: ignore[arg-type]


def test_records_must_name_messages(spark: SparkSession, tmp_path: Path) -> None:
    line = {"consumerGroup": "G", "clientId": "a", "consumedTimestamp": "2026-01-01T12:00:00Z"}
    (tmp_path / "consumed.jsonl").write_text(json.dumps(line))

    with pytest.raises(ConfigError, match="neither queueOffset"):
        records.read_records(spark, f"{tmp_path}/consumed.jsonl")


@pytest.mark.parametrize("unknown", ["topic", "brokerName", "queueId"])
def test_a_message_without_its_whole_place_is_known_by_its_id_alone(
    spark: SparkSession, tmp_path: Path, unknown: str
) -> None:
    path = tmp_path / "consumed.jsonl"
    place = {"topic": "T", "brokerName": "b", "queueId": 0, "queueOffset": 7}
    known = {name: value for name, value in place.items() if name != unknown}
    lines = [
        {"consumerGroup": "G", "clientId": client_id, "consumedTimestamp": at, **known}
        for client_id, at in (("a", "2026-01-01T12:00:00Z"), ("b", "2026-01-01T13:00:00Z"))
    ]
    path.write_text("\n".join(map(json.dumps, lines)))

    with pytest.raises(ConfigError, match="neither queueOffset"):
        records.read_records(spark, f"{path}")
    path.write_text("\n".join(json.dumps(line | {"msgId": line["clientId"]}) for line in lines))
    found = records.read_records(spark, f"{path}")

    assert {row.messageKey for row in found.collect()} == {"a", "b"}
    # The two may be of two queues.
    assert judging.find_events(found).isEmpty()


@pytest.mark.parametrize("missing", ["consumerGroup", "clientId", "consumedTimestamp"])
def test_records_must_have_a_group_a_member_and_a_time(
    spark: SparkSession, tmp_path: Path, missing: str
) -> None:
    write_records(tmp_path / "consumed.jsonl")
    lines = (tmp_path / "consumed.jsonl").read_text().splitlines()
    record = json.loads(lines[3])
    del record[missing]
    (tmp_path / "consumed.jsonl").write_text("\n".join([*lines[:3], json.dumps(record)]))

    with pytest.raises(ConfigError, match=f"1 of 4 rows have no {missing}"):
        records.read_records(spark, f"{tmp_path}/consumed.jsonl")


def test_events_and_produced_messages_must_be_complete_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    event = {"consumerGroup": "GID", "event": "b joins"}
    (tmp_path / "events.jsonl").write_text(json.dumps(event))
    (tmp_path / "produced.jsonl").write_text(json.dumps({"msgId": "M1"}))

    with pytest.raises(ConfigError, match="1 of 1 rows have no eventTimestamp"):
        records.read_events(spark, f"{tmp_path}/events.jsonl")
    with pytest.raises(ConfigError, match="1 of 1 rows have no topic"):
        records.read_produced(spark, f"{tmp_path}/produced.jsonl")


def test_trace_entries_that_cannot_be_read_are_left_out_and_counted(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client may write to the trace topic."""

    def before(at: object, msg_id: str, times: object) -> bytes:
        fields = ("SubBefore", at, "DefaultRegion", "GID", "request", msg_id, times, "key")
        return "\x01".join(map(str, fields)).encode() + b"\x02"

    at = 1767268800000
    bodies = [
        before(at, "M1", 0) + before("soon", "M2", 0) + before(at, "M3", "often"),
        before(2**62, "M4", 0) + before(-1, "M5", 0) + b"Pub\x01" + b"SubBefore\x02",
        b"\xff\xfe\x80 no text \xc3",
        before(at, "M6", 1),
    ]
    trace = spark.createDataFrame(
        [(body, "10.0.0.1:50000") for body in bodies], "body binary, bornHost string"
    )

    consumed, _ = records.split_trace(trace)

    assert sorted(row["msgId"] for row in consumed.collect()) == ["M1", "M6"]
    assert "5 entries of the trace cannot be read, and are left out" in caplog.messages


@pytest.mark.parametrize("seconds", [1e15, float("inf"), float("nan"), -1.0])
def test_time_that_no_clock_takes_is_refused(seconds: float) -> None:
    for name in ("follow_interval_s", "delay_s"):
        given: dict[str, Any] = {name: seconds}
        with pytest.raises(ConfigError, match=f"{name} is .*; it must be 0 to 31,622,400 s"):
            DuplicatesSettings(consumed="c", out="o", **given)


def test_the_events_with_the_most_duplicates_are_listed_and_all_are_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "EVENTS_MAX", 2)
    deliveries = spark.sql(
        "select group as consumerGroup, index as eventIndex, 'moved' as event, 'AVG' as strategy, "
        "timestamp(null) as eventTimestamp, index as nth, 'a' as clientId, 'a' as firstClientId, "
        "'T' as topic, 'b' as brokerName, 0 as queueId, '' as messageKey from values "
        "('A', 0), ('A', 1), ('B', 1), ('B', 2), ('B', 2), ('C', 3), ('C', 3), ('C', 3) "
        "as t(group, index)"
    )

    result = duplicates.sum_up(deliveries)

    found = [(each.consumer_group, each.event_index, each.duplicates) for each in result.events]
    assert found == [("B", 2, 2), ("C", 3, 3)]


def test_a_page_shows_how_many_events_and_losses_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "_EVENTS_PLOTTED", 1)

    def event(index: int, duplicates: int) -> EventFigures:
        name = "moved" if index else "before the first event"
        return EventFigures("GID", index, name, "AVG", None, 9, duplicates, 0, 1)

    result = DuplicatesResult(
        groups=[GroupFigures("GID", 40, 33, 7, 3, 5, 2)],
        events=[event(0, 0), event(1, 2), event(2, 5)],
        strategies=[StrategyFigures("AVG", 4, 40, 7)],
        lost=[LostMessage("GID", "orders", "broker-a", 1, 12, None)],
        knows_produced=True,
    )

    text = duplicates.render(result)
    whole = duplicates.render(replace(result, strategies=[StrategyFigures("AVG", 2, 40, 7)]))

    assert re.search(r">4<.*?rebalance events", text)
    assert "2 events with fewer duplicates, or none, are not shown." in text
    assert "are not shown" not in whole
    # The table has both.
    assert (text.count(">1. moved<"), text.count(">2. moved<")) == (1, 2)
    assert "All 5 are in the table missing." in text
    assert "17.50 of a hundred" in text
    # Duplicates of an event on average.
    assert ">1.75<" in text
