"""Messages that are asked by, and their replies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import pytest

from play import Handler, Play, make_publisher
from sending_servers import SENDS, Servers
from sparrowmq import (
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeContext,
    Message,
    MessageExt,
    MessageQueue,
    PollConsumer,
    Producer,
    PushConsumer,
)
from sparrowmq.calling.effects import Wait
from sparrowmq.client.operations.producer_heartbeats import AGAIN_MS
from sparrowmq.client.operations.request_reply import request
from sparrowmq.client.operations.send import send
from sparrowmq.client.replies import AwaitedReply, note_reply
from sparrowmq.errors import (
    BrokerError,
    ConfigError,
    ConnectFailed,
    InvokeTimeout,
    RemoteProtocolError,
    SendFailed,
    UsageError,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.testing.embedded import EmbeddedCluster


@pytest.fixture
def responder(cluster: EmbeddedCluster, topic: str, group: str) -> Iterator[PushConsumer]:
    """Replies to each message with its body, five thousand times if it is large."""
    with Producer("GID_responder", name_server=cluster.name_server) as producer:

        def answer(messages: list[MessageExt], context: ConsumeContext) -> None:
            for message in messages:
                producer.reply(message, message.body * (5_000 if b"large" in message.body else 1))

        with PushConsumer(
            group, topic, name_server=cluster.name_server, listener=answer, start="first"
        ) as consumer:
            consumer.wait_assigned()
            yield consumer


@pytest.mark.slow
def test_each_request_gets_its_own_reply(
    responder: PushConsumer, cluster: EmbeddedCluster, topic: str
) -> None:
    with (
        Producer("GID_asker", name_server=cluster.name_server) as producer,
        ThreadPoolExecutor(4) as pool,
    ):
        bodies = [b"%d" % number for number in range(20)] + [b"large"]
        messages = [Message(topic, body) for body in bodies]
        replies = list(pool.map(lambda each: producer.request(each, timeout_ms=20_000), messages))

    assert [*bodies[:-1], b"large" * 5_000] == [reply.body for reply in replies]
    assert {reply.topic for reply in replies} == {"DefaultCluster_REPLY_TOPIC"}


@pytest.mark.slow
async def test_so_it_is_with_asyncio_and_in_a_namespace(cluster: EmbeddedCluster) -> None:
    settings: dict[str, Any] = {"name_server": cluster.name_server, "namespace": "ns"}
    topic = "asked-in-ns"
    cluster.create_topic(f"ns%{topic}")
    async with AsyncProducer("GID_responder", **settings) as producer:

        async def answer(messages: list[MessageExt], context: ConsumeContext) -> None:
            for message in messages:
                await producer.reply(message, message.body.upper())

        async with (
            AsyncPushConsumer("GID_ns", listener=answer, **settings) as consumer,
            AsyncProducer("GID_asker", **settings) as asker,
        ):
            await consumer.subscribe(topic)
            await consumer.start()
            assert await consumer.wait_assigned()
            replies = await asyncio.gather(
                *(
                    asker.request(Message(topic, b"m%d" % number), timeout_ms=20_000)
                    for number in range(20)
                )
            )

    assert [b"M%d" % number for number in range(20)] == [reply.body for reply in replies]


@pytest.mark.slow
def test_request_without_a_reply_ends_in_time(cluster: EmbeddedCluster, topic: str) -> None:
    with Producer("GID_asker", name_server=cluster.name_server) as producer:
        with pytest.raises(InvokeTimeout, match=r"no reply to message .* within 300 ms"):
            producer.request(Message(topic, b"x"), timeout_ms=300)
        with pytest.raises(ConfigError, match="timeout_ms is 0"):
            producer.request(Message(topic, b"x"), timeout_ms=0)
        assert producer._instance.replies == {}

    with (
        PollConsumer("GID_late", name_server=cluster.name_server) as reader,
        Producer("GID_late", name_server=cluster.name_server, retry_times=0) as late,
    ):
        (message,) = [
            message
            for queue in reader.fetch_subscribe_queues(topic)
            for message in reader.pull(queue, 0).messages
        ]
        with pytest.raises((BrokerError, SendFailed), match=r"channel of <.*> not found"):
            late.reply(message, b"too late")


def test_only_what_was_sent_by_request_is_replied_to() -> None:
    message = MessageExt(
        topic="T",
        body=b"x",
        properties={"CLUSTER": "c", "UNIQ_KEY": "id-1"},
        broker_name="b",
        queue_id=0,
        queue_offset=0,
        commit_log_position=0,
    )
    wrong: Any = MessageQueue("T", "b", 0)
    with Producer("GID_p", name_server="127.0.0.1:1") as producer:
        with pytest.raises(UsageError, match="message id-1 was not sent by request"):
            producer.reply(message, b"y")
        with pytest.raises(UsageError, match="is not a message that came"):
            producer.reply(wrong, b"y")


def test_time_of_a_request_bounds_its_sending_too() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Producer("GID_p", name_server=f"127.0.0.1:{silent.getsockname()[1]}") as producer,
        pytest.raises(InvokeTimeout, match="request to topic 'T' was not confirmed within 50 ms"),
    ):
        producer.request(Message("T", b"x"), timeout_ms=50)


def test_brokers_of_another_topic_know_the_producer_before_they_get_a_request(
    play: Callable[[Handler], Play],
) -> None:
    servers, publisher = Servers("a"), make_publisher()
    servers.topics["U"] = ("b",)
    driver = play(servers)

    def ask(topic: str) -> list[str]:
        """Return the brokers' addresses that a request sends a heartbeat to."""
        driver.requests.clear()
        with pytest.raises(InvokeTimeout, match="no reply"):
            driver(request(publisher, {}, Message(topic, b"x"), queue=None, timeout_ms=100))
        return [at for at, sent in driver.requests if sent.code == RequestCode.HEART_BEAT]

    # A usual send makes the producer known to the brokers of its topic.
    driver(send(publisher, Message("T", b"x")))

    assert ask("T") == []
    # The reply comes over the broker of the request.
    assert ask("U") == ["a:1", "b:1"]
    codes = [sent.code for _, sent in driver.requests]
    assert codes.index(RequestCode.HEART_BEAT) < min(codes.index(c) for c in SENDS if c in codes)
    assert ask("U") == ask("T") == []


