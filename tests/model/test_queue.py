"""The order that Java gives to texts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.model.queue import in_java_order, java_order


@given(st.lists(st.text()))
def test_texts_are_in_java_order_with_and_without_keys(texts: list[str]) -> None:
    assert sorted(texts, key=java_order) == in_java_order(texts)


def test_surrogates_of_java_come_before_the_last_code_units() -> None:
    assert in_java_order(["\uffff", "\U00010000", "a"]) == ["a", "\U00010000", "\uffff"]
