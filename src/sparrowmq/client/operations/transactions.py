"""Transactions: send a half message, end it, and answer brokers that ask for its outcome.

If the end of a half message does not reach the broker, the broker later asks any connected producer
of the group for the outcome. A producer therefore registers at all brokers repeatedly.

Source: DefaultMQProducerImpl.sendMessageInTransaction, endTransaction, checkTransactionState.
Tests: broker/test_transactions.py.
"""

from __future__ import annotations

from functools import partial

from sparrowmq.calling.effects import Call, Now, Operation, Spawn, Wait
from sparrowmq.client.arguments import check_message
from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.client.operations.heartbeats import heartbeat_all, unregister
from sparrowmq.client.operations.observe import observe
from sparrowmq.client.operations.request import ask
from sparrowmq.client.operations.routes import find_brokers, look_up_publish_route
from sparrowmq.client.operations.send import send
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.subscriber import RequestFailed
from sparrowmq.client.transaction_outcomes import (
    CHECKS_AT_ONCE,
    CheckFailed,
    Coordinator,
    EndFailed,
    HalfMessage,
    Question,
)
from sparrowmq.errors import NoWritableQueue, SendFailed, SparrowError, UsageError
from sparrowmq.membership.member import HEARTBEAT_RETRY_MS
from sparrowmq.model import Message, SendResult, SendStatus, TransactionState
from sparrowmq.protocol.bodies import HeartbeatData, ProducerData
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import EndTransactionRequestHeader
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.record import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK

_TYPES = {
    TransactionState.COMMIT: TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: TRANSACTION_ROLLBACK,
}

_DONE = {TransactionState.COMMIT: "committed", TransactionState.ROLLBACK: "rolled back"}


def send_half(
    coordinator: Coordinator, message: Message, *, queue: QueueChoice | None = None
) -> Operation[HalfMessage]:
    """Return the operation that sends a message that waits for the end of its transaction.

    Raises: as `send`; SendFailed also if the broker does not confirm that it is safely stored.
    """
    check_message(message)
    if message.delay_level:
        raise UsageError("the message of a transaction cannot be delayed; send it without")
    publisher = coordinator.publisher
    half = partial(send, publisher, queue=queue, is_half=True)
    return _confirm_half(coordinator, message, observe(publisher, message, half, is_half=True))


def _confirm_half(
    coordinator: Coordinator, message: Message, sent: Operation[SendResult]
) -> Operation[HalfMessage]:
    """Send a half message, and roll it back unless it is safely stored."""
    result = yield from sent
    half = HalfMessage(result.msg_id, result.offset_msg_id, result.queue, result.queue_offset)
    if result.status is not SendStatus.SEND_OK:
        yield from end(coordinator, half, TransactionState.ROLLBACK)
        raise SendFailed(
            f"the half message {half.msg_id} to topic {message.topic!r} may not be safely stored "
            f"({result.status.name}), and was rolled back; begin the transaction again",
            brokers_tried=(result.queue.broker_name,),
        )
    return half


def end(
    coordinator: Coordinator, half: HalfMessage, outcome: TransactionState
) -> Operation[TransactionState]:
    """Report a transaction's outcome to the broker, and return the outcome that it confirmed.

    The request is sent once. If it is lost, the broker asks for the outcome. A broker takes each
    outcome that comes: it would deliver a message that is committed after its rollback, and
    Apache's delivers one twice that is committed twice. So the first outcome stays.

    Returns: the outcome, or UNKNOWN if the broker did not confirm it.
    Raises: UsageError if the other outcome was reported before.
    """
    if not isinstance(half, HalfMessage):
        raise UsageError(f"{half!r} is not a HalfMessage; give what `send_half` returned")
    before, is_confirmed = coordinator.outcomes.get(half, (outcome, False))
    if before is not outcome:
        open_end = (
            "" if is_confirmed else ", and its broker, which did not confirm it, asks `check`"
        )
        raise UsageError(
            f"half message {half.msg_id} was {_DONE[before]} before{open_end}; "
            f"it cannot be {_DONE[outcome]} now"
        )
    if is_confirmed:
        return outcome
    coordinator.undecided.discard(half)
    coordinator.note_outcome(half, outcome, is_confirmed=False)
    publisher = coordinator.publisher
    queue = publisher.config.namespace.wrap_queue(half.queue)
    try:
        timeout_ms = publisher.config.send_timeout_ms
        if publisher.routes.find(queue.topic) is None:
            # Another process may have sent the half message.
            yield from look_up_publish_route(publisher, queue.topic, timeout_ms=timeout_ms)
        address = publisher.routes.master_of(queue)
        if address is None:
            broker_name = publisher.routes.host(queue)
            raise NoWritableQueue(f"broker {broker_name!r} has no master in any route")
        _, position = decode_offset_msg_id(half.offset_msg_id)
        header = EndTransactionRequestHeader(
            producer_group=publisher.config.group,
            tran_state_table_offset=half.half_offset,
            commit_log_position=position,
            commit_or_rollback=_TYPES[outcome],
            msg_id=half.msg_id,
            transaction_id=half.msg_id,
        )
        yield from ask(address, RequestCode.END_TRANSACTION, header, timeout_ms=timeout_ms)
    except SparrowError as error:
        coordinator.report(EndFailed(half.msg_id, outcome, error))
        return TransactionState.UNKNOWN
    coordinator.note_outcome(half, outcome, is_confirmed=True)
    return outcome


