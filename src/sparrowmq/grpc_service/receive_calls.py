"""Receives, acknowledgements, changes of the invisible time, and dead letters.

The messages of all the topic's queues are popped, whatever queue a request names, as by Apache's
proxy. Source: ReceiveMessageActivity of 5.5.0. Differs from RocketMQ: the broker itself makes dead
letters of messages that failed too often, and a group is made at its first receive, where the
broker may make groups. Tests: test_server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import NamedTuple

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.checks import check_group, check_topic
from sparrowmq.grpc_service.client_table import (
    ANSWER_MS,
    REQUEST_TIMEOUT_MS,
    BrokerPort,
    Clients,
)
from sparrowmq.grpc_service.message_content import to_message, to_ms, to_timestamp
from sparrowmq.grpc_service.messages import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
    ChangeInvisibleDurationRequest,
    ChangeInvisibleDurationResponse,
    Code,
    FilterType,
    ForwardMessageToDeadLetterQueueRequest,
    ForwardMessageToDeadLetterQueueResponse,
    ReceiveMessageRequest,
    ReceiveMessageResponse,
    Status,
)
from sparrowmq.grpc_service.receipts import (
    Ending,
    Receipt,
    acknowledge,
    change_invisible,
    give_up,
    parse_receipt,
)
from sparrowmq.grpc_service.renewals import RENEWED_MS, Renewals
from sparrowmq.grpc_service.statuses import Rejected, check_answer, common_status, ok
from sparrowmq.model import MessageExt
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import decode_header, encode_header
from sparrowmq.protocol.pop_handle import (
    INIT_MAX,
    POP_COUNT_MAX,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    decode_stored,
    handle_of,
    start_offsets,
)
from sparrowmq.protocol.record import inflate_message

# ProxyConfig of 5.5.0.
POLLING_MS_MIN, POLLING_MS_MAX = 5_000, 20_000
INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 10_000, 12 * 3_600_000
ACKS_MAX = 1_024
# Messages whose receiver has gone meanwhile are visible again after this.
UNSENT_MS = 1_000
# Earlier clients do not know ILLEGAL_POLLING_TIME.
_POLLING_TIME_VERSION = "5.0.3"
_ALL_QUEUES = -1
_NONE_FOUND = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)


class _Received(NamedTuple):
    """A message of a pop with its stored body. Those of one answer may inflate to 512 MiB."""

    message: MessageExt
    receipt: Receipt


class ReceiveService:
    """Serves receives and what follows them.

    Args:
        timestamp_ms: the broker's wall clock, in milliseconds since 1970.
    """

    def __init__(
        self,
        broker: BrokerPort,
        clients: Clients,
        renewals: Renewals,
        *,
        timestamp_ms: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._clients = clients
        self._renewals = renewals
        self._timestamp_ms = timestamp_ms

    async def receive(
        self, caller: Caller, request: ReceiveMessageRequest, remaining_s: float | None
    ) -> AsyncGenerator[ReceiveMessageResponse]:
        """Yield the status, the messages, and the time of their delivery.

        Args:
            remaining_s: the time until the call's deadline; None for no deadline.

        Raises: Rejected.
        """
        given_up = asyncio.get_running_loop().create_future()
        header = self._pop_of(caller, request, remaining_s)
        popping = asyncio.ensure_future(self._pop(caller, header, given_up))
        try:
            received = await asyncio.shield(popping)
        except asyncio.CancelledError:
            # Otherwise the next message would come here, and to others a second later.
            given_up.set_result(None)
            self._clients.keep(self._release(caller, popping))
            raise
        at = 0
        try:
            status = ok()
            if not received:
                status = Status(code=Code.MESSAGE_NOT_FOUND, message="no message came")
            yield ReceiveMessageResponse(status=status)
            for stored, receipt in received:
                try:
                    message = inflate_message(stored)
                except RemoteProtocolError:
                    # It stays invisible, and becomes a dead letter at last.
                    message = None
                if message is not None:
                    found = to_message(message, topic=receipt.topic, receipt_handle=receipt.text)
                    if request.auto_renew:
                        self._renewals.add(caller, receipt)
                    yield ReceiveMessageResponse(message=found)
                at += 1
        except (asyncio.CancelledError, GeneratorExit):
            self._clients.keep(self._release_all(caller, received[at:]))
            raise
        yield ReceiveMessageResponse(delivery_timestamp=to_timestamp(self._timestamp_ms()))

    def _pop_of(
        self, caller: Caller, request: ReceiveMessageRequest, remaining_s: float | None
    ) -> PopMessageRequestHeader:
        client = self._clients.known(caller)
        answer_ms = REQUEST_TIMEOUT_MS if client is None else client.request_timeout_ms
        group = check_group(request.group)
        settings = self._broker.find_group(group)
        wanted = request.filter_expression
        invisible_ms = RENEWED_MS
        if not request.auto_renew:
            invisible_ms = _check_invisible(to_ms(request.invisible_duration), INVISIBLE_MS_MIN)
        return PopMessageRequestHeader(
            consumer_group=group,
            topic=check_topic(request.message_queue.topic),
            queue_id=_ALL_QUEUES,
            max_msg_nums=min(max(1, request.batch_size), POP_COUNT_MAX),
            invisible_time_ms=invisible_ms,
            poll_time_ms=_polling_ms(request, remaining_s, answer_ms, version=caller.version),
            born_timestamp_ms=self._timestamp_ms(),
            init_mode=INIT_MAX,
            exp_type="SQL92" if wanted.type == FilterType.SQL else "TAG",
            exp=wanted.expression or "*",
            order=settings is not None and settings.consume_message_orderly is True,
            attempt_id=request.attempt_id or None,
        )

    async def _pop(
        self, caller: Caller, header: PopMessageRequestHeader, given_up: asyncio.Future[None]
    ) -> list[_Received]:
        asked = RemotingCommand(code=RequestCode.POP_MESSAGE, ext_fields=encode_header(header))
        timeout_ms = header.poll_time_ms + ANSWER_MS
        answer = await self._clients.ask(caller, asked, timeout_ms=timeout_ms, given_up=given_up)
        if answer.code in _NONE_FOUND:
            return []
        check_answer(answer)
        found = decode_header(PopMessageResponseHeader, answer.ext_fields)
        starts = start_offsets(found)
        name = self._broker.broker_name
        group, topic = header.consumer_group, header.topic
        received: list[_Received] = []
        for message in decode_stored(answer.body or b"", broker_name=name):
            handle = handle_of(message, found, starts, address=name)
            receipt = Receipt(group, topic, handle, message.commit_log_position)
            received.append(_Received(message, receipt))
        return received

    async def _release(self, caller: Caller, popping: Awaitable[list[_Received]]) -> None:
        """Give back what a pop brings whose receiver has gone."""
        try:
            received = await popping
        except Rejected:
            return
        await self._release_all(caller, received)

    async def _release_all(self, caller: Caller, received: list[_Received]) -> None:
        for _, receipt in received:
            try:
                async with self._renewals.end(caller, receipt) as ending:
                    # Nobody repeats it.
                    ending.is_done = True
                    await change_invisible(
                        self._clients,
                        caller,
                        ending,
                        invisible_ms=UNSENT_MS,
                        is_attempt=False,
                    )
            except Rejected:
                # It comes again after its whole time.
                continue

    async def acknowledge(self, caller: Caller, request: AckMessageRequest) -> AckMessageResponse:
        """Finish messages; the answer has an entry for each."""
        group, topic = check_group(request.group), check_topic(request.topic)
        if len(request.entries) > ACKS_MAX:
            text = f"the request has {len(request.entries)} entries; the limit is {ACKS_MAX}"
            raise Rejected(Code.BAD_REQUEST, text)
        if not request.entries:
            raise Rejected(Code.BAD_REQUEST, "the request has no entry")
        statuses = [ok() for _ in request.entries]
        endings: dict[int, Ending] = {}
        async with contextlib.AsyncExitStack() as ends:
            for number, entry in enumerate(request.entries):
                try:
                    receipt = parse_receipt(group, topic, entry.receipt_handle)
                    ended = self._renewals.end(caller, receipt)
                    endings[number] = await ends.enter_async_context(ended)
                except Rejected as error:
                    statuses[number] = error.status
            receipts = [ending.receipt for ending in endings.values()]
            errors = await acknowledge(self._clients, caller, receipts)
            for (number, ending), refused in zip(endings.items(), errors, strict=True):
                ending.is_done = refused is None or refused.code == Code.INVALID_RECEIPT_HANDLE
                if refused is not None:
                    statuses[number] = refused.status
        entries = [
            AckMessageResultEntry(
                message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status
            )
            for entry, status in zip(request.entries, statuses, strict=True)
        ]
        return AckMessageResponse(status=common_status(statuses), entries=entries)

    async def change_invisible(
        self, caller: Caller, request: ChangeInvisibleDurationRequest
    ) -> ChangeInvisibleDurationResponse:
        """Let a message be invisible for another time, from now on."""
        group, topic = check_group(request.group), check_topic(request.topic)
        invisible_ms = _check_invisible(to_ms(request.invisible_duration), 0)
        receipt = parse_receipt(group, topic, request.receipt_handle)
        async with self._renewals.end(caller, receipt) as ending:
            await change_invisible(
                self._clients,
                caller,
                ending,
                invisible_ms=invisible_ms,
                is_attempt=not request.suspend,
            )
            ending.is_done = True
        return ChangeInvisibleDurationResponse(status=ok(), receipt_handle=ending.receipt.text)

    async def give_up(
        self, caller: Caller, request: ForwardMessageToDeadLetterQueueRequest
    ) -> ForwardMessageToDeadLetterQueueResponse:
        """Put a message among the group's dead letters."""
        group, topic = check_group(request.group), check_topic(request.topic)
        receipt = parse_receipt(group, topic, request.receipt_handle)
        # A client whose deadline is over would repeat a half of it, and have two dead letters.
        await asyncio.shield(self._clients.keep(self._give_up(caller, receipt, request.message_id)))
        return ForwardMessageToDeadLetterQueueResponse(status=ok())

    async def _give_up(self, caller: Caller, receipt: Receipt, message_id: str) -> None:
        async with self._renewals.end(caller, receipt) as ending:
            await give_up(self._clients, caller, ending, message_id=message_id)
            ending.is_done = True


