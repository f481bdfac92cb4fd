"""The simulated disk: what a power cut takes, what room a full disk still has."""

from __future__ import annotations

import errno
from random import Random

import pytest

from sparrowmq.errors import StoreError
from sparrowmq.simulation.dice import Dice
from sparrowmq.simulation.faulty_disk import SECTOR_SIZE, PowerCut, SimulatedStorage


def outcomes_of_a_power_cut(*, is_synced: bool, is_named: bool) -> set[bytes | None]:
    """Return what 40 power cuts leave of a file of two sectors."""
    found: set[bytes | None] = set()
    for seed in range(40):
        storage = SimulatedStorage(Random(seed))
        file = storage.create("d/f", size=2 * SECTOR_SIZE)
        if is_named:
            file.sync()
            storage.sync_directory("d")
        file.write(0, b"a" * SECTOR_SIZE + b"b" * SECTOR_SIZE)
        if is_synced:
            file.sync()
        storage.lose_power()
        if storage.has("d/f"):
            data = storage.open("d/f").read(0, 2 * SECTOR_SIZE)
            found.add(bytes(data[::SECTOR_SIZE]))
        else:
            found.add(None)
    return found


def test_power_cut_leaves_any_part_of_what_was_not_synced() -> None:
    assert outcomes_of_a_power_cut(is_synced=False, is_named=True) == {
        b"\0\0",
        b"a\0",
        b"\0b",
        b"ab",
    }


def test_power_cut_takes_nothing_that_was_synced() -> None:
    assert outcomes_of_a_power_cut(is_synced=True, is_named=True) == {b"ab"}


def test_file_whose_directory_was_not_synced_may_be_gone() -> None:
    assert outcomes_of_a_power_cut(is_synced=True, is_named=False) == {b"ab", None}


def test_rename_happens_as_a_whole_or_not_at_all() -> None:
    found: set[tuple[str, ...]] = set()
    for seed in range(40):
        storage = SimulatedStorage(Random(seed))
        storage.create("old", size=1).sync()
        storage.sync_directory("")
        storage.rename("old", "new")
        storage.lose_power()
        found.add(tuple(storage.list_names("")))

    assert found == {("new",), ("old",)}


def test_killed_process_loses_nothing_that_it_wrote(dice: Dice) -> None:
    storage = SimulatedStorage(dice)
    storage.lock()
    storage.create("f", size=4).write(0, b"abcd")
    with pytest.raises(StoreError):
        storage.lock()
    storage.kill().lock()

    assert storage.open("f").read(0, 4) == b"abcd"


def test_full_disk_has_room_only_where_sectors_are_written_already(dice: Dice) -> None:
    storage = SimulatedStorage(dice)
    file = storage.create("f", size=3 * SECTOR_SIZE)
    file.write(0, b"a")
    storage.is_full = True
    file.write(0, b"b" * SECTOR_SIZE)
    with pytest.raises(OSError, match="no space left") as caught:
        file.write(SECTOR_SIZE - 1, b"cc")
    assert caught.value.errno == errno.ENOSPC
    assert file.read(SECTOR_SIZE - 2, 3) == b"bc\0"
    with pytest.raises(OSError, match="no space left"):
        storage.create("g", size=1)

    storage.is_full = False
    file.write(SECTOR_SIZE, b"d")
    assert file.read(SECTOR_SIZE - 2, 3) == b"bcd"


def test_failing_disk_syncs_nothing(dice: Dice) -> None:
    storage = SimulatedStorage(dice)
    file = storage.create("f", size=1)
    storage.fail()
    with pytest.raises(OSError, match="the disk does not answer") as caught:
        file.sync()

    assert caught.value.errno == errno.EIO


def test_power_may_go_in_the_midst_of_several_syncs(dice: Dice) -> None:
    storage = SimulatedStorage(dice)
    first, second = storage.create("f", size=1), storage.create("g", size=1)
    storage.changes_left = 1
    first.sync()

    with pytest.raises(PowerCut):
        second.sync()
