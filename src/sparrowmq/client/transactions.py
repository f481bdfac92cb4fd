"""What a transactional producer knows of its transactions: which outcomes brokers ask for. Pure.

Brokers ask any producer of the group about any half message of the group, also about those of
another process that is gone. What cannot be answered now is asked again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from sparrowmq.calling.effects import Event
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.subscriber import RequestFailed
from sparrowmq.errors import RemoteProtocolError, SparrowError
from sparrowmq.model import MessageExt, MessageQueue, TransactionState
from sparrowmq.model.message import PROPERTY_PRODUCER_GROUP
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import CheckTransactionStateRequestHeader, decode_header
from sparrowmq.protocol.record import decode_messages

# TransactionMQProducer.checkRequestHoldMax. Further questions are dropped: brokers ask again.
QUESTIONS_MAX = 2_000
# How many calls of the check function run at once.
CHECKS_AT_ONCE = 4

Check: TypeAlias = Callable[[MessageExt], TransactionState]
AsyncCheck: TypeAlias = Callable[[MessageExt], Awaitable[TransactionState] | TransactionState]


class HalfMessage(NamedTuple):
    """A message that no consumer sees before its transaction is committed, and where it waits.

    Attributes:
        msg_id: its id, which it keeps; the check function finds it in `message.msg_id`.
        offset_msg_id: where the half message stands in its broker's log.
        queue: where it belongs.
        half_offset: its place in the half topic.
    """

    msg_id: str
    offset_msg_id: str
    queue: MessageQueue
    half_offset: int


class Question(NamedTuple):
    """A broker's question for the outcome of a half message."""

    address: str
    header: CheckTransactionStateRequestHeader
    message: MessageExt


class CheckFailed(NamedTuple):
    """No outcome was given for a message that a broker asked for, or it did not get there."""

    message: MessageExt
    error: Exception


class EndFailed(NamedTuple):
    """A broker did not confirm the end of a transaction."""

    msg_id: str
    outcome: TransactionState
    error: SparrowError


@dataclass(slots=True, kw_only=True, eq=False)
class Coordinator:
    """The state of a transactional producer.

    Args:
        publisher: sends its messages.
        check: the user's function that gives the outcome of a half message.
        report: called with each failure.
    """

    publisher: Publisher
    check: AsyncCheck
    report: Callable[[CheckFailed | EndFailed | RequestFailed], None]
    wake: Event = field(default_factory=Event)
    questions: deque[Question] = field(default_factory=deque)
    answering: int = 0
    addresses: tuple[str, ...] = ()
    heartbeat_due_ms: int = 0
    is_beating: bool = False
    is_closing: bool = False

    def close(self) -> None:
        """Have its loop end. On the driver's thread."""
        self.is_closing = True
        self.wake.set()


def note_question(
    coordinators: Mapping[str, Coordinator], address: str, request: RemotingCommand
) -> None:
    """Take a broker's CHECK_TRANSACTION_STATE, to be answered by the producer of its group.

    Raises: RemoteProtocolError if it cannot be read.
    """
    header = decode_header(CheckTransactionStateRequestHeader, request.ext_fields)
    decoded = decode_messages(request.body or b"", broker_name="")
    if not decoded.messages:
        raise RemoteProtocolError(f"no message in a question for an outcome: {decoded.failure}")
    message = decoded.messages[0]
    coordinator = coordinators.get(message.properties.get(PROPERTY_PRODUCER_GROUP, ""))
    if coordinator is None or len(coordinator.questions) >= QUESTIONS_MAX:
        return
    topic = coordinator.publisher.config.namespace.unwrap(message.topic)
    coordinator.questions.append(Question(address, header, replace(message, topic=topic)))
    coordinator.wake.set()


def note_broker_lost(coordinators: Mapping[str, Coordinator], address: str, *, now_ms: int) -> None:
    """Register at the brokers again, since one of them may have been started anew."""
    for coordinator in list(coordinators.values()):
        if address in coordinator.addresses:
            coordinator.heartbeat_due_ms = now_ms
            coordinator.wake.set()
