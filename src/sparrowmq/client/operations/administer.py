"""An administrator's requests: topics, routes, offsets, messages, and the members of a group.

Source: DefaultMQAdminExtImpl.java, MQAdminImpl.java.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparrowmq.calling.effects import Operation, now, sleep
from sparrowmq.client.arguments import check_offset, check_queue, check_timestamp
from sparrowmq.client.directory import Directory, QueueLag
from sparrowmq.client.operations.gather import gather, gather_outcomes, raise_first, split_outcomes
from sparrowmq.client.operations.heartbeats import (
    consumer_connections,
    consumer_list,
    says_no_members,
)
from sparrowmq.client.operations.offsets import (
    max_offset,
    min_offset,
    query_offset,
    search_offset,
    update_offset,
)
from sparrowmq.client.operations.request import ask
from sparrowmq.client.operations.routes import (
    check_masters,
    find_brokers,
    find_masters,
    get_broker_address,
    get_master_address,
    get_route,
)
from sparrowmq.client.operations.snapshot import group_stats, progress_of
from sparrowmq.client.route_cache import QUEUES_MAX, TopicRoute
from sparrowmq.config import check_range
from sparrowmq.errors import (
    BrokerError,
    ConfigError,
    InvokeTimeout,
    RemoteProtocolError,
    SparrowError,
    TopicRouteNotFound,
    UnreadableMessage,
    UsageError,
)
from sparrowmq.membership.process_queue import MIB
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.names import AUTO_CREATE_TOPIC_KEY_TOPIC, check_topic
from sparrowmq.model.queue import queue_order
from sparrowmq.protocol.bodies import (
    MESSAGE_TYPE_ATTRIBUTE,
    MESSAGE_TYPES,
    PERM_READ,
    PERM_WRITE,
    ConsumerConnection,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import (
    CreateTopicRequestHeader,
    DeleteTopicFromNamesrvRequestHeader,
    DeleteTopicRequestHeader,
    GetTopicStatsInfoRequestHeader,
    QueryMessageRequestHeader,
    ViewMessageRequestHeader,
)
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.record import decode_host, decode_messages

# How long `create_topic` waits until the name server has the topic, and how often it looks.
TOPIC_KNOWN_MS = 15_000
TOPIC_POLL_MS = 20
# The inflated size of all messages of one answer together: the flow limit of a queue.
ANSWER_INFLATED_BYTES_MAX = 100 * MIB
_END_OF_TIME_MS = (1 << 63) - 1


def show_route(directory: Directory, topic: str) -> Operation[TopicRoute]:
    """Return a topic's route without the namespace in its names. Raises: as `get_route`."""
    route = yield from get_route(directory, topic, is_fresh=True)
    return route.without(directory.namespace)


def create_topic(
    directory: Directory,
    topic: str,
    *,
    queues: int = 8,
    cluster: str | None = None,
    message_type: str | None = None,
) -> Operation[TopicRoute]:
    """Create a topic at every master that does not have it; wait until the topic is known.

    Differs from RocketMQ: a topic that a broker has stays as it is there. Fewer queues would hide
    their messages, so only `update_topic` changes a topic.

    Args:
        queues: the number of queues at each broker, for reading and for writing.
        message_type: one of `MESSAGE_TYPES`, for clients of RocketMQ 5; None for NORMAL.

    Raises: ConfigError for a bad name or type; UsageError for an unknown cluster; BrokerError if a
    broker refuses; RouteError; TransportError.
    """
    topic = check_topic(directory.namespace.wrap(topic))
    check_range("queues", queues, 1, QUEUES_MAX)
    attributes = None
    if message_type is not None:
        if message_type not in MESSAGE_TYPES:
            raise ConfigError(
                f"message_type is {message_type!r}; it must be one of {', '.join(MESSAGE_TYPES)}"
            )
        attributes = f"+{MESSAGE_TYPE_ATTRIBUTE}={message_type}"
    brokers = yield from find_brokers(
        directory.name_servers, cluster=cluster, timeout_ms=directory.timeout_ms
    )
    addresses = [broker.address for broker in brokers if broker.has_master]
    if not addresses:
        check_masters(brokers)
    outcomes = yield from gather(
        [
            _create_missing(directory, address, topic, queues=queues, attributes=attributes)
            for address in addresses
        ],
        name=f"create topic {topic}",
    )
    created = [address for address, is_new in zip(addresses, outcomes, strict=True) if is_new]
    route = yield from _await_topic(directory, topic, created=created, queues=queues)
    return route.without(directory.namespace)


