"""The job `backlog`: which queues accumulated, since when, who owned them, and why.

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
| catching up | the backlog shrinks |

Members commit every 5 s, so looks less than 10 s apart may call a slow consumer stuck. An
*accumulation* is a time in which a queue's lag stood above a limit; its cause is the one that held
longest while it did not shrink.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from sparrowmq.pipeline.tables import read_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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

DUPLICATE_IDS = "unowned: duplicate client ids"
DIFFERENT_SUBSCRIPTIONS = "unowned: different subscriptions"
NO_MEMBER = "no member"
UNOWNED = "unowned"
STUCK = "stuck consumer"
TOO_MANY_MEMBERS = "more consumers than queues"
SLOW = "slow consumer"
CATCHING_UP = "catching up"

REMEDIES = {
    DUPLICATE_IDS: "give every process a client id of its own (instanceName)",
    DIFFERENT_SUBSCRIPTIONS: "let all members of the group subscribe the same topics",
    NO_MEMBER: "start a member of the group",
    UNOWNED: "ask the doctor: sparrowmq rebalance doctor GROUP",
    STUCK: "look at what the owner's listener waits for; restart it",
    TOO_MANY_MEMBERS: "more members cannot help: give the topic more queues",
    SLOW: "make the listener faster, give it more threads, or add members",
    CATCHING_UP: "nothing: the backlog shrinks",
}
_QUEUE = ("consumerGroup", "topic", "brokerName", "queueId")


class Accumulation(NamedTuple):
    """A time in which a queue's lag stood above the limit.

    Args:
        since: the last look before it, or the first at all: it began after that.
        until: the last look that saw it.
        is_open: whether that is the newest look at the group.
        lag_peak, lag_last: messages.
        growth_per_second: from `since` to the peak.
        owners: client ids, several joined by " + ", "nobody" included, in the order of names.
    """

    consumer_group: str
    topic: str
    broker_name: str
    queue_id: int
    since: datetime
    until: datetime
    is_open: bool
    lag_peak: int
    lag_last: int
    growth_per_second: float
    owners: tuple[str, ...]
    cause: str

    @property
    def queue_name(self) -> str:
        """The queue, for people."""
        return f"{self.topic} {self.broker_name}:{self.queue_id}"


class Look(NamedTuple):
    """A queue at one look, for plots."""

    at: datetime
    lag: int
    owners: tuple[str, ...]


def read_history(session: SparkSession, path: str) -> DataFrame:
    """Read `path/queues`.

    Raises: ConfigError if the table is missing, empty, or lacks a column.
    """
    table = f"{path.rstrip('/')}/queues"
    return read_table(session, table, QUEUE_COLUMNS, optional=QUEUE_OPTIONAL)


def explain_history(queues: DataFrame) -> DataFrame:
    """Add to each row what happened since the look before: `produced`, `consumed`, `seconds`,
    `previousTimestamp`, and `cause`, which is null without a backlog.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

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


def find_accumulations(history: DataFrame, *, lag_min: int = 0, peak_min: int = 100) -> DataFrame:
    """Return every accumulation, the fields of `Accumulation` as columns in Spark's spelling.

    Args:
        history: as `explain_history` gives it.
        lag_min: an accumulation lasts while the lag is greater.
        peak_min: one whose lag never reached this is left out.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    course = Window.partitionBy(*_QUEUE).orderBy("snapshotTimestamp")
    breaks = F.sum((F.col("lag") <= lag_min).cast("int")).over(course)
    newest = F.max("snapshotTimestamp").over(Window.partitionBy("consumerGroup"))
    rows = (
        history.withColumn("run", breaks).withColumn("newest", newest).where(F.col("lag") > lag_min)
    )
    owner = F.when(F.size("owners") == 0, F.lit("nobody")).otherwise(F.array_join("owners", " + "))
    peak = F.max_by("snapshotTimestamp", "lag")
    since = F.min(F.coalesce("previousTimestamp", "snapshotTimestamp"))
    # What stood before it began: the lag at the look before the first.
    first_lag = F.min_by(F.col("lag") - F.coalesce("growth", F.lit(0)), "snapshotTimestamp")
    runs = rows.groupBy(*_QUEUE, "run").agg(
        since.alias("since"),
        F.max("snapshotTimestamp").alias("until"),
        (F.max("snapshotTimestamp") == F.max("newest")).alias("isOpen"),
        F.max("lag").alias("lagPeak"),
        F.max_by("lag", "snapshotTimestamp").alias("lagLast"),
        (
            F.coalesce(
                F.try_divide(F.max("lag") - first_lag, peak.cast("double") - since.cast("double")),
                F.lit(0.0),
            )
        ).alias("growthPerSecond"),
        F.array_sort(F.collect_set(owner)).alias("owners"),
    )
    weights = (
        rows.groupBy(*_QUEUE, "run", "cause")
        .agg(F.sum(F.coalesce("seconds", F.lit(0.0))).alias("weight"))
        .withColumn("isShrinking", F.col("cause") == CATCHING_UP)
    )
    ranked = Window.partitionBy(*_QUEUE, "run").orderBy("isShrinking", F.desc("weight"), "cause")
    causes = weights.withColumn("rank", F.row_number().over(ranked)).where("rank = 1")
    return (
        runs.join(causes.select(*_QUEUE, "run", "cause"), [*_QUEUE, "run"])
        .where(F.col("lagPeak") >= peak_min)
        .drop("run")
    )


def list_accumulations(found: DataFrame, *, count: int = 200) -> list[Accumulation]:
    """Return the worst accumulations: open ones first, then by their peak."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    rows = found.orderBy(F.desc("isOpen"), F.desc("lagPeak"), *_QUEUE, "since").limit(count)
    return [
        Accumulation(
            consumer_group=row["consumerGroup"],
            topic=row["topic"],
            broker_name=row["brokerName"],
            queue_id=row["queueId"],
            since=_at(row["sinceSeconds"]),
            until=_at(row["untilSeconds"]),
            is_open=row["isOpen"],
            lag_peak=row["lagPeak"],
            lag_last=row["lagLast"],
            growth_per_second=row["growthPerSecond"],
            owners=tuple(row["owners"]),
            cause=row["cause"],
        )
        for row in rows.withColumn("sinceSeconds", F.col("since").cast("double"))
        .withColumn("untilSeconds", F.col("until").cast("double"))
        .collect()
    ]


