"""What was appended to the journal and acknowledged is there, whatever happens."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.store.journal import (
    GROWTH_BYTES,
    Journal,
    JournalContent,
    drop_segments,
    list_segments,
    read_journal,
)

FIRST = "config/journal.00000001"


def test_batches_are_read_in_the_order_of_segments_and_batches(storage: Any) -> None:
    journal = Journal(storage, "config")
    large = b"x" * (GROWTH_BYTES + 5)
    for segment, batch in ((9, b"a"), (9, large), (9, b"b"), (10, b"c")):
        journal.append(segment, batch)

    assert read_journal(storage, "config") == JournalContent([b"a", large, b"b", b"c"], 10, [])


def test_one_descriptor_serves_all_segments(tmp_path: Path) -> None:
    journal = Journal(FileStorage(tmp_path), "config")
    before = len(os.listdir("/proc/self/fd"))
    for segment in range(1, 9):
        journal.append(segment, b"batch")

    assert len(os.listdir("/proc/self/fd")) == before + 1
    journal.close()
    assert len(read_journal(FileStorage(tmp_path), "config").batches) == 8
    assert before == len(os.listdir("/proc/self/fd"))


def test_directory_without_a_journal_has_nothing(storage: Any) -> None:
    assert read_journal(storage, "config") == JournalContent([], 0, [])


def test_what_else_lies_beside_the_segments_is_no_part_of_the_journal(storage: Any) -> None:
    Journal(storage, "config").append(1, b"batch")
    data = bytes(storage.inodes[FIRST].data)
    for name in ("journal.00000001.bak", "journal.", "journal.\u0664", "old-journal.00000002"):
        storage.create(f"config/{name}", size=len(data)).write(0, data)

    drop_segments(storage, "config", up_to=0)

    assert read_journal(storage, "config") == JournalContent([b"batch"], 1, [])


def test_a_batch_that_looks_like_a_journal_is_one_batch(storage: Any) -> None:
    journal = Journal(storage, "config")
    journal.append(1, b"first")
    frames = bytes(storage.inodes[FIRST].data[:17]) * 2
    journal.append(1, frames)
    journal.append(1, b"last")

    assert read_journal(storage, "config").batches == [b"first", frames, b"last"]


def test_segments_that_are_dropped_are_gone(storage: Any) -> None:
    journal = Journal(storage, "config")
    for segment in (1, 2, 3):
        journal.append(segment, b"%d" % segment)

    drop_segments(storage, "config", up_to=2)

    assert list_segments(storage, "config") == [3]
    assert read_journal(storage, "config").batches == [b"3"]


@pytest.mark.parametrize("seed", range(40))
def test_power_cut_while_segments_are_dropped_leaves_the_newest(seed: int) -> None:
    rng = Random(seed)
    storage: Any = SimulatedStorage(rng)
    journal = Journal(storage, "config")
    segments = list(range(1, 6))
    for segment in segments:
        journal.append(segment, b"%d" % segment)
    storage.changes_left = rng.randrange(7)
    with suppress(PowerCut):
        drop_segments(storage, "config", up_to=5)
    storage.changes_left = None
    storage.lose_power()

    left = list_segments(storage, "config")
    assert segments[len(segments) - len(left) :] == left


def test_damage_between_batches_is_reported_and_the_others_are_read(storage: Any) -> None:
    journal = Journal(storage, "config")
    for batch in (b"first", b"second", b"third"):
        journal.append(1, batch)
    storage.inodes[FIRST].data[12 + 5 + 12 + 2] ^= 1

    content = read_journal(storage, "config")

    assert content.batches == [b"first", b"third"]
    assert content.damages == [f"18 bytes at byte 17 of {FIRST} are damaged"]


@pytest.mark.parametrize("cut", range(1, 18))
def test_torn_last_batch_is_no_damage(storage: Any, cut: int) -> None:
    journal = Journal(storage, "config")
    journal.append(1, b"first")
    journal.append(1, b"second")
    data = storage.inodes[FIRST].data
    data[17 + cut :] = bytes(len(data) - 17 - cut)

    assert read_journal(storage, "config") == JournalContent([b"first"], 1, [])


def test_power_cut_keeps_what_was_acknowledged(new_storage: Callable[..., Any]) -> None:
    reached = set()
    for seed in range(200):
        rng = Random(seed)
        storage, kept = new_storage(rng), list[bytes]()
        for life in range(1, 4):
            journal = Journal(storage, "config")
            storage.changes_left = rng.randrange(25)
            try:
                for n in range(8):
                    batch = b"%d %d " % (life, n) * rng.randrange(1, 90)
                    journal.append(life, batch)
                    kept.append(batch)
            except PowerCut:
                pass
            storage.changes_left = None
            storage.lose_power() if rng.random() < 0.7 else storage.kill()
            content = read_journal(storage, "config")
            # A batch that was under way may be there whole.
            assert kept == content.batches[: len(kept)], seed
            assert len(content.batches) <= len(kept) + 1, seed
            assert content.damages == [], seed
            reached.add(len(content.batches) - len(kept))
            kept = content.batches
    assert reached == {0, 1}


@pytest.mark.parametrize("changes", range(5))
def test_what_was_read_after_a_kill_outlives_a_power_cut(changes: int) -> None:
    for seed in range(9):
        storage: Any = SimulatedStorage(Random(seed))
        storage.changes_left = changes
        with suppress(PowerCut):
            Journal(storage, "config").append(1, b"batch")
        read = read_journal(storage.kill(), "config").batches

        assert read == read_journal(storage.lose_power(), "config").batches
        assert (read == [b"batch"]) is (changes > 1)


def test_failed_write_can_be_repeated_in_a_segment_that_has_nothing_yet(storage: Any) -> None:
    journal = Journal(storage, "config")
    storage.bytes_left = 3
    with suppress(OSError):
        journal.append(1, b"lost batch")
    storage.bytes_left = None
    journal.append(1, b"kept")

    assert read_journal(storage, "config").batches == [b"kept"]


def test_failed_first_write_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(FileStorage(tmp_path), "config")
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(OSError, match="full"):
            journal.append(1, b"lost")

    assert list_segments(FileStorage(tmp_path), "config") == []
    assert before == len(os.listdir("/proc/self/fd"))
