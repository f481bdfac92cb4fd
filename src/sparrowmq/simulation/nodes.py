"""The servers of a simulated cluster: name servers, and brokers with their disks.

A host outlives its process. Each start makes a new `broker/host.py`, which `broker/server.py` runs
on an event loop, over the content of the disk. Tests: test_runs.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial

from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_files import CONFIG_DIRECTORY, read_tables
from sparrowmq.broker.config_saving import LOCKS_FILE, OFFSETS_FILE, SaveWork
from sparrowmq.broker.consumer_groups import ConsumerGroups
from sparrowmq.broker.host import BrokerHost, Round, RoundLane, attempt
from sparrowmq.broker.journal_records import LockChange, encode_changes
from sparrowmq.calling.effects import Operation
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX, retry_topic
from sparrowmq.nameserver.name_server import NameServer
from sparrowmq.protocol.bodies import ConsumerOffsetTable
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import SendMessageRequestHeaderV2
from sparrowmq.serving.connections import Connection, Output
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.driver import SimulatedDriver
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage
from sparrowmq.simulation.machine import SimulatedServer
from sparrowmq.simulation.pop_watch import PopWatch
from sparrowmq.simulation.process import Process
from sparrowmq.simulation.surroundings import WALL_MS, Surroundings
from sparrowmq.store.config import FlushMode, StoreConfig
from sparrowmq.store.expiry import ExpiryWork
from sparrowmq.store.flush import FlushWork
from sparrowmq.store.journal import Journal
from sparrowmq.store.message_store import MessageStore

# The real broker ticks every 100 ms; none of its work needs this precision.
BROKER_TICK_MS = 200
NAME_SERVER_TICK_MS = 2_000
# The longest delay of the broker's write of offsets: some ticks.
SAVE_MARGIN_MS = 1_000
# The longest sync.
SYNC_MS_MAX = 6
# The share of syncs that a planned end of the process does not leave out although nothing was
# appended since the sync began.
UNSYNCED_SHARE = 0.1
SLOW_SYNC_MS_MAX = 6_000
# From a confirmation, or the write of a table, to the planned end of the process.
SOON_MS_MAX = 3
# The requests whose success says that something is on the disk.
CONFIRMED_CODES = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.CONSUMER_SEND_MSG_BACK,
    RequestCode.END_TRANSACTION,
    RequestCode.RECALL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
)
# Small files: a run must pass their ends.
LOG_FILE_SIZE = 32 * 1024
QUEUE_FILE_SIZE = 20 * 20
MESSAGE_BYTES_MAX = 4 * 1024
# The use of the disk above which the broker removes the oldest messages.
FULL_PERCENT = 99
_LOCKS_PATH = f"{CONFIG_DIRECTORY}/{LOCKS_FILE}"


class WriteMoment(Enum):
    """Moments at which an end of the process shows what was not on the disk yet."""

    SYNC = "during a sync"
    CONFIRMED = "after a confirmation, while the log is not flushed to its end"
    SAVED = "after a write of tables, while the log is not flushed to its end"


class NameServerNode:
    """The machine of a name server, which keeps no files.

    Args:
        has_old_route: returns whether the name server's route of a topic is not the brokers'.
    """

    def __init__(
        self,
        address: str,
        world: Surroundings,
        has_old_route: Callable[[NameServerNode, str], bool],
    ) -> None:
        self.address = address
        self.host = address.rpartition(":")[0]
        self.process: Process | None = None
        # The instant until which it gets nothing from brokers.
        self.behind_until_ms = 0
        self._world, self._has_old_route = world, has_old_route

    def start(self) -> None:
        """Start the process, which knows nothing."""
        world = self._world
        process = self.process = world.start_process(f"name-server {self.address}", self.host)
        machine = self.machine = NameServer()
        server = SimulatedServer(
            process,
            world.network,
            machine,
            on_failure=world.checkers.note_failure,
            on_request=self._note_request,
        )
        world.network.power_on(self.host)
        server.listen(self.address)

        def tick() -> None:
            server.perform(machine.tick(now_ms=process.monotonic_ms()))
            process.call_in(NAME_SERVER_TICK_MS, tick)

        tick()

    def kill(self) -> None:
        """Kill the process."""
        if self.process is not None:
            self.process.kill()
            self._world.network.drop_process(self.process)
            self.process = None

    def power_off(self) -> None:
        """Cut the machine's power: nothing answers at its address."""
        if self.process is not None:
            self.process.kill()
            self._world.network.power_off(self.process)
            self.process = None

    def _note_request(self, _: Connection, command: RemotingCommand) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            is_old = self._has_old_route(self, (command.ext_fields or {})["topic"])
            self._world.checkers.notices["old routes given"] += is_old


