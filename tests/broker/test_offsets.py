from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.conftest import send_fields

from sparrowmq.broker import consumer_offsets
from sparrowmq.broker.config_files import read_tables
from sparrowmq.broker.consumer_offsets import ConsumerOffsets
from sparrowmq.broker.state import COMMIT_AHEAD_MAX, BrokerRefusal
from sparrowmq.protocol.bodies import ConsumerOffsetTable, decode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Fact, Produce, Reply
from sparrowmq.store.file_storage import FileStorage


def commit(rig: Any, offset: int, **fields: str) -> Any:
    header = {"consumerGroup": "GID_c", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
    return rig.call(rig.connect(), RequestCode.UPDATE_CONSUMER_OFFSET, {**header, **fields})


def query(rig: Any, *, queue_id: int = 0, group: str = "GID_c", **fields: str) -> Any:
    header = {"consumerGroup": group, "topic": "T", "queueId": str(queue_id), **fields}
    return rig.call(rig.connect(), RequestCode.QUERY_CONSUMER_OFFSET, header)


def ask(rig: Any, code: int, **fields: str) -> dict[str, str]:
    reply = rig.call(rig.connect(), code, {"topic": "T", "queueId": "0", **fields})
    assert reply.code == 0
    return dict(reply.ext_fields)


def test_committed_offset_is_answered(rig: Any) -> None:
    assert commit(rig, 5).code == 0

    assert query(rig).ext_fields == {"offset": "5"}


def test_commit_may_lower_the_offset_because_resets_are_made_so(rig: Any) -> None:
    commit(rig, 5)
    commit(rig, 2)

    assert query(rig).ext_fields == {"offset": "2"}


def test_new_group_of_a_small_queue_begins_at_0(rig: Any) -> None:
    rig.send(rig.connect())

    assert query(rig).ext_fields == {"offset": "0"}
    assert query(rig, queue_id=3).ext_fields == {"offset": "0"}


def test_who_wants_no_zero_learns_that_nothing_is_committed(rig: Any) -> None:
    rig.send(rig.connect())

    codes = [query(rig, setZeroIfNotFound=wish).code for wish in ("false", "true", "")]
    none = query(rig, setZeroIfNotFound="false")
    commit(rig, 0)
    zero = query(rig, setZeroIfNotFound="false")

    # An empty text is not a wish to Java's Boolean.parseBoolean either: it means false.
    assert codes == [ResponseCode.QUERY_NOT_FOUND, 0, ResponseCode.QUERY_NOT_FOUND]
    assert none.remark == "Not found, do not set to zero, maybe this group boot first"
    assert (zero.code, zero.ext_fields) == (0, {"offset": "0"})


def test_the_table_of_all_offsets_tells_a_committed_zero_from_none(rig: Any) -> None:
    rig.send(rig.connect())
    query(rig, queue_id=1)
    commit(rig, 0)

    reply = rig.call(rig.connect(), RequestCode.GET_ALL_CONSUMER_OFFSET)

    assert decode_body(ConsumerOffsetTable, reply.body).offset_table == {"T@GID_c": {0: 0}}


def test_new_group_of_a_long_queue_decides_itself_where_to_begin(
    make_rig: Callable[..., Any],
) -> None:
    rig = make_rig(in_memory_bytes_max=500)
    rig.create_topic("T")
    for _ in range(10):
        rig.send(rig.connect())

    reply = query(rig)

    assert reply.code == ResponseCode.QUERY_NOT_FOUND


def test_new_group_of_a_queue_that_has_lost_its_begin_decides_itself_where_to_begin(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        rig.send(rig.connect())
    monkeypatch.setattr(rig.store.queues.by_key["T", 0], "min_offset", 1)

    assert query(rig).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Absent"}, 17),
        ({"queueId": "4"}, 1),
        ({"queueId": "-1"}, 1),
        ({"commitOffset": "-1"}, 1),
        ({"consumerGroup": "bad group"}, 26),
    ],
)
def test_commit_for_what_does_not_exist_is_refused(
    rig: Any, fields: dict[str, str], code: int
) -> None:
    reply = commit(rig, 1, **fields)

    assert code == reply.code
    assert rig.broker.state.offsets.table().offset_table == {}


def test_last_commit_of_a_queue_that_a_topic_hides_is_kept(rig: Any) -> None:
    rig.send(rig.connect(), queue_id=3)
    rig.create_topic("T", 2)

    assert commit(rig, 1, queueId="3").code == 0
    assert commit(rig, 0, queueId="2").code == 1
    rig.create_topic("T", 4)
    assert query(rig, queue_id=3).ext_fields == {"offset": "1"}


