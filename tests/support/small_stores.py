"""Small stores on simulated disks: opened, synced and read."""

from __future__ import annotations

from typing import Any

from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.store import MessageStore, StoreConfig
from steps import run_steps

SMALL = StoreConfig(
    commit_log_file_size=4096,
    index_slot_count=64,
    index_entry_count=256,
    consume_queue_file_size=200,
)


def open_store(storage: Any, config: StoreConfig = SMALL) -> MessageStore:
    store = MessageStore(storage, config)
    store.load(timestamp_ms=1)
    return store


def flush(store: MessageStore) -> list[Any]:
    """Sync what waits for it; return what readers can see from now on."""
    work = store.flush_work()
    assert work is not None
    work.run()
    store.flush_done(work, None)
    return store.dispatch()


def split_records(data: bytes) -> list[Record]:
    records: list[Record] = []
    at = 0
    while at < len(data):
        records.append(decode_record(data, at))
        at += records[-1].size
    return records


def all_records(store: MessageStore) -> list[Record]:
    """Return what readers of all queues get, in the order of the log."""
    found: list[Record] = []
    for queue in store.queues:
        first = store.queues.min_offset(*queue)
        got = store.queues.get(*queue, queue_offset=first, count_max=999, bytes_max=1 << 24)
        found += split_records(got.records)
    return sorted(found, key=lambda record: record.position)


def find_records(store: MessageStore, topic: str, key: str, **limits: int) -> list[Record]:
    """Return the records that the index knows by a key."""
    given = {"count_max": 1000, "bytes_max": 1 << 24, "begin_timestamp_ms": 0}
    found, _ = run_steps(store.query(topic, key, **given | {"end_timestamp_ms": 1 << 62} | limits))
    assert found.unindexed_bytes == 0
    return split_records(found.records)
