"""Brokers: their runtime information, their settings, and their write permission.

Source: AdminBrokerProcessor.getBrokerRuntimeInfo, getBrokerConfig, updateBrokerConfig;
DefaultRequestProcessor.wipeWritePermOfBroker, addWritePermOfBroker of the name server.
Tests: cli/test_brokers_and_contexts.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.client.operations.routes import (
    BrokerAt,
    check_masters,
    find_brokers,
    find_route,
)
from sparrowmq.errors import (
    ConfigError,
    RemoteProtocolError,
    TopicRouteNotFound,
    UsageError,
    did_you_mean,
)
from sparrowmq.protocol.bodies import PERM_WRITE, KVTable
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import (
    AddWritePermOfBrokerResponseHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_header,
)


def find_broker(directory: Directory, name: str) -> Operation[BrokerAt]:
    """Return a broker by its name or its address.

    Raises: UsageError if there is no such broker; RouteError if no broker is known; ConnectFailed.
    """
    brokers = yield from find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    for broker in brokers:
        if name in (broker.name, broker.address):
            return broker
    names = [broker.name for broker in brokers]
    hint = did_you_mean(name, names, f"there are {', '.join(names)}")
    raise UsageError(f"there is no broker {name!r}{hint}")


def runtime_info(directory: Directory, broker: BrokerAt) -> Operation[Mapping[str, str]]:
    """Return a broker's runtime information, under RocketMQ's names.

    Raises: TransportError, BrokerError.
    """
    code = RequestCode.GET_BROKER_RUNTIME_INFO
    reply = yield from ask(broker.address, code, timeout_ms=directory.timeout_ms)
    return decode_answer(KVTable, reply, broker.address).table


def broker_config(directory: Directory, broker: BrokerAt) -> Operation[dict[str, str]]:
    """Return a broker's settings, under RocketMQ's names.

    Raises: TransportError; BrokerError; RemoteProtocolError if the settings are not text.
    """
    code = RequestCode.GET_BROKER_CONFIG
    reply = yield from ask(broker.address, code, timeout_ms=directory.timeout_ms)
    try:
        lines = (reply.body or b"").decode().splitlines()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(
            f"{broker.address} answers with settings that are not text"
        ) from (error)
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def lists_all_settings(known: Mapping[str, str]) -> bool:
    """Return whether a broker lists all its settings: Apache's. Ours list what tools read."""
    return "listenPort" in known


def check_setting_names(known: Mapping[str, str], wanted: Iterable[str]) -> None:
    """Raise a UsageError for a setting that a broker does not have."""
    for name in wanted:
        if name not in known:
            raise UsageError(f"the broker has no setting {name!r}{did_you_mean(name, known)}")


def set_broker_config(
    directory: Directory, broker: BrokerAt, settings: Mapping[str, str]
) -> Operation[None]:
    """Change settings of a running broker, if the broker allows remote changes.

    Apache's brokers confirm a setting that they do not have, or a value that they cannot read.

    Raises: ConfigError for a name or value with a line break, and for a value that the broker
    confirms and does not take; UsageError for a setting that Apache's broker does not have;
    RouteError if the broker has no master; BrokerError if the broker refuses, as SparrowMQ's
    brokers do for most settings; TransportError.
    """
    check_masters([broker])
    for name, value in settings.items():
        if not name or {*name, *value} & {"\n", "\r"} or {*name} & {"=", ":", "#", " "}:
            raise ConfigError(f"{name!r}={value!r} is not a line of settings")
    body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
    before = yield from broker_config(directory, broker)
    if lists_all_settings(before):
        check_setting_names(before, settings)
    code = RequestCode.UPDATE_BROKER_CONFIG
    yield from ask(broker.address, code, body=body, timeout_ms=directory.timeout_ms)
    after = yield from broker_config(directory, broker)
    for name, value in settings.items():
        now = after.get(name, "")
        if now == before.get(name) and now.lower() != value.strip().lower():
            raise ConfigError(f"{broker.name} did not take {name}={value}: it is {now!r} still")


def takes_messages(directory: Directory, broker: BrokerAt) -> Operation[bool | None]:
    """Return whether producers send to a broker, by the route of the topic with its name.

    None if no name server knows that topic.

    Raises: ConnectFailed if no name server answers; BrokerError.
    """
    timeout_ms = directory.timeout_ms
    try:
        route = yield from find_route(directory.name_servers, broker.name, timeout_ms=timeout_ms)
    except TopicRouteNotFound:
        return None
    perms = [each.perm for each in route.queue_datas if each.broker_name == broker.name]
    return any(perm & PERM_WRITE for perm in perms) if perms else None


def set_write_permission(
    directory: Directory, broker: BrokerAt, *, is_writable: bool
) -> Operation[int]:
    """Restore a broker's write permission, or withdraw it to stop the broker once it is consumed.

    Returns: the number of topics concerned, the largest among the name servers' answers.
    Raises: TransportError, BrokerError.
    """
    code = RequestCode.WIPE_WRITE_PERM_OF_BROKER
    if is_writable:
        code = RequestCode.ADD_WRITE_PERM_OF_BROKER
    header = WipeWritePermOfBrokerRequestHeader(broker_name=broker.name)
    # Each name server keeps its own routes.
    servers, timeout_ms = directory.name_servers.in_order(), directory.timeout_ms
    asked = [ask(server, code, header, timeout_ms=timeout_ms) for server in servers]
    replies = yield from gather(asked, name=f"write permission of {broker.name}")
    fields = [reply.ext_fields for reply in replies]
    if is_writable:
        added = [decode_header(AddWritePermOfBrokerResponseHeader, each) for each in fields]
        return max(each.add_topic_count for each in added)
    wiped = [decode_header(WipeWritePermOfBrokerResponseHeader, each) for each in fields]
    return max(each.wipe_topic_count for each in wiped)
