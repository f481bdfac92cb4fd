"""Time until every queue has exactly one owner after members of a group change.

Targets: with our client on our broker a join takes at most 0.3 s, a leave and a kill 0.1 s, a
frozen member 20 s; on Apache's broker our client is no slower than Apache's. Not met is `rejoin`:
a newcomer that finds a queue's lock held cannot tell a member that drains from one that was killed,
and waits for the lock to expire or for the time that a drain may take. Locks also cost a leave and
a kill some 30 ms against Java's client, which has none and delivers messages twice instead.

Every member is a process. Two members of a group share eight queues while 200 messages a second
come in; a third joins and leaves, is killed, joins anew at once (`rejoin`: the broker may hold the
locks of the one that was killed), and (`--frozen`) is stopped by SIGSTOP and wakes again. Time
counts from the call that starts the consumer, from the call that closes it, and from the signal,
to the last change of any living member's queues after which each queue has one owner. A queue is
owned from when its owner may pull it to when it stops: Java's entry in the process queue table
that is not dropped, ours that is CONSUMING; each member looks at its own every 2 ms. Duplicates
are deliveries of a message beyond its first.

    python benchmarks/convergence.py [--repeats 5] [--version 4.9.7] [--frozen]

Java, and the jars that `make interop` fetches, are needed for all but the first line. Nothing else
should run on the machine: a member that waits for a processor is slow.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "convergence"
QUEUE_COUNT = 8
RATE_PER_S = 200
# No change for so long: the group is settled, and late deliveries have come.
QUIET_S = 1.0
PATIENCE_S = 60.0
# Before a kill: what was consumed is committed, as far as it will be.
COMMITTED_S = 3.0
# A frozen member: broker expiry, its scan, and a rebalance period.
FROZEN_PATIENCE_S = 200.0
KINDS = ("join", "leave", "kill", "rejoin", "frozen", "thaw")
TARGETS_MS = {"join": 300, "leave": 100, "kill": 100, "rejoin": 300, "frozen": 20_000}


class Group:
    """Two members that stay, and one that comes and goes, of one language on one cluster."""

    def __init__(self, start: Callable[[], Any], label: str) -> None:
        self._start = start
        self._label = label
        self.members = [start(), start()]
        self._everybody = list(self.members)
        self.times_ms: dict[str, list[float]] = defaultdict(list)
        self.duplicates: dict[str, list[int]] = defaultdict(list)

    def settle(self, patience_s: float = PATIENCE_S) -> float:
        """Wait until the group is settled; return when its last change was (wall clock, ms)."""
        deadline = time.monotonic() + patience_s
        while True:
            last = [member.named("assignment")[-1:] for member in self.members]
            changed_ms = max((told[0]["at"] for told in last if told), default=0.0)
            owned = [queue for told in last if told for queue in told[0]["queues"]]
            is_divided = all(told and told[0]["queues"] for told in last)
            is_quiet = time.time() * 1000 - changed_ms > 1000 * QUIET_S
            if is_divided and is_quiet and len(owned) == len(set(owned)) == QUEUE_COUNT:
                return float(changed_ms)
            if time.monotonic() > deadline:
                raise SystemExit(f"{self._label}: not settled within {patience_s} s: {last}")
            time.sleep(0.01)

    def join(self, kind: str = "join") -> None:
        """Let a third member join, and measure it."""
        before = self._duplicate_count()
        member = self._start()
        self.members.append(member)
        self._everybody.append(member)
        begun_ms = member.named("starting")[0]["at"]
        self._note(kind, self.settle() - begun_ms, before)

    def leave(self) -> None:
        """Let the third member close, and measure it."""
        before = self._duplicate_count()
        member = self.members.pop()
        member.stop()
        self._note("leave", self.settle() - member.named("stopping")[0]["at"], before)

    def kill(self) -> None:
        """Kill the third member, and measure it."""
        before = self._duplicate_count()
        member = self.members.pop()
        begun_ms = time.time() * 1000
        member.kill()
        self._note("kill", self.settle() - begun_ms, before)

    def freeze(self) -> None:
        """Stop the third member until the others have its queues; wake it and measure again."""
        before = self._duplicate_count()
        member = self.members.pop()
        begun_ms = time.time() * 1000
        member.process.send_signal(signal.SIGSTOP)
        # The two keep theirs meanwhile: the last change is the one that is waited for.
        self._note("frozen", self.settle(FROZEN_PATIENCE_S) - begun_ms, before)
        before = self._duplicate_count()
        self.members.append(member)
        begun_ms = time.time() * 1000
        member.process.send_signal(signal.SIGCONT)
        time.sleep(QUIET_S)
        self._note("thaw", max(0.0, self.settle() - begun_ms), before)

    def close(self) -> None:
        """End all members."""
        for member in self._everybody:
            member.kill()

    def _note(self, kind: str, took_ms: float, duplicates_before: int) -> None:
        self.times_ms[kind].append(took_ms)
        self.duplicates[kind].append(self._duplicate_count() - duplicates_before)
        print(f"  {self._label}: {kind} {took_ms:.0f} ms", file=sys.stderr, flush=True)

    def _duplicate_count(self) -> int:
        places = [
            (event["queueId"], event["offset"])
            for member in self._everybody
            for event in member.named("message")
        ]
        return len(places) - len(set(places))


def load_rig() -> Any:
    """Return the rig of the interoperability tests: it starts brokers and members."""
    path = ROOT / "tests" / "interop" / "conftest.py"
    spec = importlib.util.spec_from_file_location("rig", path)
    assert spec is not None
    assert spec.loader is not None
    rig = importlib.util.module_from_spec(spec)
    sys.modules["rig"] = rig
    spec.loader.exec_module(rig)
    return rig


def measure(
    java: Any, cluster: Any, language: str, label: str, *, repeats: int, is_frozen: bool
) -> Group:
    """Measure one language's members on one cluster, which is started and ended."""
    peer = {"java": java.peer, "python": java.python_peer}[language]

    def start() -> Any:
        lines = peer("consume", nameServer=cluster.name_server, topic=TOPIC, group="GID_converge")
        lines.wait_for("started consumer", lambda: lines.named("started"))
        return lines

    with running(cluster):
        cluster.create_topic(TOPIC, queues=QUEUE_COUNT)
        options = {"nameServer": cluster.name_server, "topic": TOPIC, "rate": RATE_PER_S}
        producer = java.python_peer("produce", **options)
        group = Group(start, label)
        try:
            group.settle()
            group.join()
            for _ in range(repeats):
                group.leave()
                group.join()
            for _ in range(repeats):
                time.sleep(COMMITTED_S)
                group.kill()
                group.join("rejoin")
            if is_frozen:
                group.freeze()
        finally:
            group.close()
            producer.kill()
    return group


