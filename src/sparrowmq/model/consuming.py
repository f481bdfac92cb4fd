"""How a consumer group consumes: RocketMQ's enumerations, by their Java names.

The members stand in Java's order: some clients write a member's place in place of its name.
Tests: golden/test_golden_option.py.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Literal, TypeAlias


class MessageModel(Enum):
    """Whether the members of a group share a topic's queues, or each member reads all queues."""

    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"


class ConsumeType(Enum):
    """Whether a consumer polls or has messages pushed, as its heartbeats say."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue without a committed offset."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


Balance: TypeAlias = Literal["queues", "messages"]
Start: TypeAlias = Literal["first", "last"] | datetime | ConsumeFromWhere


class UnreadablePolicy(Enum):
    """The treatment of a message whose body cannot be read.

    Such a body is marked as compressed but is not, needs a package that is not installed, inflates
    beyond 16 MiB, or does not match its checksum.
    """

    STOP = "STOP"
    """The queue stops at the message, and one log line names the ways to go on."""
    SKIP = "SKIP"
    """The message is counted, logged and skipped."""
    DEAD_LETTER = "DEAD_LETTER"
    """The broker puts the unchanged message among the dead letters of the group."""
