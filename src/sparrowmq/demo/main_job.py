"""The main job from its first process to its last figure, stage by stage.

A stage waits in `Members.wait` alone, for a condition and with a time limit. In each round of a
wait the demo also reads the other logs, samples lags, draws the screen, and, once, kills Spark in
the middle of a batch.
"""

from __future__ import annotations

import datetime
import fnmatch
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from rich.console import Console

from sparrowmq.calling.clock import monotonic_ms, timestamp_ms
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.demo.evaluate import (
    BY_MESSAGE_GROUP,
    FIRST_GROUP,
    QUEUE_COUNT,
    QUEUES,
    SECOND_GROUP,
    TOPIC,
    evaluate,
)
from sparrowmq.demo.events import JobQuestion, ProducerEvent, SparkEvent
from sparrowmq.demo.outcome import DemoOutcome, encode_outcome
from sparrowmq.demo.progress import (
    DemoState,
    IngestState,
    Kill,
    ProductionState,
    QueueLagSample,
    StageTime,
)
from sparrowmq.demo.report_page import render_report
from sparrowmq.demo.run_directory import DemoDirectory, claim_directory
from sparrowmq.demo.screen import Screen
from sparrowmq.demo.terminal import print_outcome
from sparrowmq.doctor.owner_history import measure
from sparrowmq.processes.child_processes import Child, ChildProcesses, ending_on_sigterm
from sparrowmq.processes.group_members import Members
from sparrowmq.processes.logbook import EventTail
from sparrowmq.processes.member_log import MemberLog
from sparrowmq.testing import EmbeddedCluster

PRODUCER, PRODUCER_GROUP, SPARK, SERVERS = "producer", "GID_airlines", "spark", "servers"
TWIN_IP, TWIN_INSTANCE = "172.17.0.1", "9"
_TWIN_OPTIONS = {"client_ip": TWIN_IP, "instance_name": TWIN_INSTANCE}
# Java's default is one message per call; such calls would only measure the listener pool.
_MEMBER_OPTIONS = {"messages_per_call": 64, "pull_batch_size": 512, "threads": 2}
# The shares of all flights after which the events happen, while messages flow.
_LEAVE_AT, _JOIN_AT, _KILL_AT = 0.12, 0.28, 0.44
# The producer stops at this share until the events are over; the rest flows with the twins.
_FIRST_SHARE = 0.6
_TWINS_BEHIND_MS = 3_000
# The approximate number of micro-batches of the whole input.
_BATCHES = 4
# The first batch must be in the table: the resumed query then continues an earlier one.
_FIRST_BATCH_TO_KILL = 1
_KILLS_MAX = 3

_START_LIMIT_MS = 30_000
# A group of RocketMQ's own clients may need its 20 s period, twice.
_BALANCE_LIMIT_MS = 45_000
_PRODUCE_LIMIT_MS = 240_000
_DRAIN_LIMIT_MS = 120_000
_INGEST_LIMIT_MS = 600_000
_ANSWER_LIMIT_MS = 240_000
_END_LIMIT_MS = 20_000
_LAG_INTERVAL_MS, _USAGE_INTERVAL_MS, _DRAW_INTERVAL_MS = 400, 3_000, 200


def run_demo(out: Path, console: Console, *, limit: int | None = None) -> DemoOutcome:
    """Run the main job, write the report, print the result.

    All started processes have ended when this function returns or raises.

    Args:
        out: the output directory.
        console: the console for progress and the result.
        limit: the most flights to produce, the first in the order of departure; None for all.

    Raises: ConfigError for an unusable directory, or if the flights are not installed; NotReached
        or ProcessFailed if a stage failed or a process ended; KeyboardInterrupt on SIGINT and
        SystemExit on SIGTERM, after the clean-up.
    """
    begun = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    screen = Screen(console)
    with claim_directory(out) as directory, ending_on_sigterm():
        cluster = EmbeddedCluster(directory.broker)
        with ChildProcesses(directory.output) as processes, cluster, screen:
            state = _Demo(processes, cluster, directory, screen, limit=limit).run()
        outcome = evaluate(directory, state, begun=begun, limit=limit)
        directory.figures.write_bytes(encode_outcome(outcome))
        directory.report.write_text(render_report(outcome), encoding="utf-8")
        print_outcome(outcome, directory, console)
    return outcome


