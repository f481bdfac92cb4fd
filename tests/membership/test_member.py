"""The group-member machine: what is due, and what each event leads to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import pytest

from queue_messages import all_queues, in_hand, message
from sparrowmq.membership.actions import (
    AbandonPull,
    Acquire,
    Action,
    AssignmentChanged,
    CallOnAssign,
    Commit,
    CommitLost,
    Deliver,
    DrainTimedOut,
    DuplicateClientId,
    Heartbeat,
    Leave,
    NotListed,
    OffsetCorrected,
    OffsetReset,
    Pull,
    QueueLost,
    Rebalance,
    RefreshRoutes,
    Regain,
    SendBack,
    StoodStill,
    Stored,
)
from sparrowmq.membership.listed_ids import RETURN_MS
from sparrowmq.membership.member import ACQUIRES_MAX, GroupMember, MemberConfig, TopicShare
from sparrowmq.membership.owned_queue import (
    COMMIT_WAIT_MIN_MS,
    LAST_COMMIT_MS,
    SETBACKS_FORGOTTEN_MS,
    commit_wait_ms,
)
from sparrowmq.membership.process_queue import PULL_IDLE_MAX_MS, FlowLimits, stored_of
from sparrowmq.membership.reconcile import RebalancePlan
from sparrowmq.membership.repeated_job import LOST_MS, RETRY_FIRST_MS
from sparrowmq.membership.send_backs import LOCAL_RETRY_MS
from sparrowmq.model import MessageQueue
from sparrowmq.strategies.averagely import AllocateMessageQueueAveragely

# Locks have tests of their own, in test_handover.py.
CONFIG = MemberConfig(group="G", client_id="c0", batch_size=2, deliveries_max=3, locks_queues=False)
TOPIC = "T"
QUEUES = tuple(MessageQueue(TOPIC, "b", n) for n in range(4))
Q0, Q1, Q2, Q3 = QUEUES


def share(*queues: MessageQueue, cids: tuple[str, ...] = ("c0", "c1")) -> TopicShare:
    return TopicShare(TOPIC, queues, cids)


def joined(
    *queues: MessageQueue, config: MemberConfig = CONFIG, start: int = 0
) -> tuple[GroupMember, dict[MessageQueue, int]]:
    """Return a member that consumes these queues from `start`, and the queues' epochs; time 0."""
    member = GroupMember(config, topics={TOPIC}, now_ms=0)
    assert member.due(0) == [RefreshRoutes()]
    member.routes_refreshed(found=[TOPIC], has_changed=True, now_ms=0)
    assert member.due(0) == [Heartbeat()]
    member.heartbeat_done(reached=1, failed=0, now_ms=0)
    assert member.due(0) == [Rebalance()]
    member.rebalanced([share(*queues)], 0)
    acquires = [action for action in member.due(0) if isinstance(action, Acquire)]
    for queue, epoch, *_ in acquires:
        member.acquired(queue, epoch, offset=start, is_committed=True, now_ms=0)
    return member, {action.queue: action.epoch for action in acquires}


def pulled(
    member: GroupMember, queue: MessageQueue, epoch: int, offsets: Sequence[int], *, now_ms: int
) -> None:
    """Answer a pull that begins at the first of consecutive offsets."""
    member.pulled(
        queue,
        epoch,
        offset=offsets[0],
        messages=[message(offset, queue) for offset in offsets],
        next_offset=offsets[-1] + 1,
        now_ms=now_ms,
    )


def of_type(actions: list[Action], kind: type) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


# --- joining --------------------------------------------------------------------------------


def test_member_learns_routes_then_registers_then_rebalances() -> None:
    member = GroupMember(CONFIG, topics={TOPIC}, now_ms=0)

    assert member.due(0) == [RefreshRoutes()]
    assert member.due(0) == []
    member.routes_refreshed(found=[], has_changed=False, now_ms=0)
    assert member.due(0) == []
    assert member.due(250) == [RefreshRoutes()]
    member.routes_refreshed(found=[TOPIC], has_changed=True, now_ms=251)
    assert member.due(251) == [Heartbeat()]
    member.heartbeat_done(reached=0, failed=1, now_ms=260)
    assert member.due(261) == []
    assert member.due(1260) == [RefreshRoutes(), Heartbeat()]
    member.heartbeat_done(reached=1, failed=0, now_ms=1261)
    assert member.due(1261) == [Rebalance()]


def test_heartbeats_come_three_times_in_the_expiry_that_a_broker_tells() -> None:
    member, _ = joined()

    assert of_type(member.due(30_000), Heartbeat)
    member.heartbeat_done(reached=1, failed=0, expiry_ms=15_000, now_ms=30_100)
    assert of_type(member.due(35_099), Heartbeat) == []
    assert of_type(member.due(35_100), Heartbeat)
    member.heartbeat_done(reached=1, failed=0, expiry_ms=None, now_ms=35_200)
    assert of_type(member.due(65_199), Heartbeat) == []
    assert of_type(member.due(65_200), Heartbeat)


def test_member_is_listed_for_as_long_as_the_broker_says_after_a_heartbeat() -> None:
    member = GroupMember(MemberConfig(group="g", client_id="c0"), topics=["T"], now_ms=0)
    listed = [member.is_listed(0)]
    for reached, now_ms in ((1, 1_000), (0, 9_000)):
        member.heartbeat_done(reached=reached, failed=1 - reached, expiry_ms=15_000, now_ms=now_ms)
        listed += [member.is_listed(15_999), member.is_listed(16_000)]
    member.heartbeat_done(reached=1, failed=0, now_ms=20_000)
    listed += [member.is_listed(139_999), member.is_listed(140_000)]

    assert listed == [False, True, False, True, False, True, False]
    assert member.heartbeat_answered_ms == 20_000


def test_member_is_listed_from_the_sending_of_its_heartbeat_on() -> None:
    member, _ = joined()
    assert of_type(member.due(30_000), Heartbeat)
    member.heartbeat_done(reached=1, failed=0, expiry_ms=15_000, now_ms=32_000)

    assert [member.is_listed(now_ms) for now_ms in (44_999, 45_000)] == [True, False]


def test_brokers_of_a_route_that_changed_get_a_heartbeat_before_the_next_rebalance() -> None:
    member, _ = joined()
    assert of_type(member.due(1_000), RefreshRoutes)

    member.routes_refreshed(found=[TOPIC], has_changed=True, now_ms=1_001)

    assert member.due(1_001) == [Heartbeat()]
    member.heartbeat_done(reached=1, failed=0, now_ms=1_002)
    assert member.due(1_002) == [Rebalance()]


def test_queues_beyond_a_number_are_acquired_as_others_are_done() -> None:
    queues = tuple(MessageQueue(TOPIC, "b", n) for n in range(ACQUIRES_MAX + 2))
    member, _ = joined()
    member.rebalanced([share(*queues)], 1)

    first = of_type(member.due(1), Acquire)
    assert len(first) == ACQUIRES_MAX
    assert of_type(member.due(2), Acquire) == []
    for action in first[:1]:
        assert isinstance(action, Acquire)
        member.acquired(action.queue, action.epoch, offset=0, is_committed=True, now_ms=3)
    assert len(of_type(member.due(3), Acquire)) == 1


