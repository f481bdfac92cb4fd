"""The simulation finds what is broken on purpose: each mistake here is caught within some seeds.

A check that finds nothing proves nothing until it has found something.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from sparrowmq.broker.broker import Broker
from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.broker.processors import clients, send, transaction
from sparrowmq.broker.transaction_checks import TransactionChecks
from sparrowmq.calling.effects import Operation, now
from sparrowmq.client.operations import handover
from sparrowmq.client.operations.transactions import _TYPES
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.membership import lock_rounds
from sparrowmq.membership.actions import AskMembers
from sparrowmq.membership.group_offset import GroupOffset
from sparrowmq.membership.member import GroupMember
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.membership.process_queue import ProcessQueue
from sparrowmq.membership.queue_lease import QueueLease
from sparrowmq.membership.queue_state import QueueState
from sparrowmq.membership.start_position import (
    AskMaxOffset,
    StartPosition,
    choose_start_position,
)
from sparrowmq.model import MessageExt, MessageQueue, TransactionState
from sparrowmq.model.names import RETRY_GROUP_TOPIC_PREFIX
from sparrowmq.protocol.record import TRANSACTION_COMMIT
from sparrowmq.serving.connections import Output, Push
from sparrowmq.simulation import transaction_producers
from sparrowmq.simulation.__main__ import main
from sparrowmq.simulation.faults import (
    Faults,
    draw_graceful_faults,
    draw_kill_faults,
    draw_lock_faults,
    draw_power_faults,
    draw_prompt_faults,
    draw_retry_faults,
)
from sparrowmq.simulation.faulty_disk import SimulatedFile
from sparrowmq.store import record_check
from sparrowmq.store.consume_queue import ConsumeQueue
from sparrowmq.store.file_series import FileSeries
from sparrowmq.store.flush import FlushWork
from sparrowmq.store.message_store import MessageStore
from sparrowmq.store.recovery import Recovery
from sparrowmq.store.results import PutResult, PutStatus

pytestmark = pytest.mark.slow

COME_AND_GO = Faults(member_join=10.0, member_leave=10.0)
# Listeners are at work whenever a queue changes hands.
BUSY = {"message_count": 800, "pause_ms_max": 40}
# Brokers have something to write whenever they die.
WRITING = {"message_count": 400, "pause_ms_max": 400}


def commit_too_early(queue: ProcessQueue) -> int | None:
    """Commit what was pulled, finished or not."""
    return queue.pull_offset


def drop_at_once(owned: OwnedQueue, now_ms: int, *, drain_timeout_ms: int) -> None:
    """Release a queue without waiting for its listener."""
    del now_ms, drain_timeout_ms
    owned.process_queue.drop()
    owned.state = QueueState.RELEASED


def do_nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def test_offset_committed_too_early_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessQueue, "commit_offset", property(commit_too_early))

    assert " committed, finished only up to " in run_calm(Faults(), seeds=3)[-1].violation


def test_queue_that_keeps_what_expired_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ConsumeQueue, "expire", do_nothing)

    violation = run_calm(Faults(expiry=20.0), seeds=5, message_count=200)[-1].violation
    assert " begins at 0 where messages up to " in violation


def test_skipped_drain_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnedQueue, "revoke", drop_at_once)

    violation = run_calm(COME_AND_GO, seeds=30)[-1].violation
    assert " while its listener ran" in violation or ": delivered again" in violation


def test_lock_taken_without_asking_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(*_: object, wait_ms: int = 0) -> Operation[bool]:
        del wait_ms
        yield from now()
        return True

    monkeypatch.setattr(handover, "_try_lock", believe)

    violation = run_calm(COME_AND_GO, seeds=20, message_count=400)[-1].violation
    assert ": locked by " in violation or ": delivered again" in violation


def test_lease_that_never_ends_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(lease: QueueLease, now_ms: int) -> bool:
        del lease, now_ms
        return False

    monkeypatch.setattr(QueueLease, "is_fenced", never)

    outcome = run_calm(Faults(member_freeze=20.0), seeds=20)[-1]
    assert ": locked by member-" in outcome.violation


def test_lock_given_back_before_the_last_commit_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dirty = OwnedQueue._is_dirty

    def is_dirty_unless_draining(owned: OwnedQueue) -> bool:
        return not owned.is_draining and is_dirty(owned)

    monkeypatch.setattr(OwnedQueue, "_is_dirty", is_dirty_unless_draining)

    outcome = run_calm(COME_AND_GO, seeds=20)[-1]
    assert ": delivered again after a handover" in outcome.violation


def test_start_read_before_the_lock_is_held_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: dict[MessageQueue, Any] = {}
    try_lock, find_start = handover._try_lock, handover._find_start

    def read_first(
        subscriber: Subscriber, queue: MessageQueue, *, wait_ms: int = 0
    ) -> Operation[bool | None]:
        starts[queue] = yield from find_start(subscriber, queue)
        return (yield from try_lock(subscriber, queue, wait_ms=wait_ms))

    def use_what_was_read(subscriber: Subscriber, queue: MessageQueue) -> Operation[Any]:
        yield from now()
        return starts[queue] if queue in starts else (yield from find_start(subscriber, queue))

    monkeypatch.setattr(handover, "_try_lock", read_first)
    monkeypatch.setattr(handover, "_find_start", use_what_was_read)

    outcome = run_calm(COME_AND_GO, seeds=20, message_count=400)[-1]
    assert ": delivered again after a handover" in outcome.violation


def ask_members_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have members ask the others at once, so that most handovers are under way still."""
    monkeypatch.setattr(lock_rounds, "MEMBERS_ASKED_MS", 1)