def _create_missing(
    directory: Directory, address: str, topic: str, *, queues: int, attributes: str | None
) -> Operation[bool]:
    """Create a topic at a broker that does not have it; return whether it was missing."""
    try:
        # Every version of RocketMQ answers this for one topic; a route may be behind the brokers.
        yield from ask(
            address,
            RequestCode.GET_TOPIC_STATS_INFO,
            GetTopicStatsInfoRequestHeader(topic=topic),
            timeout_ms=directory.timeout_ms,
        )
    except BrokerError as error:
        if error.code != ResponseCode.TOPIC_NOT_EXIST:
            raise
    else:
        return False
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=PERM_READ | PERM_WRITE,
        topic_filter_type="SINGLE_TAG",
        topic_sys_flag=0,
        attributes=attributes,
    )
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    yield from ask(address, code, header, timeout_ms=directory.timeout_ms)
    return True


def _await_topic(
    directory: Directory, topic: str, *, created: Sequence[str], queues: int
) -> Operation[TopicRoute]:
    """Wait until the brokers at the addresses have registered the topic with the name server."""
    instant = yield from now()
    deadline_ms = instant + TOPIC_KNOWN_MS
    while instant < deadline_ms:
        try:
            route = yield from get_route(directory, topic, is_fresh=True)
            names = [directory.routes.broker_names_at(address) for address in created]
            counts = Counter(queue.broker_name for queue in route.publish_queues)
            if all(sum(counts[name] for name in each) >= queues for each in names):
                return route
        except TopicRouteNotFound:
            pass
        yield from sleep(TOPIC_POLL_MS)
        instant = yield from now()
    raise InvokeTimeout(
        f"topic {topic!r} was created, but the name server does not show its queues at "
        f"{', '.join(created) or 'any broker'} after {TOPIC_KNOWN_MS} ms; see whether the brokers "
        "reach it",
        address=directory.name_servers.in_order()[0],
    )


def delete_topic(
    directory: Directory, topic: str, *, cluster: str | None = None
) -> Operation[None]:
    """Delete a topic at every broker, or every one of a cluster, and at every name server.

    Raises: UsageError for an unknown cluster; RouteError also if one of them has no master;
    BrokerError, TransportError.
    """
    topic = directory.namespace.wrap(topic)
    at_broker = DeleteTopicRequestHeader(topic=topic)
    at_name_server = DeleteTopicFromNamesrvRequestHeader(topic=topic, cluster_name=cluster)
    timeout_ms = directory.timeout_ms
    brokers = yield from find_masters(directory, cluster=cluster)
    requests = [
        ask(broker.address, RequestCode.DELETE_TOPIC_IN_BROKER, at_broker, timeout_ms=timeout_ms)
        for broker in brokers
    ]
    yield from gather(requests, name=f"delete topic {topic}")
    servers = directory.name_servers.in_order()
    requests = [
        ask(a, RequestCode.DELETE_TOPIC_IN_NAMESRV, at_name_server, timeout_ms=timeout_ms)
        for a in servers
    ]
    yield from gather(requests, name=f"delete topic {topic}")
    directory.routes.remove(topic)


def queue_max_offset(directory: Directory, queue: MessageQueue) -> Operation[int]:
    """Return the offset that the queue's next message will get."""
    queue = directory.namespace.wrap_queue(check_queue(queue))
    address = yield from get_broker_address(directory, queue)
    return (yield from max_offset(address, queue, timeout_ms=directory.timeout_ms))


