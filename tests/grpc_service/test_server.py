"""The gRPC service of a running broker, called through a channel."""

from __future__ import annotations

import asyncio
import gzip
import json
import queue
import shutil
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import grpc
import pytest
from msgspec.structs import replace

from commands import Commands
from grpc_caller import GrpcCaller
from queue_messages import message as message_at
from sparrowmq import Admin, Message, PollConsumer, Producer
from sparrowmq.calling.tls import client_context
from sparrowmq.grpc_service import messages, server
from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.checks import accepted_types
from sparrowmq.grpc_service.client_table import BrokerPort, Client, Clients
from sparrowmq.grpc_service.message_content import to_message, to_properties
from sparrowmq.grpc_service.messages import (
    AckMessageEntry,
    ClientType,
    Code,
    Duration,
    Encoding,
    ExponentialBackoff,
    FilterExpression,
    FilterType,
    MessageType,
    Permission,
    Publishing,
    Resource,
    RetryPolicy,
    Settings,
    Subscription,
    SubscriptionEntry,
    SystemProperties,
    TelemetryCommand,
    Timestamp,
    TransactionResolution,
)
from sparrowmq.grpc_service.receive_calls import _polling_ms
from sparrowmq.grpc_service.renewals import Renewals
from sparrowmq.grpc_service.route_calls import _permissions
from sparrowmq.grpc_service.send_calls import _queue_of
from sparrowmq.grpc_service.sessions import Sessions, merge_settings
from sparrowmq.grpc_service.statuses import Rejected, check_answer
from sparrowmq.model.message import INFLATED_BYTES_MAX
from sparrowmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig, decode_body
from sparrowmq.protocol.codes import LanguageCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.requests import DENIED
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

if TYPE_CHECKING:
    from certificates import Certificate, Certificates

RULES = """\
accounts:
- accessKey: owner-of-all
  secretKey: owner-secret-1
  admin: true
- accessKey: reader-1
  secretKey: reader-secret-1
  topicPerms: [T=SUB]
  groupPerms: [GID_any=SUB]
- accessKey: elsewhere
  secretKey: elsewhere-secret-1
  whiteRemoteAddress: 10.0.0.1
  admin: true
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    options = ("--transaction-timeout-ms", "1000", "--transaction-check-interval-ms", "500")
    with EmbeddedCluster(serves_grpc=True, options=options) as started:
        with Admin(name_server=started.name_server) as admin:
            admin.create_topic("T", 4)
            admin.create_topic("T_fifo", 4, message_type="FIFO")
            admin.create_topic("T_delay", 2, message_type="DELAY")
            admin.create_topic("T_far", 2, message_type="DELAY")
            admin.create_topic("T_transaction", 2, message_type="TRANSACTION")
        yield started


@pytest.fixture
def caller(cluster: EmbeddedCluster) -> Iterator[GrpcCaller]:
    with GrpcCaller(cluster.grpc) as opened:
        yield opened


@pytest.fixture
def topic(cluster: EmbeddedCluster, request: pytest.FixtureRequest) -> str:
    name = f"T_{request.node.name[5:60]}"
    cluster.create_topic(name, 2)
    return name


def settled(caller: GrpcCaller, settings: Settings) -> tuple[Any, queue.Queue[Any]]:
    """Open a telemetry stream with settings; return the stream and its requests' queue."""
    commands: queue.Queue[Any] = queue.Queue()
    commands.put(TelemetryCommand(settings=settings))
    stream = caller.telemetry(iter(commands.get, None))
    return stream, commands


def consumer_settings(group: str, topic: str, tags: str = "*") -> Settings:
    entry = SubscriptionEntry(
        topic=Resource(name=topic),
        expression=FilterExpression(type=FilterType.TAG, expression=tags),
    )
    return Settings(
        client_type=ClientType.SIMPLE_CONSUMER,
        subscription=Subscription(group=Resource(name=group), subscriptions=[entry]),
    )


def test_telemetry_ends_once_its_client_has_said_all_and_has_every_answer(
    cluster: EmbeddedCluster, caller: GrpcCaller, topic: str
) -> None:
    command = TelemetryCommand(settings=consumer_settings("G_said", topic))

    answers = [[each.status.code for each in caller.telemetry(iter([command]))] for _ in range(10)]

    # The settings are answered while the service reads the end of the client's part.
    assert answers == [[Code.OK]] * 10
    assert "ExecuteBatchError" not in cluster.log_path.read_text()


def test_route_leads_to_where_the_client_asked(caller: GrpcCaller) -> None:
    route = caller.call("QueryRoute", topic=Resource(name="T"), endpoints=caller.endpoints)

    assert route.status.code == Code.OK
    assert [each.id for each in route.message_queues] == [0, 1, 2, 3]
    assert {each.broker.endpoints.addresses[0].port for each in route.message_queues} == {
        caller.endpoints.addresses[0].port
    }
    assert list(route.message_queues[0].accept_message_types) == [MessageType.NORMAL]


