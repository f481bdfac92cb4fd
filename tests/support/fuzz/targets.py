"""The table of all targets, and the inputs that each begins with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fuzz import clients, extension, pipeline, servers, stores, wire
from fuzz.inputs import from_command, from_fields
from golden import Case, GoldenDirectory
from sparrowmq.model import CompressionType
from sparrowmq.protocol.codes import LanguageCode, RequestCode
from sparrowmq.protocol.command import RemotingCommand

Seeds = Callable[[GoldenDirectory], Iterable[bytes]]


@dataclass(frozen=True)
class Target:
    """A target.

    Args:
        check: raises where a decoder does other than it says.
        seeds: inputs to begin with.
        input_bytes_max: longer inputs find nothing new.
        is_in_c: whether the target runs under sanitizers.
    """

    check: Callable[[bytes], None]
    seeds: Seeds
    input_bytes_max: int = 1_024
    is_in_c: bool = False


def _hex(name: str, field: str, *prefixes: str) -> Seeds:
    return lambda golden: [bytes.fromhex(case[field]) for case in golden.cases(name, *prefixes)]


def _texts(name: str, field: str, *prefixes: str) -> Seeds:
    return lambda golden: [
        case[field].encode() for case in golden.cases(name, *prefixes) if case[field] is not None
    ]


def _fixed(*inputs: bytes) -> Seeds:
    return lambda golden: inputs


_RECORDS = _hex("message.jsonl", "encodedHex", "msg-", "multi-")
_BATCHES = _hex("message.jsonl", "encodedHex", "batch-")


def _header_seeds(golden: GoldenDirectory) -> Iterable[bytes]:
    names = [header.__name__ for header in wire.HEADERS]
    for case in golden.cases("remoting.jsonl", "frame-"):
        if case["headerClass"] in names:
            fields = from_fields(case["fields"]["extFields"] or {})
            yield bytes([names.index(case["headerClass"])]) + fields


def _body_seeds(golden: GoldenDirectory) -> Iterable[bytes]:
    names = [body.__name__ for body in wire.BODIES]
    for case in golden.cases("bodies.jsonl"):
        if case["class"] in names:
            yield bytes([names.index(case["class"])]) + case["text"].encode()


def _register_seeds(golden: GoldenDirectory) -> Iterable[bytes]:
    for case in golden.cases("bodies.jsonl", "registerbroker-"):
        yield b"\0" + bytes.fromhex(case["plainHex"])
        yield b"\1" + bytes.fromhex(case["compressedHex"])


def _command(case: Case, side: str) -> RemotingCommand | None:
    if not case.get(side):
        return None
    fields = case[side]["fields"]
    return RemotingCommand(
        code=fields["code"],
        ext_fields=fields["extFields"],
        body=None if fields["bodyHex"] is None else bytes.fromhex(fields["bodyHex"]),
        language=LanguageCode.JAVA,
    )


def _request_seeds(codes: list[int]) -> Seeds:
    def seeds(golden: GoldenDirectory) -> Iterable[bytes]:
        for case in golden.cases("wire.jsonl"):
            request = _command(case, "request")
            if request is not None and request.code in codes:
                yield bytes([codes.index(request.code)]) + from_command(request)
        if RequestCode.SEND_MESSAGE_V2 in codes:
            values = ("GID", "T", "TBW102", "4", "1", "0", "1", "0", "", "0", "false", "0", "false")
            send = RemotingCommand(
                code=RequestCode.SEND_MESSAGE_V2,
                ext_fields=dict(zip("abcdefghijklm", values, strict=True)),
                body=b"body",
            )
            # The second finds a topic that is on the disk, and is served by the short way.
            one = bytes([codes.index(send.code)]) + from_command(send)
            yield one + servers.REQUESTS_SEPARATOR + one

    return seeds


def _answer_seeds(golden: GoldenDirectory) -> Iterable[bytes]:
    codes = [asked.code for asked in clients.OPERATIONS]
    for case in golden.cases("wire.jsonl"):
        request, answer = _command(case, "request"), _command(case, "response")
        if request is None or answer is None or answer.code not in clients.ANSWER_CODES:
            continue
        for index, code in enumerate(codes):
            if request.code == code:
                head = bytes([index, clients.ANSWER_CODES.index(answer.code)])
                yield head + from_command(answer)


def _config_seeds(golden: GoldenDirectory) -> Iterable[bytes]:
    tables = ("topicconfig-", "subgroup-", "consumeroffset-")
    for index, prefix in enumerate(tables):
        for case in golden.cases("bodies.jsonl", prefix):
            yield bytes([index]) + case["reEncoded"].encode()


def _key_seeds(golden: GoldenDirectory) -> Iterable[bytes]:
    for record in _RECORDS(golden):
        yield bytes(record)
    yield extension.record_v2(b"Topic", b"a body", b"KEYS\x01a b\x02UNIQ_KEY\x01c")
    yield extension.record_v2(b"", b"", b"")


def _send_answer_seeds(_golden: GoldenDirectory) -> Iterable[bytes]:
    for number, fields in enumerate(extension.ANSWER_FIELDS):
        answers = [extension.answer_of(fields, opaque) for opaque in range(1, 4)]
        yield bytes([number]) + b"".join(answers)


def _pull_answer_seeds(_golden: GoldenDirectory) -> Iterable[bytes]:
    fields = extension.PULL_FIELDS
    yield b"".join(extension.answer_of(fields, opaque, b"records") for opaque in range(1, 4))
    yield extension.answer_of(fields, 1)


TARGETS = {
    "frame": Target(wire.check_frame, _hex("remoting.jsonl", "frameHex", "frame-", "jsonheader-")),
    "header": Target(wire.check_header, _header_seeds),
    "json": Target(wire.check_json, _texts("bodies.jsonl", "text")),
    "body": Target(wire.check_body, _body_seeds),
    "register_body": Target(wire.check_register_body, _register_seeds),
    "record": Target(wire.check_record, _RECORDS),
    "compressed_body": Target(
        wire.check_compressed_body, _fixed(*map(wire.compressed_seed, CompressionType))
    ),
    "batch": Target(wire.check_batch, _BATCHES),
    "properties": Target(wire.check_properties, _texts("properties.jsonl", "string")),
    "subscription": Target(wire.check_subscription, _texts("tags.jsonl", "subString", "sub-"), 256),
    "sql92": Target(
        wire.check_sql92,
        _fixed(
            b"a > 3 AND b IN ('x', 'y') OR c IS NOT NULL\0a\x014\x02b\x01x",
            b"NOT (a BETWEEN 1 AND 2.5e3) -- end\n\0a\x012",
            b"-a + 3L <= .5 /* x */ AND TRUE = (b NOT IN ('it''s'))\0a\x01-1\x02b\x01it's",
        ),
        512,
    ),
    "message_id": Target(wire.check_message_id, _texts("msgid.jsonl", "msgId", "offsetMsgId-"), 80),
    "columns": Target(pipeline.check_columns, _RECORDS),
    "offsets_json": Target(
        pipeline.check_offsets_json,
        _fixed(b'\0{"T":{"broker-a":{"0":-2,"1":7}}}', b'\2{"T":{"broker-a":[0,1]}}'),
    ),
    "commit_log": Target(
        stores.check_commit_log,
        _fixed(b"\0\0\0\0\0\x60\4abcd", b"\1\1\1\2\0\x90", b"\1\0\0\3abc", b"\1\1\0\4abc"),
    ),
    "consume_queue": Target(
        stores.check_consume_queue,
        _fixed(b"\0\0\0\0\5\4abcd", b"\1\1\2\0\x90", b"\1\0\3abc", b"\1\1\4abc"),
    ),
    "checkpoint": Target(stores.check_checkpoint, _fixed(b"\0\1\0\4abcd", b"\2\0\x90", b"\4abc")),
    "config_files": Target(stores.check_config_files, _config_seeds),
    "kv_config": Target(stores.check_kv_config, _fixed(b'{"configTable":{"n":{"k":"v"}}}')),
    "broker": Target(servers.check_broker, _request_seeds(servers.BROKER_CODES)),
    "name_server": Target(servers.check_name_server, _request_seeds(servers.NAME_SERVER_CODES)),
    "answer": Target(clients.check_answer, _answer_seeds),
    "c_batch": Target(
        extension.check_batch,
        lambda golden: [b"\0\0" + bytes(body) for body in _BATCHES(golden)],
        is_in_c=True,
    ),
    "c_record": Target(
        extension.check_record,
        _fixed(b"\0\4bodyTAGS\x01a\x02n\x01v", b"\1\0n\x01v\x02", b"\0\1bX__CRC32#\x01c"),
        is_in_c=True,
    ),
    "c_log": Target(
        extension.check_log,
        _fixed(b"\0\0\0body\1\1TAGS\x01a\x02KEYS\x01k\0other", b"\2\0\5\1\0\0b\1\1X__CRC32#\x01c"),
        is_in_c=True,
    ),
    "c_keys": Target(extension.check_keys, _key_seeds, is_in_c=True),
    "c_entries": Target(
        extension.check_entries,
        _fixed(b"\6\1\3\0" + bytes(range(80)), b"\1\0\0\2" + b"\xff\0" * 40),
        is_in_c=True,
    ),
    "c_runs": Target(
        extension.check_runs,
        _fixed(bytes(20), bytes(11) + b"\x5a" + bytes(15) + b"\x5a" + bytes(12), b"\xff" * 60),
        is_in_c=True,
    ),
    "c_answers": Target(extension.check_answers, _send_answer_seeds, is_in_c=True),
    "c_pull_answers": Target(extension.check_pull_answers, _pull_answer_seeds, is_in_c=True),
    "c_sends": Target(
        extension.check_sends,
        _fixed(
            extension.FIRST_SEND,
            extension.frame_of_send(0, 0, "é\x02\x01", b"", 999_999_999) + extension.FIRST_SEND,
        ),
        is_in_c=True,
    ),
    "c_pulls": Target(
        extension.check_pulls,
        _fixed(
            extension.FIRST_PULL,
            extension.frame_of_pull(0, 10**17, 999_999_999, flag=2) + extension.FIRST_SEND,
        ),
        is_in_c=True,
    ),
    "c_bodies": Target(
        extension.check_bodies, _fixed(b"\0\4bodya\x01b\x02", b"\3\0\1\1\xff\xff"), is_in_c=True
    ),
    "c_parts": Target(
        extension.check_parts, _fixed(b"\0\0\0\0\0\4body", bytes(5) + b"\1x" * 3), is_in_c=True
    ),
    "c_messages": Target(extension.check_messages, _RECORDS, is_in_c=True),
}
