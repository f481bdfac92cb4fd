"""A query that is killed: a topic to Parquet, micro-batch after micro-batch, to the end it finds.

Arguments: master, name server, directory. Prints `started` once the query runs and `done` at its
end.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sparrowmq.pipeline.parquet import parquet_writer
from sparrowmq.spark import spark_session


def main(master: str, name_server: str, place: str) -> None:
    spark = spark_session(
        "kills",
        master=master,
        short_lived=True,
        conf={"spark.executor.memory": "512m", "spark.task.maxFailures": "2"},
    )
    spark.sparkContext.setLogLevel("OFF")
    query = (
        spark.readStream.format("rocketmq")
        .options(nameServer=name_server, topic="in", startingOffsets="earliest")
        .options(
            maxOffsetsPerTrigger="150",
            minPartitions="3",
            columns="brokerName,queueId,queueOffset,body",
        )
        .options(group="GID_kills", commitOffsets="true")
        .load()
        .writeStream.foreachBatch(parquet_writer(str(Path(place, "table"))))
        .option("checkpointLocation", str(Path(place, "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