def test_commit_far_beyond_the_end_is_refused_counted_and_warned_of(rig: Any) -> None:
    for _ in range(2):
        rig.send(rig.connect())
    commit(rig, 2)
    rig.outputs.clear()

    replies = [commit(rig, offset) for offset in (2 + COMMIT_AHEAD_MAX + 1, 2**62)]
    rig.pull(rig.connect(), sysFlag="5", commitOffset=str(2**62))

    (fact,) = (output for output in rig.outputs if isinstance(output, Fact))
    assert [reply.code for reply in replies] == [ResponseCode.SYSTEM_ERROR] * 2
    assert "group 'GID_c' is far beyond the end of topic T queueId[0], which is 2" in fact.text
    assert fact.warning
    assert rig.broker.state.refusals.counts[BrokerRefusal.COMMIT_BEYOND_END] == 2
    assert query(rig).ext_fields == {"offset": "2"}
    assert commit(rig, 2 + COMMIT_AHEAD_MAX).code == 0


def test_offsets_are_written_within_a_second_and_only_if_they_changed(rig: Any) -> None:
    rig.advance(1_000)
    rig.holds_work = True
    commit(rig, 5)
    for _ in range(10):
        rig.now_ms += 100
        rig.broker.tick(now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    work = rig.broker.save_work(now_ms=rig.now_ms)

    table = work.tables["consumerOffset.json"]
    rig.broker.saved(work, None)
    rig.holds_work = False
    rig.advance(5_000)

    assert table.offset_table == {"T@GID_c": {0: 5}}
    assert not rig.broker.state.offsets.is_changed
    assert rig.broker.save_work(now_ms=rig.now_ms) is None


def test_offsets_that_wait_for_the_flush_are_written_right_after_it(rig: Any) -> None:
    # Beside a group that pops, offsets wait for the flush of all that was appended before them.
    rig.send(rig.connect())
    rig.broker.state.offsets.commit_popped("GID_p", "T", 0, offset=0)
    rig.advance(3_000)
    rig.holds_work = True
    commit(rig, 5)
    send = RemotingCommand(
        code=RequestCode.SEND_MESSAGE_V2, ext_fields=send_fields("T", 0), body=b"not flushed"
    )
    rig.handle(rig.connect(), send)
    rig.now_ms += 1_000
    rig.broker.tick(now_ms=rig.now_ms, timestamp_ms=rig.timestamp_ms)
    rig.holds_work = False
    rig.host.begin_rounds()

    saved = read_tables(FileStorage(rig.root)).tables.offsets

    assert saved is not None
    assert saved.offset_table == {"T@GID_p": {0: 0}, "T@GID_c": {0: 5}}


def test_offset_of_a_group_that_pops_is_written_within_a_second(rig: Any) -> None:
    rig.send(rig.connect())
    rig.advance(2_000)

    rig.broker.state.offsets.commit_popped("GID_p", "T", 0, offset=1)
    rig.advance(1_000)

    saved = read_tables(FileStorage(rig.root)).tables.offsets
    assert saved is not None
    assert saved.offset_table == {"T@GID_p": {0: 1}}


def test_encoded_offsets_have_rocketmqs_form(rig: Any) -> None:
    rig.holds_work = True
    commit(rig, 5)
    rig.broker.ask_last_save()
    work = rig.broker.save_work(now_ms=rig.now_ms)
    files = dict(work.encode())

    text = files["consumerOffset.json"].decode()

    assert text == '{\n\t"offsetTable":{\n\t\t"T@GID_c":{0:5\n\t\t}\n\t}\n}'


def test_failed_write_is_tried_again(rig: Any) -> None:
    rig.advance(1_000)
    rig.holds_work = True
    commit(rig, 5)
    rig.broker.ask_last_save()
    work = rig.broker.save_work(now_ms=rig.now_ms)

    rig.broker.saved(work, OSError("disk full"))
    rig.holds_work = False
    rig.advance(2_000)

    assert not rig.broker.state.offsets.is_changed


def test_restart_keeps_offsets(rig: Any) -> None:
    for _ in range(3):
        rig.send(rig.connect())
    commit(rig, 2)

    again = rig.restart()

    assert query(again).ext_fields == {"offset": "2"}
    again.store.close()


def test_offset_beyond_the_end_at_the_start_is_cut_in_the_file_too() -> None:
    offsets = ConsumerOffsets()
    table = ConsumerOffsetTable(offset_table={"T@GID_c": {0: 9, 1: 3}})

    count = offsets.load(table, end_of=lambda topic, queue_id: 5)

    assert (count, offsets.is_changed) == (1, True)
    assert offsets.table().offset_table == {"T@GID_c": {0: 5, 1: 3}}


def test_all_offsets_are_answered(rig: Any) -> None:
    commit(rig, 5)
    commit(rig, 6, queueId="2")

    reply = rig.call(rig.connect(), RequestCode.GET_ALL_CONSUMER_OFFSET)

    table = decode_body(ConsumerOffsetTable, reply.body)
    assert table.offset_table == {"T@GID_c": {0: 5, 2: 6}}


def test_offsets_of_a_queue(rig: Any) -> None:
    for step in range(3):
        rig.timestamp_ms += 1_000 * step
        rig.send(rig.connect())

    assert ask(rig, RequestCode.GET_MAX_OFFSET) == {"offset": "3"}
    assert ask(rig, RequestCode.GET_MIN_OFFSET) == {"offset": "0"}
    assert ask(rig, RequestCode.GET_MAX_OFFSET, queueId="3") == {"offset": "0"}
    assert ask(rig, RequestCode.GET_EARLIEST_MSG_STORETIME) == {"timestamp": "1700000000000"}
    assert ask(rig, RequestCode.GET_EARLIEST_MSG_STORETIME, queueId="3") == {"timestamp": "-1"}


@pytest.mark.parametrize(
    ("after_ms", "nearest", "lower", "upper"),
    [
        (-1_000, 0, 0, 0),
        (0, 0, 0, 0),
        (1, 0, 1, 0),
        (999, 1, 1, 0),
        (1_000, 1, 1, 1),
        (2_000, 2, 2, 2),
        (2_001, 2, 3, 2),
        (10**12, 2, 3, 2),
    ],
)
def test_offset_of_a_time(rig: Any, after_ms: int, nearest: int, lower: int, upper: int) -> None:
    begun_ms = rig.timestamp_ms
    for step in range(3):
        rig.timestamp_ms = begun_ms + 1_000 * step
        rig.send(rig.connect())

    def find(**fields: str) -> int:
        fields["timestamp"] = str(begun_ms + after_ms)
        return int(ask(rig, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, **fields)["offset"])

    assert find() == nearest
    assert find(boundaryType="LOWER") == find(boundaryType="lower") == lower
    assert find(boundaryType="UPPER") == find(boundaryType="upper") == upper


def test_table_of_all_offsets_lets_others_be_served_in_between(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparrowmq.broker.processors.offsets.OFFSETS_PER_STEP", 10)
    offsets = rig.broker.state.offsets
    for number in range(95):
        for queue_id in range(4):
            offsets.commit(f"GID_{number}", "T", queue_id, offset=number)
    command = RemotingCommand(code=RequestCode.GET_ALL_CONSUMER_OFFSET)

    (output,) = rig.broker.handle(command, rig.connect(), now_ms=0, timestamp_ms=0)
    steps = 0
    while isinstance(output, Produce):
        # Groups come and go meanwhile.
        offsets.remove_group("GID_94")
        (output,) = output.make()
        steps += 1

    assert steps > 9
    assert isinstance(output, Reply)
    table = decode_body(ConsumerOffsetTable, output.command.body).offset_table
    assert {f"T@GID_{n}": dict.fromkeys(range(4), n) for n in range(94)} == table


def test_table_of_no_offsets_is_empty(rig: Any) -> None:
    reply = rig.call(rig.connect(), RequestCode.GET_ALL_CONSUMER_OFFSET)

    assert decode_body(ConsumerOffsetTable, reply.body).offset_table == {}


def test_groups_that_pull_and_never_commit_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_offsets, "_BEGUN_MAX", 2)
    offsets = ConsumerOffsets()
    for number in range(4):
        offsets.note_begin(f"G{number}", "T", 0, offset=40)
        offsets.note_begin(f"G{number}", "T", 0, offset=44)
    for number in range(4):
        offsets.commit(f"G{number}", "T", 0, offset=50)

    # The oldest are forgotten: these groups' first commits are where they begin.
    assert offsets.totals() == {"T@G0": 0, "T@G1": 0, "T@G2": 10, "T@G3": 10}


def test_removed_group_or_topic_begins_anew() -> None:
    offsets = ConsumerOffsets()
    for group, topic in (("G", "T"), ("G", "U"), ("H", "U"), ("H", "V")):
        offsets.note_begin(group, topic, 0, offset=40)
    offsets.remove_group("G")
    offsets.remove_topic("U")
    for group, topic in (("G", "T"), ("G", "U"), ("H", "U"), ("H", "V")):
        offsets.commit(group, topic, 0, offset=50)

    assert offsets.totals() == {"T@G": 0, "U@G": 0, "U@H": 0, "V@H": 10}


def test_copy_of_the_offsets_stays_as_it_was_and_a_removed_group_begins_anew() -> None:
    offsets = ConsumerOffsets()
    offsets.commit("G", "T", 0, offset=5)
    copy = offsets.table()
    offsets.commit("G", "T", 0, offset=7)
    before = offsets.find_total("G", "T")
    offsets.remove_group("G")
    offsets.commit("G", "T", 0, offset=5)

    assert copy.offset_table == {"T@G": {0: 5}}
    assert (before, offsets.find_total("G", "T")) == (2, 0)
