"""What clients do with a static topic: batches, member_loop, pop, reset, request_reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from play import Handler, Play, PlayedTask, make_publisher, make_unrun_subscriber
from sparrowmq.client.assembly import make_polling
from sparrowmq.client.directory import Directory
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations import poll
from sparrowmq.client.operations.batches import _results_of
from sparrowmq.client.operations.member_loop import _commit, _refresh_routes, _send_back_one
from sparrowmq.client.operations.pop import PopSource, receive
from sparrowmq.client.operations.pull_loop import keep_pulling
from sparrowmq.client.operations.request_reply import reply
from sparrowmq.client.operations.reset import Target, plan_reset
from sparrowmq.client.operations.snapshot import _view_topic
from sparrowmq.client.route_cache import route_from
from sparrowmq.client.subscriber import RebalanceCallbacks, Subscriber
from sparrowmq.errors import BrokerError, UsageError
from sparrowmq.membership.actions import Acquire, Commit, Pull, RefreshRoutes
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageExt, MessageQueue, SendResult, SendStatus
from sparrowmq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    ConsumerListBody,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteAnswer,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.subscription import parse_subscription

QUEUE = MessageQueue("T", "__syslo__global__", 0)
BROKERS = [BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"}) for name in ("a", "b")]
NOW_MS = 1_000_000


def route(owner: str) -> TopicRouteAnswer:
    """The route of a static topic with a queue, at one of two brokers."""
    mapping = TopicQueueMappingInfo(bname=owner, total_queues=1, curr_id_map={0: 5})
    return TopicRouteAnswer(
        broker_datas=BROKERS,
        topic_queue_mapping_by_broker={owner: mapping},
    )


@pytest.fixture
def subscriber() -> Subscriber:
    """A member that pulls the queue, which broker a serves."""
    made = make_unrun_subscriber("GID_s", "T")
    made.routes.update(route_from("T", route("a"), now_ms=NOW_MS))
    member = made.member
    member.rebalanced([TopicShare("T", (QUEUE,), ("me",), (QUEUE,))], NOW_MS)
    (acquire,) = [each for each in member.due(NOW_MS) if isinstance(each, Acquire)]
    member.acquired(QUEUE, acquire.epoch, offset=9, is_committed=True, now_ms=NOW_MS)
    assert [each for each in member.due(NOW_MS) if isinstance(each, Pull)] == [Pull(QUEUE, 1, 9)]
    made.pulls[QUEUE] = PlayedTask("pull")
    return made


def pulls_after(subscriber: Subscriber, now_ms: int) -> list[Any]:
    return [each for each in subscriber.member.due(now_ms) if isinstance(each, Pull)]


@pytest.mark.parametrize(("owner", "is_pulled"), [("a", False), ("b", True)])
def test_queue_that_has_moved_is_pulled_at_its_new_broker_at_once(
    subscriber: Subscriber, play: Callable[[Handler], Play], owner: str, is_pulled: bool
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        return response_to(request, body=encode_route(owner))

    play(answer)(_refresh_routes(subscriber, RefreshRoutes()))

    assert pulls_after(subscriber, NOW_MS + 200) == [Pull(QUEUE, 1, 9)] * is_pulled
    assert subscriber.get_broker_address(QUEUE) == f"{owner}:1"


def test_snapshot_has_the_queues_that_members_divide(play: Callable[[Handler], Play]) -> None:
    places = [
        QueueData(broker_name=name, read_queue_nums=8, write_queue_nums=8, perm=6) for name in "ba"
    ]
    data = replace(route("a"), queue_datas=places)
    directory = Directory(name_servers=NameServers(("n:1",)))

    found = play(lambda _, request: response_to(request, body=encode_body(data)))(
        _view_topic(directory, "T")
    )

    assert found.subscribe_queues == [QUEUE]
    assert [at.broker_name for at in found.queues] == ["a", "b"]


@pytest.mark.parametrize("what", ["pull", "commit"])
def test_member_asks_for_routes_where_a_broker_no_longer_serves_a_queue(
    subscriber: Subscriber, play: Callable[[Handler], Play], what: str
) -> None:
    member = subscriber.member
    member.due(NOW_MS)
    member.routes_refreshed(found=["T"], has_changed=False, now_ms=NOW_MS)
    run = play(lambda _, request: response_to(request, ResponseCode.NOT_LEADER_FOR_QUEUE))

    run(
        keep_pulling(subscriber, Pull(QUEUE, 1, 9))
        if what == "pull"
        else _commit(subscriber, Commit(QUEUE, 1, 9, is_last=False))
    )

    assert any(isinstance(each, RefreshRoutes) for each in member.due(NOW_MS))


@pytest.mark.parametrize("is_users", [True, False])
def test_poll_consumer_asks_for_routes_where_a_broker_does_not_take_its_commit(
    play: Callable[[Handler], Play], is_users: bool
) -> None:
    state = make_polling("GID_s", name_server="n:1", callbacks=RebalanceCallbacks(), is_async=False)
    subscriber, member = state.subscriber, state.subscriber.member
    run = play(lambda _, request: response_to(request, ResponseCode.NOT_LEADER_FOR_QUEUE))
    subscriber.routes.update(route_from("T", route("a"), now_ms=NOW_MS))
    run(poll.assign(state, [QUEUE]))
    member.due(NOW_MS)
    member.routes_refreshed(found=["T"], has_changed=False, now_ms=NOW_MS)
    assert not any(isinstance(each, RefreshRoutes) for each in member.due(NOW_MS))

    if is_users:
        with pytest.raises(BrokerError, match="answer code 501"):
            run(poll.commit(state, {QUEUE: 9}))
    else:
        run(poll._commit(state, subscriber, Commit(QUEUE, 1, 9, is_last=False)))

    assert subscriber.wake.is_set
    assert any(isinstance(each, RefreshRoutes) for each in member.due(NOW_MS))


@pytest.mark.parametrize("owner", ["a", "b"])
def test_queue_counts_among_those_of_the_broker_that_serves_it(
    subscriber: Subscriber, owner: str
) -> None:
    subscriber.routes.update(route_from("T", route(owner), now_ms=NOW_MS))
    served = {name: subscriber.queues_served_by([name]) for name in ("a", "b", QUEUE.broker_name)}

    # They are in doubt once the connection to it is lost.
    assert {name: queues for name, queues in served.items() if queues} == {owner: {QUEUE}}


def test_message_is_sent_back_to_the_broker_that_stores_it(
    subscriber: Subscriber, play: Callable[[Handler], Play]
) -> None:
    run = play(lambda _, request: response_to(request))

    for host in ("a:1", "b:1"):
        run(_send_back_one(subscriber, stored(host, {}), delay_level=0))

    assert [(address, request.code) for address, request in run.requests] == [
        (host, RequestCode.CONSUMER_SEND_MSG_BACK) for host in ("a:1", "b:1")
    ]


def test_messages_of_a_static_topic_are_not_popped(play: Callable[[Handler], Play]) -> None:
    source = PopSource(Directory(name_servers=NameServers(("n:1",))), "GID_s")
    source.subscriptions["T"] = parse_subscription("T", "*", sub_version=7)
    run = play(lambda _, request: response_to(request, body=encode_route("a")))

    with pytest.raises(UsageError, match="'T' is a static topic"):
        run(receive(source, count_max=1, invisible_ms=30_000, wait_ms=0))


def test_group_whose_members_brokers_do_not_move_is_not_reset(
    play: Callable[[Handler], Play],
) -> None:
    members = ["m"]

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, body=encode_route("a"))
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return response_to(
                request, body=encode_body(ClusterInfo(broker_addr_table={"a": BROKERS[0]}))
            )
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return response_to(
                request, body=encode_body(ConsumerListBody(consumer_id_list=members))
            )
        return response_to(request, ext_fields={"offset": "7"})

    directory = Directory(name_servers=NameServers(("n:1",)))
    run, target = play(answer), Target(is_earliest=True)

    with pytest.raises(UsageError, match="in a static topic such as T; stop the members first"):
        run(plan_reset(directory, "GID_s", "T", target=target))
    members.clear()
    plan = run(plan_reset(directory, "GID_s", "T", target=target))
    assert [each.queue for each in plan.queues] == [QUEUE]


def test_reply_goes_to_the_broker_that_stores_the_request(
    play: Callable[[Handler], Play],
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queues = [
                QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
                for name in ("a", "b")
            ]
            data = replace(route("a"), queue_datas=queues, topic_queue_mapping_by_broker={})
            return response_to(request, body=encode_body(data))
        return response_to(request, ext_fields={"queueId": "0", "queueOffset": "0", "msgId": "F"})

    marks = {"CLUSTER": "c", "CORRELATION_ID": "1", "REPLY_TO_CLIENT": "x", "TTL": "3000"}
    run, publisher = play(answer), make_publisher()

    for host in ("a:1", "b:1"):
        run(reply(publisher, stored(host, marks), b"y", {}))

    sent = [at for at, each in run.requests if each.code == RequestCode.SEND_REPLY_MESSAGE_V2]
    assert sent == ["a:1", "b:1"]


def test_messages_of_a_batch_without_an_offset_have_none() -> None:
    for first, offsets in ((-1, [-1, -1]), (7, [7, 8])):
        result = SendResult(SendStatus.SEND_OK, "1,2", "3,4", QUEUE, first)
        assert [each.queue_offset for each in _results_of(result, 2)] == offsets


def stored(host: str, properties: dict[str, str]) -> MessageExt:
    """A message of the queue that a broker stores."""
    return MessageExt(
        topic="T",
        body=b"",
        properties=properties,
        broker_name=QUEUE.broker_name,
        queue_id=0,
        queue_offset=9,
        commit_log_position=4_096,
        store_host=host,
    )


def encode_route(owner: str) -> bytes:
    return (
        b'{"brokerDatas":[{"brokerAddrs":{0:"a:1"},"brokerName":"a"},'
        b'{"brokerAddrs":{0:"b:1"},"brokerName":"b"}],"topicQueueMappingByBroker":{"%b":'
        b'{"bname":"%b","currIdMap":{0:5},"epoch":1,"scope":"__global__","totalQueues":1}}}'
    ) % (owner.encode(), owner.encode())
