"""Read the messages of a pull's answer, within bounds, and handle messages that cannot be read.

Rules of this file:
- No message is returned or passed over unless the whole answer belongs to the queue and is in
  order. An answer is usually read at once, and then its messages are checked.
- No message is passed over silently. A message that is not returned is pulled again or was
  reported.
- Bodies are inflated only as far as the queue has room, and in turns. The driver does other work
  between the turns, so that leases are renewed while a large answer is read.

Differs from RocketMQ: Java's clients drop a message that they cannot read, and all later messages
of the same answer. Tests: client/test_unreadable.py, test_pull.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparrowmq.calling.effects import Operation, Sleep
from sparrowmq.client.operations.deliver import with_own_topic
from sparrowmq.client.operations.pull import PullReply, check_messages, check_records
from sparrowmq.client.operations.send_back import send_dead_letter
from sparrowmq.client.subscriber import MessagePassedOver, Subscriber
from sparrowmq.errors import SparrowError, UnreadableMessage
from sparrowmq.model import MessageExt, MessageQueue, UnreadablePolicy
from sparrowmq.protocol.record import Decoded, Unreadable, decode_messages, scan_records


class Answer(NamedTuple):
    """The messages of a pull's answer, and the offset of the next pull.

    `is_cut` means that the answer has further messages, for which there was no room.
    """

    messages: list[MessageExt]
    next_offset: int
    is_cut: bool = False


def read_answer(
    subscriber: Subscriber,
    queue: MessageQueue,
    result: PullReply,
    *,
    offset: int,
    room_bytes: Callable[[], int],
    policy: UnreadablePolicy,
) -> Operation[Answer]:
    """Read the answer to the pull from `offset`.

    Args:
        room_bytes: called before each turn; returns how many bytes of inflated bodies there is room
            for.
        policy: what to do with a message that cannot be read.

    Raises: RemoteProtocolError as `check_records`; UnreadableMessage if the first message cannot be
    read and the policy is to stop. A later unreadable message ends the answer before itself.
    """
    records, end = result.records, len(result.records)
    part = decode_messages(records, broker_name=queue.broker_name, room_bytes=room_bytes())
    if part.end == end and part.unreadable is None:
        check_messages(queue, result, part.messages, offset=offset)
        return Answer(part.messages, result.next_offset)
    check_records(queue, result, offset=offset)
    messages: list[MessageExt] = []
    size = 0
    following = offset
    while True:
        messages += part.messages
        at = part.end
        if at == end and part.unreadable is None:
            return Answer(messages, result.next_offset)
        if part.messages:
            size += sum(len(message.body) for message in part.messages)
            following = messages[-1].queue_offset + 1
        try:
            if part.unreadable is not None:
                behind = _offset_behind(part, result)
                yield from _pass_over(subscriber, queue, part.unreadable, policy, behind=behind)
                following = behind
            elif part.fault is not None:
                raise UnreadableMessage(
                    f"the record from offset {following} of {_name(queue)} on is damaged "
                    f"({part.fault}); set the group's offset behind it to go on without it"
                )
            elif not part.messages:
                return Answer(messages, following, is_cut=True)
        except UnreadableMessage:
            if following == offset:
                raise
            return Answer(messages, following)
        yield Sleep(0)
        room = room_bytes() - size
        part = decode_messages(records, broker_name=queue.broker_name, at=at, room_bytes=room)


def _offset_behind(part: Decoded, result: PullReply) -> int:
    """Return the offset behind the unreadable message at which a part of an answer ends.

    A batch among the dead letters, or that is tried again, has one offset for all of its messages.
    """
    assert part.unreadable is not None
    offsets = (offset for _, _, offset in scan_records(result.records[part.end :]))
    return min(part.unreadable.next_offset, next(offsets, result.next_offset))


def _pass_over(
    subscriber: Subscriber,
    queue: MessageQueue,
    unreadable: Unreadable,
    policy: UnreadablePolicy,
    *,
    behind: int,
) -> Operation[None]:
    """Pass over a message, or stop at it; `behind` is the offset at which others follow."""
    message, reason = unreadable
    what = (
        f"message {message.msg_id} at offset {message.queue_offset} of {_name(queue)} cannot be "
        f"read: {reason}"
    )
    if policy is UnreadablePolicy.STOP:
        raise UnreadableMessage(
            f"{what}; to go on without it, give unreadable_policy=UnreadablePolicy.SKIP or "
            f"DEAD_LETTER, or set the group's offset to {behind}"
        )
    if policy is UnreadablePolicy.DEAD_LETTER:
        try:
            address = subscriber.get_stored_address(message)
            group = subscriber.config.group
            yield from send_dead_letter(address, group, message=with_own_topic(message))
        except SparrowError as error:
            raise UnreadableMessage(
                f"{what}; it could not be sent to the dead letters, which is tried again: {error}"
            ) from error
    subscriber.counters.unreadable += 1
    subscriber.report(MessagePassedOver(queue, message, reason, policy))


def _name(queue: MessageQueue) -> str:
    return f"{queue.topic}/{queue.broker_name}/{queue.queue_id}"
