"""The name server as a machine: commands in, outputs out.

Source: DefaultRequestProcessor.java, KVConfigManager.java. Differs from RocketMQ 4.9: the answer to
an unknown request code is REQUEST_CODE_NOT_SUPPORTED, as in 5.x, where 4.9 does not answer; and no
request changes settings.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from enum import Enum
from types import MappingProxyType

import msgspec

from sparrowmq.nameserver.route_table import BrokerIdentity, RouteTable
from sparrowmq.protocol.bodies import (
    DataVersion,
    KVTable,
    TopicConfigTable,
    TopicList,
    decode_body,
    decode_file,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import (
    AddWritePermOfBrokerResponseHeader,
    DeleteKVConfigRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    GetKVConfigRequestHeader,
    GetKVConfigResponseHeader,
    GetKVListByNamespaceRequestHeader,
    GetRouteInfoRequestHeader,
    GetTopicsByClusterRequestHeader,
    PutKVConfigRequestHeader,
    QueryDataVersionRequestHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerRequestHeader,
    RegisterBrokerResponseHeader,
    UnRegisterBrokerRequestHeader,
    WipeWritePermOfBrokerRequestHeader,
    WipeWritePermOfBrokerResponseHeader,
    decode_header,
    encode_header,
)
from sparrowmq.protocol.register_body import compute_body_crc, decode_register_body
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.connections import Close, Connection, Fact, Output
from sparrowmq.serving.refusals import Refusals
from sparrowmq.serving.requests import (
    FAQ,
    Processor,
    Refusal,
    Request,
    Steps,
    answer,
    answer_in_steps,
    deny,
    serve,
)

# NamesrvUtil.NAMESPACE_ORDER_TOPIC_CONFIG.
ORDER_TOPIC_NAMESPACE = "ORDER_TOPIC_CONFIG"
# MQVersion.V3_0_11: before it, a registration's body is the bare table of topics.
_VERSION_WITH_REGISTER_BODY = 37
# From MQVersion.V4_9_4 on, clients read routes with quoted keys.
_VERSION_WITH_STANDARD_JSON = 401
# TopicSysFlag.FLAG_UNIT, FLAG_UNIT_SUB.
_UNIT, _UNIT_SUB = 1, 2
_KEYS_MAX, _NAMESPACES_MAX = 10_000, 1_000
# The settings of NamesrvConfig that apply to this name server.
_SETTINGS = b"productEnvName=center\nclusterTest=false\norderMessageEnable=true\n"
SCAN_INTERVAL_MS = 10_000


class NameServerRefusal(Enum):
    """The kinds of refused requests and of topics that are left out."""

    REGISTRATION = "registrations"
    UNREGISTRATION = "unregistrations"
    TOPIC = "topics"
    ACCESS = "requests denied"


class KVConfig:
    """Texts by namespace and key, kept in `kvConfig.json`. A table never changes."""

    def __init__(self, tables: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> None:
        self._tables = tables

    @classmethod
    def decode(cls, data: bytes) -> KVConfig:
        """Return the table of a file's content.

        Raises: RemoteProtocolError if the content is damaged.
        """
        return cls(decode_file(_KVConfigFile, data).config_table)

    def encode(self) -> bytes:
        """Return the content of the file."""
        return encode_body(_KVConfigFile(config_table=self._tables), pretty=True)

    def put(self, namespace: str, key: str, value: str) -> KVConfig | None:
        """Return a table with a value; None if there are too many."""
        tables = self._tables
        if namespace not in tables and len(tables) >= _NAMESPACES_MAX:
            # A namespace outlives its last value, as in RocketMQ, here until it is in the way.
            tables = {name: values for name, values in tables.items() if values}
            if len(tables) >= _NAMESPACES_MAX:
                return None
        values = tables.get(namespace, {})
        if key not in values and sum(map(len, tables.values())) >= _KEYS_MAX:
            return None
        return KVConfig({**tables, namespace: {**values, key: value}})

    def find(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._tables.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> KVConfig:
        """Return the table without a value."""
        tables = dict(self._tables)
        if namespace in tables:
            tables[namespace] = {k: v for k, v in tables[namespace].items() if k != key}
        return KVConfig(tables)

    def table(self, namespace: str) -> Mapping[str, str] | None:
        """Return all values of a namespace, None if the namespace is not known."""
        return self._tables.get(namespace)


class _KVConfigFile(msgspec.Struct, frozen=True, rename="camel"):
    config_table: Mapping[str, Mapping[str, str]] = {}


class NameServer:
    """One name server.

    Args:
        kv_config: the table of its file, None without a file.
        access: the rules of access control; None allows everything.
        save: writes the content of the table's file, or raises OSError; None without a file.
    """

    def __init__(
        self,
        kv_config: KVConfig | None = None,
        *,
        access: AccessControl | None = None,
        save: Callable[[bytes], None] | None = None,
    ) -> None:
        self._access = access
        self._save = save
        self.routes = RouteTable()
        self.kv_config = kv_config or KVConfig()
        self.refusals = Refusals(NameServerRefusal)
        self._scan_due_ms = 0

    def handle(
        self, command: RemotingCommand, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Handle one command and return the outputs."""
        if command.is_response:
            return ()
        request = Request(command, connection, now_ms, timestamp_ms)
        if self._access is not None:
            reason = self._access.find_refusal(command, connection.address)
            if reason is not None:
                text = f"refused {connection.address}: {reason}"
                facts = self.refusals.note(NameServerRefusal.ACCESS, text, now_ms=now_ms)
                return [*deny(request, reason), *facts]
        return serve(PROCESSORS, self, request)

    def replace_texts(self, kv_config: KVConfig) -> None:
        """Write another table of texts, then use it.

        Raises: Refusal if it cannot be written; the table before stays in use.
        """
        if self._save is not None:
            try:
                self._save(kv_config.encode())
            except OSError as error:
                text = f"the change is not made, its file cannot be written: {error.strerror}"
                raise Refusal(ResponseCode.SYSTEM_ERROR, text) from error
        self.kv_config = kv_config

    def connection_closed(
        self, connection: Connection, *, now_ms: int, timestamp_ms: int
    ) -> Sequence[Output]:
        """Forget the brokers that registered over a connection."""
        del now_ms, timestamp_ms
        return [
            Fact(f"broker {lost.broker_name}:{lost.broker_id} at {lost.address} is gone")
            for lost in self.routes.unregister_connection(connection)
        ]

    def tick(self, *, now_ms: int) -> list[Output]:
        """Expire silent brokers and return the outputs; the caller calls about every second."""
        if now_ms < self._scan_due_ms:
            return []
        self._scan_due_ms = now_ms + SCAN_INTERVAL_MS
        outputs: list[Output] = []
        for lost, connection in self.routes.expire(now_ms):
            outputs.append(
                Fact(
                    f"broker {lost.broker_name}:{lost.broker_id} at {lost.address} is silent",
                    warning=True,
                )
            )
            outputs.append(Close(connection, "the broker is silent"))
        return outputs


