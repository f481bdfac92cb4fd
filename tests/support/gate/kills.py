"""Kill a broker under load again and again: `python -m gate.kills --cycles 1000`.

Senders of single messages, batches, delayed and timed messages, messages sent back and
transactions note what the broker acknowledges; consumers pop, commit offsets and lock queues
(`consumption`). After each `kill -9` the broker starts on the same data, and all that it shows is
compared. A message is lost if it was acknowledged and does not come. Each is sent once, with the
id that clients give, so none may come twice, acknowledged or not; what was popped and not
acknowledged alone comes again. At the end every queue is read from its first message, and compared
with what was read when it was new. The store holds a gigabyte from the beginning, which no start
may take long to read.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any

from gate import wire
from gate.consumption import CLIENTS, LOCKED, OFFSETS_S, POPPED, Consumption
from gate.ledger import Ledger
from gate.parts import notes_of_code, ranges, run_parts
from gate.server import Server

# After so many kills comes a broker with an empty store.
PART = 25
QUEUES = 4
BATCH = 10
SETTLE_S_MAX = 90
# No kill comes before so many messages of its load, unless the load takes too long.
ACKNOWLEDGED_MIN = 30
LOAD_S_MAX = 60
# How long a start may take on average.
MEAN_START_S_MAX = 1.0
PLAIN, BATCHED, LATER, HALF = "plain", "batched", "later", "half"
RETRY = "%RETRY%GID_gate"
# What is in the store before the first kill.
FILLED, FILLED_BYTES, FILLING = "filled", 1 << 30, [b"f" * 4096] * 256
TOPICS = {PLAIN: QUEUES, BATCHED: QUEUES, LATER: QUEUES, HALF: QUEUES, RETRY: 1, POPPED: 1}
# What each run must have confirmed: a kind that nobody used proves nothing.
KINDS = (
    *("single", "in a batch", "delayed", "at a time", "sent back", "committed", "rollback"),
    *("to be popped", "popped", "acknowledged pops", "offsets", "offsets to be kept"),
    *("locks", "locks to be kept"),
)
# Of messages with a level of delay, and with a time of their own.
_LEVEL_MS, _TIMED_MS = 1_000, 1_500
_STARTS = ("starts_s", "starts_processor_s")


class Load:
    """Senders that run until they are stopped or the broker is gone, each on its own connection.

    Args:
        port: the broker's.
        ledger: notes what is acknowledged.
        cycle: part of the senders' names.
    """

    def __init__(self, port: int, ledger: Ledger, cycle: int) -> None:
        self._port, self._ledger, self._cycle = port, ledger, cycle
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(f"{cycle}-{index}", turn))
            for index, turn in enumerate(self._turns())
        ]
        # Answers that are no acknowledgement, though the broker is alive.
        self.refused: list[str] = []

    def _turns(self) -> list[Callable[[wire.Connection, str, int], None]]:
        return [self._send_plain, self._send_plain, self._send_batch, self._send_other]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self, sender: str, turn: Callable[[wire.Connection, str, int], None]) -> None:
        try:
            connection = wire.Connection(self._port)
        except OSError:
            return
        try:
            for number in count():
                if self._is_over.is_set():
                    break
                turn(connection, sender, number)
        except OSError:
            pass
        finally:
            connection.close()

    def _acknowledged(self, answer: wire.Answer) -> bool:
        if answer.code:
            self.refused.append(f"{answer.code} {answer.remark}")
        return answer.code == 0

    def _send_plain(self, connection: wire.Connection, sender: str, number: int) -> None:
        body, queue_id = f"{sender} {number}".encode(), number % QUEUES
        fields = wire.send_fields(PLAIN, queue_id, {"KEYS": sender})
        answer = connection.call(wire.SEND_MESSAGE_V2, fields, body)
        if self._acknowledged(answer):
            offset = int(answer.fields["queueOffset"])
            self._ledger.place(PLAIN, queue_id, offset, [body], "single")

    def _send_batch(self, connection: wire.Connection, sender: str, number: int) -> None:
        bodies = [f"{sender} {number * BATCH + index}".encode() for index in range(BATCH)]
        queue_id = number % QUEUES
        fields = wire.send_fields(BATCHED, queue_id, {}) | {"m": "true"}
        answer = connection.call(wire.SEND_BATCH, fields, wire.batch_body(bodies))
        if self._acknowledged(answer):
            offset = int(answer.fields["queueOffset"])
            self._ledger.place(BATCHED, queue_id, offset, bodies, "in a batch")

    def _send_other(self, connection: wire.Connection, sender: str, number: int) -> None:
        turns = (self._send_delayed, self._send_back, self._commit, self._roll_back)
        index = number % len(turns)
        # Each kind keeps its own order.
        turns[index](connection, f"{sender}-{index} {number}".encode())

    def _send_delayed(self, connection: wire.Connection, body: bytes) -> None:
        properties, due_ms = {"DELAY": "1", "UNIQ_KEY": unique_id(body)}, _from_now_ms(_LEVEL_MS)
        fields = wire.send_fields(LATER, 0, properties)
        if self._acknowledged(connection.call(wire.SEND_MESSAGE_V2, fields, body)):
            self._ledger.owe(LATER, body, "delayed", due_ms=due_ms)

    def _send_timed(self, connection: wire.Connection, sender: str, number: int) -> None:
        body, due_ms = f"{sender}-{number}".encode(), _from_now_ms(_TIMED_MS)
        properties = {"TIMER_DELAY_MS": f"{_TIMED_MS}", "UNIQ_KEY": unique_id(body)}
        fields = wire.send_fields(LATER, 2, properties)
        if self._acknowledged(connection.call(wire.SEND_MESSAGE_V2, fields, body)):
            self._ledger.owe(LATER, body, "at a time", due_ms=due_ms)

    def _send_back(self, connection: wire.Connection, body: bytes) -> None:
        fields = wire.send_fields(LATER, 1, {"UNIQ_KEY": unique_id(body)})
        answer = connection.call(wire.SEND_MESSAGE_V2, fields, body)
        if not self._acknowledged(answer):
            return
        self._ledger.place(LATER, 1, int(answer.fields["queueOffset"]), [body], "single")
        fields = {
            "offset": int(answer.fields["msgId"][16:], 16),
            "group": "GID_gate",
            "delayLevel": 1,
            "originMsgId": answer.fields["msgId"],
            "originTopic": LATER,
            "unitMode": "false",
            "maxReconsumeTimes": 16,
        }
        due_ms = _from_now_ms(_LEVEL_MS)
        if self._acknowledged(connection.call(wire.SEND_BACK, fields)):
            self._ledger.owe(RETRY, body, "sent back", due_ms=due_ms)

    def _commit(self, connection: wire.Connection, body: bytes) -> None:
        if self._transact(connection, body, wire.COMMIT):
            self._ledger.owe(HALF, body, "committed")

    def _roll_back(self, connection: wire.Connection, body: bytes) -> None:
        if self._transact(connection, body, wire.ROLLBACK):
            self._ledger.undo(body)

    def _transact(self, connection: wire.Connection, body: bytes, decision: int) -> bool:
        unique = unique_id(body)
        properties = {"TRAN_MSG": "true", "PGROUP": "GID_gate", "UNIQ_KEY": unique}
        fields = wire.send_fields(HALF, 0, properties, system_flag=wire.PREPARED)
        answer = connection.call(wire.SEND_MESSAGE_V2, fields, body)
        if not self._acknowledged(answer):
            return False
        end = {
            "producerGroup": "GID_gate",
            "tranStateTableOffset": answer.fields["queueOffset"],
            "commitLogOffset": int(answer.fields["msgId"][16:], 16),
            "commitOrRollback": decision,
            "fromTransactionCheck": "false",
            "msgId": unique,
            "transactionId": unique,
        }
        return self._acknowledged(connection.call(wire.END_TRANSACTION, end))


class LoadWithConsumers(Load):
    """The senders, one of messages at a time of their own, and consumers."""

    def __init__(self, port: int, ledger: Ledger, cycle: int, consumption: Consumption) -> None:
        self._consumption = consumption
        super().__init__(port, ledger, cycle)

    def _turns(self) -> list[Callable[[wire.Connection, str, int], None]]:
        return [
            *super()._turns(),
            self._send_timed,
            self._consumption.commit_offset,
            self._consumption.pop,
            *(partial(self._lock, client) for client in CLIENTS),
        ]

    def _lock(self, client: str, connection: wire.Connection, _sender: str, number: int) -> None:
        self._consumption.lock(client, connection, number)


def unique_id(body: bytes) -> str:
    """Return a message's id: by it a broker knows what it delivered before it was killed."""
    return body.hex().upper()


