from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.parquet as pq

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline import balance
from sparrowmq.pipeline.balance import BalanceSettings
from sparrowmq.pipeline.balance.evaluation import TopicLayout, evaluate, make_places
from sparrowmq.pipeline.balance.generated_cluster import generate_cluster
from sparrowmq.pipeline.balance.job import choose_strategies, read_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]


def write_cluster(spark: SparkSession, place: Path) -> None:
    """Write two groups: one with two members of one id, one without members; and an older look."""
    topics = spark.createDataFrame(
        [
            ("GID_twins", "orders", "broker-a", 8, 80.0, "2026-01-02"),
            ("GID_twins", "orders", "broker-b", 4, 40.0, "2026-01-02"),
            ("GID_empty", "orders", "broker-a", 8, None, "2026-01-02"),
            ("GID_old", "orders", "broker-a", 8, None, "2026-01-01"),
        ],
        "consumerGroup string, topic string, brokerName string, queueCount int, "
        "messagesPerSecond double, at string",
    )
    members = spark.createDataFrame(
        [("GID_twins", "c@1", "2026-01-02")] * 2
        + [("GID_old", "c@1", "2026-01-01"), ("GID_empty", "c@1", "2026-01-01")],
        "consumerGroup string, clientId string, at string",
    )
    for name, frame in (("topics", topics), ("members", members)):
        frame.selectExpr("*", "timestamp(at) as snapshotTimestamp").write.parquet(f"{place}/{name}")


def test_a_snapshot_becomes_a_row_a_group_and_strategy(spark: SparkSession, tmp_path: Path) -> None:
    write_cluster(spark, tmp_path)
    out = f"{tmp_path}/out"

    result = balance.run(
        spark, BalanceSettings(snapshot=str(tmp_path), strategies=["avg", "sticky"], out=out)
    )

    written = spark.read.parquet(f"{out}/groups").collect()
    rows = {(row["consumerGroup"], row["strategy"]): row for row in written}
    assert rows.keys() == {("GID_twins", "AVG"), ("GID_twins", "sticky")} | {
        ("GID_empty", "AVG"),
        ("GID_empty", "sticky"),
    }
    twins = rows["GID_twins", "AVG"]
    figures = evaluate(
        "AVG",
        "GID_twins",
        [TopicLayout("orders", (("broker-a", 8), ("broker-b", 4)))],
        make_places(["c@1", "c@1"]),
    )
    assert (12, 2, 1, 6, 6, figures.join_moved) == (
        twins["queues"],
        twins["members"],
        twins["duplicateIds"],
        twins["unowned"],
        twins["doubled"],
        twins["joinMoved"],
    )
    # 10 messages a second and queue; each doubled queue delivers all of them twice.
    assert twins["duplicatesPerSecond"] == 60.0
    assert figures.join_moved * 10 * 2.5 == twins["joinDuplicates"]
    assert (
        rows["GID_twins", "sticky"]["duplicatesPerSecond"],
        rows["GID_twins", "sticky"]["joinDuplicates"],
    ) == (0.0, 0.0)
    assert rows["GID_empty", "AVG"]["failure"] == "the group has no member"
    assert [
        (each.strategy, each.groups, each.failed, each.unowned) for each in result.strategies
    ] == [("AVG", 2, 1, 6 + 8), ("sticky", 2, 1, 0 + 8)]
    assert (
        result.current,
        [(each.consumer_group, each.unowned) for each in result.worst],
    ) == ("AVG", [("GID_empty", 8), ("GID_twins", 6)])
    text = balance.render(result)
    assert "GID_twins" in text
    assert "could not divide 1 of 2 groups: the group has no member" in text


def test_a_generated_cluster_is_the_same_each_time(spark: SparkSession) -> None:
    first, members = generate_cluster(spark, 200, topics=3)
    again, _ = generate_cluster(spark.newSession(), 200, topics=3)

    assert sorted(first.collect()) == sorted(again.collect())
    assert first.select("consumerGroup").distinct().count() == 200
    ids = members.groupBy("consumerGroup").agg({"clientId": "count"})
    (sizes,) = ids.selectExpr("min(`count(clientId)`)", "max(`count(clientId)`)").collect()
    assert tuple(sizes) == (1, 8)
    with pytest.raises(ConfigError, match="groups is 0; it must be from 1"):
        generate_cluster(spark, 0)


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="either a snapshot or how many"):
        BalanceSettings(out="out")
    with pytest.raises(ConfigError, match="topics is 0; it must be from 1"):
        BalanceSettings(out="out", generate=9, topics=0)
    for rate in (-1.0, float("nan")):
        with pytest.raises(ConfigError, match="messages_per_second is"):
            BalanceSettings(out="out", generate=9, messages_per_second=rate)
    with pytest.raises(ConfigError, match="did you mean CONSISTENT_HASH"):
        choose_strategies(["consistant_hash"])


def test_wrong_tables_are_refused_with_their_path(spark: SparkSession, tmp_path: Path) -> None:
    spark.createDataFrame(
        [("G", "t", "b")], "consumerGroup string, topics string, b string"
    ).write.parquet(f"{tmp_path}/wrong/topics")
    spark.createDataFrame(
        [], "consumerGroup string, topic string, brokerName string, queueCount int"
    ).write.parquet(f"{tmp_path}/empty/topics")

    with pytest.raises(ConfigError, match=r"nowhere/topics: .*does not exist"):
        read_cluster(spark, f"{tmp_path}/nowhere")
    with pytest.raises(ConfigError, match=r"no column 'topic'; did you mean topics\?"):
        read_cluster(spark, f"{tmp_path}/wrong")
    with pytest.raises(ConfigError, match="empty/topics has no rows"):
        read_cluster(spark, f"{tmp_path}/empty")


def test_rows_of_a_snapshot_that_cannot_be_are_one_clear_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    row: dict[str, Any] = {"consumerGroup": "G", "topic": "t", "brokerName": "b", "queueCount": 4}
    tables: dict[str, list[dict[str, Any]]] = {
        "one/topics": [row, {**row, "brokerName": "c", "queueCount": None}],
        "two/topics": [row],
        "two/members": [{"consumerGroup": "G", "clientId": each} for each in ("a", None)],
        "three/topics": [row, {**row, "brokerName": "c", "queueCount": -3}],
    }
    tables["one/members"] = tables["three/members"] = tables["two/members"][:1]
    for name, rows in tables.items():
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "1.parquet")

    with pytest.raises(ConfigError, match="one/topics: 1 of 2 rows have no queueCount"):
        read_cluster(spark, f"{tmp_path}/one")
    # The group would seem to have one member.
    with pytest.raises(ConfigError, match="two/members: 1 of 2 rows have no clientId"):
        read_cluster(spark, f"{tmp_path}/two")
    # The group would seem to have one queue.
    with pytest.raises(ConfigError, match="three/topics: 1 of 2 rows have a queueCount below 0"):
        read_cluster(spark, f"{tmp_path}/three")
