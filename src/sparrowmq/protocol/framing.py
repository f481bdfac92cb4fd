"""Frames: a remoting command as bytes, and bytes as commands. Pure.

| bytes | type | field |
|---|---|---|
| 0-3 | int | number of the bytes that follow: 4 + header + body |
| 4 | byte | encoding of the header: 0 JSON, 1 ROCKETMQ |
| 5-7 | unsigned | H, the header's length |
| 8 … | H bytes | header |
| 8 + H … | | body, if bytes are left |

The ROCKETMQ header (big-endian):

| bytes | type | field |
|---|---|---|
| 0-1 | short | code |
| 2 | byte | language |
| 3-4 | short | version |
| 5-8 | int | opaque |
| 9-12 | int | flag |
| 13 … | int + bytes | remark; length 0 is null |
| | int + bytes | ext fields, each short + name, int + value; length 0 is null |

The strict reader of JSON headers suffices for all known peers. Headers that it refuses are read in
fastjson's dialect, with fastjson's conversions (`"11"` for 11, a language by number, keys in any
case). Differs from RocketMQ: a repeated key is refused.

Speed matters here: benchmarks/protocol.py. Most requests to brokers are sends and pulls, and a
server reads their headers directly into their types (`decode_request`). Headers in an unusual form
go to the readers above.
Source: RocketMQ 4.9.3 remoting/protocol/RemotingCommand.java, RocketMQSerializable.java.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from struct import Struct as Layout
from struct import error as LayoutError  # noqa: N812
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.protocol import fastjson
from sparrowmq.protocol.codes import LanguageCode, RequestCode, SerializeType
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.foreign import ForeignProtocolError, find_foreign
from sparrowmq.protocol.headers import PullMessageRequestHeader, SendMessageRequestHeaderV2

# NettyDecoder.FRAME_MAX_LENGTH, counted with the four bytes of the length itself.
FRAME_BYTES_MAX = 16_777_216
HEADER_BYTES_MAX = 65_536
EXT_FIELDS_MAX = 256
EXT_NAME_BYTES_MAX = 255
EXT_VALUE_BYTES_MAX = 32_768

_Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1

_LANGUAGES_BY_NAME = {language.name: language for language in LanguageCode}
_LANGUAGES_BY_NUMBER = {language.value: language for language in LanguageCode}
_PREFIX = Layout(">II")
_BINARY_HEAD = Layout(">hbhiii")
_NAME_LENGTH = Layout(">h")
_LENGTH = Layout(">i")


class _JsonHeader(msgspec.Struct, forbid_unknown_fields=True):
    """The header of every known peer, with its keys in any order."""

    code: _Int32
    flag: _Int32
    language: str
    opaque: _Int32
    version: _Int32
    extFields: dict[str, str] | UnsetType | None = UNSET  # noqa: N815
    remark: str | UnsetType | None = UNSET
    serializeTypeCurrentRPC: str | UnsetType = UNSET  # noqa: N815


class _SendFields(
    SendMessageRequestHeaderV2, frozen=True, kw_only=True, rename={"unit_mode": "k", "batch": "m"}
):
    """The fields of a send with both flags, which makes the number of its keys known."""

    # Required fields behind optional ones: msgspec allows them, pyright's dataclasses do not.
    unit_mode: bool  # pyright: ignore[reportGeneralTypeIssues]
    batch: bool  # pyright: ignore[reportGeneralTypeIssues]


class _JsonSendHeader(msgspec.Struct, forbid_unknown_fields=True):
    """The header of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE from every known peer."""

    code: _Int32
    flag: _Int32
    language: str
    opaque: _Int32
    version: _Int32
    extFields: _SendFields  # noqa: N815
    serializeTypeCurrentRPC: str | UnsetType = UNSET  # noqa: N815


class _JsonPullHeader(msgspec.Struct, forbid_unknown_fields=True):
    """The header of PULL_MESSAGE from every known peer."""

    code: _Int32
    flag: _Int32
    language: str
    opaque: _Int32
    version: _Int32
    extFields: PullMessageRequestHeader  # noqa: N815
    serializeTypeCurrentRPC: str | UnsetType = UNSET  # noqa: N815


# The least number of keys. Both headers have six keys besides serializeTypeCurrentRPC. A send has
# eight required fields and two flags, a pull has nine required fields.
_SEND_KEYS_MIN = 16
_PULL_KEYS_MIN = 15
_SEND_STARTS = tuple(
    f'{{"code":{code.value},"extFields":{{'.encode()
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)
)
_PULL_START = f'{{"code":{RequestCode.PULL_MESSAGE.value},"extFields":{{'.encode()


class _JsonHeaderStart(msgspec.Struct):
    """The part of a request's header that an answer needs; the rest is not read."""

    code: _Int32
    opaque: _Int32
    flag: _Int32 = 0


