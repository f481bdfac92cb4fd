"""POP: the headers of consumption message by message, and the handle of a popped message. Pure.

A pop makes messages invisible to the rest of the group for a time. Each popped message has a
handle, the text by which the consumer acknowledges the message or changes its time: eight numbers
and names with a blank between them. A broker gives the handles of an answer in two fields,
`startOffsetInfo` and `msgOffsetInfo`; the client makes the texts from them.

| field | of the handle |
|---|---|
| 0 | the first offset of the queue in the answer |
| 1 | when the message was popped, by the broker's clock, in ms since 1970 |
| 2 | for how long the message is invisible from then on, in ms |
| 3 | revive queue id: 999 for a pop in order |
| 4 | where the message is: 0 the topic, 1 and 2 the retry topics of RocketMQ |
| 5 | the broker's name |
| 6 | the queue id |
| 7 | the message's offset in the queue |

Source: RocketMQ 5.5.0 PopMessageRequestHeader.java and others, ExtraInfoUtil.java.
Tests: test_pop_handle.py.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from sparrowmq.errors import RemoteProtocolError
from sparrowmq.model import MessageExt
from sparrowmq.model.message import INFLATED_BYTES_MAX
from sparrowmq.protocol.record import HEAD_SIZE, decode_message, decode_messages
from sparrowmq.protocol.wire_names import Int32, Int64, prepare_types, wire_names

# KeyBuilder.POP_ORDER_REVIVE_QUEUE.
ORDER_REVIVE_QUEUE_ID = 999
# ConsumeInitMode.
INIT_MIN, INIT_MAX = 0, 1
# PopMessageProcessor: more are refused.
POP_COUNT_MAX = 32
# RocketMQ's marks of the topic that a message was popped from.
NORMAL_MARK, RETRY_MARK_V1, RETRY_MARK_V2 = "0", "1", "2"
_FIELD_COUNT = 8
_DIGITS_MAX = 19
# The most bytes of a bit set, in base64: queues of a group have so many messages in flight.
BIT_SET_LENGTH_MAX = 4_096
BITS_MAX = BIT_SET_LENGTH_MAX // 4 * 3 * 8 - 8
# A longer text names more than any handle has.
_HANDLE_LENGTH_MAX = 512


class PopMessageRequestHeader(
    Struct,
    frozen=True,
    kw_only=True,
    rename=wire_names(born_timestamp_ms="bornTime"),
):
    """POP_MESSAGE; queue id -1 stands for all queues."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time_ms: Int64
    poll_time_ms: Int64
    born_timestamp_ms: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopMessageResponseHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names(pop_timestamp_ms="popTime")
):
    """The answer to a pop."""

    pop_timestamp_ms: Int64
    invisible_time_ms: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """ACK_MESSAGE; `extra_info` is the handle."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTimeRequestHeader(
    AckMessageRequestHeader, frozen=True, kw_only=True, rename=wire_names()
):
    """CHANGE_MESSAGE_INVISIBLETIME; `suspend`: the next delivery does not count as an attempt."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time_ms: Int64
    suspend: bool = False


class ChangeInvisibleTimeResponseHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names(pop_timestamp_ms="popTime")
):
    """The answer to CHANGE_MESSAGE_INVISIBLETIME, from which the caller makes the new handle."""

    pop_timestamp_ms: Int64
    invisible_time_ms: Int64
    revive_qid: Int32


class PeekMessageRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """PEEK_MESSAGE: look at messages without popping them."""

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32