def test_producer_whose_connection_was_lost_is_made_known_again_for_a_reply(
    play: Callable[[Handler], Play],
) -> None:
    def answer(address: str, sent: RemotingCommand) -> RemotingCommand:
        if sent.code == RequestCode.HEART_BEAT:
            beats.append(address)
            if is_away:
                raise ConnectFailed("away", address=address)
        if sent.code in SENDS and is_lost:
            # The send finds the connection lost, and is stored over a new one.
            del publisher.known_until_ms[is_lost.pop()]
        return servers(address, sent)

    def ask() -> list[str]:
        beats.clear()
        with pytest.raises(InvokeTimeout, match="no reply"):
            driver(request(publisher, {}, Message("T", b"x"), queue=None, timeout_ms=100))
        return list(beats)

    servers, publisher = Servers("a"), make_publisher()
    beats, is_away, is_lost = list[str](), list[bool](), list[str]()
    driver = play(answer)
    assert ask() == ["a:1"]
    assert ask() == []

    del publisher.known_until_ms["a:1"]
    is_away.append(True)
    # Its heartbeats do not reach the broker, which is just starting; they are not repeated at once.
    assert ask() == ["a:1"]
    assert ask() == []
    driver.now_ms += AGAIN_MS
    is_away.clear()
    assert ask() == ["a:1"]
    assert ask() == []
    is_lost.append("a:1")
    assert ask() == ["a:1"]


def test_one_lost_connection_of_several_is_enough_for_a_heartbeat(
    play: Callable[[Handler], Play],
) -> None:
    driver, publisher = play(Servers("a", "b")), make_publisher()
    driver(send(publisher, Message("T", b"x")))
    driver.requests.clear()
    del publisher.known_until_ms["b:1"]

    with pytest.raises(InvokeTimeout, match="no reply"):
        driver(request(publisher, {}, Message("T", b"x"), queue=None, timeout_ms=100))
    assert "b:1" in [at for at, sent in driver.requests if sent.code == RequestCode.HEART_BEAT]


