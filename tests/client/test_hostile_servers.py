"""Clients against servers that answer what they like: nothing impossible is believed."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from hostile import BROKER_NAME, HANG_UP, HostileCluster, Lie, altered, record
from sparrowmq import (
    Admin,
    AsyncProducer,
    Message,
    MessageQueue,
    Producer,
    PushConsumer,
    SendStatus,
)
from sparrowmq.client.assembly import make_publisher
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.faces import blocking
from sparrowmq.client.operations import snapshot
from sparrowmq.client.operations.handover import lock_batch
from sparrowmq.client.operations.send import send
from sparrowmq.client.route_cache import QUEUES_MAX
from sparrowmq.errors import (
    ConnectFailed,
    ConnectionLost,
    InvokeTimeout,
    RemoteProtocolError,
    SendFailed,
    UsageError,
)
from sparrowmq.membership.member import ACQUIRES_MAX
from sparrowmq.model.message import INFLATED_BYTES_MAX
from sparrowmq.protocol.bodies import (
    ConsumerRunningInfo,
    LockBatchResponseBody,
    ResetOffsetBody,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.compression import COMPRESSED
from sparrowmq.protocol.framing import encode_frame
from waiting import wait_until

IMPOSSIBLE = str(1 << 62)


class Seen:
    """What a listener was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, messages: list[Any], _: object) -> None:
        self.bodies += [message.body for message in messages]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def consumer(hostile: HostileCluster, seen: Seen) -> Iterator[PushConsumer]:
    """A consumer of the topic, not started yet."""
    with PushConsumer(
        "GID_c",
        name_server=hostile.address,
        listener=seen,
        start="first",
        consume_thread_count=1,
    ) as made:
        made.subscribe("T")
        yield made


@pytest.fixture
def producer(hostile: HostileCluster) -> Iterator[Producer]:
    with Producer("GID_p", name_server=hostile.address) as made:
        yield made


def at_first(count: int, lie: Lie) -> Lie:
    """Lie so many times, and be honest then."""
    times = iter(range(count))

    def answer(request: RemotingCommand, honest: RemotingCommand | None) -> Any:
        return honest if next(times, None) is None else lie(request, honest)

    return answer


def found(*records: bytes, **fields: str) -> Lie:
    """Find these records in the place of what is there."""
    return lambda _, honest: msgspec.structs.replace(
        altered(honest, **fields), code=ResponseCode.SUCCESS, body=b"".join(records) or None
    )


def code(number: int, **fields: str) -> Lie:
    """Answer with a code, and no body."""
    return lambda _, honest: msgspec.structs.replace(
        altered(honest, **fields), code=number, body=None
    )