class NotificationRequestHeader(
    Struct, frozen=True, kw_only=True, rename=wire_names(born_timestamp_ms="bornTime")
):
    """NOTIFICATION: wait until there is something to pop."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time_ms: Int64
    born_timestamp_ms: Int64
    order: bool = False


class PollingInfoRequestHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """POLLING_INFO: how many pops wait."""

    consumer_group: str
    topic: str
    queue_id: Int32


class BatchAck(
    Struct,
    frozen=True,
    kw_only=True,
    rename={
        "consumer_group": "c",
        "topic": "t",
        "mark": "r",
        "start_offset": "so",
        "queue_id": "q",
        "revive_queue_id": "rq",
        "pop_timestamp_ms": "pt",
        "invisible_ms": "it",
        "bit_set": "b",
    },
):
    """The acknowledged messages of one queue of one pop.

    Args:
        bit_set: in base64, bytes with the lowest bit first; bit n stands for the message at
            `start_offset` + n. Source: BatchAck.java.
    """

    consumer_group: str
    topic: str
    mark: str = NORMAL_MARK
    start_offset: Int64
    queue_id: Int32
    revive_queue_id: Int32 = 0
    pop_timestamp_ms: Int64
    invisible_ms: Int64
    bit_set: str

    def offsets(self) -> list[int]:
        """Return the offsets of the acknowledged messages. Raises: RemoteProtocolError."""
        if len(self.bit_set) > BIT_SET_LENGTH_MAX:
            raise RemoteProtocolError(f"a bit set of {len(self.bit_set)} characters")
        try:
            bits = int.from_bytes(b64decode(self.bit_set, validate=True), "little")
        except ValueError as error:
            raise RemoteProtocolError(f"a bit set {self.bit_set[:80]!r}") from error
        lowest = bits & -bits
        if bits & (bits + lowest) == 0:
            # One run, as of a whole pop.
            begin = self.start_offset + lowest.bit_length() - 1
            return list(range(begin, begin + bits.bit_count()))
        found: list[int] = []
        while bits:
            lowest = bits & -bits
            found.append(self.start_offset + lowest.bit_length() - 1)
            bits ^= lowest
        return found


class BatchAckBody(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """BATCH_ACK_MESSAGE."""

    broker_name: str | None = None
    acks: list[BatchAck] = []


class BatchAckResponseHeader(Struct, frozen=True, kw_only=True, rename=wire_names()):
    """The answer to BATCH_ACK_MESSAGE.

    Args:
        left_out: the messages that were not in flight under the named times, as
            `encode_left_out` writes them; None for none. SparrowMQ's own: RocketMQ's brokers do not
            tell.
    """

    left_out: str | None = None

    def read(self) -> set[tuple[int, int]]:
        """Return the left out messages: each the number of its acknowledgement, and its offset.

        Raises: RemoteProtocolError.
        """
        found: set[tuple[int, int]] = set()
        for entry in self.left_out.split(";") if self.left_out else ():
            number, _, offsets = entry.partition(" ")
            found.update((_number(number, entry), _number(o, entry)) for o in offsets.split(","))
        return found


def encode_left_out(left_out: Mapping[int, Sequence[int]]) -> str | None:
    """Return the text of left out offsets, by the numbers of their acknowledgements."""
    entries = (f"{number} {','.join(map(str, of))}" for number, of in left_out.items())
    return ";".join(entries) or None


def batch_acks(
    acknowledged: Iterable[tuple[PopHandle, str, str]],
) -> tuple[list[BatchAck], list[tuple[int, int]]]:
    """Gather acknowledgements of one broker's messages, each a handle, its group and topic.

    Returns: the acknowledgements; and for each handle the number of its acknowledgement and the
    offset, by which an answer names what it left out.
    """
    found: dict[tuple[str, str, PopHandle], tuple[int, list[int]]] = {}
    places: list[tuple[int, int]] = []
    for handle, group, topic in acknowledged:
        same, offset = handle._replace(queue_offset=0), handle.queue_offset
        number, offsets = found.setdefault((group, topic, same), (len(found), []))
        offsets.append(offset)
        places.append((number, offset))
    acks = [
        BatchAck(
            consumer_group=group,
            topic=topic,
            mark=same.mark,
            start_offset=same.start_offset,
            queue_id=same.queue_id,
            revive_queue_id=same.revive_queue_id,
            pop_timestamp_ms=same.pop_timestamp_ms,
            invisible_ms=same.invisible_ms,
            bit_set=_bits(offsets, same.start_offset),
        )
        for (group, topic, same), (_, offsets) in found.items()
    ]
    return acks, places


def _bits(offsets: Iterable[int], start: int) -> str:
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start)
    return b64encode(bits.to_bytes(bits.bit_length() // 8 + 1, "little")).decode()


class PopHandle(NamedTuple):
    """The handle of a popped message, field by field as above."""

    start_offset: int
    pop_timestamp_ms: int
    invisible_ms: int
    revive_queue_id: int
    mark: str
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def fits_batch(self) -> bool:
        """Whether a batch of acknowledgements can name the message by a bit."""
        return 0 <= self.queue_offset - self.start_offset < BITS_MAX

    def encode(self) -> str:
        """Return the handle's text."""
        return " ".join(map(str, self))

    def ack_header(self, group: str, topic: str) -> AckMessageRequestHeader:
        """Return the header that acknowledges the message; `topic` is what the mark means."""
        return AckMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=self.queue_id,
            extra_info=self.encode(),
            offset=self.queue_offset,
        )

    def change_header(
        self, group: str, topic: str, *, invisible_ms: int, suspend: bool = False
    ) -> ChangeInvisibleTimeRequestHeader:
        """Return the header that changes for how long the message is invisible."""
        return ChangeInvisibleTimeRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=self.queue_id,
            extra_info=self.encode(),
            offset=self.queue_offset,
            invisible_time_ms=invisible_ms,
            suspend=suspend,
        )

    def changed(self, answer: ChangeInvisibleTimeResponseHeader) -> PopHandle:
        """Return the handle after a change of the time."""
        return self._replace(
            start_offset=self.queue_offset,
            pop_timestamp_ms=answer.pop_timestamp_ms,
            invisible_ms=answer.invisible_time_ms,
            revive_queue_id=answer.revive_qid,
        )