def register_broker(server: NameServer, request: Request) -> Sequence[Output]:
    """Register a broker, unless the registration contradicts a live broker."""
    header = decode_header(RegisterBrokerRequestHeader, request.command.ext_fields)
    return answer_in_steps(request, _register(server, request, header))


def _register(server: NameServer, request: Request, header: RegisterBrokerRequestHeader) -> Steps:
    identity = BrokerIdentity(
        header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
    )
    _check_contradiction(server, request, identity)
    topics = yield from _read_topics(request.command, header)
    # Another broker may have come meanwhile.
    _check_contradiction(server, request, identity)
    registered = yield from server.routes.register(
        identity,
        topics,
        ha_address=header.ha_server_addr,
        connection=request.connection,
        now_ms=request.now_ms,
    )
    order = server.kv_config.table(ORDER_TOPIC_NAMESPACE)
    outputs = answer(
        request,
        ext_fields=encode_header(
            RegisterBrokerResponseHeader(
                ha_server_addr=registered.master_ha_address,
                master_addr=registered.master_address,
            )
        ),
        body=None if order is None else encode_body(KVTable(table=dict(order))),
    )
    facts: list[Output] = []
    if registered.is_new:
        facts.append(Fact(f"broker {_describe(identity)} has come"))
    for left_out in registered.left_out:
        text = f"left out a topic of broker {_describe(identity)}: {left_out}"
        facts += server.refusals.note(NameServerRefusal.TOPIC, text, now_ms=request.now_ms)
    return [*outputs, *facts]


