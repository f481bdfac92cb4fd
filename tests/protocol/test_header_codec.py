from __future__ import annotations

from typing import Any

import msgspec
import pytest

from golden import each_case
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.protocol import headers
from sparrowmq.protocol.headers import decode_header, encode_header


def to_wire(header: msgspec.Struct) -> dict[str, Any]:
    return {
        field.encode_name: getattr(header, field.name) for field in msgspec.structs.fields(header)
    }


@each_case("remoting.jsonl", "headerdecode-")
def test_header_decodes_as_in_java_or_names_the_missing_field(case: dict[str, Any]) -> None:
    header_type = getattr(headers, case["headerClass"])
    # The bean's property is named `force`, its field on the wire `isForce`.
    expected = {"isForce" if name == "force" else name: v for name, v in case["header"].items()}
    required = {
        field.encode_name for field in msgspec.structs.fields(header_type) if field.required
    }
    missing = sorted(name for name in required if expected[name] is None)
    if missing:
        with pytest.raises(RemoteProtocolError) as raised:
            decode_header(header_type, case["extFields"])
        given = {name: case["extFields"].get(name) for name in missing}
        assert str(raised.value) in [
            f"the custom field <{name}> is "
            + ("null" if text is None else f"{text!r}, not a number of its size")
            for name, text in given.items()
        ]
        return

    header = decode_header(header_type, case["extFields"])

    actual = to_wire(header)
    assert {name: actual[name] for name in expected} == expected


@each_case("remoting.jsonl", "frame-")
def test_header_of_a_frame_survives_decoding_and_encoding(case: dict[str, Any]) -> None:
    if case["headerClass"] is None:
        return
    header_type = getattr(headers, case["headerClass"])
    ext_fields = case["fields"]["extFields"]

    header = decode_header(header_type, ext_fields)

    assert ext_fields == {name: encode_header(header)[name] for name in ext_fields}
    assert header == decode_header(header_type, encode_header(header))


SEND = {"a": "g", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16", 16), ("+16", 16), ("-0016", -16), ("2147483647", 2**31 - 1)],
)
def test_number_is_read(text: str, expected: int) -> None:
    header = decode_header(headers.SendMessageRequestHeaderV2, {**SEND, "j": text})

    assert header.reconsume_times == expected


@pytest.mark.parametrize(
    "text", ["2147483648", " 1", "1_0", "٣", "", "-", "0x1", "null", "1.5", "9" * 5000]
)
def test_what_is_no_number_counts_as_absent(text: str) -> None:
    header = decode_header(headers.SendMessageRequestHeaderV2, {**SEND, "j": text})

    assert header.reconsume_times is None


@pytest.mark.parametrize(
    ("text", "expected"), [("true", True), ("TRUE", True), ("1", False), ("yes", False)]
)
def test_only_the_word_true_is_true(text: str, expected: bool) -> None:
    header = decode_header(headers.SendMessageRequestHeaderV2, {**SEND, "m": text})

    assert header.batch == expected


@pytest.mark.parametrize("name", sorted(SEND))
def test_missing_required_field_is_named(name: str) -> None:
    fields = {key: value for key, value in SEND.items() if key != name}

    with pytest.raises(RemoteProtocolError, match=f"^the custom field <{name}> is null$"):
        decode_header(headers.SendMessageRequestHeaderV2, fields)


def test_no_ext_fields_at_all_is_a_missing_field() -> None:
    with pytest.raises(RemoteProtocolError, match="the custom field <topic> is null"):
        decode_header(headers.GetRouteInfoRequestHeader, None)


def test_short_and_long_send_header_have_one_shape() -> None:
    short = decode_header(headers.SendMessageRequestHeaderV2, SEND)

    assert isinstance(short, headers.SendMessageRequestHeader)
    assert "b" in encode_header(short)
    assert short.topic == "t"


def test_unknown_offset_is_none_here_and_minus_one_on_the_wire() -> None:
    header = decode_header(headers.QueryConsumerOffsetResponseHeader, {"offset": "-1"})

    assert header.offset is None
    assert encode_header(header) == {"offset": "-1"}
