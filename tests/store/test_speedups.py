"""The extension in C gives the bytes that Python's code gives, or leaves the work to it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrowmq.errors import SparrowError
from sparrowmq.protocol import speedups
from sparrowmq.protocol.record import (
    BatchEntry,
    Record,
    encode_batch,
    encode_host,
    encode_record,
)
from sparrowmq.store.config import StoreConfig
from sparrowmq.store.index_file import _add_entries
from sparrowmq.store.message_batch import (
    ListedMessages,
    MessageBatch,
    PlacedBatch,
    encode_batch_records,
    encode_plain_batch,
    place_batch,
    read_messages,
)
from sparrowmq.store.message_index import LogKeys
from sparrowmq.store.record_check import RecordChecker

HOSTS = tuple(map(encode_host, ("1.2.3.4:5", "[::1]:6")))
TOPIC_FIELD = b"\x05Topic"
CHECKER = RecordChecker(StoreConfig().delay_levels_ms)

plain_texts = st.text(alphabet="abK #=\x7f", max_size=12)
any_texts = st.text(max_size=5)
names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "XTAGS", "XKEYS", "WAIT", "n"])
pairs = st.lists(st.tuples(names, plain_texts), max_size=5)
plain_properties = pairs.map(lambda pairs: "\x02".join(f"{name}\x01{v}" for name, v in pairs))
properties = st.one_of(
    plain_properties,
    plain_properties.map(lambda text: f"{text}\x02" if text else text),
    any_texts,
    st.sampled_from(
        [
            "DELAY\x013",
            "XDELAY\x01",
            "__CRC32#\x010123456789\x02",
            "TAGS\x01\x02TAGS",
            "\x01",
            "\x02",
        ]
    ),
    st.sampled_from([32_600, 32_700, 32_730, 32_760]).map(lambda n: "n\x01" + "v" * n),
)


@pytest.fixture(scope="module", autouse=True)
def with_speedups(built_speedups: speedups.Speedups) -> Iterator[None]:
    before, speedups.functions = speedups.functions, built_speedups
    yield
    speedups.functions = before


def make_batch(body: bytes, **fields: Any) -> MessageBatch:
    values: dict[str, Any] = {"added": "CLUSTER\x01c", "sys_flag": 0, "reconsume_times": 2}
    values |= {"born_host": HOSTS[0], "store_host": HOSTS[0]}
    values |= {"born_timestamp_ms": 1_700_000_000_000, "store_timestamp_ms": 1_700_000_000_001}
    return MessageBatch("Topic", 3, ListedMessages(body, (), []), **values | fields)


def body_of(batch: MessageBatch) -> bytes:
    assert isinstance(batch.messages, ListedMessages)
    return batch.messages.body


def lay_out_in_c(batch: MessageBatch) -> PlacedBatch | None:
    return encode_plain_batch(
        batch,
        body_of(batch),
        topic_field=TOPIC_FIELD,
        position=7 << 33,
        queue_offset=5 << 33,
        count_max=9,
    )


def lay_out_in_python(batch: MessageBatch) -> PlacedBatch:
    batch = batch._replace(messages=read_messages(body_of(batch)))
    return place_batch(
        batch,
        encode_batch_records(batch, topic_field=TOPIC_FIELD, append_crc=True),
        position=7 << 33,
        queue_offset=5 << 33,
        tags_code=lambda text: CHECKER.tags_code("Topic", text, 99),
    )


def assert_same(batch: MessageBatch) -> bool:
    """Compare both ways; returns whether the extension took the batch."""
    found = lay_out_in_c(batch)
    if found is None:
        return False
    expected = lay_out_in_python(batch)

    assert found._replace(tags_codes=frozenset(found.tags_codes)) == expected
    return True


@settings(deadline=None)
@given(
    st.lists(
        st.builds(BatchEntry, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), properties),
        max_size=10,
    ),
    st.sampled_from(HOSTS),
    st.sampled_from(HOSTS),
    st.sampled_from([0, 1, 0x30]),
    st.sampled_from(["CLUSTER\x01c", "é\x01c\x02", "TAGS\x01c", "X__CRC32#\x01c"]),
)
def test_batch_is_laid_out_alike(
    messages: list[BatchEntry], born_host: bytes, store_host: bytes, sys_flag: int, added: str
) -> None:
    batch = make_batch(
        encode_batch(messages),
        born_host=born_host,
        store_host=store_host,
        sys_flag=sys_flag,
        added=added,
    )

    is_taken = assert_same(batch)

    if not 0 < len(messages) < 10:
        assert not is_taken


@given(
    st.lists(
        st.builds(BatchEntry, st.integers(0, 9), st.binary(max_size=50), plain_properties),
        min_size=1,
        max_size=9,
    )
)
def test_extension_takes_every_plain_batch(messages: list[BatchEntry]) -> None:
    assert assert_same(make_batch(encode_batch(messages)))


@settings(deadline=None)
@given(
    st.lists(st.builds(BatchEntry, st.just(1), st.binary(max_size=9), properties), max_size=3),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 40),
)
def test_damaged_batch_is_laid_out_alike_or_left_alone(
    messages: list[BatchEntry], damage: list[tuple[int, int]], cut: int
) -> None:
    body = bytearray(encode_batch(messages))
    for at, value in damage:
        if body:
            body[at % len(body)] = value
    batch = make_batch(bytes(body[: len(body) - cut]))
    try:
        lay_out_in_python(batch)
    except (SparrowError, ValueError):
        assert lay_out_in_c(batch) is None
    else:
        assert_same(batch)


records = st.builds(
    Record,
    topic=st.sampled_from(["T", "a-topic", "é"]),
    queue_id=st.just(0),
    body=st.binary(max_size=30),
    properties=properties,
    sys_flag=st.sampled_from([0, 4, 8, 12]),
    store_timestamp_ms=st.integers(0, 2**62),
    born_host=st.sampled_from(HOSTS),
    store_host=st.sampled_from(HOSTS),
)


def assert_keys_are_the_same(chunk: bytes, skip_position: int) -> bool:
    found = speedups.functions.collect_keys(chunk, 1 << 40, skip_position)  # type: ignore[union-attr]
    if found is None:
        return False
    keys = LogKeys({})
    at = keys.collect(chunk, 1 << 40, skip_position)

    assert found == (
        at,
        array("i", keys.hashes()).tobytes(),
        array("q", keys.positions).tobytes(),
        array("q", keys.timestamps_ms).tobytes(),
    )
    return True


@settings(deadline=None)
@given(st.lists(records, max_size=5), st.integers(0, 200), st.booleans())
def test_keys_are_found_alike(found: list[Record], cut: int, skips: bool) -> None:
    chunk = b"".join(map(encode_record, found))

    taken = assert_keys_are_the_same(chunk[: len(chunk) - cut], (1 << 40) if skips else -1)

    if all(record.topic.isascii() and record.properties.isascii() for record in found):
        assert taken


@settings(deadline=None)
@given(
    st.lists(records, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_keys_of_damaged_records_are_found_alike_or_left_alone(
    found: list[Record], damage: list[tuple[int, int]]
) -> None:
    chunk = bytearray(b"".join(map(encode_record, found)))
    for at, value in damage:
        chunk[at % len(chunk)] = value

    assert_keys_are_the_same(bytes(chunk), -1)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(-5, 2**62)),
        min_size=1,
        max_size=20,
    ),
    st.integers(1, 7),
    st.integers(1, 3),
    st.sampled_from([-1, 0, 1, 2**40]),
    st.sampled_from([1, 2, 1_000_000]),
)
def test_entries_are_added_alike(
    entries: list[tuple[int, int, int]],
    slot_count: int,
    page_slots: int,
    begin_ms: int,
    number: int,
) -> None:
    hashes = array("i", [entry[0] for entry in entries])
    positions, times = (array("q", [entry[column] for entry in entries]) for column in (1, 2))
    slots = [array("i", range(slot_count)) for _ in range(2)]
    pages = [bytearray(-(-slot_count // page_slots)) for _ in range(2)]
    functions = speedups.functions
    assert functions is not None

    expected, actual = (
        add(slots[at], pages[at], page_slots, hashes, positions, times, begin_ms, number)
        for at, add in enumerate((_add_entries, functions.add_entries))
    )

    assert actual == expected
    assert slots[0] == slots[1]
    assert pages[0] == pages[1]
    assert {slot // page_slots for slot in [each % slot_count for each in hashes]} == {
        at for at, is_dirty in enumerate(pages[0]) if is_dirty
    }


def test_wrong_arguments_are_errors() -> None:
    functions: Any = speedups.functions
    one, slots, page = array("q", [1]), array("i", [0]), bytearray(1)
    key = array("i", [1])
    calls: tuple[Callable[[], object], ...] = (
        lambda: functions.add_entries(slots, page, 1, key, array("q", [1, 2]), one, 0, 1),
        lambda: functions.add_entries(slots, page, 1, key, one, array("q"), 0, 1),
        lambda: functions.add_entries(array("i"), page, 1, key, one, one, 0, 1),
        lambda: functions.add_entries(slots, bytearray(), 1, key, one, one, 0, 1),
        lambda: functions.add_entries(slots, page, 0, key, one, one, 0, 1),
        lambda: functions.add_entries(array("i", [0] * 3), page, 2, key, one, one, 0, 1),
        lambda: functions.add_entries(b"1234", page, 1, key, one, one, 0, 1),
        lambda: functions.add_entries(slots, page, 1, [1], [1], [1], 0, 1),
        lambda: functions.encode_batch(b"", b"", b"", b"", 0, 0, 0),
        lambda: functions.collect_keys("", 0, 0),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
            call()


def test_other_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = type("Module", (), {"INTERFACE": 1})()
    monkeypatch.setattr(speedups, "import_module", lambda name: module)

    assert speedups._find() is None
