"""How a consumer group consumes: RocketMQ's enumerations, by their Java names."""

from __future__ import annotations

from enum import Enum


class MessageModel(Enum):
    """Whether a group shares a topic's queues or every member reads them all."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeType(Enum):
    """Who starts a delivery, as heartbeats say."""

    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"


class ConsumeFromWhere(Enum):
    """Where a group begins in a queue for which it has no committed offset."""

    CONSUME_FROM_LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    CONSUME_FROM_FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    CONSUME_FROM_TIMESTAMP = "CONSUME_FROM_TIMESTAMP"
    CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST = (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    )
    CONSUME_FROM_MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    CONSUME_FROM_MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"


class UnreadablePolicy(Enum):
    """What a reader does with a message whose body it cannot read.

    Such a body says that it is compressed and is not, needs a package that is not installed,
    inflates beyond 16 MiB, or does not match its checksum.
    """

    STOP = "STOP"
    """The queue waits at the message, and one line says how to go on."""
    SKIP = "SKIP"
    """The message is counted, logged and passed over."""
    DEAD_LETTER = "DEAD_LETTER"
    """The broker puts the message, as it is, among the dead letters of the group."""
