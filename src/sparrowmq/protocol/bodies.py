"""The bodies that travel as JSON in fastjson's dialect. Pure.

One Struct per body under its Java name, or under a plainer name where Java's names its own
mechanics (`TopicConfigTable` is TopicConfigSerializeWrapper). Java reads the bodies of
`encode_body`, and `decode_body` reads Java's: unknown members are ignored, absent and null members
take the default. Values of another kind are read as Java reads them (`java_values`).

Source: RocketMQ 4.9.3 common/protocol/body/*.java, route/*.java, heartbeat/*.java.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, inspect, structs
from msgspec.structs import force_setattr

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import ConsumeFromWhere, ConsumeType, MessageModel, MessageQueue
from sparrowmq.protocol import fastjson
from sparrowmq.protocol.group_settings import GroupRetryPolicy, SimpleSubscriptionData
from sparrowmq.protocol.java_values import adapt
from sparrowmq.protocol.wire_names import Int32, Int64, prepare_types, wire_names

MASTER_ID = 0

# PermName.java.
PERM_PRIORITY = 0x8
PERM_READ = 0x4
PERM_WRITE = 0x2
PERM_INHERIT = 0x1

# The most marks (`fastjson.MARKS_MAX`) of a body in JSON: they take about 20 ms. A heartbeat of
# 1,000 groups has about as many.
PLAIN_MARKS_MAX = 65_536
# For a body with an entry for each topic or group: 65,536 entries.
_TOPICS_MARKS_MAX = 1_048_576
# For a body with an entry for each queue, which only clients read: 18,000 queues take a second.
_QUEUES_MARKS_MAX = 262_144
# For a body that only tools read: 65,536 queues.
_STATS_MARKS_MAX = 1_048_576

B = TypeVar("B", bound=Struct)


def encode_body(body: Struct, *, pretty: bool = False) -> bytes:
    """Write a body as Java reads it; `pretty` writes the form of RocketMQ's config files."""
    return fastjson.dumps(body, pretty=pretty)


def decode_body(body_type: type[B], data: bytes | None) -> B:
    """Read a body as Java writes it.

    The type bounds the marks of its body: `__plain_marks_max__` for plain JSON, which is read in C,
    `__marks_max__` for fastjson's dialect and bodies that need its conversions.

    Raises: RemoteProtocolError if the body is missing, too large, or not of this type.
    """
    if data is None:
        raise RemoteProtocolError(f"the body, a {body_type.__name__}, is missing")
    marks_max: int = getattr(body_type, "__marks_max__", fastjson.MARKS_MAX)
    plain_marks_max: int = getattr(body_type, "__plain_marks_max__", PLAIN_MARKS_MAX)
    try:
        fastjson.check_size(data, marks_max=max(plain_marks_max, marks_max))
        return _decode(body_type, data, marks_max=marks_max)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"no {body_type.__name__}: {error}") from error


def decode_file(body_type: type[B], data: bytes) -> B:
    """Read a file that holds a body; the file may have any size.

    Raises: RemoteProtocolError if the file holds no body of this type.
    """
    try:
        return _decode(body_type, data, marks_max=None)
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"no {body_type.__name__}: {error}") from error


# A number that is a key in fastjson's dialect. If the match lies within a text, quotes around the
# number end the text before a digit. That is not JSON, and nothing is misread.
_BARE_KEY = re.compile(rb"([{,])(-?[0-9]+):")


def _decode(body_type: type[B], data: bytes, *, marks_max: int | None) -> B:
    decoder = _plain_decoder(body_type)
    problem = "it has a $ref or keys that are not texts"
    if decoder is not None and b"$ref" not in data:
        body: B
        try:
            body = decoder.decode(data)
            return body
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            body = decoder.decode(_BARE_KEY.sub(rb'\1"\2":', data))
            return body
    return decode_dialect(body_type, data, problem, marks_max=marks_max)