class _Demo:
    """The stages, one after another; Spark runs beside them."""

    def __init__(
        self,
        processes: ChildProcesses,
        cluster: EmbeddedCluster,
        directory: DemoDirectory,
        screen: Screen,
        *,
        limit: int | None,
    ) -> None:
        self._processes = processes
        self._cluster = cluster
        self._directory = directory
        self._screen = screen
        self._limit = limit
        self._members = Members(processes, directory.logbooks, QUEUES)
        self._members.beside = self._look
        produced = EventTail[ProducerEvent](directory.logbooks, PRODUCER, ProducerEvent)
        ingested = EventTail[SparkEvent](directory.logbooks, SPARK, SparkEvent)
        self._state = DemoState(
            begun_ms=monotonic_ms(),
            first_group=FIRST_GROUP,
            second_group=SECOND_GROUP,
            members=self._members,
            production=ProductionState(produced),
            ingest=IngestState(ingested),
        )
        # The groups' lag is sampled while there is a client for it.
        self._admin: Admin | None = None
        self._spark: Child | None = None
        self._spark_begun_ms = self._kills = 0
        self._lag_due_ms = self._usage_due_ms = self._draw_due_ms = 0

    def run(self) -> DemoState:
        """Run all stages; return the state at the end."""
        state = self._state
        with self._stage("three members share the queues"):
            producer = self._start_producer()
            self._start_spark()
            self._cluster.create_topic(TOPIC, QUEUE_COUNT)
        with Admin(name_server=self._cluster.name_server) as self._admin:
            self._share_queues(producer)
            with self._stage("one leaves, one joins, one is killed"):
                self._wait_until_produced(_LEAVE_AT)
                self._settle("b leaves gracefully", self._leave("b"))
                self._wait_until_produced(_JOIN_AT)
                self._settle("d joins", self._join("d"))
                self._wait_until_produced(_KILL_AT)
                self._settle("c is killed (kill -9)", self._members.kill("c"))
            with self._stage("two members share one client id"):
                self._stage_twins(self._admin, producer)
            with self._stage("the remedy: unique client ids"):
                self._remedy(self._admin)
            self._end(self._admin)
        self._admin = None
        with self._stage("members leave"):
            self._leave(*(log.name for log in self._members.logs.values() if not log.state.is_over))
        ingest = state.ingest
        with self._stage("Spark catches up"):
            self._wait(
                "every flight in Parquet", lambda: ingest.ingested_ms is not None, _INGEST_LIMIT_MS
            )
        with self._stage("Spark answers"):
            self._ask_spark()
            self._wait("answer of Spark", lambda: ingest.answers is not None, _ANSWER_LIMIT_MS)
        return state

    def _start_producer(self) -> Child:
        """Start the producer, which loads the flights and waits for commands."""
        limit = [] if self._limit is None else ["--limit", str(self._limit)]
        producer = self._processes.start(
            PRODUCER,
            [
                *("-m", "sparrowmq.demo.produce", "--name", PRODUCER, "--group", PRODUCER_GROUP),
                *("--topic", TOPIC, "--logbooks", str(self._directory.logbooks), *limit),
                *("--name-server", self._cluster.name_server),
            ],
            has_input=True,
            may_finish=True,
        )
        self._members.required.append(producer)
        return producer

    def _start_spark(self) -> None:
        """Start Spark, or start it again."""
        directory, self._spark_begun_ms = self._directory, timestamp_ms()
        self._spark = self._processes.start(
            SPARK,
            [
                *("-m", "sparrowmq.demo.spark_job", "--name", SPARK, "--producer", PRODUCER),
                *("--name-server", self._cluster.name_server, "--topic", TOPIC),
                *("--batches", str(_BATCHES), "--out", str(directory.ingest)),
                *("--logbooks", str(directory.logbooks)),
            ],
            # Otherwise Spark would put work files into the current directory.
            environment={"SPARK_LOCAL_DIRS": str(directory.run / "spark")},
            has_input=True,
            may_finish=True,
        )
        self._members.required.append(self._spark)

    def _start_member(self, name: str, group: str, **options: str) -> MemberLog:
        return self._members.start(
            name,
            group,
            name_server=self._cluster.name_server,
            topic=TOPIC,
            **_MEMBER_OPTIONS,
            **options,
        )

    def _join(self, *names: str) -> int:
        """Start members of the first group; return the instant from which they all take part.

        The start of Python is not measured.
        """
        logs = [self._start_member(name, FIRST_GROUP) for name in names]
        self._wait(
            f"start of {' and '.join(names)}",
            lambda: all(log.started_ms is not None for log in logs),
            _START_LIMIT_MS,
        )
        return max(log.started_ms or 0 for log in logs)

    def _share_queues(self, producer: Child) -> None:
        self._settle("the group starts", self._join("a", "b", "c"))
        self._wait("flights", lambda: self._state.production.total is not None, _START_LIMIT_MS)
        self._allow(producer, share=_FIRST_SHARE)

    def _allow(self, producer: Child, *, share: float) -> None:
        producer.send_line(str(round((self._state.production.total or 0) * share)))

    def _wait_until_produced(self, share: float) -> None:
        production = self._state.production
        target = (production.total or 0) * share
        what = f"production of {share:.0%} of the flights"
        self._wait(what, lambda: production.count >= target, _PRODUCE_LIMIT_MS)

    def _settle(self, name: str, at_ms: int) -> None:
        """Wait until every queue has one owner again after an event."""
        self._state.events.append((at_ms, name))
        self._wait_for_balance(FIRST_GROUP)
        holdings = self._members.holdings(FIRST_GROUP)
        settled_ms = measure(holdings, QUEUES, since_ms=at_ms, until_ms=monotonic_ms()).settled_ms
        self._screen.say(f"            {name}: one owner each after {settled_ms or 0:,} ms")

    def _wait_for_balance(self, group: str) -> None:
        self._wait(
            f"single owner of every queue of {group}",
            lambda: self._members.is_balanced(group),
            _BALANCE_LIMIT_MS,
        )

    def _stage_twins(self, admin: Admin, producer: Child) -> None:
        twins, members, production = self._state.twins, self._members, self._state.production
        logs = [
            self._start_member(name, SECOND_GROUP, **_TWIN_OPTIONS) for name in ("twin-1", "twin-2")
        ]
        self._wait("queues of both twins", lambda: all(log.owned for log in logs), _START_LIMIT_MS)
        twins.begin_ms = monotonic_ms()
        self._allow(producer, share=1.0)
        producer.close_input()
        self._wait("production of all flights", lambda: production.is_done, _PRODUCE_LIMIT_MS)
        self._wait(
            "consumption of the queues that the twins took", self._have_twins_done, _DRAIN_LIMIT_MS
        )
        # Now only queues without an owner lag. Wait a little longer: they must keep lagging.
        seen_ms = monotonic_ms() + _TWINS_BEHIND_MS
        self._wait("end of a pause", lambda: monotonic_ms() >= seen_ms, 2 * _TWINS_BEHIND_MS)
        twins.cid_all = admin.consumer_ids(SECOND_GROUP)
        twins.taken = {log.name: list(log.owned) for log in logs}
        owners = members.owners(SECOND_GROUP)
        twins.unowned = [queue_id for queue_id, names in enumerate(owners) if not names]

    def _have_twins_done(self) -> bool:
        lag, owners = self._state.lag(SECOND_GROUP) or [], self._members.owners(SECOND_GROUP)
        return not any(behind for behind, names in zip(lag, owners, strict=True) if names)

    def _remedy(self, admin: Admin) -> None:
        twins, state = self._state.twins, self._state
        twins.remedy_ms = self._leave("twin-1", "twin-2")
        # Not before: the twin that leaves last takes all queues for a moment.
        twins.backlog_at_remedy = [lag.lag for lag in admin.group_lag(SECOND_GROUP, TOPIC)]
        # Beside the remedy: again two members of one client id, with the same backlog.
        admin.clone_offsets(SECOND_GROUP, BY_MESSAGE_GROUP, TOPIC)
        by_message = [
            self._start_member(name, BY_MESSAGE_GROUP, balance="messages", **_TWIN_OPTIONS)
            for name in ("free-1", "free-2")
        ]
        for name in ("new-1", "new-2"):
            self._start_member(name, SECOND_GROUP)
        self._wait_for_balance(SECOND_GROUP)
        twins.healed_ms = monotonic_ms()
        self._wait_until_drained(SECOND_GROUP)
        twins.drained_ms = monotonic_ms()
        self._wait_until_drained(BY_MESSAGE_GROUP)
        samples = [sample for sample in state.lags if sample.by_message]
        twins.by_message_drained_ms = next(
            sample.at_ms for sample in samples if not any(sample.by_message)
        )

        def has_reported() -> bool:
            twins.by_message = {log.name: sum(log.counts.values()) for log in by_message}
            return sum(twins.by_message.values()) >= sum(twins.backlog_at_remedy)

        self._wait("report of the members by messages", has_reported, _END_LIMIT_MS)

    def _wait_until_drained(self, group: str) -> None:
        def is_drained() -> bool:
            lag = self._state.lag(group)
            return lag is not None and not any(lag)

        self._wait(f"end of the backlog of {group}", is_drained, _DRAIN_LIMIT_MS)

    def _end(self, admin: Admin) -> None:
        self._wait_until_drained(FIRST_GROUP)
        state = self._state
        state.ended_ms = monotonic_ms()
        for group in (FIRST_GROUP, SECOND_GROUP):
            state.owners[group] = self._members.owners(group)
        for group in (FIRST_GROUP, SECOND_GROUP, BY_MESSAGE_GROUP):
            state.end_lags[group] = sum(lag.lag for lag in admin.group_lag(group, TOPIC))

    def _leave(self, *names: str) -> int:
        return self._members.leave(*names, limit_ms=_END_LIMIT_MS)

    def _ask_spark(self) -> None:
        consumed = {
            log.name: str(log.consumed_path)
            for log in self._members.of(FIRST_GROUP)
            if log.consumed_path.exists()
        }
        question = JobQuestion(group=FIRST_GROUP, consumed=consumed, events=self._state.events)
        assert self._spark is not None
        self._spark.send_line(msgspec.json.encode(question).decode())

    def _wait(self, what: str, is_so: Callable[[], object], limit_ms: int) -> None:
        self._members.wait(what, is_so, limit_ms=limit_ms)

    def _look(self) -> None:
        """Do what is due beside the stages."""
        state, now_ms = self._state, monotonic_ms()
        state.production.read()
        state.ingest.read()
        self._watch_spark()
        if self._admin is not None and now_ms >= self._lag_due_ms:
            self._lag_due_ms = now_ms + _LAG_INTERVAL_MS
            groups = [FIRST_GROUP, SECOND_GROUP]
            if self._members.of(BY_MESSAGE_GROUP):
                groups.append(BY_MESSAGE_GROUP)
            lags = [[lag.lag for lag in self._admin.group_lag(each, TOPIC)] for each in groups]
            state.lags.append(QueueLagSample(now_ms, *lags))
        if now_ms >= self._usage_due_ms:
            self._usage_due_ms = now_ms + _USAGE_INTERVAL_MS
            found = self._processes.find_processes()
            state.usage.add({**found, self._cluster.pid: SERVERS})
        if now_ms >= self._draw_due_ms:
            self._draw_due_ms = now_ms + _DRAW_INTERVAL_MS
            self._screen.draw(state)

    def _watch_spark(self) -> None:
        """Say which batch Spark writes; once, kill it in the middle of one, and start it again."""
        ingest, table = self._state.ingest, self._directory.table
        writing = table / "_writing"
        names = (path.name for path in writing.glob("batchId=*"))
        batch_id = max((int(name.partition("=")[2]) for name in names), default=-1)
        # A session that was killed has left files.
        files = count_data_files(writing / f"batchId={batch_id}", self._spark_begun_ms)
        if not files:
            return
        ingest.begin_step(f"writes batch {batch_id}", monotonic_ms())
        if ingest.kill or self._kills >= _KILLS_MAX or batch_id < _FIRST_BATCH_TO_KILL:
            return
        assert self._spark is not None
        self._members.required.remove(self._spark)
        self._spark.kill()
        self._kills += 1
        # If the batch is published, the kill came too late: a later batch is killed.
        if not (table / f"batchId={batch_id}").exists():
            ingest.kill = Kill(monotonic_ms(), batch_id, files)
        ingest.begin_step(f"was killed in batch {batch_id}, and starts again", monotonic_ms())
        self._start_spark()

    @contextmanager
    def _stage(self, name: str) -> Generator[None]:
        stage = StageTime(name, monotonic_ms())
        self._state.stages.append(stage)
        self._screen.say(f"{(stage.begin_ms - self._state.begun_ms) / 1000:6.1f} s  {name}")
        yield
        stage.end_ms = monotonic_ms()


def count_data_files(directory: Path, since_ms: int) -> int:
    """Count the data files of an unpublished batch that are newer than an instant.

    Spark moves and removes files and directories meanwhile.
    """
    count = 0
    for folder, _, names in os.walk(directory):
        for name in fnmatch.filter(names, "*.parquet"):
            with suppress(FileNotFoundError):
                found = os.stat(os.path.join(folder, name))
                count += found.st_size > 0 and found.st_mtime * 1000 > since_ms
    return count
