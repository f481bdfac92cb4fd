"""Pops at the machine: one consumer at a time, again in time, never after the acknowledgement."""

from __future__ import annotations

import errno
import json
import shutil
from typing import Any

import pytest
from tests.broker.conftest import send_fields

from sparrowmq.broker import message_filter, pop_queues
from sparrowmq.broker.config_files import read_tables
from sparrowmq.broker.pending_replies import FLUSH_TIMEOUT_MS
from sparrowmq.broker.pop_queues import INVISIBLE_MS_MAX
from sparrowmq.broker.processors import pop as pop_processor
from sparrowmq.broker.state import BrokerRefusal
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import POP_LOG_TOPIC
from sparrowmq.protocol.bodies import (
    ConsumerData,
    ConsumeStats,
    HeartbeatData,
    OffsetWrapper,
    SubscriptionGroupConfig,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import decode_header
from sparrowmq.protocol.pop_handle import (
    ChangeInvisibleTimeResponseHeader,
    PopHandle,
    PopMessageResponseHeader,
    parse_handle,
    parse_popped,
)
from sparrowmq.protocol.record import BatchEntry, Record, decode_record, encode_batch
from sparrowmq.protocol.subscription import parse_subscription, tags_code
from sparrowmq.serving.connections import Connection, Fact, Output, Produce
from sparrowmq.store import queue_reader
from sparrowmq.store.file_storage import FileStorage, FileStorageFile

MINUTE_MS = 60_000


def fields_of(rig: Any, *, group: str = "G", queue_id: int = -1, **fields: Any) -> dict[str, str]:
    given = {
        "consumerGroup": group,
        "topic": "T",
        "queueId": queue_id,
        "maxMsgNums": 32,
        "invisibleTime": MINUTE_MS,
        "pollTime": 0,
        "bornTime": rig.timestamp_ms,
        "initMode": 0,
        "order": "false",
    } | fields
    return {name: str(value) for name, value in given.items()}


def ask(rig: Any, **fields: Any) -> RemotingCommand:
    """Pop, and return the answer."""
    reply: RemotingCommand = rig.call(
        rig.connect(), RequestCode.POP_MESSAGE, fields_of(rig, **fields)
    )
    return reply


def read(reply: RemotingCommand) -> list[tuple[Record, str]]:
    """Return the messages of an answer with their handles."""
    header = decode_header(PopMessageResponseHeader, reply.ext_fields)
    starts = {queue.queue_id: (queue, start) for queue, start in parse_popped(header)}
    found: list[tuple[Record, str]] = []
    data, at = reply.body or b"", 0
    while at < len(data):
        record = decode_record(data, at)
        at += record.size
        queue, start = starts[record.queue_id]
        assert record.queue_offset in queue.offsets
        handle = PopHandle(
            start,
            header.pop_timestamp_ms,
            header.invisible_time_ms,
            header.revive_qid,
            queue.mark,
            "broker-a",
            record.queue_id,
            record.queue_offset,
        )
        found.append((record, handle.encode()))
    assert sum(len(queue.offsets) for queue, _ in starts.values()) == len(found)
    return found


def pop(rig: Any, **fields: Any) -> list[tuple[Record, str]]:
    """Pop, and return the messages with their handles; none for an answer without any."""
    reply = ask(rig, **fields)
    if reply.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert reply.code == 0, reply.remark
    return read(reply)


def bodies(found: list[tuple[Record, str]]) -> list[bytes]:
    return [record.body for record, _ in found]


def ack(rig: Any, handle: str, *, group: str = "G", topic: str = "T", **fields: Any) -> int:
    parsed = parse_handle(handle)
    given = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": parsed.queue_id,
        "offset": parsed.queue_offset,
        "extraInfo": handle,
    } | fields
    reply: RemotingCommand = rig.call(
        rig.connect(), RequestCode.ACK_MESSAGE, {name: str(each) for name, each in given.items()}
    )
    return reply.code


def change(rig: Any, handle: str, invisible_ms: int, *, suspend: bool = False) -> str | int:
    """Change the time of a message; return its new handle, or the code of a refusal."""
    parsed = parse_handle(handle)
    reply: RemotingCommand = rig.call(
        rig.connect(),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        {
            "consumerGroup": "G",
            "topic": "T",
            "queueId": str(parsed.queue_id),
            "offset": str(parsed.queue_offset),
            "extraInfo": handle,
            "invisibleTime": str(invisible_ms),
            "suspend": str(suspend).lower(),
        },
    )
    if reply.code != 0:
        assert reply.ext_fields is None, "Java's client wants all fields of an answer with some"
        return reply.code
    header = decode_header(ChangeInvisibleTimeResponseHeader, reply.ext_fields)
    return parsed._replace(
        start_offset=parsed.queue_offset,
        pop_timestamp_ms=header.pop_timestamp_ms,
        invisible_ms=header.invisible_time_ms,
        revive_queue_id=header.revive_qid,
    ).encode()


def fill(rig: Any, *names: str, queue_id: int = 0) -> None:
    for name in names:
        assert rig.send(rig.connect(), body=name.encode(), queue_id=queue_id).code == 0


def test_popped_message_is_invisible_to_its_group_alone(rig: Any) -> None:
    fill(rig, "a", "b")
    first = pop(rig, maxMsgNums=1)

    assert bodies(first) == [b"a"]
    assert bodies(pop(rig)) == [b"b"]
    assert pop(rig) == []
    assert bodies(pop(rig, group="H")) == [b"a", b"b"]


def test_acknowledged_message_never_comes_again(rig: Any) -> None:
    fill(rig, "a", "b", "c")
    (_, a), _, (_, c) = pop(rig, invisibleTime=1_000)

    assert (ack(rig, a), ack(rig, c), ack(rig, a)) == (0, 0, 0)
    assert rig.broker.state.offsets.find("G", "T", 0) == 1
    rig.advance(2_000)
    again = pop(rig)
    assert bodies(again) == [b"b"]
    assert ack(rig, again[0][1]) == 0
    assert rig.broker.state.offsets.find("G", "T", 0) == 3
    assert len(rig.broker.state.pops) == 0