@pytest.mark.parametrize(
    ("reads", "writes", "perm", "expected"),
    [
        (3, 2, 6, [Permission.READ, Permission.READ_WRITE, Permission.READ_WRITE]),
        (1, 3, 6, [Permission.WRITE, Permission.WRITE, Permission.READ_WRITE]),
        (2, 2, 4, [Permission.READ, Permission.READ]),
        (2, 1, 0, [Permission.NONE, Permission.NONE]),
    ],
)
def test_queues_of_a_route_have_their_permissions(
    reads: int, writes: int, perm: int, expected: list[Permission]
) -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=reads, write_queue_nums=writes, perm=perm)
    assert list(_permissions(topic)) == expected


@pytest.mark.parametrize(
    ("code", "remark", "expected"),
    [
        (ResponseCode.FLUSH_DISK_TIMEOUT, "", Code.MASTER_PERSISTENCE_TIMEOUT),
        (ResponseCode.SYSTEM_BUSY, "", Code.TOO_MANY_REQUESTS),
        (ResponseCode.NO_MESSAGE, "", Code.INVALID_RECEIPT_HANDLE),
        (ResponseCode.NO_PERMISSION, "", Code.FORBIDDEN),
        (ResponseCode.SYSTEM_ERROR, f"{DENIED}why", Code.UNAUTHORIZED),
        (ResponseCode.TRANSACTION_FAILED, "why", Code.INTERNAL_SERVER_ERROR),
    ],
)
def test_codes_of_the_broker_have_codes_of_the_service(
    code: int, remark: str, expected: Code
) -> None:
    with pytest.raises(Rejected) as raised:
        check_answer(RemotingCommand(code=code, remark=remark))
    assert (raised.value.code, str(raised.value)) == (
        expected,
        remark.removeprefix(DENIED) or f"the broker answered with code {code}",
    )


def test_unknown_names_and_calls_without_a_client_id_have_their_codes(
    cluster: EmbeddedCluster, caller: GrpcCaller
) -> None:
    unknown = caller.call("QueryRoute", topic=Resource(name="none"), endpoints=caller.endpoints)
    assert unknown.status.code == Code.TOPIC_NOT_FOUND
    for name in ("a b", "RMQ_SYS_TRANS_HALF_TOPIC"):
        bad = caller.call("QueryRoute", topic=Resource(name=name), endpoints=caller.endpoints)
        assert bad.status.code == Code.ILLEGAL_TOPIC
    with GrpcCaller(cluster.grpc, " ") as nobody:
        answer = nobody.call("QueryRoute", topic=Resource(name="T"), endpoints=caller.endpoints)
    assert answer.status.code == Code.CLIENT_ID_REQUIRED


def test_largest_body_that_is_inflated_is_received(caller: GrpcCaller, topic: str) -> None:
    body = bytes(INFLATED_BYTES_MAX)
    caller.send(topic, gzip.compress(body), body_encoding=Encoding.GZIP)

    _, messages = caller.receive(topic, "GID_large")

    assert [message.body == body for message in messages] == [True]


def test_message_reads_alike_by_both_protocols(
    cluster: EmbeddedCluster, caller: GrpcCaller, topic: str
) -> None:
    caller.send(
        topic,
        gzip.compress(b"by grpc"),
        tag="a",
        keys=["k1", "k2"],
        properties={"colour": "red"},
        born_timestamp=Timestamp(seconds=1_700_000_000),
        body_encoding=Encoding.GZIP,
    )
    with Producer("GID_remoting", name_server=cluster.name_server) as producer:
        producer.send(Message(topic, b"by remoting" * 1_000, tags="b", keys=("k3",)))

    _, messages = caller.receive(topic, "GID_both_receive")
    found = {message.system_properties.tag: message for message in messages}
    if len(found) < 2:
        found |= {
            message.system_properties.tag: message
            for message in caller.receive(topic, "GID_both_receive")[1]
        }
    assert found["a"].body == b"by grpc"
    assert dict(found["a"].user_properties) == {"colour": "red"}
    assert found["b"].body == b"by remoting" * 1_000
    assert found["b"].system_properties.body_encoding == Encoding.IDENTITY
    assert list(found["b"].system_properties.keys) == ["k3"]
    with PollConsumer("GID_both_pull", topic, name_server=cluster.name_server) as consumer:
        pulled: list[Any] = []

        def has_both() -> bool:
            pulled.extend(consumer.poll(timeout_ms=100))
            return len(pulled) == 2

        wait_until("both messages", has_both)
    ours = next(each for each in pulled if each.tags == "a")
    assert (ours.body, ours.keys, ours.properties["colour"]) == (b"by grpc", ("k1", "k2"), "red")
    assert ours.born_timestamp_ms == 1_700_000_000_000


