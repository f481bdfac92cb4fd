"""A cluster's consumer groups: their names, their settings, and snapshots of many groups.

Source: RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG. Tests: cli/test_topics_and_groups.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import UNSET, structs

from sparrowmq.calling.effects import Operation, join
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.administer import delete_topic
from sparrowmq.client.operations.gather import gather, gather_outcomes, raise_first, split_outcomes
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.client.operations.routes import (
    BrokerAt,
    check_masters,
    find_brokers,
    find_masters,
    find_route,
)
from sparrowmq.client.operations.snapshot import BegunSnapshot, begin_snapshot, end_snapshot
from sparrowmq.config import check_range
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model.names import (
    check_consumer_group,
    check_group,
    check_topic,
    dlq_topic,
    is_system_group,
    retry_topic,
)
from sparrowmq.protocol.bodies import (
    RequestMode,
    RequestModeTable,
    SubscriptionGroupConfig,
    SubscriptionGroupTable,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import DeleteSubscriptionGroupRequestHeader

# Snapshots taken at the same time; each has a few requests under way.
GROUPS_AT_ONCE = 24
# The bound of attempts and of a retry topic's queues, far above any useful number.
RETRIES_MAX = 1_024


def list_groups(directory: Directory) -> Operation[list[str]]:
    """Return the groups that any broker knows, without RocketMQ's own, in the order of names.

    Raises: RouteError if no broker is known; ConnectFailed; BrokerError; TransportError.
    """
    found, failures = yield from look_at_groups(directory)
    raise_first(failures)
    return found


def look_at_groups(directory: Directory) -> Operation[tuple[list[str], dict[str, SparrowError]]]:
    """Return the groups as `list_groups`, and the errors of brokers that fail, by their names.

    Raises: RouteError if no broker is known; ConnectFailed, BrokerError, TransportError if all of
    them fail.
    """
    brokers = yield from find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    tables, failures = yield from _ask_all(directory, brokers)
    names = {name for table in tables.values() for name in table}
    return sorted(name for name in names if not is_system_group(name)), failures


def take_snapshots(
    directory: Directory, groups: Sequence[str], *, interval_ms: int = 0
) -> Operation[tuple[list[GroupSnapshot], dict[str, SparrowError]]]:
    """Take snapshots of groups in one pass: first samples of all groups, then the second ones.

    A few groups are asked at a time, so that many groups do not flood the brokers.

    Args:
        interval_ms: the pause between the two samples of a snapshot; 0 takes one sample.

    Returns: the snapshots, in the order of `groups`, and the errors of the groups without one.
    """
    begun = yield from gather_outcomes(
        [_begin(directory, group) for group in groups], name="snapshots", at_once=GROUPS_AT_ONCE
    )
    ending = [
        end_snapshot(directory, each, interval_ms=interval_ms)
        for each in begun
        if not isinstance(each, SparrowError)
    ]
    outcomes = yield from gather_outcomes(ending, name="snapshots", at_once=GROUPS_AT_ONCE)
    ended = iter(outcomes)
    found: list[GroupSnapshot] = []
    failures: dict[str, SparrowError] = {}
    for group, each in zip(groups, begun, strict=True):
        outcome = each if isinstance(each, SparrowError) else next(ended)
        if isinstance(outcome, SparrowError):
            failures[group] = outcome
        else:
            found.append(outcome)
    return found, failures


def _begin(directory: Directory, group: str) -> Operation[BegunSnapshot]:
    begun = yield from begin_snapshot(directory, group)
    # Members of further groups are asked only once these have answered.
    yield from join(begun.asking)
    return begun


class GroupChange(NamedTuple):
    """A group's settings at one broker, before and after; `before` is None for a new group."""

    broker: BrokerAt
    before: SubscriptionGroupConfig | None
    after: SubscriptionGroupConfig


def find_group_settings(
    directory: Directory, group: str
) -> Operation[list[tuple[BrokerAt, SubscriptionGroupConfig | None]]]:
    """Return a group's settings at every broker, by broker name; None if the broker has none.

    Raises: RouteError if no broker is known; ConnectFailed; BrokerError; TransportError.
    """
    found, failures = yield from look_at_group_settings(directory, group)
    raise_first(failures)
    return found


