"""The operations by which a broker registers at the name servers, and asks them for routes.

All topics of a broker make a large body, and each new topic is registered at once. The broker
therefore first asks a name server for its version of this broker's topics. A name server with the
version of the round before gets the changes since, as from Apache's brokers. For a name server with
the newest version, the question alone shows that the broker lives. A name server that has forgotten
the broker, has never answered, or is reached over a new connection gets all topics.
Tests: test_registration.py, test_server.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.calling.effects import Operation, invoke
from sparrowmq.errors import BrokerError, SparrowError
from sparrowmq.protocol.bodies import (
    MASTER_ID,
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    TopicRouteData,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    GetRouteInfoRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    UnRegisterBrokerRequestHeader,
    decode_header,
    encode_header,
)
from sparrowmq.protocol.register_body import compute_body_crc, encode_register_body

# BrokerConfig.registerBrokerTimeoutMills is 6 s; a topic's creation waits for it.
REGISTER_TIMEOUT_MS = 3_000
UNREGISTER_TIMEOUT_MS = 1_000
# A member of Java waits 3 s for its assignment.
ROUTE_TIMEOUT_MS = 1_000


class RegistrationWork(NamedTuple):
    """The topics to register at the name servers.

    Args:
        base: the version of the topics that the round before has registered.
        changed: the topics made or changed since `base`, with the version of the whole table.
    """

    number: int
    base: DataVersion
    changed: TopicConfigTable
    table: TopicConfigTable


class Registrar:
    """Registers one broker, and keeps the last version that each name server accepted."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._versions: dict[str, DataVersion] = {}

    def register(self, work: RegistrationWork, *, name_server: str) -> Operation[None]:
        """Register the broker and its topics at one name server.

        Yields: Invoke.
        Raises: TransportError if the name server cannot be reached, BrokerError if it refuses.
        """
        known = self._versions.pop(name_server, None)
        version = work.changed.data_version
        has_known = (
            known is not None
            and known in (work.base, version)
            and (yield from self._has_version(known, name_server))
        )
        if not has_known:
            yield from self._send(work.table, name_server)
        elif known != version:
            yield from self._send(work.changed, name_server)
        self._versions[name_server] = version

    def forget(self, name_server: str) -> None:
        """Forget what a name server accepted: the connection to it has ended.

        A registration ends with its connection, also where the name server has not noticed yet.
        """
        self._versions.pop(name_server, None)

    def _has_version(self, version: DataVersion, name_server: str) -> Operation[bool]:
        header = QueryDataVersionRequestHeader(
            broker_name=self._config.broker_name,
            broker_addr=self._config.address,
            cluster_name=self._config.cluster_name,
            broker_id=MASTER_ID,
        )
        request = RemotingCommand(
            code=RequestCode.QUERY_DATA_VERSION,
            ext_fields=encode_header(header),
            body=encode_body(version),
        )
        reply = yield from _invoke_checked(name_server, request, timeout_ms=REGISTER_TIMEOUT_MS)
        return not decode_header(QueryDataVersionResponseHeader, reply.ext_fields).changed

    def _send(self, table: TopicConfigTable, name_server: str) -> Operation[None]:
        config = self._config
        data = encode_register_body(RegisterBrokerBody(topic_config_serialize_wrapper=table))
        ip, _, port = config.address.rpartition(":")
        header = RegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.address,
            cluster_name=config.cluster_name,
            # Nothing listens there: this broker has no replication, but peers need the field.
            ha_server_addr=f"{ip}:{int(port) + 1}",
            broker_id=MASTER_ID,
            compressed=False,
            body_crc32=compute_body_crc(data),
        )
        request = RemotingCommand(
            code=RequestCode.REGISTER_BROKER, ext_fields=encode_header(header), body=data
        )
        yield from _invoke_checked(name_server, request, timeout_ms=REGISTER_TIMEOUT_MS)

    def find_route(
        self, topic: str, *, name_servers: Sequence[str]
    ) -> Operation[TopicRouteData | None]:
        """Return a topic's route over all brokers, None if no name server has answered with one.

        Yields: Invoke.
        """
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        for address in name_servers:
            request = RemotingCommand(
                code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext_fields=encode_header(header)
            )
            with suppress(SparrowError):
                reply = yield from _invoke_checked(address, request, timeout_ms=ROUTE_TIMEOUT_MS)
                return decode_body(TopicRouteData, reply.body)
        return None

    def unregister(self, *, name_server: str) -> Operation[None]:
        """Unregister the broker at one name server.

        Yields: Invoke.
        Raises: as `register`.
        """
        config = self._config
        header = UnRegisterBrokerRequestHeader(
            broker_name=config.broker_name,
            broker_addr=config.address,
            cluster_name=config.cluster_name,
            broker_id=MASTER_ID,
        )
        request = RemotingCommand(
            code=RequestCode.UNREGISTER_BROKER, ext_fields=encode_header(header)
        )
        yield from _invoke_checked(name_server, request, timeout_ms=UNREGISTER_TIMEOUT_MS)


def _invoke_checked(
    address: str, request: RemotingCommand, *, timeout_ms: int
) -> Operation[RemotingCommand]:
    reply = yield from invoke(address, request, timeout_ms=timeout_ms)
    if reply.code != ResponseCode.SUCCESS:
        raise BrokerError(reply.code, reply.remark or "", address=address)
    return reply
