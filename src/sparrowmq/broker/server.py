"""The broker with real sockets and disks.

`BrokerServer` is the world of a `BrokerHost`: requests run on an event loop, and each lane of
rounds has its own thread.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_files import TOPICS_MISSING, SavedConfig, read_tables
from sparrowmq.broker.host import BrokerHost, Round, RoundLane, attempt
from sparrowmq.calling import clock
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.signatures import Credentials
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Connection, Output
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.local_connection import LocalConnection
from sparrowmq.serving.remoting_server import RemotingServer
from sparrowmq.serving.world import LoopWorld
from sparrowmq.store.config import COMMIT_LOG_FILE_SIZE, StoreConfig
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.retention import RESERVED_HOURS

LOG = logging.getLogger("sparrowmq.broker")

TICK_MS = 100


class BrokerServer:
    """One broker, serving.

    Args:
        root: RocketMQ's store root.
        config: the broker's settings; clients reach the broker at their address.
        name_servers: the addresses of the name servers to register at.
        limits: the bounds on peers.
        tls: the TLS context for clients; None for no TLS.
        takes_plain: whether a server with TLS also serves peers without TLS.
        name_server_tls: the TLS context for connections to name servers; None for no TLS.
        salvage: whether a log that is damaged in the middle is cut there instead of refused.
        log_file_size: bytes of each file of the commit log.
        access: the access rules; None allows everything.
        credentials: the credentials that sign requests to name servers; None for no signatures.
        wall_clock: returns the time of messages and delays, in milliseconds.
    """

    def __init__(
        self,
        root: Path,
        config: BrokerConfig,
        *,
        name_servers: Sequence[str] = (),
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        takes_plain: bool = False,
        name_server_tls: ssl.SSLContext | None = None,
        salvage: bool = False,
        log_file_size: int = COMMIT_LOG_FILE_SIZE,
        access: AccessControl | None = None,
        credentials: Credentials | None = None,
        wall_clock: Callable[[], int] = clock.timestamp_ms,
    ) -> None:
        self._wall_clock = wall_clock
        self._storage = FileStorage(root)
        self._store = MessageStore(
            self._storage,
            StoreConfig(
                flush=config.flush,
                commit_log_file_size=log_file_size,
                message_bytes_max=config.message_bytes_max,
                salvage=salvage,
            ),
        )
        self._load(root, log_file_size)
        try:
            self._broker = Broker(
                config,
                self._store,
                random_below=random.Random().randrange,
                saved=self._read_tables(root).tables,
                now_ms=clock.monotonic_ms(),
                timestamp_ms=wall_clock(),
                access=access,
            )
        except BaseException:
            self._store.close()
            raise
        self._note_retention(root, config)
        self._host = BrokerHost(self._broker, self._storage, self, name_servers=name_servers)
        self._server = RemotingServer(
            self._broker,
            limits=limits,
            tls=tls,
            takes_plain=takes_plain,
            on_turn=self.end_turn,
            awaits_turn=self._broker.awaits_turn,
            world=LoopWorld(timestamp_ms=wall_clock),
        )
        self._driver = AsyncDriver(
            on_connection_lost=self._host.connection_lost,
            tls=name_server_tls,
            credentials=credentials,
        )
        self._threads = {
            lane: ThreadPoolExecutor(1, thread_name_prefix=f"sparrowmq-{lane.value}")
            for lane in RoundLane
        }
        self._running: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        # The error of the last tick, "" for none: an error of every tick is logged once.
        self._tick_failure = ""

    @property
    def broker(self) -> Broker:
        """The broker machine."""
        return self._broker

    @property
    def broker_name(self) -> str:
        """The broker's name."""
        return self._broker.state.config.broker_name

    @property
    def body_bytes_max(self) -> int:
        """The size of the largest body that the broker takes."""
        return self._broker.state.config.message_bytes_max

    @property
    def delay_ms_max(self) -> int:
        """The longest time that a message may wait for its delivery."""
        return self._broker.state.config.timer_max_delay_s * 1_000

    def find_topic(self, topic: str) -> TopicConfig | None:
        """Return a topic's settings, None if there is no such topic."""
        return self._broker.state.topics.find(topic)

    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a consumer group's settings, None if there is no such group."""
        return self._broker.state.groups.find(group)

    def connect(
        self,
        address: str,
        *,
        on_request: Callable[[RemotingCommand], RemotingCommand | None],
        on_closed: Callable[[], None],
    ) -> LocalConnection:
        """Connect to the broker inside this process, in the name of a peer."""
        link = self._server.make_local_link()
        return LocalConnection(
            link,
            address,
            on_request=on_request,
            on_closed=on_closed,
            on_given_up=lambda opaque: self._give_up(link.connection, opaque),
        )

    def _give_up(self, connection: Connection, opaque: int) -> None:
        """End the wait of a pop whose consumer has gone, while its connection stays."""
        self.perform(self._broker.give_up(connection, opaque))
        self.end_turn_soon()

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use another TLS context for new connections of clients."""
        self._server.use_tls(tls)

    def use_name_server_tls(self, tls: ssl.SSLContext) -> None:
        """Use another TLS context for new connections to name servers."""
        self._driver.use_tls(tls)

    def failures(self) -> list[str]:
        """Return the failures that only a restart mends, as texts."""
        failure = self._store.failure
        return [] if failure is None else [f"the store takes no messages: {failure}"]

    def obstacles(self) -> list[str]:
        """Return why clients are not served now or cannot find the broker, as texts."""
        found = self.failures()
        if self._store.refusal is not None:
            found.append(f"the store takes no messages: {self._store.refusal}")
        if self._host.is_stopping:
            found.append("the broker stops")
        elif not self._host.is_found:
            found.append("no name server is reached")
        return found

    def _load(self, root: Path, log_file_size: int) -> None:
        """Load the store, and log what was found."""
        report = self._store.load(timestamp_ms=self._wall_clock())
        LOG.info("store %s loaded: %s", root, report.describe())
        if (kept := self._store.log_file_size) != log_file_size:
            LOG.info(
                "store %s keeps its log files of %g MiB; --log-file-mib (%g) counts for new stores",
                root,
                kept / (1 << 20),
                log_file_size / (1 << 20),
            )
        loss = report.describe_loss()
        if loss is not None:
            LOG.error("store %s was damaged, and is repaired: %s", root, loss)

    def _note_retention(self, root: Path, config: BrokerConfig) -> None:
        if config.retention.retention_hours is None and not self._store.is_expiring:
            LOG.warning(
                "store %s has messages from before messages expired: it keeps all until "
                "--retention-hours says how long (%d is the default for a new store, 0 keeps all)",
                root,
                RESERVED_HOURS,
            )

    def _read_tables(self, root: Path) -> SavedConfig:
        saved = read_tables(self._storage)
        for loss in saved.losses:
            LOG.error("the configuration was damaged: %s", loss)
        if self._store.queues.by_key and not saved.has_topics:
            LOG.error("store %s lacks its configuration: %s", root, TOPICS_MISSING)
        return saved

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound socket and register; return when clients can find the broker.

        Each name server that does not answer delays the return by the time of one request, not the
        serving: the broker keeps trying.
        """
        for round in self._host.first_rounds():
            await self._run(round)
        await self._server.start(listening)
        self._tick()
        while self._broker.state.registrations.finished == 0 and self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Answer accepted requests, unregister, write all changes, and release the files.

        Raises: StoreError if the disk fails; the files are released in any case.
        """
        self._host.is_stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._server.stop_reading()
        while self._running:
            await asyncio.wait(self._running)
        for round in self._host.last_rounds():
            await self._run(round)
        await self._driver.run(self._host.leave())
        await self._server.stop()
        await self._driver.aclose()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._threads[RoundLane.SAVE], self._store.close)
        finally:
            for thread in self._threads.values():
                thread.shutdown()

    def catch_up(self, duration_ms: int) -> None:
        """Do all work that is due now that the wall clock was moved, without the bound of a tick.

        What waits for a message by the monotonic clock waits less by the duration: invisible times
        and the questions about half messages.
        """
        state = self._broker.state
        state.pops.pass_time(duration_ms)
        state.transactions.pass_time(duration_ms)
        counters, before = state.counters, -1
        while counters.puts != before:
            before = counters.puts
            self._host.tick()

    def _tick(self) -> None:
        try:
            self._host.tick()
            self._tick_failure = ""
        except Exception as error:
            if (text := repr(error)) != self._tick_failure:
                LOG.exception("a timer of the broker failed")
                self._tick_failure = text
        self._ticker = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)

    # --- the world of the host --------------------------------------------------------------

    def monotonic_ms(self) -> int:
        """Read the monotonic clock."""
        return clock.monotonic_ms()

    def timestamp_ms(self) -> int:
        """Read the wall clock."""
        return self._wall_clock()

    def perform(self, outputs: Sequence[Output]) -> None:
        """Carry out the broker's outputs."""
        self._server.perform(outputs)

    def end_turn(self) -> None:
        """End a turn of the loop: show appended messages, begin the rounds that are due."""
        self._host.settle()
        self._host.begin_rounds()

    def end_turn_soon(self) -> None:
        """End a turn after the other waiting events."""
        self._server.end_turn_soon()

    def begin_round(self, round: Round) -> None:
        """Run a round in the thread of its lane."""
        self._start(self._run(round))

    def begin_operation(self, operation: Operation[None]) -> None:
        """Run an operation beside the requests."""
        self._start(self._driver.run(operation))

    async def _run(self, round: Round) -> None:
        loop = asyncio.get_running_loop()
        error: Exception | None
        try:
            error = await loop.run_in_executor(self._threads[round.lane], attempt, round)
        except RuntimeError as shortage:
            # The lane's thread cannot be started.
            error = OSError(errno.EAGAIN, str(shortage))
        round.end(error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("work of the broker failed", exc_info=error)
