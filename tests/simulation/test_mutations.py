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
from sparrowmq.calling.effects import Operation, now
from sparrowmq.client.operations import handover
from sparrowmq.client.subscriber import Subscriber
from sparrowmq.membership import lock_rounds
from sparrowmq.membership.actions import AskMembers
from sparrowmq.membership.member import GroupMember
from sparrowmq.membership.owned_queue import OwnedQueue
from sparrowmq.membership.process_queue import ProcessQueue, ProcessQueueState
from sparrowmq.membership.queue_lease import QueueLease
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.simulation.__main__ import main
from sparrowmq.simulation.faults import Faults
from sparrowmq.store.flush import FlushWork

pytestmark = pytest.mark.slow

COME_AND_GO = Faults(member_join=10.0, member_leave=10.0)
# Listeners are at work whenever a queue changes hands.
BUSY = {"message_count": 800, "pause_ms_max": 40}


def commit_too_early(queue: ProcessQueue) -> int | None:
    """Commit what was pulled, finished or not."""
    return None if queue.state is ProcessQueueState.DROPPED else queue.pull_offset


def drop_at_once(owned: OwnedQueue, now_ms: int, *, drain_timeout_ms: int) -> None:
    """Release a queue without waiting for its listener."""
    del now_ms, drain_timeout_ms
    owned.process_queue.drop()
    owned.is_released = True


def do_nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def test_offset_committed_too_early_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessQueue, "commit_offset", property(commit_too_early))

    assert " committed, finished only up to " in run_calm(Faults(), seeds=3)[-1].violation


def test_skipped_drain_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnedQueue, "revoke", drop_at_once)

    violation = run_calm(COME_AND_GO, seeds=30)[-1].violation
    assert " while its listener ran" in violation or ": delivered again" in violation


def test_lock_taken_without_asking_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(*_: object) -> Operation[bool]:
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

    def read_first(subscriber: Subscriber, queue: MessageQueue) -> Operation[bool | None]:
        starts[queue] = yield from find_start(subscriber, queue)
        return (yield from try_lock(subscriber, queue))

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
    assert [None] * 10 == [outcome.violation for outcome in outcomes]


def test_queue_that_others_have_in_hand_taken_without_its_lock_is_caught(
    run_calm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask_members_early(monkeypatch)
    members_asked = GroupMember.members_asked

    def hear_of_nothing(member: GroupMember, action: AskMembers, **told: Any) -> None:
        members_asked(member, action, **{**told, "in_hand": ()})

    monkeypatch.setattr(GroupMember, "members_asked", hear_of_nothing)

    outcome = run_calm(COME_AND_GO, seeds=20, **BUSY)[-1]
    assert ": delivered again after a handover" in outcome.violation


def test_skipped_message_is_caught(run_calm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add = ProcessQueue.add

    def add_but_one(
        queue: ProcessQueue, messages: Iterable[MessageExt], *, next_offset: int
    ) -> int:
        return add(queue, list(messages)[1:], next_offset=next_offset)

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
    assert " ms after the heal: Ownership(" in violation or ": delivered again" in violation


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


def test_command_prints_seed_and_trace_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessQueue, "commit_offset", property(commit_too_early))

    assert 1 == main(["--seeds", "1", "--start", "3", "--trace", "5"])
    first, *trace, total, faults = capsys.readouterr().out.splitlines()
    assert first.startswith("seed 3: FAILED ")
    assert 5 == len(trace)
    assert any("VIOLATION" in line for line in trace)
    assert total.startswith("1 seeds, 1 failed; ")
    assert faults.startswith("faults: reset ")