def test_missing_route_is_looked_for_at_growing_intervals() -> None:
    member = GroupMember(CONFIG, topics={TOPIC}, now_ms=0)
    waits, now_ms = [], 0
    for _ in range(9):
        assert member.due(now_ms) == [RefreshRoutes()]
        member.routes_refreshed(found=[], has_changed=False, now_ms=now_ms)
        waits.append(member.next_due_ms(now_ms) - now_ms)
        now_ms = member.next_due_ms(now_ms)

    assert waits == [250, 500, 1000, 2000, 4000, 8000, 10000, 10000, 10000]


def test_missing_route_is_looked_for_soon_after_the_first_heartbeat() -> None:
    # It makes the group's retry topic.
    member = GroupMember(CONFIG, topics={TOPIC}, now_ms=0)
    for now_ms in (0, 250, 750):
        assert of_type(member.due(now_ms), RefreshRoutes)
        member.routes_refreshed(found=["other"], has_changed=False, now_ms=now_ms)
    member.heartbeat_done(reached=1, failed=0, now_ms=1_000)

    assert of_type(member.due(1_750), RefreshRoutes)
    member.routes_refreshed(found=["other"], has_changed=False, now_ms=1_750)
    assert of_type(member.due(1_999), RefreshRoutes) == []
    assert of_type(member.due(2_000), RefreshRoutes)


def looks_at_routes(*, until_ms: int, changes: Sequence[int], silence: range) -> list[int]:
    """Return when a member looks, given when routes change and when the name server has none."""
    member = GroupMember(CONFIG, topics={TOPIC}, now_ms=0)
    times_ms = []
    for now_ms in range(0, until_ms, 250):
        for _ in of_type(member.due(now_ms), RefreshRoutes):
            times_ms.append(now_ms)
            found = [] if now_ms in silence else [TOPIC]
            member.routes_refreshed(found=found, has_changed=now_ms in changes, now_ms=now_ms)
    return times_ms


def test_routes_that_changed_are_looked_at_again_at_growing_intervals() -> None:
    times_ms = looks_at_routes(until_ms=52_001, changes=(0, 35_000), silence=range(0))

    first = [0, 1_000, 3_000, 7_000, 15_000, 25_000, 35_000]
    assert [*first, 36_000, 38_000, 42_000, 50_000] == times_ms


def test_known_route_that_the_name_server_has_forgotten_is_looked_for_soon() -> None:
    times_ms = looks_at_routes(until_ms=40_000, changes=(0,), silence=range(25_000, 27_000))

    after = [25_250, 25_750, 26_750, 28_750, 29_750, 31_750, 35_750]
    assert after == [time_ms for time_ms in times_ms if time_ms > 25_000]


def test_queues_given_are_acquired_and_then_pulled() -> None:
    member = GroupMember(CONFIG, topics={TOPIC}, now_ms=0)
    member.due(0)
    member.routes_refreshed(found=[TOPIC], has_changed=True, now_ms=0)
    member.due(0)
    member.heartbeat_done(reached=1, failed=0, now_ms=0)
    member.due(0)

    plan = member.rebalanced([share(Q1, Q0)], 0)

    assert plan == RebalancePlan(revoke=(), acquire=(Q0, Q1), keep=())
    assert member.assigned == (Q0, Q1)
    assert member.take_facts() == [AssignmentChanged((Q0, Q1), (Q0, Q1), ())]
    assert member.due(0) == [Acquire(Q0, 1, False), Acquire(Q1, 2, False)]
    member.acquired(Q0, 1, offset=7, is_committed=True, now_ms=1)
    in_hand(member, Q1, 2).acquire_failed(1)
    assert member.due(1) == [Pull(Q0, 1, 7)]
    assert member.due(1) == []
    assert member.due(1 + RETRY_FIRST_MS) == [Acquire(Q1, 2, False)]


def test_start_that_nobody_committed_is_committed_at_once() -> None:
    member, _ = joined()
    member.notified(5)
    member.due(5)
    member.rebalanced([share(Q0)], 5)
    (acquire,) = member.due(5)
    assert isinstance(acquire, Acquire)

    member.acquired(Q0, acquire.epoch, offset=40, is_committed=False, now_ms=6)

    assert member.due(6) == [Commit(Q0, 1, 40, is_last=False), Pull(Q0, 1, 40)]


# --- rebalancing ----------------------------------------------------------------------------


def test_rebalance_comes_every_twenty_seconds_and_after_one_while_it_fails() -> None:
    member, _ = joined()

    assert of_type(member.due(19_999), Rebalance) == []
    assert of_type(member.due(20_000), Rebalance) == [Rebalance()]
    now_ms = 20_000
    # Without a list it comes after longer and longer; with one, a second is enough.
    for wait_ms, queues in ((1_000, None), (2_000, None), (4_000, None), (1_000, (Q0,))):
        member.rebalanced([TopicShare(TOPIC, None, mq_all=queues)], now_ms)
        assert of_type(member.due(now_ms + wait_ms - 1), Rebalance) == []
        now_ms += wait_ms
        assert of_type(member.due(now_ms), Rebalance) == [Rebalance()]


def test_rebalance_comes_again_after_a_second_while_queues_are_handed_over() -> None:
    member, _ = joined(Q0)
    member.due(20_000)

    member.rebalanced([TopicShare(TOPIC, (Q0,), ("c0", "c1"), QUEUES, is_settled=False)], 20_000)

    assert of_type(member.due(21_000), Rebalance) == [Rebalance()]


def test_notification_commits_first_and_rebalances_at_once() -> None:
    member, epochs = joined(Q0)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [0, 1], now_ms=1)
    (delivery,) = of_type(member.due(1), Deliver)
    assert isinstance(delivery, Deliver)
    member.consumed(delivery, acked_count=2)
    (commit,) = of_type(member.due(2), Commit)
    member.committed(Q0, epochs[Q0], offset=2, now_ms=3)
    pulled(member, Q0, epochs[Q0], [2, 3], now_ms=4)
    (delivery,) = of_type(member.due(4), Deliver)
    assert isinstance(delivery, Deliver)
    member.consumed(delivery, acked_count=2)
    assert of_type(member.due(5), Commit) == []

    member.notified(6)

    assert member.due(6) == [Rebalance(), Commit(Q0, 1, 4, is_last=False)]
    assert commit == Commit(Q0, 1, 2, is_last=False)


def test_notification_during_a_rebalance_leads_to_another() -> None:
    member, _ = joined()
    member.notified(1)
    assert of_type(member.due(1), Rebalance) == [Rebalance()]

    member.notified(2)

    assert of_type(member.due(2), Rebalance) == []
    member.rebalanced([share()], 3)
    assert of_type(member.due(3), Rebalance) == [Rebalance()]


def test_failed_or_missing_list_changes_nothing() -> None:
    member, _ = joined(Q0, Q1)
    member.take_facts()

    plan = member.rebalanced([TopicShare(TOPIC, None)], 5)
    member.rebalanced([], 6)

    assert plan == RebalancePlan((), (), (Q0, Q1))
    assert member.assigned == (Q0, Q1)
    assert member.take_facts() == []


def test_view_of_a_topic_comes_with_its_share_even_where_the_strategy_failed() -> None:
    member, _ = joined(Q0)

    member.rebalanced([TopicShare(TOPIC, None)], 5)
    assert member.history.members(TOPIC) == ()
    member.rebalanced([TopicShare(TOPIC, None, ("c0", "c1"), QUEUES[:1])], 6)
    member.rebalanced([TopicShare(TOPIC, (Q0,), ("c0", "c2"), QUEUES)], 7)

    assert member.history.members(TOPIC) == ("c0", "c2")
    assert [member.history.is_new(queue) for queue in (Q0, Q1)] == [False, True]


