from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sparrowmq.broker import queue_lock_table
from sparrowmq.broker.journal_records import LockChange
from sparrowmq.broker.queue_lock_table import ASKED_AGAIN_MS, QueueLockTable
from sparrowmq.coordination.member_marker import QUEUE_LEASE_BROKER_MS, QUEUE_LEASE_CLIENT_MS
from sparrowmq.model import MessageQueue

A, B, C = (MessageQueue("T", "broker-a", queue_id) for queue_id in range(3))


def test_a_free_queue_is_locked_and_a_held_one_refused() -> None:
    table = QueueLockTable()

    assert table.try_lock_batch("G", [A, B], "one", now_ms=0) == [A, B]
    assert table.try_lock_batch("G", [B, C], "two", now_ms=1) == [C]
    assert table.try_lock_batch("G", [A, B, A], "one", now_ms=2) == [A, B]


def test_groups_do_not_see_each_other() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)

    assert table.try_lock_batch("H", [A], "two", now_ms=0) == [A]


def test_a_lease_runs_out_after_sixty_seconds_of_silence() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)

    assert table.try_lock_batch("G", [A], "two", now_ms=60_000) == []
    assert table.find_owner("G", A, now_ms=60_000) == "one"
    assert table.find_owner("G", A, now_ms=60_001) is None
    assert table.try_lock_batch("G", [A], "two", now_ms=60_001) == [A]


def test_renewal_lengthens_the_lease() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)
    table.try_lock_batch("G", [A], "one", now_ms=20_000)

    assert table.try_lock_batch("G", [A], "two", now_ms=80_000) == []


def test_unlock_releases_only_ones_own() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)
    table.try_lock_batch("G", [B], "two", now_ms=0)

    table.unlock_batch("G", [A, B, C], "one")

    assert table.find_owner("G", A, now_ms=0) is None
    assert table.find_owner("G", B, now_ms=0) == "two"


def test_owner_is_found_until_its_lock_ends() -> None:
    table = QueueLockTable()

    table.try_lock_batch("G", [A], "one", now_ms=0)
    assert table.find_owner("G", A, now_ms=60_000) == "one"
    assert table.find_owner("G", A, now_ms=60_001) is None


def test_a_closed_connection_leaves_what_the_client_may_still_believe() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)
    table.try_lock_batch("G", [B], "two", now_ms=0)

    table.shorten("G", "one", lease_ms=30_000, now_ms=10_000)

    assert table.try_lock_batch("G", [A], "three", now_ms=30_000) == []
    assert table.try_lock_batch("G", [A, B], "three", now_ms=30_001) == [A]


def test_a_connection_closed_late_does_not_lengthen_the_lease() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)

    table.shorten("G", "one", lease_ms=30_000, now_ms=59_000)

    assert table.find_owner("G", A, now_ms=59_000) == "one"
    assert table.find_owner("G", A, now_ms=59_001) is None


def test_stand_in_is_the_owner_until_it_gives_the_queue_back_or_asks_after_the_lease() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A, B], "dead", now_ms=0)
    table.shorten("G", "dead", lease_ms=60_000, now_ms=0)
    table.try_lock_batch("G", [A], "heir", now_ms=1, lists={"heir"}.__contains__)

    assert table.find_owners("G", {"heir"}, now_ms=60_000) == {"heir": [A], "dead": [B]}
    assert table.find_owners("G", {"heir"}, now_ms=60_001) == {"heir": [A]}
    assert table.find_owners("G", {"heir", "dead"}, now_ms=60_001) == {"heir": [A]}
    assert table.find_owners("G", {"other"}, now_ms=60_000) == {"dead": [A, B]}
    assert table.find_owners("G", {"heir", "dead"}, now_ms=60_000) == {"dead": [A, B]}
    table.unlock_batch("G", [A, B], "heir")
    assert table.find_owners("G", {"heir"}, now_ms=60_000) == {"dead": [A, B]}


def test_another_stands_in_once_the_stand_in_is_gone_too() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "dead", now_ms=0)
    table.shorten("G", "dead", lease_ms=60_000, now_ms=0)

    for listed in ({"heir", "next"}, {"next"}):
        for client_id in sorted(listed):
            table.try_lock_batch("G", [A], client_id, now_ms=1, lists=listed.__contains__)

    assert table.stood_in("G", [A], "heir") == []
    assert table.stood_in("G", [A], "next") == [A]


