"""The records of the pop log, and the table that replaces its beginning.

Each turn that changes invisible messages appends one record to the pop log, a topic of the commit
log that nobody can send to or pull from. The record's body is a batch of changes. The table holds
the state at an offset of the pop log; changes from there on are applied to it. A change that is
applied twice, with all later ones, has no further effect. Tests: test_pop_queues.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from sparrowmq.errors import StoreError
from sparrowmq.protocol.wire_names import wire_names


class QueueKey(Struct, frozen=True, array_like=True):
    """A group's view of a queue."""

    group: str
    topic: str
    queue_id: int


class Popped(Struct, frozen=True, array_like=True, tag=1):
    """Messages were popped.

    Args:
        next_offset: the first offset that the group has not popped yet.
        times: how often each message was delivered before.
    """

    key: QueueKey
    next_offset: int
    pop_timestamp_ms: int
    invisible_ms: int
    offsets: list[int]
    times: list[int]


class Finished(Struct, frozen=True, array_like=True, tag=2):
    """Messages were acknowledged, or became dead letters."""

    key: QueueKey
    offsets: list[int]


class Changed(Struct, frozen=True, array_like=True, tag=3):
    """A message got another time; `is_suspended`: its next delivery is not a further attempt."""

    key: QueueKey
    offset: int
    pop_timestamp_ms: int
    invisible_ms: int
    is_suspended: bool


class Moved(Struct, frozen=True, array_like=True, tag=4):
    """The group goes on at an offset, and no message of the queue is invisible any more.

    Args:
        offset: None if the group has no offset any more.
    """

    key: QueueKey
    offset: int | None


PopChange: TypeAlias = Popped | Finished | Changed | Moved

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[PopChange])


def encode_pop_changes(changes: Sequence[PopChange]) -> bytes:
    """Return the body of a record of the pop log."""
    return _encoder.encode(changes)


def decode_pop_changes(body: bytes) -> list[PopChange]:
    """Read the body of a record of the pop log.

    Raises: StoreError for bytes that are not changes.
    """
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise StoreError(
            f"a record of the pop log cannot be understood: {error}; was it written by a later "
            "version? If so, start that version"
        ) from error


class UnflushedPops(NamedTuple):
    """The pops of a turn, whose answers wait until the log is flushed up to `position`."""

    position: int
    since_ms: int
    pops: list[Popped]


class Flight(NamedTuple):
    """A message in flight.

    Args:
        pop_timestamp_ms: when it was popped or its time was changed; the handle names it.
        invisible_ms: for how long the message is invisible from then on.
        times: how often the message had been delivered before this delivery.
        is_suspended: whether the next delivery does not count as a further attempt.
    """

    pop_timestamp_ms: int
    invisible_ms: int
    times: int
    is_suspended: bool = False

    @property
    def visible_timestamp_ms(self) -> int:
        """When the message becomes visible again."""
        return self.pop_timestamp_ms + self.invisible_ms

    @property
    def next_times(self) -> int:
        """How often the message will have been delivered before its next delivery."""
        return self.times if self.is_suspended else self.times + 1


class SavedQueue(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The messages in flight of a queue, by offset."""

    group: str
    topic: str
    queue_id: int
    next_offset: int
    flights: dict[int, Flight]


class PopTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """popState.json: the state after the records of the pop log before `log_offset`."""

    log_offset: int = 0
    queues: list[SavedQueue] = []
