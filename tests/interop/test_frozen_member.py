"""A member that stands still (SIGSTOP), on our broker: its queues are owned again, and it wakes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from sparrowmq import Admin, Message, Producer, PushConsumer
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]

OWNED_AGAIN_S = 20
MEMBER_PROGRAM = """
import sys, threading
from sparrowmq import PushConsumer
name_server, group, topic = sys.argv[1:]
def listener(messages, context):
    for message in messages:
        sys.stdout.write(message.body.decode() + "\\n")
        sys.stdout.flush()
consumer = PushConsumer(
    group,
    name_server=name_server,
    listener=listener,
    start="first",
)
consumer.subscribe(topic)
consumer.start()
threading.Event().wait()
"""


def test_queues_of_a_frozen_member_are_owned_again_within_20_s_and_come_once() -> None:
    taken: list[str] = []
    told: list[str] = []
    with (
        EmbeddedCluster() as cluster,
        Producer("GID_p", name_server=cluster.name_server) as producer,
        Admin(name_server=cluster.name_server) as admin,
        PushConsumer(
            "GID_f",
            name_server=cluster.name_server,
            listener=lambda messages, _: taken.extend(m.body.decode() for m in messages),
            start="first",
        ) as awake,
    ):
        cluster.create_topic("T", queues=4)
        awake.subscribe("T")
        awake.start()
        command = [sys.executable, "-c", MEMBER_PROGRAM, cluster.name_server, "GID_f", "T"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as member:
            assert member.stdout is not None
            lines = member.stdout
            reader = threading.Thread(target=lambda: told.extend(map(str.strip, lines)))
            reader.start()
            try:
                wait_until("2/2", lambda: len(awake.assignment()) == 2, timeout_s=20)
                first = [producer.send(Message("T", b"first-%d" % n)) for n in range(8)]
                wait_until(
                    "all of the first", lambda: len(set(taken) | set(told)) == 8, timeout_s=20
                )
                wait_until(
                    "all of the first committed",
                    lambda: sum(lag.lag for lag in admin.group_lag("GID_f", "T")) == 0,
                    timeout_s=20,
                )
                member.send_signal(signal.SIGSTOP)
                for n in range(8):
                    producer.send(Message("T", b"second-%d" % n))
                wait_until(
                    "the queues owned again",
                    lambda: (
                        len(awake.assignment()) == 4
                        and len([body for body in taken if body.startswith("second")]) == 8
                    ),
                    timeout_s=OWNED_AGAIN_S,
                )
                member.send_signal(signal.SIGCONT)
                wait_until("2/2 again", lambda: len(awake.assignment()) == 2, timeout_s=20)
                for n in range(8):
                    producer.send(Message("T", b"third-%d" % n))
                wait_until(
                    "all of the third",
                    lambda: len([body for body in [*taken, *told] if "third" in body]) >= 8,
                    timeout_s=20,
                )
            finally:
                member.kill()
            reader.join(20)

    assert len(first) == 8
    assert any(body.startswith("first") for body in told)
    assert len(set(taken) | set(told)) == 24
    # The frozen member had nothing in its hands, so nothing came twice either.
    assert len([*taken, *told]) == 24
