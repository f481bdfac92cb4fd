"""POP_MESSAGE, ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME: consumption message by message.

`pop_queues` has the rules and the durability. An answer to a change waits for the record of the pop
log that has the change (`log_changes`).

A group consumes a topic in one way at a time: a pull is refused for a while after a pop of the same
group and topic, and a pop after a pull. RocketMQ serves both, and then neither delivers each
message once.

Handles are checked field by field against the message in flight. Differs from RocketMQ: an
acknowledgement or a change that comes too late, after the message was popped again, is answered
with NO_MESSAGE; RocketMQ answers it with success. A repeated acknowledgement succeeds. A message
that no attempt of the group's `retryMaxTimes` + 1 finished becomes a dead letter; RocketMQ delivers
it for ever, and its clients drop it after 16 attempts.

Source: PopMessageProcessor.java, AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java of
5.5.0. Tests: broker/test_pop.py, broker/test_pop_crashes.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from msgspec.structs import replace

from sparrowmq.broker.message_filter import (
    EXAMINED_COUNT_MAX,
    MessageFilter,
    keep_matching,
)
from sparrowmq.broker.pop_changes import QueueKey
from sparrowmq.broker.pop_log import note_moved, refuse_while_failing
from sparrowmq.broker.pop_queues import INVISIBLE_MS_MAX, PopQueue
from sparrowmq.broker.processors.offsets import begins_in_memory
from sparrowmq.broker.processors.pull import (
    ALL_QUEUES,
    check_consuming,
    check_held_pop,
    check_way,
    find_consuming_group,
    find_queues,
    given_filter,
    hold,
    wake_waiting,
    without_finished,
)
from sparrowmq.broker.processors.send_back import count_attempts, put_dead_letter
from sparrowmq.broker.pull_hold import HELD_MAX, SUSPEND_MS_MAX, HeldPull, notice_place, pop_place
from sparrowmq.broker.state import BrokerRefusal, BrokerState
from sparrowmq.errors import ProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.model.message import PROPERTY_TAGS
from sparrowmq.protocol.bodies import TopicConfig, decode_body
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.headers import decode_header, encode_header
from sparrowmq.protocol.pop_handle import (
    INIT_MIN,
    NORMAL_MARK,
    ORDER_REVIVE_QUEUE_ID,
    POP_COUNT_MAX,
    AckMessageRequestHeader,
    BatchAck,
    BatchAckBody,
    BatchAckResponseHeader,
    ChangeInvisibleTimeRequestHeader,
    ChangeInvisibleTimeResponseHeader,
    PopMessageRequestHeader,
    PopMessageResponseHeader,
    PoppedQueue,
    encode_left_out,
    encode_popped,
    parse_handle,
)
from sparrowmq.protocol.properties import find_property
from sparrowmq.protocol.record import decode_record, scan_records
from sparrowmq.serving.connections import Connection, Output, Reply
from sparrowmq.serving.requests import FAQ, Refusal, Request
from sparrowmq.store.results import Dispatched, GetResult, GetStatus, PutStatus
from sparrowmq.store.stored_record import add_attempts

# BrokerConfig.popPollingSize: the pops that wait for one queue of a group, or for all its queues.
WAITING_PER_PLACE_MAX = 1_024
# PopMessageRequestHeader.isTimeoutTooMuch: how late a pop may come after its own wait.
LATE_MS_MAX = 500
# The bytes of one answer, unless one message alone has more: answers wait for the log in memory.
POP_BYTES_MAX = 1 << 20
# The queues in which one step of a pop begins for a new group: some 40 ms.
BEGUN_AT_ONCE_MAX = 4_096
# The messages of one tick whose time has come.
DUE_PER_TICK = 10_000
# Of these, the messages that become dead letters: some 80 ms.
DEAD_LETTERS_PER_TICK = 1_000
# A dead letter that the store cannot take, or that is one too many, is tried again after this.
DEAD_LETTER_RETRY_MS = 1_000
ACKS_PER_BATCH_MAX = 1_024
ACKED_PER_BATCH_MAX = ACKS_PER_BATCH_MAX * POP_COUNT_MAX


class _Taken(NamedTuple):
    """The messages of a pop.

    Args:
        rest: how many messages of the visited queues are left to pop, as far as is known.
        counts: `orderCountInfo`.
        is_cut: whether messages were passed over that the filter rejects, or a new group has begun
            in many queues, and more are to examine.
    """

    pop_timestamp_ms: int
    queues: list[PoppedQueue]
    records: list[bytes]
    rest: int
    counts: list[str]
    is_cut: bool


class _Found(NamedTuple):
    """Messages of a queue to pop.

    Args:
        offsets: those of `again`, and behind them those of `new`.
        next_offset: the first offset that is not popped then.
        again: the records of messages that were popped before.
        new: the records of messages that were not, back to back.
        is_cut: as that of `_Taken`.
    """

    key: QueueKey
    offsets: list[int]
    next_offset: int
    again: list[bytes]
    new: bytes = b""
    is_cut: bool = False


class _Pop(NamedTuple):
    """A pop that has passed the checks.

    Args:
        expression: that of the group's subscription then; None if the group had none.
    """

    header: PopMessageRequestHeader
    topic: TopicConfig
    wanted: MessageFilter
    invisible_ms: int
    expression: tuple[str, str] | None


# --- POP_MESSAGE --------------------------------------------------------------------------------


def pop(state: BrokerState, request: Request) -> Sequence[Output]:
    """Answer with messages, with the reason why there are none, or hold the pop."""
    header = decode_header(PopMessageRequestHeader, request.command.ext_fields)
    timestamp_ms = request.timestamp_ms - state.pops.passed_ms
    age_ms = timestamp_ms - header.born_timestamp_ms
    if header.born_timestamp_ms > 0 and age_ms - header.poll_time_ms > LATE_MS_MAX:
        # To its sender it looks as if there were no messages.
        raise state.refusal(
            BrokerRefusal.LATE_POP,
            request,
            ResponseCode.POLLING_TIMEOUT,
            f"the broker[{state.config.address}] pop message is timeout too much: group "
            f"{header.consumer_group!r} sent it {age_ms} ms ago by its clock, which may be behind",
        )
    checked = _check(state, request, header)
    refuse_while_failing(state)
    state.pops.note_pop(header.consumer_group, header.topic, now_ms=request.now_ms)
    taken = _take(state, checked, now_ms=request.now_ms, timestamp_ms=request.timestamp_ms)
    if taken.queues or request.command.is_oneway:
        return _answer(state, request.connection, request.command, checked, taken)
    place = pop_place(header.consumer_group, header.topic, header.queue_id)
    if header.poll_time_ms <= 0:
        code = ResponseCode.POLLING_TIMEOUT
    elif len(state.holds) >= HELD_MAX or state.holds.count_at(place) >= WAITING_PER_PLACE_MAX:
        code = ResponseCode.POLLING_FULL
    else:
        wait_ms = min(header.poll_time_ms, SUSPEND_MS_MAX)
        held = HeldPull(
            request.connection,
            request.command,
            place,
            0,
            checked.wanted,
            request.now_ms + wait_ms,
            partial(_answer_held, state, checked),
        )
        state.pops.note_waiting(request.connection, place)
        return _wait(state, checked, held, taken)
    return [Reply(request.connection, _empty(request.command, checked, taken, code))]


def _answer_held(state: BrokerState, checked: _Pop, held: HeldPull) -> Sequence[Output]:
    """Answer a pop that waited, unless there is nothing for it yet."""
    refuse_while_failing(state)
    check_held_pop(state, held)
    # Group and topic may be deleted or closed by now, or the topic has fewer queues. A pop that
    # waited makes no group again.
    header = checked.header
    check_consuming(header.consumer_group, state.groups.find(header.consumer_group))
    checked = checked._replace(
        topic=find_queues(state, held.connection, header.topic, header.queue_id)
    )
    newest = _find_expression(state, header.consumer_group, header.topic)
    if newest is not None and checked.expression not in (None, newest):
        # It would pass over what the newest filter selects. Its consumer asks again, with its own.
        return _give_up(state, held)
    taken = _take(state, checked, now_ms=state.now_ms, timestamp_ms=state.timestamp_ms)
    if taken.queues:
        return _answer(state, held.connection, held.command, checked, taken)
    if not state.holds.is_overdue(held):
        return _wait(state, checked, held, taken)
    command = _empty(held.command, checked, taken, ResponseCode.POLLING_TIMEOUT)
    return [Reply(held.connection, command)]


def _wait(state: BrokerState, checked: _Pop, held: HeldPull, taken: _Taken) -> Sequence[Output]:
    """Hold a pop; a waiting pop goes on at once while messages are left to examine."""
    outputs, header = hold(state, held), checked.header
    if taken.is_cut:
        wake_waiting(state, header.consumer_group, header.topic, header.queue_id)
    return outputs


def _answer(
    state: BrokerState,
    connection: Connection,
    command: RemotingCommand,
    checked: _Pop,
    taken: _Taken,
) -> Sequence[Output]:
    header = checked.header
    if taken.rest > 0:
        # Another waiting pop takes more.
        wake_waiting(state, header.consumer_group, header.topic, header.queue_id)
    if command.is_oneway:
        return ()
    response = response_to(
        command,
        remark=GetStatus.FOUND.name,
        ext_fields=_fields(checked, taken),
        body=b"".join(taken.records),
    )
    state.awaiting_pop_log.append(Reply(connection, response))
    return ()


def _empty(command: RemotingCommand, checked: _Pop, taken: _Taken, code: int) -> RemotingCommand:
    remark = GetStatus.NO_MESSAGE_IN_QUEUE.name
    return response_to(command, code, remark=remark, ext_fields=_fields(checked, taken))


def _fields(checked: _Pop, taken: _Taken) -> dict[str, str]:
    starts, offsets = encode_popped(taken.queues)
    return encode_header(
        PopMessageResponseHeader(
            pop_timestamp_ms=taken.pop_timestamp_ms,
            invisible_time_ms=checked.invisible_ms,
            revive_qid=ORDER_REVIVE_QUEUE_ID if checked.header.order else 0,
            rest_num=taken.rest,
            start_offset_info=starts,
            msg_offset_info=offsets,
            order_count_info=";".join(taken.counts) if checked.header.order else None,
        )
    )


def _check(state: BrokerState, request: Request, header: PopMessageRequestHeader) -> _Pop:
    """Refuse a pop that is not allowed, for the reasons and in the order of RocketMQ."""
    group, name = header.consumer_group, header.topic
    if not 0 < header.max_msg_nums <= POP_COUNT_MAX:
        raise Refusal(
            ResponseCode.INVALID_PARAMETER,
            f"the broker[{state.config.address}] pop message's num is {header.max_msg_nums}; "
            f"it must be from 1 to {POP_COUNT_MAX}",
        )
    topic = find_queues(state, request.connection, name, header.queue_id)
    find_consuming_group(state, request, group)
    check_way(state, request, group, name)
    invisible_ms = min(max(header.invisible_time_ms, 0), INVISIBLE_MS_MAX)
    wanted = given_filter(name, header.exp, sub_version=0, expression_type=header.exp_type)
    return _Pop(header, topic, wanted, invisible_ms, _find_expression(state, group, name))


def _find_expression(state: BrokerState, group: str, topic: str) -> tuple[str, str] | None:
    found = state.consumers.find(group)
    subscription = None if found is None else found.subscriptions.get(topic)
    if subscription is None:
        return None
    return subscription.data.sub_string, subscription.data.expression_type


# --- taking messages ----------------------------------------------------------------------------


def _take(state: BrokerState, checked: _Pop, *, now_ms: int, timestamp_ms: int) -> _Taken:
    """Make up to the asked number of messages invisible, from one queue or in turn from all."""
    note_moved(state)
    header = checked.header
    found: list[_Found] = []
    left, left_bytes, rest, is_cut = header.max_msg_nums, POP_BYTES_MAX, 0, False
    place, named = (header.consumer_group, header.topic), _queue_ids(state, checked)
    begun_max = len(state.offsets.queues(*place)) + BEGUN_AT_ONCE_MAX
    for queue_id in without_finished(state, *place, named):
        key = QueueKey(*place, queue_id)
        read = _read_queue(
            state, checked, key, count_max=left, bytes_max=left_bytes, is_first=not found
        )
        rest += _rest(state, checked, key, read.next_offset) - len(read.again)
        is_cut |= read.is_cut
        if read.offsets:
            found.append(read)
            left -= len(read.offsets)
            left_bytes -= len(read.new) + sum(map(len, read.again))
        if left <= 0 or left_bytes <= 0:
            break
        if len(state.offsets.queues(*place)) >= begun_max:
            is_cut = True
            break
    pop_timestamp_ms = _pop_time(state, found, timestamp_ms)
    taken = _Taken(pop_timestamp_ms, [], [], max(0, rest), [], is_cut)
    for key, offsets, next_offset, again, new, _ in found:
        times = state.pops.pop(
            key,
            offsets,
            next_offset=next_offset,
            pop_timestamp_ms=pop_timestamp_ms,
            invisible_ms=checked.invisible_ms,
            now_ms=now_ms,
            attempt_id=(header.attempt_id or "") if header.order else "",
        )
        queue = state.pops.get(key)
        assert queue is not None
        _commit(state, queue)
        taken.queues.append(PoppedQueue(NORMAL_MARK, key.queue_id, offsets))
        for offset, count, record in zip(offsets, times, again, strict=False):
            taken.records.append(add_attempts(record, count) if count else record)
            if count:
                taken.counts.append(f"{NORMAL_MARK} qo{key.queue_id}%{offset} {count}")
        taken.records.append(new)
        if header.order:
            taken.counts.append(f"{NORMAL_MARK} {key.queue_id} {min(times)}")
        state.counters.gets += len(offsets)
    return taken


def _queue_ids(state: BrokerState, checked: _Pop) -> Iterable[int]:
    """Return the queues that a pop visits, each time from another one on.

    Beside those that it names these are the hidden ones with messages in flight, which are popped
    by nobody otherwise.
    """
    header, count = checked.header, checked.topic.read_queue_nums
    named = range(count) if header.queue_id == ALL_QUEUES else (header.queue_id,)
    hidden = state.pops.hidden_ids(header.consumer_group, header.topic, count=count)
    if not hidden and len(named) <= 1:
        return named
    ids = [*named, *(queue_id for queue_id in hidden if queue_id != header.queue_id)]
    first = state.pops.next_turn() % len(ids)
    return [*ids[first:], *ids[:first]]


def _pop_time(state: BrokerState, found: Sequence[_Found], timestamp_ms: int) -> int:
    """Return the time of a pop: later than that of each message's last pop, which handles name."""
    latest_ms = timestamp_ms
    for key, offsets, _, again, _, _ in found:
        queue = state.pops.get(key)
        for offset in offsets[: len(again)]:
            flight = None if queue is None else queue.flights.get(offset)
            if flight is not None and flight.pop_timestamp_ms >= latest_ms:
                latest_ms = flight.pop_timestamp_ms + 1
    return latest_ms


