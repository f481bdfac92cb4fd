"""Trace of producers and push consumers, on our broker: what is told, and that nothing waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from play import Play, PlayedTask, make_publisher
from queue_messages import message as pulled
from sending_servers import Servers
from sparrowmq import (
    Admin,
    AsyncProducer,
    ConsumeStatus,
    Message,
    PollConsumer,
    Producer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.observe import observe
from sparrowmq.client.operations.request_reply import request
from sparrowmq.client.operations.send import send
from sparrowmq.client.operations.trace_reports import find_tracer, trace_consumed, trace_delivery
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.tracer import (
    BODY_CHARACTERS_MAX,
    ENTRIES_MAX,
    KEYS_CHARACTERS_MAX,
    SendTrace,
    Tracer,
)
from sparrowmq.errors import InvokeTimeout
from sparrowmq.model.names import TRACE_TOPIC
from sparrowmq.protocol.command import response_to
from sparrowmq.protocol.trace import ConsumedCode, TraceEntry
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until


def make_tracer() -> Tracer:
    return Tracer(publisher=None, group="GID")  # type: ignore[arg-type]


def test_entries_become_one_message_that_is_found_by_their_keys() -> None:
    tracer = make_tracer()
    tracer.add([TraceEntry("a", ("m1", "k")), TraceEntry("b", ("m2", "k"))])

    taken = tracer.take()

    assert taken is not None
    message, count = taken
    assert (
        message.topic,
        message.body,
        message.keys,
        count,
    ) == (TRACE_TOPIC, b"ab", ("m1", "k", "m2"), 2)
    assert tracer.take() is None


def test_long_keys_are_cut_into_messages_that_brokers_take() -> None:
    tracer = make_tracer()
    tracer.add(TraceEntry("x", (f"{number:0100}",)) for number in range(200))
    counts = []
    while (taken := tracer.take()) is not None:
        message, count = taken
        assert sum(len(key) + 1 for key in message.keys) <= KEYS_CHARACTERS_MAX
        counts.append(count)

    assert (sum(counts), len(counts)) == (200, 3)


def test_entries_beyond_the_room_are_dropped_and_counted() -> None:
    tracer = make_tracer()

    tracer.add(TraceEntry("x", (f"{number}",)) for number in range(ENTRIES_MAX + 3))

    assert tracer.dropped == 3
    taken = []
    while (found := tracer.take()) is not None:
        taken.append(found[1])
    assert sum(taken) == ENTRIES_MAX


def test_message_of_trace_has_a_bound() -> None:
    tracer = make_tracer()
    size = BODY_CHARACTERS_MAX // 2 + 1
    tracer.add(TraceEntry("x" * size, ("m",)) for _ in range(3))

    assert [found[1] for found in iter(tracer.take, None) if found] == [1, 1, 1]


def trace_of(publisher: Publisher, driver: Play) -> SendTrace:
    trace = SendTrace(
        tracer=make_tracer(),
        config=publisher.config,
        address_of=publisher.routes.master_address,
        monotonic_ms=lambda: driver.now_ms,
        timestamp_ms=lambda: driver.now_ms,
        untraced=publisher.untraced,
    )
    publisher.observers = (trace,)
    return trace


def test_request_is_traced_as_a_send_also_if_no_reply_comes() -> None:
    publisher, driver = make_publisher(), Play(Servers("a"))
    tracer = trace_of(publisher, driver).tracer
    # It sends another message's entry: this one waits.
    tracer.sending = PlayedTask("trace")
    tracer.sending.done = False
    ask = partial(request, publisher, {}, queue=None, timeout_ms=100)

    with pytest.raises(InvokeTimeout, match="no reply to message") as caught:
        driver(observe(publisher, Message("T", b"x", tags="A"), ask))

    taken = tracer.take()
    assert taken is not None
    message, count = taken
    assert count == 1
    (msg_id,) = message.keys
    assert msg_id in str(caught.value)
    assert message.body.startswith(b"Pub\x01")


def test_send_to_a_broker_whose_trace_is_off_is_not_traced() -> None:
    publisher, servers = make_publisher(), Servers("a")
    driver = Play(servers)
    trace = trace_of(publisher, driver)
    tracer = trace.tracer
    traced = []
    for switch in ("true", "false", "false", "true"):
        servers.more = {"TRACE_ON": switch}
        messages, ended = trace.begin([Message("T", b"x")], is_half=False)
        ended(driver(send(publisher, messages[0])), None)
        traced.append(tracer.take() is not None)

    assert traced == [True, False, False, True]


def test_delivery_of_a_broker_whose_trace_is_off_is_not_traced() -> None:
    driver, tracer = Play(lambda address, request: response_to(request)), make_tracer()
    tracer.publisher = make_publisher()
    tracer.sending = PlayedTask("trace")
    tracer.sending.done = False
    off = replace(pulled(1), properties={"TRACE_ON": "false", "UNIQ_KEY": "OFF"})
    on = replace(pulled(2), properties={"TRACE_ON": "true", "UNIQ_KEY": "ON"})

    assert driver(trace_delivery(tracer, [off])) is None
    assert tracer.is_empty
    traced = driver(trace_delivery(tracer, [off, on]))
    driver(trace_consumed(traced, ConsumedCode.SUCCESS))

    taken = tracer.take()
    assert taken is not None
    assert (taken[0].keys, taken[1]) == (("ON",), 2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """One for each test: a test counts all entries of the trace topic and all of `traced`."""
    with EmbeddedCluster(tmp_path, options=("--no-auto-create-topics",)) as cluster:
        cluster.create_topic("traced", queues=2)
        yield cluster


def read_trace(cluster: EmbeddedCluster, group: str, count: int) -> list[list[str]]:
    """Read entries, as lists of their fields, until there are so many."""
    entries: list[list[str]] = []

    def poll() -> bool:
        for message in consumer.poll(timeout_ms=100):
            lines = message.body.decode().split("\x02")[:-1]
            found = [line.split("\x01") for line in lines]
            ids = {fields[5] if fields[0] != "SubAfter" else fields[2] for fields in found}
            assert ids <= set(message.keys)
            entries.extend(found)
        return len(entries) >= count

    with PollConsumer(
        group, TRACE_TOPIC, name_server=cluster.name_server, start="first"
    ) as consumer:
        wait_until(f"{count} entries", poll)
    return entries


@pytest.mark.slow
def test_every_message_is_traced_from_its_sending_to_its_consumption(
    cluster: EmbeddedCluster,
) -> None:
    delivered: list[str] = []
    lock = threading.Lock()

    def take(messages: list[Any], context: Any) -> ConsumeStatus:
        context.delay_level = 1
        with lock:
            delivered.extend(message.msg_id for message in messages)
        retried = messages[0].body == b"again" and not messages[0].reconsume_times
        return ConsumeStatus.RECONSUME_LATER if retried else ConsumeStatus.CONSUME_SUCCESS

    settings: dict[str, Any] = {"name_server": cluster.name_server, "trace": True}
    with Producer("GID_p", **settings) as producer:
        sent = [
            producer.send(Message("traced", b"again", tags="t", keys=("k0",))),
            *(producer.send(Message("traced", b"%d" % number)) for number in range(9)),
        ]
        batch = producer.send_batch([Message("traced", b"x"), Message("traced", b"yy")])
    ids = [result.msg_id for result in sent] + batch.msg_id.split(",")
    with PushConsumer("GID_c", "traced", listener=take, start="first", **settings) as consumer:
        wait_until("all delivered, one twice", lambda: len(delivered) >= 13)
        wait_until("all done", lambda: consumer.counters.succeeded >= 12)
    entries = read_trace(cluster, "GID_reader", 12 + 2 * 13)
    with Admin(name_server=cluster.name_server) as admin:
        way = admin.message_trace(sent[0].msg_id)
        assert admin.message_trace("0" * 32) == ()

    assert [(step.what, step.outcome, step.reconsume_times) for step in way] == [
        ("sent", "SUCCESS", 0),
        ("consumed", "FAILED", 0),
        ("consumed", "SUCCESS", 1),
    ]
    assert [step.group for step in way] == ["GID_p", "GID_c", "GID_c"]
    assert all(step.client.startswith("127.0.0.1:") and step.cost_ms is not None for step in way)

    published = [fields for fields in entries if fields[0] == "Pub"]
    before = [fields for fields in entries if fields[0] == "SubBefore"]
    after = [fields for fields in entries if fields[0] == "SubAfter"]
    assert sorted(ids) == sorted(fields[5] for fields in published)
    first = next(fields for fields in published if fields[5] == sent[0].msg_id)
    assert first[2:5] == ["DefaultRegion", "GID_p", "traced"]
    assert ["t", "k0", cluster.broker, "5"] == first[6:10]
    assert ["0", sent[0].offset_msg_id, "true"] == first[11:]
    sizes = {fields[5]: fields[9] for fields in published}
    assert [sizes[msg_id] for msg_id in batch.msg_id.split(",")] == ["1", "2"]
    assert sorted(delivered) == sorted(fields[5] for fields in before)
    assert sorted(delivered) == sorted(fields[2] for fields in after)
    again = sorted((f[6], f[4]) for f in before if f[5] == sent[0].msg_id)
    outcomes = {fields[1]: (fields[4], fields[6]) for fields in after}
    assert [times for times, _ in again] == ["0", "1"]
    assert [outcomes[request] for _, request in again] == [("false", "4"), ("true", "0")]
    assert {"GID_c"} == {fields[3] for fields in before} == {fields[8] for fields in after}


def unknown(_: object) -> TransactionState:
    return TransactionState.UNKNOWN


def is_traced(admin: Admin, msg_id: str) -> bool:
    return admin.message_trace(msg_id) != ()


@pytest.mark.slow
def test_half_messages_and_queued_messages_are_traced(cluster: EmbeddedCluster) -> None:
    settings: dict[str, Any] = {"name_server": cluster.name_server, "trace": True}
    with Producer("GID_q", **settings) as producer:
        futures = [producer.send_nowait(Message("traced", b"%d" % number)) for number in range(3)]
        groups = {future.result(60).msg_id: "GID_q" for future in futures}
    with TransactionProducer("GID_h", check=unknown, **settings) as transactions:
        half = transactions.send_half(Message("traced", b"x"))
        transactions.rollback(half)
    groups[half.msg_id] = "GID_h"

    with Admin(name_server=cluster.name_server) as admin:
        for msg_id, group in groups.items():
            wait_until("its trace", partial(is_traced, admin, msg_id))
            (sent,) = admin.message_trace(msg_id)
            assert (sent.what, sent.group, sent.outcome) == ("sent", group, "SUCCESS")


@pytest.mark.slow
async def test_asyncio_face_traces_too(cluster: EmbeddedCluster) -> None:
    async with AsyncProducer("GID_a", name_server=cluster.name_server, trace=True) as producer:
        sent = await producer.send(Message("traced", b"a"))
        tracer = find_tracer(producer._publisher)
    assert tracer is not None

    assert (tracer.dropped, tracer.take()) == (0, None)
    assert sent.msg_id


@pytest.mark.slow
def test_trace_that_cannot_be_sent_fails_nothing(cluster: EmbeddedCluster) -> None:
    with Producer("GID_p", name_server=cluster.name_server, trace=True) as producer:
        tracer = find_tracer(producer._publisher)
        assert tracer is not None
        trace_publisher: Publisher = tracer.publisher
        # Nobody listens there.
        trace_publisher.name_servers = NameServers(("127.0.0.1:9",))
        results = [producer.send(Message("traced", b"%d" % number)) for number in range(50)]

    assert len({result.msg_id for result in results}) == 50
    assert tracer.dropped > 0