def parse_handle(text: str) -> PopHandle:
    """Read a handle; fields after the eighth are the proxy's own.

    Raises: RemoteProtocolError.
    """
    fields = text.split(" ") if len(text) <= _HANDLE_LENGTH_MAX else []
    if len(fields) < _FIELD_COUNT:
        raise RemoteProtocolError(
            f"the handle {text[:80]!r} has {len(fields)} fields; it must have {_FIELD_COUNT}"
        )
    mark, broker_name = fields[4], fields[5]
    if mark not in (NORMAL_MARK, RETRY_MARK_V1, RETRY_MARK_V2):
        raise RemoteProtocolError(f"the handle {text[:80]!r} has the mark {mark!r}")
    numbers = fields[:4] + fields[6:8]
    start, popped, invisible, revive, queue_id, offset = [_number(each, text) for each in numbers]
    return PopHandle(start, popped, invisible, revive, mark, broker_name, queue_id, offset)


def _number(field: str, text: str) -> int:
    if not (field.isascii() and field.isdigit() and len(field) <= _DIGITS_MAX):
        raise RemoteProtocolError(f"the handle {text[:80]!r} has {field!r} where a number must be")
    return int(field)


class PoppedQueue(NamedTuple):
    """The messages of one queue in an answer: their offsets, ascending."""

    mark: str
    queue_id: int
    offsets: Sequence[int]


def encode_popped(queues: Iterable[PoppedQueue]) -> tuple[str, str]:
    """Return the fields `startOffsetInfo` and `msgOffsetInfo` of an answer."""
    starts: list[str] = []
    offsets: list[str] = []
    for mark, queue_id, found in queues:
        starts.append(f"{mark} {queue_id} {found[0]}")
        offsets.append(f"{mark} {queue_id} {','.join(map(str, found))}")
    return ";".join(starts), ";".join(offsets)