@contextmanager
def running(cluster: Any) -> Iterator[None]:
    """Start a cluster and end it."""
    cluster.start()
    try:
        yield
    finally:
        cluster.kill()


def print_table(groups: dict[str, Group]) -> None:
    """Print medians and the longest, and the duplicates of all repetitions together."""
    print(
        f"{'':36}{'change':8}{'n':>3}{'median':>11}{'longest':>11}{'target':>10}{'duplicates':>12}"
    )
    for label, group in groups.items():
        for kind in KINDS:
            times = group.times_ms.get(kind, [])
            if not times:
                continue
            target = TARGETS_MS.get(kind)
            print(
                f"{label:36}{kind:8}{len(times):>3}{statistics.median(times):>8.0f} ms"
                f"{max(times):>8.0f} ms{f'{target} ms' if target else '':>10}"
                f"{sum(group.duplicates[kind]):>12}"
            )


def main() -> None:
    """Measure all that can run here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--version", default="4.9.7", help="Apache RocketMQ's")
    parser.add_argument("--frozen", action="store_true", help="takes up to 140 s a line")
    arguments = parser.parse_args()
    rig = load_rig()
    has_java = shutil.which("java") and (rig.cache_of(arguments.version) / "jars/complete").exists()
    options = {"repeats": arguments.repeats, "is_frozen": arguments.frozen}
    groups: dict[str, Group] = {}
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "java").mkdir()
        java = rig.Java("java", home / "java", version=arguments.version)
        plan = [("python", "our", rig.OurCluster(java, home / "ours" / "data"))]
        if has_java:
            rig.compile_peer("javac", arguments.version)
            for language in ("python", "java"):
                store = home / f"apache-{language}" / "store"
                plan.append((language, "Apache's", rig.ApacheCluster(java, store)))
        else:
            print("Java or RocketMQ's jars are missing (`make interop` fetches them)")
        for language, whose, cluster in plan:
            client = {"python": "our", "java": "Apache's"}[language]
            label = f"{client} client on {whose} broker"
            groups[label] = measure(java, cluster, language, label, **options)
    version = arguments.version if has_java else "absent"
    print(f"Apache RocketMQ {version}; {QUEUE_COUNT} queues, {RATE_PER_S} messages/s")
    print_table(groups)


if __name__ == "__main__":
    main()
