"""Many messages of one size are stored byte for byte as others are, all at once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.protocol.record import BatchEntry, encode_batch, encode_host, scan_batch
from sparrowmq.protocol.subscription import tags_code
from sparrowmq.store import even_batch
from sparrowmq.store.even_batch import EVEN_COUNT_MIN, EvenMessages, EvenRecords
from sparrowmq.store.message_batch import (
    ListedMessages,
    MessageBatch,
    PlacedBatch,
    encode_batch_records,
    place_batch,
    read_messages,
)

pytestmark = pytest.mark.usefixtures("without_speedups")

COUNT = EVEN_COUNT_MIN + 8
HOSTS = tuple(map(encode_host, ("1.2.3.4:5", "[::1]:6")))
ADDED = ["CLUSTER\x01c", "TAGS\x01all\x02CLUSTER\x01c", "CLUSTER\x01c\x02"]
# What the properties of all are like; `{}` is another text for each of one length.
SHAPES = ["", "KEYS\x01{}", "KEYS\x01{}\x02", "TAGS\x01{}\x02a\x01b", "a\x01DELAYTAGS{}"]

shapes = st.sampled_from(SHAPES)
texts = st.text("AGLX#=", min_size=4, max_size=4)


def store_batch(
    messages: EvenMessages | ListedMessages, *, position: int = 1 << 33, **fields: Any
) -> tuple[bool, PlacedBatch]:
    """Return whether a batch went the way of even ones, and what it is in the log."""
    values: dict[str, Any] = {
        "added": "CLUSTER\x01c",
        "sys_flag": 0,
        "born_timestamp_ms": 7,
        "store_timestamp_ms": 99,
        "born_host": HOSTS[0],
        "store_host": HOSTS[0],
        "reconsume_times": 2,
    }
    batch = MessageBatch("T", 3, messages, **values | fields)
    encoded = encode_batch_records(batch, topic_field=b"\x01T", append_crc=True)
    placed = place_batch(
        batch,
        encoded,
        position=position,
        queue_offset=1 << 40,
        tags_code=lambda text: tags_code(text.rpartition("TAGS\x01")[2].partition("\x02")[0]),
    )
    assert encoded.size == len(placed.data)
    return isinstance(encoded, EvenRecords), placed


def listed(body: bytes) -> ListedMessages:
    spans = scan_batch(body)
    return ListedMessages(body, spans, [body[begin:end] for _, _, begin, end in spans])


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    shape=shapes,
    count=st.integers(EVEN_COUNT_MIN, 3 * EVEN_COUNT_MIN),
    size=st.sampled_from([0, 1, 7, 300]),
    born_host=st.sampled_from(HOSTS),
    added=st.sampled_from(ADDED),
)
def test_they_are_stored_as_one_by_one(
    data: st.DataObject, shape: str, count: int, size: int, born_host: bytes, added: str
) -> None:
    entry = st.builds(
        BatchEntry,
        st.integers(-(2**31), 2**31 - 1),
        st.binary(min_size=size, max_size=size),
        st.builds(shape.format, texts),
    )
    body = encode_batch(data.draw(st.lists(entry, min_size=count, max_size=count)))
    messages = read_messages(body)

    is_even, placed = store_batch(messages, born_host=born_host, added=added)
    by_list = store_batch(listed(body), born_host=born_host, added=added)

    assert isinstance(messages, EvenMessages)
    assert is_even
    assert by_list == (False, placed)
    assert (count, listed(body).properties) == (messages.message_count, messages.properties)
    assert listed(body).properties_text == messages.properties_text


@pytest.mark.parametrize(
    ("count", "properties"),
    [
        (EVEN_COUNT_MIN - 1, "a\x01b"),
        (EVEN_COUNT_MIN, "a\x01é"),
    ],
    ids=["few", "not ASCII"],
)
def test_what_is_not_for_it_is_listed(count: int, properties: str) -> None:
    body = encode_batch([BatchEntry(0, b"x", properties)] * count)

    assert isinstance(read_messages(body), ListedMessages)


@pytest.mark.parametrize("at", [3, 19, 25], ids=["size", "body's length", "properties' length"])
def test_a_later_entry_of_another_layout_is_seen(at: int) -> None:
    entry = encode_batch([BatchEntry(0, b"body", "a\x01bcd")])
    body = bytearray(entry * COUNT)
    body[30 * len(entry) + at] ^= 1

    with pytest.raises(RemoteProtocolError, match="batch entry of"):
        read_messages(bytes(body))


@pytest.mark.parametrize("cut", [1, 17, 39])
def test_a_body_that_ends_early_is_refused(cut: int) -> None:
    body = encode_batch([BatchEntry(0, b"body", "a\x01bcd")] * COUNT)

    with pytest.raises(RemoteProtocolError):
        read_messages(body[:-cut])


@pytest.mark.parametrize(
    "properties",
    [
        ["a\x01b\x02", "a\x01bc"],
        ["a\x01b\x02__CRC32#\x010123456789\x02"],
        ["a\x01" + "b" * 32_735],
    ],
    ids=["ends differ", "brings a checksum", "no room for a checksum"],
)
def test_even_messages_with_special_properties_are_stored_one_by_one(properties: list[str]) -> None:
    entries = [BatchEntry(0, b"x", properties[n % len(properties)]) for n in range(COUNT)]
    body = encode_batch(entries)

    is_even, placed = store_batch(read_messages(body))

    assert isinstance(read_messages(body), EvenMessages)
    assert not is_even
    assert placed == store_batch(listed(body))[1]


def test_without_numpy_they_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    body = encode_batch([BatchEntry(0, b"x", "a\x01b")] * COUNT)
    by_matrix = store_batch(read_messages(body))
    monkeypatch.setattr(even_batch, "_numpy", lambda: None)

    without = store_batch(read_messages(body))

    assert (by_matrix[0], without[0]) == (True, False)
    assert by_matrix[1] == without[1]


def test_a_broker_starts_without_numpy() -> None:
    code = "import sys, sparrowmq.broker.server; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False\n"
