"""The job `ingest` that is killed: a topic to table and quarantine, to the end it finds.

Arguments: master, name server, directory. Prints `started` once the query runs and `done` at its
end.
"""

from __future__ import annotations

import sys

from pyspark.sql.streaming.listener import QueryStartedEvent

from sparrowmq.pipeline import ingest
from sparrowmq.spark import spark_session
from sparrowmq.spark.lag_listener import LagListener


class Starts(LagListener):
    """Says when the query has started."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        print("started", flush=True)


def main(master: str, name_server: str, place: str) -> None:
    spark = spark_session(
        "kills",
        master=master,
        short_lived=True,
        conf={"spark.executor.memory": "512m", "spark.task.maxFailures": "2"},
    )
    spark.sparkContext.setLogLevel("OFF")
    options = {
        "maxOffsetsPerTrigger": "150",
        "minPartitions": "3",
        "group": "GID_kills",
        "commitOffsets": "true",
    }
    settings = ingest.IngestSettings(
        name_server=name_server, topic="in", out=place, schema="n BIGINT NOT NULL", options=options
    )
    result = ingest.run(spark, settings, listener=Starts())
    counts = result.counts
    assert counts.gap_count == 0, counts.gaps
    assert counts.offsets == counts.rows + counts.put_aside, counts
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
