"""Targets: the functions in C, beside their twins in Python.

In a process that has the address sanitizer's runtime the extension is built with this sanitizer and
with the one of undefined behaviour, which both end the process at a fault.
"""

from __future__ import annotations

import contextlib
import ctypes
import struct
from array import array
from collections.abc import Callable, Generator, Mapping
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from extension import build_speedups
from fuzz.inputs import choose
from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.operations.pull import make_pull_header
from sparrowmq.client.outgoing import make_parts
from sparrowmq.errors import LocalProtocolError, RemoteProtocolError, UsageError
from sparrowmq.model import Message, MessageQueue
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.protocol import speedups
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import PreparedRequest, RemotingCommand
from sparrowmq.protocol.framing import RefusedHeader, encode_frame
from sparrowmq.protocol.headers import SendMessageRequestHeader, encode_header
from sparrowmq.protocol.message_id import UniqIdGenerator
from sparrowmq.protocol.pull_request import PullRequest
from sparrowmq.protocol.record import (
    MAGIC_V2,
    Record,
    decode_messages,
    encode_batch,
    encode_host,
    encode_record,
)
from sparrowmq.protocol.request_decoder import RequestDecoder
from sparrowmq.protocol.send_request import SendRequest, SendTemplate, make_fields
from sparrowmq.protocol.session import RemotingSession
from sparrowmq.protocol.speedups import Speedups
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.store import MessageStore, StoreConfig
from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.index_file import _add_entries
from sparrowmq.store.message_batch import (
    BatchMessages,
    MessageBatch,
    PlacedBatch,
    encode_batch_records,
    encode_plain_batch,
    place_batch,
    read_messages,
)
from sparrowmq.store.message_index import LogKeys
from sparrowmq.store.queue_reader import find_run
from sparrowmq.store.record_check import CheckedRecord, RecordChecker
from sparrowmq.store.stored_record import encode_plain

HOSTS = tuple(map(encode_host, ("1.2.3.4:5", "[::1]:6")))
_COUNT_MAX = 9
_PRODUCER = ProducerConfig(group="G", client_id="c", body_bytes_max=1_000)
_TOPIC_FIELD = b"\x05Topic"
POSITION = 7 << 33
_CHECKER = RecordChecker(DELAY_LEVELS_MS)
# The head of CPython's bytes, which ends where their content begins.
_BYTES_HEAD_SIZE = bytes.__basicsize__ - 1
_PROCESS = ctypes.CDLL(None)


def is_sanitized() -> bool:
    """Return whether the address sanitizer's runtime is in this process."""
    return hasattr(_PROCESS, "__asan_poison_memory_region")


@cache
def _built() -> Speedups:
    with TemporaryDirectory(prefix="speedups-") as directory:
        return build_speedups(Path(directory), sanitized=is_sanitized())


@contextlib.contextmanager
def _extension(use: Callable[[], Speedups] | None = _built) -> Generator[Speedups]:
    """Let the package use the extension as the tree has it, or none."""
    before = speedups.functions
    speedups.functions = None if use is None else use()
    try:
        yield _built()
    finally:
        speedups.functions = before


def _fenced(data: bytes) -> bytes:
    """Return a copy; to read the byte behind it, where CPython keeps a zero, is a fault."""
    copy = bytes(bytearray(data))
    # CPython has one object for all bytes of a length of 0 or 1 that are equal.
    if len(copy) > 1 and is_sanitized():
        behind = id(copy) + _BYTES_HEAD_SIZE + len(copy)
        _PROCESS.__asan_poison_memory_region(ctypes.c_void_p(behind), ctypes.c_size_t(1))
    return copy


# --- a batch ------------------------------------------------------------------------------------


def make_batch(body: bytes, **fields: Any) -> MessageBatch:
    """Return the batch of a request's body."""
    values: dict[str, Any] = {"added": "CLUSTER\x01c", "sys_flag": 0, "reconsume_times": 2}
    values |= {"born_host": HOSTS[0], "store_host": HOSTS[0]}
    values |= {"born_timestamp_ms": 1_700_000_000_000, "store_timestamp_ms": 1_700_000_000_001}
    return MessageBatch("Topic", 3, BatchMessages(body, (), []), **values | fields)


