"""Messages with a time of their own: never early, at most a tick late, recalled or delivered."""

from __future__ import annotations

import errno
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.conftest import send_fields

from sparrowmq.broker import timer_messages
from sparrowmq.broker.timer_check_file import decode_timer_check, encode_timer_check
from sparrowmq.broker.timer_messages import TimerTable
from sparrowmq.errors import ProtocolError
from sparrowmq.model.names import TIMER_TOPIC
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.store.file_storage import FileStorageFile
from sparrowmq.store.retention import RetentionConfig

HOUR_MS = 3_600_000


def send(
    rig: Any, body: bytes = b"b", *, topic: str = "T", msg_id: str = "ID", **timer: Any
) -> RemotingCommand:
    """Send a message with one of TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS."""
    pairs = [f"UNIQ_KEY\x01{msg_id}", *(f"{name}\x01{value}" for name, value in timer.items())]
    reply: RemotingCommand = rig.send(
        rig.connect(), topic, body, queue_id=1, properties="\x02".join(pairs)
    )
    return reply


def send_for_handle(rig: Any, body: bytes = b"b", *, msg_id: str = "ID", **timer: Any) -> str:
    """Send such a message; return the handle in the answer."""
    return (send(rig, body, msg_id=msg_id, **timer).ext_fields or {})["recallHandle"]


def recall(rig: Any, handle: str, topic: str = "T") -> RemotingCommand:
    fields = {"producerGroup": "GID_p", "topic": topic, "recallHandle": handle, "bname": "broker-a"}
    reply: RemotingCommand = rig.call(rig.connect(), RequestCode.RECALL_MESSAGE, fields)
    return reply


def bodies(rig: Any) -> list[bytes]:
    return [record.body for record in rig.records("T", 1)]


@pytest.mark.parametrize(
    ("name", "value", "after_ms"),
    [
        ("TIMER_DELAY_MS", 1_234, 1_234),
        ("TIMER_DELAY_SEC", 2, 2_000),
        ("TIMER_DELIVER_MS", 1_700_000_000_777, 777),
    ],
)
def test_message_comes_within_a_tick_of_its_time_and_never_early(
    rig: Any, name: str, value: int, after_ms: int
) -> None:
    begun_ms, timer = rig.timestamp_ms, dict[str, Any]([(name, value)])
    reply = send(rig, **timer)
    assert reply.code == 0, reply.remark

    while not bodies(rig):
        rig.advance(100)
    late_ms = rig.timestamp_ms - begun_ms - after_ms

    assert 0 <= late_ms < 300
    (record,) = rig.records("T", 1)
    properties = parse_properties(record.properties)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "1")
    assert int(properties["TIMER_OUT_MS"]) == begun_ms + after_ms


def test_a_time_that_is_past_is_now(rig: Any) -> None:
    send(rig, TIMER_DELIVER_MS=1)

    assert bodies(rig) == [b"b"]


def test_message_that_has_waited_does_not_wait_again(rig: Any) -> None:
    # As one that a consumer sends to its retry topic, with all properties.
    send(rig, TIMER_DELAY_SEC=10, TIMER_OUT_MS=rig.timestamp_ms - 1)

    assert bodies(rig) == [b"b"]


def test_messages_come_in_the_order_of_their_times(rig: Any) -> None:
    for delay_ms in (900, 300, 600):
        send(rig, str(delay_ms).encode(), TIMER_DELAY_MS=delay_ms)

    rig.advance(1_200)

    assert bodies(rig) == [b"300", b"600", b"900"]


def test_a_delay_overrides_an_instant_and_seconds_override_milliseconds(rig: Any) -> None:
    later_ms = rig.timestamp_ms + 9_000
    send(rig, TIMER_DELIVER_MS=later_ms, TIMER_DELAY_MS=6_000, TIMER_DELAY_SEC=1)

    rig.advance(1_300)

    assert bodies(rig) == [b"b"]


def test_all_messages_of_one_time_come_though_a_tick_delivers_a_bounded_number(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_messages, "DELIVERIES_PER_TICK", 2)
    due_ms = rig.timestamp_ms + 500
    for number in range(5):
        send(rig, b"%d" % number, msg_id=f"ID{number}", TIMER_DELIVER_MS=due_ms)

    rig.advance(2_000)

    assert bodies(rig) == [b"%d" % number for number in range(5)]


