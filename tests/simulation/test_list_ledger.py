"""Wrong lists of members and wrong shares are found once they have lasted."""

from __future__ import annotations

import pytest

from sparrowmq.model import MessageQueue
from sparrowmq.simulation.list_ledger import ListLedger, judge_ownership

BROKER = "b"
Q0, Q1, Q2 = (MessageQueue("T", BROKER, number) for number in range(3))


@pytest.mark.parametrize(
    ("listed", "expected"),
    [(["a"], "b does not list b"), (["a", "b", "c", "d"], "b lists d")],
)
def test_list_of_members_must_be_right_soon(listed: list[str], expected: str) -> None:
    found: list[str] = []
    lists = ListLedger(found.append)

    def look(now_ms: int, ids: list[str]) -> list[str]:
        lists.check(BROKER, ids, live=["a", "b"], leaving=["c"], now_ms=now_ms, bound_ms=20)
        return found

    assert look(0, ["a"]) == []
    assert look(10, ["a", "b", "c"]) == []
    assert look(20, listed) == []
    assert look(25, ["a", "b"]) == []
    assert look(30, listed) == []
    assert look(50, listed) == []
    lists.note_gone(BROKER)
    assert look(51, listed) == []
    assert look(71, listed) == []
    assert look(72, listed) == [f"{expected}, 20 ms after its list changed"]


def test_shares_must_be_right_soon_after_the_lists_are() -> None:
    found: list[str] = []
    lists, wrong = ListLedger(found.append), judge_ownership([Q0], {"a": []})
    for shares, now_ms in ((wrong, 0), (None, 4_000), (wrong, 6_000), (wrong, 11_000)):
        lists.check_shares(shares, now_ms=now_ms)
    assert found == []

    lists.check_shares(wrong, now_ms=11_001)
    assert "5000 ms after a change of members" in found[0]


def test_owners_are_counted_queue_by_queue() -> None:
    ownership = judge_ownership([Q0, Q1, Q2], {"a": [Q0, Q1], "b": [Q1]})

    assert (*ownership, ownership.is_exact) == ((Q2,), (Q1,), False)
    assert judge_ownership([Q0, Q1], {"a": [Q0], "b": [Q1]}).is_exact
