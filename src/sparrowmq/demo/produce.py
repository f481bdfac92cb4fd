"""The producer of all flights, as a process: `python -m sparrowmq.demo.produce`.

Each line on standard input is the number of flights that the process may have produced from then
on: the demo keeps messages flowing while members come and go.

A batch has one queue. Flights of one sharding key go to one queue, and a queue's batches follow
each other: an aircraft's legs are stored in the order of the input.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.demo.events import Produced
from sparrowmq.demo.flights import Flights, load_flights
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageQueue
from sparrowmq.processes.logbook import Failed, Logbook, open_logbook

# About 75 KB of bodies: one SYNC flush per batch, far below the broker's 4 MiB.
_BATCH_MESSAGES = 250
# The shortest production of all flights: messages must flow during every rebalance event, and Spark
# starts meanwhile. A smaller number of flights takes less time.
_SECONDS_MIN = 26
_RATE_MIN = 1_500
# The flights of a round, after which even a queue with few flights sends its batch.
_ROUND_FLIGHTS = 1_000


def make_messages(flights: Flights, topic: str) -> Iterator[Message]:
    """Yield each flight as a message, in the order of production."""
    ids = flights.ids.to_pylist()
    carriers = flights.table["carrier"].to_pylist()
    sharding_keys = flights.sharding_keys.to_pylist()
    rows = zip(ids, carriers, sharding_keys, flights.bodies(), strict=True)
    for flight_id, carrier, sharding_key, body in rows:
        yield Message(topic, body, tags=carrier, keys=(flight_id,), sharding_key=sharding_key)


class FlightSender:
    """Sends rounds of flights, a batch for each queue, and logs the progress after each round."""

    def __init__(self, producer: Producer, journal: Logbook, *, total: int, rate_max: int) -> None:
        self._producer = producer
        self._journal = journal
        self._total = total
        self._rate_max = rate_max
        self._sending_ms = 0
        self._queues: dict[str, MessageQueue] = {}
        self.count = 0

    def send(self, messages: Sequence[Message]) -> None:
        """Send a round: every queue's flights in their order."""
        by_queue: dict[MessageQueue, list[Message]] = {}
        for message in messages:
            by_queue.setdefault(self._find_queue(message), []).append(message)
        begun_ms = monotonic_ms()
        for target, own in sorted(by_queue.items()):
            for begin in range(0, len(own), _BATCH_MESSAGES):
                self._producer.send_batch(own[begin : begin + _BATCH_MESSAGES], queue=target)
        self._sending_ms += monotonic_ms() - begun_ms
        self.count += len(messages)
        self.report()

    def report(self) -> None:
        """Log the number of acknowledged flights."""
        self._journal.write_event(
            Produced(
                at_ms=monotonic_ms(),
                count=self.count,
                total=self._total,
                sending_ms=self._sending_ms,
                rate_max=self._rate_max,
            )
        )

    def _find_queue(self, message: Message) -> MessageQueue:
        """Return an aircraft's queue, asked once: the number of queues does not change here."""
        key = message.sharding_key or ""
        found = self._queues.get(key)
        if found is None:
            found = self._queues[key] = self._producer.select_queue(message)
        return found


def run(options: argparse.Namespace) -> None:
    """Produce every flight once, as far as standard input allows."""
    journal = open_logbook(options.logbooks, options.name)
    flights = load_flights(limit=options.limit)
    rate_max = max(len(flights) // _SECONDS_MIN, _RATE_MIN)
    try:
        with Producer(options.group, name_server=options.name_server) as producer:
            sender = FlightSender(producer, journal, total=len(flights), rate_max=rate_max)
            sender.report()
            messages = make_messages(flights, options.topic)
            due = time.monotonic()
            for allowed in map(int, sys.stdin):
                while sender.count < allowed and (found := list(islice(messages, _ROUND_FLIGHTS))):
                    time.sleep(max(0.0, due - time.monotonic()))
                    # A pause is not made up for by a higher rate later.
                    due = max(due, time.monotonic()) + len(found) / rate_max
                    sender.send(found)
    except SparrowError as error:
        journal.write_event(Failed(at_ms=monotonic_ms(), reason=str(error)))
        raise SystemExit(f"the producer: {error}") from error


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
