"""Which name server a client believes about a topic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from play import Handler, Play
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.name_servers import SILENT_MS, NameServers
from sparrowmq.client.operations.request import OTHERS_MS_MAX
from sparrowmq.client.operations.routes import (
    ROUTE_MS,
    find_route,
    get_broker_address,
    get_route,
)
from sparrowmq.errors import ConnectFailed, InvokeTimeout, TopicRouteNotFound
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import BrokerData, TopicRouteData, encode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to

ROUTE = TopicRouteData(broker_datas=[BrokerData(broker_name="a", broker_addrs={0: "a:1"})])


def answer_at(*knowing: str) -> Handler:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if address in knowing:
            return response_to(request, body=encode_body(ROUTE))
        return response_to(request, ResponseCode.TOPIC_NOT_EXIST)

    return answer


def test_client_stays_with_the_name_server_that_knows_a_topic(
    play: Callable[[Handler], Play],
) -> None:
    servers, run = NameServers(("n:1", "n:2")), play(answer_at("n:2"))

    for _ in range(2):
        assert run(find_route(servers, "T")).broker_datas == ROUTE.broker_datas

    assert [address for address, _ in run.requests] == ["n:1", "n:2", "n:2"]


def test_topic_that_no_name_server_knows_is_missed_at_the_one_in_use(
    play: Callable[[Handler], Play],
) -> None:
    servers, run = NameServers(("n:1", "n:2"), start=1), play(answer_at())

    for _ in range(2):
        with pytest.raises(TopicRouteNotFound, match="name server n:2 knows no broker"):
            run(find_route(servers, "T"))

    assert [address for address, _ in run.requests] == ["n:2", "n:1"] * 2


def test_missing_topics_do_not_wait_for_a_silent_name_server_each(
    play: Callable[[Handler], Play],
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if address == "n:2" and silent:
            run.now_ms += run.waits_ms[-1]
            raise InvokeTimeout("no answer")
        return answer_at(*knowing)(address, request)

    silent, knowing = [True], list[str]()
    servers, run = NameServers(("n:1", "n:2")), play(answer)
    begun_ms = run.now_ms

    for topic in ("%RETRY%G", "T", "U"):
        with pytest.raises(TopicRouteNotFound, match="name server n:1 knows no broker"):
            run(find_route(servers, topic))

    assert run.now_ms - begun_ms == OTHERS_MS_MAX
    # It is asked again after a while.
    silent.clear()
    knowing.append("n:2")
    run.now_ms += SILENT_MS
    assert run(find_route(servers, "T")).broker_datas == ROUTE.broker_datas


def test_silent_name_servers_share_the_time(play: Callable[[Handler], Play]) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if address == "n:1":
            raise ConnectFailed("refused", address=address)
        run.now_ms += run.waits_ms[-1]
        raise InvokeTimeout("no answer")

    run, servers = play(answer), NameServers(("n:1", "n:2", "n:3"))
    begun_ms = run.now_ms
    with pytest.raises(ConnectFailed):
        run(find_route(servers, "T", timeout_ms=3_000))

    # One that refuses at once leaves its share to the others.
    assert run.waits_ms == [1_000, 1_500, 1_500]
    assert run.now_ms - begun_ms == 3_000


def test_name_server_that_was_refused_is_asked_again_as_soon_as_it_runs(
    play: Callable[[Handler], Play],
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if address == "n:2" and not runs:
            raise ConnectFailed("refused", address=address)
        return answer_at("n:2")(address, request)

    runs = list[bool]()
    run, servers = play(answer), NameServers(("n:1", "n:2"))
    with pytest.raises(TopicRouteNotFound):
        run(find_route(servers, "T"))
    runs.append(True)

    assert run(find_route(servers, "T")).broker_datas == ROUTE.broker_datas


def test_broker_is_found_at_its_new_address(play: Callable[[Handler], Play]) -> None:
    brokers = {"a": "a:1"}

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if not brokers:
            raise ConnectFailed("away", address=address)
        datas = [BrokerData(broker_name=name, broker_addrs={0: at}) for name, at in brokers.items()]
        return response_to(request, body=encode_body(TopicRouteData(broker_datas=datas)))

    run, directory, queue = play(answer), make_directory("ns:1"), MessageQueue("T", "a", 0)
    addresses = [run(get_broker_address(directory, queue))]
    brokers["a"] = "a:2"
    addresses.append(run(get_broker_address(directory, queue)))
    run.now_ms += ROUTE_MS + 1
    addresses.append(run(get_broker_address(directory, queue)))
    assert (addresses, len(run.requests)) == (["a:1", "a:1", "a:2"], 2)

    brokers.clear()
    run.now_ms += ROUTE_MS + 1
    for _ in range(2):
        assert run(get_broker_address(directory, queue)) == "a:2"
    assert len(run.requests) == 3
    with pytest.raises(ConnectFailed):
        run(get_route(directory, "T", is_fresh=True))
