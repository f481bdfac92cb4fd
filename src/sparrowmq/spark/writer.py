"""The writers of a batch and of a stream: rows become messages, each at least once.

A task sends its rows in batches of one queue, several requests under way at once, and ends when
every request is acknowledged. Spark repeats failed tasks and micro-batches. The messages that they
had sent stay, so a message may be in the topic twice. With `exactlyOnce` both copies have the same
id, by which readers drop one (write_ids.py, exactly_once.py). The writers use no transactions;
docs/decisions/exactly-once-sink.md gives the reasons.

Rows of one sharding key, and rows that name their queue, keep their order: requests to such a queue
wait for one another.
"""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from sparrowmq.calling import clock
from sparrowmq.calling.effects import Operation, Task, cancel, join, sleep, spawn
from sparrowmq.client.assembly import make_publisher
from sparrowmq.client.config import BATCH_COUNT_MAX
from sparrowmq.client.directory import Directory
from sparrowmq.client.name_servers import NameServers
from sparrowmq.client.operations.administer import create_topic
from sparrowmq.client.operations.routes import refresh_route
from sparrowmq.client.operations.send import (
    fetch_publish_queues,
    leave,
    send,
    send_encoded_batch,
)
from sparrowmq.client.operations.topics import list_topics
from sparrowmq.client.outgoing import check_sendable_topic
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import select_queue_by_key
from sparrowmq.client.route_cache import RouteCache
from sparrowmq.errors import SendFailed, SparrowError, TopicRouteNotFound, UsageError
from sparrowmq.model import Message, MessageQueue, SendStatus
from sparrowmq.model.delay import DELAY_LEVELS_MS
from sparrowmq.model.message import SendResult
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.spark.failures import as_clear
from sparrowmq.spark.row_encoding import EncodedRows, encode_rows, fixed_size, hex_digits
from sparrowmq.spark.shipping import Packed, pack
from sparrowmq.spark.sink_options import SinkOptions
from sparrowmq.spark.topic_queues import Cluster, connect, hint_topic, persist
from sparrowmq.spark.write_ids import WriteIds

_LOG = logging.getLogger("sparrowmq.spark")

# The largest body of a request with several messages; a larger message is sent alone.
REQUEST_BYTES_MAX = 512 * 1024
# Rows that are encoded at once. Message ids repeat after 65,536 messages of one millisecond.
_ROWS_MAX = 10_000
# The broker stored the message, but not as safely as its settings demand: it may be lost.
_UNSAFE = frozenset({SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT})
# The queues that option createTopic creates at each broker; a group's own topics have one.
QUEUES_CREATED = 8
# Brokers accept no batches for these topics.
_SINGLE_PREFIXES = (RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX)
# Properties that the client itself adds to a message.
_OWN = frozenset({"UNIQ_KEY", "TAGS", "KEYS", "__SHARDINGKEY"})


class SentMessages(WriterCommitMessage):
    """A task's report to the driver: the number of messages sent."""

    def __init__(self, count: int) -> None:
        self.count = count


class RocketMQWriter(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, options: SinkOptions, job: str | None = None) -> None:
        self._options = options
        # The id of the job: equal in every attempt of a task, and different in every job.
        self._job = job or uuid.uuid4().hex

    def __reduce__(self) -> Packed:
        return pack(RocketMQWriter, self._options, self._job)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of one task, in an executor."""
        return write_task(self._options, iterator, job=self._job)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Do nothing: the brokers have acknowledged every message."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Warn that the messages already sent stay in the topic."""
        warn_of_abort(messages)