def test_member_that_asks_the_others_early_waits_for_what_they_have_in_hand(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_members_early(monkeypatch)

    outcomes = run_calm(COME_AND_GO, seeds=10, **BUSY)
    assert [outcome.violation for outcome in outcomes] == [None] * 10


def test_queue_that_others_have_in_hand_taken_without_its_lock_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_members_early(monkeypatch)
    members_asked = GroupMember.members_asked

    def hear_of_nothing(member: GroupMember, action: AskMembers, **answers: Any) -> None:
        answers["in_hand"] = ()
        members_asked(member, action, **answers)

    monkeypatch.setattr(GroupMember, "members_asked", hear_of_nothing)

    outcome = run_calm(COME_AND_GO, seeds=20, **BUSY)[-1]
    assert ": delivered again after a handover" in outcome.violation


def test_skipped_message_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ProcessQueue.add

    def add_but_one(queue: ProcessQueue, messages: Iterable[MessageExt], **details: Any) -> int:
        return add(queue, list(messages)[1:], **details)

    monkeypatch.setattr(ProcessQueue, "add", add_but_one)

    assert " committed, finished only up to " in run_calm(Faults(), seeds=3)[-1].violation


def test_message_out_of_order_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    take_batch = ProcessQueue.take_batch

    def take_the_last(queue: ProcessQueue, count_max: int, *, now_ms: int) -> list[MessageExt]:
        queue._pending.rotate(1)
        return take_batch(queue, count_max, now_ms=now_ms)

    monkeypatch.setattr(ProcessQueue, "take_batch", take_the_last)

    outcome = run_calm(Faults(), seeds=5, message_count=400, is_orderly=True)[-1]
    assert " delivered, finished only up to " in outcome.violation


def test_missing_sync_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FlushWork.run

    def sync_no_log(work: FlushWork) -> None:
        run(replace(work, log_files=()))

    monkeypatch.setattr(FlushWork, "run", sync_no_log)

    violation = run_calm(Faults(broker_power_cut=6.0), seeds=10)[-1].violation
    assert " no entry any more" in violation or " CorruptRecord: " in violation


def test_offsets_that_are_not_written_are_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_work = Broker.save_work

    def save_no_offsets(broker: Broker, *, now_ms: int) -> Any:
        work = save_work(broker, now_ms=now_ms)
        tables = {} if work is None else {**work.tables}
        tables.pop("consumerOffset.json", None)
        return None if work is None else work._replace(tables=tables)

    monkeypatch.setattr(Broker, "save_work", save_no_offsets)

    outcome = run_calm(Faults(broker_kill=6.0), seeds=10)[-1]
    assert outcome.violation.endswith(" is not written")


def test_notification_without_effect_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GroupMember, "notified", do_nothing)

    # A newcomer that is refused a queue's lock goes on without it after a while.
    violation = run_calm(COME_AND_GO, seeds=20)[-1].violation
    assert ": OwnershipCheck(" in violation or ": delivered again" in violation


