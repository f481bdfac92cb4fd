"""The Lab's picture of a drill: who had which queue, and until when."""

from __future__ import annotations

from sparrowmq.dash.lab import picture_length_ms
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.doctor.owner_history import GroupRebalance, OwnedSpan
from sparrowmq.drills.drill import Phase, Report
from sparrowmq.drills.kinds import DrillKind
from sparrowmq.drills.stage import GROUP, TOPIC
from sparrowmq.model import MessageQueue

QUEUE = MessageQueue(TOPIC, "broker-a", 0)


def result(*, last_ms: int, settled_ms: int | None) -> Report:
    seen = GroupSnapshot(group=GROUP, samples=())
    return Report(
        kind=DrillKind.JOIN,
        phases=(
            Phase(
                "a third member joins two",
                GroupRebalance(begun_ms=0, ended_ms=0, settled_ms=settled_ms),
            ),
        ),
        before=seen,
        after=seen,
        sent=0,
        consumed=0,
        twice=0,
        changes=(),
        spans=(
            OwnedSpan(QUEUE, -300, last_ms, ("member-1",)),
            OwnedSpan(QUEUE, last_ms, 41_000, ("member-2",)),
        ),
        late_work=None,
    )


def test_picture_ends_shortly_after_the_last_change() -> None:
    assert picture_length_ms(result(last_ms=1_000, settled_ms=1_000)) == 1_400


def test_picture_of_what_never_settles_is_as_long_as_the_drill() -> None:
    assert picture_length_ms(result(last_ms=1_000, settled_ms=None)) == 41_000
