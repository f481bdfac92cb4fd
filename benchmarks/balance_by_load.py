"""How long a backlog lasts under AVG and under AVG_BY_LOAD, on real processes.

16 queues of one topic have weights by Zipf's law (exponent 0.8), and 12,000 messages wait. Two
groups consume them at the same time, each with four members in processes of their own: one takes
40 ms for a message, the others 10 ms. Counted per group: the time until nothing waits, and
deliveries beyond the first.

    python benchmarks/balance_by_load.py [--rounds 3] [--out DIRECTORY]

A round takes four minutes, of which the members wait most. The benchmark prints one table, and
writes it into `balance-by-load.md`. It is the cluster of `tests/interop/test_balance_by_load.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from sparrowmq import Admin
from sparrowmq.testing import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[1]
STRATEGIES = ("AVG", "AVG_BY_LOAD")
TOPIC = "T_by_load"
LIMIT_S = 600


class Drain(NamedTuple):
    """How long a group needed, and how often a message came again."""

    seconds: float
    again: int


def load_scene() -> Any:
    """Return the module of the live test."""
    path = ROOT / "tests" / "interop" / "test_balance_by_load.py"
    spec = importlib.util.spec_from_file_location("scene", path)
    assert spec is not None
    assert spec.loader is not None
    scene: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scene)
    return scene


def measure(scene: Any) -> dict[str, Drain]:
    """Let both groups consume the backlog."""
    with EmbeddedCluster() as cluster, Admin(name_server=cluster.name_server) as admin:
        groups = {f"GID_{strategy}": strategy for strategy in STRATEGIES}
        with (
            scene.members_of(cluster, TOPIC, "GID_AVG", "AVG") as counted,
            scene.members_of(cluster, TOPIC, "GID_AVG_BY_LOAD", "AVG_BY_LOAD") as measured,
        ):
            cluster.create_topic(TOPIC, queues=scene.QUEUES)
            scene.send_backlog(cluster, TOPIC)
            begun_s, seconds = time.monotonic(), dict[str, float]()
            while len(seconds) < len(groups) and time.monotonic() - begun_s < LIMIT_S:
                time.sleep(0.5)
                for group, strategy in groups.items():
                    if strategy not in seconds and not scene.lag_of(admin, group, TOPIC):
                        seconds[strategy] = time.monotonic() - begun_s
                        print(f"  {strategy}: {seconds[strategy]:.0f} s", file=sys.stderr)
            again = [
                sum(int(m.communicate("")[0].split()[-1]) for m in members) - scene.MESSAGES
                for members in (counted, measured)
            ]
    return {s: Drain(seconds[s], n) for s, n in zip(STRATEGIES, again, strict=True)}


def render(rounds: list[dict[str, Drain]]) -> str:
    """Return a table of the rounds' medians."""
    counted, measured = ([each[name] for each in rounds] for name in STRATEGIES)
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(counted, measured, strict=True))
    lines = [
        f"12,000 messages in 16 queues by Zipf 0.8, one slow member of four; {len(rounds)} rounds, "
        f"medians; load {os.getloadavg()[1]:.0f} on {os.cpu_count()} cores.",
        "",
        "| strategy | drained after, s | of AVG's time | deliveries beyond the first |",
        "|---|---|---|---|",
    ]
    for name, drains, part in zip(STRATEGIES, (counted, measured), (1.0, ratio), strict=True):
        median = statistics.median(drain.seconds for drain in drains)
        again = max(drain.again for drain in drains)
        lines.append(f"| `{name}` | {median:.0f} | {part:.2f} | {again} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    # The test's own module needs what pytest puts on the path.
    sys.path.append(str(ROOT / "tests" / "support"))
    scene = load_scene()
    table = render([measure(scene) for _ in range(arguments.rounds)])
    (arguments.out / "balance-by-load.md").write_text(table)
    print(table, end="")


if __name__ == "__main__":
    main()
