"""Files beside the log never speak of what a power cut can take back from the log."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import pytest
from tests.broker.conftest import send_fields
from tests.broker.disk_machine import GROUP, Losing, Machine

from sparrowmq.broker.config_files import CONFIG_DIRECTORY, read_tables
from sparrowmq.broker.config_saving import OFFSETS_FILE
from sparrowmq.broker.flush_gate import FlushGate
from sparrowmq.broker.host import attempt
from sparrowmq.protocol.bodies import ConsumerOffsetTable, TopicConfig, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.message_id import decode_offset_msg_id
from sparrowmq.protocol.record import TRANSACTION_COMMIT
from sparrowmq.serving.connections import Fact
from sparrowmq.simulation.faulty_disk import PowerCut, SimulatedStorage
from sparrowmq.store.config_file import write_config

RETRY = f"%RETRY%{GROUP}"
# A delay by a level, and a time of its own.
DELAYS = ("DELAY\x011", "UNIQ_KEY\x01ID\x02TIMER_DELAY_MS\x011000")


@dataclass
class TimerUsers:
    """Users who send messages with a time of their own, and recall some.

    Args:
        acked: the acknowledged messages whose recall was not asked for, or was answered.
        recalled: the messages with a confirmed recall.
    """

    rng: Random
    acked: set[bytes] = field(default_factory=set)
    recalled: set[bytes] = field(default_factory=set)
    waiting: dict[bytes, str] = field(default_factory=dict)
    count: int = 0

    def work(self, machine: Machine) -> None:
        """Send, recall and wait until the power goes."""
        while True:
            step = self.rng.randrange(6)
            if step <= 1:
                self.send(machine)
            elif step == 2 and self.waiting:
                self.recall(machine)
            else:
                machine.pass_time(100)

    def send(self, machine: Machine) -> None:
        self.count += 1
        body, delay_ms = b"m%d" % self.count, self.rng.randrange(1, 4_000)
        properties = f"UNIQ_KEY\x01{self.count}\x02TIMER_DELAY_MS\x01{delay_ms}"
        self.waiting[body] = machine.send(body, properties)
        self.acked.add(body)

    def recall(self, machine: Machine) -> None:
        body = self.rng.choice(sorted(self.waiting))
        handle = self.waiting.pop(body)
        self.acked.discard(body)
        code = machine.recall(handle)
        self.acked.add(body)
        if code == ResponseCode.SUCCESS:
            self.recalled.add(body)


@pytest.fixture
def make_machine() -> Callable[..., Machine]:
    return lambda **settings: Machine(SimulatedStorage(Losing()), **settings)


def test_progress_is_held_until_the_log_is_flushed_so_far() -> None:
    gate: FlushGate[str] = FlushGate()
    empty = gate.take(100)
    gate.hold("done", position=50)

    found = [gate.take(position) for position in (0, 49, 50, 51)]

    assert empty is None
    assert found == [None, None, "done", None]
    assert gate.is_empty


@pytest.mark.parametrize("is_sync", [True, False])
@pytest.mark.parametrize("delay", ["sent back", *DELAYS])
def test_delayed_message_survives_a_power_cut_before_its_delivery_is_flushed(
    make_machine: Callable[..., Machine], is_sync: bool, delay: str
) -> None:
    machine = make_machine(is_sync=is_sync)
    is_sent_back = delay == "sent back"
    if is_sent_back:
        machine.send_back(b"late")
    else:
        machine.send(b"late", delay)
    machine.pass_time(500)
    machine.waits = True
    machine.pass_time(5_000)
    assert machine.waiting

    machine.lose_power()
    machine.pass_time(2_000)

    assert machine.bodies(RETRY if is_sent_back else "T").count(b"late") == 1


@pytest.mark.parametrize("delay", DELAYS)
def test_flushed_delivery_is_not_repeated_after_a_power_cut(
    make_machine: Callable[..., Machine], delay: str
) -> None:
    machine = make_machine()
    machine.send(b"late", delay)
    machine.pass_time(5_000)

    machine.lose_power()
    machine.pass_time(5_000)

    assert machine.bodies("T") == [b"late"]


@pytest.mark.parametrize("delay", DELAYS)
def test_delayed_message_survives_a_failed_sync_and_a_restart(
    make_machine: Callable[..., Machine], delay: str
) -> None:
    machine = make_machine()
    machine.send(b"late", delay)
    machine.waits = True
    machine.pass_time(3_000)
    (flush,) = machine.waiting
    flush.end(OSError(errno.EIO, "the disk does not answer"))
    machine.pass_time(3_000)
    machine.stop()

    # The disk has dropped the pages that it could not write.
    machine.lose_power()
    machine.pass_time(2_000)

    assert machine.bodies("T") == [b"late"]


@pytest.mark.parametrize("delay", DELAYS)
def test_delayed_message_waits_while_the_disk_cannot_take_it(
    make_machine: Callable[..., Machine], delay: str
) -> None:
    machine = make_machine()
    machine.send(b"late", delay)
    machine.storage.bytes_left = 0
    machine.pass_time(3_000)
    without_room = machine.bodies("T")

    machine.storage.mend()
    machine.pass_time(3_000)

    assert without_room == []
    assert machine.bodies("T") == [b"late"]


@pytest.mark.slow
@pytest.mark.parametrize("is_power_cut", [True, False], ids=["power cut", "kill"])
def test_messages_with_a_time_come_and_recalls_hold_wherever_the_power_goes(
    is_power_cut: bool,
) -> None:
    for seed in range(8):
        rng = Random(seed)
        machine, users = Machine(SimulatedStorage(rng)), TimerUsers(rng)
        for _ in range(6):
            machine.storage.changes_left = rng.randrange(20, 400)
            with pytest.raises(PowerCut):
                users.work(machine)
            while True:
                if is_power_cut:
                    machine.storage.lose_power()
                else:
                    machine.storage.kill()
                machine.now_ms += 1_000
                # The power may fail again while the broker starts.
                machine.storage.changes_left = rng.choice((None, rng.randrange(1, 60)))
                with suppress(PowerCut):
                    machine.load()
                    break
        machine.storage.changes_left = None
        machine.pass_time(6_000)

        come = set(machine.bodies("T"))
        assert users.acked - come == users.recalled, f"seed {seed}"
        assert come & users.recalled == set(), f"seed {seed}"
        assert len(users.acked) > 20, f"seed {seed}"


def test_end_of_a_transaction_is_confirmed_once_it_is_flushed(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine()
    half = machine.ask(
        RequestCode.SEND_MESSAGE_V2,
        send_fields("T", 0, "UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01GID_p", f="4"),
        b"K",
    ).ext_fields
    assert half is not None
    machine.waits = True
    early = machine.serve(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "GID_p",
            "tranStateTableOffset": half["queueOffset"],
            "commitLogOffset": str(decode_offset_msg_id(half["msgId"])[1]),
            "msgId": "K",
            "transactionId": "K",
            "commitOrRollback": str(TRANSACTION_COMMIT),
        },
    )

    while machine.waiting:
        round = machine.waiting.pop(0)
        round.end(attempt(round))
        machine.end_turn()

    assert early == []
    assert [answer.code for answer in machine.answers()] == [ResponseCode.SUCCESS]
    assert machine.bodies("T") == [b"K"]


def test_commit_of_messages_that_are_not_flushed_is_written_after_them(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(is_sync=False)
    machine.send(b"kept")
    machine.pass_time(200)
    machine.waits = True
    machine.send(b"lost")
    machine.commit(2)
    machine.pass_time(3_000)
    saved_early = machine.saved_offset()
    machine.end_waiting()
    machine.pass_time(3_000)

    assert saved_early is None
    assert machine.saved_offset() == 2


DELETIONS = [
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "removeOffset": "true"}),
]


@pytest.mark.parametrize(("code", "fields"), DELETIONS)
@pytest.mark.parametrize("is_sync", [True, False])
def test_offsets_of_a_confirmed_deletion_do_not_come_back_with_a_power_cut(
    make_machine: Callable[..., Machine], code: int, fields: dict[str, str], is_sync: bool
) -> None:
    machine = make_machine(is_sync=is_sync)
    machine.send(b"m")
    machine.commit(1)
    machine.pass_time(5_000)
    assert machine.saved_offset() == 1

    assert machine.call(code, fields) == ResponseCode.SUCCESS
    machine.lose_power()

    assert machine.broker.state.offsets.find(GROUP, "T", 0) is None


@pytest.mark.parametrize(("code", "fields"), DELETIONS)
def test_deletion_is_confirmed_once_its_offsets_are_written_behind_the_flush(
    make_machine: Callable[..., Machine], code: int, fields: dict[str, str]
) -> None:
    machine = make_machine(is_sync=False)
    machine.pass_time(5_000)
    machine.waits = True
    machine.send(b"m")
    machine.commit(1)
    machine.pass_time(1_000)

    early = machine.serve(code, fields)
    machine.end_waiting()
    machine.pass_time(1_000)

    assert early == []
    assert [answer.code for answer in machine.answers()] == [ResponseCode.SUCCESS]
    assert machine.saved_offset() is None


def test_deletions_that_wait_for_one_flush_are_each_confirmed_once_they_are_written(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(is_sync=False)
    machine.pass_time(5_000)
    machine.waits = True
    machine.send(b"m")
    for group in ("GID_a", "GID_b"):
        fields = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "1"}
        assert machine.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields) == 0
    deletion = RequestCode.DELETE_SUBSCRIPTIONGROUP
    early = [
        machine.serve(deletion, {"groupName": group, "removeOffset": "true"})
        for group in ("GID_a", "GID_b")
    ]
    machine.end_waiting()
    machine.pass_time(300)

    saved = read_tables(machine.storage).tables.offsets
    assert early == [[], []]
    assert [answer.code for answer in machine.answers()] == [ResponseCode.SUCCESS] * 2
    assert saved == ConsumerOffsetTable()


@pytest.mark.parametrize(("code", "fields"), DELETIONS)
def test_repeated_deletion_is_confirmed_no_earlier_than_the_first(
    make_machine: Callable[..., Machine], code: int, fields: dict[str, str]
) -> None:
    machine = make_machine(is_sync=False)
    machine.pass_time(5_000)
    machine.waits = True
    machine.send(b"m")
    machine.commit(1)

    early = [machine.serve(code, fields) for _ in range(2)]
    machine.end_waiting()
    machine.pass_time(200)

    assert early == [[], []]
    assert [answer.code for answer in machine.answers()] == [ResponseCode.SUCCESS] * 2


def test_stop_while_a_deletion_waits_writes_the_later_offsets_and_answers_each_deletion(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine(is_sync=False)
    machine.pass_time(5_000)
    machine.waits = True
    machine.send(b"m")
    deletion = RequestCode.DELETE_SUBSCRIPTIONGROUP
    for group in ("GID_a", "GID_b"):
        fields = {"consumerGroup": group, "topic": "T", "queueId": "0", "commitOffset": "1"}
        assert machine.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields) == 0
        assert machine.serve(deletion, {"groupName": group, "removeOffset": "true"}) == []
    machine.commit(1)
    machine.host.is_stopping = True
    for round in machine.waiting:
        round.end(attempt(round))
    machine.outputs.clear()
    machine.stop()

    assert [answer.code for answer in machine.answers()] == [ResponseCode.SUCCESS] * 2
    assert machine.saved_offset() == 1


@pytest.mark.parametrize(("code", "fields"), DELETIONS)
def test_deletion_whose_offsets_cannot_be_written_is_an_error_and_is_written_later(
    make_machine: Callable[..., Machine],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
    fields: dict[str, str],
) -> None:
    def refuse(*_: object, **_settings: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    machine = make_machine()
    machine.send(b"m")
    machine.commit(1)
    machine.pass_time(5_000)
    with monkeypatch.context() as patch:
        patch.setattr("sparrowmq.broker.config_files.write_config", refuse)
        answer = machine.ask(code, fields)
    machine.pass_time(2_000)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("the offsets could not be written: ")
    assert machine.saved_offset() is None
    # What has no offsets waits for none.
    assert machine.call(code, fields) == ResponseCode.SUCCESS


def test_offsets_beyond_the_end_of_a_queue_are_cut_back_before_a_message_is_taken(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine()
    machine.send(b"kept")
    machine.pass_time(2_000)
    table = ConsumerOffsetTable(offset_table={f"T@{GROUP}": {0: 5}, f"Gone@{GROUP}": {0: 3}})
    write_config(
        machine.storage, f"{CONFIG_DIRECTORY}/{OFFSETS_FILE}", encode_body(table, pretty=True)
    )

    machine.storage.lose_power()
    machine.load()
    told = [output.text for output in machine.outputs if isinstance(output, Fact)]
    machine.send(b"new")
    # Without a tick, by which offsets are written.
    machine.lose_power()

    assert machine.bodies("T") == [b"kept", b"new"]
    assert machine.broker.state.offsets.find(GROUP, "T", 0) == 1
    assert machine.broker.state.offsets.find(GROUP, "Gone", 0) == 0
    assert len([text for text in told if text.startswith("2 committed offsets were beyond")]) == 1


def test_topic_that_only_the_page_cache_has_is_on_the_disk_before_it_is_served(
    make_machine: Callable[..., Machine],
) -> None:
    machine = make_machine()
    machine.storage.fail()
    machine.broker.state.put_topic(TopicConfig(topic_name="U"), timestamp_ms=1)
    machine.end_turn()
    machine.storage.mend()
    machine.storage.kill()

    machine.load()
    served = machine.broker.state.topics.find("U")
    machine.lose_power()

    assert served is not None
    assert machine.broker.state.topics.find("U") == served
