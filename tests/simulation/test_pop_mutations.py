"""Consumption by messages across faults, and mistakes in it that are planted, and caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mistakes import Mistakes, run_calm
from sparrowmq.broker import pop_log
from sparrowmq.broker.pop_changes import Changed, Finished, Flight, PopChange, Popped
from sparrowmq.broker.pop_queues import PopQueue, PopQueues
from sparrowmq.broker.processors import pop
from sparrowmq.protocol import pop_handle
from sparrowmq.protocol.pop_handle import BatchAckResponseHeader
from sparrowmq.simulation import pop_users
from sparrowmq.simulation.faults import Faults
from sparrowmq.store.config import FlushMode

pytestmark = pytest.mark.slow

POPS: dict[str, Any] = {"pop_user_count": 6, "message_count": 160, "pause_ms_max": 200}
KILLS, CUTS = Faults(broker_kill=6.0), Faults(broker_power_cut=6.0)
AGAIN = ": popped after its acknowledgement was confirmed$"
LATE = " ms late, and a pop of GID_pop waits for it$"
AT_ONCE = ": popped twice at once, "
mistake = Mistakes()


@pytest.mark.parametrize(
    "faults",
    [
        Faults(broker_kill=4.0, broker_power_cut=4.0, broker_stop=2.0, broker_freeze=2.0),
        Faults(write_power_cut=60.0, write_kill=20.0, disk_slow=6.0),
        Faults(reset=8.0, half_open=4.0, partition=4.0, delay=0.05),
        Faults(disk_full=6.0, disk_failure=2.0, sync_failure=2.0, expiry=6.0),
    ],
    ids=["processes", "writes", "network", "disks"],
)
def test_promises_of_consumption_by_messages_hold(faults: Faults) -> None:
    for outcome in run_calm(faults, seeds=3, **POPS):
        assert outcome.violation is None, "\n".join(outcome.trace)
        assert outcome.pop_count > 200


def note_all_but(kind: type) -> Any:
    note = PopQueues._note

    def note_others(pops: PopQueues, change: PopChange) -> None:
        if not isinstance(change, kind):
            note(pops, change)

    return note_others


for kind in (Finished, Popped, Changed):
    mistake.plant(
        f"change that the log does not get: {kind.__name__}",
        KILLS,
        f"{AGAIN}|{AT_ONCE}|: delivered with 0 retries, not 1$",
        (PopQueues, "_note", note_all_but(kind)),
        seeds=20,
        **POPS,
    )


@mistake(
    pop_log, "log_changes", Faults(write_power_cut=60.0), f"{AGAIN}|{AT_ONCE}", seeds=20, **POPS
)
def answer_that_does_not_wait_for_its_flush(log_changes: Any, state: Any, **given: Any) -> Any:
    config = state.config
    state.config = replace(config, flush=FlushMode.ASYNC)
    try:
        return log_changes(state, **given)
    finally:
        state.config = config


@mistake(PopQueues, "load", KILLS, AT_ONCE, seeds=20, **POPS)
def time_that_a_restart_forgets(
    load: Any, pops: PopQueues, *args: Any, timestamp_ms: int, **given: Any
) -> Any:
    return load(pops, *args, timestamp_ms=timestamp_ms + 60_000, **given)


@mistake(PopQueues, "_note_due", KILLS, LATE, seeds=20, **POPS)
def time_that_is_never_over(
    note_due: Any, pops: PopQueues, key: Any, offsets: list[int], *times: int
) -> Any:
    note_due(pops, key, [offset for offset in offsets if offset % 5], *times)


@mistake(PopQueues, "take_due", Faults(), LATE, seeds=5, **POPS)
def message_that_comes_again_late(take_due: Any, pops: PopQueues, now_ms: int, count: int) -> Any:
    return take_due(pops, now_ms - 1_500, count)


@mistake(PopQueues, "take_due", Faults(), AT_ONCE, seeds=5, **POPS)
def message_that_comes_again_early(take_due: Any, pops: PopQueues, now_ms: int, count: int) -> Any:
    return take_due(pops, now_ms + 100, count)


mistake.plant(
    "message for which no waiting pop is woken",
    Faults(),
    LATE,
    (pop, "wake", lambda *_: None),
    seeds=5,
    pop_user_count=3,
    message_count=160,
    pause_ms_max=1_500,
)
mistake.plant(
    "attempt that is not counted",
    Faults(),
    ": delivered with 0 retries, not 1$",
    (Flight, "next_times", 0),
    seeds=5,
    **POPS,
)
for limit, seen in ((1, ": a dead letter of GID_pop.* after 2$"), (9, " with 3 retries, not 3$")):
    mistake.plant(
        f"dead letter after {limit} retries",
        Faults(),
        seen,
        (pop_users, "RETRIES_MAX", limit),
        seeds=20,
        **POPS,
    )
mistake.plant(
    "dead letter that is not stored",
    Faults(),
    ": finished, but neither acknowledged nor a dead letter$|: popped in order before ",
    (pop, "_put_dead_letter", lambda *_, **__: True),
    seeds=20,
    **POPS,
)
mistake.plant(
    "message that overtakes others in order",
    Faults(),
    ": popped in order before ",
    (PopQueue, "is_blocked", False),
    seeds=5,
    **POPS,
)
mistake.plant(
    "batch of acknowledgements that names the wrong messages",
    Faults(),
    f"{AGAIN}|: finished, but ",
    (pop_handle, "_bits", lambda offsets, start, bits=pop_handle._bits: bits(offsets, start - 1)),
    seeds=5,
    **POPS,
)
mistake.plant(
    "acknowledgement that comes too late and is not told",
    Faults(),
    AGAIN,
    (BatchAckResponseHeader, "read", lambda _: set()),
    seeds=20,
    tried_first=14,
    **POPS,
)

test_mistake_is_caught = mistake.make_test()