def test_retry_that_never_comes_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def deliver_nothing(schedule: DelaySchedule, **_: object) -> int:
        del schedule
        return 0

    monkeypatch.setattr(DelaySchedule, "deliver_due", deliver_nothing)

    outcome = run_calm(Faults(failing_listener=0.2), seeds=3)[-1]
    assert " consumed by nobody" in outcome.violation


def test_member_that_asks_again_and_again_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def due_now(owned: OwnedQueue, now_ms: int, **_: object) -> int:
        del owned
        return now_ms

    monkeypatch.setattr(OwnedQueue, "next_due_ms", due_now)

    assert "somebody is busy with nothing" in run_calm(Faults(), seeds=1)[-1].violation


TRANSACTIONS = {"transaction_count": 60, "pause_ms_max": 500}


def test_rollback_taken_for_a_commit_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(_TYPES, TransactionState.ROLLBACK, TRANSACTION_COMMIT)

    violation = run_calm(Faults(), seeds=3, **TRANSACTIONS)[-1].violation
    assert violation.endswith(": in Flights, and the outcome is ROLLBACK")


def test_half_message_that_consumers_see_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "_set_aside", do_nothing)

    violation = run_calm(Faults(), seeds=3, **TRANSACTIONS)[-1].violation
    assert violation.endswith(": in Flights, and the outcome is UNKNOWN")


def test_commit_that_stores_nothing_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = PutResult(PutStatus.PUT_OK)
    monkeypatch.setattr(transaction, "_put_committed", lambda *_: stored)

    violation = run_calm(Faults(), seeds=3, **TRANSACTIONS)[-1].violation
    assert " consumed by nobody" in violation


def test_producer_that_is_never_asked_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "_ask_producer", lambda *_: ())

    violation = run_calm(Faults(), seeds=3, **TRANSACTIONS)[-1].violation
    assert violation.endswith(": to be committed, stored 0 times")


def test_end_that_is_forgotten_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionChecks, "_read_ops", lambda *_: True)

    violation = run_calm(Faults(), seeds=3, **TRANSACTIONS)[-1].violation
    assert violation.endswith(" ms after its end")


def test_second_commit_that_stores_the_message_again_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionChecks, "is_committed", lambda *_: False)

    violation = run_drawn(draw_graceful_faults)
    assert violation.endswith(" twice in Flights, and nothing has failed")


def test_lost_commit_that_counts_as_done_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionChecks, "forget_commits", do_nothing)

    violation = run_calm(Faults(disk_full=20.0), seeds=10, **TRANSACTIONS)[-1].violation
    assert violation.endswith(": to be committed, neither stored nor discarded")


def test_undecided_message_that_goes_nowhere_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionChecks, "_put_away", lambda *_: True)

    violation = run_calm(Faults(producer_crash=12.0), seeds=5, **TRANSACTIONS)[-1].violation
    assert violation.endswith(": never decided, and not discarded")


def test_undecided_message_that_is_asked_for_without_end_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_producers, "CHECKS_MAX", 10_000)

    violation = run_calm(Faults(producer_crash=12.0), seeds=5, **TRANSACTIONS)[-1].violation
    assert " half messages" in violation