def test_own_id_missing_once_registers_again_and_twice_is_believed() -> None:
    member, _ = joined(Q0)
    member.due(0)
    member.take_facts()
    others = ("c1", "c2")

    member.rebalanced([share(cids=others)], 10)

    assert list(member.assigned) == [Q0]
    assert member.due(10) == [Heartbeat()]
    member.heartbeat_done(reached=1, failed=0, now_ms=11)
    member.rebalanced([share(cids=others)], 20)
    assert member.assigned == ()
    assert member.take_facts() == [NotListed("G", "c0", others), AssignmentChanged((), (), (Q0,))]


def test_members_have_time_to_come_back_to_a_broker_that_was_restarted() -> None:
    member, _ = joined(Q0)
    member.due(0)
    member.heartbeat_done(reached=1, failed=0, has_returned=True, now_ms=50_000)

    member.rebalanced([share(Q0, Q1, cids=("c0",))], 50_010)
    waiting = list(member.assigned)
    member.rebalanced([share(Q0, Q1, cids=("c0",))], 50_000 + RETURN_MS)

    assert (waiting, list(member.assigned)) == ([Q0], [Q0, Q1])


def test_members_that_leave_a_broker_that_was_not_restarted_are_believed_to_have_left() -> None:
    member, _ = joined(Q0)
    member.due(0)
    member.heartbeat_done(reached=1, failed=0, now_ms=50_000)

    member.rebalanced([share(Q0, Q1, cids=("c0",))], 50_010)

    assert list(member.assigned) == [Q0, Q1]


def test_own_id_listed_twice_is_told_once() -> None:
    member, _ = joined(Q0)
    member.take_facts()
    cids = ("c0", "c0", "c1")

    member.rebalanced([share(Q0, cids=cids)], 10)
    member.rebalanced([share(Q0, cids=cids)], 20)

    assert member.take_facts() == [DuplicateClientId("G", "c0", 2, cids)]


def test_two_members_with_one_id_take_the_same_share_and_leave_the_rest() -> None:
    """The articles' failure: 4 queues, two equal ids; both take the first two."""
    cids = ("c0", "c0")
    mine = AllocateMessageQueueAveragely().allocate("G", "c0", list(QUEUES), list(cids))
    shares = []
    for _ in range(2):
        member, _ = joined()
        member.rebalanced([share(*mine, cids=cids)], 1)
        shares.append(member.assigned)

    assert shares == [(Q0, Q1), (Q0, Q1)]


def test_unsubscribed_topic_is_given_up_and_a_new_one_asked_for() -> None:
    member, _ = joined(Q0)
    member.due(0)

    member.subscribe("U", now_ms=5)
    asked = member.due(5)
    member.unsubscribe(TOPIC, now_ms=6)
    # The rebalance under way has computed the topic's share before.
    late = member.rebalanced([share(Q0)], 7)

    assert asked == [RefreshRoutes(), Heartbeat()]
    assert (member.assigned, late.acquire) == ((), ())
    assert (member.topics, member.has_share(TOPIC)) == (("U",), False)


def test_topic_that_is_subscribed_later_is_shared_at_once() -> None:
    member, _ = joined(Q0)
    member.due(0)

    member.subscribe("U", now_ms=5)

    assert member.due(5) == [RefreshRoutes(), Heartbeat()]
    member.routes_refreshed(found=[TOPIC, "U"], has_changed=False, now_ms=6)
    member.heartbeat_done(reached=1, failed=0, now_ms=7)
    assert member.due(7) == [Rebalance()]


# --- pulling and delivering -----------------------------------------------------------------


def test_answer_leads_to_next_pull_and_deliveries_at_once() -> None:
    member, epochs = joined(Q0)
    member.due(0)

    pulled(member, Q0, epochs[Q0], [0, 1, 2], now_ms=1)

    assert member.due(1) == [
        Pull(Q0, 1, 3),
        Deliver(Q0, 1, 1, ((message(0), message(1)), (message(2),))),
    ]


def test_deliveries_are_bounded_and_queues_take_turns() -> None:
    member, epochs = joined(Q0, Q1)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [0, 1, 2, 3, 4, 5], now_ms=1)
    pulled(member, Q1, epochs[Q1], [0, 1, 2, 3], now_ms=1)

    first = [action for action in member.due(1) if isinstance(action, Deliver)]
    member.consumed(first[1], acked_count=2)
    member.consumed(first[0], 1, acked_count=2)
    second = [action for action in member.due(2) if isinstance(action, Deliver)]

    assert [(delivery.queue, len(delivery.batches)) for delivery in first] == [(Q0, 2), (Q1, 1)]
    assert [(delivery.queue, len(delivery.batches)) for delivery in second] == [(Q0, 1), (Q1, 1)]
    assert len(member.deliveries) == 3


def test_queues_take_turns_at_a_single_call() -> None:
    member, epochs = joined(Q0, Q1, Q2, config=replace(CONFIG, batch_size=1, deliveries_max=1))
    member.due(0)
    for queue in (Q0, Q1, Q2):
        pulled(member, queue, epochs[queue], [0, 1, 2], now_ms=1)

    served = []
    for now_ms in range(1, 7):
        (delivery,) = of_type(member.due(now_ms), Deliver)
        assert isinstance(delivery, Deliver)
        member.consumed(delivery, acked_count=1)
        served.append(delivery.queue)

    assert served == [Q0, Q1, Q2] * 2


def test_pull_that_follows_another_waits_while_the_member_is_suspended() -> None:
    member, epochs = joined(Q0)
    member.due(0)
    member.is_suspended = True

    following = member.pulled(
        Q0, epochs[Q0], offset=0, messages=[], next_offset=5, now_ms=1, goes_on=True
    )

    assert following is member.next_pull(Q0, epochs[Q0], 1) is None
    member.is_suspended = False
    assert member.next_pull(Q0, epochs[Q0], 1) == Pull(Q0, 1, 5)


def test_calls_that_a_queue_has_no_messages_for_are_left_to_the_others() -> None:
    config = replace(CONFIG, batch_size=1, deliveries_max=9)
    member, epochs = joined(Q0, Q1, Q2, config=config)
    member.due(0)
    pulled(member, Q0, epochs[Q0], list(range(8)), now_ms=1)
    pulled(member, Q1, epochs[Q1], [0], now_ms=1)
    pulled(member, Q2, epochs[Q2], [0], now_ms=1)

    found = [action for action in member.due(1) if isinstance(action, Deliver)]

    counts = [(delivery.queue, len(delivery.batches)) for delivery in found]
    assert counts == [(Q0, 3), (Q1, 1), (Q2, 1), (Q0, 4)]


def test_flow_control_stops_pulls_until_messages_are_done() -> None:
    config = replace(CONFIG, flow=FlowLimits(count_max=2))
    member, epochs = joined(Q0, config=config)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [0, 1, 2], now_ms=1)

    actions = member.due(1)
    assert of_type(actions, Pull) == []
    first = of_type(actions, Deliver)[0]
    assert isinstance(first, Deliver)
    member.consumed(first, acked_count=2)

    assert of_type(member.due(2), Pull) == [Pull(Q0, 1, 3)]