def test_servers_that_do_not_lie_serve_a_producer_and_a_consumer(
    hostile: HostileCluster, producer: Producer, consumer: PushConsumer, seen: Seen
) -> None:
    offsets = [producer.send(Message("T", body)).queue_offset for body in (b"1", b"2")]
    consumer.start()
    wait_until("consumed", lambda: len(seen.bodies) == 2)
    consumer.close()

    assert offsets == [0, 1]
    assert seen.bodies == [b"1", b"2"]
    assert hostile.broker.committed == {("GID_c", "T", 0): 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "logged"),
    [
        (found(), "but without a message"),
        (found(record("U", 0, 0)), "with a message of 'U' queue 0"),
        (found(record("T", 7, 0)), "with a message of 'T' queue 7"),
        (found(record("T", 0, 5)), "with a message at offset 5"),
        (found(record("T", 0, 1), record("T", 0, 0)), "with a message at offset 0"),
        (found(record("T", 0, 0), nextBeginOffset=IMPOSSIBLE), "offsets that no queue has"),
        (
            code(ResponseCode.PULL_NOT_FOUND, nextBeginOffset="100000"),
            "behind the end of the queue",
        ),
        (code(ResponseCode.PULL_RETRY_IMMEDIATELY, nextBeginOffset=IMPOSSIBLE), "no queue has"),
        (code(ResponseCode.PULL_OFFSET_MOVED, maxOffset=IMPOSSIBLE), "offsets that no queue has"),
    ],
    ids=[
        *("nothing found", "other topic", "other queue", "offset beyond", "out of order"),
        *("found up to 2^62", "nothing new up to", "none matches up to 2^62", "moved to 2^62"),
    ],
)
def test_pull_answer_that_cannot_be_right_delivers_and_commits_nothing(
    hostile: HostileCluster,
    consumer: PushConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    lie: Lie,
    logged: str,
) -> None:
    hostile.broker.add_messages("T", b"1", b"2")
    hostile.broker.lies[RequestCode.PULL_MESSAGE] = at_first(3, lie)

    consumer.start()
    wait_until("consumed", lambda: len(seen.bodies) >= 2)
    consumer.close()

    assert seen.bodies == [b"1", b"2"]
    assert hostile.broker.committed == {("GID_c", "T", 0): 2}
    assert {0, 1, 2} >= set(hostile.broker.commits)
    assert logged in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ],
    ids=lambda number: number.name,
)
def test_broker_that_has_the_same_offset_pulled_again_and_again_is_not_flooded(
    hostile: HostileCluster, consumer: PushConsumer, number: ResponseCode
) -> None:
    hostile.broker.add_messages("T", b"1")
    hostile.broker.lies[RequestCode.PULL_MESSAGE] = code(number, nextBeginOffset="0")

    consumer.start()
    wait_until("the first pull", lambda: hostile.broker.count(RequestCode.PULL_MESSAGE) >= 1)
    elapsed_s = wait_until("six", lambda: hostile.broker.count(RequestCode.PULL_MESSAGE) >= 6)

    # At once, and then after 100, 200, 400 and 800 ms.
    assert elapsed_s > 1.4


@pytest.mark.slow
def test_broker_that_moves_the_offset_back_again_and_again_has_few_messages_come_again(
    hostile: HostileCluster, consumer: PushConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    hostile.broker.add_messages("T", b"1", b"2")
    moved = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": "0",
        "minOffset": "0",
        "maxOffset": "2",
    }
    begun: list[str] = []

    def answer(request: RemotingCommand, honest: RemotingCommand | None) -> RemotingCommand:
        if honest is not None:
            begun.append((request.ext_fields or {})["queueOffset"])
            return honest
        return response_to(request, ResponseCode.PULL_OFFSET_MOVED, ext_fields=moved)

    hostile.broker.lies[RequestCode.PULL_MESSAGE] = answer

    consumer.start()
    wait_until("twice", lambda: len(begun) >= 2)
    elapsed_s = wait_until("four times", lambda: len(begun) >= 4)

    # After 1 s, and then after 2 s.
    assert elapsed_s > 2.5
    assert set(begun) == {"0"}
    # What the listener was not called with yet is dropped, and comes again.
    assert set(seen.bodies) <= {b"1", b"2"}
    assert len(seen.bodies) <= 2 * len(begun)
    line, *later = [line for line in caplog.messages if "has no offset 2" in line]
    assert "continuing at 0, and messages from there come again" in line
    # One in ten seconds; the machine may be slow.
    assert len(later) <= 1


