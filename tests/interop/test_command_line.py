"""The command line on Apache's brokers: what an operator types every day."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from commands import Commands
from sparrowmq import ConsumeStatus, MessageExt, PushConsumer
from sparrowmq.cli.mqadmin import translate
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, GROUP = "cli-topic", "GID_cli"


def fill(smq: Commands, topic: str) -> None:
    """Make a topic with 99 messages in 4 queues."""
    assert smq("topic", "create", topic, "--queues", "4").exit_code == 0
    lines = "".join(f'{{"n": {number}}}\n' for number in range(99))
    assert smq("send", topic, "--tag", "many", stdin=lines).exit_code == 0


@pytest.fixture(scope="module")
def smq(apache_cluster: Any) -> Iterator[Commands]:
    """A cluster with a topic of 99 messages, of which a member has consumed all."""
    smq = Commands(apache_cluster.name_server)
    fill(smq, TOPIC)
    consumed: list[MessageExt] = []
    with PushConsumer(
        GROUP,
        TOPIC,
        name_server=apache_cluster.name_server,
        listener=lambda messages, context: consumed.extend(messages),
        start="first",
    ) as member:
        wait_until("all queues", lambda: len(member.assignment()) == 4, timeout_s=60)

        def lag() -> list[int]:
            return [row["lag"] for row in smq.json("group", "ls") if row["group"] == GROUP]

        wait_until("all consumed", lambda: len(consumed) >= 99, timeout_s=60)
        wait_until("all committed", lambda: lag() == [0], timeout_s=60)
        yield smq


def test_ls_shows_topic_group_and_member(smq: Commands) -> None:
    found = smq.json("ls")

    topics = {row["topic"]: row for row in found["topics"]}
    groups = {row["group"]: row for row in found["groups"]}
    assert tuple(topics[TOPIC][key] for key in ("queues", "end_offsets", "groups")) == (
        4,
        99,
        [GROUP],
    )
    assert tuple(groups[GROUP][key] for key in ("lag", "member_count")) == (0, 1)
    assert [name for name in topics if name.startswith(("%", "TBW", "broker", "Default"))] == []
    assert found["brokers"][0]["version"]
    assert smq("check", "--group", GROUP).exit_code == 0


def test_topic_and_group_are_shown(smq: Commands) -> None:
    topic, group = smq.json("topic", "show", TOPIC), smq.json("group", "show", GROUP)

    assert ([sum(q["messages"] for q in topic["queues"])], topic["groups"]) == ([99], [GROUP])
    assert [row["language"] for row in group["members"]] == ["PYTHON"]
    assert [row["lag"] for row in smq.json("group", "lag", GROUP) if row["topic"] == TOPIC] == [
        0
    ] * 4
    assert {"queues", "groups"} <= smq.json("topic", "show", TOPIC).keys()


def test_messages_are_sent_found_and_followed(smq: Commands) -> None:
    # Other tests count the messages of theirs.
    topic = "cli-sent"
    fill(smq, topic)
    sent = smq.json("send", topic, "needle", "--tag", "one", "--key", "k-needle")

    (by_id,) = smq.json("msg", "get", sent["msg_id"], "--topic", topic)
    (by_broker_id,) = smq.json("msg", "get", sent["offset_msg_id"], "--topic", topic)
    (by_key,) = smq.json("msg", "find", "k-needle", "--topic", topic)
    place = f"{sent['broker']}:{sent['queue']}"
    (by_place,) = smq.json("msg", "at", topic, place, str(sent["offset"]))
    assert by_id["body"] == "needle"
    assert by_id == by_broker_id == by_key == by_place
    assert smq("tail", topic, "--tag", "one", "--body").stdout.splitlines() == ["needle"]
    assert len(smq("tail", topic).stdout.splitlines()) == 10
    lines = smq("tail", topic, "--from", "earliest", "--json").stdout.splitlines()
    assert {*range(99)} == {json.loads(json.loads(x)["body"])["n"] for x in lines if '"many"' in x}


def test_a_group_is_moved_by_the_broker_and_goes_on_there(smq: Commands) -> None:
    def committed() -> int:
        rows = [row for row in smq.json("group", "lag", GROUP) if row["topic"] == TOPIC]
        return sum(row["committed"] for row in rows)

    before = committed()

    told = smq("group", "reset", GROUP, "--to", "earliest", "--yes")

    assert (told.exit_code, "the brokers will notify 1 connected member" in told.stderr) == (
        0,
        True,
    )
    # It consumes everything anew, so the offsets come back to where they were.
    wait_until("all consumed again", lambda: committed() >= before, timeout_s=60)


def test_a_misspelt_topic_is_refused_though_the_broker_would_make_it(smq: Commands) -> None:
    result = smq("send", "cli-topik", "hello")

    assert (result.exit_code, f"did you mean {TOPIC}?" in result.stderr) == (2, True)
    assert "cli-topik" not in smq("topic", "ls", "--all").stdout


def test_dead_letters_and_the_members_of_every_group_are_listed(
    smq: Commands, apache_cluster: Any
) -> None:
    topic = apache_cluster.create_topic("cli-fails", queues=1)
    groups = [f"GID_cli_many{number}" for number in range(14)]
    with ExitStack() as members:
        for group in groups:
            member = PushConsumer(
                group,
                name_server=apache_cluster.name_server,
                listener=lambda messages, context: ConsumeStatus.RECONSUME_LATER,
                start="first",
                max_reconsume_times=0,
            )
            members.callback(member.close)
            member.subscribe(topic)
            member.start()
        assert smq("send", topic, "poison").exit_code == 0

        def found() -> list[tuple[int | None, int | None]]:
            rows = {row["group"]: row for row in smq.json("group", "ls")}
            listed = [rows[group] for group in groups if group in rows]
            return [(row["member_count"], row["dead_letters"]) for row in listed]

        wait_until(
            "a member and a dead letter each", lambda: found() == [(1, 1)] * 14, timeout_s=90
        )


def test_check_and_ls_see_messages_that_wait(smq: Commands, apache_cluster: Any) -> None:
    topic, group = apache_cluster.create_topic("cli-slow", queues=2), "GID_cli_slow"
    released = threading.Event()

    def wait(messages: Any, context: Any) -> None:
        released.wait()

    with PushConsumer(
        group,
        topic,
        name_server=apache_cluster.name_server,
        listener=wait,
        start="first",
        drain_timeout_ms=100,
    ):
        assert smq("send", topic, stdin="".join(f"{n}\n" for n in range(20))).exit_code == 0
        options = ("check", "--group", group, "--warn-wait", "10")
        warning = f"{group}: a message of {topic} has waited for "
        wait_until("ten seconds", lambda: warning in smq(*options).stdout, timeout_s=90)

        (row,) = [r for r in smq.json("ls")["groups"] if r["group"] == group]
        lags = smq.json("group", "lag", group)
        released.set()

    oldest = min(each["behind_since_timestamp_ms"] for each in lags if each["lag"])
    assert abs(row["behind_since_timestamp_ms"] - oldest) <= 1_000


def test_doctor_looks_at_all_groups(smq: Commands) -> None:
    groups = smq.json("rebalance", "doctor", "--interval", "0")["groups"]

    (mine,) = [group for group in groups if group["group"] == GROUP]
    assert [f["title"] for f in mine["findings"] if f["severity"] == "error"] == []


def test_mqadmins_words_do_here_too(smq: Commands) -> None:
    assert TOPIC in smq(*translate(["topicRoute", "-t", TOPIC])).stdout
    assert GROUP in smq(*translate(["consumerProgress"])).stdout


def test_settings_of_topic_group_and_broker_are_changed(smq: Commands) -> None:
    topic = "cli-changed"
    assert smq("topic", "create", topic, "--queues", "4").exit_code == 0
    assert smq.json("topic", "update", topic, "--queues", "6", "--yes")["applied"]
    assert smq.json("group", "update", "GID_cli_new", "--retries", "3", "--yes")["applied"]
    assert [
        row["max_reconsume_times"] for row in smq.json("group", "show", "GID_cli_new")["settings"]
    ] == [3]
    assert smq("group", "delete", "GID_cli_new", "--yes").exit_code == 0
    # A broker of 5.x makes a group anew as soon as somebody asks for it.
    gone = smq("group", "show", "GID_cli_new", "--json")
    assert gone.exit_code == 2 or [
        row["max_reconsume_times"] for row in json.loads(gone.stdout)["settings"]
    ] == [16]
    broker = smq.json("broker", "ls")[0]["broker"]
    change = ("broker", "config", broker, "--yes")
    assert smq.json(*change, "enablePropertyFilter=true")["applied"]
    try:
        assert smq.json("broker", "config", broker)["enablePropertyFilter"] == "true"
        assert smq("send", topic, "cheap", "-p", "price=3").exit_code == 0
        assert smq("tail", topic, "--sql", "price < 5", "--body").stdout.splitlines() == ["cheap"]
    finally:
        # Other tests know the broker as it was.
        assert smq.json(*change, "enablePropertyFilter=false")["applied"]
