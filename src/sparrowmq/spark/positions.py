"""The starts and ends of a read that only the cluster knows.

These are a group's committed offsets, and the first message stored at or after a time. Brokers can
search by time. For a time after all messages they return the last message, and among messages of
one millisecond 4.x brokers return any. Their answer is therefore a first guess here, which two
pulls of one message confirm. Source: ConsumeQueue.getOffsetInQueueByTime of RocketMQ 4.9.
Tests: test_bounds.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.offsets import all_offsets, query_offset, search_offset
from sparrowmq.client.operations.pull import PullStatus, make_pull_header, pull
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import TOOLS_GROUP
from sparrowmq.protocol.record import decode_record
from sparrowmq.spark.bounds import (
    GroupChoice,
    OffsetChoice,
    QueueBounds,
    StartChoice,
)
from sparrowmq.spark.checkpoint_offsets import EARLIEST
from sparrowmq.spark.topic_queues import Cluster

DEFAULT_GROUP = TOOLS_GROUP
# The messages that estimate the size of a queue's next ones: as many as one pull of Apache's
# returns.
SAMPLE_COUNT = 32


def find_offsets(
    cluster: Cluster,
    choice: StartChoice,
    bounds: Mapping[MessageQueue, QueueBounds],
    *,
    group: str | None,
    pull_group: str | None,
) -> Operation[OffsetChoice]:
    """Turn a user's choice into offsets.

    Args:
        group: the consumer group of the read.
        pull_group: the group that pulls; None for the default one.

    Raises: TransportError, BrokerError, RouteError; ConfigError if a message that must exist does
    not.
    """
    if isinstance(choice, OffsetChoice):
        return choice
    queues = sorted(bounds)
    if isinstance(choice, GroupChoice):
        assert group is not None
        committed = yield from _find_committed(cluster, group, queues)
        if choice.fallback != EARLIEST:
            committed = yield from _without_stand_ins(cluster, group, committed)
        return OffsetChoice(choice.fallback, committed)
    times = {queue: choice.time_of(queue) for queue in queues}
    searches = {
        queue: first_offset_since(
            cluster, queue, bounds[queue], timestamp_ms=timestamp_ms, group=pull_group
        )
        for queue, timestamp_ms in times.items()
        if timestamp_ms is not None
    }
    offsets = yield from gather(list(searches.values()), name="offsets by timestamp")
    # A named queue that does not exist is an error later, so it stays in.
    unknown = dict.fromkeys(choice.timestamps_ms.keys() - bounds.keys(), EARLIEST)
    return choice.settle(unknown | dict(zip(searches, offsets, strict=True)), bounds)


def _find_committed(
    cluster: Cluster, group: str, queues: Sequence[MessageQueue]
) -> Operation[dict[MessageQueue, int]]:
    """Return a group's committed offsets, for the queues that have one."""
    asked = [
        query_offset(
            cluster.address(queue),
            group,
            queue=queue,
            set_zero_if_not_found=False,
            timeout_ms=cluster.request_timeout_ms,
        )
        for queue in queues
    ]
    found = yield from gather(asked, name="committed offsets")
    return {q: offset for q, offset in zip(queues, found, strict=True) if offset is not None}


def _without_stand_ins(
    cluster: Cluster, group: str, committed: Mapping[MessageQueue, int]
) -> Operation[dict[MessageQueue, int]]:
    """Leave out each 0 that stands for "nothing committed".

    A broker of 4.x answers 0 while the queue's first message is in memory. Its table of all
    committed offsets shows whether 0 was committed.
    """
    zeros = {queue for queue, offset in committed.items() if offset == 0}
    addresses = sorted({cluster.address(queue) for queue in zeros})
    timeout_ms = cluster.request_timeout_ms
    asked = [all_offsets(each, timeout_ms=timeout_ms) for each in addresses]
    tables = yield from gather(asked, name="tables")
    at_address = dict(zip(addresses, tables, strict=True))
    wrap = cluster.namespace.wrap

    def is_committed(queue: MessageQueue) -> bool:
        key = f"{wrap(queue.topic)}@{wrap(group)}"
        return queue.queue_id in at_address[cluster.address(queue)].get(key, {})

    return {
        queue: offset
        for queue, offset in committed.items()
        if queue not in zeros or is_committed(queue)
    }


