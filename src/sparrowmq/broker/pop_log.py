"""The pop log: the changes of a turn are appended at its end, and read again at the start.

Answers to pops, acknowledgements and changes wait for the record that has their changes. What the
log cannot take waits in memory, and meanwhile all further changes are refused.
Tests: test_pop.py, test_pop_crashes.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparrowmq.broker.pending_replies import FLUSH_TIMEOUT_MS
from sparrowmq.broker.pop_changes import (
    PopChange,
    Popped,
    PopTable,
    QueueKey,
    UnflushedPops,
    decode_pop_changes,
    encode_pop_changes,
)
from sparrowmq.broker.processors.pull import wake_waiting
from sparrowmq.broker.state import BrokerState
from sparrowmq.errors import ProtocolError
from sparrowmq.model.names import POP_LOG_TOPIC
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.serving.connections import Output
from sparrowmq.serving.requests import Refusal
from sparrowmq.store.results import PutStatus

# The changes of one record of the log: some 400 KiB at most.
CHANGES_PER_RECORD = 1_024
_LOG_RECORDS_PER_READ, _LOG_BYTES_PER_READ = 1_024, 1 << 22


def log_changes(state: BrokerState, *, now_ms: int) -> list[Output]:
    """Append the changes of a turn to the pop log, and hold their answers until it has them."""
    note_moved(state)
    replies, state.awaiting_pop_log = state.awaiting_pop_log, []
    if not replies and not state.pops.has_changes:
        return []
    changes = state.pops.peek_changes()
    position, outputs = state.store.appended_position, list[Output]()
    state.is_pop_log_failing = False
    for at in range(0, len(changes), CHANGES_PER_RECORD):
        record = Record(
            topic=POP_LOG_TOPIC,
            queue_id=0,
            body=encode_pop_changes(changes[at : at + CHANGES_PER_RECORD]),
            born_timestamp_ms=state.timestamp_ms,
            born_host=state.store_host,
            store_host=state.store_host,
        )
        result = state.store.append(record, timestamp_ms=state.timestamp_ms)
        if result.status is not PutStatus.PUT_OK:
            _note_failing(state, now_ms=now_ms)
            for reply in replies:
                reply.command.code = ResponseCode.SERVICE_NOT_AVAILABLE
                reply.command.remark = f"{result.status.name}: {result.remark}"
                reply.command.body = None
            return [*replies]
        position = result.end_position
        state.pop_log_offset = result.queue_offset + 1
    popped = [each for each in changes if isinstance(each, Popped)]
    if popped and state.config.is_sync:
        state.unflushed_pops.append(UnflushedPops(position, now_ms, popped))
    for reply in replies:
        outputs += state.pending.add(
            reply, position=position, waits_for_flush=state.config.is_sync, now_ms=now_ms
        )
    return outputs


def note_logged(state: BrokerState, *, is_written: bool, now_ms: int) -> None:
    """Note whether the log has the changes of the turn; if not, the next turn appends them."""
    if not state.pops.has_changes or state.is_pop_log_failing:
        return
    if is_written:
        state.pops.changes_logged(state.pop_log_offset, now_ms=now_ms)
    else:
        _note_failing(state, now_ms=now_ms)


def _note_failing(state: BrokerState, *, now_ms: int) -> None:
    """Refuse changes until the log takes those of the turn, whose pops are refused too."""
    state.is_pop_log_failing = True
    state.pops.give_back(list(state.pops.peek_changes()), now_ms=now_ms)


def give_back_late(state: BrokerState, *, now_ms: int) -> None:
    """Make messages ready of pops whose flush is late: their answers are refusals by now.

    They do not go out all the same: a power cut would take back an attempt that was delivered.
    """
    unflushed = state.unflushed_pops
    while unflushed and unflushed[0].position <= state.store.flushed_position:
        unflushed.popleft()
    while unflushed and now_ms - unflushed[0].since_ms > FLUSH_TIMEOUT_MS:
        state.pops.give_back(unflushed.popleft().pops, now_ms=now_ms)


def note_moved(state: BrokerState) -> None:
    """Let groups go on at offsets that a tool, a reset or a pull has set, also pops that wait."""
    moved = dict[tuple[str, str], list[int]]()
    for (group, topic, queue_id), offset in state.offsets.take_moved().items():
        state.pops.move(QueueKey(group, topic, queue_id), offset)
        moved.setdefault((group, topic), []).append(queue_id)
    for place, queue_ids in moved.items():
        wake_waiting(state, *place, *queue_ids)


def refuse_while_failing(state: BrokerState) -> None:
    """Refuse changes that the log could not take: each would wait in memory."""
    if state.is_pop_log_failing:
        raise Refusal(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the pop log cannot be written: {state.store.obstacle}",
        )


def load(state: BrokerState, table: PopTable | None, *, now_ms: int, timestamp_ms: int) -> None:
    """Load the saved table and the pop log's records after it."""
    queues = state.store.queues
    end = queues.max_offset(POP_LOG_TOPIC, 0)
    table = table or PopTable()
    state.pop_log_offset = end
    committed = state.pops.load(
        table,
        _read_log(state, table.log_offset, end),
        log_offset=end,
        now_ms=now_ms,
        timestamp_ms=timestamp_ms,
        end_of=queues.max_offset,
    )
    for key, offset in committed.items():
        if offset is not None:
            state.offsets.commit_popped(key.group, key.topic, key.queue_id, offset=offset)


def _read_log(state: BrokerState, offset: int, end: int) -> Iterator[PopChange]:
    """Yield the changes in the pop log's records, up to a damaged one.

    The damaged record may say that messages were popped, which the later records do not name. The
    groups therefore go on where they were before it, and get the messages popped since then again.
    """
    while offset < end:
        found = state.store.queues.get(
            POP_LOG_TOPIC,
            0,
            queue_offset=offset,
            count_max=_LOG_RECORDS_PER_READ,
            bytes_max=_LOG_BYTES_PER_READ,
        )
        at = 0
        for log_offset in range(offset, offset + found.count):
            try:
                record = decode_record(found.records, at)
            except ProtocolError:
                state.store.records.note_damaged(POP_LOG_TOPIC, 0, log_offset)
                return
            at += record.size
            yield from decode_pop_changes(record.body)
        if found.next_offset <= offset:
            return
        offset = found.next_offset
