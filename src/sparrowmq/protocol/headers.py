"""The typed headers of requests and responses, which travel as ext fields (text to text). Pure.

One Struct per header under its Java name. Python's field names carry units (`_ms`) and
distinguish offsets (messages) from positions (bytes); `rename` gives the names on the wire. A field
without a default is required.

`header_codec` reads and writes them.

Source: RocketMQ 4.9.3 common/protocol/header/*.java and header/namesrv/*.java.
Tests: test_header_codec.py.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, structs
from msgspec.structs import force_setattr

from sparrowmq.protocol.header_codec import decode_header as decode_header
from sparrowmq.protocol.header_codec import encode_header as encode_header
from sparrowmq.protocol.wire_names import Int32, Int64, prepare_types, wire_names


class SendMessageRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """SEND_MESSAGE, under its long names."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    bname: str | None = None


_SHORT_NAMES = dict(zip(SendMessageRequestHeader.__struct_fields__, "abcdefghijklmn", strict=True))


class SendMessageRequestHeaderV2(
    SendMessageRequestHeader, frozen=True, kw_only=True, rename=_SHORT_NAMES
):
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE: the same fields, under one letter each."""

    # msgspec renames only the fields that a class declares itself.
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None
    batch: bool = False
    bname: str | None = None


class ReplyMessageRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """PUSH_REPLY_MESSAGE_TO_CLIENT: the fields of SEND_MESSAGE, and the origin of the reply."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int32
    queue_id: Int32
    sys_flag: Int32
    born_timestamp_ms: Int64
    flag: Int32
    properties: str | None = None
    reconsume_times: Int32 | None = None
    unit_mode: bool = False
    born_host: str
    store_host: str
    store_timestamp_ms: Int64


class SendMessageResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The answer to a send; `msg_id` is the offset message id, or a batch's ids as a comma list."""

    msg_id: str
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None


class PullMessageRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names(suspend_timeout_ms="suspendTimeoutMillis")
):
    """PULL_MESSAGE; `sys_flag` bits are `PULL_*` of this module."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_ms: Int64
    subscription: str | None = None
    sub_version: Int64
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None


# PullSysFlag.java.
PULL_COMMIT_OFFSET = 0x1
PULL_SUSPEND = 0x2
PULL_SUBSCRIPTION = 0x4
PULL_CLASS_FILTER = 0x8
PULL_LITE = 0x10


class PullMessageResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The answer to a pull, with each code that concerns the queue.

    `offset_delta` comes with a queue of a static topic (5.x): the difference between the offsets of
    its records, which are those of the queue that stores them, and the queue's own.
    """

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None


class QueryConsumerOffsetRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_CONSUMER_OFFSET; brokers before 5.0 ignore `set_zero_if_not_found`."""

    consumer_group: str
    topic: str
    queue_id: Int32
    set_zero_if_not_found: bool | None = None


class QueryConsumerOffsetResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """`offset` is None if the broker knows no offset (-1 on the wire)."""

    __wire_unknown__: ClassVar[dict[str, int]] = {"offset": -1}
    offset: Int64 | None

    def __post_init__(self) -> None:
        if self.offset == -1:
            force_setattr(self, "offset", None)


class UpdateConsumerOffsetRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """UPDATE_CONSUMER_OFFSET, with two fields of SparrowMQ's own.

    `sparrowmq_audit` says whether an operator asked for the commit, `sparrowmq_client_id` names the
    member that commits.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    commit_offset: Int64
    sparrowmq_audit: bool | None = None
    sparrowmq_client_id: str | None = None


class GetMaxOffsetRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_MAX_OFFSET."""

    topic: str
    queue_id: Int32


class GetMaxOffsetResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The offset of the next message."""

    offset: Int64


class GetMinOffsetRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_MIN_OFFSET."""

    topic: str
    queue_id: Int32


class GetMinOffsetResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The offset of the oldest message kept."""

    offset: Int64


class SearchOffsetRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """SEARCH_OFFSET_BY_TIMESTAMP.

    Args:
        boundary_type: LOWER for the first message at or after the time, UPPER for the last one at
            or before it; clients of RocketMQ 4 send none.
    """

    topic: str
    queue_id: Int32
    timestamp_ms: Int64
    boundary_type: str | None = None


class SearchOffsetResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The offset of the first message at or after the requested time."""

    offset: Int64


class GetEarliestMsgStoretimeRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_EARLIEST_MSG_STORETIME."""

    topic: str
    queue_id: Int32


class GetEarliestMsgStoretimeResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """`timestamp_ms` is None for an empty queue (-1 on the wire)."""

    __wire_unknown__: ClassVar[dict[str, int]] = {"timestamp_ms": -1}
    timestamp_ms: Int64 | None

    def __post_init__(self) -> None:
        if self.timestamp_ms == -1:
            force_setattr(self, "timestamp_ms", None)


class UnregisterClientRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names(client_id="clientID")
):
    """UNREGISTER_CLIENT."""

    client_id: str
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroupRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_CONSUMER_LIST_BY_GROUP; SparrowMQ's brokers add the owners of queues on request."""

    consumer_group: str
    sparrowmq_owners: bool | None = None


class LockBatchRequestHeader(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(sparrowmq_wait_ms="sparrowmqWaitMs"),
):
    """LOCK_BATCH_MQ; with the wait, SparrowMQ's brokers let a refused request wait for the lock.

    They also answer for which queues the client stands in (`LockBatchResponseBody`).
    """

    sparrowmq_wait_ms: int | None = None


class GetGroupPlanRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_GROUP_PLAN; the capacity is 0 while the member does not know its own.

    `needs_loads` asks for the loads of this broker's queues although another broker has the plan.
    """

    consumer_group: str
    capacity_per_minute: Int64 = 0
    known_epoch: Int64 = 0
    needs_loads: bool = False


class OfferGroupPlanRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """OFFER_GROUP_PLAN."""

    consumer_group: str


class NotifyConsumerIdsChangedRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """NOTIFY_CONSUMER_IDS_CHANGED, from broker to client."""

    consumer_group: str


class ConsumerSendMsgBackRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names(position="offset")
):
    """CONSUMER_SEND_MSG_BACK; `position` is the message's place in the commit log."""

    position: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int32 | None = None


class RecallMessageRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """RECALL_MESSAGE of 5.x; `bname` is the broker's name."""

    producer_group: str
    topic: str
    recall_handle: str
    bname: str


class EndTransactionRequestHeader(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(commit_log_position="commitLogOffset"),
):
    """END_TRANSACTION; `commit_or_rollback` is a transaction type of `record`."""

    producer_group: str
    tran_state_table_offset: Int64
    commit_log_position: Int64
    commit_or_rollback: Int32
    from_transaction_check: bool = False
    msg_id: str
    transaction_id: str | None = None


class CheckTransactionStateRequestHeader(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(commit_log_position="commitLogOffset"),
):
    """CHECK_TRANSACTION_STATE, from broker to client."""

    tran_state_table_offset: Int64
    commit_log_position: Int64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


class ResumeCheckHalfMessageRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """RESUME_CHECK_HALF_MESSAGE; the id is the offset message id."""

    msg_id: str


class CreateTopicRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """UPDATE_AND_CREATE_TOPIC."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool = False
    # 5.x: `+name=value` and `-name`, separated by commas.
    attributes: str | None = None


class DeleteTopicRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """DELETE_TOPIC_IN_BROKER."""

    topic: str


class DeleteTopicFromNamesrvRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """DELETE_TOPIC_IN_NAMESRV; without a cluster, in all clusters."""

    topic: str
    cluster_name: str | None = None


class DeleteSubscriptionGroupRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """DELETE_SUBSCRIPTIONGROUP; `clean_offset` is the name of `remove_offset` in 5.x."""

    group_name: str
    remove_offset: bool = False
    clean_offset: bool = False


class GetRouteInfoRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_ROUTEINFO_BY_TOPIC; clients from 4.9.4 on may ask for quoted keys."""

    topic: str
    accept_standard_json_only: bool = False


class GetTopicsByClusterRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_TOPICS_BY_CLUSTER."""

    cluster: str


class RegisterBrokerRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """REGISTER_BROKER; `body_crc32` 0 means that the body has no checksum."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0


class RegisterBrokerResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The answer to a registration; only slaves use its addresses."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnRegisterBrokerRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """UNREGISTER_BROKER."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_DATA_VERSION."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: Int64


class QueryDataVersionResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """Whether the broker must register again."""

    changed: bool


class PutKVConfigRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """PUT_KV_CONFIG."""

    namespace: str
    key: str
    value: str


class GetKVConfigRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_KV_CONFIG."""

    namespace: str
    key: str


class GetKVConfigResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The value; None if there is none."""

    value: str | None = None


class DeleteKVConfigRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """DELETE_KV_CONFIG."""

    namespace: str
    key: str


class GetKVListByNamespaceRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_KVLIST_BY_NAMESPACE."""

    namespace: str


class WipeWritePermOfBrokerRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER."""

    broker_name: str


class WipeWritePermOfBrokerResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The number of topics that lost the permission."""

    wipe_topic_count: Int32


class AddWritePermOfBrokerResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The number of topics that gained the permission."""

    add_topic_count: Int32


class UpdateAccessConfigRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """UPDATE_AND_CREATE_ACL_CONFIG; commas join permissions; None leaves a field."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        # As `Credentials`: the secret is not shown.
        hidden = None if self.secret_key is None else "***"
        return Struct.__repr__(structs.replace(self, secret_key=hidden))


class DeleteAccessConfigRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """DELETE_ACL_CONFIG."""

    access_key: str


class ViewMessageRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names(position="offset")
):
    """VIEW_MESSAGE_BY_ID; `position` is the message's place in the commit log."""

    position: Int64


class QueryMessageRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_MESSAGE."""

    topic: str
    key: str
    max_num: Int32
    begin_timestamp_ms: Int64
    end_timestamp_ms: Int64


class QueryMessageResponseHeader(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(index_last_update_position="indexLastUpdatePhyoffset"),
):
    """The newest message in the index."""

    index_last_update_timestamp_ms: Int64
    index_last_update_position: Int64


class QueryConsumeQueueRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_CONSUME_QUEUE."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


class GetTopicConfigRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_TOPIC_CONFIG."""

    topic: str


class GetSubscriptionGroupConfigRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names()
):
    """GET_SUBSCRIPTIONGROUP_CONFIG."""

    group: str


class QueryTopicsByConsumerRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_TOPICS_BY_CONSUMER."""

    group: str


class QuerySubscriptionByConsumerRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names()
):
    """QUERY_SUBSCRIPTION_BY_CONSUMER."""

    group: str
    topic: str


class GetTopicStatsInfoRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_TOPIC_STATS_INFO."""

    topic: str


class ViewBrokerStatsDataRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """VIEW_BROKER_STATS_DATA."""

    stats_name: str
    stats_key: str


class GetConsumeStatsInBrokerHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_BROKER_CONSUME_STATS.

    `sparrowmq_left` is SparrowMQ's own: whether to add the topics that a live group has left, and
    to leave out groups in BROADCASTING, whose members keep their offsets themselves.
    """

    is_order: bool = False
    sparrowmq_left: bool | None = None


class GetConsumeStatsRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_CONSUME_STATS; without a topic, of all topics of the group.

    `topic_list` of 5.x names topics, joined by semicolons, in the place of `topic`.
    `sparrowmq_audit` is SparrowMQ's own: whether to add the changes of the group's progress.
    """

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
    sparrowmq_audit: bool | None = None


class GetConsumerConnectionListRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names()
):
    """GET_CONSUMER_CONNECTION_LIST."""

    consumer_group: str


class GetProducerConnectionListRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names()
):
    """GET_PRODUCER_CONNECTION_LIST."""

    producer_group: str


class QueryTopicConsumeByWhoRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_TOPIC_CONSUME_BY_WHO."""

    topic: str


class QueryConsumeTimeSpanRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_CONSUME_TIME_SPAN."""

    topic: str
    group: str


class QueryCorrectionOffsetHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """QUERY_CORRECTION_OFFSET; commas join `filter_groups`."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


class ResetOffsetRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """INVOKE_BROKER_TO_RESET_OFFSET and RESET_CONSUMER_CLIENT_OFFSET.

    A timestamp of -1 means the queue's end. Tools of 5.x may name one queue, and an offset in it;
    -1 stands for none.
    """

    topic: str
    group: str
    timestamp_ms: Int64
    is_force: bool
    queue_id: Int32 | None = None
    offset: Int64 | None = None


class GetConsumerStatusRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_CONSUMER_STATUS_FROM_CLIENT and INVOKE_BROKER_TO_GET_CONSUMER_STATUS."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfoRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """GET_CONSUMER_RUNNING_INFO."""

    consumer_group: str
    client_id: str
    jstack_enable: bool = False


class ConsumeMessageDirectlyResultRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names()
):
    """CONSUME_MESSAGE_DIRECTLY."""

    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None


class CloneGroupOffsetRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """CLONE_GROUP_OFFSET."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


prepare_types(list(globals().values()))