def test_round_of_questions_that_is_done_before_it_is_synced_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = TransactionChecks._go_on

    def wait_for_no_sync(checks: TransactionChecks, current: Any, timestamp_ms: int) -> None:
        go_on(checks, current, timestamp_ms)
        if not checks._decided.is_empty:
            checks._decided._held = 0, current

    monkeypatch.setattr(TransactionChecks, "_go_on", wait_for_no_sync)

    faults = Faults(producer_crash=12.0, disk_slow=60.0, broker_power_cut=15.0)
    violation = run_calm(faults, seeds=20, fault_ms=60_000, **TRANSACTIONS)[-1].violation
    assert " discarded" in violation


# The mistakes from here on are looked for as `make simulate` draws its runs, of the kinds that are
# made for them.


def test_refused_lease_that_is_believed_in_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_what_is_newer(lease: QueueLease, sent_ms: int, now_ms: int) -> None:
        if sent_ms < lease.sent_ms:
            lease.may_hold, lease.until_ms = False, now_ms

    monkeypatch.setattr(QueueLease, "refuse", refuse_what_is_newer)

    assert ": locked by member-" in run_drawn(draw_lock_faults)


class Matching(bytes):
    """Bytes that are equal to all others."""

    __hash__ = bytes.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


class MatchingInt(int):
    """A checksum that is equal to all others."""

    __hash__ = int.__hash__

    def __and__(self, mask: int) -> MatchingInt:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def test_recovery_that_ignores_checksums_is_caught(
    run_kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_check, "crc32", lambda data: MatchingInt(0))
    monkeypatch.setattr(record_check, "encode_crc_property", lambda crc: Matching())

    violation = run_kind(draw_power_faults)
    assert ": its record cannot be read: " in violation or "nobody has sent" in violation


def test_new_retry_topic_read_from_its_end_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_retries_at_the_end(*args: Any, topic: str, **settings: Any) -> StartPosition:
        # SparrowMQ's brokers answer 0 for a queue that begins at 0: the client's rule alone counts
        # only at Apache's: the mistake is both.
        is_new = topic.startswith(RETRY_GROUP_TOPIC_PREFIX) and not args[1]
        return AskMaxOffset() if is_new else choose_start_position(*args, topic=topic, **settings)

    monkeypatch.setattr(handover, "choose_start_position", begin_retries_at_the_end)

    violation = run_drawn(draw_retry_faults)
    assert " committed, finished only up to " in violation


def test_end_of_a_first_copy_that_is_forgotten_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = TransactionChecks._commit

    def commit_without_copies(checks: TransactionChecks, *args: Any) -> None:
        checks._again, checks._first_end = {}, None
        commit(checks, *args)

    monkeypatch.setattr(TransactionChecks, "_commit", commit_without_copies)

    assert run_drawn(draw_graceful_faults).endswith(" ms after its end")


def test_recovery_that_does_not_write_again_what_a_failed_sync_left_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileSeries, "rewrite", do_nothing)

    faults = Faults(sync_failure=20.0, write_power_cut=20.0)
    violation = run_calm(faults, seeds=20, **WRITING)[-1].violation
    assert " CorruptRecord: " in violation or " no entry any more" in violation


def test_recovery_without_its_sync_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_log = Recovery._cut_log

    def cut_without_sync(recovery: Recovery, start: int, end: int) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(SimulatedFile, "sync", do_nothing)
            return cut_log(recovery, start, end)

    monkeypatch.setattr(Recovery, "_cut_log", cut_without_sync)

    violation = run_drawn(draw_power_faults)
    assert " CorruptRecord: " in violation or " no entry any more" in violation


@pytest.mark.parametrize(
    ("machine", "method", "seen"),
    [(Broker, "connection_closed", " lists "), (GroupMember, "connection_lost", " does not list ")],
    ids=["broker", "member"],
)
def test_closed_connection_that_nobody_notices_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch, machine: type, method: str, seen: str
) -> None:
    monkeypatch.setattr(machine, method, lambda *_, **__: [])

    violation = run_drawn(draw_prompt_faults)
    assert seen in violation
    assert violation.endswith(" ms after its list changed")