def test_nobody_stands_in_for_a_holder_that_is_listed_again() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "back", now_ms=0)
    table.shorten("G", "back", lease_ms=60_000, now_ms=0)
    table.try_lock_batch("G", [A], "other", now_ms=1, lists={"back", "other"}.__contains__)

    assert table.stood_in("G", [A], "other") == []


def test_expired_leases_are_forgotten() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)
    table.try_lock_batch("G", [B], "one", now_ms=50_000)

    table.drop_expired(now_ms=60_001)
    assert [lock.queue for lock in table.save(now_ms=0)] == [A, B]
    table.drop_expired(now_ms=60_001 + ASKED_AGAIN_MS)

    assert [lock.queue for lock in table.save(now_ms=0)] == [B]


def test_a_refused_request_leaves_no_trace() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [], "one", now_ms=0)

    assert table == QueueLockTable()


def test_saved_locks_come_back_with_what_they_had_left() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [B, A], "one", now_ms=0)
    saved = table.save(now_ms=45_000)

    restored = QueueLockTable()
    restored.restore(saved, now_ms=1_000_000)

    assert {lock.queue for lock in saved} == {A, B}
    assert restored.find_owner("G", A, now_ms=1_015_000) == "one"
    assert restored.find_owner("G", A, now_ms=1_015_001) is None


def test_restored_lock_lasts_no_longer_than_a_lease() -> None:
    table = QueueLockTable()

    table.restore([LockChange("G", A, "one", 10 * QUEUE_LEASE_BROKER_MS)], now_ms=0)

    assert table.find_owner("G", A, now_ms=QUEUE_LEASE_BROKER_MS) == "one"
    assert table.find_owner("G", A, now_ms=QUEUE_LEASE_BROKER_MS + 1) is None


def test_lock_that_was_cut_is_written_again_with_what_it_has_left() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A, B], "one", now_ms=0)
    table.try_lock_batch("G", [C], "two", now_ms=0)
    table.take_changes(now_ms=0)

    table.shorten("G", "one", lease_ms=30_000, now_ms=10_000)

    expected = [LockChange("G", queue, "one", 20_000) for queue in (A, B)]
    assert table.take_changes(now_ms=10_000) == expected


def test_nobody_stands_in_for_a_holder_that_may_come_back_after_a_restart() -> None:
    table, restored = QueueLockTable(), QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)
    restored.restore(table.save(now_ms=0), now_ms=0)

    restored.try_lock_batch("G", [A], "two", now_ms=1, lists={"two"}.__contains__)

    assert restored.stood_in("G", [A], "two") == []


def test_changes_since_a_save_bring_a_table_up_to_date() -> None:
    table, restored = QueueLockTable(), QueueLockTable()
    table.try_lock_batch("G", [A, B], "one", now_ms=0)
    table.take_changes(now_ms=0)
    saved = table.save(now_ms=0)
    table.unlock_batch("G", [A], "one")
    table.try_lock_batch("G", [C], "two", now_ms=10_000)
    table.try_lock_batch("G", [B], "one", now_ms=10_000)
    table.shorten("G", "two", lease_ms=30_000, now_ms=15_000)

    changes = table.take_changes(now_ms=20_000)
    restored.restore([*saved, *changes], now_ms=0)

    # A renewal is not a change.
    assert set(changes) == {LockChange("G", A, None), LockChange("G", C, "two", 20_000)}
    assert table.take_changes(now_ms=20_000) == []
    assert restored.save(now_ms=0) == [
        LockChange("G", B, "one", 60_000),
        LockChange("G", C, "two", 20_000),
    ]
    assert len(table) == len(restored) == 2


def test_renewal_of_a_lock_that_was_cut_is_a_change() -> None:
    table, restored = QueueLockTable(), QueueLockTable()
    table.try_lock_batch("G", [A], "one", now_ms=0)
    table.shorten("G", "one", lease_ms=30_000, now_ms=5_000)
    cut = table.take_changes(now_ms=10_000)
    table.try_lock_batch("G", [A], "one", now_ms=10_000)

    restored.restore([*cut, *table.take_changes(now_ms=10_000)], now_ms=10_000)

    assert restored.find_owner("G", A, now_ms=70_000) == "one"


