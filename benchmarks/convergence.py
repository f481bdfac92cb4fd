"""Time until every queue has exactly one owner after members of a group change.

Targets: with our client on our broker, a join takes at most 0.3 s, a leave and a kill 0.1 s, a
frozen member 20 s. On Apache's broker, our client is no slower than Apache's. After a kill, locks
slow nothing down (`rejoin`: a member joins right after a kill, while the broker may still hold the
killed member's locks).

Every member is a process. Two members of a group share eight queues while 200 messages a second
arrive. A third member joins and leaves, is killed and joins again at once; or (`--frozen`) it is
stopped by SIGSTOP and wakes again. Time counts from the call that starts the consumer, from the
call that closes it, or from the signal. It ends with the last change of any living member's queues
after which each queue has one owner. A member owns a queue while it may pull the queue: in Java, an
entry in the process queue table that is not dropped; in ours, a queue that is CONSUMING. Each
member checks its own queues every 2 ms. Duplicates are deliveries of a message beyond its first.

    python benchmarks/convergence.py [--repeats 5] [--version 4.9.7] [--frozen] [--members N]
                                     [--out DIRECTORY]

With `--members 100` or 500, so many members share 512 queues: all but two in one process, on our
broker, on Apache's, and there beside a member in Java that comes and goes. A JVM holds the members
of a group of up to `JAVA_MEMBERS_MAX` as well. The table is `convergence-N.md`, and nobody counts
duplicates. `--frozen` measures nothing else, into `convergence-frozen.md`.

A column takes about a minute, so that the sets of 3, 100 and 500 members take about a quarter of an
hour together:

    for members in 3 100 500; do python benchmarks/convergence.py --members $members; done

A column that does not settle keeps what it has measured, and `n` says how often that was.

The benchmark prints one table, and writes it into `convergence.md`: a row for each change, a column
for each client and broker, with the median and the longest time in ms and the duplicates per
change. The columns of Apache's broker need Java and the jars that `make interop` fetches. Nothing
else should run on the machine: a member that waits for a processor is slow.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from against_apache import load_rig

ROOT = Path(__file__).resolve().parents[1]
TOPIC, GROUP = "convergence", "GID_converge"
MEMBER_COUNT, QUEUE_COUNT = 3, 8
RATE_PER_S = 200
# After this time without a change the group is settled, and late deliveries have arrived.
QUIET_S = 1.0
PATIENCE_S = 60.0
# The time before a kill in which members commit the consumed messages.
COMMITTED_S = 3.0
# For a frozen member: the broker's expiry, its scan, and a rebalance period.
FROZEN_PATIENCE_S = 200.0
KINDS = ("join", "leave", "kill", "rejoin", "frozen", "thaw")
TARGETS_MS = {"join": 300, "leave": 100, "kill": 100, "rejoin": 300, "frozen": 20_000}


OURS, APACHES = "our broker", "Apache's broker"


class Column(NamedTuple):
    """The client and the broker of a column.

    `locks`: whether members hand queues over under the broker's locks, our client's default.
    """

    client: str
    broker: str
    language: str
    locks: bool = True


# A large group's queues and columns.
LARGE_QUEUE_COUNT = 512
LARGE_TARGETS_MS = {"join": 500, "leave": 500, "kill": 500, "rejoin": 500, "frozen": 20_000}
LARGE_COLUMNS = (
    Column("ours", OURS, "python"),
    Column("ours", APACHES, "python"),
    Column("Java's", APACHES, "java"),
    Column("ours, and one of Java's", APACHES, "joined by java"),
)
# Each member in Java has some 15 threads, all in one JVM.
JAVA_MEMBERS_MAX = 100
COLUMNS = (
    Column("ours", OURS, "python"),
    Column("ours without locks", OURS, "python", locks=False),
    Column("ours", APACHES, "python"),
    Column("ours without locks", APACHES, "python", locks=False),
    Column("Java's", APACHES, "java"),
    Column("2 Java's, 1 ours", APACHES, "mixed"),
)
T = TypeVar("T")


class NotSettled(SystemExit):
    """A group whose queues have not one owner each after the patience."""


class Group:
    """Two permanent members and one that comes and goes, of one language on one cluster.

    Args:
        start: starts a member. label: names the group.
        queue_count: the queues that the members share.
        crowd: a process with many members, in the place of the first; None for no such process.
    """

    def __init__(
        self, start: Callable[[], Any], label: str, *, queue_count: int, crowd: Any = None
    ) -> None:
        self._start = start
        self._label = label
        self._queue_count = queue_count
        self.members = [start() if crowd is None else crowd, start()]
        self.everybody = list(self.members)
        self.times_ms: dict[str, list[float]] = defaultdict(list)
        self.duplicates: dict[str, list[int]] = defaultdict(list)

    def settle(self, patience_s: float = PATIENCE_S) -> float:
        """Wait until the group is settled; return its last change's instant (wall clock, ms)."""
        deadline = time.monotonic() + patience_s
        while True:
            last = [member.named("assignment")[-1:] for member in self.members]
            changed_ms = max((told[0]["at"] for told in last if told), default=0.0)
            owned = [queue for told in last if told for queue in told[0]["queues"]]
            is_divided = all(told and told[0]["queues"] for told in last)
            is_quiet = time.time() * 1000 - changed_ms > 1000 * QUIET_S
            if is_divided and is_quiet and len(owned) == len(set(owned)) == self._queue_count:
                return float(changed_ms)
            if time.monotonic() > deadline:
                raise NotSettled(f"{self._label}: not settled within {patience_s} s: {last}")
            time.sleep(0.01)

    def join(self, kind: str = "join") -> None:
        """Let a third member join, and measure it."""
        before = self._duplicate_count()
        member = self._start()
        self.members.append(member)
        self.everybody.append(member)
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
        # The two others keep their queues meanwhile: the last change is the member's.
        self._note("frozen", self.settle(FROZEN_PATIENCE_S) - begun_ms, before)
        before = self._duplicate_count()
        self.members.append(member)
        begun_ms = time.time() * 1000
        member.process.send_signal(signal.SIGCONT)
        time.sleep(QUIET_S)
        self._note("thaw", max(0.0, self.settle() - begun_ms), before)

    def close(self) -> None:
        """End all members."""
        for member in self.everybody:
            member.kill()

    def _note(self, kind: str, took_ms: float, duplicates_before: int) -> None:
        self.times_ms[kind].append(took_ms)
        self.duplicates[kind].append(self._duplicate_count() - duplicates_before)
        print(f"  {self._label}: {kind} {took_ms:.0f} ms", file=sys.stderr, flush=True)

    def _duplicate_count(self) -> int:
        places = [
            (event["queueId"], event["offset"])
            for member in self.everybody
            for event in member.named("message")
        ]
        return len(places) - len(set(places))


