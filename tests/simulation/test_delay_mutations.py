"""Mistakes with delays, recalls and retries, planted on purpose, and caught within some seeds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.broker.flush_gate import FlushGate
from sparrowmq.broker.processors import recall
from sparrowmq.broker.processors.send import confirm
from sparrowmq.broker.timer_messages import TimerMessages, TimerTable
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from sparrowmq.protocol.bodies import DelayOffsetTable
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faults import Faults, draw_delay_faults
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutResult, PutStatus

pytestmark = pytest.mark.slow

# Many messages wait for a time of their own whenever something happens.
DELAYED = {"message_count": 200, "pause_ms_max": 400, "delayed_share": 0.6}


@pytest.mark.parametrize("table", [DelayOffsetTable, TimerTable], ids=["levels", "timers"])
def test_progress_of_delays_ahead_of_the_flush_is_caught(
    run_kind: Any, monkeypatch: pytest.MonkeyPatch, table: type
) -> None:
    hold = FlushGate.hold

    def hold_no_delays(gate: FlushGate[Any], progress: Any, *, position: int) -> None:
        tables = progress.values() if isinstance(progress, dict) else ()
        is_of_delays = any(isinstance(held, table) for held in tables)
        hold(gate, progress, position=0 if is_of_delays else position)

    monkeypatch.setattr(FlushGate, "hold", hold_no_delays)

    assert " consumed by nobody" in run_kind(draw_delay_faults)


def test_delayed_message_that_comes_early_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver_due = DelaySchedule.deliver_due

    def deliver_early(schedule: DelaySchedule, *, timestamp_ms: int, **details: Any) -> int:
        return deliver_due(schedule, timestamp_ms=timestamp_ms + 400, **details)

    monkeypatch.setattr(DelaySchedule, "deliver_due", deliver_early)

    assert run_drawn(draw_delay_faults).endswith(" ms early")


def test_dead_letter_that_is_not_stored_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MessageStore.put

    def drop_dead_letters(store: MessageStore, record: Record, *, timestamp_ms: int) -> PutResult:
        if record.topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
            return PutResult(PutStatus.PUT_OK)
        return put(store, record, timestamp_ms=timestamp_ms)

    monkeypatch.setattr(MessageStore, "put", drop_dead_letters)

    violation = run_drawn(draw_delay_faults)
    assert " consumed by nobody" in violation or " sent back, and no retry " in violation


def test_retry_that_is_not_counted_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = MessageStore.put

    def count_no_retry(store: MessageStore, record: Record, *, timestamp_ms: int) -> PutResult:
        if record.topic == SCHEDULE_TOPIC and record.reconsume_times:
            record.reconsume_times -= 1
        return put(store, record, timestamp_ms=timestamp_ms)

    monkeypatch.setattr(MessageStore, "put", count_no_retry)

    violation = run_drawn(draw_delay_faults)
    assert " consumed by nobody" in violation or " sent back, and no retry " in violation


# --- messages with a time of their own, and their recalls -----------------------------------


@pytest.mark.parametrize(("lead_ms", "words"), [(150, " ms early"), (-900, " ms late")])
def test_message_that_does_not_come_at_its_time_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch, lead_ms: int, words: str
) -> None:
    deliver_due = TimerMessages.deliver_due

    def deliver_at_another_time(timers: TimerMessages, *, timestamp_ms: int, **details: Any) -> int:
        return deliver_due(timers, timestamp_ms=timestamp_ms + lead_ms, **details)

    monkeypatch.setattr(TimerMessages, "deliver_due", deliver_at_another_time)

    assert run_calm(Faults(), seeds=3, **DELAYED)[-1].violation.endswith(words)


def test_message_that_comes_twice_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    deliver = TimerMessages._deliver

    def deliver_twice(timers: TimerMessages, offset: int, *args: Any) -> bool | None:
        if offset % 10 == 0:
            deliver(timers, offset, *args)
        return deliver(timers, offset, *args)

    monkeypatch.setattr(TimerMessages, "_deliver", deliver_twice)

    violation = run_calm(Faults(), seeds=3, **DELAYED)[-1].violation
    assert violation.endswith(" twice in Flights, and nothing has failed")


def test_messages_that_a_restart_forgets_are_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = TimerMessages.load

    def begin_at_the_end(timers: TimerMessages, table: TimerTable) -> None:
        load(timers, table)
        timers._begin = timers._read = timers._first_end

    monkeypatch.setattr(TimerMessages, "load", begin_at_the_end)

    violation = run_calm(Faults(broker_kill=6.0), seeds=5, **DELAYED)[-1].violation
    assert " consumed by nobody" in violation


def test_recall_that_is_refused_without_a_reason_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimerMessages, "recall", lambda *_: None)

    assert " its recall is refused " in run_calm(Faults(), seeds=3, **DELAYED)[-1].violation


def test_recall_without_effect_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimerMessages, "note_recall", lambda *_, **__: None)
    monkeypatch.setattr(TimerMessages, "_end_recalled", lambda *_: True)

    violation = run_calm(Faults(), seeds=3, **DELAYED)[-1].violation
    assert violation.endswith(", and its recall was confirmed")


def test_recall_that_a_restart_forgets_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_recalled = TimerMessages._end_recalled

    def end_new_ones(timers: TimerMessages, offset: int) -> bool:
        return offset < timers._first_end or end_recalled(timers, offset)

    monkeypatch.setattr(TimerMessages, "_end_recalled", end_new_ones)

    violation = run_calm(Faults(broker_kill=6.0), seeds=5, **DELAYED)[-1].violation
    assert violation.endswith(", and its recall was confirmed")


def test_recall_that_is_not_stored_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = MessageStore.append

    def drop_recalls(store: MessageStore, record: Record, *, timestamp_ms: int) -> PutResult:
        if record.topic == TIMER_TOPIC and record.body == b"-":
            return PutResult(PutStatus.PUT_OK)
        return append(store, record, timestamp_ms=timestamp_ms)

    monkeypatch.setattr(MessageStore, "append", drop_recalls)

    violation = run_calm(Faults(broker_kill=6.0), seeds=5, **DELAYED)[-1].violation
    assert violation.endswith(", and its recall was confirmed")


def test_recall_that_does_not_wait_for_its_flush_is_caught(
    run_kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def confirm_at_once(state: Any, request: Any, result: PutResult, **details: Any) -> Any:
        flushed = msgspec.structs.replace(result, end_position=0)
        return confirm(state, request, flushed, **details)

    monkeypatch.setattr(recall, "confirm", confirm_at_once)

    violation = run_kind(draw_delay_faults)
    assert violation.endswith(", and its recall was confirmed")


def test_message_that_waits_on_although_its_recall_failed_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimerMessages, "forget_recalls", lambda *_: None)

    violation = run_calm(Faults(disk_full=30.0), seeds=20, **DELAYED)[-1].violation
    assert " consumed by nobody" in violation
