"""The remoting command: one request or response of RocketMQ's remoting protocol.

Tests: test_framing_golden.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from sparrowmq.protocol.codes import MQ_VERSION, LanguageCode, ResponseCode, SerializeType

# The ext fields of an account's change and of temporary keys; a `repr` never shows their values.
_SECRET_FIELDS = ("secretKey", "SecurityToken")
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2


class RemotingCommand(msgspec.Struct, kw_only=True):
    """A request, its response, or a one-way request.

    Source: RocketMQ 4.9.3 remoting/protocol/RemotingCommand.java.
    Mutable: a session sets the opaque of a request when it writes the request.

    Args:
        code: request code or response code.
        ext_fields: the typed header as text (`headers.encode_header`), or None.
        body: None for a frame without a body; never b"".
        remark: the error text of a response.
        opaque: correlation id, a signed 32 bit number.
        flag: bit 0 response, bit 1 one-way.
        language: None if the peer named an unknown language.
        version: the ordinal in RocketMQ's version enumeration.
        serialize_type: the encoding of the header.
        header: the typed header, if `framing.decode_request` read the header as one; `ext_fields`
            is None then.
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

    def __repr__(self) -> str:
        fields = self.ext_fields or {}
        hidden = {name: "***" for name in _SECRET_FIELDS if name in fields}
        shown = structs.replace(self, ext_fields={**fields, **hidden}) if hidden else self
        return repr_without_body(shown)

    @property
    def is_response(self) -> bool:
        """Whether the command answers a request."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no answer."""
        return bool(self.flag & ONEWAY_FLAG)


class PreparedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of a kind whose requests differ in few values, encoded by a template."""

    @property
    def code(self) -> int:
        """The request code."""
        raise NotImplementedError

    def encode(self, opaque: int) -> bytes:
        """Return the frame. Raises: LocalProtocolError as `framing.encode_frame`."""
        raise NotImplementedError

    def command(self) -> RemotingCommand:
        """Return the request as a command."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return repr(self.command())


class _BodySize(int):
    def __repr__(self) -> str:
        return f"<{int(self)} bytes>"


def repr_without_body(struct: Any) -> str:
    """Return the `repr` of a struct with the size of its body, which is a user's."""
    if struct.body is not None:
        struct = structs.replace(struct, body=_BodySize(len(struct.body)))
    return msgspec.Struct.__repr__(struct)


def response_to(
    request: RemotingCommand,
    code: int = ResponseCode.SUCCESS,
    *,
    remark: str | None = None,
    ext_fields: Mapping[str, str] | None = None,
    body: bytes | None = None,
) -> RemotingCommand:
    """Make the answer to a request, with the request's opaque and header encoding."""
    return RemotingCommand(
        code=code,
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        opaque=request.opaque,
        flag=request.flag | RESPONSE_FLAG,
        serialize_type=request.serialize_type,
    )
