"""`sparrowmq rebalance` on a real cluster with real members: what it prints and how it exits."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import waiting
from members import MemberProcess
from sparrowmq import Message, Producer, PushConsumer
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import invoke
from sparrowmq.cli.main import build_app
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.testing import EmbeddedCluster

wait_until = partial(waiting.wait_until, timeout_s=30)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "flights"
QUEUE_COUNT = 8
COMMAND = [sys.executable, "-m", "sparrowmq", "rebalance"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build_app(), ["rebalance", *arguments])


class Stage:
    """A cluster with a topic, and what members are on it."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.cluster = cluster
        self.at = ["--nameserver", cluster.name_server, "--timeout", "10"]
        self._members: list[PushConsumer] = []
        self._twins: list[MemberProcess] = []

    def join(self, group: str, instances: Sequence[str], *, listener: Any = None) -> None:
        """Start members `172.17.0.1@INSTANCE` and wait until all are listed and have queues.

        An instance that comes again is a process of its own.
        """
        for place, instance in enumerate(instances):
            if instance in instances[:place]:
                self._twins.append(
                    MemberProcess(self.cluster, group, topic=TOPIC, instance=instance)
                )
                continue
            member = PushConsumer(
                group,
                name_server=self.cluster.name_server,
                listener=listener or (lambda messages, context: None),
                client_ip="172.17.0.1",
                instance_name=instance,
                start="first",
            )
            member.subscribe(TOPIC)
            member.start()
            self._members.append(member)
        wait_until("a share for each", lambda: all(m.assignment() for m in self._members))
        wait_until("a share for each process", lambda: all(t.queue_ids for t in self._twins))
        wait_until(
            f"{instances} members of {group}",
            lambda: (
                sorted(instances)
                == sorted(m["client_id"].partition("@")[2] for m in self.show(group)["members"])
            ),
        )

    def share_sizes(self) -> list[int]:
        return [len(member.assignment()) for member in self._members]

    def show(self, group: str) -> Any:
        result = run("show", group, *self.at, "--json", "--interval", "0")
        # A group that nobody has heard of yet is exit 2.
        return json.loads(result.stdout) if result.exit_code == 0 else {"members": []}

    def send(self, *queue_ids: int) -> None:
        with Producer("GID_senders", name_server=self.cluster.name_server) as producer:
            for queue_id in queue_ids:
                queue = MessageQueue(TOPIC, "broker-a", queue_id)
                producer.send(Message(TOPIC, b"x"), queue=queue)

    def leave(self) -> None:
        for member in self._members:
            member.close()
        for twin in self._twins:
            twin.close()
        self._members.clear()
        self._twins.clear()


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(flush="async") as cluster:
        cluster.create_topic(TOPIC, queues=QUEUE_COUNT)
        yield cluster


@pytest.fixture
def stage(cluster: EmbeddedCluster) -> Iterator[Stage]:
    stage = Stage(cluster)
    yield stage
    stage.leave()


def ids(queues: list[dict[str, Any]]) -> list[int]:
    return [queue["queue_id"] for queue in queues if queue["topic"] == TOPIC]


def test_doctor_finds_two_members_with_one_client_id(stage: Stage) -> None:
    stage.join("GID_twins", ["9", "9"])
    stage.send(*range(QUEUE_COUNT))

    result = run("doctor", "GID_twins", *stage.at, "--json", "--interval", "0.5")
    in_words = run("doctor", "GID_twins", *stage.at, "--interval", "0", "--fail-on", "warn")

    assert result.exit_code == 0
    found = json.loads(result.stdout)
    finding = next(f for f in found["findings"] if f["rule"] == "R01")
    assert finding["severity"] == "error"
    assert finding["members"] == ["172.17.0.1@9"]
    assert ids(finding["double"]) == [0, 1, 2, 3]
    assert ids(finding["unowned"]) == [4, 5, 6, 7]
    addresses = re.findall(r"127\.0\.0\.1:\d+", finding["evidence"][0])
    assert len(set(addresses)) == 2
    assert 500 <= found["interval_ms"] < 10_000
    assert in_words.exit_code == 1
    assert (
        " ERROR  R01 several processes on several hosts or containers use client id"
        in in_words.stdout
    )
    assert "nobody consumes flights at broker-a: 4-7 (4 messages behind)" in in_words.stdout
    assert in_words.stdout.index("R01") < in_words.stdout.index("means")


