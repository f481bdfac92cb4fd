"""Duplicates and pauses while members of a group come and go under load.

Claims: between SparrowMQ members, a graceful join or leave redelivers nothing, on our broker and on
Apache's. No queue pauses for longer than its former owner's listener runs on, plus 100 ms.

Two members stay; a third joins and leaves in turn, by `close`. Every queue gets a message about
every 20 ms, and a listener takes `--work` ms. Each member is a process of its own. The first
message of a new owner counts: its *pause* is the time from its send to its delivery. The former
owner's *drain* is the part of the pause in which its last listener of the queue still runs; the
rest of the pause is *beyond* the drain. Duplicates are deliveries of a message beyond its first.

    python benchmarks/handover.py [--repeats 12] [--work 20] [--version 4.9.7]

The default takes about three minutes. The benchmark prints one table with a row for each client and
broker: joins and leaves, messages, missed and repeated messages; the median and the longest pause;
and, for the queue with the longest time beyond its drain, its pause, its drain and that time, all
in ms. Apache's broker needs Java and the jars that `make interop` fetches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from convergence import (
    APACHES,
    OURS,
    QUEUE_COUNT,
    TOPIC,
    Column,
    Group,
    run_columns,
    running,
    starter,
)

RATE_PER_S = 400
PATIENCE_S = 30.0
COLUMNS = (
    Column("ours", OURS, "python"),
    Column("ours", APACHES, "python"),
    Column("Java's", APACHES, "java"),
)


class Handover(NamedTuple):
    """One queue with a new owner; times in ms."""

    pause_ms: float
    drain_ms: float

    @property
    def beyond_ms(self) -> float:
        return self.pause_ms - self.drain_ms


class Figures(NamedTuple):
    """The results of a row."""

    changes: int
    sent: int
    missing: int
    duplicates: int
    handovers: list[Handover]


def find_handovers(group: Group, sent_at: dict[str, float], work_ms: int) -> list[Handover]:
    """Find the messages of a queue that went to another member than the message before."""
    deliveries = sorted(
        (event["queueId"], event["offset"], event["at"], number, event["body"])
        for number, member in enumerate(group.everybody)
        for event in member.named("message")
    )
    found: list[Handover] = []
    ends: dict[tuple[int, int], float] = {}
    last: tuple[int, int, int] | None = None
    for queue_id, offset, at, number, body in deliveries:
        is_next = last is not None and last[0] == queue_id and offset == last[1] + 1
        if is_next and last is not None and number != last[2] and body in sent_at:
            pause_ms = at - sent_at[body]
            drain_ms = min(pause_ms, ends[queue_id, last[2]] - sent_at[body])
            found.append(Handover(pause_ms, max(0.0, drain_ms)))
        if last is None or (queue_id, offset) != last[:2]:
            last = (queue_id, offset, number)
        ends[queue_id, number] = max(ends.get((queue_id, number), 0.0), at + work_ms)
    return found


def measure(java: Any, cluster: Any, column: Column, *, repeats: int, work_ms: int) -> Figures:
    """Let a member join and leave in turn, and return the results."""
    start = starter(java, cluster, column, workMs=work_ms)
    with running(cluster):
        cluster.create_topic(TOPIC, queues=QUEUE_COUNT)
        options = {"nameServer": cluster.name_server, "topic": TOPIC, "rate": RATE_PER_S}
        label = f"{column.client} on {column.broker}"
        group = Group(start, label, queue_count=QUEUE_COUNT)
        producer = java.python_peer("produce", **options)
        try:
            group.settle()
            for _ in range(repeats):
                group.join()
                group.leave()
            producer.stop()
            sent_at = {event["body"]: event["at"] for event in producer.named("sent")}
            wait_until(lambda: len(bodies(group)) >= len(sent_at))
        finally:
            group.close()
            producer.kill()
    return Figures(
        changes=2 * repeats,
        sent=len(sent_at),
        missing=len(sent_at) - len(bodies(group)),
        duplicates=sum(group.duplicates["join"]) + sum(group.duplicates["leave"]),
        handovers=find_handovers(group, sent_at, work_ms),
    )


def bodies(group: Group) -> set[str]:
    return {event["body"] for member in group.everybody for event in member.named("message")}


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.1)


def print_table(rows: dict[Column, Figures]) -> None:
    print(
        f"{'':<26}{'changes':>8}{'messages':>9}{'missing':>8}{'twice':>7}"
        f"{'queues':>8}{'pause: median':>15}{'longest':>8}"
        f"{'worst: pause':>14}{'drain':>7}{'beyond':>7}"
    )
    for column, figures in rows.items():
        pauses = [handover.pause_ms for handover in figures.handovers]
        worst = max(figures.handovers, key=lambda handover: handover.beyond_ms)
        print(
            f"{f'{column.client} on {column.broker}':<26}{figures.changes:>8}{figures.sent:>9}"
            f"{figures.missing:>8}{figures.duplicates:>7}{len(pauses):>8}"
            f"{statistics.median(pauses):>15.0f}{max(pauses):>8.0f}"
            f"{worst.pause_ms:>14.0f}{worst.drain_ms:>7.0f}{worst.beyond_ms:>7.0f}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--work", type=int, default=20, help="what a listener takes, in ms")
    parser.add_argument("--version", default="4.9.7", help="Apache RocketMQ's")
    arguments = parser.parse_args()

    def run(java: Any, cluster: Any, column: Column) -> Figures:
        repeats, work_ms = arguments.repeats, arguments.work
        return measure(java, cluster, column, repeats=repeats, work_ms=work_ms)

    rows = run_columns(COLUMNS, arguments.version, run)
    print(
        f"Apache RocketMQ {arguments.version}; {QUEUE_COUNT} queues, {RATE_PER_S} messages/s, "
        f"listeners of {arguments.work} ms; times in ms"
    )
    print_table(rows)


if __name__ == "__main__":
    main()
