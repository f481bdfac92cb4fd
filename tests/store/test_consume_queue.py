"""A consume queue whose last entries are in memory alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sparrowmq.protocol.record import Record
from sparrowmq.store import MessageStore, StoreConfig
from sparrowmq.store.config import ENTRY_SIZE
from sparrowmq.store.consume_queue import ENTRY, ConsumeQueue, filler_entries

DIRECTORY = "consumequeue/T/0"
CONFIG = StoreConfig(consume_queue_file_size=10 * ENTRY_SIZE, queue_tail_bytes_max=4 * ENTRY_SIZE)


def entries(begin: int, end: int) -> bytes:
    return b"".join(ENTRY.pack(n, 1, 0) for n in range(begin, end))


@pytest.mark.parametrize("size", [1, 3, 4, 5, 23])
def test_entries_read_the_same_in_memory_and_in_files(size: int, storage: Any) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)

    for begin in range(0, 46, size):
        queue.append(entries(begin, begin + size))
        end = begin + size

        assert end == queue.max_offset
        for offset in range(end + 1):
            assert entries(offset, min(offset + 7, end)) == queue.read(offset, 7)
        assert queue.entry(end - 1) == (end - 1, 1, 0)
        assert queue.entry(end) is None


def test_tail_is_written_when_it_grows_beyond_its_bound_or_is_asked_for(storage: Any) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)

    def written() -> bytes:
        return queue.files.read(0, 9 * ENTRY_SIZE).rstrip(b"\0")

    queue.append(entries(1, 2))
    assert entries(1, 2).rstrip(b"\0") == written()
    queue.append(entries(2, 6))
    assert entries(1, 2).rstrip(b"\0") == written()
    queue.append(entries(6, 7))
    assert entries(1, 6).rstrip(b"\0") == written()
    queue.write_tail()
    assert entries(1, 7).rstrip(b"\0") == written()


def test_entries_that_find_no_space_are_not_added(storage: Any) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.append(entries(0, 1))
    queue.append(entries(1, 5))
    storage.bytes_left = 5

    with pytest.raises(OSError, match="no space"):
        queue.append(entries(5, 6))

    assert queue.max_offset == 5
    assert entries(0, 5) == queue.read(0, 9)
    storage.bytes_left = None
    queue.append(entries(5, 6))
    assert entries(0, 6) == queue.read(0, 9)


def test_name_of_a_file_that_found_no_space_is_synced_later(storage: Any) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.append(entries(0, 10))
    queue.take_dirty()
    storage.bytes_left = 0
    with pytest.raises(OSError, match="no space"):
        queue.append(entries(10, 16))
    storage.bytes_left = None
    queue.append(entries(10, 16))

    files, is_directory_dirty = queue.take_dirty()

    assert [file.path[-3:] for file in files] == ["200"]
    assert is_directory_dirty


def test_last_entry_stays_before_a_file_that_found_no_space(storage: Any) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.append(entries(0, 10))
    storage.bytes_left = 0
    with pytest.raises(OSError, match="no space"):
        queue.append(entries(10, 16))
    queue.expire(10)

    assert (queue.min_offset, queue.max_offset, len(queue.files.bases)) == (10, 10, 2)
    assert not queue.has_expired_files


@pytest.mark.parametrize(
    ("lost", "kept"),
    [
        ({1}, [400, 600]),
        ({0, 2}, [600]),
        # Those behind position 31 were not synced.
        ({3}, [0, 200, 400]),
        ({1, 4}, [400, 600]),
        ({4}, [0, 200, 400, 600]),
        ({1, 2, 3}, [0]),
        ({0, 1, 2, 3}, [800, 1000]),
    ],
)
def test_files_that_a_power_cut_has_torn_from_the_others_go(
    lost: set[int], kept: list[int], storage: Any
) -> None:
    ConsumeQueue(storage, "T", 0, config=CONFIG).append(entries(0, 60), gathers=False)
    for number in lost:
        storage.remove(f"{DIRECTORY}/{200 * number:020d}")
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.files.open()

    queue.mend(31)

    assert queue.files.bases == kept
    assert storage.list_names(DIRECTORY) == [f"{base:020d}" for base in kept]
    assert queue.is_directory_dirty is (len(kept) + len(lost) < 6)


def test_file_of_a_queue_that_a_crash_has_cut_goes_with_those_before_it(storage: Any) -> None:
    ConsumeQueue(storage, "T", 0, config=CONFIG).append(entries(0, 40), gathers=False)
    cut = storage.inodes[f"{DIRECTORY}/{200:020d}"]
    cut.replace(cut.data[:60])
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.files.open()

    queue.mend(40)

    assert queue.files.bases == [400, 600]


def test_queue_of_which_a_power_cut_has_brought_back_its_very_first_file_keeps_its_last(
    storage: Any,
) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.append(entries(0, 1000), gathers=False)
    for base in queue.files.bases[1:-1]:
        storage.remove(f"{DIRECTORY}/{base:020d}")
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.files.open()

    queue.mend(1000)

    assert queue.files.bases == [19800]


def test_entries_that_may_not_be_gathered_are_written_behind_those_that_were(storage: Any) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.append(entries(0, 1))
    queue.append(entries(1, 3))

    queue.append(entries(3, 4), gathers=False)

    assert entries(0, 4) == queue.files.read(0, 4 * ENTRY_SIZE)


def test_expiry_passes_no_message_before_offsets_without_one(storage: Any) -> None:
    queue = ConsumeQueue(storage, "T", 0, config=CONFIG)
    queue.append(entries(100, 102) + filler_entries(4) + entries(300, 301))

    queue.expire(101)
    assert queue.min_offset == 1
    queue.expire(102)
    assert queue.min_offset == 6


def test_only_so_many_queues_gather_entries(
    storage: Any, new_record: Callable[..., Record]
) -> None:
    store = MessageStore(
        storage,
        replace(CONFIG, index_slot_count=64, index_entry_count=256, commit_log_file_size=1 << 20),
    )
    store.load(timestamp_ms=1)

    def put(queue_id: int) -> None:
        store.put(new_record(b"x", queue_id=queue_id), timestamp_ms=1)
        work = store.flush_work()
        assert work is not None
        work.run()
        store.flush_done(work, None)
        store.dispatch()

    def written_count() -> int:
        data = storage.inodes[f"consumequeue/T/0/{0:020d}"].data
        sizes = [size for _, size, _ in ENTRY.iter_unpack(bytes(data))]
        return len(sizes) - sizes.count(0)

    put(0)
    put(0)
    assert written_count() == 1
    for queue_id in range(1, 257):
        put(queue_id)
    put(0)

    assert 3 == written_count() == store.queues.max_offset("T", 0)
