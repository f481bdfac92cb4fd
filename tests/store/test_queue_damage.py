"""Consume queues that are missing, short, stale or overwritten: the log says what they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from small_stores import SMALL, flush, open_store
from sparrowmq.protocol.record import Record
from sparrowmq.store import MessageStore, StoreConfig

NewRecord = Callable[..., Record]
QUEUE_FILES = 15
Damage = Callable[[Any, Random], None]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let queues be checked in pieces that are smaller than their files."""
    monkeypatch.setattr("sparrowmq.store.queue_check._CHUNK_ENTRIES", 5)


def config(verify_bytes: int) -> StoreConfig:
    return replace(SMALL, verify_bytes=verify_bytes, queue_tail_bytes_max=0)


def fill(storage: Any, make: NewRecord, *, is_clean: bool) -> None:
    store = open_store(storage, config(1 << 20))
    rng = Random(5)
    for n in range(200):
        queue_id = rng.randrange(3) if n < 150 else 0
        store.put(make(b"%d" % n, queue_id=queue_id, properties=f"TAGS\x01{n}"), timestamp_ms=n)
        if n == 100:
            store.put(make(b"rare", topic="rare", queue_id=7), timestamp_ms=n)
    if is_clean:
        store.close()
        return
    flush(store)


def queue_files(storage: Any) -> dict[str, bytes]:
    return {
        path: bytes(inode.data)
        for path, inode in storage.inodes.items()
        if path.startswith("consumequeue/")
    }


def remove_all(storage: Any, rng: Random) -> None:
    for path in queue_files(storage):
        storage.remove(path)


def remove_one_queue(storage: Any, rng: Random) -> None:
    storage.remove("consumequeue/rare/7/00000000000000000000")


def remove_first_files(storage: Any, rng: Random) -> None:
    storage.remove("consumequeue/T/1/00000000000000000000")


def remove_one_file(storage: Any, rng: Random) -> None:
    storage.remove(rng.choice(sorted(queue_files(storage))))


def cut_one_file(storage: Any, rng: Random) -> None:
    inode = storage.inodes[rng.choice(sorted(queue_files(storage)))]
    inode.replace(inode.data[: rng.randrange(200)])


def zero_one_file(storage: Any, rng: Random) -> None:
    inode = storage.inodes[rng.choice(sorted(queue_files(storage)))]
    inode.replace(bytes(rng.choice((0, 200))))


def overwrite_tails(storage: Any, rng: Random) -> None:
    for path in ("consumequeue/T/0", "consumequeue/T/1"):
        last = max(p for p in queue_files(storage) if p.startswith(path))
        at = rng.randrange(200)
        inode = storage.inodes[last]
        inode.replace(inode.data[:at] + rng.randbytes(200 - at))


def repeat_an_entry(storage: Any, rng: Random) -> None:
    inode = storage.inodes["consumequeue/T/0/00000000000000000200"]
    data = bytearray(inode.data)
    data[40:60] = data[20:40]
    inode.replace(bytes(data))


def swap_queues(storage: Any, rng: Random) -> None:
    one = storage.inodes["consumequeue/T/1/00000000000000000000"]
    two = storage.inodes["consumequeue/T/2/00000000000000000000"]
    data = bytes(one.data)
    one.replace(bytes(two.data))
    two.replace(data)


def swap_halves_of_a_file(storage: Any, rng: Random) -> None:
    inode = storage.inodes["consumequeue/T/0/00000000000000000200"]
    inode.replace(inode.data[100:] + inode.data[:100])


def add_a_queue_of_strangers(storage: Any, rng: Random) -> None:
    data = bytes(storage.inodes["consumequeue/T/1/00000000000000000000"].data)
    storage.create("consumequeue/other/0/00000000000000000000", size=200)
    storage.inodes["consumequeue/other/0/00000000000000000000"].replace(data)


DAMAGES: list[Damage] = [
    remove_all,
    remove_one_queue,
    remove_first_files,
    remove_one_file,
    cut_one_file,
    zero_one_file,
    overwrite_tails,
    repeat_an_entry,
    swap_queues,
    swap_halves_of_a_file,
]


@pytest.mark.parametrize("verify_bytes", [0, 2000, 1 << 20])
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damaged_queues_become_what_they_were(
    damage: Damage,
    is_clean: bool,
    verify_bytes: int,
    new_storage: Callable[[], Any],
    new_record: NewRecord,
) -> None:
    storage = new_storage()
    fill(storage, new_record, is_clean=is_clean)
    original = queue_files(storage)
    assert len(original) >= QUEUE_FILES
    for seed in range(5):
        disk = storage.copy()
        damage(disk, Random(seed))
        store = MessageStore(disk, config(verify_bytes))
        report = store.load(timestamp_ms=1)

        assert original == queue_files(disk), seed
        assert report.rewritten_queues
        assert sum(store.queues.max_offset(*queue) for queue in store.queues) == 201