def test_howto_shows_what_the_doctor_prints(stage: Stage) -> None:
    def without_numbers(text: str) -> str:
        # Ids are part of it; lags, waits, rates and ports are of the moment.
        words = re.sub(r" · the oldest waits for [\d.]+ \w+", "", " ".join(text.split()))
        return re.sub(
            r"\d[\d.,]*(?= messages| a second)|(?<=127\.0\.0\.1:)\d+|(?<=sport = :)\d+", "#", words
        )

    printed = (ROOT / "docs/howto/messages-pile-up.md").read_text()
    report, _, explanation, _ = re.findall(r"```text\n(.*?)```", printed, re.S)
    stage.join("GID_arrivals", ["11", "9", "9"])
    more = threading.Event()

    def produce() -> None:
        while not more.wait(0.02):
            stage.send(6, 7)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        shown = run("doctor", "GID_arrivals", *stage.at, "--interval", "2").stdout
        at = [*stage.at, "-q", "broker-a:7"]
        explained = run("explain", "GID_arrivals", *at).stdout
    finally:
        more.set()
        producing.join()

    assert without_numbers(report) in without_numbers(shown)
    assert without_numbers(explanation) == without_numbers(explained)


def test_show_hatches_what_nobody_owns_and_marks_what_two_own(stage: Stage) -> None:
    stage.join("GID_pair", ["7", "7"])

    lines = run("show", "GID_pair", *stage.at, "--interval", "0").stdout.splitlines()

    rows = {line.split()[0]: line for line in lines if ":" in line and "broker-a" in line}
    assert re.search(r"▨ +▨ +A \+ B  twice$", rows["broker-a:0"])
    assert re.search(r"╱╱╱ +╱╱╱ +nobody$", rows["broker-a:7"])
    members = [line.split() for line in lines if "172.17.0.1@7" in line]
    assert [words[0] for words in members] == ["A", "B"]
    assert {" ".join(words[4:]) for words in members} == {"id in use twice"}
    assert "4 queues nobody owns" in lines[-1]
    assert not any(line != line.rstrip() for line in lines)


def test_explain_gives_the_arithmetic_of_a_queue(stage: Stage) -> None:
    stage.join("GID_explained", ["1", "2", "2"])
    at = [*stage.at, "--topic", TOPIC]

    owned = run("explain", "GID_explained", *at, "-q", "broker-a:1")
    orphan = run("explain", "GID_explained", *at, "-q", "broker-a:7", "--json")
    wrong = run("explain", "GID_explained", *at, "-q", "broker-a:8")

    assert "flights broker-a:1 is owned by 172.17.0.1@1, by the list of broker-a" in owned.stdout
    assert "8 queues over 3 members are 2 each, remainder 2" in owned.stdout
    told = json.loads(orphan.stdout)["explanations"][0]
    assert told["owners"] == []
    assert told["client_ids"] == ["172.17.0.1@1", "172.17.0.1@2", "172.17.0.1@2"]
    assert wrong.exit_code == 2
    assert "they divide flights at broker-a: 0-7" in wrong.stderr


