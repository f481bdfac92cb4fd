from __future__ import annotations

from sparrowmq.broker.rounds import Rounds


def test_change_asked_during_a_round_is_covered_by_the_next() -> None:
    rounds = Rounds()
    first = rounds.ask()
    assert 1 == rounds.begin()

    second = rounds.ask()

    assert (1, 2) == (first, second)
    assert rounds.begin() is None
    rounds.finish()
    assert 2 == rounds.begin()


def test_no_round_begins_unasked() -> None:
    rounds = Rounds()

    assert rounds.begin() is None


def test_several_changes_share_a_round() -> None:
    rounds = Rounds()

    assert [1, 1, 1] == [rounds.ask(), rounds.ask(), rounds.ask()]
    assert 1 == rounds.begin()
    rounds.finish()
    assert rounds.begin() is None
