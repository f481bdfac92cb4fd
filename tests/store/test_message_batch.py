"""A batch is stored byte for byte as its messages one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_stores import flush
from sparrowmq.protocol.record import BatchEntry, Record, encode_batch, encode_host
from sparrowmq.store.config import StoreConfig
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.message_batch import MessageBatch, read_messages
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.record_check import CHECKSUMMED_PROPERTIES_SIZE_MAX
from sparrowmq.store.results import PutResult, PutStatus

HOSTS = tuple(map(encode_host, ("1.2.3.4:5", "[::1]:6")))
CRC = "__CRC32#\x010123456789\x02"

texts = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=9)
properties = st.one_of(
    st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "a", "é"]), texts), max_size=4).map(
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    ),
    st.just(f"TAGS\x01t\x02{CRC}"),
    st.just("a\x01b\x02"),
    st.just("X__CRC32#\x010000000000\x02"),
    st.sampled_from([32_700, 32_730, 32_740, 32_750, 32_760]).map(lambda n: "n\x01" + "v" * n),
)
entries = st.lists(
    st.builds(BatchEntry, st.integers(-(2**31), 2**31 - 1), st.binary(max_size=50), properties),
    min_size=1,
    max_size=5,
)


def make_batch(messages: list[BatchEntry], **fields: Any) -> MessageBatch:
    body = encode_batch(messages)
    values: dict[str, Any] = {
        "added": "CLUSTER\x01c",
        "sys_flag": 0,
        "born_timestamp_ms": 7,
        "store_timestamp_ms": 99,
        "born_host": HOSTS[0],
        "store_host": HOSTS[0],
        "reconsume_times": 2,
    }
    return MessageBatch("T", 3, read_messages(body), **values | fields)


def put_singly(store: MessageStore, batch: MessageBatch, messages: list[BatchEntry]) -> PutResult:
    """Store the messages as records, each an object."""
    records = [
        Record(
            topic=batch.topic,
            queue_id=batch.queue_id,
            body=each.body,
            properties=(
                f"{each.properties}\x02{batch.added}"
                if each.properties and not each.properties.endswith("\x02")
                else each.properties + batch.added
            ),
            flag=each.flag,
            sys_flag=batch.sys_flag,
            born_timestamp_ms=batch.born_timestamp_ms,
            born_host=batch.born_host,
            store_host=batch.store_host,
            reconsume_times=batch.reconsume_times,
        )
        for each in messages
    ]
    results = [store.put(record, timestamp_ms=99) for record in records]
    first, last = results[0], results[-1]
    refused = [result for result in results if result.status is not PutStatus.PUT_OK]
    return (
        refused[0]
        if refused
        else PutResult(
            PutStatus.PUT_OK,
            first.position,
            last.end_position,
            first.queue_offset,
            tuple(result.position for result in results),
        )
    )


def put_batch(store: MessageStore, batch: MessageBatch) -> PutResult:
    result = store.append_batch(batch)
    assert store.write().status is PutStatus.PUT_OK
    return result


def contents(store: MessageStore, result: PutResult) -> list[Any]:
    """Return what readers find of a put, and what its queue entries say."""
    items = flush(store)
    found = store.queues.get("T", 3, queue_offset=0, count_max=99, bytes_max=1 << 30)
    queued = [store.queues.entry("T", 3, at) for at in range(found.count)]
    codes = frozenset(code for item in items for code in item.tags_codes)
    last = items[-1].last_position
    assert found.records
    return [result, found.records, queued, codes, last, store.appended_position]


@pytest.mark.parametrize("append_crc", [True, False])
@settings(deadline=None, max_examples=60)
@given(
    messages=entries,
    born_host=st.sampled_from(HOSTS),
    store_host=st.sampled_from(HOSTS),
    sys_flag=st.sampled_from([0, 1, 2, 0x30]),
    added=st.sampled_from(
        [
            "CLUSTER\x01c",
            "TAGS\x01all\x02CLUSTER\x01c",
            f"TAGS\x01\x02{CRC}CLUSTER\x01c",
            "XTAGS\x01c",
        ]
    ),
)
def test_a_batch_is_stored_as_its_messages_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    append_crc: bool,
    messages: list[BatchEntry],
    born_host: bytes,
    store_host: bytes,
    sys_flag: int,
    added: str,
) -> None:
    batch = make_batch(
        messages, born_host=born_host, store_host=store_host, sys_flag=sys_flag, added=added
    )
    found = []
    for how in ("batch", "singly"):
        store = make_store(tmp_path_factory.mktemp(how), append_crc=append_crc)
        is_batch = how == "batch"
        result = put_batch(store, batch) if is_batch else put_singly(store, batch, messages)
        # Of a batch that is refused nothing is stored.
        found.append((result.status, *(contents(store, result) if result.positions else ())))
        store.close()

    assert found[0] == found[1]


@pytest.mark.parametrize("added", ["CLUSTER\x01c", "CLUSTER\x01c\x02"])
def test_longest_properties_with_and_without_room_for_a_checksum_are_stored_alike(
    tmp_path: Path, added: str
) -> None:
    separators = 1 if added.endswith("\x02") else 2
    longest = CHECKSUMMED_PROPERTIES_SIZE_MAX - len(added) - separators
    messages = [
        BatchEntry(0, b"%d" % size, "n\x01" + "v" * (size - 2))
        for size in range(longest - 1, longest + 4)
    ]
    batch = make_batch(messages, added=added)
    store, singly = make_store(tmp_path / "batch"), make_store(tmp_path / "singly")

    found = contents(store, put_batch(store, batch))
    assert found == contents(singly, put_singly(singly, batch, messages))
    assert 0 < found[1].count(b"__CRC32#") < len(messages)
    store.close()
    singly.close()


def make_store(root: Path, *, append_crc: bool = True) -> MessageStore:
    config = StoreConfig(
        append_crc=append_crc,
        commit_log_file_size=1 << 20,
        index_slot_count=64,
        index_entry_count=256,
    )
    store = MessageStore(FileStorage(root), config)
    store.load(timestamp_ms=0)
    return store


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"sys_flag": 1 << 40}, "a record cannot carry this"),
        ({"added": "a\x01" + "b" * 32_770}, "at most 32767"),
    ],
)
def test_a_batch_that_does_not_fit_leaves_the_store_as_it_was(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    store = make_store(tmp_path)
    good = make_batch([BatchEntry(0, b"x", "a\x01b")])
    first = put_batch(store, good)

    refused = put_batch(store, make_batch([BatchEntry(0, b"x", "")], **fields))
    second = put_batch(store, good)

    assert (refused.status, words in refused.remark) == (PutStatus.MESSAGE_ILLEGAL, True)
    assert (first.end_position, 1) == (second.position, second.queue_offset)
    store.close()


def test_a_batch_that_cannot_be_written_leaves_its_offsets_to_the_next(storage: Any) -> None:
    store = MessageStore(storage, StoreConfig(commit_log_file_size=4096))
    store.load(timestamp_ms=0)
    batch = make_batch([BatchEntry(0, b"x" * 50, "a\x01b")] * 3)
    storage.bytes_left = 100
    taken = store.append_batch(batch)
    written = store.write()
    storage.bytes_left = None

    assert (taken.status, written.status) == (PutStatus.PUT_OK, PutStatus.SERVICE_NOT_AVAILABLE)
    assert put_batch(store, batch).queue_offset == 0
