"""Run the least steady test files again and again: `python -m gate.steady --runs 50`.

These are the files whose tests have failed by chance most often: they use processes, ports, threads
or a browser, and race with what else the machine does. They run as in `make test`, on more workers
than there are cores, each time in another order. Several runs go on at once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter

from gate.parts import notes_of_code, run_parts

FILES = (
    "tests/calling/test_blocking_driver.py",
    "tests/cli/test_rebalance.py",
    "tests/cli/test_top.py",
    "tests/client/test_hostile_servers.py",
    "tests/dash/test_browser.py",
    "tests/dash/test_watcher.py",
    "tests/drills/test_drill.py",
    "tests/grpc_service/test_server.py",
    "tests/hosting/test_several_brokers.py",
    "tests/testing/test_embedded.py",
)
WORKERS = 3
_PASSED = re.compile(r"(\d+) passed")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.M)


def run_once(number: int) -> tuple[int, list[str]]:
    """Run all files, and print what pytest says if a test fails.

    Returns: how many tests passed, and the names of those that failed.
    """
    command = (sys.executable, "-m", "pytest", "--dist", "loadgroup", "-n", f"{WORKERS}", *FILES)
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    passed = sum(int(count) for count in _PASSED.findall(run.stdout))
    failed = _FAILED.findall(run.stdout)
    if run.returncode:
        failed = failed or ["the run itself"]
        print(run.stdout + run.stderr, flush=True)
    print(f"run {number}: {passed} passed, {len(failed)} failed", flush=True)
    return passed, failed


def main() -> int:
    """Run, print the sums, and return 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m gate.steady", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    results = run_parts(
        run_once,
        range(1, options.runs + 1),
        is_passed=lambda result: not result[1],
        notes=notes_of_code("steady", "tests"),
        processes=os.cpu_count() or 1,
    )
    failed = Counter(name for _, names in results for name in names)
    passed = sum(count for count, _ in results)
    print(
        json.dumps({"files": len(FILES), "runs": options.runs, "passed": passed, "failed": failed})
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
