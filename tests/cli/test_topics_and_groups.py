"""`sparrowmq ls`, `topic` and `group` on a real cluster: what they print, change and refuse."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commands import Commands, starting
from poison import send_stored
from server_processes import Servers
from sparrowmq import (
    Admin,
    Message,
    MessageModel,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from sparrowmq.cli.cluster import group_row, topic_row, topic_trouble
from sparrowmq.cli.connecting import ConnectionOptions, open_cluster
from sparrowmq.cli.exit_codes import EXIT_FAILED
from sparrowmq.cli.group import CHANGES_SHOWN_MAX, watch_lag
from sparrowmq.cli.main import build_app
from sparrowmq.client.operations.overview import (
    GROUPS_ASKED_MAX,
    FlowRates,
    GroupOverview,
    TopicOverview,
    TopicPlace,
)
from sparrowmq.errors import UsageError
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def admin(shared_cluster: EmbeddedCluster) -> Iterator[Admin]:
    with Admin(name_server=shared_cluster.name_server, timeout_ms=10_000) as opened:
        yield opened


def fill(cluster: EmbeddedCluster, topic: str, counts: list[int]) -> None:
    """Make a topic with so many messages in each queue."""
    cluster.create_topic(topic, queues=len(counts))
    with Producer("GID_fill", name_server=cluster.name_server) as producer:
        for queue_id, count in enumerate(counts):
            queue = MessageQueue(topic, "broker-a", queue_id)
            for _ in range(count):
                producer.send(Message(topic, b"x"), queue=queue)


def commit(admin: Admin, group: str, topic: str, offsets: list[int]) -> None:
    for queue_id, offset in enumerate(offsets):
        admin.update_committed_offset(group, MessageQueue(topic, "broker-a", queue_id), offset)


def complete(line: str, home: Path, **environment: str) -> list[str]:
    """Return what bash is given to complete the last word of a line."""
    words = line.split(" ")
    asked = {"_SPARROWMQ_COMPLETE": "complete_bash", "COMP_WORDS": line}
    asked |= {"COMP_CWORD": str(len(words) - 1), "XDG_CONFIG_HOME": str(home)}
    done = subprocess.run(
        [str(Path(sys.executable).parent / "sparrowmq")],
        env={**os.environ, **asked, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_a_shell_completes_topics_and_groups_of_the_cluster(
    shared_cluster: EmbeddedCluster, admin: Admin, home: Path
) -> None:
    for topic in ("complete-orders", "complete-flights", "%DLQ%GID_complete"):
        shared_cluster.create_topic(topic)
    commit(admin, "GID_complete", "complete-orders", [0])
    here = shared_cluster.name_server

    found = complete("sparrowmq tail complete-", home, NAMESRV_ADDR=here)
    group = complete(f"sparrowmq rebalance doctor -n {here} GID_com", home)

    assert found == ["complete-flights", "complete-orders"]
    every = complete("sparrowmq tail ", home, NAMESRV_ADDR=here)
    assert {"complete-orders"} <= {*every} == {name for name in every if name[0] != "%"}
    letters = complete("sparrowmq tail %DLQ%GID_com", home, NAMESRV_ADDR=here)
    assert letters == ["%DLQ%GID_complete"]
    assert group == ["GID_complete"]
    assert complete("sparrowmq check -g GID_com", home, NAMESRV_ADDR=here) == ["GID_complete"]


def test_a_shell_completes_nothing_where_no_cluster_answers(home: Path) -> None:
    assert complete("sparrowmq tail ", home, NAMESRV_ADDR="127.0.0.1:1") == []


def test_ls_shows_what_is_there_and_who_is_behind(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_ls", [5, 3])
    commit(admin, "GID_ls_behind", "T_ls", [1, 1])
    commit(admin, "GID_ls_done", "T_ls", [5, 3])

    found = smq.json("ls")
    table = smq("ls")

    assert [broker["broker"] for broker in found["brokers"]] == ["broker-a"]
    topics = {row["topic"]: row for row in found["topics"]}
    assert tuple(topics["T_ls"][key] for key in ("queues", "end_offsets", "groups")) == (
        2,
        8,
        ["GID_ls_behind", "GID_ls_done"],
    )
    assert set() == {"TBW102", "broker-a", "DefaultCluster"} & topics.keys()
    groups = [row for row in found["groups"] if row["topics"] == ["T_ls"]]
    assert [(row["group"], row["lag"], row["member_count"], row["trouble"]) for row in groups] == [
        ("GID_ls_behind", 6, 0, "nobody consumes"),
        ("GID_ls_done", 0, 0, ""),
    ]
    assert table.exit_code == 0
    assert "GID_ls_behind" in table.stdout
    assert "TBW102" in smq("ls", "--all").stdout


def test_topic_is_created_shown_changed_and_deleted(smq: Commands) -> None:
    assert smq.json("topic", "create", "T_life", "-q", "4") == {"topic": "T_life", "queues": 4}

    again = smq("topic", "create", "T_life")
    planned = smq.json("topic", "update", "T_life", "--queues", "6", "--perm", "r")
    shown = smq.json("topic", "show", "T_life")
    twice = smq("topic", "update", "T_life", "--queues", "6", "--read-queues", "2", "--yes")
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    assert (twice.exit_code, "give --queues, or --read-queues" in twice.stderr) == (2, True)
    assert not planned["applied"]
    assert [(c["perm"], c["read_queues"]) for c in planned["changes"]] == [("rw → r", "4 → 6")]
    assert [broker["read_queues"] for broker in shown["brokers"]] == [4]

    assert smq.json("topic", "update", "T_life", "--queues", "6", "--yes")["applied"]
    wait_until("six queues", lambda: len(smq.json("topic", "show", "T_life")["queues"]) == 6)
    dry = smq("topic", "delete", "T_life")
    assert (dry.exit_code, "give --yes to make this change" in dry.stderr) == (0, True)
    assert "T_life" in smq("topic", "ls").stdout
    assert smq("topic", "delete", "T_life", "--yes").exit_code == 0
    assert "T_life" not in smq("topic", "ls").stdout


@pytest.mark.parametrize("command", [("tail", "flights"), ("send", "flights", "x"), ("dlq", "ls")])
def test_what_brokers_have_that_are_gone_is_not_called_missing(command: tuple[str, ...]) -> None:
    with starting() as start:
        server = start("nameserver", "--port", "0")
        assert server.stdout is not None
        address = server.stdout.readline().strip().rpartition("=")[2]

        result = Commands(address)(*command)

    assert result.exit_code == EXIT_FAILED
    assert f"name server {address} knows no broker; start one" in result.stderr


def test_mistyped_topic_is_answered_by_the_nearest(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_departures", queues=1)

    for command in (("topic", "show"), ("topic", "delete"), ("topic", "update", "-q", "2")):
        result = smq(*command, "t_deprtures")

        assert result.exit_code == 2
        assert "did you mean T_departures?" in result.stderr


def test_groups_of_rocketmqs_own_are_neither_changed_nor_deleted(smq: Commands) -> None:
    """Without TOOLS_CONSUMER, no tool reads a message."""
    name = "TOOLS_CONSUMER"
    refused = [
        smq("group", *words, name, *("--yes",) * is_confirmed)
        for words in (("update", "--disable"), ("update", "--retries", "1"), ("delete",))
        for is_confirmed in (False, True)
    ]
    with Admin(name_server=smq.name_server) as admin:
        with pytest.raises(UsageError, match="one of RocketMQ's own"):
            admin.update_group(name, is_enabled=False)
        with pytest.raises(UsageError, match="one of RocketMQ's own"):
            admin.delete_group("CID_RMQ_SYS_SELF")

    assert {each.exit_code for each in refused} == {2}
    assert all("group 'TOOLS_CONSUMER' is one of RocketMQ's own" in r.stderr for r in refused)
    # As where a tool of RocketMQ has disabled it.
    assert smq("group", "update", name, "--enable").exit_code == 0


@pytest.mark.parametrize("own", ["TBW102", "broker-a", "DefaultCluster_REPLY_TOPIC"])
def test_no_change_of_a_topic_of_rocketmqs_own_is_previewed(smq: Commands, own: str) -> None:
    for command in (("topic", "delete"), ("topic", "update", "-q", "2")):
        result = smq(*command, own)

        assert (result.exit_code, result.stdout) == (2, "")
        assert f"topic '{own}' is one of RocketMQ's own" in result.stderr


def test_lag_names_the_queue_furthest_behind_first(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_lag", [1, 7, 3])
    commit(admin, "GID_lag", "T_lag", [1, 2, 0])

    rows = smq.json("group", "lag", "GID_lag")
    wrong = smq("group", "lag", "GID_lag", "--topic", "T_nothing")

    assert [(row["queue"], row["lag"]) for row in rows] == [(1, 5), (2, 3), (0, 0)]
    assert wrong.exit_code == 2
    assert "it has in: T_lag" in wrong.stderr


def test_watched_lag_has_the_columns_that_have_values_and_fit(
    shared_cluster: EmbeddedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(shared_cluster, "T_lag_watched_for_long", [1])
    commit(admin, "GID_lag_watched", "T_lag_watched_for_long", [0])
    # Rich takes the pipe for a terminal, of this width.
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "76")

    with starting() as start:
        at = ("--nameserver", shared_cluster.name_server, "--interval", "0.5")
        process = start("group", "lag", "GID_lag_watched", "--watch", *at)
        assert process.stdout is not None
        head = process.stdout.readline()
        rows = [process.stdout.readline() for _ in range(2)]

    assert "committed" in head
    assert "in flight" not in head
    assert "broker-a" in rows[1]


def test_reset_shows_the_difference_and_changes_nothing_until_told(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_reset", [4, 6])
    commit(admin, "GID_reset", "T_reset", [2, 6])

    def committed() -> list[int | None]:
        return [lag.committed_offset for lag in admin.group_lag("GID_reset", "T_reset")]

    assert [row["queue"] for row in smq.json("group", "skip", "GID_reset")["changes"]] == [0]
    planned = smq.json("group", "reset", "GID_reset", "--to", "earliest")
    assert [(row["before"], row["after"], row["skipped"]) for row in planned["changes"]] == [
        (2, 0, -2),
        (6, 0, -6),
    ]
    assert (committed(), planned["applied"]) == ([2, 6], False)

    told = smq("group", "reset", "GID_reset", "--to", "3", "--queue", "broker-a:1", "--yes")
    assert "0 messages will be skipped, 3 will be delivered again" in told.stderr
    assert committed() == [2, 3]

    assert smq.json("group", "skip", "GID_reset", "--yes")["applied"]
    assert committed() == [4, 6]
    same = smq("group", "skip", "GID_reset")
    assert (
        same.stdout,
        "nothing to change: group GID_reset is at these offsets in 2 queues" in same.stderr,
    ) == ("", True)
    assert not smq.json("group", "skip", "GID_reset")["applied"]

    early = smq.json("group", "reset", "GID_reset", "--to", "1d", "--yes")
    assert [0, 0] == [row["after"] for row in early["changes"]] == committed()


def test_reset_to_the_first_message_commits_for_a_group_without_a_commit(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    fill(shared_cluster, "T_reset_first", [4, 6])
    smq("group", "update", "GID_reset_first", "--yes")

    reset = ("group", "reset", "GID_reset_first", "--topic", "T_reset_first", "--to", "earliest")
    assert smq.json(*reset, "--yes")["applied"]

    assert sorted(row["lag"] for row in smq.json("group", "lag", "GID_reset_first")) == [4, 6]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--to", "first"], "'first' is not a time; write earliest, latest, an offset, 2026-"),
        (["--to", "5", "--queue", "broker-a"], "'broker-a' is not a queue"),
        (["--to", "5", "--queue", "broker-a:7"], "no queue broker-a:7 for this; it has broker-a:0"),
        (["--to", "2999-01-01"], "lies in the future; to skip all messages, go on at latest"),
        (["--to", "99", "--queue", "broker-a:0"], "has offsets 0 to 0, not 99"),
        (["--to", "latest", "--topic", "T_no"], "there is no topic 'T_no'"),
    ],
)
def test_reset_refuses_what_cannot_be(
    smq: Commands,
    shared_cluster: EmbeddedCluster,
    admin: Admin,
    options: list[str],
    words: str,
) -> None:
    fill(shared_cluster, "T_refused", [0])
    commit(admin, "GID_refused", "T_refused", [0])

    result = smq("group", "reset", "GID_refused", *options, "--yes")

    assert result.exit_code == 2
    assert words in result.stderr


def test_group_with_members_is_shown_and_neither_deleted_nor_moved_by_offsets(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    shared_cluster.create_topic("T_members", queues=2)
    with PushConsumer(
        "GID_members",
        {"T_members": "a || b"},
        name_server=shared_cluster.name_server,
        listener=lambda messages, context: None,
        start="first",
    ) as member:
        wait_until("all queues", lambda: len(member.assignment()) == 2)

        shown = smq.json("group", "show", "GID_members")
        deleted = smq("group", "delete", "GID_members", "--yes")
        moved = [
            smq("group", "reset", "GID_members", *to, "--yes")
            for to in (("--to", "0"), ("--to", "earliest", "-q", "broker-a:0"))
        ]

    assert [(row["client_id"], row["address"]) for row in shown["members"]] == [
        (member.client_id, "127.0.0.1")
    ]
    assert "a || b" in [row["expression"] for row in shown["topics"]]
    assert (deleted.exit_code, "1 member connected" in deleted.stderr) == (2, True)
    refusals = [(each.exit_code, "reset all queues to a time" in each.stderr) for each in moved]
    assert refusals == [(2, True), (2, True)]


def test_members_that_are_connected_go_on_where_they_are_told(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    fill(shared_cluster, "T_told", [3, 0])
    bodies: list[bytes] = []
    with PushConsumer(
        "GID_told",
        "T_told",
        name_server=shared_cluster.name_server,
        listener=lambda messages, context: bodies.extend(m.body for m in messages),
        start="first",
    ):
        wait_until("all consumed", lambda: len(bodies) == 3)

        told = smq("group", "reset", "GID_told", "--to", "earliest", "--yes")
        assert (told.exit_code, "will notify 1 connected member" in told.stderr) == (0, True), (
            told.stderr
        )
        wait_until("all consumed again", lambda: len(bodies) == 6)


def test_offsets_of_a_group_or_topic_that_is_not_meant_are_said(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_meant", [3])
    fill(shared_cluster, "T_other", [2])
    commit(admin, "GID_is_meant", "T_meant", [1])

    lines = (("reset", "GID_is_ment", "--to", "earliest"), ("skip", "GID_is_ment"))
    wrong = [smq("group", *line, "--topic", "T_meant", "--yes") for line in lines]
    strange = smq("group", "skip", "GID_is_meant", "--topic", "T_other")
    right = smq("group", "skip", "GID_is_meant", "--topic", "T_meant")

    assert [each.exit_code for each in wrong] == [2, 2]
    assert all("did you mean GID_is_meant?" in each.stderr for each in wrong)
    assert "GID_is_ment" not in smq("group", "ls").stdout
    words = "has no offset in T_other so far; it has in T_meant"
    assert [words in each.stderr for each in (strange, right)] == [True, False]


def test_a_short_number_to_reset_to_is_an_offset_and_a_long_one_a_time(smq: Commands) -> None:
    smq("topic", "create", "T_moment", "-q", "1")
    smq("send", "T_moment", stdin="1\n2\n3\n")
    smq("group", "update", "GID_moment", "--yes")
    reset = ("group", "reset", "GID_moment", "--topic", "T_moment", "--to")
    smq(*reset, "latest", "--yes")

    changes = [smq.json(*reset, to)["changes"] for to in ("2", "1357000000000")]

    assert [[row["after"] for row in rows] for rows in changes] == [[2], [0]]


def test_groups_mode_is_set_and_shown(smq: Commands) -> None:
    words = ("group", "mode", "GID_mode", "--topic", "modal")
    assert smq("topic", "create", "modal", "--queues", "2").exit_code == 0

    dry = smq.json(*words, "--mode", "pop", "--share", "2")
    assert [(row["mode"], row["share"]) for row in dry["changes"]] == [("pull → pop", "0 → 2")]
    assert smq.json(*words, "--mode", "POP", "--yes")["applied"]

    assert smq.json(*words, "--mode", "pop")["changes"] == []
    assert smq.json(*words, "--mode", "pull")["changes"][0]["mode"] == "pop → pull"
    wrong = smq(*words, "--mode", "push")
    assert (wrong.exit_code, "give pull or pop" in wrong.stderr) == (2, True)


def test_group_settings_are_changed_and_the_group_deleted(smq: Commands) -> None:
    dry = smq.json("group", "update", "GID_set", "--retries", "3")
    assert [row["max_reconsume_times"] for row in dry["changes"]] == ["– → 3"]
    assert smq("group", "show", "GID_set").exit_code == 2

    assert smq.json("group", "update", "GID_set", "--retries", "3", "--disable", "--yes")["applied"]
    told = [smq("group", "update", "GID_made", "--retries", n, "--yes").stderr for n in "45"]
    assert told == [f"sparrowmq: group GID_made was {what}\n" for what in ("created", "changed")]
    assert [
        (row["max_reconsume_times"], row["enabled"])
        for row in smq.json("group", "show", "GID_set")["settings"]
    ] == [(3, False)]

    assert smq("group", "delete", "GID_set", "--yes").exit_code == 0
    gone = smq("group", "show", "GID_set")
    assert (gone.exit_code, "no broker knows consumer group" in gone.stderr) == (2, True)


def test_looks_name_the_broker_that_does_not_answer_and_show_what_others_say(
    tmp_path: Path,
) -> None:
    servers = Servers(tmp_path / "data")
    commands = {
        "lag": ("group", "lag", "GID_lag"),
        "group": ("group", "show", "GID_lag"),
        "topic": ("topic", "show", "T"),
        "brokers": ("broker", "ls"),
        "owners": ("rebalance", "show", "GID_lag", "--interval", "0"),
        "doctor": ("rebalance", "doctor", "GID_lag", "--interval", "0"),
        "tail": ("tail", "T"),
        "find": ("msg", "find", "second", "--topic", "T"),
        "dlq": ("dlq", "ls"),
        "letters": ("dlq", "show", "GID_lag"),
        "snapshot": ("snapshot", "--out", str(tmp_path / "tables")),
        # What changes something needs all brokers.
        "delete": ("topic", "delete", "T"),
        "update": ("group", "update", "GID_lag", "--retries", "3"),
        "remove": ("group", "delete", "GID_lag"),
        "skip": ("group", "skip", "GID_lag"),
        "nowhere": ("msg", "find", "first", "--topic", "T"),
    }
    try:
        with (
            Admin(name_server=servers.name_server) as admin,
            Producer("GID_p", name_server=servers.name_server) as producer,
        ):
            for topic in ("T", "%DLQ%GID_lag"):
                admin.create_topic(topic, queues=1)
                queues = admin.route(topic).publish_queues
                for key, queue in zip(("first", "second"), queues, strict=True):
                    producer.send(Message(topic, b"x", keys=(key,)), queue=queue)
            for queue in admin.route("T").publish_queues:
                admin.update_committed_offset("GID_lag", queue, 0)
            admin.update_group("GID_lag", max_reconsume_times=2)
        os.kill(servers.children()["store"], signal.SIGSTOP)
        options = ("--nameserver", servers.name_server, "--timeout", "0.5", "--json")
        ended = {
            name: CliRunner().invoke(build_app(), [*command, *options])
            for name, command in commands.items()
        }
        with open_cluster(ConnectionOptions(servers.name_server, timeout=0.5)) as cluster:
            _, watched = next(watch_lag(cluster, "GID_lag", None, 1_000))
        with starting() as start:
            process = start("group", "lag", "GID_lag", "--watch", *options[:-1])
            assert process.stderr is not None
            said = process.stderr.readline()
    finally:
        for pid in servers.children().values():
            os.kill(pid, signal.SIGCONT)
        servers.end()

    refused = {name for name, result in ended.items() if result.exit_code}
    assert refused == {"delete", "update", "remove", "skip", "nowhere"}
    assert {ended[name].exit_code for name in refused} == {3}
    # Of these, JSON alone has the reason: tables name the broker in a line of their own.
    for name in commands.keys() - refused - {"owners", "doctor"}:
        assert "broker-a: " in ended[name].stderr, name
        is_of_queues = name not in ("snapshot", "brokers")
        assert ("its queues are missing" in ended[name].stderr) is is_of_queues, name
    shown = {name: json.loads(ended[name].stdout) for name in commands.keys() - refused}
    for name in ("owners", "doctor", "group", "topic"):
        assert shown[name]["failures"].keys() == {"broker-a"}, name
    assert watched.keys() == {"broker-a"}
    assert said.startswith("sparrowmq: broker-a: ")
    assert "its queues are missing" in said
    assert [row["broker"] for row in shown["lag"]] == ["broker-a-2"]
    assert [row["broker"] for row in shown["group"]["settings"]] == ["broker-a-2"]
    assert [row["broker"] for row in shown["topic"]["queues"]] == ["broker-a-2"]
    assert [row["broker"] for row in shown["topic"]["brokers"]] == ["broker-a", "broker-a-2"]
    assert shown["tail"]["broker"] == "broker-a-2"
    assert [row["broker"] for row in shown["find"]] == ["broker-a-2"]
    assert [(row["group"], row["messages"]) for row in shown["dlq"]] == [("GID_lag", 1)]
    assert [row["broker"] for row in shown["letters"]] == ["broker-a-2"]
    assert shown["snapshot"]["groups"] == 1


def test_what_is_changed_at_one_cluster_stays_in_the_other(tmp_path: Path) -> None:
    with EmbeddedCluster(flush="async") as first, starting() as start:
        smq = Commands(first.name_server)
        start(
            *("broker", "--nameserver", first.name_server, "--port", "0", "--flush", "async"),
            *("--broker-name", "broker-b", "--cluster-name", "other", "--data", str(tmp_path)),
        )
        wait_until("two clusters", lambda: len(smq.json("broker", "ls")) == 2, timeout_s=60)
        smq("topic", "create", "T", "--queues", "2")
        smq("topic", "create", "T_first", "--queues", "2", "--cluster", "DefaultCluster")
        with (
            Admin(name_server=first.name_server) as admin,
            Producer("GID_p", name_server=first.name_server) as producer,
        ):
            for queue in admin.route("T").publish_queues:
                producer.send(Message("T", b"x"), queue=queue)
                admin.update_committed_offset("GID_both", queue, 1)
            modes = ("group", "mode", "GID_both", "--topic", "T", "--mode", "pop")
            there, here = ("--cluster", "other"), ("--cluster", "DefaultCluster")

            changed = [
                smq.json(*words, *there, "--yes")["changes"]
                for words in (modes, ("topic", "update", "T", "--perm", "r"))
            ]
            wait_until(
                "one broker that accepts messages",
                lambda: {q.broker_name for q in admin.route("T").publish_queues} == {"broker-a"},
            )
            unknown = [
                smq(*words, "--cluster", "othr", "--yes")
                for words in (
                    ("topic", "update", "T", "--perm", "w"),
                    ("topic", "delete", "T"),
                    ("group", "delete", "GID_both"),
                )
            ]
            wrong = smq.json("topic", "delete", "T_first", *there, "--yes")
            group = smq.json("group", "delete", "GID_both", *there, "--yes")
            left = {(row["broker"], row["lag"]) for row in smq.json("group", "lag", "GID_both")}
            topic = smq.json("topic", "delete", "T", *there, "--yes")
            brokers = [row["broker"] for row in smq.json("topic", "show", "T")["brokers"]]
            still = smq.json("group", "mode", "GID_both", *modes[3:], *here)["changes"]

    assert [[row["broker"] for row in rows] for rows in changed] == [["broker-b"]] * 2
    assert [(each.exit_code, "did you mean other?" in each.stderr) for each in unknown] == [
        (2, True)
    ] * 3
    assert wrong == {"applied": False, "changes": []}
    assert group["changes"] == [{"topic": "T", "queues": 2, "lag": 0}]
    assert {("broker-a", 0)} <= left
    assert [(row["broker"], row["messages"]) for row in topic["changes"]] == [("broker-b", 2)]
    assert brokers == ["broker-a"]
    assert [row["mode"] for row in still] == ["pull → pop"]


def test_queues_to_write_are_taken_away_alone(smq: Commands) -> None:
    smq("topic", "create", "T_shrinks", "-q", "4")

    (planned,) = smq.json("topic", "update", "T_shrinks", "--write-queues", "2", "--yes")["changes"]
    (broker,) = smq.json("topic", "show", "T_shrinks")["brokers"]

    assert (planned["read_queues"], planned["write_queues"]) == ("4", "4 → 2")
    assert (broker["read_queues"], broker["write_queues"]) == (4, 2)


def test_queues_that_are_no_longer_read_are_warned_of(smq: Commands) -> None:
    smq("topic", "create", "T_unread_queues", "-q", "4")
    options = (["--queues", "2"], ["--read-queues", "3"], ["--write-queues", "2"], ["-q", "5"])

    told = [smq("topic", "update", "T_unread_queues", *each).stderr for each in options]

    words = "lower --write-queues first"
    assert [words in each for each in told] == [True, True, False, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--cluster", "DefaultClustr"], "did you mean DefaultCluster?"),
        (["--message-type", "fast"], "'FAST'"),
    ],
)
def test_topic_is_made_only_as_it_was_asked_for(
    smq: Commands, options: list[str], words: str
) -> None:
    result = smq("topic", "create", "T_not_so", *options)

    assert (result.exit_code, words in result.stderr) == (2, True), result.stderr
    assert "T_not_so" not in smq("topic", "ls").stdout


def test_a_preview_of_a_deletion_counts_what_would_be_lost(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_lost", [2, 1])
    commit(admin, "GID_lost", "T_lost", [2, 0])

    topic, group = smq.json("topic", "delete", "T_lost"), smq.json("group", "delete", "GID_lost")

    assert (topic["applied"], group["applied"]) == (False, False)
    assert topic["changes"] == [
        {
            "topic": "T_lost",
            "broker": "broker-a",
            "queues": 2,
            "messages": 3,
            "groups": ["GID_lost"],
        }
    ]
    assert group["changes"] == [{"topic": "T_lost", "queues": 2, "lag": 1}]
    assert [row["lag"] for row in smq.json("group", "lag", "GID_lost")] == [1, 0]


def test_group_list_has_the_members_of_every_group(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_many_groups", [1])
    for number in range(GROUPS_ASKED_MAX + 1):
        commit(admin, f"GID_many_{number}", "T_many_groups", [1])

    rows = smq.json("group", "ls")

    # The cluster has groups of other tests, whose consumers may only pop.
    counts = [row["member_count"] for row in rows if row["group"].startswith("GID_many_")]
    assert counts == [0] * (GROUPS_ASKED_MAX + 1)


def test_lag_of_a_group_is_shown_by_topic_and_failed_messages_apart(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_first", [3])
    fill(shared_cluster, "T_second", [5])
    # The broker makes the topic of retries for a member, which takes nothing here.
    with PollConsumer(
        "GID_two_topics", "T_first", name_server=shared_cluster.name_server
    ) as member:
        assert member.wait_assigned()
    for _ in range(4):
        send_stored(
            shared_cluster.broker, MessageQueue("%RETRY%GID_two_topics", "broker-a", 0), b"x"
        )
    for topic in ("T_first", "T_second", "%RETRY%GID_two_topics"):
        commit(admin, "GID_two_topics", topic, [1])

    shown = smq.json("group", "show", "GID_two_topics")
    (listed,) = [row for row in smq.json("group", "ls") if row["group"] == "GID_two_topics"]
    unclear = smq("group", "skip", "GID_two_topics", "--yes")
    failed = smq("group", "skip", "GID_two_topics", "--topic", "%RETRY%GID_two_topics")

    assert {row["topic"]: row["lag"] for row in shown["topics"] if row["topic"][0] != "%"} == {
        "T_first": 2,
        "T_second": 4,
    }
    assert (shown["failed"]["retries"], shown["failed"]["retried"]) == (3, 4)
    assert (listed["lag"], listed["retries"]) == (9, 3)
    assert (unclear.exit_code, "say which by --topic" in unclear.stderr) == (2, True)
    assert "3 messages will be skipped" in failed.stderr
    assert "has no offset" not in failed.stderr


def test_reset_counts_what_consumers_by_message_have_acknowledged(
    smq: Commands, shared_cluster: EmbeddedCluster
) -> None:
    fill(shared_cluster, "T_popped", [6])
    with SimpleConsumer("GID_popped", name_server=shared_cluster.name_server) as consumer:
        consumer.subscribe("T_popped")
        in_flight, *done = consumer.receive(4, wait=timedelta(seconds=10))
        for message in done:
            consumer.ack(message)

        skip = smq("group", "skip", "GID_popped")
        again = smq("group", "reset", "GID_popped", "--to", "earliest", "--yes")
        come = consumer.receive(6, wait=timedelta(seconds=10))

    assert [message.queue_offset for message in (in_flight, *done)] == [0, 1, 2, 3]
    assert "3 messages will be skipped, 0 will be delivered again" in skip.stderr
    assert "0 messages will be skipped, 3 will be delivered again" in again.stderr
    assert [message.queue_offset for message in come] == list(range(6))


def test_lag_of_a_broadcasting_group_is_unknown(
    smq: Commands, shared_cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    fill(shared_cluster, "T_everybody", [3, 5])
    with PushConsumer(
        "GID_everybody",
        "T_everybody",
        name_server=shared_cluster.name_server,
        listener=lambda messages, context: None,
        message_model=MessageModel.BROADCASTING,
        local_offset_dir=str(tmp_path),
    ) as member:
        wait_until("all queues", lambda: len(member.assignment()) == 2)

        shown = smq.json("group", "show", "GID_everybody")
        rows = smq.json("group", "lag", "GID_everybody")
        reset = smq("group", "reset", "GID_everybody", "--to", "earliest")
        skip = smq.json("group", "skip", "GID_everybody")
        with Admin(name_server=shared_cluster.name_server) as admin:
            plan = admin.reset_offsets("GID_everybody", "T_everybody", to="latest", dry_run=True)

    assert (plan.is_broadcasting, len(plan.members)) == (True, 1)
    assert "no broker knows what its members have consumed" in reset.stderr
    assert "skipped" not in reset.stderr
    assert [(row["before"], row["after"], row["skipped"]) for row in skip["changes"]] == [
        (None, 3, None),
        (None, 5, None),
    ]
    keys = ("lag", "behind_since_timestamp_ms")
    assert [[row[key] for key in keys] for row in (*shown["topics"], *rows)] == [[None, None]] * 3


def test_reset_counts_what_is_skipped_and_what_comes_again_apart(
    smq: Commands, shared_cluster: EmbeddedCluster, admin: Admin
) -> None:
    fill(shared_cluster, "T_both_ways", [6, 6, 6])
    commit(admin, "GID_both_ways", "T_both_ways", [1, 6, 4])

    dry = smq("group", "reset", "GID_both_ways", "--to", "4")

    assert "3 messages will be skipped, 2 will be delivered again" in dry.stderr
    assert "1 more queue would not change" in dry.stderr
    one = smq("group", "reset", "GID_both_ways", "--to", "5", "--queue", "broker-a:2")
    assert "1 message will be skipped, 0 will be delivered again" in one.stderr


def test_settings_of_a_group_are_changed_one_by_one(smq: Commands) -> None:
    update = ("group", "update", "GID_by_one")
    assert smq.json(*update, "--retries", "7", "--yes")["applied"]
    (change,) = smq.json(*update, "--retry-queues", "3", "--yes")["changes"]

    assert (change["max_reconsume_times"], change["retry_queues"]) == ("7", "1 → 3")
    (row,) = smq.json("group", "show", "GID_by_one")["settings"]
    assert (row["max_reconsume_times"], row["retry_queues"]) == (7, 3)
    assert smq.json(*update, "--retries", "7", "--yes") == {"applied": False, "changes": []}


def test_group_shows_the_newest_changes_and_how_many_are_older(smq: Commands, admin: Admin) -> None:
    for retries in range(12):
        admin.update_group("GID_changed_often", max_reconsume_times=retries)

    every = smq.json("group", "show", "GID_changed_often")["changes"]
    shown = smq("group", "show", "GID_changed_often")

    rows = re.findall(r"retry_max_times \d+ → (\d+)", shown.stdout)
    assert rows == [str(retries) for retries in range(11, 1, -1)]
    assert f"{len(every) - CHANGES_SHOWN_MAX} older changes; --json shows all" in shown.stderr


def test_a_terminal_gets_the_first_rows_and_how_many_more_there_are(
    smq: Commands,
    shared_cluster: EmbeddedCluster,
    admin: Admin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(shared_cluster, "T_limited", [90])
    for group, offset in (("GID_limited_done", 90), ("GID_limited_behind", 0)):
        commit(admin, group, "T_limited", [offset])
    first, *others = [row["group"] for row in smq.json("group", "ls")]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "2000")

    limited, whole = smq("ls", "--limit", "1"), smq("ls", "--limit", "0")

    assert first in limited.stdout
    assert not any(f"{name} " in limited.stdout for name in others)
    assert f"{len(others)} more groups; --limit 0 shows all" in limited.stderr
    assert "GID_limited_done" in whole.stdout
    assert whole.stderr == ""


def test_a_topic_that_one_of_its_brokers_serves_is_no_trouble() -> None:
    def trouble(*places: tuple[bool, bool]) -> str:
        found = [
            TopicPlace("b", 1, 1, is_readable=reads, is_writable=writes) for reads, writes in places
        ]
        return topic_trouble(TopicOverview(topic="T", places=tuple(found)))

    assert trouble((True, True), (False, False)) == trouble((True, False), (False, True)) == ""
    assert trouble((True, False), (True, False)) == "no broker accepts messages for topic T"
    assert trouble((False, True), (False, True)) == "no broker lets members read topic T"


def test_rates_are_shown_under_their_names() -> None:
    flow = FlowRates(produced_per_s=3.0, consumed_per_s=2.0, retried_per_s=1.0)

    row = group_row(GroupOverview(group="G"), flow, 0)

    assert [row[f"{name}_per_s"] for name in ("in", "out", "retried")] == [3.0, 2.0, 1.0]
    assert topic_row(TopicOverview(topic="T", places=()), 5.0)["in_per_s"] == 5.0