def test_drain_that_is_skipped_is_caught_as_runs_are_drawn(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnedQueue, "revoke", drop_at_once)

    violation = run_drawn(draw_graceful_faults)
    assert " while its listener ran" in violation or ": delivered again" in violation


def test_lock_of_a_listed_owner_that_is_not_waited_for_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_or_go_on = QueueLease.wait_or_go_on

    def take_the_listed_for_gone(
        lease: QueueLease, sent_ms: int, now_ms: int, *, is_owner_listed: bool, **settings: Any
    ) -> int | None:
        is_listed = not is_owner_listed
        return wait_or_go_on(lease, sent_ms, now_ms, is_owner_listed=is_listed, **settings)

    monkeypatch.setattr(QueueLease, "wait_or_go_on", take_the_listed_for_gone)

    assert ": delivered again after a handover" in run_drawn(draw_graceful_faults)


def test_drain_that_ends_before_its_bound_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoke = OwnedQueue.revoke

    def revoke_at_once(owned: OwnedQueue, now_ms: int, *, drain_timeout_ms: int) -> None:
        del drain_timeout_ms
        revoke(owned, now_ms, drain_timeout_ms=0)

    monkeypatch.setattr(OwnedQueue, "revoke", revoke_at_once)

    assert " ms after its listener began" in run_drawn(draw_graceful_faults)


def test_acknowledgement_of_what_is_not_synced_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush_done = MessageStore.flush_done

    def trust_the_disk(store: MessageStore, work: FlushWork, error: Exception | None) -> None:
        flush_done(store, work, error)
        store.flushed_position = store.appended_position

    monkeypatch.setattr(MessageStore, "flush_done", trust_the_disk)

    assert " was acknowledged)" in run_drawn(draw_power_faults)


# --- members whose broker comes back --------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "method", "effect"),
    [
        (OwnedQueue, "connection_lost", None),
        (GroupOffset, "is_ours", False),
        (GroupMember, "_note_progress", None),
    ],
    ids=["no doubt", "queue begun anew", "progress of a queue given up"],
)
def test_progress_that_is_forgotten_with_a_broker_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch, machine: type, method: str, effect: object
) -> None:
    monkeypatch.setattr(machine, method, lambda *_, **__: effect)

    violation = run_drawn(draw_kill_faults)
    assert ": delivered again" in violation or ", is not committed again" in violation


def test_queue_given_up_without_its_last_commit_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end_at_once(owned: OwnedQueue, *_: object) -> None:
        owned.give_up()

    monkeypatch.setattr(OwnedQueue, "_collect_last_commit", end_at_once)

    violation = run_drawn(draw_graceful_faults)
    assert " while its listener ran" in violation or ": delivered again" in violation


def test_refused_lease_that_is_not_noticed_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QueueLease, "refuse", do_nothing)

    assert ": locked by member-" in run_drawn(draw_lock_faults)


def test_closed_connection_that_the_group_is_not_told_of_is_caught(
    run_drawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_connection = clients.forget_connection

    def forget_silently(*args: Any, **settings: Any) -> list[Output]:
        outputs = forget_connection(*args, **settings)
        return [output for output in outputs if not isinstance(output, Push)]

    monkeypatch.setattr(clients, "forget_connection", forget_silently)

    assert " ms after a change of members: " in run_drawn(draw_prompt_faults)


def test_command_prints_seed_and_trace_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessQueue, "commit_offset", property(commit_too_early))

    assert main(["--seeds", "1", "--start", "3", "--trace", "5"]) == 1
    first, *trace, total, faults = capsys.readouterr().out.splitlines()
    assert first.startswith("seed 3: FAILED ")
    assert len(trace) == 5
    assert any("VIOLATION" in line for line in trace)
    assert total.startswith("1 seeds, 1 failed; ")
    assert faults.startswith("faults: reset ")
