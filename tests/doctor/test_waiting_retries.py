"""Failed messages that wait for their next attempt: no lag counts them, and the doctor does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sparrowmq import (
    Admin,
    ConsumeContext,
    ConsumeStatus,
    Message,
    MessageExt,
    Producer,
    PushConsumer,
)
from sparrowmq.client.operations.waiting_retries import READ_MAX
from sparrowmq.doctor import Severity, diagnose
from sparrowmq.doctor.flow_rules import FAILED_TIMES_MIN
from sparrowmq.doctor.group_snapshot import GroupSnapshot, WaitingRetries
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

Group = Any
Fail = Callable[..., None]
FAILED, DELAYED = 5, 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(flush="async") as running:
        yield running


@pytest.fixture(scope="module")
def fail(cluster: EmbeddedCluster) -> Fail:
    """Let a group fail with so many new messages of its topic, to wait at a level, and leave."""

    def run(group: str, count: int, level: int = 18) -> None:
        failed: list[MessageExt] = []

        def on_messages(messages: Sequence[MessageExt], context: ConsumeContext) -> ConsumeStatus:
            failed.extend(messages)
            context.delay_level = level
            return ConsumeStatus.RECONSUME_LATER

        cluster.create_topic(group, queues=2)
        with (
            Producer("GID_p", name_server=cluster.name_server) as producer,
            PushConsumer(
                group, group, name_server=cluster.name_server, listener=on_messages, start="first"
            ),
        ):
            producer.send_batch([Message(group, b"%d" % number) for number in range(count)])
            wait_until("the failures", lambda: len(failed) == count)

    return run


def look(cluster: EmbeddedCluster, group: str) -> GroupSnapshot:
    with Admin(name_server=cluster.name_server) as admin:
        return admin.group_snapshot(group)


def test_those_of_a_group_are_counted_among_other_waiting_messages(
    cluster: EmbeddedCluster, fail: Fail
) -> None:
    fail("one", FAILED)
    fail("other", 2)
    with Producer("GID_p", name_server=cluster.name_server) as producer:
        for _ in range(DELAYED):
            producer.send(Message("one", b"delayed", delay_level=18))

    seen = look(cluster, "one")
    assert seen.last.waiting_retries == WaitingRetries(FAILED, failed_times=1)
    (finding,) = diagnose(seen)

    # Nobody is left who would consume them.
    assert (finding.rule, finding.severity) == ("Q04", Severity.ERROR)
    assert finding.consequence == (
        "nobody will consume failed messages that come again, nor new messages"
    )
    (effect,) = finding.effects
    assert effect.title == f"failed messages wait for their next attempt: {FAILED} messages"
    assert effect.evidence == (f"broker-a: {FAILED} messages; failed attempts so far: up to 1",)

    # Of more messages than are read, the group's share is an estimate.
    fail("one", READ_MAX)
    found = look(cluster, "one").last.waiting_retries
    assert found.is_estimate
    assert FAILED < found.message_count <= FAILED + 2 + DELAYED + READ_MAX


def test_those_that_have_come_count_though_no_member_was_left_to_commit(
    cluster: EmbeddedCluster, fail: Fail
) -> None:
    fail("left", FAILED, level=1)

    def lags() -> tuple[int, int]:
        with Admin(name_server=cluster.name_server) as admin:
            (glance,) = [g for g in admin.overview().groups if g.group == "left"]
        seen = look(cluster, "left").last
        return glance.retry_lag, sum(progress.lag for progress in seen.progress)

    wait_until("the retries", lambda: lags() == (FAILED, FAILED))
    (finding,) = diagnose(look(cluster, "left"))
    assert (finding.rule, finding.severity) == ("Q04", Severity.ERROR)
    assert finding.consequence == f"nothing is consumed: {FAILED} messages behind"


@pytest.mark.parametrize(
    ("failed_times", "severity"),
    [(FAILED_TIMES_MIN - 1, Severity.INFO), (FAILED_TIMES_MIN, Severity.WARN)],
)
def test_that_messages_fail_again_and_again_is_a_warning(
    seen_group: Group, failed_times: int, severity: Severity
) -> None:
    seen = seen_group().snapshot()
    waiting = WaitingRetries(1_000, is_estimate=True, failed_times=failed_times)
    brokers = (replace(seen.last.brokers[0], waiting_retries=waiting),)

    (finding,) = diagnose(replace(seen, samples=(replace(seen.last, brokers=brokers),)))

    assert (finding.rule, finding.severity) == ("Q24", severity)
    assert finding.title == "failed messages wait for their next attempt: about 1,000 messages"
