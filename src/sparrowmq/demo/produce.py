"""The producer of all flights, as a process: `python -m sparrowmq.demo.produce`.

Each line on standard input is the number of flights that the process may have produced from then
on: the demo keeps messages flowing while members come and go.

A batch has one queue. Flights of one sharding key go to one queue, and a queue's batches follow
each other: an aircraft's legs are stored in the order of the input.
"""

from __future__ import annotations

import argparse
import queue
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.demo.events import Produced
from sparrowmq.demo.flights import Flights, load_flights
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageQueue
from sparrowmq.processes.logbook import Failed, Logbook, open_logbook

_REPORT_INTERVAL_MS = 100
# About 75 KB of bodies: one SYNC flush per batch, far below the broker's 4 MiB.
_BATCH_MESSAGES = 250
# The shortest production of all flights: messages must flow during every rebalance event, and Spark
# starts meanwhile. A smaller number of flights takes less time.
_SECONDS_MIN = 26
_RATE_MIN = 1_500
# The flights of a round, after which even a queue with few flights sends its batch.
_ROUND_FLIGHTS = 1_000


class Allowance:
    """The number of flights that standard input allows to produce."""

    def __init__(self) -> None:
        self._marks: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._allowed: int | None = 0
        threading.Thread(target=self._read, name="allowance", daemon=True).start()

    def wait_for(self, count: int) -> bool:
        """Wait until `count` flights are allowed; return False at the end of the input."""
        while self._allowed is not None and self._allowed < count:
            self._allowed = self._marks.get()
        return self._allowed is not None

    def _read(self) -> None:
        try:
            for line in sys.stdin:
                self._marks.put(int(line))
        finally:
            self._marks.put(None)


class FlightPace:
    """Keeps the rate at or below a number of flights per second."""

    def __init__(self, rate_max: int) -> None:
        self._rate_max = rate_max
        self._free_at = time.monotonic()

    def wait_for(self, count: int) -> None:
        """Wait until `count` more flights are due."""
        now = time.monotonic()
        time.sleep(max(0.0, self._free_at - now))
        # A pause is not made up for by a higher rate later.
        self._free_at = max(self._free_at, now) + count / self._rate_max


def make_messages(flights: Flights, topic: str) -> Iterator[Message]:
    """Yield each flight as a message, in the order of production."""
    ids = flights.ids.to_pylist()
    carriers = flights.table["carrier"].to_pylist()
    sharding_keys = flights.sharding_keys.to_pylist()
    rows = zip(ids, carriers, sharding_keys, flights.bodies(), strict=True)
    for flight_id, carrier, sharding_key, body in rows:
        yield Message(topic, body, tags=carrier, keys=(flight_id,), sharding_key=sharding_key)


class FlightSender:
    """Sends rounds of flights, a batch for each queue, and logs the progress."""

    def __init__(self, producer: Producer, journal: Logbook, *, total: int, rate_max: int) -> None:
        self._producer = producer
        self._journal = journal
        self._total = total
        self._rate_max = rate_max
        self._count = 0
        self._sending_ms = 0
        self._reported_at_ms = monotonic_ms()
        self._queues: dict[str, MessageQueue] = {}

    @property
    def count(self) -> int:
        """The number of acknowledged flights."""
        return self._count

    def send(self, messages: Sequence[Message]) -> None:
        """Send a round: every queue's flights in their order."""
        by_queue: dict[MessageQueue, list[Message]] = {}
        for message in messages:
            by_queue.setdefault(self._find_queue(message), []).append(message)
        for target, own in sorted(by_queue.items()):
            for begin in range(0, len(own), _BATCH_MESSAGES):
                self._send_batch(own[begin : begin + _BATCH_MESSAGES], target)
        # The producer may pause now: a reader that waits for a share needs the exact count.
        self.report()

    def report(self, *, is_done: bool = False) -> None:
        """Log the number of acknowledged flights."""
        now_ms = self._reported_at_ms = monotonic_ms()
        self._journal.write_event(
            Produced(
                at_ms=now_ms,
                count=self._count,
                total=self._total,
                sending_ms=self._sending_ms,
                rate_max=self._rate_max,
                is_done=is_done,
            )
        )

    def _find_queue(self, message: Message) -> MessageQueue:
        """Return an aircraft's queue, asked once: the number of queues does not change here."""
        key = message.sharding_key or ""
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = self._producer.select_queue(message)
        return found

    def _send_batch(self, messages: list[Message], target: MessageQueue) -> None:
        begun_ms = monotonic_ms()
        self._producer.send_batch(messages, queue=target)
        self._sending_ms += monotonic_ms() - begun_ms
        self._count += len(messages)
        if monotonic_ms() - self._reported_at_ms >= _REPORT_INTERVAL_MS:
            self.report()


def run(options: argparse.Namespace) -> None:
    """Produce every flight once."""
    journal = open_logbook(options.logbooks, options.name)
    flights = load_flights(limit=options.limit)
    messages = make_messages(flights, options.topic)
    rate_max = max(len(flights) // _SECONDS_MIN, _RATE_MIN)
    try:
        with Producer(options.group, name_server=options.name_server) as producer:
            sender = FlightSender(producer, journal, total=len(flights), rate_max=rate_max)
            sender.report()
            _produce(sender, messages, total=len(flights), rate_max=rate_max)
    except SparrowError as error:
        journal.write_event(Failed(at_ms=monotonic_ms(), reason=str(error)))
        raise SystemExit(f"the producer: {error}") from error


def _produce(
    sender: FlightSender, messages: Iterator[Message], *, total: int, rate_max: int
) -> None:
    allowance, pace = Allowance(), FlightPace(rate_max)
    while sender.count < total:
        count = min(_ROUND_FLIGHTS, total - sender.count)
        if not allowance.wait_for(sender.count + count):
            return
        pace.wait_for(count)
        sender.send([next(messages) for _ in range(count)])
    sender.report(is_done=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="sparrowmq.demo.produce", description=__doc__)
    parser.add_argument("--name", required=True, help="names the logbook")
    parser.add_argument("--name-server", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--logbooks", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=None)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run(parse_options())
