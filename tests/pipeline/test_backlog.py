"""A history with one queue for each cause, looked at every 20 s for two minutes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline import backlog
from sparrowmq.pipeline.backlog import Accumulation
from sparrowmq.pipeline.backlog_report import backlog_page, choose_plotted
from sparrowmq.pipeline.snapshot_tables import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
LOOKS = 7
TWIN = "172.17.0.1@1"
# Queue -> (owners, rules, idle members, consumed between two looks); 100 are produced.
QUEUES: dict[int, tuple[list[str], list[str], int, int]] = {
    0: ([TWIN, TWIN], ["R01"], 0, 100),
    1: ([], ["R01"], 0, 0),
    2: ([], ["R05"], 0, 0),
    3: (["c@1"], [], 0, 0),
    4: (["c@2"], [], 0, 60),
    5: (["c@3"], [], 2, 60),
    6: ([], [], 0, 0),
}


def write_history(place: Path) -> None:
    rows = []
    for look in range(LOOKS):
        for queue_id, (owners, rules, idle, consumed) in QUEUES.items():
            # Queue 1 gets owners of its own and catches up in the last three looks.
            is_healed = queue_id == 1 and look >= 4
            done = consumed * look if not is_healed else [200, 400, 600][look - 4]
            rows.append(
                {
                    "snapshotTimestamp": BEGIN + timedelta(seconds=20 * look),
                    "consumerGroup": "GID",
                    "topic": "orders",
                    "brokerName": "broker-a",
                    "queueId": queue_id,
                    "brokerOffset": 100 * look,
                    "consumerOffset": done,
                    "lag": 100 * look - done,
                    "owners": ["c@9"] if is_healed else owners,
                    "rules": [] if is_healed else rules,
                    "members": 4,
                    "idleMembers": idle,
                }
            )
    (place / "queues").mkdir(parents=True)
    schema = SCHEMAS["queues"]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), place / "queues" / "1.parquet")


def test_each_cause_is_told_with_its_beginning_and_its_owners(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_history(tmp_path)

    history = backlog.explain_history(backlog.read_history(spark, str(tmp_path))).cache()
    found = backlog.list_accumulations(backlog.find_accumulations(history))
    totals = backlog.sum_up(history)

    by_queue = {each.queue_id: each for each in found}
    assert {
        1: backlog.DUPLICATE_IDS,
        2: backlog.DIFFERENT_SUBSCRIPTIONS,
        3: backlog.STUCK,
        4: backlog.SLOW,
        5: backlog.TOO_MANY_MEMBERS,
        6: backlog.UNOWNED,
    } == {queue_id: each.cause for queue_id, each in by_queue.items()}
    end = BEGIN + timedelta(seconds=120)
    assert (
        Accumulation(
            consumer_group="GID",
            topic="orders",
            broker_name="broker-a",
            queue_id=1,
            since=BEGIN,
            until=BEGIN + timedelta(seconds=100),
            is_open=False,
            lag_peak=300,
            lag_last=100,
            growth_per_second=5.0,
            owners=("c@9", "nobody"),
            cause=backlog.DUPLICATE_IDS,
        )
        == by_queue[1]
    )
    assert (BEGIN, end, True, 240, 2.0) == (
        by_queue[4].since,
        by_queue[4].until,
        by_queue[4].is_open,
        by_queue[4].lag_peak,
        by_queue[4].growth_per_second,
    )
    assert (1, 7, LOOKS, BEGIN, end) == totals[:5]
    assert {
        backlog.DIFFERENT_SUBSCRIPTIONS: 600,
        backlog.STUCK: 600,
        backlog.UNOWNED: 600,
        backlog.SLOW: 240,
        backlog.TOO_MANY_MEMBERS: 240,
    } == totals.lag_by_cause
    looks = {each: backlog.list_looks(history, each) for each in choose_plotted(found)}
    assert [0, 100, 200, 300, 200, 100, 0] == [look.lag for look in looks[by_queue[1]]]
    text = backlog_page(totals, found, looks)
    assert backlog.REMEDIES[backlog.TOO_MANY_MEMBERS] in text
    assert "2026-01-01 12:00:00 to 2026-01-01 12:02:00 UTC" in text


def test_what_stays_below_the_limit_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    write_history(tmp_path)
    history = backlog.explain_history(backlog.read_history(spark, str(tmp_path)))

    found = backlog.list_accumulations(backlog.find_accumulations(history, peak_min=301))

    assert {2, 3, 6} == {each.queue_id for each in found}
    with pytest.raises(ConfigError, match=r"queues: .*does not exist"):
        backlog.read_history(spark, str(tmp_path / "nowhere"))
