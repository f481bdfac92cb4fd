"""The squares of the matrix, of owners made by hand."""

from __future__ import annotations

from dataclasses import replace

from group_views import Q0, Q1, Q2, view_at
from sparrowmq.dash.matrix import falls_behind, make_columns, make_matrix
from sparrowmq.doctor import Finding, Severity
from sparrowmq.doctor.group_view import QueueRate, make_view


def test_square_says_whether_a_member_holds_its_own_queue_or_that_of_another() -> None:
    seen = view_at(1_000, {Q0: ("a",), Q1: ("b",)})
    shares = seen.ownership.falls_to
    ownership = replace(seen.ownership, falls_to={Q0: shares[Q1], Q1: shares[Q1]})
    view = make_view(seen.snapshot, ownership)

    rows = make_matrix(view, (), make_columns(view, (), {"a": 0, "b": 1})).rows

    kinds = [[square.kind for square in row.squares] for row in rows]
    assert kinds == [["keeps", "due"], ["", "has"]]


def test_less_than_a_seconds_input_is_not_behind() -> None:
    rate = QueueRate(100.0, 50.0, stood_still=False)

    assert [falls_behind(lag, rate) for lag in (100, 101)] == [False, True]
    assert not falls_behind(1_000, QueueRate(100.0, 96.0, stood_still=False))


def test_queues_in_trouble_are_shown_though_nothing_waits_and_have_their_badge() -> None:
    view = view_at(1_000, {Q0: ("a",), Q1: (), Q2: ("a", "b")})
    found = Finding(rule="R01", severity=Severity.ERROR, title="twins", unowned=(Q1,), double=(Q2,))

    rows = make_matrix(view, [found], make_columns(view, (), {}), only_trouble=True).rows

    assert [row.view.queue for row in rows] == [Q1, Q2]
    assert [[badge.rule for badge in row.badges] for row in rows] == [["R01"], ["R01"]]
