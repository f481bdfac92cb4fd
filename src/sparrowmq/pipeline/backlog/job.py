"""What to look at, how causes follow from a history of looks, and the result.

Input is the table `queues` that repeated `sparrowmq snapshot` fills: a row a group, queue and look.
From one look to the next follows how much was produced and consumed, and so a *cause*:

| cause | what was seen |
|---|---|
| unowned: duplicate client ids | nobody owns the queue; the doctor's R01 or R02 names it |
| unowned: different subscriptions | nobody owns it; R05 or R12 names it |
| no member | nobody is in the group |
| unowned | nobody owns it, for another reason |
| stuck consumer | it has an owner, there are messages, and no offset moved |
| more consumers than queues | it falls behind while other members have no queue at all |
| slow consumer | it falls behind: more is produced than consumed |
| keeping pace | as much is consumed as is produced: the backlog stays |
| catching up | the backlog shrinks |
| unknown | it has an owner, and there is no look before to compare with |

Members commit every 5 s, so looks less than 10 s apart may call a slow consumer stuck. An
*accumulation* is a time in which a queue's lag stood above 0; its cause is the one that held
longest while it did not shrink.
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
from sparrowmq.pipeline.tables import collect_as, read_table

QUEUE_COLUMNS = {
    "snapshotTimestamp": "timestamp",
    "consumerGroup": "string",
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "brokerOffset": "bigint",
    "consumerOffset": "bigint",
    "lag": "bigint",
    "owners": "array<string>",
}
QUEUE_OPTIONAL = {"rules": "array<string>", "members": "int", "idleMembers": "int"}
# Accumulations in a result, and queues in plots: one colour each.
LISTED_MAX, PLOTTED_MAX = 200, 8
# A course is thinned to about so many looks.
_LOOKS_PLOTTED = 400
_QUEUE = ("consumerGroup", "topic", "brokerName", "queueId")


class Cause(StrEnum):
    """Why a queue is behind."""

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
    """What to look at.

    Args:
        snapshots: the directory that `sparrowmq snapshot` has filled.
        out: the directory of the tables `history` and `accumulations`.
        groups: only these; all if empty.
        lag_min: an accumulation whose lag never reached this is left out.
    """

    snapshots: str
    out: str
    groups: Sequence[str] = ()
    lag_min: int = 100


@dataclass(frozen=True, slots=True)
class Accumulation:
    """A time in which a queue was behind.

    Args:
        since: the last look before it: it began after that; or the first look at all, if the queue
            was behind then already: `has_begun_before`.
        until: the last look that saw it.
        is_open: whether that is the newest look at the group.
        lag_peak, lag_last: messages.
        growth_per_second: from `since` to the peak; None if that is one look.
        owners: client ids, several joined by " + ", "nobody" included, in the order of names.
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
        """The queue, for people."""
        return f"{self.topic} {self.broker_name}:{self.queue_id}"


@dataclass(frozen=True, slots=True)
class QueueLook:
    """A queue at one look, for plots."""

    snapshot_timestamp: datetime
    lag: int
    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """What a history covers, from the first look to the last."""

    groups: int
    queues: int
    looks: int
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogResult:
    """What the history shows.

    Args:
        lag_by_cause: messages behind at the newest look at each group, most first.
        accumulations: open ones first, then by their peak, `LISTED_MAX` at most.
        accumulation_count: all of them.
        courses: the whole course of some queues, each with its accumulation.
    """

    extent: Extent
    lag_by_cause: Mapping[Cause, int]
    accumulations: Sequence[Accumulation]
    accumulation_count: int
    courses: Sequence[tuple[Accumulation, Sequence[QueueLook]]]