def serve(coordinator: Coordinator) -> Operation[None]:
    """Register the producer and answer the brokers' questions until the producer is closed."""
    while not coordinator.is_closing:
        coordinator.wake.clear()
        now_ms: int = yield Now()
        if now_ms >= coordinator.heartbeat_due_ms and not coordinator.is_beating:
            coordinator.is_beating = True
            yield Spawn(_heartbeat(coordinator), "heartbeat")
        while coordinator.questions and coordinator.answering < CHECKS_AT_ONCE:
            coordinator.answering += 1
            yield Spawn(_answer(coordinator, coordinator.questions.popleft()), "check")
        if not coordinator.is_beating:
            yield Wait(coordinator.wake, max(0, coordinator.heartbeat_due_ms - now_ms))
        else:
            yield Wait(coordinator.wake, None)
    yield from _end_answers(coordinator)
    yield from _leave(coordinator)


def _heartbeat(coordinator: Coordinator) -> Operation[None]:
    """Register the producer at all masters."""
    try:
        yield from _register(coordinator)
    finally:
        coordinator.is_beating = False
        coordinator.wake.set()


def _register(coordinator: Coordinator) -> Operation[None]:
    publisher = coordinator.publisher
    config = publisher.config
    timeout_ms = config.times.invoke_timeout_ms
    begun_ms: int = yield Now()
    # A connection that is lost meanwhile makes it earlier.
    coordinator.heartbeat_due_ms = begun_ms + config.times.heartbeat_ms
    is_complete = False
    try:
        brokers = yield from find_brokers(publisher.name_servers, timeout_ms=timeout_ms)
        coordinator.addresses = tuple(sorted(broker.address for broker in brokers))
        is_complete = True
    except SparrowError as error:
        # The brokers known before still get the heartbeat.
        coordinator.report(RequestFailed("list of brokers", None, error))
    producer = ProducerData(group_name=config.group)
    data = HeartbeatData(client_id=config.client_id, producer_data_set=[producer])
    failures, *_ = yield from heartbeat_all(coordinator.addresses, data, timeout_ms=timeout_ms)
    for failure in failures.values():
        coordinator.report(RequestFailed("heartbeat", None, failure))
    now_ms: int = yield Now()
    if failures or not is_complete or coordinator.heartbeat_due_ms <= now_ms:
        coordinator.heartbeat_due_ms = now_ms + HEARTBEAT_RETRY_MS


def _answer(coordinator: Coordinator, question: Question) -> Operation[None]:
    """Ask the user's function for the outcome, and answer the broker that asked."""
    address, header, message = question
    try:
        outcome = yield Call(coordinator.check, (message,))
        if not isinstance(outcome, TransactionState):
            raise UsageError(
                f"the check function returned {outcome!r}; it must return a TransactionState"
            )
        if outcome is not TransactionState.UNKNOWN:
            ending = EndTransactionRequestHeader(
                producer_group=coordinator.publisher.config.group,
                tran_state_table_offset=header.tran_state_table_offset,
                commit_log_position=header.commit_log_position,
                commit_or_rollback=_TYPES[outcome],
                from_transaction_check=True,
                msg_id=message.msg_id,
                transaction_id=header.transaction_id,
            )
            timeout_ms = coordinator.publisher.config.send_timeout_ms
            yield from ask(address, RequestCode.END_TRANSACTION, ending, timeout_ms=timeout_ms)
    except Exception as error:
        # The user's code may raise anything; the broker asks again.
        coordinator.report(CheckFailed(message, error))
    finally:
        coordinator.answering -= 1
        coordinator.wake.set()


def _end_answers(coordinator: Coordinator) -> Operation[None]:
    """Wait for the answers under way, for as long as for one request."""
    now_ms: int = yield Now()
    deadline_ms = now_ms + coordinator.publisher.config.send_timeout_ms
    while coordinator.answering and now_ms < deadline_ms:
        coordinator.wake.clear()
        yield Wait(coordinator.wake, deadline_ms - now_ms)
        now_ms = yield Now()


def _leave(coordinator: Coordinator) -> Operation[None]:
    """Unregister this producer at every broker; ignore failures."""
    config = coordinator.publisher.config
    yield from gather_outcomes(
        [
            unregister(address, config.client_id, producer_group=config.group)
            for address in coordinator.addresses
        ],
        name="unregister",
    )
