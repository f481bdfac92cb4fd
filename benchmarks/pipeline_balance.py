"""Seconds to evaluate made-up clusters of two sizes, and their ratio: the cost must be linear.

    python benchmarks/pipeline_balance.py [GROUPS]        100,000 groups of 10 topics by default

Runs the job `balance` under all strategies on this machine's cores, from the generated tables to
Parquet, first over a fifth of the groups, then over all. Start of the session excluded.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

from pyspark.sql import SparkSession

from sparrowmq.pipeline.balance import balance, summarise
from sparrowmq.pipeline.generated_cluster import generate_cluster
from sparrowmq.spark import spark_session


def measure(session: SparkSession, groups: int, place: str) -> float:
    begin = time.perf_counter()
    topics, members = generate_cluster(session, groups)
    balance(topics, members).write.mode("overwrite").parquet(place)
    seconds = time.perf_counter() - begin
    summaries = summarise(session.read.parquet(place))
    assert {groups} == {summary.groups for summary in summaries}
    rate = groups / seconds
    print(
        f"{groups:>9,} groups x {len(summaries)} strategies: {seconds:7.1f} s, {rate:,.0f} a second"
    )
    return seconds


def main() -> None:
    groups = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    session = spark_session("benchmark", driver_memory="2g", conf={"spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory() as place:
        measure(session, 200, place)
        small = measure(session, groups // 5, place)
        large = measure(session, groups, place)
    session.stop()
    print(
        f"{os.cpu_count()} cores; five times as many groups took {large / small:.2f} times as long"
    )


if __name__ == "__main__":
    main()
