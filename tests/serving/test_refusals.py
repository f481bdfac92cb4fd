from __future__ import annotations

from enum import Enum

from sparrowmq.serving.connections import Fact
from sparrowmq.serving.refusals import WARNING_INTERVAL_MS, Refusals


class Kind(Enum):
    A = "a"
    B = "b"


def test_each_refusal_is_counted_and_each_kind_is_warned_of_once_a_minute() -> None:
    refusals = Refusals(Kind)

    facts = [
        refusals.note(kind, text, now_ms=now_ms)
        for now_ms, kind, text in (
            (0, Kind.A, "first"),
            (1, Kind.A, "second"),
            (2, Kind.B, "other"),
            (WARNING_INTERVAL_MS - 1, Kind.A, "third"),
            (WARNING_INTERVAL_MS, Kind.A, "fourth"),
            (3 * WARNING_INTERVAL_MS, Kind.A, "fifth"),
        )
    ]

    assert refusals.counts == {Kind.A: 5, Kind.B: 1}
    assert facts == [
        (Fact("first", warning=True),),
        (),
        (Fact("other", warning=True),),
        (),
        (Fact("fourth (2 more of the kind before)", warning=True),),
        (Fact("fifth", warning=True),),
    ]
