from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sparrowmq.errors import StoreError
from sparrowmq.simulation.faulty_disk import PowerCut
from sparrowmq.store.config_file import read_config, write_config
from sparrowmq.store.file_storage import FileStorage, FileStorageFile

PATH = "config/topics.json"


def test_written_content_is_read_and_the_last_one_is_the_backup(tmp_path: Path) -> None:
    storage, before = FileStorage(tmp_path), len(os.listdir("/proc/self/fd"))
    assert read_config(storage, PATH, json.loads) == (None, None)
    for n in range(3):
        write_config(storage, PATH, b'{"n":%d}' % n)

    assert read_config(storage, PATH, json.loads) == ({"n": 2}, None)
    assert (tmp_path / f"{PATH}.bak").read_bytes() == b'{"n":1}'
    assert storage.list_names("config") == ["topics.json", "topics.json.bak"]
    # What a power cut has left of a write is written over.
    (tmp_path / f"{PATH}.tmp").write_bytes(b'{"n":2,"m":')
    write_config(storage, PATH, b'{"n":3}')
    assert read_config(storage, PATH, json.loads) == ({"n": 3}, None)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("damage", [b"", b'{"n":', bytes(7), b"  \n"])
def test_backup_stands_in_for_what_cannot_be_understood(damage: bytes, tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    for n in range(2):
        write_config(storage, PATH, b'{"n":%d}' % n)
    (tmp_path / PATH).write_bytes(damage)

    value, stands_in = read_config(storage, PATH, json.loads)
    assert value == {"n": 0}
    assert "config/topics.json.bak says, an older state, holds instead" in (stands_in or "")
    (tmp_path / f"{PATH}.bak").write_bytes(damage)
    with pytest.raises(StoreError, match=r"topics\.json.*topics\.json\.bak"):
        read_config(storage, PATH, json.loads)


def test_backup_stands_in_for_what_the_disk_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    for n in range(2):
        write_config(storage, PATH, b'{"n":%d}' % n)
    read, code = FileStorageFile.read, errno.EIO

    def fail(file: FileStorageFile, position: int, size: int) -> bytes:
        if file.path == PATH:
            raise OSError(code, os.strerror(code), PATH)
        return read(file, position, size)

    monkeypatch.setattr(FileStorageFile, "read", fail)
    value, stands_in = read_config(storage, PATH, json.loads)
    assert value == {"n": 0}
    assert (stands_in or "").startswith("config/topics.json cannot be read: Input/output error: ")

    # That passes, and an older state must not hold for it.
    code = errno.ENOMEM
    with pytest.raises(OSError, match="memory"):
        read_config(storage, PATH, json.loads)


@pytest.mark.parametrize(
    ("is_full", "sizes"),
    [(False, ()), (False, (900,)), (False, (700, 900)), (True, (1100, 1100))],
    ids=["first", "second", "third", "full disk"],
)
def test_power_cut_or_kill_at_any_step_leaves_old_or_new(
    new_storage: Callable[..., Any], is_full: bool, sizes: tuple[int, ...]
) -> None:
    old, new = None, b"2" * 1100
    reached = set()
    for seed in range(200):
        rng = Random(seed)
        storage = new_storage(rng)
        for number, size in enumerate(sizes):
            old = b"%d" % number * size
            write_config(storage, PATH, old)
        storage.is_full = is_full
        storage.changes_left = rng.randrange(10)
        is_written = False
        try:
            write_config(storage, PATH, new)
            is_written = True
        except PowerCut:
            pass
        storage.changes_left = None
        storage.lose_power() if rng.random() < 0.7 else storage.kill()

        content = read_config(storage, PATH, bytes).value
        assert content in ((new,) if is_written else (old, new)), seed
        reached.add((is_written, content))
    assert len(reached) == 3


@pytest.mark.parametrize("is_full", [False, True])
def test_one_power_cut_or_kill_after_another_leaves_old_or_new(
    new_storage: Callable[..., Any], is_full: bool
) -> None:
    for seed in range(300):
        rng = Random(seed)
        storage = new_storage(rng)
        for value in (b"a", b"b"):
            write_config(storage, PATH, value * 700)
        expected, keeps_backup = {b"b" * 700}, False
        for value in (b"c", b"d", b"e", b"f", b"g", b"h"):
            storage.is_full = is_full
            # During the write of the content, before the directory is synced, or anywhere.
            storage.changes_left = rng.choice((1, 5, 6, rng.randrange(20)))
            try:
                write_config(storage, PATH, value * 700, keeps_backup=keeps_backup)
                expected, keeps_backup = {value * 700}, False
            except OSError:
                # Of the two files the power cut has left one, and there is no room for another.
                assert is_full
            except PowerCut:
                storage.lose_power() if rng.random() < 0.7 else storage.kill()
                found = read_config(storage, PATH, whole)
                assert found.value in (*expected, value * 700), seed
                expected, keeps_backup = {found.value}, found.damage is not None
                # As a start does.
                storage.sync_directory("config")


def whole(data: bytes) -> bytes:
    if len(set(data)) > 1:
        raise ValueError("of two contents")
    return data


@pytest.mark.parametrize("is_full", [False, True])
def test_power_cut_or_kill_never_leaves_a_damaged_file_without_its_backup(
    new_storage: Callable[..., Any], is_full: bool
) -> None:
    backup, new = b'"1%s"' % bytes(700).hex().encode(), b'"2%s"' % bytes(700).hex().encode()
    reached = set()
    for seed in range(200):
        rng = Random(seed)
        storage = new_storage(rng)
        write_config(storage, PATH, backup)
        write_config(storage, PATH, b'"3%s"' % bytes(700).hex().encode())
        storage.inodes[PATH].replace(b"?" * len(new))
        storage.is_full = is_full
        storage.changes_left = rng.randrange(10)
        with suppress(PowerCut):
            write_config(storage, PATH, new, keeps_backup=True)
        storage.changes_left = None
        storage.lose_power() if rng.random() < 0.7 else storage.kill()

        value = read_config(storage, PATH, json.loads).value
        assert value in (json.loads(backup), json.loads(new)), seed
        reached.add(value)
    assert len(reached) == 2


def test_full_disk_takes_content_that_has_not_grown(storage: Any) -> None:
    for n in range(2):
        write_config(storage, PATH, b"%d" % n * 700)
    storage.is_full = True
    for n in range(2, 5):
        write_config(storage, PATH, b"%d" % n * (700 - n))

        assert read_config(storage, PATH, bytes).value == b"%d" % n * (700 - n)

    for _ in range(2):
        with pytest.raises(OSError, match="no space"):
            write_config(storage, PATH, b"5" * 9_000)
        assert read_config(storage, PATH, bytes).value == b"4" * 696
    storage.is_full = False
    write_config(storage, PATH, b"6" * 90)
    assert read_config(storage, PATH, bytes).value == b"6" * 90
    assert storage.list_names("config") == ["topics.json", "topics.json.bak"]


def test_failed_write_keeps_the_old_content(storage: Any) -> None:
    write_config(storage, PATH, b"old")
    storage.bytes_left = 2
    with pytest.raises(OSError, match="no space"):
        write_config(storage, PATH, b"new content")

    assert read_config(storage, PATH, bytes).value == b"old"


@pytest.mark.parametrize("is_full", [True, False])
def test_the_only_whole_content_and_that_of_a_failing_disk_are_not_written_over(
    storage: Any, is_full: bool
) -> None:
    for n in range(2):
        write_config(storage, PATH, b"%d" % n * 700)
    if is_full:
        storage.remove(PATH)
        storage.is_full = True
    else:
        storage.fail()

    with pytest.raises(OSError, match=r"no space|does not answer"):
        write_config(storage, PATH, b"2" * 700)
    assert read_config(storage, f"{PATH}.bak", bytes).value == b"0" * 700
