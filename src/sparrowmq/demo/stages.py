"""The stages of the main job, in order."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import msgspec

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.demo.board import Board, Ending, Happening, StageTime, TwinStaging
from sparrowmq.demo.cast import (
    FIRST_GROUP,
    QUEUE_COUNT,
    SECOND_GROUP,
    TOPIC,
    Cast,
    find_ready_address,
)
from sparrowmq.demo.directory import DemoDirectory
from sparrowmq.demo.logbook import JobQuestion
from sparrowmq.demo.lookout import Lookout
from sparrowmq.demo.pipeline_keeper import PipelineKeeper
from sparrowmq.processes.crew import Child
from sparrowmq.processes.member_log import MemberLog

TWIN_IP, TWIN_INSTANCE = "172.17.0.1", "9"
# The shares of all flights after which the events happen, while messages flow.
_LEAVE_AT, _JOIN_AT, _KILL_AT = 0.12, 0.28, 0.44
# The producer stops at this share until the events are over; the rest flows with the twins.
_FIRST_SHARE = 0.6
_TWINS_BEHIND_S = 3.0

_START_PATIENCE_S = 30.0
# A group of RocketMQ's own clients may need its 20 s period, twice.
_BALANCE_PATIENCE_S = 45.0
_PRODUCE_PATIENCE_S = 240.0
_DRAIN_PATIENCE_S = 120.0
_INGEST_PATIENCE_S = 600.0
_END_PATIENCE_S = 20.0


class Stages:
    """Runs the stages one after another; Spark runs beside them.

    The results of the stages are in `board`, `twins`, `ending` and `times`.
    """

    def __init__(self, cast: Cast, lookout: Lookout, directory: DemoDirectory) -> None:
        self.twins = TwinStaging()
        self.times: list[StageTime] = []
        self._cast = cast
        self._lookout = lookout
        self._board: Board = lookout.board
        self._directory = directory
        self._children: dict[str, Child] = {}
        self._pipeline = PipelineKeeper(cast, self._board, table=directory.table)

    def run(self) -> Ending:
        """Run all stages; return the state at the end."""
        with self._stage("NameServer and Broker start, flights are loaded"):
            producer = self._start_everything()
        with Admin(name_server=self._cast.name_server) as admin:
            self._produce_and_break(admin, producer)
            ending = self._settle_everything(admin)
            self._lookout.sample_backlogs(None)
        with self._stage("members leave"):
            self._close_members()
        with self._stage("Spark catches up and answers"):
            self._ask_spark()
        with self._stage("servers stop"):
            self._stop_servers()
        return ending

    def _produce_and_break(self, admin: Admin, producer: Child) -> None:
        with self._stage("three members share the queues"):
            admin.create_topic(TOPIC, QUEUE_COUNT)
            producer.send_line(self._cast.name_server)
            self._start_members(FIRST_GROUP, "a", "b", "c")
            self._lookout.sample_backlogs(admin, topic=TOPIC)
            self._wait_for_balance()
            self._allow(producer, share=_FIRST_SHARE)
        with self._stage("one leaves, one joins, one is killed"):
            self._let_leave("b", at_share=_LEAVE_AT)
            self._let_join("d", at_share=_JOIN_AT)
            self._let_die("c", at_share=_KILL_AT)
        with self._stage("two members share one client id"):
            self._stage_twins(admin, producer)
        with self._stage("the remedy: unique client ids"):
            self._remedy(admin)

    def _start_everything(self) -> Child:
        """Start the servers, and beside them the loading of flights and Spark, which take long."""
        name_server = self._cast.start_name_server()
        producer = self._cast.start_producer()
        self._lookout.vital.append(producer)
        self._cast.name_server = self._wait_until_ready(name_server)
        broker = self._cast.start_broker()
        self._pipeline.start()
        self._lookout.beside = self._pipeline.look
        self._wait_until_ready(broker)
        return producer

    def _wait_until_ready(self, server: Child) -> str:
        self._lookout.vital.append(server)
        self._lookout.wait_for(
            lambda: find_ready_address(server) is not None,
            f"the {server.name} is ready",
            timeout_s=_START_PATIENCE_S,
        )
        return find_ready_address(server) or ""

    def _start_members(self, group: str, *names: str, **identity: str) -> list[MemberLog]:
        members = []
        for name in names:
            child, member = self._cast.start_member(name, group, **identity)
            self._children[name] = child
            self._lookout.vital.append(child)
            members.append(member)
        return members

    def _wait_for_balance(self) -> None:
        self._happen("the group starts", monotonic_ms())
        members = self._board.members_of(FIRST_GROUP)
        self._lookout.wait_for(
            lambda: all(member.started_ms is not None for member in members),
            "the first members have started",
            timeout_s=_START_PATIENCE_S,
        )
        # The event is the instant from which all three take part.
        happening = self._board.happenings[-1]
        happening.at_ms = max(member.started_ms or 0 for member in members)
        self._wait_until_settled(happening)

    def _allow(self, producer: Child, *, share: float) -> None:
        production = self._board.production
        self._lookout.wait_for(
            lambda: production.total is not None,
            "the producer has loaded the flights",
            timeout_s=_START_PATIENCE_S,
        )
        producer.send_line(str(round((production.total or 0) * share)))

    def _wait_until_produced(self, share: float) -> None:
        production = self._board.production
        target = (production.total or 0) * share
        self._lookout.wait_for(
            lambda: production.count >= target,
            f"{share:.0%} of the flights are produced",
            timeout_s=_PRODUCE_PATIENCE_S,
        )

    def _let_leave(self, name: str, *, at_share: float) -> None:
        self._wait_until_produced(at_share)
        happening = self._happen(f"{name} leaves gracefully", monotonic_ms())
        self._ask_to_leave(name)
        self._wait_until_settled(happening)

    def _let_join(self, name: str, *, at_share: float) -> None:
        self._wait_until_produced(at_share)
        (member,) = self._start_members(FIRST_GROUP, name)
        self._lookout.wait_for(
            lambda: member.started_ms is not None,
            f"{name} has started",
            timeout_s=_START_PATIENCE_S,
        )
        # From the instant at which the process joins: the start of Python is not measured.
        happening = self._happen(f"{name} joins", member.started_ms or 0)
        self._wait_until_settled(happening)

    def _let_die(self, name: str, *, at_share: float) -> None:
        self._wait_until_produced(at_share)
        child = self._children[name]
        self._lookout.vital.remove(child)
        happening = self._happen(f"{name} is killed (kill -9)", monotonic_ms())
        child.kill()
        self._board.members[name].mark_killed(happening.at_ms)
        self._wait_until_settled(happening)

    def _happen(self, name: str, at_ms: int) -> Happening:
        happening = Happening(name, at_ms)
        self._board.happenings.append(happening)
        return happening

    def _wait_until_settled(self, happening: Happening) -> None:
        self._lookout.wait_for(
            lambda: self._board.is_balanced(FIRST_GROUP),
            f"every queue has one owner again after: {happening.name}",
            timeout_s=_BALANCE_PATIENCE_S,
        )
        changes = [
            each.at_ms
            for member in self._board.members_of(FIRST_GROUP)
            for each in member.assignments
        ]
        happening.settled_ms = max(0, max(changes) - happening.at_ms)
        self._lookout.screen.say(
            f"            {happening.name}: one owner each after {happening.settled_ms:,} ms"
        )

    def _stage_twins(self, admin: Admin, producer: Child) -> None:
        twins, board = self.twins, self._board
        members = self._start_members(
            SECOND_GROUP, "twin-1", "twin-2", client_ip=TWIN_IP, instance_name=TWIN_INSTANCE
        )
        self._lookout.wait_for(
            lambda: all(member.owned for member in members),
            "both twins have taken queues",
            timeout_s=_BALANCE_PATIENCE_S,
        )
        twins.begin_ms = monotonic_ms()
        self._allow(producer, share=1.0)
        producer.close_input()
        self._lookout.wait_for(
            lambda: board.production.is_done,
            "all flights are produced",
            timeout_s=_PRODUCE_PATIENCE_S,
        )
        self._lookout.vital.remove(producer)
        self._lookout.wait_for(
            self._have_twins_consumed_their_share,
            "the twins have consumed the queues they took",
            timeout_s=_DRAIN_PATIENCE_S,
        )
        # Now only queues without an owner lag. Wait a little longer: they must keep lagging.
        seen_ms = monotonic_ms() + round(_TWINS_BEHIND_S * 1000)
        self._lookout.wait_for(
            lambda: monotonic_ms() >= seen_ms, "the time is over", timeout_s=2 * _TWINS_BEHIND_S
        )
        twins.cid_all = admin.consumer_ids(SECOND_GROUP)
        twins.taken = {member.name: list(member.owned) for member in members}
        owners = board.owners(SECOND_GROUP)
        twins.unowned = [queue_id for queue_id, names in enumerate(owners) if not names]
        twins.backlog_at_remedy = [lag.lag for lag in admin.group_lag(SECOND_GROUP, TOPIC)]

    def _have_twins_consumed_their_share(self) -> bool:
        lag = self._board.lag(SECOND_GROUP) or []
        owners = self._board.owners(SECOND_GROUP)
        return not any(behind for behind, names in zip(lag, owners, strict=True) if names)

    def _remedy(self, admin: Admin) -> None:
        twins, board = self.twins, self._board
        twins.remedy_ms = monotonic_ms()
        self._ask_to_leave("twin-1", "twin-2")
        self._start_members(SECOND_GROUP, "new-1", "new-2")
        self._lookout.wait_for(
            lambda: board.is_balanced(SECOND_GROUP),
            "every queue of the second group has one owner",
            timeout_s=_BALANCE_PATIENCE_S,
        )
        twins.healed_ms = monotonic_ms()
        self._wait_until_drained(SECOND_GROUP)
        twins.drained_ms = monotonic_ms()

    def _wait_until_drained(self, group: str) -> None:
        def is_drained() -> bool:
            lag = self._board.lag(group)
            return lag is not None and not any(lag)

        self._lookout.wait_for(
            is_drained, f"the backlog of {group} is zero", timeout_s=_DRAIN_PATIENCE_S
        )

    def _settle_everything(self, admin: Admin) -> Ending:
        self._wait_until_drained(FIRST_GROUP)
        groups = (FIRST_GROUP, SECOND_GROUP)
        self._lookout.look()
        return Ending(
            at_ms=monotonic_ms(),
            owners={group: self._board.owners(group) for group in groups},
            lags={group: [lag.lag for lag in admin.group_lag(group, TOPIC)] for group in groups},
        )

    def _ask_to_leave(self, *names: str) -> None:
        members = [self._board.members[name] for name in names]
        for member in members:
            child = self._children[member.name]
            self._lookout.vital.remove(child)
            member.mark_leaving()
            child.ask_to_end()
        self._lookout.wait_for(
            lambda: all(member.state.is_over for member in members),
            f"{' and '.join(names)} left",
            timeout_s=_END_PATIENCE_S,
        )

    def _close_members(self) -> None:
        living = [m.name for m in self._board.members.values() if not m.state.is_over]
        self._ask_to_leave(*living)

    def _ask_spark(self) -> None:
        consumed = {
            member.name: str(member.consumed_path)
            for member in self._board.members_of(FIRST_GROUP)
            if member.consumed_path.exists()
        }
        events = [(happening.at_ms, happening.name) for happening in self._board.happenings]
        question = JobQuestion(group=FIRST_GROUP, consumed=consumed, events=events)
        # The job must never read half a question.
        fresh = self._directory.question.with_suffix(".fresh")
        fresh.write_bytes(msgspec.json.encode(question))
        fresh.replace(self._directory.question)
        self._lookout.wait_for(
            lambda: self._board.ingest.answered_ms is not None,
            "Spark has answered",
            timeout_s=_INGEST_PATIENCE_S,
        )
        self._pipeline.stop()

    def _stop_servers(self) -> None:
        servers, self._lookout.vital = self._lookout.vital, []
        for server in reversed(servers):
            server.ask_to_end()
            server.wait(_END_PATIENCE_S)

    @contextmanager
    def _stage(self, name: str) -> Generator[None]:
        stage = StageTime(name, monotonic_ms())
        self.times.append(stage)
        self._board.stage = name
        self._lookout.screen.say(f"{(stage.begin_ms - self._board.begun_ms) / 1000:6.1f} s  {name}")
        yield
        stage.end_ms = monotonic_ms()
