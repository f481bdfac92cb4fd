"""Drivers, executors, Python workers and the broker killed at random; nothing lost or twice.

Each run starts the query again from its checkpoint, with new messages and at times a new queue,
and kills one thing after the other while it works. At the end a plain Parquet reader, which knows
nothing of Spark, must find every message of every queue exactly once, in the table or in the
quarantine. SPARK_KILLS says how many
kills, SPARK_KILLS_SEED what becomes of them.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds

from spark_kills import (
    KILL_DELAY_S_MAX,
    LOCAL,
    RUN_TIMEOUT_S,
    Campaign,
    Job,
    committed_ends,
    produce,
    set_queues,
)
from spark_standalone import Standalone
from sparrowmq import Admin, MessageQueue
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

KILLS = int(os.environ.get("SPARK_KILLS", "5"))
SEED = int(os.environ.get("SPARK_KILLS_SEED", "0") or 0) or random.SystemRandom().randrange(1 << 30)
SCRIPT = Path(__file__).with_name("spark_ingest_job.py")

pytestmark = [pytest.mark.interop, pytest.mark.timeout((KILLS + 2) * RUN_TIMEOUT_S)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "data") as found:
        yield found


def body_of(number: int) -> bytes:
    """Return a message's body, of which one in five does not fit the schema."""
    return b"%d" % number if number % 5 == 0 else b'{"n": %d}' % number


def read_rows(place: Path) -> list[tuple[int, int, int]]:
    """Return queue, offset and number of every row of the table and of the quarantine."""
    found: list[tuple[int, int, int]] = []
    for name, column in (("table", "n"), ("quarantine", "body")):
        if list((place / name).glob("batchId=*")):
            rows = ds.dataset(place / name, format="parquet", partitioning="hive")
            columns = rows.to_table(["queueId", "queueOffset", column]).columns
            for queue, offset, value in zip(*(each.to_pylist() for each in columns), strict=True):
                assert (column == "body") == (int(value) % 5 == 0), value
                found.append((queue, offset, int(value)))
    return found


def look(place: Path, total: int) -> str:
    """Say what the table holds after a run; nothing may be lost or twice at any time."""
    rows = Counter((queue, offset) for queue, offset, _ in read_rows(place))
    ends = committed_ends(place / "checkpoint")
    done = {(queue.queue_id, offset) for queue, end in ends.items() for offset in range(end)}
    twice, lost = rows.total() - len(rows), len(done - rows.keys())
    words = (
        f"{total} messages, {len(done)} in finished micro-batches; {rows.total()} rows, "
        f"{twice} twice, {lost} lost"
    )
    assert (twice, lost) == (0, 0), f"{words}; seed {SEED}"
    return words


def test_every_message_is_in_parquet_once(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    place = tmp_path / "place"
    place.mkdir()
    queues = 3
    cluster.create_topic("in", queues=queues)
    total, campaign = 0, Campaign(KILLS, dice)
    while not campaign.is_over:
        master = campaign.next_run()
        if campaign.runs % 3 == 0:
            queues += 1
            set_queues(cluster, queues)
        produce(cluster, queues, total, 900, body_of)
        total += 900
        job = Job(SCRIPT, cluster, place, master)
        try:
            campaign.strike_often(job, cluster, lambda: dice.uniform(0, KILL_DELAY_S_MAX))
        finally:
            job.wait()
        print(f"{campaign.progress}: {look(place, total)}", flush=True)
    last = Job(SCRIPT, cluster, place, LOCAL)
    last.wait()

    assert "done" in last.words, last.log.read_text()[-3000:]
    found = read_rows(place)
    with Admin(name_server=cluster.name_server) as admin:
        held = {
            (queue, offset)
            for queue in range(queues)
            for offset in range(admin.max_offset(MessageQueue("in", "broker-a", queue)))
        }
        lags = [each.lag for each in admin.group_lag("GID_kills", "in")]
    print(f"all runs, seed {SEED}: {len(found)} rows of {total} messages")
    assert total == len(held)
    assert sorted(held) == sorted((queue, offset) for queue, offset, _ in found), f"seed {SEED}"
    assert list(range(total)) == sorted(number for *_, number in found)
    assert lags == [0] * queues


def test_a_worker_that_dies_takes_no_message_with_it(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    cluster.create_topic("in", queues=4)
    produce(cluster, 4, 0, 1_500, body_of)
    standalone = Standalone(tmp_path)
    try:
        standalone.start("worker-1", "worker-2")
        job = Job(SCRIPT, cluster, place, standalone.url)
        try:
            wait_until(
                "a micro-batch is written",
                lambda: committed_ends(place / "checkpoint") or job.is_done,
                timeout_s=RUN_TIMEOUT_S,
            )
            assert not job.is_done, job.log.read_text()[-3000:]
            killed = standalone.kill("worker-1")
        finally:
            job.wait()
    finally:
        standalone.stop()

    assert killed == 1
    assert "done" in job.words, job.log.read_text()[-3000:]
    assert sorted(number for *_, number in read_rows(place)) == list(range(1_500))
