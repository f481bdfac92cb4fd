"""A query that runs while its broker removes messages."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sparrowmq import Message, Producer
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow

BODY = Random(0).randbytes(30_000)
# Less than a file of the log, which stays; and more than two.
FIRST, COUNT = 20, 120


def test_a_stream_that_is_overtaken_reads_what_is_kept_and_nothing_else(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = ("--log-file-mib", "1", "--disk-force-percent", "0")
    with EmbeddedCluster(options=options) as cluster:
        cluster.create_topic("T", 1)
        log_directory = cluster.data_dir / "store" / "commitlog"
        rows: list[tuple[int, bytes]] = []
        with Producer("GID_p", name_server=cluster.name_server) as producer:

            def send(numbers: range) -> None:
                for number in numbers:
                    producer.send(Message("T", b"%d " % number + BODY))

            def take(frame: DataFrame, batch_id: int) -> None:
                rows.extend((row.queueOffset, bytes(row.body)) for row in frame.collect())
                if batch_id == 0:
                    send(range(FIRST, COUNT))
                    wait_until("one file is left", lambda: len(list(log_directory.iterdir())) == 1)

            send(range(FIRST))
            given = {"nameServer": cluster.name_server, "topic": "T"}
            query = (
                spark.readStream.format("rocketmq")
                .options(**given, startingOffsets="earliest", failOnDataLoss="false")
                .options(maxOffsetsPerTrigger="10")
                .load()
                .writeStream.foreachBatch(take)
                .option("checkpointLocation", str(tmp_path))
                .start()
            )
            try:
                wait_until("all is read", lambda: _is_done(query, rows), timeout_s=90)
            finally:
                query.stop()
        with pytest.raises(PySparkException) as caught:
            spark.read.format("rocketmq").options(
                **given, startingOffsets='{"T": {"broker-a": {"0": 0}}}'
            ).load().count()

    offsets = [offset for offset, _ in rows]
    begin = offsets[10]
    assert [*range(10), *range(begin, COUNT)] == offsets
    assert FIRST < begin < COUNT
    assert [b"%d " % offset + BODY for offset in offsets] == [body for _, body in rows]
    assert f"offset 0 was to be read, but the queue begins at {begin}" in str(caught.value)


def _is_done(query: object, rows: list[tuple[int, bytes]]) -> bool:
    error = query.exception()  # type: ignore[attr-defined]
    assert error is None, error
    return bool(rows) and rows[-1][0] == COUNT - 1