def run(session: SparkSession, settings: BacklogSettings) -> BacklogResult:
    """Explain the history, write it and its accumulations as tables, and sum it up.

    Raises: ConfigError if the table `queues` is missing, empty, lacks a column or these groups.
    """
    table = f"{settings.snapshots.rstrip('/')}/queues"
    queues = read_table(session, table, QUEUE_COLUMNS, optional=QUEUE_OPTIONAL)
    if settings.groups:
        queues = queues.where(queues["consumerGroup"].isin(list(settings.groups)))
        if queues.isEmpty():
            names = ", ".join(settings.groups)
            raise ConfigError(f"no group of {names} is in {settings.snapshots}")

    def keep(frame: DataFrame, name: str) -> DataFrame:
        path = f"{settings.out.rstrip('/')}/{name}"
        frame.write.mode("overwrite").parquet(path)
        return session.read.parquet(path)

    history = keep(explain_history(queues), "history")
    found = keep(find_accumulations(history, peak_min=settings.lag_min), "accumulations")
    accumulations = _list_accumulations(found)
    (extent,) = collect_as(
        history.agg(
            F.count_distinct("consumerGroup").alias("groups"),
            F.count_distinct(*_QUEUE).alias("queues"),
            F.count_distinct("snapshotTimestamp").alias("looks"),
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
        courses=[(each, _list_looks(history, each)) for each in _choose_plotted(accumulations)],
    )


def explain_history(queues: DataFrame) -> DataFrame:
    """Add to each row what happened since the look before: `produced`, `consumed`, `seconds`,
    `previousTimestamp`, and `cause`, which is null without a backlog.
    """
    course = Window.partitionBy(*_QUEUE).orderBy("snapshotTimestamp")

    def change_of(name: str) -> Column:
        return F.col(name) - F.lag(name).over(course)

    before = F.lag("snapshotTimestamp").over(course)
    return (
        queues.where("lag is not null")
        .withColumn("previousTimestamp", before)
        .withColumn("seconds", F.col("snapshotTimestamp").cast("double") - before.cast("double"))
        .withColumn("produced", change_of("brokerOffset"))
        .withColumn("consumed", change_of("consumerOffset"))
        .withColumn("growth", change_of("lag"))
        .withColumn("cause", _cause())
    )


def _cause() -> Column:
    def is_named_by(*rules: str) -> Column:
        return F.arrays_overlap(
            F.coalesce("rules", F.array().cast("array<string>")),
            F.array(*(F.lit(rule) for rule in rules)),
        )

    has_no_owner = F.size(F.coalesce("owners", F.array().cast("array<string>"))) == 0
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
    """Return every accumulation, the fields of `Accumulation` as columns in Spark's spelling.

    Args:
        history: as `explain_history` gives it.
        peak_min: one whose lag never reached this is left out.
    """
    course = Window.partitionBy(*_QUEUE).orderBy("snapshotTimestamp")
    breaks = F.sum((F.col("lag") <= 0).cast("int")).over(course)
    newest = F.max("snapshotTimestamp").over(Window.partitionBy("consumerGroup"))
    rows = history.withColumn("run", breaks).withColumn("newest", newest).where(F.col("lag") > 0)
    owner = F.when(F.size("owners") == 0, F.lit("nobody")).otherwise(F.array_join("owners", " + "))
    peak = F.max_by("snapshotTimestamp", "lag")
    since = F.min(F.coalesce("previousTimestamp", "snapshotTimestamp"))
    # What stood before it began: the lag at the look before the first.
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
    # The cause that held longest; rather one that is known, and rather one while it did not shrink.
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
    rows = found.orderBy(F.desc("isOpen"), F.desc("lagPeak"), *_QUEUE, "since").limit(LISTED_MAX)
    return [replace(each, cause=Cause(each.cause)) for each in collect_as(rows, Accumulation)]


def _choose_plotted(found: Sequence[Accumulation]) -> list[Accumulation]:
    """Return accumulations of as many queues as have colours, of every group and cause in turn."""
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


def _list_looks(history: DataFrame, of: Accumulation) -> list[QueueLook]:
    values = (of.consumer_group, of.topic, of.broker_name, of.queue_id)
    for name, value in zip(_QUEUE, values, strict=True):
        history = history.where(F.col(name) == F.lit(value))
    looks = collect_as(history.orderBy("snapshotTimestamp"), QueueLook)
    return looks[:: max(1, len(looks) // _LOOKS_PLOTTED)]