def parse_popped(header: PopMessageResponseHeader) -> list[tuple[PoppedQueue, int]]:
    """Return the queues of an answer, each with the first offset of its handles.

    Raises: RemoteProtocolError if the two fields do not belong together.
    """
    starts = _entries(header.start_offset_info)
    found: list[tuple[PoppedQueue, int]] = []
    for key, text in _entries(header.msg_offset_info).items():
        start = starts.get(key)
        if start is None:
            raise RemoteProtocolError(f"a pop's answer has no start offset of queue {key[1]}")
        offsets = [_number(each, text) for each in text.split(",")]
        found.append((PoppedQueue(key[0], key[1], offsets), _number(start, start)))
    return found


def handle_of(
    message: MessageExt,
    answer: PopMessageResponseHeader,
    starts: Mapping[tuple[str, int], int],
    *,
    address: str,
) -> PopHandle:
    """Return the handle of a message of the topic itself.

    Args:
        starts: the first offsets of the answer's queues, as `start_offsets` returns them.
        address: the broker's, for the error.

    Raises: RemoteProtocolError if the answer does not name the message's queue.
    """
    start = starts.get((NORMAL_MARK, message.queue_id))
    if start is None:
        raise RemoteProtocolError(
            f"broker {address} answers a pop with a message of queue {message.queue_id} that the "
            "answer does not name"
        )
    return PopHandle(
        start,
        answer.pop_timestamp_ms,
        answer.invisible_time_ms,
        answer.revive_qid,
        NORMAL_MARK,
        message.broker_name,
        message.queue_id,
        message.queue_offset,
    )


def decode_popped(body: bytes, *, broker_name: str) -> list[MessageExt]:
    """Read the messages of an answer.

    A message that cannot be read is left out: it stays invisible. When it is to be popped again,
    SparrowMQ's broker passes a damaged record over, and others become dead letters at last. Behind
    a record whose size is damaged too, the rest is left out, and comes again without it.
    """
    messages: list[MessageExt] = []
    at = 0
    while at < len(body):
        part, at = decode_turn(body, at, broker_name=broker_name, room_bytes=INFLATED_BYTES_MAX)
        messages += part
    return messages


def decode_turn(
    body: bytes, at: int, *, broker_name: str, room_bytes: int
) -> tuple[list[MessageExt], int]:
    """Read messages of an answer as `decode_popped`, as many as one turn of `decode_messages` has.

    Returns: the messages, and the place of the next turn; `at` if there is no room for a message.
    """
    decoded = decode_messages(body, broker_name=broker_name, at=at, room_bytes=room_bytes)
    is_sound = decoded.fault is None
    return decoded.messages, decoded.end if is_sound else _end_of_record(body, decoded.end)


def decode_stored(body: bytes, at: int = 0, *, broker_name: str) -> Iterator[MessageExt]:
    """Yield the messages of an answer from `at` on as `decode_popped`, for `inflate_message`."""
    hosts: dict[bytes, str] = {}
    while at < len(body):
        with suppress(RemoteProtocolError):
            yield decode_message(body, at, broker_name=broker_name, hosts=hosts)
        at = _end_of_record(body, at)


def _end_of_record(body: bytes, at: int) -> int:
    size = int.from_bytes(body[at : at + 4])
    return at + size if size >= HEAD_SIZE else len(body)


def start_offsets(answer: PopMessageResponseHeader) -> dict[tuple[str, int], int]:
    """Return the first offset of each queue of an answer, by mark and queue id.

    Raises: as `parse_popped`.
    """
    return {(each.mark, each.queue_id): start for each, start in parse_popped(answer)}


def _entries(text: str | None) -> dict[tuple[str, int], str]:
    entries: dict[tuple[str, int], str] = {}
    for entry in text.split(";") if text else ():
        fields = entry.split(" ")
        if len(fields) != 3:
            raise RemoteProtocolError(f"a pop's answer names offsets as {entry[:80]!r}")
        entries[fields[0], _number(fields[1], entry)] = fields[2]
    return entries


prepare_types(list(globals().values()))