def measure(
    java: Any, cluster: Any, column: Column, *, repeats: int, is_frozen: bool, members: int
) -> Group:
    """Start a cluster, measure one kind of members, and end the cluster."""
    queue_count = QUEUE_COUNT if members == MEMBER_COUNT else LARGE_QUEUE_COUNT
    label = f"{column.client} on {column.broker}"
    start = starter(java, cluster, column)
    with running(cluster):
        cluster.create_topic(TOPIC, queues=queue_count)
        options = {"nameServer": cluster.name_server, "topic": TOPIC, "rate": RATE_PER_S}
        producer = java.python_peer("produce", **options)
        crowd = None
        if members != MEMBER_COUNT:
            peer = java.peer if column.language == "java" else java.python_peer
            crowd = peer(
                "crowd",
                nameServer=cluster.name_server,
                topic=TOPIC,
                group=GROUP,
                count=members - 2,
            )
            crowd.wait_for("started members", lambda: crowd.named("started"))
        group = Group(start, label, queue_count=queue_count, crowd=crowd)
        try:
            group.settle()
            group.join()
            for _ in range(repeats):
                if is_frozen:
                    group.freeze()
                    continue
                group.leave()
                group.join()
            for _ in range(0 if is_frozen else repeats):
                time.sleep(COMMITTED_S)
                group.kill()
                group.join("rejoin")
        except NotSettled as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            group.close()
            producer.kill()
    return group


def starter(java: Any, cluster: Any, column: Column, **options: object) -> Callable[[], Any]:
    """Return a function that starts a member of the group and waits until it runs."""
    peers = {"java": java.peer, "python": java.python_peer}
    # The last member, which comes and goes, is of the last language.
    languages = {
        "mixed": ["java", "java", "python"],
        "joined by java": ["python", "java"],
    }.get(column.language, [column.language])
    settings = {"topic": TOPIC, "group": GROUP, "locks": "yes" if column.locks else "no"}

    def start() -> Any:
        language = languages.pop(0) if len(languages) > 1 else languages[0]
        # A cluster has its address only once it runs.
        lines = peers[language]("consume", nameServer=cluster.name_server, **settings, **options)
        lines.wait_for("started consumer", lambda: lines.named("started"))
        return lines

    return start


