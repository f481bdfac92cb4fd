"""Be a member: heartbeats, leaving, and who else is there.

Source: MQClientInstance.sendHeartbeatToAllBroker, unregisterClient; MQClientAPIImpl.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparrowmq.calling.effects import Invoke, Operation
from sparrowmq.client.operations.gather import gather_outcomes
from sparrowmq.client.operations.request import (
    INVOKE_TIMEOUT_MS,
    ask,
    decode_answer,
    error_of,
    make_request,
)
from sparrowmq.coordination.member_marker import EXPIRY_FIELD, mark_version
from sparrowmq.errors import BrokerError, InvokeTimeout, SparrowError
from sparrowmq.protocol.bodies import (
    ConsumerConnection,
    ConsumerListBody,
    ConsumerRunningInfo,
    HeartbeatData,
    OwnersListBody,
    encode_body,
)
from sparrowmq.protocol.codes import MQ_VERSION, RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    GetConsumerConnectionListRequestHeader,
    GetConsumerListByGroupRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    UnregisterClientRequestHeader,
)

# An expiry that a broker names is believed within these: below, heartbeats would come in a flood.
EXPIRY_MS_MIN = 1_000
EXPIRY_DIGITS_MAX = 9

# How long a member may take to answer another what it has.
MEMBER_TIMEOUT_MS = 1_000


class HeartbeatRound(NamedTuple):
    """What became of a heartbeat to all brokers.

    Args:
        failures: the error of each broker that could not be reached.
        expiry_ms: after how long a broker forgets a silent SparrowMQ member; the shortest, None
            where none says so.
        versions: of the brokers that answered, as `MQVersion` counts them.
    """

    failures: dict[str, SparrowError]
    expiry_ms: int | None
    versions: dict[str, int]


class HeartbeatAnswer(NamedTuple):
    """What a broker says to a heartbeat: see `HeartbeatRound`."""

    expiry_ms: int | None
    version: int


def heartbeat(
    address: str, body: bytes, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[HeartbeatAnswer]:
    """Register this client at one broker, with SparrowMQ's marker.

    Args:
        body: an encoded `HeartbeatData`.

    Raises: TransportError, BrokerError.
    """
    request = make_request(RequestCode.HEART_BEAT, body=body)
    request.version = mark_version(MQ_VERSION)
    reply: RemotingCommand = yield Invoke(address, request, timeout_ms)
    if reply.code != ResponseCode.SUCCESS:
        raise error_of(reply, address)
    expiry_ms = _parse_expiry((reply.ext_fields or {}).get(EXPIRY_FIELD, ""))
    return HeartbeatAnswer(expiry_ms, reply.version)


def _parse_expiry(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= EXPIRY_DIGITS_MAX):
        return None
    expiry_ms = int(text)
    return expiry_ms if expiry_ms >= EXPIRY_MS_MIN else None


def heartbeat_all(
    addresses: Sequence[str], data: HeartbeatData, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[HeartbeatRound]:
    """Register this client at all brokers, at the same time."""
    body = encode_body(data)
    operations = [heartbeat(address, body, timeout_ms=timeout_ms) for address in addresses]
    outcomes = yield from gather_outcomes(operations, name="heartbeat")
    failures: dict[str, SparrowError] = {}
    versions: dict[str, int] = {}
    expiries: list[int] = []
    for address, outcome in zip(addresses, outcomes, strict=True):
        if isinstance(outcome, SparrowError):
            failures[address] = outcome
            continue
        versions[address] = outcome.version
        if outcome.expiry_ms is not None:
            expiries.append(outcome.expiry_ms)
    return HeartbeatRound(failures, min(expiries, default=None), versions)


def unregister(
    address: str,
    client_id: str,
    *,
    producer_group: str | None = None,
    consumer_group: str | None = None,
    timeout_ms: int = INVOKE_TIMEOUT_MS,
) -> Operation[None]:
    """Have this client leave the groups at one broker.

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
    return decode_answer(ConsumerListBody, reply, address).consumer_id_list


def consumer_owners(
    address: str, group: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[OwnersListBody]:
    """Return the same with the owners of the broker's queues; None if the broker is not ours.

    Raises: TransportError; BrokerError, also where the broker knows no member of the group.
    """
    header = GetConsumerListByGroupRequestHeader(consumer_group=group, sparrowmq_owners=True)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_answer(OwnersListBody, reply, address)


def running_info(
    address: str, group: str, *, client_id: str, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[ConsumerRunningInfo]:
    """Return what a member reports of itself when the broker at an address asks it.

    Raises: TransportError; BrokerError, also where the member does not answer the broker.
    """
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_answer(ConsumerRunningInfo, reply, address)


def is_silence(error: SparrowError) -> bool:
    """Return whether a member that was asked said nothing: here or at the broker that asked it."""
    if isinstance(error, InvokeTimeout):
        return True
    return isinstance(error, BrokerError) and error.code == ResponseCode.CONSUME_MSG_TIMEOUT


def consumer_connections(
    address: str, group: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[ConsumerConnection]:
    """Return who is connected to a broker for a group, and what the group subscribes to.

    Raises: TransportError; BrokerError with CONSUMER_NOT_ONLINE if nobody is.
    """
    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_answer(ConsumerConnection, reply, address)
