"""The broker on sockets and disks.

Runs the machine's work where it belongs: commands on the event loop, flushes of the log in one
thread, config files in another. While a flush runs, the next group of messages collects: that is
the group commit.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

from sparrowmq.broker.broker import Broker
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.config_files import CONFIG_DIRECTORY, SavedConfig, read_tables, write_files
from sparrowmq.broker.config_saving import JournalWork, SaveWork
from sparrowmq.broker.registration import Registrar, RegistrationWork
from sparrowmq.calling import clock
from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.errors import SparrowError
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.remoting_server import RemotingServer
from sparrowmq.store.config import COMMIT_LOG_FILE_SIZE, FlushMode, StoreConfig
from sparrowmq.store.expiry import ExpiryWork
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.flush import FlushWork
from sparrowmq.store.journal import Journal
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.retention import RESERVED_HOURS

LOG = logging.getLogger("sparrowmq.broker")

TICK_MS = 100


class _NameServerOperation(Protocol):
    def __call__(self, *, name_server: str) -> Operation[None]: ...


class BrokerServer:
    """One broker, serving.

    Args:
        root: RocketMQ's store root.
        config: settings; its address is where clients reach the broker.
        name_servers: addresses at which to register.
        limits: bounds on peers.
        tls: the context of a server that speaks TLS; None for none.
        name_server_tls: the context of a client of name servers that speak TLS; None for none.
        salvage: whether a log that is damaged in the middle is cut there, rather than refused.
        log_file_size: bytes of each file of the commit log.
    """

    def __init__(
        self,
        root: Path,
        config: BrokerConfig,
        *,
        name_servers: Sequence[str] = (),
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        name_server_tls: ssl.SSLContext | None = None,
        salvage: bool = False,
        log_file_size: int = COMMIT_LOG_FILE_SIZE,
    ) -> None:
        self._config = config
        self._name_servers = tuple(name_servers)
        self._storage = FileStorage(root)
        mode = FlushMode.SYNC if config.sync_flush else FlushMode.ASYNC
        self._store = MessageStore(
            self._storage,
            StoreConfig(
                flush=mode,
                commit_log_file_size=log_file_size,
                message_bytes_max=config.message_bytes_max,
                salvage=salvage,
            ),
        )
        report = self._store.load(timestamp_ms=clock.timestamp_ms())
        LOG.info("store %s loaded: %s", root, report)
        loss = report.describe_loss()
        if loss is not None:
            LOG.error("store %s was damaged, and is repaired: %s", root, loss)
        try:
            self._broker = Broker(
                config,
                self._store,
                random_below=random.Random().randrange,
                saved=self._read_tables().tables,
                now_ms=clock.monotonic_ms(),
                timestamp_ms=clock.timestamp_ms(),
            )
        except BaseException:
            self._store.close()
            raise
        self._server = RemotingServer(self._broker, limits=limits, tls=tls, on_turn=self._turn)
        self._driver = AsyncDriver(on_connection_lost=self._connection_lost, tls=name_server_tls)
        self._journal = Journal(self._storage, CONFIG_DIRECTORY)
        self._registrar = Registrar(config)
        if config.retention.reserved_hours is None and not self._store.is_expiring:
            LOG.warning(
                "store %s has messages from before messages expired: it keeps all until "
                "--retention-hours says how long (%d is the default for a new store, 0 keeps all)",
                root,
                RESERVED_HOURS,
            )
        self._flush_thread = ThreadPoolExecutor(1, thread_name_prefix="sparrowmq-flush")
        self._journal_thread = ThreadPoolExecutor(1, thread_name_prefix="sparrowmq-journal")
        self._expiry_thread = ThreadPoolExecutor(1, thread_name_prefix="sparrowmq-expiry")
        self._save_thread = ThreadPoolExecutor(1, thread_name_prefix="sparrowmq-save")
        self._running: set[asyncio.Task[None]] = set()
        self._ticker: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._unreached: set[str] = set()
        # What could not be written the last time, by what it was.
        self._write_errors: set[str] = set()

    @property
    def broker(self) -> Broker:
        """The machine."""
        return self._broker

    def _read_tables(self) -> SavedConfig:
        saved = read_tables(self._storage)
        for loss in saved.losses:
            LOG.error("the configuration was damaged: %s", loss)
        return saved

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound socket and register; returns when clients can find the broker.

        A name server that does not answer delays nothing: the broker keeps trying.
        """
        await self._server.start(listening)
        self._tick()
        while self._broker.state.registrations.finished == 0 and self._running:
            await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self) -> None:
        """Answer what was taken, leave the name servers, write everything, release the files.

        Raises: StoreError if the disk fails; the files are released all the same.
        """
        self._is_stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        self._server.stop_reading()
        while self._running:
            await asyncio.wait(self._running)
        await self._last_rounds()
        await self._each_name_server(self._registrar.unregister, "leave")
        await self._server.stop()
        await self._driver.aclose()
        error = await self._in_thread(self._save_thread, self._store.close)
        for thread in (
            self._flush_thread,
            self._journal_thread,
            self._expiry_thread,
            self._save_thread,
        ):
            thread.shutdown()
        if error is not None:
            raise error

    async def _last_rounds(self) -> None:
        """Flush and write once more, so that every request taken gets its answer."""
        broker = self._broker
        flush = broker.last_flush_work()
        if flush is not None:
            await self._flush(flush)
        journal = broker.journal_work(now_ms=clock.monotonic_ms())
        if journal is not None:
            await self._append(journal)
        await self._in_thread(self._journal_thread, self._journal.close)
        broker.ask_last_save()
        save = broker.save_work(now_ms=clock.monotonic_ms())
        if save is not None:
            await self._save(save)

    def _tick(self) -> None:
        now_ms = clock.monotonic_ms()
        try:
            self._server.perform(
                self._broker.tick(now_ms=now_ms, timestamp_ms=clock.timestamp_ms())
            )
            self._turn()
            self._start_expiry(now_ms)
        except Exception:
            LOG.exception("a timer of the broker failed")
        self._ticker = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)

    def _turn(self) -> None:
        """End a turn of the loop: show what is readable, start what is to be done."""
        self._server.perform(self._broker.settle())
        if self._is_stopping:
            return
        if self._broker.is_unsettled:
            self._server.end_turn_soon()
        now_ms = clock.monotonic_ms()
        flush = self._broker.flush_work(now_ms=now_ms)
        if flush is not None:
            self._start(self._flush(flush))
        journal = self._broker.journal_work(now_ms=now_ms)
        if journal is not None:
            self._start(self._append(journal))
        save = self._broker.save_work(now_ms=now_ms)
        if save is not None:
            self._start(self._save(save))
        registration = self._broker.registration_work()
        if registration is not None:
            self._start(self._register(registration))

    def _start_expiry(self, now_ms: int) -> None:
        work, outputs = self._broker.expiry_work(now_ms=now_ms, timestamp_ms=clock.timestamp_ms())
        self._server.perform(outputs)
        if work is not None:
            self._start(self._expire(work))

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error("work of the broker failed", exc_info=error)

    async def _flush(self, work: FlushWork) -> None:
        error = await self._in_thread(self._flush_thread, work.run)
        self._server.perform(self._broker.flushed(work, error))
        if error is not None and self._store.failure is error:
            LOG.error("flush failed, the store takes no more messages: %s", error)
        if not self._is_stopping:
            self._turn()

    async def _append(self, work: JournalWork) -> None:
        error = await self._in_thread(self._journal_thread, partial(self._append_batch, work))
        self._note_written("changes of the configuration", error)
        self._server.perform(self._broker.journaled(work, error))
        if not self._is_stopping:
            self._turn()

    def _append_batch(self, work: JournalWork) -> None:
        if work.changes:
            self._journal.append(work.segment, work.encode())

    async def _expire(self, work: ExpiryWork) -> None:
        error = await self._in_thread(self._expiry_thread, work.run)
        self._server.perform(self._broker.expired(work, error))

    async def _save(self, work: SaveWork) -> None:
        error = await self._in_thread(self._save_thread, partial(write_files, self._storage, work))
        self._note_written("config files", error)
        self._broker.saved(work, error)

    def _note_written(self, what: str, error: Exception | None) -> None:
        if error is not None and what not in self._write_errors:
            self._write_errors.add(what)
            LOG.error("%s cannot be written: %s", what, error)
        elif error is None and what in self._write_errors:
            self._write_errors.discard(what)
            LOG.warning("%s are written again", what)

    async def _in_thread(
        self, thread: ThreadPoolExecutor, function: Callable[[], None]
    ) -> Exception | None:
        try:
            await asyncio.get_running_loop().run_in_executor(thread, function)
        except (OSError, SparrowError) as error:
            return error
        return None

    async def _register(self, work: RegistrationWork) -> None:
        is_complete = await self._each_name_server(
            partial(self._registrar.register, work), "register at"
        )
        self._server.perform(
            self._broker.registered(is_complete=is_complete, now_ms=clock.monotonic_ms())
        )

    def _connection_lost(self, address: str) -> None:
        if address in self._name_servers:
            self._broker.ask_registration(now_ms=clock.monotonic_ms())

    async def _each_name_server(self, operation: _NameServerOperation, verb: str) -> bool:
        """Run an operation for each name server; tells whether all of them did it."""
        for name_server in self._name_servers:
            try:
                await self._driver.run(operation(name_server=name_server))
            except SparrowError as error:
                if name_server not in self._unreached:
                    self._unreached.add(name_server)
                    LOG.warning("cannot %s name server %s: %s", verb, name_server, error)
            else:
                if name_server in self._unreached:
                    self._unreached.discard(name_server)
                    LOG.info("name server %s is reached again", name_server)
        return not self._unreached