def _check_contradiction(server: NameServer, request: Request, identity: BrokerIdentity) -> None:
    contradiction = server.routes.find_contradiction(
        identity, connection=request.connection, now_ms=request.now_ms
    )
    if contradiction is not None:
        raise _refusal(
            server,
            NameServerRefusal.REGISTRATION,
            request,
            f"broker {_describe(identity)} cannot be registered: {contradiction}",
        )


def _read_topics(
    command: RemotingCommand, header: RegisterBrokerRequestHeader
) -> Generator[None, None, TopicConfigTable]:
    body = command.body
    if header.body_crc32 and header.body_crc32 != compute_body_crc(body or b""):
        raise Refusal(ResponseCode.SYSTEM_ERROR, "crc32 not match", ext_fields={})
    if body is not None and command.version < _VERSION_WITH_REGISTER_BODY:
        return decode_body(TopicConfigTable, body)
    register = yield from decode_register_body(body, compressed=header.compressed)
    return register.topic_config_serialize_wrapper


def _describe(identity: BrokerIdentity) -> str:
    return f"{identity.broker_name}:{identity.broker_id} at {identity.address}"


def _refusal(server: NameServer, kind: NameServerRefusal, request: Request, remark: str) -> Refusal:
    """Count a refusal of a kind, and return the error for the caller to raise."""
    text = f"refused {request.connection.address}: {remark}"
    facts = server.refusals.note(kind, text, now_ms=request.now_ms)
    return Refusal(ResponseCode.SYSTEM_ERROR, remark, ext_fields={}, facts=facts)


def unregister_broker(server: NameServer, request: Request) -> Sequence[Output]:
    """Remove a broker that stops."""
    header = decode_header(UnRegisterBrokerRequestHeader, request.command.ext_fields)
    identity = BrokerIdentity(
        header.cluster_name, header.broker_name, header.broker_id, header.broker_addr
    )
    if not server.routes.may_unregister(identity, connection=request.connection):
        raise _refusal(
            server,
            NameServerRefusal.UNREGISTRATION,
            request,
            f"broker {_describe(identity)} has not registered from this host",
        )
    server.routes.unregister(identity)
    return answer(request)


