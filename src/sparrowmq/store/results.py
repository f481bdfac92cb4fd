"""What the store answers, by RocketMQ's names.

These are made for each message, so they are left out of garbage collection: none holds a cycle.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import msgspec


class PutStatus(Enum):
    """Source: PutMessageStatus.java; only those that this store gives."""

    PUT_OK = "PUT_OK"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Where messages were stored.

    `end_position` is where the last one ends: it is on the disk once the store's `flushed_position`
    reaches it. `queue_offset` is the first one's, `positions` are those of all. `remark` says why
    nothing was stored.
    """

    status: PutStatus
    position: int = 0
    end_position: int = 0
    queue_offset: int = 0
    positions: tuple[int, ...] = ()
    remark: str = ""


def illegal(remark: str) -> PutResult:
    """Say that nothing was stored for what a message is."""
    return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)


def unwritten(error: OSError) -> PutResult:
    """Say that nothing was stored since the disk does not take it."""
    remark = f"the message cannot be written: {error}"
    return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=remark)


class GetStatus(Enum):
    """Source: GetMessageStatus.java."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class GetResult(msgspec.Struct, frozen=True, gc=False):
    """Messages of a queue.

    `records` are `count` records back to back, as they are stored; `next_offset` is where to go on.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    count: int = 0


class Dispatched(msgspec.Struct, frozen=True, gc=False):
    """A message, or a batch of one queue, that has become readable.

    `next_offset` is the queue's offset after it, `entries` are its consume queue entries, with
    `tags_codes` in them; its first record is at `position`, its last at `last_position`.
    """

    topic: str
    queue_id: int
    next_offset: int
    tags_codes: Collection[int]
    store_timestamp_ms: int
    position: int
    last_position: int
    entries: bytes


class QueryResult(msgspec.Struct, frozen=True, gc=False):
    """Messages that have a key.

    `records` stand back to back, in the log's order, as they are stored. `last_timestamp_ms` and
    `last_position` are of the last message that has a key and is indexed. As long as the log has
    `unindexed_bytes`, nothing is looked for; `failure` says why they stay.
    """

    records: bytes = b""
    last_timestamp_ms: int = 0
    last_position: int = 0
    unindexed_bytes: int = 0
    failure: Exception | None = None
