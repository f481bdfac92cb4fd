"""The request of a send, laid out once for a topic, and the form of its answer. Pure.

Most requests of a producer are SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE, and of one to the next only
some fields differ. So the header is encoded once, by the general encoder, and then only filled in:
the bytes are the same (benchmarks/against_apache.py: async, 1,000 under way; batches of 32).
"""

from __future__ import annotations

import re

import msgspec

from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import HEADER_BYTES_MAX, encode_frame, encode_head

# In the places of what differs; neither groups nor topics have such characters.
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
    """Return the fields of a send but for those of its message, which are empty.

    Letters: headers.SendMessageRequestHeaderV2.
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
    """What all sends of one producer to one topic share.

    Args:
        code: the request code.
        fields: as `make_fields` makes them for this code.
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


class SendRequest(msgspec.Struct, frozen=True, gc=False):
    """One send of a template: of a message, or of a batch.

    Args:
        fields: queue id, sys flag, born timestamp in milliseconds, flag.
        properties: the text as it is stored.
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
        header = self.template.header % (*self.fields, properties, opaque)
        header_size = len(header)
        if header_size > HEADER_BYTES_MAX:
            return self._encode_generally(opaque)
        size = 4 + header_size + len(self.body)
        # A JSON header has the kind 0.
        return b"%b%b%b%b" % (size.to_bytes(4), header_size.to_bytes(4), header, self.body)

    def command(self) -> RemotingCommand:
        """Return the same as a command."""
        places = dict(zip("efgh", map(str, self.fields), strict=True))
        ext_fields = self.template.fields | places | {"i": self.properties}
        return RemotingCommand(code=self.code, ext_fields=ext_fields, body=self.body)

    def _encode_generally(self, opaque: int) -> bytes:
        command = self.command()
        command.opaque = opaque
        return encode_frame(command)


# What differs from answer to answer: its group, what stands before the value, and what may stand
# there so that it needs no further look.
_ANSWER_PARTS = (
    (b"q", b'"queueId":"', rb"\d{1,9}"),
    (b"o", b'"queueOffset":"', rb"\d{1,18}"),
    # Of a batch as many as it has messages.
    (b"m", b'"msgId":"', rb"[0-9A-F,]{32,30000}"),
    (b"n", b'"opaque":', rb"0|[1-9]\d{0,8}"),
)
# RocketMQ 5 also sends the id that the producer gave.
_OWN_ID = rb'"transactionId":"[0-9A-F]+"'


# Fields that say nothing of the message, or nothing that its id does not say.
_ANSWER_NAMES = frozenset(
    {"queueId", "queueOffset", "msgId", "transactionId", "MSG_REGION", "TRACE_ON"}
)


def learn_answer(answer: RemotingCommand, header: bytes) -> re.Pattern[bytes] | None:
    """Return the form of answers like this one, None if it is not the usual answer to a send.

    A header that it matches says the same but for the groups q, o and m, which are queue id, queue
    offset and the message's offset id, and n, the opaque.
    """
    if not answer.is_response or answer.code != ResponseCode.SUCCESS or answer.remark is not None:
        return None
    if not _ANSWER_NAMES.issuperset(answer.ext_fields or {}):
        # Such as the handle of a delayed message.
        return None
    form = re.sub(_OWN_ID, lambda _: _OWN_ID, re.escape(header))
    for group, before, values in _ANSWER_PARTS:
        mark = re.escape(before)
        place = b"%b(?P<%b>%b)" % (mark, group, values)
        # A longer value must not leave its last digits to the form.
        known = rb"%b(?:%b)(?!\w)" % (re.escape(mark), values)
        form, count = re.subn(known, lambda _: place, form)  # noqa: B023
        if count != 1:
            return None
    return re.compile(form)
