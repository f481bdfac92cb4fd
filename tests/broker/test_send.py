from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.broker.conftest import send_fields
from tests.broker.disk_machine import Losing, Machine

from sparrowmq.broker.state import BrokerRefusal
from sparrowmq.broker.topic_configs import inherit, plain
from sparrowmq.model.names import CLOSED_TOPICS, dlq_topic, retry_topic
from sparrowmq.protocol.bodies import TopicConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand
from sparrowmq.protocol.properties import encode_properties, parse_properties
from sparrowmq.protocol.record import BatchEntry, encode_batch
from sparrowmq.serving.connections import Fact, PauseReading
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.store.config import FlushMode
from sparrowmq.store.journal import Journal

pytestmark = pytest.mark.usefixtures("both_ways")

V1_FIELDS = {
    "producerGroup": "GID_p",
    "topic": "T",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "1",
    "sysFlag": "0",
    "bornTimestamp": "1700000000000",
    "flag": "7",
    "properties": "TAGS\x01A\x02WAIT\x01true",
}


def test_answer_names_place_and_id_of_the_message(rig: Any) -> None:
    reply = rig.send(rig.connect(), queue_id=2)

    assert reply.code == ResponseCode.SUCCESS
    assert reply.ext_fields == {
        "msgId": "7F00000100002A9F0000000000000000",
        "queueId": "2",
        "queueOffset": "0",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }


def test_long_and_short_field_names_store_the_same_record(rig: Any) -> None:
    connection = rig.connect()
    rig.call(connection, RequestCode.SEND_MESSAGE, V1_FIELDS, b"b")
    rig.send(connection, body=b"b", queue_id=1, properties=V1_FIELDS["properties"], h="7")

    first, second = rig.records("T", 1)

    for record in (first, second):
        record.queue_offset = record.position = 0
        properties = parse_properties(record.properties)
        properties.pop("__CRC32#", None)
        record.properties = encode_properties(properties)
    assert first == second


def test_stored_record_is_what_was_sent_with_region_and_cluster_and_without_wait(rig: Any) -> None:
    connection = rig.connect(4711)
    rig.send(connection, body=b"abc", properties="TAGS\x01A\x02WAIT\x01true\x02K\x01v", h="5")

    (record,) = rig.records("T")

    properties = parse_properties(record.properties)
    properties.pop("__CRC32#", None)
    origin = {"MSG_REGION": "DefaultRegion", "CLUSTER": "DefaultCluster"}
    assert properties == {"TAGS": "A", "K": "v", **origin}
    assert (record.body, record.flag, record.born_timestamp_ms) == (b"abc", 5, 1_700_000_000_000)
    assert bytes([10, 0, 0, 1, 0, 0, 0x12, 0x67]) == record.born_host


def test_name_that_ends_in_wait_is_kept(rig: Any) -> None:
    rig.send(rig.connect(), properties="MYWAIT\x01true")

    (record,) = rig.records("T")

    assert parse_properties(record.properties)["MYWAIT"] == "true"


def test_producer_waits_for_the_flush_and_readers_do_not_see_more(rig: Any) -> None:
    rig.holds_work = True
    connection = rig.connect()
    code = RequestCode.SEND_MESSAGE_V2
    command = RemotingCommand(code=code, ext_fields=_v2("T"), body=b"x")

    before = rig.handle(connection, command)
    seen_before = rig.records("T")
    rig.outputs.clear()
    rig.work()

    assert (before, seen_before) == ([], [])
    assert [reply.code for reply in rig.replies(rig.outputs)] == [0]
    assert len(rig.records("T")) == 1


def test_messages_of_one_flush_are_answered_together_in_order(rig: Any) -> None:
    rig.holds_work = True
    connection = rig.connect()
    for opaque in range(5):
        rig.handle(connection, _send_command("T", opaque))
    flush = rig.broker.flush_work(now_ms=rig.now_ms)
    rig.handle(connection, _send_command("T", 5))

    outputs = rig.broker.flushed(flush, None, now_ms=rig.now_ms)

    assert [reply.opaque for reply in rig.replies(outputs)] == [0, 1, 2, 3, 4]
    assert rig.broker.flush_work(now_ms=rig.now_ms) is not None


