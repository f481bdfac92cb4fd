"""Snapshots of a group: whom they ask."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from foreign_member import ForeignMember
from play import Play
from sparrowmq import MessageQueue
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import snapshot
from sparrowmq.doctor.group_view import examine
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerListBody,
    ConsumerRunningInfo,
    ConsumeStats,
    OffsetWrapper,
    ProcessQueueInfo,
    QueueData,
    SubscriptionData,
    TopicRouteData,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.testing.embedded import EmbeddedCluster


@pytest.mark.parametrize(
    ("strategy", "asked_count"),
    [("AllocateMachineRoomNearby", 3), ("AllocateMessageQueueAveragely", 1)],
)
def test_all_members_of_a_large_group_are_asked_where_nobody_can_compute_its_owners(
    cluster: EmbeddedCluster,
    topic: str,
    group: str,
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
    asked_count: int,
) -> None:
    monkeypatch.setattr(snapshot, "RUNNING_INFO_MEMBERS_MAX", 1)
    name = f"{topic}-of-three"
    cluster.create_topic(name, queues=3)
    queues = [MessageQueue(name, "broker-a", n) for n in range(3)]
    driver = BlockingDriver()
    with ExitStack() as held:
        held.callback(driver.close)
        for number, queue in enumerate(queues):
            says = ConsumerRunningInfo(
                properties={"allocateMessageQueueStrategy": f"a.rebalance.{strategy}@1f"},
                subscription_set=[SubscriptionData(topic=name)],
                mq_table={queue: ProcessQueueInfo()},
            )
            client_id = f"10.0.0.{number}@1"
            member = ForeignMember(cluster.broker, group, name, client_id=client_id, says=says)
            held.callback(member.close)
        directory = make_directory(cluster.name_server, timeout_ms=10_000)
        seen = driver.run(snapshot.take_snapshot(directory, group))

    assert len(seen.reports) == asked_count
    owners = examine(seen).queues
    assert [owners[queue].owner_ids for queue in queues] == [
        ("10.0.0.0@1",),
        ("10.0.0.1@1",),
        ("10.0.0.2@1",),
    ]


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_retry_topic_of_a_group_without_members_is_there_once(*, is_committed: bool) -> None:
    retries = MessageQueue("%RETRY%G", "broker-a", 0)
    committed, asked = {retries} if is_committed else set(), list[str]()
    data = BrokerData(cluster="C", broker_name="broker-a", broker_addrs={0: "a:1"})
    queues = QueueData(broker_name="broker-a", read_queue_nums=1, write_queue_nums=1, perm=6)
    route = TopicRouteData(broker_datas=[data], queue_datas=[queues])

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        topic = (request.ext_fields or {}).get("topic")
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            asked.append(topic or "")
            return response_to(request, body=encode_body(route))
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            info = ClusterInfo(
                broker_addr_table={"broker-a": data}, cluster_addr_table={"C": ["broker-a"]}
            )
            return response_to(request, body=encode_body(info))
        if request.code == RequestCode.GET_CONSUME_STATS:
            found = {*committed, MessageQueue("T", "broker-a", 0)} if topic is None else {retries}
            stats = ConsumeStats(offset_table={q: OffsetWrapper(broker_offset=3) for q in found})
            return response_to(request, body=encode_body(stats))
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return response_to(request, body=encode_body(ConsumerListBody(consumer_id_list=[])))
        return response_to(request, ResponseCode.CONSUMER_NOT_ONLINE)

    seen = Play(answer)(snapshot.take_snapshot(make_directory("ns:1"), "G"))

    assert sorted(asked) == [topic.topic for topic in seen.topics] == ["%RETRY%G", "T"]
    assert [(p.queue.topic, p.lag) for p in seen.last.progress] == [("%RETRY%G", 3), ("T", 3)]
