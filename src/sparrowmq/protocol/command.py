"""The remoting command: one request or response of RocketMQ's remoting protocol."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from sparrowmq.protocol.codes import MQ_VERSION, LanguageCode, ResponseCode, SerializeType

RESPONSE_FLAG = 1
ONEWAY_FLAG = 2


class RemotingCommand(msgspec.Struct, kw_only=True):
    """A request, its response, or a one-way request.

    Source: RocketMQ 4.9.3 remoting/protocol/RemotingCommand.java.
    Mutable, because a session gives a request its opaque when it is written.

    Args:
        code: request code or response code.
        ext_fields: the typed header as text (`headers.encode_header`), or None.
        body: None where the frame has none; never b"".
        remark: error text of a response.
        opaque: correlation id, a signed 32 bit number.
        flag: bit 0 response, bit 1 one-way.
        language: None where the peer named one that is unknown.
        version: ordinal of RocketMQ's version enumeration.
        serialize_type: how the header is written, or was written.
        header: what `ext_fields` say as a typed header, where it was read as one at once
            (`framing.decode_request`); `ext_fields` is None then.
    """

    code: int
    ext_fields: Mapping[str, str] | None = None
    body: bytes | None = None
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: LanguageCode | None = LanguageCode.PYTHON
    version: int = MQ_VERSION
    serialize_type: SerializeType = SerializeType.JSON
    header: msgspec.Struct | None = None

    @property
    def is_response(self) -> bool:
        """Whether this answers a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether no answer is expected."""
        return bool(self.flag & ONEWAY_FLAG)


def response_to(
    request: RemotingCommand,
    code: int = ResponseCode.SUCCESS,
    *,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> RemotingCommand:
    """Make the answer to a request: same opaque, same header encoding."""
    return RemotingCommand(
        code=code,
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        opaque=request.opaque,
        flag=request.flag | RESPONSE_FLAG,
        serialize_type=request.serialize_type,
    )