def queue_min_offset(directory: Directory, queue: MessageQueue) -> Operation[int]:
    """Return the offset of the oldest message that the queue still has."""
    queue = directory.namespace.wrap_queue(check_queue(queue))
    address = yield from get_broker_address(directory, queue)
    return (yield from min_offset(address, queue, timeout_ms=directory.timeout_ms))


def queue_offset_at(
    directory: Directory, queue: MessageQueue, *, timestamp_ms: int
) -> Operation[int]:
    """Return the offset of the first message stored at or after a wall-clock time."""
    queue = directory.namespace.wrap_queue(check_queue(queue))
    check_timestamp(timestamp_ms)
    address = yield from get_broker_address(directory, queue)
    timeout_ms = directory.timeout_ms
    return (
        yield from search_offset(address, queue, timestamp_ms=timestamp_ms, timeout_ms=timeout_ms)
    )


def set_committed_offset(
    directory: Directory, group: str, *, queue: MessageQueue, offset: int
) -> Operation[None]:
    """Commit an offset for a group on behalf of its members.

    Raises: RouteError, also if the queue's broker has no master; BrokerError, TransportError.
    """
    check_offset(offset)
    queue = directory.namespace.wrap_queue(check_queue(queue))
    group = directory.namespace.wrap(group)
    address = yield from get_master_address(directory, queue)
    yield from update_offset(
        address,
        group,
        queue=queue,
        offset=offset,
        is_audited=True,
        timeout_ms=directory.timeout_ms,
    )


def clone_offsets(
    directory: Directory, group: str, to_group: str, topic: str
) -> Operation[dict[MessageQueue, int]]:
    """Commit another group's offsets of a topic for a group; return the offsets by queue.

    Raises: UsageError if members of the group are connected, which would not notice the offsets;
    TopicRouteNotFound; TransportError; BrokerError.
    """
    members = yield from consumer_ids(directory, to_group)
    if members:
        raise UsageError(
            f"group {to_group} has {len(members)} members, which would go on where they are: "
            f"{', '.join(members[:8])}; close them, then clone"
        )
    route = yield from get_route(directory, topic, is_fresh=True)
    cloned: dict[MessageQueue, int] = {}
    for queue in map(directory.namespace.unwrap_queue, route.subscribe_queues):
        offset = yield from committed_offset(directory, group, queue)
        if offset is not None:
            yield from set_committed_offset(directory, to_group, queue=queue, offset=offset)
            cloned[queue] = offset
    return cloned


def committed_offset(
    directory: Directory, group: str, queue: MessageQueue
) -> Operation[int | None]:
    """Return the offset that a group has committed for a queue; None if there is none."""
    queue = directory.namespace.wrap_queue(check_queue(queue))
    group = directory.namespace.wrap(group)
    address = yield from get_broker_address(directory, queue)
    return (yield from query_offset(address, group, queue=queue, timeout_ms=directory.timeout_ms))


def group_lag(directory: Directory, group: str, topic: str) -> Operation[list[QueueLag]]:
    """Return a group's progress in each queue of a topic, in queue order.

    Of a group that consumes by message, messages acknowledged beyond the committed offset do not
    count; those in flight do.
    """
    route = yield from get_route(directory, topic, is_fresh=True)
    queues = sorted(route.subscribe_queues, key=queue_order)
    lags = yield from gather(
        [_queue_lag(directory, group, queue) for queue in queues], name=f"lag of {group}"
    )
    host, wrap = directory.routes.host, directory.namespace.wrap_queue
    behind = {host(wrap(each.queue)): each.queue for each in lags if each.lag}
    tables = yield from gather(
        [_lag_by_message(directory, group, queue) for queue in behind.values()],
        name=f"messages of {group}",
    )
    counted = {queue: lag for table in tables for queue, lag in table.items()}
    return [each._replace(lag=counted.get(each.queue, each.lag)) for each in lags]


