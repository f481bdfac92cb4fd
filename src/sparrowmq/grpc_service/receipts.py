"""Delivered messages: acknowledgement, change of their time, dead letters. Asks the broker's POP.

A receipt handle is the handle of POP and the message's place in the commit log, which a dead letter
needs. Source: AckMessageActivity, ChangeInvisibleDurationActivity,
ForwardMessageToDLQActivity of 5.5.0. Tests: test_server.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.grpc_service.callers import Caller
from sparrowmq.grpc_service.client_table import Clients
from sparrowmq.grpc_service.messages import Code
from sparrowmq.grpc_service.statuses import Rejected, check_answer
from sparrowmq.model.message import DEAD_LETTER_LEVEL
from sparrowmq.model.whole_number import read_whole_number
from sparrowmq.protocol.bodies import encode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    decode_header,
    encode_header,
)
from sparrowmq.protocol.pop_handle import (
    BatchAckBody,
    BatchAckResponseHeader,
    ChangeInvisibleTimeResponseHeader,
    PopHandle,
    batch_acks,
    parse_handle,
)

_POSITION_FIELD = 8
_DIGITS_MAX = 19
# A message on its way to the dead letters is nobody else's for so long.
_GIVING_UP_MS = 60_000


class Receipt(NamedTuple):
    """A message on its way to, or at, a consumer.

    Args:
        position: the message's place in the commit log.
    """

    group: str
    topic: str
    handle: PopHandle
    position: int

    @property
    def text(self) -> str:
        """The receipt handle."""
        return f"{self.handle.encode()} {self.position}"


@dataclass(slots=True)
class Ending:
    """A message that a call finishes, or gives another time.

    Args:
        receipt: it has the handle that is valid now.
        is_done: whether the broker has done it; otherwise the call may be repeated.
        is_dead_letter: whether the message is among the dead letters already.
    """

    receipt: Receipt
    is_done: bool = False
    is_dead_letter: bool = False


def parse_receipt(group: str, topic: str, text: str) -> Receipt:
    """Return the receipt of a receipt handle. Raises: Rejected."""
    try:
        handle = parse_handle(text)
    except RemoteProtocolError as error:
        raise Rejected(Code.INVALID_RECEIPT_HANDLE, str(error)) from None
    position = text.split(" ")[_POSITION_FIELD:][:1]
    number = read_whole_number(position[0], _DIGITS_MAX) if position else None
    if number is None:
        reason = f"the handle {text[:80]!r} does not say where the message is stored"
        raise Rejected(Code.INVALID_RECEIPT_HANDLE, reason)
    return Receipt(group, topic, handle, number)


async def acknowledge(
    clients: Clients, caller: Caller, receipts: Sequence[Receipt]
) -> list[Rejected | None]:
    """Finish messages, several by one request; return why each is refused, None for success."""
    if len(receipts) > 1 and all(receipt.handle.fits_batch for receipt in receipts):
        # One invented handle may spoil a batch.
        with contextlib.suppress(Rejected):
            return await _acknowledge_batch(clients, caller, receipts)
    refused: list[Rejected | None] = []
    for receipt in receipts:
        try:
            await _acknowledge_one(clients, caller, receipt)
        except Rejected as error:
            refused.append(error)
        else:
            refused.append(None)
    return refused


async def _acknowledge_batch(
    clients: Clients, caller: Caller, receipts: Sequence[Receipt]
) -> list[Rejected | None]:
    acks, places = batch_acks((each.handle, each.group, each.topic) for each in receipts)
    body = encode_body(BatchAckBody(acks=acks))
    asked = RemotingCommand(code=RequestCode.BATCH_ACK_MESSAGE, body=body)
    answer = await clients.ask_well(caller, asked)
    left_out = decode_header(BatchAckResponseHeader, answer.ext_fields).read()
    gone = Rejected(Code.INVALID_RECEIPT_HANDLE, "the message came again, or is not in flight")
    return [gone if place in left_out else None for place in places]


async def _acknowledge_one(clients: Clients, caller: Caller, receipt: Receipt) -> None:
    """Finish a message. Raises: Rejected."""
    header = receipt.handle.ack_header(receipt.group, receipt.topic)
    asked = RemotingCommand(code=RequestCode.ACK_MESSAGE, ext_fields=encode_header(header))
    await clients.ask_well(caller, asked)


async def change_invisible(
    clients: Clients,
    caller: Caller,
    ending: Ending,
    *,
    invisible_ms: int,
    is_attempt: bool = True,
) -> None:
    """Let a message be invisible for another time, from now on.

    The broker names the new handle also where its log cannot take the change yet.

    Args:
        ending: gets the new handle.
        is_attempt: whether the next delivery counts as an attempt.

    Raises: Rejected.
    """
    receipt = ending.receipt
    header = receipt.handle.change_header(
        receipt.group, receipt.topic, invisible_ms=invisible_ms, suspend=not is_attempt
    )
    asked = RemotingCommand(
        code=RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext_fields=encode_header(header)
    )
    answer = await clients.ask(caller, asked)
    if answer.ext_fields:
        found = decode_header(ChangeInvisibleTimeResponseHeader, answer.ext_fields)
        ending.receipt = receipt._replace(handle=receipt.handle.changed(found))
    check_answer(answer)


async def give_up(clients: Clients, caller: Caller, ending: Ending, *, message_id: str) -> None:
    """Put a message among the group's dead letters, and finish it then.

    A call that is repeated because its answer was lost makes no second dead letter.

    Args:
        ending: gets what a repeated call needs to know.

    Raises: Rejected.
    """
    if ending.is_dead_letter:
        await _acknowledge_one(clients, caller, ending.receipt)
        return
    try:
        await change_invisible(clients, caller, ending, invisible_ms=_GIVING_UP_MS)
    except Rejected as error:
        if error.code != Code.INVALID_RECEIPT_HANDLE:
            raise
        # This succeeds for a message that is finished.
        await _acknowledge_one(clients, caller, ending.receipt)
        return
    receipt = ending.receipt
    header = ConsumerSendMsgBackRequestHeader(
        position=receipt.position,
        group=receipt.group,
        delay_level=DEAD_LETTER_LEVEL,
        origin_msg_id=message_id,
        origin_topic=receipt.topic,
        max_reconsume_times=0,
    )
    asked = RemotingCommand(
        code=RequestCode.CONSUMER_SEND_MSG_BACK, ext_fields=encode_header(header)
    )
    try:
        await clients.ask_well(caller, asked)
    except Rejected as error:
        # Stored, but not on the disk yet, as the acknowledgement behind it will not be.
        if error.code != Code.MASTER_PERSISTENCE_TIMEOUT:
            raise
    ending.is_dead_letter = True
    await _acknowledge_one(clients, caller, receipt)
