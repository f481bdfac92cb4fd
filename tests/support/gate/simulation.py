"""Run seeds of the simulation by several processes: `python -m gate.simulation --seeds 10000`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

from gate.parts import notes_of_code, ranges, run_parts

PART = 25
_FIGURES = re.compile(r"\d+ seeds, (\d+) failed; (\d+) messages")


def run_part(part: tuple[int, int]) -> tuple[int, int]:
    """Run seeds in a process of their own, and print what it says of those that fail.

    Returns: how many failed, and how many messages were acknowledged.
    """
    begin, seeds = part
    command = (sys.executable, "-m", "sparrowmq.simulation", "--seeds", f"{seeds}")
    run = subprocess.run(
        [*command, "--start", f"{begin}"], capture_output=True, text=True, check=False
    )
    found = _FIGURES.search(run.stdout)
    if run.returncode or found is None:
        print(run.stdout + run.stderr, flush=True)
    return (seeds, 0) if found is None else (int(found[1]), int(found[2]))


def main() -> int:
    """Run, print the sums, and return 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m gate.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    parts = run_parts(
        run_part,
        ranges(options.seeds, PART),
        is_passed=lambda result: not result[0],
        notes=notes_of_code("simulation"),
        processes=options.processes,
    )
    failed, messages = map(sum, zip(*parts, strict=True))
    print(f"{options.seeds} seeds, {failed} failed; {messages} messages acknowledged")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
