"""Apache's `mqadmin` against our name server and broker: what operators type every day."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sparrowmq
from sparrowmq import Message, Producer, PushConsumer, SendResult
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC, GROUP, SENDERS = "mqadmin-topic", "GID_mqadmin", "GID_mqadmin_senders"
MESSAGE_COUNT = 40
Admin = Callable[..., str]


@pytest.fixture(scope="module")
def sent(our_cluster: Any) -> list[SendResult]:
    """What the producer of this cluster's stage was answered."""
    return []


@pytest.fixture(scope="module")
def stage(our_cluster: Any, sent: list[SendResult]) -> Iterator[Any]:
    """Our cluster with a topic, a producer, and a consumer that has consumed everything."""
    our_cluster.create_topic(TOPIC, queues=4)
    got: list[Any] = []
    consumer = PushConsumer(
        GROUP,
        name_server=our_cluster.name_server,
        listener=lambda messages, context: got.extend(messages),
    )
    consumer.subscribe(TOPIC)
    consumer.start()
    with consumer, Producer(SENDERS, name_server=our_cluster.name_server, trace=True) as producer:
        for number in range(MESSAGE_COUNT):
            message = Message(TOPIC, b"%d" % number, keys=(f"key{number}", f"mod{number % 2}"))
            sent.append(producer.send(message))
        yield our_cluster


@pytest.fixture
def mqadmin(stage: Any, java: Any, rig: ModuleType, tmp_path: Path) -> Admin:
    """Run `mqadmin COMMAND` and return what it prints; an exception in it is a failure."""

    def run(command: str) -> str:
        lines = java.mqadmin(stage, *command.split())
        printed = "\n".join(lines.lines)
        trace = re.search(r"^(org|java|Caused by)[.:].*Exception", printed + lines._tail(), re.M)
        assert trace is None, lines._tail()
        assert lines.process.returncode == 0
        # What logback of 5.x says of itself goes before.
        return "\n".join(line for line in lines.lines if not re.match(r"[\d:,]+ \|-", line))

    return run


def rows(printed: str, first: str) -> list[list[str]]:
    """The words of the lines whose first word it is."""
    return [line.split() for line in printed.splitlines() if line.startswith(f"{first} ")]


def test_cluster_list_names_the_broker_and_its_load(mqadmin: Admin) -> None:
    words = rows(mqadmin("clusterList"), "DefaultCluster")[0]
    totals = rows(mqadmin("clusterList -m"), "DefaultCluster")[0]

    assert words[:3] == ["DefaultCluster", "broker-a", "0"]
    assert re.fullmatch(r"\d+\.\d\d\(0,0ms.*\)", words[5])
    assert re.fullmatch(r"\d+\.\d\d\(0,0ms.*\)", words[6])
    assert int(totals[-2]) >= MESSAGE_COUNT


def test_topic_list_and_route(mqadmin: Admin) -> None:
    assert TOPIC in mqadmin("topicList").split()
    assert re.search(rf"DefaultCluster +{TOPIC} +{GROUP}", mqadmin("topicList -c"))
    assert mqadmin(f"topicClusterList -t {TOPIC}").strip() == "DefaultCluster"
    assert '"writeQueueNums":4' in mqadmin(f"topicRoute -t {TOPIC}")


def test_topic_status_adds_up(mqadmin: Admin) -> None:
    status = rows(mqadmin(f"topicStatus -t {TOPIC}"), "broker-a")

    assert [row[1] for row in status] == ["0", "1", "2", "3"]
    assert sum(int(row[3]) for row in status) == MESSAGE_COUNT


def test_consumer_progress_and_connection(mqadmin: Admin) -> None:
    progress = mqadmin(f"consumerProgress -g {GROUP}")
    everybody = mqadmin("consumerProgress")
    connection = mqadmin(f"consumerConnection -g {GROUP}")

    assert sum(int(row[3]) for row in rows(progress, TOPIC)) == MESSAGE_COUNT
    assert re.search(rf"^{GROUP} +1 .* CLUSTERING ", everybody, re.M)
    assert re.search(r"@.* 127\.0\.0\.1:\d+ +PYTHON", connection)
    assert "MessageModel: CLUSTERING" in connection