def test_message_comes_again_within_a_tick_of_its_time_as_a_further_attempt(rig: Any) -> None:
    fill(rig, "a")
    seen = [pop(rig, invisibleTime=3_000)]
    for _ in range(2):
        rig.advance(2_900)
        assert pop(rig) == []
        rig.advance(200)
        seen.append(pop(rig, invisibleTime=3_000))

    assert [found[0][0].reconsume_times for found in seen] == [0, 1, 2]
    assert len({found[0][1] for found in seen}) == 3
    assert ack(rig, seen[1][0][1]) == ResponseCode.NO_MESSAGE, "it was popped again"
    assert ack(rig, seen[2][0][1]) == 0


def test_late_acknowledgement_counts_while_nobody_has_the_message(rig: Any) -> None:
    fill(rig, "a")
    ((_, handle),) = pop(rig, invisibleTime=1_000)
    rig.advance(5_000)

    assert ack(rig, handle) == 0
    assert pop(rig) == []


def test_changed_time_gives_a_new_handle_and_ends_the_old_one(rig: Any) -> None:
    fill(rig, "a")
    ((_, old),) = pop(rig, invisibleTime=1_000)
    new = change(rig, old, 10_000)
    assert isinstance(new, str)
    rig.advance(9_000)

    assert pop(rig) == []
    assert ack(rig, old) == ResponseCode.NO_MESSAGE
    assert change(rig, old, 1_000) == ResponseCode.NO_MESSAGE
    assert ack(rig, new) == 0
    assert change(rig, new, 1_000) == ResponseCode.NO_MESSAGE


def test_time_of_a_message_is_bounded(rig: Any) -> None:
    fill(rig, "a", "b")
    ((_, handle),) = pop(rig, maxMsgNums=1, invisibleTime=INVISIBLE_MS_MAX + 1)
    changed = change(rig, handle, INVISIBLE_MS_MAX + 1)
    ((_, least),) = pop(rig, maxMsgNums=1, invisibleTime=-1)

    assert isinstance(changed, str)
    assert [parse_handle(each).invisible_ms for each in (handle, changed)] == [INVISIBLE_MS_MAX] * 2
    assert parse_handle(least).invisible_ms == 0


def test_suspended_change_counts_no_attempt(rig: Any) -> None:
    fill(rig, "a")
    ((_, handle),) = pop(rig)
    for _ in range(3):
        changed = change(rig, handle, 0, suspend=True)
        assert isinstance(changed, str)
        rig.advance(100)
        ((record, handle),) = pop(rig)
        assert record.reconsume_times == 0
    assert isinstance(change(rig, handle, 0), str)
    rig.advance(100)
    assert pop(rig)[0][0].reconsume_times == 1


FORGED = [
    {"queue_offset": 1},
    {"queue_id": 1},
    {"broker_name": "other"},
    {"mark": "1"},
    {"pop_timestamp_ms": 1},
    {"invisible_ms": 1},
]


@pytest.mark.parametrize("forged", FORGED, ids=lambda forged: next(iter(forged)))
def test_forged_handle_ends_no_message(rig: Any, forged: dict[str, Any]) -> None:
    fill(rig, "a")
    ((_, handle),) = pop(rig, maxMsgNums=1)
    changed = parse_handle(handle)._replace(**forged).encode()

    code = ack(rig, changed, queueId=0, offset=0)
    assert code == ResponseCode.NO_MESSAGE
    assert len(rig.broker.state.pops) == 1
    assert ack(rig, handle) == 0
    # The times of a finished message are known no longer.
    is_known = forged.keys() <= {"pop_timestamp_ms", "invisible_ms"}
    again = ack(rig, changed, queueId=0, offset=0)
    assert again == (0 if is_known else ResponseCode.NO_MESSAGE)


def test_handle_of_another_group_or_place_ends_no_message(rig: Any) -> None:
    fill(rig, "a", "b")
    ((_, a), (_, b)) = pop(rig)

    assert ack(rig, a, group="H") == ResponseCode.NO_MESSAGE
    assert ack(rig, a, offset=1) == ResponseCode.NO_MESSAGE
    assert ack(rig, a, queueId=4) == ResponseCode.MESSAGE_ILLEGAL
    assert ack(rig, a, topic="X") == ResponseCode.TOPIC_NOT_EXIST
    assert ack(rig, a, extraInfo="1 2 3") == ResponseCode.MESSAGE_ILLEGAL
    assert len(rig.broker.state.pops) == 2
    assert ack(rig, b) == 0


