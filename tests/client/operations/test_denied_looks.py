"""Tools that access control keeps from a group: they do not take that for a group without members.

Apache's brokers of 4.x, and SparrowMQ's, deny by the code of a group without members.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from rich.console import Console

from play import Handler, Play
from sparrowmq.cli.rebalance_view import render_findings
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import administer, overview, snapshot
from sparrowmq.doctor import Severity, diagnose
from sparrowmq.doctor.group_view import examine
from sparrowmq.errors import BrokerError, ConnectFailed
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import dlq_topic
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerListBody,
    ConsumeStats,
    ConsumeStatsList,
    KVTable,
    OffsetWrapper,
    TopicConfig,
    TopicConfigTable,
    TopicStatsTable,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to

DENIED = "org.apache.rocketmq.acl.common.AclException: No default permission for group: G"
BROKERS = {"broker-a": "10.0.0.1:10911", "broker-b": "10.0.0.2:10911"}
QUEUE = MessageQueue("T", "broker-a", 0)
PROGRESS = {QUEUE: OffsetWrapper(broker_offset=5)}


def answering(denying: str) -> Handler:
    """Answer as a name server, and as brokers, of which some deny requests about the group."""
    info = ClusterInfo(
        broker_addr_table={
            name: BrokerData(cluster="C", broker_name=name, broker_addrs={0: address})
            for name, address in BROKERS.items()
        },
        cluster_addr_table={"C": list(BROKERS)},
    )
    progress = ConsumeStats(offset_table=PROGRESS)
    bodies = {
        RequestCode.GET_BROKER_CLUSTER_INFO: info,
        RequestCode.GET_BROKER_RUNTIME_INFO: KVTable(table={}),
        RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigTable(topic_config_table={}),
        RequestCode.GET_TOPIC_STATS_INFO: TopicStatsTable(offset_table={}),
        RequestCode.GET_BROKER_CONSUME_STATS: ConsumeStatsList(
            consume_stats_list=[{"G": [progress]}]
        ),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerListBody(consumer_id_list=["me"]),
    }

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        is_of_group = request.code in (
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
        )
        if is_of_group and address in denying:
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark=DENIED)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, ResponseCode.TOPIC_NOT_EXIST, remark="no retries yet")
        body = bodies.get(RequestCode(request.code))
        if body is None:
            return response_to(request, ResponseCode.CONSUMER_NOT_ONLINE, remark="not asked here")
        return response_to(request, body=encode_body(body))

    return answer


ALL = " ".join(BROKERS.values())


def test_a_list_of_groups_does_not_know_the_members(play: Callable[[Handler], Play]) -> None:
    looking = overview.take_overview(make_directory("ns:1", timeout_ms=3_000))

    (group,) = play(answering(ALL))(looking).groups

    assert group.members is None


def test_an_administrator_is_told(play: Callable[[Handler], Play]) -> None:
    with pytest.raises(BrokerError, match="No default permission for group: G"):
        play(answering(ALL))(administer.consumer_ids(make_directory("ns:1"), "G"))


def test_a_snapshot_says_which_broker_denied(play: Callable[[Handler], Play]) -> None:
    looking = snapshot.take_snapshot(make_directory("ns:1"), "G")

    seen = play(answering(BROKERS["broker-b"]))(looking)

    assert [(b.broker_name, b.cid_all, DENIED in b.failure) for b in seen.last.brokers] == [
        ("broker-a", ("me",), False),
        ("broker-b", None, True),
    ]
    (finding,) = (each for each in diagnose(seen) if each.rule == "Q03")
    assert (finding.severity, finding.title) == (
        Severity.WARN,
        "broker broker-b denies access to the group",
    )


def hiding(hidden: RequestCode, denying: str) -> Handler:
    """Answer as `answering`; some brokers deny one kind of request."""
    usual = answering("")

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == hidden and address in denying:
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark=DENIED)
        return usual(address, request)

    return answer


def test_an_account_without_the_dead_letters_sees_the_rest_of_its_group(
    play: Callable[[Handler], Play],
) -> None:
    looking = snapshot.take_snapshot(make_directory("ns:1"), "G")

    seen = play(hiding(RequestCode.GET_TOPIC_STATS_INFO, ALL))(looking)

    assert [(b.cid_all, b.failure, b.dead_letters) for b in seen.last.brokers] == [
        (("me",), "", None),
        (("me",), "", None),
    ]
    assert seen.last.dead_letter_count is None
    (finding,) = (each for each in diagnose(seen) if each.rule == "Q25")
    assert (finding.severity, finding.title, finding.evidence) == (
        Severity.INFO,
        "the group's dead letters are hidden at 2 brokers",
        ("broker-a denies access to %DLQ%G", "broker-b denies access to %DLQ%G"),
    )
    console = Console(width=200)
    with console.capture() as shown:
        console.print(render_findings(examine(seen), [], ()))
    assert "no report from broker-a (%DLQ%G), broker-b (%DLQ%G)" in shown.get()


def test_a_snapshot_does_not_take_a_denied_count_for_none(play: Callable[[Handler], Play]) -> None:
    denying = hiding(RequestCode.GET_CONSUME_STATS, BROKERS["broker-b"])

    seen = play(denying)(snapshot.take_snapshot(make_directory("ns:1"), "G"))

    assert [(b.broker_name, b.is_denied) for b in seen.last.brokers] == [
        ("broker-a", False),
        ("broker-b", True),
    ]


def test_a_snapshot_does_not_take_a_silent_name_server_for_one_without_the_topic(
    play: Callable[[Handler], Play],
) -> None:
    usual = answering("")

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_CONSUME_STATS:
            return response_to(request, body=encode_body(ConsumeStats(offset_table=PROGRESS)))
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, ResponseCode.SYSTEM_BUSY, remark="too many requests")
        return usual(address, request)

    with pytest.raises(BrokerError, match="too many requests"):
        play(answer)(snapshot.take_snapshot(make_directory("ns:1"), "G"))


def test_a_list_of_groups_does_not_know_dead_letters_that_are_denied(
    play: Callable[[Handler], Play],
) -> None:
    usual, name = answering(""), dlq_topic("G")
    kept = TopicConfigTable(topic_config_table={name: TopicConfig(topic_name=name)})

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            return response_to(request, body=encode_body(kept))
        if request.code == RequestCode.GET_TOPIC_STATS_INFO:
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark=DENIED)
        return usual(address, request)

    looking = overview.take_overview(make_directory("ns:1", timeout_ms=3_000))
    (group,) = play(answer)(looking).groups

    assert group.dead_letters is None


def test_a_snapshot_that_every_broker_denies_is_an_error(play: Callable[[Handler], Play]) -> None:
    looking = snapshot.take_snapshot(make_directory("ns:1"), "G")

    with pytest.raises(ConnectFailed, match=r"no broker reports the group; broker-a at .*Acl"):
        play(answering(ALL))(looking)