@pytest.mark.slow
def test_broker_that_resets_the_offset_again_and_again_has_few_messages_come_again(
    hostile: HostileCluster, consumer: PushConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    hostile.broker.add_messages("T", b"1", b"2")
    body = ResetOffsetBody(offset_table={MessageQueue("T", BROKER_NAME, 0): 0})
    fields = {"topic": "T", "group": "GID_c", "timestamp": "0", "isForce": "true"}
    reset = RemotingCommand(
        code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext_fields=fields, body=encode_body(body)
    )

    consumer.start()
    wait_until("the messages", lambda: len(seen.bodies) == 2)
    for _ in range(3):
        hostile.ask_client(reset)
    wait_until("again", lambda: len(seen.bodies) == 4)

    line = next(line for line in caplog.messages if "was reset at its broker" in line)
    # The second call of the listener may be about to return.
    assert re.search(r"was at offset [12], and goes on at 0$", line)


@pytest.mark.parametrize("answered", ["-9", "3"])
def test_send_answer_with_another_queue_is_an_error(
    hostile: HostileCluster, producer: Producer, answered: str
) -> None:
    hostile.broker.lies[RequestCode.SEND_MESSAGE_V2] = lambda _, honest: altered(
        honest, queueId=answered
    )

    with pytest.raises(RemoteProtocolError, match=f"names queue {answered}"):
        producer.send(Message("T", b"x"))


@pytest.mark.parametrize(("named", "expected"), [("A", ["A", "", ""]), ("A,B,C,D", [*"ABC"])])
async def test_batch_answer_that_names_fewer_or_more_messages_is_taken_as_stored(
    hostile: HostileCluster, named: str, expected: list[str]
) -> None:
    hostile.broker.lies[RequestCode.SEND_BATCH_MESSAGE] = lambda request, _: response_to(
        request, ext_fields={"queueId": "0", "queueOffset": "5", "msgId": named}
    )

    # In asyncio what is queued in one turn is one batch, in threads it may be two.
    async with AsyncProducer("GID_p", name_server=hostile.address) as producer:
        futures = [producer.send_nowait(Message("T", b"x")) for _ in range(3)]
        results = await asyncio.gather(*futures)

    assert [result.offset_msg_id for result in results] == expected
    assert [result.queue_offset for result in results] == [5, 6, 7]


@pytest.mark.slow
@pytest.mark.parametrize("offset", ["-7", IMPOSSIBLE, "9" * 5_000])
def test_committed_offset_that_no_queue_can_have_is_asked_for_again(
    hostile: HostileCluster, consumer: PushConsumer, seen: Seen, offset: str
) -> None:
    hostile.broker.add_messages("T", b"1", b"2")
    hostile.broker.lies[RequestCode.QUERY_CONSUMER_OFFSET] = at_first(
        2, code(ResponseCode.SUCCESS, offset=offset)
    )

    consumer.start()
    wait_until("consumed", lambda: len(seen.bodies) == 2)

    assert hostile.broker.count(RequestCode.QUERY_CONSUMER_OFFSET) == 3


@pytest.mark.parametrize("expiry", ["0", "1", "9" * 5_000, "-1", "x"])
def test_expiry_that_would_flood_the_broker_with_heartbeats_is_not_believed(
    hostile: HostileCluster, consumer: PushConsumer, expiry: str
) -> None:
    hostile.broker.lies[RequestCode.HEART_BEAT] = lambda _, honest: altered(
        honest, sparrowmqExpiryMs=expiry
    )

    consumer.start()
    wait_until("a pull", lambda: hostile.broker.count(RequestCode.PULL_MESSAGE))

    assert hostile.broker.count(RequestCode.HEART_BEAT) <= 2


def test_lock_that_was_not_asked_for_is_not_ours(play: Callable[..., Any]) -> None:
    """It would stand for a queue whose lock was refused."""
    others = [MessageQueue("U", "b", 0)]
    answered = LockBatchResponseBody(lock_ok_mq_set=others, sparrowmq_stood_in=others)
    ask = lock_batch("b:1", "G", client_id="c", queues=[MessageQueue("T", "b", 0)])

    locks = play(lambda _, request: response_to(request, body=encode_body(answered)))(ask)

    assert locks == (frozenset(), frozenset())


# --- the memory -------------------------------------------------------------------------------

# Its listener waits until as many bodies as have room wait for it.
CONSUMER_UNDER_A_BOMB = """
import sys, threading, time
from sparrowmq import PushConsumer

def peak_mib():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024

def wait_until(condition):
    deadline_s = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)

goes_on = threading.Event()
before = peak_mib()
with PushConsumer(
    "GID_c",
    name_server=sys.argv[1],
    listener=lambda messages, context: goes_on.wait(60) and None,
    start="first",
    consume_thread_count=1,
) as consumer:
    consumer.subscribe("T")
    consumer.start()
    wait_until(lambda: consumer.counters.pulled)
    held = consumer.counters.pulled
    goes_on.set()
    wait_until(lambda: consumer.counters.succeeded == int(sys.argv[2]))
    print(held, consumer.counters.succeeded, peak_mib() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("random_bytes", [0, 1_000_000], ids=["of zeros", "of a large answer"])
def test_bombs_of_a_queue_take_no_more_memory_than_its_limit(
    hostile: HostileCluster, random_bytes: int
) -> None:
    """The consumer's process grows by at most 100 MiB while 240 or 190 MB are inflated in all."""
    body = zlib.compress(
        random.Random(1).randbytes(random_bytes) + bytes(INFLATED_BYTES_MAX - random_bytes)
    )
    count = 12 if random_bytes else 15
    stored = [record("T", 0, offset, body, sys_flag=COMPRESSED) for offset in range(count)]
    hostile.broker.records["T", 0] = stored
    command = [sys.executable, "-c", CONSUMER_UNDER_A_BOMB, hostile.address, str(count)]
    # What is measured are bodies in use: glibc's allocator gives back each that is not at once.
    # Otherwise it keeps some, and how many depends on the threads' order.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    printed = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=150, env=environment
    ).stdout
    held, consumed, grown_mib = map(int, printed.split())

    assert (held, consumed) == (2, count)
    assert grown_mib <= 100


