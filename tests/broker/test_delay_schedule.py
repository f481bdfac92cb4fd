from __future__ import annotations

import errno
from typing import Any

import pytest

from sparrowmq.broker import delay_schedule
from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.model.names import SCHEDULE_TOPIC
from sparrowmq.protocol.bodies import DelayOffsetTable
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.properties import parse_properties
from sparrowmq.protocol.record import Record
from sparrowmq.store.file_storage import FileStorageFile
from sparrowmq.store.record_check import parse_delay_level


def send(rig: Any, level: int | str, body: bytes = b"b", *, topic: str = "T") -> None:
    reply = rig.send(rig.connect(), topic, body, queue_id=1, properties=f"DELAY\x01{level}")
    assert reply.code == 0, reply.remark


def bodies(rig: Any) -> list[bytes]:
    return [record.body for record in rig.records("T", 1)]


def test_answer_names_the_queue_of_the_real_topic(rig: Any) -> None:
    reply = rig.send(rig.connect(), queue_id=1, properties="DELAY\x011")

    assert reply.ext_fields["queueId"] == "1"


def test_delayed_message_is_delivered_when_its_time_has_come(rig: Any) -> None:
    send(rig, 2)

    rig.advance(4_900)
    early = bodies(rig)
    rig.advance(200)

    assert early == []
    (record,) = rig.records("T", 1)
    assert record.body == b"b"
    origin = {"MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster"}
    assert {
        name: value
        for name, value in parse_properties(record.properties).items()
        if name != "__CRC32#"
    } == {"REAL_TOPIC": "T", "REAL_QID": "1", "DELAY": "2", **origin}


def test_messages_of_one_level_are_delivered_in_order_each_at_its_time(rig: Any) -> None:
    send(rig, 1, b"1")
    rig.advance(500)
    send(rig, 1, b"2")

    rig.advance(600)
    after_first = bodies(rig)
    rig.advance(500)

    assert after_first == [b"1"]
    assert bodies(rig) == [b"1", b"2"]


def test_message_behind_as_many_as_one_tick_delivers_comes_not_early(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delay_schedule, "_DELIVERIES_MAX", 1)
    send(rig, 1, b"1")
    rig.advance(500)
    send(rig, 1, b"2")

    rig.advance(900)
    after_first = bodies(rig)
    rig.advance(200)

    assert (after_first, bodies(rig)) == ([b"1"], [b"1", b"2"])


def test_levels_do_not_wait_for_each_other(rig: Any) -> None:
    send(rig, 18, b"late")
    send(rig, 1, b"soon")

    rig.advance(1_100)

    assert bodies(rig) == [b"soon"]


def test_delivery_wakes_a_held_pull(rig: Any) -> None:
    send(rig, 1)
    puller = rig.connect()
    rig.pull(puller, queue_id=1, sysFlag="6", suspendTimeoutMillis="15000")

    outputs = rig.advance(1_200)

    assert [reply.code for reply in rig.replies(outputs)] == [0]


def test_restart_delivers_nothing_twice_and_forgets_nothing(rig: Any) -> None:
    send(rig, 1, b"1")
    rig.advance(1_100)
    send(rig, 1, b"2")

    again = rig.restart()
    again.advance(1_200)

    assert bodies(again) == [b"1", b"2"]
    again.store.close()


@pytest.mark.parametrize("is_looked_at", [False, True])
def test_clock_that_went_back_delays_no_longer_than_the_level(rig: Any, is_looked_at: bool) -> None:
    send(rig, 1)
    rig.advance(100 * is_looked_at)
    rig.timestamp_ms -= 3_600_000

    rig.advance(1_200)

    assert bodies(rig) == [b"b"]