def test_failed_pull_is_repeated_with_growing_waits_up_to_a_second() -> None:
    member, epochs = joined(Q0)
    waits, now_ms = [], 0
    for _ in range(6):
        assert of_type(member.due(now_ms), Pull) == [Pull(Q0, 1, 0)]
        in_hand(member, Q0, epochs[Q0]).pull_failed(0, now_ms)
        wait = 0
        while not (repeated := of_type(member.due(now_ms + wait), Pull)):
            wait += 100
        assert repeated == [Pull(Q0, 1, 0)]
        waits.append(wait)
        in_hand(member, Q0, epochs[Q0]).pull_failed(0, now_ms + wait)
        now_ms += wait + 1_000

    assert waits == [100, 400, 1000, 1000, 1000, 1000]


def test_pull_that_fails_now_and_then_is_repeated_as_soon_each_time() -> None:
    member, epochs = joined(Q0)
    for offset in range(4):
        now_ms = 1_000 * offset
        assert of_type(member.due(now_ms), Pull) == [Pull(Q0, 1, offset)]
        in_hand(member, Q0, epochs[Q0]).pull_failed(offset, now_ms)
        now_ms += RETRY_FIRST_MS
        assert of_type(member.due(now_ms), Pull) == [Pull(Q0, 1, offset)]
        following = offset + 1
        member.pulled(
            Q0, epochs[Q0], offset=offset, messages=(), next_offset=following, now_ms=now_ms
        )


@pytest.mark.parametrize("silent", [(), (Q0,)])
def test_heartbeat_hurries_what_failed_where_the_broker_has_answered_it(
    silent: tuple[MessageQueue, ...],
) -> None:
    member, epochs = joined(Q0)
    assert of_type(member.due(0), Pull)
    assert of_type(member.due(30_000), Heartbeat)
    in_hand(member, Q0, epochs[Q0]).pull_failed(0, 30_000)

    member.heartbeat_done(reached=1, failed=len(silent), silent=silent, now_ms=30_001)

    assert bool(of_type(member.due(30_001), Pull)) is not bool(silent)


def waits_between_pulls(
    member: GroupMember, answer: Callable[[Pull, int], int], count: int
) -> list[int]:
    """Return how long after each answer the next pull follows; `answer` returns when it came."""
    waits, now_ms = [], 0
    (pull,) = of_type(member.due(now_ms), Pull)
    for _ in range(count):
        assert isinstance(pull, Pull)
        answered_ms = now_ms = answer(pull, now_ms)
        while not (following := of_type(member.due(now_ms), Pull)):
            now_ms += 10
        (pull,) = following
        waits.append(now_ms - answered_ms)
    return waits


@pytest.mark.parametrize(
    ("held_ms", "expected"),
    [(0, [0, 100, 200, 400, 800, 1000, 1000]), (1_000, [0] * 7), (15_000, [0] * 7)],
)
def test_pull_that_brings_nothing_follows_at_once_only_where_the_broker_held_it(
    held_ms: int, expected: list[int]
) -> None:
    member, _ = joined(Q0)

    def answer(pull: Pull, now_ms: int) -> int:
        answered_ms = now_ms + held_ms
        member.pulled(Q0, pull.epoch, offset=0, messages=(), next_offset=0, now_ms=answered_ms)
        return answered_ms

    assert waits_between_pulls(member, answer, 7) == expected


def test_pulls_that_bring_the_offset_on_follow_at_once() -> None:
    """The broker looks at a part of the queue at a time and finds nothing that matches."""
    member, _ = joined(Q0)

    def answer(pull: Pull, now_ms: int) -> int:
        following = pull.offset + 800
        member.pulled(
            Q0, pull.epoch, offset=pull.offset, messages=(), next_offset=following, now_ms=now_ms
        )
        return now_ms

    assert waits_between_pulls(member, answer, 7) == [0] * 7


@pytest.mark.parametrize(
    ("step", "waits"),
    [(-1, [0, 1000, 2000, 4000, 8000, 10_000, 10_000]), (0, [0, 100, 200, 400, 800, 1000, 1000])],
)
def test_offset_that_is_corrected_again_and_again_is_pulled_with_growing_waits(
    step: int, waits: list[int]
) -> None:
    member, _ = joined(Q0, start=100)

    def answer(pull: Pull, now_ms: int) -> int:
        corrected = pull.offset + step
        member.pull_moved(
            Q0, pull.epoch, offset=pull.offset, corrected_offset=corrected, now_ms=now_ms
        )
        return now_ms

    assert waits_between_pulls(member, answer, 7) == waits


def test_messages_of_a_broker_that_moves_the_offset_back_come_again_ever_more_slowly() -> None:
    """Though each pull in between brings the offset on."""
    member, _ = joined(Q0)
    came_ms: list[int] = []

    def answer(pull: Pull, now_ms: int) -> int:
        if pull.offset == 0:
            came_ms.append(now_ms)
            pulled(member, Q0, pull.epoch, [0, 1], now_ms=now_ms)
        else:
            member.pull_moved(Q0, pull.epoch, offset=pull.offset, corrected_offset=0, now_ms=now_ms)
        return now_ms

    waits_between_pulls(member, answer, 13)

    assert came_ms == [0, 0, 1_000, 3_000, 7_000, 15_000, 25_000]


@pytest.mark.parametrize(("lost_ms", "still_ms"), [(24_000, 14_000), (24_001, 0)])
def test_queue_that_is_lost_soon_after_a_standstill_names_it(lost_ms: int, still_ms: int) -> None:
    member, epochs = joined(Q0)
    member.due(0)
    member.stood_still(14_000, 14_000)
    member.due(lost_ms)
    early = member.lock_refused(Q0, epochs[Q0], is_owner_listed=True, now_ms=lost_ms)

    assert not early
    assert member.take_facts()[-2:] == [StoodStill(14_000, 0), QueueLost(Q0, still_ms)]


def test_heartbeat_does_not_shorten_the_wait_of_a_queue_that_begins_anew_often() -> None:
    member, _ = joined(Q0, start=100)
    (pull,) = of_type(member.due(0), Pull)
    for _ in range(2):
        assert isinstance(pull, Pull)
        corrected = pull.offset - 1
        member.pull_moved(Q0, pull.epoch, offset=pull.offset, corrected_offset=corrected, now_ms=0)
        pull = next(iter(of_type(member.due(0), Pull)), pull)
    member.registration_missing(500)
    assert of_type(member.due(500), Heartbeat)

    member.heartbeat_done(reached=1, failed=0, now_ms=501)

    assert of_type(member.due(999), Pull) == []
    assert len(of_type(member.due(1_000), Pull)) == 1


def test_setback_after_a_quiet_minute_delays_nothing() -> None:
    member, _ = joined(Q0, start=100)
    pull = of_type(member.due(0), Pull)[0]
    for now_ms in (0, SETBACKS_FORGOTTEN_MS):
        assert isinstance(pull, Pull)
        corrected = pull.offset - 1
        member.pull_moved(
            Q0, pull.epoch, offset=pull.offset, corrected_offset=corrected, now_ms=now_ms
        )
        (pull,) = of_type(member.due(now_ms), Pull)


def test_reset_goes_on_at_the_brokers_offset_and_is_a_fact() -> None:
    member, epochs = joined(Q0, start=5)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [5, 6], now_ms=1)

    member.reset(Q0, 2, now_ms=2)
    member.reset(Q1, 2, now_ms=2)

    assert member.take_facts()[-1] == OffsetReset(Q0, 5, 2)
    assert [pull for pull in of_type(member.due(2), Pull) if isinstance(pull, Pull)] == [
        Pull(Q0, 2, 2)
    ]