# --- the log ----------------------------------------------------------------------------------


REQUESTS_TO_CLIENTS = [
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
]


@pytest.mark.slow
@pytest.mark.parametrize("number", REQUESTS_TO_CLIENTS, ids=lambda number: number.name)
def test_requests_of_a_broker_that_cannot_be_read_are_few_lines(
    hostile: HostileCluster,
    consumer: PushConsumer,
    caplog: pytest.LogCaptureFixture,
    number: RequestCode,
) -> None:
    consumer.start()
    wait_until("a pull", lambda: hostile.broker.count(RequestCode.PULL_MESSAGE))
    with caplog.at_level(logging.INFO, "sparrowmq"):
        caplog.clear()
        for opaque in range(500):
            hostile.ask_client(RemotingCommand(code=number, opaque=opaque, body=b"{"))
        wait_until("answers", lambda: len(hostile.broker.answered) == 500)

    # One in ten seconds; the machine may be slow.
    assert len(caplog.records) <= 3, caplog.messages[:5]


@pytest.mark.slow
def test_connections_that_a_broker_breaks_again_and_again_are_few_lines(
    hostile: HostileCluster, caplog: pytest.LogCaptureFixture
) -> None:
    hostile.broker.lies[RequestCode.SEND_MESSAGE_V2] = UNANSWERED["no frame"]
    with (
        caplog.at_level(logging.INFO, "sparrowmq.calling"),
        Producer("GID_p", name_server=hostile.address, send_timeout_ms=1_000) as producer,
    ):
        for _ in range(30):
            with pytest.raises(SendFailed):
                producer.send(Message("T", b"x"))

    about = [line for line in caplog.messages if hostile.broker_address in line]
    # Opened, lost: one of each in ten seconds; the machine may be slow.
    assert 2 <= len(about) <= 6
    assert hostile.broker.count(RequestCode.SEND_MESSAGE_V2) >= 30


# --- routes -----------------------------------------------------------------------------------


def route_with(**counts: int) -> Lie:
    """Answer with a route of one broker with these numbers of queues."""
    queues = {
        "readQueueNums": 1,
        "writeQueueNums": 1,
        "perm": 6,
        "brokerName": "broker-a",
        **counts,
    }
    data = {
        "brokerDatas": [{"brokerName": "broker-a", "brokerAddrs": {"0": "127.0.0.1:1"}}],
        "queueDatas": [queues],
    }
    return lambda request, _: response_to(request, body=json.dumps(data).encode())


