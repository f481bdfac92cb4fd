"""`sparrowmq check` and `rebalance doctor` over all groups."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from commands import Commands
from foreign_member import ForeignMember
from members import MemberProcess
from sparrowmq import ConsumeStatus, MessageQueue, PollConsumer, PushConsumer
from sparrowmq.calling.effects import Operation
from sparrowmq.cli.contexts import Context, Contexts, write_contexts
from sparrowmq.cli.main import build_app
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.groups import GROUPS_AT_ONCE, take_snapshots
from sparrowmq.doctor.finding import commands_past
from sparrowmq.errors import InvokeTimeout
from sparrowmq.protocol.bodies import ConsumerRunningInfo
from sparrowmq.protocol.record import Record
from sparrowmq.store import MessageStore, StoreConfig
from sparrowmq.store.file_storage import FileStorage
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster with a group that works, one without members, one of twins, and one that fails."""
    with ExitStack() as stack:
        running = stack.enter_context(EmbeddedCluster(flush="async"))
        running.create_topic("T", queues=4)
        smq = Commands(running.name_server)
        # Nobody consumes it, so nobody misses it.
        running.create_topic("T_closed")
        smq("topic", "update", "T_closed", "--perm", "none", "--yes")
        smq("group", "update", "GID_abandoned", "--yes")
        smq("send", "T", stdin="".join(f"{n}\n" for n in range(50)))
        smq("group", "reset", "GID_abandoned", "--topic", "T", "--to", "earliest", "--yes")
        consumer = PushConsumer(
            "GID_works",
            name_server=running.name_server,
            listener=lambda messages, context: None,
            start="first",
        )
        consumer.subscribe("T")
        stack.enter_context(consumer).start()
        running.create_topic("T_fails", queues=1)
        stack.enter_context(
            PushConsumer(
                "GID_fails",
                "T_fails",
                name_server=running.name_server,
                listener=lambda messages, context: ConsumeStatus.RECONSUME_LATER,
                start="first",
                max_reconsume_times=0,
            )
        )
        smq("send", "T_fails", "hard to digest")
        twins = [
            stack.enter_context(MemberProcess(running, "GID_twins", topic="T", instance="one"))
            for _ in range(2)
        ]
        wait_until("twins", lambda: all(twin.queue_ids for twin in twins), timeout_s=60)
        wait_until(
            "a dead letter",
            lambda: 1 in [r["messages"] for r in smq.json("dlq", "ls")],
            timeout_s=60,
        )
        wait_until(
            "all consumed",
            lambda: 0 in [r["lag"] for r in smq.json("group", "ls") if r["group"] == "GID_works"],
            timeout_s=60,
        )
        yield running


@pytest.fixture
def smq(cluster: EmbeddedCluster) -> Commands:
    return Commands(cluster.name_server)


@pytest.mark.parametrize(
    ("options", "code", "line"),
    [
        (["-g", "GID_works"], 0, "OK: 1 broker, 1 group, 0 messages behind"),
        (["-g", "GID_abandoned"], 1, "WARNING: GID_abandoned: nobody consumes, 50 messages behind"),
        (
            ["-g", "GID_abandoned", "--warn-lag", "10"],
            2,
            "CRITICAL: GID_abandoned: nobody consumes",
        ),
        (["-g", "GID_twins"], 2, "CRITICAL: GID_twins: 1 client id used twice"),
        (["-g", "GID_abandoned", "--max-lag", "51"], 1, "WARNING: GID_abandoned: nobody consumes"),
        (["-g", "GID_fails"], 1, "WARNING: GID_fails: dead letters: 1 message, the last "),
        ([], 2, "CRITICAL: 1 broker, 4 groups, "),
        (["-g", "GID_works", "--max-disk", "0"], 2, "CRITICAL: broker-a: its disk is "),
    ],
)
def test_exit_code_says_how_the_cluster_is(
    smq: Commands, options: list[str], code: int, line: str
) -> None:
    result = smq("check", *options)

    assert code == result.exit_code, result.stdout
    assert line in result.stdout


