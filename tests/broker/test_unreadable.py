"""A disk that cannot be read or written for a while: the broker tells it, and loses nothing."""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from tests.broker.conftest import pull_fields, send_fields
from tests.broker.disk_machine import GROUP, Machine

from small_stores import split_records
from sparrowmq.model.names import POP_LOG_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC
from sparrowmq.protocol.bodies import SubscriptionGroupConfig, TopicConfig
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.headers import encode_header
from sparrowmq.protocol.pop_handle import INIT_MIN, PopMessageRequestHeader, decode_popped
from sparrowmq.serving.connections import Fact
from sparrowmq.simulation.faulty_disk import SimulatedFile, SimulatedStorage
from sparrowmq.store.checkpoint import CHECKPOINT_PATH
from sparrowmq.store.consume_queue import CONSUME_QUEUE_DIRECTORY
from sparrowmq.store.message_index import INDEX_DIRECTORY
from sparrowmq.store.storage import Bytes

# By a level, and three times of their own, in different slots.
DELAYS = {
    "level": ["DELAY\x011"],
    "timers": [f"UNIQ_KEY\x01ID{ms}\x02TIMER_DELAY_MS\x01{ms}" for ms in (1_000, 1_001, 1_500)],
}
CONDITION = {"exp_type": "SQL92", "exp": "TAGS = 'A'"}
UNREADABLE = OSError(errno.EIO, "the disk does not answer")


@pytest.fixture
def machine() -> Machine:
    return Machine(SimulatedStorage(Random(1)))


@pytest.mark.parametrize("is_filed", [False, True], ids=["not filed yet", "filed"])
@pytest.mark.parametrize("delays", DELAYS.values(), ids=DELAYS)
def test_delayed_messages_come_once_after_a_time_in_which_they_could_not_be_read(
    machine: Machine, delays: list[str], is_filed: bool
) -> None:
    for number, delay in enumerate(delays):
        machine.send(b"%d" % number, delay)
    if is_filed:
        machine.pass_time(500)
    machine.commit(0)

    machine.storage.read_error = UNREADABLE
    machine.outputs.clear()
    machine.pass_time(3_000)
    facts = [fact.text for fact in machine.outputs if isinstance(fact, Fact)]
    machine.storage.mend()
    saved = machine.saved_offset()
    machine.pass_time(1_000)
    before = machine.bodies("T")
    machine.lose_power()
    machine.pass_time(3_000)

    assert before == [b"%d" % number for number in range(len(delays))]
    assert machine.bodies("T") == before
    assert facts == [f"delayed messages cannot be read: {UNREADABLE}"]
    # The rest of a tick's work went on.
    assert saved == 0


def pop(machine: Machine, *, count_max: int = 1, **filtered: Any) -> list[bytes]:
    """Pop messages for a second; return what a client can read of them."""
    header = PopMessageRequestHeader(
        consumer_group=GROUP,
        topic="T",
        queue_id=0,
        max_msg_nums=count_max,
        invisible_time_ms=1_000,
        poll_time_ms=0,
        born_timestamp_ms=machine.now_ms,
        init_mode=INIT_MIN,
        **filtered,
    )
    answer = machine.ask(RequestCode.POP_MESSAGE, encode_header(header))
    return [each.body for each in decode_popped(answer.body or b"", broker_name="b")]


def test_popped_message_is_a_dead_letter_once_it_can_be_read(machine: Machine) -> None:
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0)
    machine.broker.state.put_group(group, timestamp_ms=machine.now_ms)
    machine.send(b"m")
    assert pop(machine) == [b"m"]

    machine.storage.read_error = UNREADABLE
    machine.pass_time(3_000)
    machine.storage.mend()
    machine.pass_time(10_000)

    assert machine.bodies(f"%DLQ%{GROUP}") == [b"m"]


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (RequestCode.PULL_MESSAGE, {"sysFlag": "6", "suspendTimeoutMillis": "9000"}),
        (
            RequestCode.POP_MESSAGE,
            {"invisibleTime": "1", "pollTime": "9000", "bornTime": "0", "initMode": "0"},
        ),
    ],
)
def test_waiting_pull_or_pop_is_answered_whose_message_cannot_be_read(
    machine: Machine, code: int, fields: dict[str, str]
) -> None:
    assert machine.serve(code, pull_fields("T", 0, **fields)) == []

    machine.storage.read_error = UNREADABLE
    waiting, sent = machine.serve(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0), b"m")[::-1]

    assert (waiting.code, sent.code) == (ResponseCode.SYSTEM_ERROR, ResponseCode.SUCCESS)
    assert str(UNREADABLE) in (waiting.remark or "")


