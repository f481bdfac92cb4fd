"""AVG_BY_LOAD beside AVG on real processes: keys of unequal weight, and one slow member of four."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparrowmq import Admin, Message, MessageQueue, Producer, PushConsumer
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

QUEUES = 16
MESSAGES = 12_000
PAUSES_S = (0.04, 0.01, 0.01, 0.01)
LIMIT_S = 200
MEMBER = Path(__file__).parents[1] / "support" / "live_member.py"


def send_backlog(cluster: EmbeddedCluster, topic: str) -> None:
    """Send messages whose queues have weights by Zipf's law."""
    dice = random.Random(24)
    weights = [(number + 1) ** -0.8 for number in range(QUEUES)]
    with Producer("GID_by_load_producer", name_server=cluster.name_server) as producer:
        futures = [
            producer.send_nowait(
                Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", number)
            )
            for number in dice.choices(range(QUEUES), weights, k=MESSAGES)
        ]
        for future in futures:
            future.result(timeout=60)


@contextmanager
def members_of(
    cluster: EmbeddedCluster, topic: str, group: str, strategy: str
) -> Generator[list[subprocess.Popen[str]]]:
    """Run four members in processes; the first in the order of ids is slow."""
    members = []
    for number, pause_s in enumerate(PAUSES_S):
        asked = {
            "group": group,
            "topic": topic,
            "name_server": cluster.name_server,
            "instance_name": str(number),
            "strategy": strategy,
            "consume_thread_count": 1,
            "pause_s": pause_s,
        }
        members.append(
            subprocess.Popen(
                [sys.executable, MEMBER, json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield members
    finally:
        for member in members:
            # At its end the block closes the pipes and waits.
            with member:
                member.kill()


def lag_of(admin: Admin, group: str, topic: str) -> int:
    return sum(each.lag for each in admin.group_lag(group, topic))


def test_a_backlog_is_consumed_in_half_of_avgs_time_and_nothing_twice() -> None:
    topic = "T_by_load"
    with (
        EmbeddedCluster() as cluster,
        # Two groups that drain take the machine for seconds.
        Admin(name_server=cluster.name_server, timeout_ms=20_000) as admin,
        members_of(cluster, topic, "GID_counted", "AVG"),
        members_of(cluster, topic, "GID_measured", "AVG_BY_LOAD") as measured,
    ):
        cluster.create_topic(topic, queues=QUEUES)
        send_backlog(cluster, topic)
        begun_s = time.monotonic()
        while lag_of(admin, "GID_measured", topic) > 0:
            assert time.monotonic() - begun_s < LIMIT_S
            time.sleep(0.5)
        drained_s = time.monotonic() - begun_s
        time.sleep(max(0.0, begun_s + 2 * drained_s - time.monotonic()))
        left = lag_of(admin, "GID_counted", topic)
        counts = [int(member.communicate("")[0].split()[-1]) for member in measured]

    print(f"drained after {drained_s:.0f} s; AVG has {left} left after twice that; {counts}")
    assert left > 0
    assert sum(counts) == MESSAGES
    # The slow member did its part.
    assert counts[0] > 0


def test_apaches_broker_keeps_no_plans_which_each_member_says_once(
    apache_cluster: Any, caplog: pytest.LogCaptureFixture
) -> None:
    topic = apache_cluster.create_topic("T_without_plans", queues=8)
    with ExitStack() as stack:
        members = [
            stack.enter_context(
                PushConsumer(
                    "GID_without_plans",
                    name_server=apache_cluster.name_server,
                    listener=lambda messages, context: None,
                    strategy="AVG_BY_LOAD",
                )
            )
            for _ in range(3)
        ]
        for count, member in enumerate(members, start=1):
            member.subscribe(topic)
            member.start()
            # Each join lets all members look for a plan again.
            wait_until(
                "each queue at one member",
                partial(is_divided, members[:count]),
                timeout_s=60,
            )

    said = [vars(r)["event"] for r in caplog.records if vars(r).get("event") == "no_plan_register"]
    assert len(said) == len(members)


def is_divided(members: Sequence[PushConsumer]) -> bool:
    held = [queue for member in members for queue in member.assignment()]
    return len(held) == len(set(held)) == 8 and all(member.assignment() for member in members)
