"""Queue locks at the broker, for consumption in order and for handing queues over.

Source: RebalanceImpl.lock, lockAll, unlock; MQClientAPIImpl.lockBatchMQ, unlockBatchMQ.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import (
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchRequestBody,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode

# RebalanceImpl locks and unlocks with a timeout of 1000 ms.
LOCK_TIMEOUT_MS = 1_000


def lock_batch(
    address: str,
    group: str,
    *,
    client_id: str,
    queues: Sequence[MessageQueue],
    timeout_ms: int = LOCK_TIMEOUT_MS,
) -> Operation[frozenset[MessageQueue]]:
    """Ask a master for the locks of queues, or renew them.

    Returns: the queues whose lock this client holds now.
    Raises: TransportError, BrokerError.
    """
    request = LockBatchRequestBody(client_id=client_id, consumer_group=group, mq_set=list(queues))
    reply = yield from ask(
        address, RequestCode.LOCK_BATCH_MQ, body=encode_body(request), timeout_ms=timeout_ms
    )
    held = decode_answer(LockBatchResponseBody, reply, address).lock_ok_mq_set
    return frozenset(queues).intersection(held)


def unlock_batch(
    address: str,
    group: str,
    *,
    client_id: str,
    queues: Sequence[MessageQueue],
    timeout_ms: int = LOCK_TIMEOUT_MS,
) -> Operation[None]:
    """Give locks back and wait for the answer; the broker keeps other members' locks.

    Raises: TransportError, BrokerError.
    """
    request = UnlockBatchRequestBody(client_id=client_id, consumer_group=group, mq_set=list(queues))
    yield from ask(
        address, RequestCode.UNLOCK_BATCH_MQ, body=encode_body(request), timeout_ms=timeout_ms
    )