def route_of(**data: Any) -> Lie:
    """Answer with a route."""
    return lambda request, _: response_to(request, body=json.dumps(data).encode())


def raw(body: bytes) -> Lie:
    return lambda request, _: response_to(request, body=body)


HOSTILE_ROUTES = {
    "2^31-1 queues to write": (route_with(writeQueueNums=2**31 - 1), "2147483647 queues"),
    "2^31-1 queues to read": (route_with(readQueueNums=2**31 - 1), "2147483647 queues"),
    "one queue too many": (route_with(readQueueNums=QUEUES_MAX + 1), "a topic has at most 65536"),
    "less than none": (route_with(writeQueueNums=-5), "a negative number of queues"),
    "many in order": (
        route_of(orderTopicConf="broker-a:65000;broker-b:65000"),
        "130000 queues",
    ),
    "endless digits in order": (route_of(orderTopicConf="broker-a:" + "9" * 9_999), "65537 queues"),
    "a broker twice": (
        route_of(queueDatas=[{"brokerName": "a", "writeQueueNums": 65_000, "perm": 6}] * 2),
        "queues of a broker twice",
    ),
    "many brokers": (
        route_of(
            brokerDatas=[
                {"brokerName": f"b{n}", "brokerAddrs": {"0": f"10.0.0.1:{n}"}} for n in range(2_000)
            ]
        ),
        "2000 addresses of brokers",
    ),
    "many addresses of one": (
        route_of(
            brokerDatas=[
                {"brokerName": "b", "brokerAddrs": {str(n): f"10.0.0.1:{n}" for n in range(2_000)}}
            ]
        ),
        "2000 addresses of brokers",
    ),
    "15 MB": (raw(b'{"a":' + b"[{}," * 3_700_000), "TopicRouteAnswer of 14800005 bytes"),
    "no JSON": (raw(b"\0\1\2"), "answers with"),
    "another body": (raw(b'{"queueDatas":7}'), "no TopicRouteAnswer"),
}


@pytest.mark.parametrize(("lie", "said"), HOSTILE_ROUTES.values(), ids=HOSTILE_ROUTES.keys())
def test_route_beyond_all_bounds_is_refused_before_anything_is_made_of_it(
    play: Callable[..., Any], lie: Lie, said: str
) -> None:
    publisher = make_publisher("GID_p", name_server="ns:1", client_ip="127.0.0.1")
    answer = lie(RemotingCommand(code=0), None)
    driver = play(lambda _, request: answer)
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=said) as caught:
            driver(send(publisher, Message("T", b"x")))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "ns:1" in str(caught.value)
    assert peak < 16 * 1024 * 1024


