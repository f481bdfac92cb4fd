"""Which batches a compaction merges, and that a kill at any moment loses and doubles none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from local_files import Killed, LocalFiles
from sparrowmq.pipeline.ingest import compaction
from sparrowmq.pipeline.ingest.compaction import compact, recover

MIB = 1024 * 1024


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
