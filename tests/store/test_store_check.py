"""What the check of a store finds, and that it finds nothing where nothing is wrong."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from small_stores import flush, open_store
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.store import MessageStore, StoreConfig
from sparrowmq.store.file_storage import ReadOnlyStorage
from sparrowmq.store.store_check import FileFinding, Soundness, StoreCheck

NewRecord = Callable[..., Record]
Disk = Any
CONFIG = StoreConfig(
    commit_log_file_size=4096,
    index_slot_count=64,
    index_entry_count=100,
    consume_queue_file_size=200,
)
COUNT = 120
SOUND, UNFINISHED, DAMAGED = Soundness.SOUND, Soundness.UNFINISHED, Soundness.DAMAGED


def fill(disk: Disk, make: NewRecord, *, is_clean: bool = True) -> MessageStore:
    store = open_store(disk, CONFIG)
    for n in range(COUNT):
        properties = f"TAGS\x01A\x02UNIQ_KEY\x01u{n}\x02KEYS\x01k{n} all"
        store.put(make(b"%d" % n, queue_id=n % 3, properties=properties), timestamp_ms=100 + n)
    if is_clean:
        store.close()
    return store


def check(disk: Disk) -> dict[str, FileFinding]:
    """Check the disk's files on a real one."""
    with tempfile.TemporaryDirectory() as root:
        for path, inode in disk.inodes.items():
            Path(root, path).parent.mkdir(parents=True, exist_ok=True)
            Path(root, path).write_bytes(inode.data)
        before = contents(Path(root))
        found = {each.path: each for each in StoreCheck(ReadOnlyStorage(root), CONFIG).run()}
        assert before == contents(Path(root))
    return found


