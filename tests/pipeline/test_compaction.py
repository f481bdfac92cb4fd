"""Which batches a compaction merges, and that a kill at any moment loses and doubles none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from sparrowmq.pipeline.files import DirectoryEntry, DirectoryUsage
from sparrowmq.pipeline.ingest import compaction
from sparrowmq.pipeline.ingest.compaction import compact, recover

MIB = 1024 * 1024


class Killed(BaseException):
    """The process has ended before a change."""


class LocalFiles:
    """Directories of this machine, without a JVM, in a process that may be killed.

    Args:
        changes_left: the changes until the process is killed; None for any number.
    """

    def __init__(self, changes_left: int | None = None) -> None:
        self.changes_left = changes_left
        self.sizes: dict[str, int] = {}

    def _change(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise Killed
            self.changes_left -= 1

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def list(self, path: str) -> list[DirectoryEntry]:
        found = Path(path).iterdir() if Path(path).exists() else ()
        return sorted(DirectoryEntry(each.name, each.is_dir(), 0) for each in found)

    def usage(self, path: str) -> DirectoryUsage:
        return DirectoryUsage(1, self.sizes[Path(path).name])

    def read_text(self, path: str) -> str | None:
        return Path(path).read_text() if Path(path).exists() else None

    def remove(self, path: str) -> None:
        self._change()
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def move(self, source: str, target: str) -> None:
        self._change()
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        # As Hadoop: into a directory that is there already.
        shutil.move(source, target)


def use(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "Files", lambda session, path: files)


def tree_of(table: Path) -> dict[str, str]:
    return {str(each.relative_to(table)): each.read_text() for each in table.rglob("*.parquet")}


@pytest.mark.parametrize("changes", range(8))
def test_a_kill_at_any_moment_leaves_each_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: int
) -> None:
    table = tmp_path / "table"
    merged = "_writing/compacted"
    for name in ("batchId=2", "batchId=3", "batchId=5", "batchId=6", merged):
        (table / name).mkdir(parents=True)
        (table / name / "part.parquet").write_text(name)
    (table / "_compaction.json").write_text(json.dumps([2, 3, 5]))
    session: Any = None
    use(LocalFiles(changes), monkeypatch)
    try:
        recover(session, str(table))
        was_killed = False
    except Killed:
        was_killed = True

    use(LocalFiles(), monkeypatch)
    for _ in range(2):
        recover(session, str(table))

        assert tree_of(table) == {
            "batchId=5/part.parquet": merged,
            "batchId=6/part.parquet": "batchId=6",
        }
        assert not (table / "_compaction.json").exists()
        assert not (table / "_compacted").exists()
    assert was_killed is (changes < 6)


def test_committed_neighbours_are_merged_up_to_the_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {0: 100, 1: 156, 2: 1, 3: 300, 4: 10, 10: 20, 11: 30, 12: 1, 13: 1}
    for number in sizes:
        (tmp_path / "table" / f"batchId={number}").mkdir(parents=True)
    (tmp_path / "checkpoint" / "commits").mkdir(parents=True)
    for name in (*map(str, range(12)), ".13.crc"):
        (tmp_path / "checkpoint" / "commits" / name).touch()
    files = LocalFiles()
    files.sizes = {f"batchId={number}": mib * MIB for number, mib in sizes.items()}
    use(files, monkeypatch)
    merged: list[list[int]] = []
    monkeypatch.setattr(compaction, "_merge", lambda s, f, t, group, **_: merged.append(group))
    monkeypatch.setattr(compaction, "_count_files", lambda session, table: 0)
    session: Any = None

    compact(session, str(tmp_path / "table"), checkpoint=str(tmp_path / "checkpoint"))

    # The batches 12 and 13 may be written once more.
    assert merged == [[0, 1], [4, 10, 11]]
