"""The settings, the run and the result of the job. Tests: pipeline/test_duplicates.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener

from sparrowmq.errors import ConfigError
from sparrowmq.model.names import TRACE_TOPIC
from sparrowmq.pipeline.duplicates import judging, records
from sparrowmq.pipeline.duplicates.stream import (
    DELAY_S,
    TABLES,
    Progress,
    is_followed,
    read_tables,
    watch_duplicates,
)
from sparrowmq.pipeline.input_tables import collect_as
from sparrowmq.pipeline.local_paths import check_apart
from sparrowmq.pipeline.parquet import write_table
from sparrowmq.pipeline.running_query import check_seconds, never
from sparrowmq.pipeline.task_progress import OnProgress, reporting_progress
from sparrowmq.spark.local_session import register
from sparrowmq.spark.options import parse_options

EVENTS_MAX = 200
LOST_NAMED_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatesSettings:
    """The settings of the job; either `consumed` or `trace` is given.

    Args:
        out: the directory of the output tables.
        consumed: the table of consumption records.
        trace: the name servers, `host:port` joined by ';', of the message trace to read, which also
            has the produced messages.
        produced: the table of produced messages, such as ingest's; None finds no losses.
        events: the table of rebalance events; None finds events in the records.
        follow_interval_s: the time between micro-batches of a run that follows new deliveries; None
            ends the run once it has read all present ones.
        delay_s: the age at which a run that follows judges a delivery.

    Raises: ConfigError if the settings contradict each other, an input is in a table that the job
        replaces, a time is longer than a year, or there is no such name server or topic by its
        form.
    """

    out: str
    consumed: str | None = None
    trace: str | None = None
    trace_topic: str = TRACE_TOPIC
    produced: str | None = None
    events: str | None = None
    follow_interval_s: float | None = None
    delay_s: float = DELAY_S

    def __post_init__(self) -> None:
        if (self.consumed is None) == (self.trace is None):
            raise ConfigError("give either consumed records or a trace, as host:port")
        if self.trace is not None and self.produced is not None:
            raise ConfigError("a trace has what was produced itself; leave it out")
        check_apart(self.inputs, (f"{self.out.rstrip('/')}/{name}" for name in TABLES))
        check_seconds("follow_interval_s", self.follow_interval_s)
        check_seconds("delay_s", self.delay_s)
        if self.follow_interval_s is not None and self.produced is not None:
            raise ConfigError("who follows learns from a trace alone what was produced")
        if self.trace is not None:
            parse_options({"nameServer": self.trace, "topic": self.trace_topic}, scope="any")

    @property
    def inputs(self) -> tuple[str, ...]:
        """The paths that the job reads."""
        paths = (self.consumed, self.produced, self.events)
        return tuple(path for path in paths if path is not None)

    @property
    def knows_produced(self) -> bool:
        """Whether the produced messages are known, so that losses can be found."""
        return self.trace is not None or self.produced is not None


@dataclass(frozen=True, slots=True)
class EventFigures:
    """A rebalance event, and the duplicates until the next event.

    Args:
        event_index: the event's number from 1; 0 is the time before the first event.
        at: the event's time; None for the time before the first event.
        deliveries: the group's deliveries until the next event, duplicates included.
        by_same_member: the duplicates delivered to the same member as the first delivery.
        queues: the number of queues with duplicates.
    """

    consumer_group: str
    event_index: int
    event: str
    strategy: str
    at: datetime | None
    deliveries: int
    duplicates: int
    by_same_member: int
    queues: int


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """A group's deliveries; `lost` and `pending` are None if produced messages are unknown."""

    consumer_group: str
    deliveries: int
    messages: int
    duplicates: int
    most_often: int
    lost: int | None
    pending: int | None


@dataclass(frozen=True, slots=True)
class StrategyFigures:
    """The duplicates under one strategy, over all groups."""

    strategy: str
    events: int
    deliveries: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class LostMessage:
    """A message that a group skipped; an unknown place or id is None."""

    consumer_group: str
    topic: str
    broker_name: str | None
    queue_id: int | None
    queue_offset: int | None
    msg_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicatesResult:
    """The result of the job.

    Args:
        groups: the groups' figures, by name; empty while no delivery is old enough to be judged.
        events: at most `EVENTS_MAX` events, those with the most duplicates, by group and time.
        strategies: the strategies' figures, those with the most duplicates for a delivery first.
        lost: at most the first `LOST_NAMED_MAX` lost messages.
        knows_produced: whether the produced messages are known, so that losses were found.
    """

    groups: Sequence[GroupFigures]
    events: Sequence[EventFigures]
    strategies: Sequence[StrategyFigures]
    lost: Sequence[LostMessage]
    knows_produced: bool


def run(
    session: SparkSession,
    settings: DuplicatesSettings,
    *,
    on_batch: Callable[[Progress], None] | None = None,
    on_progress: OnProgress | None = None,
    listener: StreamingQueryListener | None = None,
    should_stop: Callable[[], bool] = never,
) -> DuplicatesResult:
    """Judge every delivery, write the tables, and sum them up.

    Args:
        on_batch: called in the driver after each micro-batch of a run that follows.
        on_progress: called every second, in a thread of its own.
        listener: a listener of the query of a run that follows, such as `LagListener`.
        should_stop: called twice a second by a run that follows; True stops the run.

    Entries of a trace that cannot be read are left out, and counted in the log or by `on_batch`.

    Raises: ConfigError if an input table does not exist or has other columns, if a record has no
        group, member or time, or if the directory of the output has tables of a run that follows
        and this one does not, or the other way round.
    """
    if settings.trace is not None:
        register(session)
    with reporting_progress(session, on_progress):
        if settings.follow_interval_s is None:
            return _run_once(session, settings)
        return _follow(session, settings, on_batch, listener, should_stop)