UNANSWERED: dict[str, Lie] = {
    "silence": lambda *_: None,
    "hangs up": lambda *_: HANG_UP,
    "an answer without an end": lambda *_: b"\0\xf0\0\0" + bytes(1_000),
    "no frame": lambda *_: b"GET / HTTP/1.1\r\n\r\n",
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", UNANSWERED.values(), ids=UNANSWERED.keys())
@pytest.mark.parametrize("server", ["name server", "broker"])
def test_send_ends_within_its_timeout_whatever_does_not_answer(
    hostile: HostileCluster, server: str, lie: Lie
) -> None:
    if server == "broker":
        hostile.broker.lies[RequestCode.SEND_MESSAGE_V2] = lie
    else:
        hostile.name_server.lies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lie
    with Producer("GID_p", name_server=hostile.address, send_timeout_ms=800) as producer:
        begun_s = time.monotonic()
        with pytest.raises((ConnectFailed, SendFailed)):
            producer.send(Message("T", b"x"))
        elapsed_s = time.monotonic() - begun_s

    # Two attempts of such a time each would be at it.
    assert elapsed_s < 1.6


@pytest.mark.slow
def test_send_ends_within_its_timeout_where_the_name_server_falls_silent_between_attempts(
    hostile: HostileCluster,
) -> None:
    code_of_route = RequestCode.GET_ROUTEINFO_BY_TOPIC

    def refuse(request: RemotingCommand, _: object) -> RemotingCommand:
        hostile.name_server.lies[code_of_route] = lambda *_: None
        return response_to(request, ResponseCode.SYSTEM_BUSY)

    hostile.broker.lies[RequestCode.SEND_MESSAGE_V2] = at_first(2, refuse)
    with Producer("GID_p", name_server=hostile.address, send_timeout_ms=2_500) as producer:
        result = producer.send(Message("T", b"x"))

    # The route that is known serves all attempts.
    assert result.status is SendStatus.SEND_OK
    assert hostile.broker.count(RequestCode.SEND_MESSAGE_V2) == 3


@pytest.mark.slow
@pytest.mark.parametrize("lie", [*UNANSWERED.values(), route_with(readQueueNums=2**31 - 1)])
def test_name_server_that_gives_no_good_answer_is_passed_over_for_the_next(
    hostile: HostileCluster, lie: Lie
) -> None:
    with HostileCluster() as bad:
        bad.name_server.lies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lie
        for addresses in ([bad.address, hostile.address], [hostile.address, bad.address]):
            with Producer("GID_p", name_server=addresses, send_timeout_ms=2_000) as producer:
                producer.send(Message("T", b"x"))

    assert hostile.broker.count(RequestCode.SEND_MESSAGE_V2) == 2


def test_route_that_is_refused_keeps_no_other_topic_from_being_consumed(
    hostile: HostileCluster, consumer: PushConsumer, seen: Seen, caplog: pytest.LogCaptureFixture
) -> None:
    hostile.broker.add_messages("T", b"1")
    lie = route_with(readQueueNums=2**31 - 1)
    hostile.name_server.lies[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda request, honest: (
        lie(request, honest) if (request.ext_fields or {})["topic"] == "A" else honest
    )

    consumer.subscribe("A")
    consumer.start()
    wait_until("consumed", lambda: seen.bodies)

    assert "answers for topic 'A' with a route with 2147483647 queues" in caplog.text


@pytest.mark.slow
def test_consumer_of_as_many_queues_as_a_topic_may_have_asks_for_a_few_at_a_time(
    hostile: HostileCluster, consumer: PushConsumer
) -> None:
    hostile.name_server.add_topic("T", queues=4_000)
    # A broker that does not answer must not be asked for everything at once, and then again.
    hostile.broker.lies[RequestCode.LOCK_BATCH_MQ] = lambda *_: None

    consumer.start()
    wait_until("the assignment", lambda: len(consumer.assignment()) == 4_000)
    wait_until("locks", lambda: hostile.broker.count(RequestCode.LOCK_BATCH_MQ))

    assert hostile.broker.count(RequestCode.LOCK_BATCH_MQ) <= 2 * ACQUIRES_MAX


def test_producer_closes_though_no_broker_confirms_that_it_leaves(
    hostile: HostileCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "LEAVE_TIMEOUT_MS", 20)
    hostile.broker.lies[RequestCode.UNREGISTER_CLIENT] = lambda *_: None
    producer = Producer("GID_p", name_server=hostile.address)
    producer.send(Message(hostile.topic, b"x"))
    producer.close()

    assert hostile.broker.count(RequestCode.UNREGISTER_CLIENT) == 1
    with pytest.raises(UsageError, match="this client is closed"):
        producer._driver.check_usable()


def threads_alive() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


@pytest.mark.slow
@pytest.mark.parametrize("lie", ["silence", "no end of the rebalance"])
def test_close_ends_within_its_time(hostile: HostileCluster, lie: str) -> None:
    """8 s beyond the drain: for commits, for leaving, and for what does not end by itself."""
    released = threading.Event()
    is_silent = lie == "silence"

    def hang(*_: object) -> None:
        released.wait(60)

    consumer = PushConsumer(
        "GID_c",
        name_server=hostile.address,
        listener=Seen(),
        strategy="AVG" if is_silent else hang,
        start="first",
        drain_timeout_ms=100,
    )
    hostile.broker.add_messages("T", b"1")
    consumer.subscribe("T")
    try:
        consumer.start()
        if is_silent:
            wait_until("consumed", lambda: consumer.counters.succeeded)
            for code_of_request in RequestCode:
                hostile.broker.lies[code_of_request] = lambda *_: None
        else:
            wait_until(
                "asked", lambda: hostile.broker.count(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
            )
        begun_s = time.monotonic()
        consumer.close()
        elapsed_s = time.monotonic() - begun_s
    finally:
        released.set()
        name = "sparrowmq-consumer-GID_c"
        wait_until("the thread's end", lambda: name not in threads_alive())

    # 8.1 s are the bound; the machine may be slow.
    assert elapsed_s < 12


def test_messages_that_several_queues_do_not_give_are_one_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with HostileCluster(queues=3) as hostile, Admin(name_server=hostile.address) as admin:
        for queue_id in range(3):
            hostile.broker.add_messages("T", b"x", queue_id=queue_id)
        hostile.broker.lies[RequestCode.PULL_MESSAGE] = lambda request, honest: HANG_UP
        with pytest.raises(ConnectionLost):
            admin.messages_since("T", 0)

    assert caplog.records == []


@pytest.mark.parametrize(
    "read",
    [
        lambda admin: admin.messages_since("T", 0),
        lambda admin: admin.messages_at(MessageQueue("T", BROKER_NAME, 1), 0),
    ],
    ids=["topic", "queue"],
)
def test_messages_that_a_broker_does_not_give_in_time_are_an_error(
    read: Callable[[Admin], object],
) -> None:
    with (
        HostileCluster(queues=2) as hostile,
        Admin(name_server=hostile.address, timeout_ms=100) as admin,
    ):
        for queue_id in range(2):
            hostile.broker.add_messages("T", b"x", queue_id=queue_id)
        hostile.broker.lies[RequestCode.PULL_MESSAGE] = lambda request, honest: (
            None if (request.ext_fields or {})["queueId"] == "1" else honest
        )
        with pytest.raises(InvokeTimeout):
            read(admin)


def test_queue_that_gives_nothing_keeps_no_message_of_another_back() -> None:
    held: list[RemotingCommand] = []

    def answer(request: RemotingCommand, honest: RemotingCommand | None) -> Any:
        fields = request.ext_fields or {}
        assert honest is not None
        if fields["queueId"] == "1":
            held.append(honest)
            return None
        if fields["queueOffset"] == "0":
            return code(ResponseCode.PULL_RETRY_IMMEDIATELY, nextBeginOffset="1")(request, honest)
        return b"".join(map(encode_frame, [honest, *held]))

    with HostileCluster(queues=2) as hostile, Admin(name_server=hostile.address) as admin:
        hostile.broker.add_messages("T", b"left out", b"a")
        hostile.broker.add_messages("T", b"b", queue_id=1)
        hostile.broker.lies[RequestCode.PULL_MESSAGE] = answer
        messages = admin.messages_since("T", 0)

    assert sorted(message.body for message in messages) == [b"a", b"b"]


def test_member_whose_numbers_are_none_is_shown(play: Callable[..., Any]) -> None:
    properties = {"listenerCallsLongestMs": "9" * 5_000, "PROP_THREADPOOL_CORE_SIZE": "20"}
    body = encode_body(ConsumerRunningInfo(properties=properties))
    run = play(lambda _, request: response_to(request, body=body))

    report = run(snapshot._ask_member(make_directory("ns:1"), "G", "a:1", "c"))

    assert (report.longest_call_ms, report.thread_count) == (0, 20)