def _lay_out_in_python(batch: MessageBatch, body: bytes) -> PlacedBatch:
    batch = batch._replace(messages=read_messages(body))
    return place_batch(
        batch,
        encode_batch_records(batch, topic_field=_TOPIC_FIELD, append_crc=True),
        position=POSITION,
        queue_offset=5 << 33,
        tags_code=lambda text: _CHECKER.tags_code("Topic", text, 99),
    )


def compare_batch(batch: MessageBatch) -> bool:
    """Lay a batch out both ways; return whether the extension took it."""
    body = batch.messages.body
    with _extension():
        found = encode_plain_batch(
            batch,
            _fenced(body),
            topic_field=_TOPIC_FIELD,
            position=POSITION,
            queue_offset=5 << 33,
            count_max=_COUNT_MAX,
        )
    if found is None:
        return False
    found = found._replace(tags_codes=frozenset(found.tags_codes))
    assert found == _lay_out_in_python(batch, body)
    return True


def check_batch(data: bytes) -> None:
    """The extension lays out a batch as Python does, or leaves it alone."""
    added, rest = choose(data, ("CLUSTER\x01c", "é\x01c\x02", "X__CRC32#\x01c"))
    host, body = choose(rest, HOSTS)
    compare_batch(make_batch(body, added=added, store_host=host))


# --- the record of a message ---------------------------------------------------------------------


def make_header(**fields: Any) -> SendMessageRequestHeader:
    """Return the header of a send."""
    values: dict[str, Any] = {"default_topic_queue_nums": 4, "queue_id": 3, "sys_flag": 0x31}
    values |= {"born_timestamp_ms": 1_700_000_000_000, "flag": -2, "reconsume_times": 5}
    return SendMessageRequestHeader(
        producer_group="g", topic="Topic", default_topic="d", **values | fields
    )


def compare_record(
    header: SendMessageRequestHeader,
    body: bytes,
    properties: str,
    *,
    store_host: bytes = HOSTS[0],
    position: int = POSITION,
) -> bool:
    """Lay the record of a message out both ways; return whether the extension took it."""
    lay_out = partial(
        encode_plain,
        header,
        topic_field=_TOPIC_FIELD,
        born_host=HOSTS[0],
        store_host=store_host,
        timestamp_ms=1_700_000_000_001,
        position=position,
        queue_offset=5 << 33,
    )
    with _extension():
        found = lay_out(body=_fenced(body), properties=properties)
    with _extension(None):
        expected = lay_out(body=body, properties=properties)
    if found is None or found[1] is None:
        assert found == expected
        return False
    assert expected is not None
    assert found == (expected[0], _CHECKER.tags_code("Topic", properties, 99))
    return True


def check_record(data: bytes) -> None:
    """The extension lays out the record of a message as Python does, or leaves it alone."""
    host, rest = choose(data, HOSTS)
    size, rest = choose(rest, range(256))
    properties = rest[size:].decode(errors="replace") or "n\x01v"
    compare_record(make_header(), rest[:size], properties, store_host=host)


# --- the records of the log ----------------------------------------------------------------------


def log_of(records: list[Record], *, append_crc: bool) -> bytes:
    """Return the log of a store that has taken these records, without those it refuses."""
    storage = SimulatedStorage(Random(0))
    store = MessageStore(
        storage, StoreConfig(append_crc=append_crc, commit_log_file_size=256 << 10)
    )
    store.load(timestamp_ms=0)
    for record in records:
        store.put(record, timestamp_ms=1_700_000_000_000)
    return storage.open("commitlog/" + "0" * 20).read(0, store.appended_position)


