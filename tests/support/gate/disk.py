"""Fill a broker's disk under load again and again: `python -m gate.disk --cycles 100`.

The disk is a file system of some megabytes in memory, which needs the right to mount one. While it
is full, whichever file is next cannot be written: the log, a queue, the index, offsets, the log of
what was popped. Then there is room again, and the broker must take messages; all that it
acknowledged must be there, and each offset that it has confirmed, those of the last two seconds
excepted. In two of three cycles the broker is killed, while the disk is full or once it is not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from gate import wire
from gate.kills import (
    BATCHED,
    HALF,
    LATER,
    PLAIN,
    QUEUES,
    SETTLE_S_MAX,
    Load,
    compare,
)
from gate.ledger import Ledger
from gate.server import Server

# All messages stay, so a broker that is fast must not fill it by itself.
DISK_MB = 256
POPPED, GROUP = "popped", "GID_gate"
_BLOCK = 4096
# The broker's own bounds on the disk would refuse messages before the disk does.
_OPTIONS = (
    *("--disk-expire-percent", "100", "--disk-force-percent", "100", "--disk-full-percent", "100"),
    *("--log-file-mib", "1", "--retention-hours", "10000"),
)
# So many refusals, then so many acknowledgements, are waited for.
_REFUSED_MIN, _ACKNOWLEDGED_MIN = 20, 30
_WAIT_S_MAX = 60
_INVISIBLE_MS = 3_600_000
# Offsets are written once a second.
_OFFSETS_S = 2


class MixedLoad(Load):
    """The senders of the kills, one of messages at a time of their own, a member, and a popper."""

    def __init__(self, port: int, ledger: Ledger, cycle: int, state: State) -> None:
        self._state = state
        super().__init__(port, ledger, cycle)

    def _turns(self) -> list[Callable[[wire.Connection, str, int], None]]:
        return [*super()._turns(), self._send_timed, self._commit_offset, self._pop]

    def _commit_offset(self, connection: wire.Connection, _sender: str, number: int) -> None:
        end = wire.max_offset(connection, PLAIN, number % QUEUES)
        fields = {"consumerGroup": GROUP, "topic": PLAIN, "queueId": number % QUEUES}
        answer = connection.call(wire.COMMIT_OFFSET, fields | {"commitOffset": end})
        if answer.code == 0:
            self._state.offsets[number % QUEUES] = end
        time.sleep(0.01)

    def _pop(self, connection: wire.Connection, sender: str, number: int) -> None:
        body = f"{sender} {number}".encode()
        fields = wire.send_fields(POPPED, 0, {})
        self._acknowledged(connection.call(wire.SEND_MESSAGE_V2, fields, body))
        fields = wire.pop_fields(GROUP, POPPED, invisible_ms=_INVISIBLE_MS)
        popped = connection.call(wire.POP, fields)
        for record in wire.decode(popped.body) if popped.code == 0 else ():
            self._state.popped(record.offset)
            fields = wire.acknowledge_fields(GROUP, POPPED, record.offset, popped)
            if connection.call(wire.ACKNOWLEDGE, fields).code == 0:
                self._state.done.add(record.offset)


class State:
    """What the broker has confirmed beside messages."""

    def __init__(self) -> None:
        # By queue, the group's offset; the offsets of what was popped and acknowledged.
        self.offsets: dict[int, int] = {}
        self.done: set[int] = set()
        self.again: list[int] = []

    def popped(self, offset: int) -> None:
        if offset in self.done:
            self.again.append(offset)

    def behind(self, port: int) -> list[str]:
        """Return where the group's offsets at the broker are behind those it has confirmed."""
        connection = wire.Connection(port)
        found = []
        for queue_id, offset in self.offsets.items():
            fields = {"consumerGroup": GROUP, "topic": PLAIN, "queueId": queue_id}
            answer = connection.call(wire.QUERY_OFFSET, fields)
            if answer.code or int(answer.fields["offset"]) < offset:
                found.append(f"queue {queue_id}: {answer.fields} where {offset} was confirmed")
        connection.close()
        return found


@contextlib.contextmanager
def small_disk(size_mb: int = DISK_MB) -> Generator[Path]:
    """Mount a file system of some megabytes. Raises: PermissionError without the right."""
    with tempfile.TemporaryDirectory(prefix="gate-disk-") as directory:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "gate", directory]
        made = subprocess.run(mount, capture_output=True, text=True, check=False)
        if made.returncode:
            raise PermissionError(made.stderr.strip())
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", directory], check=True)


def fill(path: Path, *, left: int) -> None:
    """Fill the disk of a file but for some blocks."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(_BLOCK))
        except OSError:
            size = file.tell()
        os.ftruncate(file.fileno(), max(0, size - left * _BLOCK))


def reaches(count: Callable[[], int], wanted: int) -> bool:
    """Return whether a count comes to a number within a minute."""
    until_s = time.monotonic() + _WAIT_S_MAX
    while count() < wanted:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True


def run(cycles: int, *, seed: int, disk: Path) -> dict[str, Any]:
    """Fill the disk so many times; return the figures."""
    choice, ledger, state = random.Random(seed), Ledger(), State()
    server = Server(disk / "data", *_OPTIONS)
    refused = 0
    server.start()
    try:
        connection = wire.Connection(server.broker_port)
        for topic in (PLAIN, BATCHED, LATER, HALF, POPPED):
            wire.create_topic(connection, topic, QUEUES)
        connection.close()
        for cycle in range(cycles):
            load = MixedLoad(server.broker_port, ledger, cycle, state)
            load.start()
            time.sleep(choice.uniform(0.05, 0.5))
            fill(disk / "ballast", left=choice.choice((0, 1, 2, 4, 8, 16)))
            if not reaches(load.refused.__len__, _REFUSED_MIN):
                ledger.note("never full", f"cycle {cycle}")
            time.sleep(choice.uniform(0, 1.5))
            if cycle % 3 == 0:
                # The offsets go on, and are written, while the disk is full.
                confirmed = dict(state.offsets)
                time.sleep(_OFFSETS_S)
                server.kill()
                state.offsets = confirmed
                (disk / "ballast").unlink()
                server.start()
            else:
                (disk / "ballast").unlink()
                aim = ledger.acknowledged.total() + _ACKNOWLEDGED_MIN
                if not reaches(ledger.acknowledged.total, aim):
                    ledger.note("not served again", f"cycle {cycle}: {load.refused[-1:]}")
            refused += len(load.refused)
            load.stop()
            load.join()
            if cycle % 3 == 1:
                time.sleep(_OFFSETS_S)
                server.kill()
                server.start()
            for text in state.behind(server.broker_port):
                ledger.note("offsets behind", f"cycle {cycle}: {text}")
            compare(server.broker_port, ledger)
            if ledger.broken:
                break
        settled_s = time.monotonic() + SETTLE_S_MAX
        while ledger.owed_count and time.monotonic() < settled_s:
            time.sleep(0.2)
            compare(server.broker_port, ledger)
        ledger.end()
        for offset in state.again:
            ledger.note("popped again", f"{offset}")
    finally:
        server.kill()
    return {
        "cycles": cycles,
        "acknowledged": dict(ledger.acknowledged),
        "popped": len(state.done),
        "refused": refused,
        "broken": dict(ledger.broken),
        "examples": ledger.examples,
    }


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m gate.disk", description=__doc__)
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with small_disk() as disk:
        figures = run(options.cycles, seed=options.seed, disk=disk)
    print(json.dumps(figures))
    return 1 if figures["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
