"""Each rule for delays and recalls fails for what it is there for, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparrowmq.protocol.recall_handle import RecallHandle
from sparrowmq.simulation.delay_ledger import IN_TIME_MS, SOON_MS, DelayLedger

HANDLE = RecallHandle("T", "b", 1_700_000_005_000, "ID").encode()
OTHER_TIME = "TIMER_OUT_MS\x011700000005001"
SAME_TIME = "UNIQ_KEY\x01ID\x02TIMER_OUT_MS\x011700000005000"


class Bench:
    """A ledger that knows of one message, sent at 1,000 with a delay of 5,000."""

    def __init__(self, *, is_calm: bool) -> None:
        self.faults: list[str] = []
        self.ledger = DelayLedger(self.faults.append, "T", is_calm=is_calm)
        self.ledger.note_sent(b"m", 5_000, now_ms=1_000)
        self.ledger.note_acked(b"m", now_ms=1_010)

    def come(self, now_ms: int, *, topic: str = "T", properties: str = SAME_TIME) -> None:
        self.ledger.note_copy("b", topic, b"m", properties, now_ms=now_ms)


@pytest.fixture
def calm() -> Bench:
    return Bench(is_calm=True)


@pytest.fixture
def rough() -> Bench:
    return Bench(is_calm=False)


def test_message_must_not_come_early(rough: Bench) -> None:
    rough.come(10, topic="rmq_sys_wheel_timer")
    rough.come(6_000)
    assert rough.faults == []

    rough.come(5_999)
    assert rough.faults == ["b'm': in T 1 ms early"]


def test_message_may_come_early_if_a_brokers_clock_jumped_forward(rough: Bench) -> None:
    rough.ledger.note_clock_jump(-10_000)
    rough.ledger.note_clock_jump(3_000)

    rough.come(2_999)
    rough.come(3_000)

    assert rough.faults == ["b'm': in T 1 ms early"]


def test_message_comes_soon_and_once_if_nothing_fails(calm: Bench, rough: Bench) -> None:
    for bench in (calm, rough):
        bench.come(6_010 + SOON_MS + 1)
        bench.come(9_000)

    assert calm.faults == ["b'm': in T 1 ms late", "b'm': twice in T, and nothing has failed"]
    assert rough.faults == []


@pytest.mark.parametrize("is_first", [True, False], ids=["recall first", "message first"])
def test_recalled_message_never_comes(rough: Bench, is_first: bool) -> None:
    steps: list[Callable[[], None]] = [
        lambda: rough.ledger.note_recalled(b"m", HANDLE),
        lambda: rough.come(6_000),
    ]
    for step in steps if is_first else reversed(steps):
        step()

    (fault,) = rough.faults
    assert "recall" in fault


def test_copy_of_another_attempt_comes_although_one_is_recalled(rough: Bench) -> None:
    rough.ledger.note_recalled(b"m", HANDLE)

    rough.come(6_001, properties=OTHER_TIME)

    assert rough.faults == []


def test_recall_in_time_is_confirmed_if_nothing_fails(calm: Bench, rough: Bench) -> None:
    for bench in (calm, rough):
        bench.ledger.note_refused(b"m", asked_ms=6_000 - IN_TIME_MS)
        assert bench.faults == []
        bench.ledger.note_refused(b"m", asked_ms=6_000 - IN_TIME_MS - 1)

    assert calm.faults == ["b'm': its recall is refused 501 ms before its time"]
    assert rough.faults == []


def test_message_need_not_come_once_its_recall_is_asked_for_and_not_refused(rough: Bench) -> None:
    assert not rough.ledger.may_be_gone(b"m")
    rough.ledger.note_recall(b"m")
    assert rough.ledger.may_be_gone(b"m")
    rough.ledger.note_refused(b"m", asked_ms=2_000)
    assert not rough.ledger.may_be_gone(b"m")
