"""Several brokers beside one name server, each in a process of its own: `--brokers N`.

A broker uses one core. Several brokers, all masters of one cluster, use several cores of a machine.
The first broker has the name, the store and the port of a single broker; the others' are numbered
(`nth`).

A broker's process reads its order, secrets included, as one line of JSON from standard input. When
standard input closes, which happens when the parent ends in any way, the process stops cleanly. On
standard output it reports in lines of JSON that it serves, and later its condition. A process that
ends by itself is started again on its port.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from sparrowmq.errors import SparrowError
from sparrowmq.hosting.stop_at_start import StoppedAtStart

LOG = logging.getLogger("sparrowmq.hosting")

# Between the ports of two brokers: RocketMQ's clients may also try the port two below a broker's.
_PORT_STEP = 10
# The first and the longest pause before an ended broker is started again; each pause is doubled.
_RESTART_S, _RESTART_MAX_S = 1.0, 30.0
# A broker that served for this long did not fail at its start: the pauses begin anew.
_SERVED_S = 60.0
_STOP_TIMEOUT_S = 60.0
_READY = b"ready broker="


class BrokerFailed(SparrowError):
    """A broker's process ended before it served; the reason is on its stderr."""


class Place(msgspec.Struct, frozen=True):
    """The name, the store directory and the port of one broker."""

    name: str
    directory: str
    port: int


class BrokerCondition(msgspec.Struct, frozen=True):
    """A broker's report: failures that only a restart mends, and obstacles to serving clients."""

    failures: Sequence[str] = ()
    obstacles: Sequence[str] = ()


def nth(number: int, *, name: str, port: int) -> Place:
    """Return the place of the broker with a number from 1 on; port 0 stays 0 (any free port)."""
    if number == 1:
        return Place(name, "store", port)
    shifted = port + _PORT_STEP * (number - 1) if port else 0
    return Place(f"{name}-{number}", f"store-{number}", shifted)


class BrokerProcess:
    """One broker's process, started again when it ends.

    Args:
        place: the broker's name, store and port.
        make_order: returns the order for a place, the line for the process's standard input.
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
        """Start the process; return when the broker serves. Raises: BrokerFailed."""
        # A session of its own: Ctrl-C reaches only the parent, which stops the broker.
        process = self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._make_order(self.place) + b"\n")
        line = b""
        while not line.startswith(_READY):
            if not (line := await process.stdout.readline()):
                code = await process.wait()
                raise BrokerFailed(f"{self.place.name} did not start: exit code {code}")
        self.address = line.strip().removeprefix(_READY).decode()
        port = int(self.address.rpartition(":")[2])
        self.place = Place(self.place.name, self.place.directory, port)
        self._condition = BrokerCondition()

    async def keep(self) -> None:
        """Read the process's reports, and start it again whenever it ends, until cancelled."""
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
            try:
                await self.start()
                LOG.info("%s serves again", self.place.name)
            except BrokerFailed as error:
                LOG.error("%s", error)
            except Exception:
                # Whatever is wrong, such as a lack of processes, may pass.
                LOG.exception("%s cannot be started", self.place.name)

    async def _listen(self) -> int:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while not process.stdout.at_eof():
            try:
                line = await process.stdout.readline()
                if line:
                    self._condition = msgspec.json.decode(line, type=BrokerCondition)
            except (msgspec.MsgspecError, ValueError) as error:
                # A line of something else, or one that is too long.
                LOG.warning("%s printed a line that is not a report: %s", self.place.name, error)
        self._condition = None
        return await process.wait()

    async def stop(self) -> None:
        """Let the process stop cleanly, and wait for its end."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        if self._condition is None:
            # A process that recovers its store hears of a signal alone.
            with suppress(ProcessLookupError):
                process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            LOG.error("%s does not stop, and is killed", self.place.name)
            process.kill()
            await process.wait()

    def failures(self) -> list[str]:
        """Return the failures that only a restart mends."""
        condition = self._condition or BrokerCondition()
        return [f"{self.place.name}: {each}" for each in condition.failures]

    def obstacles(self) -> list[str]:
        """Return why the broker does not serve clients now."""
        if self._condition is None:
            return [f"{self.place.name} does not run"]
        return [f"{self.place.name}: {each}" for each in self._condition.obstacles]


class BrokerProcesses:
    """The processes of all brokers."""

    def __init__(self, processes: Sequence[BrokerProcess]) -> None:
        self._processes = processes

    @property
    def addresses(self) -> list[str]:
        """The addresses of the brokers, the first broker's first."""
        return [each.address for each in self._processes]

    def failures(self) -> list[str]:
        """Return the failures that only a restart mends."""
        return [text for each in self._processes for text in each.failures()]

    def obstacles(self) -> list[str]:
        """Return why some brokers do not serve clients now."""
        return [text for each in self._processes for text in each.obstacles()]


@asynccontextmanager
async def serve_brokers(
    places: Sequence[Place],
    make_order: Callable[[Place], bytes],
    *,
    stop: asyncio.Event,
    command: Sequence[str] = (sys.executable, "-m", "sparrowmq.hosting.child_broker"),
) -> AsyncGenerator[BrokerProcesses]:
    """Run a broker at each place; yield the brokers once all serve.

    Args:
        stop: ends a start that is under way, once it is set.

    Raises: BrokerFailed if a broker does not start; StoppedAtStart.
    """
    processes = [BrokerProcess(place, make_order, command) for place in places]
    keepers: list[asyncio.Task[None]] = []
    try:
        for result in await _start_all(processes, stop):
            if isinstance(result, BaseException):
                raise result
        keepers = [asyncio.create_task(each.keep()) for each in processes]
        yield BrokerProcesses(processes)
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in processes))


async def _start_all(
    processes: Sequence[BrokerProcess], stop: asyncio.Event
) -> list[BaseException | None]:
    """Start all processes; return the error of each. Raises: StoppedAtStart."""
    starts = asyncio.gather(*(each.start() for each in processes), return_exceptions=True)
    stopping = asyncio.create_task(stop.wait())
    try:
        both: tuple[asyncio.Future[Any], ...] = (starts, stopping)
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not starts.done():
            raise StoppedAtStart
        return starts.result()
    finally:
        stopping.cancel()
        starts.cancel()
        await asyncio.gather(starts, stopping, return_exceptions=True)
