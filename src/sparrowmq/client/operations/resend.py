"""Send stored messages again, changed or not, with marks that say from where, when and by whom.

A copy has the marks as properties. SparrowMQ's brokers note them in their record of changes by
operators, from which `find_resends` reads what became of dead letters. Tests: cli/test_messages.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from msgspec import structs

from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.routes import find_cluster
from sparrowmq.client.operations.snapshot import group_stats
from sparrowmq.errors import UsageError
from sparrowmq.model import Message, MessageExt
from sparrowmq.model.message import (
    KEY_SEPARATOR,
    PROPERTY_KEYS,
    PROPERTY_RESENT_AT,
    PROPERTY_RESENT_BY,
    PROPERTY_RESENT_FROM,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    RESERVED_PROPERTIES,
)
from sparrowmq.model.spelling import spell_queue
from sparrowmq.protocol.bodies import MASTER_ID, SENT_AGAIN, AuditRecord, OffsetMove

# The broker, queue and offset of a message.
Place: TypeAlias = tuple[str, int, int]

# The letters that one record names at most.
LETTERS_MAX = 100_000


class Edit(NamedTuple):
    """Changes of a copy; None keeps what the message has, and "" removes a tag or a property."""

    body: bytes | None = None
    tags: str | None = None
    keys: tuple[str, ...] | None = None
    properties: Mapping[str, str] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the copy is as the message."""
        return self == UNCHANGED

    def apply(self, message: MessageExt) -> MessageExt:
        """Return the changed message. Raises: UsageError for a reserved property."""
        if reserved := RESERVED_PROPERTIES & self.properties.keys():
            raise UsageError(f"property {min(reserved)!r} is reserved by RocketMQ")
        changes = dict(self.properties)
        if self.tags is not None:
            changes[PROPERTY_TAGS] = self.tags
        if self.keys is not None:
            changes[PROPERTY_KEYS] = KEY_SEPARATOR.join(self.keys)
        body = message.body if self.body is None else self.body
        kept = {n: v for n, v in {**message.properties, **changes}.items() if v or n not in changes}
        return structs.replace(message, body=body, properties=kept)


UNCHANGED = Edit()


class Resend(NamedTuple):
    """When a dead letter was last sent again, and by whom."""

    timestamp_ms: int
    who: str


def mark_resent(message: MessageExt, *, by: str, timestamp_ms: int) -> dict[str, str]:
    """Return the marks of a message's copy; `by` is "" if nobody is named."""
    marks = {
        PROPERTY_RESENT_FROM: f"{message.topic} {spell_queue(message)}:{message.queue_offset}",
        PROPERTY_RESENT_AT: str(timestamp_ms),
    }
    return {**marks, PROPERTY_RESENT_BY: by} if by else marks


def copy_message(message: MessageExt, *, by: str, timestamp_ms: int) -> Message:
    """Return a new message to the same topic with the same content, and the marks of a copy."""
    properties = {n: v for n, v in message.properties.items() if n not in RESERVED_PROPERTIES}
    return Message(
        message.topic,
        message.body,
        tags=message.tags,
        keys=message.keys,
        sharding_key=message.properties.get(PROPERTY_SHARDING_KEY),
        properties={**properties, **mark_resent(message, by=by, timestamp_ms=timestamp_ms)},
        flag=message.flag,
    )


def place_of(message: MessageExt) -> Place:
    """Return a message's broker, queue and offset."""
    return message.broker_name, message.queue_id, message.queue_offset


def find_resends(
    directory: Directory, group: str, letters: Sequence[MessageExt]
) -> Operation[dict[Place, Resend]]:
    """Return the dead letters of a group that were sent again, by broker, queue and offset.

    Only SparrowMQ's brokers note them, and only those of the letters are asked.

    Raises: ConnectFailed, TransportError, BrokerError.
    """
    names = {letter.broker_name for letter in letters}
    timeout_ms, name = directory.timeout_ms, directory.namespace.wrap(group)
    info = yield from find_cluster(directory.name_servers, timeout_ms=timeout_ms)
    masters = [
        (broker, found.broker_addrs[MASTER_ID])
        for broker, found in sorted(info.broker_addr_table.items())
        if MASTER_ID in found.broker_addrs and broker in names
    ]
    asked = [group_stats(address, name, timeout_ms=timeout_ms) for _, address in masters]
    answers = yield from gather(asked, name=f"resends of {group}")
    return {
        (broker, move.queue_id, offset): Resend(record.timestamp_ms, _who(record))
        for (broker, _), stats in zip(masters, answers, strict=True)
        # The newest record comes first.
        for record in reversed(stats.sparrowmq_audit)
        if record.kind == SENT_AGAIN
        for move in record.moves
        for offset in _letters(move)
    }


def _letters(move: OffsetMove) -> range:
    first = move.before or 0
    return range(first, min(move.after or 0, first + LETTERS_MAX))


def _who(record: AuditRecord) -> str:
    return record.detail.removeprefix("by ") or record.account or record.address
