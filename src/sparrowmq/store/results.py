"""The results of the store's calls, by RocketMQ's names.

Results are made for each message, so they are exempt from garbage collection: none has a cycle.
Tests: test_message_store.py.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import msgspec


class PutStatus(Enum):
    """The statuses of a put that this store returns. Source: PutMessageStatus.java."""

    PUT_OK = "PUT_OK"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a put.

    `end_position` is the end of the last message; the messages are on the disk once the store's
    `flushed_position` reaches it. `queue_offset` is the offset of the first message, `positions`
    has the position of each message. `remark` is the reason if nothing was stored.
    """

    status: PutStatus
    position: int = 0
    end_position: int = 0
    queue_offset: int = 0
    positions: tuple[int, ...] = ()
    remark: str = ""


def illegal(remark: str) -> PutResult:
    """Return the result for an illegal message: nothing was stored."""
    return PutResult(PutStatus.MESSAGE_ILLEGAL, remark=remark)


def unwritten(error: OSError) -> PutResult:
    """Return the result for a disk error: nothing was stored."""
    remark = f"the message cannot be written: {error}"
    return PutResult(PutStatus.SERVICE_NOT_AVAILABLE, remark=remark)


class GetStatus(Enum):
    """The statuses of a get. Source: GetMessageStatus.java."""

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

    `records` are `count` records back to back, as stored; `next_offset` is the offset to go on at.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    count: int = 0


class Dispatched(msgspec.Struct, frozen=True, gc=False):
    """A message, or a batch of one queue, that has become readable.

    `next_offset` is the queue's next offset, `entries` are the consume queue entries, and
    `tags_codes` the codes in them. The first record is at `position`, the last at `last_position`.
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
    """The messages with a key.

    `records` stand back to back, in the log's order, as stored. `last_timestamp_ms` and
    `last_position` are those of the last indexed message with a key. While the log has
    `unindexed_bytes`, nothing is searched; `failure` is the reason why these bytes are not indexed.
    `is_cut`: the search ended because it had compared too many other messages of the key's hash.
    `lost_count` messages that may have the key could not be read.
    """

    records: bytes = b""
    last_timestamp_ms: int = 0
    last_position: int = 0
    unindexed_bytes: int = 0
    failure: Exception | None = None
    is_cut: bool = False
    lost_count: int = 0
