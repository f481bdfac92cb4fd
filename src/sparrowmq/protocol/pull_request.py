"""The request of a pull, encoded once for a queue, and the form of its answer. Pure.

The pulls of a queue differ in their offset alone. The bytes are the general encoder's
(benchmarks/against_apache.py: drain, a listener by 32).

Tests: test_pull_request.py.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from sparrowmq.protocol.answer_form import AnswerForm, ValueKind, learn_answer
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import PreparedRequest, RemotingCommand, repr_without_body
from sparrowmq.protocol.framing import encode_head, frame_json_header
from sparrowmq.protocol.headers import PullMessageRequestHeader, encode_header

# No pull begins there: an offset is a number of messages.
_OFFSET = -(2**63)
_OPAQUE = 2**31 - 1


class PullRequest(PreparedRequest, frozen=True, gc=False):
    """One pull."""

    header: PullMessageRequestHeader

    @property
    def code(self) -> int:
        """The request code."""
        return RequestCode.PULL_MESSAGE

    def encode(self, opaque: int) -> bytes:
        """Return the frame. Raises: LocalProtocolError as `framing.encode_frame`."""
        header = self.header
        return frame_json_header(
            _template(replace(header, queue_offset=_OFFSET)) % (header.queue_offset, opaque)
        )

    def command(self) -> RemotingCommand:
        """Return the request as a command."""
        return RemotingCommand(code=self.code, ext_fields=encode_header(self.header))


@lru_cache(1024)
def _template(header: PullMessageRequestHeader) -> bytes:
    """Return a header with places for the offset and the opaque."""
    command = PullRequest(header).command()
    command.opaque = _OPAQUE
    text = encode_head(command)[8:].replace(b"%", b"%%")
    text = text.replace(b'"queueOffset":"%d"' % _OFFSET, b'"queueOffset":"%d"')
    return text.replace(b'"opaque":%d' % _OPAQUE, b'"opaque":%d')


class PullAnswered(msgspec.Struct, frozen=True, gc=False):
    """The usual answer to a `PullRequest` that finds messages: their records, and offsets."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    body: bytes

    def __repr__(self) -> str:
        return repr_without_body(self)


def read_pull_answer(match: re.Match[bytes], body: bytes | None) -> tuple[int, PullAnswered]:
    """Return the opaque and the answer of a header that matches the form."""
    broker_id, following, least, most, opaque = match.group("v0", "v1", "v2", "v3", "n")
    answer = PullAnswered(int(broker_id), int(following), int(least), int(most), body or b"")
    return int(opaque), answer


# By the places of `PullAnswered`.
_ANSWER_FIELDS = (
    ("suggestWhichBrokerId", ValueKind.LONG),
    ("nextBeginOffset", ValueKind.LONG),
    ("minOffset", ValueKind.LONG),
    ("maxOffset", ValueKind.LONG),
)


def learn_pull_answer(answer: RemotingCommand, header: bytes) -> AnswerForm | None:
    """Return the form of an answer with messages, None for an unusual answer."""
    if answer.body is None or "offsetDelta" in (answer.ext_fields or {}):
        # The records of a static topic's queue have other offsets than the queue.
        return None
    return learn_answer(answer, header, _ANSWER_FIELDS)
