"""List the producers that are connected to brokers. Tests: dash/test_cluster_pages.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.gather import WIDTH, gather_outcomes
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.errors import SparrowError
from sparrowmq.protocol.bodies import ProducerTableInfo
from sparrowmq.protocol.codes import RequestCode


class ConnectedProducer(NamedTuple):
    """A producer: its group, client id, host and language, its brokers, and its last heartbeat."""

    group: str
    client_id: str
    host: str
    language: str
    broker_names: tuple[str, ...]
    last_timestamp_ms: int


def list_producers(
    addresses: Mapping[str, str], *, timeout_ms: int
) -> Operation[list[ConnectedProducer]]:
    """Return the producers that are connected to some brokers, by group and client id.

    No broker knows to which topics a producer sends. A broker that does not answer is left out.

    Args:
        addresses: the brokers' addresses, by name.

    Raises: TransportError, BrokerError if no broker answers; access control keeps the list for
    administrators.
    """
    asked = [_ask(address, timeout_ms=timeout_ms) for address in addresses.values()]
    tables = yield from gather_outcomes(asked, name="producers", at_once=WIDTH)
    errors = [each for each in tables if isinstance(each, SparrowError)]
    if errors and len(errors) == len(tables):
        raise errors[0]
    found: dict[tuple[str, str, str, str], dict[str, int]] = {}
    for broker, table in zip(addresses, tables, strict=True):
        for group, infos in {} if isinstance(table, SparrowError) else table.data.items():
            for info in infos:
                # A client has another port at each broker.
                host = info.remote_ip.removeprefix("/").rpartition(":")[0]
                key = (group, info.client_id, host, info.language or "")
                found.setdefault(key, {})[broker] = info.last_update_timestamp_ms
    return [
        ConnectedProducer(*key, tuple(sorted(seen)), max(seen.values()))
        for key, seen in sorted(found.items())
    ]


def _ask(address: str, *, timeout_ms: int) -> Operation[ProducerTableInfo]:
    reply = yield from ask(address, RequestCode.GET_ALL_PRODUCER_INFO, timeout_ms=timeout_ms)
    return decode_answer(ProducerTableInfo, reply, address)
