"""The commands that the doctor prints end what it found, as they are printed."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from commands import Commands
from sparrowmq import (
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
)
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow


def find_commands(smq: Commands, group: str, rule: str) -> dict[str, list[str]]:
    """Wait until the doctor finds a rule's fault; return its commands, by their second words."""
    found: dict[str, Any] = {}

    def is_found() -> bool:
        findings = smq.json("rebalance", "doctor", group)["findings"]
        found.update({each["rule"]: each["commands"] for each in findings})
        return rule in found

    wait_until(f"{rule} of {group}", is_found, timeout_s=120)
    return {command[1]: command for command in found[rule]}


def confirm(smq: Commands, command: list[str]) -> None:
    """Type a command as printed, which shows a change, and again with `--yes`."""
    assert "give --yes" in smq(*command).stderr
    assert smq(*command, "--yes").exit_code == 0


def lag_of(smq: Commands, group: str) -> int:
    return sum(row["lag"] for row in smq.json("group", "lag", group))


def test_message_that_no_listener_can_handle_is_shown_and_skipped(
    shared_cluster: EmbeddedCluster, smq: Commands
) -> None:
    topic, group = "T_cured", "GID_cured"
    shared_cluster.create_topic(topic, queues=2)

    def fail_one(messages: Any, context: Any) -> ConsumeOrderlyStatus:
        if messages[0].body == b"poison":
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        return ConsumeOrderlyStatus.SUCCESS

    def start() -> PushConsumer:
        return PushConsumer(
            group,
            topic,
            name_server=shared_cluster.name_server,
            listener=fail_one,
            orderly=True,
            start="first",
        )

    with Producer("GID_sends", name_server=shared_cluster.name_server) as producer:
        for body in (b"one", b"poison", b"two"):
            producer.send(Message(topic, body), queue=MessageQueue(topic, "broker-a", 0))
    with start():
        commands = find_commands(smq, group, "Q13")
        assert "poison" in smq(*commands["at"]).stdout
        refused = smq(*commands["reset"])
        assert (refused.exit_code, "stop the members" in refused.stderr) == (2, True)

    confirm(smq, commands["reset"])

    with start():
        wait_until("all consumed", lambda: lag_of(smq, group) == 0, timeout_s=60)


def test_topic_without_permission_is_permitted(
    shared_cluster: EmbeddedCluster, smq: Commands
) -> None:
    topic, group = "T_closed", "GID_closed"
    shared_cluster.create_topic(topic, queues=1)
    with ExitStack() as held:
        held.enter_context(
            PushConsumer(
                group,
                topic,
                name_server=shared_cluster.name_server,
                listener=lambda messages, context: None,
                start="first",
            )
        )
        assert smq("send", topic, "first").exit_code == 0
        wait_until("consumed", lambda: lag_of(smq, group) == 0, timeout_s=60)
        assert smq("topic", "update", topic, "--perm", "r", "--yes").exit_code == 0
        wait_until(
            "closed",
            lambda: (
                f"no broker accepts messages for topic {topic}" in smq("check", "-g", group).stdout
            ),
            timeout_s=60,
        )
        said = smq("check", "-g", group).stderr

        commands = find_commands(smq, group, "Q02")

        assert f"sparrowmq topic update {topic} --perm rw --nameserver" in said
        confirm(smq, commands["update"])
        wait_until("open", lambda: smq("send", topic, "second").exit_code == 0, timeout_s=60)


def test_dead_letters_are_sent_again(shared_cluster: EmbeddedCluster, smq: Commands) -> None:
    topic, group = "T_letters", "GID_letters"
    shared_cluster.create_topic(topic, queues=1)
    consumed: list[bytes] = []
    is_mended = False

    def listen(messages: Any, context: Any) -> ConsumeStatus:
        if not is_mended:
            return ConsumeStatus.RECONSUME_LATER
        consumed.extend(message.body for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    with PushConsumer(
        group,
        topic,
        name_server=shared_cluster.name_server,
        listener=listen,
        start="first",
        max_reconsume_times=0,
    ):
        for number in range(12):
            assert smq("send", topic, f"{number}").exit_code == 0
        wait_until(
            "dead letters",
            lambda: 12 in [r["messages"] for r in smq.json("dlq", "ls") if r["group"] == group],
            timeout_s=60,
        )
        commands = find_commands(smq, group, "Q13")
        is_mended = True

        confirm(smq, commands["resend"])

        wait_until("all twelve", lambda: len(consumed) == 12, timeout_s=60)
