"""Run seeds of the simulation by several processes: `python -m gate.simulation --seeds 10000`."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter

from gate.parts import notes_of_code, ranges, run_parts

PART = 25
# So many seeds must come to every situation.
SEEDS_TO_REACH_ALL = 1_000
_FIGURES = re.compile(r"\d+ seeds, (\d+) failed; (\d+) messages")
_REACHED = re.compile(r"(\d+) ([^,\n]+)")


def run_part(part: tuple[int, int]) -> tuple[int, int, dict[str, int]]:
    """Run seeds in a process of their own, and print what it says of those that fail.

    Returns: how many failed, how many messages were acknowledged, and how often the seeds came to
    each situation.
    """
    begin, seeds = part
    command = (sys.executable, "-m", "sparrowmq.simulation", "--seeds", f"{seeds}")
    run = subprocess.run(
        [*command, "--start", f"{begin}"], capture_output=True, text=True, check=False
    )
    found = _FIGURES.search(run.stdout)
    if run.returncode or found is None:
        print(run.stdout + run.stderr, flush=True)
    if found is None:
        return seeds, 0, {}
    reached = run.stdout.rpartition("reached: ")[2]
    counts = {name: int(count) for count, name in _REACHED.findall(reached)}
    return int(found[1]), int(found[2]), counts


def main() -> int:
    """Run, print the sums, and return 1 if a seed failed or a situation was never met."""
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
    failed, messages = sum(part[0] for part in parts), sum(part[1] for part in parts)
    reached: Counter[str] = Counter()
    for part in parts:
        reached.update(part[2])
    never = [name for name, count in reached.items() if not count]
    print(f"reached: {', '.join(f'{count} {name}' for name, count in reached.items())}")
    print(f"never: {', '.join(never) or 'none'}")
    print(
        f"{options.seeds} seeds, {failed} failed; {messages} messages acknowledged; "
        f"{len(reached) - len(never)} of {len(reached)} situations met"
    )
    return 1 if failed or (never and options.seeds >= SEEDS_TO_REACH_ALL) else 0


if __name__ == "__main__":
    sys.exit(main())