class _JsonHeaderOut(msgspec.Struct):
    """A header to write: Java's keys, in Java's order."""

    code: int
    extFields: Mapping[str, str] | UnsetType  # noqa: N815
    flag: int
    language: str | UnsetType
    opaque: int
    remark: str | UnsetType
    version: int
    serializeTypeCurrentRPC: str = "JSON"  # noqa: N815


_decode_header_json = msgspec.json.Decoder(_JsonHeader).decode
_decode_send_json = msgspec.json.Decoder(_JsonSendHeader, strict=False).decode
_decode_pull_json = msgspec.json.Decoder(_JsonPullHeader, strict=False).decode
_decode_header_start = msgspec.json.Decoder(_JsonHeaderStart).decode
_encode_header_json = msgspec.json.Encoder().encode
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class RefusedHeader(RemoteProtocolError):
    """A header in a sound frame is malformed or exceeds a limit.

    Attributes:
        command: the code, opaque, flag and serialize type, for the answer.
    """

    def __init__(self, reason: str, command: RemotingCommand) -> None:
        super().__init__(reason)
        self.command = command


def encode_frame(command: RemotingCommand) -> bytes:
    """Write a command as one frame, with the header encoded by `command.serialize_type`.

    Raises: LocalProtocolError if the command does not fit into a frame.
    """
    return encode_head(command) + (command.body or b"")


def encode_head(command: RemotingCommand) -> bytes:
    """Write a frame without its body. A large body need not be copied then.

    Raises: LocalProtocolError if the command does not fit into a frame.
    """
    if command.serialize_type is SerializeType.JSON:
        header = _encode_json_header(command)
        kind = 0
    else:
        header = _encode_binary_header(command)
        kind = 0x01000000
    size = 4 + len(header) + len(command.body or b"")
    if len(header) > HEADER_BYTES_MAX or size + 4 > FRAME_BYTES_MAX:
        raise LocalProtocolError(
            f"a frame of {size + 4} bytes with a header of {len(header)} is too large "
            f"(at most {FRAME_BYTES_MAX} and {HEADER_BYTES_MAX}); send a smaller body"
        )
    return _PREFIX.pack(size, kind | len(header)) + header


def frame_json_header(header: bytes, body_size: int = 0) -> bytes:
    """Return a frame without its body, from a header that is JSON already."""
    size = len(header)
    return _PREFIX.pack(4 + size + body_size, size) + header


def _encode_json_header(command: RemotingCommand) -> bytes:
    language = command.language
    try:
        return _encode_header_json(
            _JsonHeaderOut(
                command.code,
                UNSET if command.ext_fields is None else command.ext_fields,
                command.flag,
                UNSET if language is None else language._name_,
                command.opaque,
                UNSET if command.remark is None else command.remark,
                command.version,
            )
        )
    except (TypeError, UnicodeEncodeError) as error:
        raise _cannot_carry(command.ext_fields, error) from error


def _encode_binary_header(command: RemotingCommand) -> bytes:
    try:
        remark = (command.remark or "").encode()
        parts: list[bytes] = []
        for name, value in (command.ext_fields or {}).items():
            raw_name, raw_value = name.encode(), value.encode()
            parts += (_NAME_LENGTH.pack(len(raw_name)), raw_name)
            parts += (_LENGTH.pack(len(raw_value)), raw_value)
        ext_fields = b"".join(parts)
        # Java writes the code as a short: codes above 32767 wrap.
        code = (command.code + 0x8000) % 0x10000 - 0x8000
        language = LanguageCode.OTHER if command.language is None else command.language
        head = _BINARY_HEAD.pack(
            code, language, command.version, command.opaque, command.flag, len(remark)
        )
    except (LayoutError, AttributeError, UnicodeEncodeError) as error:
        raise _cannot_carry(command, error) from error
    return b"".join((head, remark, _LENGTH.pack(len(ext_fields)), ext_fields))


