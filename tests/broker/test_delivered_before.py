"""A crash between a delayed message's delivery and the saved progress: the message comes once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.broker.disk_machine import GROUP, Machine

from sparrowmq.broker import delivered_before
from sparrowmq.model.names import TIMER_TOPIC
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.store.retention import HOUR_MS, RetentionConfig

WAITS = {
    "by a level": "DELAY\x011",
    "by a time": "TIMER_DELAY_MS\x011000",
}
# The progress is saved once a second.
TICKS = range(8, 30)


@pytest.fixture
def machine() -> Machine:
    return Machine(SimulatedStorage(Random(1)))


def send(machine: Machine, *bodies: bytes, wait: str) -> None:
    for number, body in enumerate(bodies):
        machine.send(body, f"UNIQ_KEY\x01ID{number}\x02{wait}")


@pytest.mark.parametrize("ticks", TICKS)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_killed_broker_delivers_each_delayed_message_once(
    machine: Machine, wait: str, ticks: int
) -> None:
    send(machine, b"1", b"2", wait=wait)
    machine.pass_time(500)
    send(machine, b"3", wait=f"a\x01b\x02{wait}")
    machine.send(b"other")
    machine.pass_time(100 * ticks)

    machine.storage.kill()
    machine.load()
    machine.pass_time(3_000)

    assert sorted(machine.bodies("T")) == [b"1", b"2", b"3", b"other"]


def test_killed_broker_delivers_once_what_it_has_just_stored_again() -> None:
    # Once an hour's half is over, and between two times at which the progress is saved.
    retention: Any = RetentionConfig(retention_hours=1)
    machine = Machine(SimulatedStorage(Random(1)), retention=retention)
    send(machine, b"m", wait=f"TIMER_DELAY_MS\x01{HOUR_MS}")
    machine.pass_time(3_000)
    machine.now_ms += HOUR_MS // 2 - 3_300
    while machine.store.queues.max_offset(TIMER_TOPIC, 0) == 1:
        machine.pass_time(100)

    machine.storage.kill()
    machine.load()
    assert machine.broker.state.timers.table().begin == 0
    machine.pass_time(1_000)
    machine.now_ms += HOUR_MS
    machine.pass_time(3_000)

    assert machine.bodies("T") == [b"m"]


@pytest.mark.parametrize("ticks", TICKS)
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_power_cut_delivers_each_delayed_message_once(
    machine: Machine, wait: str, ticks: int
) -> None:
    send(machine, b"1", b"2", wait=wait)
    machine.pass_time(100 * ticks)

    machine.lose_power()
    machine.pass_time(3_000)

    assert machine.bodies("T") == [b"1", b"2"]


@pytest.mark.parametrize("down_ms", [0, 20_000])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_others_of_the_same_millisecond_do_not_hide_what_was_delivered(
    machine: Machine, wait: str, down_ms: int
) -> None:
    send(machine, b"1", wait=wait)
    while b"1" not in machine.bodies("T"):
        machine.pass_time(100)
    for _ in range(5):
        machine.send(b"other")

    machine.storage.kill()
    machine.now_ms += down_ms
    machine.load()
    machine.pass_time(3_000)

    assert machine.bodies("T") == [b"1", *[b"other"] * 5]


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_message_without_an_id_is_not_taken_for_another_that_was_delivered(
    machine: Machine, wait: str
) -> None:
    machine.send(b"1", wait)
    while machine.bodies("T") == []:
        machine.pass_time(100)
    machine.send(b"2", wait)

    machine.storage.kill()
    machine.now_ms += 2_000
    machine.load()
    machine.pass_time(1_000)

    assert set(machine.bodies("T")) == {b"1", b"2"}


def test_attempt_is_not_taken_for_the_one_before_that_was_delivered(machine: Machine) -> None:
    retry_topic = f"%RETRY%{GROUP}"
    machine.send(b"m", "UNIQ_KEY\x01ID")
    for topic in ("T", retry_topic):
        entry = machine.store.queues.entry(topic, 0, 0)
        assert entry is not None
        machine.give_back(entry[0], GROUP)
        if topic == "T":
            machine.pass_time(2_000)

    machine.storage.kill()
    machine.now_ms += 2_000
    machine.load()
    machine.pass_time(1_000)

    assert [record.reconsume_times for record in machine.records(retry_topic)] == [1, 2]


def test_clock_that_is_set_back_before_a_kill_hides_no_delivery(machine: Machine) -> None:
    handle = machine.send(b"1", "UNIQ_KEY\x01ID\x02TIMER_DELAY_MS\x015000")
    machine.lead_ms = 5_000
    machine.pass_time(300)
    assert machine.bodies("T") == [b"1"]
    machine.lead_ms = 0
    machine.send(b"other")
    machine.pass_time(300)

    machine.storage.kill()
    machine.load()
    machine.pass_time(200)
    recalled = machine.recall(handle)
    machine.pass_time(8_000)

    assert recalled != ResponseCode.SUCCESS
    assert machine.bodies("T") == [b"1", b"other"]


def test_search_is_bounded(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivered_before, "RECORDS_MAX", 3)
    send(machine, b"1", wait=WAITS["by a time"])
    while machine.bodies("T") == []:
        machine.pass_time(100)
    for _ in range(3):
        machine.send(b"later")

    machine.storage.kill()
    machine.load()
    machine.pass_time(3_000)

    assert machine.bodies("T").count(b"1") == 2


@pytest.mark.parametrize("behind_ms", [5 * HOUR_MS, 1_700_000_000_000])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_clock_that_is_behind_at_the_start_hides_no_delivery(
    machine: Machine, wait: str, behind_ms: int
) -> None:
    """As of a machine that starts without the time, and gets it a minute later."""
    send(machine, b"1", wait=wait)
    while machine.bodies("T") == []:
        machine.pass_time(100)

    machine.storage.kill()
    machine.lead_ms = -behind_ms
    machine.load()
    machine.pass_time(60_000)
    machine.send(b"2", f"UNIQ_KEY\x01OTHER\x02{wait}")
    machine.pass_time(3_000)
    machine.lead_ms = 0
    machine.pass_time(3_000)

    assert machine.bodies("T") == [b"1", b"2"]
