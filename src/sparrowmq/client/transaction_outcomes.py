"""The state of a transactional producer's transactions: the outcomes that brokers ask for. Pure.

Brokers ask any producer of the group about any half message of the group, also about those of a
process that has ended. A question without an answer is asked again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
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
# The latest transactions whose outcome is remembered, some 5 MB.
OUTCOMES_MAX = 10_000
# How many calls of the check function run at once.
CHECKS_AT_ONCE = 4

Check: TypeAlias = Callable[[MessageExt], TransactionState]
AsyncCheck: TypeAlias = Callable[[MessageExt], Awaitable[TransactionState] | TransactionState]


class HalfMessage(NamedTuple):
    """A message that no consumer sees before its transaction is committed, and its place.

    Attributes:
        msg_id: the message's id, which stays the same; the check function finds it in
            `message.msg_id`.
        offset_msg_id: the position of the half message in its broker's log.
        queue: the queue of the committed message.
        half_offset: its offset in the half topic.
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
    """A broker asked for an outcome, and got none: the check failed or the answer was lost."""

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
    # The half messages of blocks that are to be ended with their block.
    undecided: set[HalfMessage] = field(default_factory=set)
    # What was reported of a half message first, and whether its broker confirmed it.
    outcomes: OrderedDict[HalfMessage, tuple[TransactionState, bool]] = field(
        default_factory=OrderedDict
    )
    answering: int = 0
    addresses: tuple[str, ...] = ()
    heartbeat_due_ms: int = 0
    is_beating: bool = False
    is_closing: bool = False

    def note_outcome(
        self, half: HalfMessage, outcome: TransactionState, *, is_confirmed: bool
    ) -> None:
        """Note what was reported of a half message."""
        self.outcomes[half] = outcome, is_confirmed
        if len(self.outcomes) > OUTCOMES_MAX:
            self.outcomes.popitem(last=False)

    def close(self) -> None:
        """End the loop of its answers. On the driver's thread."""
        self.is_closing = True
        self.wake.set()


def note_question(
    coordinators: Mapping[str, Coordinator], address: str, request: RemotingCommand
) -> None:
    """Take a broker's CHECK_TRANSACTION_STATE, which the producer of its group answers.

    Raises: RemoteProtocolError if the request cannot be read.
    """
    header = decode_header(CheckTransactionStateRequestHeader, request.ext_fields)
    decoded = decode_messages(request.body or b"", broker_name="")
    if not decoded.messages:
        raise RemoteProtocolError(
            f"a broker's question for an outcome holds no message: {decoded.failure}"
        )
    message = decoded.messages[0]
    coordinator = coordinators.get(message.properties.get(PROPERTY_PRODUCER_GROUP, ""))
    if coordinator is None or len(coordinator.questions) >= QUESTIONS_MAX:
        return
    topic = coordinator.publisher.config.namespace.unwrap(message.topic)
    coordinator.questions.append(Question(address, header, replace(message, topic=topic)))
    coordinator.wake.set()


def note_broker_lost(coordinators: Mapping[str, Coordinator], address: str, *, now_ms: int) -> None:
    """Register at the brokers again, since one of them may have restarted."""
    for coordinator in list(coordinators.values()):
        if address in coordinator.addresses:
            coordinator.heartbeat_due_ms = now_ms
            coordinator.wake.set()
