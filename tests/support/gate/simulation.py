"""Run seeds of the simulation by several processes: `python -m gate.simulation --seeds 10000`.

Each part of the seeds that is done is noted, so a run that was stopped goes on, on the same code.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
NOTES = ROOT / ".cache/gate"
PART = 25
_FIGURES = re.compile(r"\d+ seeds, (\d+) failed; (\d+) messages")


class Part(NamedTuple):
    """What came of some seeds in a row."""

    seeds: int
    failed: int
    messages: int


def run_part(begin: int, seeds: int) -> Part:
    """Run seeds in a process of their own, and print what it says of those that fail."""
    command = (sys.executable, "-m", "sparrowmq.simulation", "--seeds", f"{seeds}")
    run = subprocess.run(
        [*command, "--start", f"{begin}"], capture_output=True, text=True, check=False
    )
    found = _FIGURES.search(run.stdout)
    if run.returncode or found is None:
        print(run.stdout + run.stderr, flush=True)
    return Part(seeds, seeds if found is None else int(found[1]), int(found[2]) if found else 0)


def run(seeds: int, *, processes: int, notes: Path | None) -> list[Part]:
    """Run the parts that are not noted; note and return all.

    Args:
        notes: the file of the parts that are done; None to note nothing.
    """
    done: dict[str, list[int]] = {}
    if notes is not None and notes.exists():
        done = json.loads(notes.read_text())
    parts = {f"{at} {min(PART, seeds - at)}": at for at in range(0, seeds, PART)}
    with ThreadPoolExecutor(processes) as pool:
        running = {
            pool.submit(run_part, at, min(PART, seeds - at)): name
            for name, at in parts.items()
            if name not in done
        }
        for part in as_completed(running):
            done[running[part]] = list(part.result())
            if notes is not None:
                notes.write_text(json.dumps(done))
    return [Part(*done[name]) for name in parts]


def notes_of_code() -> Path | None:
    """Return where the parts that are done are noted, None if the code is not a commit's."""
    git = ("git", "-C", str(ROOT))
    if subprocess.check_output([*git, "status", "--porcelain", "--", "src"]):
        return None
    tree = subprocess.check_output([*git, "rev-parse", "HEAD:src"], text=True).strip()
    NOTES.mkdir(parents=True, exist_ok=True)
    return NOTES / f"simulation-{tree[:12]}.json"


def main() -> int:
    """Run, print the sums, and return 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m gate.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    parts = run(options.seeds, processes=options.processes, notes=notes_of_code())
    failed = sum(part.failed for part in parts)
    print(
        f"{options.seeds} seeds, {failed} failed; "
        f"{sum(part.messages for part in parts)} messages acknowledged"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
