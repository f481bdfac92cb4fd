"""The request of a send, encoded once for a topic, and the form of its answer. Pure.

Most requests of a producer are SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE, and only some fields differ
between them. The general encoder encodes the header once for a topic; each send fills in its own
fields. The bytes are the general encoder's (benchmarks/against_apache.py: async, 1,000 under way;
batches of 32).
"""

from __future__ import annotations

import re

import msgspec

from sparrowmq.protocol.answer_form import AnswerForm, ValueKind, learn_answer
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import PreparedRequest, RemotingCommand
from sparrowmq.protocol.framing import (
    HEADER_BYTES_MAX,
    encode_frame,
    encode_head,
    frame_json_header,
)

# Marks in the places of the differing fields; neither groups nor topics have such characters.
_QUEUE_ID, _SYS_FLAG, _TIMESTAMP, _FLAG, _PROPERTIES = "<e>", "<f>", "<g>", "<h>", "<i>"
_OPAQUE = 2**31 - 1
_encode_text = msgspec.json.Encoder().encode


def make_fields(
    group: str,
    topic: str,
    *,
    template_topic: str,
    template_queues_max: int,
    code: int,
) -> dict[str, str]:
    """Return the fields of a send; those of its message are empty.

    The names are the letters of headers.SendMessageRequestHeaderV2.
    """
    return {
        "a": group,
        "b": topic,
        "c": template_topic,
        "d": str(template_queues_max),
        "e": "",
        "f": "",
        "g": "",
        "h": "",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
    }


class SendTemplate:
    """The part of the request that all sends of one producer to one topic share.

    Args:
        code: the request code.
        fields: the result of `make_fields` for this code.
    """

    __slots__ = ("code", "fields", "header")

    def __init__(self, code: int, fields: dict[str, str]) -> None:
        self.code = code
        self.fields = fields
        places = {"e": _QUEUE_ID, "f": _SYS_FLAG, "g": _TIMESTAMP, "h": _FLAG, "i": _PROPERTIES}
        sample = RemotingCommand(code=code, ext_fields=fields | places, opaque=_OPAQUE)
        header = encode_head(sample)[8:].replace(b"%", b"%%")
        for place in (_QUEUE_ID, _SYS_FLAG, _TIMESTAMP, _FLAG):
            header = header.replace(f'"{place}"'.encode(), b'"%d"')
        header = header.replace(f'"{_PROPERTIES}"'.encode(), b"%b")
        self.header = header.replace(b'"opaque":%d' % _OPAQUE, b'"opaque":%d')
        assert self.header.replace(b"%%", b"").count(b"%") == 6


class SendRequest(PreparedRequest, frozen=True, gc=False):
    """One send of a message or a batch by a template.

    Args:
        fields: queue id, sys flag, born timestamp in milliseconds, flag.
        properties: the properties text (`properties.encode_properties`).
    """

    template: SendTemplate
    fields: tuple[int, int, int, int]
    properties: str
    body: bytes

    @property
    def code(self) -> int:
        """The request code."""
        return self.template.code

    def encode(self, opaque: int) -> bytes:
        """Return the frame. Raises: LocalProtocolError as `framing.encode_frame`."""
        try:
            properties = _encode_text(self.properties)
        except UnicodeEncodeError:
            return self._encode_generally(opaque)
        queue_id, sys_flag, timestamp_ms, flag = self.fields
        values = queue_id, sys_flag, timestamp_ms, flag, properties, opaque
        header, body = self.template.header % values, self.body
        if len(header) > HEADER_BYTES_MAX:
            return self._encode_generally(opaque)
        return frame_json_header(header, len(body)) + body

    def command(self) -> RemotingCommand:
        """Return the request as a command."""
        places = dict(zip("efgh", map(str, self.fields), strict=True))
        ext_fields = self.template.fields | places | {"i": self.properties}
        return RemotingCommand(code=self.code, ext_fields=ext_fields, body=self.body)

    def _encode_generally(self, opaque: int) -> bytes:
        command = self.command()
        command.opaque = opaque
        return encode_frame(command)


class SendAnswered(msgspec.Struct, frozen=True, gc=False):
    """The usual answer to a `SendRequest`: the place of the stored message."""

    queue_id: int
    queue_offset: int
    offset_msg_id: str


def read_send_answer(match: re.Match[bytes], _: bytes | None) -> tuple[int, SendAnswered]:
    """Return the opaque and the answer of a header that matches the form."""
    queue_id, queue_offset, msg_id, opaque = match.group("v0", "v1", "v2", "n")
    return int(opaque), SendAnswered(int(queue_id), int(queue_offset), msg_id.decode())


# By the places of `SendAnswered`.
_ANSWER_FIELDS = (
    ("queueId", ValueKind.INT),
    ("queueOffset", ValueKind.LONG),
    ("msgId", ValueKind.IDS),
)
# A broker's switch of message trace, in its answers and in the properties of its messages.
TRACE_SWITCH, TRACE_OFF = "TRACE_ON", "false"
# Fields that say nothing about the message beyond its id.
_ANSWER_NAMES = frozenset(
    {"queueId", "queueOffset", "msgId", "transactionId", "MSG_REGION", TRACE_SWITCH}
)


def learn_send_answer(answer: RemotingCommand, header: bytes) -> AnswerForm | None:
    """Return the form of an answer to a send, None for an unusual answer."""
    if answer.body is not None or answer.remark is not None:
        return None
    fields = answer.ext_fields or {}
    if not _ANSWER_NAMES.issuperset(fields) or fields.get(TRACE_SWITCH) == TRACE_OFF:
        # A further field, such as the handle of a delayed message; or a producer must see a value.
        return None
    return learn_answer(answer, header, _ANSWER_FIELDS)