def test_acknowledged_message_never_comes_again_and_others_do(
    caller: GrpcCaller, topic: str
) -> None:
    caller.send(topic, b"done")
    caller.send(topic, b"again")
    received: list[Any] = []
    while len(received) < 2:
        received += caller.receive(topic, "GID_ack")[1]
    done, again = sorted(received, key=lambda each: bytes(each.body), reverse=True)

    assert caller.ack(topic, "GID_ack", done).code == Code.OK
    changed = caller.change(topic, "GID_ack", again, Duration(nanos=100_000_000))
    assert changed.status.code == Code.OK
    assert caller.ack(topic, "GID_ack", again).code == Code.INVALID_RECEIPT_HANDLE
    _, (second,) = caller.receive(topic, "GID_ack")
    assert second.body == b"again"
    assert second.system_properties.delivery_attempt == 2
    assert caller.ack(topic, "GID_ack", second).code == Code.OK
    status, nothing = caller.receive(topic, "GID_ack")
    assert (status.code, nothing) == (Code.MESSAGE_NOT_FOUND, [])


def test_foreign_and_broken_handles_acknowledge_nothing(caller: GrpcCaller, topic: str) -> None:
    caller.send(topic, b"mine")
    _, (message,) = caller.receive(topic, "GID_mine")
    system = message.system_properties

    assert caller.ack(topic, "GID_other", message).code == Code.INVALID_RECEIPT_HANDLE
    for handle in ("", "x", system.receipt_handle.replace(" ", "  "), "1 2 3 4 5 6 7 8 9"):
        system.receipt_handle = handle
        assert caller.ack(topic, "GID_mine", message).code == Code.INVALID_RECEIPT_HANDLE


def test_entries_of_one_acknowledgement_have_results_of_their_own(
    caller: GrpcCaller, topic: str
) -> None:
    for body in (b"a", b"b", b"c"):
        caller.send(topic, body)
    found: list[Any] = []
    while len(found) < 3:
        found += caller.receive(topic, "GID_entries")[1]
    (late, *others) = [message.system_properties for message in found]
    handles = [late.receipt_handle, *(each.receipt_handle for each in others), "x"]
    caller.change(topic, "GID_entries", found[0], Duration(seconds=60))

    def acknowledge() -> list[int]:
        entries = [AckMessageEntry(message_id="id", receipt_handle=each) for each in handles]
        answer = caller.call(
            "AckMessage",
            group=Resource(name="GID_entries"),
            topic=Resource(name=topic),
            entries=entries,
        )
        assert answer.status.code == Code.MULTIPLE_RESULTS
        assert [entry.receipt_handle for entry in answer.entries] == handles
        return [entry.status.code for entry in answer.entries]

    gone = Code.INVALID_RECEIPT_HANDLE
    assert acknowledge() == [gone, Code.OK, Code.OK, gone]
    assert acknowledge() == [gone, Code.OK, Code.OK, gone], "again"


def test_bytes_that_are_no_request_are_refused_and_fill_no_log(
    cluster: EmbeddedCluster, caller: GrpcCaller
) -> None:
    broken = b"\xff" * 100
    answer = caller.call_by_bytes("AckMessage", broken)
    assert answer.status.code == Code.BAD_REQUEST
    (answer,) = caller.call_by_bytes("ReceiveMessage", broken)
    assert answer.status.code == Code.BAD_REQUEST
    assert "Traceback" not in cluster.log_path.read_text()


def test_a_request_that_does_not_come_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: queue.Queue[bytes] = queue.Queue()

    async def serve() -> tuple[Any, Any]:
        served = server.GrpcServer(cast("BrokerPort", None), access=None, timestamp_ms=lambda: 0)
        port = await served.start("127.0.0.1", 0)
        with GrpcCaller(f"127.0.0.1:{port}") as caller:
            empty = await asyncio.to_thread(caller.begin, "AckMessage", iter(()))
            monkeypatch.setattr(server, "REQUEST_S_MAX", 0.05)
            never = iter(nothing.get, b"")
            late = await asyncio.to_thread(caller.begin, "AckMessage", never)
        await served.stop()
        return late.status, empty.status

    late, empty = asyncio.run(serve())
    nothing.put(b"")
    assert (late.code, "whole within" in late.message) == (Code.BAD_REQUEST, True)
    assert (empty.code, "no request" in empty.message) == (Code.BAD_REQUEST, True)


