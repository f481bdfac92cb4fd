"""Reads, writes and ingests with every file in the directory of its argument.

It runs as a process whose Python, home, temporary and working directories lie there too. It prints
what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from sparrowmq import Admin
from sparrowmq.pipeline import ingest
from sparrowmq.spark import spark_session
from sparrowmq.testing import EmbeddedCluster


def run(root: Path) -> dict[str, Any]:
    """Use the source, the sink, SQL and the job `ingest`; return what each found."""
    store = root / "data"
    with EmbeddedCluster(store) as cluster:
        place = cluster.name_server
        with Admin(name_server=place) as admin:
            admin.create_topic("in", queues=2)
        spark = spark_session("odd paths", master="local[2]", short_lived=True)
        spark.sparkContext.setLogLevel("OFF")
        spark.sql(
            "CREATE TEMPORARY VIEW sent (body BINARY, tags STRING) USING rocketmq "
            f"OPTIONS (nameServer '{place}', topic 'in')"
        )
        spark.sql(
            "INSERT INTO sent (body) SELECT CAST(CAST(id AS STRING) AS BINARY) FROM range(100)"
        )
        options = {"nameServer": place, "topic": "in", "startingOffsets": "earliest"}
        spark.read.format("rocketmq").options(**options).load().write.parquet(str(root / "rows"))
        settings = ingest.IngestSettings(name_server=place, topic="in", out=str(root / "out"))
        ingested = ingest.run(spark, settings)
        spark.readStream.format("rocketmq").options(**options).load().select(
            "body"
        ).writeStream.format("rocketmq").options(
            nameServer=place, topic="copy", createTopic=True
        ).option("checkpointLocation", str(root / "checkpoint")).trigger(
            availableNow=True
        ).start().awaitTermination()
        spark.range(3).write.saveAsTable("managed")
        found = {
            "view": spark.table("sent").count(),
            "ingested": ingested.counts.rows,
            "table": _count(root / "out" / "table"),
            "rows": _count(root / "rows"),
            "managed": spark.table("managed").count(),
        }
    by_path = {"storePath": str(store / "store"), "topic": "copy"}
    found["store"] = spark.read.format("rocketmq").options(**by_path).load().count()
    spark.stop()
    return found


def _count(path: Path) -> int:
    return int(ds.dataset(path, format="parquet").count_rows())


if __name__ == "__main__":
    print(json.dumps(run(Path(os.fsdecode(sys.argv[1])))))
