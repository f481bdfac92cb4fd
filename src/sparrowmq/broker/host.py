"""Orders a broker's turns and rounds, the same in production and in the simulation.

A turn of requests ends with `settle`, which makes appended messages readable, and `begin_rounds`,
which begins the rounds that are due. A *round* is work that blocks: a flush of the log, an append
to the journal, a write of config files, a removal of expired files. Each lane runs one round at a
time. Changes that come meanwhile share the lane's next round: this is the group commit.
Registration at the name servers is an operation.

The world (`broker/server.py`, `simulation/nodes.py`) owns sockets, threads and clocks. The host
alone decides the order of the work. Tests: test_flush_gate.py, test_server.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol

from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config_files import CONFIG_DIRECTORY, write_files
from sparrowmq.broker.config_saving import JournalWork, SaveWork
from sparrowmq.broker.registration import Registrar, RegistrationWork
from sparrowmq.calling.effects import Operation
from sparrowmq.errors import SparrowError
from sparrowmq.serving.connections import Fact, Output
from sparrowmq.store.expiry import ExpiryWork
from sparrowmq.store.flush import FlushWork
from sparrowmq.store.journal import Journal
from sparrowmq.store.storage import Storage


class RoundLane(Enum):
    """Kinds of rounds; rounds of one lane run one after the other, lanes run in parallel."""

    FLUSH = "flush"
    JOURNAL = "journal"
    SAVE = "save"
    EXPIRY = "expiry"


class Round(NamedTuple):
    """Work that blocks.

    Args:
        work: a value that describes the work.
        run: does the work, in any thread; raises OSError or SparrowError.
        end: takes the error of `run`, or None; called on the broker's thread.
    """

    lane: RoundLane
    work: FlushWork | JournalWork | SaveWork | ExpiryWork
    run: Callable[[], None]
    end: Callable[[Exception | None], None]


class World(Protocol):
    """The clocks, sockets and threads that a broker runs on."""

    def monotonic_ms(self) -> int:
        """Read the monotonic clock."""
        ...

    def timestamp_ms(self) -> int:
        """Read the wall clock."""
        ...

    def perform(self, outputs: Sequence[Output]) -> None:
        """Carry out the broker's outputs."""
        ...

    def end_turn(self) -> None:
        """End a turn now, as after requests."""
        ...

    def end_turn_soon(self) -> None:
        """End a turn after the other waiting events."""
        ...

    def begin_round(self, round: Round) -> None:
        """Run `round.run` in a thread, and pass its outcome to `round.end`."""
        ...

    def begin_operation(self, operation: Operation[None]) -> None:
        """Run an operation beside the requests."""
        ...


