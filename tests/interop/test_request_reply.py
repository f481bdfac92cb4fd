"""Java's `request` and replies to it, both over our broker."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_java_s_requests_are_answered(java: Any, our_cluster: Any) -> None:
    topic = our_cluster.create_topic("questions", queues=4)
    options = {"nameServer": our_cluster.name_server, "topic": topic}
    replier = java.peer("reply", group="GID_repliers", **options)
    try:
        replier.wait_for("started", lambda: replier.named("started"))
        told = java.run_peer("request", group="GID_askers", count=3, **options)
    finally:
        replier.kill()

    assert [f"re: question-{n}" for n in range(3)] == [
        event["body"] for event in told if event["event"] == "answer"
    ]
    assert 3 == len([event for event in replier.named("replied") if event["status"] == "SEND_OK"])