def test_entries_of_queues_that_cannot_be_written_are_told_once(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SimulatedFile.write

    def fail_for_queues(file: SimulatedFile, position: int, data: Bytes) -> None:
        if file.path.startswith(CONSUME_QUEUE_DIRECTORY):
            raise OSError(*UNREADABLE.args)
        write(file, position, data)

    # More than wait in memory, so that the entries are tried again and again.
    sent = [b"%d" % number for number in range(300)]
    with monkeypatch.context() as patch:
        patch.setattr(SimulatedFile, "write", fail_for_queues)
        facts = []
        for body in sent:
            machine.send(body)
            machine.pass_time(100)
            facts += [fact.text for fact in machine.outputs if isinstance(fact, Fact)]
        before = machine.bodies("T")
    machine.outputs.clear()
    machine.pass_time(10_000)
    facts += [fact.text for fact in machine.outputs if isinstance(fact, Fact)]

    assert facts == [
        f"entries of consume queues cannot be written: {UNREADABLE}",
        "entries of consume queues are written again",
    ]
    assert len(before) < len(sent)
    assert machine.bodies("T") == sent


def test_checkpoints_that_find_no_room_are_told_once_and_keep_no_message(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SimulatedFile.write

    def refuse(file: SimulatedFile, position: int, data: Bytes) -> None:
        if file.path == CHECKPOINT_PATH:
            raise OSError(errno.ENOSPC, "no room")
        write(file, position, data)

    facts = []
    monkeypatch.setattr(SimulatedFile, "write", refuse)
    for number in range(8):
        machine.send(b"%d" % number)
        machine.pass_time(20_000)
        facts += [fact.text for fact in machine.outputs if isinstance(fact, Fact)]
        if number == 4:
            monkeypatch.undo()

    assert machine.bodies("T") == [b"%d" % number for number in range(8)]
    assert facts == [
        "checkpoints cannot be written: [Errno 28] no room",
        "checkpoints are written again",
    ]


@pytest.mark.parametrize("call", ["sync", "read"])
def test_an_index_that_goes_on_at_the_next_start_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    work = getattr(SimulatedFile, call)

    def fail_for_index(file: SimulatedFile, *args: int) -> object:
        if file.path.startswith(INDEX_DIRECTORY):
            raise OSError(*UNREADABLE.args)
        return work(file, *args)

    monkeypatch.setattr(SimulatedFile, call, fail_for_index)
    facts = []
    for number in range(3):
        machine.send(b"%d" % number, "KEYS\x01k")
        machine.pass_time(20_000)
        facts += [fact.text for fact in machine.outputs if isinstance(fact, Fact)]

    assert facts == [f"new messages cannot be indexed until the next start: {UNREADABLE}"]
    # A tool that is told so does not ask again later.
    assert find_by_key(machine, "k") == (ResponseCode.SYSTEM_ERROR, [])


def test_damaged_records_that_nobody_pulls_are_passed_over_and_told(machine: Machine) -> None:
    half = "TRAN_MSG\x01true\x02PGROUP\x01GID_p\x02UNIQ_KEY\x01ID"
    for properties in ("DELAY\x011", DELAYS["timers"][2], half):
        machine.send(b"damaged", properties)
        machine.send(b"whole", properties)
    inode = machine.storage.inodes["commitlog/00000000000000000000"]
    inode.data[:] = inode.data.replace(b"damaged", b"damages")
    machine.outputs.clear()
    machine.pass_time(80_000)

    assert machine.bodies("T") == [b"whole"] * 2
    told = [each.text for each in machine.outputs if isinstance(each, Fact) and each.error]
    assert ["".join(text.partition(" at log position ")[:2]) for text in told] == [
        f"damaged records are passed over: {topic} queue 0 offset 0 at log position "
        for topic in (SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC)
    ]


def send_largest(machine: Machine, topic: str, properties: str = "") -> None:
    """Send the largest message that fits into a file of the log."""
    fields, size = send_fields(topic, 0, properties), 65_536 - 100
    while machine.call(RequestCode.SEND_MESSAGE_V2, fields, bytes(size)) != ResponseCode.SUCCESS:
        size -= 1


@pytest.mark.parametrize("delays", DELAYS.values(), ids=DELAYS)
def test_message_too_large_with_its_real_topic_is_told_and_delays_no_later_one(
    machine: Machine, delays: list[str]
) -> None:
    topic = TopicConfig(topic_name="T" * 120, read_queue_nums=1, write_queue_nums=1)
    machine.broker.state.put_topic(topic, timestamp_ms=machine.now_ms)
    send_largest(machine, topic.topic_name, delays[0])
    machine.pass_time(100)
    machine.send(b"later", delays[-1])
    machine.outputs.clear()
    machine.pass_time(3_000)

    assert machine.bodies("T") == [b"later"]
    assert machine.bodies(topic.topic_name) == []
    assert len([each for each in machine.outputs if isinstance(each, Fact) and each.error]) == 1


def test_half_message_too_large_to_be_kept_without_an_outcome_is_told(machine: Machine) -> None:
    send_largest(machine, "T", "TRAN_MSG\x01true\x02PGROUP\x01GID_p")
    machine.outputs.clear()
    machine.pass_time(80_000)

    (told,) = [each for each in machine.outputs if isinstance(each, Fact)]
    assert told.error
    assert f"{TRANS_HALF_TOPIC} queue 0 offset 0" in told.text


def test_message_too_large_for_a_dead_letter_is_told(machine: Machine) -> None:
    group = SubscriptionGroupConfig(group_name=GROUP, retry_max_times=0)
    machine.broker.state.put_group(group, timestamp_ms=machine.now_ms)
    send_largest(machine, "T")
    assert len(pop(machine)) == 1
    machine.outputs.clear()
    machine.pass_time(3_000)

    assert len(machine.broker.state.pops) == 0
    assert len([each for each in machine.outputs if isinstance(each, Fact) and each.error]) == 1


@pytest.mark.parametrize(
    ("filtered", "at"),
    [({}, 4), ({}, 88), ({"exp": "A"}, 4), (CONDITION, 4), (CONDITION, 2)],
    ids=["all", "all, in the body", "by tags", "by a condition", "by a condition, the size"],
)
def test_messages_popped_with_a_damaged_one_are_delivered_and_it_alone_is_passed_over(
    filtered: dict[str, str], at: int
) -> None:
    machine = Machine(SimulatedStorage(Random(1)))
    sent = [b"%d" % number for number in range(6)]
    for body in sent:
        machine.send(body, "TAGS\x01" + ("B" if body == b"1" else "A"))
    entry = machine.store.queues.entry("T", 0, 2)
    assert entry is not None
    machine.storage.inodes["commitlog/00000000000000000000"].data[entry[0] + at] ^= 1
    wanted = [body for body in sent if body != b"2" and (body != b"1" or not filtered)]

    found = {body for _ in sent for body in pop(machine, count_max=32, **filtered)}
    machine.pass_time(1_000)
    found |= {body for _ in sent for body in pop(machine, count_max=32, **filtered)}
    machine.outputs.clear()
    machine.pass_time(1_000)

    assert sorted(found) == wanted
    told = [each.text for each in machine.outputs if isinstance(each, Fact) and each.error]
    place = f"T queue 0 offset 2 at log position {entry[0]}"
    assert told == [f"damaged records are passed over: {place}"]


@pytest.mark.parametrize("damaged", range(3))
def test_messages_popped_since_a_damaged_record_of_the_pop_log_come_again(damaged: int) -> None:
    machine = Machine(SimulatedStorage(Random(1)), store_settings={"verify_bytes": 0})
    sent = [b"%d" % number for number in range(3)]
    for body in sent:
        machine.send(body)
    assert [pop(machine) for _ in sent] == [[body] for body in sent]
    entry = machine.store.queues.entry(POP_LOG_TOPIC, 0, damaged)
    assert entry is not None
    # The checkpoint comes after it, and no table of the pops.
    for body in (b"3", b"4", b"5"):
        machine.pass_time(40_000)
        machine.send(body)
        sent.append(body)
    machine.storage.kill()
    inode = machine.storage.inodes["commitlog/00000000000000000000"]
    inode.data[entry[0] + 90] ^= 1
    inode.replace(bytes(inode.data))
    machine.load()
    machine.pass_time(2_000)

    (told,) = [each.text for each in machine.outputs if isinstance(each, Fact) and each.error]
    assert f"{POP_LOG_TOPIC} queue 0 offset {damaged} at log position {entry[0]}" in told
    assert sorted(pop(machine)[0] for _ in sent) == sent
    assert pop(machine) == []
    # The next start reads no damaged record.
    machine.storage.kill()
    machine.load()
    assert pop(machine) == []


def test_no_new_message_overtakes_those_of_a_pop_in_order_whose_first_has_expired() -> None:
    machine = Machine(SimulatedStorage(Random(1)))
    for body in (b"0", b"1", b"2"):
        machine.send(body)
    assert pop(machine, count_max=3, order=True) == [b"0", b"1", b"2"]
    machine.send(b"3")
    entry = machine.store.queues.entry("T", 0, 0)
    assert entry is not None
    # As of an expired message, nothing can be read.
    machine.storage.inodes["commitlog/00000000000000000000"].data[entry[0] + 2] ^= 1
    machine.pass_time(1_000)

    found = []
    for _ in range(2):
        found += pop(machine, order=True)
        machine.pass_time(1_000)
    assert found == [b"1", b"1"]


def find_by_key(machine: Machine, key: str) -> tuple[int, list[bytes]]:
    fields = {"topic": "T", "key": key, "maxNum": "10", "beginTimestamp": "0"}
    answer = machine.ask(RequestCode.QUERY_MESSAGE, fields | {"endTimestamp": str(1 << 62)})
    return answer.code, [record.body for record in split_records(answer.body or b"")]


@pytest.mark.parametrize("is_lost", [False, True], ids=["damaged", "lost"])
def test_key_of_an_unreadable_message_finds_the_others_and_the_loss_is_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    for number in range(3):
        machine.send(b"%d" % number, "KEYS\x01all" + (" alone" if number == 1 else ""))
    assert find_by_key(machine, "all") == (ResponseCode.SUCCESS, [b"0", b"1", b"2"])
    entry = machine.store.queues.entry("T", 0, 1)
    assert entry is not None
    begin, end, read = entry[0], entry[0] + entry[1], SimulatedFile.read

    def lose(file: SimulatedFile, position: int, size: int) -> bytes:
        if file.path.startswith("commitlog/") and position < end and position + size > begin:
            raise OSError(*UNREADABLE.args)
        return read(file, position, size)

    if is_lost:
        monkeypatch.setattr(SimulatedFile, "read", lose)
    else:
        machine.storage.inodes["commitlog/00000000000000000000"].data[begin + 90] ^= 1
    found = [find_by_key(machine, key) for key in ("all", "alone", "none")]
    machine.outputs.clear()
    machine.pass_time(1_000)

    # What cannot be read is not said to be nowhere.
    assert found == [
        (ResponseCode.SUCCESS, [b"0", b"2"]),
        (ResponseCode.SYSTEM_ERROR, []),
        (ResponseCode.QUERY_NOT_FOUND, []),
    ]
    told = [each.text for each in machine.outputs if isinstance(each, Fact) and each.error]
    assert told == [f"damaged records are passed over: log position {begin}"]