def test_healthy_group_passes(stage: Stage) -> None:
    stage.join("GID_healthy", ["1", "2"])
    wait_until("a half for each", lambda: stage.share_sizes() == [4, 4])

    def examine() -> Result:
        return run("doctor", "GID_healthy", *stage.at, "--interval", "0.5", "--fail-on", "info")

    # A handover is information as long as the doctor sees it.
    wait_until("the end of the handover", lambda: examine().exit_code == 0)
    result = examine()

    assert result.exit_code == 0, result.stdout
    assert "nothing is wrong" in result.stdout
    assert "twice, 0.5 s apart" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["doctor", "GID_presnt"], 2, "no broker knows consumer group 'GID_presnt'; did you mean"),
        (["doctor", "no/such"], 2, "no/such"),
        (["show", "GID_present", "--strategy", "AVERAGE"], 2, "did you mean AVG?"),
        (["explain", "GID_present", "-q", "3"], 2, "write BROKER:ID"),
        (["doctor", "GID_present", "--nameserver", "127.0.0.1:1"], 3, "127.0.0.1:1"),
        (["doctor", "GID_present", "--nameserver", "nonsense"], 2, "nonsense"),
        (["doctor", "GID_present", "--interval", "-1"], 2, "interval"),
        (["simulate", "--strategy", "sticki"], 2, "did you mean sticky?"),
        (["simulate", "--events", "joim"], 2, "did you mean join?"),
        (["simulate", "--workload", "all", "--duplicate-id"], 2, "leave out --workload"),
        (["simulate", "--workload", "all", "--events", "join"], 2, "leave out --workload"),
        (["simulate", "--events", "leave:7"], 2, "the group has 3 members then"),
        (["simulate", "--queues", "0"], 2, "--queues is 0; it must be from 1 to 10000\n"),
        (
            ["simulate", "--queues", "10000", "--members", "1000"],
            2,
            "--queues is 10000; with 1000 members and 2 events it must be from 1 to 166\n",
        ),
        (["simulate", "--rooms", "5"], 2, "--rooms is 5; it must be from 1 to 1, the number of br"),
        (
            ["simulate", "--workload", "all", "--members", "65"],
            2,
            "--members is 65; with a workload it must be from 1 to 64\n",
        ),
        (["simulate", "--workload", "zipff"], 2, "all are zipf, speeds"),
    ],
)
def test_failures_are_one_line_and_an_exit_code(
    stage: Stage, arguments: list[str], code: int, words: str
) -> None:
    stage.join("GID_present", ["1"])
    at = [] if "--nameserver" in arguments or arguments[0] == "simulate" else stage.at

    result = run(*arguments, *at)

    assert code == result.exit_code
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_group_that_went_away_and_one_that_never_came(stage: Stage) -> None:
    consumed = threading.Event()
    stage.join("GID_gone", ["1"], listener=lambda messages, context: consumed.set())
    stage.send(3)
    # It commits when it leaves; a group that committed nothing is not known to be behind.
    assert consumed.wait(60)
    stage.leave()
    stage.send(3, 3)
    create_group(stage.cluster, "GID_never")

    gone = json.loads(run("doctor", "GID_gone", *stage.at, "--json", "--interval", "0").stdout)
    never = run("doctor", "GID_never", *stage.at, "--interval", "0", "--fail-on", "warn")

    assert [finding["rule"] for finding in gone["findings"]] == ["Q04"]
    assert gone["findings"][0]["severity"] == "error"
    assert gone["lag"] >= 2
    assert never.exit_code == 1
    assert " WARN  Q04 no member of this group is connected" in never.stdout


def create_group(cluster: EmbeddedCluster, group: str) -> None:
    driver = BlockingDriver()
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    request = RemotingCommand(code=code, body=json.dumps({"groupName": group}).encode())
    try:
        assert driver.run(invoke(cluster.broker, request, timeout_ms=10_000)).code == 0
    finally:
        driver.close()


def test_one_dead_name_server_of_two_does_no_harm(stage: Stage) -> None:
    stage.join("GID_two_servers", ["1"])
    servers = f"127.0.0.1:1;{stage.cluster.name_server}"

    result = run("doctor", "GID_two_servers", "--nameserver", servers, "--interval", "0")

    assert "nothing is wrong" in result.stdout
    assert result.exit_code == 0