def look_at_group_settings(
    directory: Directory, group: str
) -> Operation[
    tuple[list[tuple[BrokerAt, SubscriptionGroupConfig | None]], dict[str, SparrowError]]
]:
    """Return a group's settings as `find_group_settings`, and the errors of brokers that fail.

    Raises: RouteError if no broker is known; ConnectFailed, BrokerError, TransportError if all of
    them fail.
    """
    group = directory.namespace.wrap(group)
    brokers = yield from find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    tables, failures = yield from _ask_all(directory, brokers)
    found = [(each, tables[each.name].get(group)) for each in brokers if each.name in tables]
    return found, failures


def check_own(directory: Directory, group: str) -> None:
    """Raise a UsageError for a group of RocketMQ's own, without which tools read no messages."""
    if is_system_group(directory.namespace.wrap(group)):
        raise UsageError(
            f"group {group!r} is one of RocketMQ's own, by which tools and brokers read messages; "
            "it is neither changed nor deleted, but may be enabled"
        )


def plan_group_update(
    directory: Directory,
    group: str,
    *,
    is_enabled: bool | None = None,
    max_reconsume_times: int | None = None,
    retry_queues: int | None = None,
    is_orderly: bool | None = None,
) -> Operation[list[GroupChange]]:
    """Return the changes that an update of a group's settings would make, without making them.

    The update creates the group at brokers that do not know it.

    Args:
        is_enabled: whether brokers give messages to the group; None leaves the setting.
        max_reconsume_times: how often a failed message comes again before it is a dead letter.
        retry_queues: how many queues the retry topic has at each broker.
        is_orderly: whether the group's clients of RocketMQ 5 consume in order.

    Raises: ConfigError; UsageError for a group of RocketMQ's own that is not enabled; RouteError if
    no broker is known, or one has no master; ConnectFailed; BrokerError; TransportError.
    """
    check_consumer_group(directory.namespace.wrap(group))
    if not is_enabled:
        check_own(directory, group)
    for name, value in (
        ("max_reconsume_times", max_reconsume_times),
        ("retry_queues", retry_queues),
    ):
        if value is not None:
            check_range(name, value, 0, RETRIES_MAX)
    wanted = {
        "consume_enable": is_enabled,
        "retry_max_times": max_reconsume_times,
        "retry_queue_nums": retry_queues,
        "consume_message_orderly": is_orderly,
    }
    settings = {name: value for name, value in wanted.items() if value is not None}
    known = yield from find_group_settings(directory, group)
    check_masters(broker for broker, _ in known)
    new = SubscriptionGroupConfig(group_name=directory.namespace.wrap(group))
    return [
        GroupChange(broker, before, structs.replace(before or new, **settings))
        for broker, before in known
    ]


def update_group(directory: Directory, changes: Sequence[GroupChange]) -> Operation[None]:
    """Carry out what `plan_group_update` planned. Raises: TransportError, BrokerError."""
    # A request has changes of the attributes in their place; without them the broker keeps them.
    sent = [
        change._replace(after=structs.replace(change.after, attributes=UNSET))
        for change in changes
        if change.after != change.before
    ]
    yield from _carry_out(directory, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, sent)


def _carry_out(
    directory: Directory, code: int, changes: Sequence[GroupChange | ModeChange]
) -> Operation[None]:
    requests = [
        ask(
            change.broker.address,
            code,
            body=encode_body(change.after),
            timeout_ms=directory.timeout_ms,
        )
        for change in changes
        if change.after != change.before
    ]
    yield from gather(requests, name="changes of a group")


class ModeChange(NamedTuple):
    """How a group consumes a topic at one broker, before and after."""

    broker: BrokerAt
    before: RequestMode
    after: RequestMode


