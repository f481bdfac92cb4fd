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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

EVENTS_SUFFIX = ".events.jsonl"
CONSUMED_SUFFIX = ".consumed.csv"

_DELIVERY_TYPES = {
    "at_ms": pa.int64(),
    "queue_id": pa.int64(),
    "queue_offset": pa.int64(),
    "flight_id": pa.string(),
}


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

    `sending_ms` is the time spent waiting for acknowledgements, without pauses.
    """

    at_ms: int
    count: int
    total: int
    sending_ms: int
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
    rows: int


class RunEnded(msgspec.Struct, frozen=True, kw_only=True, tag="run-ended"):
    """An AvailableNow run has reached the end it had frozen."""

    at_ms: int
    batches: int
    rows: int


class IngestEnded(msgspec.Struct, frozen=True, kw_only=True, tag="ingest-ended"):
    """A run has found nothing new after the producer's last flight."""

    at_ms: int


class AnswersReady(msgspec.Struct, frozen=True, kw_only=True, tag="answers"):
    """The batch job has written its answers to the file named here."""

    at_ms: int
    path: str


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


@dataclass(frozen=True, slots=True)
class Deliveries:
    """Deliveries of one or more members as columns of one length."""

    at_ms: npt.NDArray[np.int64]
    queue_ids: npt.NDArray[np.int64]
    queue_offsets: npt.NDArray[np.int64]
    flight_ids: pa.Array

    def __len__(self) -> int:
        """Return how many deliveries there are."""
        return len(self.at_ms)


def format_delivery(at_ms: int, queue_id: int, *, queue_offset: int, flight_id: str) -> str:
    """Return one line of `consumed.csv`."""
    return f"{at_ms},{queue_id},{queue_offset},{flight_id}\n"


def parse_deliveries(data: bytes) -> Deliveries:
    """Parse the content of one or more `consumed.csv`; a torn last line is left out."""
    whole = data[: data.rfind(b"\n") + 1]
    if whole:
        names = pyarrow.csv.ReadOptions(column_names=list(_DELIVERY_TYPES))
        types = pyarrow.csv.ConvertOptions(column_types=_DELIVERY_TYPES)
        table = pyarrow.csv.read_csv(pa.BufferReader(whole), names, convert_options=types)
    else:
        table = pa.schema(list(_DELIVERY_TYPES.items())).empty_table()
    return Deliveries(
        at_ms=table["at_ms"].to_numpy(),
        queue_ids=table["queue_id"].to_numpy(),
        queue_offsets=table["queue_offset"].to_numpy(),
        flight_ids=pa.concat_arrays(table["flight_id"].chunks),
    )


def read_deliveries(paths: Sequence[Path]) -> Deliveries:
    """Read several members' deliveries into one, in the order of the paths."""
    wholes = [data[: data.rfind(b"\n") + 1] for data in map(Path.read_bytes, paths)]
    return parse_deliveries(b"".join(wholes))