def test_broker_that_forgot_us_is_told_and_pulls_do_not_wait() -> None:
    member, epochs = joined(Q0)
    member.due(0)

    member.registration_missing(5)
    in_hand(member, Q0, epochs[Q0]).pull_failed(0, 5)

    assert member.due(5) == [Heartbeat()]
    member.heartbeat_done(reached=1, failed=0, now_ms=6)
    assert member.due(6) == [Pull(Q0, 1, 0)]


def test_pull_whose_answer_never_comes_is_repeated() -> None:
    member, _ = joined(Q0)
    member.due(0)

    assert of_type(member.due(PULL_IDLE_MAX_MS), Pull) == []
    assert of_type(member.due(PULL_IDLE_MAX_MS + 1), Pull) == [Pull(Q0, 1, 0)]


def test_next_offset_before_the_one_that_was_pulled_is_not_believed() -> None:
    member, epochs = joined(Q0, start=5)
    member.due(0)

    member.pulled(Q0, epochs[Q0], offset=5, messages=(), next_offset=0, now_ms=1)

    assert of_type(member.due(1), Pull) == [Pull(Q0, 1, 5)]


def test_seek_ends_the_pull_under_way() -> None:
    member, epochs = joined(Q0)
    member.due(0)

    member.seek(Q0, 7, now_ms=1)

    actions = [a for a in member.due(1) if isinstance(a, AbandonPull | Pull)]
    assert actions == [AbandonPull(Q0, epochs[Q0]), Pull(Q0, 2, 7)]


def test_late_start_of_a_queue_that_was_lost_since_is_not_where_it_begins() -> None:
    member, epochs = joined(Q0)
    member.due(0)
    member.lock_refused(Q0, epochs[Q0], is_owner_listed=True, now_ms=1)
    (acquire,) = of_type(member.due(1), Acquire)
    assert isinstance(acquire, Acquire)

    member.acquired(Q0, epochs[Q0], offset=50, is_committed=True, now_ms=2)
    early = of_type(member.due(2), Pull)
    member.acquired(Q0, acquire.epoch, offset=5, is_committed=True, now_ms=3)

    assert early == []
    assert of_type(member.due(3), Pull) == [Pull(Q0, acquire.epoch, 5)]


def test_answer_to_an_old_pull_is_dropped() -> None:
    member, epochs = joined(Q0)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [0], now_ms=1)
    member.due(1)

    pulled(member, Q0, epochs[Q0], [0], now_ms=2)
    member.pulled(Q0, 99, offset=1, messages=[message(1)], next_offset=2, now_ms=2)

    assert member.due(2) == []


def test_offset_behind_the_queue_goes_on_at_its_begin_and_keeps_what_is_cached() -> None:
    member, epochs = joined(Q0)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [0, 1], now_ms=1)
    member.due(1)

    member.pull_moved(Q0, epochs[Q0], offset=2, corrected_offset=50, now_ms=2)

    assert member.due(2) == [Pull(Q0, 1, 50)]
    assert OffsetCorrected(Q0, 2, 50) in member.take_facts()


def test_offset_ahead_of_the_queue_begins_anew_at_its_end_and_commits_that() -> None:
    member, epochs = joined(Q0, start=100)
    member.due(0)

    member.pull_moved(Q0, epochs[Q0], offset=100, corrected_offset=60, now_ms=2)

    assert member.due(2) == [Commit(Q0, 2, 60, is_last=False), Pull(Q0, 2, 60)]


# --- results of the listener ----------------------------------------------------------------


def finish(member: GroupMember, deliveries: Sequence[Deliver]) -> None:
    for delivery in deliveries:
        member.consumed_all(delivery, range(len(delivery.batches)))


def delivered(
    offsets: Sequence[int], *, config: MemberConfig = CONFIG
) -> tuple[GroupMember, int, list[Deliver]]:
    member, epochs = joined(Q0, config=config)
    member.due(0)
    pulled(member, Q0, epochs[Q0], offsets, now_ms=1)
    deliveries = [action for action in member.due(1) if isinstance(action, Deliver)]
    return member, epochs[Q0], deliveries


def test_commit_stops_before_the_first_unfinished_message() -> None:
    member, _, (delivery,) = delivered([0, 1, 2, 3])

    member.consumed(delivery, 1, acked_count=2)
    assert of_type(member.due(2_000), Commit) == []
    member.consumed(delivery, 0, acked_count=2)

    assert of_type(member.due(2_001), Commit) == [Commit(Q0, 1, 4, is_last=False)]


def test_failed_messages_are_sent_back_and_then_done() -> None:
    member, epoch, (delivery,) = delivered([0, 1])

    member.consumed(delivery, acked_count=1, delay_level=5)

    assert of_type(member.due(2), SendBack) == [SendBack(Q0, 1, (message(1),), 5)]
    in_hand(member, Q0, epoch).sent_back(done=[1], failed=[], now_ms=3)
    member.due(3)
    member.committed(Q0, epoch, offset=1, now_ms=3)
    assert of_type(member.due(2_000), Commit) == [Commit(Q0, 1, 2, is_last=False)]


def test_message_that_cannot_be_sent_back_is_consumed_again_here() -> None:
    member, epoch, (delivery,) = delivered([0, 1])
    member.consumed(delivery, acked_count=0)
    member.due(2)

    in_hand(member, Q0, epoch).sent_back(done=[0], failed=[1], now_ms=3)

    assert of_type(member.due(2 + LOCAL_RETRY_MS), Deliver) == []
    assert member.next_due_ms(2 + LOCAL_RETRY_MS) == 3 + LOCAL_RETRY_MS
    (again,) = of_type(member.due(3 + LOCAL_RETRY_MS), Deliver)
    assert again == Deliver(Q0, 1, 2, ((msgspec.structs.replace(message(1), reconsume_times=1),),))


def test_broadcasting_drops_what_failed() -> None:
    config = replace(CONFIG, is_broadcasting=True)
    member, _, (delivery,) = delivered([0, 1], config=config)

    member.consumed(delivery, acked_count=0)

    assert member.due(2) == [Commit(Q0, 1, 2, is_last=False)]


def test_broadcasting_keeps_what_failed_where_the_consumer_does() -> None:
    config = replace(CONFIG, is_broadcasting=True, keeps_unfinished=True)
    member, _, (delivery,) = delivered([0, 1], config=config)

    member.consumed(delivery, acked_count=1)

    assert of_type(member.due(2), SendBack) == [SendBack(Q0, 1, (message(1),), 0)]


def test_broadcasting_does_not_send_back_what_a_listener_has_for_too_long() -> None:
    config = replace(CONFIG, is_broadcasting=True, consume_timeout_ms=5_000)
    member, _, _ = delivered([0], config=config)

    assert of_type(member.due(6_002), SendBack) == []


def test_listener_that_never_returns_has_its_messages_sent_back_once() -> None:
    config = replace(CONFIG, consume_timeout_ms=5_000)
    member, epoch, (delivery,) = delivered([0], config=config)

    assert of_type(member.due(4_000), SendBack) == []
    assert of_type(member.due(6_002), SendBack) == [SendBack(Q0, 1, (message(0),), 3)]
    assert of_type(member.due(7_003), SendBack) == []
    member.committed(Q0, epoch, offset=0, now_ms=7_004)
    in_hand(member, Q0, epoch).sent_back(done=[0], failed=[], now_ms=8_100)
    assert of_type(member.due(8_100), Commit) == [Commit(Q0, 1, 1, is_last=False)]
    member.consumed(delivery, acked_count=0)
    assert of_type(member.due(8_200), SendBack) == []


