"""Power cuts at random moments: what was acknowledged stays, what was lost stays lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from small_stores import find_records
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.simulation.faulty_disk import PowerCut
from sparrowmq.store import FlushMode, FlushWork, MessageStore, PutStatus, StoreConfig

SEEDS = 300
CUTS_PER_SEED = 5
QUEUES = [("A", 0), ("A", 1), ("B", 0), ("%RETRY%g", 0)]


@dataclass
class Life:
    """What the outside world knows of the messages, over several lives of a broker."""

    put: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    seen: set[bytes] = field(default_factory=set)
    lost: set[bytes] = field(default_factory=set)
    next_body: int = 0


def config_for(rng: Random) -> StoreConfig:
    return StoreConfig(
        flush=FlushMode.SYNC,
        commit_log_file_size=rng.choice((4096, 16384)),
        index_slot_count=7,
        index_entry_count=rng.choice((5, 50)),
        consume_queue_file_size=rng.choice((200, 2000)),
        checkpoint_interval_ms=rng.choice((20, 200, 100_000)),
        verify_bytes=rng.choice((0, 2000, 1 << 20)),
        append_crc=rng.random() < 0.8,
    )


def readable(store: MessageStore) -> dict[bytes, tuple[str, int, int]]:
    found: dict[bytes, tuple[str, int, int]] = {}
    for topic, queue_id in store.queues:
        offset = store.queues.min_offset(topic, queue_id)
        while offset < store.queues.max_offset(topic, queue_id):
            result = store.queues.get(
                topic, queue_id, queue_offset=offset, count_max=7, bytes_max=3000
            )
            at = 0
            while at < len(result.records):
                record = decode_record(result.records, at)
                assert (record.topic, record.queue_id) == (topic, queue_id)
                assert record.queue_offset == offset
                found[record.body] = (topic, queue_id, offset)
                at += record.size
                offset += 1
            assert offset == result.next_offset
    return found


def check_index(store: MessageStore, seed: int) -> None:
    expected: dict[tuple[str, str], set[bytes]] = {}
    for topic, queue_id in store.queues:
        for offset in range(
            store.queues.min_offset(topic, queue_id), store.queues.max_offset(topic, queue_id)
        ):
            entry = store.queues.entry(topic, queue_id, offset)
            record = decode_record(store.records.read(*entry[:2]) or b"") if entry else None
            assert record is not None, f"seed {seed}"
            # Without a checksum of the whole record its properties may be torn.
            for key in parse_properties(record.properties).get("KEYS", "").split():
                expected.setdefault((topic, key), set()).add(record.body)
    found = {each: {record.body for record in find_records(store, *each)} for each in expected}
    assert found == expected, f"seed {seed}"


def new_records(life: Life, rng: Random, make: Callable[..., Record]) -> list[Record]:
    topic, queue_id = rng.choice(QUEUES)
    records = []
    for _ in range(rng.choice((1, 1, 1, 4))):
        life.next_body += 1
        body = b"%d " % life.next_body + rng.randbytes(rng.choice((0, 30, 700)))
        properties = f"TAGS\x01A\x02KEYS\x01all k{life.next_body}"
        records.append(make(body, topic=topic, queue_id=queue_id, properties=properties))
    return records


def work(store: MessageStore, life: Life, rng: Random, make: Callable[..., Record]) -> None:
    """Use the store until the power is cut."""
    now_ms = 1000 * life.next_body
    waiting: list[tuple[int, list[Record]]] = []
    flush: FlushWork | None = None
    while True:
        now_ms += rng.randrange(10)
        step = rng.randrange(6)
        if step <= 1:
            records = new_records(life, rng, make)
            life.put.update((r.body, (r.topic, r.queue_id)) for r in records)
            results = [store.append(record, timestamp_ms=now_ms) for record in records]
            assert {result.status for result in results} == {PutStatus.PUT_OK}
            assert store.write().status is PutStatus.PUT_OK
            waiting.append((results[-1].end_position, records))
        elif step == 2 and flush is None:
            flush = store.flush_work()
        elif step == 2 and flush is not None:
            # Messages that came since the work was made are not part of it.
            flush.run()
            store.flush_done(flush, None)
            flush = None
            done = [records for end, records in waiting if end <= store.flushed_position]
            waiting = [w for w in waiting if w[0] > store.flushed_position]
            life.acknowledged.update(r.body for records in done for r in records)
        elif step == 3:
            store.dispatch()
        elif step == 4:
            store.build_index()
        elif rng.random() < 0.4:
            life.seen.update(readable(store))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_power_cut_loses_nothing_acknowledged_or_seen(
    block: int,
    new_storage: Callable[..., Any],
    new_record: Callable[..., Record],
) -> None:
    reached = set()
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        rng = Random(seed)
        config = config_for(rng)
        storage, life = new_storage(rng), Life()
        for _ in range(CUTS_PER_SEED):
            storage.changes_left = rng.randrange(200)
            store = MessageStore(storage, config)
            try:
                report = store.load(timestamp_ms=1)
                check_life(store, life, seed)
                reached.add("torn" if report.is_torn else "whole")
                reached.update(["rewritten"] if report.rewritten_queues else [])
                assert report.lost_synced_bytes == 0, seed
                work(store, life, rng, new_record)
            except PowerCut:
                storage.lose_power() if rng.random() < 0.8 else storage.kill()
        storage.changes_left = None
        store = MessageStore(storage, config)
        store.load(timestamp_ms=1)
        check_life(store, life, seed)
        store.close()

    assert reached == {"torn", "whole", "rewritten"}


def check_life(store: MessageStore, life: Life, seed: int) -> None:
    found = readable(store)
    assert life.acknowledged - found.keys() == set(), f"seed {seed} lost acknowledged messages"
    assert life.seen - found.keys() == set(), f"seed {seed} lost messages that were seen"
    assert found.keys() - life.put.keys() == set(), f"seed {seed} made messages up"
    assert found.keys() & life.lost == set(), f"seed {seed} brought lost messages back"
    check_index(store, seed)
    life.lost = life.put.keys() - found.keys()
    # What recovery makes readable is on the disk, so it counts as seen from now on.
    life.seen = set(found)
