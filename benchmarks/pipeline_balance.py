"""CPU seconds to evaluate generated clusters of three sizes: the cost must be linear.

    python benchmarks/pipeline_balance.py [GROUPS]        100,000 groups of 10 topics by default

The job `balance` runs under all strategies on this machine's cores, from the generated tables to
Parquet: with a hundredth of the groups, a tenth, and all. The start of the session does not count.
CPU seconds are those of this process, of Java and of Spark's Python workers together.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from sparrowmq.pipeline.balance.generated_cluster import generate_cluster
from sparrowmq.pipeline.balance.job import balance, choose_strategies, summarise
from sparrowmq.spark import spark_session

# The fields of /proc/PID/stat behind the name: the parent, and the first of four counts of ticks.
_PARENT, _TICKS = 1, 11


def cpu_seconds() -> float:
    """Return the processor seconds of this process and all its descendants, ended ones included."""
    ticks: dict[int, int] = {}
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[_PARENT])
        ticks[pid] = sum(map(int, fields[_TICKS : _TICKS + 4]))
    total, family = 0, [os.getpid()]
    while family:
        pid = family.pop()
        total += ticks[pid]
        family += [child for child, parent in parents.items() if parent == pid]
    return total / os.sysconf("SC_CLK_TCK")


def measure(session: SparkSession, groups: int, place: str) -> float:
    begin, cpu = time.perf_counter(), cpu_seconds()
    topics, members = generate_cluster(session, groups)
    balance(topics, members, strategies=choose_strategies([])).write.mode("overwrite").parquet(
        place
    )
    seconds, cpu = time.perf_counter() - begin, cpu_seconds() - cpu
    summaries = summarise(session.read.parquet(place))
    assert {groups} == {summary.groups for summary in summaries}
    print(
        f"{groups:>9,} groups x {len(summaries)} strategies: {seconds:7.1f} s, "
        f"CPU {cpu:7.1f} s, {1000 * cpu / groups:.2f} ms a group",
        flush=True,
    )
    return cpu


def main() -> None:
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    session = spark_session("benchmark", driver_memory="2g", conf={"spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory() as place:
        measure(session, 200, place)
        measure(session, groups // 100, place)
        small = measure(session, groups // 10, place)
        large = measure(session, groups, place)
    session.stop()
    print(
        f"{os.cpu_count()} cores; ten times as many groups took {large / small:.1f} times as much"
    )


if __name__ == "__main__":
    main()
