"""Run test files one by one: `python -m gate.files --name peers -m interop tests/interop`.

Each file has a pytest of its own; most wait for JVMs, so several run at once. Files that have
passed on this code are noted and not run again, so a run of hours that was stopped goes on.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest

from gate.parts import notes_of_code, run_parts

_SUMMARY = re.compile(r"^(?:=+ )?(\d+ \w+.* in [\d.]+s)", re.M)
_FAILURES = {"failed", "error"}
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


def list_files(paths: Sequence[Path], ignored: Sequence[Path]) -> list[Path]:
    """Return the test files at the paths, by name."""
    found = {
        file
        for path in paths
        for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
    }
    return sorted(found - set(ignored))


def run_file(file: Path, *, marks: str) -> Counter[str]:
    """Run a file, and print what pytest says if it fails.

    Returns: how many of its tests passed, failed and were skipped.
    """
    # In a random order the brokers of each version would start again and again.
    return run_pytest(str(file), "-p", "no:randomly", "-m", marks, str(file))


def run_pytest(name: str, *arguments: str) -> Counter[str]:
    """Run pytest, and print its last line under a name, and all that it says if a test fails.

    Returns: how many tests passed, failed and were skipped.
    """
    command = (sys.executable, "-m", "pytest", *arguments)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    summary = "".join(_SUMMARY.findall(run.stdout)[-1:])
    counts = Counter({what: int(count) for count, what in _COUNT.findall(summary)})
    said = f"{name}: {summary or 'no summary'}"
    if run.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        counts.update({} if counts.keys() & _FAILURES else {"error": 1})
        said = f"{said}\n{run.stdout}{run.stderr}"
    print(said, flush=True)
    return counts


def is_passed(counts: Mapping[str, int]) -> bool:
    """Tell whether nothing of a file failed."""
    return not counts.keys() & _FAILURES


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
    total = Counter(passed=0)
    for counts in run_parts(
        partial(run_file, marks=options.marks),
        files,
        is_passed=is_passed,
        notes=notes,
        processes=options.processes,
    ):
        total.update(counts)
    print(", ".join(f"{count} {what}" for what, count in sorted(total.items(), reverse=True)))
    return 0 if is_passed(total) else 1


if __name__ == "__main__":
    sys.exit(main())
