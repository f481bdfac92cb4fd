"""The simulation finds what is broken on purpose: each mistake here is caught within some seeds.

A check that finds nothing proves nothing until it has found something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_fields

from mistakes import Mistakes, as_at_apaches_broker, run_calm
from sparrowmq.broker.broker import Broker
from sparrowmq.broker.delay_schedule import DelaySchedule
from sparrowmq.broker.processors import clients, send, transaction
from sparrowmq.broker.queue_lock_table import QueueLockTable
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
BUSY: dict[str, Any] = {"message_count": 800, "pause_ms_max": 40}
# Brokers have something to write whenever they die.
WRITING: dict[str, Any] = {"message_count": 400, "pause_ms_max": 400}
TRANSACTIONS: dict[str, Any] = {"transaction_count": 60, "pause_ms_max": 500}
# What is seen of a queue that is given away too early.
EARLY = " while its listener ran|: delivered again"
AGAIN = ": delivered again after a handover"
SKIPPED = " committed, finished only up to "
# Members ask the others at once, as at Apache's broker, so that most handovers are under way still.
ASKS_EARLY = (
    (lock_rounds, "MEMBERS_ASKED_MS", 1),
    (handover, "lock_batch", as_at_apaches_broker),
)
mistake = Mistakes()


def commit_too_early(queue: ProcessQueue) -> int | None:
    """Commit what was pulled, finished or not."""
    return queue.pull_offset


def drop_at_once(owned: OwnedQueue, now_ms: int, *, drain_timeout_ms: int) -> None:
    """Release a queue without waiting for its listener."""
    owned.process_queue.drop()
    owned.state = QueueState.RELEASED


def do_nothing(*_: object, **__: object) -> None:
    """Do nothing."""


_decide = TransactionChecks._decide


def decide_by_the_producers_clock(checks: Any, current: Any, record: Any, now_ms: int) -> bool:
    """Take a half message for as old as its producer says."""
    told = replace_fields(record, store_timestamp_ms=record.born_timestamp_ms)
    return _decide(checks, current, told, now_ms)


mistake.plant(
    "offset committed too early",
    Faults(),
    SKIPPED,
    (ProcessQueue, "commit_offset", property(commit_too_early)),
)
mistake.plant(
    "queue that keeps what expired",
    Faults(expiry=20.0),
    " begins at 0 where messages up to ",
    (ConsumeQueue, "expire", do_nothing),
    seeds=5,
    message_count=200,
)
mistake.plant("skipped drain", draw_graceful_faults, EARLY, (OwnedQueue, "revoke", drop_at_once))


@mistake(
    handover,
    "_try_lock",
    COME_AND_GO,
    ": locked by |: delivered again",
    seeds=20,
    message_count=400,
)
def lock_taken_without_asking(*_: object, wait_ms: int = 0) -> Operation[handover.Lock]:
    yield from now()
    return handover.Lock(is_held=True)


@mistake(QueueLease, "is_fenced", Faults(member_freeze=20.0), ": locked by member-", seeds=20)
def lease_that_never_ends(*_: object) -> bool:
    return False


@mistake(OwnedQueue, "_is_dirty", COME_AND_GO, AGAIN, seeds=20)
def lock_given_back_before_the_last_commit(is_dirty: Any, owned: OwnedQueue) -> bool:
    return not owned.is_draining and is_dirty(owned)


starts: dict[MessageQueue, Any] = {}
try_lock, find_start = handover._try_lock, handover._find_start


def read_first(
    subscriber: Subscriber, queue: MessageQueue, *, wait_ms: int = 0
) -> Operation[handover.Lock]:
    starts[queue] = yield from find_start(subscriber, queue)
    return (yield from try_lock(subscriber, queue, wait_ms=wait_ms))


def use_what_was_read(subscriber: Subscriber, queue: MessageQueue) -> Operation[Any]:
    yield from now()
    return starts[queue] if queue in starts else (yield from find_start(subscriber, queue))


mistake.plant(
    "start read before the lock is held",
    COME_AND_GO,
    # A group without an offset begins at the queue's end.
    f"{AGAIN}|{SKIPPED}",
    (handover, "_try_lock", read_first),
    (handover, "_find_start", use_what_was_read),
    seeds=20,
    message_count=400,
)


@pytest.mark.long
def test_member_that_asks_the_others_early_waits_for_what_they_have_in_hand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for patch in ASKS_EARLY:
        monkeypatch.setattr(*patch)

    outcomes = run_calm(COME_AND_GO, seeds=10, **BUSY)
    assert [outcome.violation for outcome in outcomes] == [None] * 10


members_asked = GroupMember.members_asked


def hear_of_nothing(member: GroupMember, action: AskMembers, **answers: Any) -> None:
    answers["in_hand"] = ()
    members_asked(member, action, **answers)


mistake.plant(
    "queue that others have in hand taken without its lock",
    COME_AND_GO,
    AGAIN,
    *ASKS_EARLY,
    (GroupMember, "members_asked", hear_of_nothing),
    seeds=20,
    tried_first=6,
    **BUSY,
)


@mistake(QueueLockTable, "stood_in", COME_AND_GO, AGAIN, seeds=20, **BUSY)
def refused_member_that_stands_in_for_a_living_holder(
    _: Any, table: QueueLockTable, group: str, queues: Iterable[MessageQueue], client_id: str
) -> list[MessageQueue]:
    owners = {each: table.find_owner(group, each, now_ms=0) for each in queues}
    return [each for each, owner in owners.items() if owner not in (None, client_id)]


@mistake(ProcessQueue, "add", Faults(), SKIPPED)
def skipped_message(
    add: Any, queue: ProcessQueue, messages: Iterable[MessageExt], **details: Any
) -> Any:
    return add(queue, list(messages)[1:], **details)


@mistake(
    ProcessQueue,
    "take_batch",
    Faults(),
    " delivered, finished only up to ",
    seeds=5,
    message_count=400,
    is_orderly=True,
)
def message_out_of_order(
    take_batch: Any, queue: ProcessQueue, count_max: int, **details: Any
) -> Any:
    queue._waiting.rotate(1)
    return take_batch(queue, count_max, **details)


@mistake(
    FlushWork, "run", Faults(broker_power_cut=6.0), " no entry any more| CorruptRecord: ", seeds=10
)
def missing_sync(run: Any, work: FlushWork) -> None:
    run(replace(work, log_files=()))


@mistake(Broker, "save_work", Faults(broker_kill=6.0), " is not written$", seeds=10)
def offsets_that_are_not_written(save_work: Any, broker: Broker, *, now_ms: int) -> Any:
    work = save_work(broker, now_ms=now_ms)
    tables = {} if work is None else {**work.tables}
    tables.pop("consumerOffset.json", None)
    return None if work is None else work._replace(tables=tables)


mistake.plant(
    "notification without effect",
    COME_AND_GO,
    ": OwnershipCheck\\(|: delivered again",
    (GroupMember, "notified", do_nothing),
    seeds=20,
)
mistake.plant(
    "retry that never comes",
    Faults(failing_listener=0.2),
    " consumed by nobody",
    (DelaySchedule, "deliver_due", lambda *_, **__: 0),
)
mistake.plant(
    "member that asks again and again",
    Faults(),
    "somebody is busy with nothing",
    (OwnedQueue, "next_due_ms", lambda owned, now_ms, **_: now_ms),
    seeds=1,
)

# --- transactions ---------------------------------------------------------------------------

mistake.plant(
    "rollback taken for a commit",
    Faults(),
    ": in Flights, and the outcome is ROLLBACK$",
    (_TYPES, TransactionState.ROLLBACK, TRANSACTION_COMMIT),
    **TRANSACTIONS,
)
mistake.plant(
    "half message that consumers see",
    Faults(),
    ": in Flights, and the outcome is UNKNOWN$",
    (send, "_set_aside", do_nothing),
    **TRANSACTIONS,
)
mistake.plant(
    "commit that stores nothing",
    Faults(),
    " consumed by nobody",
    (transaction, "_put_committed", lambda *_: PutResult(PutStatus.PUT_OK)),
    **TRANSACTIONS,
)
mistake.plant(
    "producer that is never asked",
    Faults(),
    ": to be committed, stored 0 times$",
    (transaction, "_ask_producer", lambda *_: ()),
    **TRANSACTIONS,
)
mistake.plant(
    "end that is forgotten",
    Faults(),
    " ms after its end$",
    (TransactionChecks, "_read_ops", lambda *_: True),
    **TRANSACTIONS,
)
mistake.plant(
    "second commit that stores the message again",
    draw_graceful_faults,
    " twice in Flights, and nothing has failed$",
    (TransactionChecks, "is_committed", lambda *_: False),
)
mistake.plant(
    "lost commit that counts as done",
    Faults(disk_full=20.0),
    ": to be committed, neither stored nor discarded$",
    (TransactionChecks, "forget_commits", do_nothing),
    seeds=10,
    **TRANSACTIONS,
)
mistake.plant(
    "half message whose age is told by its producer's clock",
    Faults(client_clock_jump=20.0),
    ": to be committed, stored 0 times$",
    (TransactionChecks, "_decide", decide_by_the_producers_clock),
    seeds=10,
    check_interval_ms=transaction_producers.SHORT_INTERVAL_MS,
    **TRANSACTIONS,
)
mistake.plant(
    "undecided message that goes nowhere",
    Faults(producer_crash=12.0),
    ": never decided, and not discarded$",
    (TransactionChecks, "_put_away", lambda *_: True),
    seeds=5,
    **TRANSACTIONS,
)
mistake.plant(
    "undecided message that is asked for without end",
    Faults(producer_crash=12.0),
    " half messages",
    (transaction_producers, "CHECKS_MAX", 10_000),
    seeds=5,
    **TRANSACTIONS,
)


@mistake(
    TransactionChecks,
    "_go_on",
    Faults(producer_crash=12.0, disk_slow=60.0, broker_power_cut=15.0),
    " discarded",
    seeds=20,
    tried_first=4,
    fault_ms=60_000,
    **TRANSACTIONS,
)
def round_of_questions_that_is_done_before_it_is_synced(
    go_on: Any, checks: TransactionChecks, current: Any, timestamp_ms: int
) -> None:
    go_on(checks, current, timestamp_ms)
    if not checks._decided.is_empty:
        checks._decided._held = 0, current


@mistake(TransactionChecks, "_commit", draw_graceful_faults, " ms after its end$")
def end_of_a_first_copy_that_is_forgotten(
    commit: Any, checks: TransactionChecks, *args: Any
) -> None:
    checks._again, checks._first_end = {}, None
    commit(checks, *args)


# --- disks ----------------------------------------------------------------------------------


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


mistake.plant(
    "recovery that ignores checksums",
    draw_power_faults,
    ": its record cannot be read: |nobody has sent",
    (record_check, "crc32", lambda data: MatchingInt(0)),
    (record_check, "encode_crc_property", lambda crc: Matching()),
    tried_first=19,
)
mistake.plant(
    "recovery that does not write again what a failed sync left",
    Faults(sync_failure=20.0, write_power_cut=20.0),
    " CorruptRecord: | no entry any more",
    (FileSeries, "rewrite", do_nothing),
    seeds=20,
    **WRITING,
)


@mistake(Recovery, "_cut_log", draw_power_faults, " CorruptRecord: | no entry any more")
def recovery_without_its_sync(cut_log: Any, *args: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFile, "sync", do_nothing)
        return cut_log(*args)


@mistake(
    MessageStore,
    "flush_done",
    draw_power_faults,
    " was acknowledged\\)|: lost, and it was flushed",
    is_kind_alone=True,
    tried_first=17,
)
def acknowledgement_of_what_is_not_synced(
    flush_done: Any, store: MessageStore, work: FlushWork, error: Exception | None
) -> None:
    flush_done(store, work, error)
    store.flushed_position = store.appended_position


# --- queues that change hands ---------------------------------------------------------------


@mistake(handover, "choose_start_position", draw_retry_faults, SKIPPED)
def new_retry_topic_read_from_its_end(
    choose: Any, *args: Any, topic: str, **settings: Any
) -> StartPosition:
    # SparrowMQ's brokers answer 0 for a queue that begins at 0: the client's rule alone counts
    # only at Apache's: the mistake is both.
    is_new = topic.startswith(RETRY_GROUP_TOPIC_PREFIX) and not args[1]
    found: StartPosition = choose(*args, topic=topic, **settings)
    return AskMaxOffset() if is_new else found


wait_or_go_on = QueueLease.wait_or_go_on


def wait_for_who_is_gone(*args: Any, is_owner_listed: bool, **settings: Any) -> int | None:
    return wait_or_go_on(*args, is_owner_listed=not is_owner_listed, **settings)


mistake.plant(
    "lock of a listed owner that is not waited for",
    draw_graceful_faults,
    AGAIN,
    # A request that waits at the broker is seldom refused.
    (handover, "lock_batch", as_at_apaches_broker),
    (QueueLease, "wait_or_go_on", wait_for_who_is_gone),
    is_kind_alone=True,
    tried_first=12,
)


@mistake(OwnedQueue, "revoke", draw_graceful_faults, " ms after its listener began")
def drain_that_ends_before_its_bound(revoke: Any, *args: Any, drain_timeout_ms: int) -> None:
    revoke(*args, drain_timeout_ms=0)


@mistake(OwnedQueue, "_collect_last_commit", draw_graceful_faults, EARLY, tried_first=16)
def queue_given_up_without_its_last_commit(_: Any, owned: OwnedQueue, *__: object) -> None:
    owned.give_up()


# --- connections that close, and brokers that come back --------------------------------------

mistake.plant(
    "closed connection that its broker does not notice",
    draw_prompt_faults,
    " lists .* ms after its list changed$",
    (Broker, "connection_closed", lambda *_, **__: []),
)
mistake.plant(
    "closed connection that its member does not notice",
    draw_prompt_faults,
    " does not list .* ms after its list changed$",
    (GroupMember, "connection_lost", lambda *_, **__: []),
)


@mistake(clients, "forget_connection", draw_prompt_faults, " ms after a change of members: ")
def closed_connection_that_the_group_is_not_told_of(
    forget_connection: Any, *args: Any, **settings: Any
) -> list[Output]:
    outputs = forget_connection(*args, **settings)
    return [output for output in outputs if not isinstance(output, Push)]


for what, owner, method, effect in (
    ("doubt", OwnedQueue, "connection_lost", None),
    ("queue begun anew", GroupOffset, "is_ours", False),
    ("progress of a queue given up", GroupMember, "_note_progress", None),
):
    mistake.plant(
        f"{what} that is forgotten with a broker",
        draw_kill_faults,
        ": delivered again|, is not committed again|committed, finished only up to",
        (owner, method, lambda *_, effect=effect, **__: effect),
        tried_first=4,
    )

test_mistake_is_caught = mistake.make_test()


def test_command_prints_seed_and_trace_of_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ProcessQueue, "commit_offset", property(commit_too_early))

    assert main(["--seeds", "1", "--start", "3", "--trace", "5"]) == 1
    first, again, *trace, total, reached = capsys.readouterr().out.splitlines()
    assert first.startswith("seed 3: FAILED ")
    assert len(trace) == 5
    assert any("VIOLATION" in line for line in trace)
    assert total.startswith("1 seeds, 1 failed; ")
    assert again == "    again: python -m sparrowmq.simulation --seeds 1 --start 3"
    assert re.match(r"reached: \d+ reset, ", reached)
