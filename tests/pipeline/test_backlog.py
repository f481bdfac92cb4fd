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
from sparrowmq.pipeline.backlog import Accumulation, BacklogResult, BacklogSettings, Cause
from sparrowmq.pipeline.backlog.job import Extent
from sparrowmq.pipeline.backlog.report import REMEDIES
from sparrowmq.pipeline.snapshot_tables import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(300)]

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
LOOKS = 7
TWIN = "172.17.0.1@1"
# Queue -> (owners, rules, idle members, consumed between two looks); 100 are produced.
QUEUES: dict[int, tuple[list[str] | None, list[str], int, int]] = {
    0: ([TWIN, TWIN], ["R01"], 0, 100),
    1: ([], ["R01"], 0, 0),
    2: ([], ["R05"], 0, 0),
    3: (["c@1"], [], 0, 0),
    4: (["c@2"], [], 0, 60),
    5: (["c@3"], [], 2, 60),
    # As in a table of JSON lines that leave the list out.
    6: (None, [], 0, 0),
}


def write_history(place: Path, *, first: int = 0, looks: int = LOOKS) -> None:
    rows = []
    for look in range(first, looks):
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


def run(spark: SparkSession, place: Path, **settings: object) -> BacklogResult:
    values = {"snapshots": str(place), "out": str(place / "out"), **settings}
    return backlog.run(spark, BacklogSettings(**values))  # type: ignore[arg-type]