def first_offset_since(
    cluster: Cluster,
    queue: MessageQueue,
    bounds: QueueBounds,
    *,
    timestamp_ms: int,
    group: str | None,
) -> Operation[int]:
    """Return the offset of the first message stored at or after a time, or the queue's end.

    Args:
        group: the group that pulls; None for the default one.
    """
    address = cluster.address(queue)
    low, high = bounds.min_offset, bounds.max_offset
    if low == high:
        return high
    guess = yield from search_offset(
        address, queue, timestamp_ms=timestamp_ms, timeout_ms=cluster.request_timeout_ms
    )
    guesses = [guess - 1, guess]
    # Messages before `low` are older than the time; messages from `high` on are not.
    while low < high:
        middle = guesses.pop() if guesses else (low + high) // 2
        if not low <= middle < high:
            continue
        at, stored_timestamp_ms = yield from _stored(cluster, queue, middle, end=high, group=group)
        if stored_timestamp_ms is None or stored_timestamp_ms >= timestamp_ms:
            high = middle
        else:
            low = at + 1
    return high


def _stored(
    cluster: Cluster, queue: MessageQueue, offset: int, *, end: int, group: str | None
) -> Operation[tuple[int, int | None]]:
    """Return the first message from an offset on, and its store time; None without a message."""
    header = make_pull_header(group or DEFAULT_GROUP, queue, offset=offset, count_max=1)
    result = yield from pull(cluster.address(queue), header, timeout_ms=cluster.request_timeout_ms)
    if result.status is PullStatus.FOUND:
        record = decode_record(result.records, 0)
        return record.queue_offset, record.store_timestamp_ms
    if offset < result.next_offset < end:
        return (yield from _stored(cluster, queue, result.next_offset, end=end, group=group))
    return offset, None


def first_store_times(
    cluster: Cluster,
    offsets: Mapping[MessageQueue, int],
    bounds: Mapping[MessageQueue, QueueBounds],
    *,
    group: str | None,
) -> Operation[dict[MessageQueue, int | None]]:
    """Return when the first message of each queue was stored; None if none is before its offset.

    Raises: TransportError, BrokerError, RouteError.
    """
    queues = sorted(offsets)
    asked = [
        _stored(cluster, queue, bounds[queue].min_offset, end=offsets[queue], group=group)
        for queue in queues
    ]
    found = yield from gather(asked, name="store times")
    return {queue: stored_ms for queue, (_, stored_ms) in zip(queues, found, strict=True)}


def sample_sizes(
    cluster: Cluster, offsets: Mapping[MessageQueue, int], *, group: str | None
) -> Operation[dict[MessageQueue, int]]:
    """Return the approximate size of a message of each queue: the mean of the next few.

    Args:
        offsets: the offsets to sample at; 0 is the size of a queue without a message there.
        group: the group that pulls; None for the default one.
    """
    queues = sorted(offsets)
    asked = [_sample_size(cluster, queue, offsets[queue], group) for queue in queues]
    sizes = yield from gather(asked, name="sizes")
    return dict(zip(queues, sizes, strict=True))


def _sample_size(
    cluster: Cluster, queue: MessageQueue, offset: int, group: str | None
) -> Operation[int]:
    header = make_pull_header(group or DEFAULT_GROUP, queue, offset=offset, count_max=SAMPLE_COUNT)
    result = yield from pull(cluster.address(queue), header, timeout_ms=cluster.request_timeout_ms)
    if result.status is not PullStatus.FOUND:
        return 0
    return -(-len(result.records) // (result.next_offset - offset))
