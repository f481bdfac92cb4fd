"""What targets make of an input: choices from its first bytes, and texts from the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sparrowmq.model import MessageExt
from sparrowmq.protocol.codes import LanguageCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import decode_messages

T = TypeVar("T")

# Ends the ext fields of a command; what follows is the body.
FIELDS_END = b"\0"


def choose(data: bytes, choices: Sequence[T]) -> tuple[T, bytes]:
    """Return what the first byte chooses, and the rest."""
    return choices[(data[0] if data else 0) % len(choices)], data[1:]


def to_text(data: bytes) -> str:
    """Return a text of any bytes."""
    return data.decode("utf-8", "replace")


def to_fields(data: bytes) -> dict[str, str]:
    """Return ext fields, which an input writes as a message writes its properties."""
    return parse_properties(to_text(data))


def from_fields(fields: dict[str, str]) -> bytes:
    """Return the bytes of which `to_fields` makes these fields."""
    return "\x02".join(f"{name}\x01{value}" for name, value in fields.items()).encode()


def to_messages(data: bytes) -> tuple[list[MessageExt], bool]:
    """Return the messages of a pull's answer, and whether the answer holds nothing else."""
    messages: list[MessageExt] = []
    at = 0
    while at < len(data):
        found = decode_messages(data, broker_name="b", at=at)
        messages += found.messages
        if found.failure is not None:
            return messages, False
        assert found.end > at
        at = found.end
    return messages, True


def to_command(code: int, data: bytes) -> RemotingCommand:
    """Return a request or answer: ext fields, `FIELDS_END`, body."""
    head, separator, body = data.partition(FIELDS_END)
    return RemotingCommand(
        code=code,
        ext_fields=to_fields(head) if head else None,
        body=body if separator else None,
        language=LanguageCode.JAVA,
    )


def from_command(command: RemotingCommand) -> bytes:
    """Return the bytes of which `to_command` makes this command."""
    body = b"" if command.body is None else FIELDS_END + command.body
    return from_fields(dict(command.ext_fields or {})) + body