def _read_queue(
    state: BrokerState,
    checked: _Pop,
    key: QueueKey,
    *,
    count_max: int,
    bytes_max: int,
    is_first: bool,
) -> _Found:
    """Return the messages to pop from a queue, ready ones first; of a hidden one these alone.

    One message is returned even if it has more than `bytes_max`, if it is the first of the answer.
    """
    header = checked.header
    queue = state.pops.get(key)
    next_offset = _next_offset(state, key, queue, header.init_mode)
    offsets, again, size = list[int](), list[bytes](), 0
    if queue is not None and header.order and queue.is_blocked:
        if not header.attempt_id or queue.attempt_id != header.attempt_id:
            return _Found(key, [], next_offset, [])
        state.pops.repeat_attempt(queue)
    # What cannot be read leaves room for later ones: in order, no new message overtakes them.
    while queue is not None and (ready := queue.find_ready(count_max - len(offsets), offsets)):
        for offset in ready:
            record = state.store.records.read_queued(key.topic, key.queue_id, offset)
            if record is None:
                # It has expired, or is damaged.
                _finish(state, queue, [offset])
                continue
            if size + len(record) > bytes_max and (offsets or not is_first):
                return _Found(key, offsets, next_offset, again)
            offsets.append(offset)
            again.append(record)
            size += len(record)
    if key.queue_id >= checked.topic.read_queue_nums:
        return _Found(key, offsets, next_offset, again)
    count_max = min(count_max - len(offsets), state.pops.room(key.group, queue))
    is_any = is_first and not offsets
    if count_max <= 0 or (size >= bytes_max and not is_any):
        return _Found(key, offsets, next_offset, again)
    bytes_max = max(1, bytes_max - size)
    result, new = _read_new(state, checked.wanted, key, next_offset, count_max, bytes_max)
    if new and (is_any or len(result.records) <= bytes_max):
        return _Found(key, [*offsets, *new], result.next_offset, again, result.records)
    if result.status is not GetStatus.FOUND and result.next_offset > next_offset:
        # Nothing that the group wants lies before this offset.
        next_offset = result.next_offset
        _skip(state, key, next_offset)
        is_cut = next_offset < result.max_offset
        return _Found(key, offsets, next_offset, again, is_cut=is_cut)
    return _Found(key, offsets, next_offset, again)


