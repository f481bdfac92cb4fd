"""The broker on real sockets, files and threads."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.host import RoundLane
from sparrowmq.broker.server import BrokerServer
from sparrowmq.errors import StoreError
from sparrowmq.protocol.bodies import TopicRouteData, decode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import encode_frame
from sparrowmq.protocol.record import Record
from sparrowmq.serving.remoting_server import bind
from sparrowmq.store import MessageStore, StoreConfig
from sparrowmq.store.file_storage import FileStorage

SEND = {
    "a": "GID_p",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "",
}
PULL = {
    "consumerGroup": "GID_c",
    "topic": "T",
    "queueId": "0",
    "queueOffset": "0",
    "maxMsgNums": "32",
    "sysFlag": "6",
    "commitOffset": "0",
    "suspendTimeoutMillis": "15000",
    "subscription": "*",
    "subVersion": "0",
}


async def is_serving(live: Any) -> bool:
    reply = await live.call(live.broker, RequestCode.GET_BROKER_RUNTIME_INFO)
    return bool(reply.code == 0)


async def test_created_topic_has_a_route_when_it_is_answered(live: Any) -> None:
    fields = {
        "topic": "new",
        "defaultTopic": "TBW102",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
    }
    created = await live.call(live.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    reply = await live.call(live.name_server, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "new"})

    route = decode_body(TopicRouteData, reply.body)
    assert created.code == 0
    assert [queue.write_queue_nums for queue in route.queue_datas] == [3]
    assert [{0: live.broker}] == [broker.broker_addrs for broker in route.broker_datas]


async def test_what_a_damaged_log_has_lost_is_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MessageStore(FileStorage(tmp_path), StoreConfig())
    store.load(timestamp_ms=1)
    store.put(Record(topic="T", queue_id=0, body=b"abc"), timestamp_ms=1)
    store.close()
    errors: list[list[str]] = []
    for damage in (b"abc", b"abd"):
        with (tmp_path / "commitlog" / ("0" * 20)).open("r+b") as file:
            file.seek(88)
            file.write(damage)
        caplog.clear()
        server = BrokerServer(tmp_path, BrokerConfig(address="127.0.0.1:10911"))
        await server.start(bind("127.0.0.1", 0))
        await server.stop()
        told = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
        # The store has no topics' file either.
        errors.append([message for message in told if "was damaged" in message])

    assert [len(messages) for messages in errors] == [0, 1]
    assert "lost by their queues' entries: 1 (T:0 1)" in errors[1][0]


async def test_held_pull_is_answered_by_a_send_on_another_connection(live: Any) -> None:
    await live.call(live.broker, RequestCode.SEND_MESSAGE_V2, SEND, b"first")
    peer = await live.connect(live.broker)
    fields = {**PULL, "queueOffset": "1"}
    command = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=fields, opaque=77)
    peer.writer.write(encode_frame(command))
    await _until(lambda: len(live.broker_server.broker.state.holds) == 1)

    await live.call(live.broker, RequestCode.SEND_MESSAGE_V2, SEND, b"second")

    reply = await peer.read_command()
    assert reply is not None
    assert (reply.code, reply.opaque) == (0, 77)
    assert b"second" in (reply.body or b"")
    await peer.close()


async def test_closed_connection_is_told_to_the_group(live: Any) -> None:
    consumer = {"groupName": "GID_c", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
    peer = await live.connect(live.broker)
    for address, client_id in (("driver", "a"), ("peer", "b")):
        body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()
        if address == "driver":
            await live.call(live.broker, RequestCode.HEART_BEAT, None, body)
        else:
            command = RemotingCommand(code=RequestCode.HEART_BEAT, body=body)
            peer.writer.write(encode_frame(command))
            await peer.read_command()
    # One notification for each member that came.
    await _until(lambda: len(live.received) == 2)

    await peer.close()

    await _until(lambda: len(live.received) == 3)
    assert {c.code for c in live.received} == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    reply = await live.call(
        live.broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "GID_c"}
    )
    assert reply.body == b'{"consumerIdList":["a"]}'


async def test_sends_on_one_connection_are_stored_in_their_order(live: Any) -> None:
    peer = await live.connect(live.broker)
    for number in range(200):
        command = RemotingCommand(
            code=RequestCode.SEND_MESSAGE_V2, ext_fields=SEND, body=b"%d" % number, opaque=number
        )
        peer.writer.write(encode_frame(command))

    replies = [await peer.read_command() for _ in range(200)]

    assert [(n, str(n)) for n in range(200)] == [
        (reply.opaque, (reply.ext_fields or {})["queueOffset"]) for reply in replies if reply
    ]
    await peer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x00\x00\x00\x00",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x08\x00\x00\x00\x10abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
        b"\x00\x00\x00\x08\x07\x00\x00\x04{}{}",
        b"\x00\x00\x00\x00" * 4,
    ],
    ids=["huge", "tls", "http", "header too long", "no json", "unknown type", "empty"],
)
@pytest.mark.parametrize("whom", ["broker", "name_server"])
async def test_malformed_frame_closes_its_connection_and_no_other(
    live: Any, data: bytes, whom: str
) -> None:
    other = await live.connect(live.broker)
    await _ask(other)
    peer = await live.connect(getattr(live, whom))

    peer.writer.write(data)

    # A peer that speaks another protocol gets an answer of that protocol first.
    assert await peer.is_ended()
    assert await _ask(other)
    await peer.close()
    await other.close()


@pytest.mark.parametrize("size", [33_000, 70_000])
async def test_send_with_properties_beyond_a_limit_is_illegal_and_costs_no_connection(
    live: Any, size: int
) -> None:
    fields = "".join(f'"{name}":"{value}",' for name, value in SEND.items() if name != "i")
    start = f'{{"code":310,"extFields":{{{fields}"i":"{"x" * size}"}},"flag":0,"language":"JAVA",'
    header = f'{start}"opaque":5,"version":399}}'.encode()
    frame = (len(header) + 8).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + b"body"
    peer = await live.connect(live.broker)

    peer.writer.write(frame)
    refused = await peer.read_command()

    assert refused is not None
    assert (refused.code, refused.opaque) == (ResponseCode.MESSAGE_ILLEGAL, 5)
    assert await _ask(peer)
    assert live.broker_server.broker.state.topics.find("T") is None
    await peer.close()


async def test_silent_connection_is_closed(live: Any) -> None:
    peer = await live.connect(live.broker)

    assert await peer.is_closed()
    await peer.close()


async def test_frame_that_is_not_finished_closes_its_connection(live: Any) -> None:
    peer = await live.connect(live.broker)
    await _ask(peer)

    peer.writer.write(b"\x00\x00\x01\x00\x00\x00")

    assert await peer.is_closed()
    await peer.close()


async def test_too_many_connections_are_refused_and_the_rest_served(live: Any) -> None:
    peers = []
    for _ in range(62):
        peers.append(await live.connect(live.broker))
        # At once: a connection that says nothing is soon closed.
        assert await _ask(peers[-1])
    more = [await live.connect(live.broker) for _ in range(8)]

    refused = [peer for peer in more if await _is_refused(peer)]

    assert len(refused) >= 6
    assert await _ask(peers[0])
    for peer in peers + more:
        await peer.close()


async def test_reader_that_takes_nothing_is_cut_off_and_harms_nobody(live: Any) -> None:
    body = b"x" * 60_000
    for _ in range(8):
        await live.call(live.broker, RequestCode.SEND_MESSAGE_V2, SEND, body)
    peer = await live.connect(live.broker)
    peer.writer.transport.pause_reading()
    for opaque in range(200):
        command = RemotingCommand(code=RequestCode.PULL_MESSAGE, ext_fields=PULL, opaque=opaque)
        peer.writer.write(encode_frame(command))

    assert await is_serving(live)
    # The peer and this client's own connection; then only that is left.
    server = live.broker_server._server
    await _until(lambda: server.connection_count == 1)

    assert await is_serving(live)
    peer.writer.transport.abort()


async def test_failing_processor_is_answered_and_the_server_goes_on(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live.broker_server.broker.state.consumers, "_groups", None)

    reply = await live.call(
        live.broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "G"}
    )

    assert reply.code == 1
    assert "AttributeError" in (reply.remark or "")
    monkeypatch.undo()
    assert await is_serving(live)


async def test_failing_dispatch_costs_no_answer(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(live.broker_server.broker.state.store, "dispatch", fail)

    assert await is_serving(live)
    assert await is_serving(live)


async def test_rounds_that_get_no_thread_are_run_later(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, start, failing = live.broker_server, threading.Thread.start, set[str]()
    for lane in (RoundLane.FLUSH, RoundLane.JOURNAL):
        server._threads[lane].shutdown()
        server._threads[lane] = ThreadPoolExecutor(1, thread_name_prefix=lane.value)
        failing.add(f"{lane.value}_0")

    def start_second(thread: threading.Thread) -> None:
        if thread.name in failing:
            failing.remove(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_second)
    fields = {"topic": "new", "defaultTopic": "TBW102", "perm": "6"}
    fields |= {"readQueueNums": "1", "writeQueueNums": "1", "topicFilterType": "SINGLE_TAG"}

    refused = await live.call(live.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    created = await live.call(live.broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    sent = await live.call(live.broker, RequestCode.SEND_MESSAGE_V2, {**SEND, "b": "new"}, b"x")

    assert failing == set()
    assert (refused.code, "can't start new thread" in (refused.remark or "")) == (1, True)
    assert (created.code, sent.code) == (0, 0)


async def test_directory_in_use_is_refused(live: Any) -> None:
    with pytest.raises(StoreError, match="in use"):
        BrokerServer(live.root / "store", BrokerConfig(address="127.0.0.1:1"))


async def test_broker_registers_soon_at_a_name_server_that_was_restarted(live: Any) -> None:
    await live.restart_name_server()

    async def route() -> int:
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        return int((await live.call(live.name_server, code, {"topic": "TBW102"})).code)

    async with asyncio.timeout(10):
        while await route() != 0:
            await asyncio.sleep(0.02)


async def test_broker_serves_although_no_name_server_answers(tmp_path: Path, peer: Any) -> None:
    listening = bind("127.0.0.1", 0)
    address = f"127.0.0.1:{listening.getsockname()[1]}"
    config = BrokerConfig(address=address)
    server = BrokerServer(tmp_path, config, name_servers=["127.0.0.1:1"])
    await server.start(listening)

    connected = await peer(address)

    assert await _ask(connected)
    await connected.close()
    await server.stop()


async def _ask(peer: Any) -> bool:
    command = RemotingCommand(code=RequestCode.GET_BROKER_RUNTIME_INFO)
    peer.writer.write(encode_frame(command))
    return await peer.read_command() is not None


async def _is_refused(peer: Any) -> bool:
    try:
        return not await _ask(peer)
    except ConnectionError:
        return True


async def _until(condition: Any) -> None:
    """Let the loop go on until something has happened; a deadline bounds it."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)