def test_a_queue_of_other_queues_records_is_emptied(storage: Any, new_record: NewRecord) -> None:
    fill(storage, new_record, is_clean=True)
    original = queue_files(storage)
    add_a_queue_of_strangers(storage, Random(0))
    store = open_store(storage, config(0))

    assert store.queues.max_offset("other", 0) == 0
    assert original.items() <= queue_files(storage).items()


@pytest.mark.parametrize("verify_bytes", [0, 2000, 1 << 20])
def test_undamaged_queues_are_left_alone(
    verify_bytes: int, storage: Any, new_record: NewRecord
) -> None:
    fill(storage, new_record, is_clean=True)
    # Else nothing would be looked at.
    storage.remove("stopped")
    store = MessageStore(storage, config(verify_bytes))
    report = store.load(timestamp_ms=1)

    assert report.rewritten_queues == ()
    assert not report.is_torn
    assert (report.record_count < 60) is (verify_bytes < 1 << 20)


def test_queue_begins_where_the_log_begins(storage: Any, new_record: NewRecord) -> None:
    fill(storage, new_record, is_clean=True)
    for base in range(0, 12288, 4096):
        storage.remove(f"commitlog/{base:020d}")
    remembered = queue_files(storage)
    kept = open_store(storage.copy(), config(1 << 20))
    remove_all(storage, Random(0))
    rebuilt = open_store(storage, config(1 << 20))

    assert remembered
    assert len(list(rebuilt.queues)) == 4
    for queue in [("T", 0), ("T", 1), ("T", 2)]:
        assert 0 < rebuilt.queues.min_offset(*queue) < rebuilt.queues.max_offset(*queue)
        assert kept.queues.min_offset(*queue) == rebuilt.queues.min_offset(*queue)
        assert kept.queues.max_offset(*queue) == rebuilt.queues.max_offset(*queue)
        low = rebuilt.queues.min_offset(*queue)
        assert kept.queues.entry(*queue, low) == rebuilt.queues.entry(*queue, low)
        assert rebuilt.queues.get(*queue, queue_offset=low, count_max=5, bytes_max=9999).count == 5
    again = open_store(storage.kill(), config(0))
    assert [rebuilt.queues.min_offset(*q) for q in rebuilt.queues] == [
        again.queues.min_offset(*q) for q in again.queues
    ]


def test_first_file_of_a_queue_that_began_behind_the_start_of_the_walk_is_written_again(
    storage: Any, new_record: NewRecord
) -> None:
    fill(storage, new_record, is_clean=True)
    store = open_store(storage, config(0))
    for n in range(15):
        store.put(new_record(b"%d" % n, topic="late"), timestamp_ms=300 + n)
    flush(store)
    original = queue_files(storage)
    storage.remove("consumequeue/late/0/00000000000000000000")

    store = MessageStore(storage.kill(), config(0))
    report = store.load(timestamp_ms=1)

    assert report.walked_from > 0
    assert report.conflict_count == 0
    assert original == queue_files(storage)


def test_fillers_that_a_power_cut_has_lost_are_written_again(
    storage: Any, new_record: NewRecord
) -> None:
    large = replace(config(0), consume_queue_file_size=4_000)
    fill(storage, new_record, is_clean=True)
    for base in range(0, 12288, 4096):
        storage.remove(f"commitlog/{base:020d}")
    remove_all(storage, Random(0))
    store = open_store(storage, large)
    first = store.queues.min_offset("T", 0)
    inode = storage.inodes["consumequeue/T/0/00000000000000000000"]
    whole = bytes(inode.data)
    inode.replace(bytes(20) + whole[20:])
    walked = []
    for _ in range(2):
        store = MessageStore(storage.kill(), large)
        walked.append(store.load(timestamp_ms=1).walked_from)

    assert first > 1
    assert whole == bytes(storage.inodes["consumequeue/T/0/00000000000000000000"].data)
    assert walked[0] == 12288 < walked[1]


@pytest.mark.parametrize("is_clean", [True, False])
def test_files_of_other_programs_cost_a_queue_nothing(
    is_clean: bool, storage: Any, new_record: NewRecord
) -> None:
    """As an editor leaves them, or an operator who copies before a repair."""
    fill(storage, new_record, is_clean=is_clean)
    names = ("notes.txt", "00000000000000000200.bak", "0" * 19, "4" * 21)
    for name in names:
        storage.create(f"consumequeue/T/1/{name}", size=5)
    before = queue_files(storage)
    store = MessageStore(storage.kill(), config(1 << 20))
    report = store.load(timestamp_ms=1)

    assert report.rewritten_queues == ()
    assert before == queue_files(storage)
    assert sum(store.queues.max_offset(*queue) for queue in store.queues) == 201


def test_queue_that_is_written_again_leaves_the_files_of_other_programs(
    storage: Any, new_record: NewRecord
) -> None:
    fill(storage, new_record, is_clean=False)
    storage.remove("consumequeue/T/1/00000000000000000200")
    storage.create("consumequeue/T/1/notes.txt", size=5)

    store = MessageStore(storage.kill(), config(1 << 20))

    assert store.load(timestamp_ms=1).rewritten_queues == (("T", 1),)
    assert storage.has("consumequeue/T/1/notes.txt")
