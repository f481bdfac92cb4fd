"""Conditions that reach the source: what EXPLAIN shows, and how many messages are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", minversion="4.1")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNull, LessThanOrEqual, Not

from sparrowmq.model import MessageQueue
from sparrowmq.spark.narrowing import CLOCK_STEP_MS_MAX
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.planning import QueueRange
from sparrowmq.spark.pushed_filters import FilteringReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .conftest import FakeCluster
else:
    FakeCluster = Any

PUSHING = "spark.sql.python.filterPushdown.enabled"
HOUR_MS = 3_600_000
QUEUES = 2
DAYS = 10


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, which passes conditions to the source."""
    spark.conf.set(PUSHING, "true")
    yield spark
    spark.conf.unset(PUSHING)


@pytest.fixture
def filled(fake_cluster: FakeCluster) -> FakeCluster:
    """Two topics of ten days: a message an hour in each queue, whose first is of BORN_MS + 1."""
    fake_cluster.step_ms = HOUR_MS
    for topic in ("orders", "other"):
        fake_cluster.create_topic(topic, queues=QUEUES)
        for queue_id in range(QUEUES):
            fake_cluster.append(topic, queue_id, DAYS * 24)
    return fake_cluster


def load(spark: SparkSession, fake: FakeCluster, **more: str) -> DataFrame:
    given = {"nameServer": fake.address, "topic": "orders,other", **more}
    return spark.read.format("rocketmq").options(**given).load()


