"""The squares of the matrix, of owners made by hand."""

from __future__ import annotations

from dataclasses import replace

from group_views import Q0, Q1, view_at
from sparrowmq.dash.matrix import make_columns, make_matrix
from sparrowmq.doctor.group_view import make_view


def test_square_says_whether_a_member_holds_its_own_queue_or_that_of_another() -> None:
    seen = view_at(1_000, {Q0: ("a",), Q1: ("b",)})
    shares = seen.ownership.falls_to
    ownership = replace(seen.ownership, falls_to={Q0: shares[Q1], Q1: shares[Q1]})
    view = make_view(seen.snapshot, ownership)

    rows = make_matrix(view, (), make_columns(view, (), {"a": 0, "b": 1})).rows

    kinds = [[square.kind for square in row.squares] for row in rows]
    assert kinds == [["keeps", "due"], ["", "has"]]
