"""The form of the usual answers to one kind of request. Pure.

Answers of one kind differ in some numbers and ids only. A session keeps the form of the first
answer and reads answers of this form by it, in C if the extension is installed.

Tests: test_send_request.py, test_pull_request.py.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand


class ValueKind(IntEnum):
    """The values of an answer that need no further check; the extension knows them too."""

    OPAQUE = 0
    # RocketMQ 5 sends the producer's id as well.
    OWN_ID = 1
    INT = 2
    LONG = 3
    # The answer to a batch has one id for each message.
    IDS = 4


_PATTERNS = {
    ValueKind.OPAQUE: rb"0|[1-9]\d{0,8}",
    ValueKind.INT: rb"\d{1,9}",
    ValueKind.LONG: rb"\d{1,18}",
    ValueKind.IDS: rb"[0-9A-F,]{32,30000}",
}
_OPAQUE = b'"opaque":'
_OWN_ID = rb'"transactionId":"[0-9A-F]+"'
_OWN_ID_START = b'"transactionId":"'
_KIND_SHIFT = 4


class AnswerForm(NamedTuple):
    """The form of an answer.

    Args:
        pattern: matches the header of an answer that differs from the first in its values alone;
            the groups are v0, v1 and so on, and n, the opaque.
        literals: the same for the extension: what stands around the values.
        kinds: the kind of each value and, in the low four bits, the number of its group.
    """

    pattern: re.Pattern[bytes]
    literals: tuple[bytes, ...]
    kinds: bytes


def learn_answer(
    answer: RemotingCommand, header: bytes, fields: tuple[tuple[str, ValueKind], ...]
) -> AnswerForm | None:
    """Return the form of an answer; None for an unusual answer.

    Args:
        fields: the names and kinds of the fields that differ.
    """
    if not answer.is_response or answer.code != ResponseCode.SUCCESS:
        return None
    parts = [(b"v%d" % n, b'"%b":"' % name.encode(), kind) for n, (name, kind) in enumerate(fields)]
    parts.append((b"n", _OPAQUE, ValueKind.OPAQUE))
    form = re.sub(_OWN_ID, lambda _: _OWN_ID, re.escape(header))
    for group, before, kind in parts:
        mark, values = re.escape(before), _PATTERNS[kind]
        place = b"%b(?P<%b>%b)" % (mark, group, values)
        # The form must not match the beginning of a longer value.
        known = rb"%b(?:%b)(?!\w)" % (re.escape(mark), values)
        form, count = re.subn(known, lambda _: place, form)  # noqa: B023
        if count != 1:
            return None
    pattern = re.compile(form)
    match = pattern.fullmatch(header)
    if match is None:
        return None
    found = [
        (match.span(group.decode()), kind << _KIND_SHIFT | (n if n < len(fields) else 0))
        for n, (group, _, kind) in enumerate(parts)
    ]
    for own in re.finditer(_OWN_ID, header):
        span = (own.start() + len(_OWN_ID_START), own.end() - 1)
        found.append((span, ValueKind.OWN_ID << _KIND_SHIFT))
    found.sort()
    begins = [0, *(end for (_, end), _ in found)]
    ends = [*(begin for (begin, _), _ in found), len(header)]
    literals = tuple(header[begin:end] for begin, end in zip(begins, ends, strict=True))
    kinds = bytes(kind for _, kind in found)
    return AnswerForm(pattern, literals, kinds)
