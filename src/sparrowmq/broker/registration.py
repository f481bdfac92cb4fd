"""How a broker tells the name servers of itself: operations."""

from __future__ import annotations

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.calling.effects import Operation, invoke
from sparrowmq.errors import BrokerError
from sparrowmq.protocol.bodies import MASTER_ID, RegisterBrokerBody
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
    encode_header,
)
from sparrowmq.protocol.register_body import compute_body_crc, encode_register_body

# BrokerConfig.registerBrokerTimeoutMills is 6 s; a topic's creation waits for it.
REGISTER_TIMEOUT_MS = 3_000
UNREGISTER_TIMEOUT_MS = 1_000


def register(
    config: BrokerConfig, body: RegisterBrokerBody, *, name_server: str
) -> Operation[None]:
    """Register the broker and its topics at one name server.

    Yields: Invoke.
    Raises: TransportError if the name server cannot be reached, BrokerError if it refuses.
    """
    data = encode_register_body(body)
    ip, _, port = config.address.rpartition(":")
    header = RegisterBrokerRequestHeader(
        broker_name=config.broker_name,
        broker_addr=config.address,
        cluster_name=config.cluster_name,
        # Nobody listens there: we have no replication, but peers want the field.
        ha_server_addr=f"{ip}:{int(port) + 1}",
        broker_id=MASTER_ID,
        compressed=False,
        body_crc32=compute_body_crc(data),
    )
    request = RemotingCommand(
        code=RequestCode.REGISTER_BROKER, ext_fields=encode_header(header), body=data
    )
    yield from _invoke_checked(name_server, request, timeout_ms=REGISTER_TIMEOUT_MS)


def unregister(config: BrokerConfig, *, name_server: str) -> Operation[None]:
    """Tell one name server that the broker stops.

    Yields: Invoke.
    Raises: as `register`.
    """
    header = UnRegisterBrokerRequestHeader(
        broker_name=config.broker_name,
        broker_addr=config.address,
        cluster_name=config.cluster_name,
        broker_id=MASTER_ID,
    )
    request = RemotingCommand(code=RequestCode.UNREGISTER_BROKER, ext_fields=encode_header(header))
    yield from _invoke_checked(name_server, request, timeout_ms=UNREGISTER_TIMEOUT_MS)


def _invoke_checked(address: str, request: RemotingCommand, *, timeout_ms: int) -> Operation[None]:
    reply = yield from invoke(address, request, timeout_ms=timeout_ms)
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerError(reply.code, reply.remark or "", address=address)