def _cannot_carry(value: object, error: Exception) -> LocalProtocolError:
    if isinstance(error, UnicodeEncodeError):
        # Half of a pair of surrogates. Python makes one of each byte of a command's arguments that
        # is not UTF-8. The rest of the header has nothing to do with it.
        part = error.object[max(0, error.start - 20) : error.end + 20]
        return LocalProtocolError(f"no header can carry {part!r}, which UTF-8 cannot encode")
    return LocalProtocolError(f"no header can carry {value!r:.500}")


def decode_command(kind: int, header: bytes, body: bytes | None) -> RemotingCommand:
    """Read a command from the parts of its frame.

    Raises: RemoteProtocolError if the header is malformed or beyond a limit.
    """
    if kind == SerializeType.JSON:
        return _decode_json_command(header, body)
    if kind == SerializeType.ROCKETMQ:
        return _decode_binary_command(header, body)
    raise RemoteProtocolError(f"unknown header encoding {kind}")


def _decode_json_command(header: bytes, body: bytes | None) -> RemotingCommand:
    try:
        fields = _decode_header_json(header)
    except _MALFORMED:
        return _decode_tolerantly(header, body)
    ext_fields, remark = fields.extFields, fields.remark
    key_count = 5 + (remark is not UNSET) + (fields.serializeTypeCurrentRPC is not UNSET)
    if ext_fields is UNSET:
        ext_fields = None
    else:
        key_count += 1
    if ext_fields:
        key_count += len(ext_fields)
        _check_ext_fields(ext_fields, len(header))
    # Every key ends in `":`, and no value with escaped quotes does. Another number of `":` means
    # a repeated key or blanks; the tolerant reader finds out which.
    if header.count(b'":') - header.count(b'\\":') != key_count:
        return _decode_tolerantly(header, body)
    return RemotingCommand(
        code=fields.code,
        ext_fields=ext_fields,
        body=body,
        remark=None if remark is UNSET else remark,
        opaque=fields.opaque,
        flag=fields.flag,
        language=_LANGUAGES_BY_NAME.get(fields.language),
        version=fields.version,
    )


def decode_request(kind: int, header: bytes, body: bytes | None) -> RemotingCommand:
    """Read a command as `decode_command` does; the usual headers of sends and pulls become types.

    Raises: RemoteProtocolError as `decode_command`.
    """
    command: RemotingCommand | None = None
    if kind == 0:
        if header.startswith(_SEND_STARTS):
            command = _find_send(header, body)
        elif header.startswith(_PULL_START):
            command = _find_pull(header, body)
    return decode_command(kind, header, body) if command is None else command


def _find_send(header: bytes, body: bytes | None) -> RemotingCommand | None:
    """Return the send of a header in the form of every known peer, None for another form."""
    try:
        fields = _decode_send_json(header)
    except _MALFORMED:
        return None
    send = fields.extFields
    key_count = (
        _SEND_KEYS_MIN
        + (fields.serializeTypeCurrentRPC is not UNSET)
        + (send.properties is not None)
        + (send.reconsume_times is not None)
        + (send.max_reconsume_times is not None)
        + (send.bname is not None)
    )
    if (
        not _has_keys(header, key_count)
        # msgspec reads "1" as true as well, Java does not.
        or (send.batch and b'"m":"true"' not in header)
        or send.unit_mode
    ):
        return None
    return RemotingCommand(
        code=fields.code,
        body=body,
        opaque=fields.opaque,
        flag=fields.flag,
        language=_LANGUAGES_BY_NAME.get(fields.language),
        version=fields.version,
        header=send,
    )


