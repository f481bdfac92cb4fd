"""A narrow `ls`, and the jobs `backlog` and `balance` over snapshots, of Apache's brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from typer.testing import CliRunner

from commands import Commands
from sparrowmq import Admin, Message, Producer, PushConsumer
from sparrowmq.cli.main import build_app
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.timeout(600)]

TOPIC, GROUP = "jobs-behind", "GID_jobs_that_nobody_consumes_any_more"
LIVING = "GID_jobs_living"
MESSAGES = 400


@pytest.fixture(scope="module")
def smq(apache_cluster: Any) -> Iterator[Commands]:
    """A cluster with a group that had a member, and has 400 messages to consume."""
    name_server = apache_cluster.name_server
    apache_cluster.create_topic(TOPIC, queues=2)
    with Producer("GID_jobs_producer", name_server=name_server) as producer:
        queues = producer.fetch_publish_queues(TOPIC)
        with PushConsumer(
            GROUP,
            TOPIC,
            name_server=name_server,
            listener=lambda messages, context: None,
            start="first",
        ) as member:
            wait_until("all queues", lambda: len(member.assignment()) == 2, timeout_s=60)
            for queue in queues:
                producer.send(Message(TOPIC, b"consumed"), queue=queue)
            wait_until("all consumed", lambda: member.counters.succeeded == 2, timeout_s=60)
        for number in range(0, MESSAGES, 50):
            batch = [Message(TOPIC, b"%d" % each) for each in range(number, number + 50)]
            producer.send_batch(batch, queue=queues[number // 50 % 2])

    def lag() -> int:
        with Admin(name_server=name_server) as admin:
            return sum(each.lag for each in admin.group_lag(GROUP, TOPIC))

    wait_until("lag", lambda: lag() == MESSAGES, timeout_s=60)
    with PushConsumer(
        LIVING,
        TOPIC,
        name_server=name_server,
        listener=lambda messages, context: None,
        start="first",
    ) as member:
        wait_until("all consumed", lambda: member.counters.succeeded == MESSAGES + 2, timeout_s=60)
        yield Commands(name_server)


@pytest.fixture(scope="module")
def snapshots(smq: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two snapshots of the cluster."""
    place = tmp_path_factory.mktemp("snapshots")
    groups = ("--group", GROUP, "--group", LIVING)
    result = smq("snapshot", "--out", str(place), "--count", "2", "--every", "1", *groups)
    assert result.exit_code == 0, result.stderr
    return place


def run_job(*arguments: str) -> Any:
    result = CliRunner().invoke(build_app(), ["pipeline", *arguments, "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_narrow_ls_keeps_the_trouble(smq: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def has_waited() -> bool:
        rows = {each["group"]: each for each in smq.json("group", "ls")}
        # A broker that is late with its answer is left out.
        return GROUP in rows and rows[GROUP]["behind_since_timestamp_ms"] is not None

    # Brokers are asked for the age of what has waited for 10 s.
    wait_until("messages that wait", has_waited, timeout_s=60)
    # Both are what a terminal of 60 columns tells the printer of tables.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")

    result = smq("group", "ls")

    (line,) = (line for line in result.stdout.splitlines() if GROUP[:20] in line)
    assert "nobody consumes" in line
    assert "too narrow for retries, dead, behind since, topics" in result.stderr


def test_backlog_names_the_group_that_nobody_consumes(
    spark: Any, snapshots: Path, tmp_path: Path
) -> None:
    found = run_job("backlog", "--snapshots", str(snapshots), "--out", str(tmp_path / "out"))

    assert found["lag_by_cause"] == {"no member": MESSAGES}
    assert [
        (each["consumer_group"], each["queue_id"], each["lag_last"], each["owners"], each["cause"])
        for each in found["accumulations"]
    ] == [(GROUP, queue_id, MESSAGES // 2, ["nobody"], "no member") for queue_id in range(2)]


def test_balance_counts_the_queues_of_a_group_that_it_refuses_as_unowned(
    spark: Any, snapshots: Path, tmp_path: Path
) -> None:
    found = run_job("balance", "--snapshot", str(snapshots), "--out", str(tmp_path / "out"))

    (row,) = (row for row in found["strategies"] if row["strategy"] == "AVG")
    counts = {name: row[name] for name in ("groups", "failed", "queues", "unowned", "failure")}
    assert counts == {
        "groups": 2,
        "failed": 1,
        "queues": 4,
        "unowned": 2,
        "failure": "the group has no member",
    }