def _read_new(
    state: BrokerState,
    wanted: MessageFilter,
    key: QueueKey,
    offset: int,
    count_max: int,
    bytes_max: int,
    *,
    examined_max: int = EXAMINED_COUNT_MAX,
) -> tuple[GetResult, Sequence[int]]:
    """Read messages that were not popped yet; return them with their offsets."""
    is_conditional = wanted.condition is not None
    config_bytes_max = state.config.pull_bytes_max
    result = state.store.queues.get(
        key.topic,
        key.queue_id,
        queue_offset=offset,
        count_max=examined_max if is_conditional else count_max,
        bytes_max=config_bytes_max if is_conditional else bytes_max,
        tags_codes=wanted.tags_codes,
    )
    if wanted.condition is not None:
        given = result
        result = keep_matching(given, wanted.condition, count_max=count_max, bytes_max=bytes_max)
        if result is given and result.count > 1:
            # The first record is damaged: it goes out alone, and is passed over when it is due.
            return _read_new(state, wanted, key, offset, 1, bytes_max, examined_max=1)
    if result.status is not GetStatus.FOUND:
        return result, ()
    offsets: Sequence[int] = range(offset, result.next_offset)
    # Otherwise not all that lie there are wanted.
    if result.count != len(offsets):
        if wanted.tags_codes is None:
            return result, [at for _, _, at in scan_records(result.records)]
        codes = state.store.queues.tags_codes(key.topic, key.queue_id, offset, len(offsets))
        chosen = [at for at, code in enumerate(codes, offset) if code in wanted.tags_codes]
        # The first ones may have expired.
        offsets = chosen[-result.count :]
    return _keep_tagged(result, offsets, wanted.tags) if wanted.tags else (result, offsets)