def _find_pull(header: bytes, body: bytes | None) -> RemotingCommand | None:
    """Return the pull of a header in the form of every known peer, None for another form."""
    try:
        fields = _decode_pull_json(header)
    except _MALFORMED:
        return None
    pull = fields.extFields
    key_count = (
        _PULL_KEYS_MIN
        + (fields.serializeTypeCurrentRPC is not UNSET)
        + (pull.subscription is not None)
        + (pull.expression_type is not None)
        + (pull.max_msg_bytes is not None)
    )
    if not _has_keys(header, key_count):
        return None
    return RemotingCommand(
        code=fields.code,
        body=body,
        opaque=fields.opaque,
        flag=fields.flag,
        language=_LANGUAGES_BY_NAME.get(fields.language),
        version=fields.version,
        header=pull,
    )


def _has_keys(header: bytes, count: int) -> bool:
    """Return whether no key is repeated, unknown or null, and no value is too long.

    A colon in a value costs a second count.
    """
    return (header.count(b":") == count or header.count(b'":') == count) and len(
        header
    ) <= EXT_VALUE_BYTES_MAX


def _check_ext_fields(ext_fields: Mapping[str, str], header_bytes: int) -> None:
    if len(ext_fields) > EXT_FIELDS_MAX:
        raise RemoteProtocolError(f"{len(ext_fields)} ext fields, at most {EXT_FIELDS_MAX}")
    if header_bytes <= EXT_NAME_BYTES_MAX:
        return
    for name in ext_fields:
        if len(name) > EXT_NAME_BYTES_MAX:
            raise RemoteProtocolError(f"an ext field's name has {len(name)} characters")
    if header_bytes <= EXT_VALUE_BYTES_MAX:
        return
    for name, value in ext_fields.items():
        if len(value) > EXT_VALUE_BYTES_MAX:
            raise RemoteProtocolError(f"the ext field {name!r} has {len(value)} characters")


_FIELDS_BY_FOLDED_NAME = {name.lower(): name for name in _JsonHeader.__struct_fields__}


def _decode_tolerantly(header: bytes, body: bytes | None) -> RemotingCommand:
    """Read a JSON header as fastjson does."""
    value = fastjson.loads(header)
    if not isinstance(value, dict):
        raise RemoteProtocolError("a JSON header that is not an object", position=0)
    fields: dict[str, Any] = {}
    for key, item in value.items():
        name = _FIELDS_BY_FOLDED_NAME.get(str(key).replace("_", "").lower())
        if name is not None:
            fields[name] = item
    ext_fields = fields.get("extFields")
    if ext_fields is not None:
        if not isinstance(ext_fields, dict):
            raise RemoteProtocolError("extFields is not an object")
        ext_fields = {str(key): _to_text(item) for key, item in ext_fields.items()}
        _check_ext_fields(ext_fields, len(header))
    remark = fields.get("remark")
    return RemotingCommand(
        code=_to_int32(fields, "code"),
        ext_fields=ext_fields,
        body=body,
        remark=None if remark is None else _to_text(remark),
        opaque=_to_int32(fields, "opaque"),
        flag=_to_int32(fields, "flag"),
        language=_to_language(fields.get("language", "JAVA")),
        version=_to_int32(fields, "version"),
    )


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else fastjson.dumps(value).decode()


def _to_int32(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name, 0)
    if isinstance(value, str):
        value = fastjson.loads(value) if value else 0
    if isinstance(value, (bool, int, float)) and _INT32_MIN <= value <= _INT32_MAX:
        return int(value)
    raise RemoteProtocolError(f"the header's {name} is not a 32 bit number: {value!r:.64}")


def _to_language(value: Any) -> LanguageCode | None:
    if isinstance(value, int):
        return _LANGUAGES_BY_NUMBER.get(value)
    return _LANGUAGES_BY_NAME.get(str(value))


def _decode_binary_command(header: bytes, body: bytes | None) -> RemotingCommand:
    size = len(header)
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_HEAD.unpack_from(header)
        at = 17
        if not 0 <= remark_size <= size - at:
            raise RemoteProtocolError(f"a remark of {remark_size} bytes", position=13)
        remark = header[at : at + remark_size].decode() if remark_size else None
        at += remark_size
        (map_size,) = _LENGTH.unpack_from(header, at)
        at += 4
        if not 0 <= map_size <= size - at:
            raise RemoteProtocolError(f"ext fields of {map_size} bytes", position=at - 4)
        ext_fields = _decode_ext_fields(header, at, at + map_size) if map_size else None
    except LayoutError as error:
        raise RemoteProtocolError("a binary header that ends early", position=size) from error
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("a binary header with a text that is not UTF-8") from error
    return RemotingCommand(
        code=code,
        ext_fields=ext_fields,
        body=body,
        remark=remark,
        opaque=opaque,
        flag=flag,
        language=_LANGUAGES_BY_NUMBER.get(language),
        version=version,
        serialize_type=SerializeType.ROCKETMQ,
    )