class BrokerNode:
    """A machine with a broker.

    Args:
        config: the broker's settings.
        group: the consumer group whose offsets are checked.
        topic: the group's topic.
        wall_ms: the lead of the machine's wall clock.
        notice_pause_ms: gathers the group's notices, as for a large group, for this long for each
            member; 0 announces each change at once.
    """

    def __init__(
        self,
        config: BrokerConfig,
        world: Surroundings,
        dice: Dice,
        *,
        group: str,
        topic: str,
        wall_ms: int = 0,
        notice_pause_ms: int = 0,
    ) -> None:
        self.config = config
        self._notice_pause_ms = notice_pause_ms
        self.storage = SimulatedStorage(dice)
        # The kinds of rounds whose syncs are slow.
        self.slow_lanes: tuple[RoundLane, ...] = ()
        self.process: Process | None = None
        self._world, self._dice = world, dice
        self._timeline, self._network = world.timeline, world.network
        self._checkers = world.checkers
        self._group = group
        self._topics = (topic, retry_topic(group))
        self._wall_ms = self._right_ms = WALL_MS + wall_ms
        self._rounds: dict[RoundLane, Round] = {}
        self._save_ms = 0
        # The last instant at which the log was not flushed to its end.
        self._unflushed_ms = 0
        # The last instant at which the broker was not able to serve pops at once.
        self._unwell_ms = 0
        self._checked_position: int | None = None
        # The send-backs under way; each is called when the broker confirms it.
        self._backs: dict[tuple[Connection, int], Callable[[], None]] = {}
        self._has_stopped = False
        # How far the log was flushed when the process ended.
        self._flushed_position = 0
        # Ends the process at a moment of the broker's writing, if this is planned.
        self._end_writing: Callable[[], None] | None = None
        self._end_moment = WriteMoment.SYNC
        # The requests whose success says that something is on the disk.
        self._to_confirm: set[tuple[Connection, int]] = set()

    @property
    def host(self) -> str:
        """The machine's address."""
        return self.config.address.rpartition(":")[0]

    @property
    def has_failed(self) -> bool:
        """Whether only another start mends the broker: its disk or its store fails."""
        has_store = self.process is not None and self._store.is_writable
        return self.storage.is_failing or not (has_store or self.process is None)

    @property
    def name(self) -> str:
        """The broker's name."""
        return self.config.broker_name

    def start(self) -> None:
        """Load the content of the disk and serve."""
        process = self.process = self._world.start_process(
            self.name, self.host, wall_ms=self._wall_ms
        )
        store = self._store = MessageStore(
            self.storage,
            StoreConfig(
                flush=self.config.flush,
                commit_log_file_size=LOG_FILE_SIZE,
                index_slot_count=64,
                index_entry_count=256,
                consume_queue_file_size=QUEUE_FILE_SIZE,
                message_bytes_max=MESSAGE_BYTES_MAX,
            ),
        )
        try:
            store.load(timestamp_ms=process.timestamp_ms())
            saved = read_tables(self.storage).tables
        except (SparrowError, OSError) as error:
            self._checkers.note_failure(f"start of {self.name}", error)
            self._stop()
            return
        broker = self.broker = Broker(
            self.config,
            store,
            random_below=lambda count: self._dice.randrange(0, count),
            saved=saved,
            now_ms=process.monotonic_ms(),
            timestamp_ms=process.timestamp_ms(),
        )
        if self._notice_pause_ms:
            broker.state.consumers = ConsumerGroups(
                prompt_members_max=0, notice_pause_ms=self._notice_pause_ms
            )
        self._pops = PopWatch(self.name, self._checkers.pops)
        self._check_start()
        self._backs, self._to_confirm = {}, set()
        self._unwell_ms = self._timeline.now_ms
        self._host = BrokerHost(
            self.broker, self.storage, self, name_servers=self._world.name_servers
        )
        self._server = SimulatedServer(
            process,
            self._network,
            self.broker,
            on_turn=self._turn,
            awaits_turn=broker.awaits_turn,
            on_failure=self._checkers.note_failure,
            on_request=self._note_request,
            on_reply=self._note_reply,
            on_closed=self._pops.note_closed,
        )
        self._driver = SimulatedDriver(
            process,
            self._network,
            on_failure=self._checkers.note_failure,
            on_connection_lost=self._host.connection_lost,
        )
        for round in self._host.first_rounds():
            self._run(round)
        self._network.power_on(self.host)
        self._server.listen(self.config.address)
        self._tick()

    def kill(self) -> None:
        """Kill the process; the machine and all writes stay.

        A failing disk is replaced by a disk with its durable content.
        """
        process = self._stop()
        if process is None:
            return
        self._network.drop_process(process)
        if self.storage.is_failing:
            self.storage.lose_power()
        else:
            self.storage.kill()

    def stop(self) -> None:
        """Stop the broker cleanly, as far as its disk allows."""
        if self.process is None or self.storage.is_failing:
            self.kill()
            return
        self._host.is_stopping = True
        for round in list(self._rounds.values()):
            self._end_round(round)
        for round in self._host.last_rounds():
            self._run(round)
        with suppress(SparrowError):
            self._store.close()
        self.kill()

    def power_off(self) -> None:
        """Cut the power, perhaps during a sync."""
        rounds = self._rounds
        process = self._stop()
        if process is None:
            return
        self._network.power_off(process)
        for lane in RoundLane:
            if lane in rounds:
                self._run_partly(rounds[lane].run)
        self.storage.lose_power()

    def end_while_writing(
        self, end: Callable[[], None], moment: WriteMoment = WriteMoment.SYNC
    ) -> None:
        """Call `end`, which ends the process, soon after the next such moment."""
        self._end_writing, self._end_moment = end, moment

    def let_write(self) -> None:
        """Cancel what `end_while_writing` has planned."""
        self._end_writing = None

    def _end_soon(self, moment: WriteMoment, within_ms: int) -> None:
        """End the process within this time, if its end is planned for such a moment."""
        end = self._end_writing
        if end is None or moment is not self._end_moment or self.process is None:
            return

        def end_unless_ended() -> None:
            if self._end_writing is end:
                end()

        self.process.call_in(self._dice.randrange(0, within_ms), end_unless_ended)

    def expire_file(self) -> None:
        """Let the broker soon remove the oldest file of its log, as on a full disk."""
        self.storage.percent_used = FULL_PERCENT
        self.broker.state.retention.ask()

    def forget_locks(self) -> None:
        """Lose the table of locks while no process runs, as RocketMQ's brokers do."""
        saved = read_tables(self.storage).tables
        for path in (_LOCKS_PATH, f"{_LOCKS_PATH}.bak"):
            self.storage.remove(path)
        releases = [
            LockChange(change.group, change.queue, None)
            for change in saved.changes
            if isinstance(change, LockChange)
        ]
        if releases:
            # The loss needs no room on the disk.
            is_full, self.storage.is_full = self.storage.is_full, False
            journal = Journal(self.storage, CONFIG_DIRECTORY)
            journal.append(saved.segment + 1, encode_changes(releases))
            self.storage.is_full = is_full
        self.storage.sync_directory(CONFIG_DIRECTORY)
        self._checkers.note_locks_lost(self.name, now_ms=self._timeline.now_ms)

    def _run_partly(self, work: Callable[[], None]) -> None:
        if self._dice.random() < 0.5:
            self.storage.changes_left = self._dice.randrange(0, 4)
            with suppress(PowerCut, OSError):
                work()

    def _stop(self) -> Process | None:
        process, self.process = self.process, None
        if process is not None:
            # Of the turn that did not end.
            self._check_commits()
            self._checkers.note_stopped(self.name)
            process.kill()
            self._rounds = {}
            self._has_stopped = True
            self._flushed_position = self._store.flushed_position
            self.let_write()
        return process

    # --- starting ---------------------------------------------------------------------------

    def _check_start(self) -> None:
        self.broker.settle(now_ms=self.monotonic_ms())
        if self.config.flush is FlushMode.ASYNC:
            self._checkers.note_lost(
                self.name, self._store, flushed_position=self._flushed_position
            )
            self._checked_position = None
        self._checkers.check_restarted(self.name, self._store, wall_ms=self._wall_ms)
        self._checkers.lists.note_gone(self.name)
        if self._has_stopped:
            self._checkers.check_reloaded(
                self.name, self._offset_tables(), now_ms=self._timeline.now_ms
            )
        self._save_ms = self._timeline.now_ms

    def _offset_tables(self) -> Mapping[str, Mapping[int, int]]:
        offsets = self.broker.state.offsets
        return {topic: offsets.queues(self._group, topic) for topic in self._topics}

    # --- turns ------------------------------------------------------------------------------

    def _tick(self) -> None:
        assert self.process is not None
        self._host.tick()
        if self._is_unflushed:
            self._unflushed_ms = self._timeline.now_ms
        if self._is_unflushed or self.storage.is_full or self.has_failed:
            self._unwell_ms = self._timeline.now_ms
        self._pops.check(well_since_ms=max(self._unwell_ms, self.process.woken_ms))
        if RoundLane.SAVE not in self._rounds:
            self._checkers.check_saving(
                self.name,
                last_ms=max(self._save_ms, self._unflushed_ms),
                latest_ms=self._timeline.now_ms
                - self.config.offsets_save_interval_ms
                - SAVE_MARGIN_MS,
            )
        self.process.call_in(BROKER_TICK_MS, self._tick)

    def _turn(self) -> None:
        assert self.process is not None
        self._host.settle()
        # Before the round copies the tables: the check must know their content.
        self._check()
        self._host.begin_rounds()
        if self._end_writing is not None and RoundLane.FLUSH in self._rounds:
            if self._waits_for_sync():
                # Perhaps behind the running sync, which does not cover what was appended since.
                self._end_soon(WriteMoment.SYNC, 2 * SYNC_MS_MAX)
            elif self._dice.random() < UNSYNCED_SHARE:
                self._end_soon(WriteMoment.SYNC, SYNC_MS_MAX)

    def jump_clock(self, ms: int) -> None:
        """Set the machine's wall clock forward, or back."""
        self._wall_ms += ms
        self._right_ms = max(self._right_ms, self._wall_ms)
        if self.process is not None:
            self.process.jump_clock(ms)
        self._checkers.note_clock_jump(self.name, ms)

    def set_clock_right(self) -> None:
        """Set the machine's wall clock to its highest lead, by which it has set times."""
        if self._wall_ms < self._right_ms:
            self.jump_clock(self._right_ms - self._wall_ms)

    # --- the world of the broker's host -----------------------------------------------------

    def monotonic_ms(self) -> int:
        """Read the process's monotonic clock."""
        return self._timeline.now_ms

    def timestamp_ms(self) -> int:
        """Read the machine's wall clock."""
        return self._wall_ms + self._timeline.now_ms

    def perform(self, outputs: Sequence[Output]) -> None:
        """Carry out the broker's outputs."""
        self._server.perform(outputs)

    def end_turn(self) -> None:
        """End a turn: show readable records, and begin due rounds."""
        self._turn()

    def end_turn_soon(self) -> None:
        """End a turn after other connections were served."""
        self._server.end_turn_soon()

    def begin_round(self, round: Round) -> None:
        """Begin a round, which ends after the disk's time."""
        assert self.process is not None
        self._rounds[round.lane] = round
        if _find_offsets(round) is not None:
            self._save_ms = self._timeline.now_ms
        if isinstance(round.work, ExpiryWork):
            self.storage.percent_used = 0
            self._checkers.note_expired(self.name, self._store, round.work.position)
        self.process.call_in(self._sync_ms(round.lane), partial(self._end_round, round))

    def begin_operation(self, operation: Operation[None]) -> None:
        """Run an operation beside the requests."""
        self._driver.start(operation, name=f"register {self.name}")

    def _end_round(self, round: Round) -> None:
        del self._rounds[round.lane]
        self._run(round)

    def _run(self, round: Round) -> None:
        error = attempt(round)
        offsets = _find_offsets(round)
        if offsets is not None:
            self._save_ms = self._timeline.now_ms
            if error is None:
                saved = offsets.offset_table
                self._checkers.note_saved(
                    self.name, {t: saved.get(f"{t}@{self._group}", {}) for t in self._topics}
                )
        round.end(error)
        if round.lane is RoundLane.SAVE and self._is_unflushed:
            self._end_soon(WriteMoment.SAVED, SOON_MS_MAX)

    @property
    def _is_unflushed(self) -> bool:
        return self._store.flushed_position < self._store.appended_position

    def _check(self) -> None:
        self._checkers.note_disk(self.name, is_full=self.storage.is_full)
        self._check_stored()
        self._check_commits()

    def _check_commits(self) -> None:
        self._checkers.check_commits(self.name, self._offset_tables(), now_ms=self._timeline.now_ms)

    def _check_stored(self) -> None:
        if self._store.dispatched_record_position != self._checked_position:
            self._checked_position = self._store.dispatched_record_position
            self._checkers.check_stored(self.name, self._store, wall_ms=self._wall_ms)

    def _waits_for_sync(self) -> bool:
        """Return whether messages were appended after the running sync began."""
        work = self._rounds[RoundLane.FLUSH].work
        assert isinstance(work, FlushWork)
        return self._store.appended_position > work.end_position

    def _sync_ms(self, lane: RoundLane) -> int:
        return self._dice.randrange(1, SLOW_SYNC_MS_MAX if lane in self.slow_lanes else SYNC_MS_MAX)

    # --- what is watched --------------------------------------------------------------------

    def _note_request(self, connection: Connection, command: RemotingCommand) -> None:
        fields = command.ext_fields or {}
        if self._checkers.pops:
            self._pops.note_request(connection, command, self._timeline.now_ms)
        if command.code in CONFIRMED_CODES:
            self._to_confirm.add((connection, command.opaque))
        if command.code == RequestCode.CONSUMER_SEND_MSG_BACK:
            position = int(fields["offset"])
            self._backs[connection, command.opaque] = partial(
                self._checkers.note_sent_back, self.name, position
            )
        elif (
            command.code == RequestCode.SEND_MESSAGE_V2
            and isinstance(header := command.header, SendMessageRequestHeaderV2)
            and header.topic.startswith(RETRY_GROUP_TOPIC_PREFIX)
        ):
            self._backs[connection, command.opaque] = partial(
                self._checkers.note_sent_again,
                bytes(command.body or b""),
                reconsume_times=header.reconsume_times or 0,
            )
        elif command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            queue = MessageQueue(fields["topic"], self.name, int(fields["queueId"]))
            committer = f"{connection.address} (connection {connection.number})"
            self._checkers.note_committer(queue, committer, holder=self._find_holder(queue))
        elif command.code == RequestCode.END_TRANSACTION and fields["commitOrRollback"] != "0":
            self._checkers.ledger.note_end(fields["msgId"], now_ms=self._timeline.now_ms)
        elif command.code == RequestCode.QUERY_CONSUMER_OFFSET:
            queue = MessageQueue(fields["topic"], self.name, int(fields["queueId"]))
            host = connection.address.rpartition(":")[0]
            self._checkers.note_asked(host, queue, now_ms=self._timeline.now_ms)

    def _find_holder(self, queue: MessageQueue) -> str | None:
        """Return the listed member that holds a queue's lock."""
        state = self.broker.state
        group = state.consumers.find(self._group)
        holder = state.locks.find_owner(self._group, queue, now_ms=self._timeline.now_ms)
        return holder if holder is not None and group is not None and group.lists(holder) else None

    def _note_reply(self, connection: Connection, command: RemotingCommand) -> None:
        key = connection, command.opaque
        if self._checkers.pops:
            # What an answer says may be in the log just now.
            self._check_stored()
            self._pops.note_reply(connection, command, self._wall_ms)
        confirm = self._backs.pop(key, None)
        if confirm is not None and command.code == ResponseCode.SUCCESS:
            confirm()
        if key in self._to_confirm:
            self._to_confirm.discard(key)
            if self._is_unflushed:
                self._end_soon(WriteMoment.CONFIRMED, SOON_MS_MAX)


def _find_offsets(round: Round) -> ConsumerOffsetTable | None:
    """Return the groups' offsets that a round writes, None for a round of another kind."""
    table = round.work.tables.get(OFFSETS_FILE) if isinstance(round.work, SaveWork) else None
    return table if isinstance(table, ConsumerOffsetTable) else None
