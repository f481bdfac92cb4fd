"""The failed messages of a group that wait for their next attempt, in the brokers' delay levels.

No lag counts them: a broker keeps a failed message in its schedule topic, and puts it into the
group's retry topic when it is due. All groups and all delayed messages share the schedule topic:
the next messages of each level are read, and the group's share of them is taken for its share of
all.

Source: ScheduleMessageService.java. Tests: doctor/test_waiting_retries.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparrowmq.calling.effects import Operation
from sparrowmq.client.operations.gather import gather
from sparrowmq.client.operations.offsets import topic_bounds
from sparrowmq.client.operations.pull import PullStatus, make_pull_header, pull
from sparrowmq.client.operations.request import ask, decode_answer
from sparrowmq.doctor.group_snapshot import BrokerView, WaitingRetries, add_waiting_retries
from sparrowmq.errors import RemoteProtocolError, SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.model.message import PROPERTY_REAL_TOPIC
from sparrowmq.model.names import SCHEDULE_TOPIC, TOOLS_GROUP, retry_topic
from sparrowmq.protocol.bodies import DelayOffsetTable
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.properties import find_property
from sparrowmq.protocol.record import Record, decode_record

# The messages of a level that are read: the most that Apache's brokers return to a pull.
READ_MAX = 32
# The levels of a broker that are read at once.
_LEVELS_AT_ONCE = 4


def count_waiting_retries(
    broker: BrokerView, group: str, *, timeout_ms: int
) -> Operation[WaitingRetries]:
    """Return the group's failed messages that wait at a broker; none if the broker does not say."""
    if broker.failure:
        # A broker that was silent a moment ago would be waited for again.
        return WaitingRetries()
    try:
        ends = yield from topic_bounds(
            broker.address, SCHEDULE_TOPIC, broker_name=broker.broker_name, timeout_ms=timeout_ms
        )
        code = RequestCode.GET_ALL_DELAY_OFFSET
        reply = yield from ask(broker.address, code, timeout_ms=timeout_ms)
        due = decode_answer(DelayOffsetTable, reply, broker.address, absent=b"{}").offset_table
    except SparrowError:
        # Access may be denied, and a broker that never delayed a message has no such table.
        return WaitingRetries()
    levels = []
    for queue_id, found in sorted(ends.items()):
        first = max(due.get(queue_id + 1, 0), found.min_offset)
        if first < found.max_offset:
            queue = MessageQueue(SCHEDULE_TOPIC, broker.broker_name, queue_id)
            levels.append((queue, first, found.max_offset - first))
    topic = retry_topic(group)
    counts = yield from gather(
        [_count(broker.address, topic, *level, timeout_ms=timeout_ms) for level in levels],
        name=f"waiting retries of {group}",
        at_once=_LEVELS_AT_ONCE,
    )
    return add_waiting_retries(counts)


def _count(
    address: str, topic: str, queue: MessageQueue, first: int, waiting: int, *, timeout_ms: int
) -> Operation[WaitingRetries]:
    """Return how many of a level's waiting messages are to come to a topic, by its next ones."""
    header = make_pull_header(TOOLS_GROUP, queue, offset=first, count_max=READ_MAX)
    try:
        result = yield from pull(address, header, timeout_ms=timeout_ms)
    except SparrowError:
        return WaitingRetries()
    if result.status is not PullStatus.FOUND:
        # They were due meanwhile.
        return WaitingRetries()
    read = list(_records(result.records))
    mine = [r for r in read if find_property(r.properties, PROPERTY_REAL_TOPIC) == topic]
    if not mine:
        return WaitingRetries()
    return WaitingRetries(
        message_count=max(len(mine), round(waiting * len(mine) / len(read))),
        is_estimate=len(read) < waiting,
        failed_times=max(record.reconsume_times for record in mine),
    )


def _records(buffer: bytes) -> Iterator[Record]:
    """Yield the records of an answer up to the first that cannot be read."""
    at = 0
    while at < len(buffer):
        try:
            record = decode_record(buffer, at, check_crc=False)
        except RemoteProtocolError:
            return
        yield record
        at += record.size