@pytest.mark.parametrize(
    ("timer", "remark"),
    [
        ({"TIMER_DELAY_SEC": 259_201}, "at most 259200 s"),
        ({"TIMER_DELAY_MS": "soon"}, "TIMER_DELAY_MS is 'soon'"),
        ({"TIMER_DELIVER_MS": "-5"}, "TIMER_DELIVER_MS is '-5'"),
    ],
)
def test_wrong_times_are_refused(rig: Any, timer: dict[str, Any], remark: str) -> None:
    reply = send(rig, **timer)

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert remark in (reply.remark or "")
    assert rig.records(TIMER_TOPIC) == []


def test_longest_delay_is_taken(rig: Any) -> None:
    assert send(rig, TIMER_DELAY_SEC=rig.config.timer_max_delay_s).code == 0


def test_too_many_waiting_messages_are_refused(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_messages, "WAITING_MAX", 2)
    for _ in range(2):
        send(rig, TIMER_DELAY_MS=500)

    refused = send(rig, TIMER_DELAY_MS=500)
    rig.advance(800)
    taken = send(rig, TIMER_DELAY_MS=500)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "2 messages wait" in (refused.remark or "")
    assert taken.code == 0


def test_restart_forgets_nothing_and_delivers_nothing_twice(rig: Any) -> None:
    send(rig, b"first", TIMER_DELAY_MS=300)
    send(rig, b"last", TIMER_DELAY_MS=60_000)
    send(rig, b"second", TIMER_DELAY_MS=600)
    rig.advance(800)

    again = rig.restart()
    again.advance(60_000)

    assert bodies(again) == [b"first", b"second", b"last"]
    again.store.close()


def test_message_of_a_slot_that_has_not_ended_survives_a_restart(rig: Any) -> None:
    send(rig, TIMER_DELIVER_MS=rig.timestamp_ms + 1_050)
    rig.timestamp_ms += 60
    rig.advance(1_000)
    early = bodies(rig)

    again = rig.restart()
    again.advance(200)

    assert (early, bodies(again)) == ([], [b"b"])
    again.store.close()


def test_progress_stays_until_all_is_read_again_after_a_start(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, b"last", TIMER_DELAY_MS=60_000)
    for _ in range(3):
        send(rig, TIMER_DELAY_MS=300)
    rig.advance(500)
    monkeypatch.setattr(timer_messages, "READ_PER_TICK", 1)
    saved = rig.broker.state.timers.table()

    again = rig.restart()
    again.advance(200)

    assert again.broker.state.timers.table() == saved
    again.store.close()


def test_progress_beyond_the_topic_is_cut(rig: Any) -> None:
    send(rig, b"1", TIMER_DELAY_MS=300)
    send(rig, b"2", TIMER_DELAY_MS=300)
    timers = rig.broker.state.timers

    later_ms = rig.timestamp_ms + 60_000
    saved = TimerTable(
        begin=1, read=9, delivered_ms=later_ms, former_read=9, former_ms=later_ms + 1
    )
    timers.is_changed = False
    timers.load(saved, timestamp_ms=rig.timestamp_ms)
    assert timers.is_changed
    send(rig, b"3", TIMER_DELAY_MS=300)
    rig.advance(600)

    # The second was done, as the file says; the third has an offset that another message had.
    assert bodies(rig) == [b"3"]
    table = timers.table()
    assert (table.begin, table.read) == (3, 3)


def test_message_of_a_deleted_topic_is_dropped(rig: Any) -> None:
    rig.create_topic("gone")
    send(rig, topic="gone", TIMER_DELAY_MS=300)
    rig.call(rig.connect(), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})

    rig.advance(600)

    assert rig.records("gone", 1) == []
    assert rig.broker.state.timers.table().begin == 1


def test_queue_written_by_another_broker_delivers_no_earlier(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, TIMER_DELAY_MS=2_000)
    # That broker's tags code of a message with a tag: a hash.
    codes = rig.store.queues.tags_codes
    monkeypatch.setattr(
        rig.store.queues, "tags_codes", lambda *args: [98_123 for _ in codes(*args)]
    )

    rig.advance(1_900)
    early = bodies(rig)
    rig.advance(300)

    assert early == []
    assert bodies(rig) == [b"b"]


