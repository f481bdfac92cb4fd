"""Run test files one by one: `python -m gate.files --name peers -m interop tests/interop`.

Each file has a pytest of its own; most wait for JVMs, so several run at once. Files that have
passed on this code are noted and not run again, so a run of hours that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import pytest

from gate.parts import notes_of_code

_SUMMARY = re.compile(r"^(?:=+ )?(\d+ \w+.* in [\d.]+s)", re.M)
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


def list_files(paths: Sequence[Path], ignored: Sequence[Path]) -> list[Path]:
    """Return the test files at the paths, by name."""
    found = {
        file
        for path in paths
        for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
    }
    return sorted(found - set(ignored))


def run_files(
    files: Sequence[Path], *, marks: str, notes: Path | None, processes: int = 1
) -> Counter[str]:
    """Run the files that are not noted as passed; print what pytest says of those that fail.

    Args:
        processes: how many files run at once.

    Returns: how many tests of all files passed, failed and were skipped.
    """
    done: dict[str, dict[str, int]] = {}
    if notes is not None and notes.exists():
        done = json.loads(notes.read_text())
    names, total = [*map(str, files)], Counter(passed=0)
    with ThreadPoolExecutor(processes) as pool:
        running = {pool.submit(_run_file, name, marks): name for name in names if name not in done}
        for ended in as_completed(running):
            name, (run, counts) = running[ended], ended.result()
            if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                print(run.stdout + run.stderr, flush=True)
                total.update(counts or {"error": 1})
                continue
            done[name] = counts
            if notes is not None:
                notes.write_text(json.dumps(done))
    for name in names:
        total.update(done.get(name, {}))
    return total


def _run_file(name: str, marks: str) -> tuple[subprocess.CompletedProcess[str], dict[str, int]]:
    command = (sys.executable, "-m", "pytest", "-m", marks, name)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = "".join(_SUMMARY.findall(run.stdout)[-1:])
    print(f"{name}: {summary or 'no summary'}", flush=True)
    return run, {what: int(count) for count, what in _COUNT.findall(summary)}


def main() -> int:
    """Run, print the sums, and return 1 if a file failed."""
    parser = argparse.ArgumentParser(prog="python -m gate.files", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--ignore", action="append", default=[], type=Path)
    parser.add_argument("--name", required=True, help="of the notes")
    parser.add_argument("-m", dest="marks", default="", help="pytest's option")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    notes = notes_of_code(options.name, "tests")
    files = list_files(options.paths, options.ignore)
    total = run_files(files, marks=options.marks, notes=notes, processes=options.processes)
    print(", ".join(f"{count} {what}" for what, count in sorted(total.items(), reverse=True)))
    return 1 if total["failed"] or total["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
