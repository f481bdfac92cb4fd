"""What must come of popped messages, by the model that the simulation checks brokers with."""

from __future__ import annotations

from sparrowmq.broker.pop_changes import Finished, Popped, QueueKey
from sparrowmq.model import MessageQueue
from sparrowmq.simulation.pop_ledger import MessagePlace, PopLedger

QUEUE = MessageQueue("T", "b", 0)


def test_acknowledgement_that_the_log_could_not_take_may_hold_until_the_message_comes_again() -> (
    None
):
    failures: list[str] = []
    ledger = PopLedger(failures.append, lambda: 10_000, "G", "T", retries_max=3, is_orderly=False)
    key, place = QueueKey("G", "T", 0), MessagePlace(QUEUE, 0)
    popped = Popped(
        key=key, next_offset=1, pop_timestamp_ms=1, invisible_ms=100, offsets=[0], times=[0]
    )
    ledger.note_copy(QUEUE, 0, b"x", 0)
    ledger.note_change(popped, "b", wall_ms=0)
    ledger.note_asked(place)
    assert ledger.find_unfinished() is not None

    ledger.note_refused(place)
    ledger.check_waiting("b", waits_since_ms=0)
    assert ledger.find_unfinished() is None
    assert failures == []

    ledger.note_change(popped, "b", wall_ms=0)
    assert ledger.find_unfinished() is not None
    ledger.check_waiting("b", waits_since_ms=0)
    assert len(failures) == 1
    ledger.note_change(Finished(key=key, offsets=[0]), "b", wall_ms=0)
    assert ledger.find_unfinished() is None
