"""Send the messages that a batcher has collected; `client/batcher.py` chooses the batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from sparrowmq.calling.effects import Cancelled, Now, Operation, Spawn, Wait
from sparrowmq.client.batcher import Batcher, LaneKey, Pending
from sparrowmq.client.operations.send import get_publish_queues, send, send_batch
from sparrowmq.client.operations.send_answer import new_result
from sparrowmq.client.operations.trace_reports import find_tracer, start_sending
from sparrowmq.client.publisher import Publisher, SendsUnread
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model import MessageQueue, SendResult


def serve(publisher: Publisher, batcher: Batcher) -> Operation[None]:
    """Send the batcher's messages until the batcher is closed and empty."""
    while not (batcher.is_closing and batcher.is_empty):
        batcher.wake.clear()
        for topic in batcher.take_in():
            yield Spawn(_place(publisher, batcher, topic), "queues of a batch")
        now_ms: int = yield Now()
        for key, queue, batch in batcher.begin(now_ms):
            yield Spawn(_send(publisher, batcher, key, queue, batch), "batch")
            # Futures that nobody holds end with the last reference to their batch.
            del batch
        report_unread(publisher, batcher, now_ms=now_ms)
        rest_ms = batcher.begin_rest(now_ms)
        if rest_ms != 0:
            yield Wait(batcher.wake, rest_ms)


def report_unread(publisher: Publisher, batcher: Batcher, *, now_ms: int | None) -> None:
    """Report the errors that nobody has read, as `Batcher.take_unread` does."""
    unread = batcher.take_unread(now_ms)
    if unread is not None and publisher.report is not None:
        publisher.report(SendsUnread(*unread))


def flush(batcher: Batcher, have_ended: Callable[[], bool]) -> Operation[None]:
    """Send the messages without lingering, and wait until those handed over so far have ended.

    Args:
        have_ended: returns whether they have.
    """
    batcher.flush_count += 1
    batcher.wake.set()
    try:
        while not have_ended():
            batcher.settled.clear()
            yield Wait(batcher.settled, None)
    finally:
        batcher.flush_count -= 1


def _place(publisher: Publisher, batcher: Batcher, topic: str) -> Operation[None]:
    """Choose queues for a topic's messages until all messages have a queue."""
    while pendings := batcher.take_unplaced(topic):
        abandon_count = batcher.abandon_count
        try:
            queues = yield from get_publish_queues(publisher, topic)
        except SparrowError as error:
            batcher.done(pendings, error)
        except Cancelled:
            # The driver was closed meanwhile.
            batcher.done(pendings, closed_error())
            raise
        else:
            now_ms: int = yield Now()
            if batcher.abandon_count == abandon_count:
                batcher.place(pendings, queues, now_ms)
            else:
                batcher.done(pendings, ended_error(batcher))
        batcher.wake.set()
        batcher.settled.set()


def _send(
    publisher: Publisher,
    batcher: Batcher,
    key: LaneKey,
    queue: MessageQueue | None,
    batch: list[Pending],
) -> Operation[None]:
    outcome: Sequence[SendResult] | SparrowError
    try:
        try:
            if len(batch) > 1:
                messages = [pending.message for pending in batch]
                result = yield from send_batch(publisher, messages, queue=queue, in_turn=True)
                outcome = _results_of(result, len(batch))
            else:
                result = yield from send(publisher, batch[0].message, queue=queue, in_turn=True)
                outcome = (result,)
        except SparrowError as error:
            outcome = error
        batcher.done(batch, outcome)
        batch = []
    finally:
        # Messages are left here if the driver was closed meanwhile.
        batcher.done(batch, closed_error())
        batcher.end(key)
    yield from start_sending(find_tracer(publisher))


def closed_error() -> UsageError:
    """Return the error for messages that were not sent before the producer was closed."""
    return UsageError("the producer was closed before the message was sent")


def ended_error(batcher: Batcher) -> UsageError:
    """Return the error for messages that wait when the loop that sends them has ended."""
    return closed_error() if batcher.is_closing else cut_short_error()


def cut_short_error() -> UsageError:
    """Return the error for messages that wait when the task that sends them is cancelled."""
    return UsageError(
        "the task that sends the messages of send_nowait was cancelled before the message was "
        "sent, as all tasks are when asyncio.run ends; close a producer before its event loop "
        "ends, or use it in a with block"
    )


def _results_of(result: SendResult, count: int) -> list[SendResult]:
    """Return the result of each message of a batch."""
    msg_ids, offset_ids = result.msg_id.split(","), result.offset_msg_id.split(",")
    # A broker that stores a batch as one record returns one id. More ids than messages are cut.
    offset_ids += [""] * (count - len(offset_ids))
    first = result.queue_offset
    offsets = repeat(first) if first < 0 else range(first, first + count)
    rows = zip(
        repeat(result.status),
        msg_ids,
        offset_ids,
        repeat(result.queue),
        offsets,
        repeat(None),
        strict=False,
    )
    return [*map(new_result, rows)]
