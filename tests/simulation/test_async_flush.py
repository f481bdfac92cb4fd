"""Brokers that acknowledge before the flush: a power cut may take messages, and nothing follows."""

from __future__ import annotations

from typing import Any

import pytest

from mistakes import Mistakes, run_calm
from sparrowmq.broker.config_saving import OFFSETS_FILE
from sparrowmq.broker.consumer_offsets import ConsumerOffsets
from sparrowmq.broker.flush_gate import FlushGate
from sparrowmq.calling.effects import Operation, now
from sparrowmq.client.operations import handover
from sparrowmq.protocol.bodies import ConsumerOffsetTable
from sparrowmq.simulation.faults import Faults
from sparrowmq.store.message_store import MessageStore

pytestmark = pytest.mark.slow

CUTS = Faults(broker_power_cut=6.0, write_power_cut=10.0, disk_slow=10.0, failing_listener=0.1)
BUSY: dict[str, Any] = {
    "sync_flush": False,
    "message_count": 300,
    "pause_ms_max": 300,
    "delayed_share": 0.3,
}
mistake = Mistakes()


def test_power_cuts_take_messages_and_nothing_follows() -> None:
    found = run_calm(CUTS, seeds=5, **BUSY, transaction_count=30)

    assert [outcome.violation for outcome in found] == [None] * 5
    assert any(" has lost " in line for outcome in found for line in outcome.trace)


hold, load = FlushGate.hold, ConsumerOffsets.load


def hold_others(gate: FlushGate[Any], progress: Any, *, position: int) -> None:
    is_offsets = isinstance(progress, dict) and OFFSETS_FILE in progress
    hold(gate, progress, position=0 if is_offsets else position)


def load_all(offsets: ConsumerOffsets, table: ConsumerOffsetTable, **_: object) -> int:
    return load(offsets, table, end_of=lambda *_: 1 << 60)


mistake.plant(
    "offsets beyond the end of a queue",
    CUTS,
    " after a restart, and the queue ends at ",
    (FlushGate, "hold", hold_others),
    (ConsumerOffsets, "load", load_all),
    seeds=20,
    **BUSY,
)


@mistake(handover, "_has_message", CUTS, " committed, finished only up to ", seeds=20, **BUSY)
def member_that_goes_on_beyond_what_its_broker_has_lost(*_: object) -> Operation[bool]:
    yield from now()
    return True


@mistake(MessageStore, "flush_work", CUTS, ": lost, and it was flushed", seeds=20, **BUSY)
def flush_that_is_believed_before_its_end(
    begin: Any, store: MessageStore, *args: Any, **settings: Any
) -> Any:
    work = begin(store, *args, **settings)
    if work is not None:
        store.flushed_position = work.end_position
    return work


test_mistake_is_caught = mistake.make_test()