class BrokerHost:
    """Runs the turns and rounds of one broker.

    Args:
        storage: the broker's store root.
        world: the world that the broker runs in.
        name_servers: the addresses at which the broker registers.
    """

    def __init__(
        self, broker: Broker, storage: Storage, world: World, *, name_servers: Sequence[str]
    ) -> None:
        self._broker = broker
        self._storage = storage
        self._world = world
        self._name_servers = tuple(name_servers)
        self._journal = Journal(storage, CONFIG_DIRECTORY)
        # Has the versions of the files alone, each in a segment of its own.
        self._version_journal = Journal(storage, CONFIG_DIRECTORY)
        self._registrar = Registrar(broker.state.config)
        # Name servers where the last call failed, and those of them that are tried now.
        self._unreached: set[str] = set()
        self._tried: set[str] = set()
        # What could not be written, or read, at the last try.
        self._failing: set[str] = set()
        # Whether only the last rounds may still begin.
        self.is_stopping = False

    @property
    def is_found(self) -> bool:
        """Whether the last call reached one of the name servers; True without name servers."""
        return not self._name_servers or len(self._unreached) < len(self._name_servers)

    # --- turns ------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do the work that is due by time."""
        broker, world = self._broker, self._world
        now_ms, timestamp_ms = world.monotonic_ms(), world.timestamp_ms()
        world.perform(broker.tick(now_ms=now_ms, timestamp_ms=timestamp_ms))
        for what, error in broker.read_errors.items():
            self._note(what, "read", error)
        store = broker.state.store
        self._note("new messages", "indexed until the next start", store.index_failure)
        world.end_turn()
        expiry, outputs = broker.expiry_work(now_ms=now_ms, timestamp_ms=timestamp_ms)
        world.perform(outputs)
        if expiry is not None:
            end = partial(self._expired, expiry)
            world.begin_round(Round(RoundLane.EXPIRY, expiry, expiry.run, end))

    def settle(self) -> None:
        """Show appended messages to readers, and answer the requests that wait for them."""
        outputs = self._broker.settle(now_ms=self._world.monotonic_ms())
        if outputs:
            self._world.perform(outputs)
        store = self._broker.state.store
        if store.write_error is not None or store.queues.write_error is not None or self._failing:
            self._note("messages", "written", store.write_error)
            self._note("entries of consume queues", "written", store.queues.write_error)
        if self._broker.is_unsettled and not self.is_stopping:
            self._world.end_turn_soon()

    def begin_rounds(self) -> None:
        """Begin the rounds that are due."""
        if self.is_stopping:
            return
        broker, now_ms = self._broker, self._world.monotonic_ms()
        if not broker.is_work_due(now_ms):
            return
        for round in (
            self._flush_round(broker.flush_work(now_ms=now_ms)),
            self._journal_round(broker.journal_work(now_ms=now_ms)),
            self._save_round(broker.save_work(now_ms=now_ms)),
        ):
            if round is not None:
                self._world.begin_round(round)
        registration = broker.registration_work()
        if registration is not None:
            self._world.begin_operation(self._register(registration))
        for topic in broker.asked_routes():
            self._world.begin_operation(self._find_route(topic))

    def first_rounds(self) -> Iterator[Round]:
        """Yield the rounds to run before the broker serves."""
        save = self._save_round(self._broker.save_work(now_ms=self._world.monotonic_ms()))
        if save is not None:
            yield save
        if count := self._broker.offsets_cut:
            text = (
                f"{count} committed offsets were beyond the end of their queue, and were set back "
                "to the end: a power cut has lost the messages, or the store is another one"
            )
            self._world.perform([Fact(text, warning=True)])
        if days := self._broker.state.clock_lead_days:
            text = (
                f"the clock is {days} days ahead of the last message: if it is wrong, set it right "
                "now, as messages expire, and delayed ones are delivered, by the clock"
            )
            self._world.perform([Fact(text, warning=True)])

    def last_rounds(self) -> Iterator[Round]:
        """Yield the rounds to run before a stop, so that every accepted request is answered."""
        broker = self._broker
        flush = self._flush_round(broker.last_flush_work())
        if flush is not None:
            yield flush
        journal = self._journal_round(broker.journal_work(now_ms=self._world.monotonic_ms()))
        if journal is not None:
            yield journal
        with suppress(OSError):
            self._journal.close()
        broker.ask_last_save()
        while save := self._save_round(broker.save_work(now_ms=self._world.monotonic_ms())):
            yield save

    # --- rounds -----------------------------------------------------------------------------

    def _flush_round(self, work: FlushWork | None) -> Round | None:
        if work is None:
            return None
        return Round(RoundLane.FLUSH, work, work.run, partial(self._flushed, work))

    def _flushed(self, work: FlushWork, error: Exception | None) -> None:
        now_ms = self._world.monotonic_ms()
        self._world.perform(self._broker.flushed(work, error, now_ms=now_ms))
        if error is not None and self._broker.state.store.failure is error:
            text = f"flush failed, the store takes no more messages: {error}"
            self._world.perform([Fact(text, error=True)])
        if error is None and work.checkpoint is not None:
            self._note("checkpoints", "written", work.checkpoint_error)
        self._world.end_turn()

    def _journal_round(self, work: JournalWork | None) -> Round | None:
        if work is None:
            return None
        run, end = partial(self._append, work), partial(self._journaled, work)
        return Round(RoundLane.JOURNAL, work, run, end)

    def _append(self, work: JournalWork) -> None:
        if work.changes:
            self._journal.append(work.segment, work.encode())

    def _journaled(self, work: JournalWork, error: Exception | None) -> None:
        self._note("changes of the configuration", "written", error)
        self._world.perform(self._broker.journaled(work, error))
        self._world.end_turn()

    def _save_round(self, work: SaveWork | None) -> Round | None:
        if work is None:
            return None
        run = partial(write_files, self._storage, work, self._version_journal)
        return Round(RoundLane.SAVE, work, run, partial(self._saved, work))

    def _saved(self, work: SaveWork, error: Exception | None) -> None:
        self._note("config files", "written", error)
        self._world.perform(self._broker.saved(work, error))

    def _expired(self, work: ExpiryWork, error: Exception | None) -> None:
        self._world.perform(self._broker.expired(work, error))

    def _note(self, what: str, done: str, error: Exception | None) -> None:
        """Tell once that something cannot be written, or read, and once that it can be again."""
        if error is not None and what not in self._failing:
            self._failing.add(what)
            self._world.perform([Fact(f"{what} cannot be {done}: {error}", error=True)])
        elif error is None and what in self._failing:
            self._failing.discard(what)
            self._world.perform([Fact(f"{what} are {done} again", warning=True)])

    # --- name servers -----------------------------------------------------------------------

    def connection_lost(self, address: str) -> None:
        """Register again soon, if the connection led to a name server."""
        if address in self._name_servers:
            self._registrar.forget(address)
            self._broker.ask_registration(now_ms=self._world.monotonic_ms())

    def _register(self, work: RegistrationWork) -> Operation[None]:
        # A silent name server takes seconds, and replies wait for the end of a round. So it is
        # tried beside the rounds, as long as another one answers.
        silent = set(self._unreached) if self.is_found else set[str]()
        for address in self._name_servers:
            if address in self._tried:
                continue
            if address in silent:
                self._tried.add(address)
                self._world.begin_operation(self._try_again(address, work))
            else:
                yield from self._register_at(address, work)
        # The end of a try asks for the next registration.
        is_complete = self._unreached <= self._tried
        now_ms = self._world.monotonic_ms()
        self._world.perform(self._broker.registered(is_complete=is_complete, now_ms=now_ms))
        self._world.end_turn()

    def _register_at(self, address: str, work: RegistrationWork) -> Operation[None]:
        operation = self._registrar.register(work, name_server=address)
        yield from self._reach(address, operation, "register at")

    def _try_again(self, address: str, work: RegistrationWork) -> Operation[None]:
        """Register at a name server beside the rounds, which pass it over meanwhile."""
        yield from self._register_at(address, work)
        self._tried.discard(address)
        # The name server is silent still, or the topics have changed since.
        self._broker.ask_registration(now_ms=self._world.monotonic_ms())

    def _find_route(self, topic: str) -> Operation[None]:
        route = yield from self._registrar.find_route(topic, name_servers=self._name_servers)
        self._world.perform(self._broker.routed(topic, route))
        self._world.end_turn()

    def leave(self) -> Operation[None]:
        """Unregister the broker at the name servers.

        Yields: Invoke.
        """
        for address in self._name_servers:
            operation = self._registrar.unregister(name_server=address)
            yield from self._reach(address, operation, "leave")

    def _reach(self, address: str, operation: Operation[None], verb: str) -> Operation[None]:
        """Run an operation for a name server, and note whether it failed."""
        try:
            yield from operation
        except SparrowError as error:
            if address not in self._unreached:
                self._unreached.add(address)
                text = f"cannot {verb} name server {address}: {error}"
                self._world.perform([Fact(text, warning=True)])
        else:
            if address in self._unreached:
                self._unreached.discard(address)
                self._world.perform([Fact(f"name server {address} is reached again")])


def attempt(round: Round) -> Exception | None:
    """Do a round's work; return its error, or None."""
    try:
        round.run()
    except (OSError, SparrowError) as error:
        return error
    return None
