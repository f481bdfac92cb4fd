"""Be a member: heartbeats, leaving, and who else is there.

Source: MQClientInstance.sendHeartbeatToAllBroker, unregisterClient; MQClientAPIImpl.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.client.operations.request import INVOKE_TIMEOUT_MS, ask
from sparrowmq.errors import SparrowError
from sparrowmq.protocol.bodies import (
    ConsumerConnection,
    ConsumerListBody,
    HeartbeatData,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from sparrowmq.runtime.effects import Operation


def heartbeat(address: str, body: bytes, *, timeout_ms: int = INVOKE_TIMEOUT_MS) -> Operation[None]:
    """Tell one broker of this client.

    Args:
        body: an encoded `HeartbeatData`.

    Raises: TransportError, BrokerError.
    """
    yield from ask(address, RequestCode.HEART_BEAT, body=body, timeout_ms=timeout_ms)


def heartbeat_all(
    addresses: Sequence[str], data: HeartbeatData, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[dict[str, SparrowError]]:
    """Tell all brokers of this client, at the same time.

    Returns: the error of each broker that could not be told.
    """
    body = encode_body(data)
    operations = [heartbeat(address, body, timeout_ms=timeout_ms) for address in addresses]
    outcomes = yield from gather_outcomes(operations, name="heartbeat")
    return {
        address: outcome
        for address, outcome in zip(addresses, outcomes, strict=True)
        if isinstance(outcome, SparrowError)
    }


def unregister(
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[None]:
    """Tell one broker that this client leaves the groups.

    Raises: TransportError, BrokerError.
    """
    header = UnregisterClientRequestHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    yield from ask(address, RequestCode.UNREGISTER_CLIENT, header, timeout_ms=timeout_ms)


def consumer_list(
    address: str, group: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[list[str]]:
    """Return the client ids of a group as a broker lists them: unordered, one per connection.

    Raises: TransportError; BrokerError, also where the broker knows no member of the group.
    """
    header = GetConsumerListByGroupRequestHeader(consumer_group=group)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_body(ConsumerListBody, reply.body).consumer_id_list


def consumer_connections(
    address: str, group: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[ConsumerConnection]:
    """Return who is connected to a broker for a group, and what the group subscribes to.

    Raises: TransportError; BrokerError with CONSUMER_NOT_ONLINE if nobody is.
    """
    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_body(ConsumerConnection, reply.body)