def assigned() -> tuple[GroupMember, CallOnAssign]:
    """Return a member that has begun to call `on_assign` for a queue."""
    member, _ = joined(Q0, config=replace(CONFIG, has_callbacks=True))
    (call,) = of_type(member.due(0), CallOnAssign)
    assert isinstance(call, CallOnAssign)
    return member, call


def test_queue_that_begins_elsewhere_during_on_assign_is_delivered_when_that_returns() -> None:
    member, call = assigned()
    member.seek(Q0, 7, now_ms=1)
    (pull,) = of_type(member.due(1), Pull)
    assert isinstance(pull, Pull)
    pulled(member, Q0, pull.epoch, [7], now_ms=2)
    before = of_type(member.due(2), Deliver)

    member.callback_returned(call)

    assert before == []
    assert len(of_type(member.due(2), Deliver)) == 1


def test_on_assign_of_a_queue_that_was_lost_since_is_not_waited_for_in_its_place() -> None:
    member, first = assigned()
    member.lock_refused(Q0, first.epoch, is_owner_listed=True, now_ms=1)
    (acquire,) = of_type(member.due(1), Acquire)
    assert isinstance(acquire, Acquire)
    member.acquired(Q0, acquire.epoch, offset=0, is_committed=True, now_ms=2)
    (second,) = of_type(member.due(2), CallOnAssign)
    assert isinstance(second, CallOnAssign)
    pulled(member, Q0, acquire.epoch, [0], now_ms=3)

    member.callback_returned(first)
    early = of_type(member.due(3), Deliver)
    member.callback_returned(second)

    assert early == []
    assert len(of_type(member.due(3), Deliver)) == 1


def test_on_assign_is_not_called_again_where_only_the_broker_lost_messages() -> None:
    member, call = assigned()
    member.callback_returned(call)
    pulled(member, Q0, call.epoch, [0, 1], now_ms=1)
    member.connection_lost(all_queues(member), 2)
    member.heartbeat_done(reached=1, failed=0, now_ms=3)
    member.due(3)
    member.regained(Q0, call.epoch, found=1, has_newest=False, now_ms=4)
    (acquire,) = of_type(member.due(4), Acquire)
    assert isinstance(acquire, Acquire)

    member.acquired(Q0, acquire.epoch, offset=1, is_committed=True, now_ms=5)

    assert of_type(member.due(5), CallOnAssign) == []


# --- commits --------------------------------------------------------------------------------


def test_one_commit_at_a_time_and_only_what_is_new() -> None:
    member, epoch, (delivery,) = delivered([0, 1, 2, 3])
    member.consumed(delivery, 0, acked_count=2)

    assert of_type(member.due(10), Commit) == [Commit(Q0, 1, 2, is_last=False)]
    member.consumed(delivery, 1, acked_count=2)
    assert of_type(member.due(20), Commit) == []
    member.committed(Q0, epoch, offset=2, now_ms=30)
    assert of_type(member.due(29 + COMMIT_WAIT_MIN_MS), Commit) == []
    due = of_type(member.due(30 + COMMIT_WAIT_MIN_MS), Commit)
    assert due == [Commit(Q0, 1, 4, is_last=False)]
    member.committed(Q0, epoch, offset=4, now_ms=1_040)
    assert of_type(member.due(6_039), Commit) == []
    assert member.committed_offset(Q0) == 4


@pytest.mark.parametrize(
    ("queue_count", "wait_ms"), [(1, 50), (2, 50), (3, 60), (50, 1_000), (400, 1_000)]
)
def test_member_of_many_queues_commits_each_less_often(queue_count: int, wait_ms: int) -> None:
    assert wait_ms == commit_wait_ms(queue_count, longest_ms=1_000)


def test_messages_that_are_finished_during_a_pull_are_committed_at_once() -> None:
    member, _, deliveries = delivered([0, 1])
    assert member.due(2) == []

    finish(member, deliveries)

    assert member.due(3) == [Commit(Q0, 1, 2, is_last=False)]


def test_offset_is_committed_again_every_five_seconds() -> None:
    """A former owner's late commit may have lowered it at the broker."""
    member, epoch, (delivery,) = delivered([0, 1])
    member.consumed(delivery, acked_count=2)
    member.due(10)
    member.committed(Q0, epoch, offset=2, now_ms=20)

    assert of_type(member.due(5_019), Commit) == []
    assert of_type(member.due(5_020), Commit) == [Commit(Q0, 1, 2, is_last=False)]


def test_failed_repetition_of_a_commit_is_waited_for() -> None:
    """Else the member would ask again and again, for a second, what there is to do."""
    member, epoch, (delivery,) = delivered([0, 1])
    member.consumed(delivery, acked_count=2)
    member.due(10)
    member.committed(Q0, epoch, offset=2, now_ms=20)
    member.due(5_020)
    in_hand(member, Q0, epoch).commit_failed(5_030)

    assert member.due(5_030) == []
    assert member.next_due_ms(5_030) == 6_030
    assert of_type(member.due(6_030), Commit) == [Commit(Q0, 1, 2, is_last=False)]


def test_lost_connection_registers_and_then_asks_what_the_broker_knows() -> None:
    member, _ = joined(Q0, start=9)
    member.due(0)

    member.connection_lost(all_queues(member), 5_000)

    # Its broker may have another master now.
    assert member.due(5_000) == [RefreshRoutes(), Heartbeat()]
    member.routes_refreshed(found=[TOPIC], has_changed=False, now_ms=5_000)
    assert member.next_due_ms(5_000) <= 6_000
    member.heartbeat_done(reached=1, failed=0, now_ms=5_001)
    assert of_type(member.due(5_001), Regain) == [Regain(Q0, 1, wants_lock=False, newest=None)]


def test_routes_are_looked_at_after_a_second_again_once_a_connection_is_lost() -> None:
    member, _ = joined(Q0)
    times_ms = []
    for now_ms in range(0, 20_000, 250):
        if now_ms == 10_000:
            member.connection_lost(all_queues(member), now_ms)
        for _ in of_type(member.due(now_ms), RefreshRoutes):
            times_ms.append(now_ms)
            member.routes_refreshed(found=[TOPIC], has_changed=False, now_ms=now_ms)

    assert [time_ms for time_ms in times_ms if time_ms > 5_000] == [
        *(8_750, 10_000, 11_000, 13_000, 17_000)
    ]


def reconnected(offsets: Sequence[int]) -> tuple[GroupMember, int]:
    """Return a member that finished messages, committed 1, and lost its broker; and its epoch."""
    member, epoch, deliveries = delivered(offsets)
    member.due(1)
    member.committed(Q0, epoch, offset=1, now_ms=1)
    finish(member, deliveries)
    member.connection_lost(all_queues(member), 20)
    member.due(20)
    member.heartbeat_done(reached=1, failed=0, now_ms=30)
    assert len(of_type(member.due(30), Regain)) == 1
    return member, epoch


@pytest.mark.parametrize("found", [1, 0, None], ids=["known", "forgotten", "none"])
def test_offset_is_committed_again_after_a_lost_connection(found: int | None) -> None:
    """A broker that was killed may have forgotten the last commits."""
    member, epoch = reconnected([0, 1, 2])

    member.regained(Q0, epoch, found=found, has_newest=True, now_ms=40)

    assert of_type(member.due(1_000), Commit) == [Commit(Q0, epoch, 3, is_last=False)]