def compare_checks(chunk: bytes, *, checksummed_position: int | None) -> int:
    """Check the records of a log both ways; return how many the extension took."""
    taken: list[CheckedRecord] = []
    checked: list[list[CheckedRecord]] = []
    for use in (_built, None):
        checker = RecordChecker(DELAY_LEVELS_MS)
        checker.checksummed_position = checksummed_position
        with _extension(use) as functions:
            checked.append(list(checker.check_all(_fenced(chunk), 0)))
            if use is not None:
                functions.check_records(chunk, 0, 0, checker._usual_topics, CheckedRecord, taken)
    assert checked[0] == checked[1]
    return len(taken)


def check_log(data: bytes) -> None:
    """The extension finds the valid records that Python finds."""
    append_crc, rest = choose(data, (True, True, False))
    damage, _, texts = rest.partition(b"\0\0")
    records = [
        Record(
            topic="Topic",
            queue_id=number,
            body=body,
            properties=properties.decode(errors="replace"),
            sys_flag=4 * (number % 4),
            born_host=HOSTS[0],
            store_host=HOSTS[number // 4 % 2],
        )
        for number, text in enumerate(texts.split(b"\0"))
        for body, _, properties in [text.partition(b"\1\1")]
    ]
    chunk = bytearray(log_of(records, append_crc=append_crc))
    for at in range(0, len(damage) - 2, 3):
        chunk[int.from_bytes(damage[at : at + 2], "big") % len(chunk)] = damage[at + 2]
    compare_checks(bytes(chunk), checksummed_position=0 if append_crc else None)


# --- the index ----------------------------------------------------------------------------------


def compare_keys(chunk: bytes) -> bool:
    """Find the keys of records both ways; return whether the extension took the records."""
    with _extension() as functions:
        found = functions.collect_keys(_fenced(chunk), POSITION)
    if found is None:
        return False
    keys = LogKeys({})
    at = keys.collect(chunk, POSITION)
    assert found == (
        at,
        array("i", keys.hashes()).tobytes(),
        array("q", keys.positions).tobytes(),
        array("q", keys.timestamps_ms).tobytes(),
    )
    return True


def record_v2(topic: bytes, body: bytes, properties: bytes) -> bytes:
    """Return a record in the form of RocketMQ 5, whose topic's length has two bytes."""
    v1 = encode_record(Record(topic="", queue_id=0, body=body))
    end = b"".join(len(text).to_bytes(2, "big") + text for text in (topic, properties))
    # Without the topic's length of one byte and the properties' of two.
    v2 = bytearray(v1[:-3] + end)
    v2[:8] = struct.pack(">II", len(v2), MAGIC_V2)
    return bytes(v2)


def check_keys(data: bytes) -> None:
    """The extension finds the keys that Python finds, or leaves the records alone."""
    compare_keys(data)


def compare_entries(
    entries: list[tuple[int, int, int]],
    *,
    slot_count: int,
    page_slots: int,
    begin_ms: int,
    number: int,
) -> None:
    """Add entries (hash, position, store time) to slots both ways."""
    hashes = array("i", [entry[0] for entry in entries])
    positions, times = (array("q", [entry[column] for entry in entries]) for column in (1, 2))
    slots = [array("i", range(slot_count)) for _ in range(2)]
    pages = [bytearray(-(-slot_count // page_slots)) for _ in range(2)]
    expected, actual = (
        add(slots[at], pages[at], page_slots, hashes, positions, times, begin_ms, number)
        for at, add in enumerate((_add_entries, _built().add_entries))
    )
    assert actual == expected
    assert slots[1] == slots[0]
    assert pages[1] == pages[0]
    dirty = {at for at, is_dirty in enumerate(pages[0]) if is_dirty}
    assert dirty == {each % slot_count // page_slots for each in hashes}


_ENTRY_BYTES = 8


def check_entries(data: bytes) -> None:
    """The extension adds entries as Python does."""
    slot_count, rest = choose(data, range(1, 8))
    page_slots, rest = choose(rest, (1, 2, 3))
    begin_ms, rest = choose(rest, (-1, 0, 1, 2**40))
    number, rest = choose(rest, (1, 2, 1_000_000))
    numbers = [
        int.from_bytes(rest[at : at + _ENTRY_BYTES], "big", signed=True)
        for at in range(0, len(rest), _ENTRY_BYTES)
    ] or [0]
    compare_entries(
        [(each & 0x7FFFFFFF, at << 40, each) for at, each in enumerate(numbers)],
        slot_count=slot_count,
        page_slots=page_slots,
        begin_ms=begin_ms,
        number=number,
    )


# --- the entries of a queue ----------------------------------------------------------------------


def compare_runs(entries: bytes) -> bool:
    """Look for one run of records both ways; return whether there is one."""
    found = _built().find_run(_fenced(entries))
    assert found == find_run(entries)
    return found is not None


def check_runs(data: bytes) -> None:
    """The extension finds the run that Python finds."""
    compare_runs(data[: len(data) // ENTRY_SIZE * ENTRY_SIZE] or bytes(ENTRY_SIZE))


# --- the messages of a pull's answer ------------------------------------------------------------


def check_messages(data: bytes) -> None:
    """The extension reads the messages that Python reads."""
    expected = decode_messages(memoryview(data), broker_name="b")
    with _extension():
        actual = decode_messages(_fenced(data), broker_name="b")
    assert actual == expected


# --- the answers to sends and pulls -------------------------------------------------------------

ANSWER_FIELDS = (
    {"queueId": "0", "TRACE_ON": "true", "MSG_REGION": "r", "msgId": "A" * 32, "queueOffset": "1"},
    {"queueId": "0", "queueOffset": "1", "msgId": "B" * 56, "transactionId": "C" * 32},
)
PULL_FIELDS = {
    "suggestWhichBrokerId": "0",
    "nextBeginOffset": "32",
    "minOffset": "0",
    "maxOffset": "99",
    "topicSysFlag": "0",
}
_REQUESTS = 8
_TEMPLATE = SendTemplate(
    RequestCode.SEND_MESSAGE_V2,
    make_fields("g", "T", template_topic="d", template_queues_max=4, code=310),
)


_PULL = make_pull_header("g", MessageQueue("T", "b", 0), offset=0, count_max=32)


def answer_of(fields: Mapping[str, str], opaque: int, body: bytes | None = None) -> bytes:
    """Return the frame of an answer to a send or a pull."""
    command = RemotingCommand(code=0, ext_fields=fields, opaque=opaque, flag=1, body=body)
    return encode_frame(command)


def compare_answers(fields: Mapping[str, str], data: bytes) -> list[object]:
    """Read bytes behind a first answer to a send both ways; return the answers."""
    request = SendRequest(_TEMPLATE, (0, 0, 0, 0), "", b"x")
    return _compare_answers(request, answer_of(fields, 0), data)


def compare_pull_answers(data: bytes) -> list[object]:
    """Read bytes behind a first answer to a pull both ways; return the answers."""
    return _compare_answers(PullRequest(_PULL), answer_of(PULL_FIELDS, 0, b"records"), data)


def _compare_answers(request: PreparedRequest, first: bytes, data: bytes) -> list[object]:
    found: list[tuple[object, ...]] = []
    for use in (None, _built):
        with _extension(use):
            session = RemotingSession()
            for token in range(_REQUESTS):
                session.start_request(request, token)
            session.start_request(RemotingCommand(code=1), "another")
            session.receive_data(first)
            try:
                events: object = session.receive_data(_fenced(data))
            except RemoteProtocolError as error:
                events = str(error)
            found.append((events, session.outstanding, session.late_responses))
    assert found[1] == found[0]
    events = found[0][0]
    return events if isinstance(events, list) else []


def check_answers(data: bytes) -> None:
    """The extension takes the answers to sends that Python takes."""
    fields, rest = choose(data, ANSWER_FIELDS)
    compare_answers(fields, rest)


def check_pull_answers(data: bytes) -> None:
    """The extension takes the answers to pulls that Python takes."""
    compare_pull_answers(data)


# --- the requests of sends and pulls ------------------------------------------------------------


def frame_of_send(
    queue_id: int, timestamp_ms: int, properties: str, body: bytes, opaque: int, *, topic: str = "T"
) -> bytes:
    """Return the frame of a send."""
    fields = make_fields("g", topic, template_topic="d", template_queues_max=4, code=310)
    template = SendTemplate(RequestCode.SEND_MESSAGE_V2, fields)
    return SendRequest(template, (queue_id, 0, timestamp_ms, 0), properties, body).encode(opaque)


FIRST_SEND = frame_of_send(1, 1_700_000_000_000, "UNIQ_KEY\x01A\x02WAIT\x01true", b"body", 1)


def frame_of_pull(
    queue_id: int, offset: int, opaque: int, *, group: str = "g", topic: str = "T", flag: int = 3
) -> bytes:
    """Return the frame of a pull, as Java's consumers write it."""
    header = make_pull_header(
        group, MessageQueue(topic, "b", queue_id), offset=offset, count_max=32, expression=None
    )
    fields = encode_header(replace(header, sys_flag=flag, commit_offset=offset, sub_version=offset))
    return encode_frame(
        RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=fields, opaque=opaque)
    )


FIRST_PULL = frame_of_pull(1, 0, 1)


def compare_requests(data: bytes, *, first: bytes = FIRST_SEND) -> list[object]:
    """Read bytes behind a first request both ways; return the requests, and texts of errors."""
    found: list[tuple[list[object], int]] = []
    for use in (None, _built):
        with _extension(use):
            decoder, read = RequestDecoder(), list[object]()
            decoder.receive_data(first)
            decoder.feed(_fenced(data))
            while True:
                try:
                    command = decoder.next_command()
                except RefusedHeader as refused:
                    read.append(str(refused))
                    continue
                except RemoteProtocolError as error:
                    read.append(str(error))
                    break
                if command is None:
                    break
                read.append(command)
            found.append((read, decoder.buffered_bytes))
    assert found[1] == found[0]
    return found[0][0]


def check_sends(data: bytes) -> None:
    """The extension reads the sends that Python reads."""
    compare_requests(data)


def check_pulls(data: bytes) -> None:
    """The extension reads the pulls that Python reads."""
    compare_requests(data, first=FIRST_SEND + FIRST_PULL)


# --- the body of a batch's request --------------------------------------------------------------


def compare_bodies(entries: list[tuple[int, bytes, str]]) -> None:
    """Write the body of a batch's request both ways."""
    found: list[bytes | str] = []
    for use in (None, _built):
        with _extension(use):
            try:
                found.append(encode_batch(entries))
            except LocalProtocolError as error:
                found.append(str(error))
    assert found[1] == found[0]


def compare_parts(messages: list[Message], counter: int) -> None:
    """Make the requests of a batch both ways."""
    found: list[object] = []
    for use in (None, _built):
        ids = UniqIdGenerator(bytes(4), 1, process_number=2, counter=counter)
        with _extension(use):
            try:
                parts = make_parts(messages, ids, 3, config=_PRODUCER, has_queue=False)
                found.append((*parts, ids.next_id(3)))
            except (LocalProtocolError, UsageError) as error:
                found.append(str(error))
    assert found[1] == found[0]


def check_parts(data: bytes) -> None:
    """The extension makes the requests of messages that are alike as Python does."""
    counter, data = choose(data, (0, 7, 0xFFFE))
    tags, data = choose(data, (None, "", "a", "\u00e9", "a||b"))
    messages: list[Message] = []
    while data:
        flag, data = choose(data, (0, 0, 0, 7, -1, 2**31))
        topic, data = choose(data, "TTTTTTTTU")
        keys, data = choose(data, (*5 * [()], ("k",)))
        size, data = choose(data, range(256))
        messages.append(Message(topic, data[:size], tags, keys, flag=flag))
        data = data[size:]
    compare_parts(messages, counter)


def check_bodies(data: bytes) -> None:
    """The extension writes a batch as Python does."""
    entries: list[tuple[int, bytes, str]] = []
    while data:
        flag, data = choose(data, (0, 7, -1, 2**31))
        size, data = choose(data, range(256))
        entries.append((flag, _fenced(data[:size]), data[size : 2 * size].decode(errors="replace")))
        data = data[2 * size :]
    compare_bodies(entries)
