"""Which name server a client believes about a topic."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from play import Handler, Play
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.routes import find_route
from sparrowmq.errors import TopicRouteNotFound
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
