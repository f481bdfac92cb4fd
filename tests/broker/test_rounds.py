from __future__ import annotations

from sparrowmq.broker.rounds import Rounds


def test_change_asked_during_a_round_is_covered_by_the_next() -> None:
    rounds = Rounds()
    first = rounds.ask()
    assert rounds.begin() == 1

    second = rounds.ask()

    assert (first, second) == (1, 2)
    assert rounds.begin() is None
    rounds.finish()
    assert rounds.begin() == 2


def test_no_round_begins_unasked() -> None:
    rounds = Rounds()

    assert rounds.begin() is None


def test_several_changes_share_a_round() -> None:
    rounds = Rounds()

    assert [rounds.ask(), rounds.ask(), rounds.ask()] == [1, 1, 1]
    assert rounds.begin() == 1
    rounds.finish()
    assert rounds.begin() is None
