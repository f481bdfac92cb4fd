"""The requests of one connection to a server, from its bytes. Pure.

The sends of a producer differ in few values, and so do the pulls of a consumer. The decoder keeps
the form of a connection's first send, batch and pull, and the extension in C reads requests of
these forms (`Speedups.take_request`). `framing.decode_request` reads all others, and all without
the extension (benchmarks/broker.py).

Tests: test_request_decoder.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sparrowmq.protocol import speedups
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FRAME_BYTES_MAX, FrameDecoder, decode_request

_INT, _LONG = rb"(?:0|[1-9]\d{0,8})", rb"(?:0|[1-9]\d{0,17})"
_TEXT = rb'(?:[^"\\]|\\.)*'
_OPAQUE = (rb'"opaque":', _INT, rb"(?!\w)", 0, "opaque")
# The values that differ between requests of a code: the text before the value, the value, the text
# behind it, the value's kind in C, and its field. The opaque alone belongs to the command.
_SEND_PARTS = (
    (rb'"b":"', _TEXT, b'"', 3, "topic"),
    (rb'"e":"', _INT, b'"', 1, "queue_id"),
    (rb'"g":"', _LONG, b'"', 2, "born_timestamp_ms"),
    (rb'"i":"', _TEXT, b'"', 3, "properties"),
    _OPAQUE,
)
_PULL_PARTS = (
    (rb'"consumerGroup":"', _TEXT, b'"', 3, "consumer_group"),
    (rb'"topic":"', _TEXT, b'"', 3, "topic"),
    (rb'"queueId":"', _INT, b'"', 1, "queue_id"),
    (rb'"queueOffset":"', _LONG, b'"', 2, "queue_offset"),
    (rb'"sysFlag":"', _INT, b'"', 1, "sys_flag"),
    (rb'"commitOffset":"', _LONG, b'"', 2, "commit_offset"),
    (rb'"subVersion":"', _LONG, b'"', 2, "sub_version"),
    _OPAQUE,
)
_PARTS: Mapping[int, Sequence[tuple[bytes, bytes, bytes, int, str]]] = {
    RequestCode.SEND_MESSAGE_V2: _SEND_PARTS,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_PARTS,
    RequestCode.PULL_MESSAGE: _PULL_PARTS,
}


class RequestForm(NamedTuple):
    """The form of a connection's sends or pulls, as the arguments of `Speedups.take_request`.

    Args:
        literals: what stands around the values.
        kinds: the kind of each value.
        names: the field of each value, and those of the command for the header and the body.
        copy_command: copies the first request.
        copy_header: copies its header.
    """

    literals: tuple[bytes, ...]
    kinds: bytes
    names: tuple[str, ...]
    copy_command: Callable[[], RemotingCommand]
    copy_header: Callable[[], msgspec.Struct]


def learn_request(command: RemotingCommand, header: bytes) -> RequestForm | None:
    """Return the form of a request that `decode_request` has read; None for an unusual one."""
    if command.header is None:
        return None
    found: list[tuple[int, int, int, str]] = []
    for before, value, behind, kind, name in _PARTS[command.code]:
        places = [*re.finditer(rb"%b(%b)%b" % (before, value, behind), header)]
        if len(places) != 1:
            return None
        found.append((*places[0].span(1), kind, name))
    found.sort()
    begins = [0, *(end for _, end, _, _ in found)]
    ends = [*(begin for begin, _, _, _ in found), len(header)]
    return RequestForm(
        tuple(header[begin:end] for begin, end in zip(begins, ends, strict=True)),
        bytes(kind for _, _, kind, _ in found),
        (*(name for *_, name in found), "header", "body"),
        partial(replace, command),
        partial(replace, command.header),
    )


class RequestDecoder(FrameDecoder):
    """Cuts a connection's bytes into requests, as `FrameDecoder` does with `decode_request`."""

    __slots__ = ("_forms",)

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        super().__init__(frame_bytes_max=frame_bytes_max, decode=self._decode_and_learn)
        # By the code of the requests.
        self._forms: dict[int, RequestForm | None] = {}

    def _decode_and_learn(self, kind: int, header: bytes, body: bytes | None) -> RemotingCommand:
        command = decode_request(kind, header, body)
        if command.header is not None and command.code not in self._forms:
            # A copy: the caller may change its command.
            self._forms[command.code] = learn_request(replace(command, body=None), header)
        return command

    def next_command(self) -> RemotingCommand | None:
        """Return the next command, as `FrameDecoder.next_command` does."""
        functions, buffer = speedups.functions, self._buffer
        if functions is not None and isinstance(buffer, bytes):
            for form in self._forms.values():
                if form is None:
                    continue
                found = functions.take_request(buffer, self._at, self._frame_bytes_max, *form)
                if found is not None:
                    command, end = found
                    self.pass_to(end)
                    return command
        return super().next_command()
