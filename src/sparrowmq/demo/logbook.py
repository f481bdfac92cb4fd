r"""What a demo process writes down, so that a `kill -9` loses nothing of it.

Every process has its own *logbook*: `NAME.events.jsonl`, one JSON object a line, and a member also
`NAME.consumed.csv`, one line a delivery. Each entry goes out in one unbuffered `write`, before the
process does anything else; what the kernel has taken survives the process. A kill may tear the
last line, so readers ignore a line without its end.

All instants are milliseconds of the machine's monotonic clock, which its processes share.

A line of `consumed.csv`, which has no header:

    field          meaning
    at_ms          when the listener was called
    queue_id       the queue
    queue_offset   the message's offset in the queue
    flight_id      the message's key
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

EVENTS_SUFFIX = ".events.jsonl"
CONSUMED_SUFFIX = ".consumed.csv"


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """A member is about to start its consumer."""

    at_ms: int
    client_id: str
    pid: int


class Assigned(msgspec.Struct, frozen=True, kw_only=True, tag="assigned"):
    """A member's queues changed; these are all it owns from now on."""

    at_ms: int
    queue_ids: tuple[int, ...]


class Consumed(msgspec.Struct, frozen=True, kw_only=True, tag="consumed"):
    """A member has consumed this many messages of each queue so far."""

    at_ms: int
    counts: tuple[int, ...]


class Left(msgspec.Struct, frozen=True, kw_only=True, tag="left"):
    """A member has closed its consumer: drained, committed, unregistered."""

    at_ms: int


class Produced(msgspec.Struct, frozen=True, kw_only=True, tag="produced"):
    """The producer has this many flights acknowledged.

    `sending_ms` is the time spent waiting for acknowledgements, without pauses. `rate_max` is the
    pace, in flights a second.
    """

    at_ms: int
    count: int
    total: int
    sending_ms: int
    rate_max: int
    is_done: bool = False


class SessionStarted(msgspec.Struct, frozen=True, kw_only=True, tag="session"):
    """The Spark session is there."""

    at_ms: int
    spark_version: str
    java: str


class BatchBegun(msgspec.Struct, frozen=True, kw_only=True, tag="batch-begun"):
    """Spark hands a micro-batch to the sink."""

    at_ms: int
    batch_id: int


class BatchWritten(msgspec.Struct, frozen=True, kw_only=True, tag="batch-written"):
    """The sink has published a micro-batch; Spark's commit log follows."""

    at_ms: int
    batch_id: int


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag="run-ended"):
    """An AvailableNow run has reached the end it had frozen."""

    at_ms: int
    batches: int


class IngestEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ingest-ended"):
    """A run has found nothing new after the producer's last flight."""

    at_ms: int


class AnswersReady(msgspec.Struct, frozen=True, kw_only=True, tag="answers"):
    """The batch job has written its answers."""

    at_ms: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The process ends because of this error."""

    at_ms: int
    reason: str


MemberEvent = Started | Assigned | Consumed | Left | Failed
ProducerEvent = Produced | Failed
IngestEvent = (
    SessionStarted | BatchBegun | BatchWritten | RunEnded | IngestEnded | AnswersReady | Failed
)
Event = MemberEvent | ProducerEvent | IngestEvent

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Journal:
    """A file to which whole entries are appended with one `write` each."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, data: bytes) -> None:
        """Append; the kernel has the data when this returns."""
        while data:
            written = os.write(self._file, data)
            data = data[written:]

    def write_event(self, event: Event) -> None:
        """Append one event as a line."""
        self.write(_ENCODER.encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class EventTail:
    """Reads the events that a process appends, in small bites."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[Event]:
        """Return the events that were completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole, _, _ = data.rpartition(b"\n")
        if not whole:
            return []
        self._position += len(whole) + 1
        return [_DECODER.decode(line) for line in whole.split(b"\n")]


def format_delivery(at_ms: int, queue_id: int, *, queue_offset: int, flight_id: str) -> str:
    """Return one line of `consumed.csv`."""
    return f"{at_ms},{queue_id},{queue_offset},{flight_id}\n"