def test_recalled_message_never_comes(rig: Any) -> None:
    handle = send_for_handle(rig, b"recalled", msg_id="ID1", TIMER_DELAY_MS=2_000)
    send(rig, b"kept", msg_id="ID2", TIMER_DELAY_MS=2_000)

    reply = recall(rig, handle)
    rig.advance(3_000)

    assert (reply.code, reply.ext_fields) == (0, {"msgId": "ID1"})
    assert bodies(rig) == [b"kept"]
    assert rig.broker.state.timers._ended == set()


@pytest.mark.parametrize("later_ms", [0, 40])
def test_recall_of_a_message_whose_send_was_repeated_holds_for_each_copy(
    rig: Any, later_ms: int
) -> None:
    """The answer to the first send was lost; the handle is that of the second."""
    due_ms = rig.timestamp_ms // 100 * 100 + 2_010
    send(rig, TIMER_DELIVER_MS=due_ms)
    handle = send_for_handle(rig, TIMER_DELIVER_MS=due_ms + later_ms)
    other = send_for_handle(rig, b"other", msg_id="ID2", TIMER_DELIVER_MS=due_ms)

    reply = recall(rig, handle)
    again = rig.restart()
    again.advance(3_000)

    assert reply.code == 0, reply.remark
    assert bodies(again) == [b"other"]
    assert recall(again, other).code == ResponseCode.ILLEGAL_OPERATION


