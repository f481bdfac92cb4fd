"""A topic's settings and queues at every broker, and the groups that consume it.

Source: AdminBrokerProcessor.getTopicStatsInfo, queryTopicConsumeByWho, updateAndCreateTopic.
Tests: test_with_broker.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import structs

from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.gather import gather, gather_outcomes, raise_first, split_outcomes
from sparrowmq.client.operations.offsets import topic_offsets
from sparrowmq.client.operations.request import ask, ask_name_servers, decode_answer
from sparrowmq.client.operations.routes import (
    BrokerAt,
    check_masters,
    find_brokers,
    find_masters,
    find_route,
)
from sparrowmq.client.route_cache import QUEUES_MAX
from sparrowmq.config import check_range
from sparrowmq.errors import ConfigError, SparrowError, TopicRouteNotFound, UsageError
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import AUTO_CREATE_TOPIC_KEY_TOPIC, is_system_topic
from sparrowmq.protocol.bodies import (
    PERM_READ,
    PERM_WRITE,
    GroupList,
    QueueData,
    TopicConfig,
    TopicConfigTable,
    TopicList,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import FRAME_BYTES_MAX
from sparrowmq.protocol.headers import (
    CreateTopicRequestHeader,
    QueryTopicConsumeByWhoRequestHeader,
)

_PERMS = {"r": PERM_READ, "w": PERM_WRITE, "rw": PERM_READ | PERM_WRITE, "none": 0}
_NAMES_OF_PERMS = {value: name for name, value in _PERMS.items()}


def parse_perm(text: str) -> int:
    """Parse a topic's permissions: `rw`, `r`, `w` or `none`. Raises: ConfigError."""
    try:
        return _PERMS[text]
    except KeyError:
        raise ConfigError(f"the permissions {text!r} are none of {', '.join(_PERMS)}") from None


def perm_name(perm: int) -> str:
    """Return a topic's permissions as text: `rw`, `r`, `w` or `none`."""
    return _NAMES_OF_PERMS[perm & (PERM_READ | PERM_WRITE)]


def list_topics(directory: Directory) -> Operation[list[str]]:
    """Return the topics that the name server knows, by name, RocketMQ's own included.

    Raises: ConnectFailed if no name server answers; BrokerError.
    """
    names = yield from ask_name_servers(
        directory.name_servers,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        read=_read_topics,
        timeout_ms=directory.timeout_ms,
    )
    return sorted(map(directory.namespace.unwrap, names))


def _read_topics(reply: RemotingCommand, address: str) -> list[str]:
    return decode_answer(TopicList, reply, address, absent=b"{}").topic_list


class QueueStatus(NamedTuple):
    """One queue's offsets; `last_timestamp_ms` is the last message's store time, None for none."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """A topic's full status.

    Args:
        topic: the topic's name.
        places: the topic's settings, by broker name.
        addresses: by broker name, the `host:port` of each broker id (0 is the master).
        queues: the status of each queue, by broker name and queue id.
        groups: the groups that subscribe to the topic or have committed offsets in it, by name.
    """

    topic: str
    places: tuple[QueueData, ...]
    addresses: dict[str, dict[int, str]]
    queues: tuple[QueueStatus, ...]
    groups: tuple[str, ...]


def topic_status(directory: Directory, topic: str) -> Operation[TopicStatus]:
    """Return a topic's status, by its route and two requests to each of its brokers.

    Raises: TopicRouteNotFound; ConnectFailed, TransportError, BrokerError.
    """
    status, failures = yield from look_at_topic(directory, topic)
    raise_first(failures)
    return status


def look_at_topic(
    directory: Directory, topic: str
) -> Operation[tuple[TopicStatus, dict[str, SparrowError]]]:
    """Return a topic's status without the queues of brokers that fail, and these brokers' errors.

    Raises: TopicRouteNotFound; ConnectFailed, TransportError, BrokerError if all of them fail.
    """
    topic = directory.namespace.wrap(topic)
    route = yield from find_route(directory.name_servers, topic, timeout_ms=directory.timeout_ms)
    brokers = sorted((b for b in route.broker_datas if b.broker_addrs), key=lambda b: b.broker_name)
    asked = [broker.broker_addrs[min(broker.broker_addrs)] for broker in brokers]
    outcomes = yield from gather_outcomes(
        [_look_at_place(directory, address, topic) for address in asked], name=f"queues of {topic}"
    )
    found, failures = split_outcomes([broker.broker_name for broker in brokers], outcomes)
    status = TopicStatus(
        topic=directory.namespace.unwrap(topic),
        places=tuple(sorted(route.queue_datas, key=lambda data: data.broker_name)),
        addresses={broker.broker_name: dict(broker.broker_addrs) for broker in brokers},
        queues=tuple(sorted(each for place in found.values() for each in place.queues)),
        groups=tuple(sorted({group for place in found.values() for group in place.groups})),
    )
    return status, failures


class _Place(NamedTuple):
    """A topic at one broker."""

    queues: list[QueueStatus]
    groups: list[str]


def _look_at_place(directory: Directory, address: str, topic: str) -> Operation[_Place]:
    queues = yield from _queue_statuses(directory, address, topic)
    return _Place(queues, (yield from _readers(directory, address, topic)))


def _queue_statuses(directory: Directory, address: str, topic: str) -> Operation[list[QueueStatus]]:
    table = yield from topic_offsets(address, topic, timeout_ms=directory.timeout_ms)
    return [
        QueueStatus(
            directory.namespace.unwrap_queue(queue),
            max(0, at.min_offset),
            max(0, at.max_offset),
            at.last_update_timestamp_ms or None,
        )
        for queue, at in table.items()
    ]


def _readers(directory: Directory, address: str, topic: str) -> Operation[list[str]]:
    header = QueryTopicConsumeByWhoRequestHeader(topic=topic)
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    reply = yield from ask(address, code, header, timeout_ms=directory.timeout_ms)
    groups = decode_answer(GroupList, reply, address, absent=b"{}").group_list
    return [directory.namespace.unwrap(group) for group in groups]


class TopicChange(NamedTuple):
    """A topic's settings at one broker, before and after."""

    broker: BrokerAt
    before: TopicConfig
    after: TopicConfig


