"""A broker that comes back without its newest messages, while the group's member lives on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from members import MemberProcess
from sparrowmq import Admin, Message, MessageQueue, Producer
from sparrowmq.testing.embedded import EmbeddedCluster
from waiting import wait_until

TOPIC, GROUP = "Orders", "GID_living"
KEPT, LOST, NEW = 5, 20, 40


def send(cluster: EmbeddedCluster, count: int) -> list[int]:
    """Send messages to the topic's one queue; return their offsets."""
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        return [producer.send(Message(TOPIC, b"m")).queue_offset for _ in range(count)]


def test_member_skips_none_of_the_messages_that_take_the_offsets_of_lost_ones(
    tmp_path: Path,
) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with EmbeddedCluster(data, flush="async") as cluster:
        cluster.create_topic(TOPIC, queues=1)
        with MemberProcess(cluster, GROUP, topic=TOPIC, instance="a") as member:
            wait_until("the queue is owned", lambda: member.queue_ids == [0])
            send(cluster, KEPT)
            wait_until("all is consumed", lambda: len(member.consumed) == KEPT)
            cluster.stop()
            # Unlike Python's, this copy leaves out what was never written: nearly all of 1.5 GB.
            subprocess.run(["cp", "-R", data, backup], check=True)
            cluster.start()
            send(cluster, LOST)
            wait_until("all is consumed", lambda: len(member.consumed) == KEPT + LOST)

            # The member asks nothing until the new messages are there, beyond all it has seen.
            os.kill(member.pid, signal.SIGSTOP)
            cluster.kill()
            shutil.rmtree(data)
            backup.rename(data)
            cluster.start()
            new = send(cluster, NEW)
            os.kill(member.pid, signal.SIGCONT)
            places = {(0, offset) for offset in new}
            wait_until("all new ones", lambda: places <= set(member.consumed[KEPT + LOST :]))

            with Admin(name_server=cluster.name_server) as admin:
                queue = MessageQueue(TOPIC, "broker-a", 0)
                end = KEPT + NEW
                wait_until("committed", lambda: admin.committed_offset(GROUP, queue) == end)
    assert new == list(range(KEPT, KEPT + NEW))
