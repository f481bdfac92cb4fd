"""Read a range of a queue from its broker, whole or not at all.

While one answer is decoded, the next pull is under way already. If two answers in a row had equally
many messages, and fewer than asked for (Apache's brokers return 32), several pulls are under way:
each asks for that many messages, and together they ask for about one batch. As soon as an answer
has fewer messages, the pulls after it are dropped. Each answer is checked against the range. The
reader reads every offset from `start` to `end` once. A missing offset is a loss, which is an error
unless `failOnDataLoss` is false.

| answer                          | meaning                                                     |
|---------------------------------|-------------------------------------------------------------|
| FOUND                           | records, which must go on exactly where the last ones ended |
| NO_MATCHED_MSG, farther on      | the broker removed what was between: a loss; with a filter, |
|                                 | nothing matches, unless the queue begins farther on now     |
| OFFSET_ILLEGAL before the first | retention overtook the reader: a loss                       |
| the queue ends before the range | tried again, for a broker may be starting; then a loss      |
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pyarrow as pa
from msgspec import structs

from sparrowmq.calling.effects import Operation, Task, cancel, join, now, sleep, spawn
from sparrowmq.client.operations.pull import PullReply, PullStatus, make_pull_header, pull
from sparrowmq.client.operations.routes import ROUTE_MS
from sparrowmq.client.route_cache import is_static
from sparrowmq.errors import RemoteProtocolError, SparrowError, UnreadableMessage
from sparrowmq.model import MessageQueue
from sparrowmq.spark.bounds import Loss
from sparrowmq.spark.columns import (
    Ints,
    arrow_schema,
    decode_columns,
    find_starts,
    plain_topics,
    queue_offsets,
    select_tags,
)
from sparrowmq.spark.failures import report_losses
from sparrowmq.spark.options import SourceOptions
from sparrowmq.spark.planning import QueueRange
from sparrowmq.spark.positions import DEFAULT_GROUP
from sparrowmq.spark.topic_queues import Cluster, is_passing, pause_ms, persist
from sparrowmq.spark.unreadable import UnreadableMessages

# Small answers (Apache's brokers return 32 messages) are joined until a batch is worth its cost.
BATCH_ROWS_MIN = 4_096
BATCH_BYTES_MIN = 4 * 1024 * 1024
# The most pulls of one queue under way at once if answers are small.
SMALL_PULLS_MAX = 8


class QueueReader:
    """Pulls one range of one queue.

    Args:
        queue_range: the range to read; not empty.
    """

    def __init__(self, cluster: Cluster, options: SourceOptions, queue_range: QueueRange) -> None:
        self.queue, self._offset, self._end = queue_range
        self._cluster = cluster
        self._options = options
        # The pulls under way, in order, with the offset at which each begins.
        self._pending: deque[tuple[int, Task]] = deque()
        # The messages and bytes of the last answer, and whether the answer before had as many
        # messages.
        self._count = 0
        self._size = 0
        self._is_alike = False
        self._fruitless = self._fruitless_since_ms = 0

    @property
    def is_done(self) -> bool:
        """Whether every offset of the range is read or lost."""
        return self._offset >= self._end

    @property
    def rows_left(self) -> int:
        """The number of offsets that are still to be read."""
        return self._end - self._offset

    def begin(self) -> Operation[None]:
        """Send the next pulls, unless enough are under way or no offset is left to read."""
        stride, pulls_max = self._options.pull_batch_size, 1
        if self._is_alike and self._count < stride:
            stride = self._count
            pulls_max = min(max(BATCH_BYTES_MIN // self._size, 1), SMALL_PULLS_MAX)
        at = self._pending[-1][0] + stride if self._pending else self._offset
        while len(self._pending) < pulls_max and at < self._end:
            task = yield from spawn(self._pull(at, stride), name=f"pull {self.queue}")
            self._pending.append((at, task))
            at += stride

    def advance(self) -> Operation[tuple[bytes, Ints]]:
        """Return the next records, perhaps none, and their starts. Send the next pulls.

        Raises: DataLossError, RemoteProtocolError, TransportError, BrokerError.
        """
        result = yield from self._answer()
        if result.status is not PullStatus.FOUND:
            yield from self._drop_pending()
            yield from self._judge(result)
            yield from self.begin()
            return b"", np.empty(0, dtype=np.int64)
        asked, self._offset = self._offset, min(result.next_offset, self._end)
        self._fruitless = 0
        if self._pending and self._pending[0][0] != self._offset:
            yield from self._drop_pending()
        count = result.next_offset - asked
        self._is_alike = count == self._count and not self._options.is_filtered
        self._count, self._size = count, len(result.records)
        yield from self.begin()
        return result.records, self._check(result, asked)

    def abandon(self) -> None:
        """Forget the pulls under way."""
        for _, task in self._pending:
            self._cluster.driver.cancel(task)  # type: ignore[arg-type]
        self._pending.clear()

    def _drop_pending(self) -> Operation[None]:
        while self._pending:
            yield from cancel(self._pending.popleft()[1])

    def _pull(self, offset: int, count_max: int) -> Operation[PullReply]:
        header = make_pull_header(
            self._options.pull_group or DEFAULT_GROUP,
            self.queue,
            offset=offset,
            count_max=min(count_max, self._end - offset),
            expression=self._options.sub_expression,
            expression_type=self._options.filter_type,
        )
        if self._options.pull_max_bytes is not None:
            header = structs.replace(header, max_msg_bytes=self._options.pull_max_bytes)
        return (
            yield from pull(
                self._cluster.address(self.queue),
                header,
                timeout_ms=self._options.request_timeout_ms,
            )
        )

    def _answer(self) -> Operation[PullReply]:
        yield from self.begin()
        at, pending = self._pending.popleft()
        assert at == self._offset
        try:
            result: PullReply = yield from join(pending)
        except SparrowError as error:
            yield from self._drop_pending()
            wait_ms = self._options.wait_for_brokers_ms
            if not is_passing(error) or wait_ms == 0:
                raise
            result = yield from persist(wait_ms, self._pull_afresh)
        return result

    def _pull_afresh(self) -> Operation[PullReply]:
        """Pull again after a failure, by a new route: the broker may have another address now."""
        yield from self._cluster.refresh((self.queue.topic,))
        return (yield from self._pull(self._offset, self._options.pull_batch_size))

    def _check(self, result: PullReply, asked: int) -> Ints:
        """Return the starts of the wanted records, which must have no gap."""
        with _naming(self.queue, f" from offset {asked} on"):
            starts = find_starts(result.records)
        offsets = queue_offsets(result.records, starts)
        if self._options.is_filtered:
            return self._check_filtered(result, asked, starts, offsets)
        end = asked + len(starts)
        if (
            not np.array_equal(offsets, np.arange(asked, end))
            or min(end, self._end) != self._offset
        ):
            found = f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "none"
            raise RemoteProtocolError(
                f"broker {self.queue.broker_name!r} was asked for offsets from {asked} of queue "
                f"{self.queue.queue_id} of {self.queue.topic!r} and says to go on at "
                f"{result.next_offset}, but gave {found} in {len(offsets)} messages"
            )
        return starts[: self._end - asked]

    def _check_filtered(self, result: PullReply, asked: int, starts: Ints, offsets: Ints) -> Ints:
        """Return the starts of the wanted records; brokers compare only the hash codes of tags."""
        edges = np.concatenate(([asked - 1], offsets, [result.next_offset]))
        if not (edges[1:] > edges[:-1]).all():
            raise RemoteProtocolError(
                f"broker {self.queue.broker_name!r} was asked for offsets from {asked} of queue "
                f"{self.queue.queue_id} of {self.queue.topic!r} and says to go on at "
                f"{result.next_offset}, but gave {offsets.tolist()[:20]}"
            )
        wanted = starts[offsets < self._end]
        tags = self._options.tags
        with _naming(self.queue):
            return wanted if tags is None else select_tags(result.records, wanted, tags)

    def _judge(self, result: PullReply) -> Operation[None]:
        """Decide from an answer without messages whether to go on, try again, or report a loss."""
        offset = self._offset
        if result.status is PullStatus.OFFSET_ILLEGAL and offset < result.min_offset:
            self._skip(result.min_offset, "retention has removed what was before")
        elif result.status is PullStatus.NO_MATCHED_MSG and result.next_offset > offset:
            # The offsets of a static topic's queue leap where the queue has moved.
            if is_static(self.queue) or (self._options.is_filtered and offset >= result.min_offset):
                self._offset = min(result.next_offset, self._end)
                self._fruitless = 0
                return
            self._skip(result.next_offset, "the broker has removed what was between")
        else:
            yield from self._wait_for_more(result)

    def _wait_for_more(self, result: PullReply) -> Operation[None]:
        """Pause, for a broker may be starting; report a loss once the time is over."""
        now_ms = yield from now()
        self._fruitless += 1
        if self._fruitless == 1:
            self._fruitless_since_ms = now_ms
        left_ms = self._fruitless_since_ms + self._options.wait_for_brokers_ms - now_ms
        if left_ms <= 0:
            self._skip(self._end, f"the queue ends at {result.max_offset} now")
            return
        yield from sleep(pause_ms(self._fruitless, left_ms))

    def _skip(self, to: int, why: str) -> None:
        offset, self._offset = self._offset, min(to, self._end)
        what = f"offsets {offset} to {self._offset - 1} cannot be read: {why}"
        report_losses([Loss(self.queue, what)], fail=self._options.fail_on_data_loss)
        self._fruitless = 0


@contextmanager
def _naming(queue: MessageQueue, where: str = "") -> Generator[None]:
    """Add the queue of damaged records to the error."""
    try:
        yield
    except UnreadableMessage:
        raise
    except RemoteProtocolError as error:
        raise RemoteProtocolError(
            f"broker {queue.broker_name!r} gave damaged records of queue {queue.queue_id} of "
            f"{queue.topic!r}{where}: {error}"
        ) from error


def read_ranges(
    cluster: Cluster,
    options: SourceOptions,
    ranges: Sequence[tuple[QueueRange, int]],
) -> Iterator[pa.RecordBatch]:
    """Read ranges one after the other, as Arrow batches of `options.columns`.

    Args:
        ranges: the ranges, each with its queue's number for the column `partition`.

    Raises: DataLossError, RemoteProtocolError, TransportError, BrokerError, RouteError.
    """
    schema = arrow_schema(options.columns, options.bodies)
    unreadable = UnreadableMessages(options, cluster)
    readers = [QueueReader(cluster, options, each) for each, _ in ranges]
    numbers = [number for _, number in ranges]
    topics = frozenset(reader.queue.topic for reader in readers)
    try:
        cluster.run(persist(options.wait_for_brokers_ms, lambda: _begin(cluster, topics, readers)))
        for joined in _join_answers(cluster, readers, numbers):
            records = joined.records
            batches = decode_columns(
                records,
                np.concatenate(joined.starts),
                schema=schema,
                broker_name=joined.broker_name,
                partition=np.repeat(joined.numbers, [len(each) for each in joined.starts]),
                bodies=options.bodies,
                on_unreadable=partial(unreadable.pass_over, joined.broker_name, records),
            )
            with joined.naming():
                for batch in batches:
                    yield plain_topics(batch, options.namespace)
    finally:
        unreadable.report()
        for reader in readers:
            reader.abandon()


def _begin(
    cluster: Cluster, topics: frozenset[str], readers: Sequence[QueueReader]
) -> Operation[None]:
    """Find the brokers' addresses; a cached cluster may know them from an earlier task.

    An address that another broker has by now would give that broker's messages. The known one
    serves while no name server answers.
    """
    with suppress(SparrowError):
        yield from cluster.refresh(topics, age_ms_max=ROUTE_MS)
    for reader in readers:
        try:
            cluster.address(reader.queue)
        except SparrowError:
            yield from cluster.refresh(topics)
            cluster.address(reader.queue)
    yield from _begin_from(readers)


def _begin_from(readers: Sequence[QueueReader]) -> Operation[None]:
    """Send the pulls of a reader, and of the next readers until together they make a batch."""
    rows = 0
    for reader in readers:
        if rows >= BATCH_ROWS_MIN:
            return
        rows += reader.rows_left
        yield from reader.begin()


class _Joined:
    """Joined answers of one broker: each batch costs Arrow and Spark a millisecond."""

    def __init__(self, broker_name: str) -> None:
        self.broker_name = broker_name
        # The starts of the records in each answer.
        self.starts: list[Ints] = []
        self.numbers: list[int] = []
        self._queues: list[MessageQueue] = []
        self._parts: list[bytes] = []
        self._begins: list[int] = []
        self._rows = self._size = 0

    def add(self, queue: MessageQueue, number: int, records: bytes, starts: Ints) -> None:
        """Add the wanted records of an answer."""
        self.starts.append(starts + self._size)
        self.numbers.append(number)
        self._queues.append(queue)
        self._parts.append(records)
        self._begins.append(self._size)
        self._rows += len(starts)
        self._size += len(records)

    @property
    def is_enough(self) -> bool:
        """Whether the answers are worth a batch."""
        return self._rows >= BATCH_ROWS_MIN or self._size >= BATCH_BYTES_MIN

    @property
    def records(self) -> bytes:
        """All records as one buffer."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    @contextmanager
    def naming(self) -> Generator[None]:
        """Add the queue of a damaged record to the error."""
        try:
            yield
        except UnreadableMessage:
            raise
        except RemoteProtocolError as error:
            place = bisect_right(self._begins, error.position or 0) - 1
            with _naming(self._queues[place]):
                raise


def _join_answers(
    cluster: Cluster, readers: Sequence[QueueReader], numbers: Sequence[int]
) -> Iterator[_Joined]:
    """Yield the answers of all ranges in order; small answers of one broker are joined."""
    joined = _Joined("")
    for place, (reader, number) in enumerate(zip(readers, numbers, strict=True)):
        queue = reader.queue
        if joined.starts and joined.broker_name != queue.broker_name:
            yield joined
            joined = _Joined("")
        while not reader.is_done:
            records, found = cluster.run(_advance(readers[place:]))
            if len(found):
                joined.broker_name = queue.broker_name
                joined.add(queue, number, records, found)
            if joined.is_enough:
                yield joined
                joined = _Joined("")
    if joined.starts:
        yield joined


def _advance(readers: Sequence[QueueReader]) -> Operation[tuple[bytes, Ints]]:
    """Return the next records of the first reader; at its end begin the next readers."""
    answer = yield from readers[0].advance()
    if readers[0].is_done:
        yield from _begin_from(readers[1:])
    return answer