def _keep_tagged(
    result: GetResult, offsets: Sequence[int], tags: frozenset[str]
) -> tuple[GetResult, Sequence[int]]:
    """Leave out messages whose tag has the hash code of a wanted one, and is another.

    Differs from RocketMQ, whose clients of remoting and whose proxy acknowledge these messages.
    """
    kept, kept_offsets, at = list[bytes](), list[int](), 0
    for number, offset in enumerate(offsets):
        try:
            record = decode_record(result.records, at, check_crc=False)
        except ProtocolError:
            # Its end is not known; it is passed over when it is due.
            kept.append(result.records[at:])
            kept_offsets += offsets[number:]
            break
        end = at + record.size
        if find_property(record.properties, PROPERTY_TAGS) in tags:
            kept.append(result.records[at:end])
            kept_offsets.append(offset)
        at = end
    if len(kept_offsets) == len(offsets):
        return result, offsets
    status = GetStatus.FOUND if kept else GetStatus.NO_MATCHED_MESSAGE
    records, count = b"".join(kept), len(kept_offsets)
    return replace(result, status=status, records=records, count=count), kept_offsets


def _next_offset(state: BrokerState, key: QueueKey, queue: PopQueue | None, init_mode: int) -> int:
    """Return the first offset that a group has not popped; that of a new group, or of one ahead of
    the queue's end, is committed at once.
    """
    queues = state.store.queues
    low, high = (
        queues.min_offset(key.topic, key.queue_id),
        queues.max_offset(key.topic, key.queue_id),
    )
    if queue is not None:
        return max(queue.next_offset, low)
    committed = state.offsets.find(key.group, key.topic, key.queue_id)
    if committed is not None and committed <= high:
        return max(committed, low)
    # A group that has committed an offset ahead would otherwise skip the messages up to there.
    offset = high
    if committed is None and (
        init_mode == INIT_MIN or begins_in_memory(state, key.topic, key.queue_id)
    ):
        offset = low
    state.pops.begin(key, offset)
    state.offsets.commit_popped(key.group, key.topic, key.queue_id, offset=offset)
    return offset