def decode_dialect(
    body_type: type[B], data: bytes, problem: str, *, marks_max: int | None = fastjson.MARKS_MAX
) -> B:
    """Read a body that is not plain JSON of its type.

    Args:
        problem: why it is not, for the error.
        marks_max: None for a file of any size.

    Raises: RemoteProtocolError if the body is too large, or not of this type.
    """
    if marks_max is not None:
        try:
            fastjson.check_size(data, marks_max=marks_max)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{error} where it is not plain: {problem}") from error
    value = fastjson.loads(data, marks_max=None)
    try:
        return msgspec.convert(adapt(value, _type_of(body_type)), body_type, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(str(error)) from error


@cache
def _type_of(body_type: type[Struct]) -> inspect.Type:
    return inspect.type_info(body_type)


@cache
def _plain_decoder(body_type: type[B]) -> msgspec.json.Decoder[B] | None:
    """Return the decoder of plain JSON for a body, None if the body is never plain JSON."""
    try:
        return msgspec.json.Decoder(body_type, strict=False)
    except TypeError:
        # The body has keys that are not texts.
        return None


# Topics and routes

# MixAll.METADATA_SCOPE_GLOBAL.
METADATA_SCOPE_GLOBAL = "__global__"


class QueueData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The numbers of a topic's queues on a broker, and their permission (`PERM_*`)."""

    broker_name: str
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0


class BrokerData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The addresses of the brokers of one name: broker id (0 is the master) to `ip:port`."""

    cluster: str | None = None
    broker_name: str
    broker_addrs: dict[int, str] = {}


class TopicQueueMappingInfo(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A broker's queues of a static topic (5.x), whose numbers count over all brokers.

    Args:
        scope: the brokers over which the numbers count: `__global__`, or a cluster's name.
        epoch: counts the topic's mappings; a queue is where the newest one has it.
        curr_id_map: by a queue's number over all brokers, its number at this broker.
    """

    scope: str = METADATA_SCOPE_GLOBAL
    total_queues: Int32 = 0
    bname: str = ""
    epoch: Int64 = 0
    curr_id_map: dict[int, int] = {}


class TopicRouteData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The brokers and queues of a topic."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    order_topic_conf: str | None = None
    filter_server_table: dict[str, list[str]] = {}


class TopicRouteAnswer(TopicRouteData, frozen=True, kw_only=True, rename=wire_names()):
    """A name server's answer with what 5.x adds: the brokers' queues of a static topic."""

    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] = {}


