"""The settings, the run and the result of the job.

The input is two tables of `sparrowmq snapshot`: `topics` has a row for each group, topic and
broker; `members` has a row for each member, and an id of two processes appears twice. The output
has a row for each group and strategy. Spark gathers each group into one row, and Python workers
evaluate groups one by one (`balance.group`). So the cost grows with the number of groups only.

The model of duplicates: a queue whose owner changes while both owners live, or whose owner dies, is
read again from the last commit. RocketMQ's clients commit every 5 s, so on average 2.5 s of
messages come twice. Kafka's members commit before they give up a queue, so only a death makes
duplicates. A queue with two owners delivers every message twice. Tests: pipeline/test_balance.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.balance.evaluation import (
    Figures,
    TopicLayout,
    evaluate,
    known_strategies,
    make_places,
)
from sparrowmq.pipeline.balance.generated_cluster import check_size, generate_cluster
from sparrowmq.pipeline.input_tables import check_complete, collect_as, read_table
from sparrowmq.pipeline.parquet import write_table
from sparrowmq.pipeline.task_progress import OnProgress, reporting_progress
from sparrowmq.spark.local_session import require_classic
from sparrowmq.strategies.registry import unknown_strategy

TOPIC_COLUMNS = {
    "consumerGroup": "string",
    "topic": "string",
    "brokerName": "string",
    "queueCount": "int",
}
TOPIC_OPTIONAL = {"messagesPerSecond": "double"}
MEMBER_COLUMNS = {"consumerGroup": "string", "clientId": "string"}

RESULT_COLUMNS = {
    "consumerGroup": "string",
    "strategy": "string",
    "family": "string",
    "topics": "int",
    "queues": "int",
    "members": "int",
    "duplicateIds": "int",
    "skew": "int",
    "idle": "int",
    "unowned": "int",
    "doubled": "int",
    "joinMoved": "int",
    "leaveMoved": "int",
    "joinerQueues": "int",
    "leaveUnowned": "int",
    "duplicatesPerSecond": "double",
    "joinDuplicates": "double",
    "leaveDuplicates": "double",
    "killDuplicates": "double",
    "failure": "string",
}
# The failure of a group without members, which counts as refused by every strategy; nobody consumes
# its queues.
NO_MEMBER = "the group has no member"
# Half of persistConsumerOffsetInterval and of Kafka's auto.commit.interval.ms, which are 5 s.
COMMIT_AGE_MEAN_S = 2.5
# Groups are divided into so many tasks for each core, so that slow groups delay one task only.
_TASKS_PER_CORE = 4
_WORST_SHOWN = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """The settings of the job; its input is a snapshot or a generated cluster.

    Args:
        out: the directory of the table `groups`.
        snapshot: the directory of the tables `topics` and `members`, of which the newest counts.
        generate: the number of groups to generate instead; equal numbers give equal groups.
        topics: the number of topics of a generated group.
        strategies: the strategies' names, in any case; empty takes all that need no settings.
        messages_per_second: the rate of each queue whose rate is not in the input.

    Raises: ConfigError if both inputs or none are given, a number is out of range, or a strategy is
        unknown.
    """

    out: str
    snapshot: str | None = None
    generate: int | None = None
    topics: int = 10
    strategies: Sequence[str] = ()
    messages_per_second: float = 1.0

    def __post_init__(self) -> None:
        if (self.snapshot is None) == (self.generate is None):
            raise ConfigError("give either a snapshot or how many groups to generate")
        if self.generate is not None:
            check_size(self.generate, self.topics)
        if not 0 <= (rate := self.messages_per_second) < math.inf:
            raise ConfigError(f"messages_per_second is {rate}; it must be 0 or more")
        choose_strategies(self.strategies)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The paths that the job reads."""
        root = None if self.snapshot is None else self.snapshot.rstrip("/")
        return () if root is None else (f"{root}/topics", f"{root}/members")


@dataclass(frozen=True, slots=True)
class StrategySummary:
    """The figures of one strategy over all groups: sums, and the mean `skew_mean`.

    Args:
        failed: the number of groups that the strategy refused, those without members included.
        unowned: the queues that nobody consumes now, those of groups without members included.
        failure: the most frequent reason of a refusal.
        joiner_queues: the queues that joining members get.
        leave_unowned: the queues that no member consumes after a leave.
    """

    strategy: str
    family: str
    groups: int
    failed: int
    queues: int
    skew_mean: float
    skew_max: int
    idle: int
    unowned: int
    doubled: int
    join_moved: int
    leave_moved: int
    joiner_queues: int
    leave_unowned: int
    duplicates_per_second: float
    join_duplicates: float
    kill_duplicates: float
    failure: str

    @property
    def ignores_joiners(self) -> bool:
        """Whether joining members get no queue, so that a join moves none."""
        return self.joiner_queues == 0


