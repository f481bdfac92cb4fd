"""Logbooks: files of events that survive a `kill -9` of their writer, and their readers.

A process writes each entry by one unbuffered `write`, before its next step; the kernel keeps the
written bytes after a kill. A kill may tear the last line, and readers ignore a line without its
end. All instants are milliseconds of the machine's monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

Event = TypeVar("Event")
EVENTS_SUFFIX = ".events.jsonl"


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The process ends because of this error."""

    at_ms: int
    reason: str


class Logbook:
    """A file to which whole entries are appended with one `write` each."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._encoder = msgspec.json.Encoder()

    def write(self, data: bytes) -> None:
        """Append data; the kernel has the data on return."""
        while data:
            written = os.write(self._file, data)
            data = data[written:]

    def write_event(self, event: msgspec.Struct) -> None:
        """Append one event as a line."""
        self.write(self._encoder.encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class LineTail:
    """Reads the lines that a process appends to a file, each once and whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def read(self) -> list[bytes]:
        """Return the lines completed since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.splitlines()


class EventTail(Generic[Event]):
    """Reads the events that a process appends to its logbook.

    Args:
        name: the process's name.
        kinds: the type of the events, a union of tagged structs.
    """

    def __init__(self, directory: Path, name: str, kinds: Any) -> None:
        self._lines = LineTail(directory / f"{name}{EVENTS_SUFFIX}")
        self._decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(kinds)

    def read(self) -> list[Event]:
        """Return the events completed since the last call."""
        return [self._decoder.decode(line) for line in self._lines.read()]


def open_logbook(directory: Path, name: str) -> Logbook:
    """Open the logbook of a process for its events."""
    return Logbook(directory / f"{name}{EVENTS_SUFFIX}")
