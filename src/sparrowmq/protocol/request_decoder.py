"""The requests of one connection to a server, from its bytes. Pure.

A producer's sends differ in few values. The decoder keeps the form of a connection's first send,
and the extension in C reads sends of this form (`Speedups.take_send`). `framing.decode_request`
reads all others, and all without the extension (benchmarks/broker.py).

Tests: test_request_decoder.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sparrowmq.protocol import speedups
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FRAME_BYTES_MAX, FrameDecoder, decode_request
from sparrowmq.protocol.headers import SendMessageRequestHeaderV2

_INT, _LONG = rb"(?:0|[1-9]\d{0,8})", rb"(?:0|[1-9]\d{0,17})"
_TEXT = rb'(?:[^"\\]|\\.)*'
# The values that differ between sends: the text before the value, the value, the text behind it,
# the value's kind in C, and its field. The opaque alone belongs to the command.
_PARTS = (
    (rb'"b":"', _TEXT, b'"', 3, "topic"),
    (rb'"e":"', _INT, b'"', 1, "queue_id"),
    (rb'"g":"', _LONG, b'"', 2, "born_timestamp_ms"),
    (rb'"i":"', _TEXT, b'"', 3, "properties"),
    (rb'"opaque":', _INT, rb"(?!\w)", 0, "opaque"),
)


class SendForm(NamedTuple):
    """The form of a connection's sends, as the arguments of `Speedups.take_send`.

    Args:
        literals: what stands around the values.
        kinds: the kind of each value.
        names: the field of each value, and those of the command for the header and the body.
        copy_command: copies the first send.
        copy_header: copies its header.
    """

    literals: tuple[bytes, ...]
    kinds: bytes
    names: tuple[str, ...]
    copy_command: Callable[[], RemotingCommand]
    copy_header: Callable[[], msgspec.Struct]


def learn_send(command: RemotingCommand, header: bytes) -> SendForm | None:
    """Return the form of a send that `decode_request` has read; None for an unusual one."""
    if not isinstance(command.header, SendMessageRequestHeaderV2):
        return None
    found: list[tuple[int, int, int, str]] = []
    for before, value, behind, kind, name in _PARTS:
        places = [*re.finditer(rb"%b(%b)%b" % (before, value, behind), header)]
        if len(places) != 1:
            return None
        found.append((*places[0].span(1), kind, name))
    found.sort()
    begins = [0, *(end for _, end, _, _ in found)]
    ends = [*(begin for begin, _, _, _ in found), len(header)]
    return SendForm(
        tuple(header[begin:end] for begin, end in zip(begins, ends, strict=True)),
        bytes(kind for _, _, kind, _ in found),
        (*(name for *_, name in found), "header", "body"),
        partial(replace, command),
        partial(replace, command.header),
    )


class RequestDecoder(FrameDecoder):
    """Cuts a connection's bytes into requests, as `FrameDecoder` does with `decode_request`."""

    __slots__ = ("_form", "_has_send")

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        super().__init__(frame_bytes_max=frame_bytes_max, decode=self._decode_and_learn)
        self._has_send = False
        self._form: SendForm | None = None

    def _decode_and_learn(self, kind: int, header: bytes, body: bytes | None) -> RemotingCommand:
        command = decode_request(kind, header, body)
        if not self._has_send and isinstance(command.header, SendMessageRequestHeaderV2):
            self._has_send = True
            # A copy: the caller may change its command.
            self._form = learn_send(replace(command), header)
        return command

    def next_command(self) -> RemotingCommand | None:
        """Return the next command, as `FrameDecoder.next_command` does."""
        form, functions, buffer = self._form, speedups.functions, self._buffer
        if form is not None and functions is not None and isinstance(buffer, bytes):
            found = functions.take_send(buffer, self._at, self._frame_bytes_max, *form)
            if found is not None:
                command, end = found
                self.pass_to(end)
                return command
        return super().next_command()