def test_dead_letters_are_those_of_the_group_and_no_repeated_call_makes_another(
    cluster: EmbeddedCluster, caller: GrpcCaller, topic: str
) -> None:
    caller.send(topic, b"poison")
    _, (message,) = caller.receive(topic, "GID_poison")
    for _ in range(2):
        answer = caller.call(
            "ForwardMessageToDeadLetterQueue",
            group=Resource(name="GID_poison"),
            topic=Resource(name=topic),
            receipt_handle=message.system_properties.receipt_handle,
            message_id=message.system_properties.message_id,
        )
        assert answer.status.code == Code.OK

    with Admin(name_server=cluster.name_server) as admin:
        assert [each.body for each in admin.dead_letters("GID_poison")] == [b"poison"]


def test_producers_own_time_for_a_transaction_is_stored_in_seconds() -> None:
    system = SystemProperties(
        message_id="ID", orphaned_transaction_recovery_duration=Duration(seconds=90)
    )
    message = messages.Message(topic=Resource(name="T"), system_properties=system)

    properties = to_properties(message, MessageType.TRANSACTION, born_host="h:1")

    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "90"


def test_delivery_time_of_a_message_is_stored_in_milliseconds() -> None:
    at = Timestamp(seconds=1_800_000_000, nanos=5_000_000)
    system = SystemProperties(message_id="ID", delivery_timestamp=at)
    message = messages.Message(topic=Resource(name="T"), system_properties=system)

    properties = to_properties(message, MessageType.DELAY, born_host="h:1")

    assert properties["TIMER_DELIVER_MS"] == "1800000000005"


@pytest.mark.parametrize(
    "properties",
    [
        {"_SYS_MSG_PRIORITY_": str(2**31)},
        {"_SYS_MSG_PRIORITY_": "9" * 5_000},
        {"TIMER_OUT_MS": "253402300800000"},
    ],
)
def test_no_number_of_a_stored_message_breaks_its_delivery(properties: dict[str, str]) -> None:
    stored = replace(message_at(7), properties=properties, reconsume_times=2**31 - 1)

    system = to_message(stored, topic="T").system_properties

    assert [system.HasField(name) for name in ("priority", "delivery_timestamp")] == [False] * 2
    assert system.delivery_attempt == 2**31 - 1


def test_a_stored_type_that_is_not_known_breaks_no_route() -> None:
    for name in ("UNSPECIFIED", "LATER"):
        assert accepted_types(name) == [MessageType.MESSAGE_TYPE_UNSPECIFIED]


def test_a_message_with_a_control_character_is_refused_with_all_of_its_request(
    caller: GrpcCaller, topic: str
) -> None:
    def made(**system: Any) -> Any:
        fields: dict[str, Any] = {"message_id": "id"} | system
        properties = SystemProperties(**fields)
        resource = Resource(name=topic)
        return messages.Message(topic=resource, body=b"x", system_properties=properties)

    odd = {"message_id": "a\x02b", "trace_context": "a\x01b", "born_host": "\x02", "tag": "\n"}
    odd["lite_topic"] = "\x01"
    for name, value in odd.items():
        answer = caller.call("SendMessage", messages=[made(), made(**{name: value})])
        assert Code(answer.status.code).name.startswith("ILLEGAL_MESSAGE_"), name
    assert caller.receive(topic, "GID_control")[0].code == Code.MESSAGE_NOT_FOUND


def test_a_text_that_no_message_has_room_for_is_a_bad_request(
    caller: GrpcCaller, topic: str
) -> None:
    for name in ("message_id", "trace_context", "born_host"):
        for length in (40_000, 140_000):
            answer = caller.send(topic, b"x", **{name: "x" * length})
            assert answer.status.code == Code.BAD_REQUEST, (name, length)


def test_a_message_of_no_time_that_there_is_is_stored_without_it(
    caller: GrpcCaller, topic: str
) -> None:
    begin_s = int(time.time())
    for seconds in (2**62, -(2**62), 253_402_300_800):
        sent = caller.send(topic, b"x", born_timestamp=Timestamp(seconds=seconds))
        assert sent.status.code == Code.OK

    _, received = caller.receive(topic, "GID_born")
    times = [each.system_properties.born_timestamp.seconds for each in received]
    assert len(times) > 0
    assert all(each >= begin_s for each in times)


def test_an_empty_text_of_a_message_is_none(caller: GrpcCaller, topic: str) -> None:
    empty = {"tag": "", "keys": ["", "k", ""], "message_group": "", "lite_topic": ""}
    assert caller.send(topic, b"empty", **empty).status.code == Code.OK
    assert caller.send(topic, b"blank", tag=" ").status.code == Code.ILLEGAL_MESSAGE_TAG
    assert caller.send(topic, b"blank", keys=[" "]).status.code == Code.ILLEGAL_MESSAGE_KEY
    group = {"message_group": "\N{MAHJONG TILE EAST WIND}" * 16}
    assert caller.send("T_fifo", b"long", **group).status.code == Code.ILLEGAL_MESSAGE_GROUP

    _, (message,) = caller.receive(topic, "GID_empty")
    system = message.system_properties
    assert (message.body, list(system.keys), system.message_type) == (
        b"empty",
        ["k"],
        MessageType.NORMAL,
    )
    assert [system.HasField(name) for name in ("tag", "message_group", "lite_topic")] == [False] * 3


