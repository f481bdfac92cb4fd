from __future__ import annotations

from typing import Any

import pytest

from golden import each_case
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.protocol.codes import LanguageCode, SerializeType
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FrameDecoder, encode_frame


def as_golden(command: RemotingCommand) -> dict[str, Any]:
    return {
        "code": command.code,
        "language": None if command.language is None else command.language.name,
        "version": command.version,
        "opaque": command.opaque,
        "flag": command.flag,
        "remark": command.remark,
        "extFields": command.ext_fields,
        "bodyHex": None if command.body is None else command.body.hex(),
    }


def expected_fields(case: dict[str, Any]) -> dict[str, Any]:
    """What Java decodes, but for what we leave out on purpose: ext fields that are null."""
    fields = dict(case["decoded"])
    if fields["extFields"] is not None:
        pairs = fields["extFields"].items()
        fields["extFields"] = {name: value for name, value in pairs if value is not None}
    return fields


@each_case("remoting.jsonl", "frame-")
def test_frame_of_java_decodes_to_what_java_decodes(case: dict[str, Any]) -> None:
    commands = FrameDecoder().receive_data(bytes.fromhex(case["frameHex"]))

    assert [expected_fields(case)] == [as_golden(command) for command in commands]
    assert SerializeType[case["serializeType"]] == commands[0].serialize_type


@each_case("remoting.jsonl", "frame-")
def test_frame_we_write_decodes_to_what_java_decodes(case: dict[str, Any]) -> None:
    fields = case["fields"]
    body = bytes.fromhex(fields["bodyHex"] or "")
    command = RemotingCommand(
        code=fields["code"],
        ext_fields=fields["extFields"],
        body=body or None,
        remark=fields["remark"],
        opaque=fields["opaque"],
        flag=fields["flag"],
        language=LanguageCode[fields["language"]],
        version=fields["version"],
        serialize_type=SerializeType[case["serializeType"]],
    )

    frame = encode_frame(command)

    expected = expected_fields(case)
    (decoded,) = FrameDecoder().receive_data(frame)
    if expected["extFields"] is None and not decoded.ext_fields:
        expected["extFields"] = decoded.ext_fields
    assert as_golden(decoded) == expected


@each_case("remoting.jsonl", "jsonheader-", "binheader-")
def test_foreign_header_decodes_or_fails_as_in_java(case: dict[str, Any]) -> None:
    decoder = FrameDecoder()
    frame = bytes.fromhex(case["frameHex"])
    if "error" in case:
        with pytest.raises(RemoteProtocolError):
            decoder.receive_data(frame)
        return

    (command,) = decoder.receive_data(frame)

    expected, actual = expected_fields(case), as_golden(command)
    if "opaque" not in case.get("headerText", "opaque"):
        expected["opaque"] = actual["opaque"]
    assert actual == expected