def test_producer_connection(mqadmin: Admin) -> None:
    assert "PYTHON" in mqadmin(f"producerConnection -g {SENDERS} -t {TOPIC}")


def test_broker_status_counts(mqadmin: Admin, stage: Any) -> None:
    one = mqadmin(f"brokerStatus -b {stage.broker}")
    all_of_them = mqadmin("brokerStatus -c DefaultCluster")

    found = dict(re.findall(r"^(\w+) +: (.*)$", one, re.M))
    assert int(found["putMessageTimesTotal"]) >= MESSAGE_COUNT
    assert re.fullmatch(r"[\d.]+ [\d.]+ [\d.]+ *", found["putTps"])
    assert f"{stage.broker}" in all_of_them


def test_stats_of_all_topics(mqadmin: Admin) -> None:
    (row,) = [row for row in rows(mqadmin("statsAll"), TOPIC) if row[1] == GROUP]

    # Topic, group, accumulated, in and out a second, in and out within a day.
    assert row[:2] == [TOPIC, GROUP]
    assert int(row[5]) == MESSAGE_COUNT


def test_progress_of_all_groups_of_a_broker(mqadmin: Admin, stage: Any) -> None:
    progress = rows(mqadmin(f"brokerConsumeStats -b {stage.broker}"), TOPIC)

    # Other tests have groups of the topic too.
    assert sum(int(row[4]) for row in progress if row[1] == GROUP) == MESSAGE_COUNT


def test_allocation_gives_each_queue_once(mqadmin: Admin) -> None:
    shares = json.loads(mqadmin(f"allocateMQ -t {TOPIC} -i a,b"))["result"]

    # The tool does not sort the queues, as members do: which two each gets is up to chance.
    assert {client_id: len(mine) for client_id, mine in shares.items()} == {"a": 2, "b": 2}
    assert sorted(queue["queueId"] for mine in shares.values() for queue in mine) == [0, 1, 2, 3]


def held_by(member: Any) -> int:
    told = member.named("assignment")
    return len(told[-1]["queues"]) if told else 0


def test_consumer_status_comes_from_the_consumer(
    mqadmin: Admin, stage: Any, java_push_consumer: Callable[..., Any]
) -> None:
    group = "GID_mqadmin_java"
    member = java_push_consumer(stage, topic=TOPIC, group=group)
    client_id = member.named("started")[0]["clientId"]
    member.wait_for("all queues", lambda: held_by(member) == 4)

    printed = mqadmin(f"consumerStatus -g {group} -i {client_id}")

    assert "#Consumer Subscription#" in printed
    table = [row for row in rows(printed, TOPIC) if "ProcessQueueInfo" in row]
    assert sorted(row[2] for row in table) == ["0", "1", "2", "3"]


def test_messages_are_found_by_key(mqadmin: Admin, sent: list[SendResult]) -> None:
    one = mqadmin(f"queryMsgByKey -t {TOPIC} -k key7")
    many = mqadmin(f"queryMsgByKey -t {TOPIC} -k mod1")

    expected = {result.msg_id for number, result in enumerate(sent) if number % 2}
    assert [sent[7].msg_id] == re.findall(r"^[0-9A-F]{32}", one, re.M)
    assert set(re.findall(r"^[0-9A-F]{32}", many, re.M)) == expected


def test_a_message_is_found_by_the_id_that_its_producer_gave(
    mqadmin: Admin, sent: list[SendResult]
) -> None:
    printed = mqadmin(f"queryMsgByUniqueKey -t {TOPIC} -i {sent[5].msg_id}")

    assert re.search(rf"^Topic: +{TOPIC}$", printed, re.M)
    assert re.search(rf"^Queue Offset: +{sent[5].queue_offset}$", printed, re.M)
    assert re.search(r"^Keys: +\[key5 mod1\]$", printed, re.M)


