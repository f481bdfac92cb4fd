"""What `sparrowmq snapshot` keeps of a group whose two members share one client id."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow.parquet as pq
from typer.testing import CliRunner

from group_views import Q0, Q1, Q3, QUEUES, view_at
from members import MemberProcess
from sparrowmq import SimpleConsumer
from sparrowmq.calling import clock
from sparrowmq.cli.main import build_app
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.client.faces.blocking_admin import Admin
from sparrowmq.model import Message, MessageExt, MessageQueue
from sparrowmq.pipeline.snapshot_tables import claim_timestamp, tables_of, write_tables
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.queue_watch import QueueWatch
from sparrowmq.testing import EmbeddedCluster

pytestmark = [pytest.mark.slow]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), ["snapshot", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(flush="async") as found:
        found.create_topic("orders", queues=4)
        yield found


def wait_for_members(cluster: EmbeddedCluster, count: int) -> None:
    deadline = time.monotonic() + 20
    with Admin(name_server=cluster.name_server) as admin:
        while len(admin.consumer_ids("GID_twins")) < count:
            assert time.monotonic() < deadline, "the members did not register"


def test_each_look_adds_a_file_to_three_tables(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for queue_id in range(4):
            producer.send(
                Message("orders", b"1"), queue=MessageQueue("orders", "broker-a", queue_id)
            )
    with ExitStack() as members:
        for _ in range(2):
            twin = MemberProcess(cluster, "GID_twins", topic="orders", instance="1")
            members.enter_context(twin)
        wait_for_members(cluster, 2)

        code, stdout, stderr = run(
            *("-n", cluster.name_server, "--out", str(tmp_path), "-g", "GID_twins"),
            *("--count", "2", "--every", "0", "--interval", "0.5", "--json"),
        )

    assert code == 0, stderr
    looks = [json.loads(line) for line in stdout.splitlines()]
    assert [(look["groups"], look["topics"], look["members"]) for look in looks] == [(1, 1, 2)] * 2
    names = sorted(f"{look['timestamp_ms']}.parquet" for look in looks)
    for table in ("topics", "members", "queues"):
        assert names == sorted(path.name for path in (tmp_path / table).iterdir())
    (topic,) = pq.read_table(tmp_path / "topics" / names[0]).to_pylist()
    assert tuple(
        topic[name] for name in ("consumerGroup", "topic", "brokerName", "queueCount")
    ) == ("GID_twins", "orders", "broker-a", 4)
    # Nothing comes in between the two samples.
    assert topic["messagesPerSecond"] == 0
    ids = pq.read_table(tmp_path / "members" / names[1])["clientId"].to_pylist()
    assert ids == ["172.17.0.1@1"] * 2
    queues = [
        row
        for row in pq.read_table(tmp_path / "queues" / names[1]).to_pylist()
        if row["topic"] == "orders"
    ]
    assert [row["owners"] for row in queues] == [ids, ids, [], []]
    assert [row["brokerOffset"] for row in queues] == [1] * 4
    assert [[rule] for rule in queues[0]["rules"]] * 4 == [row["rules"] for row in queues]
    assert queues[0]["rules"][0] in ("R01", "R02")


def test_a_message_in_flight_counts_until_it_is_acknowledged(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    cluster.create_topic("popped", queues=1)
    with (
        SimpleConsumer("GID_pop", "popped", name_server=cluster.name_server) as consumer,
        Producer("GID_p", name_server=cluster.name_server) as producer,
    ):
        for _ in range(3):
            producer.send(Message("popped", b"1"))
        # The first stays in flight, so that no offset is committed.
        received: list[MessageExt] = []
        while len(received) < 2:
            received += consumer.receive(2 - len(received), wait=timedelta(seconds=20))
        consumer.ack(received[1])

        code, _, stderr = run(
            *("-n", cluster.name_server, "-o", str(tmp_path), "-g", "GID_pop"),
            *("--count", "1", "--every", "0"),
        )
        with Admin(name_server=cluster.name_server) as admin:
            (lag,) = admin.group_lag("GID_pop", "popped")
        given = {"nameServer": cluster.name_server, "topic": "popped", "group": "GID_pop"}
        options = parse_options({**given, "startingOffsets": "group"}, scope="stream")
        begin = QueueWatch(options).first_offsets()

    assert code == 0, stderr
    assert (lag.max_offset, lag.lag) == (3, 2)
    # A read that goes on where the group stands has the message in flight.
    assert begin == {lag.queue: lag.committed_offset} == {lag.queue: 0}
    (queue,) = [
        row for row in pq.read_table(tmp_path / "queues").to_pylist() if row["topic"] == "popped"
    ]
    names = ("brokerOffset", "lag", "inFlight", "isByMessage", "owners", "idleMembers")
    assert [queue[name] for name in names] == [3, 2, 1, True, [], 0]
    # The job balance takes groups whose members divide queues.
    assert pq.read_table(tmp_path / "topics").num_rows == 0


def test_what_goes_wrong_is_one_line(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    unknown = run("-n", cluster.name_server, "-o", str(tmp_path), "-g", "GID_nobody")
    nowhere = run("-n", "127.0.0.1:1", "-o", str(tmp_path), "--timeout", "0.5")

    assert (unknown[0], len(unknown[2].splitlines())) == (2, 1)
    assert "no broker knows consumer group 'GID_nobody'" in unknown[2]
    assert (nowhere[0], len(nowhere[2].splitlines())) == (3, 1)


def test_a_group_that_is_left_out_is_named(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    with Admin(name_server=cluster.name_server) as admin:
        admin.update_committed_offset("GID_known", MessageQueue("orders", "broker-a", 0), 0)
    groups = ("-g", "GID_known", "-g", "GID_unknown")

    code, _, stderr = run("-n", cluster.name_server, "-o", str(tmp_path), *groups)

    assert code == 0, stderr
    assert "group GID_unknown was left out: no broker knows" in stderr
    assert "1 groups, 0 members" in stderr


def test_rows_have_the_offsets_and_the_members_without_a_queue() -> None:
    five = dict.fromkeys("abcde", 1)
    offsets = {Q0: 90, Q1: 100, QUEUES[2]: 110, Q3: 120}
    view = view_at(1_000, members=five, offsets=offsets, lag=7)

    tables = tables_of([replace(view.snapshot, reports=())], timestamp_ms=5)

    rows = tables["queues"].to_pylist()
    names = ("brokerOffset", "consumerOffset", "lag", "members", "idleMembers", "isDisputed")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (97, 90, 7, 5, 1, False),
        *((offset, offset, 0, 5, 1, False) for offset in (100, 110, 120)),
    ]
    assert [row["owners"] for row in rows] == [["a"], ["b"], ["c"], ["d"]]
    two = replace(view_at(1_000, members={"a": 1, "b": 1}).snapshot, reports=())
    shared = tables_of([two], timestamp_ms=5)["queues"].to_pylist()
    assert [(row["members"], row["idleMembers"]) for row in shared] == [(2, 0)] * 4
    assert sorted(row["clientId"] for row in tables["members"].to_pylist()) == list("abcde")
    assert {row["snapshotTimestamp"].timestamp() for row in rows} == {0.005}


def test_a_directory_may_have_the_name_of_a_url(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    code, _, stderr = run("-n", cluster.name_server, "-o", "snap-12:00")

    assert code == 0, stderr
    assert len(list((tmp_path / "snap-12:00" / "queues").iterdir())) == 1


def test_a_reader_that_leaves_ends_the_snapshots_quietly(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    options = f"-n {cluster.name_server} -o {tmp_path} --json --count 0 --every 0"
    line = f"{sys.executable} -m sparrowmq snapshot {options} | head -1; exit ${{PIPESTATUS[0]}}"

    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True)

    assert (found.returncode, len(found.stdout.splitlines()), found.stderr) == (1, 1, "")


def test_snapshots_of_one_millisecond_are_two(
    cluster: EmbeddedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = clock.timestamp_ms()
    monkeypatch.setattr(clock, "timestamp_ms", lambda: now_ms)

    code, stdout, stderr = run(
        *("-n", cluster.name_server, "-o", str(tmp_path)),
        *("--count", "2", "--every", "0", "--json"),
    )

    assert code == 0, stderr
    looks = [json.loads(line)["timestamp_ms"] for line in stdout.splitlines()]
    assert looks == [now_ms, now_ms + 1]
    for table in ("topics", "members", "queues"):
        found = sorted(path.name for path in (tmp_path / table).iterdir())
        assert found == [f"{at_ms}.parquet" for at_ms in looks]


def test_a_timestamp_is_of_one_of_two_processes(tmp_path: Path) -> None:
    first = claim_timestamp(tmp_path, 7)
    second = claim_timestamp(tmp_path, 7)
    write_tables(tables_of([], timestamp_ms=first), tmp_path, timestamp_ms=first)
    third = claim_timestamp(tmp_path, 7)

    assert (first, second, third) == (7, 8, 9)
    # The claims of two that are being written, which readers skip.
    names = [".8.parquet", ".9.parquet", "7.parquet"]
    assert sorted(path.name for path in (tmp_path / "members").iterdir()) == names


def test_a_snapshot_that_was_cut_off_is_not_the_newest(tmp_path: Path) -> None:
    (tmp_path / "members").touch()

    with pytest.raises(FileExistsError):
        write_tables(tables_of([], timestamp_ms=1), tmp_path, timestamp_ms=1)

    # The newest rows of this table say which snapshot is the newest.
    assert not (tmp_path / "topics").exists()


def test_rate_of_a_broker_is_that_of_all_its_queues() -> None:
    # Offsets of a queue go back where its topic was made anew.
    after = {**dict.fromkeys(QUEUES, 100), Q0: 150, Q1: 130, Q3: 40}
    first, last = (
        view_at(at_ms, offsets=offsets).snapshot
        for at_ms, offsets in ((0, dict.fromkeys(QUEUES, 100)), (10_000, after))
    )
    both = replace(last, samples=(*first.samples, *last.samples))

    (row,) = tables_of([both], timestamp_ms=1)["topics"].to_pylist()
    (single,) = tables_of([last], timestamp_ms=1)["topics"].to_pylist()

    assert (row["queueCount"], row["messagesPerSecond"]) == (4, 8.0)
    assert single["messagesPerSecond"] is None