def _decode_ext_fields(header: bytes, at: int, end: int) -> dict[str, str]:
    ext_fields: dict[str, str] = {}
    while at < end:
        (name_size,) = _NAME_LENGTH.unpack_from(header, at)
        value_at = at + 6 + name_size
        if not 0 <= name_size <= EXT_NAME_BYTES_MAX or value_at > end:
            raise RemoteProtocolError(f"an ext field's name of {name_size} bytes", position=at)
        (value_size,) = _LENGTH.unpack_from(header, value_at - 4)
        next_at = value_at + value_size
        if not 0 <= value_size <= EXT_VALUE_BYTES_MAX or next_at > end:
            raise RemoteProtocolError(f"an ext field of {value_size} bytes", position=value_at - 4)
        name = header[at + 2 : value_at - 4].decode()
        if name in ext_fields:
            raise RemoteProtocolError(f"the ext field {name!r} comes twice", position=at)
        ext_fields[name] = header[value_at:next_at].decode()
        at = next_at
    if len(ext_fields) > EXT_FIELDS_MAX:
        raise RemoteProtocolError(f"{len(ext_fields)} ext fields, at most {EXT_FIELDS_MAX}")
    return ext_fields


def _find_start(kind: int, header: bytes) -> RemotingCommand | None:
    """Return the fields of a refused header that its answer needs, None if unreadable."""
    try:
        if kind == SerializeType.JSON:
            start = _decode_header_start(header)
            return RemotingCommand(code=start.code, opaque=start.opaque, flag=start.flag)
        if kind == SerializeType.ROCKETMQ:
            code, _, _, opaque, flag, _ = _BINARY_HEAD.unpack_from(header)
            binary = SerializeType.ROCKETMQ
            return RemotingCommand(code=code, opaque=opaque, flag=flag, serialize_type=binary)
    except (*_MALFORMED, LayoutError):
        pass
    return None