def test_failed_flush_answers_flush_disk_timeout_and_refuses_further_sends(rig: Any) -> None:
    rig.holds_work = True
    connection = rig.connect()
    rig.handle(connection, _send_command("T", 1))
    rig.outputs.clear()

    rig.work(error=OSError("no"))
    refused = rig.handle(connection, _send_command("T", 2))

    codes = [reply.code for reply in rig.replies(rig.outputs)]
    assert codes[0] == ResponseCode.FLUSH_DISK_TIMEOUT
    assert [r.code for r in rig.replies(refused)] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    assert rig.records("T") == []


def test_wait_false_is_answered_before_the_flush(rig: Any) -> None:
    rig.holds_work = True

    reply = rig.send(rig.connect(), properties="WAIT\x01false")

    assert reply.code == ResponseCode.SUCCESS


def test_message_of_a_retry_topic_waits_for_the_flush_whatever_it_says(rig: Any) -> None:
    rig.create_topic("%RETRY%G", 1)
    rig.holds_work = True

    command = _send_command("%RETRY%G", 1)
    command.ext_fields = {**_v2("%RETRY%G"), "i": "WAIT\x01false\x02DELAY\x013"}
    outputs = rig.handle(rig.connect(), command)

    assert rig.replies(outputs) == []


WAITS = [
    ("", True),
    ("WAIT\x01true", True),
    ("WAIT\x01TRUE", True),
    ("WAIT\x01", True),
    ("CAN_WAIT\x01false", True),
    ("K\x01v\x02NO_WAIT\x01false\x02", True),
    ("K\x01WAIT\x01false", True),
    ("WAIT\x01false\x02WAIT\x01true", True),
    ("WAIT\x01false", False),
    ("K\x01v\x02WAIT\x01false\x02", False),
    ("CAN_WAIT\x01true\x02WAIT\x01False", False),
    ("WAIT\x01true\x02WAIT\x01no", False),
]