def _skip(state: BrokerState, key: QueueKey, offset: int) -> None:
    """Go on behind messages that no filter of the group selects."""
    queue = state.pops.get(key)
    if queue is not None:
        queue.next_offset = offset
    else:
        state.offsets.commit_popped(key.group, key.topic, key.queue_id, offset=offset)


def _finish(state: BrokerState, queue: PopQueue, offsets: list[int]) -> None:
    state.pops.finish(queue, offsets)
    _commit(state, queue)


def _end(state: BrokerState, queue: PopQueue, offsets: list[int]) -> None:
    """End messages in flight, and wake a pop that waited for their end or for their room."""
    had_room = state.pops.room(queue.key.group, queue) > 0
    _finish(state, queue, offsets)
    if not (had_room and queue.is_blocked):
        wake_waiting(state, queue.key.group, queue.key.topic, queue.key.queue_id)


def _commit(state: BrokerState, queue: PopQueue) -> None:
    """Commit the offset of the first message in flight, or else of the next message."""
    key, offset = queue.key, queue.commit_offset
    if state.offsets.find(key.group, key.topic, key.queue_id) != offset:
        state.offsets.commit_popped(key.group, key.topic, key.queue_id, offset=offset)


def _rest(state: BrokerState, checked: _Pop, key: QueueKey, next_offset: int) -> int:
    queue = state.pops.get(key)
    new = 0
    if key.queue_id < checked.topic.read_queue_nums:
        new = state.store.queues.max_offset(key.topic, key.queue_id) - next_offset
    return max(0, new) + (0 if queue is None else len(queue.ready))