def test_each_cause_is_named_with_its_beginning_and_its_owners(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_history(tmp_path)

    result = run(spark, tmp_path)

    by_queue = {each.queue_id: each for each in result.accumulations}
    assert {queue_id: each.cause for queue_id, each in by_queue.items()} == {
        1: Cause.DUPLICATE_IDS,
        2: Cause.DIFFERENT_SUBSCRIPTIONS,
        3: Cause.STUCK,
        4: Cause.SLOW,
        5: Cause.TOO_MANY_MEMBERS,
        6: Cause.UNOWNED,
    }
    end = BEGIN + timedelta(seconds=120)
    assert by_queue[1] == Accumulation(
        consumer_group="GID",
        topic="orders",
        broker_name="broker-a",
        queue_id=1,
        since=BEGIN,
        has_begun_before=False,
        until=BEGIN + timedelta(seconds=100),
        is_open=False,
        lag_peak=300,
        lag_last=100,
        growth_per_second=5.0,
        owners=("c@9", "nobody"),
        cause=Cause.DUPLICATE_IDS,
    )
    assert (
        by_queue[4].since,
        by_queue[4].until,
        by_queue[4].is_open,
        by_queue[4].lag_peak,
        by_queue[4].growth_per_second,
    ) == (BEGIN, end, True, 240, 2.0)
    assert by_queue[6].owners == ("nobody",)
    assert (result.extent, result.accumulation_count) == (Extent(1, 7, LOOKS, BEGIN, end), 6)
    assert result.lag_by_cause == {
        Cause.DIFFERENT_SUBSCRIPTIONS: 600,
        Cause.STUCK: 600,
        Cause.UNOWNED: 600,
        Cause.SLOW: 240,
        Cause.TOO_MANY_MEMBERS: 240,
    }
    timelines = {each.queue_id: timeline for each, timeline in result.timelines}
    assert [look.lag for look in timelines[1]] == [0, 100, 200, 300, 200, 100, 0]
    text = backlog.render(result)
    assert REMEDIES[Cause.TOO_MANY_MEMBERS] in text
    assert "2026-01-01 12:00:00 to 2026-01-01 12:02:00 UTC" in text
    # The lags of queues 2, 3 and 6 are the same, and that of queue 1 at first.
    assert text.count('stroke-dasharray="12 24"') == 3
    assert text.count('stroke-dasharray="12 36"') == 4


def test_a_living_incident_comes_before_the_queues_of_groups_that_nobody_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    def row(group: str, queue_id: int, look: int, lag: int, members: int) -> dict[str, object]:
        return {
            "snapshotTimestamp": BEGIN + timedelta(seconds=20 * look),
            "consumerGroup": group,
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": queue_id,
            "brokerOffset": lag,
            "consumerOffset": 0,
            "lag": lag,
            "owners": ["c@1"] * members,
            "rules": [],
            "members": members,
            "idleMembers": 0,
        }

    rows = [row("GID_gone", n, look, 5_000, 0) for n in range(42) for look in range(2)]
    rows += [row("GID_lives", 0, look, 200 + look, 1) for look in range(2)]
    (tmp_path / "queues").mkdir()
    pq.write_table(
        pa.Table.from_pylist(rows, schema=SCHEMAS["queues"]), tmp_path / "queues" / "1.parquet"
    )

    result = run(spark, tmp_path)

    assert [each.consumer_group for each in result.accumulations[:2]] == ["GID_lives", "GID_gone"]


def test_one_look_says_what_it_cannot_know(spark: SparkSession, tmp_path: Path) -> None:
    write_history(tmp_path, first=6)

    result = run(spark, tmp_path)

    by_queue = {each.queue_id: each for each in result.accumulations}
    # An owner and a lag: whether it is stuck, slow or catching up shows in the next snapshot.
    assert [by_queue[queue_id].cause for queue_id in (3, 4, 5)] == [Cause.UNKNOWN] * 3
    assert by_queue[6].cause is Cause.UNOWNED
    assert all(each.has_begun_before for each in by_queue.values())
    assert {each.growth_per_second for each in by_queue.values()} == {None}
    text = backlog.render(result)
    assert "before 12:02:00" in text
    assert "One snapshot says nothing about time yet" in text
    assert "nothing: the backlog shrinks" not in text
    assert "ask again" in text
    assert (text.count('class="bars"'), text.count("<svg")) == (1, 0)
    caption = backlog.main_table(result).caption
    assert caption == "5 accumulations in 1 snapshot of 7 queues"
    assert ">snapshot<" in text
    assert ">consumer group<" in text


def test_what_was_there_at_the_first_look_began_before_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_history(tmp_path, first=2)

    by_queue = {each.queue_id: each for each in run(spark, tmp_path).accumulations}

    assert {each.has_begun_before for each in by_queue.values()} == {True}
    # What is known of the later looks counts, not that the first has none before it.
    assert (by_queue[3].cause, by_queue[4].cause) == (Cause.STUCK, Cause.SLOW)


def test_times_are_instants_also_where_timestamps_have_no_zone(
    without_zones: SparkSession, tmp_path: Path
) -> None:
    write_history(tmp_path)

    by_queue = {each.queue_id: each for each in run(without_zones, tmp_path).accumulations}

    assert (by_queue[3].cause, by_queue[4].cause) == (Cause.STUCK, Cause.SLOW)
    assert by_queue[3].growth_per_second == 5.0


def test_a_backlog_that_stays_is_not_one_that_shrinks(spark: SparkSession, tmp_path: Path) -> None:
    rows = [
        {
            "snapshotTimestamp": BEGIN + timedelta(seconds=20 * look),
            "consumerGroup": "GID",
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": 0,
            "brokerOffset": 100 * look + 150,
            "consumerOffset": 100 * look,
            "lag": 150,
            "owners": ["c@1"],
        }
        for look in range(3)
    ]
    (tmp_path / "queues").mkdir()
    pq.write_table(
        pa.Table.from_pylist(rows, schema=SCHEMAS["queues"]), tmp_path / "queues" / "1.parquet"
    )

    (found,) = run(spark, tmp_path).accumulations

    assert found.cause is Cause.KEEPING_PACE


def test_the_queues_of_a_group_that_consumes_by_message_belong_to_any_member(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Queue -> the lag at each snapshot. The first message of each is in flight all the time.
    lags = {0: (100, 200, 300), 1: (150, 190, 230), 2: (300, 200, 120)}
    rows = [
        {
            "snapshotTimestamp": BEGIN + timedelta(seconds=20 * number),
            "consumerGroup": "GID_pop",
            "topic": "orders",
            "brokerName": "broker-a",
            "queueId": queue_id,
            "brokerOffset": 100 * number + 300,
            "consumerOffset": 0,
            "lag": lag,
            "owners": [],
            "members": 0,
            "idleMembers": 0,
            "isByMessage": True,
            "inFlight": 1,
        }
        for queue_id, of_queue in lags.items()
        for number, lag in enumerate(of_queue)
    ]
    (tmp_path / "queues").mkdir()
    table = pa.Table.from_pylist(rows, schema=SCHEMAS["queues"])
    pq.write_table(table, tmp_path / "queues" / "1.parquet")

    found = run(spark, tmp_path).accumulations

    assert {each.queue_id: (each.cause, each.owners) for each in found} == {
        0: (Cause.STUCK, ("any member",)),
        1: (Cause.SLOW, ("any member",)),
        2: (Cause.CATCHING_UP, ("any member",)),
    }


def test_what_stays_below_the_limit_is_left_out(spark: SparkSession, tmp_path: Path) -> None:
    write_history(tmp_path)

    result = run(spark, tmp_path, lag_min=301)

    assert {each.queue_id for each in result.accumulations} == {2, 3, 6}
    with pytest.raises(ConfigError, match=r"queues: .*does not exist"):
        run(spark, tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no group of GID_x is in"):
        run(spark, tmp_path, groups=["GID_x"])


def test_a_row_that_names_no_queue_is_one_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    """Its backlog would be in no figure."""
    write_history(tmp_path)
    path = tmp_path / "queues" / "1.parquet"
    rows = pq.read_table(path).to_pylist()
    rows[3]["queueId"] = None
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMAS["queues"]), path)

    with pytest.raises(ConfigError, match=f"queues: 1 of {len(rows)} rows have no queueId"):
        run(spark, tmp_path)


def test_a_page_counts_what_goes_on_and_names_when_it_began_and_ended() -> None:
    def accumulation(queue_id: int, days: int, *, is_open: bool) -> Accumulation:
        return Accumulation(
            consumer_group="GID",
            topic="orders",
            broker_name="broker-a",
            queue_id=queue_id,
            since=BEGIN,
            has_begun_before=False,
            until=BEGIN + timedelta(days=days),
            is_open=is_open,
            lag_peak=10,
            lag_last=5,
            growth_per_second=None,
            owners=(),
            cause=Cause.SLOW,
        )

    def page_of(*found: Accumulation, count: int) -> str:
        extent = Extent(1, 4, 7, BEGIN, BEGIN + timedelta(days=1))
        return backlog.render(
            BacklogResult(
                extent=extent,
                lag_by_cause={},
                accumulations=found,
                accumulation_count=count,
                timelines=[],
            )
        )

    live, over = accumulation(0, 1, is_open=True), accumulation(1, 0, is_open=False)

    assert "1 go on" in page_of(live, over, count=5)
    assert "3 more are in the table accumulations." in page_of(live, over, count=5)
    # Those that go on come first, so there may be more of them behind the list.
    assert "1 or more go on" in page_of(live, count=5)
    assert "1 go on" in page_of(live, count=1)
    one_day, two_days = page_of(over, count=1), page_of(live, over, count=2)
    assert one_day.count(">12:00:00<") == 2
    assert two_days.count("01/01\u00a012:00:00") == 3
    assert ">now<" in two_days
    assert ">now<" not in one_day
