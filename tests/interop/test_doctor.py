"""The doctor against Apache's broker and Apache's members: what it says is what they do."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import waiting
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.cli.main import build_app
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.doctor import GroupSnapshot

wait_until = partial(waiting.wait_until, timeout_s=60)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

JavaConsumer = Callable[..., Any]


def run(cluster: Any, *arguments: str) -> Result:
    app = build_app()
    at = ["--nameserver", cluster.name_server, "--timeout", "10"]
    return CliRunner().invoke(app, ["rebalance", *arguments, *at])


def diagnose(cluster: Any, group: str, *, interval_s: float = 0) -> dict[str, Any]:
    """What the doctor says, by rule."""
    result = run(cluster, "doctor", group, "--json", "--interval", str(interval_s))
    assert result.exit_code == 0, result.stderr
    return {finding["rule"]: finding for finding in json.loads(result.stdout)["findings"]}


def look(cluster: Any, group: str) -> GroupSnapshot:
    driver = BlockingDriver()
    try:
        directory = make_directory(cluster.name_server, timeout_ms=10_000)
        return driver.run(take_snapshot(directory, group))
    finally:
        driver.close()


def client_id(member: Any) -> str:
    return str(member.named("started")[0]["clientId"])


def ids(queues: list[dict[str, Any]], topic: str) -> list[int]:
    return [queue["queue_id"] for queue in queues if queue["topic"] == topic]


def test_containers_with_one_client_id(
    cluster: Any, java_push_consumer: JavaConsumer, java_producer: Callable[..., Any]
) -> None:
    topic, group = cluster.create_topic("doctor-twins", queues=8), "GID_doctor_twins"
    options = {"topic": topic, "group": group, "clientIP": "172.17.0.1", "instance": "9"}
    twins = [java_push_consumer(cluster, **options) for _ in range(2)]
    for twin in twins:
        twin.wait_for("half of the queues", lambda twin=twin: twin.queue_ids() == [0, 1, 2, 3])
    sent = java_producer(cluster, topic=topic, count=80)
    for twin in twins:
        twin.wait_for("40 messages", lambda twin=twin: len(twin.named("message")) >= 40)

    finding = diagnose(cluster, group)["R01"]
    orphan = run(cluster, "explain", group, "-q", "broker-a:7", "--topic", topic)

    assert finding["severity"] == "error"
    assert finding["members"] == ["172.17.0.1@9"]
    assert "172.17.0.1@9 is listed 2 times: connections from 127.0.0.1:" in finding["evidence"][0]
    assert twins[0].queue_ids() == twins[1].queue_ids() == ids(finding["double"], topic)
    assert ids(finding["unowned"], topic) == [4, 5, 6, 7]
    assert "(40 messages behind" in finding["consequence"]
    # What it says is so: half of the messages came twice, the other half to nobody.
    got = Counter(event["body"] for twin in twins for event in twin.named("message"))
    readable = [message["body"] for message in sent if message["queueId"] < 4]
    assert dict.fromkeys(readable, 2) == got
    assert "so nobody takes the queue" in orphan.stdout


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [("R05", ("one", "*"), ("two", "*")), ("R06", ("one", "A"), ("one", "B"))],
)
def test_members_that_subscribe_different_things(
    apache_cluster: Any,
    java_push_consumer: JavaConsumer,
    rule: str,
    first: tuple[str, str],
    second: tuple[str, str],
) -> None:
    group = f"GID_doctor_{rule}"
    for name in {first[0], second[0]}:
        apache_cluster.create_topic(f"doctor-{rule}-{name}", queues=4)
    members = [
        java_push_consumer(
            apache_cluster,
            group=group,
            topic=f"doctor-{rule}-{topic}",
            expression=expression,
        )
        for topic, expression in (first, second)
    ]
    wait_until("two members", lambda: len(look(apache_cluster, group).reports) == 2)

    finding = diagnose(apache_cluster, group)[rule]

    assert finding["severity"] == "error"
    assert {client_id(member) for member in members} == set(finding["members"])
    for member, (topic, expression) in zip(members, (first, second), strict=True):
        wanted = f"doctor-{rule}-{topic}" if rule == "R05" else expression
        assert f"member {client_id(member)}: {wanted}" in finding["evidence"]


def test_more_members_than_queues_and_what_each_of_them_tells(
    cluster: Any, java_push_consumer: JavaConsumer
) -> None:
    topic, group = cluster.create_topic("doctor-idle", queues=2), "GID_doctor_idle"
    options = {"topic": topic, "group": group, "strategy": "AVG_BY_CIRCLE"}
    members = [java_push_consumer(cluster, **options) for _ in range(3)]
    wait_until(
        "one queue, one queue, none",
        lambda: sorted(m.queue_ids() for m in members if m.named("assignment")) == [[], [0], [1]],
    )

    snapshot = look(cluster, group)
    finding = diagnose(cluster, group)["R14"]
    shown = json.loads(run(cluster, "show", group, "--json", "--interval", "0").stdout)

    idle = [client_id(member) for member in members if not member.queue_ids()]
    assert idle == finding["members"]
    assert (snapshot.strategy, snapshot.strategy_is_known) == ("AVG_BY_CIRCLE", True)
    assert {report.failure for report in snapshot.reports} == {""}
    held = {
        report.client_id: [h.queue.queue_id for h in report.held if h.queue.topic == topic]
        for report in snapshot.reports
    }
    assert {client_id(member): member.queue_ids() for member in members} == held
    owners = {
        queue["queue_id"]: [owner["client_id"] for owner in queue["owners"]]
        for queue in shown["queues"]
        if queue["topic"] == topic
    }
    assert owners == {
        queue_id: [cid for cid, mine in held.items() if queue_id in mine] for queue_id in (0, 1)
    }
    assert {member["language"] for member in shown["members"]} == {"JAVA"}


def test_frozen_member_is_named_with_its_queues(
    apache_cluster: Any, java_push_consumer: JavaConsumer, java_producer: Callable[..., Any]
) -> None:
    topic, group = apache_cluster.create_topic("doctor-frozen", queues=4), "GID_doctor_frozen"
    members = [java_push_consumer(apache_cluster, topic=topic, group=group) for _ in range(2)]
    for member in members:
        member.wait_for("two queues", lambda member=member: len(member.queue_ids()) == 2)
    frozen, working = members
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        java_producer(apache_cluster, topic=topic, count=40)
        working.wait_for("its half", lambda: len(working.named("message")) == 20)
        finding = diagnose(apache_cluster, group, interval_s=6)["R28"]
    finally:
        frozen.process.send_signal(signal.SIGCONT)

    assert [client_id(frozen)] == finding["members"]
    assert frozen.queue_ids() == ids(finding["unowned"], topic)
    assert "the member does not answer requests for its state" in finding["evidence"]
    assert "20 messages behind" in finding["consequence"]
