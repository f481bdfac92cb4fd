from __future__ import annotations

import json
from typing import Any

import pytest

from processor_time import takes_less_than
from sparrowmq.broker.processors import group_offsets
from sparrowmq.broker.processors.group_offsets import ENTRIES_MAX, STATUS_TIMEOUT_MS
from sparrowmq.broker.relays import RELAYS_MAX
from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import OFFSET_MAX
from sparrowmq.protocol.bodies import (
    GetConsumerStatusBody,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    ResetOffsetBody,
    TopicStatsTable,
    decode_body,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import ONEWAY_FLAG, RemotingCommand, response_to
from sparrowmq.serving.connections import Connection, Push, Reply
from steps import made

GROUP = "GID_c"
START_MS = 1_700_000_000_000


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


def join(rig: Any, client_id: str, *, topic: str = "T") -> Connection:
    connection: Connection = rig.connect()
    data = {"topic": topic, "subString": "*", "subVersion": 1}
    consumer = {"groupName": GROUP, "subscriptionDataSet": [data]}
    body = json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()
    assert rig.call(connection, RequestCode.HEART_BEAT, None, body).code == 0
    return connection


@pytest.fixture
def stored(rig: Any) -> Any:
    """Three messages in queue 0 and one in queue 1, a second apart; GID_c has had some."""
    for queue_id in (0, 0, 0, 1):
        rig.send(rig.connect(), queue_id=queue_id)
        rig.now_ms += 1_000
        rig.timestamp_ms += 1_000
    for queue_id, offset in ((0, 2), (1, 1), (2, 0)):
        rig.broker.state.offsets.commit(GROUP, "T", queue_id, offset=offset)
    rig.outputs.clear()
    return rig


def reset(rig: Any, timestamp_ms: int, **fields: str) -> tuple[RemotingCommand, list[Push]]:
    header = {"topic": "T", "group": GROUP, "timestamp": str(timestamp_ms), "isForce": "true"}
    request = RemotingCommand(
        code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext_fields={**header, **fields}
    )
    outputs = rig.handle(rig.connect(), request)
    (reply,) = rig.replies(outputs)
    return reply, [output for output in outputs if isinstance(output, Push)]


def offsets_of(command: RemotingCommand) -> dict[int, int]:
    table = decode_body(ResetOffsetBody, command.body or b"").offset_table
    assert {queue.topic for queue in table} == {"T"}
    return {queue.queue_id: offset for queue, offset in table.items()}


@pytest.mark.parametrize(
    ("timestamp_ms", "force", "expected"),
    [
        (START_MS + 1_000, "true", {0: 1, 1: 0, 2: 0, 3: 0}),
        (START_MS, "true", {0: 0, 1: 0, 2: 0, 3: 0}),
        (-1, "true", {0: 3, 1: 1, 2: 0, 3: 0}),
        (-1, "false", {0: 2, 1: 1, 2: 0, 3: 0}),
    ],
)
def test_every_member_is_told_to_go_on_from_an_instant(
    stored: Any, timestamp_ms: int, force: str, expected: dict[int, int]
) -> None:
    members = {join(stored, "a"), join(stored, "b")}

    reply, pushes = reset(stored, timestamp_ms, isForce=force)

    assert (reply.code, offsets_of(reply)) == (0, expected)
    assert members == {push.connection for push in pushes}
    for push in pushes:
        assert push.command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        assert push.command.flag & ONEWAY_FLAG
        assert offsets_of(push.command) == expected
        fields = push.command.ext_fields or {}
        assert (fields["topic"], fields["group"]) == ("T", GROUP)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"topic": "none"}, ResponseCode.SYSTEM_ERROR, "no topic in this broker. topic=none"),
        ({"group": "none"}, ResponseCode.SYSTEM_ERROR, "THe consumer group <none> not exist"),
        ({}, ResponseCode.CONSUMER_NOT_ONLINE, "Consumer not online, so can not reset offset"),
    ],
)
def test_reset_of_nobody_says_why(
    stored: Any, fields: dict[str, str], code: int, words: str
) -> None:
    reply, pushes = reset(stored, -1, **fields)

    assert (reply.code, pushes) == (code, [])
    assert words in (reply.remark or "")


# mqadmin 5.x asks so for `resetOffsetByTime -b BROKER -q 0 -o 1`: without force, from an instant.
ONE_QUEUE = {"queueId": "0", "offset": "1", "isForce": "false"}


