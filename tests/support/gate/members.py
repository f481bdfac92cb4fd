"""Kill members of groups under load again and again: `python -m gate.members --kills 200`.

Two groups of processes consume one topic, one of them in order. All members of a group append to
one file, so that its lines stand in the order in which messages were consumed. After each `kill -9`
another member takes the place. A message that does not come is lost; one may come twice only
where the member that had it first was killed within a second after it consumed it, which is the
longest time between two commits of a queue; a queue consumed in order may go back only then. No
kill comes before its group has consumed some messages since the one before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

from gate import wire
from gate.ledger import Ledger
from gate.parts import notes_of_code, ranges, run_parts
from gate.server import SOURCE, Server

# After so many kills come a new broker and new groups.
PART = 25
TOPIC, QUEUES = "gate_members", 8
SENT_PER_S = 400
# By name, whether the group consumes in order.
GROUPS = {"GID_gate_any": False, "GID_gate_ordered": True}
SIZE = 3
WAIT_S_MAX = 60
# The longest time between two commits of a queue (`commit_interval_ms`). Of so few queues a member
# commits each after 160 ms, so there is room for a busy machine.
COMMIT_S = 1.0
# What is sent, and what a group consumes, between two kills of its members.
BETWEEN_KILLS = 20
# Within this a queue has an owner again.
PAUSE_S_MAX = 30
MEMBER = """
import os, sys, time
from sparrowmq import PushConsumer

def on_messages(messages, context):
    for message in messages:
        text = f"{os.getpid()} {message.queue_id} {message.queue_offset} {time.monotonic()}\\n"
        os.write(output, text.encode())

name_server, group, topic, in_order, path = sys.argv[1:]
output = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
with PushConsumer(
    group,
    topic,
    name_server=name_server,
    listener=on_messages,
    orderly=in_order == "True",
    start="first",
):
    print("started", flush=True)
    sys.stdin.read()
"""


class Line(NamedTuple):
    """A message that a member consumed; the time is the machine's monotonic clock."""

    pid: int
    queue_id: int
    offset: int
    time_s: float