# --- ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME --------------------------------------------------


def ack(state: BrokerState, request: Request) -> Sequence[Output]:
    """End a message in flight: it is not delivered to the group again."""
    header = decode_header(AckMessageRequestHeader, request.command.ext_fields)
    queue = _find_flight(state, request, header)
    if queue is not None:
        _end(state, queue, [header.offset])
    return _confirm(state, request, {})


def ack_batch(state: BrokerState, request: Request) -> Sequence[Output]:
    """End many messages in flight; the answer names those that the handles do not fit."""
    body = decode_body(BatchAckBody, request.command.body)
    if not body.acks:
        raise Refusal(ResponseCode.NO_MESSAGE, "a batch without acknowledgements")
    if len(body.acks) > ACKS_PER_BATCH_MAX:
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{len(body.acks)} acknowledgements; the limit is {ACKS_PER_BATCH_MAX}",
        )
    acked, count = list[tuple[BatchAck, list[int]]](), 0
    for each in body.acks:
        acked.append((each, each.offsets()))
        count += len(acked[-1][1])
        if count > ACKED_PER_BATCH_MAX:
            raise Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"more than {ACKED_PER_BATCH_MAX} messages in one batch of acknowledgements",
            )
    note_moved(state)
    refuse_while_failing(state)
    left_out: dict[int, list[int]] = {}
    for number, (each, offsets) in enumerate(acked):
        queue = state.pops.find(each.consumer_group, each.topic, each.queue_id)
        ended, others = _split_batch(state, each, offsets, queue)
        if others:
            left_out[number] = others
        if queue is not None and ended:
            _end(state, queue, ended)
    header = BatchAckResponseHeader(left_out=encode_left_out(left_out))
    return _confirm(state, request, encode_header(header))


