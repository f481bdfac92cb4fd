from __future__ import annotations

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.protocol import framing
from sparrowmq.protocol.codes import LanguageCode, RequestCode, SerializeType
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import (
    FrameDecoder,
    RefusedHeader,
    decode_command,
    decode_request,
    encode_frame,
)
from sparrowmq.protocol.headers import (
    PullMessageRequestHeader,
    SendMessageRequestHeaderV2,
    decode_header,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)


def commands(serialize_type: SerializeType) -> st.SearchStrategy[RemotingCommand]:
    is_json = serialize_type is SerializeType.JSON
    return st.builds(
        RemotingCommand,
        code=INT32 if is_json else INT16,
        # A binary header cannot tell "" from none, nor an empty map from none.
        ext_fields=st.none() | st.dictionaries(NAMES, TEXTS, min_size=0 if is_json else 1),
        body=st.none() | st.binary(min_size=1),
        remark=st.none() | (TEXTS if is_json else TEXTS.filter(bool)),
        opaque=INT32,
        flag=INT32,
        language=st.sampled_from(LanguageCode),
        version=INT32 if is_json else INT16,
        serialize_type=st.just(serialize_type),
    )


COMMANDS = commands(SerializeType.JSON) | commands(SerializeType.ROCKETMQ)


@given(COMMANDS)
def test_command_survives_encoding_and_decoding(command: RemotingCommand) -> None:
    assert FrameDecoder().receive_data(encode_frame(command)) == [command]


@given(st.lists(COMMANDS, max_size=3), st.data())
def test_commands_survive_any_cut_of_the_stream(
    originals: list[RemotingCommand], data: st.DataObject
) -> None:
    stream = b"".join(map(encode_frame, originals))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    decoder = FrameDecoder()

    decoded = [
        command
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for command in decoder.receive_data(stream[start:end])
    ]

    assert originals == decoded
    assert decoder.buffered_bytes == 0


@given(st.binary(max_size=200), st.sampled_from([0, 1, 2, 255]))
def test_arbitrary_header_raises_only_protocol_errors(header: bytes, kind: int) -> None:
    with contextlib.suppress(RemoteProtocolError):
        decode_command(kind, header, None)


@given(COMMANDS, st.data())
def test_damaged_frame_raises_only_protocol_errors(
    command: RemotingCommand, data: st.DataObject
) -> None:
    frame = bytearray(encode_frame(command))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(RemoteProtocolError):
        FrameDecoder().receive_data(frame)


def json_frame(header: str | bytes) -> bytes:
    raw = header if isinstance(header, bytes) else header.encode()
    return (4 + len(raw)).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw


def header_with(ext_fields: dict[str, Any]) -> str:
    fields = {"code": 1, "flag": 0, "language": "JAVA", "opaque": 1, "version": 399}
    return json.dumps({**fields, "extFields": ext_fields}, separators=(",", ":"))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes.fromhex("01000000 00000000"), "a frame of 16777220 bytes"),
        (bytes.fromhex("ffffffff 00000000"), "a frame of 4294967299 bytes"),
        (bytes.fromhex("00000008 00000005"), "a header of 5 bytes in a frame of 12"),
        (bytes.fromhex("00000000 00000000"), "a header of 0 bytes in a frame of 4"),
    ],
)
def test_size_beyond_the_limit_is_refused_before_the_frame_has_come(
    data: bytes, words: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        FrameDecoder().receive_data(data)


def test_largest_frame_is_accepted_and_a_larger_one_is_not_written() -> None:
    header_bytes = len(encode_frame(RemotingCommand(code=1))) - 8
    body = bytes(framing.FRAME_BYTES_MAX - 8 - header_bytes)

    (command,) = FrameDecoder().receive_data(encode_frame(RemotingCommand(code=1, body=body)))

    assert len(body) == len(command.body or b"")
    with pytest.raises(LocalProtocolError, match="too large"):
        encode_frame(RemotingCommand(code=1, body=body + b"x"))


@pytest.mark.parametrize(
    "header",
    [
        header_with({f"f{index}": "" for index in range(257)}),
        header_with({"n" * 256: ""}),
        header_with({"n": "v" * 32_769}),
        '{"code":' + "[" * 17 + "]" * 17 + "}",
        '{"a":' * 17 + "1" + "}" * 17,
        '{"code":' + "1" * 21 + "}",
        '{"code":1,"code":2}',
        header_with({}).replace("{}", '{"a":"1","a":"2"}'),
        header_with({"a": "x"}).replace("x", "\\ud800"),
        '{"code":NaN}',
        '{"code":Infinity}',
        '{"code":1e999}',
        '{"code":"٣"}',
        '{"code":"1_0"}',
        '{"code":[1]}',
        '{"extFields":[]}',
        '{"code":1} {}',
        "",
    ],
    ids=range(18),
)
def test_header_beyond_a_limit_is_refused(header: str) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().receive_data(json_frame(header))


@pytest.mark.parametrize(
    "header",
    [
        header_with({f"f{index}": "" for index in range(256)}),
        header_with({"n" * 255: "v" * 32_768}),
        header_with({"a": '{"json":"in a text","twice":":"}', "b": 'x":y\\":'}),
        header_with({"a\\": ":", 'b"': '":"'}),
        json.dumps({"code": 1, "extFields": {"a": "b"}}, indent=2),
    ],
    ids=range(5),
)
def test_header_at_the_limit_is_accepted(header: str) -> None:
    (command,) = FrameDecoder().receive_data(json_frame(header))

    assert json.loads(header)["extFields"] == command.ext_fields


@pytest.mark.parametrize("text", ['"a' * 32_000, '"' + '\\"' * 32_000, "[" * 65_000, "{'" * 30_000])
def test_hostile_header_is_refused_in_linear_time(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameDecoder().receive_data(json_frame(text))


def binary_frame(ext_fields: dict[str, str], *, opaque: int, flag: int = 0) -> bytes:
    entries = b"".join(
        len(name).to_bytes(2, "big")
        + name.encode()
        + len(value).to_bytes(4, "big")
        + value.encode()
        for name, value in ext_fields.items()
    )
    start = (310).to_bytes(2, "big") + bytes(3) + opaque.to_bytes(4, "big")
    header = start + flag.to_bytes(4, "big") + bytes(4) + len(entries).to_bytes(4, "big") + entries
    size = (4 + len(header)).to_bytes(4, "big")
    return size + b"\x01" + len(header).to_bytes(3, "big") + header


@pytest.mark.parametrize(
    "ext_fields",
    [
        {"i": "x" * 70_000},
        {"i": "x" * 33_000},
        {f"f{index}": "" for index in range(257)},
        {f"f{index}": "x" * 32_000 for index in range(500)},
    ],
    ids=["header", "field", "fields", "16 MB"],
)
@pytest.mark.parametrize("kind", SerializeType)
def test_refused_header_tells_what_to_answer_and_leaves_the_rest_to_be_read(
    ext_fields: dict[str, str], kind: SerializeType
) -> None:
    if kind is SerializeType.JSON:
        fields = {"code": 310, "extFields": ext_fields, "flag": 2, "opaque": 77, "version": 399}
        frame = json_frame(json.dumps({**fields, "language": "JAVA"}))
    else:
        frame = binary_frame(ext_fields, opaque=77, flag=2)
    decoder = FrameDecoder()
    decoder.feed(frame + encode_frame(RemotingCommand(code=1)))

    with pytest.raises(RefusedHeader) as refused:
        decoder.next_command()
    following = decoder.next_command()

    command = refused.value.command
    assert (
        command.code,
        command.opaque,
        command.flag,
        command.serialize_type,
    ) == (310, 77, 2, kind)
    assert command.ext_fields is None
    assert following == RemotingCommand(code=1)
    assert decoder.next_command() is None
    assert decoder.buffered_bytes == 0


def test_frames_can_be_left_for_later() -> None:
    decoder = FrameDecoder()
    frames = [encode_frame(RemotingCommand(code=code)) for code in range(3)]
    decoder.feed(b"".join(frames)[:-1])

    first = decoder.next_command()
    left = decoder.buffered_bytes
    decoder.feed(frames[2][-1:])

    assert first == RemotingCommand(code=0)
    assert len(frames[1]) + len(frames[2]) - 1 == left
    assert [command.code for command in decoder.receive_data(b"")] == [1, 2]


def test_after_an_error_nothing_more_is_read() -> None:
    decoder = FrameDecoder()
    frame = encode_frame(RemotingCommand(code=1))
    with pytest.raises(RemoteProtocolError, match="unknown header encoding"):
        decoder.receive_data(frame + frame[:4] + b"\x07" + frame[5:])

    with pytest.raises(RemoteProtocolError, match="unknown header encoding"):
        decoder.receive_data(frame)

    assert decoder.buffered_bytes == 0


def test_binary_ext_field_that_comes_twice_is_refused() -> None:
    entry = b"\x00\x01a\x00\x00\x00\x01b"
    header = bytes(17) + (2 * len(entry)).to_bytes(4, "big") + entry * 2

    with pytest.raises(RemoteProtocolError, match="comes twice"):
        decode_command(SerializeType.ROCKETMQ, header, None)


@pytest.mark.parametrize(
    "command",
    [
        RemotingCommand(code=1, remark="\ud800"),
        RemotingCommand(code=1, ext_fields={"\ud800": ""}),
        RemotingCommand(code=1, ext_fields={"a": "x" * 65_536}),
    ],
    ids=range(3),
)
@pytest.mark.parametrize("serialize_type", SerializeType)
def test_command_that_does_not_fit_is_refused(
    command: RemotingCommand, serialize_type: SerializeType
) -> None:
    command.serialize_type = serialize_type

    with pytest.raises(LocalProtocolError):
        encode_frame(command)


SEND_FIELDS = {
    "a": "GID",
    "b": "T",
    "c": "TBW102",
    "d": "8",
    "e": "3",
    "f": "0",
    "g": "1795252251857",
    "h": "0",
    "i": "UNIQ_KEY\x017F\x02WAIT\x01true",
    "j": "0",
    "k": "false",
    "m": "true",
}


def send_frame(code: int, ext_fields: dict[str, Any]) -> bytes:
    fields = {"code": code, "extFields": ext_fields, "flag": 2, "language": "JAVA", "opaque": 7}
    fields |= {"version": 399, "serializeTypeCurrentRPC": "JSON"}
    return json.dumps(fields, separators=(",", ":")).encode()


def assert_reads_as_every_header(header: bytes) -> None:
    """Compare what a server reads of a send or pull with what `decode_command` does."""
    try:
        expected = decode_command(SerializeType.JSON, header, b"body")
    except RemoteProtocolError:
        with pytest.raises(RemoteProtocolError):
            decode_request(SerializeType.JSON, header, b"body")
        return
    actual = decode_request(SerializeType.JSON, header, b"body")

    if actual.header is None:
        assert actual == expected
        return
    is_pull = expected.code == RequestCode.PULL_MESSAGE
    kind: type[msgspec.Struct] = PullMessageRequestHeader if is_pull else SendMessageRequestHeaderV2
    header_of: msgspec.Struct = decode_header(kind, expected.ext_fields)
    assert isinstance(actual.header, kind)
    assert msgspec.structs.asdict(header_of) == msgspec.structs.asdict(actual.header)
    actual.header, actual.ext_fields = None, expected.ext_fields
    assert actual == expected


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE]
)
def test_header_of_a_send_is_read_into_its_type_at_once(code: RequestCode) -> None:
    header = send_frame(code, SEND_FIELDS)

    command = decode_request(SerializeType.JSON, header, b"body")

    assert (command.header is None) is (code is RequestCode.SEND_MESSAGE)
    assert_reads_as_every_header(header)


