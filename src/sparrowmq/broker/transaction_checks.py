"""Half messages that nobody ends: their producers are asked, and in the end they are put away.

The first half of a transaction waits in the half topic. END_TRANSACTION puts its offset there into
the op topic; nothing is ever changed in place. Two offsets of the group CID_RMQ_SYS_TRANS say how
far both topics are done. From time to time a round goes on from there: it reads the op topic to
its end, and then decides on each half message:

- one that was ended is done;
- one that is fresh ends the round; one whose producer asked for more time stands in line again;
- of any other its producer is asked: it stands in line again, with its times of asking, and
  CHECK_TRANSACTION_STATE names this new place;
- one that was asked often enough, or is too old, goes into TRANS_CHECK_MAX_TIME_TOPIC.

A message in line again names the offset that it had at first. The end of any of its places is the
end of the first, so no later place is asked for.

The round commits its two offsets once all that it wrote is on the disk, so a crash repeats a round
and loses nothing. A commit that comes twice is delivered twice, as in RocketMQ: from the producer,
and as its answer to a question that was on its way.

Source: TransactionalMessageServiceImpl.java of 4.9.7. Differs from RocketMQ: a message that waits
for its producer's own time does not count as asked; and where a message is in line again, the end
of its first place counts: there it is asked for all the same, and delivered twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec.structs import replace

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.consumer_offsets import ConsumerOffsets
from sparrowmq.errors import ProtocolError
from sparrowmq.model.message import (
    PROPERTY_CHECK_IMMUNITY_TIME,
    PROPERTY_TRANSACTION_CHECK_TIMES,
    PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET,
)
from sparrowmq.model.names import (
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
)
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import Record, decode_record
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutStatus
from sparrowmq.store.retention import HOUR_MS, RESERVED_HOURS

# MixAll.CID_SYS_RMQ_TRANS.
TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
# Bounds of one step. Half messages that were ended cost next to nothing.
OPS_PER_STEP = 1_024
ENDED_PER_STEP = 8_192
UNENDED_PER_STEP = 128
# Ended half messages that a round remembers, and those in line again: some 30 MB each. A half
# message whose end stands behind so many others is asked for.
ENDED_MAX = AGAIN_MAX = 200_000
# A round waits while so many producers are still to be asked.
TO_ASK_MAX = 1_024
_OPS_BYTES_MAX = 1 << 20


class CheckStep(NamedTuple):
    """What a step found.

    Args:
        asked: offsets in the half topic of messages whose producers are to be asked.
        put_away: how many messages went into TRANS_CHECK_MAX_TIME_TOPIC.
    """

    asked: list[int]
    put_away: int


@dataclass(slots=True)
class _Round:
    """How far a round is: `half_offset` is decided up to there, `op_offset` read up to there."""

    half_offset: int
    half_end: int
    op_begin: int
    op_offset: int
    # Of each half message that was ended, its first entry in the op topic; in that topic's order.
    ended: dict[int, int] = field(default_factory=dict)
    # All that the round wrote lies before this position of the log; None while it goes on.
    end_position: int | None = None
    put_away: int = 0


class TransactionChecks:
    """Which half messages are to be asked for.

    Args:
        store: its half messages and ops.
        config: how long a message is left alone, how often it is asked for, and when; may change.
    """

    def __init__(self, store: MessageStore, config: BrokerConfig) -> None:
        self._store = store
        self.config = config
        self._due_ms: int | None = None
        self._round: _Round | None = None
        # By the first offset of a message: where, at the latest, it stands in line again.
        self._again: dict[int, int] = {}
        # Where the line ended at first. Before that offset a message may be in line again, and
        # after a crash even twice, which `_again` does not know.
        self._first_end: int | None = None
        # To be asked for once they can be read: their places, by their first offsets.
        self._to_ask: dict[int, int] = {}

    def step(self, offsets: ConsumerOffsets, *, now_ms: int, timestamp_ms: int) -> CheckStep:
        """Go on with the round, or begin one if it is time; to be called with every tick."""
        if self._due_ms is None:
            self._due_ms = now_ms + self.config.transaction_check_interval_ms
        if self._round is None and now_ms >= self._due_ms:
            self._due_ms = now_ms + self.config.transaction_check_interval_ms
            self._round = self._begin(offsets)
        put_away = 0
        if self._round is not None:
            self._go_on(self._round, timestamp_ms)
            put_away, self._round.put_away = self._round.put_away, 0
            end_position = self._round.end_position
            if end_position is not None and self._store.flushed_position >= end_position:
                self._commit(self._round, offsets)
                self._round = None
        return CheckStep(self._take_readable(), put_away)

    def note_end(self, first: int) -> None:
        """Take note that a message, by its first offset, is ended: it is not asked for now."""
        self._to_ask.pop(first, None)

    def read(self, half_offset: int) -> Record | None:
        """Return the half message at an offset, None if there is none that can be read."""
        entry = self._store.queues.entry(TRANS_HALF_TOPIC, 0, half_offset)
        data = None if entry is None else self._store.read_record(entry[0], entry[1])
        try:
            return None if data is None else decode_record(data)
        except ProtocolError:
            return None

    def _begin(self, offsets: ConsumerOffsets) -> _Round:
        half_end = self._store.queues.max_offset(TRANS_HALF_TOPIC, 0)
        if self._first_end is None:
            self._first_end = half_end
        op_offset = self._begin_of(offsets, TRANS_OP_HALF_TOPIC)
        return _Round(self._begin_of(offsets, TRANS_HALF_TOPIC), half_end, op_offset, op_offset)

    def _begin_of(self, offsets: ConsumerOffsets, topic: str) -> int:
        """Return the committed offset, or the nearest one that the topic has."""
        queues = self._store.queues
        low, high = queues.min_offset(topic, 0), queues.max_offset(topic, 0)
        return min(max(offsets.find(TRANSACTION_GROUP, topic, 0) or 0, low), high)

    def _go_on(self, current: _Round, timestamp_ms: int) -> None:
        if current.end_position is not None or len(self._to_ask) >= TO_ASK_MAX:
            return
        if not self._read_ops(current):
            return
        unended = 0
        for _ in range(ENDED_PER_STEP):
            if current.half_offset >= current.half_end:
                current.end_position = self._store.appended_position
                return
            if unended == UNENDED_PER_STEP:
                return
            if current.half_offset not in current.ended:
                unended += 1
                if not self._decide(current, timestamp_ms):
                    current.half_end = current.half_offset
                    continue
            current.half_offset += 1

    def _read_ops(self, current: _Round) -> bool:
        """Read on in the op topic; return whether as much is read as there is, or may be."""
        if len(current.ended) >= ENDED_MAX:
            return True
        found = self._store.queues.get(
            TRANS_OP_HALF_TOPIC,
            0,
            queue_offset=current.op_offset,
            count_max=OPS_PER_STEP,
            bytes_max=_OPS_BYTES_MAX,
        )
        at = 0
        for op_offset in range(current.op_offset, current.op_offset + found.count):
            try:
                record = decode_record(found.records, at)
            except ProtocolError:
                break
            at += record.size
            # 5.x writes the ends of several messages as one op: `12,13,`.
            for text in record.body.decode(errors="replace").split(","):
                ended = _number(text)
                if ended is not None:
                    current.ended.setdefault(ended, op_offset)
        is_stuck = found.next_offset <= current.op_offset
        current.op_offset = max(found.next_offset, current.op_offset)
        return is_stuck or current.op_offset >= found.max_offset

    def _decide(self, current: _Round, timestamp_ms: int) -> bool:
        """Decide on the next half message, which has not been ended; False ends the round."""
        half_offset = current.half_offset
        record = self.read(half_offset)
        if record is None:
            return True
        properties = parse_properties(record.properties)
        first = first_offset(half_offset, properties)
        if first in current.ended:
            return True
        times = _number(properties.get(PROPERTY_TRANSACTION_CHECK_TIMES)) or 0
        age_ms = timestamp_ms - record.born_timestamp_ms
        if 0 <= age_ms < self._immunity_ms(properties):
            if PROPERTY_CHECK_IMMUNITY_TIME not in properties:
                return False
            is_asked = False
        elif times >= self.config.transaction_check_max or self._is_too_old(age_ms):
            return self._put_away(current, record, timestamp_ms)
        else:
            is_asked = True
            properties[PROPERTY_TRANSACTION_CHECK_TIMES] = str(times + 1)
        properties[PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET] = str(first)
        again = replace(record, properties=encode_properties(properties))
        result = self._store.put(again, timestamp_ms=timestamp_ms)
        if result.status is PutStatus.SERVICE_NOT_AVAILABLE:
            return False
        if result.status is not PutStatus.PUT_OK:
            # Its properties leave no room for these two.
            return self._put_away(current, record, timestamp_ms)
        if len(self._again) < AGAIN_MAX:
            self._again[first] = result.queue_offset
        if is_asked:
            self._to_ask[first] = result.queue_offset
        return True

    def _put_away(self, current: _Round, record: Record, timestamp_ms: int) -> bool:
        """Put a half message where it is asked for no more; return whether the store takes any."""
        record.topic = TRANS_CHECK_MAX_TIME_TOPIC
        result = self._store.put(record, timestamp_ms=timestamp_ms)
        current.put_away += 1
        return result.status is not PutStatus.SERVICE_NOT_AVAILABLE

    def _is_too_old(self, age_ms: int) -> bool:
        """Whether a half message may expire, as any other, before its producer answers.

        Source: fileReservedTime in TransactionalMessageServiceImpl.needSkip.
        """
        hours = self.config.retention.reserved_hours
        if hours is None:
            hours = RESERVED_HOURS if self._store.is_expiring else 0
        return 0 < hours * HOUR_MS < age_ms

    def _immunity_ms(self, properties: dict[str, str]) -> int:
        """Return how long a message is left alone."""
        seconds = _number(properties.get(PROPERTY_CHECK_IMMUNITY_TIME))
        return self.config.transaction_timeout_ms if seconds is None else seconds * 1_000

    def _commit(self, current: _Round, offsets: ConsumerOffsets) -> None:
        """Commit how far both topics are done: the op topic up to the first end still needed."""
        half_offset = current.half_offset
        self._again = {first: at for first, at in self._again.items() if at >= half_offset}
        op_offset = current.op_offset
        if self._first_end is not None and half_offset < self._first_end:
            op_offset = current.op_begin
        for ended, at in current.ended.items():
            if ended >= half_offset or ended in self._again:
                op_offset = min(op_offset, at)
                break
        for topic, offset in ((TRANS_HALF_TOPIC, half_offset), (TRANS_OP_HALF_TOPIC, op_offset)):
            if offset != (offsets.find(TRANSACTION_GROUP, topic, 0) or 0):
                offsets.commit(TRANSACTION_GROUP, topic, 0, offset=offset)

    def _take_readable(self) -> list[int]:
        """Take those to be asked that can be read by now: an outcome refers to what is stored."""
        end = self._store.queues.max_offset(TRANS_HALF_TOPIC, 0)
        ready = [first for first, offset in self._to_ask.items() if offset < end]
        return [self._to_ask.pop(first) for first in ready[:UNENDED_PER_STEP]]


def first_offset(half_offset: int, properties: Mapping[str, str]) -> int:
    """Return the offset that a half message had before it stood in line again."""
    first = _number(properties.get(PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET))
    return half_offset if first is None else first


def _number(text: str | None) -> int | None:
    if text is None or len(text) > 18 or not text.isascii() or not text.isdigit():
        return None
    return int(text)
