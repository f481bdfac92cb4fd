"""List, make, change and delete the accounts of access control, at every broker.

Source: AdminBrokerProcessor.updateAndCreateAccessConfig, deleteAccessConfig, of 4.x.
Tests: cli/test_acl.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.client.operations.routes import BrokerAt, find_brokers, find_masters
from sparrowmq.errors import UsageError
from sparrowmq.protocol.bodies import AclConfigBody
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import (
    DeleteAccessConfigRequestHeader,
    UpdateAccessConfigRequestHeader,
)

# The new settings of an account; a field that is None stays unchanged.
AccountChange: TypeAlias = UpdateAccessConfigRequestHeader


class BrokerAccount(NamedTuple):
    """An account at one broker; permissions as `NAME=PUB|SUB`, "" where none is given."""

    broker_name: str
    access_key: str
    is_admin: bool
    white_remote_address: str
    default_topic_perm: str
    default_group_perm: str
    topic_perms: tuple[str, ...]
    group_perms: tuple[str, ...]


def list_accounts(directory: Directory) -> Operation[list[BrokerAccount]]:
    """Return the accounts of every broker, by broker and access key, without their secrets.

    Raises: RouteError if no broker is known; BrokerError if access control is off; ConnectFailed;
    TransportError.
    """
    brokers = yield from find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    found = yield from gather([_accounts_of(directory, b) for b in brokers], name="accounts")
    return sorted(account for accounts in found for account in accounts)


def check_administrators(known: Sequence[BrokerAccount], access_key: str) -> None:
    """Raise a UsageError if a broker has no administrator but this one, which is to go."""
    others = {each.broker_name for each in known if each.is_admin and each.access_key != access_key}
    alone = [
        each.broker_name
        for each in known
        if each.is_admin and each.access_key == access_key and each.broker_name not in others
    ]
    if alone:
        raise UsageError(
            f"{access_key} is the only administrator of {', '.join(alone)}, and nobody could "
            "administer there any more; make another administrator first"
        )


def _accounts_of(directory: Directory, broker: BrokerAt) -> Operation[list[BrokerAccount]]:
    code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG
    reply = yield from ask(broker.address, code, timeout_ms=directory.timeout_ms)
    return [
        BrokerAccount(
            broker.name,
            each.access_key,
            each.admin,
            each.white_remote_address or "",
            each.default_topic_perm or "",
            each.default_group_perm or "",
            tuple(each.topic_perms or ()),
            tuple(each.group_perms or ()),
        )
        for each in decode_answer(AclConfigBody, reply, broker.address).plain_access_configs
    ]


def put_account(directory: Directory, change: AccountChange) -> Operation[None]:
    """Make an account at every broker, or change the given fields of an existing one.

    Raises: RouteError if no broker is known, or one has no master; BrokerError if one refuses;
    TransportError.
    """
    yield from _change(directory, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, change)


def delete_account(directory: Directory, access_key: str) -> Operation[None]:
    """Delete an account at every broker. Raises: as `put_account`."""
    header = DeleteAccessConfigRequestHeader(access_key=access_key)
    yield from _change(directory, RequestCode.DELETE_ACL_CONFIG, header)


def _change(
    directory: Directory, code: int, header: AccountChange | DeleteAccessConfigRequestHeader
) -> Operation[None]:
    timeout_ms = directory.timeout_ms
    brokers = yield from find_masters(directory)
    # A slave has rules of its own, which nobody copies from its master's.
    addresses = [address for broker in brokers for address in (broker.address, *broker.slaves)]
    requests = [ask(address, code, header, timeout_ms=timeout_ms) for address in addresses]
    yield from gather(requests, name=f"account {header.access_key}")