def test_doctor_finds_a_queue_that_a_listener_blocks(stage: Stage) -> None:
    blocked, free = threading.Event(), threading.Event()

    def listener(messages: list[Any], context: Any) -> None:
        if messages[0].queue_id == 0:
            blocked.set()
            free.wait(60)

    stage.join("GID_blocked", ["1"], listener=listener)
    stage.send(0)
    assert blocked.wait(60)
    more = threading.Event()

    def produce() -> None:
        while not more.wait(0.1):
            stage.send(0, 1, 2)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        found = json.loads(run("doctor", "GID_blocked", *stage.at, "--json").stdout)
    finally:
        more.set()
        free.set()
        producing.join()

    finding = next(finding for finding in found["findings"] if finding["rule"] == "R30")
    assert finding["title"] == "queue flights at broker-a: 0 stands still"
    assert "behind, growing by" in finding["consequence"]


def test_watch_prints_one_object_a_line_and_counts(stage: Stage) -> None:
    stage.join("GID_watched", ["1", "2"])
    at = [*stage.at, "--interval", "0.1", "--count", "2"]

    lines = run("watch", "GID_watched", *at, "--json").stdout.splitlines()
    in_words = run("watch", "GID_watched", *at).stdout

    assert [len(ids(json.loads(line)["queues"])) for line in lines] == [QUEUE_COUNT] * 2
    assert in_words.count("GID_watched  strategy AVG") == 2


