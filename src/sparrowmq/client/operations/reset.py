"""Reset a group's offsets in a topic: plan the changes, then apply them.

Connected members go on at offsets of their own, so a commit alone would not move them. A broker
finds the new offsets by a time and sends them to the members (INVOKE_BROKER_TO_RESET_OFFSET).
Without members the new offsets are committed directly.

Source: DefaultMQAdminExtImpl.resetOffsetByTimestamp, Broker2Client.resetOffset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.calling.effects import Operation, timestamp
from sparrowmq.client.directory import Directory, QueueLag
from sparrowmq.client.operations.administer import (
    consumer_ids,
    group_lag,
    queue_min_offset,
    queue_offset_at,
    set_committed_offset,
)
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.offsets import commit_all
from sparrowmq.client.operations.request import ask
from sparrowmq.client.operations.routes import check_queues, find_brokers, get_master_address
from sparrowmq.client.operations.snapshot import find_connections
from sparrowmq.client.route_cache import is_static
from sparrowmq.doctor.group_snapshot import BROADCASTING
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageQueue
from sparrowmq.model.spelling import spell_queue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import ResetOffsetRequestHeader

# The time that means the end of a queue in INVOKE_BROKER_TO_RESET_OFFSET.
_LATEST_TIMESTAMP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The place where the group goes on; exactly one field is set.

    Args:
        is_earliest: the oldest message of each queue.
        is_latest: the end of each queue, after all messages.
        timestamp_ms: the first message stored at or after a wall-clock time.
    """

    is_earliest: bool = False
    is_latest: bool = False
    timestamp_ms: int | None = None
    offset: int | None = None

    def __post_init__(self) -> None:
        given = (self.is_earliest, self.is_latest)
        known = (self.timestamp_ms is not None, self.offset is not None)
        if sum((*given, *known)) != 1:
            raise UsageError(
                'say where to go on: to="earliest", to="latest", a timestamp_ms, or an offset'
            )
        if (self.timestamp_ms or 0) < 0:
            # RocketMQ's tools take -1 for the end.
            raise UsageError(
                "the time to go on at lies before 1970; to skip all messages, go on at latest, and "
                "to get all, at earliest"
            )

    @property
    def broker_timestamp(self) -> int | None:
        """The time that a broker gets for the target; None for a target that is an offset."""
        if self.is_earliest:
            return 0
        return _LATEST_TIMESTAMP if self.is_latest else self.timestamp_ms