def test_a_message_group_has_the_queue_that_apaches_proxy_chooses() -> None:
    # The values of Guava's own test of Hashing.consistentHash; chr(n) has n for its hash code.
    golden = [0, 55, 62, 8, 45, 59, 86, 97, 82, 59, 73, 37, 17, 56, 86, 21, 90, 37, 38, 83]

    assert [_queue_of(chr(n), 100) for n in range(len(golden))] == golden
    many = [_queue_of(chr(n), 100_001) for n in (2, 2_201, 2_202)]
    assert many == [80_343, 22_152, 15_018]
    assert [_queue_of("", 100), _queue_of("a", 0)] == [-1, -1]


def test_a_message_group_keeps_its_queue_and_types_are_checked(caller: GrpcCaller) -> None:
    sent = [
        caller.send("T_fifo", b"%d" % number, message_group="ride-7", message_type=MessageType.FIFO)
        for number in range(5)
    ]
    assert {each.status.code for each in sent} == {Code.OK}
    assert [each.offset for each in sent] == list(range(5))
    wrong = caller.send("T_fifo", b"x")
    assert wrong.status.code == Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


def test_delayed_message_comes_in_time_unless_it_is_recalled(caller: GrpcCaller) -> None:
    due_s = int(time.time()) + 2
    for body in (b"kept", b"recalled"):
        entry = caller.send(
            "T_delay",
            body,
            delivery_timestamp=Timestamp(seconds=due_s),
            message_type=MessageType.DELAY,
        )
        assert entry.status.code == Code.OK
    recalled = caller.call(
        "RecallMessage", topic=Resource(name="T_delay"), recall_handle=entry.recall_handle
    )
    assert recalled.status.code == Code.OK

    _, messages = caller.receive("T_delay", "GID_delay", wait_s=10)
    assert [each.body for each in messages] == [b"kept"]
    assert time.time() >= due_s


@pytest.mark.parametrize(
    ("seconds", "code"),
    [
        (-5, Code.OK),
        (259_000, Code.OK),
        (259_300, Code.ILLEGAL_DELIVERY_TIME),
        (2**62, Code.ILLEGAL_DELIVERY_TIME),
    ],
)
def test_a_delivery_time_too_far_away_has_a_code_of_its_own(
    caller: GrpcCaller, seconds: int, code: Code
) -> None:
    since_s = int(time.time()) if 0 < seconds < 2**62 else 0
    sent = caller.send("T_far", b"x", delivery_timestamp=Timestamp(seconds=since_s + seconds))

    assert sent.status.code == code


def test_transactions_are_ended_and_undecided_ones_are_asked_for(caller: GrpcCaller) -> None:
    publishing = Publishing(topics=[Resource(name="T_transaction")])
    stream, commands = settled(
        caller, Settings(client_type=ClientType.PRODUCER, publishing=publishing)
    )
    assert next(stream).settings.publishing.max_body_size > 0
    entries = {
        body: caller.send("T_transaction", body, message_type=MessageType.TRANSACTION)
        for body in (b"commit", b"rollback", b"asked")
    }

    def end(body: bytes, resolution: int, transaction_id: str) -> int:
        answer = caller.call(
            "EndTransaction",
            topic=Resource(name="T_transaction"),
            message_id=entries[body].message_id,
            transaction_id=transaction_id,
            resolution=resolution,
        )
        code: int = answer.status.code
        return code

    for body, resolution in (
        (b"commit", TransactionResolution.COMMIT),
        (b"rollback", TransactionResolution.ROLLBACK),
    ):
        assert end(body, resolution, entries[body].transaction_id) == Code.OK
    # On a slow machine the others are asked for too, before their ends come.
    questions = (each.recover_orphaned_transaction_command for each in stream)
    question = next(each for each in questions if each.message.body == b"asked")
    assert end(b"asked", 7, question.transaction_id) == Code.OK, "no resolution that is known"
    assert end(b"asked", TransactionResolution.COMMIT, question.transaction_id) == Code.OK
    assert end(b"asked", TransactionResolution.COMMIT, "no id") == Code.INVALID_TRANSACTION_ID
    received: set[bytes] = set()
    while len(received) < 2:
        for message in caller.receive("T_transaction", "GID_transaction")[1]:
            received.add(bytes(message.body))
            caller.ack("T_transaction", "GID_transaction", message)
    assert received == {b"commit", b"asked"}
    commands.put(None)


