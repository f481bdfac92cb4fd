"""Upgrade a store and a group in the middle of their work, and go back: `python -m gate.upgrade`.

Servers and members run an older version's code, then this one's, then the older one's again, on one
directory of data. In between, members of both versions share one group. Every message must stay
where it was acknowledged to be, and the group must get each once. The last stop is a `kill -9` of
the older servers, once the group's offsets are saved; the others are clean, as the way back needs.

Across the stops delayed messages and half messages of both versions wait, and timed and popped
messages of this version, which the older one does not have. Each must come once, not early, and no
half message that was rolled back, nor a popped one after its acknowledgement.

One exception is counted apart. Members of the older version trust the first member list of a
restarted broker, though it may not name them all yet, as RocketMQ's own do. Two of them may share a
queue then, from its last commit and until the next list.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gate import wire
from gate.consumption import POPPED, Consumption
from gate.kills import unique_id
from gate.ledger import Ledger
from gate.server import Server

ROOT = Path(__file__).parents[3]
# The last version without consumption message by message and messages with a time of their own.
OLD = "3a9b9ce3"
TOPIC, QUEUES, GROUP = "gate_upgrade", 8, "GID_gate_upgrade"
MESSAGES = 400
LATER, HALF = "gate_upgrade_later", "gate_upgrade_half"
# Of each kind that waits, how many are sent at once; half messages are ended by halves.
WAITING = 12
# By level of delay, and of messages with a time: they outlast the stop that follows.
LEVELS_MS = {"1": 1_000, "2": 5_000}
TIMED_MS = 8_000
KINDS = (
    *("single", "delayed", "at a time", "half", "committed", "rollback"),
    *("to be popped", "popped", "acknowledged pops"),
)
CONSUMED_S_MAX = 120
OWED_S_MAX = 30
MEMBER = """
import sys
from sparrowmq import PushConsumer

def on_messages(messages, context):
    for message in messages:
        print(message.body.decode() + "\\n", end="", flush=True)  # several threads write

name_server, group, topic = sys.argv[1:]
consumer = PushConsumer(group, name_server=name_server, listener=on_messages)
consumer.subscribe(topic)
with consumer:
    consumer.start()  # versions differ in whether `with` starts
    print("started", flush=True)
    sys.stdin.read()