def test_recall_holds_over_a_restart(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = send_for_handle(rig, TIMER_DELAY_MS=2_000)
    recall(rig, handle)
    monkeypatch.setattr(timer_messages, "READ_PER_TICK", 1)
    rig.timestamp_ms += 3_000

    again = rig.restart()
    again.advance(4_000)

    assert bodies(again) == []
    again.store.close()


def test_producer_recalls_no_message_by_its_offset(rig: Any) -> None:
    send(rig, b"other's", TIMER_DELAY_MS=1_000)
    named: dict[str, Any] = {"TIMER_DEL_UNIQKEY": "T_ID", "TIMER_DEL_QUEUE_OFFSET": 0}
    assert send(rig, TIMER_DELAY_MS=500, **named).code == 0
    rig.advance(1_200)

    assert bodies(rig) == [b"other's"]


def test_recall_of_rocketmq_holds_in_a_store_that_comes_from_there(rig: Any) -> None:
    """Source: RecallMessageProcessor.buildMessage of 5.5.0, whose records name no offset."""
    due_ms = rig.timestamp_ms + 2_000
    for body, msg_id in ((b"recalled", "ID1"), (b"kept", "ID2")):
        send(rig, body, msg_id=msg_id, TIMER_DELIVER_MS=due_ms)
    named: dict[str, Any] = {"TIMER_DELIVER_MS": due_ms, "TIMER_DEL_UNIQKEY": "T+ID1"}
    send(rig, b"0", msg_id="ID1", **named)
    # A producer of another topic may not recall the topic's messages.
    rig.create_topic("other", 4)
    send(rig, b"0", topic="other", **(named | {"TIMER_DEL_UNIQKEY": "T+ID2"}))

    again = rig.restart()
    again.advance(3_000)

    assert bodies(again) == [b"kept"]
    assert again.broker.state.timers._keys == {}
    assert again.broker.state.timers._key_count == 0
    again.store.close()


def test_message_that_rocketmq_has_stored_again_comes_once(rig: Any) -> None:
    """Source: TimerMessageStore.doEnqueue of 5.5.0: the first one stays in the topic."""
    due_ms = rig.timestamp_ms + 2_000
    for msg_id in ("ID1", "ID2"):
        send(rig, msg_id.encode(), msg_id=msg_id, TIMER_DELIVER_MS=due_ms)
    (again, _) = rig.records(TIMER_TOPIC, 0)
    again.properties += "TIMER_ROLL_TIMES\x011\x02"
    rig.store.put(again, timestamp_ms=rig.timestamp_ms)
    rig.advance(3_000)

    assert bodies(rig) == [b"ID1", b"ID2"]
    assert rig.broker.state.timers._put_keys == {}


def test_message_that_rocketmq_has_stored_again_comes_once_though_its_first_is_unreadable_then(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, TIMER_DELAY_MS=2_000)
    (again,) = rig.records(TIMER_TOPIC, 0)
    again.properties += "TIMER_ROLL_TIMES\x011\x02"
    rig.store.put(again, timestamp_ms=rig.timestamp_ms)
    rig.advance(1_000)
    timers = rig.broker.state.timers
    read = timers._record

    def fail_first(offset: int) -> Any:
        if offset == 0:
            raise OSError(errno.EIO, "the disk does not answer")
        return read(offset)

    with monkeypatch.context() as patch:
        patch.setattr(type(timers), "_record", lambda _, offset: fail_first(offset))
        rig.advance(2_000)
    rig.advance(1_000)

    assert bodies(rig) == [b"b"]
    assert timers._put_keys == {}


def test_recall_has_the_key_that_rocketmq_knows_the_message_by(rig: Any) -> None:
    """Source: TimerMessageStore.buildDeleteKey of 5.3.2 to 5.5.0."""
    recall(rig, send_for_handle(rig, msg_id="ID1", TIMER_DELAY_MS=2_000))

    (_, ending) = rig.records(TIMER_TOPIC, 0)
    assert parse_properties(ending.properties)["TIMER_DEL_UNIQKEY"] == "T+ID1"


def refuse_to_write(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no space left on this disk")


@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "not written"])
def test_message_comes_if_its_recall_is_not_stored(
    rig: Any, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    handle = send_for_handle(rig, TIMER_DELAY_MS=2_000)

    with monkeypatch.context() as patch:
        if is_refused:
            patch.setattr(rig.store, "refusal", "the disk is nearly full")
        else:
            patch.setattr(FileStorageFile, "write", refuse_to_write)
        reply = recall(rig, handle)
    rig.advance(3_000)

    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert bodies(rig) == [b"b"]


def test_recall_that_waits_for_its_flush_holds_though_a_later_write_fails(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = send_for_handle(rig, TIMER_DELAY_MS=500)
    rig.holds_work = True
    fields = {"producerGroup": "GID_p", "topic": "T", "recallHandle": handle, "bname": "broker-a"}
    request = RemotingCommand(code=RequestCode.RECALL_MESSAGE, ext_fields=fields, opaque=77)
    rig.handle(rig.connect(), request)
    with monkeypatch.context() as patch:
        patch.setattr(FileStorageFile, "write", refuse_to_write)
        rig.handle(rig.connect(), RemotingCommand(code=310, ext_fields=send_fields("T", 1)))
    rig.now_ms += 900
    rig.timestamp_ms += 900
    rig.host.tick()

    rig.work()
    rig.advance(1_000)

    (confirmed,) = [reply for reply in rig.replies(rig.outputs) if reply.opaque == 77]
    assert confirmed.code == 0
    assert bodies(rig) == []


def test_message_that_waits_for_its_recall_is_not_stored_again(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(retention=RetentionConfig(retention_hours=1))
    rig.create_topic("T", 4)
    handle = send_for_handle(rig, TIMER_DELAY_SEC=3_600)
    rig.now_ms += HOUR_MS * 3 // 4
    rig.timestamp_ms += HOUR_MS * 3 // 4
    rig.holds_work = True
    fields = {"producerGroup": "GID_p", "topic": "T", "recallHandle": handle, "bname": "broker-a"}
    request = RemotingCommand(code=RequestCode.RECALL_MESSAGE, ext_fields=fields)
    rig.handle(rig.connect(), request)
    rig.host.tick()
    rig.holds_work = False
    rig.work()

    rig.now_ms += HOUR_MS
    rig.timestamp_ms += HOUR_MS
    rig.advance(1_000)

    assert bodies(rig) == []


@pytest.mark.parametrize(
    "broken",
    [
        lambda h: h[:-8],
        lambda _: "!!",
        lambda _: urlsafe_b64encode(b"v2 T").decode(),
        lambda h: urlsafe_b64encode(
            urlsafe_b64decode(h).replace(b"broker-a", b"broker-b")
        ).decode(),
    ],
)
def test_wrong_handles_are_refused(rig: Any, broken: Callable[[str], str]) -> None:
    handle = send_for_handle(rig, TIMER_DELAY_MS=2_000)

    assert recall(rig, broken(handle)).code != 0
    # Access control knows the topic of the request alone.
    assert recall(rig, handle, "other").code == ResponseCode.ILLEGAL_OPERATION
    rig.advance(2_500)
    assert bodies(rig) == [b"b"]


def test_late_recall_is_refused(rig: Any) -> None:
    handle = send_for_handle(rig, TIMER_DELAY_MS=500)
    rig.advance(1_000)

    reply = recall(rig, handle)

    assert reply.code == ResponseCode.ILLEGAL_OPERATION
    assert "recall failed" in (reply.remark or "")


def test_handle_is_what_rocketmq_5_gives(rig: Any) -> None:
    handle = send_for_handle(rig, msg_id="0A00", TIMER_DELIVER_MS=1_700_000_009_000)

    assert urlsafe_b64decode(handle) == b"v1 T broker-a 1700000009000 0A00"


def test_long_wait_outlives_the_retention(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(retention=RetentionConfig(retention_hours=1))
    rig.create_topic("T", 4)
    send(rig, TIMER_DELAY_SEC=2 * 3_600)

    for _ in range(8):
        rig.now_ms += HOUR_MS // 4
        rig.timestamp_ms += HOUR_MS // 4
        rig.advance(200)
        # What fills the log, so that its first files may go.
        for _ in range(40):
            rig.send(rig.connect(), "T", bytes(16_000))
        rig.call(rig.connect(), RequestCode.DELETE_EXPIRED_COMMITLOG)
        rig.advance(1_000)
    rig.advance(2_000)

    assert rig.store.queues.min_offset(TIMER_TOPIC, 0) > 0
    assert bodies(rig) == [b"b"]


def test_message_that_was_stored_again_is_recalled(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(retention=RetentionConfig(retention_hours=1))
    rig.create_topic("T", 4)
    handle = send_for_handle(rig, TIMER_DELAY_SEC=3_600)
    rig.now_ms += HOUR_MS * 3 // 4
    rig.timestamp_ms += HOUR_MS * 3 // 4
    rig.advance(500)
    assert rig.store.queues.max_offset(TIMER_TOPIC, 0) > 1

    reply = recall(rig, handle)
    rig.now_ms += HOUR_MS
    rig.timestamp_ms += HOUR_MS
    rig.advance(1_000)

    assert reply.code == 0, reply.remark
    assert bodies(rig) == []


def test_long_wait_that_a_full_disk_does_not_store_again_comes(
    make_rig: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FileStorageFile.write

    def refuse(file: FileStorageFile, position: int, data: bytes) -> None:
        if file.path.startswith("commitlog/"):
            raise OSError(errno.ENOSPC, "no space left on this disk")
        write(file, position, data)

    rig = make_rig(retention=RetentionConfig(retention_hours=1))
    rig.create_topic("T", 4)
    send(rig, TIMER_DELAY_SEC=3_600)
    rig.now_ms += HOUR_MS * 3 // 4
    rig.timestamp_ms += HOUR_MS * 3 // 4
    with monkeypatch.context() as patch:
        patch.setattr(FileStorageFile, "write", refuse)
        rig.advance(500)

    rig.now_ms += HOUR_MS
    rig.timestamp_ms += HOUR_MS
    rig.advance(1_000)

    assert bodies(rig) == [b"b"]


def test_clock_that_is_set_back_stores_nothing_again_that_has_come(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(retention=RetentionConfig(retention_hours=72))
    send(rig, b"waits", msg_id="ID1", TIMER_DELAY_SEC=60 * 3_600)
    send(rig, b"came", msg_id="ID2", TIMER_DELAY_SEC=10 * 3_600)
    rig.timestamp_ms += 10 * HOUR_MS
    rig.advance(500)
    assert bodies(rig) == [b"came"]

    rig.timestamp_ms -= 5 * HOUR_MS
    timers = rig.broker.state.timers
    timers.config = replace(timers.config, retention=RetentionConfig(retention_hours=4))
    rig.advance(500)
    rig.timestamp_ms += 6 * HOUR_MS
    rig.advance(500)

    assert bodies(rig) == [b"came"]


def test_progress_in_the_file_is_what_was_saved() -> None:
    table = TimerTable(
        begin=3,
        read=70,
        delivered_ms=1_700_000_000_123,
        former_read=60,
        former_ms=1_800_000_000_000,
    )
    assert decode_timer_check(encode_timer_check(table)) == table


def test_file_of_rocketmq_names_no_begin() -> None:
    content = struct.pack(">qqqq", 1_700_000_001_000, 520, 70, 70) + bytes(4_064)
    assert decode_timer_check(content) == TimerTable(read=70, delivered_ms=1_700_000_000_999)
    later = bytearray(content)
    struct.pack_into(">q", later, 2_056, 70)
    assert decode_timer_check(bytes(later)).begin == 0


@pytest.mark.parametrize("content", [b"", bytes(31), struct.pack(">qqqq", 1, 0, -1, 0)])
def test_damaged_file_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_timer_check(content)


def test_messages_behind_a_long_wait_are_done_after_a_restart(rig: Any) -> None:
    send(rig, b"long", TIMER_DELAY_SEC=3_600)
    for number in range(3):
        send(rig, b"%d" % number, TIMER_DELAY_MS=200)
    rig.advance(1_000)

    again = rig.restart()
    again.advance(1_000)

    assert bodies(again) == [b"0", b"1", b"2"]
    assert len(again.broker.state.timers) == 1
    again.store.close()


def test_clock_that_is_set_back_before_a_stop_delivers_nothing_again(rig: Any) -> None:
    send(rig, b"long", msg_id="ID1", TIMER_DELAY_SEC=60 * 3_600)
    send(rig, b"came", msg_id="ID2", TIMER_DELAY_SEC=3_600)
    rig.timestamp_ms += HOUR_MS
    rig.advance(500)
    rig.timestamp_ms -= HOUR_MS // 2
    rig.advance(500)
    rig.send(rig.connect(), "T", b"other")

    again = rig.restart()
    again.timestamp_ms += HOUR_MS
    again.advance(500)

    assert bodies(again) == [b"came"]
    again.store.close()


def test_message_that_comes_after_the_clock_is_set_back_outlives_a_kill(rig: Any) -> None:
    send(rig, b"came", TIMER_DELAY_SEC=3_600)
    rig.timestamp_ms += HOUR_MS
    rig.advance(500)
    rig.timestamp_ms -= HOUR_MS // 2
    send(rig, b"waits", msg_id="ID2", TIMER_DELAY_MS=5_000)
    # Its file has the progress of the moment at which it is read.
    handle = send_for_handle(rig, msg_id="ID3", TIMER_DELAY_MS=5_000)
    assert recall(rig, handle).code == 0

    again = rig.restart()
    again.advance(6_000)

    assert bodies(again) == [b"came", b"waits"]
    again.store.close()


def test_short_waits_after_clocks_are_set_back_deliver_nothing_again_after_a_restart(
    rig: Any,
) -> None:
    send(rig, b"long", msg_id="ID", TIMER_DELAY_SEC=60 * 3_600)
    for number in range(2):
        send(rig, b"came %d" % number, msg_id=f"came {number}", TIMER_DELAY_SEC=3_600)
        rig.timestamp_ms += HOUR_MS
        rig.advance(500)
        for minutes in (30, 10):
            rig.timestamp_ms -= minutes * 60_000
            # It waits when the progress is saved, and is due before what came.
            name = f"after {minutes} {number}"
            send(rig, name.encode(), msg_id=name, TIMER_DELAY_MS=5_000)
            rig.advance(500)
        for duration_ms in (6_000, HOUR_MS):
            rig = rig.restart()
            rig.timestamp_ms += duration_ms
            rig.advance(500)

    rig.timestamp_ms += 60 * HOUR_MS
    rig.advance(500)

    assert [body.decode() for body in bodies(rig)] == [
        *("came 0", "after 10 0", "after 30 0"),
        *("came 1", "after 10 1", "after 30 1"),
        "long",
    ]
    rig.store.close()