@given(
    st.dictionaries(
        st.sampled_from("abcdefghijklmno"),
        st.sampled_from(
            ["1", "0", "true", "TRUE", "no", "-1", "", '"m":"true"', '\\"x":', "9" * 20]
        )
        | st.sampled_from([1, True, None, 1.5])
        | TEXTS,
    ),
    st.sets(st.sampled_from("abcdefghijkm"), max_size=2),
    st.sampled_from(["", '"b":"U",', '"k":"1",', '"z":"1",']),
)
@example({"k": "1"}, set(), "")
@example({"m": "1"}, set(), "")
@example({"i": "x" * 40_000}, set(), "")
def test_header_of_a_send_says_the_same_however_it_is_read(
    changes: dict[str, Any], absent: set[str], doubled: str
) -> None:
    fields = {name: v for name, v in (SEND_FIELDS | changes).items() if name not in absent}
    header = send_frame(RequestCode.SEND_MESSAGE_V2, fields)

    assert_reads_as_every_header(header.replace(b'{"a"', b"{" + doubled.encode() + b'"a"', 1))


PULL_FIELDS = {
    "consumerGroup": "GID",
    "topic": "T",
    "queueId": "3",
    "queueOffset": "64",
    "maxMsgNums": "32",
    "sysFlag": "2",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "1795252251857",
    "expressionType": "TAG",
}


def test_header_of_a_pull_is_read_into_its_type_at_once() -> None:
    header = send_frame(RequestCode.PULL_MESSAGE, PULL_FIELDS)

    assert decode_request(SerializeType.JSON, header, None).header is not None
    assert_reads_as_every_header(header)


@given(
    st.dictionaries(
        st.sampled_from([*PULL_FIELDS, "maxMsgBytes", "bname"]),
        st.sampled_from(["1", "-1", "", "a:b", '"topic":"U"', '\\"x":', "9" * 20])
        | st.sampled_from([1, True, None, 1.5])
        | TEXTS,
    ),
    st.sets(st.sampled_from(sorted(PULL_FIELDS)), max_size=2),
    st.sampled_from(["", '"topic":"U",', '"maxMsgBytes":"1",', '"z":"1",']),
)
@example({"subscription": "x" * 40_000}, set(), "")
def test_header_of_a_pull_says_the_same_however_it_is_read(
    changes: dict[str, Any], absent: set[str], doubled: str
) -> None:
    fields = {name: v for name, v in (PULL_FIELDS | changes).items() if name not in absent}
    header = send_frame(RequestCode.PULL_MESSAGE, fields)

    start = b'"extFields":{'
    assert_reads_as_every_header(header.replace(start, start + doubled.encode(), 1))
