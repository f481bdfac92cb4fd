"""How long a backlog lasts under AVG and under AVG_BY_LOAD, on real processes.

16 queues of one topic have weights by Zipf's law (exponent 0.8), and 12,000 messages wait. Two
groups consume them at the same time, each with four members in processes of their own: one takes
40 ms for a message, the others 10 ms. Counted per group: the time until nothing waits, and
deliveries beyond the first.

    python benchmarks/balance_by_load.py [--rounds 3] [--steady MINUTES] [--out DIRECTORY]

A round takes four minutes, of which the members wait most. The benchmark prints one table, and
writes it into `balance-by-load.md`. It is the cluster of `tests/interop/test_balance_by_load.py`.

`--steady` measures something else: whether AVG_BY_LOAD comes to rest. The same four members consume
160 messages a second, whose keys have weights by Zipf's law, for so many minutes. Each five minutes
are a row of `balance-by-load-steady.md`: the queues that plans moved, those of them that went
back to an owner that they had before, and what waited at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.cli.connecting import CommandCluster, ConnectionOptions, open_cluster
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor.group_snapshot import PlanSnapshot
from sparrowmq.testing import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[1]
STRATEGIES = ("AVG", "AVG_BY_LOAD")
TOPIC = "T_by_load"
LIMIT_S = 600
# The steady run: the members consume 277 messages a second if they wait for nothing but listeners.
RATE_PER_S = 160
KEYS, KEY_EXPONENT = 400, 1.1
TICK_S, LOOK_S, ROW_S = 0.1, 5.0, 300.0


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


class Span(NamedTuple):
    """What happened in five minutes of the steady run."""

    minute: float
    sent: int
    moves: int
    moved_back: int
    waiting: int
    loads: tuple[float, ...]


class Moves:
    """The queues that changed their owner from one plan to the next."""

    def __init__(self) -> None:
        self._owners: dict[MessageQueue, str] = {}
        self._former: dict[MessageQueue, set[str]] = defaultdict(set)

    def note(self, plan: PlanSnapshot) -> tuple[int, int]:
        """Return how many queues have another owner now, and how many had this one before."""
        owners = dict(plan.owners)
        if not self._owners:
            # The first plan moved queues from where members had put them.
            self._owners = owners
            return len(plan.moved), 0
        moved = [queue for queue, cid in owners.items() if self._owners.get(queue, cid) != cid]
        back = sum(owners[queue] in self._former[queue] for queue in moved)
        for queue in moved:
            self._former[queue].add(self._owners[queue])
        self._owners = owners
        return len(moved), back


def run_steadily(scene: Any, minutes: float) -> str:
    """Send at one rate to a group of AVG_BY_LOAD, and return a table of its moves."""
    group = "GID_AVG_BY_LOAD"
    with EmbeddedCluster() as cluster, Admin(name_server=cluster.name_server) as admin:
        cluster.create_topic(TOPIC, queues=scene.QUEUES)
        print(f"  name server {cluster.name_server}", file=sys.stderr, flush=True)
        with (
            scene.members_of(cluster, TOPIC, group, "AVG_BY_LOAD") as members,
            open_cluster(ConnectionOptions(nameserver=cluster.name_server)) as looking,
            Producer("GID_by_load_producer", name_server=cluster.name_server) as producer,
        ):
            while len(admin.consumer_ids(group)) < len(members):
                time.sleep(0.1)
            spans = list(follow_group(scene, admin, looking, producer, group, minutes))
            while scene.lag_of(admin, group, TOPIC):
                time.sleep(0.5)
            got = [int(member.communicate("")[0].split()[-1]) for member in members]
    return render_steady(spans, again=sum(got) - sum(span.sent for span in spans))


def follow_group(
    scene: Any,
    admin: Admin,
    looking: CommandCluster,
    producer: Producer,
    group: str,
    minutes: float,
) -> Generator[Span]:
    """Send, look at the plan meanwhile, and yield each five minutes."""
    dice = random.Random(24)
    keys = [f"key-{number}" for number in range(KEYS)]
    weights = [(number + 1) ** -KEY_EXPONENT for number in range(KEYS)]
    moves, loads = Moves(), tuple[float, ...]()
    begun_s = tick_s = look_s = row_s = time.monotonic()
    sent = moved = back = 0
    while row_s - begun_s < 60 * minutes:
        drawn = dice.choices(keys, weights, k=round(RATE_PER_S * TICK_S))
        for future in [
            producer.send_nowait(
                Message(TOPIC, b"x", keys=(key,)),
                queue=MessageQueue(TOPIC, "broker-a", crc32(key.encode()) % scene.QUEUES),
            )
            for key in drawn
        ]:
            future.result(timeout=60)
        sent += len(drawn)
        now_s = time.monotonic()
        if now_s - look_s >= LOOK_S:
            look_s = now_s
            plan = looking.run(
                take_snapshot(looking.directory, group, strategy="AVG_BY_LOAD", asks_members=False)
            ).plan
            if plan is not None and plan.epoch:
                counts = moves.note(plan)
                moved, back = moved + counts[0], back + counts[1]
                by_member = plan.loads.member_loads(dict(plan.owners), plan.client_ids)
                loads = tuple(load for _, load in sorted(by_member.items()))
        if now_s - row_s >= ROW_S:
            row_s = now_s
            waiting = scene.lag_of(admin, group, TOPIC)
            span = Span((now_s - begun_s) / 60, sent, moved, back, waiting, loads)
            print(f"  {span}", file=sys.stderr, flush=True)
            yield span
            sent = moved = back = 0
        tick_s = max(tick_s + TICK_S, now_s)
        time.sleep(max(0.0, tick_s - time.monotonic()))


def render_steady(spans: list[Span], *, again: int) -> str:
    """Return a table of the steady run."""
    lines = [
        f"{sum(span.sent for span in spans):,} messages at {RATE_PER_S} a second into 16 queues by "
        f"keys of Zipf {KEY_EXPONENT:g}, `AVG_BY_LOAD`, one slow member of four (the first); "
        f"deliveries beyond the first: {again}; load {os.getloadavg()[2]:.0f} on "
        f"{os.cpu_count()} cores.",
        "",
        "| until minute | sent | queues moved | of them back | waiting | loads of the members |",
        "|---" * 6 + "|",
    ]
    lines += [
        f"| {span.minute:.0f} | {span.sent:,} | {span.moves} | {span.moved_back} | {span.waiting} "
        f"| {' · '.join(f'{load:.2f}' for load in span.loads)} |"
        for span in spans
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steady", type=float, metavar="MINUTES")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    # The test's own module needs what pytest puts on the path.
    sys.path.append(str(ROOT / "tests" / "support"))
    scene = load_scene()
    if arguments.steady is not None:
        name, table = "balance-by-load-steady.md", run_steadily(scene, arguments.steady)
    else:
        rounds = [measure(scene) for _ in range(arguments.rounds)]
        name, table = "balance-by-load.md", render(rounds)
    (arguments.out / name).write_text(table)
    print(table, end="")


if __name__ == "__main__":
    main()