def _lag_by_message(
    directory: Directory, group: str, queue: MessageQueue
) -> Operation[dict[MessageQueue, int]]:
    """Return the lag of the queues at one broker of which single messages are acknowledged."""
    names = directory.namespace
    queue = names.wrap_queue(check_queue(queue))
    address = yield from get_broker_address(directory, queue)
    stats = yield from group_stats(
        address, names.wrap(group), topic=queue.topic, timeout_ms=directory.timeout_ms
    )
    return {
        names.unwrap_queue(each.queue): each.lag for each in progress_of(stats) if each.acknowledged
    }


def _queue_lag(directory: Directory, group: str, queue: MessageQueue) -> Operation[QueueLag]:
    # The committed offset is asked for first. Otherwise a group that keeps up could seem ahead.
    committed = yield from committed_offset(directory, group, queue)
    max_offset = yield from queue_max_offset(directory, queue)
    begin = committed
    if begin is None:
        begin = yield from queue_min_offset(directory, queue)
    queue = directory.namespace.unwrap_queue(queue)
    return QueueLag(queue, max_offset, committed, max(0, max_offset - begin))


def consumer_ids(directory: Directory, group: str) -> Operation[list[str]]:
    """Return the client ids of a group as a broker lists them, duplicates included.

    The first broker that knows a member answers. A group without members has the list [].

    Raises: RouteError, TransportError; BrokerError other than "no consumer for this group".
    """
    group = directory.namespace.wrap(group)
    timeout_ms = directory.timeout_ms
    failure: SparrowError | None = None
    for broker in (yield from find_brokers(directory.name_servers, timeout_ms=timeout_ms)):
        try:
            found = yield from consumer_list(broker.address, group, timeout_ms=timeout_ms)
        except BrokerError as error:
            if not says_no_members(error):
                failure = error
            continue
        if found:
            return found
    if failure is not None:
        raise failure
    return []


def group_connections(directory: Directory, group: str) -> Operation[ConsumerConnection]:
    """Return a group's connections, from the first broker that knows a member.

    Raises: RouteError, TransportError; BrokerError other than CONSUMER_NOT_ONLINE.
    """
    group = directory.namespace.wrap(group)
    timeout_ms = directory.timeout_ms
    for broker in (yield from find_brokers(directory.name_servers, timeout_ms=timeout_ms)):
        try:
            found = yield from consumer_connections(broker.address, group, timeout_ms=timeout_ms)
        except BrokerError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            continue
        if found.connection_set:
            return found
    return ConsumerConnection()


def query_message(
    directory: Directory,
    topic: str,
    key: str,
    *,
    count_max: int = 64,
    begin_timestamp_ms: int = 0,
    end_timestamp_ms: int | None = None,
) -> Operation[list[MessageExt]]:
    """Return the latest messages of a topic that have a key or an id, in the order of storing.

    Args:
        key: one of a message's keys, or the id that the producer set (`MessageExt.msg_id`).
        count_max: the largest number of messages from each broker; brokers return at most 64.
        begin_timestamp_ms: the earliest store time, in wall-clock milliseconds.
        end_timestamp_ms: the latest store time; None for no limit.

    Raises: TopicRouteNotFound, TransportError; BrokerError, for example while a broker builds its
    index; UnreadableMessage if a message cannot be read; UsageError if the messages inflate to more
    than 100 MiB, so that fewer must be asked for.
    """
    found, failures = yield from look_for_messages(
        directory,
        topic,
        key,
        count_max=count_max,
        begin_timestamp_ms=begin_timestamp_ms,
        end_timestamp_ms=end_timestamp_ms,
    )
    raise_first(failures)
    return found