@contextmanager
def running(cluster: Any) -> Generator[None]:
    """Start a cluster and end it."""
    cluster.start()
    try:
        yield
    finally:
        cluster.kill()


def render(groups: dict[Column, Group], version: str, *, members: int) -> str:
    """Return a table with the times and duplicates of each change, a column for each client."""
    is_large = members != MEMBER_COUNT
    queue_count = LARGE_QUEUE_COUNT if is_large else QUEUE_COUNT
    targets = LARGE_TARGETS_MS if is_large else TARGETS_MS
    columns = [f"{column.client}, {column.broker}" for column in groups]
    load = f"load {os.getloadavg()[1]:.0f} on {os.cpu_count()} cores"
    lines = [
        f"Apache RocketMQ {version}; {members} members, {queue_count} queues, {RATE_PER_S} "
        f"messages/s; {load}. "
        "Median and longest time in ms"
        f"{'' if is_large else ', in brackets the duplicates of a change'}.",
        "",
        f"| change | n | target | {' | '.join(columns)} |",
        "|---" * (len(columns) + 3) + "|",
    ]
    is_frozen = any("frozen" in group.times_ms for group in groups.values())
    for kind in KINDS:
        counts = sorted({len(group.times_ms[kind]) for group in groups.values()})
        # A frozen member has joined once: too little for a row.
        if not counts[-1] or (is_frozen and kind == "join"):
            continue
        target = f"{targets[kind]}" if kind in targets else ""
        cells = [
            _cell(group.times_ms[kind], [] if is_large else group.duplicates[kind])
            for group in groups.values()
        ]
        count = "–".join(dict.fromkeys(f"{each}" for each in (counts[0], counts[-1])))
        lines.append(f"| {kind} | {count} | {target} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(times_ms: list[float], duplicates: list[int]) -> str:
    if not times_ms:
        return "-"
    figures = f"{statistics.median(times_ms):.0f}, {max(times_ms):.0f}"
    return f"{figures} ({sum(duplicates) / len(duplicates):.1f})" if duplicates else figures


def run_columns(
    columns: Sequence[Column], version: str, run: Callable[[Any, Any, Column], T]
) -> dict[Column, T]:
    """Call a function for each column that can be measured here, each with its own cluster."""
    rig = load_rig()
    has_java = shutil.which("java") and (rig.cache_of(version) / "jars/complete").exists()
    results: dict[Column, T] = {}
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        (home / "java").mkdir()
        java = rig.Java("java", home / "java", version=version)
        if has_java:
            rig.compile_peer("javac", version)
        else:
            print("Java or RocketMQ's jars are missing (`make interop` fetches them)")
        for number, column in enumerate(columns):
            if column.broker == OURS:
                # Apache's default: the broker acknowledges messages before they are on the disk.
                data = home / f"{number}" / "data"
                cluster = rig.OurCluster(java, data, options=("--flush", "async"))
            elif has_java:
                cluster = rig.ApacheCluster(java, home / f"{number}" / "store")
            else:
                continue
            results[column] = run(java, cluster, column)
    return results


def main() -> None:
    """Measure all columns that can run here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--version", default="4.9.7", help="Apache RocketMQ's")
    parser.add_argument("--frozen", action="store_true", help="takes up to 140 s a column")
    parser.add_argument("--members", type=int, default=MEMBER_COUNT)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()

    def run(java: Any, cluster: Any, column: Column) -> Group:
        repeats = arguments.repeats
        return measure(
            java,
            cluster,
            column,
            repeats=repeats,
            is_frozen=arguments.frozen,
            members=arguments.members,
        )

    columns, parts = list(COLUMNS), ["convergence"]
    if arguments.members != MEMBER_COUNT:
        is_small = arguments.members <= JAVA_MEMBERS_MAX
        columns = [each for each in LARGE_COLUMNS if each.language != "java" or is_small]
        parts.append(f"{arguments.members}")
    if arguments.frozen:
        columns = [each for each in columns if each.locks]
        parts.append("frozen")
    groups = run_columns(columns, arguments.version, run)
    table = render(groups, arguments.version, members=arguments.members)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / f"{'-'.join(parts)}.md").write_text(table)
    print(table, end="")


if __name__ == "__main__":
    main()