def test_settings_of_a_consumer_are_completed_and_its_heartbeat_registers_it(
    cluster: EmbeddedCluster, caller: GrpcCaller, topic: str
) -> None:
    stream, commands = settled(caller, consumer_settings("GID_heartbeat", topic))
    merged = next(stream).settings
    assert merged.subscription.receive_batch_size == 32
    assert merged.subscription.long_polling_timeout.seconds == 20
    assert merged.backoff_policy.customized_backoff.next[0].seconds == 1
    assert merged.backoff_policy.max_attempts == 17

    assert caller.call("Heartbeat").status.code == Code.OK
    with Admin(name_server=cluster.name_server) as admin:
        assert admin.consumer_ids("GID_heartbeat") == ["tester@1"]
        ended = caller.call("NotifyClientTermination", group=Resource(name="GID_heartbeat"))
        assert ended.status.code == Code.OK
        wait_until(
            "the end", lambda: not admin.consumer_connections("GID_heartbeat").connection_set
        )
    commands.put(None)


def policy_of(group: dict[str, Any]) -> RetryPolicy:
    """Return the policy that clients of a group get, with some settings as a tool gives them."""
    found = SubscriptionGroupConfig(group_name="GID_waits", retry_max_times=3)
    if group:
        body = json.dumps({"groupName": "GID_waits", "retryMaxTimes": 3, **group})
        found = decode_body(SubscriptionGroupConfig, body.encode())
    given = consumer_settings("GID_waits", "T")
    return merge_settings(given, found, body_bytes_max=1).backoff_policy


def test_settings_of_a_consumer_have_the_waits_of_its_groups_retry_policy() -> None:
    growing = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1_500, "max": 60_000}}
    listed = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [250, 2_000]}}
    odd = {"customizedRetryPolicy": {"next": [-1, 2**63 - 1]}}

    policy = policy_of({"groupRetryPolicy": growing})
    assert policy.max_attempts == 4
    assert policy.exponential_backoff == ExponentialBackoff(
        initial=Duration(seconds=1, nanos=500_000_000), max=Duration(seconds=60), multiplier=2.0
    )
    backoff = policy_of({"groupRetryPolicy": {"type": "EXPONENTIAL"}}).exponential_backoff
    assert (backoff.initial.seconds, backoff.max.seconds, backoff.multiplier) == (5, 7_200, 2.0)
    waits = policy_of({"groupRetryPolicy": listed}).customized_backoff.next
    assert list(waits) == [Duration(nanos=250_000_000), Duration(seconds=2)]
    waits = policy_of({"groupRetryPolicy": odd}).customized_backoff.next
    assert [(wait.seconds, wait.nanos) for wait in waits] == [(0, 0), (315_576_000_000, 0)]
    no_waits: dict[str, Any] = {"customizedRetryPolicy": {"next": []}}
    assert policy_of({"groupRetryPolicy": no_waits}) == policy_of({})
    assert policy_of({}).customized_backoff.next[17].seconds == 7_200


@pytest.mark.parametrize("settings", [Settings(), consumer_settings("GID_odd", "T", tags="||")])
def test_settings_that_say_nothing_sound_end_the_stream(
    caller: GrpcCaller, settings: Settings
) -> None:
    stream, commands = settled(caller, settings)
    with pytest.raises(grpc.RpcError) as raised:
        next(stream)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caller.call("Heartbeat").status.code == Code.OK
    commands.put(None)


def test_a_node_client_that_waits_late_for_its_settings_gets_them_again(
    cluster: EmbeddedCluster,
) -> None:
    with GrpcCaller(cluster.grpc, "node@1", language="HTTP") as node:
        stream, commands = settled(node, consumer_settings("GID_node", "T"))
        assert next(stream) == next(stream)
        commands.put(None)


def test_a_receive_that_is_given_up_loses_no_message(caller: GrpcCaller, topic: str) -> None:
    waiting = [
        caller.begin_receive(
            topic,
            "GID_given_up",
            count=1,
            timeout_s=25,
            invisible_duration=Duration(seconds=600),
            long_polling_timeout=Duration(seconds=20),
        )
        for _ in range(12)
    ]
    time.sleep(0.5)
    for each in waiting:
        each.cancel()
    time.sleep(0.2)
    caller.send(topic, b"late")

    # Nor does one of them hold the message up.
    _, (message,) = caller.receive(topic, "GID_given_up", wait_s=5)
    assert (message.body, message.system_properties.delivery_attempt) == (b"late", 1)


def test_the_doctor_sees_a_group_by_message_and_its_member(
    cluster: EmbeddedCluster, caller: GrpcCaller, topic: str
) -> None:
    group = "GID_seen"
    stream, commands = settled(caller, consumer_settings(group, topic))
    assert next(stream).settings.subscription.group.name == group
    caller.call("Heartbeat", group=Resource(name=group), client_type=ClientType.SIMPLE_CONSUMER)
    caller.send(topic, b"seen")
    status, (message,) = caller.receive(topic, group)
    assert status.code == Code.OK

    smq = Commands(cluster.name_server)
    found = smq.json("rebalance", "doctor", group, "--interval", "0")
    shown = smq.json("rebalance", "show", group, "--interval", "0")

    (finding,) = found["findings"]
    assert finding["rule"] == "R32"
    assert finding["evidence"][0].startswith("1 message in flight")
    assert len(shown["members"]) == 1
    assert {queue["state"] for queue in shown["queues"]} == {"shared"}
    assert caller.ack(topic, group, message).code == Code.OK
    commands.put(None)


