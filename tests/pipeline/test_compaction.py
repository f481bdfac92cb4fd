"""Which batches a compaction merges, and that a kill at any moment loses and doubles none."""

from __future__ import annotations

from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from local_files import CopiedFiles, Killed, LocalFiles
from sparrowmq.pipeline.ingest import compaction
from sparrowmq.pipeline.ingest.compaction import compact, recover

MIB = 1024 * 1024


def use(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "Files", lambda session, path: files)


def tree_of(table: Path) -> dict[str, str]:
    return {str(each.relative_to(table)): each.read_text() for each in table.rglob("*.parquet")}


BATCHES = ("batchId=2", "batchId=3", "batchId=5", "batchId=6")
MERGED = "_writing/compacted"


def write_batches(table: Path, plan: str) -> None:
    """Write four batches, a merged one that waits for the place of three, and the plan of that."""
    for name in (*BATCHES, MERGED):
        for date in ("date=1", "date=2"):
            (table / name / date).mkdir(parents=True)
            (table / name / date / f"{name[-1]}.parquet").write_text(name)
    (table / "_compaction.json").write_text(plan)


def assert_is_done(table: Path, *batches: str, merged_into: str | None = None) -> None:
    places = {name: name for name in batches} | ({merged_into: MERGED} if merged_into else {})
    assert tree_of(table) == {
        f"{place}/{date}/{name[-1]}.parquet": name
        for place, name in places.items()
        for date in ("date=1", "date=2")
    }
    assert not (table / "_compaction.json").exists()
    assert not (table / "_compacted").exists()


@pytest.mark.parametrize("kind", [LocalFiles, CopiedFiles])
def test_a_kill_at_any_moment_leaves_each_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[LocalFiles]
) -> None:
    session: Any = None

    def is_killed(table: Path, changes: int) -> bool:
        use(kind(changes), monkeypatch)
        try:
            recover(session, str(table))
        except Killed:
            return True
        return False

    def is_killed_after(changes: int) -> bool:
        table = tmp_path / f"{changes}"
        write_batches(table, "[2, 3, 5]")
        # The runs after the first are killed too, each a change earlier, until one ends.
        kills = list(takewhile(lambda left: is_killed(table, left), range(changes, -1, -1)))

        use(kind(), monkeypatch)
        recover(session, str(table))
        assert_is_done(table, "batchId=6", merged_into="batchId=5")
        return bool(kills)

    moments = list(takewhile(is_killed_after, range(100)))
    assert len(moments) in range(5, 100)


@pytest.mark.parametrize("plan", ["", "[2, 3"])
def test_a_compaction_whose_plan_is_torn_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    session: Any = None
    for is_swapped in (False, True):
        for moved in range(4):
            table = tmp_path / f"{is_swapped}{moved}"
            write_batches(table, plan)
            (table / "_compacted").mkdir()
            for name in BATCHES[:moved]:
                (table / name).rename(table / "_compacted" / name)
            if is_swapped:
                for name in BATCHES[moved:3]:
                    (table / name).rename(table / "_compacted" / name)
                (table / MERGED).rename(table / "batchId=5")
            # A kill amid the recovery, too.
            use(LocalFiles(moved), monkeypatch)
            with suppress(Killed):
                recover(session, str(table))

            use(LocalFiles(), monkeypatch)
            recover(session, str(table))

            if is_swapped:
                assert_is_done(table, "batchId=6", merged_into="batchId=5")
            else:
                assert_is_done(table, *BATCHES)


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