def _split_batch(
    state: BrokerState, batch: BatchAck, offsets: list[int], queue: PopQueue | None
) -> tuple[list[int], list[int]]:
    """Return the offsets of messages in flight that a batch ends, and those that it does not fit.

    Messages that have ended before are in neither.
    """
    is_own = batch.mark == NORMAL_MARK
    named = batch.pop_timestamp_ms, batch.invisible_ms
    flights = [] if queue is None else list(map(queue.flights.get, offsets))
    first = flights[0] if flights else None
    # The messages of a pop share one state in flight, unless some were popped before.
    if first is not None and flights.count(first) == len(flights):
        return (offsets, []) if is_own and first[:2] == named else ([], offsets)
    popped = _popped(state, queue, batch.consumer_group, batch.topic, batch.queue_id)
    ended, others = list[int](), list[int]()
    for offset, flight in zip_longest(offsets, flights):
        if not is_own or (offset >= popped if flight is None else flight[:2] != named):
            others.append(offset)
        elif flight is not None:
            ended.append(offset)
    return ended, others


def change_invisible_time(state: BrokerState, request: Request) -> Sequence[Output]:
    """Make a message in flight invisible for another time, counted from now."""
    header = decode_header(ChangeInvisibleTimeRequestHeader, request.command.ext_fields)
    queue = _find_flight(state, request, header)
    if queue is None:
        raise _gone(header)
    known = queue.flights[header.offset]
    pop_timestamp_ms = max(request.timestamp_ms, known.pop_timestamp_ms + 1)
    invisible_ms = min(max(header.invisible_time_ms, 0), INVISIBLE_MS_MAX)
    state.pops.change(
        queue,
        header.offset,
        pop_timestamp_ms=pop_timestamp_ms,
        invisible_ms=invisible_ms,
        is_suspended=header.suspend,
        now_ms=request.now_ms,
    )
    fields = ChangeInvisibleTimeResponseHeader(
        pop_timestamp_ms=pop_timestamp_ms,
        invisible_time_ms=invisible_ms,
        revive_qid=parse_handle(header.extra_info).revive_queue_id,
    )
    return _confirm(state, request, encode_header(fields))


def _find_flight(
    state: BrokerState, request: Request, header: AckMessageRequestHeader
) -> PopQueue | None:
    """Return the queue of the message that a handle names, None if the message is finished.

    Raises: Refusal for a handle that is not that of a message in flight.
    """
    note_moved(state)
    topic = state.topics.find(header.topic)
    if topic is None:
        raise Refusal(
            ResponseCode.TOPIC_NOT_EXIST,
            f"The topic {header.topic} not exist, consumer: {request.connection.address} {FAQ}",
        )
    # Messages in flight stay so in queues that the topic no longer has.
    queue_id, broker_name = header.queue_id, state.config.broker_name
    if not state.has_queue(MessageQueue(header.topic, broker_name, queue_id)):
        raise Refusal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal, topic:[{header.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}]",
        )
    refuse_while_failing(state)
    try:
        handle = parse_handle(header.extra_info)
    except ProtocolError as error:
        raise Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
    group, offset = header.consumer_group, header.offset
    is_own = (handle.mark, handle.broker_name, handle.queue_id, handle.queue_offset) == (
        NORMAL_MARK,
        broker_name,
        queue_id,
        offset,
    )
    queue = state.pops.find(group, header.topic, queue_id)
    flight = None if queue is None else queue.flights.get(offset)
    if flight is None:
        if is_own and 0 <= offset < _popped(state, queue, group, header.topic, queue_id):
            return None
        raise _gone(header)
    if not is_own or (handle.pop_timestamp_ms, handle.invisible_ms) != (
        flight.pop_timestamp_ms,
        flight.invisible_ms,
    ):
        raise _gone(header)
    return queue


def _popped(
    state: BrokerState, queue: PopQueue | None, group: str, topic: str, queue_id: int
) -> int:
    """Return the first offset of a queue that a group has not popped."""
    if queue is not None:
        return queue.next_offset
    return state.offsets.find(group, topic, queue_id) or 0


