"""Former owners and added queues, from the views a member has had."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sparrowmq.membership.queue_history import SHARES_COMPUTED_MAX, VIEWS_MAX, QueueHistory
from sparrowmq.model import MessageQueue
from sparrowmq.strategies.averagely import AllocateMessageQueueAveragely
from sparrowmq.strategies.by_config import AllocateMessageQueueByConfig
from sparrowmq.strategies.registry import strategy_from

QUEUES = [MessageQueue("T", "b", n) for n in range(4)]
HANDOVER_MS = 11_000
LATE_MS = HANDOVER_MS


def is_owner_listed(history: QueueHistory, queue_id: int, *, strategy: str = "AVG") -> bool:
    return history.is_owner_listed(
        QUEUES[queue_id], strategy_from(strategy), group="G", client_id="me"
    )


@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_owner_that_was_killed_is_not_listed(strategy: str) -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["dead", "me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["me"], now_ms=LATE_MS)
    share = strategy_from(strategy).allocate("G", "dead", QUEUES, ["dead", "me"]) or []

    assert share
    assert not any(is_owner_listed(history, q.queue_id, strategy=strategy) for q in share)


def test_owner_that_shrinks_is_listed() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["dead", "alive", "me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["alive", "me"], now_ms=LATE_MS)

    # AVG: dead had 0 and 1, alive 2, me 3; now me has 2 and 3.
    assert [is_owner_listed(history, n) for n in range(3)] == [False, False, True]


def test_owner_before_a_member_that_has_left_meanwhile_is_waited_for() -> None:
    strategy, history = "AVG_BY_CIRCLE", QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["b", "me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["a", "b", "me"], now_ms=LATE_MS)
    # "a" was given the queues 0, which "b" may still drain, and 3, which was ours; it leaves.
    history.note("T", QUEUES, cid_all=["b", "me"], now_ms=LATE_MS + 1_000)

    listed = [is_owner_listed(history, n, strategy=strategy) for n in range(4)]
    assert listed == [True, True, True, False]


def test_owners_of_all_views_within_a_handover_have_left() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["dead", "dead too", "me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["dead too", "me"], now_ms=LATE_MS)
    history.note("T", QUEUES, cid_all=["me", "new"], now_ms=LATE_MS + 1_000)

    # AVG: "dead" had 0 and 1, then "dead too".
    assert [is_owner_listed(history, n) for n in range(4)] == [False, False, True, True]


def test_queue_that_was_ours_before_a_member_that_has_left_is_waited_for_by_nobody() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["a", "me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["a", "me", "new"], now_ms=LATE_MS)
    history.note("T", QUEUES, cid_all=["a", "me"], now_ms=LATE_MS + 1_000)

    # AVG: we had 2 and 3, then 2 beside "new" with 3.
    assert [is_owner_listed(history, n) for n in range(4)] == [True, True, True, False]


def test_view_that_ended_longer_ago_than_a_handover_shows_no_owner() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["alive", "me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["alive", "dead", "me"], now_ms=LATE_MS)
    history.note("T", QUEUES, cid_all=["alive", "me"], now_ms=LATE_MS + HANDOVER_MS)

    # AVG: "alive" had 0 and 1, then 0 and 1 beside "dead" with 2; now it has 0 and 1 again.
    assert [is_owner_listed(history, n) for n in range(4)] == [True, True, False, True]


def test_queue_that_was_freed_once_has_an_owner_again_after_the_next_view() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["dead", "me", "other"], now_ms=0)
    history.note("T", QUEUES, cid_all=["me", "other"], now_ms=LATE_MS)
    is_listed = [is_owner_listed(history, 0)]

    history.note("T", QUEUES, cid_all=["me", "new", "other"], now_ms=LATE_MS + HANDOVER_MS)
    is_listed.append(is_owner_listed(history, 0))

    assert is_listed == [False, True]


def test_newcomer_knows_no_owner_from_before_its_first_view() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["dead", "me", "other"], now_ms=0)
    history.note("T", QUEUES, cid_all=["me", "other"], now_ms=HANDOVER_MS - 1)

    assert is_owner_listed(history, 0)


def test_member_that_left_is_not_taken_for_the_owner_of_what_everybody_is_given() -> None:
    strategy = AllocateMessageQueueByConfig(QUEUES[:1])
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["dead", "me", "other"], now_ms=0)
    history.note("T", QUEUES, cid_all=["me", "other"], now_ms=LATE_MS)

    assert history.is_owner_listed(QUEUES[0], strategy, group="G", client_id="me")


def test_strategy_is_asked_once_for_each_member_that_left() -> None:
    asked: list[str | None] = []

    class Counted(AllocateMessageQueueAveragely):
        def allocate(
            self,
            consumer_group: str,
            current_cid: str | None,
            mq_all: Sequence[MessageQueue] | None,
            cid_all: Sequence[str] | None,
        ) -> list[MessageQueue]:
            asked.append(current_cid)
            return super().allocate(consumer_group, current_cid, mq_all, cid_all)

    strategy, history = Counted(), QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["alive", "dead", "me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["alive", "me"], now_ms=LATE_MS)
    for queue in QUEUES:
        history.is_owner_listed(queue, strategy, group="G", client_id="me")

    assert asked == ["dead", "me"]


def test_shares_of_few_of_the_members_that_left_at_once_are_computed() -> None:
    gone = [f"gone-{n:03}" for n in range(300)]
    queues = [MessageQueue("T", "b", n) for n in range(302)]
    history = QueueHistory(HANDOVER_MS)
    history.note("T", queues, cid_all=[*gone, "me", "new"], now_ms=0)
    history.note("T", queues, cid_all=["me", "new"], now_ms=LATE_MS)

    strategy = AllocateMessageQueueAveragely()
    freed = [
        q for q in queues if not history.is_owner_listed(q, strategy, group="G", client_id="me")
    ]

    assert freed == queues[:SHARES_COMPUTED_MAX]


def test_newcomer_finds_owners_in_the_list_without_itself() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["me", "other"], now_ms=0)

    assert is_owner_listed(history, 0)


def test_nobody_is_waited_for_who_is_alone() -> None:
    history = QueueHistory(HANDOVER_MS)

    assert not is_owner_listed(history, 0)
    history.note("T", QUEUES, cid_all=["me"], now_ms=0)
    assert not is_owner_listed(history, 0)


def test_more_views_within_a_handover_than_are_kept_leave_every_owner_listed() -> None:
    for count in (VIEWS_MAX - 1, VIEWS_MAX):
        history = QueueHistory(HANDOVER_MS)
        for n in range(count):
            history.note("T", QUEUES, cid_all=[f"gone-{n}", "me"], now_ms=n and LATE_MS + n)
        history.note("T", QUEUES, cid_all=["me", "new"], now_ms=LATE_MS + count)

        assert is_owner_listed(history, 0) == (count == VIEWS_MAX)


def test_same_view_again_keeps_the_one_before() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["dead", "me", "other"], now_ms=0)
    for _ in range(3):
        history.note("T", QUEUES, cid_all=["me", "other"], now_ms=LATE_MS)

    assert not is_owner_listed(history, 0)


def test_strategy_that_raises_leaves_any_other_member() -> None:
    class Broken:
        name = "BROKEN"

        def allocate(self, *_: object, **__: object) -> list[MessageQueue]:
            raise RuntimeError("no")

    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["me", "other"], now_ms=0)

    assert history.is_owner_listed(QUEUES[0], Broken(), group="G", client_id="me")


def test_holder_that_was_seen_counts_for_a_strategy_that_looks_at_owners() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES, cid_all=["me", "other"], now_ms=0)
    history.note_holders({QUEUES[0]: "dead", QUEUES[1]: "other"})

    listed = [is_owner_listed(history, n, strategy="MINIMAL_MOVE") for n in range(3)]

    # Nobody was seen to hold queue 2: it may be on its way.
    assert listed == [False, True, True]


def test_broker_is_silent_until_it_answers() -> None:
    history = QueueHistory(HANDOVER_MS)
    for _ in range(2):
        history.note_answer("b", is_silent=True)

    assert history.silence_of("b") == 2
    history.note_answer("b", is_silent=False)
    assert history.silence_of("b") == 0


def test_queue_is_new_that_came_after_the_first_view() -> None:
    history = QueueHistory(HANDOVER_MS)
    history.note("T", QUEUES[:2], cid_all=["me"], now_ms=0)
    history.note("T", QUEUES, cid_all=["me"], now_ms=LATE_MS)

    assert [history.is_new(queue) for queue in QUEUES] == [False, False, True, True]
    assert not history.is_new(MessageQueue("other", "b", 0))


def test_last_view_has_the_queues_and_members() -> None:
    history = QueueHistory(HANDOVER_MS)
    before = history.queues("T"), history.members("T")
    history.note("T", QUEUES, cid_all=["me"], now_ms=0)
    history.note("T", QUEUES[:2], cid_all=["me", "other"], now_ms=1)

    assert before == ((), ())
    assert history.queues("T") == tuple(QUEUES[:2])
    assert history.members("T") == ("me", "other")