class Member:
    """A member as a process.

    Raises: RuntimeError if it does not start.
    """

    def __init__(self, group: str, port: int, output: Path) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", MEMBER, f"127.0.0.1:{port}", group, TOPIC),
                *(str(GROUPS[group]), str(output)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"started\n":
            self.kill()
            raise RuntimeError(f"a member of {group} did not start")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class Sender(threading.Thread):
    """Sends to all queues in turn, and counts for each what was acknowledged."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self._is_over = threading.Event()
        self.acknowledged = [0] * QUEUES

    def run(self) -> None:
        connection = wire.Connection(self._port)
        for number in count():
            if self._is_over.wait(1 / SENT_PER_S):
                break
            queue_id = number % QUEUES
            fields = wire.send_fields(TOPIC, queue_id, {})
            answer = connection.call(wire.SEND_MESSAGE_V2, fields, b"body")
            if answer.code == 0:
                self.acknowledged[queue_id] = int(answer.fields["queueOffset"]) + 1
        connection.close()

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def read_lines(output: Path) -> list[Line]:
    """Return what the members of a group have consumed, in this order."""
    if not output.exists():
        return []
    fields = (line.split() for line in output.read_text().splitlines())
    return [Line(int(a), int(b), int(c), float(d)) for a, b, c, d in fields]


def judge(
    lines: Sequence[Line],
    acknowledged: Sequence[int],
    killed_s: dict[int, float],
    ledger: Ledger,
    *,
    is_ordered: bool,
) -> Counter[int]:
    """Compare what a group consumed with what was acknowledged.

    Args:
        acknowledged: of each queue, how many messages it has.
        killed_s: when each member that was killed was, by process.
        ledger: notes the broken promises.

    Returns: how many messages each killed member had before they came again.
    """
    again: Counter[int] = Counter()
    # Who had a message last.
    takers: dict[tuple[int, int], Line] = {}
    expected = [0] * len(acknowledged)

    for line in lines:
        taker = takers.get((line.queue_id, line.offset))
        takers[line.queue_id, line.offset] = line
        if taker is None:
            if is_ordered and line.offset != expected[line.queue_id]:
                ledger.note("out of order", str(line))
        elif (end_s := killed_s.get(taker.pid, float("inf"))) >= line.time_s:
            ledger.note("twice, though the former member lives", str(line))
        else:
            again[taker.pid] += 1
            if taker.time_s < end_s - COMMIT_S:
                text = f"{line}, {end_s - taker.time_s:.2f} s before the kill"
                ledger.note("again, and consumed long before the kill", text)
        expected[line.queue_id] = max(expected[line.queue_id], line.offset + 1)
    for queue_id, length in enumerate(acknowledged):
        for offset in range(length):
            if (queue_id, offset) not in takers:
                ledger.note("lost", f"queue {queue_id} at {offset}")
    return again


def longest_pause_s(lines: Sequence[Line], begin_s: float, end_s: float) -> float:
    """Return for how long at most a queue to which messages came had none consumed."""
    last_s = [begin_s] * QUEUES
    longest = 0.0
    for line in (*lines, *(Line(0, queue_id, 0, end_s) for queue_id in range(QUEUES))):
        if begin_s <= line.time_s <= end_s:
            longest = max(longest, line.time_s - last_s[line.queue_id])
            last_s[line.queue_id] = line.time_s
    return longest


def run(kills: int, *, seed: int, directory: Path) -> dict[str, Any]:
    """Kill members so many times; return the figures."""
    choice, server = random.Random(seed), Server(directory / "data")
    outputs = {group: directory / group for group in GROUPS}
    members: dict[str, list[Member]] = {group: [] for group in GROUPS}
    killed_s: dict[int, float] = {}
    ledger, counts = Ledger(), dict[tuple[str, str], int]()
    server.start()
    try:
        connection = wire.Connection(server.broker_port)
        wire.create_topic(connection, TOPIC, QUEUES)
        connection.close()

        def join(group: str) -> None:
            members[group].append(Member(group, server.name_server_port, outputs[group]))

        for group in GROUPS:
            for _ in range(SIZE):
                join(group)
        sender = Sender(server.broker_port)
        begin_s = time.monotonic()
        sender.start()
        try:
            for number in range(kills):
                # The moment of the kill is what is drawn, so a time it is.
                time.sleep(choice.uniform(0.1, 2.0))
                group = list(GROUPS)[number % len(GROUPS)]
                for what, count_now in (
                    ("sent", lambda: sum(sender.acknowledged)),
                    ("consumed", lambda group=group: len(read_lines(outputs[group]))),
                ):
                    before = counts.get((group, what), 0)
                    counts[group, what] = reach(count_now, before + BETWEEN_KILLS)
                    if counts[group, what] < before + BETWEEN_KILLS:
                        ledger.note("too little for a kill", f"{what}: {counts[group, what]}")
                victim = members[group].pop(choice.randrange(SIZE))
                killed_s[victim.pid] = time.monotonic()
                victim.kill()
                join(group)
        finally:
            end_s = time.monotonic()
            sender.stop()
        pauses_s, came_again, busy = list[float](), list[int](), set[int]()
        for group, is_ordered in GROUPS.items():
            wait_for_all(outputs[group], sum(sender.acknowledged))
            lines = read_lines(outputs[group])
            again = judge(lines, sender.acknowledged, killed_s, ledger, is_ordered=is_ordered)
            came_again += again.values()
            busy |= {line.pid for line in lines} & killed_s.keys()
            pauses_s.append(longest_pause_s(lines, begin_s, end_s))
        for pause_s in pauses_s:
            if pause_s > PAUSE_S_MAX:
                ledger.note("without an owner for too long", f"{pause_s:.1f} s")
    finally:
        for member in chain.from_iterable(members.values()):
            member.kill()
        server.kill()
    return {
        "kills": kills,
        "busy": len(busy),
        "sent": sum(sender.acknowledged),
        "again": came_again,
        "pause_s": round(max(pauses_s), 2),
        "broken": ledger.broken,
        "examples": ledger.examples,
    }


def reach(count_now: Callable[[], int], wanted: int) -> int:
    """Wait until a count comes to a number, or for `WAIT_S_MAX`; return the count."""
    deadline_s = time.monotonic() + WAIT_S_MAX
    while (found := count_now()) < wanted and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return found


def wait_for_all(output: Path, count: int) -> None:
    """Wait until a group has consumed so many messages, or for `WAIT_S_MAX`."""
    reach(lambda: len({(line.queue_id, line.offset) for line in read_lines(output)}), count)


def run_part(part: tuple[int, int]) -> dict[str, Any]:
    """Kill members of groups of their own; what is drawn depends on where the part begins."""
    begin, kills = part
    with tempfile.TemporaryDirectory(prefix="gate-members-") as directory:
        figures = run(kills, seed=begin, directory=Path(directory))
    shown = {name: figures[name] for name in ("busy", "sent", "again", "pause_s", "broken")}
    print(f"{begin + kills} kills: {shown}", flush=True)
    return figures


def find_failures(kills: int, busy: int) -> list[str]:
    """Return what the kills do not prove: those of members that had nothing prove little."""
    return [] if busy * 2 > kills else [f"{busy} of {kills} members had consumed anything"]


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken or nothing is proved."""
    parser = argparse.ArgumentParser(prog="python -m gate.members", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    parts = run_parts(
        run_part,
        ranges(options.kills, PART),
        is_passed=lambda figures: not figures["broken"],
        notes=notes_of_code("members"),
    )
    again = [most for part in parts for most in part["again"]]
    kills, busy = (sum(part[name] for part in parts) for name in ("kills", "busy"))
    broken = sum((Counter(part["broken"]) for part in parts), Counter())
    failures = find_failures(kills, busy)
    print(
        json.dumps(
            {
                "kills": kills,
                "busy": busy,
                "sent": sum(part["sent"] for part in parts),
                "again": sum(again),
                "again_max": max(again, default=0),
                "pause_s": max(part["pause_s"] for part in parts),
                "broken": broken,
                "failures": failures,
                "examples": [each for part in parts for each in part["examples"]],
            }
        )
    )
    return 1 if broken or failures else 0


if __name__ == "__main__":
    sys.exit(main())
