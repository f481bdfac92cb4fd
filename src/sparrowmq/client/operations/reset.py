"""Have a group go on elsewhere in a topic: plan what changes, then do it.

Members that are connected keep the offsets they go on from to themselves; a broker passes the new
ones on to them (INVOKE_BROKER_TO_RESET_OFFSET), and finds each by a time. Without members the
offsets are committed as they are.

Source: DefaultMQAdminExtImpl.resetOffsetByTimestamp, Broker2Client.resetOffset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.administer import (
    consumer_ids,
    get_broker_address,
    group_lag,
    queue_min_offset,
    queue_offset_at,
    set_committed_offset,
)
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.request import ask
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.headers import ResetOffsetRequestHeader

# What stands for the end of a queue in INVOKE_BROKER_TO_RESET_OFFSET.
_LATEST_TIMESTAMP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where to go on: at exactly one of these.

    Args:
        is_earliest: the oldest message of each queue.
        is_latest: the end of each queue, past all messages.
        timestamp_ms: the first message stored at or after a wall-clock time.
        offset: this offset.
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

    @property
    def broker_timestamp(self) -> int | None:
        """The same as the time that a broker is given; None if no time says it."""
        if self.is_earliest:
            return 0
        return _LATEST_TIMESTAMP if self.is_latest else self.timestamp_ms


class QueueReset(NamedTuple):
    """What a reset does to one queue; `before` is None where the group has committed nothing."""

    queue: MessageQueue
    before: int | None
    after: int
    end: int

    @property
    def skipped(self) -> int:
        """Messages that the group will never get; negative for those it will get again."""
        return self.after - (self.before or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """What a reset does.

    Args:
        group, topic: of whom, where.
        target: where to.
        queues: what becomes of each queue, in queue order.
        members: the client ids that are connected now, who will be notified.
        is_whole_topic: whether all queues of the topic are among them.
    """

    group: str
    topic: str
    target: Target
    queues: tuple[QueueReset, ...]
    members: tuple[str, ...]
    is_whole_topic: bool


def plan_reset(
    directory: Directory,
    group: str,
    topic: str,
    *,
    target: Target,
    queues: Sequence[tuple[str, int]] = (),
) -> Operation[ResetPlan]:
    """Say what a reset would do. Nothing is changed.

    Args:
        queues: only these, by broker name and queue id; all of the topic's by default.

    Raises: TopicRouteNotFound; UsageError for a queue that the topic does not have, and for what
    cannot be done while members are connected; TransportError; BrokerError.
    """
    lags = yield from group_lag(directory, group, topic)
    known = {(lag.queue.broker_name, lag.queue.queue_id) for lag in lags}
    unknown = sorted(set(queues) - known)
    if unknown:
        raise UsageError(f"topic {topic!r} has no queue {unknown[0][0]}:{unknown[0][1]}")
    chosen = [
        lag
        for lag in lags
        if not queues or (lag.queue.broker_name, lag.queue.queue_id) in set(queues)
    ]
    offsets = yield from gather(
        [_target_offset(directory, lag.queue, target, lag.max_offset) for lag in chosen],
        name=f"reset of {group}",
    )
    members = yield from consumer_ids(directory, group)
    plan = ResetPlan(
        group=group,
        topic=topic,
        target=target,
        queues=tuple(
            QueueReset(lag.queue, lag.committed_offset, offset, lag.max_offset)
            for lag, offset in zip(chosen, offsets, strict=True)
        ),
        members=tuple(sorted(members)),
        is_whole_topic=len(chosen) == len(lags),
    )
    if members and (target.broker_timestamp is None or not plan.is_whole_topic):
        raise UsageError(
            f"members of {group} are connected ({len(members)}), whom brokers give a time for a "
            f"whole topic only; stop them, or reset all queues to a time, earliest or latest"
        )
    return plan


def apply_reset(directory: Directory, plan: ResetPlan) -> Operation[None]:
    """Do what `plan_reset` planned. Raises: TransportError; BrokerError if a broker refuses."""
    # Brokers of 4.x refuse to notify members while the group has committed nothing in some queue,
    # and say 0 for nothing.
    silent = [each for each in plan.queues if not (plan.members and each.before)]
    yield from gather(
        [
            set_committed_offset(directory, plan.group, queue=each.queue, offset=each.after)
            for each in silent
        ],
        name=f"reset of {plan.group}",
    )
    if not plan.members:
        return
    timestamp_ms = plan.target.broker_timestamp
    assert timestamp_ms is not None
    wrap = directory.namespace.wrap
    header = ResetOffsetRequestHeader(
        topic=wrap(plan.topic), group=wrap(plan.group), timestamp_ms=timestamp_ms, is_force=True
    )
    first_queues = {each.queue.broker_name: each.queue for each in plan.queues}
    addresses = []
    for queue in first_queues.values():
        addresses.append((yield from get_broker_address(directory, queue)))
    code, timeout_ms = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, directory.timeout_ms
    requests = [ask(address, code, header, timeout_ms=timeout_ms) for address in addresses]
    yield from gather(requests, name=f"reset of {plan.group}")


def _target_offset(
    directory: Directory, queue: MessageQueue, target: Target, end: int
) -> Operation[int]:
    if target.is_latest:
        return end
    if target.timestamp_ms is not None:
        timestamp_ms = target.timestamp_ms
        return (yield from queue_offset_at(directory, queue, timestamp_ms=timestamp_ms))
    first = yield from queue_min_offset(directory, queue)
    if target.offset is None:
        return first
    if not first <= target.offset <= end:
        raise UsageError(
            f"queue {queue.broker_name}:{queue.queue_id} of {queue.topic} has offsets {first} to "
            f"{end}, not {target.offset}"
        )
    return target.offset
