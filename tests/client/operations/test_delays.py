"""Messages with a time of their own, by what the brokers' answers to heartbeats say; no sockets."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

import play as playing
from play import Handler, Play
from sparrowmq.client.operations.recall import recall
from sparrowmq.client.operations.send import send, send_oneway
from sparrowmq.client.publisher import DelayRounded, ProducerNotice
from sparrowmq.errors import (
    BrokerError,
    ConnectFailed,
    InvokeTimeout,
    NoWritableQueue,
    SendFailed,
    UsageError,
)
from sparrowmq.model import Message, MessageQueue
from sparrowmq.protocol.bodies import BrokerData, QueueData, TopicRouteData, encode_body
from sparrowmq.protocol.codes import (
    MQ_VERSION,
    MQ_VERSION_5,
    RequestCode,
    ResponseCode,
)
from sparrowmq.protocol.command import RemotingCommand, response_to

HANDLE = urlsafe_b64encode(b"v1 T a 1700000000001 ID7").decode()
OLD, NEW = MQ_VERSION, MQ_VERSION_5


class Servers:
    """A name server, and brokers by name with their versions, None for one that is silent."""

    def __init__(self, **versions: int | None) -> None:
        self.versions = versions
        self.requests: list[tuple[str, RemotingCommand]] = []
        self.refusal: tuple[int, str] | None = None

    def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
        self.requests.append((address, request))
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, body=encode_body(self.route()))
        version = self.versions[address.removesuffix(":1")]
        if version is None:
            raise ConnectFailed(f"cannot connect to {address}", address=address)
        if request.code == RequestCode.HEART_BEAT:
            return msgspec.structs.replace(response_to(request), version=version)
        fields = dict(request.ext_fields or {})
        if request.code == RequestCode.SEND_MESSAGE_V2:
            answer = {"msgId": "O", "queueId": fields["e"], "queueOffset": "7"}
            if "TIMER_DELAY_MS" in fields["i"]:
                answer["recallHandle"] = HANDLE
            return response_to(request, ext_fields=answer)
        if self.refusal is not None:
            code, remark = self.refusal
            return response_to(request, code, remark=remark)
        return response_to(request, ext_fields={"msgId": "ID7"})

    def route(self) -> TopicRouteData:
        return TopicRouteData(
            broker_datas=[
                BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"})
                for name in self.versions
            ],
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=1, write_queue_nums=1, perm=6)
                for name in self.versions
            ],
        )

    def codes(self) -> list[int]:
        return [request.code for _, request in self.requests]

    def properties(self) -> dict[str, str]:
        (text,) = (
            dict(request.ext_fields or {})["i"]
            for _, request in self.requests
            if request.code == RequestCode.SEND_MESSAGE_V2
        )
        pairs = (pair.partition("\x01") for pair in text.split("\x02") if pair)
        return {name: value for name, _, value in pairs if name != "UNIQ_KEY"}


make_publisher = partial(playing.make_publisher, retry_times=0, drawn=0)


def delayed(**delay: float) -> Message:
    return Message("T", b"x", delay=timedelta(**delay))


def test_brokers_of_5_get_the_very_delay_and_give_a_handle(play: Callable[[Handler], Play]) -> None:
    servers = Servers(a=NEW, b=NEW + 67)

    result = play(servers)(send(make_publisher(), delayed(seconds=45)))

    assert servers.properties() == {"TIMER_DELAY_MS": "45000"}
    assert result.recall_handle == HANDLE


@pytest.mark.parametrize("versions", [{"a": OLD}, {"a": NEW - 1}, {"a": NEW, "b": OLD}])
def test_one_older_broker_of_the_topic_has_a_level_sent_and_that_is_reported_once(
    play: Callable[[Handler], Play], versions: dict[str, int]
) -> None:
    servers, reported = Servers(**versions), list[ProducerNotice]()
    publisher = make_publisher()
    publisher.report = reported.append

    result = play(servers)(send(publisher, delayed(seconds=44)))

    assert servers.properties() == {"DELAY": "5"}
    assert result.recall_handle is None
    old = min(versions, key=lambda name: versions[name])
    rounded = DelayRounded("T", timedelta(seconds=44), timedelta(seconds=60), f"{old}:1")
    assert reported == [rounded]
    play(servers)(send(publisher, delayed(seconds=44)))
    assert reported == [rounded]


def test_level_of_the_very_delay_is_not_reported(play: Callable[[Handler], Play]) -> None:
    reported: list[ProducerNotice] = []
    publisher = make_publisher()
    publisher.report = reported.append

    play(Servers(a=OLD))(send(publisher, delayed(minutes=5)))

    assert reported == []


def test_queue_that_is_given_asks_of_its_broker_alone(play: Callable[[Handler], Play]) -> None:
    servers = Servers(a=NEW, b=OLD)

    play(servers)(send(make_publisher(), delayed(days=2), queue=MessageQueue("T", "a", 0)))

    assert servers.properties() == {"TIMER_DELAY_MS": "172800000"}


def test_broker_that_hears_nothing_leaves_half_of_the_time_to_the_send(
    play: Callable[[Handler], Play],
) -> None:
    servers = Servers(a=NEW)
    driver = play(servers)

    def keep_silent(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.HEART_BEAT:
            driver.now_ms += driver.waits_ms[-1]
            raise InvokeTimeout("no answer", address=address)
        return servers(address, request)

    driver.handler = keep_silent
    driver(send(make_publisher(send_timeout_ms=3_000), delayed(seconds=44)))

    assert servers.properties() == {"DELAY": "5"}
    assert driver.waits_ms[-1] == 1_500


def test_a_broker_that_is_away_may_be_an_older_one(play: Callable[[Handler], Play]) -> None:
    class Returning(Servers):
        def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
            answer = super().__call__(address, request)
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                self.versions["b"] = OLD
            return answer

    servers, publisher = Returning(a=NEW), make_publisher()
    publisher.config = replace(publisher.config, retry_times=1)

    play(servers)(send(publisher, delayed(seconds=44), queue=MessageQueue("T", "b", 0)))

    assert servers.properties() == {"DELAY": "5"}


def test_a_broker_that_takes_the_place_of_others_gets_no_time_that_it_may_not_know(
    play: Callable[[Handler], Play],
) -> None:
    class Replaced(Servers):
        def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
            if request.code == RequestCode.SEND_MESSAGE_V2:
                self.versions = {"b": OLD}
                raise ConnectFailed(f"cannot connect to {address}", address=address)
            return super().__call__(address, request)

    servers, publisher = Replaced(a=NEW), make_publisher()
    publisher.config = replace(publisher.config, retry_times=1)

    with pytest.raises(SendFailed, match="the broker at b:1 came into the route after"):
        play(servers)(send(publisher, delayed(seconds=44)))


def test_a_broker_that_gets_no_time_is_not_avoided_as_a_slow_one(
    play: Callable[[Handler], Play],
) -> None:
    class Replaced(Servers):
        def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
            if request.code == RequestCode.SEND_MESSAGE_V2 and address == "a:1":
                self.versions = {"b": OLD, "c": OLD}
                raise ConnectFailed(f"cannot connect to {address}", address=address)
            return super().__call__(address, request)

    servers, publisher = Replaced(a=NEW), make_publisher()
    publisher.config = replace(publisher.config, retry_times=1, avoid_slow_brokers=True)
    run = play(servers)
    with pytest.raises(SendFailed, match="came into the route after"):
        run(send(publisher, delayed(seconds=44)))

    results = [run(send(publisher, Message("T", b"x"))) for _ in range(8)]

    assert {result.queue.broker_name for result in results} == {"b", "c"}


def test_delay_beyond_all_levels_is_refused_where_a_broker_is_old_or_not_known(
    play: Callable[[Handler], Play],
) -> None:
    for version, address in ((OLD, "a:1"), (None, "a:1")):
        servers = Servers(a=version, b=NEW)
        with pytest.raises(UsageError, match=f"asks for a delay of 3:00:00, but .* at {address}"):
            play(servers)(send(make_publisher(), delayed(hours=3)))

        assert RequestCode.SEND_MESSAGE_V2 not in servers.codes()


def test_versions_are_asked_once_and_then_known_by_heartbeats(
    play: Callable[[Handler], Play],
) -> None:
    servers, publisher = Servers(a=NEW, b=None), make_publisher()
    driver = play(servers)
    queue = MessageQueue("T", "a", 0)

    driver(send(publisher, delayed(seconds=45), queue=queue))
    asked = servers.codes().count(RequestCode.HEART_BEAT)
    driver(send(publisher, delayed(seconds=45), queue=queue))
    driver(send(publisher, delayed(seconds=45)))

    assert asked == servers.codes().count(RequestCode.HEART_BEAT)
    assert publisher.versions == {"a:1": NEW, "b:1": 0}


def test_message_without_a_time_of_its_own_asks_nothing(play: Callable[[Handler], Play]) -> None:
    servers = Servers(a=NEW)
    publisher = make_publisher()

    play(servers)(send(publisher, Message("T", b"x", delay_level=3)))

    assert servers.properties() == {"DELAY": "3"}


def test_oneway_has_the_delay_too(play: Callable[[Handler], Play]) -> None:
    driver = play(Servers(a=NEW))

    driver(send_oneway(make_publisher(), delayed(seconds=45)))

    ((_, request),) = driver.oneways
    assert "TIMER_DELAY_MS\x0145000" in dict(request.ext_fields or {})["i"]


def test_asking_for_versions_counts_for_the_one_deadline(play: Callable[[Handler], Play]) -> None:
    timeouts: list[str] = []

    class Silent(Servers):
        def __call__(self, address: str, request: RemotingCommand) -> RemotingCommand:
            if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                return super().__call__(address, request)
            timeouts.append(RequestCode(request.code).name)
            raise InvokeTimeout(f"{address} does not answer")

    driver = play(Silent(a=NEW))
    begun_ms = driver.now_ms

    with pytest.raises(SendFailed):
        driver(send(make_publisher(send_timeout_ms=1_000), delayed(seconds=45)))

    assert timeouts[:2] == ["HEART_BEAT", "SEND_MESSAGE_V2"]
    assert driver.now_ms - begun_ms <= 1_000


def test_recall_goes_to_the_broker_of_the_handle(play: Callable[[Handler], Play]) -> None:
    servers = Servers(b=NEW, a=NEW)

    play(servers)(recall(make_publisher(), HANDLE))

    address, request = servers.requests[-1]
    assert (address, request.code) == ("a:1", RequestCode.RECALL_MESSAGE)
    assert request.ext_fields == {
        "producerGroup": "GP",
        "topic": "T",
        "recallHandle": HANDLE,
        "bname": "a",
    }


def test_refused_recall_says_what_to_do(play: Callable[[Handler], Play]) -> None:
    servers = Servers(a=NEW)
    for code, remark, hint in (
        (ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden", "recallMessageEnabl"),
        (1, "recall failed, timestamp invalid", "is due, or delivered"),
    ):
        servers.refusal = (code, remark)
        with pytest.raises(BrokerError, match=hint):
            play(servers)(recall(make_publisher(), HANDLE))


def test_recall_of_a_broker_that_is_gone(play: Callable[[Handler], Play]) -> None:
    with pytest.raises(NoWritableQueue, match="broker 'a', which has the message"):
        play(Servers(b=NEW))(recall(make_publisher(), HANDLE))


@pytest.mark.parametrize(
    "handle", [None, "", "7F0000012A9F", "djIgVA==", b"\xff", urlsafe_b64encode(b"v2 T a 1 x")]
)
def test_what_is_no_handle_is_refused(play: Callable[[Handler], Play], handle: Any) -> None:
    with pytest.raises(
        UsageError, match="is not a recall handle; give the recall_handle of a Send"
    ):
        play(Servers(a=NEW))(recall(make_publisher(), handle))