@pytest.mark.parametrize(
    ("asked_s", "left_s", "expected_ms"),
    [
        *[(None, None, 20_000), (1, 30, 5_000), (60, 30, 20_000), (20, 7, 7_000), (20, 5, 5_000)],
        # Go's SimpleConsumer names no wait.
        *[(None, 30, 20_000), (None, 8, 6_500), (None, 6, 5_000)],
    ],
)
def test_a_receive_waits_within_its_bounds_and_its_deadline(
    asked_s: int | None, left_s: float | None, expected_ms: int
) -> None:
    duration = None if asked_s is None else Duration(seconds=asked_s)
    request = messages.ReceiveMessageRequest(long_polling_timeout=duration)

    assert _polling_ms(request, left_s, 3_000, version="") == expected_ms
    with pytest.raises(Rejected, match="4999 ms"):
        _polling_ms(request, 4.999, 3_000, version="")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        *[("", Code.BAD_REQUEST), ("5.0.2", Code.BAD_REQUEST)],
        *[("5.0.3", Code.ILLEGAL_POLLING_TIME), ("5.1.0-SNAPSHOT", Code.ILLEGAL_POLLING_TIME)],
    ],
)
def test_a_receive_with_a_short_deadline_is_refused_by_a_code_that_its_client_knows(
    cluster: EmbeddedCluster, topic: str, version: str, expected: Code
) -> None:
    with GrpcCaller(cluster.grpc, "hasty@1", version=version) as caller:
        answers = caller.begin_receive(topic, "GID_hasty", count=1, timeout_s=4)

        assert [answer.status.code for answer in answers] == [expected]


@pytest.mark.parametrize(
    ("born_ms", "is_given"),
    [
        *[(1_700_000_000_000, True), (-1, True), (253_402_300_799_999, True)],
        # In nanoseconds: Java's client reads no message of an answer with such a time.
        *[(1_700_000_000_000_000_000, False), (-(2**63), False)],
    ],
)
def test_a_time_that_no_timestamp_can_have_is_left_out_of_a_received_message(
    born_ms: int, is_given: bool
) -> None:
    stored = replace(message_at(7), born_timestamp_ms=born_ms)

    assert to_message(stored, topic="T").system_properties.HasField("born_timestamp") is is_given


def test_a_receive_that_names_no_wait_is_answered_before_its_deadline(
    caller: GrpcCaller, topic: str
) -> None:
    answers = caller.begin_receive(topic, "GID_patient", count=1, timeout_s=6)

    assert next(answers).status.code == Code.MESSAGE_NOT_FOUND


def test_settings_say_how_much_a_clients_deadline_leaves_for_an_answer() -> None:
    client = Client(Caller("go@1", "127.0.0.1:5", LanguageCode.GO, None))
    broker = cast(BrokerPort, SimpleNamespace(body_bytes_max=1))
    clients = Clients(broker)
    renewals = Renewals(clients, now_ms=lambda: 0)
    sessions = Sessions(broker, clients, renewals, timestamp_ms=lambda: 0)
    assert client.request_timeout_ms == 3_000

    sessions.settle(client, Settings(publishing=Publishing(), request_timeout=Duration(seconds=9)))

    assert client.request_timeout_ms == 9_000


def test_assignment_is_every_message_and_bounds_of_receives_are_told(
    caller: GrpcCaller, topic: str
) -> None:
    answer = caller.call(
        "QueryAssignment",
        topic=Resource(name=topic),
        group=Resource(name="GID_any"),
        endpoints=caller.endpoints,
    )
    assert [each.message_queue.id for each in answer.assignments] == [-1]
    status, _ = caller.receive(topic, "GID_any", invisible_duration=Duration(seconds=1))
    assert status.code == Code.ILLEGAL_INVISIBLE_TIME


