"""When files that changed are read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sparrowmq.errors import ConfigError
from sparrowmq.serving.watched_files import WatchedFiles

LOG = logging.getLogger("test")


def watch(path: Path) -> WatchedFiles:
    path.write_text("1")
    return WatchedFiles([path], what="the rules", log=LOG)


def test_files_are_read_once_two_looks_find_them_alike(tmp_path: Path) -> None:
    files = watch(path := tmp_path / "a")
    path.write_text("22")
    looks = [files.find_change()]
    path.write_text("333")
    looks += [files.find_change(), found := files.find_change()]

    assert found is not None
    assert [look is None for look in looks] == [True, True, False]
    assert files.are_still(found)
    files.note_used(found)
    assert files.find_change() is None
    path.write_text("4444")
    assert not files.are_still(found)


def test_a_change_is_seen_that_leaves_the_size_and_the_time_of_a_file(tmp_path: Path) -> None:
    files = watch(path := tmp_path / "a")
    before = path.stat()
    # The clock of files has steps.
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_text("2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert [files.find_change() is None for _ in range(2)] == [True, False]


def test_unreadable_files_are_read_again_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = watch(path := tmp_path / "a")
    path.write_text("22")
    files.find_change()
    for _ in range(3):
        found = files.find_change()
        assert found is not None
        error = ConfigError("no descriptor is left")
        error.__cause__ = OSError("too many open files")
        files.note_failure(found, error)
    assert caplog.messages == ["the rules stay as they were: no descriptor is left"]

    found = files.find_change()
    assert found is not None
    files.note_failure(found, ConfigError("no rules"))

    assert files.find_change() is None
    assert caplog.messages[1:] == ["the rules stay as they were: no rules"]


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)],
    ids=["pipe", "folder", "device"],
)
def test_only_regular_files_are_read_and_another_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    files = watch(path := tmp_path / "a")
    path.rename(kept := tmp_path / "b")
    make(path)

    assert [files.find_change() for _ in range(4)] == [None] * 4
    assert caplog.messages == [f"the rules stay as they were: {path} is not a regular file"]
    path.rename(tmp_path / "c")
    kept.rename(path)
    files.find_change()
    assert files.find_change() is not None