def contents(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def wrong(disk: Disk) -> dict[str, Soundness]:
    return {path: each.state for path, each in check(disk).items() if each.state is not SOUND}


def test_a_store_that_was_stopped_is_sound(storage: Disk, new_record: NewRecord) -> None:
    fill(storage, new_record)
    found = check(storage)

    assert {each.state for each in found.values()} == {SOUND}
    logs = [each for path, each in found.items() if path.startswith("commitlog/")]
    assert len(storage.list_names("commitlog")) == len(logs) > 4
    assert sum(int(each.text.split()[0]) for each in logs) == COUNT
    assert found["consumequeue/T/0"].text == "40 entries"
    indexed = [each.text for path, each in found.items() if path.startswith("index/")]
    assert sum(int(text.split()[0]) for text in indexed) == 3 * COUNT


def test_a_store_that_expired_in_part_is_sound(storage: Disk, new_record: NewRecord) -> None:
    fill(storage, new_record)
    store = open_store(storage, CONFIG)
    work = store.expire(before_timestamp_ms=None, files_max=2, reason="", timestamp_ms=1 << 62)
    assert work is not None
    work.run()
    store.close()

    assert wrong(storage) == {}


def test_files_of_other_programs_are_no_part_of_the_index(
    storage: Disk, new_record: NewRecord
) -> None:
    """As an editor leaves them, or an operator who copies before a repair."""
    fill(storage, new_record)
    names = storage.list_names("index")
    for other in ("notes.txt", f"{names[0]}.bak", "7" * 16, "7" * 18, "old/" + "7" * 17):
        storage.create(f"index/{other}", size=5)
    storage.create("index/.DS_Store", size=5)
    found = check(storage)

    assert found["index"] == FileFinding("index", SOUND, "files that are not the store's: 5")
    assert [f"index/{name}" for name in names] == [path for path in found if "index/" in path]
    open_store(storage, CONFIG).close()
    assert wrong(storage) == {}
    assert storage.has("index/notes.txt")


def test_a_killed_store_is_unfinished_and_not_damaged(storage: Disk, new_record: NewRecord) -> None:
    store = fill(storage, new_record, is_clean=False)
    flush(store)
    # Its entry is in memory alone.
    store.put(new_record(b"last"), timestamp_ms=500)
    flush(store)
    disk = storage.kill()
    last = max(path for path in disk.inodes if path.startswith("commitlog/"))
    used = len(bytes(disk.inodes[last].data).rstrip(b"\0"))
    disk.inodes[last].data[used : used + 9] = b"beginning"

    found = wrong(disk)

    assert set(found.values()) == {UNFINISHED}
    assert {last, "checkpoint", "consumequeue/T/0"} <= found.keys()


def test_a_killed_store_without_an_end_that_was_synced_is_damaged(
    storage: Disk, new_record: NewRecord
) -> None:
    fill(storage, new_record)
    storage.create("abort", size=0)
    last = max(path for path in storage.inodes if path.startswith("commitlog/"))
    used = len(bytes(storage.inodes[last].data).rstrip(b"\0"))
    flip(last, used - 30)(storage)

    found = check(storage)[last]

    assert found.state is DAMAGED
    assert "on is not a record" in found.text


def flip(path: str, at: int) -> Callable[[Disk], None]:
    def damage(disk: Disk) -> None:
        disk.inodes[path].data[at] ^= 4

    return damage


def remove(path: str) -> Callable[[Disk], None]:
    return lambda disk: disk.remove(path)


def cut(path: str) -> Callable[[Disk], None]:
    return lambda disk: disk.inodes[path].replace(bytes(disk.inodes[path].data[:90]))


def cut_log(disk: Disk) -> None:
    last = max(path for path in disk.inodes if path.startswith("commitlog/"))
    disk.inodes[last].data[0:4096] = bytes(4096)


def stray_entry(disk: Disk) -> None:
    source = bytes(disk.inodes["consumequeue/T/0/00000000000000000000"].data)
    disk.create("consumequeue/other/0/00000000000000000000", size=200)
    disk.inodes["consumequeue/other/0/00000000000000000000"].replace(source)


def add_entries(disk: Disk) -> None:
    source = bytes(disk.inodes["consumequeue/T/0/00000000000000000000"].data)
    disk.create("consumequeue/T/0/00000000000000000800", size=200)
    disk.inodes["consumequeue/T/0/00000000000000000800"].replace(source)


LOG, QUEUE = "commitlog/00000000000000004096", "consumequeue/T/1/00000000000000000200"
FIRST = "consumequeue/T/1/00000000000000000000"


@pytest.mark.parametrize(
    ("damage", "path", "words"),
    [
        (flip(LOG, 700), LOG, "is damaged; valid ones follow"),
        (remove(LOG), LOG, "the file is missing"),
        (cut(LOG), LOG, "90 bytes are left of 4096"),
        (
            flip(QUEUE, 27),
            "consumequeue/T/1",
            "1 are not what the log says; move consumequeue/T/1 away",
        ),
        (remove(QUEUE), "consumequeue/T/1", "10 are missing"),
        (remove(FIRST), "consumequeue/T/1", "10 are missing"),
        (stray_entry, "consumequeue/other/0", "10 are of no record"),
        (add_entries, "consumequeue/T/0", "1 are of no record"),
        (cut_log, "checkpoint", "that had been synced are not there"),
    ],
)
def test_damage_is_found_where_it_is(
    damage: Callable[[Disk], None], path: str, words: str, storage: Disk, new_record: NewRecord
) -> None:
    fill(storage, new_record)
    damage(storage)
    found = check(storage)[path]

    assert found.state is DAMAGED
    assert words in found.text


def test_queue_that_is_moved_away_as_told_is_made_again_and_no_other(
    storage: Disk, new_record: NewRecord
) -> None:
    fill(storage, new_record)
    flip(QUEUE, 27)(storage)
    ((path, finding),) = [each for each in check(storage).items() if each[1].state is not SOUND]
    assert f"move {path} away" in finding.text
    for name in storage.list_names(path):
        storage.remove(f"{path}/{name}")

    store = MessageStore(storage, CONFIG)
    assert store.load(timestamp_ms=1).rewritten_queues == (("T", 1),)
    store.close()
    assert wrong(storage) == {}


@pytest.mark.parametrize("damage", [flip(LOG, 700), remove(LOG), cut_log])
def test_nothing_is_to_be_moved_away_while_the_log_is_damaged(
    damage: Callable[[Disk], None], storage: Disk, new_record: NewRecord
) -> None:
    """Without a queue a start would read the whole log, and refuse it."""
    fill(storage, new_record)
    damage(storage)
    found = check(storage)

    queues = [each for path, each in found.items() if path.startswith("consumequeue/")]
    assert DAMAGED in {each.state for each in queues}
    assert not [each.text for each in found.values() if "away" in each.text]


def test_queue_without_messages_is_left_where_it_is_and_keeps_its_next_offset(
    storage: Disk, new_record: NewRecord
) -> None:
    store = open_store(storage, CONFIG)
    for number in range(3):
        store.put(new_record(b"x", topic="quiet"), timestamp_ms=number)
    store.close()
    fill(storage, new_record)
    store = open_store(storage, CONFIG)
    work = store.expire(before_timestamp_ms=None, files_max=2, reason="", timestamp_ms=1 << 62)
    assert work is not None
    work.run()
    store.close()
    source = bytes(storage.inodes["consumequeue/T/0/00000000000000000600"].data[:20])
    storage.inodes["consumequeue/quiet/0/00000000000000000000"].data[60:80] = source

    found = check(storage)["consumequeue/quiet/0"]
    assert (found.state, "away" in found.text) == (DAMAGED, False)
    assert "1 are of no record; leave consumequeue/quiet/0" in found.text
    store = open_store(storage, CONFIG)
    assert store.queues.max_offset("quiet", 0) == 3
    store.close()
    assert wrong(storage) == {}


def test_offsets_without_a_record_are_sound(storage: Disk, new_record: NewRecord) -> None:
    """As a broker of 5.x leaves them that has stored batches as one message each."""
    store = open_store(storage, CONFIG)
    for number in range(12):
        store.put(new_record(b"x", topic="other"), timestamp_ms=number)
    for number in range(3):
        store.put(new_record(b"%d" % number), timestamp_ms=number)
        store.queues.by_key["T", 0].next_offset += 3
    store.write()
    for path in [path for path in storage.inodes if not path.startswith("commitlog/")]:
        storage.remove(path)
    open_store(storage.kill(), CONFIG).close()

    assert wrong(storage) == {}


def test_a_wrong_entry_of_a_killed_store_is_damage(storage: Disk, new_record: NewRecord) -> None:
    fill(storage, new_record)
    storage.create("abort", size=0)
    flip(QUEUE, 27)(storage)

    assert check(storage)["consumequeue/T/1"].state is DAMAGED


def test_records_of_one_offset_are_damage(storage: Disk, new_record: NewRecord) -> None:
    store = open_store(storage, CONFIG)
    for _ in range(2):
        store.put(new_record(b"x"), timestamp_ms=1)
        store.queues.by_key["T", 0].next_offset = 0
    store.close()

    (found,) = [each for path, each in check(storage).items() if path.startswith("commitlog/")]
    assert found.state is DAMAGED
    assert "has the queue offset of an earlier one" in found.text


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (40 + 4 * 64 + 20 * 7, "99 entries, 1 of which are"),
        (40 + 4 * 64 + 20 * 7 + 18, "99 entries, 1 places that do not lead"),
        (40 + 4 * 7 + 3, "99 entries, 1 places that do not lead"),
        (38, "1,123 entries, 1,024 of which"),
    ],
    ids=["entry", "previous entry", "slot", "count"],
)
def test_damage_of_the_index_is_found(
    at: int, words: str, storage: Disk, new_record: NewRecord
) -> None:
    fill(storage, new_record)
    name = storage.list_names("index")[0]
    flip(f"index/{name}", at)(storage)
    found = check(storage)[f"index/{name}"]

    assert found.state is DAMAGED
    assert words in found.text


def test_keys_of_a_record_that_is_read_in_pieces_are_its_own(
    storage: Disk, new_record: NewRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrowmq.store.store_check._CHUNK_BYTES", 400)
    store = open_store(storage, CONFIG)
    store.put(new_record(b"x" * 900, properties="KEYS\x01a b"), timestamp_ms=1)
    store.close()

    assert wrong(storage) == {}


@pytest.mark.slow
def test_each_flipped_bit_of_log_and_queues_is_found(new_record: NewRecord) -> None:
    storage, rng = SimulatedStorage(Random(1)), Random(2)
    fill(storage, new_record)
    used = {
        path: len(bytes(inode.data).rstrip(b"\0"))
        for path, inode in storage.inodes.items()
        if path.startswith(("commitlog/", "consumequeue/"))
    }
    for _ in range(150):
        disk = storage.copy()
        path = rng.choice(sorted(used))
        at = rng.randrange(used[path])
        disk.inodes[path].data[at] ^= 1 << rng.randrange(8)

        assert DAMAGED in wrong(disk).values(), (path, at)
