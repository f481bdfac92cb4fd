"""An administrator's operations against brokers that differ, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec import Struct, structs

from play import Handler, Play
from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations import (
    accounts,
    administer,
    brokers,
    dead_letters,
    groups,
    offsets,
    routes,
    topics,
)
from sparrowmq.client.operations.reset import Target, plan_reset
from sparrowmq.errors import RouteError, SparrowError
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerListBody,
    ConsumeStats,
    QueueData,
    RequestModeTable,
    SubscriptionGroupTable,
    TopicConfig,
    TopicConfigTable,
    TopicRouteData,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import (
    CreateTopicRequestHeader,
    SendMessageRequestHeaderV2,
    decode_header,
)

BROKERS = [BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"}) for name in "ab"]


def answer_for_a(request: RemotingCommand, *, queue_count: int, perm: int) -> RemotingCommand:
    """Answer as a name server with broker a alone, which has every topic."""
    if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
        return response_to(
            request, body=encode_body(ClusterInfo(broker_addr_table={"a": BROKERS[0]}))
        )
    queues = QueueData(
        broker_name="a", read_queue_nums=queue_count, write_queue_nums=queue_count, perm=perm
    )
    route = TopicRouteData(broker_datas=BROKERS[:1], queue_datas=[queues])
    return response_to(request, body=encode_body(route))


def test_topic_is_created_only_at_brokers_that_lack_it(play: Callable[[Handler], Play]) -> None:
    queues = {"a:1": 9}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                table = {broker.broker_name: broker for broker in BROKERS}
                return response_to(request, body=encode_body(ClusterInfo(broker_addr_table=table)))
            case RequestCode.GET_TOPIC_STATS_INFO if address not in queues:
                return response_to(request, ResponseCode.TOPIC_NOT_EXIST)
            case RequestCode.UPDATE_AND_CREATE_TOPIC:
                queues[address] = int(fields["writeQueueNums"])
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                datas = [
                    QueueData(
                        broker_name=address[0],
                        read_queue_nums=count,
                        write_queue_nums=count,
                        perm=6,
                    )
                    for address, count in queues.items()
                ]
                route = TopicRouteData(broker_datas=BROKERS, queue_datas=datas)
                return response_to(request, body=encode_body(route))
            case _:
                pass
        return response_to(request)

    route = play(answer)(administer.create_topic(make_directory("ns:1"), "T", queues=2))

    assert queues == {"a:1": 9, "b:1": 2}
    assert len(route.publish_queues) == 11
    assert MessageQueue("T", "a", 8) in route.publish_queues


def test_topic_is_deleted_at_all_masters_and_name_servers_and_not_used_any_more(
    play: Callable[[Handler], Play],
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {broker.broker_name: broker for broker in BROKERS}
            return response_to(request, body=encode_body(ClusterInfo(broker_addr_table=table)))
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return answer_for_a(request, queue_count=1, perm=6)
        return response_to(request)

    run, directory = play(answer), make_directory("ns:1;ns:2", timeout_ms=7_000)
    run(administer.show_route(directory, "T"))
    run(administer.delete_topic(directory, "T"))

    asked = [(request.code, address) for address, request in run.requests[2:]]
    assert sorted(asked) == [
        (RequestCode.DELETE_TOPIC_IN_BROKER, "a:1"),
        (RequestCode.DELETE_TOPIC_IN_BROKER, "b:1"),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, "ns:1"),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, "ns:2"),
    ]
    # A broker answers once the deletion is on its disk, for which a user may give more time.
    assert set(run.waits_ms[2:]) == {7_000}
    assert directory.routes.find("T") is None


def answer_without_a_master(away: Mapping[int, str]) -> Handler:
    """Answer as brokers a, with a slave, and b, which has these addresses and everything else."""
    brokers = [
        BrokerData(cluster="C", broker_name="a", broker_addrs={0: "a:1", 1: "a:2"}),
        BrokerData(cluster="C", broker_name="b", broker_addrs=dict(away)),
    ]
    queues = [
        QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6) for name in "ab"
    ]
    config = TopicConfig(topic_name="T", read_queue_nums=1, write_queue_nums=1, perm=6)
    bodies: Mapping[int, Struct] = {
        RequestCode.GET_BROKER_CLUSTER_INFO: ClusterInfo(
            broker_addr_table={each.broker_name: each for each in brokers},
            cluster_addr_table={"C": ["a", "b"]},
        ),
        RequestCode.GET_ROUTEINFO_BY_TOPIC: TopicRouteData(
            broker_datas=brokers, queue_datas=queues
        ),
        RequestCode.GET_ALL_TOPIC_CONFIG: TopicConfigTable(topic_config_table={"T": config}),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: SubscriptionGroupTable(),
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: RequestModeTable(),
        RequestCode.GET_CONSUME_STATS: ConsumeStats(),
    }

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            members = ["m"] if address == "b:2" else []
            body = encode_body(ConsumerListBody(consumer_id_list=members))
            return response_to(request, body=body)
        found = bodies.get(RequestCode(request.code))
        if found is not None:
            return response_to(request, body=encode_body(found))
        return response_to(request, ext_fields={"offset": "0"})

    return answer


QUEUE = MessageQueue("T", "b", 0)
SLAVE_OF_B = routes.BrokerAt.of("b", "C", {1: "b:2"})
CHANGES: Mapping[str, Callable[[Directory], Operation[object]]] = {
    "topic update": lambda at: topics.plan_topic_update(at, "T", perm=4),
    "topic delete": lambda at: administer.delete_topic(at, "T"),
    "group update": lambda at: groups.plan_group_update(at, "G", max_reconsume_times=3),
    "group mode": lambda at: groups.plan_request_mode(at, "G", "T", "POP"),
    "group delete": lambda at: groups.delete_group(at, "G"),
    "group reset": lambda at: plan_reset(at, "G", "T", target=Target(is_latest=True)),
    "offset": lambda at: administer.set_committed_offset(at, "G", queue=QUEUE, offset=0),
    "acl put": lambda at: accounts.put_account(at, accounts.AccountChange(access_key="service")),
    "acl delete": lambda at: accounts.delete_account(at, "service"),
    "broker config": lambda at: brokers.set_broker_config(at, SLAVE_OF_B, {"deleteWhen": "03"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_changed_while_a_broker_has_no_master(
    play: Callable[[Handler], Play], change: str
) -> None:
    run = play(answer_without_a_master({1: "b:2"}))

    with pytest.raises(RouteError, match="no master of b is registered"):
        run(CHANGES[change](make_directory("ns:1")))

    # A slave takes any change, and gets its master's settings again once there is one.
    looks = {RequestCode(request.code).name.partition("_")[0] for _, request in run.requests}
    assert looks <= {"GET", "QUERY"}


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"fileReservdTime": "48"}, "has no setting 'fileReservdTime'; did you mean fileReserved"),
        ({"fileReservedTime": "two days"}, "a did not take fileReservedTime=two days: it is '72'"),
        ({"fileReservedTime": "48", "traceOn": "TRUE"}, None),
    ],
)
def test_what_a_broker_of_apache_confirms_and_passes_over_is_an_error(
    play: Callable[[Handler], Play], settings: dict[str, str], error: str | None
) -> None:
    has = {"listenPort": "10911", "fileReservedTime": "72", "traceOn": "true"}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CONFIG:
            lines = "".join(f"{name}={value}\n" for name, value in has.items())
            return response_to(request, body=lines.encode())
        given = dict(line.split("=") for line in (request.body or b"").decode().splitlines())
        # As Configuration.update and MixAll.properties2Object.
        if given.get("fileReservedTime", "").isdecimal():
            has["fileReservedTime"] = given["fileReservedTime"]
        return response_to(request)

    broker, raised = routes.BrokerAt.of("a", "C", {0: "a:1"}), ""
    try:
        play(answer)(brokers.set_broker_config(make_directory("ns:1"), broker, settings))
    except SparrowError as found:
        raised = str(found)

    assert (error or "") in raised
    assert (has["fileReservedTime"] == "48") is (error is None) is (raised == "")


def test_topic_is_created_at_the_masters_there_are(play: Callable[[Handler], Play]) -> None:
    run = play(answer_without_a_master({1: "b:2"}))

    run(administer.create_topic(make_directory("ns:1"), "T", queues=1))

    looks = [at for at, each in run.requests if each.code == RequestCode.GET_TOPIC_STATS_INFO]
    assert looks == ["a:1"]


def test_members_that_only_a_slave_knows_are_found(play: Callable[[Handler], Play]) -> None:
    run = play(answer_without_a_master({1: "b:2"}))

    assert run(administer.consumer_ids(make_directory("ns:1"), "G")) == ["m"]


@pytest.mark.parametrize("change", ["acl put", "acl delete"])
def test_account_is_changed_at_slaves_too(play: Callable[[Handler], Play], change: str) -> None:
    run = play(answer_without_a_master({0: "b:1", 4: "b:2"}))

    run(CHANGES[change](make_directory("ns:1")))

    # Their clients read by it: an account that is gone at the master must not stay there.
    assert [address for address, _ in run.requests] == ["ns:1", "a:1", "a:2", "b:1", "b:2"]


def test_an_update_of_a_topic_changes_what_it_names_where_that_differs(
    play: Callable[[Handler], Play],
) -> None:
    config = TopicConfig(
        topic_name="T",
        read_queue_nums=4,
        write_queue_nums=3,
        perm=6,
        topic_filter_type="MULTI_TAG",
        topic_sys_flag=3,
        order=True,
    )
    perms = {"a:1": 6, "b:1": 4}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {broker.broker_name: broker for broker in BROKERS}
            return response_to(request, body=encode_body(ClusterInfo(broker_addr_table=table)))
        if request.code == RequestCode.GET_ALL_TOPIC_CONFIG:
            has = {"T": structs.replace(config, perm=perms[address])}
            return response_to(request, body=encode_body(TopicConfigTable(topic_config_table=has)))
        return response_to(request)

    run, directory = play(answer), make_directory("ns:1")
    planned = run(topics.plan_topic_update(directory, "T", perm=topics.parse_perm("r")))
    run(topics.update_topic(directory, planned))

    ((address, sent),) = [
        (address, request)
        for address, request in run.requests
        if request.code == RequestCode.UPDATE_AND_CREATE_TOPIC
    ]
    header = decode_header(CreateTopicRequestHeader, sent.ext_fields)
    assert (address, header.topic, header.perm, header.order) == ("a:1", "T", 4, True)
    assert (header.read_queue_nums, header.write_queue_nums) == (4, 3)
    assert (header.topic_filter_type, header.topic_sys_flag) == ("MULTI_TAG", 3)


def test_offsets_of_queues_that_came_lately_are_cloned_too(play: Callable[[Handler], Play]) -> None:
    counts, committed = [1], dict[tuple[str, int], int]()

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        fields = request.ext_fields or {}
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO | RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return answer_for_a(request, queue_count=counts[0], perm=6)
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                return response_to(request, ResponseCode.SYSTEM_ERROR)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return response_to(request, ext_fields={"offset": "5"})
            case RequestCode.UPDATE_CONSUMER_OFFSET:
                place = fields["consumerGroup"], int(fields["queueId"])
                committed[place] = int(fields["commitOffset"])
            case _:
                pass
        return response_to(request)

    run, directory = play(answer), make_directory("ns:1")
    run(administer.clone_offsets(directory, "G", "first", "T"))
    counts[0] = 2
    run(administer.clone_offsets(directory, "G", "second", "T"))

    assert committed == {("first", 0): 5, ("second", 0): 5, ("second", 1): 5}


def test_group_loses_its_offsets_at_brokers_of_either_version(
    play: Callable[[Handler], Play],
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return answer_for_a(request, queue_count=1, perm=6)
        return response_to(request)

    run = play(answer)
    run(groups.delete_group(make_directory("ns:1"), "G"))

    deletions = [
        request.ext_fields
        for _, request in run.requests
        if request.code == RequestCode.DELETE_SUBSCRIPTIONGROUP
    ]
    # 4.9.7 reads the second field, 5.x the third.
    assert deletions == [{"groupName": "G", "removeOffset": "true", "cleanOffset": "true"}]


def test_broker_without_an_address_has_no_message_of_a_key(play: Callable[[Handler], Play]) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.QUERY_MESSAGE:
            return response_to(request, ResponseCode.QUERY_NOT_FOUND)
        brokers = [*BROKERS, BrokerData(broker_name="away", broker_addrs={})]
        return response_to(request, body=encode_body(TopicRouteData(broker_datas=brokers)))

    run = play(answer)

    assert run(administer.query_message(make_directory("ns:1"), "T", "key")) == []
    assert [address for address, _ in run.requests] == ["ns:1", "a:1", "b:1"]


@pytest.mark.parametrize("home", ["a", "b"])
def test_dead_letter_that_is_sent_again_has_all_its_attempts(
    play: Callable[[Handler], Play], home: str
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        match request.code:
            case RequestCode.GET_BROKER_CLUSTER_INFO:
                table = {broker.broker_name: broker for broker in BROKERS}
                return response_to(request, body=encode_body(ClusterInfo(broker_addr_table=table)))
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                queues = [
                    QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
                    for name in "ab"
                ]
                route = TopicRouteData(broker_datas=BROKERS, queue_datas=queues)
                return response_to(request, body=encode_body(route))
            case RequestCode.GET_MAX_OFFSET:
                return response_to(request, ext_fields={"offset": "1"})
            case RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG:
                return response_to(request, body=encode_body(SubscriptionGroupTable()))
            case _:
                return response_to(request)

    run = play(answer)
    letter = MessageExt("%DLQ%G", b"x", {"RETRY_TOPIC": "T"}, home, 0, 0, 0, reconsume_times=16)
    run(dead_letters.resend_dead_letter(make_directory("ns:1"), "G", letter))

    ((address, sent),) = [
        (address, request)
        for address, request in run.requests
        if request.code == RequestCode.SEND_MESSAGE_V2
    ]
    header = decode_header(SendMessageRequestHeaderV2, sent.ext_fields)
    assert (header.reconsume_times, header.max_reconsume_times) == (1, 16)
    # That broker notes which letter was sent again.
    assert address == f"{home}:1"


def test_queue_without_a_message_yet_begins_and_ends_at_0(play: Callable[[Handler], Play]) -> None:
    # RocketMQ's API gives -1.
    run = play(lambda _, request: response_to(request, ext_fields={"offset": "-1"}))
    queue = MessageQueue("T", "a", 0)

    assert run(offsets.min_offset("a:1", queue)) == 0
    assert run(offsets.max_offset("a:1", queue)) == 0
    assert run(offsets.search_offset("a:1", queue, timestamp_ms=5)) == 0
