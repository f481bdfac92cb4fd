"""A cluster in the process of the test: a name server and a broker in a thread of their own.

    with InProcessCluster() as cluster:
        cluster.create_topic("T")
        ...
        cluster.advance(timedelta(hours=2))

It starts in milliseconds, on free ports of the loopback interface, with its files in a temporary
directory. Its broker has a wall clock that a test moves on: delayed messages, retries and the
check-back of transactions are due when it says so. What ends connections, members and locks goes by
the monotonic clock, which nobody moves. `EmbeddedCluster` is one that can be killed.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from sparrowmq.calling import clock
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.errors import UsageError
from sparrowmq.hosting.servers import Flush, HostSettings, Serving, serving_both
from sparrowmq.testing.questions import WAIT_MS, ClusterFailed, wait_until_consumed

START_TIMEOUT_S = 20


class InProcessCluster:
    """A name server and a broker in a thread."""

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._serving: Serving | None = None
        self._advanced_ms = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def name_server(self) -> str:
        """The name server's address, `ip:port`."""
        return "" if self._serving is None else self._serving.name_server

    @property
    def broker(self) -> str:
        """The broker's address, `ip:port`."""
        return "" if self._serving is None else self._serving.broker

    @property
    def timestamp_ms(self) -> int:
        """The time by the broker's wall clock, in milliseconds since 1970."""
        return clock.timestamp_ms() + self._advanced_ms

    def start(self) -> None:
        """Start the servers; returns when they serve.

        Raises: ClusterFailed; UsageError if they run already.
        """
        if self._thread is not None:
            raise UsageError("the cluster runs already")
        self._directory = tempfile.TemporaryDirectory(prefix="sparrowmq-")
        started = threading.Event()
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(self._serve(started))
            except Exception as error:
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
            # It has ended if it failed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join()
        self._loop = self._serving = None
        self._directory.cleanup()

    def advance(self, duration: timedelta) -> None:
        """Move the broker's wall clock on; what is due then is in its topic when this returns.

        Raises: UsageError if the duration is negative, or the servers do not run.
        """
        if duration < timedelta():
            raise UsageError(f"the clock goes on, not back by {-duration}")
        if self._loop is None:
            raise UsageError("the cluster does not run")
        self._advanced_ms += duration // timedelta(milliseconds=1)
        asyncio.run_coroutine_threadsafe(self._catch_up(), self._loop).result()

    def create_topic(self, topic: str, queues: int = 8) -> None:
        """Create a topic; returns when clients can find it."""
        with Admin(name_server=self.name_server) as admin:
            admin.create_topic(topic, queues)

    def wait_until_consumed(self, group: str, *topics: str, timeout_ms: int = WAIT_MS) -> None:
        """Wait until a group has committed every message of topics (`wait_until_consumed`)."""
        wait_until_consumed(self.name_server, group, *topics, timeout_ms=timeout_ms)

    async def _catch_up(self) -> None:
        if self._serving is not None:
            self._serving.server.catch_up()

    async def _serve(self, started: threading.Event) -> None:
        assert self._directory is not None
        settings = HostSettings(
            nameserver_port=0,
            broker_port=0,
            data=Path(self._directory.name),
            # Nobody reads the files after the process.
            flush=Flush.ASYNC,
            retention_hours=0,
            # How full the machine's disk is must not decide how a test ends.
            disk_force_percent=100,
            disk_full_percent=100,
        )
        self._stopping = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        async with serving_both(settings, wall_clock=lambda: self.timestamp_ms) as self._serving:
            started.set()
            await self._stopping.wait()
