"""Renewals by a virtual clock, at a broker that answers every change."""

from __future__ import annotations

import asyncio
import hmac
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sparrowmq.grpc_service import client_table
from sparrowmq.grpc_service import renewals as renewals_module
from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.client_table import BrokerPort, Client, Clients, CommandQueue, tell
from sparrowmq.grpc_service.messages import (
    AckMessageEntry,
    AckMessageRequest,
    ChangeInvisibleDurationRequest,
    Code,
    Duration,
    ForwardMessageToDeadLetterQueueRequest,
    HeartbeatRequest,
    Message,
    MessageQueue,
    NotifyClientTerminationRequest,
    ReceiveMessageRequest,
    RecoverOrphanedTransactionCommand,
    Resource,
    Status,
    TelemetryCommand,
)
from sparrowmq.grpc_service.receipts import Ending, Receipt, acknowledge, give_up, parse_receipt
from sparrowmq.grpc_service.receive_calls import ReceiveService
from sparrowmq.grpc_service.renewals import (
    CHANGED_AT_ONCE,
    RENEWAL_MS_MAX,
    SILENCE_MS,
    Renewals,
)
from sparrowmq.grpc_service.server import GrpcServer
from sparrowmq.grpc_service.sessions import Sessions, register_producer
from sparrowmq.grpc_service.statuses import Rejected
from sparrowmq.protocol.bodies import HeartbeatData, decode_body
from sparrowmq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.compression import COMPRESSED
from sparrowmq.protocol.headers import encode_header
from sparrowmq.protocol.pop_handle import PopHandle, PopMessageResponseHeader, parse_handle
from sparrowmq.protocol.record import Record, encode_record
from sparrowmq.serving.access_control import AccessControl, Document

START_MS = 1_800_000_000_000
CALLER = Caller("consumer@1", "127.0.0.1:5", LanguageCode.OTHER, None)


class AnsweringClients(Clients):
    """Clients of a broker that changes the time of every message, until it `refuses`."""

    def __init__(self) -> None:
        super().__init__(cast(BrokerPort, None))
        self.client = Client(CALLER)
        self.now_ms = START_MS
        # How far the broker's wall clock was set ahead.
        self.ahead_ms = 0
        self.refuses: Code | None = None
        # Answers wait for it.
        self.gate = asyncio.Event()
        self.gate.set()
        # The invisible times that were asked for, and whether the next delivery is no attempt.
        self.asked: list[int] = []
        self.suspended: list[str] = []

    def find(self, caller: Caller) -> Client:
        return self.client

    def known(self, caller: Caller) -> Client:
        return self.client

    async def ask(
        self,
        caller: Caller,
        request: RemotingCommand,
        *,
        timeout_ms: int = 0,
        given_up: asyncio.Future[None] | None = None,
    ) -> RemotingCommand:
        if self.refuses is not None:
            raise Rejected(self.refuses, "too late, or too busy")
        fields = request.ext_fields or {}
        self.asked.append(int(fields["invisibleTime"]))
        self.suspended.append(fields["suspend"])
        await self.gate.wait()
        fields = {
            "popTime": str(self.now_ms + self.ahead_ms),
            "invisibleTime": fields["invisibleTime"],
            "reviveQid": "0",
        }
        return RemotingCommand(code=0, ext_fields=fields)


@pytest.fixture
def clients() -> AnsweringClients:
    return AnsweringClients()


@pytest.fixture
def renewals(clients: AnsweringClients) -> Renewals:
    return Renewals(clients, now_ms=lambda: clients.now_ms)


def received(clients: AnsweringClients) -> Receipt:
    clients.client.seen_ms = clients.now_ms
    handle = PopHandle(3, clients.now_ms + clients.ahead_ms, 60_000, 0, "0", "broker-a", 1, 3)
    return Receipt("GID", "T", handle, 1_234)


async def pass_time(clients: AnsweringClients, renewals: Renewals, seconds: int) -> None:
    for _ in range(seconds):
        clients.now_ms += 1_000
        await renewals.look()


