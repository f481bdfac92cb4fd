from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparrowmq.errors import ConfigError
from sparrowmq.pipeline.local_paths import check_paths


def test_an_output_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    for out in ("file", "file/out"):
        with pytest.raises(ConfigError, match=r"file is a file; choose another directory$"):
            check_paths(str(tmp_path / out), ())


def test_a_relative_path_that_spark_takes_for_a_scheme_is_refused(tmp_path: Path) -> None:
    for out, inputs in (("run-2026-11-30T12:00", ()), (str(tmp_path), ("a:b/c.parquet",))):
        with pytest.raises(ConfigError, match=r"^(run-\S+|a:b\S+) has a colon in its first part"):
            check_paths(out, inputs)
    check_paths(str(tmp_path / "run-12:00"), ())


@pytest.mark.parametrize("out", ["", " "])
def test_an_output_without_a_name_is_refused(out: str) -> None:
    with pytest.raises(ConfigError, match="its directory is an empty text"):
        check_paths(out, ())


def test_a_directory_that_may_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The superuser may write everywhere.
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)

    with pytest.raises(ConfigError, match=f"this user may not write to {tmp_path}; choose"):
        check_paths(str(tmp_path / "a" / "b"), ())


def test_an_input_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read /nowhere: there is no such file"):
        check_paths(str(tmp_path / "new" / "out"), (str(tmp_path), "/nowhere"))


def test_a_path_that_the_system_refuses_is_one_that_is_not_there(tmp_path: Path) -> None:
    check_paths(str(tmp_path / ("x" * 300)), ())

    with pytest.raises(ConfigError, match=r"^cannot read x+: there is no such file"):
        check_paths(str(tmp_path), ("x" * 300,))


def test_what_only_spark_can_find_is_left_to_it(tmp_path: Path) -> None:
    check_paths("hdfs://nodes/out", ("s3a://bucket/a", "file:/nowhere", "/nowhere/*.parquet"))

    assert list(tmp_path.iterdir()) == []