def query_data_version(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer whether a broker's topics have changed since their registration."""
    header = decode_header(QueryDataVersionRequestHeader, request.command.ext_fields)
    given = decode_body(DataVersion, request.command.body)
    known = server.routes.note_alive(header.broker_addr, now_ms=request.now_ms)
    return answer(
        request,
        ext_fields=encode_header(QueryDataVersionResponseHeader(changed=known != given)),
        body=None if known is None else encode_body(known),
    )


def route_of_topic(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with a topic's route."""
    command = request.command
    header = decode_header(GetRouteInfoRequestHeader, command.ext_fields)
    route = server.routes.find_route(header.topic)
    if route is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST,
            f"No topic route info in name server for the topic: {header.topic}{FAQ}",
        )
    order = server.kv_config.find(ORDER_TOPIC_NAMESPACE, header.topic)
    if order is not None:
        route = msgspec.structs.replace(route, order_topic_conf=order)
    standard = header.accept_standard_json_only or command.version >= _VERSION_WITH_STANDARD_JSON
    return answer(request, body=msgspec.json.encode(route) if standard else encode_body(route))


def cluster_info(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with all brokers."""
    return answer(request, body=encode_body(server.routes.cluster_info()))


def all_topics(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with all topics."""
    return answer(request, body=encode_body(TopicList(topic_list=server.routes.topics())))


def topics_of_cluster(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with a cluster's topics."""
    header = decode_header(GetTopicsByClusterRequestHeader, request.command.ext_fields)
    topics = server.routes.topics_of_cluster(header.cluster)
    return answer(request, body=encode_body(TopicList(topic_list=topics)))


def unit_topics(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with the topics of units, or the topics that units' groups consume, by the code."""
    code = request.command.code
    flag = _UNIT if code == RequestCode.GET_UNIT_TOPIC_LIST else _UNIT_SUB
    without = _UNIT if code == RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST else 0
    topics = server.routes.flagged_topics(flag, without=without)
    return answer(request, body=encode_body(TopicList(topic_list=topics)))


def system_topics(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with the names of clusters and brokers, which are topics too."""
    topics, address = server.routes.system_topics()
    return answer(request, body=encode_body(TopicList(topic_list=topics, broker_addr=address)))


def get_config(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with the settings that tools read, as Java properties without paths."""
    del server
    return answer(request, ext_fields={}, body=_SETTINGS)


def delete_topic(server: NameServer, request: Request) -> Sequence[Output]:
    """Remove a topic; a broker that still has the topic registers it again with its next change.

    `mqadmin deleteTopic` names the cluster at whose brokers it has deleted the topic.
    """
    header = decode_header(DeleteTopicFromNamesrvRequestHeader, request.command.ext_fields)
    server.routes.delete_topic(header.topic, cluster_name=header.cluster_name or None)
    return answer(request)


def set_write_perm(server: NameServer, request: Request) -> Sequence[Output]:
    """Take all topics of a broker the write permission, or give it again, by the code.

    Producers stop sending to a broker without it.
    """
    header = decode_header(WipeWritePermOfBrokerRequestHeader, request.command.ext_fields)
    may_write = request.command.code == RequestCode.ADD_WRITE_PERM_OF_BROKER
    count = server.routes.set_write_perm(header.broker_name, may_write=may_write)
    wiped = WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
    added = AddWritePermOfBrokerResponseHeader(add_topic_count=count)
    return answer(request, ext_fields=encode_header(added if may_write else wiped))


def put_kv(server: NameServer, request: Request) -> Sequence[Output]:
    """Store a text."""
    header = decode_header(PutKVConfigRequestHeader, request.command.ext_fields)
    changed = server.kv_config.put(header.namespace, header.key, header.value)
    if changed is None:
        raise Refusal(
            ResponseCode.SYSTEM_ERROR, f"more than {_KEYS_MAX} keys or {_NAMESPACES_MAX} namespaces"
        )
    server.replace_texts(changed)
    return answer(request)


def get_kv(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with a text."""
    header = decode_header(GetKVConfigRequestHeader, request.command.ext_fields)
    value = server.kv_config.find(header.namespace, header.key)
    if value is None:
        raise Refusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace} Key: {header.key}",
            ext_fields={},
        )
    return answer(request, ext_fields=encode_header(GetKVConfigResponseHeader(value=value)))


def delete_kv(server: NameServer, request: Request) -> Sequence[Output]:
    """Remove a text."""
    header = decode_header(DeleteKVConfigRequestHeader, request.command.ext_fields)
    # Also without the value: a refused change may have reached the file.
    server.replace_texts(server.kv_config.delete(header.namespace, header.key))
    return answer(request)


def kv_list(server: NameServer, request: Request) -> Sequence[Output]:
    """Answer with all texts of a namespace."""
    header = decode_header(GetKVListByNamespaceRequestHeader, request.command.ext_fields)
    table = server.kv_config.table(header.namespace)
    if table is None:
        raise Refusal(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {header.namespace}",
        )
    return answer(request, body=encode_body(KVTable(table=dict(table))))


def refuse_config(server: NameServer, request: Request) -> Sequence[Output]:
    """Refuse: no request changes the settings of a name server."""
    del server, request
    raise Refusal(
        ResponseCode.NO_PERMISSION,
        "settings cannot be changed remotely; restart the name server with the new ones",
    )


PROCESSORS: Mapping[int, Processor[NameServer]] = MappingProxyType(
    {
        RequestCode.REGISTER_BROKER: register_broker,
        RequestCode.UNREGISTER_BROKER: unregister_broker,
        RequestCode.QUERY_DATA_VERSION: query_data_version,
        RequestCode.GET_ROUTEINFO_BY_TOPIC: route_of_topic,
        RequestCode.GET_BROKER_CLUSTER_INFO: cluster_info,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: all_topics,
        RequestCode.GET_TOPICS_BY_CLUSTER: topics_of_cluster,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: system_topics,
        RequestCode.GET_UNIT_TOPIC_LIST: unit_topics,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: unit_topics,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: unit_topics,
        RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER: set_write_perm,
        RequestCode.ADD_WRITE_PERM_OF_BROKER: set_write_perm,
        RequestCode.PUT_KV_CONFIG: put_kv,
        RequestCode.GET_KV_CONFIG: get_kv,
        RequestCode.DELETE_KV_CONFIG: delete_kv,
        RequestCode.GET_KVLIST_BY_NAMESPACE: kv_list,
        RequestCode.GET_NAMESRV_CONFIG: get_config,
        RequestCode.UPDATE_NAMESRV_CONFIG: refuse_config,
    }
)