@pytest.mark.parametrize("is_batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize(("properties", "waits"), WAITS)
def test_send_waits_for_the_flush_but_where_its_property_wait_is_not_true(
    rig: Any, properties: str, waits: bool, is_batch: bool
) -> None:
    rig.holds_work = True
    command = _send_command("T", 1)
    command.ext_fields = {**_v2("T"), "i": properties}
    if is_batch:
        command.code = RequestCode.SEND_BATCH_MESSAGE
        command.body = encode_batch([BatchEntry(0, b"x", "CAN_WAIT\x01false")])

    outputs = rig.handle(rig.connect(), command)

    assert waits == (rig.replies(outputs) == [])


def test_async_flush_answers_and_shows_at_once(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(flush=FlushMode.ASYNC)
    rig.create_topic("T")
    rig.holds_work = True

    reply = rig.send(rig.connect())
    rig.broker.settle(now_ms=rig.now_ms)

    assert reply.code == ResponseCode.SUCCESS
    assert len(rig.records("T")) == 1


def test_async_flush_runs_every_half_second(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(flush=FlushMode.ASYNC)
    rig.create_topic("T")
    rig.advance(500)
    rig.send(rig.connect())
    flushed_at_once = rig.store.flushed_position

    rig.advance(500)

    assert flushed_at_once < rig.store.flushed_position == rig.store.appended_position


def test_oneway_send_is_stored_and_not_answered(rig: Any) -> None:
    command = _send_command("T", 1)
    command.flag = ONEWAY_FLAG

    outputs = rig.handle(rig.connect(), command)

    assert rig.replies(outputs) == []
    assert len(rig.records("T")) == 1


def test_refused_oneway_send_is_not_answered(rig: Any) -> None:
    command = _send_command("bad name!", 1)
    command.flag = ONEWAY_FLAG

    assert list(rig.handle(rig.connect(), command)) == []


def test_queue_minus_one_lets_the_broker_choose(rig: Any) -> None:
    reply = rig.send(rig.connect(), queue_id=-1)

    assert reply.ext_fields["queueId"] == "3"


@pytest.mark.parametrize(
    ("topic", "fields", "code", "words"),
    [
        ("T", {"e": "4"}, 1, "request queueId[4] is illegal, TopicConfig [topicName=T, "),
        ("bad name!", {}, 1, "illegal characters"),
        ("t" * 128, {}, 1, "longer than topic max length"),
        ("N", {"c": "nosuch"}, 17, "topic[N] not exist, apply first please!"),
        ("SCHEDULE_TOPIC_XXXX", {}, 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is"),
        ("T", {"f": "4"}, 16, "transaction"),
        ("T", {"i": "p\x01" + "v" * 32_800}, 13, ""),
    ],
)
def test_refused_send_names_the_reason_and_stores_nothing(
    rig: Any, topic: str, fields: dict[str, str], code: int, words: str
) -> None:
    reply = rig.send(rig.connect(), topic, **fields)

    assert code == reply.code
    assert words in reply.remark
    assert reply.ext_fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
    assert rig.store.appended_position == 0


@pytest.mark.parametrize("topic", sorted(CLOSED_TOPICS))
def test_topics_of_the_broker_s_own_take_nothing_and_are_not_made(rig: Any, topic: str) -> None:
    known = rig.broker.state.topics.find(topic)
    rig.outputs.clear()

    codes = [
        rig.send(rig.connect(), topic, properties=properties).code
        for properties in ("", "DELAY\x011")
    ]

    facts = [output for output in rig.outputs if isinstance(output, Fact)]
    assert codes == [ResponseCode.NO_PERMISSION] * 2
    assert known == rig.broker.state.topics.find(topic)
    assert rig.store.appended_position == 0
    assert rig.broker.state.refusals.counts[BrokerRefusal.CLOSED_TOPIC] == 2
    assert [fact.warning and topic in fact.text for fact in facts] == [True]


@pytest.mark.parametrize("text", ["x", "", " 1", "2147483648"])
def test_field_that_is_no_number_is_named_with_what_it_says(rig: Any, text: str) -> None:
    reply = rig.send(rig.connect(), e=text)

    remark = f"the custom field <e> is {text!r}, not a number of its size"
    assert (reply.code, reply.remark) == (1, remark)


def test_body_may_be_empty_and_is_bounded(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(message_bytes_max=100)
    rig.create_topic("T")

    codes = [rig.send(rig.connect(), body=body).code for body in (b"x" * 101, b"x" * 100, None)]

    assert codes == [ResponseCode.MESSAGE_ILLEGAL, 0, 0]
    assert [record.body for record in rig.records("T")] == [b"x" * 100, b""]


def test_queue_that_is_only_read_takes_messages_as_rocketmqs_does(rig: Any) -> None:
    topic = TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=2)
    rig.broker.state.put_topic(topic, timestamp_ms=rig.timestamp_ms)

    codes = [rig.send(rig.connect(), queue_id=queue_id).code for queue_id in (3, 4)]

    assert codes == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
    assert len(rig.records("T", 3)) == 1


def test_topic_without_write_permission_takes_nothing(rig: Any) -> None:
    rig.create_topic("R", perm=4)

    assert rig.send(rig.connect(), "R").code == ResponseCode.NO_PERMISSION


def test_unknown_topic_is_made_from_the_template_with_the_queues_asked_for(rig: Any) -> None:
    rig.send(rig.connect(), "few", d="3")
    rig.send(rig.connect(), "many", d="99")

    topics = rig.broker.state.topics
    assert _shape(topics.find("few")) == (3, 3, 6)
    assert _shape(topics.find("many")) == (8, 8, 6)


def test_send_that_makes_a_topic_waits_until_the_topic_is_written(rig: Any) -> None:
    rig.holds_work = True
    connection = rig.connect()
    rig.handle(connection, _send_command("new", 1))
    rig.outputs.clear()

    flush = rig.broker.flush_work(now_ms=rig.now_ms)
    flush.run()
    after_flush = rig.broker.flushed(flush, None, now_ms=rig.now_ms)
    journal = rig.broker.journal_work(now_ms=rig.now_ms)
    rig.handle(connection, _send_command("new", 2))
    after_journal = rig.broker.journaled(journal, None)

    assert rig.replies(after_flush) == []
    assert [change.name for change in journal.changes] == ["new"]
    assert [reply.opaque for reply in rig.replies(after_journal)] == [1]


def test_topic_whose_write_failed_is_written_before_any_message_to_it_is_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(SimulatedStorage(Losing()))

    def send(topic: str) -> int:
        return machine.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, 0), b"x")

    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", refuse)
        codes = [send("new"), send("new"), send("T")]
    codes.append(send("new"))
    machine.lose_power()

    lost, stored = ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.SUCCESS
    assert codes == [lost, lost, stored, stored]
    assert machine.broker.state.topics.find("new") is not None
    assert len(machine.bodies("new")) == 3


def test_topics_are_not_made_where_that_is_switched_off(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(auto_create_topics=False)

    assert rig.send(rig.connect(), "new").code == ResponseCode.TOPIC_NOT_EXIST


def test_topic_is_made_from_another_template_where_only_the_usual_one_is_switched_off(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(auto_create_topics=False)

    reply = rig.send(rig.connect(), "new", c=rig.config.cluster_name)

    assert reply.code == ResponseCode.SUCCESS
    assert _shape(rig.broker.state.topics.find("new")) == (4, 4, 6)


def test_topics_are_made_as_the_last_start_says(rig: Any) -> None:
    codes: list[int] = []
    for is_on, topic in ((False, "first"), (True, "second")):
        rig.config = replace(rig.config, auto_create_topics=is_on)
        rig = rig.restart()
        codes.append(rig.send(rig.connect(), topic).code)
    rig.store.close()

    assert codes == [ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUCCESS]


def test_number_of_topics_is_bounded(make_rig: Callable[..., Any]) -> None:
    rig = make_rig(topics_max=13)

    codes = [rig.send(rig.connect(), topic).code for topic in ("one", "two")]

    assert codes == [0, ResponseCode.TOPIC_NOT_EXIST]


@pytest.mark.parametrize("first", ["", "A\x01a\x02", "XPOP_CK\x01kept\x02"])
def test_handle_of_another_message_is_not_stored(rig: Any, first: str) -> None:
    """A program may send what it has popped with all properties, to a topic that others pop."""
    copied = f"{first}POP_CK\x010 1 60000 0 0 broker-a 0 7\x02UNIQ_KEY\x01K"
    one = rig.send(rig.connect(), properties=copied)
    body = encode_batch([BatchEntry(0, b"b", "B\x01b")])
    batch = rig.send(
        rig.connect(), body=body, properties=copied, code=RequestCode.SEND_BATCH_MESSAGE, m="true"
    )

    assert (one.code, batch.code) == (0, 0)
    for record in rig.records("T"):
        properties = parse_properties(record.properties)
        assert "POP_CK" not in properties
        assert properties["UNIQ_KEY"] == "K"
        assert first in record.properties


def test_batch_is_stored_as_consecutive_messages_of_one_queue(rig: Any) -> None:
    body = encode_batch(
        [BatchEntry(at, b"b%d" % at, f"UNIQ_KEY\x01K{at}\x02WAIT\x01true") for at in range(3)]
    )

    reply = rig.send(rig.connect(), body=body, code=RequestCode.SEND_BATCH_MESSAGE, m="true")

    records = rig.records("T")
    ids = reply.ext_fields["msgId"].split(",")
    assert reply.ext_fields["queueOffset"] == "0"
    assert [f"7F00000100002A9F{record.position:016X}" for record in records] == ids
    assert [(record.queue_offset, record.body, record.flag) for record in records] == [
        (0, b"b0", 0),
        (1, b"b1", 1),
        (2, b"b2", 2),
    ]
    assert [parse_properties(record.properties)["CLUSTER"] for record in records] == [
        "DefaultCluster"
    ] * 3
    assert [parse_properties(record.properties)["UNIQ_KEY"] for record in records] == [
        "K0",
        "K1",
        "K2",
    ]


@pytest.mark.parametrize(
    ("entries", "shared"),
    [
        ([], ""),
        ([BatchEntry(0, b"x", "K\x01v"), BatchEntry(0, b"x", "K\x01v\x02DELAY\x013")], ""),
        ([BatchEntry(0, b"x", "")], "DELAY\x013"),
        ([BatchEntry(0, b"x", "")] * 1_001, ""),
    ],
    ids=["empty", "delayed", "delayed as a whole", "too many"],
)
def test_batch_that_cannot_be_is_refused_whole(
    rig: Any, entries: list[BatchEntry], shared: str
) -> None:
    body = encode_batch(entries) or None

    reply = rig.send(
        rig.connect(), body=body, properties=shared, code=RequestCode.SEND_BATCH_MESSAGE
    )

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL
    assert rig.store.appended_position == 0


@pytest.mark.parametrize("properties", ["MY_DELAY\x013", "K\x01DELAY\x013", "DELAY\x010"])
def test_batch_is_taken_whose_messages_only_look_delayed(rig: Any, properties: str) -> None:
    body = encode_batch([BatchEntry(0, b"x", "K\x01v"), BatchEntry(0, b"x", properties)])

    reply = rig.send(rig.connect(), body=body, code=RequestCode.SEND_BATCH_MESSAGE)

    assert (reply.code, len(rig.records("T"))) == (ResponseCode.SUCCESS, 2)


@pytest.mark.parametrize("name", ["TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"])
def test_batches_and_half_messages_have_no_time_of_their_own(rig: Any, name: str) -> None:
    at = rig.timestamp_ms + 30_000 if name == "TIMER_DELIVER_MS" else 30
    timed = f"K\x01v\x02{name}\x01{at}"
    batch = encode_batch([BatchEntry(0, b"x", "K\x01v"), BatchEntry(0, b"x", timed)])

    replies = [
        rig.send(rig.connect(), properties=f"{timed}\x02TRAN_MSG\x01true\x02PGROUP\x01GID_p"),
        rig.send(rig.connect(), body=batch, code=RequestCode.SEND_BATCH_MESSAGE),
    ]

    assert {reply.code for reply in replies} == {ResponseCode.MESSAGE_ILLEGAL}
    assert rig.records("T") == []


@pytest.mark.parametrize(
    "properties",
    [
        "MY_TIMER_DELAY_SEC\x0130",
        "K\x01TIMER_DELAY_SEC",
        # It has waited, on another broker; here a level counts more, as on RocketMQ.
        "TIMER_DELIVER_MS\x011700000000000\x02TIMER_OUT_MS\x011700000000000",
        "TIMER_DELAY_SEC\x0130\x02DELAY\x013",
    ],
)
def test_message_that_only_looks_timed_is_taken(rig: Any, properties: str) -> None:
    assert rig.send(rig.connect(), properties=properties).code == 0


def test_malformed_batch_is_answered_with_an_error(rig: Any) -> None:
    reply = rig.send(
        rig.connect(), body=b"\x00\x00\x00\x09nonsense", code=RequestCode.SEND_BATCH_MESSAGE
    )

    assert reply.code == ResponseCode.SYSTEM_ERROR


def test_batch_to_a_retry_topic_is_refused(rig: Any) -> None:
    body = encode_batch([BatchEntry(0, b"x", "")])
    reply = rig.send(rig.connect(), retry_topic("GID_c"), body, code=RequestCode.SEND_BATCH_MESSAGE)

    assert reply.code == ResponseCode.MESSAGE_ILLEGAL


def test_batch_of_dead_letters_is_stored(rig: Any) -> None:
    sent = [b"%d" % number for number in range(rig.config.batch_count_max)]
    body = encode_batch([BatchEntry(0, each, "") for each in sent])
    reply = rig.send(rig.connect(), dlq_topic("GID_c"), body, code=RequestCode.SEND_BATCH_MESSAGE)

    assert reply.code == ResponseCode.SUCCESS, reply.remark
    assert [record.body for record in rig.records(dlq_topic("GID_c"))] == sent


@pytest.mark.parametrize(
    ("fields", "topic"),
    [
        ({"j": "15"}, retry_topic("GID_c")),
        ({"j": "16"}, dlq_topic("GID_c")),
        ({"j": "2", "l": "2"}, dlq_topic("GID_c")),
        ({"j": "16", "l": "20"}, retry_topic("GID_c")),
    ],
)
def test_message_retried_often_enough_becomes_a_dead_letter(
    rig: Any, fields: dict[str, str], topic: str
) -> None:
    reply = rig.send(rig.connect(), retry_topic("GID_c"), **fields)

    assert reply.code == ResponseCode.SUCCESS
    assert len(rig.records(topic)) == 1


def test_connection_with_256_unanswered_sends_is_not_read_until_they_are_flushed(
    rig: Any,
) -> None:
    rig.holds_work = True
    connection = rig.connect()
    outputs = [
        o for opaque in range(256) for o in rig.handle(connection, _send_command("T", opaque))
    ]

    assert outputs == [PauseReading(connection)]


def _v2(topic: str) -> dict[str, str]:
    return {
        "a": "GID_p",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": "",
    }


def _send_command(topic: str, opaque: int) -> RemotingCommand:
    return RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2, ext_fields=_v2(topic), body=b"x", opaque=opaque
    )


def _shape(topic: Any) -> tuple[int, int, int]:
    return topic.read_queue_nums, topic.write_queue_nums, topic.perm


def test_topic_is_made_with_no_fewer_queues_than_none() -> None:
    template = plain("TBW102", queue_count=8, perm=7)

    found = [inherit(template, "T", queue_count=count) for count in (-3, 0, 4, 9)]
    assert [topic.write_queue_nums for topic in found if topic] == [0, 0, 4, 8]