def test_a_broker_that_stores_no_messages_is_critical_whatever_its_disk() -> None:
    full = tuple(f"--disk-{name}-percent=1" for name in ("expire", "force", "full"))
    with EmbeddedCluster(options=full) as cluster:
        smq = Commands(cluster.name_server)
        # The broker looks at its disk every few seconds.
        wait_until("the refusal", lambda: smq("check", "--max-disk", "100").exit_code == 2)
        checked, listed = smq("check", "--max-disk", "100"), smq("ls")

    assert "CRITICAL: broker-a: it stores no messages: its disk is " in checked.stdout
    assert "broker-a: it stores no messages: its disk is " in listed.stderr


def test_check_warns_of_a_clock_that_was_far_ahead_at_the_start(tmp_path: Path) -> None:
    store = MessageStore(FileStorage(tmp_path / "store"), StoreConfig())
    store.load(timestamp_ms=1)
    # As of a machine that was right then, or is right now.
    store.put(Record(topic="T", queue_id=0, body=b"abc"), timestamp_ms=1_500_000_000_000)
    store.close()
    with EmbeddedCluster(tmp_path, options=("--retention-hours=0",)) as cluster:
        checked, log = Commands(cluster.name_server)("check"), cluster.log_path.read_text()

    assert checked.exit_code == 1
    assert "WARNING: broker-a: at its start its clock was " in checked.stdout
    assert " days ahead of the last message: if it is wrong, " in log