class TopicList(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """Topic names."""

    __plain_marks_max__: ClassVar[int] = _TOPICS_MARKS_MAX
    topic_list: list[str] = []
    broker_addr: str | None = None


class ClusterInfo(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """All brokers, by broker name, and all broker names, by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}


class DataVersion(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The version by which a name server knows whether a broker's topics have changed."""

    timestamp_ms: Int64 = 0
    counter: Int64 = 0


# TopicAttributes.TOPIC_MESSAGE_TYPE_ATTRIBUTE, and the types that a topic may have here.
MESSAGE_TYPE_ATTRIBUTE = "message.type"
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


class TopicConfig(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A topic as its broker keeps it."""

    # TopicFilterType.java.
    __ordinals__: ClassVar[dict[str, tuple[str, ...]]] = {
        "topic_filter_type": ("SINGLE_TAG", "MULTI_TAG")
    }
    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    # RocketMQ 5.x; the attribute `message.type` is the type of the topic's messages.
    attributes: dict[str, str] | UnsetType = UNSET


class TopicConfigTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """TopicConfigSerializeWrapper: all topics of a broker; also config/topics.json."""

    __plain_marks_max__: ClassVar[int] = _TOPICS_MARKS_MAX
    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()


class RegisterBrokerBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A broker's registration at the name server (`register_body` has the compressed form)."""

    __plain_marks_max__: ClassVar[int] = _TOPICS_MARKS_MAX
    topic_config_serialize_wrapper: TopicConfigTable = TopicConfigTable()
    filter_server_list: list[str] = []


class KVTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """Pairs of texts."""

    table: dict[str, str] = {}


# Groups, offsets, locks


class SubscriptionData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A group's subscription to one topic; made by `subscription.parse_subscription`."""

    topic: str
    sub_string: str = "*"
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[Int32] = frozenset()
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


class ProducerData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A producer group within a heartbeat."""

    group_name: str


class ConsumerData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A consumer group within a heartbeat."""

    group_name: str
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class HeartbeatData(Struct, frozen=True, kw_only=True, rename=wire_names(client_id="clientID")):
    """The registration that a client sends to every broker every 30 seconds."""

    client_id: str
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []


class ConsumerListBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GetConsumerListByGroupResponseBody: one client id per connection, in any order."""

    consumer_id_list: list[str] = []


class OwnersListBody(ConsumerListBody, frozen=True, kw_only=True, rename=wire_names()):
    """`ConsumerListBody` with SparrowMQ's addition on request: the holder of each queue's lock."""

    __marks_max__: ClassVar[int] = _QUEUES_MARKS_MAX
    sparrowmq_owners: dict[str, list[MessageQueue]] | None = None


class GroupPlan(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The division of a group's queues that its members follow; SparrowMQ's own.

    Args:
        epoch: the plan's number, which no other plan has; in OFFER_GROUP_PLAN the number of the
            plan that this one is to follow, 0 for none.
        client_ids: the members for which it was computed, sorted.
        owners: each member's queues.
        moved: the queues that this plan moved for load.
        load_before: the load of the fullest member when it was computed.
        load_after: that load after the moves.
    """

    __plain_marks_max__: ClassVar[int] = _QUEUES_MARKS_MAX
    epoch: Int64
    client_ids: list[str]
    owners: dict[str, list[MessageQueue]]
    moved: list[MessageQueue] = []
    load_before: float = 0.0
    load_after: float = 0.0


class QueueLoadBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The messages that come into a queue a second, and a group's lag in it."""

    queue: MessageQueue
    rate_per_s: float
    lag: Int64


class GroupLoadsBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """What a broker measured of a group: its own queues, and the capacities that members sent."""

    queues: list[QueueLoadBody]
    capacities: dict[str, float]
    resting: list[MessageQueue]


class GroupPlanAnswer(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_GROUP_PLAN: `plan` is None if the asker knows the epoch; `loads` if it need not plan."""

    __plain_marks_max__: ClassVar[int] = _QUEUES_MARKS_MAX
    epoch: Int64 = 0
    plan: GroupPlan | None = None
    loads: GroupLoadsBody | None = None


class RequestMode(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """SET_MESSAGE_REQUEST_MODE: how the members of a group that ask brokers consume a topic.

    Args:
        mode: by queues (`PULL`) or by messages (`POP`).
        pop_share_queue_num: by messages, with how many members a member shares its queues; 0 for
            all members and queues.
    """

    topic: str
    consumer_group: str
    mode: Literal["PULL", "POP"] = "PULL"
    pop_share_queue_num: Int32 = 0


class RequestModeTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """`config/messageRequestMode.json`: the modes by topic and group."""

    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}


class QueryAssignmentBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_ASSIGNMENT: a member asks which queues of a topic it has."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = ""
    message_model: MessageModel = MessageModel.CLUSTERING


class QueueAssignment(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A queue of a member, -1 for all queues of a broker, and the way to consume it."""

    message_queue: MessageQueue
    mode: Literal["PULL", "POP"]


class AssignmentsBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_ASSIGNMENT's answer; None if the member is to keep the queues that it has."""

    message_queue_assignments: list[QueueAssignment] | None = None


class GroupPlanTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """`config/groupPlan.json`: the plan of each group."""

    plans: dict[str, GroupPlan] = {}


class LockBatchRequestBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """LOCK_BATCH_MQ."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class LockBatchResponseBody(
    Struct, frozen=True, kw_only=True, rename=wire_names(lock_ok_mq_set="lockOKMQSet")
):
    """The queues of a lock request that the client owns now.

    Args:
        sparrowmq_stood_in: SparrowMQ's addition on request: the queues that the client may consume
            in the place of their locks' holders, which are gone. It gives them back like locks.
    """

    __marks_max__: ClassVar[int] = _QUEUES_MARKS_MAX
    lock_ok_mq_set: list[MessageQueue] = []
    sparrowmq_stood_in: list[MessageQueue] | None = None


class UnlockBatchRequestBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """UNLOCK_BATCH_MQ."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []


class PlainAccessConfig(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """An account of access control, as administrators see it."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: list[str] | None = None
    group_perms: list[str] | None = None

    def __repr__(self) -> str:
        # As `Credentials`: the secret is not shown.
        hidden = None if self.secret_key is None else "***"
        return Struct.__repr__(structs.replace(self, secret_key=hidden))


class AclConfigBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GetBrokerClusterAclConfigResponseBody: all rules of access control."""

    global_white_addrs: list[str] = []
    plain_access_configs: list[PlainAccessConfig] = []


class SubscriptionGroupConfig(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A consumer group as its broker keeps it.

    The fields of RocketMQ 5.x behind `group_retry_policy` have no effect on SparrowMQ's broker. It
    keeps them for the broker of 5.x that the store may go back to.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = MASTER_ID
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    # RocketMQ 5.x: whether the group's clients of the gRPC service consume in order, and how long
    # their failed messages wait.
    consume_message_orderly: bool | UnsetType = UNSET
    group_retry_policy: GroupRetryPolicy | UnsetType = UNSET
    group_sys_flag: Int32 | UnsetType = UNSET
    consume_timeout_minute: Int32 | UnsetType = UNSET
    subscription_data_set: list[SimpleSubscriptionData] | UnsetType = UNSET
    # In a request for a change: the new values by `+name`, and `-name` for removed ones.
    attributes: dict[str, str] | UnsetType = UNSET


class CreateTopicListRequestBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """UPDATE_AND_CREATE_TOPIC_LIST."""

    topic_config_list: list[TopicConfig]


class SubscriptionGroupList(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST."""

    group_config_list: list[SubscriptionGroupConfig]


class SubscriptionGroupTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """SubscriptionGroupWrapper: all groups of a broker; also config/subscriptionGroup.json."""

    __plain_marks_max__: ClassVar[int] = _TOPICS_MARKS_MAX
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}
    data_version: DataVersion = DataVersion()


class ConsumerOffsetTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """ConsumerOffsetSerializeWrapper: `topic@group` to queue id to offset."""

    __plain_marks_max__: ClassVar[int] = _STATS_MARKS_MAX
    offset_table: dict[str, dict[int, Int64]] = {}


_OFFSETS_HEAD = b'{"offsetTable":{'


def join_offset_tables(parts: Iterable[bytes]) -> bytes:
    """Join tables of offsets that `encode_body` wrote; none of the tables is empty."""
    return _OFFSETS_HEAD + b",".join([part[len(_OFFSETS_HEAD) : -2] for part in parts]) + b"}}"


class DelayOffsetTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """DelayOffsetSerializeWrapper: delay level to the offset of the next delivery."""

    offset_table: dict[int, Int64] = {}


class ResetOffsetBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """RESET_CONSUMER_CLIENT_OFFSET: queue to the offset of the next message to consume."""

    __marks_max__: ClassVar[int] = _QUEUES_MARKS_MAX
    offset_table: dict[MessageQueue, Int64] = {}


class GetConsumerStatusBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_CONSUMER_STATUS_FROM_CLIENT: the offsets of one client, or of all by client id."""

    __marks_max__: ClassVar[int] = _QUEUES_MARKS_MAX
    message_queue_table: dict[MessageQueue, Int64] = {}
    consumer_table: dict[str, dict[MessageQueue, Int64]] = {}


# Statistics and connections


class OffsetWrapper(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A group's progress in a queue; `consumer_offset` is None for unknown (-1 on the wire).

    `pull_offset` is the offset of the next pull; 5.x has it, and its tools show the difference of
    the two offsets as messages in flight. SparrowMQ's own, of queues with popped messages: the
    number of those in flight, when the last of them is visible again, how often one of them was
    delivered at most, how often their times were extended since their last pop, and when the first
    of them was stored; and the number of those acknowledged beyond the group's offset.
    """

    __wire_unknown__: ClassVar[dict[str, int]] = {"consumer_offset": -1}
    broker_offset: Int64 = 0
    consumer_offset: Int64 | None = None
    pull_offset: Int64 | None = None
    last_timestamp_ms: Int64 = 0
    sparrowmq_in_flight: Int64 | None = None
    sparrowmq_visible_timestamp_ms: Int64 | None = None
    sparrowmq_deliveries: Int32 | None = None
    sparrowmq_acknowledged: Int64 | None = None
    sparrowmq_renewals: Int64 | None = None
    sparrowmq_oldest_timestamp_ms: Int64 | None = None

    def __post_init__(self) -> None:
        if self.consumer_offset == -1:
            force_setattr(self, "consumer_offset", None)


class ConsumeStats(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A group's progress."""

    __marks_max__: ClassVar[int] = _STATS_MARKS_MAX
    offset_table: dict[MessageQueue, OffsetWrapper] = {}
    consume_tps: float = 0.0


class OffsetMove(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A queue's offset before and after a change; None stands for no commit."""

    queue_id: Int32
    before: Int64 | None = None
    after: Int64 | None = None


# The kind of a record about messages sent to a group's retry topic by no member.
SENT_AGAIN = "sent again"


class AuditRecord(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """A change of progress that no member made: SparrowMQ's own.

    Args:
        timestamp_ms, since_timestamp_ms: the last and the first of the changes joined here.
        count: the number of these changes.
        kind: reset, set, copied, sent, sent again, made, settings, or deleted.
        group: "" for a change of a topic.
        account, address: who made the change; the account is "" without access control.
        detail: what changed, if it is not an offset.
        moves: for messages sent, the ends of the queues; for dead letters sent again, their
            offsets; else the group's offsets.
    """

    timestamp_ms: Int64
    since_timestamp_ms: Int64
    count: Int32 = 1
    kind: str
    group: str
    topic: str = ""
    account: str = ""
    address: str = ""
    detail: str = ""
    moves: list[OffsetMove] = []


class AuditedStats(ConsumeStats, frozen=True, kw_only=True, rename=wire_names()):
    """`ConsumeStats` with SparrowMQ's additions on request.

    The newest changes of progress, and whether consumers of the group have popped lately.
    """

    __marks_max__: ClassVar[int] = _STATS_MARKS_MAX
    sparrowmq_audit: list[AuditRecord] = []
    sparrowmq_is_popped: bool | None = None


class BrokerStatsItem(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The sum of one statistic within a window."""

    sum: Int64 = 0
    tps: float = 0.0
    avgpt: float = 0.0


class BrokerStatsData(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """VIEW_BROKER_STATS_DATA."""

    stats_minute: BrokerStatsItem = BrokerStatsItem()
    stats_hour: BrokerStatsItem = BrokerStatsItem()
    stats_day: BrokerStatsItem = BrokerStatsItem()


class ConsumeStatsList(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_BROKER_CONSUME_STATS: the progress of each group in each of its topics.

    `sparrowmq_popped` is SparrowMQ's own: the groups whose consumers have popped lately.
    """

    __marks_max__: ClassVar[int] = _STATS_MARKS_MAX
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = []
    broker_addr: str | None = None
    total_diff: Int64 = 0
    sparrowmq_popped: list[str] | None = None


class TopicOffset(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The first and the end offset of a queue."""

    min_offset: Int64 = 0
    max_offset: Int64 = 0
    last_update_timestamp_ms: Int64 = 0


class TopicStatsTable(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The first and the end offsets of a topic's queues."""

    __marks_max__: ClassVar[int] = _STATS_MARKS_MAX
    offset_table: dict[MessageQueue, TopicOffset] = {}


class ClientConnection(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """One client's connection."""

    client_id: str
    client_addr: str = ""
    language: str | None = None
    version: Int32 = 0


class ConsumerConnection(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The connections and subscriptions of a consumer group."""

    connection_set: list[ClientConnection] = []
    subscription_table: dict[str, SubscriptionData] = {}
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    consume_from_where: ConsumeFromWhere | None = None


class ProducerConnection(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The connections of a producer group."""

    connection_set: list[ClientConnection] = []


class ProducerInfo(Struct, frozen=True, kw_only=True, rename=wire_names(remote_ip="remoteIP")):
    """One producer's connection; Java writes its address with a `/` before it."""

    client_id: str
    remote_ip: str = ""
    language: str | None = None
    version: Int32 = 0
    last_update_timestamp_ms: Int64 = 0


class ProducerTableInfo(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_ALL_PRODUCER_INFO: connections by producer group."""

    data: dict[str, list[ProducerInfo]] = {}


class QuerySubscriptionResponseBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str
    subscription_data: SubscriptionData | None = None


class GroupList(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """Consumer groups."""

    __plain_marks_max__: ClassVar[int] = _TOPICS_MARKS_MAX
    group_list: list[str] = []


class QueueTimeSpan(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(
        min_timestamp_ms="minTimeStamp",
        max_timestamp_ms="maxTimeStamp",
        consume_timestamp_ms="consumeTimeStamp",
    ),
):
    """The store times of a queue's first and last message, and a group's delay in the queue."""

    message_queue: MessageQueue
    min_timestamp_ms: Int64 = 0
    max_timestamp_ms: Int64 = 0
    consume_timestamp_ms: Int64 = 0
    delay_time_ms: Int64 = 0


class QueryConsumeTimeSpanBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: list[QueueTimeSpan] = []


class QueryCorrectionOffsetBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_CORRECTION_OFFSET: queue id to offset."""

    correction_offsets: dict[int, Int64] = {}


class ConsumeQueueData(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(position="physicOffset", size="physicSize"),
):
    """One entry of a consume queue; `eval` says whether the entry passes the group's filter."""

    position: Int64
    size: Int32
    tags_code: Int64 = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


class QueryConsumeQueueResponseBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_CONSUME_QUEUE: entries in the queue's order."""

    queue_data: list[ConsumeQueueData] = []
    max_queue_index: Int64 = 0
    min_queue_index: Int64 = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


class CheckClientRequestBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """CHECK_CLIENT_CONFIG."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


class ConsumeMessageDirectlyResult(
    Struct, frozen=True, kw_only=True, rename=wire_names(spent_time_ms="spentTimeMills")
):
    """CONSUME_MESSAGE_DIRECTLY: the listener's result for the message."""

    # CMResult.java.
    __ordinals__: ClassVar[dict[str, tuple[str, ...]]] = {
        "consume_result": (
            "CR_SUCCESS",
            "CR_LATER",
            "CR_ROLLBACK",
            "CR_COMMIT",
            "CR_THROW_EXCEPTION",
            "CR_RETURN_NULL",
        )
    }
    order: bool = False
    auto_commit: bool = True
    consume_result: str | None = None
    remark: str | None = None
    spent_time_ms: Int64 = 0


class ProcessQueueInfo(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(cached_msg_size_mib="cachedMsgSizeInMiB", dropped="droped"),
):
    """A consumer's state of one queue; `sparrowmq_state` is SparrowMQ's own."""

    sparrowmq_state: str | None = None
    commit_offset: Int64 = 0
    cached_msg_min_offset: Int64 = 0
    cached_msg_max_offset: Int64 = 0
    cached_msg_count: Int32 = 0
    cached_msg_size_mib: Int32 = 0
    transaction_msg_min_offset: Int64 = 0
    transaction_msg_max_offset: Int64 = 0
    transaction_msg_count: Int32 = 0
    locked: bool = False
    try_unlock_times: Int64 = 0
    last_lock_timestamp_ms: Int64 = 0
    dropped: bool = False
    last_pull_timestamp_ms: Int64 = 0
    last_consume_timestamp_ms: Int64 = 0


class ConsumeRates(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(
        pull_rt_ms="pullRT",
        pull_tps="pullTPS",
        consume_rt_ms="consumeRT",
        consume_ok_tps="consumeOKTPS",
        consume_failed_tps="consumeFailedTPS",
        consume_failed_count="consumeFailedMsgs",
    ),
):
    """A consumer's rates for one topic."""

    pull_rt_ms: float = 0.0
    pull_tps: float = 0.0
    consume_rt_ms: float = 0.0
    consume_ok_tps: float = 0.0
    consume_failed_tps: float = 0.0
    consume_failed_count: Int64 = 0


class ConsumerRunningInfo(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_CONSUMER_RUNNING_INFO: a consumer's report about itself."""

    __marks_max__: ClassVar[int] = _QUEUES_MARKS_MAX
    properties: dict[str, str] = {}
    subscription_set: list[SubscriptionData] = []
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    status_table: dict[str, ConsumeRates] = {}
    jstack: str | None = None


prepare_types(list(globals().values()))
