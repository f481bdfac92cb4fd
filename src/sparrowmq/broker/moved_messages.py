"""Waiting messages go on: into their real topics, or to where the undecided ones are kept.

Tests: test_unreadable.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sparrowmq.protocol.record import Record
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutStatus

# Returns the queue of a topic where a message for a queue id goes now; None without the topic.
FindQueue: TypeAlias = Callable[[str, int], int | None]


def put_moved(
    store: MessageStore,
    record: Record,
    *,
    waited_at: tuple[str, int, int],
    timestamp_ms: int,
) -> PutStatus:
    """Store a message that has waited elsewhere.

    With its new topic, whose name may be longer, no file of the log may take it. It is then noted
    as damaged at its old place.

    Args:
        record: the message, with its new topic.
        waited_at: the topic, queue id and offset where it has waited.
    """
    status = store.put(record, timestamp_ms=timestamp_ms).status
    if status is PutStatus.MESSAGE_ILLEGAL:
        store.records.note_damaged(*waited_at)
    return status