def stored_at(fake: FakeCluster, day: int) -> str:
    """Return the time at which the first message of a day was stored."""
    moment = datetime.fromtimestamp((fake.born_ms + 1 + day * 24 * HOUR_MS) / 1000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds")


def plan_of(frame: DataFrame) -> str:
    printed = StringIO()
    with redirect_stdout(printed):
        frame.explain("formatted")
    return printed.getvalue()


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_day_of_a_topic_is_read_as_a_day(pushing: SparkSession, filled: FakeCluster) -> None:
    day = load(pushing, filled).where(
        f"topic = 'orders' AND storeTimestamp >= '{stored_at(filled, 3)}' "
        f"AND storeTimestamp < '{stored_at(filled, 4)}'"
    )

    rows = day.select("queueId", "queueOffset").collect()

    assert {(row.queueId, row.queueOffset) for row in rows} == {
        (queue_id, offset) for queue_id in range(QUEUES) for offset in range(72, 96)
    }
    # Each end of each queue is found by a few pulls of one message.
    assert 48 <= filled.given_count <= 48 + QUEUES * 2 * 12
    plan = plan_of(day)
    for name in ("EqualTo(topic,orders)", "GreaterThanOrEqual(storeTimestamp,", "LessThan(storeT"):
        assert name in plan, plan
    assert "* Filter" not in plan, plan


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_conditions_give_the_rows_that_spark_itself_would_choose(
    pushing: SparkSession, filled: FakeCluster
) -> None:
    frame = load(pushing, filled)
    everything = [row.asDict() for row in frame.collect()]
    conditions: dict[str, Callable[[dict[str, Any]], bool]] = {
        "topic IN ('other', 'nowhere')": lambda row: row["topic"] == "other",
        "topic = 'nowhere'": lambda row: False,
        "brokerName = 'broker-a' AND queueId = 1": lambda row: row["queueId"] == 1,
        "queueId IN (0, NULL)": lambda row: row["queueId"] == 0,
        "queueOffset > 5 AND queueOffset <= 9": lambda row: 5 < row["queueOffset"] <= 9,
        "queueOffset = 7 OR queueId = 5": lambda row: row["queueOffset"] == 7,
        "tags = 'tag1'": lambda row: row["tags"] == "tag1",
        "tags IN ('tag1', 'tag2') AND tags <> 'tag2'": lambda row: row["tags"] == "tag1",
        "tags = 'tag1' AND tags = 'tag2'": lambda row: False,
        "tags = 'a || b'": lambda row: False,
    }

    for text, is_chosen in conditions.items():
        found = [row.asDict() for row in frame.where(text).collect()]
        expected = [row for row in everything if is_chosen(row)]
        assert sorted(found, key=place_of) == sorted(expected, key=place_of), text
    plan = plan_of(frame.where("tags = 'tag1' AND queueId = 1 AND length(keys) > 3"))
    assert "EqualTo(tags,tag1)" in plan
    assert "EqualTo(queueId,1)" in plan
    counted = load(pushing, filled, subExpression="tag1 || tag2").where("tags IN ('tag2', 'tag0')")
    assert {row.tags for row in counted.select("tags").distinct().collect()} == {"tag2"}


def place_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["topic"], row["queueId"], row["queueOffset"]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_frame_and_a_view_have_all_rows_after_and_beside_a_query_with_conditions(
    spark: SparkSession, filled: FakeCluster
) -> None:
    count = 2 * QUEUES * DAYS * 24
    frame = load(spark, filled)
    frame.createOrReplaceTempView("messages")
    first, second = frame.where("queueOffset < 3"), frame.where("queueOffset >= 3")

    assert first.count() == 3 * 2 * QUEUES
    assert frame.count() == count
    assert {row.queueOffset for row in first.union(second).select("queueOffset").collect()} == set(
        range(DAYS * 24)
    )
    assert spark.sql("SELECT * FROM messages WHERE topic = 'orders'").count() == count // 2
    assert spark.sql("SELECT * FROM messages").count() == count
    assert "EqualTo(topic" not in plan_of(frame.where("topic = 'orders'"))


def test_the_reader_takes_conditions_on_places_and_leaves_others_to_spark() -> None:
    reader, left = pushed(
        EqualTo(("topic",), "orders"),
        In(("queueId",), (1, 2)),
        In(("queueId",), (0, 1, None)),
        GreaterThan(("queueOffset",), 4),
        GreaterThan(("queueOffset",), 3),
        LessThanOrEqual(("offset",), 9),
        IsNull(("tags",)),
        Not(EqualTo(("topic",), "other")),
    )
    queue = MessageQueue("orders", "broker-a", 1)

    narrowing = reader._options.narrowing  # pyright: ignore[reportPrivateUsage]

    assert [type(each) for each in left] == [IsNull, Not]
    assert narrowing.narrow(
        [
            QueueRange(queue, 0, 7),
            QueueRange(queue._replace(topic="other"), 0, 7),
            QueueRange(queue._replace(queue_id=0), 0, 7),
            QueueRange(queue._replace(queue_id=2), 0, 7),
        ]
    ) == [QueueRange(queue, 5, 7)]
    one, _ = pushed(EqualTo(("offset",), 6))
    narrowing = one._options.narrowing  # pyright: ignore[reportPrivateUsage]
    assert narrowing.narrow([QueueRange(queue, 0, 9)]) == [QueueRange(queue, 6, 7)]


def test_a_search_by_time_begins_before_and_ends_behind_a_clock_that_was_set_back() -> None:
    moment = datetime(2026, 3, 1, 12, 0, 0, 500, tzinfo=UTC)
    at_ms = 1_772_366_400_000
    reader, left = pushed(
        GreaterThan(("storeTimestamp",), moment), LessThanOrEqual(("storeTimestamp",), moment)
    )

    narrowing = reader._options.narrowing  # pyright: ignore[reportPrivateUsage]

    assert left == []
    assert narrowing.stored_us == (at_ms * 1000 + 501, at_ms * 1000 + 501)
    assert narrowing.since_ms == at_ms - CLOCK_STEP_MS_MAX
    assert narrowing.until_ms == at_ms + 1 + CLOCK_STEP_MS_MAX


def pushed(*filters: Filter) -> tuple[FilteringReader, list[Filter]]:
    from sparrowmq.spark.batch_reader import RocketMQReader

    options = parse_options({"nameServer": "127.0.0.1:9876", "topic": "orders"}, scope="batch")
    reader = FilteringReader(RocketMQReader, options)
    return reader, list(reader.pushFilters(list(filters)))