def test_access_control_holds_for_each_call(tmp_path: Path) -> None:
    rules = tmp_path / "acl.yml"
    rules.write_text(RULES)
    options = ("--acl", str(rules))
    with EmbeddedCluster(serves_grpc=True, options=options) as secured:
        with Admin(
            name_server=secured.name_server, access_key="owner-of-all", secret_key="owner-secret-1"
        ) as admin:
            admin.create_topic("T", 1)
        with (
            GrpcCaller(secured.grpc) as nobody,
            GrpcCaller(secured.grpc, keys=("owner-of-all", "no")) as forger,
            GrpcCaller(secured.grpc, keys=("elsewhere", "elsewhere-secret-1")) as elsewhere,
            GrpcCaller(secured.grpc, keys=("no-account", "")) as unknown,
        ):
            for caller in (nobody, forger, elsewhere, unknown):
                route = caller.call(
                    "QueryRoute", topic=Resource(name="T"), endpoints=caller.endpoints
                )
                assert route.status.code == Code.UNAUTHORIZED
                assert caller.send("T", b"x").status.code == Code.UNAUTHORIZED
                assert caller.receive("T", "GID_any")[0].code == Code.UNAUTHORIZED
                # The server receives no request of a stranger: none comes here.
                nothing: queue.Queue[bytes] = queue.Queue()
                refused = caller.begin("SendMessage", iter(nothing.get, b""))
                nothing.put(b"")
                assert refused.status.code == Code.UNAUTHORIZED
                with pytest.raises(grpc.RpcError) as ended:
                    next(caller.telemetry(iter(())))
                assert ended.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with GrpcCaller(secured.grpc, keys=("owner-of-all", "owner-secret-1")) as signer:
            assert signer.send("T", b"x").status.code == Code.OK
        with GrpcCaller(secured.grpc, keys=("reader-1", "reader-secret-1")) as reader:
            assert reader.send("T", b"x").status.code == Code.UNAUTHORIZED
            assert reader.receive("T", "GID_any")[0].code == Code.OK


def test_a_port_in_use_is_an_error_if_it_was_asked_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = [sys.executable, "-m", "sparrowmq.hosting"]
        ports = ["--nameserver-port", "0", "--broker-port", "0"]
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [*command, *ports, "--grpc-port", port, "--data", str(tmp_path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert result.returncode == 1
    assert port in result.stderr


def test_the_service_speaks_the_servers_tls_and_shows_a_renewed_certificate(
    certificates: Certificates, tmp_path: Path
) -> None:
    shown, key = tmp_path / "shown.pem", tmp_path / "shown.key"

    def show(pair: Certificate) -> None:
        shutil.copy(pair.path, shown)
        shutil.copy(pair.key, key)

    def is_shown(pair: Certificate) -> bool:
        address, _, port = secured.grpc.rpartition(":")
        found = ssl.get_server_certificate((address, int(port)), timeout=30)
        return found.strip() in pair.path.read_text()

    show(certificates.server)
    options = ("--tls-cert", str(shown), "--tls-key", str(key))
    trust = ssl.create_default_context(cafile=certificates.ca.path)
    with EmbeddedCluster(serves_grpc=True, options=options, tls=trust) as secured:
        secured.create_topic("T", 1)
        with GrpcCaller(secured.grpc, ca=certificates.ca.path) as caller:
            assert caller.send("T", b"x").status.code == Code.OK
        with GrpcCaller(secured.grpc) as plain, pytest.raises(grpc.RpcError):
            plain.call("Heartbeat", timeout_s=5)
        assert is_shown(certificates.server)
        renewed = certificates.issue("renewed")
        show(renewed)
        wait_until("the renewed certificate", lambda: is_shown(renewed))


def test_the_service_asks_its_clients_for_a_certificate_where_the_servers_do(
    certificates: Certificates,
) -> None:
    ca, (path, key) = certificates.ca.path, certificates.server
    options = ("--tls-cert", str(path), "--tls-key", str(key), "--tls-client-ca", str(ca))
    pair = certificates.client
    mine = client_context(ca_file=ca, certificate_file=pair.path, key_file=pair.key)
    with EmbeddedCluster(serves_grpc=True, options=options, tls=mine) as secured:
        with GrpcCaller(secured.grpc, ca=ca, pair=pair) as known:
            assert known.call("Heartbeat").status.code == Code.OK
        with GrpcCaller(secured.grpc, ca=ca) as stranger, pytest.raises(grpc.RpcError):
            stranger.call("Heartbeat", timeout_s=5)


def test_the_service_needs_its_broker_in_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sparrowmq.hosting", "--brokers", "2", "--grpc-port", "0"]
    result = subprocess.run(
        [*command, "--nameserver-port", "0", "--data", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert "--brokers 2" in result.stderr


def test_a_client_at_the_remoting_port_fails_at_once_and_connects_once(
    cluster: EmbeddedCluster,
) -> None:
    for address in (cluster.broker, cluster.name_server):
        with GrpcCaller(address) as lost, pytest.raises(grpc.RpcError) as raised:
            lost.call("Heartbeat", timeout_s=20)
        # gRPC's own words for it.
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        assert "HTTP status 400" in str(raised.value.details())
    lines = [each for each in cluster.log_path.read_text().splitlines() if "HTTP/2 (gRPC)" in each]
    assert 1 <= len(lines) <= 2
    assert "--grpc-port" in lines[0]