class FrameDecoder:
    """Cuts a connection's bytes into commands.

    Call either `receive_data`, or `feed` and then `next_command` until `next_command` returns
    None. With `next_command` the caller may leave whole frames undecoded for later.

    After a RemoteProtocolError other than RefusedHeader, close the connection.

    Args:
        frame_bytes_max: the most bytes of a frame; a larger frame is refused once its length is
            read, before any of its body is stored.
        header_bytes_max: the most bytes of a header; a larger header is refused once its frame is
            complete.
        decode: reads a command from the parts of its frame, as `decode_command` does.
    """

    __slots__ = ("_at", "_buffer", "_decode", "_error", "_frame_bytes_max", "_header_bytes_max")

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        decode: Callable[[int, bytes, bytes | None], RemotingCommand] = decode_command,
    ) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._header_bytes_max = header_bytes_max
        self._decode = decode
        # The received object itself while it ends with a frame, else a bytearray of the rest.
        self._buffer: bytes | bytearray = b""
        self._at = 0
        self._error: RemoteProtocolError | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no bytes are held; also after an error, which `next_command` raises again."""
        return not self._buffer

    @property
    def buffered_bytes(self) -> int:
        """The number of held bytes that belong to no returned command."""
        return len(self._buffer) - self._at

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[RemotingCommand]:
        """Take the next bytes; return the commands that are complete now, in order.

        Raises: RemoteProtocolError for a frame that is malformed or too large.
        """
        self.feed(data)
        commands: list[RemotingCommand] = []
        while (command := self.next_command()) is not None:
            commands.append(command)
        return commands

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes."""
        if self._error is not None:
            return
        buffer = self._buffer
        if not buffer:
            self._buffer = data if isinstance(data, bytes) else bytes(data)
            return
        if isinstance(buffer, bytes):
            self._buffer = buffer = bytearray(memoryview(buffer)[self._at :])
            self._at = 0
        buffer += data

    def find_frame(
        self, pattern: re.Pattern[bytes], *, has_body: bool
    ) -> tuple[re.Match[bytes], bytes | None] | None:
        """Return the match of a pattern with the next header, and the body behind it.

        `pass_to` then continues behind the frame.

        Returns: None if the header does not match, the frame is not complete, or it has a body and
            should have none, or the other way round.
        """
        buffer, at = self._buffer, self._at
        if isinstance(buffer, bytearray):
            # A match holds an export of the buffer, and a bytearray with an export cannot grow.
            return None
        match = pattern.match(buffer, at + 8)
        if match is None:
            return None
        header_size, body_at = match.end() - at - 8, match.end()
        size, mark = _PREFIX.unpack_from(buffer, at)
        body_end = at + 4 + size
        if (
            mark != header_size
            or has_body != (body_end > body_at)
            or not body_at <= body_end <= len(buffer)
            or size + 4 > self._frame_bytes_max
        ):
            return None
        return match, buffer[body_at:body_end] if has_body else None

    @property
    def place(self) -> tuple[bytes, int] | None:
        """The held bytes and the place of the next frame; None if the bytes may still move."""
        buffer = self._buffer
        return (buffer, self._at) if isinstance(buffer, bytes) else None

    def pass_to(self, end: int) -> None:
        """Continue at the end of a frame that was read at `place` or by `find_frame`."""
        if end == len(self._buffer):
            self._buffer, self._at = b"", 0
        else:
            self._at = end

    def next_command(self) -> RemotingCommand | None:
        """Return the next command, None if its frame is not complete.

        Raises:
            RefusedHeader: the frame was passed over, and the next frame can be read.
            RemoteProtocolError: the frame is malformed or too large; every later call raises
                the error again.
        """
        if self._error is not None:
            raise self._error
        buffer, at = self._buffer, self._at
        end = len(buffer)
        if end - at < 8:
            self._trim()
            return None
        size, mark = _PREFIX.unpack_from(buffer, at)
        header_size = mark & 0x00FFFFFF
        if size + 4 > self._frame_bytes_max or not mark:
            foreign = find_foreign(buffer[at : at + 8])
            if foreign is not None:
                raise self._stop(ForeignProtocolError(foreign))
        if size + 4 > self._frame_bytes_max:
            text = (
                f"a frame of {size + 4} bytes, at most {self._frame_bytes_max}; the peer may not "
                f"speak RocketMQ's protocol"
            )
            raise self._stop(RemoteProtocolError(text))
        if header_size > size - 4:
            text = f"a header of {header_size} bytes in a frame of {size + 4}"
            raise self._stop(RemoteProtocolError(text))
        frame_end = at + 4 + size
        if frame_end > end:
            self._trim()
            return None
        body_at = at + 8 + header_size
        header = bytes(buffer[at + 8 : body_at])
        if frame_end == end:
            self._buffer, self._at = b"", 0
        else:
            self._at = frame_end
        kind = mark >> 24
        try:
            if header_size > self._header_bytes_max:
                raise RemoteProtocolError(
                    f"a header of {header_size} bytes, at most {self._header_bytes_max}"
                )
            body: bytes | None = None
            if body_at < frame_end and isinstance(buffer, bytes):
                body = buffer[body_at:frame_end]
            elif body_at < frame_end:
                # Through a view, which copies a large body only once.
                body = bytes(memoryview(buffer)[body_at:frame_end])
            return self._decode(kind, header, body)
        except RemoteProtocolError as error:
            start = _find_start(kind, header)
            if start is None:
                raise self._stop(error) from None
            raise RefusedHeader(str(error), start) from error

    def _trim(self) -> None:
        """Keep only the beginning of the next frame."""
        if isinstance(self._buffer, bytearray):
            del self._buffer[: self._at]
        elif self._buffer:
            self._buffer = bytearray(memoryview(self._buffer)[self._at :])
        self._at = 0

    def _stop(self, error: RemoteProtocolError) -> RemoteProtocolError:
        self._buffer, self._at = b"", 0
        self._error = error
        return error
