"""The settings, the run and the result of the job; derives causes from a history of snapshots.

The input is the table `queues` of repeated `sparrowmq snapshot`: a row for each group, queue and
snapshot. Two in turn show what was produced and consumed between them, and so a *cause*:

| cause | condition |
|---|---|
| unowned: duplicate client ids | the queue has no owner; the doctor's R01 or R02 names the queue |
| unowned: different subscriptions | the queue has no owner; R05 or R12 names the queue |
| no member | the group has no member |
| unowned | the queue has no owner, for another reason |
| stuck consumer | the queue has an owner and messages, and its offset did not move |
| more consumers than queues | the backlog grows while other members have no queue |
| slow consumer | the backlog grows: more is produced than consumed |
| keeping pace | as much is consumed as produced: the backlog stays |
| catching up | the backlog shrinks |
| unknown | the queue has an owner, and there is no snapshot before |

In a group that consumes by message any member may consume any queue, and a message counts as
consumed once it is acknowledged: lag includes the messages in flight.

Members commit every 5 s, so if snapshots are less than 10 s apart, a slow consumer may count as
stuck. An *accumulation* is a time in which a queue's lag was above 0. Its cause is the cause that
held longest while the lag did not shrink. Tests: pipeline/test_backlog.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.input_tables import check_complete, collect_as, read_table
from sparrowmq.pipeline.parquet import write_table
from sparrowmq.pipeline.task_progress import OnProgress, reporting_progress

QUEUE_COLUMNS = {
    "snapshotTimestamp": "timestamp_ltz",
    "consumerGroup": "string",
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "brokerOffset": "bigint",
    "consumerOffset": "bigint",
    "lag": "bigint",
    "owners": "array<string>",
}
QUEUE_OPTIONAL = {
    "rules": "array<string>",
    "members": "int",
    "idleMembers": "int",
    "isByMessage": "boolean",
    "inFlight": "bigint",
}
# The owner of the queues of a group that consumes by message.
ANY_MEMBER = "any member"
# The most accumulations in a result, and the most queues in plots, which have eight colours.
LISTED_MAX, PLOTTED_MAX = 200, 8
# A plot shows about so many snapshots of a queue.
_SNAPSHOTS_PLOTTED = 400
_QUEUE = ("consumerGroup", "topic", "brokerName", "queueId")


class Cause(StrEnum):
    """The cause of a queue's backlog."""

    DUPLICATE_IDS = "unowned: duplicate client ids"
    DIFFERENT_SUBSCRIPTIONS = "unowned: different subscriptions"
    NO_MEMBER = "no member"
    UNOWNED = "unowned"
    STUCK = "stuck consumer"
    TOO_MANY_MEMBERS = "more consumers than queues"
    SLOW = "slow consumer"
    KEEPING_PACE = "keeping pace"
    CATCHING_UP = "catching up"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogSettings:
    """The settings of the job.

    Args:
        snapshots: the directory that `sparrowmq snapshot` has written.
        out: the directory of the tables `history` and `accumulations`.
        groups: the groups to examine; empty examines all.
        lag_min: the least peak of an accumulation, in messages; lower ones are left out.
    """

    snapshots: str
    out: str
    groups: Sequence[str] = ()
    lag_min: int = 100

    @property
    def inputs(self) -> tuple[str, ...]:
        """The paths that the job reads."""
        return (f"{self.snapshots.rstrip('/')}/queues",)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A time in which a queue had a backlog.

    Args:
        since: the last snapshot before the backlog; the first of all if `has_begun_before`.
        has_begun_before: whether the queue had a backlog at the first snapshot already.
        until: the last snapshot at which the queue had the backlog.
        is_open: whether `until` is the newest snapshot of the group.
        lag_peak, lag_last: the greatest and the last lag, in messages.
        growth_per_second: the mean growth from `since` to the peak, in messages; None if both are
            the same snapshot.
        owners: the owners during this time, sorted by name: client ids, "nobody", or several client
            ids joined by " + ".
    """

    consumer_group: str
    topic: str
    broker_name: str
    queue_id: int
    since: datetime
    has_begun_before: bool
    until: datetime
    is_open: bool
    lag_peak: int
    lag_last: int
    growth_per_second: float | None
    owners: tuple[str, ...]
    cause: Cause

    @property
    def queue_name(self) -> str:
        """The queue's name for people: topic, broker and id."""
        return f"{self.topic} {self.broker_name}:{self.queue_id}"


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """A queue in one snapshot, for plots."""

    snapshot_timestamp: datetime
    lag: int
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a history, from the first snapshot to the last."""

    groups: int
    queues: int
    snapshots: int
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogResult:
    """The result of the job.

    Args:
        lag_by_cause: the lag of each cause at the newest snapshot of each group, in messages, the
            greatest first.
        accumulations: at most `LISTED_MAX` accumulations: open ones first, those of groups with
            members before those of groups without, then by their peak.
        accumulation_count: the number of all accumulations.
        timelines: some accumulations, each with all snapshots of its queue.
    """

    extent: Extent
    lag_by_cause: Mapping[Cause, int]
    accumulations: Sequence[Accumulation]
    accumulation_count: int
    timelines: Sequence[tuple[Accumulation, Sequence[QueueSnapshot]]]


def run(
    session: SparkSession, settings: BacklogSettings, *, on_progress: OnProgress | None = None
) -> BacklogResult:
    """Explain the history, write the tables `history` and `accumulations`, and sum them up.

    Args:
        on_progress: called every second, in a thread of its own.

    Raises: ConfigError if the table `queues` is missing or empty, or lacks a column or one of the
        groups, or if a row names no time or no queue.
    """
    with reporting_progress(session, on_progress):
        return _explain(session, settings)


def _explain(session: SparkSession, settings: BacklogSettings) -> BacklogResult:
    (table,) = settings.inputs
    queues = read_table(session, table, QUEUE_COLUMNS, optional=QUEUE_OPTIONAL)
    if settings.groups:
        queues = queues.where(queues["consumerGroup"].isin(list(settings.groups)))
        if queues.isEmpty():
            names = ", ".join(settings.groups)
            raise ConfigError(f"no group of {names} is in {settings.snapshots}")
    check_complete(queues, ("snapshotTimestamp", *_QUEUE), what=table)

    root = settings.out.rstrip("/")
    history = write_table(explain_history(queues), f"{root}/history")
    found = find_accumulations(history, peak_min=settings.lag_min)
    found = write_table(found, f"{root}/accumulations")
    accumulations = _list_accumulations(found)
    (extent,) = collect_as(
        history.agg(
            F.count_distinct("consumerGroup").alias("groups"),
            F.count_distinct(*_QUEUE).alias("queues"),
            F.count_distinct("snapshotTimestamp").alias("snapshots"),
            F.min("snapshotTimestamp").alias("begin"),
            F.max("snapshotTimestamp").alias("end"),
        ),
        Extent,
    )
    return BacklogResult(
        extent=extent,
        lag_by_cause=_sum_up(history),
        accumulations=accumulations,
        accumulation_count=found.count(),
        timelines=[
            (each, _list_snapshots(history, each)) for each in _choose_plotted(accumulations)
        ],
    )


def explain_history(queues: DataFrame) -> DataFrame:
    """Add columns about the time since the snapshot before.

    Returns: the rows with `produced`, `consumed`, `seconds`, `previousTimestamp`, and `cause`,
    which is null without a backlog.
    """
    by_time = Window.partitionBy(*_QUEUE).orderBy("snapshotTimestamp")

    def change_of(name: str) -> Column:
        return F.col(name) - F.lag(name).over(by_time)

    before = F.lag("snapshotTimestamp").over(by_time)
    owners = F.coalesce("owners", F.array().cast("array<string>"))
    owners = F.when(F.col("isByMessage"), F.array(F.lit(ANY_MEMBER))).otherwise(owners)
    return (
        queues.where("lag is not null")
        .withColumn("owners", owners)
        .withColumn("previousTimestamp", before)
        .withColumn("seconds", F.col("snapshotTimestamp").cast("double") - before.cast("double"))
        .withColumn("produced", change_of("brokerOffset"))
        .withColumn("growth", change_of("lag"))
        .withColumn("consumed", F.col("produced") - F.col("growth"))
        .withColumn("cause", _cause())
    )


def _cause() -> Column:
    def is_named_by(*rules: str) -> Column:
        return F.arrays_overlap(
            F.coalesce("rules", F.array().cast("array<string>")),
            F.array(*(F.lit(rule) for rule in rules)),
        )

    has_no_owner = F.size("owners") == 0
    falls_behind = F.col("growth") > 0
    return (
        F.when(F.col("lag") <= 0, None)
        .when(has_no_owner & is_named_by("R01", "R02"), Cause.DUPLICATE_IDS)
        .when(has_no_owner & is_named_by("R05", "R12"), Cause.DIFFERENT_SUBSCRIPTIONS)
        .when(has_no_owner & (F.col("members") == 0), Cause.NO_MEMBER)
        .when(has_no_owner, Cause.UNOWNED)
        .when(F.col("growth").isNull(), Cause.UNKNOWN)
        .when((F.col("consumed") <= 0) & (F.col("growth") >= 0), Cause.STUCK)
        .when(falls_behind & (F.col("idleMembers") > 0), Cause.TOO_MANY_MEMBERS)
        .when(falls_behind, Cause.SLOW)
        .when(F.col("growth") < 0, Cause.CATCHING_UP)
        .otherwise(Cause.KEEPING_PACE)
    )


def find_accumulations(history: DataFrame, *, peak_min: int) -> DataFrame:
    """Find the accumulations in a history.

    Args:
        history: the result of `explain_history`.
        peak_min: the least peak of an accumulation, in messages.

    Returns: a row for each accumulation, with the fields of `Accumulation` in camel case.
    """
    by_time = Window.partitionBy(*_QUEUE).orderBy("snapshotTimestamp")
    breaks = F.sum((F.col("lag") <= 0).cast("int")).over(by_time)
    newest = F.max("snapshotTimestamp").over(Window.partitionBy("consumerGroup"))
    rows = history.withColumn("run", breaks).withColumn("newest", newest).where(F.col("lag") > 0)
    owner = F.when(F.size("owners") == 0, F.lit("nobody")).otherwise(F.array_join("owners", " + "))
    peak = F.max_by("snapshotTimestamp", "lag")
    since = F.min(F.coalesce("previousTimestamp", "snapshotTimestamp"))
    # The lag at the snapshot before the accumulation.
    first_lag = F.min_by(F.col("lag") - F.coalesce("growth", F.lit(0)), "snapshotTimestamp")
    runs = rows.groupBy(*_QUEUE, "run").agg(
        since.alias("since"),
        F.bool_or(F.col("previousTimestamp").isNull()).alias("hasBegunBefore"),
        F.max("snapshotTimestamp").alias("until"),
        (F.max("snapshotTimestamp") == F.max("newest")).alias("isOpen"),
        F.max("lag").alias("lagPeak"),
        F.max_by("lag", "snapshotTimestamp").alias("lagLast"),
        F.try_divide(F.max("lag") - first_lag, peak.cast("double") - since.cast("double")).alias(
            "growthPerSecond"
        ),
        F.array_sort(F.collect_set(owner)).alias("owners"),
    )
    # The cause that held longest; `unknown` ranks last, and `catching up` before it.
    cause = F.col("cause")
    weights = rows.groupBy(*_QUEUE, "run", "cause").agg(
        F.sum(F.coalesce("seconds", F.lit(0.0))).alias("weight")
    )
    ranked = Window.partitionBy(*_QUEUE, "run").orderBy(
        cause == Cause.UNKNOWN, cause == Cause.CATCHING_UP, F.desc("weight"), "cause"
    )
    causes = weights.withColumn("rank", F.row_number().over(ranked)).where("rank = 1")
    return (
        runs.join(causes.select(*_QUEUE, "run", "cause"), [*_QUEUE, "run"])
        .where(F.col("lagPeak") >= peak_min)
        .drop("run")
    )


def _list_accumulations(found: DataFrame) -> list[Accumulation]:
    # A group that nobody runs any more has a backlog in each queue; it would hide living groups.
    is_abandoned = F.col("cause") == Cause.NO_MEMBER
    order = (F.desc("isOpen"), is_abandoned, F.desc("lagPeak"), *_QUEUE, "since")
    rows = found.orderBy(*order).limit(LISTED_MAX)
    return [replace(each, cause=Cause(each.cause)) for each in collect_as(rows, Accumulation)]


def _choose_plotted(found: Sequence[Accumulation]) -> list[Accumulation]:
    """Return accumulations of at most `PLOTTED_MAX` queues, of every group and cause in turn."""
    first: dict[tuple[str, str], Accumulation] = {}
    for each in found:
        first.setdefault((each.consumer_group, each.queue_name), each)
    seen: Counter[tuple[str, str]] = Counter()
    turns: list[tuple[int, Accumulation]] = []
    for each in first.values():
        turns.append((seen[each.consumer_group, each.cause], each))
        seen[each.consumer_group, each.cause] += 1
    turns.sort(key=lambda turn: turn[0])
    return [each for _, each in turns[:PLOTTED_MAX]]


def _sum_up(history: DataFrame) -> dict[Cause, int]:
    newest = F.max("snapshotTimestamp").over(Window.partitionBy("consumerGroup"))
    rows = (
        history.withColumn("newest", newest)
        .where("snapshotTimestamp = newest and lag > 0")
        .groupBy("cause")
        .agg(F.sum("lag").alias("lag"))
        .orderBy(F.desc("lag"), "cause")
        .collect()
    )
    return {Cause(row["cause"]): row["lag"] for row in rows}


def _list_snapshots(history: DataFrame, of: Accumulation) -> list[QueueSnapshot]:
    values = (of.consumer_group, of.topic, of.broker_name, of.queue_id)
    for name, value in zip(_QUEUE, values, strict=True):
        history = history.where(F.col(name) == F.lit(value))
    snapshots = collect_as(history.orderBy("snapshotTimestamp"), QueueSnapshot)
    return snapshots[:: max(1, len(snapshots) // _SNAPSHOTS_PLOTTED)]