def test_members_move_in_the_one_queue_that_a_tool_names_to_its_offset(stored: Any) -> None:
    member = join(stored, "a")

    reply, (push,) = reset(stored, 0, **ONE_QUEUE)

    assert (reply.code, offsets_of(reply)) == (0, {0: 1})
    assert (push.connection, offsets_of(push.command)) == (member, {0: 1})
    assert not {"queueId", "offset"} & (push.command.ext_fields or {}).keys()


@pytest.mark.parametrize("names_none", [{"queueId": "-1", "offset": "-1"}, {"offset": "2"}])
def test_no_queue_is_every_queue(stored: Any, names_none: dict[str, str]) -> None:
    join(stored, "a")

    reply, _ = reset(stored, START_MS + 1_000, **names_none)

    assert offsets_of(reply) == {0: 1, 1: 0, 2: 0, 3: 0}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"offset": "3", "isForce": "false"}, 3),
        ({"isForce": "true", "offset": "-1"}, 3),
        ({"isForce": "false"}, 2),
    ],
)
def test_queue_of_a_group_without_members_is_committed(
    stored: Any, fields: dict[str, str], expected: int
) -> None:
    reply, pushes = reset(stored, -1, queueId="0", **fields)

    offsets = stored.broker.state.offsets.queues(GROUP, "T")
    assert (reply.code, offsets_of(reply), pushes) == (0, {0: expected}, [])
    assert dict(offsets) == {0: expected, 1: 1, 2: 0}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"queueId": "4"}, "4@T is not exist!"),
        ({"offset": "4"}, "Target offset 4 not in consume queue range [0-3]"),
        ({"offset": "-2"}, "Target offset -2 not in consume queue range [0-3]"),
    ],
)
def test_reset_to_what_a_topic_does_not_have_says_why(
    stored: Any, fields: dict[str, str], words: str
) -> None:
    join(stored, "a")

    reply, pushes = reset(stored, 0, **{**ONE_QUEUE, **fields})

    assert (reply.code, reply.remark, pushes) == (ResponseCode.SYSTEM_ERROR, words, [])