def test_dead_letter_ends_the_wait_of_a_pop_in_order(rig: Any) -> None:
    fill(rig, "a", "b")
    settings = b'{"groupName":"G","retryMaxTimes":0}'
    rig.call(rig.connect(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings)
    pop(rig, order="true", maxMsgNums=1, invisibleTime=500)
    waiting = held(rig, order="true")
    assert waiting() == []
    rig.advance(600)

    assert [record.body for record in rig.records("%DLQ%G")] == [b"a"]
    assert bodies(read(waiting()[0])) == [b"b"]


def test_message_of_a_queue_that_the_topic_hides_is_finished(rig: Any) -> None:
    fill(rig, "a", "b", queue_id=3)
    ((_, a), (_, b)) = pop(rig)
    rig.create_topic("T", 2)

    assert isinstance(change(rig, a, 1_000), str)
    assert ack(rig, b) == 0


@pytest.mark.parametrize("queue_id", [-1, 0])
@pytest.mark.parametrize("order", ["false", "true"])
def test_message_in_flight_in_a_queue_that_the_topic_hides_comes_again(
    rig: Any, queue_id: int, order: str
) -> None:
    fill(rig, "a", "b", "unpopped", queue_id=3)
    pop(rig, queueId=3, maxMsgNums=2, invisibleTime=500, order=order)
    rig.create_topic("T", 2)
    fill(rig, *map(str, range(20)))
    rig.advance(600)

    # The pops are full each time, and the hidden queue has its turn.
    found = [
        (record.body, handle)
        for _ in range(20)
        for record, handle in pop(
            rig, queueId=queue_id, maxMsgNums=2, invisibleTime=60_000, order=order
        )
        if parse_handle(handle).queue_id == 3
    ]

    assert [body for body, _ in found] == [b"a", b"b"]
    assert [ack(rig, handle) for _, handle in found] == [0, 0]
    assert rig.broker.state.pops.hidden_ids("G", "T", count=2) == []
    rig.create_topic("T", 4)
    assert bodies(pop(rig, queueId=3)) == [b"unpopped"]


def test_message_that_is_ready_in_a_hidden_queue_wakes_a_pop_of_another_queue(rig: Any) -> None:
    fill(rig, "a", queue_id=3)
    assert len(pop(rig, queueId=3, invisibleTime=1_000)) == 1
    rig.create_topic("T", 2)
    waiting = held(rig, queueId=1)
    rig.advance(1_200)

    assert [reply.code for reply in waiting()] == [ResponseCode.SUCCESS]


def test_pop_that_waits_at_a_queue_that_the_topic_hides_is_refused(rig: Any) -> None:
    waiting = held(rig, queueId=3)
    rig.create_topic("T", 2)
    rig.advance(10_000)

    assert [reply.code for reply in waiting()] == [ResponseCode.INVALID_PARAMETER]
    assert rig.broker.state.offsets.queues("G", "T").keys() == {3}


def test_a_tick_makes_a_bounded_number_of_dead_letters(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "DEAD_LETTERS_PER_TICK", 2)
    config = SubscriptionGroupConfig(group_name="G", retry_max_times=0)
    rig.broker.state.put_group(config, timestamp_ms=rig.timestamp_ms)
    fill(rig, "a", "b", "c", "d", "e")
    pop(rig, invisibleTime=1_000)
    counts = list[int]()
    for duration_ms in (900, 100, 900, 100, 1_000):
        rig.advance(duration_ms)
        counts.append(len(rig.records("%DLQ%G")))

    assert counts == [0, 2, 2, 4, 5]
    assert sorted(record.body for record in rig.records("%DLQ%G")) == [b"a", b"b", b"c", b"d", b"e"]


def test_message_of_too_many_attempts_becomes_a_dead_letter(rig: Any) -> None:
    # It had been delivered before it was sent here.
    assert rig.send(rig.connect(), body=b"a", j="4").code == 0
    rig.call(
        rig.connect(),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        None,
        b'{"groupName":"G","retryMaxTimes":2}',
    )
    attempts = 0
    for _ in range(10):
        attempts += len(pop(rig, invisibleTime=500))
        rig.advance(600)

    assert attempts == 3
    ((letter),) = rig.records("%DLQ%G")
    assert (letter.body, letter.reconsume_times) == (b"a", 4 + 3)
    assert len(rig.broker.state.pops) == 0
    assert rig.broker.state.offsets.find("G", "T", 0) == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": -2}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "X"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"bornTime": 1_000}, ResponseCode.POLLING_TIMEOUT),
        ({"exp": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"exp": "a >", "expType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ({"group": "bad name"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
    ],
)
def test_pop_that_is_not_allowed_is_refused(
    rig: Any, fields: dict[str, Any], code: ResponseCode
) -> None:
    fill(rig, "a")
    assert ask(rig, **fields).code == code


def test_topic_without_queues_has_nothing_to_pop(rig: Any) -> None:
    rig.create_topic("none", 0)
    assert pop(rig, topic="none") == []


def held(rig: Any, **fields: Any) -> Any:
    """Pop with a wait; return the function that returns the answers so far."""
    connection = rig.connect()
    asked: dict[str, Any] = {"pollTime": 10_000} | fields
    given = fields_of(rig, **asked)
    rig.handle(connection, RemotingCommand(code=RequestCode.POP_MESSAGE, ext_fields=given))

    def answers() -> list[RemotingCommand]:
        mine: list[Output] = [
            o for o in rig.outputs if getattr(o, "connection", None) is connection
        ]
        replies: list[RemotingCommand] = rig.replies(mine)
        return replies

    answers.connection = connection  # type: ignore[attr-defined]
    return answers


def test_waiting_pop_gets_the_message_that_comes(rig: Any) -> None:
    waiting = held(rig)
    assert waiting() == []
    fill(rig, "a")
    rig.work()

    (reply,) = waiting()
    assert bodies(read(reply)) == [b"a"]


def test_one_message_ends_the_wait_of_one_pop_and_many_end_that_of_many(rig: Any) -> None:
    waiting = [held(rig, maxMsgNums=1) for _ in range(4)]
    fill(rig, "a")
    rig.work()
    assert sum(len(answers()) for answers in waiting) == 1
    fill(rig, "b", "c", queue_id=1)
    rig.work()
    assert sum(len(answers()) for answers in waiting) == 3


def test_messages_of_one_batch_end_the_wait_of_as_many_pops_as_they_fill(rig: Any) -> None:
    waiting = [held(rig, maxMsgNums=2) for _ in range(3)]
    body = encode_batch([BatchEntry(0, b"%d" % number, "") for number in range(4)])
    rig.send(rig.connect(), body=body, code=RequestCode.SEND_BATCH_MESSAGE)
    rig.work()

    found = [bodies(read(reply)) for answers in waiting for reply in answers()]
    assert sorted(found) == [[b"0", b"1"], [b"2", b"3"]]


def test_last_message_of_a_long_batch_ends_the_wait_of_a_pop_for_its_tag(rig: Any) -> None:
    waiting = held(rig, exp="x")
    tags = [*map(str, range(40)), "x"]
    body = encode_batch([BatchEntry(0, tag.encode(), f"TAGS\x01{tag}") for tag in tags])
    rig.send(rig.connect(), body=body, code=RequestCode.SEND_BATCH_MESSAGE)
    rig.work()

    assert bodies(read(waiting()[0])) == [b"x"]


def test_answer_has_the_number_of_messages_left(rig: Any) -> None:
    fill(rig, *"abcdefg")

    def left(**fields: Any) -> int:
        reply = ask(rig, queue_id=0, **fields)
        return decode_header(PopMessageResponseHeader, reply.ext_fields).rest_num

    assert left(maxMsgNums=2, invisibleTime=1_000) == 5
    rig.advance(1_200)
    assert [left(maxMsgNums=1), left(maxMsgNums=3), left()] == [6, 3, 0]


def test_answer_is_bounded_by_bytes_and_one_message_always_fits(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "POP_BYTES_MAX", 1_000)
    # The first pop begins at queue 1, as the fifth does.
    fill(rig, "a" * 600, "b" * 600, queue_id=1)
    fill(rig, "c" * 2_000, queue_id=0)

    for _ in range(2):
        found = [bodies(pop(rig, invisibleTime=1_000)) for _ in range(4)]
        assert [[body[:1] for body in each] for each in found] == [[b"a"], [b"c"], [b"b"], []]
        rig.advance(1_100)


def test_messages_that_come_again_leave_new_ones_the_rest_of_the_bytes(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "POP_BYTES_MAX", 1_000)
    fill(rig, "a" * 600, "b" * 600)
    pop(rig, queue_id=0, maxMsgNums=1, invisibleTime=100)
    rig.advance(200)

    assert bodies(pop(rig, queue_id=0)) == [b"a" * 600]


def test_group_ahead_of_a_queues_end_gets_the_messages_that_come(rig: Any) -> None:
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "9"}
    assert rig.call(rig.connect(), RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0
    waiting = held(rig)
    fill(rig, "a")
    rig.work()

    assert bodies(read(waiting()[0])) == [b"a"]


def test_waiting_pop_gets_a_message_that_comes_again(rig: Any) -> None:
    fill(rig, "a")
    pop(rig, invisibleTime=1_000)
    waiting = held(rig, queue_id=0)
    rig.advance(900)
    assert waiting() == []
    rig.advance(200)
    assert read(waiting()[0])[0][0].reconsume_times == 1


def test_messages_that_come_again_together_end_the_wait_of_as_many_pops(rig: Any) -> None:
    fill(rig, "a", "b")
    pop(rig, invisibleTime=500)
    waiting = [held(rig, maxMsgNums=1) for _ in range(2)]
    rig.advance(600)

    assert [bodies(read(answers()[0])) for answers in waiting] == [[b"a"], [b"b"]]


def test_waiting_pop_ends_at_its_deadline(rig: Any) -> None:
    waiting = held(rig, pollTime=2_000)
    rig.advance(1_900)
    assert waiting() == []
    rig.advance(100)
    assert [reply.code for reply in waiting()] == [ResponseCode.POLLING_TIMEOUT]


def test_deleted_topic_gets_no_offset_of_a_pop_that_waits(rig: Any) -> None:
    waiting = held(rig)
    rig.call(rig.connect(), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    rig.advance(10_000)

    assert rig.broker.state.offsets.topics_of_group("G") == []
    assert [reply.code for reply in waiting()] == [ResponseCode.TOPIC_NOT_EXIST]


def test_deleted_group_gets_no_message_and_no_offset_of_a_pop_that_waits(rig: Any) -> None:
    fill(rig, "a")
    ack(rig, pop(rig)[0][1])
    waiting = held(rig)
    fields = {"groupName": "G", "removeOffset": "true"}
    assert rig.call(rig.connect(), RequestCode.DELETE_SUBSCRIPTIONGROUP, fields).code == 0
    fill(rig, "b")
    rig.work()

    assert [reply.code for reply in waiting()] == [ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST]
    assert rig.broker.state.offsets.topics_of_group("G") == []
    assert rig.broker.state.groups.find("G") is None


def test_closed_group_gets_no_message_of_a_pop_that_waits(rig: Any) -> None:
    waiting = held(rig)
    group = SubscriptionGroupConfig(group_name="G", consume_enable=False)
    code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, encode_body(group)
    assert rig.call(rig.connect(), code, body=body).code == 0
    fill(rig, "a")
    rig.work()

    assert [reply.code for reply in waiting()] == [ResponseCode.NO_PERMISSION]
    assert bodies(pop(rig, group="H")) == [b"a"]


@pytest.mark.parametrize("is_woken", [False, True])
def test_pop_that_is_given_up_takes_nothing_and_others_get_what_woke_it(
    rig: Any, *, is_woken: bool
) -> None:
    first, second = held(rig), held(rig)
    if is_woken:
        rig.broker.state.holds.wake_first(("T@G", -1))
    rig.world.perform(rig.broker.give_up(first.connection, 0))
    assert [reply.code for reply in first()] == [ResponseCode.POLLING_TIMEOUT]
    assert rig.broker.give_up(first.connection, 0) == ()
    fill(rig, "a")
    rig.work()

    assert bodies(read(second()[0])) == [b"a"]
    assert len(first()) == 1
    assert len(rig.broker.state.holds) == 0


def test_message_is_not_left_when_the_woken_pop_has_gone(rig: Any) -> None:
    first, second = held(rig), held(rig)
    rig.holds_work = True
    fields = send_fields("T", 0)
    sent = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=fields, body=b"a")
    rig.handle(rig.connect(), sent)
    flush = rig.broker.flush_work(now_ms=rig.now_ms)
    flush.run()
    # The message wakes the first pop; its connection closes before the answer.
    woken = rig.broker.flushed(flush, None, now_ms=rig.now_ms)
    assert [each.connection for each in woken if isinstance(each, Produce)] == [first.connection]
    rig.broker.connection_closed(first.connection, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    rig.work()
    rig.work()
    assert bodies(read(second()[0])) == [b"a"]


def test_waiting_pop_takes_nothing_while_the_log_cannot_be_written(rig: Any) -> None:
    fill(rig, "a")
    ((_, handle),) = pop(rig, invisibleTime=1_000)
    waiting = held(rig)
    rig.store.refusal = "the disk is full"
    assert ack(rig, handle) == ResponseCode.SERVICE_NOT_AVAILABLE
    state = rig.broker.state
    state.holds.wake_first(("T@G", -1))
    rig.work()

    assert [reply.code for reply in waiting()] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert len(state.pops) == 0
    rig.store.refusal = None


def test_full_waiting_room_is_answered_at_once(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_processor, "WAITING_PER_PLACE_MAX", 2)
    assert [held(rig)() for _ in range(2)] == [[], []]
    assert [reply.code for reply in held(rig)()] == [ResponseCode.POLLING_FULL]
    assert held(rig, group="H")() == []


def test_waiting_pops_of_all_groups_are_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_processor, "HELD_MAX", 1)
    assert held(rig)() == []
    assert [reply.code for reply in held(rig, group="H")()] == [ResponseCode.POLLING_FULL]


def test_filter_selects_by_tags_and_by_a_condition(rig: Any) -> None:
    for name in ("x", "y", "x", "y"):
        rig.send(rig.connect(), body=name.encode(), properties=f"TAGS\x01{name}\x02v\x01{name}")

    assert bodies(pop(rig, exp="x")) == [b"x", b"x"]
    assert pop(rig, exp="x") == []
    condition = {"group": "H", "exp": "v = 'y'", "expType": "SQL92"}
    assert bodies(pop(rig, **condition)) == [b"y", b"y"]
    assert tags_code("x") != tags_code("y")


def beat(rig: Any, connection: Connection, expression: str, *, version: int) -> None:
    subscription = parse_subscription("T", expression, sub_version=version)
    consumer = ConsumerData(group_name="G", subscription_data_set=[subscription])
    body = encode_body(HeartbeatData(client_id="c", consumer_data_set=[consumer]))
    assert rig.call(connection, RequestCode.HEART_BEAT, None, body).code == 0


@pytest.mark.parametrize("newest", ["y", "x"])
def test_waiting_pop_passes_over_nothing_that_its_groups_newest_filter_selects(
    rig: Any, newest: str
) -> None:
    beat(rig, rig.connect(), "x", version=1)
    first, second = held(rig, exp="x"), held(rig, exp="x")
    beat(rig, rig.connect(), newest, version=2)
    for name in ("y", "x"):
        rig.send(rig.connect(), body=name.encode(), properties=f"TAGS\x01{name}")
    rig.work()

    if newest == "x":
        assert (bodies(read(first()[0])), second()) == ([b"x"], [])
    else:
        # Their consumers ask again, with the filter that they have now.
        codes = [[reply.code for reply in waiting()] for waiting in (first, second)]
        assert codes == [[ResponseCode.POLLING_TIMEOUT]] * 2
        assert bodies(pop(rig, exp="y")) == [b"y"]


def test_tag_with_the_hash_code_of_a_wanted_one_is_not_popped(rig: Any) -> None:
    assert tags_code("Aa") == tags_code("BB")
    for name in ("Aa", "BB", "Aa", "BB", "Aa", "x"):
        rig.send(rig.connect(), body=name.encode(), properties=f"TAGS\x01{name}", queue_id=0)

    assert bodies(pop(rig, exp="BB", queue_id=0)) == [b"BB", b"BB"]
    assert bodies(pop(rig, exp="Aa || x", group="H", queue_id=0)) == [b"Aa", b"Aa", b"Aa", b"x"]
    # What was left out is finished.
    assert bodies(pop(rig, exp="*", queue_id=0)) == []


def test_only_messages_with_the_hash_code_of_a_wanted_tag_are_passed_over(rig: Any) -> None:
    for name in ("Aa",) * 3 + ("BB",):
        rig.send(rig.connect(), body=name.encode(), properties=f"TAGS\x01{name}", queue_id=0)

    waiting = held(rig, exp="BB", maxMsgNums=1)
    rig.work()

    assert bodies(read(waiting()[0])) == [b"BB"]


@pytest.mark.parametrize("fields", [{"exp": "x"}, {"exp": "v = 'x'", "expType": "SQL92"}])
@pytest.mark.parametrize("comes_first", [False, True])
def test_waiting_pop_looks_at_all_messages_a_bounded_number_at_a_time(
    rig: Any, monkeypatch: pytest.MonkeyPatch, fields: dict[str, str], *, comes_first: bool
) -> None:
    monkeypatch.setattr(queue_reader, "_FILTERED_ENTRIES_MAX", 2)
    monkeypatch.setattr(message_filter, "EXAMINATION_COST_MAX", 1)
    waiting = held(rig, maxMsgNums=1, **fields) if comes_first else None
    for name in "yyyyyyyxyyyyyx":
        rig.send(rig.connect(), body=name.encode(), properties=f"TAGS\x01{name}\x02v\x01{name}")
    others = [held(rig, maxMsgNums=1, **fields) for _ in range(3)]
    rig.work()

    answered = [len(answers()) for answers in (*others, *([waiting] if waiting else ()))]
    assert sorted(answered)[-2:] == [1, 1]
    assert sum(answered) == 2


def test_message_of_another_tag_does_not_wake_a_pop(rig: Any) -> None:
    waiting = held(rig, exp="x")
    rig.send(rig.connect(), body=b"y", properties="TAGS\x01y")
    rig.work()
    assert waiting() == []
    rig.send(rig.connect(), body=b"x", properties="TAGS\x01x")
    rig.work()
    assert bodies(read(waiting()[0])) == [b"x"]


def test_new_group_begins_at_the_end_if_it_asks_so_and_the_queue_has_lost_its_begin(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(rig, "a")
    monkeypatch.setattr(pop_processor, "begins_in_memory", lambda *_: False)
    assert pop(rig, initMode=1, queue_id=0) == []
    fill(rig, "b")
    assert bodies(pop(rig, initMode=1, queue_id=0)) == [b"b"]
    assert bodies(pop(rig, group="H", initMode=0)) == [b"a", b"b"]


def test_new_group_begins_in_a_bounded_number_of_queues_at_a_time(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_processor, "BEGUN_AT_ONCE_MAX", 3)
    rig.create_topic("wide", 10)
    rig.send(rig.connect(), "wide", b"a", queue_id=0)
    given = fields_of(rig, topic="wide", pollTime=10_000)
    command, connection = (
        RemotingCommand(code=RequestCode.POP_MESSAGE, ext_fields=given),
        rig.connect(),
    )
    counts = list[int]()
    rig.broker.handle(command, connection, now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    for _ in range(4):
        counts.append(len(rig.broker.state.offsets.queues("G", "wide")))
        rig.world.perform(rig.broker.settle(now_ms=rig.now_ms))
    rig.work()

    assert counts == [3, 6, 9, 10]
    (reply,) = rig.replies([o for o in rig.outputs if getattr(o, "connection", 0) is connection])
    assert bodies(read(reply)) == [b"a"]


def test_in_flight_messages_are_bounded(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queues, "IN_FLIGHT_PER_QUEUE_MAX", 3)
    fill(rig, "a", "b", "c", "d", "e")
    found = pop(rig)
    assert bodies(found) == [b"a", b"b", b"c"]
    assert pop(rig) == []
    assert ack(rig, found[0][1]) == 0
    assert bodies(pop(rig)) == [b"d"]


@pytest.mark.parametrize(("bound", "count"), [("IN_FLIGHT_PER_QUEUE_MAX", 3), ("POPPED_MAX", 5)])
def test_waiting_pop_goes_on_once_a_message_in_flight_has_ended(
    rig: Any, monkeypatch: pytest.MonkeyPatch, bound: str, count: int
) -> None:
    monkeypatch.setattr(pop_queues, bound, count)
    fill(rig, "a", "b", "c", "d", "e")
    found = pop(rig, maxMsgNums=3)
    first, second = held(rig), held(rig)
    for (_, handle), waiting in zip(found, (first, second), strict=False):
        rig.work()
        assert waiting() == []
        assert ack(rig, handle) == 0
    rig.work()

    assert [bodies(read(waiting()[0])) for waiting in (first, second)] == [[b"d"], [b"e"]]


def test_group_consumes_by_pulls_or_by_pops(rig: Any) -> None:
    fill(rig, "a")
    pull = {"consumerGroup": "G", "sysFlag": "4", "subscription": "*"}
    (pulled,) = rig.replies(rig.pull(rig.connect(), **pull))
    assert pulled.code == 0
    assert ask(rig).code == ResponseCode.NO_PERMISSION
    assert ask(rig, group="H").code == 0
    rig.advance(pop_queues.WAY_MS)
    assert bodies(pop(rig)) == [b"a"]
    (pulled,) = rig.replies(rig.pull(rig.connect(), **pull))
    assert pulled.code == ResponseCode.NO_PERMISSION


@pytest.mark.parametrize("offset", [0, 2])
def test_what_was_popped_once_makes_the_lag_of_a_group_that_pulls_no_smaller(
    rig: Any, offset: int
) -> None:
    fill(rig, "a", "b", "c", "d")
    _, *others = pop(rig)
    for _, handle in others:
        ack(rig, handle)

    def progress() -> OffsetWrapper:
        fields = {"consumerGroup": "G", "topic": "T", "sparrowmqAudit": "true"}
        reply = rig.call(rig.connect(), RequestCode.GET_CONSUME_STATS, fields)
        return decode_body(ConsumeStats, reply.body).offset_table[MessageQueue("T", "broker-a", 0)]

    rig.advance(pop_queues.WAY_MS)
    popped = progress()
    pull = {"consumerGroup": "G", "sysFlag": "5", "subscription": "*", "commitOffset": str(offset)}
    rig.pull(rig.connect(), **pull, queueOffset="2")
    pulled = progress()
    rig.advance(pop_queues.WAY_MS)

    assert (popped.consumer_offset, popped.sparrowmq_acknowledged) == (0, 3)
    assert (pulled.consumer_offset, pulled.sparrowmq_acknowledged) == (offset, None)
    # A group that may pop again, and has not moved, has done what it acknowledged.
    assert progress().sparrowmq_acknowledged == (None if offset else 3)


def test_reset_group_begins_at_its_new_offset(rig: Any) -> None:
    fill(rig, "a", "b", "c")
    found = pop(rig)
    ack(rig, found[0][1])
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "0"}
    assert rig.call(rig.connect(), RequestCode.UPDATE_CONSUMER_OFFSET, fields).code == 0

    rig.advance(100)
    assert bodies(pop(rig)) == [b"a", b"b", b"c"]
    assert ack(rig, found[1][1]) == ResponseCode.NO_MESSAGE
    fields["commitOffset"] = "3"
    rig.call(rig.connect(), RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    rig.advance(2 * MINUTE_MS)
    assert pop(rig) == []


def test_group_pops_behind_what_it_has_pulled_meanwhile(rig: Any) -> None:
    fill(rig, "a", "b", "c")
    assert bodies(pop(rig, maxMsgNums=1, invisibleTime=10 * MINUTE_MS)) == [b"a"]
    rig.now_ms += pop_queues.WAY_MS
    fields = {"consumerGroup": "G", "queueOffset": "2", "sysFlag": "5", "commitOffset": "2"}
    (pulled,) = rig.replies(rig.pull(rig.connect(), **fields))
    assert pulled.code == 0
    rig.now_ms += pop_queues.WAY_MS

    assert bodies(pop(rig)) == [b"c"]


def test_pop_that_waits_goes_on_at_the_new_offset_of_its_group(rig: Any) -> None:
    fill(rig, "a")
    ack(rig, pop(rig)[0][1])
    waiting = held(rig)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "0"}
    rig.call(rig.connect(), RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    rig.advance(100)

    assert [bodies(read(reply)) for reply in waiting()] == [[b"a"]]


def test_reset_by_a_tool_moves_a_group_whose_members_pop(rig: Any) -> None:
    fill(rig, "a", "b")
    subscription = parse_subscription("T", "*", sub_version=1)
    data = ConsumerData(group_name="G", subscription_data_set=[subscription])
    beat = encode_body(HeartbeatData(client_id="c", consumer_data_set=[data]))
    assert rig.call(rig.connect(), RequestCode.HEART_BEAT, None, beat).code == 0
    for _, handle in pop(rig):
        ack(rig, handle)
    fields = {"topic": "T", "group": "G", "timestamp": "0", "isForce": "true"}
    reset = rig.call(rig.connect(), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    rig.advance(100)

    assert reset.code == 0, reset.remark
    assert bodies(pop(rig)) == [b"a", b"b"]


def test_group_that_is_deleted_with_its_offsets_has_nothing_in_flight(rig: Any) -> None:
    fill(rig, "a", "b")
    ack(rig, pop(rig)[0][1])
    fields = {"groupName": "G", "removeOffset": "true"}
    assert rig.call(rig.connect(), RequestCode.DELETE_SUBSCRIPTIONGROUP, fields).code == 0

    assert bodies(pop(rig)) == [b"a", b"b"]


# --- in order -----------------------------------------------------------------------------------


def test_pop_in_order_waits_for_the_end_of_the_messages_before(rig: Any) -> None:
    fill(rig, "a", "b", "c")
    first = pop(rig, order="true", maxMsgNums=2)
    assert bodies(first) == [b"a", b"b"]
    assert pop(rig, order="true") == []
    waiting = held(rig, order="true")
    assert ack(rig, first[0][1]) == 0
    assert waiting() == []
    assert ack(rig, first[1][1]) == 0
    rig.work()
    assert bodies(read(waiting()[0])) == [b"c"]


def test_unfinished_messages_come_again_in_order_before_later_ones(rig: Any) -> None:
    fill(rig, "a", "b", "c", "d")
    first = pop(rig, order="true", maxMsgNums=3, invisibleTime=1_000)
    ack(rig, first[1][1])
    rig.advance(1_100)
    reply = ask(rig, order="true")
    assert [(r.body, r.reconsume_times) for r, _ in read(reply)] == [
        (b"a", 1),
        (b"c", 1),
        (b"d", 0),
    ]
    header = decode_header(PopMessageResponseHeader, reply.ext_fields)
    assert header.revive_qid == 999
    assert header.order_count_info == "0 qo0%0 1;0 qo0%2 1;0 0 0"


def test_same_attempt_gets_the_same_messages_and_counts_once(rig: Any) -> None:
    fill(rig, "a", "b", "c")
    first = pop(rig, order="true", attemptId="x", maxMsgNums=2)
    again = pop(rig, order="true", attemptId="x", maxMsgNums=2)
    assert bodies(again) == bodies(first)
    assert [record.reconsume_times for record, _ in again] == [0, 0]
    assert pop(rig, order="true", attemptId="y") == []
    assert ack(rig, first[0][1]) == ResponseCode.NO_MESSAGE
    assert [ack(rig, handle) for _, handle in again] == [0, 0]


# --- crashes ------------------------------------------------------------------------------------


def kill(rig: Any) -> Any:
    """Return another broker on the files as a kill of the first would leave them."""
    root = rig.root.with_name("after-the-kill")
    shutil.copytree(rig.root, root)
    saved = read_tables(FileStorage(root)).tables
    return type(rig)(
        root, rig.config, saved, now_ms=rig.now_ms + 5_000, timestamp_ms=rig.timestamp_ms + 100
    )


def test_killed_broker_knows_what_is_in_flight_and_what_is_finished(rig: Any) -> None:
    fill(rig, "a", "b", "c", "d")
    found = pop(rig, maxMsgNums=3, invisibleTime=10_000)
    ack(rig, found[0][1])
    changed = change(rig, found[1][1], 20_000)
    assert isinstance(changed, str)
    rig = kill(rig)

    assert bodies(pop(rig)) == [b"d"]
    assert ack(rig, found[1][1]) == ResponseCode.NO_MESSAGE
    assert ack(rig, changed) == 0
    rig.advance(9_800)
    assert pop(rig) == []
    rig.advance(200)
    assert [(r.body, r.reconsume_times) for r, _ in pop(rig)] == [(b"c", 1)]
    rig.store.close()


def test_changes_that_need_several_records_survive_a_kill(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrowmq.broker.pop_log.CHANGES_PER_RECORD", 1)
    for queue_id in range(3):
        fill(rig, f"{queue_id}", queue_id=queue_id)
    found = pop(rig)
    rig = kill(rig)

    assert sorted(bodies(found)) == [b"0", b"1", b"2"]
    assert pop(rig) == []
    assert [ack(rig, handle) for _, handle in found] == [0] * 3
    rig.store.close()


@pytest.mark.parametrize("is_killed", [True, False])
def test_table_replaces_the_log_before_it(
    rig: Any, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    monkeypatch.setattr(pop_queues, "CHANGES_PER_TABLE", 4)
    fill(rig, "a", "b", "c", "d", "e", "f", "g")
    found = pop(rig, maxMsgNums=5)
    for _, handle in found[:3]:
        ack(rig, handle)
    rig.advance(2_000)
    assert not rig.broker.state.pops.needs_table
    assert rig.store.queues.max_offset(POP_LOG_TOPIC, 0) > 0
    ack(rig, found[3][1])
    rig = kill(rig) if is_killed else rig.restart()

    assert bodies(pop(rig)) == [b"f", b"g"]
    assert rig.broker.state.offsets.find("G", "T", 0) == 4
    assert ack(rig, found[4][1]) == 0
    rig.store.close()


def test_failed_write_of_the_table_is_tried_again(rig: Any) -> None:
    fill(rig, "a")
    pop(rig)
    rig.holds_work = True
    rig.broker.ask_last_save()
    work = rig.broker.save_work(now_ms=rig.now_ms)

    rig.broker.saved(work, OSError("disk full"))

    assert "popState.json" in work.tables
    assert rig.broker.state.pops.is_changed


def test_reset_after_the_last_acknowledgement_survives_a_kill(rig: Any) -> None:
    fill(rig, "a", "b")
    for _, handle in pop(rig):
        ack(rig, handle)
    fields = {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "1"}
    rig.call(rig.connect(), RequestCode.UPDATE_CONSUMER_OFFSET, fields)
    rig = kill(rig)

    assert bodies(pop(rig)) == [b"b"]
    rig.store.close()


def test_repeated_acknowledgement_is_confirmed_after_a_kill_that_left_nothing_to_flush(
    rig: Any,
) -> None:
    fill(rig, "a")
    ((_, handle),) = pop(rig)
    ack(rig, handle)
    rig = kill(rig)

    assert ack(rig, handle) == 0
    rig.store.close()


def test_answers_wait_for_the_flush_of_the_log(rig: Any) -> None:
    fill(rig, "a")
    rig.holds_work = True
    connection = rig.connect()
    command = RemotingCommand(code=RequestCode.POP_MESSAGE, ext_fields=fields_of(rig))
    assert rig.replies(rig.handle(connection, command)) == []
    rig.work()
    (reply,) = rig.replies([o for o in rig.outputs if getattr(o, "connection", 0) is connection])
    assert bodies(read(reply)) == [b"a"]


@pytest.mark.parametrize("order", ["false", "true"])
def test_messages_of_a_pop_whose_flush_is_late_come_to_the_next_as_the_same_attempt(
    rig: Any, order: str
) -> None:
    fill(rig, "a", "b")
    rig.holds_work = True
    late = held(rig, order=order)
    rig.now_ms += FLUSH_TIMEOUT_MS
    rig.host.tick()
    assert late() == []
    rig.now_ms += 100
    rig.host.tick()
    (refused,) = late()
    assert (refused.code, refused.body) == (ResponseCode.FLUSH_DISK_TIMEOUT, None)
    rig.holds_work = False
    rig.advance(200)
    rig = kill(rig)
    rig.advance(100)

    found = pop(rig, order=order)
    assert bodies(found) == [b"a", b"b"]
    assert [record.reconsume_times for record, _ in found] == [0, 0]
    rig.advance(FLUSH_TIMEOUT_MS + 200)
    assert pop(rig, order=order) == [], "these were flushed in time"
    rig.store.close()


def test_messages_of_a_pop_whose_flush_ends_in_time_are_its_own(rig: Any) -> None:
    fill(rig, "a")
    rig.holds_work = True
    waiting = held(rig)
    rig.now_ms += FLUSH_TIMEOUT_MS
    rig.host.tick()
    rig.holds_work = False
    rig.work()
    rig.advance(200)

    assert [bodies(read(reply)) for reply in waiting()] == [[b"a"]]
    assert pop(rig) == []


def test_pops_are_refused_while_the_log_cannot_be_written_and_nothing_is_forgotten(
    rig: Any,
) -> None:
    fill(rig, "a", "b")
    ((_, a), (_, b)) = pop(rig)
    rig.store.refusal = "the disk is full"
    assert ack(rig, a) == ResponseCode.SERVICE_NOT_AVAILABLE
    changes = list(rig.broker.state.pops.peek_changes())
    assert ack(rig, b) == ResponseCode.SERVICE_NOT_AVAILABLE
    named = parse_handle(b)
    of_b = {"c": "G", "t": "T", "so": 1, "q": 0, "b": "AQ==", "pt": named.pop_timestamp_ms}
    body = json.dumps({"acks": [of_b | {"it": named.invisible_ms}]}).encode()
    batch = rig.call(rig.connect(), RequestCode.BATCH_ACK_MESSAGE, None, body)
    assert batch.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert rig.broker.state.pops.peek_changes() == changes, "each further one would wait in memory"
    assert ask(rig).code == ResponseCode.SERVICE_NOT_AVAILABLE
    rig.store.refusal = None
    rig.advance(200)
    assert ack(rig, b) == 0
    rig = kill(rig)
    rig.advance(2 * MINUTE_MS)
    assert pop(rig) == [], "the refused acknowledgement of a had been accepted, and is logged now"
    rig.store.close()


def test_pops_are_refused_while_writes_fail_and_no_turn_follows_another(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk does not answer")

    fill(rig, "a")
    with monkeypatch.context() as patch:
        patch.setattr(FileStorageFile, "write", fail)
        refused = [ask(rig), ask(rig)]
        assert not rig.broker.is_unsettled
    rig.advance(100)

    assert [each.code for each in refused] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 2
    assert bodies(pop(rig)) == [b"a"]


@pytest.mark.parametrize("order", ["false", "true"])
def test_messages_of_a_refused_pop_come_to_the_next_as_the_same_attempt(
    rig: Any, order: str
) -> None:
    fill(rig, "a", "b", "c")
    rig.store.refusal = "the disk is full"
    assert ask(rig, order=order, maxMsgNums=2).code == ResponseCode.SERVICE_NOT_AVAILABLE
    changes = list(rig.broker.state.pops.peek_changes())
    rig.work()
    assert rig.broker.state.pops.peek_changes() == changes
    rig.store.refusal = None
    rig.advance(100)
    rig = kill(rig)
    rig.advance(100)

    found = pop(rig, order=order)
    assert bodies(found) == [b"a", b"b", b"c"]
    assert [record.reconsume_times for record, _ in found] == [0, 0, 0]
    rig.advance(200)
    assert pop(rig, order=order) == []
    rig.store.close()


def test_pops_of_a_client_whose_clock_is_behind_are_refused_counted_and_warned_of(rig: Any) -> None:
    rig.send(rig.connect())
    rig.outputs.clear()

    replies = [ask(rig, bornTime=rig.timestamp_ms - 20_000, pollTime=15_000) for _ in range(2)]

    (fact,) = (output for output in rig.outputs if isinstance(output, Fact))
    # Of an answer with fields Java's client wants all, whatever the code.
    assert [(reply.code, reply.ext_fields) for reply in replies] == [
        (ResponseCode.POLLING_TIMEOUT, None)
    ] * 2
    assert "group 'G' sent it 20000 ms ago by its clock, which may be behind" in fact.text
    assert fact.warning
    assert rig.broker.state.refusals.counts[BrokerRefusal.LATE_POP] == 2
    assert len(read(ask(rig, bornTime=rig.timestamp_ms - 15_500, pollTime=15_000))) == 1


def test_dead_letter_has_no_more_attempts_than_a_record_holds(rig: Any) -> None:
    """It was taken for damaged, and lost."""
    group = SubscriptionGroupConfig(group_name="G", retry_max_times=0)
    rig.broker.state.put_group(group, timestamp_ms=rig.timestamp_ms)
    rig.send(rig.connect(), j=str(2**31 - 1))
    pop(rig, invisibleTime=1_000)

    rig.advance(1_100)

    assert [record.reconsume_times for record in rig.records("%DLQ%G")] == [2**31 - 1]