@pytest.mark.parametrize("found", [1, 0])
def test_offset_of_messages_that_the_broker_lost_is_not_committed(found: int) -> None:
    member, epoch = reconnected([0, 1, 2])

    member.regained(Q0, epoch, found=found, has_newest=False, now_ms=40)

    assert member.take_facts()[-1] == OffsetCorrected(Q0, 3, found)
    actions = member.due(40)
    assert of_type(actions, Commit) == []
    (acquire,) = of_type(actions, Acquire)
    assert isinstance(acquire, Acquire)
    # Nor does the queue begin there: the broker does not have that message.
    member.acquired(Q0, acquire.epoch, offset=found, is_committed=True, has_newest=False, now_ms=41)
    assert of_type(member.due(41), Pull) == [Pull(Q0, acquire.epoch, found)]


def test_queue_in_which_others_have_gone_on_behind_messages_that_were_lost_is_lost() -> None:
    member, epoch = reconnected([0, 1, 2])

    member.regained(Q0, epoch, found=5, has_newest=False, now_ms=40)

    assert member.take_facts()[-1] == QueueLost(Q0)


def test_nothing_is_pulled_or_committed_before_the_broker_has_answered() -> None:
    member, epoch = reconnected([0, 1, 2])
    in_hand(member, Q0, epoch).pull_failed(3, 40)

    actions = member.due(5_000)

    assert of_type(actions, Pull) + of_type(actions, Commit) == []


def test_offset_that_was_reset_meanwhile_is_kept() -> None:
    """A commit that the broker has had for long is on its disk: it cannot have forgotten it."""
    member, epoch, deliveries = delivered([0, 1, 2])
    finish(member, deliveries)
    for now_ms in (10, 10_010, 20_020):
        member.due(now_ms)
        member.committed(Q0, epoch, offset=3, now_ms=now_ms)
    member.connection_lost(all_queues(member), 20_030)
    member.due(20_030)
    member.heartbeat_done(reached=1, failed=0, now_ms=20_040)
    member.due(20_040)

    member.regained(Q0, epoch, found=1, has_newest=True, now_ms=20_050)

    assert member.take_facts()[-1] == QueueLost(Q0)
    assert of_type(member.due(20_050), Commit) == []


def given_up_uncommitted(
    *, found: int, has_newest: bool = True, is_committed: bool = True
) -> list[Action]:
    """Return what a member does whose queue comes back, of which it could not commit offset 3."""
    member, epoch, deliveries = delivered([0, 1, 2])
    member.due(10)
    finish(member, deliveries)
    member.rebalanced([share()], 20)
    for now_ms in (20, 20 + LAST_COMMIT_MS):
        for action in of_type(member.due(now_ms), Commit):
            assert isinstance(action, Commit)
            in_hand(member, Q0, epoch).commit_failed(now_ms)
    assert member.due(20 + 2 * LAST_COMMIT_MS)[-1:] != [Commit(Q0, epoch, 3, is_last=True)]
    assert CommitLost(Q0, 3) in member.take_facts()

    member.rebalanced([share(Q0)], 9_000)
    (acquire,) = of_type(member.due(9_000), Acquire)
    assert acquire == Acquire(Q0, epoch + 1, wants_lock=False, newest=stored_of(message(2)))
    member.acquired(
        Q0, epoch + 1, offset=found, is_committed=is_committed, has_newest=has_newest, now_ms=9_001
    )
    return [a for a in member.due(9_001) if isinstance(a, Commit | Pull)]


def test_queue_that_comes_back_goes_on_where_it_was_given_up() -> None:
    assert given_up_uncommitted(found=0) == [Commit(Q0, 2, 3, is_last=False), Pull(Q0, 2, 3)]


def test_queue_that_comes_back_does_not_begin_where_a_new_group_would() -> None:
    again = given_up_uncommitted(found=40, is_committed=False)

    assert again == [Commit(Q0, 2, 3, is_last=False), Pull(Q0, 2, 3)]


def test_queue_given_up_in_doubt_goes_on_though_its_broker_forgot_the_offset() -> None:
    member, _ = joined(Q0, start=9)
    member.due(0)
    member.connection_lost(all_queues(member), 10)
    member.rebalanced([share()], 20)
    for now_ms in (20, 20 + LAST_COMMIT_MS):
        member.due(now_ms)
    member.rebalanced([share(Q0)], 9_000)
    (acquire,) = of_type(member.due(9_000), Acquire)
    assert isinstance(acquire, Acquire)
    member.acquired(Q0, acquire.epoch, offset=0, is_committed=False, now_ms=9_001)

    assert of_type(member.due(9_001), Pull) == [Pull(Q0, acquire.epoch, 9)]


def test_queue_that_comes_back_goes_on_where_another_member_stopped() -> None:
    assert given_up_uncommitted(found=5) == [Pull(Q0, 2, 5)]


def test_queue_that_comes_back_without_its_messages_begins_at_the_groups_offset() -> None:
    assert given_up_uncommitted(found=0, has_newest=False) == [Pull(Q0, 2, 0)]


# --- giving up ------------------------------------------------------------------------------


def test_revoked_queue_drains_commits_and_is_released() -> None:
    member, epochs = joined(Q0, Q1)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [0, 1, 2], now_ms=1)
    (delivery,) = (a for a in member.due(1) if isinstance(a, Deliver))
    pulled(member, Q0, epochs[Q0], [3, 4], now_ms=1)
    (third,) = (a for a in member.due(1) if isinstance(a, Deliver))
    member.take_facts()

    plan = member.rebalanced([share(Q1)], 2)

    assert plan == RebalancePlan(revoke=(Q0,), acquire=(), keep=(Q1,))
    assert member.take_facts() == [AssignmentChanged((Q1,), (), (Q0,))]
    assert member.due(2) == [AbandonPull(Q0, 1)]
    member.consumed(delivery, 0, acked_count=2)
    assert member.due(3) == []
    member.consumed(delivery, 1, acked_count=1)
    assert member.due(3) == []
    member.consumed(third, acked_count=2)
    assert member.due(4) == [Commit(Q0, 1, 5, is_last=True)]
    member.committed(Q0, 1, offset=5, now_ms=5)
    assert member.due(5) == []
    assert member.committed_offset(Q0) is None


def test_messages_not_yet_delivered_are_left_to_the_next_owner() -> None:
    config = replace(CONFIG, deliveries_max=1)
    member, epoch, (delivery,) = delivered([0, 1, 2, 3], config=config)
    member.rebalanced([share()], 2)
    member.due(2)

    member.consumed(delivery, acked_count=2)

    assert member.due(3) == [Commit(Q0, 1, 2, is_last=True)]
    member.committed(Q0, epoch, offset=2, now_ms=4)
    assert member.due(4) == []


def test_drain_is_bounded_and_a_late_result_changes_nothing() -> None:
    member, _, (delivery,) = delivered([0, 1])
    member.rebalanced([share()], 2)
    member.due(2)
    member.take_facts()

    assert of_type(member.due(10_001), Commit) == []
    member.due(10_002)

    assert member.take_facts() == [DrainTimedOut(Q0, 2)]
    member.consumed(delivery, acked_count=2)
    assert of_type(member.due(10_003), Commit) == []
    assert len(member.deliveries) == 0


