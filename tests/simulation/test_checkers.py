"""Each check fails for what it is there for, and for nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from queue_messages import message
from sparrowmq.model import MessageQueue, SendResult, SendStatus, TransactionState
from sparrowmq.model.message import PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET
from sparrowmq.model.names import TRANS_CHECK_MAX_TIME_TOPIC
from sparrowmq.protocol.properties import encode_properties
from sparrowmq.protocol.record import Record
from sparrowmq.simulation.checkers import Checkers
from sparrowmq.simulation.event_log import Trace
from sparrowmq.simulation.faulty_disk import SimulatedStorage
from sparrowmq.simulation.sends import Queued, Sends
from sparrowmq.simulation.virtual_time import Timeline
from sparrowmq.store.config import FlushMode, StoreConfig
from sparrowmq.store.message_store import MessageStore

TOPIC, BROKER = "T", "b"
QUEUE = MessageQueue(TOPIC, BROKER, 0)


class Bench:
    """Checkers that have seen a store with some messages of one queue."""

    def __init__(self, dice: object, bodies: Sequence[bytes], **rules: Any) -> None:
        self.checkers = Checkers("G", TOPIC, Trace(Timeline()), **rules)
        self.store = MessageStore(
            SimulatedStorage(dice),  # type: ignore[arg-type]
            StoreConfig(
                flush=FlushMode.ASYNC,
                commit_log_file_size=8192,
                index_slot_count=64,
                index_entry_count=256,
                message_bytes_max=1024,
            ),
        )
        self.store.load(timestamp_ms=0)
        for body in bodies:
            self.put(body)

    def put(
        self,
        body: bytes,
        *,
        is_sent: bool = True,
        topic: str = TOPIC,
        reconsume_times: int = 0,
        properties: str = "",
    ) -> None:
        if is_sent:
            self.checkers.note_sent(body)
        record = Record(
            topic=topic,
            queue_id=0,
            body=body,
            reconsume_times=reconsume_times,
            properties=properties,
        )
        self.store.put(record, timestamp_ms=1)
        self.store.dispatch()
        self.checkers.check_stored(BROKER, self.store)

    def commit(
        self, offset: int, *, host: str = "m1", now_ms: int = 0, holder: str | None = None
    ) -> None:
        self.checkers.note_committer(QUEUE, host, holder=holder)
        tables = {TOPIC: {0: offset}, "%RETRY%G": {}}
        self.checkers.check_commits(BROKER, tables, now_ms=now_ms)

    def reload(self, offset: int | None) -> None:
        table = {} if offset is None else {0: offset}
        self.checkers.check_reloaded(BROKER, {TOPIC: table, "%RETRY%G": {}}, now_ms=0)


@pytest.fixture
def bench(dice: object) -> Bench:
    return Bench(dice, [b"m0", b"m1", b"m2"])


def test_acknowledged_message_must_be_readable_where_it_was_said_to_be(bench: Bench) -> None:
    bench.checkers.note_acked(b"m1", QUEUE, 1)
    assert bench.checkers.violation is None

    bench.checkers.note_acked(b"m9", QUEUE, 2)
    assert bench.checkers.violation == "T@b:0 offset 2: b'm9' acknowledged, holds b'm2'"


def test_acknowledged_message_must_be_readable_at_once(bench: Bench) -> None:
    bench.checkers.note_acked(b"m3", QUEUE, 3)

    assert bench.checkers.violation == "T@b:0 offset 3: acknowledged and not readable"


def test_acknowledged_message_may_wait_for_room_but_not_for_ever(bench: Bench) -> None:
    checkers = bench.checkers
    checkers.note_disk(BROKER, is_full=True)
    checkers.note_acked(b"m3", QUEUE, 3)
    checkers.note_consumed(QUEUE, [0, 1, 2])
    bench.commit(3)

    assert checkers.violation is None
    assert checkers.find_unfinished() == "T@b:0 offset 3 is not readable"
    bench.put(b"other")
    assert checkers.violation == "T@b:0 offset 3: holds b'other' where b'm3' was acknowledged"


def test_stored_message_must_have_been_sent(bench: Bench) -> None:
    bench.put(b"m3")
    assert bench.checkers.violation is None

    bench.put(b"m4", is_sent=False)
    assert bench.checkers.violation == "T@b:0 offset 4: holds b'm4', which nobody has sent"


def test_readable_message_must_be_there_after_a_restart(bench: Bench, dice: object) -> None:
    bench.checkers.note_acked(b"m2", QUEUE, 2)
    bench.checkers.check_restarted(BROKER, bench.store)
    assert bench.checkers.violation is None

    bench.checkers.check_restarted(BROKER, Bench(dice, [b"m0", b"m1"]).store)
    expected = "T@b:0 offset 2: no entry any more (message b'm2' was acknowledged)"
    assert bench.checkers.violation == expected


def test_message_must_be_the_same_after_a_restart(bench: Bench, dice: object) -> None:
    bench.checkers.check_restarted(BROKER, Bench(dice, [b"m0", b"mx", b"m2"]).store)

    assert bench.checkers.violation is not None
    assert bench.checkers.violation.startswith("T@b:0 offset 1: holds ")


def test_commit_must_not_pass_what_is_unfinished(bench: Bench) -> None:
    bench.checkers.note_consumed(QUEUE, [0, 2])
    bench.commit(1)
    assert bench.checkers.violation is None

    bench.commit(3)
    assert bench.checkers.violation == "T@b:0: 3 committed, finished only up to 1"


def test_message_that_is_stored_again_is_finished(bench: Bench) -> None:
    entry = bench.store.queues.entry(TOPIC, 0, 0)
    assert entry is not None
    bench.checkers.note_sent_back(BROKER, entry[0])
    bench.commit(1)
    assert bench.checkers.violation is None

    bench.checkers.note_sent_back(BROKER, 1)
    assert bench.checkers.violation == "b: sent back from position 1, where nothing stands"


def test_commit_must_not_go_back_but_by_another_member(bench: Bench) -> None:
    bench.checkers.note_consumed(QUEUE, [0, 1, 2])
    bench.commit(3)
    bench.commit(1, host="m2")
    assert (bench.checkers.violation, bench.checkers.steps_back) == (None, 1)

    bench.commit(0, host="m2")
    assert bench.checkers.violation == "T@b:0: 0 committed after 1 by m2"


def test_commit_must_not_set_the_queue_of_a_listed_holder_back(bench: Bench) -> None:
    bench.checkers.note_consumed(QUEUE, [0, 1, 2])
    bench.commit(3, host="m1:1")
    bench.commit(2, host="m1:2", holder="m1@1")
    assert (bench.checkers.violation, bench.checkers.steps_back) == (None, 1)

    bench.commit(1, host="m2:1", holder="m1@1")
    assert bench.checkers.violation == "T@b:0: 1 committed after 2 by m2:1"


def test_member_that_stood_still_must_ask(bench: Bench) -> None:
    bench.checkers.note_asked("m1", QUEUE, now_ms=5)
    bench.checkers.check_asked("m1", QUEUE, woken_ms=5)
    assert bench.checkers.violation is None

    bench.checkers.check_asked("m1", QUEUE, woken_ms=6)
    assert bench.checkers.violation == (
        "m1 delivers messages of T@b:0, but stood still and did not ask"
    )


@pytest.mark.parametrize("loaded", [2, 3])
def test_crash_may_take_what_was_not_written(bench: Bench, loaded: int) -> None:
    bench.checkers.note_consumed(QUEUE, [0, 1, 2])
    bench.commit(1, now_ms=10)
    bench.commit(2, now_ms=20)
    bench.checkers.note_saved(BROKER, {TOPIC: {0: 2}})
    bench.commit(3, now_ms=20)
    bench.reload(loaded)

    assert bench.checkers.violation is None


@pytest.mark.parametrize("loaded", [None, 1])
def test_crash_must_not_take_what_was_written(bench: Bench, loaded: int | None) -> None:
    bench.checkers.note_consumed(QUEUE, [0, 1])
    bench.commit(1, now_ms=10)
    bench.commit(2, now_ms=20)
    bench.checkers.note_saved(BROKER, {TOPIC: {0: 2}})
    bench.reload(loaded)

    assert bench.checkers.violation == f"T@b:0: {loaded} after a restart, 2 was written"


def test_commits_must_be_written_in_time(bench: Bench) -> None:
    bench.checkers.note_consumed(QUEUE, [0])
    bench.commit(1, now_ms=100)
    bench.checkers.check_saving(BROKER, last_ms=50, latest_ms=100)
    bench.checkers.check_saving(BROKER, last_ms=101, latest_ms=101)
    assert bench.checkers.violation is None

    bench.checkers.check_saving(BROKER, last_ms=50, latest_ms=101)
    assert bench.checkers.violation == "T@b:0: offset 1 is not written"


def test_message_must_be_stored_when_it_is_delivered_and_twice_is_counted(bench: Bench) -> None:
    first = message(0, QUEUE, b"m0")
    bench.checkers.note_delivered(QUEUE, [first])
    bench.checkers.note_consumed(QUEUE, [0])
    bench.checkers.note_delivered(QUEUE, [first])
    assert (bench.checkers.violation, bench.checkers.duplicates) == (None, 1)

    bench.checkers.note_delivered(QUEUE, [message(3, QUEUE, b"m3")])
    assert bench.checkers.violation == "T@b:0 offset 3: delivered and not stored"


def test_orderly_queue_must_be_delivered_in_order(dice: object) -> None:
    bench = Bench(dice, [b"m0", b"m1", b"m2"], is_orderly=True)
    for _ in range(2):
        bench.checkers.note_delivered(QUEUE, [message(0, QUEUE, b"m0"), message(1, QUEUE, b"m1")])
    assert bench.checkers.violation is None

    bench.checkers.note_delivered(QUEUE, [message(1, QUEUE, b"m1")])
    assert bench.checkers.violation == "T@b:0: [1] delivered, finished only up to 0"


class Owner:
    """A member that holds no queue but may take a lock for its own."""

    def __init__(self, *, until_ms: int = 0) -> None:
        self._until_ms = until_ms

    def holds(self, queue: MessageQueue) -> bool:
        del queue
        return False

    def sure_queues(self, now_ms: int) -> list[MessageQueue]:
        return [QUEUE] if now_ms < self._until_ms else []


def test_queue_must_be_held_while_its_listener_runs(bench: Bench) -> None:
    bench.checkers.check_release("m1", Owner(), [])
    assert bench.checkers.violation is None

    bench.checkers.check_release("m1", Owner(), [QUEUE])
    assert bench.checkers.violation == "m1 released T@b:0 while its listener ran"


def test_two_members_must_not_have_one_lock_at_once(bench: Bench) -> None:
    members = [("m1", Owner(until_ms=50)), ("m2", Owner()), ("m3", Owner(until_ms=60))]
    bench.checkers.check_leases(members, now_ms=50)
    assert bench.checkers.violation is None

    bench.checkers.check_leases(members, now_ms=49)
    assert bench.checkers.violation == "T@b:0: locked by m1 and m3 at once"


def test_two_members_may_have_one_lock_until_they_notice_that_their_broker_has_lost_it(
    dice: object,
) -> None:
    checkers = Bench(dice, [], lock_notice_ms=30).checkers
    members = [("m1", Owner(until_ms=90)), ("m2", Owner(until_ms=90))]
    checkers.note_locks_lost("other", now_ms=20)
    checkers.note_locks_lost(BROKER, now_ms=10)
    checkers.check_leases(members, now_ms=39)
    assert checkers.violation is None

    checkers.check_leases(members, now_ms=40)
    assert checkers.violation == "T@b:0: locked by m1 and m2 at once"


def test_queue_must_be_waited_for_while_its_listener_runs(bench: Bench) -> None:
    bench.checkers.check_drain("m1", QUEUE, waited_ms=50, bound_ms=50)
    assert bench.checkers.violation is None

    bench.checkers.check_drain("m1", QUEUE, waited_ms=49, bound_ms=50)
    assert bench.checkers.violation == "m1 gave T@b:0 up 49 ms after its listener began"


def test_where_members_only_come_and_go_nothing_comes_again_and_no_commit_goes_back(
    dice: object,
) -> None:
    bench = Bench(dice, [b"m0", b"m1"], may_redeliver=False)
    bench.checkers.note_delivered(QUEUE, [message(1, QUEUE, b"m1")])
    assert bench.checkers.violation is None
    bench.checkers.note_delivered(QUEUE, [message(1, QUEUE, b"m1")])
    expected = "T@b:0 offset 1: delivered again after a handover"
    assert bench.checkers.violation == expected

    bench = Bench(dice, [b"m0", b"m1"], may_redeliver=False)
    bench.checkers.note_consumed(QUEUE, [0, 1])
    bench.commit(2)
    bench.commit(1, host="m2")
    assert bench.checkers.violation == "T@b:0: 1 committed after 2 by m2"


def test_unfinished_is_what_is_not_consumed_not_committed_or_lost(bench: Bench) -> None:
    checkers = bench.checkers
    checkers.note_acked(b"m2", QUEUE, 2)
    assert checkers.find_unfinished() == "T@b:0 finished up to 0 of 3"
    checkers.note_consumed(QUEUE, [0, 1])
    entry = bench.store.queues.entry(TOPIC, 0, 2)
    assert entry is not None
    checkers.note_sent_back(BROKER, entry[0])
    assert checkers.find_unfinished() == "T@b:0 committed None of 3"
    bench.commit(3)
    assert checkers.find_unfinished() == "message b'm2' consumed by nobody"
    checkers.note_consumed(QUEUE, [2])
    assert checkers.find_unfinished() == ("message b'm2' sent back, and no retry 1 in %RETRY%G")


@pytest.mark.parametrize(
    ("retries_max", "topic", "other"),
    [(1, "%RETRY%G", "%DLQ%G"), (0, "%DLQ%G", "%RETRY%G")],
    ids=["retry", "dead letter"],
)
def test_message_that_was_sent_back_must_come_again(
    dice: object, retries_max: int, topic: str, other: str
) -> None:
    bench = Bench(dice, [b"m0"], retries_max=retries_max)
    bench.checkers.note_consumed(QUEUE, [0])
    bench.commit(1)
    entry = bench.store.queues.entry(TOPIC, 0, 0)
    assert entry is not None
    bench.checkers.note_sent_back(BROKER, entry[0])
    found = [bench.checkers.find_owed()]
    for place, times in ((topic, 0), (other, 1), (topic, 1)):
        bench.put(b"m0", is_sent=False, topic=place, reconsume_times=times)
        found.append(bench.checkers.find_owed())

    text = f"message b'm0' sent back, and no retry 1 in {topic}"
    assert found == [text, text, text, None]


@pytest.mark.parametrize(("times", "wait_ms"), [(0, 10_000), (4, 180_000), (20, 7_200_000)])
def test_retries_that_wait_have_longer_delays_each_time(
    dice: object, times: int, wait_ms: int
) -> None:
    bench = Bench(dice, [b"m0"])
    before_ms = bench.checkers.longest_retry_ms()
    bench.put(b"m0", is_sent=False, reconsume_times=times)
    entry = bench.store.queues.entry(TOPIC, 0, 1)
    assert entry is not None
    bench.checkers.note_sent_back(BROKER, entry[0])
    waits_ms = bench.checkers.longest_retry_ms()
    bench.put(b"m0", is_sent=False, topic="%RETRY%G", reconsume_times=times + 1)

    assert (before_ms, waits_ms, bench.checkers.longest_retry_ms()) == (0, wait_ms, 0)


def test_dead_letter_must_have_its_retries_behind_it(dice: object) -> None:
    bench = Bench(dice, [b"m0"], retries_max=2)
    bench.put(b"m0", is_sent=False, topic="%DLQ%G", reconsume_times=2)
    assert bench.checkers.violation is None

    bench.put(b"m0", is_sent=False, topic="%DLQ%G", reconsume_times=1)
    assert bench.checkers.violation == "%DLQ%G@b:0 offset 1: a dead letter after 0 retries"


@pytest.mark.parametrize(
    ("ended_at", "first", "is_found"),
    [(BROKER, None, True), (BROKER, "5", True), (BROKER, "4", False), ("other", "5", False)],
)
def test_half_message_is_discarded_only_if_no_end_of_it_was_confirmed(
    bench: Bench, ended_at: str, first: str | None, is_found: bool
) -> None:
    named = {} if first is None else {PROPERTY_TRANSACTION_PREPARED_QUEUE_OFFSET: first}
    bench.checkers.note_begun(b"m")
    bench.checkers.ledger.decide(b"m", TransactionState.ROLLBACK, unknown_times=0)
    bench.checkers.ledger.note_ended(b"m", TransactionState.ROLLBACK, ended_at, 5)

    bench.put(b"m", topic=TRANS_CHECK_MAX_TIME_TOPIC, properties=encode_properties(named))

    violation = "b'm': discarded as undecided after its ROLLBACK was confirmed"
    assert bench.checkers.violation == (violation if is_found else None)


@pytest.mark.parametrize(
    ("status", "is_found"), [(SendStatus.SEND_OK, True), (SendStatus.FLUSH_DISK_TIMEOUT, False)]
)
def test_message_of_a_key_stands_behind_earlier_ones_that_are_safe(
    bench: Bench, status: SendStatus, is_found: bool
) -> None:
    nothing: Any = None
    sends = Sends(nothing, nothing, lambda: [[QUEUE]], bench.checkers, nothing)
    earlier = Queued(b"m0")
    earlier.done(SendResult(status, "id0", "", QUEUE, 3), None)

    sends._check_key("m1", "k", SendResult(SendStatus.SEND_OK, "id1", "", QUEUE, 3), [earlier])

    violation = "m1 of key k stands before a message queued before"
    assert bench.checkers.violation == (violation if is_found else None)
