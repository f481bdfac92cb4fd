from __future__ import annotations

from pathlib import Path

import pytest

from sparrowmq.demo.run_directory import claim_directory
from sparrowmq.errors import ConfigError


def test_second_demo_replaces_what_the_first_left(tmp_path: Path) -> None:
    with claim_directory(tmp_path / "out") as directory:
        directory.report.write_text("old")
        directory.table.mkdir(parents=True)
        (directory.logbooks / "a").write_text("old")

    with claim_directory(tmp_path / "out") as directory:
        assert not directory.report.exists()
        assert not directory.table.exists()
        assert list(directory.logbooks.iterdir()) == []


def test_files_that_are_not_the_demos_stay(tmp_path: Path) -> None:
    with claim_directory(tmp_path):
        (tmp_path / "mine.txt").write_text("mine")

    with claim_directory(tmp_path):
        assert (tmp_path / "mine.txt").read_text() == "mine"


def test_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ingest").mkdir()

    with pytest.raises(ConfigError, match="not empty"), claim_directory(tmp_path):
        pass

    assert [path.name for path in tmp_path.iterdir()] == ["ingest"]


def test_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    with pytest.raises(ConfigError, match="not a directory"), claim_directory(path):
        pass


def test_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "out"

    with pytest.raises(ConfigError, match=f"{out} cannot be used: .*another --out"):
        claim_directory(out).__enter__()


def test_disk_without_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparrowmq.demo.run_directory._FREE_BYTES_MIN", 1 << 62)

    with pytest.raises(ConfigError, match="MiB of space and the demo needs"):
        claim_directory(tmp_path / "out").__enter__()


def test_directory_of_a_running_demo_is_refused(tmp_path: Path) -> None:
    with (
        claim_directory(tmp_path / "out"),
        pytest.raises(ConfigError, match="another demo"),
        claim_directory(tmp_path / "out"),
    ):
        pass