def look_for_messages(
    directory: Directory,
    topic: str,
    key: str,
    *,
    count_max: int = 64,
    begin_timestamp_ms: int = 0,
    end_timestamp_ms: int | None = None,
) -> Operation[tuple[list[MessageExt], dict[str, SparrowError]]]:
    """Return messages as `query_message`, and the errors of brokers that fail, by their names.

    Raises: as `query_message`, if all brokers fail.
    """
    topic = directory.namespace.wrap(topic)
    header = QueryMessageRequestHeader(
        topic=topic,
        key=key,
        max_num=count_max,
        begin_timestamp_ms=begin_timestamp_ms,
        end_timestamp_ms=_END_OF_TIME_MS if end_timestamp_ms is None else end_timestamp_ms,
    )
    route = yield from get_route(directory, topic, is_fresh=True)
    names = [name for name in sorted(route.brokers) if route.brokers[name]]
    queries = [_query_broker(directory, name, header) for name in names]
    outcomes = yield from gather_outcomes(queries, name=f"query {topic}")
    answers, failures = split_outcomes(names, outcomes)
    # Apache's brokers compare hashes, and other keys may have the same hash.
    found = [
        message
        for answer in answers.values()
        for message in answer
        if message.topic == topic and (key in message.keys or key == message.msg_id)
    ]
    found.sort(key=lambda message: message.store_timestamp_ms)
    return directory.namespace.unwrap_messages(found), failures


def _query_broker(
    directory: Directory, broker_name: str, header: QueryMessageRequestHeader
) -> Operation[list[MessageExt]]:
    address = directory.routes.address(broker_name)
    assert address is not None
    try:
        reply = yield from ask(
            address, RequestCode.QUERY_MESSAGE, header, timeout_ms=directory.timeout_ms
        )
    except BrokerError as error:
        if error.code == ResponseCode.QUERY_NOT_FOUND:
            return []
        raise
    return _decode_all(reply.body or b"", broker_name)


def _decode_all(body: bytes, broker_name: str) -> list[MessageExt]:
    """Return all messages of an answer.

    Raises: UnreadableMessage for a message that cannot be read; UsageError if the bodies inflate to
    more than `ANSWER_INFLATED_BYTES_MAX` together.
    """
    messages: list[MessageExt] = []
    at = size = 0
    while at < len(body):
        room_bytes = ANSWER_INFLATED_BYTES_MAX - size
        decoded = decode_messages(body, broker_name=broker_name, at=at, room_bytes=room_bytes)
        if decoded.failure is not None:
            found = decoded.unreadable
            what = "a record" if found is None else f"message {found.message.msg_id}"
            raise UnreadableMessage(
                f"{what} in an answer of broker {broker_name!r} cannot be read: {decoded.failure}"
            )
        if not decoded.messages:
            raise UsageError(
                f"the messages that broker {broker_name!r} answers inflate to more than "
                f"{ANSWER_INFLATED_BYTES_MAX} bytes; ask for fewer by count_max"
            )
        messages += decoded.messages
        size += sum(len(message.body) for message in decoded.messages)
        at = decoded.end
    return messages


def view_message(directory: Directory, topic: str, msg_id: str) -> Operation[MessageExt | None]:
    """Return the message with an id, None if no broker has the message any more.

    Args:
        msg_id: the id that the producer set, or the id that the broker returned
            (`SendResult.offset_msg_id`).

    Raises: as `query_message`, unless another broker has the message.
    """
    found, failures = yield from look_for_messages(directory, topic, msg_id)
    if found:
        return found[0]
    raise_first(failures)
    try:
        host, position = decode_offset_msg_id(msg_id)
        address = decode_host(host)
    except RemoteProtocolError:
        return None
    topic = directory.namespace.wrap(topic)
    # Only brokers of the topic are asked: an id may hold any address.
    names = sorted(directory.routes.broker_names_at(address))
    if not names or address not in directory.routes.addresses():
        return None
    try:
        reply = yield from ask(
            address,
            RequestCode.VIEW_MESSAGE_BY_ID,
            ViewMessageRequestHeader(position=position),
            timeout_ms=directory.timeout_ms,
        )
    except BrokerError as error:
        if error.code == ResponseCode.SYSTEM_ERROR:
            return None
        raise
    read = [m for m in _decode_all(reply.body or b"", names[0]) if m.topic == topic]
    return directory.namespace.unwrap_messages(read)[0] if read else None