class Totals(NamedTuple):
    """What the history covers, and the backlog of all queues at the newest look by cause."""

    groups: int
    queues: int
    looks: int
    begin: datetime
    end: datetime
    lag_by_cause: dict[str, int]


def sum_up(history: DataFrame) -> Totals:
    """Count what the history covers."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    (row,) = history.agg(
        F.count_distinct("consumerGroup"),
        F.count_distinct(*_QUEUE),
        F.count_distinct("snapshotTimestamp"),
        F.min("snapshotTimestamp").cast("double"),
        F.max("snapshotTimestamp").cast("double"),
    ).collect()
    newest = F.max("snapshotTimestamp").over(Window.partitionBy("consumerGroup"))
    lags = (
        history.withColumn("newest", newest)
        .where("snapshotTimestamp = newest and lag > 0")
        .groupBy("cause")
        .agg(F.sum("lag").alias("lag"))
        .orderBy(F.desc("lag"))
        .collect()
    )
    groups, queues, looks, begin, end = row
    by_cause = {lag["cause"]: lag["lag"] for lag in lags}
    return Totals(groups, queues, looks, _at(begin), _at(end), by_cause)


def list_looks(history: DataFrame, of: Accumulation, *, count: int = 400) -> list[Look]:
    """Return a queue's whole course, thinned to about `count` looks."""
    values: dict[str, Any] = dict(
        zip(_QUEUE, (of.consumer_group, of.topic, of.broker_name, of.queue_id), strict=True)
    )
    chosen = history
    for name, value in values.items():
        chosen = chosen.where(chosen[name] == value)
    at = chosen["snapshotTimestamp"].cast("double")
    rows = chosen.orderBy("snapshotTimestamp").select(at, "lag", "owners").collect()
    looks = [Look(_at(row[0]), row[1], tuple(row[2] or ())) for row in rows]
    return looks[:: max(1, len(looks) // count)]


def _at(seconds: float) -> datetime:
    """Return an instant in UTC: Spark would give one in the zone of this machine, unmarked."""
    return datetime.fromtimestamp(seconds, UTC)


def _cause() -> Column:
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    def is_named_by(*rules: str) -> Column:
        return F.arrays_overlap(
            F.coalesce("rules", F.array().cast("array<string>")),
            F.array(*(F.lit(rule) for rule in rules)),
        )

    has_no_owner = F.size(F.coalesce("owners", F.array().cast("array<string>"))) == 0
    falls_behind = F.col("growth") > 0
    return (
        F.when(F.col("lag") <= 0, None)
        .when(has_no_owner & is_named_by("R01", "R02"), DUPLICATE_IDS)
        .when(has_no_owner & is_named_by("R05", "R12"), DIFFERENT_SUBSCRIPTIONS)
        .when(has_no_owner & (F.col("members") == 0), NO_MEMBER)
        .when(has_no_owner, UNOWNED)
        .when((F.col("consumed") <= 0) & (F.col("growth") >= 0), STUCK)
        .when(falls_behind & (F.col("idleMembers") > 0), TOO_MANY_MEMBERS)
        .when(falls_behind, SLOW)
        .otherwise(CATCHING_UP)
    )