class QueueReset(NamedTuple):
    """The change of one queue's offset.

    Args:
        before: None if the group has committed nothing.
        first: the offset of the queue's oldest message; those before it have expired.
        end: the offset after the newest.
        acknowledged: the messages beyond `before` that consumers by message have acknowledged.
    """

    queue: MessageQueue
    before: int | None
    after: int
    first: int
    end: int
    acknowledged: int = 0

    @property
    def skipped(self) -> int:
        """The number of messages that the group skips; negative for messages that come again.

        Acknowledged messages count as the first ones beyond the group's offset.
        """
        return self._bounded(self.after) - self._bounded(self.before or 0) - self.acknowledged

    @property
    def is_needed(self) -> bool:
        """Whether the reset changes anything."""
        return self.before != self.after or self.skipped != 0

    def _bounded(self, offset: int) -> int:
        return min(max(offset, self.first), self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """The changes that a reset makes.

    Args:
        target: where the group goes on.
        queues: the change of each queue, in queue order.
        members: the client ids that are connected now and will be notified.
        is_whole_topic: whether `queues` names all queues of the topic.
        is_broadcasting: whether the members are BROADCASTING: each has its own offsets, of which
            `before` and `skipped` say nothing.
    """

    group: str
    topic: str
    target: Target
    queues: tuple[QueueReset, ...]
    members: tuple[str, ...]
    is_whole_topic: bool
    is_broadcasting: bool = False


def plan_reset(
    directory: Directory,
    group: str,
    topic: str,
    *,
    target: Target,
    queues: Sequence[tuple[str, int]] = (),
) -> Operation[ResetPlan]:
    """Return the changes that a reset would make, without making them.

    Args:
        queues: the queues to reset, by broker name and queue id; all queues of the topic by
            default.

    Raises: TopicRouteNotFound; RouteError if a queue's broker has no master; UsageError for a queue
    that the topic does not have, and for a reset that is impossible while members are connected;
    TransportError; BrokerError.
    """
    now_timestamp_ms = yield from timestamp()
    if target.timestamp_ms is not None and target.timestamp_ms > now_timestamp_ms:
        raise UsageError(
            "the time to go on at lies in the future; to skip all messages, go on at latest"
        )
    lags = yield from group_lag(directory, group, topic)
    check_queues(topic, queues, [lag.queue for lag in lags])
    chosen = [
        lag
        for lag in lags
        if not queues or (lag.queue.broker_name, lag.queue.queue_id) in set(queues)
    ]
    for lag in chosen:
        yield from get_master_address(directory, lag.queue)
    firsts = yield from gather(
        [queue_min_offset(directory, lag.queue) for lag in chosen], name=f"offsets of {topic}"
    )
    offsets = yield from gather(
        [
            _target_offset(directory, lag, target, first)
            for lag, first in zip(chosen, firsts, strict=True)
        ],
        name=f"reset of {group}",
    )
    members = yield from consumer_ids(directory, group)
    plan = ResetPlan(
        group=group,
        topic=topic,
        target=target,
        queues=tuple(
            _change_of(lag, offset, first)
            for lag, offset, first in zip(chosen, offsets, firsts, strict=True)
        ),
        members=tuple(sorted(members)),
        is_whole_topic=len(chosen) == len(lags),
        is_broadcasting=bool(members) and (yield from _is_broadcasting(directory, group)),
    )
    if members and (target.broker_timestamp is None or not plan.is_whole_topic):
        raise UsageError(
            f"group {group} has connected members ({len(members)}), and RocketMQ's brokers move "
            "these in a whole topic and to a time only: not in one queue, and not to an offset; "
            "stop the members first, or reset all queues to a time, earliest or latest"
        )
    if members and any(is_static(each.queue) for each in plan.queues):
        raise UsageError(
            f"group {group} has connected members ({len(members)}), and RocketMQ's brokers do not "
            f"move these in a static topic such as {topic}; stop the members first"
        )
    return plan


def apply_reset(directory: Directory, plan: ResetPlan) -> Operation[None]:
    """Apply the plan of `plan_reset`. Raises: TransportError; BrokerError if a broker refuses."""
    # Brokers of 4.x refuse to notify members while the group has a queue without a committed
    # offset, and answer 0 for such a queue.
    silent = [each for each in plan.queues if not (plan.members and each.before)]
    commits = {
        directory.namespace.wrap_queue(each.queue): set_committed_offset(
            directory, plan.group, queue=each.queue, offset=each.after
        )
        for each in silent
    }
    yield from commit_all(commits, directory.routes.host)
    if not plan.members:
        return
    timestamp_ms = plan.target.broker_timestamp
    assert timestamp_ms is not None
    wrap = directory.namespace.wrap
    header = ResetOffsetRequestHeader(
        topic=wrap(plan.topic), group=wrap(plan.group), timestamp_ms=timestamp_ms, is_force=True
    )
    host = directory.routes.host
    queues = [directory.namespace.wrap_queue(each.queue) for each in plan.queues]
    first_queues = {host(queue): queue for queue in queues}
    addresses = []
    for queue in first_queues.values():
        addresses.append((yield from get_master_address(directory, queue)))
    code, timeout_ms = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, directory.timeout_ms
    requests = [ask(address, code, header, timeout_ms=timeout_ms) for address in addresses]
    yield from gather(requests, name=f"reset of {plan.group}")


def _is_broadcasting(directory: Directory, group: str) -> Operation[bool]:
    """Return whether the first broker that knows a member says that the group is BROADCASTING."""
    brokers = yield from find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
    found = yield from find_connections(
        [broker.address for broker in brokers],
        directory.namespace.wrap(group),
        timeout_ms=directory.timeout_ms,
    )
    return found is not None and found.message_model == BROADCASTING


def _change_of(lag: QueueLag, after: int, first: int) -> QueueReset:
    begin = first if lag.committed_offset is None else lag.committed_offset
    # A group's lag leaves out what consumers by message have acknowledged.
    acknowledged = max(0, lag.max_offset - begin - lag.lag)
    return QueueReset(lag.queue, lag.committed_offset, after, first, lag.max_offset, acknowledged)


def _target_offset(
    directory: Directory, lag: QueueLag, target: Target, first: int
) -> Operation[int]:
    queue, end = lag.queue, lag.max_offset
    if target.is_latest:
        return end
    if target.timestamp_ms is not None:
        timestamp_ms = target.timestamp_ms
        return (yield from queue_offset_at(directory, queue, timestamp_ms=timestamp_ms))
    if target.offset is None:
        return first
    if not first <= target.offset <= end:
        raise UsageError(
            f"queue {spell_queue(queue)} of {queue.topic} has offsets {first} to {end}, "
            f"not {target.offset}"
        )
    return target.offset