def _gone(header: AckMessageRequestHeader) -> Refusal:
    return Refusal(
        ResponseCode.NO_MESSAGE,
        f"the handle is not that of message {header.offset} of topic {header.topic} "
        f"queueId[{header.queue_id}] for group {header.consumer_group}: its time was over and it "
        "was popped again, its time was changed, or it is finished",
    )


def _confirm(state: BrokerState, request: Request, fields: dict[str, str]) -> Sequence[Output]:
    if not request.command.is_oneway:
        response = response_to(request.command, ext_fields=fields)
        state.awaiting_pop_log.append(Reply(request.connection, response))
    return ()


# --- times and wake-ups ------------------------------------------------------------------------


def show_due(state: BrokerState, *, now_ms: int, timestamp_ms: int) -> None:
    """Make messages ready whose time has come; those of too many attempts become dead letters."""
    note_moved(state)
    state.pops.read_error = None
    woken, letter_count = set[QueueKey](), 0
    for queue, offset in state.pops.take_due(now_ms, DUE_PER_TICK):
        group = state.groups.find(queue.key.group)
        times = queue.flights[offset].next_times
        if group is None or times <= group.retry_max_times:
            state.pops.show(queue, offset)
            woken.add(queue.key)
            continue
        letter_count += 1
        if letter_count <= DEAD_LETTERS_PER_TICK and _put_dead_letter(
            state, queue, offset, timestamp_ms=timestamp_ms
        ):
            _finish(state, queue, [offset])
            woken.add(queue.key)
        else:
            state.pops.delay(queue, offset, due_ms=now_ms + DEAD_LETTER_RETRY_MS)
    # A pop from any queue visits the hidden ones too: one of them stands for all.
    count = state.count_readable
    for name, topic, queue_id in sorted(
        {(key.group, key.topic, min(key.queue_id, count(key.topic))) for key in woken}
    ):
        wake_waiting(state, name, topic, queue_id)


def forget_expired(state: BrokerState) -> None:
    """End messages in flight that have expired; call it every few seconds."""
    note_moved(state)
    for queue, offsets in state.pops.find_expired(state.store.queues.min_offset):
        _end(state, queue, offsets)


def _put_dead_letter(
    state: BrokerState, queue: PopQueue, offset: int, *, timestamp_ms: int
) -> bool:
    """Store a copy of a message among the dead letters; return False if it must be tried again."""
    key = queue.key
    try:
        record = state.store.records.read_message(key.topic, key.queue_id, offset)
    except OSError as error:
        state.pops.read_error = error.with_traceback(None)
        return False
    if record is None:
        return True
    count_attempts(record, queue.flights[offset].next_times)
    status = put_dead_letter(state, record, key.group, timestamp_ms=timestamp_ms).status
    if status is PutStatus.MESSAGE_ILLEGAL:
        # With the topic's longer name it fits into no file of the log.
        state.store.records.note_damaged(key.topic, key.queue_id, offset)
    return status is not PutStatus.SERVICE_NOT_AVAILABLE


def wake(state: BrokerState, dispatched: Iterable[Dispatched]) -> None:
    """Wake waiting pops for new messages: one for each group and tag, which wakes the next."""
    for item in dispatched:
        for group in state.pops.waiting_groups(item.topic):
            for queue_id in (ALL_QUEUES, item.queue_id):
                place = pop_place(group, item.topic, queue_id)
                state.holds.wake_first(notice_place(group, item.topic, queue_id))
                state.holds.wake_first(place, tags_codes=item.tags_codes)


def forget_connection(state: BrokerState, connection: Connection) -> None:
    """Wake other pops in the place of those of a closed connection, which may have been woken."""
    for place in state.pops.forget_waiting(connection):
        state.holds.wake_first(place)


def give_up(state: BrokerState, connection: Connection, opaque: int) -> Sequence[Output]:
    """Answer a waiting pop without messages, and let others have what may have woken it."""
    held = state.holds.take(connection, opaque)
    return () if held is None else _give_up(state, held)


def _give_up(state: BrokerState, held: HeldPull) -> Sequence[Output]:
    state.holds.wake_first(held.place)
    return [Reply(held.connection, response_to(held.command, ResponseCode.POLLING_TIMEOUT))]