def test_message_that_the_store_does_not_take_is_delivered_later(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on this disk")

    send(rig, 1)
    with monkeypatch.context() as patch:
        patch.setattr(FileStorageFile, "write", refuse)
        rig.advance(2_000)

    rig.advance(100)

    assert bodies(rig) == [b"b"]


def test_message_for_a_deleted_topic_is_dropped(rig: Any) -> None:
    rig.create_topic("gone")
    send(rig, 1, topic="gone")
    send(rig, 1)
    rig.call(rig.connect(), RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"})

    rig.advance(1_200)

    assert bodies(rig) == [b"b"]
    assert rig.records("gone", 1) == []


@pytest.mark.parametrize("queue_id", ["", "-1", "9" * 18, "9" * 5_000], ids=len)
def test_message_whose_queue_is_no_number_of_one_holds_no_other_up(rig: Any, queue_id: str) -> None:
    properties = f"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01{queue_id}\x02"
    # As another broker's store may have it.
    rig.store.put(
        Record(topic=SCHEDULE_TOPIC, queue_id=0, body=b"nowhere", properties=properties),
        timestamp_ms=rig.timestamp_ms,
    )
    send(rig, 1)

    rig.advance(1_100)

    assert bodies(rig) == [b"b"]


def test_message_after_an_expired_one_keeps_its_own_delay(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(rig, 2, b"expired")
    rig.advance(3_000)
    send(rig, 2, b"later")
    monkeypatch.setattr(rig.store.queues.by_key[SCHEDULE_TOPIC, 1], "min_offset", 1)

    rig.advance(4_900)
    early = bodies(rig)
    rig.advance(200)

    assert early == []
    assert bodies(rig) == [b"later"]


def test_offsets_beyond_the_queue_are_corrected_at_load(rig: Any) -> None:
    send(rig, 1)
    delays = rig.broker.state.delays

    delays.load(DelayOffsetTable(offset_table={1: 99, 2: -5, 77: 1}), timestamp_ms=rig.timestamp_ms)

    assert delays.table().offset_table == {1: 1, 2: 0}


def test_offsets_by_level_are_answered(rig: Any) -> None:
    send(rig, 1)
    rig.advance(1_200)

    reply = rig.call(rig.connect(), RequestCode.GET_ALL_DELAY_OFFSET)

    assert reply.body == b'{"offsetTable":{1:1}}'


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("", 0),
        ("3", 3),
        ("+3", 3),
        ("99", 18),
        ("-1", 0),
    ],
)
def test_delay_level_is_read_as_java_reads_it_and_bounded(text: str, level: int) -> None:
    assert level == parse_delay_level(text, level_max=18)


@pytest.mark.parametrize("text", ["x", "1_0", " 3", "3.0", "9" * 99])
@pytest.mark.parametrize("more", ["", "\x02TRAN_MSG\x01true\x02PGROUP\x01GID_p"])
def test_a_delay_that_is_no_number_is_refused_and_not_delivered_at_once(
    rig: Any, text: str, more: str
) -> None:
    reply = rig.send(rig.connect(), properties=f"DELAY\x01{text}{more}")

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert f"DELAY is {text[:40]!r}; it must be a delay level, 1 to 18" in reply.remark
    assert rig.records("T") == []


def test_schedule_topic_cannot_be_written_but_by_a_delay(rig: Any) -> None:
    send(rig, 1)

    assert rig.send(rig.connect(), SCHEDULE_TOPIC).code == 16
    assert len(rig.records(SCHEDULE_TOPIC, 0)) == 1


def test_offset_beyond_its_level_is_cut_in_the_file_too(rig: Any) -> None:
    delays = DelaySchedule(rig.store)

    delays.load(DelayOffsetTable(offset_table={1: 5, 2: 0}), timestamp_ms=rig.timestamp_ms)

    assert delays.is_changed
    assert delays.table().offset_table == {1: 0, 2: 0}


@pytest.mark.parametrize("properties", ["DELAY\x011", "TIMER_DELAY_MS\x011000"])
@pytest.mark.parametrize(("reads", "writes", "expected"), [(2, 2, 1), (2, 1, 1), (4, 1, 3)])
def test_message_for_a_queue_that_the_topic_has_no_more_comes_where_it_is_read(
    rig: Any, properties: str, reads: int, writes: int, expected: int
) -> None:
    """It went into the former queue, which no member consumes: it was lost."""
    rig.send(rig.connect(), queue_id=3, properties=properties)

    rig.create_topic("T", reads, writes=writes)
    rig.advance(1_300)

    found = {queue_id: len(rig.records("T", queue_id)) for queue_id in range(4)}
    assert {queue_id for queue_id, count in found.items() if count} == {expected}


def test_message_for_a_topic_without_queues_keeps_its_own(rig: Any) -> None:
    rig.send(rig.connect(), queue_id=3, properties="DELAY\x011")

    rig.create_topic("T", 0)
    rig.advance(1_100)

    assert [record.body for record in rig.records("T", 3)] == [b"body"]