def plan_request_mode(
    directory: Directory,
    group: str,
    topic: str,
    mode: Literal["PULL", "POP"],
    *,
    share: int = 0,
    cluster: str | None = None,
) -> Operation[list[ModeChange]]:
    """Return what `set_request_mode` would change at the topic's brokers, without changing it.

    Args:
        mode: whether the group's members that let brokers divide pull queues or pop messages.
        share: by messages, with how many members a member shares its queues; 0 for all.
        cluster: the cluster whose brokers to change; None changes all brokers.

    Raises: ConfigError; UsageError for a cluster without the topic; TopicRouteNotFound; RouteError
    if a broker has no master; ConnectFailed; BrokerError, from a broker of 4.x too, which knows no
    modes; TransportError.
    """
    check_group(group)
    check_topic(topic)
    check_range("share", share, 0, RETRIES_MAX)
    group, topic = directory.namespace.wrap(group), directory.namespace.wrap(topic)
    after = RequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share)
    route = yield from find_route(directory.name_servers, topic, timeout_ms=directory.timeout_ms)
    brokers = [
        BrokerAt.of(each.broker_name, each.cluster or "", each.broker_addrs)
        for each in sorted(route.broker_datas, key=lambda each: each.broker_name)
        if each.broker_addrs and cluster in (None, each.cluster)
    ]
    if not brokers and cluster is not None:
        raise UsageError(f"no broker of cluster {cluster!r} has topic {topic!r}")
    check_masters(brokers)
    code, timeout_ms = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, directory.timeout_ms
    asked = [ask(broker.address, code, timeout_ms=timeout_ms) for broker in brokers]
    replies = yield from gather(asked, name="request modes")
    changes: list[ModeChange] = []
    for broker, reply in zip(brokers, replies, strict=True):
        modes = decode_answer(RequestModeTable, reply, broker.address).message_request_mode_map
        before = modes.get(topic, {}).get(group)
        unset = RequestMode(topic=topic, consumer_group=group)
        changes.append(ModeChange(broker, before or unset, after))
    return changes


def set_request_mode(directory: Directory, changes: Sequence[ModeChange]) -> Operation[None]:
    """Carry out what `plan_request_mode` planned. Raises: TransportError, BrokerError."""
    yield from _carry_out(directory, RequestCode.SET_MESSAGE_REQUEST_MODE, changes)


def delete_group(
    directory: Directory, group: str, *, cluster: str | None = None
) -> Operation[None]:
    """Delete a group at every broker, or every one of a cluster: all that the broker has of it.

    That is its settings, offsets, retries and dead letters.

    Raises: RouteError if no broker is known, or one has no master; UsageError for an unknown
        cluster, or a group of RocketMQ's own; ConnectFailed; BrokerError; TransportError.
    """
    check_own(directory, group)
    wrapped = directory.namespace.wrap(group)
    header = DeleteSubscriptionGroupRequestHeader(
        group_name=wrapped, remove_offset=True, clean_offset=True
    )
    code, timeout_ms = RequestCode.DELETE_SUBSCRIPTIONGROUP, directory.timeout_ms
    brokers = yield from find_masters(directory, cluster=cluster)
    requests = [ask(broker.address, code, header, timeout_ms=timeout_ms) for broker in brokers]
    yield from gather(requests, name=f"delete group {group}")
    # Brokers leave these topics to tools, and deleting an unknown topic is not an error.
    for topic in (retry_topic(wrapped), dlq_topic(wrapped)):
        yield from delete_topic(directory, topic, cluster=cluster)


def _ask_all(
    directory: Directory, brokers: Sequence[BrokerAt]
) -> Operation[tuple[dict[str, dict[str, SubscriptionGroupConfig]], dict[str, SparrowError]]]:
    """Return the groups' settings at each broker that answers, and the errors of the others."""
    outcomes = yield from gather_outcomes(
        [_ask_groups(directory, broker.address) for broker in brokers], name="groups"
    )
    return split_outcomes([broker.name for broker in brokers], outcomes)


def _ask_groups(
    directory: Directory, address: str
) -> Operation[dict[str, SubscriptionGroupConfig]]:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    reply = yield from ask(address, code, timeout_ms=directory.timeout_ms)
    return decode_answer(SubscriptionGroupTable, reply, address).subscription_group_table
