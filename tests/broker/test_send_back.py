from __future__ import annotations

from typing import Any

import pytest

from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.properties import parse_properties


def send_back(rig: Any, position: int, *, version: int = 399, **fields: Any) -> Any:
    header = {
        "offset": str(position),
        "group": "GID_c",
        "delayLevel": "0",
        "originMsgId": "X",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        **fields,
    }
    return rig.call(rig.connect(), RequestCode.CONSUMER_SEND_MSG_BACK, header, version=version)


def test_message_comes_again_in_the_retry_topic_after_ten_seconds(rig: Any) -> None:
    rig.send(rig.connect(), body=b"b", properties="TAGS\x01A\x02UNIQ_KEY\x01U")
    (origin,) = rig.records("T")

    reply = send_back(rig, 0)
    rig.advance(9_900)
    early = rig.records("%RETRY%GID_c")
    rig.advance(200)

    assert reply.code == 0
    assert early == []
    (record,) = rig.records("%RETRY%GID_c")
    properties = parse_properties(record.properties)
    assert (record.body, record.reconsume_times, record.queue_id) == (b"b", 1, 0)
    assert origin.born_host == record.born_host
    assert {
        "TAGS": "A",
        "UNIQ_KEY": "U",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "7F00000100002A9F0000000000000000",
        "DELAY": "3",
        "REAL_TOPIC": "%RETRY%GID_c",
        "REAL_QID": "0",
    }.items() <= properties.items()


def test_origin_and_topic_of_the_first_delivery_are_kept(rig: Any) -> None:
    rig.send(rig.connect())
    send_back(rig, 0)
    rig.advance(10_200)
    (first,) = rig.records("%RETRY%GID_c")

    send_back(rig, first.position)
    rig.advance(30_200)

    second = rig.records("%RETRY%GID_c")[1]
    before, after = (parse_properties(r.properties) for r in (first, second))
    assert second.reconsume_times == 2
    assert (after["RETRY_TOPIC"], after["DELAY"]) == ("T", "4")
    assert before["ORIGIN_MESSAGE_ID"] == after["ORIGIN_MESSAGE_ID"]


def test_level_asked_for_is_taken_and_bounded(rig: Any) -> None:
    rig.send(rig.connect())

    send_back(rig, 0, delayLevel="1")
    send_back(rig, 0, delayLevel="99")

    assert [len(rig.records("SCHEDULE_TOPIC_XXXX", level - 1)) for level in (1, 18)] == [1, 1]


def test_message_comes_again_in_a_retry_topic_that_was_made_without_queues(rig: Any) -> None:
    rig.create_topic("%RETRY%GID_c", 0)
    rig.send(rig.connect(), body=b"b")

    assert send_back(rig, 0, delayLevel="1").code == 0
    rig.advance(1_200)

    assert [record.body for record in rig.records("%RETRY%GID_c")] == [b"b"]


def test_nothing_is_sent_back_to_a_retry_topic_that_may_not_be_written(rig: Any) -> None:
    rig.create_topic("%RETRY%GID_c", 1, perm=4)
    rig.send(rig.connect(), body=b"b")
    end = rig.store.appended_position

    assert send_back(rig, 0).code == ResponseCode.NO_PERMISSION
    assert rig.store.appended_position == end


@pytest.mark.parametrize(
    "fields", [{"delayLevel": "-1"}, {"maxReconsumeTimes": "0"}, {"maxReconsumeTimes": "-1"}]
)
def test_message_that_may_not_be_retried_is_a_dead_letter(rig: Any, fields: dict[str, Any]) -> None:
    rig.send(rig.connect(), body=b"b")

    send_back(rig, 0, **fields)

    (record,) = rig.records("%DLQ%GID_c")
    assert (record.body, record.reconsume_times) == (b"b", 1)
    # Who sends it again with all properties does not delay it.
    assert parse_properties(record.properties)["DELAY"] == "0"
    topic = rig.broker.state.topics.find("%DLQ%GID_c")
    assert (topic.read_queue_nums, topic.perm) == (1, 6)


def test_dead_letter_whose_properties_leave_no_room_for_its_origin_has_none(rig: Any) -> None:
    assert rig.send(rig.connect(), body=b"b", properties="k" + "v" * 32_700).code == 0

    assert send_back(rig, 0, delayLevel="-1").code == 0

    (record,) = rig.records("%DLQ%GID_c")
    assert (record.body, len(parse_properties(record.properties)["k"])) == (b"b", 32_700)


@pytest.mark.parametrize(
    ("times", "topic", "expected"),
    [(2**31 - 1, "%DLQ%GID_c", 2**31 - 1), (-(2**31), "%RETRY%GID_c", 1 - 2**31)],
)
def test_message_with_an_odd_number_of_attempts_is_not_lost(
    rig: Any, times: int, topic: str, expected: int
) -> None:
    """The number beyond a record's field, or the level below the first, was refused for ever."""
    rig.send(rig.connect(), j=str(times))

    assert send_back(rig, 0).code == 0
    rig.advance(1_100)

    assert [record.reconsume_times for record in rig.records(topic)] == [expected]


def test_old_clients_own_limit_is_not_read(rig: Any) -> None:
    rig.send(rig.connect())

    send_back(rig, 0, version=100, maxReconsumeTimes="0")

    assert rig.records("%DLQ%GID_c") == []


def test_group_without_retry_queues_drops_the_message(rig: Any) -> None:
    rig.send(rig.connect())
    settings = b'{"groupName":"GID_c","retryQueueNums":0}'
    rig.call(rig.connect(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, settings)
    before = rig.store.appended_position

    assert send_back(rig, 0).code == 0
    assert before == rig.store.appended_position


@pytest.mark.parametrize("position", [7, 10**9, -1])
def test_position_without_a_record_is_an_error(rig: Any, position: int) -> None:
    rig.send(rig.connect())

    reply = send_back(rig, position)

    assert (reply.code, reply.remark) == (1, f"look message by offset failed, {position}")


@pytest.mark.parametrize("properties", ["TRAN_MSG\x01true\x02PGROUP\x01GID_p", "DELAY\x011"])
def test_message_that_nobody_may_consume_yet_is_not_sent_back(rig: Any, properties: str) -> None:
    rig.send(rig.connect(), properties=properties)
    end = rig.store.appended_position

    reply = send_back(rig, 0)

    assert (reply.code, reply.remark) == (1, "look message by offset failed, 0")
    assert rig.store.appended_position == end


def test_illegal_group_is_refused(rig: Any) -> None:
    reply = send_back(rig, 0, group="no such group")

    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
