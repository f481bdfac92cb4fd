"""Several brokers beside one name server, each in a process of its own: `--brokers N`.

A broker uses one core. So several of them, all masters of one cluster, are how one machine takes
more. The first has the name, the store and the port that a single one would have; the others'
are counted on (`nth`).

A broker's process gets its order as one line of JSON on standard input, secrets among it, and
stops cleanly when that closes, however its parent ends. On standard output it says that it serves,
and then how it is, in lines of JSON. One that ends by itself is started again, on its port.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from sparrowmq.errors import SparrowError

LOG = logging.getLogger("sparrowmq.hosting")

# Between the ports of two brokers: a client of RocketMQ may try the last port but one as well.
_PORT_STEP = 10
# A broker that has ended is started again after this, doubled each time up to the other.
_RESTART_S, _RESTART_MAX_S = 1.0, 30.0
# One that has served for so long has not failed at its start.
_SERVED_S = 60.0
_STOP_TIMEOUT_S = 60.0


class BrokerFailed(SparrowError):
    """A broker's process has ended before it served; it has said why on stderr."""


class Place(msgspec.Struct, frozen=True):
    """What is each broker's own."""

    name: str
    directory: str
    port: int


class BrokerCondition(msgspec.Struct, frozen=True):
    """How a broker says it is: what only a restart mends, and why clients are not served."""

    failures: Sequence[str] = ()
    obstacles: Sequence[str] = ()


def nth(number: int, *, name: str, port: int) -> Place:
    """Return what the broker of a number has, from 1 on; its port is free if `port` is 0."""
    if number == 1:
        return Place(name, "store", port)
    shifted = port + _PORT_STEP * (number - 1) if port else 0
    return Place(f"{name}-{number}", f"store-{number}", shifted)


class BrokerProcess:
    """One broker, started again when it ends.

    Args:
        place: what is its own.
        make_order: makes the line that the process gets, for a place.
        command: the command of the process.
    """

    def __init__(
        self, place: Place, make_order: Callable[[Place], bytes], command: Sequence[str]
    ) -> None:
        self.place = place
        self.address = ""
        self._make_order = make_order
        self._command = command
        self._process: Process | None = None
        self._condition: BrokerCondition | None = None

    async def start(self) -> None:
        """Start it; returns when it serves. Raises: BrokerFailed."""
        # A session of its own: Ctrl-C is for the parent, which stops it.
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._make_order(self.place) + b"\n")
        line = (await process.stdout.readline()).decode()
        if not line.startswith("ready broker="):
            code = await process.wait()
            raise BrokerFailed(f"{self.place.name} did not start: exit code {code}")
        self.address = line.strip().removeprefix("ready broker=")
        port = int(self.address.rpartition(":")[2])
        self.place = Place(self.place.name, self.place.directory, port)
        self._condition = BrokerCondition()

    async def keep(self) -> None:
        """Take what it says, and start it again whenever it ends; to be cancelled."""
        loop = asyncio.get_running_loop()
        delay_s = _RESTART_S
        while True:
            begin_s = loop.time()
            code = await self._listen()
            delay_s = _RESTART_S if loop.time() - begin_s > _SERVED_S else delay_s
            LOG.error(
                "%s has ended with code %d; it is started again in %d s",
                *(self.place.name, code, delay_s),
            )
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _RESTART_MAX_S)
            with contextlib.suppress(BrokerFailed):
                await self.start()
                LOG.info("%s serves again", self.place.name)

    async def _listen(self) -> int:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self._condition = msgspec.json.decode(line, type=BrokerCondition)
        self._condition = None
        return await process.wait()

    async def stop(self) -> None:
        """Have it stop cleanly, and wait for that."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            LOG.error("%s does not stop, and is killed", self.place.name)
            process.kill()
            await process.wait()

    def failures(self) -> list[str]:
        """Say what only a restart mends."""
        condition = self._condition or BrokerCondition()
        return [f"{self.place.name}: {each}" for each in condition.failures]

    def obstacles(self) -> list[str]:
        """Say why its clients are not served now."""
        if self._condition is None:
            return [f"{self.place.name} does not run"]
        return [f"{self.place.name}: {each}" for each in self._condition.obstacles]


class BrokerProcesses:
    """All of them."""

    def __init__(self, processes: Sequence[BrokerProcess]) -> None:
        self._processes = processes

    @property
    def addresses(self) -> list[str]:
        """Where they serve, the first broker's first."""
        return [each.address for each in self._processes]

    def failures(self) -> list[str]:
        """Say what only a restart mends."""
        return [text for each in self._processes for text in each.failures()]

    def obstacles(self) -> list[str]:
        """Say why some clients are not served now."""
        return [text for each in self._processes for text in each.obstacles()]


@asynccontextmanager
async def serve_brokers(
    places: Sequence[Place],
    make_order: Callable[[Place], bytes],
    *,
    command: Sequence[str] = (sys.executable, "-m", "sparrowmq.hosting.broker"),
) -> AsyncGenerator[BrokerProcesses]:
    """Run a broker at each place; gives them once all serve.

    Raises: BrokerFailed if one does not.
    """
    processes = [BrokerProcess(place, make_order, command) for place in places]
    keepers: list[asyncio.Task[None]] = []
    try:
        results = await asyncio.gather(
            *(each.start() for each in processes), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        keepers = [asyncio.create_task(each.keep()) for each in processes]
        yield BrokerProcesses(processes)
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in processes))
