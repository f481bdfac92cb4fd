"""Mistakes with delays, recalls and retries, planted on purpose, and caught within some seeds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mistakes import Mistakes
from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.broker.flush_gate import FlushGate
from sparrowmq.broker.processors import recall, send_back
from sparrowmq.broker.timer_messages import TimerMessages, TimerTable
from sparrowmq.model.names import DLQ_GROUP_TOPIC_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from sparrowmq.protocol.bodies import DelayOffsetTable
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.faults import Faults, draw_delay_faults, draw_power_faults
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.results import PutResult, PutStatus

pytestmark = pytest.mark.slow

# Many messages wait for a time of their own whenever something happens.
DELAYED: dict[str, Any] = {"message_count": 200, "pause_ms_max": 400, "delayed_share": 0.6}
LOST = " consumed by nobody"
CONFIRMED = ", and its recall was confirmed$"
mistake = Mistakes()
hold, deliver_timer = FlushGate.hold, TimerMessages.deliver_due


def hold_all_but(table: type) -> Any:
    def hold_others(gate: FlushGate[Any], progress: Any, *, position: int) -> None:
        tables = progress.values() if isinstance(progress, dict) else ()
        is_of_delays = any(isinstance(held, table) for held in tables)
        hold(gate, progress, position=0 if is_of_delays else position)

    return hold_others


for table, first in ((DelayOffsetTable, 2), (TimerTable, 9)):
    mistake.plant(
        f"progress ahead of the flush: {table.__name__}",
        Faults(disk_slow=15.0, broker_power_cut=6.0),
        LOST,
        (FlushGate, "hold", hold_all_but(table)),
        seeds=20,
        tried_first=first,
        **DELAYED,
    )


@mistake(DelaySchedule, "deliver_due", draw_delay_faults, " ms early$")
def delayed_message_that_comes_early(
    deliver_due: Any, schedule: DelaySchedule, *, timestamp_ms: int, **details: Any
) -> Any:
    return deliver_due(schedule, timestamp_ms=timestamp_ms + 400, **details)


@mistake(
    MessageStore,
    "put",
    draw_delay_faults,
    f"{LOST}| sent back, and no retry |neither acknowledged nor a dead letter$",
    is_kind_alone=True,
)
def dead_letter_that_is_not_stored(
    put: Any, store: MessageStore, record: Record, *, timestamp_ms: int
) -> Any:
    if record.topic.startswith(DLQ_GROUP_TOPIC_PREFIX):
        return PutResult(PutStatus.PUT_OK)
    return put(store, record, timestamp_ms=timestamp_ms)


@mistake(MessageStore, "put", draw_delay_faults, f"{LOST}| sent back, and no retry ")
def retry_that_is_not_counted(
    put: Any, store: MessageStore, record: Record, *, timestamp_ms: int
) -> Any:
    if record.topic == SCHEDULE_TOPIC and record.reconsume_times:
        record.reconsume_times -= 1
    return put(store, record, timestamp_ms=timestamp_ms)


for name, limit in (("dead letter before its retries", 0), ("retries without end", 1_000)):
    mistake.plant(
        name,
        Faults(failing_listener=0.5),
        " sent back, and no retry ",
        (send_back, "find_retry_limit", lambda *_, limit=limit: limit),
        retries_max=1,
        fault_ms=60_000,
    )


# --- messages with a time of their own, and their recalls -----------------------------------


def deliver_after(lead_ms: int) -> Any:
    def deliver(timers: TimerMessages, *, timestamp_ms: int, **details: Any) -> int:
        return deliver_timer(timers, timestamp_ms=timestamp_ms + lead_ms, **details)

    return deliver


for lead_ms, seen in ((150, " ms early$"), (-900, " ms late$")):
    mistake.plant(
        f"message that comes{seen.removesuffix('$')}",
        Faults(),
        seen,
        (TimerMessages, "deliver_due", deliver_after(lead_ms)),
        **DELAYED,
    )


@mistake(
    TimerMessages, "_deliver", Faults(), " twice in Flights, and nothing has failed$", **DELAYED
)
def message_that_comes_twice(deliver: Any, timers: TimerMessages, offset: int, *args: Any) -> Any:
    if offset % 10 == 0:
        deliver(timers, offset, *args)
    return deliver(timers, offset, *args)


@mistake(TimerMessages, "load", Faults(broker_kill=6.0), LOST, seeds=5, **DELAYED)
def messages_that_a_restart_forgets(
    load: Any, timers: TimerMessages, table: TimerTable, **details: Any
) -> None:
    load(timers, table, **details)
    timers._begin = timers._read = timers._first_end


mistake.plant(
    "recall that is refused without a reason",
    Faults(),
    " its recall is refused ",
    (TimerMessages, "recall", lambda *_: []),
    **DELAYED,
)
mistake.plant(
    "recall without effect",
    Faults(),
    CONFIRMED,
    (TimerMessages, "note_recall", lambda *_, **__: None),
    (TimerMessages, "_end_recalled", lambda *_: True),
    **DELAYED,
)


@mistake(TimerMessages, "_end_recalled", Faults(broker_kill=6.0), CONFIRMED, seeds=5, **DELAYED)
def recall_that_a_restart_forgets(end_recalled: Any, timers: TimerMessages, offset: int) -> Any:
    return offset < timers._first_end or end_recalled(timers, offset)


@mistake(MessageStore, "append", Faults(broker_kill=6.0), CONFIRMED, seeds=5, **DELAYED)
def recall_that_is_not_stored(
    append: Any, store: MessageStore, record: Record, *, timestamp_ms: int
) -> Any:
    if record.topic == TIMER_TOPIC and record.body == b"-":
        return PutResult(PutStatus.PUT_OK)
    return append(store, record, timestamp_ms=timestamp_ms)


@mistake(
    send_back, "confirm", draw_power_faults, f"{LOST}| sent back, and no retry ", tried_first=13
)
@mistake(recall, "confirm", draw_power_faults, CONFIRMED, is_kind_alone=True)
def confirmation_that_does_not_wait_for_its_flush(
    confirm: Any, state: Any, request: Any, result: PutResult, **details: Any
) -> Any:
    return confirm(state, request, msgspec.structs.replace(result, end_position=0), **details)


mistake.plant(
    "message that waits on although its recall failed",
    Faults(disk_full=30.0, disk_slow=15.0),
    LOST,
    (TimerMessages, "forget_recalls", lambda *_: None),
    seeds=20,
    **DELAYED,
)

test_mistake_is_caught = mistake.make_test()
