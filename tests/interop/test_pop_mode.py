"""Java's push consumer of 5.x in the mode that a broker gives it, on Apache's broker and ours."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

GROUP, TOPIC, COUNT = "GID_by_messages", "by-messages", 40


def send(cluster: Any, first: int, *, prefix: str = "m") -> set[str]:
    bodies = {f"{prefix}-{number}" for number in range(first, first + COUNT)}
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for body in sorted(bodies):
            producer.send(Message(TOPIC, body.encode()))
    return bodies


@pytest.mark.parametrize("java", ["5.5.0"], indirect=True, scope="session")
def test_more_members_than_queues_consume_by_messages(
    cluster: Any, java_push_consumer: Callable[..., Any]
) -> None:
    cluster.create_topic(TOPIC, queues=1)
    words = [str(Path(sys.executable).with_name("sparrowmq")), "group", "mode", GROUP]
    words += ["--topic", TOPIC, "--mode", "pop", "--yes", "--nameserver", cluster.name_server]
    made = [words[0], "group", "update", GROUP, "--retries", "3", "--yes", *words[-2:]]
    subprocess.run(made, check=True)
    subprocess.run(words, check=True)
    members = [
        java_push_consumer(
            cluster,
            topic=TOPIC,
            group=GROUP,
            instance=f"member-{number}",
            clientRebalance="false",
            failPrefix="fails-0",
            workMs=100,
        )
        for number in range(3)
    ]

    def counts() -> Counter[str]:
        return Counter(event["body"] for each in members for event in each.named("message"))

    def wait_for_all() -> None:
        members[0].wait_for("all messages", lambda: counts().keys() >= sent, timeout_s=120)

    sent: set[str] = set()
    deadline = time.monotonic() + 120
    # One queue, and yet each member works.
    while not all(each.named("message") for each in members):
        assert time.monotonic() < deadline, [len(each.named("message")) for each in members]
        sent.update(send(cluster, len(sent)))
        wait_for_all()
    assert counts() == Counter(dict.fromkeys(sent, 1))

    sent.update(send(cluster, 0, prefix="fails"))
    wait_for_all()
    members[0].wait_for("a second attempt", lambda: counts()["fails-0"] >= 2, timeout_s=120)
    attempts = [
        event["reconsumeTimes"]
        for each in members
        for event in each.named("message")
        if event["body"] == "fails-0"
    ]
    assert sorted(attempts) == [0, 1]
    assert {each.stop() for each in members} == {0}