def test_queues_that_a_topic_only_reads_are_counted_and_reset_too(stored: Any) -> None:
    fields = {"topic": "T", "readQueueNums": "4", "writeQueueNums": "1", "perm": "6"}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    template = {"defaultTopic": "TBW102"}
    shrink = RequestCode.UPDATE_AND_CREATE_TOPIC
    assert stored.call(stored.connect(), shrink, fields | more | template).code == 0
    join(stored, "a")

    reply, (push,) = reset(stored, 0)
    stats = stored.call(stored.connect(), RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"})
    asked = {"topic": "T", "group": GROUP}
    spans = stored.call(stored.connect(), RequestCode.QUERY_CONSUME_TIME_SPAN, asked)

    every = [queue(at) for at in range(4)]
    assert offsets_of(reply) == offsets_of(push.command) == dict.fromkeys(range(4), 0)
    assert sorted(decode_body(TopicStatsTable, stats.body).offset_table) == every
    span_set = decode_body(QueryConsumeTimeSpanBody, spans.body).consume_time_span_set
    assert [each.message_queue for each in span_set] == every


def ask_status(rig: Any, client_id: str = "") -> tuple[Connection, list[Push], list[Any]]:
    tool = rig.connect()
    request = RemotingCommand(
        code=RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        ext_fields={"topic": "T", "group": GROUP, "clientAddr": client_id},
    )
    outputs = rig.handle(tool, request)
    return tool, [o for o in outputs if isinstance(o, Push)], rig.replies(outputs)


def test_offsets_of_all_members_come_in_one_answer(stored: Any) -> None:
    members = {join(stored, "a"): "a", join(stored, "b"): "b"}
    tool, questions, early = ask_status(stored)

    replies: list[Any] = []
    for push in questions:
        assert push.command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        own = {queue(0 if members[push.connection] == "a" else 1): 5}
        body = encode_body(GetConsumerStatusBody(message_queue_table=own))
        assert early + replies == []
        replies = stored.handle(push.connection, response_to(push.command, body=body))

    (reply,) = replies
    assert tool is reply.connection
    table = decode_body(GetConsumerStatusBody, reply.command.body).consumer_table
    assert {"a": {queue(0): 5}, "b": {queue(1): 5}} == table


def test_members_that_do_not_answer_are_left_out(stored: Any) -> None:
    silent, broken, good = (join(stored, name) for name in ("silent", "broken", "good"))
    _, questions, _ = ask_status(stored)
    by_member = {push.connection: push.command for push in questions}
    body = encode_body(GetConsumerStatusBody(message_queue_table={queue(0): 5}))

    stored.handle(broken, response_to(by_member[broken], body=b"{"))
    stored.handle(good, response_to(by_member[good], body=body))
    (reply,) = stored.replies(stored.advance(STATUS_TIMEOUT_MS + 100))

    assert silent in by_member
    table = decode_body(GetConsumerStatusBody, reply.body).consumer_table
    assert {"good": {queue(0): 5}, "broken": {}} == table


def test_answers_of_members_are_read_up_to_a_bound(
    stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = encode_body(GetConsumerStatusBody(message_queue_table={queue(0): 5}))
    monkeypatch.setattr(group_offsets, "STATUS_BYTES_MAX", len(body))
    for name in ("a", "b"):
        join(stored, name)
    _, questions, _ = ask_status(stored)
    answers = [
        stored.handle(push.connection, response_to(push.command, body=body)) for push in questions
    ]

    (reply,) = answers[-1]
    assert len(decode_body(GetConsumerStatusBody, reply.command.body).consumer_table) == 1


def test_answers_of_members_that_take_long_to_read_hold_up_no_other_peer(stored: Any) -> None:
    """A member may answer with as many queues as it likes: 18,000 take a second to read."""
    member = join(stored, "a")
    _, (question,), _ = ask_status(stored)
    own = {queue(queue_id): 5 for queue_id in range(15_000)}
    body = encode_body(GetConsumerStatusBody(message_queue_table=own))

    response = response_to(question.command, body=body)
    with takes_less_than(0.05):
        outputs = stored.broker.handle(response, member, now_ms=stored.now_ms, timestamp_ms=0)
    (reply,) = made(outputs)

    assert isinstance(reply, Reply)
    table = decode_body(GetConsumerStatusBody, reply.command.body).consumer_table
    assert table == {"a": own}


def test_one_member_may_be_asked_alone(stored: Any) -> None:
    join(stored, "a")
    wanted = join(stored, "b")

    _, questions, _ = ask_status(stored, "b")

    assert [push.connection for push in questions] == [wanted]


def test_status_of_nobody_and_of_too_many_is_refused(stored: Any) -> None:
    _, _, (nobody,) = ask_status(stored)
    join(stored, "a")
    for _ in range(RELAYS_MAX):
        ask_status(stored)
    _, questions, (busy,) = ask_status(stored)

    assert nobody.remark == f"No Any Consumer online in the consumer group: [{GROUP}]"
    assert (questions, busy.code) == ([], ResponseCode.SYSTEM_BUSY)


def clone(rig: Any, **fields: str) -> RemotingCommand:
    header = {"srcGroup": GROUP, "destGroup": "GID_new", "offline": "false", **fields}
    reply: RemotingCommand = rig.call(rig.connect(), RequestCode.CLONE_GROUP_OFFSET, header)
    return reply


@pytest.mark.parametrize("fields", [{}, {"topic": "T"}])
def test_a_group_gets_the_offsets_of_another(stored: Any, fields: dict[str, str]) -> None:
    assert clone(stored, **fields).code == 0

    offsets = stored.broker.state.offsets
    assert {0: 2, 1: 1, 2: 0} == offsets.queues("GID_new", "T") == offsets.queues(GROUP, "T")


def test_a_topic_that_the_group_subscribes_no_more_is_copied_only_offline(stored: Any) -> None:
    join(stored, "a", topic="other")

    assert clone(stored).code == 0
    before = dict(stored.broker.state.offsets.queues("GID_new", "T"))
    assert clone(stored, offline="true").code == 0

    assert before == {}
    assert stored.broker.state.offsets.queues("GID_new", "T") == {0: 2, 1: 1, 2: 0}


def test_offsets_of_a_topic_that_is_gone_are_not_copied(stored: Any) -> None:
    """A topic that is made again begins at 0."""
    stored.broker.state.offsets.commit(GROUP, "gone", 0, offset=5)

    assert clone(stored).code == 0

    assert stored.broker.state.offsets.topics_of_group("GID_new") == ["T"]


def test_an_illegal_group_gets_no_offsets(stored: Any) -> None:
    reply = clone(stored, destGroup="no such group")

    assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def correct(rig: Any, **fields: str) -> dict[int, int]:
    reply = rig.call(
        rig.connect(),
        RequestCode.QUERY_CORRECTION_OFFSET,
        {"topic": "T", "compareGroup": "GID_compared", **fields},
    )
    assert reply.code == 0
    return decode_body(QueryCorrectionOffsetBody, reply.body).correction_offsets


def test_the_lowest_offsets_of_a_topic_s_groups(stored: Any) -> None:
    offsets = stored.broker.state.offsets
    offsets.commit("GID_ahead", "T", 0, offset=3)
    plain = correct(stored)
    offsets.commit("GID_compared", "T", 1, offset=0)
    filtered = correct(stored, filterGroups="GID_compared,GID_other")

    assert plain == {0: 2, 1: 1, 2: 0}
    assert filtered == {0: 2, 1: OFFSET_MAX, 2: 0}
    assert offsets.queues("GID_compared", "T") == {1: 0}


def test_offsets_of_expired_messages_count_neither_as_lowest_nor_as_next(
    stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.broker.state.offsets.commit("GID_behind", "T", 0, offset=0)
    monkeypatch.setattr(stored.store.queues.by_key["T", 0], "min_offset", 1)
    fields = {"topic": "T", "group": "GID_behind"}
    reply = stored.call(stored.connect(), RequestCode.QUERY_CONSUME_TIME_SPAN, fields)

    assert correct(stored)[0] == 2
    first, *_ = decode_body(QueryConsumeTimeSpanBody, reply.body).consume_time_span_set
    # Of the message at offset 1, stored three seconds ago.
    assert (first.message_queue.queue_id, first.delay_time_ms) == (0, 3_000)


def test_how_old_messages_are_and_how_far_behind_a_group_is(stored: Any) -> None:
    def spans(group: str) -> dict[int, tuple[int, int, int, int]]:
        fields = {"topic": "T", "group": group}
        reply = stored.call(stored.connect(), RequestCode.QUERY_CONSUME_TIME_SPAN, fields)
        body = decode_body(QueryConsumeTimeSpanBody, reply.body)
        return {
            span.message_queue.queue_id: (
                span.min_timestamp_ms,
                span.max_timestamp_ms,
                span.consume_timestamp_ms,
                span.delay_time_ms,
            )
            for span in body.consume_time_span_set
        }

    known, unknown = spans(GROUP), spans("GID_unknown")

    # Now it is START_MS + 4,000.
    assert known[0] == (START_MS, START_MS + 2_000, START_MS + 1_000, 2_000)
    assert known[1] == (START_MS + 3_000, START_MS + 3_000, START_MS + 3_000, 0)
    assert known[2] == (-1, -1, -1, 0)
    # A group without an offset is behind by all there is.
    assert unknown[0] == (START_MS, START_MS + 2_000, START_MS, 4_000)


def test_time_span_of_no_topic_is_an_error(rig: Any) -> None:
    fields = {"topic": "none", "group": GROUP}
    reply = rig.call(rig.connect(), RequestCode.QUERY_CONSUME_TIME_SPAN, fields)

    assert (reply.code, reply.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[none] not exist")


def entries(rig: Any, **fields: str) -> RemotingCommand:
    header = {"topic": "T", "queueId": "0", "index": "0", "count": "10", **fields}
    reply: RemotingCommand = rig.call(rig.connect(), RequestCode.QUERY_CONSUME_QUEUE, header)
    return reply


def test_entries_of_a_queue_are_shown_as_they_stand(stored: Any) -> None:
    join(stored, "a")

    reply = entries(stored, index="1", consumerGroup=GROUP)

    body = decode_body(QueryConsumeQueueResponseBody, reply.body or b"")
    expected = [stored.store.queues.entry("T", 0, index) for index in (1, 2)]
    assert [(one.position, one.size, one.tags_code) for one in body.queue_data] == expected
    assert (body.max_queue_index, body.min_queue_index) == (3, 0)
    assert body.subscription_data is not None
    assert (body.subscription_data.topic, body.filter_data) == ("T", "null")


def test_entries_in_one_answer_are_bounded(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "ENTRIES_MAX", 2)

    body = decode_body(QueryConsumeQueueResponseBody, entries(stored).body or b"")

    assert len(body.queue_data) == 2


def test_an_index_beyond_the_end_has_no_entries(stored: Any) -> None:
    reply = entries(stored, index="3", count=str(ENTRIES_MAX + 1), consumerGroup="GID_gone")

    assert (reply.code, reply.remark) == (0, "Index 3 of 0@T is not exist!")
    body = decode_body(QueryConsumeQueueResponseBody, reply.body or b"")
    assert (body.queue_data, body.filter_data) == ([], "GID_gone@T is not online!")


@pytest.mark.parametrize("fields", [{"queueId": "9"}, {"queueId": "-1"}, {"topic": "none"}])
def test_entries_of_no_queue_are_an_error(stored: Any, fields: dict[str, str]) -> None:
    reply = entries(stored, **fields)

    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "is not exist!" in (reply.remark or "")