def _follow(
    session: SparkSession,
    settings: DuplicatesSettings,
    on_batch: Callable[[Progress], None] | None,
    listener: StreamingQueryListener | None,
    should_stop: Callable[[], bool],
) -> DuplicatesResult:
    entries = (
        records.stream_records(session, settings.consumed or "")
        if settings.trace is None
        else records.stream_trace(session, settings.trace, settings.trace_topic)
    )
    path = settings.events
    watch_duplicates(
        entries,
        settings.out,
        delay_s=settings.delay_s,
        interval_s=settings.follow_interval_s,
        read_events=None if path is None else lambda: records.read_events(session, path),
        on_batch=on_batch,
        should_stop=should_stop,
        listener=listener,
    )
    tables = read_tables(session, settings.out)
    knows = settings.knows_produced
    if "deliveries" not in tables:
        return DuplicatesResult(groups=(), events=(), strategies=(), lost=(), knows_produced=knows)
    return sum_up(tables["deliveries"], tables.get("missing"), knows_produced=knows)


def _run_once(session: SparkSession, settings: DuplicatesSettings) -> DuplicatesResult:
    root = settings.out.rstrip("/")
    if is_followed(session, settings.out):
        raise ConfigError(
            f"{settings.out} is of a run that follows, whose tables would be replaced; choose "
            f"another directory, or follow"
        )
    produced: DataFrame | None = None
    if settings.trace is not None:
        consumed, produced = records.read_trace(session, settings.trace, settings.trace_topic)
    else:
        consumed = records.read_records(session, settings.consumed or "")
        if settings.produced is not None:
            produced = records.read_produced(session, settings.produced)
    happened = (
        judging.find_events(consumed)
        if settings.events is None
        else records.read_events(session, settings.events)
    )
    happened = write_table(happened, f"{root}/events")
    deliveries = write_table(judging.attribute(consumed, happened), f"{root}/deliveries")
    write_table(deliveries.where("nth > 1"), f"{root}/duplicates")
    missing = None
    if produced is not None:
        missing = write_table(judging.find_missing(consumed, produced), f"{root}/missing")
    return sum_up(deliveries, missing, knows_produced=produced is not None)


def sum_up(
    deliveries: DataFrame, missing: DataFrame | None = None, *, knows_produced: bool = False
) -> DuplicatesResult:
    """Sum up judged deliveries.

    Args:
        deliveries: the result of `judging.attribute`.
        missing: the result of `judging.find_missing`; None without missing messages.
        knows_produced: whether the produced messages are known, so that losses were found.
    """
    lost: list[LostMessage] = []
    if missing is not None:
        rows = missing.where(F.col("state") == judging.LOST)
        rows = rows.orderBy("consumerGroup", *records.PLACE_COLUMNS).limit(LOST_NAMED_MAX)
        lost = collect_as(rows, LostMessage)
    return DuplicatesResult(
        groups=_list_groups(deliveries, missing, knows_produced=knows_produced),
        events=_list_events(deliveries),
        strategies=_list_strategies(deliveries),
        lost=lost,
        knows_produced=knows_produced,
    )


def _list_events(attributed: DataFrame) -> list[EventFigures]:
    is_again = F.col("nth") > 1
    queue = F.concat_ws("|", "topic", "brokerName", "queueId")
    is_same = is_again & (F.col("clientId") == F.col("firstClientId"))
    rows = attributed.groupBy("consumerGroup", "eventIndex", "event", "strategy").agg(
        F.first("eventTimestamp").alias("at"),
        F.count("*").alias("deliveries"),
        F.count_if(is_again).alias("duplicates"),
        F.count_if(is_same).alias("bySameMember"),
        F.count_distinct(F.when(is_again, queue)).alias("queues"),
    )
    worst = rows.orderBy(F.desc("duplicates"), "consumerGroup", "eventIndex").limit(EVENTS_MAX)
    return collect_as(worst.orderBy("consumerGroup", "eventIndex"), EventFigures)


def _list_strategies(attributed: DataFrame) -> list[StrategyFigures]:
    event = F.when(F.col("eventIndex") > 0, F.col("eventIndex"))
    rows = attributed.groupBy("strategy").agg(
        F.count_distinct("consumerGroup", event).alias("events"),
        F.count("*").alias("deliveries"),
        F.count_if(F.col("nth") > 1).alias("duplicates"),
    )
    found = collect_as(rows, StrategyFigures)
    return sorted(found, key=lambda each: (-each.duplicates / each.deliveries, each.strategy))


def _list_groups(
    attributed: DataFrame, missing: DataFrame | None, *, knows_produced: bool
) -> list[GroupFigures]:
    absent = missing or attributed.select("consumerGroup", F.lit("").alias("state")).limit(0)
    states = absent.groupBy("consumerGroup").agg(
        F.count_if(F.col("state") == judging.LOST).alias("lost"),
        F.count_if(F.col("state") == judging.PENDING).alias("pending"),
    )
    none = F.lit(0 if knows_produced else None)
    rows = (
        attributed.groupBy("consumerGroup")
        .agg(
            F.count("*").alias("deliveries"),
            F.count_distinct("messageKey").alias("messages"),
            F.count_if(F.col("nth") > 1).alias("duplicates"),
            F.max("nth").alias("mostOften"),
        )
        .join(states, "consumerGroup", "left")
        .withColumns({name: F.coalesce(name, none) for name in ("lost", "pending")})
    )
    return collect_as(rows.orderBy("consumerGroup"), GroupFigures)