def _check_invisible(invisible_ms: int, least_ms: int) -> int:
    if not least_ms <= invisible_ms <= INVISIBLE_MS_MAX:
        text = (
            f"the invisible time is {invisible_ms / 1000:g} s; it must be from "
            f"{least_ms // 1000} s to {INVISIBLE_MS_MAX // 1000} s"
        )
        raise Rejected(Code.ILLEGAL_INVISIBLE_TIME, text)
    return invisible_ms


def _polling_ms(
    request: ReceiveMessageRequest, remaining_s: float | None, answer_ms: int, *, version: str
) -> int:
    """Return how long a receive waits, within the call's deadline.

    Args:
        answer_ms: what the client adds to its own wait for the deadline. Go's SimpleConsumer names
            no wait, so half of this is left for the answer, as by Apache's proxy.
        version: the client's version.

    Raises: Rejected.
    """
    remaining_ms = POLLING_MS_MAX + ANSWER_MS if remaining_s is None else int(remaining_s * 1000)
    if request.HasField("long_polling_timeout"):
        asked_ms = to_ms(request.long_polling_timeout)
    else:
        asked_ms = remaining_ms - answer_ms // 2
    polling_ms = min(max(asked_ms, POLLING_MS_MIN), POLLING_MS_MAX)
    if polling_ms <= remaining_ms:
        return polling_ms
    if remaining_ms < POLLING_MS_MIN:
        text = (
            f"the call's deadline is in {remaining_ms} ms; a receive waits for at least "
            f"{POLLING_MS_MIN} ms"
        )
        # Compared as texts, as by Apache's proxy.
        is_known = version >= _POLLING_TIME_VERSION
        raise Rejected(Code.ILLEGAL_POLLING_TIME if is_known else Code.BAD_REQUEST, text)
    return remaining_ms
