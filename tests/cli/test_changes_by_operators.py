"""Changes of a group's progress by operators: `group show`, the broker's log, the doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from sparrowmq import Admin, Message, MessageQueue, Producer, PushConsumer
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow

QUEUE = MessageQueue("T_audit", "broker-a", 0)


def changes(smq: Commands, group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = smq.json("group", "show", group)["changes"]
    return found


def test_every_change_of_progress_stays_visible(tmp_path: Path) -> None:
    with (
        EmbeddedCluster(tmp_path / "data", flush="async") as cluster,
        Admin(name_server=cluster.name_server, timeout_ms=10_000) as admin,
    ):
        smq = Commands(cluster.name_server)
        cluster.create_topic("T_audit", queues=1)
        with Producer("GID_p", name_server=cluster.name_server) as producer:
            for number in range(20):
                producer.send(Message("T_audit", b"%d" % number))
        with PushConsumer(
            "GID_audit",
            "T_audit",
            name_server=cluster.name_server,
            listener=lambda messages, context: None,
            start="first",
        ):
            wait_until("the end", lambda: admin.committed_offset("GID_audit", QUEUE) == 20)
            assert [c["kind"] for c in changes(smq, "GID_audit")] == ["made"]
            assert smq("group", "reset", "GID_audit", "--to", "earliest", "--yes").exit_code == 0
            wait_until("the end again", lambda: admin.committed_offset("GID_audit", QUEUE) == 20)
            doctor = smq.json("rebalance", "doctor", "GID_audit", "--interval", "0")
        admin.update_committed_offset("GID_audit", QUEUE, 7)
        assert smq("group", "update", "GID_audit", "--retries", "3", "--yes").exit_code == 0
        lines = tmp_path / "again.jsonl"
        lines.write_text("1\n2\n")
        assert smq("send", "T_audit", "--file", str(lines)).exit_code == 0
        after = smq.json("rebalance", "doctor", "GID_audit", "--interval", "0")

        seen = changes(smq, "GID_audit")
        cluster.restart()
        again = changes(smq, "GID_audit")
        log = cluster.log_path.read_text()

    assert [(c["kind"], c["from"], c["to"]) for c in reversed(seen)] == [
        ("made", {}, {}),
        ("reset", {"0": 20}, {"0": 0}),
        ("set", {"0": 20}, {"0": 7}),
        ("settings", {}, {}),
        ("sent", {"0": 20}, {"0": 22}),
    ]
    assert seen[1]["detail"] == "retry_max_times 16 → 3"
    assert {c["who"].partition(":")[0] for c in seen} == {"127.0.0.1"}
    assert again == seen
    assert [f["rule"] for f in doctor["findings"]] == ["Q08"]
    assert "127.0.0.1" in json.dumps(doctor["findings"][0]["evidence"])
    # Messages that an operator sent move no offset of the group.
    evidence = [f["evidence"] for f in after["findings"] if f["rule"] == "Q08"]
    assert evidence
    assert ": sent by" not in json.dumps(evidence)
    assert log.count("group 'GID_audit': reset by 127.0.0.1") == 1
    assert "1 queues: 20 messages back, 0 forward" in log