def _from_now_ms(delay_ms: int) -> int:
    return int(time.time() * 1000) + delay_ms


def fill(connection: wire.Connection) -> None:
    """Bring the store to its size. Raises: SystemExit if the broker refuses a message."""
    wire.create_topic(connection, FILLED, 1)
    fields, body = wire.send_fields(FILLED, 0, {}) | {"m": "true"}, wire.batch_body(FILLING)
    for _ in range(FILLED_BYTES // len(body)):
        answer = connection.call(wire.SEND_BATCH, fields, body)
        if answer.code:
            raise SystemExit(f"the broker does not take a gigabyte: {answer.remark}")


def compare(port: int, ledger: Ledger) -> None:
    """Read all that is new, and compare it with what was acknowledged."""
    connection = wire.Connection(port)
    try:
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                place = (topic, queue_id)
                end = wire.max_offset(connection, topic, queue_id)
                begin = ledger.read_to[place]
                for record in wire.read_queue(connection, topic, queue_id, begin, end):
                    ledger.read(place, record)
                ledger.end_of(place)
    finally:
        connection.close()


def compare_whole(port: int, ledger: Ledger, *, filled: int) -> None:
    """Read all queues from their first message, and compare them with what was read before.

    Args:
        filled: how many messages the store had before the first kill.
    """
    connection = wire.Connection(port)
    try:
        for topic, queues in TOPICS.items():
            for queue_id in range(queues):
                end = wire.max_offset(connection, topic, queue_id)
                records = wire.read_queue(connection, topic, queue_id, 0, end)
                ledger.read_again((topic, queue_id), records)
        found = wire.max_offset(connection, FILLED, 0)
        if found != filled:
            ledger.note("filled at first, and gone", f"{found} of {filled}")
    except RuntimeError as error:
        ledger.note("cannot be read again", str(error))
    finally:
        connection.close()


def run(
    cycles: int, *, seed: int, data: Path, options: tuple[str, ...] = (), is_filled: bool = False
) -> dict[str, Any]:
    """Kill a broker so many times; return the figures.

    Raises: SystemExit once the broker refuses a message.
    """
    choice, ledger, server = random.Random(seed), Ledger(), Server(data, *options)
    consumption, filled = Consumption(ledger, PLAIN, QUEUES), 0
    starts_s: list[float] = []
    processor_s: list[float] = []
    told_s = time.monotonic()
    server.start()
    try:
        connection = wire.Connection(server.broker_port)
        for topic in (PLAIN, BATCHED, LATER, HALF, POPPED, LOCKED):
            wire.create_topic(connection, topic, QUEUES)
        if is_filled:
            fill(connection)
            filled = wire.max_offset(connection, FILLED, 0)
        connection.close()
        for cycle in range(cycles):
            load = LoadWithConsumers(server.broker_port, ledger, cycle, consumption)
            aim, begun_s = ledger.acknowledged.total() + ACKNOWLEDGED_MIN, time.monotonic()
            load.start()
            # The moment of the kill is what is drawn, so a time it is.
            time.sleep(choice.uniform(0.05, 1.0))
            if cycle % PART == 1:
                # The offsets of this load must be kept: they are old enough.
                time.sleep(OFFSETS_S)
            while (
                ledger.acknowledged.total() < aim
                and time.monotonic() - begun_s < LOAD_S_MAX
                and not load.refused
            ):
                time.sleep(0.01)
            killed_s = time.monotonic()
            server.kill()
            load.join()
            if load.refused:
                # Each further kill would wait in vain, and the row is broken already.
                raise SystemExit(
                    f"kill {cycle + 1} of {cycles}: the broker refuses messages, so that nothing"
                    f" can be proved ({load.refused[0]}); make room on the disk of {data}, or see"
                    f" the broker's log, and run this again"
                )
            starts_s.append(server.start())
            processor_s.append(server.processor_s())
            consumption.check(server.broker_port, killed_s=killed_s)
            compare(server.broker_port, ledger)
            if time.monotonic() - told_s > 60 or cycle + 1 == cycles:
                told_s = time.monotonic()
                print(
                    f"{cycle + 1} of {cycles} kills, {ledger.acknowledged.total():,} acknowledged,"
                    f" broken: {dict(ledger.broken) or 'nothing'}",
                    flush=True,
                )
        settled_s = time.monotonic() + SETTLE_S_MAX
        while ledger.owed_count and time.monotonic() < settled_s:
            time.sleep(0.2)
            compare(server.broker_port, ledger)
        ledger.end()
        consumption.drain(server.broker_port, until_s=settled_s)
        compare_whole(server.broker_port, ledger, filled=filled)
    finally:
        server.kill()
    return {
        "kills": cycles,
        "acknowledged": dict(ledger.acknowledged),
        "broken": dict(ledger.broken),
        "examples": ledger.examples,
        "starts_s": starts_s,
        "starts_processor_s": processor_s,
    }


def run_part(part: tuple[int, int]) -> dict[str, Any]:
    """Kill a broker of its own so many times; what is drawn depends on `begin`."""
    begin, cycles = part
    with tempfile.TemporaryDirectory(prefix="gate-kills-") as directory:
        return run(cycles, seed=begin, data=Path(directory) / "data", is_filled=True)


def find_failures(figures: Mapping[str, Any]) -> list[str]:
    """Return what the figures of a part or of all do not prove, though nothing was broken."""
    failures = [f"nothing of: {kind}" for kind in KINDS if not figures["acknowledged"].get(kind)]
    mean_s = mean(figures["starts_s"])
    if mean_s > MEAN_START_S_MAX:
        failures.append(f"starts of {mean_s:.2f} s on average, over {MEAN_START_S_MAX} s")
    return failures


def main() -> int:
    """Run, print the figures as JSON, and return 1 if a promise was broken or nothing is proved."""
    parser = argparse.ArgumentParser(prog="python -m gate.kills", description=__doc__)
    parser.add_argument("--cycles", type=int, default=1000)
    options = parser.parse_args()
    parts = run_parts(
        run_part,
        ranges(options.cycles, PART),
        # A part that proves too little runs again.
        is_passed=lambda figures: not figures["broken"] and not find_failures(figures),
        notes=notes_of_code("kills"),
    )
    figures: dict[str, Any] = {"kills": sum(part["kills"] for part in parts)}
    for name in ("acknowledged", "broken"):
        figures[name] = dict(sum((Counter(part[name]) for part in parts), Counter()))
    figures["examples"] = [each for part in parts for each in part["examples"]]
    starts = {name: [each for part in parts for each in part[name]] for name in _STARTS}
    figures |= {f"mean_{name}": round(mean(taken), 2) for name, taken in starts.items()}
    figures["failures"] = find_failures(figures | starts)
    print(json.dumps(figures))
    return 1 if figures["broken"] or figures["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
