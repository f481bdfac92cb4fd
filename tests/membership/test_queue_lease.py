"""How long a member believes in a lock, and what a refusal costs."""

from __future__ import annotations

import pytest

from sparrowmq.coordination.member_marker import MARKED_LEASE_MS
from sparrowmq.membership.queue_lease import (
    LOCK_RETRY_FIRST_MS,
    LOCK_RETRY_MS,
    LOCK_RETRY_SOON_MS,
    ORDERLY_LOCK_RETRY_MS,
    PATIENCE_MARGIN_MS,
    RENEWAL_LOST_MS,
    WAITED_MS,
    QueueLease,
)

DRAIN_MS = 2_000


def refused(
    lease: QueueLease, now_ms: int, *, sent_ms: int | None = None, is_owner_listed: bool = True
) -> int | None:
    return lease.wait_or_go_on(
        now_ms if sent_ms is None else sent_ms,
        now_ms,
        is_owner_listed=is_owner_listed,
        drain_timeout_ms=DRAIN_MS,
    )


def test_lock_is_believed_in_from_the_sending_of_the_request() -> None:
    lease = QueueLease(is_wanted=True)
    assert not lease.is_fenced(10**9)

    lease.grant(100)

    assert not lease.is_fenced(100 + MARKED_LEASE_MS - 1)
    assert lease.is_fenced(100 + MARKED_LEASE_MS)


def test_late_answer_to_an_older_request_takes_nothing_back() -> None:
    lease = QueueLease(is_wanted=True)
    lease.grant(3_000)

    lease.grant(1_000)
    lease.refuse(1_000, 4_000)

    assert not lease.is_fenced(3_000 + MARKED_LEASE_MS - 1)


def test_refused_renewal_fences_at_once_and_leaves_nothing_to_give_back() -> None:
    lease = QueueLease(is_wanted=True)
    lease.ask()
    lease.grant(0)

    lease.refuse(3_000, 3_010)

    assert (lease.is_fenced(3_010), lease.may_hold) == (True, False)


def test_request_without_an_answer_may_have_brought_the_lock() -> None:
    lease = QueueLease(is_wanted=True)

    lease.ask()

    assert lease.may_hold


@pytest.mark.parametrize("is_required", [False, True])
def test_next_request_follows_soon_after_one_that_waited_at_the_broker(is_required: bool) -> None:
    lease = QueueLease(is_wanted=True, is_required=is_required)
    refused(lease, 0)

    at_once = refused(lease, 1_000, sent_ms=1_001 - WAITED_MS)
    after_wait = refused(lease, 1_000, sent_ms=1_000 - WAITED_MS)

    assert at_once == 1_000 + (ORDERLY_LOCK_RETRY_MS if is_required else LOCK_RETRY_MS)
    assert after_wait == 1_000 + LOCK_RETRY_FIRST_MS


def test_renewal_counts_as_lost_after_its_bound() -> None:
    lease = QueueLease(is_wanted=True)
    lease.renewal.begin(0)

    assert lease.is_renewing(RENEWAL_LOST_MS)
    assert not lease.is_renewing(RENEWAL_LOST_MS + 1)


def test_refusal_at_the_start_is_waited_for_as_long_as_the_owner_may_drain() -> None:
    lease = QueueLease(is_wanted=True)

    assert refused(lease, 0) == LOCK_RETRY_FIRST_MS
    later_ms = LOCK_RETRY_SOON_MS
    assert refused(lease, later_ms) == later_ms + LOCK_RETRY_MS
    patience_ms = DRAIN_MS + PATIENCE_MARGIN_MS
    assert refused(lease, patience_ms - 1) is not None
    assert lease.asks_first
    assert refused(lease, patience_ms) is None
    assert not lease.asks_first


def test_owner_that_is_not_listed_is_not_waited_for() -> None:
    assert refused(QueueLease(is_wanted=True), 5, is_owner_listed=False) is None


def test_lock_that_nobody_has_in_hand_is_asked_for_once_more() -> None:
    lease = QueueLease(is_wanted=True)
    refused(lease, 0)
    lease.nobody_has_it(50)

    assert refused(lease, 60, sent_ms=40) == 60
    assert refused(lease, 70, sent_ms=60) is None


def test_stand_in_begins_at_once_and_gives_its_place_back() -> None:
    lease = QueueLease(is_wanted=True)

    again_ms = lease.wait_or_go_on(
        0, 5, is_owner_listed=True, drain_timeout_ms=DRAIN_MS, stands_in=True
    )

    assert (again_ms, lease.asks_first, lease.stands_in) == (None, False, True)
    lease.give_back()
    assert not lease.stands_in


@pytest.mark.parametrize("now_ms", [0, 10 * DRAIN_MS])
def test_lock_that_order_needs_is_never_done_without(now_ms: int) -> None:
    lease = QueueLease(is_wanted=True, is_required=True)

    assert refused(lease, now_ms, is_owner_listed=False) == now_ms + ORDERLY_LOCK_RETRY_MS
    assert lease.asks_first