@pytest.mark.parametrize("ahead_ms", [3_600_000, 0, -RENEWAL_MS_MAX])
async def test_a_wall_clock_that_is_set_keeps_no_message_from_its_renewal(
    clients: AnsweringClients, renewals: Renewals, ahead_ms: int
) -> None:
    clients.ahead_ms = ahead_ms
    clients.client.streams.append(CommandQueue())
    renewals.add(CALLER, received(clients))
    for clients.ahead_ms in (ahead_ms, -ahead_ms):
        await pass_time(clients, renewals, 39)
        assert clients.asked == []
        await pass_time(clients, renewals, 1)
        assert clients.asked == [60_000]
        clients.asked.clear()


async def test_a_living_clients_message_is_renewed_before_each_minute_ends(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    receipt = received(clients)
    renewals.add(CALLER, receipt)
    for _ in range(18):
        await pass_time(clients, renewals, 10)
        clients.client.seen_ms = clients.now_ms

    assert clients.asked == [60_000] * 4
    async with renewals.end(CALLER, receipt) as ending:
        assert ending.receipt.handle.pop_timestamp_ms > receipt.handle.pop_timestamp_ms
        assert ending.receipt.position == 1_234
        ending.is_done = True
    await pass_time(clients, renewals, 60)
    assert len(clients.asked) == 4


async def test_messages_of_a_silent_client_come_again_in_seconds(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    renewals.add(CALLER, received(clients))
    await pass_time(clients, renewals, SILENCE_MS // 1_000)
    assert clients.asked == []
    await pass_time(clients, renewals, 2)
    assert clients.asked == [1_000]


async def test_messages_of_a_silent_client_are_kept_while_its_stream_is_open(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    clients.client.streams.append(CommandQueue())
    renewals.add(CALLER, received(clients))

    await pass_time(clients, renewals, 45)

    assert clients.asked == [60_000]


async def test_message_that_ends_a_long_wait_shows_that_its_client_lives(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    receipt = received(clients)
    clients.client.seen_ms = clients.now_ms - SILENCE_MS
    renewals.add(CALLER, receipt)

    await pass_time(clients, renewals, 2)

    assert clients.asked == []


async def test_a_clients_end_releases_its_messages(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    renewals.add(CALLER, received(clients))
    sessions = Sessions(
        cast(BrokerPort, None), clients, renewals, timestamp_ms=lambda: clients.now_ms
    )
    for _ in range(2):
        await sessions.terminate(CALLER, NotifyClientTerminationRequest())
        assert clients.asked == [1_000]


async def test_a_clients_end_goes_on_when_its_call_ends_before_the_broker_answers(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    first, count = received(clients), CHANGED_AT_ONCE + 1
    for offset in range(count):
        renewals.add(CALLER, first._replace(handle=first.handle._replace(queue_offset=offset)))
    clients.client.published_topics = frozenset({"T"})
    sessions = Sessions(
        cast(BrokerPort, None), clients, renewals, timestamp_ms=lambda: clients.now_ms
    )
    clients.gate.clear()
    call = asyncio.create_task(sessions.terminate(CALLER, NotifyClientTerminationRequest()))
    while not clients.asked:
        await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    clients.gate.set()
    await asyncio.gather(*clients.kept)

    assert clients.asked == [1_000] * count
    assert clients.client.published_topics == frozenset(), "the client is forgotten"


@pytest.mark.parametrize(("at_once", "renewed_count"), [(CHANGED_AT_ONCE, 2), (1, 1)])
async def test_a_client_that_ends_during_a_renewal_keeps_no_message(
    clients: AnsweringClients,
    renewals: Renewals,
    at_once: int,
    renewed_count: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewals_module, "CHANGED_AT_ONCE", at_once)
    first = received(clients)
    for offset in (3, 4):
        renewals.add(CALLER, first._replace(handle=first.handle._replace(queue_offset=offset)))
    clients.now_ms += 45_000
    clients.client.seen_ms = clients.now_ms
    clients.gate.clear()
    looking = asyncio.create_task(renewals.look())
    while not clients.asked:
        await asyncio.sleep(0)

    ending = asyncio.create_task(renewals.release(clients.client))
    await asyncio.sleep(0)
    clients.gate.set()
    await asyncio.gather(looking, ending)

    assert sorted(clients.asked) == [1_000, 1_000, *[60_000] * renewed_count]


@pytest.mark.parametrize("ends", [False, True])
async def test_many_messages_are_changed_at_a_time(
    clients: AnsweringClients, renewals: Renewals, ends: bool
) -> None:
    first, count = received(clients), 2 * CHANGED_AT_ONCE
    for offset in range(count):
        renewals.add(CALLER, first._replace(handle=first.handle._replace(queue_offset=offset)))
    clients.now_ms += 45_000
    clients.client.seen_ms = clients.now_ms
    clients.gate.clear()

    changing = renewals.release(clients.client) if ends else renewals.look()
    task = asyncio.create_task(changing)
    for _ in range(3):
        await asyncio.sleep(0)
    at_once = len(clients.asked)
    clients.gate.set()
    await task

    assert (at_once, len(clients.asked)) == (CHANGED_AT_ONCE, count)


async def test_an_acknowledgement_waits_for_a_renewal_and_has_its_handle(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    receipt = received(clients)
    renewals.add(CALLER, receipt)
    clients.now_ms += 45_000
    clients.client.seen_ms = clients.now_ms
    clients.gate.clear()
    looking = asyncio.create_task(renewals.look())
    while not clients.asked:
        await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(clients.gate.set)

    async with renewals.end(CALLER, receipt) as ending:
        assert ending.receipt.handle.pop_timestamp_ms == clients.now_ms
    await looking


async def test_a_call_that_ends_while_it_waits_for_a_renewal_can_be_repeated(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    receipt = received(clients)
    renewals.add(CALLER, receipt)
    clients.now_ms += 45_000
    clients.client.seen_ms = clients.now_ms
    clients.gate.clear()
    looking = asyncio.create_task(renewals.look())
    while not clients.asked:
        await asyncio.sleep(0)
    call = asyncio.create_task(change_by(service_of(clients, renewals), receipt.text))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    clients.gate.set()
    await looking

    async with renewals.end(CALLER, receipt) as ending:
        assert ending.receipt.handle.pop_timestamp_ms == clients.now_ms


async def test_renewed_messages_of_a_client_have_a_bound(
    clients: AnsweringClients, renewals: Renewals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewals_module, "RENEWED_MAX", 2)
    for offset in range(3):
        receipt = received(clients)
        handle = receipt.handle._replace(queue_offset=offset)
        renewals.add(CALLER, receipt._replace(handle=handle))

    await renewals.release(clients.client)

    assert clients.asked == [1_000, 1_000]


@pytest.mark.parametrize(("busy_s", "renewed"), [(15, [60_000]), (70, [])])
async def test_a_renewal_that_fails_is_repeated_while_there_is_time(
    clients: AnsweringClients, renewals: Renewals, busy_s: int, renewed: list[int]
) -> None:
    renewals.add(CALLER, received(clients))
    clients.client.streams.append(CommandQueue())
    await pass_time(clients, renewals, 39)
    clients.refuses = Code.PROXY_TIMEOUT
    await pass_time(clients, renewals, busy_s)
    clients.refuses = None
    await pass_time(clients, renewals, 5)

    assert clients.asked == renewed


async def test_no_unforeseen_failure_ends_the_renewals(
    clients: AnsweringClients,
    renewals: Renewals,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(renewals_module, "LOOK_S", 0.001)
    renewals.add(CALLER, received(clients))
    clients.now_ms += 45_000
    clients.client.seen_ms = clients.now_ms
    running = asyncio.create_task(renewals.run())
    async with asyncio.timeout(30):
        with monkeypatch.context() as broken:
            broken.setattr(clients, "ask", None)
            while not caplog.records:
                await asyncio.sleep(0.001)
        while not clients.asked:
            await asyncio.sleep(0.001)
    running.cancel()

    assert clients.asked == [60_000]


async def test_renewals_end_after_a_refusal_and_after_hours(
    clients: AnsweringClients, renewals: Renewals
) -> None:
    renewals.add(CALLER, received(clients))
    clients.refuses = Code.INVALID_RECEIPT_HANDLE
    clients.client.seen_ms = clients.now_ms + 45_000
    await pass_time(clients, renewals, 45)
    clients.refuses = None
    clients.client.seen_ms = clients.now_ms + RENEWAL_MS_MAX * 2
    await pass_time(clients, renewals, 60)
    assert clients.asked == []

    renewals.add(CALLER, received(clients))
    clients.client.seen_ms = clients.now_ms + RENEWAL_MS_MAX * 2
    await pass_time(clients, renewals, RENEWAL_MS_MAX // 1_000 + 120)
    count = len(clients.asked)
    await pass_time(clients, renewals, 120)
    assert len(clients.asked) == count


async def test_callers_without_connection_or_stream_fill_no_table() -> None:
    # Nothing of these calls reaches a broker.
    broker = cast(BrokerPort, None)
    clients = Clients(broker)
    renewals = Renewals(clients, now_ms=lambda: START_MS)
    sessions = Sessions(broker, clients, renewals, timestamp_ms=lambda: START_MS)
    for number in range(100):
        caller = CALLER._replace(client_id=f"id-{number}")
        assert clients.known(caller) is None
        assert (await sessions.heartbeat(caller, HeartbeatRequest())).status.code == Code.OK
        ended = await sessions.terminate(caller, NotifyClientTerminationRequest())
        assert ended.status.code == Code.OK

    assert len(clients) == 0


def test_each_call_shows_that_its_client_lives() -> None:
    call = SimpleNamespace(
        invocation_metadata=lambda: (("x-mq-client-id", "consumer@1"),),
        peer=lambda: "ipv4:127.0.0.1:5",
    )
    server = GrpcServer(
        cast(BrokerPort, None), access=None, timestamp_ms=lambda: 0, now_ms=lambda: START_MS
    )
    client = server._clients.find(CALLER)

    assert (server._identify(call), client.seen_ms) == (CALLER, START_MS)


def test_a_client_is_known_while_it_has_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_table, "STREAMS_MAX", 1)
    clients = Clients(cast(BrokerPort, None))
    for _ in range(2):
        client = clients.find(CALLER)
        stream = clients.open_stream(client)
        with pytest.raises(Rejected, match="1 telemetry streams"):
            clients.open_stream(clients.find(CALLER._replace(client_id="other")))
        # As its connection to the broker ends.
        clients._drop_unused(client)

        assert (clients.known(CALLER), len(clients)) == (client, 1)
        clients.close_stream(client, stream)
        assert len(clients) == 0


class PoppingClients(AnsweringClients):
    """Clients of a broker that pops the same messages each time."""

    def __init__(self, *bodies: bytes, sys_flag: int = 0) -> None:
        super().__init__()
        self.records = [
            encode_record(
                Record(topic="T", queue_id=1, body=body, queue_offset=offset, sys_flag=sys_flag)
            )
            for offset, body in enumerate(bodies, 3)
        ]

    async def ask(
        self,
        caller: Caller,
        request: RemotingCommand,
        *,
        timeout_ms: int = 0,
        given_up: asyncio.Future[None] | None = None,
    ) -> RemotingCommand:
        if request.code != RequestCode.POP_MESSAGE:
            return await super().ask(caller, request)
        header = PopMessageResponseHeader(
            pop_timestamp_ms=self.now_ms,
            invisible_time_ms=60_000,
            revive_qid=0,
            rest_num=0,
            start_offset_info="0 1 3",
            msg_offset_info="0 1 " + ",".join(map(str, range(3, 3 + len(self.records)))),
        )
        body = b"".join(self.records)
        return RemotingCommand(code=0, ext_fields=encode_header(header), body=body)


def asking(count: int, **fields: Any) -> ReceiveMessageRequest:
    group, queue = Resource(name="GID"), MessageQueue(topic=Resource(name="T"))
    return ReceiveMessageRequest(group=group, message_queue=queue, batch_size=count, **fields)


async def test_messages_are_inflated_one_by_one_as_their_receiver_takes_them() -> None:
    whole = bytes(1 << 22)
    clients = PoppingClients(*[zlib.compress(whole)] * 8, sys_flag=COMPRESSED)
    service = service_of(clients, Renewals(clients, now_ms=lambda: clients.now_ms))
    request = asking(8, invisible_duration=Duration(seconds=30))
    sizes = list[int]()
    tracemalloc.start()
    try:
        async for answer in service.receive(CALLER, request, None):
            sizes.append(len(answer.message.body))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert sizes == [0, *[len(whole)] * 8, 0]
    assert peak < 4 * len(whole)


async def test_what_a_gone_receiver_has_not_taken_is_given_back_at_once() -> None:
    clients = PoppingClients(b"x", b"x")
    renewals = Renewals(clients, now_ms=lambda: clients.now_ms)
    service = service_of(clients, renewals)
    answers = service.receive(CALLER, asking(2, auto_renew=True), None)
    received = [await anext(answers) for _ in range(2)]

    await answers.aclose()
    await asyncio.gather(*clients.kept)

    assert (received[0].status.code, received[1].message.body) == (Code.OK, b"x")
    # Also the one that was on its way.
    assert clients.asked == [1_000, 1_000]
    assert clients.suspended == ["true", "true"], "nobody has had them"
    clients.client.seen_ms = clients.now_ms + 60_000
    await pass_time(clients, renewals, 60)
    assert len(clients.asked) == 2, "neither is renewed"


class CheckingClients(AnsweringClients):
    """Clients of a broker that knows a message by its last handle, and refuses `busy` codes.

    It does what `late` codes ask for, and does not confirm it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.popped_ms = START_MS
        self.busy: list[RequestCode] = []
        self.late: list[RequestCode] = []
        self.done: list[int] = []

    async def ask(
        self,
        caller: Caller,
        request: RemotingCommand,
        *,
        timeout_ms: int = 0,
        given_up: asyncio.Future[None] | None = None,
    ) -> RemotingCommand:
        fields = request.ext_fields or {}
        if request.code in self.busy:
            raise Rejected(Code.INTERNAL_SERVER_ERROR, "the disk is full")
        handle = fields.get("extraInfo")
        if handle is not None and parse_handle(handle).pop_timestamp_ms != self.popped_ms:
            raise Rejected(Code.INVALID_RECEIPT_HANDLE, "not in flight")
        self.done.append(request.code)
        code = ResponseCode.FLUSH_DISK_TIMEOUT if request.code in self.late else 0
        if request.code != RequestCode.CHANGE_MESSAGE_INVISIBLETIME:
            await self.gate.wait()
            return RemotingCommand(code=code)
        self.popped_ms = max(self.now_ms, self.popped_ms + 1)
        times = {"popTime": str(self.popped_ms), "invisibleTime": fields["invisibleTime"]}
        return RemotingCommand(code=code, ext_fields={**times, "reviveQid": "0"})


GROUP, TOPIC = Resource(name="GID"), Resource(name="T")


def service_of(clients: AnsweringClients, renewals: Renewals) -> ReceiveService:
    broker = cast(BrokerPort, SimpleNamespace(broker_name="b", find_group=lambda _: None))
    return ReceiveService(broker, clients, renewals, timestamp_ms=lambda: clients.now_ms)


async def acknowledge_by(service: ReceiveService, handle: str) -> Code:
    entry = AckMessageEntry(message_id="ID", receipt_handle=handle)
    request = AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry])
    (found,) = (await service.acknowledge(CALLER, request)).entries
    return Code(found.status.code)


async def change_by(service: ReceiveService, handle: str) -> Code:
    request = ChangeInvisibleDurationRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle, invisible_duration=Duration(seconds=30)
    )
    try:
        return Code((await service.change_invisible(CALLER, request)).status.code)
    except Rejected as error:
        return error.code


async def give_up_by(service: ReceiveService, handle: str) -> Code:
    request = ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle=handle, message_id="ID"
    )
    try:
        return Code((await service.give_up(CALLER, request)).status.code)
    except Rejected as error:
        return error.code


@pytest.mark.parametrize(
    ("call", "busy"),
    [
        (acknowledge_by, RequestCode.ACK_MESSAGE),
        (change_by, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
        (give_up_by, RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
        (give_up_by, RequestCode.CONSUMER_SEND_MSG_BACK),
        (give_up_by, RequestCode.ACK_MESSAGE),
    ],
)
async def test_call_that_is_refused_for_a_while_succeeds_when_it_is_repeated(
    call: Callable[[ReceiveService, str], Awaitable[Code]], busy: RequestCode
) -> None:
    clients = CheckingClients()
    renewals = Renewals(clients, now_ms=lambda: clients.now_ms)
    service = service_of(clients, renewals)
    receipt = received(clients)
    renewals.add(CALLER, receipt)
    clients.client.streams.append(CommandQueue())
    await pass_time(clients, renewals, 45)

    clients.busy = [busy]
    refused = [await call(service, receipt.text) for _ in range(2)]
    clients.busy = []
    await pass_time(clients, renewals, 50)
    repeated = await call(service, receipt.text)
    letters = clients.done.count(RequestCode.CONSUMER_SEND_MSG_BACK)
    clients.done.clear()
    await pass_time(clients, renewals, 120)

    assert refused == [Code.INTERNAL_SERVER_ERROR] * 2
    assert repeated == Code.OK
    assert letters == (call is give_up_by)
    assert clients.done == []


@pytest.mark.parametrize("busy", [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.ACK_MESSAGE])
async def test_message_that_is_not_renewed_becomes_a_dead_letter_when_the_call_is_repeated(
    busy: RequestCode,
) -> None:
    clients = CheckingClients()
    renewals = Renewals(clients, now_ms=lambda: clients.now_ms)
    service = service_of(clients, renewals)
    receipt = received(clients)
    clients.client.streams.append(CommandQueue())

    clients.busy = [busy]
    refused = [await give_up_by(service, receipt.text) for _ in range(2)]
    clients.busy = []
    await pass_time(clients, renewals, 50)
    repeated = await give_up_by(service, receipt.text)
    letters = clients.done.count(RequestCode.CONSUMER_SEND_MSG_BACK)
    clients.done.clear()
    await pass_time(clients, renewals, 120)

    assert refused == [Code.INTERNAL_SERVER_ERROR] * 2
    assert (repeated, letters, clients.done) == (Code.OK, 1, [])


@pytest.mark.parametrize("call", [acknowledge_by, change_by, give_up_by])
@pytest.mark.parametrize("is_renewed", [True, False])
async def test_handle_is_known_of_a_change_that_is_not_confirmed(
    call: Callable[[ReceiveService, str], Awaitable[Code]], is_renewed: bool
) -> None:
    clients = CheckingClients()
    renewals = Renewals(clients, now_ms=lambda: clients.now_ms)
    service = service_of(clients, renewals)
    receipt = received(clients)
    clients.client.streams.append(CommandQueue())
    clients.late = [RequestCode.CHANGE_MESSAGE_INVISIBLETIME]
    if is_renewed:
        renewals.add(CALLER, receipt)
        await pass_time(clients, renewals, 45)
    else:
        assert await change_by(service, receipt.text) == Code.MASTER_PERSISTENCE_TIMEOUT
    assert clients.popped_ms > START_MS
    clients.late = []

    assert await call(service, receipt.text) == Code.OK


@pytest.mark.parametrize("is_late", [True, False])
async def test_dead_letter_is_made_once_though_its_call_ends_before_the_broker_confirms_it(
    is_late: bool,
) -> None:
    clients = CheckingClients()
    renewals = Renewals(clients, now_ms=lambda: clients.now_ms)
    service = service_of(clients, renewals)
    receipt = received(clients)
    if is_late:
        clients.late = [RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.ACK_MESSAGE]
        refused = await give_up_by(service, receipt.text)
        assert refused == Code.MASTER_PERSISTENCE_TIMEOUT
        clients.late = []
    else:
        clients.gate.clear()
        call = asyncio.create_task(give_up_by(service, receipt.text))
        while RequestCode.CONSUMER_SEND_MSG_BACK not in clients.done:
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait({call})
        clients.gate.set()
        await asyncio.gather(*clients.kept)
    await give_up_by(service, receipt.text)

    assert clients.done.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 1
    assert clients.done[-1] == RequestCode.ACK_MESSAGE


async def test_message_whose_refused_acknowledgement_nobody_repeats_comes_again() -> None:
    clients = CheckingClients()
    renewals = Renewals(clients, now_ms=lambda: clients.now_ms)
    receipt = received(clients)
    renewals.add(CALLER, receipt)
    clients.client.streams.append(CommandQueue())
    with pytest.raises(Rejected):
        async with renewals.end(CALLER, receipt):
            raise Rejected(Code.INTERNAL_SERVER_ERROR, "the disk is full")
    await pass_time(clients, renewals, 300)

    assert clients.done == [RequestCode.CHANGE_MESSAGE_INVISIBLETIME]


@pytest.mark.parametrize("suspends", [False, True])
async def test_a_client_says_whether_the_next_delivery_is_an_attempt(
    clients: AnsweringClients, renewals: Renewals, suspends: bool
) -> None:
    request = ChangeInvisibleDurationRequest(
        group=GROUP,
        topic=TOPIC,
        receipt_handle=received(clients).text,
        invisible_duration=Duration(seconds=30),
        suspend=suspends,
    )

    await service_of(clients, renewals).change_invisible(CALLER, request)

    assert clients.suspended == [str(suspends).lower()]


def test_a_receipt_handle_is_read_as_it_was_written(clients: AnsweringClients) -> None:
    receipt = received(clients)

    assert parse_receipt("GID", "T", receipt.text) == receipt
    for text in (receipt.handle.encode(), f"{receipt.handle.encode()} -1", "x" * 600):
        with pytest.raises(Rejected) as raised:
            parse_receipt("GID", "T", text)
        assert raised.value.code == Code.INVALID_RECEIPT_HANDLE


class BusyOnceClients(Clients):
    """Clients of a broker that refuses the first request alone."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    async def ask(
        self,
        caller: Caller,
        request: RemotingCommand,
        *,
        timeout_ms: int = 0,
        given_up: asyncio.Future[None] | None = None,
    ) -> RemotingCommand:
        self.codes.append(request.code)
        if len(self.codes) == 1:
            raise Rejected(Code.INTERNAL_SERVER_ERROR, "busy")
        return RemotingCommand(code=0)


async def test_message_is_not_finished_while_the_broker_makes_no_dead_letter(
    clients: AnsweringClients,
) -> None:
    busy = BusyOnceClients()

    with pytest.raises(Rejected, match="busy"):
        await give_up(busy, CALLER, Ending(received(clients)), message_id="ID")

    assert busy.codes == [RequestCode.CHANGE_MESSAGE_INVISIBLETIME]


async def test_acknowledgements_of_a_batch_that_is_refused_are_made_one_by_one(
    clients: AnsweringClients,
) -> None:
    busy = BusyOnceClients()

    assert await acknowledge(busy, CALLER, [received(clients)] * 2) == [None, None]
    assert busy.codes == [RequestCode.BATCH_ACK_MESSAGE, *[RequestCode.ACK_MESSAGE] * 2]


def test_full_telemetry_stream_loses_its_oldest_command() -> None:
    commands = CommandQueue(2)
    told = [TelemetryCommand(status=Status(message=name)) for name in ("1st", "2nd", "3rd")]

    for command in told:
        tell(commands, command)

    assert [commands.get_nowait() for _ in range(2)] == told[1:]


def test_unread_telemetry_stream_keeps_few_large_questions() -> None:
    """A producer that stands still has one for each of its undecided messages."""
    commands = CommandQueue(client_table.COMMANDS_MAX)
    small = TelemetryCommand(status=Status(message="small"))
    question = TelemetryCommand(
        recover_orphaned_transaction_command=RecoverOrphanedTransactionCommand(
            message=Message(body=bytes(4 * 1024 * 1024))
        )
    )
    for command in [small, *[question] * 20, small]:
        tell(commands, command)

    assert commands.size <= client_table.COMMAND_BYTES_MAX
    assert [commands.get_nowait() for _ in range(commands.qsize())] == [*[question] * 3, small]
    assert commands.size == 0
    tell(commands, TelemetryCommand(status=Status(message="x" * client_table.COMMAND_BYTES_MAX)))
    assert commands.qsize() == 1


async def test_messages_are_renewed_after_the_key_of_their_clients_account_was_changed() -> None:
    def rules_of(secret: str) -> Document:
        return {"accounts": [{"accessKey": "account-1", "secretKey": secret, "admin": "true"}]}

    def identify(secret: str) -> Caller:
        signature = hmac.new(secret.encode(), b"now", "sha1").hexdigest()
        metadata = {
            "x-mq-client-id": "consumer@1",
            "x-mq-date-time": "now",
            "authorization": f"MQv2-HMAC-SHA1 Credential=account-1, Signature={signature}",
        }
        call = SimpleNamespace(invocation_metadata=metadata.items, peer=lambda: "ipv4:127.0.0.1:5")
        return server._identify(call)

    async def ask(request: RemotingCommand, **_: object) -> RemotingCommand:
        refusals.append(rules.find_refusal(request, "127.0.0.1:5"))
        fields = {"popTime": "1", "invisibleTime": "60000", "reviveQid": "0"}
        return RemotingCommand(code=0, ext_fields=fields)

    now_ms, refusals = START_MS, list[str | None]()
    rules = AccessControl(rules_of("first-secret"), lambda _: None)
    broker = SimpleNamespace(connect=lambda *_, **__: SimpleNamespace(is_closed=False, ask=ask))
    server = GrpcServer(
        cast(BrokerPort, broker), access=rules, timestamp_ms=lambda: 0, now_ms=lambda: now_ms
    )
    handle = PopHandle(3, START_MS, 60_000, 0, "0", "broker-a", 1, 3)
    server._renewals.add(identify("first-secret"), Receipt("GID", "T", handle, 1_234))

    rules.replace(rules_of("second-secret"))
    now_ms += 45_000
    identify("second-secret")
    await server._renewals.look()

    assert refusals == [None]


class Connections:
    """A broker that takes every request over the connections to it."""

    def __init__(self) -> None:
        self.opened: list[SimpleNamespace] = []
        self.ends: list[Callable[[], None]] = []
        self.asked: list[RemotingCommand] = []
        self.clients = Clients(cast(BrokerPort, self))

    def connect(self, *_: object, on_closed: Callable[[], None], **__: object) -> SimpleNamespace:
        self.ends.append(on_closed)
        self.opened.append(SimpleNamespace(is_closed=False, ask=self._ask))
        return self.opened[-1]

    async def _ask(self, request: RemotingCommand, **_: object) -> RemotingCommand:
        self.asked.append(request)
        return RemotingCommand(code=0)


async def test_late_end_of_a_connection_leaves_the_next_one_of_its_client() -> None:
    broker = Connections()
    await broker.clients.ask(CALLER, RemotingCommand(code=0))
    broker.opened[0].is_closed = True
    await broker.clients.ask(CALLER, RemotingCommand(code=0))

    broker.ends[0]()
    await broker.clients.ask(CALLER, RemotingCommand(code=0))

    assert len(broker.opened) == 2


async def test_heartbeat_names_the_topics_of_a_clients_transactions() -> None:
    broker = Connections()
    renewals = Renewals(broker.clients, now_ms=lambda: START_MS)
    port = cast(BrokerPort, broker)
    sessions = Sessions(port, broker.clients, renewals, timestamp_ms=lambda: START_MS)
    await register_producer(broker.clients, CALLER, "T")

    await sessions.heartbeat(CALLER, HeartbeatRequest())

    named = [decode_body(HeartbeatData, each.body).producer_data_set for each in broker.asked]
    assert [[producer.group_name for producer in each] for each in named] == [["T"], ["T"]]