def test_the_trace_of_a_message_is_found_by_its_id(mqadmin: Admin, sent: list[SendResult]) -> None:
    msg_id = sent[3].msg_id

    def find() -> list[list[str]]:
        return rows(mqadmin(f"queryMsgTraceById -i {msg_id}"), "Pub")

    wait_until("the trace", find, timeout_s=30)

    assert SENDERS in find()[0]


class Listener:
    """A group of one member that has consumed ten messages of a topic of its own."""

    def __init__(self, cluster: Any) -> None:
        self.bodies: list[bytes] = []
        cluster.create_topic(RESET_TOPIC, queues=2)
        self.consumer = PushConsumer(
            RESET_GROUP, name_server=cluster.name_server, listener=self.note
        )
        self.consumer.subscribe(RESET_TOPIC)
        self.consumer.start()
        with Producer(SENDERS, name_server=cluster.name_server) as producer:
            for number in range(10):
                producer.send(Message(RESET_TOPIC, b"%d" % number))
        wait_until("ten messages", lambda: len(self.bodies) >= 10)

    def note(self, messages: list[Any], _: Any) -> None:
        self.bodies += [message.body for message in messages]


RESET_TOPIC, RESET_GROUP = "mqadmin-reset", "GID_mqadmin_reset"


@pytest.fixture(scope="module")
def listener(stage: Any) -> Iterator[Listener]:
    found = Listener(stage)
    with found.consumer:
        yield found


def committed(cluster: Any, group: str = RESET_GROUP) -> int:
    with sparrowmq.Admin(name_server=cluster.name_server) as admin:
        return sum(each.committed_offset or 0 for each in admin.group_lag(group, RESET_TOPIC))


def test_a_group_is_reset_through_its_members(
    mqadmin: Admin, stage: Any, listener: Listener
) -> None:
    wait_until("its commits", lambda: committed(stage) == 10, timeout_s=60)
    before = len(listener.bodies)

    printed = mqadmin(f"resetOffsetByTime -g {RESET_GROUP} -t {RESET_TOPIC} -s 0")

    assert [row[2] for row in rows(printed, "broker-a")] == ["0", "0"]
    wait_until("all once more", lambda: len(listener.bodies) >= before + 10, timeout_s=60)
    assert set(listener.bodies[:before]) == set(listener.bodies[before:])


def test_what_has_piled_up_is_skipped(mqadmin: Admin, listener: Listener) -> None:
    printed = mqadmin(f"skipAccumulatedMessage -g {RESET_GROUP} -t {RESET_TOPIC}")

    assert sum(int(row[2]) for row in rows(printed, "broker-a")) == 10


def test_a_group_without_members_is_reset_at_the_broker(
    mqadmin: Admin, stage: Any, listener: Listener
) -> None:
    group = "GID_mqadmin_offline"
    mqadmin(f"cloneGroupOffset -s {RESET_GROUP} -d {group} -t {RESET_TOPIC}")
    wait_until("its offsets", lambda: committed(stage, group) == 10, timeout_s=60)

    mqadmin(f"resetOffsetByTime -g {group} -t {RESET_TOPIC} -s 0")

    assert committed(stage, group) == 0


def test_entries_of_a_consume_queue(mqadmin: Admin) -> None:
    printed = mqadmin(f"queryCq -t {TOPIC} -q 0 -i 1 -c 2 -g {GROUP}")
    beyond = mqadmin(f"queryCq -t {TOPIC} -q 0 -i 1000")

    assert re.search(r"^max: \d+, min: 0$", printed, re.M)
    assert re.findall(r"^idx: (\d+)$", printed, re.M) == ["1", "2"]
    assert f'"topic":"{TOPIC}"' in printed.replace(" ", "")
    assert re.findall(r"^idx: ", beyond, re.M) == []