class TopicLoss(NamedTuple):
    """What goes with a topic at one broker: its queues to write to, and the messages stored."""

    broker_name: str
    queue_count: int
    message_count: int


def plan_topic_deletion(
    directory: Directory, topic: str, *, cluster: str | None = None
) -> Operation[tuple[list[TopicLoss], tuple[str, ...]]]:
    """Return what a topic's deletion would take, and the groups with offsets in it.

    Args:
        cluster: the cluster whose brokers to look at; None looks at all brokers.

    Raises: TopicRouteNotFound; UsageError for an unknown cluster, or a topic of RocketMQ's own;
        RouteError if a broker has no master; TransportError; BrokerError.
    """
    status = yield from topic_status(directory, topic)
    brokers = yield from find_masters(directory, cluster=cluster)
    _check_changeable(directory.namespace.wrap(topic), brokers)
    messages: Counter[str] = Counter()
    for at in status.queues:
        messages[at.queue.broker_name] += at.max_offset - at.min_offset
    names = {broker.name for broker in brokers}
    losses = [
        TopicLoss(place.broker_name, place.write_queue_nums, messages[place.broker_name])
        for place in status.places
        if place.broker_name in names
    ]
    return losses, status.groups


def _check_changeable(topic: str, brokers: Iterable[BrokerAt]) -> None:
    if is_system_topic(topic) or any(topic in broker.own_topics for broker in brokers):
        raise UsageError(
            f"topic {topic!r} is one of RocketMQ's own, which brokers neither change nor delete"
        )


def plan_topic_update(
    directory: Directory,
    topic: str,
    *,
    read_queues: int | None = None,
    write_queues: int | None = None,
    perm: int | None = None,
    cluster: str | None = None,
) -> Operation[list[TopicChange]]:
    """Return the changes that an update of a topic would make, without making them.

    Args:
        read_queues, write_queues: the number of queues at each broker; None leaves the number.
        perm: the permissions that `parse_perm` returns; None leaves them.
        cluster: the cluster whose brokers to change; None changes all brokers.

    Raises: TopicRouteNotFound if no broker has the topic; RouteError if one that has it has no
        master; UsageError for an unknown cluster, or a topic of RocketMQ's own; ConfigError;
        TransportError; BrokerError.
    """
    topic = directory.namespace.wrap(topic)
    for name, value in (("read_queues", read_queues), ("write_queues", write_queues)):
        if value is not None:
            check_range(name, value, 1, QUEUES_MAX)
    brokers = yield from find_brokers(
        directory.name_servers, cluster=cluster, timeout_ms=directory.timeout_ms
    )
    _check_changeable(topic, brokers)
    asked = [all_topic_configs(directory, broker.address) for broker in brokers]
    tables = yield from gather(asked, name=f"settings of {topic}")
    wanted = {"read_queue_nums": read_queues, "write_queue_nums": write_queues, "perm": perm}
    settings = {name: value for name, value in wanted.items() if value is not None}
    changes = [
        TopicChange(broker, config, structs.replace(config, **settings))
        for broker, table in zip(brokers, tables, strict=True)
        if (config := table.get(topic)) is not None
    ]
    if not changes:
        raise TopicRouteNotFound(f"no broker has topic {topic!r}; create it, or check its name")
    check_masters(change.broker for change in changes)
    return changes


def update_topic(directory: Directory, changes: Sequence[TopicChange]) -> Operation[None]:
    """Carry out what `plan_topic_update` planned. Raises: TransportError, BrokerError."""
    requests = [
        ask(
            change.broker.address,
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            CreateTopicRequestHeader(
                topic=change.after.topic_name,
                default_topic=AUTO_CREATE_TOPIC_KEY_TOPIC,
                read_queue_nums=change.after.read_queue_nums,
                write_queue_nums=change.after.write_queue_nums,
                perm=change.after.perm,
                topic_filter_type=change.after.topic_filter_type,
                topic_sys_flag=change.after.topic_sys_flag,
                order=change.after.order,
            ),
            timeout_ms=directory.timeout_ms,
        )
        for change in changes
        if change.after != change.before
    ]
    yield from gather(requests, name="update topic")


def all_topic_configs(directory: Directory, address: str) -> Operation[dict[str, TopicConfig]]:
    """Return the settings of all topics of a broker; only 5.x brokers answer for one topic.

    Raises: TransportError, BrokerError.
    """
    code = RequestCode.GET_ALL_TOPIC_CONFIG
    reply = yield from ask(address, code, timeout_ms=directory.timeout_ms)
    table = decode_answer(TopicConfigTable, reply, address, bytes_max=FRAME_BYTES_MAX)
    return table.topic_config_table