@dataclass(frozen=True, slots=True)
class WorstGroup:
    """A group in trouble under the evaluated strategy."""

    consumer_group: str
    queues: int
    members: int
    duplicate_ids: int
    skew: int
    idle: int
    unowned: int
    doubled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceResult:
    """The result of the job.

    Args:
        strategies: RocketMQ's strategies first, then SparrowMQ's, then Kafka's.
        current: the strategy of `worst`: AVG if it was compared.
        worst: the groups in trouble under `current`, those with the most unowned queues first.
    """

    strategies: Sequence[StrategySummary]
    current: str
    worst: Sequence[WorstGroup]


def run(
    session: SparkSession, settings: BalanceSettings, *, on_progress: OnProgress | None = None
) -> BalanceResult:
    """Evaluate every group under every strategy, write the table `groups`, and sum it up.

    Args:
        on_progress: called every second, in a thread of its own.

    Raises: ConfigError if an input table is missing or empty, or lacks a column or a value.
    """
    with reporting_progress(session, on_progress):
        return _compare(session, settings)


def _compare(session: SparkSession, settings: BalanceSettings) -> BalanceResult:
    chosen = choose_strategies(settings.strategies)
    if settings.snapshot is not None:
        tables = read_cluster(session, settings.snapshot)
    else:
        tables = generate_cluster(session, settings.generate or 0, topics=settings.topics)
    evaluated = balance(
        *tables, strategies=chosen, messages_per_second=settings.messages_per_second
    )
    written = write_table(evaluated, f"{settings.out.rstrip('/')}/groups")
    current = "AVG" if "AVG" in chosen else next(iter(chosen))
    return BalanceResult(
        strategies=summarise(written), current=current, worst=find_worst(written, current)
    )


def read_cluster(session: SparkSession, path: str) -> tuple[DataFrame, DataFrame]:
    """Read the newest snapshot in `path/topics` and `path/members`.

    Raises: ConfigError if a table is missing or empty, or lacks a column, or if one of these rows
        lacks a value.
    """
    root = path.rstrip("/")
    stamp = {"snapshotTimestamp": "timestamp_ltz"}
    topics = read_table(
        session, f"{root}/topics", TOPIC_COLUMNS, optional={**TOPIC_OPTIONAL, **stamp}
    )
    members = read_table(session, f"{root}/members", MEMBER_COLUMNS, optional=stamp)
    # As a number, because Spark collects timestamps in this machine's time zone.
    at = "unix_micros(snapshotTimestamp)"
    (row,) = topics.selectExpr(f"max({at}) as newest").collect()
    if row["newest"] is not None:
        is_newest = f"{at} = {row['newest']}"
        topics, members = topics.where(is_newest), members.where(is_newest)
    check_complete(topics, TOPIC_COLUMNS, what=f"{root}/topics")
    check_complete(members, MEMBER_COLUMNS, what=f"{root}/members")
    return topics, members


def balance(
    topics: DataFrame,
    members: DataFrame,
    *,
    strategies: dict[str, str],
    messages_per_second: float = 1.0,
) -> DataFrame:
    """Evaluate every group under every strategy.

    Args:
        topics: a table with `TOPIC_COLUMNS`, and optionally `messagesPerSecond`, the input of the
            row's queues together.
        members: a table with `MEMBER_COLUMNS`.
        strategies: the result of `choose_strategies`.
        messages_per_second: the rate of each queue whose rate is not in the table.

    Returns: a row for each group and strategy, with `RESULT_COLUMNS`, without groups that have no
    topic.
    """
    rate = (
        F.coalesce("messagesPerSecond", F.col("queueCount") * messages_per_second)
        if "messagesPerSecond" in topics.columns
        else F.col("queueCount") * messages_per_second
    )
    layouts = topics.groupBy("consumerGroup").agg(
        F.collect_list(F.struct("topic", "brokerName", "queueCount")).alias("topics"),
        F.sum(rate).alias("messagesPerSecond"),
    )
    clients = members.groupBy("consumerGroup").agg(F.collect_list("clientId").alias("clientIds"))
    session = topics.sparkSession
    require_classic(session)
    tasks = session.sparkContext.defaultParallelism * _TASKS_PER_CORE
    groups = layouts.join(clients, "consumerGroup", "left").repartition(tasks, "consumerGroup")
    ddl = ", ".join(f"{name} {kind}" for name, kind in RESULT_COLUMNS.items())
    return groups.mapInArrow(_evaluator(strategies), ddl)


