"""A member's requests to brokers: heartbeats, leaving, and the other members of the group.

Source: MQClientInstance.sendHeartbeatToAllBroker, unregisterClient; MQClientAPIImpl.
Tests: test_with_broker.py.
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
from sparrowmq.model.whole_number import read_whole_number
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

# The bounds of a broker's expiry. Below the lower one, heartbeats would flood the broker.
EXPIRY_MS_MIN = 1_000
EXPIRY_DIGITS_MAX = 9

# How long a member may take to answer which queues it has in hand.
MEMBER_TIMEOUT_MS = 1_000


class HeartbeatRound(NamedTuple):
    """The result of a heartbeat to all brokers.

    Args:
        failures: the error of each broker that could not be reached.
        expiry_ms: the shortest time after which a broker forgets a silent SparrowMQ member; None
            if no broker returned one.
        versions: the versions of the brokers that answered, as `MQVersion` counts them; those of
            SparrowMQ's brokers are marked (`member_marker`), and so higher than any other.
    """

    failures: dict[str, SparrowError]
    expiry_ms: int | None
    versions: dict[str, int]


class HeartbeatAnswer(NamedTuple):
    """A broker's answer to a heartbeat: its expiry and its version, as in `HeartbeatRound`."""

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
    expiry_ms = read_whole_number(text, EXPIRY_DIGITS_MAX)
    return None if expiry_ms is None or expiry_ms < EXPIRY_MS_MIN else expiry_ms


def heartbeat_all(
    addresses: Sequence[str], data: HeartbeatData, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[HeartbeatRound]:
    """Register this client at all brokers at the same time."""
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
    """Unregister this client's groups at one broker.

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


def says_no_members(error: SparrowError) -> bool:
    """Return whether a broker answered a request for the list that the group has no member.

    Brokers have no code of its own for that; Apache's of 4.x deny access by the same one.
    """
    if not isinstance(error, BrokerError) or error.is_denial:
        return False
    return error.code == ResponseCode.SYSTEM_ERROR


def consumer_owners(
    address: str, group: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[OwnersListBody]:
    """Return the list of members and the owners of the broker's queues.

    The owners are None unless the broker is a SparrowMQ broker.

    Raises: TransportError; BrokerError, also where the broker knows no member of the group.
    """
    header = GetConsumerListByGroupRequestHeader(consumer_group=group, sparrowmq_owners=True)
    code = RequestCode.GET_CONSUMER_LIST_BY_GROUP
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_answer(OwnersListBody, reply, address)


def running_info(
    address: str, group: str, *, client_id: str, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[ConsumerRunningInfo]:
    """Return a member's report about itself, asked for through the broker at an address.

    Raises: TransportError; BrokerError, also where the member does not answer the broker.
    """
    header = GetConsumerRunningInfoRequestHeader(consumer_group=group, client_id=client_id)
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_answer(ConsumerRunningInfo, reply, address)


def is_silence(error: SparrowError) -> bool:
    """Return whether an error means that a member did not answer, here or at its broker."""
    if isinstance(error, InvokeTimeout):
        return True
    return isinstance(error, BrokerError) and error.code == ResponseCode.CONSUME_MSG_TIMEOUT


def consumer_connections(
    address: str, group: str, *, timeout_ms: int = INVOKE_TIMEOUT_MS
) -> Operation[ConsumerConnection]:
    """Return a group's connections at a broker, and the group's subscriptions.

    Raises: TransportError; BrokerError with CONSUMER_NOT_ONLINE if the group has no connection.
    """
    header = GetConsumerConnectionListRequestHeader(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    reply = yield from ask(address, code, header, timeout_ms=timeout_ms)
    return decode_answer(ConsumerConnection, reply, address)