def test_request_says_who_waits_for_its_reply_and_for_how_long(
    play: Callable[[Handler], Play],
) -> None:
    driver, replies, publisher = play(Servers("a")), dict[str, AwaitedReply](), make_publisher()
    asked: list[dict[str, str]] = []

    def answer(address: str, sent: RemotingCommand) -> RemotingCommand:
        if sent.code in SENDS:
            asked.append(parse_properties((sent.ext_fields or {})["i"]))
            assert asked[-1]["CORRELATION_ID"] in replies
        return servers(address, sent)

    servers = driver.handler
    driver.handler = answer
    message = Message("T", b"x", properties={"own": "p"})
    for _ in range(2):
        with pytest.raises(InvokeTimeout, match="no reply"):
            driver(request(publisher, replies, message, queue=None, timeout_ms=100))

    assert {(each["REPLY_TO_CLIENT"], each["TTL"], each["own"]) for each in asked} == {
        ("c", "100", "p")
    }
    assert asked[0]["CORRELATION_ID"] != asked[1]["CORRELATION_ID"]
    assert replies == {}


class PlayedWaits(Play):
    """Lets a wait for what does not happen last."""

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Wait) and effect.timeout_ms is not None and not effect.event.is_set:
            self.now_ms += effect.timeout_ms
        return super().carry_out(effect)


def test_reply_is_waited_for_as_long_as_the_sending_has_left() -> None:
    servers = Servers("a")

    def take_long(address: str, sent: RemotingCommand) -> RemotingCommand:
        driver.now_ms += 700 if sent.code in SENDS else 0
        return servers(address, sent)

    driver = PlayedWaits(take_long)
    begun_ms = driver.now_ms
    with pytest.raises(InvokeTimeout, match="no reply"):
        driver(request(make_publisher(), {}, Message("T", b"x"), queue=None, timeout_ms=1_000))

    assert driver.now_ms - begun_ms == 1_000


def test_lost_connection_is_told_to_the_producers_that_share_it() -> None:
    with (
        Producer("GID_a", name_server="127.0.0.1:1", instance_name="shared") as one,
        Producer("GID_b", name_server="127.0.0.1:1", instance_name="shared") as other,
    ):
        assert one._instance is other._instance
        for producer in (one, other):
            producer._publisher.known_until_ms = {"a:1": inf, "b:1": inf}
        one._instance._note_connection_lost("a:1")

        for producer in (one, other):
            assert producer._publisher.known_until_ms == {"b:1": inf}


def push_of(body: bytes = b"y", **fields: str) -> RemotingCommand:
    header = {
        "producerGroup": "G",
        "topic": "c_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "5",
        "flag": "0",
        "properties": "CORRELATION_ID\x01c-1",
        "bornHost": "/10.0.0.1:50123",
        "storeHost": "10.0.0.2:10911",
        "storeTimestamp": "7",
    }
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return RemotingCommand(code=code, ext_fields=header | fields, body=body)


def test_first_reply_counts_and_others_are_dropped() -> None:
    replies = {"c-1": AwaitedReply(), "c-2": AwaitedReply()}

    for push in (push_of(), push_of(b"again"), push_of(properties="CORRELATION_ID\x01gone")):
        assert note_reply(replies, push).code == 0

    first = replies["c-1"].message
    assert first is not None
    assert (first.body, first.born_host, first.store_timestamp_ms) == (b"y", "10.0.0.1:50123", 7)
    assert (replies["c-1"].arrived.is_set, replies["c-2"].arrived.is_set) == (True, False)


@pytest.mark.parametrize("fields", [{"queueId": "x"}, {"sysFlag": "1"}], ids=str)
def test_reply_that_cannot_be_read_is_an_error(fields: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError):
        note_reply({}, push_of(b"y", **fields))
