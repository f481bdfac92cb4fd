"""Run the least steady test files again and again: `python -m gate.steady --runs 50`.

These are the files whose tests have failed by chance most often: they use processes, ports, threads
or a browser, and race with what else the machine does. They run as in `make test`, on more workers
than there are cores, each time in another order. Several runs go on at once.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter

from gate.files import is_passed, run_pytest
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


def run_once(number: int) -> Counter[str]:
    """Run all files, and print what pytest says if a test fails.

    Returns: how many tests passed, failed and were skipped.
    """
    return run_pytest(f"run {number}", "--dist", "loadgroup", "-n", f"{WORKERS}", *FILES)


def main() -> int:
    """Run, print the sums, and return 1 if a test failed."""
    parser = argparse.ArgumentParser(prog="python -m gate.steady", description=__doc__)
    parser.add_argument("--runs", type=int, default=50)
    options = parser.parse_args()
    results = run_parts(
        run_once,
        range(1, options.runs + 1),
        is_passed=is_passed,
        notes=notes_of_code("steady", "tests"),
        processes=os.cpu_count() or 1,
    )
    total = Counter[str]()
    for counts in results:
        total.update(counts)
    print(json.dumps({"files": len(FILES), "runs": options.runs, "counts": total}))
    return 0 if is_passed(total) else 1


if __name__ == "__main__":
    sys.exit(main())
