"""Drivers, executors, Python workers and the broker of a write killed; each row is read once.

Each run goes on from the query's checkpoint, with new messages and at times a new queue, and kills
one thing after the other while it works, until the topic holds duplicates, for else nothing is
proven. At the end `exactly_once` must read every row exactly once, as a batch and as a stream.
SINK_KILLS says how many kills, SINK_KILLS_SEED what becomes of them.
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
    read_messages,
    set_queues,
)
from sparrowmq import Admin, MessageQueue
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

KILLS = int(os.environ.get("SINK_KILLS", "5"))
SEED = int(os.environ.get("SINK_KILLS_SEED", "0") or 0) or random.SystemRandom().randrange(1 << 30)
ROWS_A_RUN = 600
QUEUES = 3
SCRIPT = Path(__file__).with_name("spark_sink_job.py")

pytestmark = [pytest.mark.interop, pytest.mark.timeout((KILLS + 3) * RUN_TIMEOUT_S)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(tmp_path / "data") as found:
        yield found


def ends_of_out(cluster: EmbeddedCluster) -> dict[MessageQueue, int]:
    queues = [MessageQueue("out", "broker-a", number) for number in range(QUEUES)]
    with Admin(name_server=cluster.name_server) as admin:
        return {queue: admin.max_offset(queue) for queue in queues}


def count_sent(cluster: EmbeddedCluster) -> int:
    return sum(ends_of_out(cluster).values())


def look(cluster: EmbeddedCluster, place: Path, total: int) -> str:
    """Say what the topic holds after a run, by its ids, read without Spark."""
    messages = read_messages(cluster, ends_of_out(cluster))
    bodies = {each.properties["WRITE_ID"]: each.body for each in messages}
    rows = Counter(bodies.values())
    done = [each.body for each in read_messages(cluster, committed_ends(place / "checkpoint"))]
    # Every row was sent twice on purpose; alike are two.
    twice = sum(count - 2 for count in rows.values() if count > 2)
    lost = sum(max(2 - rows[body], 0) for body in done)
    words = (
        f"{2 * total} rows, {2 * len(done)} in finished micro-batches; {len(messages)} messages, "
        f"{len(messages) - len(bodies)} of them duplicates to drop, {twice} twice, {lost} lost"
    )
    assert (twice, lost) == (0, 0), f"{words}; seed {SEED}"
    return words


def await_messages(job: Job, cluster: EmbeddedCluster, sent: int) -> None:
    wait_until(
        "a message sent, or the job's end",
        lambda: count_sent(cluster) > sent or job.is_done,
        timeout_s=RUN_TIMEOUT_S,
    )


def test_every_row_is_read_once(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    dice = random.Random(SEED)
    place = tmp_path / "place"
    place.mkdir()
    queues = QUEUES
    for topic in ("in", "out"):
        cluster.create_topic(topic, queues=queues)

    def has_duplicates() -> bool:
        return count_sent(cluster) > 2 * ROWS_A_RUN * campaign.runs

    campaign = Campaign(KILLS, dice, has_duplicates)
    while not campaign.is_over:
        master, run = campaign.next_run(), campaign.runs
        if run % 3 == 0:
            queues += 1
            set_queues(cluster, queues)
        produce(cluster, queues, (run - 1) * ROWS_A_RUN, ROWS_A_RUN)
        job = Job(SCRIPT, cluster, place, master, "copy")

        def moment(job: Job = job) -> float:
            await_messages(job, cluster, count_sent(cluster))
            # At once is in the midst of a task's sending.
            return dice.choice([0.0, dice.uniform(0, KILL_DELAY_S_MAX)])

        try:
            campaign.strike_often(job, cluster, moment)
        finally:
            job.wait()
        print(f"{campaign.progress}: {look(cluster, place, run * ROWS_A_RUN)}", flush=True)
    for verb in ("copy", "read"):
        last = Job(SCRIPT, cluster, place, LOCAL, verb)
        last.wait()
        assert "done" in last.words, last.log.read_text()[-3000:]

    # Every row was sent twice on purpose; alike are two.
    expected = Counter(dict.fromkeys(range(campaign.runs * ROWS_A_RUN), 2))
    sent = count_sent(cluster)
    found = {
        how: Counter(map(int, ds.dataset(place / how).to_table()["body"].to_pylist()))
        for how in ("batch", "stream")
    }
    print(
        f"all runs, seed {SEED}: {sent} messages of {expected.total()} rows, "
        f"{found['batch'].total()} read as a batch, {found['stream'].total()} as a stream"
    )
    assert found == {"batch": expected, "stream": expected}, f"seed {SEED}"
    assert sent > expected.total(), f"no duplicate, seed {SEED}: nothing was proven"