def test_last_commit_is_repeated_and_then_given_up() -> None:
    member, epoch, (delivery,) = delivered([0, 1])
    member.consumed(delivery, acked_count=2)
    member.rebalanced([share()], 2)
    member.take_facts()
    last = Commit(Q0, 1, 2, is_last=True)

    assert member.due(2) == [AbandonPull(Q0, 1), last]
    in_hand(member, Q0, epoch).commit_failed(3)
    assert member.due(4) == []
    assert member.due(103) == [last]
    in_hand(member, Q0, epoch).commit_failed(3 + LAST_COMMIT_MS)
    assert of_type(member.due(3 + LAST_COMMIT_MS), Commit) == []

    assert member.take_facts() == [CommitLost(Q0, 2)]


def test_last_commit_waits_for_the_one_under_way() -> None:
    member, epoch, (delivery,) = delivered([0, 1, 2, 3])
    member.consumed(delivery, 0, acked_count=2)
    assert of_type(member.due(2), Commit) == [Commit(Q0, 1, 2, is_last=False)]
    member.rebalanced([share()], 3)
    member.consumed(delivery, 1, acked_count=2)

    assert member.due(4) == [AbandonPull(Q0, 1)]
    member.committed(Q0, epoch, offset=2, now_ms=5)
    assert member.due(5) == [Commit(Q0, 1, 4, is_last=True)]


def test_queue_wanted_again_while_it_drains_is_acquired_after_its_release() -> None:
    member, epoch, (delivery,) = delivered([0, 1])
    member.rebalanced([share()], 2)
    member.due(2)

    member.rebalanced([share(Q0)], 3)

    assert member.assigned == (Q0,)
    assert of_type(member.due(3), Acquire) == []
    member.consumed(delivery, acked_count=2)
    assert of_type(member.due(4), Commit) == [Commit(Q0, 1, 2, is_last=True)]
    member.committed(Q0, epoch, offset=2, now_ms=5)
    # A broker that is killed now may forget the commit, but not the message.
    newest = Stored(offset=1, position=100, timestamp_ms=0)
    assert member.due(5) == [Acquire(Q0, 2, False, newest)]


@pytest.mark.parametrize("found", [2, 0, None], ids=["known", "forgotten", "none"])
def test_queue_that_is_taken_again_goes_on_though_its_broker_forgets_the_last_commit(
    found: int | None,
) -> None:
    member, epoch, (delivery,) = delivered([0, 1])
    member.rebalanced([share()], 2)
    member.due(2)
    member.rebalanced([share(Q0)], 3)
    member.consumed(delivery, acked_count=2)
    member.due(4)
    member.committed(Q0, epoch, offset=2, now_ms=5)
    (acquire,) = member.due(5)
    assert isinstance(acquire, Acquire)
    member.acquired(Q0, acquire.epoch, offset=2, is_committed=True, now_ms=6)
    member.due(6)

    member.connection_lost(all_queues(member), 20)
    member.due(20)
    member.heartbeat_done(reached=1, failed=0, now_ms=30)
    (regain,) = of_type(member.due(30), Regain)
    assert isinstance(regain, Regain)
    member.regained(Q0, acquire.epoch, found=found, has_newest=True, now_ms=40)

    assert regain.newest == acquire.newest
    assert [fact for fact in member.take_facts() if isinstance(fact, QueueLost)] == []
    assert member.committed_offset(Q0) == found


def test_queue_not_wanted_after_all_while_it_drains_is_not_ours() -> None:
    member, _, _ = delivered([0, 1])
    member.rebalanced([share()], 2)
    member.due(2)
    member.rebalanced([share(Q0)], 3)
    member.take_facts()

    plan = member.rebalanced([share()], 4)

    assert plan == RebalancePlan(revoke=(Q0,), acquire=(), keep=())
    assert member.assigned == ()
    assert member.take_facts() == [AssignmentChanged((), (), (Q0,))]


def test_leaving_releases_everything_and_then_tells_the_brokers() -> None:
    member, epoch, (delivery,) = delivered([0, 1])

    member.leave(2)

    assert member.due(2) == [AbandonPull(Q0, 1)]
    assert member.due(3) == []
    member.consumed(delivery, acked_count=2)
    assert member.due(4) == [Commit(Q0, 1, 2, is_last=True)]
    member.committed(Q0, epoch, offset=2, now_ms=5)
    assert member.due(5) == [Leave()]
    assert member.due(6) == []
    assert not member.is_done
    member.left()
    assert member.is_done
    assert member.due(7) == []


def test_who_leaves_looks_for_brokers_and_is_listed_until_the_queues_are_drained() -> None:
    member, epoch, (delivery,) = delivered([0, 1])
    member.leave(2)
    member.due(2)

    member.connection_lost(all_queues(member), 3)
    begun = member.due(3)
    member.routes_refreshed(found=["T"], has_changed=False, now_ms=4)
    member.heartbeat_done(reached=1, failed=0, now_ms=4)
    again = member.due(4)
    member.regained(Q0, epoch, found=None, has_newest=True, now_ms=5)
    member.consumed(delivery, acked_count=2)
    last = member.due(6)
    member.committed(Q0, epoch, offset=2, now_ms=7)
    left = member.due(7)
    member.connection_lost(all_queues(member), 8)

    assert begun == [RefreshRoutes(), Heartbeat()]
    assert len(of_type(again, Regain)) == 1
    assert last == [Commit(Q0, 1, 2, is_last=True)]
    assert left == [Leave()]
    assert member.due(8) == []


def test_leave_that_is_never_answered_ends_all_the_same() -> None:
    member, _ = joined()
    member.leave(0)
    assert member.due(0) == [Leave()]

    member.due(LOST_MS + 1)

    assert member.is_done


def test_results_that_come_after_leaving_change_nothing() -> None:
    member, _ = joined(Q0)
    member.due(0)
    member.leave(1)
    member.due(1)

    plan = member.rebalanced([share(Q0, Q1)], 2)
    pulled(member, Q0, 1, [0], now_ms=2)

    assert plan == RebalancePlan((), (), ())
    assert of_type(member.due(2), Acquire) == []


def test_calls_may_be_handed_out_ahead_and_taken_back() -> None:
    member, epochs = joined(Q0)
    member.due(0)
    pulled(member, Q0, epochs[Q0], list(range(12)), now_ms=1)
    member.deliveries.ahead_max = 2

    (handed,) = [action for action in member.due(1) if isinstance(action, Deliver)]
    count = len(handed.batches)
    member.take_back(handed, [count - 1, count - 2])
    # Taken back twice, it counts once.
    member.take_back(handed, [count - 2])
    assert len(member.deliveries) == count - 2
    assert member.consumed_all(handed, range(count - 2)) == 2 * (count - 2)
    (again,) = [action for action in member.due(2) if isinstance(action, Deliver)]

    assert handed.batches[-2:] == again.batches[:2]


def test_messages_taken_back_from_a_queue_that_is_given_up_stay_unfinished() -> None:
    member, epochs = joined(Q0)
    member.due(0)
    pulled(member, Q0, epochs[Q0], [0, 1], now_ms=1)
    (handed,) = of_type(member.due(1), Deliver)
    assert isinstance(handed, Deliver)
    (owned,) = member.owned_queues()

    owned.revoke(2, drain_timeout_ms=1_000)
    member.take_back(handed, [0])

    assert owned.process_queue.in_flight_count == 0
    assert (len(member.deliveries), owned.process_queue.commit_offset) == (0, 0)
    assert of_type(member.due(3), Deliver) == []