def test_change_that_was_not_written_and_a_lease_that_ran_out_are_taken_again() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A, B], "one", now_ms=0)
    table.take_changes(now_ms=0)

    table.unwritten["G", A] = None
    again = table.take_changes(now_ms=0)
    table.drop_expired(now_ms=70_000)

    assert again == [LockChange("G", A, "one", 60_000)]
    ended = table.take_changes(now_ms=70_000)
    assert ended == [LockChange("G", A, None), LockChange("G", B, None)]
    assert len(table) == 0


def test_only_who_may_takes_a_queue_and_who_holds_it_may_always_renew() -> None:
    table = QueueLockTable()
    table.try_lock_batch("G", [A, B], "one", now_ms=0)

    def none(queue: MessageQueue) -> bool:
        return False

    assert table.try_lock_batch("G", [A, B, C], "one", now_ms=1, may_take=none) == [A, B]
    # Also one that has run out, while nobody else has it.
    assert table.try_lock_batch("G", [A], "one", now_ms=60_002, may_take=none) == [A]
    assert table.try_lock_batch("G", [B], "two", now_ms=60_002, may_take=none) == []
    assert table.try_lock_batch("G", [B], "two", now_ms=60_002) == [B]


def test_number_of_locks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lock_table, "LOCKS_MAX", 2)
    table = QueueLockTable()
    table.try_lock_batch("G", [A, B], "one", now_ms=0)

    assert table.try_lock_batch("G", [C, B], "one", now_ms=1) == [B]
    assert table.try_lock_batch("H", [A], "two", now_ms=1) == []
    table.unlock_batch("G", [A, A], "one")
    assert table.try_lock_batch("H", [A, B], "two", now_ms=1) == [A]


def test_restored_locks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lock_table, "LOCKS_MAX", 1)
    table = QueueLockTable()

    table.restore([LockChange("G", queue, "one", 60_000) for queue in (A, B)], now_ms=0)

    assert len(table) == 1


class TwoMembers(RuleBasedStateMachine):
    """Members that trust their lease for 30 s from sending never overlap, whatever happens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = QueueLockTable()
        self.now_ms = 0
        self.trusted_until_ms: dict[str, int] = {}

    @rule(step_ms=st.sampled_from([1, 5_000, 13_000, 27_000, 30_000, 30_001, 60_000, 60_001]))
    def pass_time(self, step_ms: int) -> None:
        self.now_ms += step_ms

    @rule(client_id=st.sampled_from(["one", "two"]), delay_ms=st.integers(0, 5_000))
    def lock(self, client_id: str, delay_ms: int) -> None:
        sent_ms = self.now_ms
        self.now_ms += delay_ms
        if self.table.try_lock_batch("G", [A], client_id, now_ms=self.now_ms):
            self.trusted_until_ms[client_id] = sent_ms + QUEUE_LEASE_CLIENT_MS

    @rule(client_id=st.sampled_from(["one", "two"]))
    def stop_and_unlock(self, client_id: str) -> None:
        self.trusted_until_ms.pop(client_id, None)
        self.table.unlock_batch("G", [A], client_id)

    @rule(client_id=st.sampled_from(["one", "two"]))
    def close_connection(self, client_id: str) -> None:
        self.table.shorten("G", client_id, lease_ms=QUEUE_LEASE_CLIENT_MS, now_ms=self.now_ms)

    @rule()
    def restart_broker(self) -> None:
        saved = self.table.save(now_ms=self.now_ms)
        self.table = QueueLockTable()
        self.table.restore(saved, now_ms=self.now_ms)

    @rule()
    def drop_expired(self) -> None:
        self.table.drop_expired(now_ms=self.now_ms)

    @invariant()
    def at_most_one_member_consumes(self) -> None:
        consuming = [c for c, until in self.trusted_until_ms.items() if self.now_ms <= until]
        assert len(consuming) <= 1


TestTwoMembers = TwoMembers.TestCase


def test_the_brokers_lease_outlives_the_clients() -> None:
    assert QUEUE_LEASE_BROKER_MS == 60_000
    assert QUEUE_LEASE_CLIENT_MS == 30_000
