"""What a member makes of its own id in the brokers' lists."""

from __future__ import annotations

from sparrowmq.membership.actions import DuplicateClientId, Fact, NotListed
from sparrowmq.membership.listed_ids import RETURN_MS, ListedIds


def note(ids: ListedIds, *cid_all: str) -> list[Fact]:
    facts: list[Fact] = []
    ids.note([cid_all], facts, now_ms=0)
    return facts


def test_id_that_the_first_list_has_twice_is_told_at_once_and_again_after_it_was_alone() -> None:
    ids = ListedIds("G", "c0")
    told = [DuplicateClientId("G", "c0", 2, ("c0", "c0", "c1"))]

    assert note(ids, "c0", "c0", "c1") == told
    assert note(ids, "c0", "c0", "c1") == []
    assert note(ids, "c0", "c1") == []
    assert note(ids, "c0", "c0", "c1") == told


def test_member_that_is_missing_from_two_lists_in_a_row_is_told_so() -> None:
    ids = ListedIds("G", "c0")

    assert note(ids, "c1") == []
    assert (ids.is_missing, ids.is_early) == (True, True)
    assert note(ids, "c1") == [NotListed("G", "c0", ("c1",))]
    assert (ids.is_missing, ids.is_early) == (True, False)
    assert note(ids, "c0", "c1") == []
    assert (ids.is_missing, ids.is_early) == (False, False)


def test_list_lacks_nobody_as_long_as_all_brokers_answered() -> None:
    assert not ListedIds("G", "c0").may_lack(["c0"], 0)


def test_id_that_only_one_of_several_brokers_has_twice_is_told() -> None:
    facts: list[Fact] = []

    ListedIds("G", "c0").note([("c0", "c1"), ("c0", "c0", "c1")], facts, now_ms=0)

    assert facts == [DuplicateClientId("G", "c0", 2, ("c0", "c0", "c1"))]


def test_members_that_another_broker_lists_have_come_back() -> None:
    ids = ListedIds("G", "c0")
    note(ids, "c0", "c1")
    ids.broker_returned(0)

    ids.note([("c0",), ("c0", "c1")], [], now_ms=1)

    assert not ids.is_early


def test_list_that_lacks_members_is_not_believed_until_they_had_time_to_come_back() -> None:
    ids = ListedIds("G", "c0")
    note(ids, "c0", "c1")
    ids.broker_returned(0)

    is_early = []
    for now_ms in (1, RETURN_MS - 1, RETURN_MS):
        ids.note([("c0",)], [], now_ms=now_ms)
        is_early.append(ids.is_early)

    assert is_early == [True, True, False]