"""


class Member:
    """A consumer of the group as a process of one version; it writes the bodies to a file."""

    def __init__(self, version: str, source: Path, port: int, bodies: Path) -> None:
        self.version = version
        self._bodies = bodies
        self._output: IO[bytes] = bodies.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, f"127.0.0.1:{port}", GROUP, TOPIC],
            stdin=subprocess.PIPE,
            stdout=self._output,
            env={**os.environ, "PYTHONPATH": str(source)},
        )
        wait_until(lambda: "started" in self.lines(), f"the start of a member; see {bodies}")

    def lines(self) -> list[str]:
        return self._bodies.read_text().splitlines()

    def stop(self) -> None:
        """Let the member drain, commit and leave."""
        self._process.communicate(timeout=60)
        self._output.close()
        if self._process.returncode:
            raise RuntimeError(f"a member ended with {self._process.returncode}")

    def kill(self) -> None:
        """End what is left of the process."""
        self._process.kill()
        self._process.communicate()
        self._output.close()


class Upgrade:
    """A cluster whose processes change their version.

    Args:
        directory: for data, sources and output.
        old: the source of the older version.
    """

    def __init__(self, directory: Path, old: Path) -> None:
        self._directory = directory
        self.sources = {"old": old, "new": ROOT / "src"}
        self.server = Server(directory / "data", "--flush", "sync", source=old)
        self.ledger = Ledger()
        self.consumption = Consumption(self.ledger, TOPIC, QUEUES)
        self.members: list[Member] = []
        self._offsets = directory / "data/store/config/consumerOffset.json"
        self._sent = self._waiting = 0
        # The half messages that have no end yet: what names each to the broker.
        self._halves: dict[bytes, dict[str, str]] = {}

    def restart(self, version: str, *, is_killed: bool = False) -> None:
        """Stop or kill the servers, and start those of a version."""
        if not self._halves or not self.ledger.owed_count:
            self.ledger.note("nothing waits at a stop", f"before {version}")
        if version == "old" and not self.consumption.in_flight_count:
            self.ledger.note("nothing is popped at a stop", f"before {version}")
        if is_killed:
            wait_until(lambda: self._saved_offsets() == self._sent, "the offsets on the disk")
            self.server.kill()
        else:
            self.server.stop()
        self.server.source = self.sources[version]
        self.server.start()
        self.check()

    def join(self, version: str) -> Member:
        """Start a member of a version."""
        bodies = self._directory / f"member-{len(self.members)}"
        member = Member(version, self.sources[version], self.server.name_server_port, bodies)
        self.members.append(member)
        return member

    def send(self) -> None:
        """Send messages to all queues, and wait until the group has had all that were ever sent."""
        connection = wire.Connection(self.server.broker_port)
        for number in range(self._sent, self._sent + MESSAGES):
            queue_id, body = number % QUEUES, f"upgrade {number}"
            fields = wire.send_fields(TOPIC, queue_id, {})
            answer = accepted(connection.call(wire.SEND_MESSAGE_V2, fields, body.encode()))
            offset = int(answer.fields["queueOffset"])
            self.ledger.place(TOPIC, queue_id, offset, [body.encode()], "single")
        connection.close()
        self._sent += MESSAGES
        wait_until(
            lambda: len(self.takers()) == self._sent,
            f"{self._sent} messages in the group",
        )

    def _saved_offsets(self) -> int:
        """Return the sum of the group's offsets in the broker's file."""
        text = self._offsets.read_text()
        _, _, table = text.partition(f'"{TOPIC}@{GROUP}":{{')
        return sum(map(int, re.findall(r":\s*(\d+)", table.partition("}")[0])))

    def send_waiting(self, *, has_times: bool) -> None:
        """Send messages that come later, and end some half messages.

        Args:
            has_times: whether the servers take messages with a time of their own, and pops.
        """
        connection = wire.Connection(self.server.broker_port)
        for body in sorted(self._halves)[: WAITING // 2]:
            self._end(connection, body)
        for number in range(self._waiting, self._waiting + WAITING):
            for level, delay_ms in LEVELS_MS.items():
                body = f"delayed-{level} {number}".encode()
                self._send_later(connection, body, {"DELAY": level}, delay_ms, "delayed")
            if has_times:
                body = f"timed {number}".encode()
                self._send_later(
                    connection, body, {"TIMER_DELAY_MS": f"{TIMED_MS}"}, TIMED_MS, "at a time"
                )
                self.consumption.pop(connection, "popped", number)
            self._send_half(connection, f"half-{number}".encode())
        connection.close()
        self._waiting += WAITING

    def _send_later(
        self,
        connection: wire.Connection,
        body: bytes,
        properties: dict[str, str],
        delay_ms: int,
        kind: str,
    ) -> None:
        fields = wire.send_fields(LATER, 0, properties | {"UNIQ_KEY": unique_id(body)})
        due_ms = int(time.time() * 1000) + delay_ms
        accepted(connection.call(wire.SEND_MESSAGE_V2, fields, body))
        self.ledger.owe(LATER, body, kind, due_ms=due_ms)

    def _send_half(self, connection: wire.Connection, body: bytes) -> None:
        unique = unique_id(body)
        properties = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": unique}
        fields = wire.send_fields(HALF, 0, properties, system_flag=wire.PREPARED)
        answer = accepted(connection.call(wire.SEND_MESSAGE_V2, fields, body))
        self.ledger.acknowledged["half"] += 1
        self._halves[body] = {
            "producerGroup": GROUP,
            "tranStateTableOffset": answer.fields["queueOffset"],
            "commitLogOffset": f"{int(answer.fields['msgId'][16:], 16)}",
            "fromTransactionCheck": "false",
            "msgId": unique,
            "transactionId": unique,
        }

    def _end(self, connection: wire.Connection, body: bytes) -> None:
        """Commit every other half message, and roll back the rest."""
        fields = self._halves.pop(body)
        is_commit = len(self._halves) % 2 == 0
        decision = wire.COMMIT if is_commit else wire.ROLLBACK
        accepted(
            connection.call(wire.END_TRANSACTION, fields | {"commitOrRollback": f"{decision}"})
        )
        if is_commit:
            self.ledger.owe(HALF, body, "committed")
        else:
            self.ledger.undo(body)

    def end_waiting(self) -> None:
        """End all half messages, and wait until all has come that must."""
        connection = wire.Connection(self.server.broker_port)
        for body in sorted(self._halves):
            self._end(connection, body)
        connection.close()

        def has_come() -> bool:
            self.read_waiting()
            return not self.ledger.owed_count

        # What does not come is lost, and no error of this program.
        with suppress(TimeoutError):
            wait_until(has_come, "what waits", seconds=OWED_S_MAX)
        until_s = time.monotonic() + OWED_S_MAX
        self.consumption.drain(self.server.broker_port, until_s=until_s)
        self.ledger.end()

    def read_waiting(self) -> None:
        """Read what has come of the messages that waited."""
        connection = wire.Connection(self.server.broker_port)
        for place in ((LATER, 0), (HALF, 0), (POPPED, 0)):
            end, begin = wire.max_offset(connection, *place), self.ledger.read_to[place]
            for record in wire.read_queue(connection, *place, begin, end):
                self.ledger.read(place, record)
            self.ledger.end_of(place)
        connection.close()

    def takers(self) -> dict[str, list[Member]]:
        """Return the members that got each body."""
        takers: dict[str, list[Member]] = {}
        for member in self.members:
            for line in member.lines():
                if line.startswith("upgrade "):
                    takers.setdefault(line, []).append(member)
        return takers

    def check(self) -> None:
        """Read all queues from their beginning and compare them with what was acknowledged."""
        connection = wire.Connection(self.server.broker_port)
        seen = Ledger()
        for number in range(self._sent):
            seen.owe(TOPIC, f"upgrade {number}".encode(), "single")
        for queue_id in range(QUEUES):
            end = wire.max_offset(connection, TOPIC, queue_id)
            for record in wire.read_queue(connection, TOPIC, queue_id, 0, end):
                seen.read((TOPIC, queue_id), record)
                if record.offset >= self.ledger.read_to[TOPIC, queue_id]:
                    self.ledger.read((TOPIC, queue_id), record)
            self.ledger.end_of((TOPIC, queue_id))
        connection.close()
        self.read_waiting()
        seen.end()
        self.ledger.broken += seen.broken
        self.ledger.examples += seen.examples


def run(directory: Path, *, revision: str = OLD) -> dict[str, Any]:
    """Upgrade and go back; return the figures."""
    old = export(revision, directory / "old")
    upgrade = Upgrade(directory, old)
    upgrade.server.start()
    try:
        connection = wire.Connection(upgrade.server.broker_port)
        wire.create_topic(connection, TOPIC, QUEUES)
        for topic in (LATER, HALF, POPPED):
            wire.create_topic(connection, topic, 1)
        connection.close()
        first, second = upgrade.join("old"), upgrade.join("old")
        upgrade.send()
        upgrade.send_waiting(has_times=False)
        upgrade.restart("new")
        upgrade.send()
        first.stop()
        third = upgrade.join("new")
        upgrade.send()
        second.stop()
        upgrade.send()
        fourth = upgrade.join("old")
        upgrade.send()
        third.stop()
        upgrade.send_waiting(has_times=True)
        upgrade.restart("old")
        upgrade.send()
        upgrade.send_waiting(has_times=False)
        upgrade.restart("new", is_killed=True)
        upgrade.send()
        fourth.stop()
        upgrade.end_waiting()
        upgrade.check()
    finally:
        for member in upgrade.members:
            member.kill()
        upgrade.server.kill()
    takers = upgrade.takers()
    twice = [members for members in takers.values() if len(members) > 1]
    by_older = [members for members in twice if is_shared_by_older(members)]
    upgrade.ledger.broken["twice in the group"] += len(twice) - len(by_older)
    for kind in KINDS:
        if not upgrade.ledger.acknowledged[kind]:
            upgrade.ledger.note("nothing of a kind", kind)
    return {
        "from": revision,
        "acknowledged": upgrade.ledger.acknowledged,
        "consumed": len(takers),
        "twice_by_older": len(by_older),
        "broken": +upgrade.ledger.broken,
        "examples": upgrade.ledger.examples,
    }


def is_shared_by_older(takers: list[Member]) -> bool:
    """Tell whether members of the older version alone got a message, each once."""
    return len(set(takers)) == len(takers) and all(each.version == "old" for each in takers)


def export(revision: str, directory: Path) -> Path:
    """Write a revision's source into a directory and return where its packages are."""
    archive = subprocess.run(
        ["git", "archive", revision, "src"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(directory)
    return directory / "src"


def accepted(answer: wire.Answer) -> wire.Answer:
    """Return an answer. Raises: RuntimeError if it is a refusal."""
    if answer.code:
        raise RuntimeError(f"a request was refused: {answer.code} {answer.remark}")
    return answer


def wait_until(
    condition: Callable[[], bool], what: str, *, seconds: float = CONSUMED_S_MAX
) -> None:
    """Wait until a condition holds. Raises: TimeoutError if it takes too long."""
    deadline_s = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.05)


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m gate.upgrade", description=__doc__)
    parser.add_argument("--from", dest="revision", default=OLD, help="the older version's commit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-upgrade-") as directory:
        figures = run(Path(directory), revision=options.revision)
    print(json.dumps(figures))
    return 1 if figures["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