def test_check_warns_of_a_message_that_waits_however_few_wait(smq: Commands) -> None:
    options = ("-g", "GID_abandoned", "--warn-wait", "10")
    warning = "GID_abandoned: nobody consumes; a message of T has waited for "
    wait_until("ten seconds", lambda: warning in smq("check", *options).stdout, timeout_s=60)

    result = smq("check", *options)
    assert "more: sparrowmq rebalance doctor GID_abandoned --nameserver " in result.stderr
    (row,) = [r for r in smq.json("ls")["groups"] if r["group"] == "GID_abandoned"]
    (topic,) = smq.json("group", "show", "GID_abandoned")["topics"]
    lags = smq.json("group", "lag", "GID_abandoned")
    since = {each["behind_since_timestamp_ms"] // 1000 for each in (row, topic)}
    oldest = min(each["behind_since_timestamp_ms"] for each in lags if each["lag"]) // 1000
    assert max(since | {oldest}) - min(since | {oldest}) <= 1


def test_check_refuses_groups_that_nobody_knows(smq: Commands) -> None:
    result = smq("check", "-g", "gid_work")

    assert (result.exit_code, "did you mean GID_works?" in result.stderr) == (2, True)


def test_check_says_unknown_where_no_cluster_answers() -> None:
    result = Commands("127.0.0.1:1")("check")

    assert (result.exit_code, result.stdout) == (3, "")


def test_doctor_looks_at_all_groups_worst_first(smq: Commands) -> None:
    groups = smq.json("rebalance", "doctor", "--interval", "0")["groups"]

    severities = [{f["severity"] for f in group["findings"]} for group in groups]
    assert {group["group"] for group in groups[:2]} == {"GID_twins", "GID_abandoned"}
    assert [group["group"] for group in groups[2:]] == ["GID_fails", "GID_works"]
    assert ["error" in found for found in severities] == [True, True, False, False]

    limited = smq("rebalance", "doctor", "--interval", "0", "--limit", "1", "--fail-on", "error")
    assert limited.exit_code == 1
    assert "the 1 of 4 groups" in limited.stderr
    assert limited.stdout.splitlines()[-1] == "not looked at: 3 of 4 groups"
    told = smq("rebalance", "doctor", "--interval", "0").stdout
    assert "nothing is wrong with GID_works" in told
    assert "too close to detect a queue that stands still" in told


@pytest.mark.parametrize(
    ("seen", "level", "code"),
    [("GID_works", "error", 3), ("GID_works", "never", 0), ("GID_twins", "error", 1)],
)
def test_a_job_hears_of_groups_that_could_not_be_looked_at(
    smq: Commands, monkeypatch: pytest.MonkeyPatch, seen: str, level: str, code: int
) -> None:
    def look(directory: Directory, groups: Sequence[str], *, interval_ms: int) -> Operation[Any]:
        found, failures = yield from take_snapshots(directory, groups, interval_ms=interval_ms)
        late = InvokeTimeout("no answer within 3 s")
        failures |= {group: late for group in groups if group != seen}
        return [each for each in found if each.group == seen], failures

    monkeypatch.setattr("sparrowmq.cli.rebalance.take_snapshots", look)
    result = smq("rebalance", "doctor", "--interval", "0", "--fail-on", level)

    assert result.exit_code == code
    assert "group GID_abandoned was left out: no answer within 3 s" in result.stderr


def test_doctor_says_at_which_groups_it_did_not_look(smq: Commands) -> None:
    options = ("rebalance", "doctor", "--interval", "0")
    found = smq.json(*options, "--limit", "1")
    names = {group["group"] for group in found["groups"]} | set(found["not_looked_at"])

    assert names == {"GID_twins", "GID_abandoned", "GID_fails", "GID_works"}
    assert len(found["not_looked_at"]) == 3
    assert smq.json(*options)["not_looked_at"] == []
    assert "not looked at" not in smq(*options).stdout


def test_doctor_looks_at_many_groups_in_one_pass() -> None:
    with EmbeddedCluster(flush="async") as cluster:
        smq = Commands(cluster.name_server)
        for number in range(GROUPS_AT_ONCE + 1):
            smq("group", "update", f"GID_{number}", "--yes")
        groups = smq.json("rebalance", "doctor", "--interval", "0.2")["groups"]

    assert len(groups) == GROUPS_AT_ONCE + 1
    # Every group is seen for the first time before any is seen again.
    begins = [group["timestamp_ms"] - group["interval_ms"] for group in groups]
    assert max(begins) <= min(group["timestamp_ms"] for group in groups)


def test_strategy_needs_a_group(smq: Commands) -> None:
    result = smq("rebalance", "doctor", "--strategy", "AVG")

    assert (result.exit_code, "name the group" in result.stderr) == (2, True)


def test_json_has_the_health_the_lag_and_each_trouble(smq: Commands) -> None:
    behind = smq("check", "-g", "GID_abandoned", "--json")
    works = smq.json("check", "-g", "GID_works")

    found = json.loads(behind.stdout)
    assert (behind.exit_code, found["health"], found["lag"]) == (1, "WARNING", 50)
    (trouble,) = found["troubles"]
    assert (trouble["health"], trouble["what"]) == ("WARNING", "GID_abandoned")
    assert "nobody consumes" in trouble["why"]
    assert works == {"health": "OK", "lag": 0, "troubles": []}


def test_the_command_that_says_more_reaches_the_same_cluster(
    cluster: EmbeddedCluster, home: Path
) -> None:
    here = Context(name_server=cluster.name_server)
    write_contexts(home / "sparrowmq" / "contexts.toml", Contexts(contexts={"here": here}))

    result = CliRunner().invoke(build_app(), ["check", "-g", "GID_abandoned", "-c", "here"])

    assert "more: sparrowmq rebalance doctor GID_abandoned --context here" in result.stderr


@pytest.mark.parametrize(
    ("warn_lag", "max_lag", "code"), [(3, 4, 1), (3, 3, 2), (4, 4, 0), (1, 2, 2)]
)
def test_lag_of_a_group_with_a_member_has_its_own_bounds(
    shared_cluster: EmbeddedCluster, warn_lag: int, max_lag: int, code: int
) -> None:
    smq, at = Commands(shared_cluster.name_server), ("--topic", "T_slow_group")
    if smq("topic", "create", "T_slow_group", "-q", "1").exit_code == 0:
        smq("send", "T_slow_group", stdin="1\n2\n3\n")
    smq("group", "update", "GID_slow", "--yes")
    smq("group", "reset", "GID_slow", *at, "--to", "earliest", "--yes")
    # A member that is there, and consumes nothing.
    with PollConsumer("GID_slow", "T_slow_group", name_server=shared_cluster.name_server) as member:
        assert member.wait_assigned()

        options = ("--warn-lag", str(warn_lag), "--max-lag", str(max_lag), "--max-disk", "100")
        result = smq("check", "-g", "GID_slow", *options)

    assert (result.exit_code, "3 messages behind" in result.stdout) == (code, True), result.stdout


def test_check_warns_of_a_topic_that_nobody_may_read(shared_cluster: EmbeddedCluster) -> None:
    smq = Commands(shared_cluster.name_server)
    smq("topic", "create", "T_unread", "-q", "1")
    smq("group", "update", "GID_unread_topic", "--yes")
    smq("group", "reset", "GID_unread_topic", "--topic", "T_unread", "--to", "0", "--yes")
    smq("topic", "update", "T_unread", "--perm", "w", "--yes")

    smq("topic", "create", "T_read", "-q", "1")
    smq("group", "update", "GID_reads_another", "--yes")
    smq("group", "reset", "GID_reads_another", "--topic", "T_read", "--to", "0", "--yes")

    result = smq("check", "-g", "GID_unread_topic", "--max-disk", "100")
    other = smq("check", "-g", "GID_reads_another", "--max-disk", "100")

    assert (result.exit_code, other.exit_code) == (1, 0)
    assert "WARNING: T_unread: no broker lets members read topic T_unread" in result.stdout


def test_check_sees_what_a_group_that_never_committed_leaves_waiting(
    shared_cluster: EmbeddedCluster,
) -> None:
    smq = Commands(shared_cluster.name_server)
    smq("topic", "create", "T_stuck", "-q", "2")
    smq("send", "T_stuck", stdin="1\n2\n3\n")
    smq("group", "update", "GID_stuck", "--yes")
    nobody = smq("check", "-g", "GID_stuck", "--max-disk", "100")
    # A member whose first call of the listener does not end has committed nothing.
    member = ForeignMember(
        shared_cluster.broker,
        "GID_stuck",
        "T_stuck",
        client_id="10.0.0.1@1",
        says=ConsumerRunningInfo(),
    )
    try:
        bound = ("--max-lag", "3", "--max-disk", "100")
        stuck = smq("check", "-g", "GID_stuck", *bound)
        listed = {row["group"]: row["lag"] for row in smq.json("group", "ls")}
    finally:
        member.close()

    expected = "WARNING: GID_stuck: nobody consumes, brokers know no offset of the group"
    assert (nobody.exit_code, expected in nobody.stdout) == (1, True), nobody.stdout
    assert (stuck.exit_code, "CRITICAL: GID_stuck: 3 messages behind" in stuck.stdout) == (2, True)
    assert listed["GID_stuck"] == 3


def test_commands_with_odd_names_can_be_pasted(
    shared_cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", shared_cluster.name_server)

    def run(line: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(build_app(), shlex.split(line), input=stdin)

    said = run("topic show -- '-t|x'").stderr
    made = run("topic create -q 1 -- '-t|x'")
    run("send -- '-t|x'", stdin="1\n")
    run("group update --yes -- '-g|x'")
    run("group reset --topic '-t|x' --to 0 --yes -- '-g|x'")
    more = run("check -g '-g|x' --max-lag 1 --max-disk 100").stderr.partition("more: ")[2]
    where = ("--nameserver", shared_cluster.name_server)
    queue = MessageQueue("-t|x", "broker-a", 0)
    cures = [each.write(where) for each in commands_past("-g|x", queue, 0)]

    pasted = [run(each.removeprefix("sparrowmq ")) for each in (more, *cures)]

    assert "`sparrowmq topic create -- '-t|x'` makes it" in said
    assert made.exit_code == 0
    assert [each.exit_code for each in pasted] == [0, 0, 0], [each.output for each in pasted]
    assert "'-g|x'" in more