def test_watch_dates_the_owners_that_it_saw_change(stage: Stage) -> None:
    def who(line: dict[str, Any]) -> object:
        """Return the owners of the last queue, which goes to the second member."""
        return line["queues"][-1]["owners"]

    stage.join("GID_dated", ["1"])
    command = [*COMMAND, "watch", "GID_dated", *stage.at, "--interval", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            second = MemberProcess(stage.cluster, "GID_dated", topic=TOPIC, instance="2")
            seen = map(json.loads, islice(process.stdout, 100))
            changed = next(line for line in seen if who(line) != who(first))
            second.close()
        finally:
            process.send_signal(signal.SIGINT)

    assert {each["since_timestamp_ms"] for each in first["queues"]} == {None}
    assert changed["queues"][-1]["since_timestamp_ms"] == changed["timestamp_ms"]


@pytest.mark.parametrize(
    "command", [("rebalance", "watch", "GID_survivor"), ("group", "lag", "GID_survivor", "--watch")]
)
def test_watch_ends_with_ctrl_c_and_outlives_a_broker(command: tuple[str, ...]) -> None:
    with EmbeddedCluster(flush="async") as cluster:
        cluster.create_topic(TOPIC, queues=1)
        create_group(cluster, "GID_survivor")
        at = ["--nameserver", cluster.name_server, "--interval", "0.5", "--timeout", "2"]
        process = subprocess.Popen(
            [*COMMAND[:-1], *command, *at, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert json.loads(process.stdout.readline())["queues"] == []
            cluster.kill()
            assert process.stderr.readline().startswith("sparrowmq: ")
            cluster.start()
            stdout = process.stdout
            wait_until("seen again", lambda: '"queues"' in stdout.readline())
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()

    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.parametrize(("columns", "has_matrix"), [(100, True), (46, False)])
def test_terminal_gets_colours_and_no_line_longer_than_it_is_wide(
    stage: Stage, columns: int, has_matrix: bool
) -> None:
    group = f"GID_at_{columns}"
    stage.join(group, ["1", "2"])

    text, plain = show_on_terminal(columns, "show", group, *stage.at, "--interval", "0")

    assert "\x1b[" in text
    assert max(len(line) for line in plain.split("\n")) <= columns
    assert has_matrix == ("■" in plain)
    assert "broker-a:7" in plain
    # The letters of owners have their members, and nothing is cut.
    assert re.findall(r"^([AB])  172", plain, re.M) == ["A", "B"]
    assert "…" not in plain


def test_narrow_terminal_gets_all_figures_of_a_simulation() -> None:
    plan = ["--queues", "12", "--members", "5"]

    wide, narrow = (show_on_terminal(columns, "simulate", *plan)[1] for columns in (200, 46))

    assert max(len(line) for line in narrow.split("\n")) <= 46
    assert "…" not in narrow
    (row,) = re.findall(r"^ AVG +(.*)$", wide, re.M)
    assert " ".join(re.findall(r"^ AVG +(.*)$", narrow, re.M)).split() == row.split()


def show_on_terminal(columns: int, *arguments: str) -> tuple[str, str]:
    """Run a command on a terminal; return what it got, and the same without colours."""
    main, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {**os.environ, "TERM": "xterm-256color"}
    for name in ("COLUMNS", "NO_COLOR"):
        env.pop(name, None)
    process = subprocess.Popen([*COMMAND, *arguments], stdin=far, stdout=far, stderr=far, env=env)
    os.close(far)
    text = read_all(main)
    assert process.wait(60) == 0
    return text, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")


def test_watched_terminal_that_is_low_gets_one_row_for_queues_of_one_owner(stage: Stage) -> None:
    group = "GID_low"
    stage.join(group, ["1", "2"])
    main, far = pty.openpty()
    fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 16, 100, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    command = [*COMMAND, "watch", group, *stage.at, "--interval", "0.2", "--count", "1"]
    process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=env)
    os.close(far)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", read_all(main))

    assert process.wait(60) == 0
    assert re.findall(r"broker-a:\d-\d", plain)[-2:] == ["broker-a:0-3", "broker-a:4-7"]


def read_all(descriptor: int) -> str:
    """Read a terminal to its end, which Linux tells as an error."""
    parts = []
    try:
        while data := os.read(descriptor, 65_536):
            parts.append(data)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return b"".join(parts).decode()


def test_simulate_compares_all_strategies(stage: Stage) -> None:
    plan = ["--queues", "12", "--members", "5", "--events", "join,leave:0,kill"]

    words = run("simulate", *plan).stdout
    told = json.loads(run("simulate", *plan, "--json").stdout)

    names = [each["strategy"] for each in told["strategies"]]
    assert {"AVG", "CONSISTENT_HASH", "range", "cooperative-sticky"} <= set(names)
    assert all(re.search(rf"^ {re.escape(name)} ", words, re.M) for name in names)
    average = told["strategies"][names.index("AVG")]
    first = [len(member["queues"]) for member in average["steps"][0]["assignment"]]
    assert first == [3, 3, 2, 2, 2]
    assert [s["event"] for s in average["steps"][1:]] == ["join", "leave:0", "kill"]


def test_simulate_compares_lags_under_a_workload() -> None:
    plan = ["--workload", "speeds", "--queues", "8", "--members", "2"]

    words = run("simulate", *plan).stdout
    told = json.loads(run("simulate", *plan, "--json").stdout)

    (speeds,) = told["workloads"]
    average, load = (speeds["policies"][name] for name in ("AVG", "AVG_BY_LOAD"))
    assert (told["queues"], told["members"]) == (8, 2)
    assert average["lag_max"] > 10 * load["lag_max"]
    assert (average["moves"], load["moves"] > 0) == (0, True)
    assert f"{average['lag_max']:,}" in words
    assert f"({load['moves']})" in words


def test_simulate_shows_what_a_duplicate_id_costs() -> None:
    plan = ["--queues", "4", "--members", "2", "--events", "", "--duplicate-id"]

    told = json.loads(run("simulate", *plan, "--json").stdout)

    average = next(each for each in told["strategies"] if each["strategy"] == "AVG")
    step = average["steps"][0]
    assert [queue["queue_id"] for queue in step["unowned"]] == [2, 3]
    assert [queue["queue_id"] for queue in step["double"]] == [0, 1]