def warn_of_abort(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log how many messages of a failed write stay in the topic."""
    count = sum(each.count for each in messages if isinstance(each, SentMessages))
    if count:
        _LOG.warning("the write failed; %d messages that tasks have sent stay in the topic", count)


def write_task(
    options: SinkOptions, batches: Iterator[pa.RecordBatch], *, job: str | None
) -> SentMessages:
    """Send the rows of one task.

    Args:
        job: the prefix of a batch's ids; None for a micro-batch, whose prefix comes from its query.
    """
    context: Any = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    if job is None and context is not None:
        query = context.getLocalProperty("sql.streaming.queryId")
        job = f"{query}/{context.getLocalProperty('streaming.sql.batchId')}"
    try:
        return SentMessages(
            write_rows(connect(options), options, batches, write_id=f"{job}/{partition}")
        )
    except SparrowError as error:
        raise as_clear(error) from None


def write_rows(
    cluster: Cluster,
    options: SinkOptions,
    batches: Iterable[pa.RecordBatch],
    *,
    write_id: str = "",
) -> int:
    """Send rows, and return their number once all are acknowledged.

    Args:
        write_id: the prefix of WRITE_ID: the query, micro-batch and partition.

    Raises: UsageError for a row that cannot be sent; SendFailed, RouteError, ConnectFailed,
        BrokerError.
    """
    publisher = make_publisher(
        options.group,
        name_server=options.name_servers,
        send_timeout_ms=options.send_timeout_ms,
        retry_times=options.retry_times,
        namespace=options.namespace.name,
    )
    write_ids = WriteIds(write_id) if options.exactly_once else None
    sender = _Sender(cluster, publisher, options, write_ids)
    try:
        return cluster.run(_send_rows(sender, batches))
    finally:
        cluster.run(leave(publisher))


@dataclass(slots=True)
class _Sender:
    """The state of one sending task; `queues` are for topics whose rows have sharding keys."""

    cluster: Cluster
    publisher: Publisher
    options: SinkOptions
    write_ids: WriteIds | None
    queues: dict[str, list[MessageQueue]] = field(default_factory=dict)
    # The topics that are known to exist.
    topics: set[str] = field(default_factory=set)


def see_to_topic(options: SinkOptions, topic: str, *, routes: RouteCache) -> Operation[None]:
    """Ask for the route of a topic, and create the topic if it is missing and may be created.

    Raises: ConfigError or UsageError for a topic that may not be sent to; TopicRouteNotFound for a
    missing topic; ConnectFailed, BrokerError, InvokeTimeout.
    """
    check_sendable_topic(topic)
    is_of_group = topic.startswith(_SINGLE_PREFIXES)
    if is_of_group and not options.create_topic:
        return  # A broker itself makes the retry and dead letter topics of its groups.
    servers, timeout_ms = NameServers(options.name_servers), options.request_timeout_ms
    name = options.namespace.wrap(topic)
    try:
        yield from refresh_route(routes, servers, name, timeout_ms=timeout_ms)
    except TopicRouteNotFound as error:
        directory = Directory(name_servers=servers, routes=routes, timeout_ms=timeout_ms)
        if not options.create_topic:
            hint = yield from hint_topic([name], list_topics(directory))
            raise TopicRouteNotFound(f"{error}; option 'createTopic' creates it{hint}") from None
        yield from create_topic(directory, name, queues=1 if is_of_group else QUEUES_CREATED)


class _Request(NamedTuple):
    """One request; `queue` is None if any queue will do."""

    queue: MessageQueue | None
    operation: Operation[SendResult]


def _send_rows(sender: _Sender, batches: Iterable[pa.RecordBatch]) -> Operation[int]:
    """Send rows, and return their number once all are acknowledged.

    Up to `maxInFlight` requests are under way; requests to one named queue are sent one after the
    other. Requests go on while the next batch is waited for and encoded: the brokers work
    meanwhile, and their answers wait in the sockets.
    """
    under_way: deque[tuple[MessageQueue | None, Task]] = deque()
    count = 0
    try:
        for whole in batches:
            for begin in range(0, len(whole), _ROWS_MAX):
                batch = whole.slice(begin, _ROWS_MAX)
                topics = _topics(sender.options, batch, first_row=count)
                yield from _find_topics(sender, batch, topics)
                for request in _requests(sender, batch, topics, first_row=count):
                    yield from _begin(sender, request, under_way)
                count += len(batch)
            # Let the requests be written before the next batch is waited for, also those that
            # wait for a connection.
            yield from sleep(0)
            while sender.cluster.driver.is_connecting:
                yield from sleep(1)
            yield from sleep(0)
        while under_way:
            yield from _await_first(under_way)
    except Exception:  # errors of Spark too, whose batches come from its socket
        for _, task in under_way:
            yield from cancel(task)
        raise
    return count


def _begin(
    sender: _Sender, request: _Request, under_way: deque[tuple[MessageQueue | None, Task]]
) -> Operation[None]:
    queue, operation = request
    while len(under_way) >= sender.options.max_in_flight or (
        queue is not None and any(queue == other for other, _ in under_way)
    ):
        yield from _await_first(under_way)
    under_way.append((queue, (yield from spawn(operation, name="send"))))


def _await_first(under_way: deque[tuple[MessageQueue | None, Task]]) -> Operation[None]:
    _, task = under_way.popleft()
    result: SendResult = yield from join(task)
    if result.status in _UNSAFE:
        raise SendFailed(
            f"broker {result.queue.broker_name!r} took a message of {result.queue.topic!r} but "
            f"says {result.status.value}: it may be lost; see to the broker, and write again"
        )


def _requests(
    sender: _Sender, batch: pa.RecordBatch, topics: pa.Array, *, first_row: int
) -> Iterator[_Request]:
    """Yield the requests of a batch; `first_row` is its first row's number in the task's input."""
    publisher = sender.publisher
    msg_ids = _message_ids(publisher, len(batch))
    encoded = encode_rows(batch, msg_ids, write_ids=sender.write_ids, first_row=first_row)
    sizes = np.asarray(pc.call_function("binary_length", [encoded.entries]))
    is_single = sizes > REQUEST_BYTES_MAX
    delays = _column(batch, "delayTimeLevel")
    if delays is not None:
        levels = np.asarray(delays.fill_null(0))
        wrong = np.flatnonzero((levels < 0) | (levels > len(DELAY_LEVELS_MS)))
        if len(wrong):
            raise UsageError(
                f"the delayTimeLevel of row {first_row + wrong[0]} is {levels[wrong[0]]}; "
                f"it must be 0 to {len(DELAY_LEVELS_MS)}"
            )
        is_single |= levels != 0
    for topic, queue, indices in _targets(sender, batch, topics, first_row=first_row):
        alone = is_single[indices] | topic.startswith(_SINGLE_PREFIXES)
        for run in np.split(indices, np.flatnonzero(alone[1:] != alone[:-1]) + 1):
            if alone[np.searchsorted(indices, run[0])]:
                for row in run.tolist():
                    message = _message(batch, encoded, row, topic)
                    yield _Request(queue, send(publisher, message, queue=queue))
            else:
                for body in _bodies(encoded.entries, sizes, run):
                    operation = send_encoded_batch(publisher, topic, body, queue=queue)
                    yield _Request(queue, operation)


def _message_ids(publisher: Publisher, count: int) -> pa.Array:
    head, first = publisher.ids.reserve(clock.timestamp_ms(), count)
    begins = np.tile(np.frombuffer(head.encode(), dtype=np.uint8), (count, 1))
    return fixed_size(np.hstack([begins, hex_digits(first + np.arange(count), 4)]))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _bodies(entries: pa.Array, sizes: Any, rows: Any) -> Iterator[bytes]:
    """Yield the bodies of the requests for these rows, in order."""
    if rows[-1] - rows[0] + 1 == len(rows):
        taken = entries.slice(int(rows[0]), len(rows))
    else:
        taken = entries.take(pa.array(rows))
    cuts = np.frombuffer(taken.buffers()[1], dtype=np.int32)
    cuts = cuts[taken.offset : taken.offset + len(taken) + 1]
    data = memoryview(taken.buffers()[2])
    at = 0
    while at < len(taken):
        end = int(np.searchsorted(cuts, int(cuts[at]) + REQUEST_BYTES_MAX, side="right")) - 1
        end = min(max(end, at + 1), at + BATCH_COUNT_MAX, len(taken))
        yield bytes(data[int(cuts[at]) : int(cuts[end])])
        at = end


def _message(batch: pa.RecordBatch, encoded: EncodedRows, row: int, topic: str) -> Message:
    """Return a row as a message of the client, which can be delayed and compressed."""
    properties = parse_properties(encoded.properties[row].as_py().decode())
    values = {
        name: column[row].as_py()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
        if name in ("flag", "delayTimeLevel")
    }
    return Message(
        topic,
        encoded.bodies[row].as_py(),
        tags=properties.get("TAGS"),
        keys=tuple(properties.get("KEYS", "").split()),
        sharding_key=properties.get("__SHARDINGKEY"),
        delay_level=values.get("delayTimeLevel") or 0,
        flag=values.get("flag") or 0,
        properties={name: text for name, text in properties.items() if name not in _OWN},
    )


def _topics(options: SinkOptions, batch: pa.RecordBatch, *, first_row: int) -> pa.Array:
    """Return the topic of each row."""
    topics = _column(batch, "topic")
    default = pa.scalar(options.topic, pa.string())
    topics = pa.repeat(default, len(batch)) if topics is None else topics.fill_null(default)
    if topics.null_count:
        row = first_row + int(np.flatnonzero(np.asarray(topics.is_null()))[0])
        raise UsageError(f"the topic of row {row} is null, and option 'topic' is not given")
    return topics


def _find_topics(sender: _Sender, batch: pa.RecordBatch, topics: pa.Array) -> Operation[None]:
    """Make sure that topics named for the first time exist; wait for a restarting broker."""
    options, publisher = sender.options, sender.publisher
    wait_ms = options.send_timeout_ms if options.retry_times else 0
    for topic in topics.unique().to_pylist():
        if topic not in sender.topics:
            look = partial(see_to_topic, options, topic, routes=publisher.routes)
            yield from persist(wait_ms, look)
            sender.topics.add(topic)
        if "shardingKey" in batch.schema.names and topic not in sender.queues:
            sender.queues[topic] = yield from fetch_publish_queues(publisher, topic)


def _targets(
    sender: _Sender, batch: pa.RecordBatch, topics: pa.Array, *, first_row: int
) -> Iterator[tuple[str, MessageQueue | None, Any]]:
    """Yield topic, queue and row numbers of the rows for one queue, or for any queue.

    Raises: UsageError for a row with a queue id and no broker, a broker and no queue id, or a queue
        id below 0.
    """
    names = ("shardingKey", "brokerName", "queueId")
    others = [_column(batch, name) for name in names]
    if all(column is None for column in others) and len(topics.unique()) == 1:
        yield topics[0].as_py(), None, np.arange(len(batch))
        return
    groups: dict[tuple[str, MessageQueue | None], list[int]] = {}
    columns = [[None] * len(batch) if each is None else each.to_pylist() for each in others]
    for row, target in enumerate(zip(topics.to_pylist(), *columns, strict=True)):
        queue = _queue_of(sender, first_row + row, *target)
        groups.setdefault((target[0], queue), []).append(row)
    for (topic, queue), rows in groups.items():
        yield topic, queue, np.array(rows)


def _queue_of(
    sender: _Sender,
    row: int,
    topic: str,
    sharding_key: str | None,
    broker_name: str | None,
    queue_id: int | None,
) -> MessageQueue | None:
    if broker_name is not None and queue_id is not None:
        if queue_id < 0:
            # A broker would choose any queue.
            raise UsageError(f"row {row} names queue {queue_id}; queues are numbered from 0")
        return MessageQueue(topic, broker_name, queue_id)
    if broker_name is not None or queue_id is not None:
        lone = (
            f"broker {broker_name!r} and no queue"
            if queue_id is None
            else f"queue {queue_id} of no broker"
        )
        raise UsageError(
            f"row {row} names {lone}; columns 'queueId' and 'brokerName' name a queue together: "
            f"give both, or null in both for any queue"
        )
    if not sharding_key:
        return None
    return select_queue_by_key(sender.queues[topic], sharding_key)
