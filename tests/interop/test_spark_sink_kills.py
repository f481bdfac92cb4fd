"""Drivers, executors, Python workers and the broker of a write killed; each row is read once.

Each run goes on from the query's checkpoint, with new messages and at times a new queue, and kills
something while it works. At the end the topic must hold duplicates, for else nothing was proven,
and `exactly_once` must read every row exactly once, as a batch and as a stream. SINK_KILLS says how
many runs, SINK_KILLS_SEED what becomes of them.
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

from spark_kills import KILL_DELAY_S_MAX, RUN_TIMEOUT_S, VICTIMS, Job, produce, strike
from sparrowmq import Admin, MessageQueue
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

RUNS = int(os.environ.get("SINK_KILLS", "4"))
SEED = int(os.environ.get("SINK_KILLS_SEED", "0") or 0) or random.SystemRandom().randrange(1 << 30)
ROWS_A_RUN = 600
QUEUES = 3
SCRIPT = Path(__file__).with_name("spark_sink_job.py")

pytestmark = [pytest.mark.interop, pytest.mark.timeout((RUNS + 3) * RUN_TIMEOUT_S)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "data") as found:
        yield found


def count_sent(cluster: EmbeddedCluster) -> int:
    with Admin(name_server=cluster.name_server) as admin:
        return sum(admin.max_offset(MessageQueue("out", "broker-a", n)) for n in range(QUEUES))


def await_messages(job: Job, cluster: EmbeddedCluster, sent: int) -> None:
    wait_until(
        "a message sent, or the job's end",
        lambda: count_sent(cluster) > sent or job.process.poll() is not None,
        timeout_s=RUN_TIMEOUT_S,
    )


def test_every_row_is_read_once(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    place = tmp_path / "place"
    place.mkdir()
    queues = QUEUES
    for topic in ("in", "out"):
        cluster.create_topic(topic, queues=queues)
    tally = dict.fromkeys(VICTIMS, 0)
    for run in range(RUNS):
        if run % 3 == 2:
            queues += 1
            cluster.create_topic("in", queues=queues)
        produce(cluster, queues, run * ROWS_A_RUN, ROWS_A_RUN)
        sent = count_sent(cluster)
        victim = VICTIMS[run % len(VICTIMS)] if run < len(VICTIMS) else dice.choice(VICTIMS)
        job = Job(SCRIPT, cluster, place, victim, "copy")
        try:
            await_messages(job, cluster, sent)
            # At once is in the midst of a task's sending.
            delay_s = dice.choice([0.0, dice.uniform(0, KILL_DELAY_S_MAX)]) if run else 0.0
            tally[victim] += strike(job, cluster, victim, dice, delay_s=delay_s)
        finally:
            job.wait()
    for verb in ("copy", "read"):
        last = Job(SCRIPT, cluster, place, "none", verb)
        last.wait()
        assert "done" in last.words, last.log.read_text()[-3000:]

    # Every row was sent twice on purpose; alike are two.
    expected = Counter(dict.fromkeys(range(RUNS * ROWS_A_RUN), 2))
    sent = count_sent(cluster)
    found = {
        how: Counter(map(int, ds.dataset(place / how).to_table()["body"].to_pylist()))
        for how in ("batch", "stream")
    }
    print(
        f"{RUNS} runs, seed {SEED}: killed {tally}; {sent} messages of {expected.total()} rows, "
        f"{found['batch'].total()} read as a batch, {found['stream'].total()} as a stream"
    )
    assert {"batch": expected, "stream": expected} == found, f"seed {SEED}"
    assert sent > expected.total(), f"no duplicate, seed {SEED}: nothing was proven"