def choose_strategies(names: Sequence[str]) -> dict[str, str]:
    """Return the origin of each named strategy, or of all strategies if none is named.

    Raises: ConfigError for an unknown name; the error names the nearest.
    """
    known = known_strategies()
    by_lower_name = {name.lower(): name for name in known}
    for name in names:
        if name.lower() not in by_lower_name:
            raise unknown_strategy(name, known)
    chosen = [by_lower_name[name.lower()] for name in names] or list(known)
    return {name: known[name] for name in chosen}


def summarise(result: DataFrame) -> list[StrategySummary]:
    """Sum up a result by strategy: RocketMQ's first, then SparrowMQ's, then Kafka's."""
    has_failed = F.col("failure").isNotNull()
    sums = (
        *("queues", "idle", "unowned", "doubled", "joinMoved", "leaveMoved", "joinerQueues"),
        *("leaveUnowned", "duplicatesPerSecond", "joinDuplicates", "killDuplicates"),
    )
    # The sums of a strategy that refused every group are null.
    rows = result.groupBy("strategy", "family").agg(
        F.count("*").alias("groups"),
        F.count_if(has_failed).alias("failed"),
        *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in sums),
        F.coalesce(F.avg("skew"), F.lit(0)).alias("skewMean"),
        F.coalesce(F.max("skew"), F.lit(0)).alias("skewMax"),
        F.coalesce(F.mode("failure"), F.lit("")).alias("failure"),
    )
    order = list(known_strategies())
    return sorted(collect_as(rows, StrategySummary), key=lambda each: order.index(each.strategy))


def find_worst(result: DataFrame, strategy: str) -> list[WorstGroup]:
    """Return the worst groups: by unowned queues, then by idle members, then by skew."""
    rows = (
        result.where(F.col("strategy") == strategy)
        .fillna(0)
        .where("unowned > 0 or doubled > 0 or idle > 0 or skew > 1")
        .orderBy(F.desc("unowned"), F.desc("idle"), F.desc("skew"), "consumerGroup")
        .limit(_WORST_SHOWN)
    )
    return collect_as(rows, WorstGroup)


def _evaluator(
    strategies: dict[str, str],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        types = {"string": pa.string(), "int": pa.int32(), "double": pa.float64()}
        schema = pa.schema([(name, types[kind]) for name, kind in RESULT_COLUMNS.items()])
        for batch in batches:
            rows = [out for row in batch.to_pylist() for out in _evaluate_row(row, strategies)]
            columns = zip(*rows, strict=True)
            arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    return run


def _evaluate_row(row: dict[str, Any], strategies: dict[str, str]) -> Iterator[tuple[Any, ...]]:
    group: str = row["consumerGroup"]
    topics = _layouts(row["topics"])
    client_ids: list[str] = row["clientIds"] or []
    queue_count = sum(topic.queue_count for topic in topics)
    head = (len(topics), queue_count, len(client_ids), len(client_ids) - len(set(client_ids)))
    rate = row["messagesPerSecond"] / queue_count if queue_count else 0.0
    places = make_places(client_ids) if client_ids else None
    for strategy, family in strategies.items():
        if places is None:
            unknown = (None, None, queue_count, *(None,) * 9)
            yield (group, strategy, family, *head, *unknown, NO_MEMBER)
            continue
        try:
            figures = evaluate(strategy, group, topics, places)
        except (ValueError, TypeError) as error:
            yield (group, strategy, family, *head, *(None,) * 12, str(error))
        else:
            yield (group, strategy, family, *head, *_cells(figures, family, rate), None)


def _cells(figures: Figures, family: str, rate: float) -> tuple[float, ...]:
    again = rate * COMMIT_AGE_MEAN_S
    handed_over = 0.0 if family == "Kafka" else again
    return (
        figures.skew,
        figures.idle,
        figures.unowned,
        figures.doubled,
        figures.join_moved,
        figures.leave_moved,
        figures.joiner_queues,
        figures.leave_unowned,
        figures.doubled * rate,
        figures.join_moved * handed_over,
        figures.leave_moved * handed_over,
        (figures.leaver_queues + (figures.leave_moved if handed_over else 0)) * again,
    )


def _layouts(rows: list[dict[str, Any]]) -> list[TopicLayout]:
    brokers: dict[str, dict[str, int]] = {}
    for row in rows:
        brokers.setdefault(row["topic"], {})[row["brokerName"]] = row["queueCount"]
    return [TopicLayout(topic, tuple(sorted(counts.items()))) for topic, counts in brokers.items()]
