"""A store that was lost and filled again behind a stream's back, beyond the checkpoint."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")

from pyspark.sql.streaming.datasource import ReadAllAvailable

from sparrowmq.client.faces.blocking import Producer
from sparrowmq.model import Message, MessageQueue
from sparrowmq.spark import discovery
from sparrowmq.spark.checkpoint_offsets import decode_offsets, encode_offsets
from sparrowmq.spark.failures import DataLossError
from sparrowmq.spark.lag import lag_of
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.stream_reader import RocketMQStreamReader
from sparrowmq.spark.unlimited_stream_reader import UnlimitedStreamReader
from sparrowmq.testing import EmbeddedCluster

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(2)]


def fill(cluster: EmbeddedCluster, count: int) -> None:
    cluster.create_topic("T", queues=2)
    with Producer("GID_fill", name_server=cluster.name_server) as producer:
        for number in range(count):
            producer.send(Message("T", b"%d" % number), queue=QUEUES[number % 2])


class Query:
    """A streaming query's side of the source, begun anew from its checkpoint."""

    def __init__(self, cluster: EmbeddedCluster, **options: str) -> None:
        given = {"nameServer": cluster.name_server, "topic": "T", "startingOffsets": "earliest"}
        self.reader = RocketMQStreamReader(parse_options({**given, **options}, scope="stream"))

    def batch(self, start: str | None) -> str:
        """Return the end of the next micro-batch, as Spark writes both to the checkpoint."""
        begin: Any = self.reader.initialOffset() if start is None else json.loads(start)
        return json.dumps(self.reader.latestOffset(begin, ReadAllAvailable()))


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """The end of a batch with the first 100 messages of a store that is lost now."""
    with EmbeddedCluster(tmp_path / "lost") as cluster:
        fill(cluster, 100)
        query = Query(cluster)
        end = query.batch(None)
        assert decode_offsets(json.loads(end)) == dict.fromkeys(QUEUES, 50)
        # No batch begins without new messages, so Spark's comparison must see none.
        assert query.batch(end) == end
        return end


@pytest.mark.parametrize("count", [100, 300])
def test_a_queue_filled_again_beyond_the_checkpoint_is_a_loss(checkpoint: str, count: int) -> None:
    with EmbeddedCluster() as cluster:
        fill(cluster, count)

        with pytest.raises(DataLossError, match="T/broker-a/0: the queue was emptied and filled"):
            Query(cluster).batch(checkpoint)
        lenient = Query(cluster, failOnDataLoss="false")
        anew = lenient.batch(checkpoint)

        # What would have been passed over is read.
        assert decode_offsets(json.loads(anew)) == dict.fromkeys(QUEUES, 0)
        end = decode_offsets(json.loads(lenient.batch(anew)))
        assert end == dict.fromkeys(QUEUES, count // 2)


@pytest.mark.parametrize("count", [100, 300])
def test_a_batch_that_is_run_again_on_a_store_filled_anew_is_a_loss(
    checkpoint: str, count: int
) -> None:
    first = json.dumps(encode_offsets(dict.fromkeys(QUEUES, 0)))
    with EmbeddedCluster() as cluster:
        fill(cluster, count)

        with pytest.raises(DataLossError, match="T/broker-a/0: the queue was emptied and filled"):
            Query(cluster).reader.partitions(json.loads(first), json.loads(checkpoint))
        lenient = Query(cluster, failOnDataLoss="false", columns="queueOffset")
        partitions = lenient.reader.partitions(json.loads(first), json.loads(checkpoint))
        batches = [batch for each in partitions for batch in lenient.reader.read(each)]
        anew = lenient.batch(checkpoint)

    # It has the rows of these offsets, as a batch that runs again must, and the queues begin anew.
    assert sum(batch.num_rows for batch in batches) == 100
    assert decode_offsets(json.loads(anew)) == dict.fromkeys(QUEUES, 0)


def test_a_batch_that_is_run_again_on_the_same_store_has_its_rows(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path / "data") as cluster:
        fill(cluster, 20)
        query = Query(cluster)
        begin = json.dumps(query.reader.initialOffset())
        end = query.batch(begin)
    with EmbeddedCluster(tmp_path / "data") as cluster:
        fill(cluster, 6)
        reader = Query(cluster, columns="queueOffset").reader
        partitions = reader.partitions(json.loads(begin), json.loads(end))

        assert sum(batch.num_rows for each in partitions for batch in reader.read(each)) == 20


def test_without_limits_too_a_queue_filled_again_is_read_from_its_first_message(
    checkpoint: str,
) -> None:
    with EmbeddedCluster() as cluster:
        fill(cluster, 300)
        given = {"nameServer": cluster.name_server, "topic": "T", "columns": "queueOffset"}
        options = parse_options({**given, "failOnDataLoss": "false"}, scope="stream")
        reader = UnlimitedStreamReader(options)
        partitions = reader.partitions(json.loads(checkpoint), reader.latestOffset())

        batches = [batch for each in partitions for batch in reader.read(each)]

    assert sum(batch.num_rows for batch in batches) == 300


def test_a_queue_that_was_filled_again_before_its_first_message_came_is_a_loss(
    tmp_path: Path,
) -> None:
    with EmbeddedCluster(tmp_path / "lost") as cluster:
        fill(cluster, 100)
        query = Query(cluster, startingOffsets="latest")
        begin = json.dumps(query.reader.initialOffset())
        # Without a new message, no batch begins.
        assert query.batch(begin) == begin
    with EmbeddedCluster() as cluster:
        fill(cluster, 300)

        with pytest.raises(DataLossError, match="T/broker-a/0: the queue was emptied and filled"):
            Query(cluster).batch(begin)


def test_a_queue_filled_again_while_its_broker_was_waited_for_is_a_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = 1_000

    def discover_after_wait(*args: Any, **named: Any) -> Any:
        nonlocal now_ms
        now_ms += 3_000
        cluster.kill()
        shutil.rmtree(tmp_path / "data")
        cluster.start()
        fill(cluster, 300)
        return discovery.discover(*args, **named)

    with EmbeddedCluster(tmp_path / "data") as cluster:
        fill(cluster, 100)
        clock = SimpleNamespace(monotonic_ms=lambda: now_ms)
        monkeypatch.setattr("sparrowmq.spark.queue_watch.clock", clock)
        query = Query(cluster)
        end = query.batch(None)
        # A query without new messages looks every 10 ms.
        now_ms += 60
        monkeypatch.setattr("sparrowmq.spark.queue_watch.discover", discover_after_wait)

        with pytest.raises(DataLossError, match="T/broker-a/0: the queue was emptied and filled"):
            query.batch(end)


def test_the_same_store_after_a_restart_is_no_loss(tmp_path: Path) -> None:
    with EmbeddedCluster(tmp_path / "data") as cluster:
        fill(cluster, 20)
        end = Query(cluster).batch(None)
    with EmbeddedCluster(tmp_path / "data") as cluster:
        fill(cluster, 6)

        end = Query(cluster).batch(end)

    assert decode_offsets(json.loads(end)) == dict.fromkeys(QUEUES, 13)


def test_a_checkpoint_without_times_goes_on(checkpoint: str) -> None:
    offsets = json.dumps(encode_offsets(decode_offsets(json.loads(checkpoint))))
    with EmbeddedCluster() as cluster:
        fill(cluster, 300)

        end = Query(cluster).batch(offsets)

    assert decode_offsets(json.loads(end)) == dict.fromkeys(QUEUES, 150)
    source = {"endOffset": checkpoint, "latestOffset": end}
    assert lag_of({"sources": [source]}) == dict.fromkeys(QUEUES, 100)
