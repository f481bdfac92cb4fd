"""The job `balance`: what every strategy would do to every consumer group of a cluster.

Input are two tables, as `sparrowmq snapshot` writes them: `topics` (a row a group, topic and
broker) and `members` (a row a member; an id that two processes share stands twice). Output is a
row a group and strategy. Spark gathers each group into one row, and Python workers evaluate
groups one by one (`balance_group`), so cost grows with the number of groups and nothing else.

Duplicates are expected by this model. A queue whose owner changes while both owners live, and one
whose owner dies, is read again from the last commit. RocketMQ's clients commit every 5 s, so on
average 2.5 s of messages come twice; Kafka's members commit before they give a queue up, and only
a death makes duplicates. A queue with two owners now delivers every message twice.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.balance_group import (
    Figures,
    TopicLayout,
    evaluate,
    known_strategies,
    make_places,
)
from sparrowmq.pipeline.tables import read_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

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
    "duplicatesPerSecond": "double",
    "joinDuplicates": "double",
    "leaveDuplicates": "double",
    "killDuplicates": "double",
    "failure": "string",
}
# Half of persistConsumerOffsetInterval (5 s), Kafka's auto.commit.interval.ms too.
COMMIT_AGE_MEAN_S = 2.5
# Groups are shared out among so many tasks a core, so that slow groups do not keep one waiting.
_TASKS_PER_CORE = 4


class StrategySummary(NamedTuple):
    """How one strategy fares over all groups. Moves and queues are sums, `skew` a mean."""

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
    duplicates_per_second: float
    join_duplicates: float
    kill_duplicates: float
    failure: str


def read_cluster(session: SparkSession, path: str) -> tuple[DataFrame, DataFrame]:
    """Read `path/topics` and `path/members`; of repeated snapshots, the newest.

    Raises: ConfigError if a table is missing, empty, or lacks a column.
    """
    root = path.rstrip("/")
    stamp = {"snapshotTimestamp": "timestamp"}
    topics = read_table(
        session, f"{root}/topics", TOPIC_COLUMNS, optional={**TOPIC_OPTIONAL, **stamp}
    )
    members = read_table(session, f"{root}/members", MEMBER_COLUMNS, optional=stamp)
    # As a number: a timestamp that is collected comes in the zone of this machine.
    at = "unix_micros(snapshotTimestamp)"
    (row,) = topics.selectExpr(f"max({at}) as newest").collect()
    if row["newest"] is None:
        return topics, members
    is_newest = f"{at} = {row['newest']}"
    return topics.where(is_newest), members.where(is_newest)


def balance(
    topics: DataFrame,
    members: DataFrame,
    *,
    strategies: Sequence[str] = (),
    messages_per_second: float = 1.0,
) -> DataFrame:
    """Evaluate every group under every strategy.

    Args:
        topics: with the columns of `TOPIC_COLUMNS`, and perhaps `messagesPerSecond`, which is what
            is produced into these queues together.
        members: with the columns of `MEMBER_COLUMNS`.
        strategies: their names; all that need no settings if empty.
        messages_per_second: of each queue, where the table does not say.

    Returns: a row a group and strategy, by `RESULT_COLUMNS`. Groups without topics are left out.
    Raises: ConfigError for an unknown strategy.
    """
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

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
    tasks = session.sparkContext.defaultParallelism * _TASKS_PER_CORE
    groups = layouts.join(clients, "consumerGroup", "left").repartition(tasks, "consumerGroup")
    ddl = ", ".join(f"{name} {kind}" for name, kind in RESULT_COLUMNS.items())
    return groups.mapInArrow(_evaluator(choose_strategies(strategies)), ddl)


def choose_strategies(names: Sequence[str]) -> dict[str, str]:
    """Return whose each named strategy is; all if none is named.

    Raises: ConfigError for an unknown one, with the nearest.
    """
    known = known_strategies()
    by_lower_name = {name.lower(): name for name in known}
    for name in names:
        if name.lower() not in by_lower_name:
            near = difflib.get_close_matches(name.lower(), by_lower_name, n=1, cutoff=0.0)[0]
            raise ConfigError(
                f"cannot balance by strategy {name!r}; the nearest is {by_lower_name[near]}, "
                f"and all are {', '.join(known)}"
            )
    chosen = [by_lower_name[name.lower()] for name in names] or list(known)
    return {name: known[name] for name in chosen}


def summarise(result: DataFrame) -> list[StrategySummary]:
    """Add up a result by strategy: RocketMQ's first, then ours, then Kafka's."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    fine = F.col("failure").isNull()
    rows = (
        result.groupBy("strategy", "family")
        .agg(
            F.count("*").alias("groups"),
            F.count_if(~fine).alias("failed"),
            F.sum("queues").alias("queues"),
            F.avg("skew").alias("skew_mean"),
            F.max("skew").alias("skew_max"),
            *(
                F.sum(column).alias(name)
                for column, name in (
                    ("idle", "idle"),
                    ("unowned", "unowned"),
                    ("doubled", "doubled"),
                    ("joinMoved", "join_moved"),
                    ("leaveMoved", "leave_moved"),
                    ("duplicatesPerSecond", "duplicates_per_second"),
                    ("joinDuplicates", "join_duplicates"),
                    ("killDuplicates", "kill_duplicates"),
                )
            ),
            F.mode("failure").alias("failure"),
        )
        .collect()
    )
    order = list(known_strategies())
    empty: dict[str, Any] = dict.fromkeys(StrategySummary._fields, 0) | {"failure": ""}
    found = [
        StrategySummary(**{k: empty[k] if v is None else v for k, v in row.asDict().items()})
        for row in rows
    ]
    return sorted(found, key=lambda summary: order.index(summary.strategy))


class WorstGroup(NamedTuple):
    """A group that suffers, under the strategy it was evaluated with."""

    consumer_group: str
    queues: int
    members: int
    duplicate_ids: int
    skew: int
    idle: int
    unowned: int
    doubled: int


def find_worst(result: DataFrame, strategy: str, *, count: int = 12) -> list[WorstGroup]:
    """Return the groups with the most unowned queues, then the most idle members and skew."""
    from pyspark.sql import functions as F  # noqa: N812  (the name that Spark's users know)

    rows = (
        result.where((F.col("strategy") == strategy) & F.col("failure").isNull())
        .where("unowned > 0 or doubled > 0 or idle > 0 or skew > 1")
        .orderBy(F.desc("unowned"), F.desc("idle"), F.desc("skew"), "consumerGroup")
        .select(
            "consumerGroup",
            "queues",
            "members",
            "duplicateIds",
            "skew",
            "idle",
            "unowned",
            "doubled",
        )
        .limit(count)
        .collect()
    )
    return [WorstGroup(*row) for row in rows]


def _evaluator(
    strategies: dict[str, str],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

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
        try:
            if places is None:
                raise ValueError("the group has no member")
            figures = evaluate(strategy, group, topics, places)
        except (ValueError, TypeError) as error:
            yield (group, strategy, family, *head, *(None,) * 10, str(error))
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
