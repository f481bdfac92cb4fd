"""A cluster in the process of the test: a name server and a broker in one thread.

    with InProcessCluster() as cluster:
        cluster.create_topic("T")
        ...
        cluster.advance(timedelta(hours=2))

The cluster starts in milliseconds, on free ports of the loopback interface, with its files in a
temporary directory. A test moves the clocks of messages: delays, retries, invisible times and the
questions about half messages. The monotonic clock, which a test cannot move, ends connections,
members and locks. A test can kill an `EmbeddedCluster`, but not this cluster.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Self

from sparrowmq.broker.config import KEEP_ALL, BrokerConfig
from sparrowmq.calling import clock
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.client.faces.user_calls import for_users
from sparrowmq.config import rows_of, with_settings
from sparrowmq.errors import ConfigError, UsageError, did_you_mean
from sparrowmq.hosting.grpc_port import serving_grpc
from sparrowmq.hosting.servers import Serving, serving_both
from sparrowmq.hosting.settings import HostSettings
from sparrowmq.store.config import FlushMode
from sparrowmq.testing.own_directory import OwnDirectory
from sparrowmq.testing.questions import WAIT_MS, ClusterFailed, start_or_close, wait_until_consumed

LOG = logging.getLogger("sparrowmq.testing")

START_TIMEOUT_S = 20


@for_users
class InProcessCluster:
    """A name server and a broker in a thread.

    Args:
        settings: the broker's settings by name, such as `transaction_check_max=2`.

    Raises: ConfigError for a wrong setting.
    """

    def __init__(self, **settings: object) -> None:
        known = rows_of(BrokerConfig)
        for name in settings:
            if name not in known:
                hint = did_you_mean(name, known, f"there are {', '.join(sorted(known))}")
                raise ConfigError(f"InProcessCluster has no setting {name!r}{hint}")
        # No process reads the files later.
        self._config = with_settings(BrokerConfig(flush=FlushMode.ASYNC), settings)
        self._directory: OwnDirectory | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._serving: Serving | None = None
        self._open = AsyncExitStack()
        self._grpc = ""
        self._advanced_ms = 0

    def __enter__(self) -> Self:
        start_or_close(self.start, self.close, runs_already=self._thread is not None)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name_server(self) -> str:
        """The name server's address, `ip:port`. Raises: UsageError if the servers do not run."""
        if self._serving is None:
            raise UsageError("the cluster does not run; enter its `with` block, or call start")
        return self._serving.name_server

    @property
    def broker(self) -> str:
        """The broker's address, `ip:port`."""
        return "" if self._serving is None else self._serving.broker

    @property
    def timestamp_ms(self) -> int:
        """The time by the broker's wall clock, in milliseconds since 1970."""
        return clock.timestamp_ms() + self._advanced_ms

    def start(self) -> None:
        """Start the servers; return when they serve.

        Raises: ClusterFailed if they do not start; UsageError if they run already.
        """
        if self._thread is not None:
            raise UsageError("the cluster runs already")
        self._directory = OwnDirectory()
        started = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self._serve(started))
            except Exception as error:
                if started.is_set():
                    LOG.exception("the cluster has ended by an error")
                failures.append(error)
                started.set()

        self._thread = threading.Thread(target=run, name="sparrowmq-cluster", daemon=True)
        self._thread.start()
        if not started.wait(START_TIMEOUT_S) or failures:
            self.close()
            why = failures[0] if failures else f"no answer within {START_TIMEOUT_S} s"
            raise ClusterFailed(f"the cluster did not start: {why!r}")

    def close(self) -> None:
        """Stop the servers and remove their files; nothing happens if they do not run."""
        thread, self._thread = self._thread, None
        if thread is None or self._directory is None:
            return
        if self._loop is not None and self._stopping is not None:
            # The loop has ended if the servers failed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join()
        self._loop, self._serving, self._grpc = None, None, ""
        self._directory.remove()

    def advance(self, duration: timedelta) -> None:
        """Move the clocks of messages forward; on return, due messages are in their topics.

        Producers are asked about their half messages, and answer a moment later.

        Raises: UsageError if this is not a duration, or the servers do not run.
        """
        if not isinstance(duration, timedelta) or duration < timedelta():
            raise UsageError(f"duration is {duration!r}; give a timedelta, zero or above")
        if self._loop is None:
            raise UsageError("the cluster does not run")
        duration_ms = duration // timedelta(milliseconds=1)
        self._advanced_ms += duration_ms
        asyncio.run_coroutine_threadsafe(self._catch_up(duration_ms), self._loop).result()

    def serve_grpc(self) -> str:
        """Serve clients of RocketMQ 5 too; return their endpoint, `ip:port`.

        Raises: ConfigError without the extra `grpc`; UsageError if the servers do not run.
        """
        if self._loop is None:
            raise UsageError("the cluster does not run")
        return asyncio.run_coroutine_threadsafe(self._serve_grpc(), self._loop).result()

    def create_topic(self, topic: str, queues: int = 8) -> None:
        """Create a topic; return when clients can find the topic."""
        with Admin(name_server=self.name_server) as admin:
            admin.create_topic(topic, queues)

    def wait_until_consumed(self, group: str, *topics: str, timeout_ms: int = WAIT_MS) -> None:
        """Wait until a group has committed every message of topics (`wait_until_consumed`)."""
        wait_until_consumed(self.name_server, group, *topics, timeout_ms=timeout_ms)

    async def _catch_up(self, duration_ms: int) -> None:
        if self._serving is not None:
            self._serving.server.catch_up(duration_ms)

    async def _serve_grpc(self) -> str:
        assert self._serving is not None
        if not self._grpc:
            serving = serving_grpc(
                "127.0.0.1",
                HostSettings(grpc_port=0),
                self._serving.server,
                access=None,
                certificate=None,
                timestamp_ms=lambda: self.timestamp_ms,
            )
            self._grpc = f"127.0.0.1:{await self._open.enter_async_context(serving)}"
        return self._grpc

    async def _serve(self, started: threading.Event) -> None:
        assert self._directory is not None
        settings = HostSettings(
            nameserver_port=0,
            broker_port=0,
            grpc_port=-1,
            data=Path(self._directory.name),
            broker=self._config,
            # A test must pass on a machine with a full disk.
            retention=KEEP_ALL,
        )
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with (
            serving_both(settings, wall_clock=lambda: self.timestamp_ms) as self._serving,
            self._open,
        ):
            started.set()
            await self._stopping.wait()
