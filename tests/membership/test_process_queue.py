"""The process queue: commit point, flow control, expiry, delivery in order."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from queue_messages import message
from sparrowmq.membership.process_queue import (
    CONSUME_TIMEOUT_MS,
    MIB,
    FlowControl,
    FlowLimits,
    ProcessQueue,
)
from sparrowmq.model import MessageExt, MessageQueue
from sparrowmq.model.message import INFLATED_BYTES_MAX

QUEUE = MessageQueue("T", "broker-a", 0)


def started(*offsets: int, start: int = 0, next_offset: int | None = None) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, now_ms=0)
    queue.start(start, now_ms=0)
    if offsets:
        queue.add(
            [message(offset) for offset in offsets],
            next_offset=offsets[-1] + 1 if next_offset is None else next_offset,
        )
    return queue


def offsets_of(messages: list[MessageExt]) -> list[int]:
    return [message.queue_offset for message in messages]


class TestStart:
    def test_nothing_is_committed_before_the_start(self) -> None:
        queue = ProcessQueue(QUEUE, now_ms=0)

        assert queue.commit_offset is None
        assert queue.add([message(1)], next_offset=2) == 0
        assert queue.take_batch(1, now_ms=0) == []

    def test_the_start_offset_may_be_committed_at_once(self) -> None:
        assert started(start=17).commit_offset == 17


class TestCommitPoint:
    def test_stops_before_first_unfinished_offset(self) -> None:
        queue = started(5, 6, 7, start=5)
        queue.take_batch(3, now_ms=0)

        assert queue.complete([6]) == 5
        assert queue.complete([7]) == 5
        assert queue.complete([5]) == 8

    def test_passes_filtered_messages_once_all_are_finished(self) -> None:
        queue = started(5, 9, start=5, next_offset=20)
        queue.take_batch(2, now_ms=0)

        assert queue.complete([5]) == 9
        assert queue.complete([9]) == 20

    def test_moves_with_pulls_that_find_nothing(self) -> None:
        queue = started(start=5)
        queue.add((), next_offset=30)

        assert queue.commit_offset == 30

    def test_does_not_pass_a_message_that_waits_when_a_pull_finds_nothing(self) -> None:
        queue = started(5, start=5)
        queue.add((), next_offset=30)

        assert queue.commit_offset == 5

    def test_messages_added_out_of_order_count(self) -> None:
        queue = started(5, 6, start=3)
        queue.add([message(3)], next_offset=7)

        assert queue.commit_offset == 3
        assert offsets_of(queue.take_batch(9, now_ms=0)) == [3, 5, 6]

    def test_a_message_pulled_twice_is_delivered_once(self) -> None:
        queue = started(5, 6, start=5)

        assert queue.add([message(5), message(6)], next_offset=7) == 0
        assert offsets_of(queue.take_batch(9, now_ms=0)) == [5, 6]
        assert queue.add([message(6, body=b"other")], next_offset=7) == 0
        assert queue.take_batch(9, now_ms=0) == []
        assert (queue.count, queue.size_bytes) == (2, 2)


class TestDelivery:
    def test_batches_are_the_lowest_offsets_that_wait(self) -> None:
        queue = started(1, 2, 3, start=1)

        assert offsets_of(queue.take_batch(2, now_ms=0)) == [1, 2]
        assert offsets_of(queue.take_batch(2, now_ms=0)) == [3]
        assert queue.take_batch(2, now_ms=0) == []
        assert (queue.count, queue.pending_count, queue.in_flight_count) == (3, 0, 3)

    def test_a_message_put_back_comes_again_before_later_ones(self) -> None:
        queue = started(1, 2, 3, start=1)
        queue.take_batch(2, now_ms=0)
        queue.put_back([1])

        batch = queue.take_batch(9, now_ms=0)

        assert [(m.queue_offset, m.reconsume_times) for m in batch] == [(1, 1), (3, 0)]
        assert queue.complete([2, 3]) == 1

    def test_only_messages_under_delivery_are_put_back(self) -> None:
        queue = started(1, 2, start=1)
        queue.take_batch(1, now_ms=0)
        queue.complete([1])
        queue.put_back([1, 2])

        assert offsets_of(queue.take_batch(9, now_ms=0)) == [2]
        assert queue.take_batch(9, now_ms=0) == []

    def test_completing_twice_or_a_stranger_does_nothing(self) -> None:
        queue = started(1, 2, start=1)
        queue.take_batch(2, now_ms=0)
        queue.complete([1])

        assert queue.complete([1, 99]) == 2
        assert (queue.count, queue.size_bytes) == (1, 1)


class TestGivingUp:
    def test_a_revoked_queue_delivers_nothing_more_and_counts_what_ends(self) -> None:
        queue = started(1, 2, 3, start=1)
        queue.take_batch(2, now_ms=0)
        queue.revoke()

        assert queue.take_batch(1, now_ms=0) == []
        assert queue.in_flight_count
        assert queue.complete([1, 2]) == 3
        assert queue.in_flight_count == 0
        assert queue.commit_offset == 3

    def test_what_could_not_be_finished_is_left_to_the_next_owner(self) -> None:
        queue = started(1, 2, start=1)
        queue.take_batch(2, now_ms=0)
        queue.revoke()
        queue.put_back([1])

        assert queue.complete([2]) == 1
        assert queue.in_flight_count == 0
        assert queue.take_batch(1, now_ms=0) == []

    def test_a_late_answer_to_a_pull_is_dropped(self) -> None:
        queue = started(1, start=1)
        queue.take_batch(1, now_ms=0)
        queue.revoke()
        queue.add([message(2)], next_offset=3)
        queue.add((), next_offset=9)

        assert queue.complete([1]) == 2

    def test_a_dropped_queue_commits_nothing(self) -> None:
        queue = started(1, 2, start=1)
        queue.take_batch(1, now_ms=0)
        queue.drop()

        assert queue.complete([1]) is None
        assert queue.commit_offset is None
        assert queue.in_flight_count == 0
        assert (queue.count, queue.in_flight_count, queue.size_bytes) == (0, 0, 0)


class TestFlowControl:
    LIMITS = FlowLimits(count_max=3, size_mib_max=2, span_max=10)

    def test_count_may_be_reached_and_not_passed(self) -> None:
        assert started(1, 2, 3).flow_control(self.LIMITS) is None
        assert started(1, 2, 3, 4).flow_control(self.LIMITS) is FlowControl.COUNT

    def test_messages_that_listeners_have_count_until_they_are_finished(self) -> None:
        queue = started(1, 2, 3, 4)
        queue.take_batch(4, now_ms=0)
        assert queue.flow_control(self.LIMITS) is FlowControl.COUNT
        queue.complete([1])
        assert queue.flow_control(self.LIMITS) is None

        queue.add([message(5, body=bytes(3 * MIB))], next_offset=6)
        queue.complete([2])
        queue.take_batch(1, now_ms=0)
        assert queue.flow_control(self.LIMITS) is FlowControl.SIZE

    def test_size_counts_whole_mebibytes(self) -> None:
        queue = started(start=1)
        queue.add([message(1, body=bytes(3 * 1024 * 1024 - 1))], next_offset=2)
        assert queue.flow_control(self.LIMITS) is None

        queue.add([message(2, body=b"x")], next_offset=3)
        assert queue.flow_control(self.LIMITS) is FlowControl.SIZE

        queue.complete([2])
        assert queue.flow_control(self.LIMITS) is None

    def test_delivery_that_is_finished_in_parts_counts_each_message_once(self) -> None:
        queue = started(1, 2, 3, start=1)
        _, *rest = queue.take_batch(3, now_ms=0)

        queue.complete([1])
        queue.complete_taken(rest)

        assert queue.size_bytes == 0

    def test_an_answer_that_was_cut_waits_until_the_largest_body_has_room(self) -> None:
        limits = FlowLimits(size_mib_max=84)
        queue = started(start=1)
        assert queue.room_bytes(limits) == 20 * MIB
        queue.add([message(1, body=bytes(2 * MIB)), message(2, body=bytes(3 * MIB))], next_offset=3)
        assert queue.room_bytes(limits) == 15 * MIB
        assert queue.flow_control(limits) is None

        queue.add((), next_offset=3, is_cut=True)
        assert queue.flow_control(limits) is FlowControl.SIZE

        queue.complete([1])
        assert queue.room_bytes(limits) == 17 * MIB
        assert queue.flow_control(limits) is None

    def test_the_largest_body_has_room_where_nothing_is_cached(self) -> None:
        limits = FlowLimits(size_mib_max=1)
        queue = started(start=1)
        assert queue.room_bytes(limits) == INFLATED_BYTES_MAX
        queue.add([message(1)], next_offset=2, is_cut=True)
        assert queue.flow_control(limits) is FlowControl.SIZE
        queue.take_batch(1, now_ms=0)
        assert queue.flow_control(limits) is FlowControl.SIZE

        queue.complete([1])
        assert queue.flow_control(limits) is None

    def test_span_reaches_from_the_lowest_to_the_highest_unfinished_offset(self) -> None:
        queue = started(1, 11)
        assert queue.flow_control(self.LIMITS) is None

        queue.add([message(12)], next_offset=13)
        assert queue.flow_control(self.LIMITS) is FlowControl.SPAN
        assert queue.flow_control(self.LIMITS, in_order=True) is None

        queue.complete([12])
        assert queue.span == 10
        assert queue.flow_control(self.LIMITS) is None

    def test_the_defaults_are_rocketmqs(self) -> None:
        assert FlowLimits(count_max=1000, size_mib_max=100, span_max=2000) == FlowLimits()

    def test_an_empty_queue_has_no_span(self) -> None:
        assert started().span == 0


class TestExpiry:
    def test_messages_under_delivery_too_long_are_found_from_the_lowest_on(self) -> None:
        queue = started(1, 2, 3, 4)
        queue.take_batch(2, now_ms=0)
        queue.take_batch(1, now_ms=1000)

        assert queue.find_expired(CONSUME_TIMEOUT_MS) == []
        assert offsets_of(queue.find_expired(CONSUME_TIMEOUT_MS + 1)) == [1, 2]
        assert offsets_of(queue.find_expired(CONSUME_TIMEOUT_MS + 1001)) == [1, 2, 3]

    def test_a_message_that_waits_hides_those_behind_it(self) -> None:
        queue = started(1, 2)
        queue.take_batch(2, now_ms=0)
        queue.put_back([1])

        assert queue.find_expired(CONSUME_TIMEOUT_MS + 1) == []

    def test_a_message_that_was_delivered_again_of_late_hides_those_behind_it(self) -> None:
        queue = started(1, 2, 3, 4)
        queue.take_batch(2, now_ms=0)
        queue.put_back([1])
        for _ in range(2):
            queue.take_batch(1, now_ms=1_000)

        assert queue.find_expired(CONSUME_TIMEOUT_MS + 1) == []
        assert offsets_of(queue.find_expired(CONSUME_TIMEOUT_MS + 1_001)) == [1, 2, 3]

    def test_one_round_finds_sixteen(self) -> None:
        queue = started(*range(20))
        queue.take_batch(20, now_ms=0)

        assert list(range(16)) == offsets_of(queue.find_expired(CONSUME_TIMEOUT_MS + 1))

    def test_a_listener_that_returns_after_its_message_was_given_up_changes_nothing(self) -> None:
        queue = started(1, 2)
        queue.take_batch(1, now_ms=0)

        assert queue.complete([1]) == 2
        assert not queue.has(1)
        queue.put_back([1])
        assert offsets_of(queue.take_batch(9, now_ms=0)) == [2]


class TestInOrder:
    def test_a_commit_finishes_the_batch_under_delivery(self) -> None:
        queue = started(1, 2, 3, start=1)

        assert offsets_of(queue.take_batch(2, now_ms=0)) == [1, 2]
        assert queue.commit_in_order() == 3
        assert offsets_of(queue.take_batch(2, now_ms=0)) == [3]
        assert queue.commit_in_order() == 4

    def test_rollback_delivers_the_same_batch_again(self) -> None:
        queue = started(1, 2, 3, start=1)
        queue.take_batch(2, now_ms=0)
        queue.rollback_in_order()

        assert queue.commit_offset == 1
        assert offsets_of(queue.take_batch(2, now_ms=0)) == [1, 2]

    def test_messages_made_again_come_with_their_new_counts(self) -> None:
        queue = started(1, 2, 3, start=1)
        batch = queue.take_batch(2, now_ms=0)
        queue.make_again(
            [msgspec.structs.replace(m, reconsume_times=m.reconsume_times + 1) for m in batch]
        )

        again = queue.take_batch(2, now_ms=0)

        assert [(m.queue_offset, m.reconsume_times) for m in again] == [(1, 1), (2, 1)]

    def test_a_draining_queue_is_not_delivered_from_after_a_rollback(self) -> None:
        queue = started(1, 2, start=1)
        queue.take_batch(1, now_ms=0)
        queue.revoke()
        queue.rollback_in_order()

        assert queue.in_flight_count == 0
        assert queue.take_batch(1, now_ms=0) == []
        assert queue.commit_offset == 1


class CommitPointModel(RuleBasedStateMachine):
    """Against a model that keeps every offset's fate in one dict and looks through all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fates: dict[int, str] = {}
        self.next_offset = 0
        self.clock_ms = 0
        self.committed: list[int] = []
        self.is_revoked = self.is_dropped = False

    @initialize(start=st.integers(min_value=0, max_value=50))
    def start(self, start: int) -> None:
        self.queue = ProcessQueue(QUEUE, now_ms=0)
        self.queue.start(start, now_ms=0)
        self.next_offset = start

    def under(self, fate: str) -> list[int]:
        return sorted(offset for offset, now in self.fates.items() if now == fate)

    @precondition(lambda self: not self.is_revoked)
    @rule(gaps=st.lists(st.integers(0, 3), max_size=6), tail=st.integers(0, 3))
    def pull(self, gaps: list[int], tail: int) -> None:
        offsets: list[int] = []
        for gap in gaps:
            offsets.append(self.next_offset + gap)
            self.next_offset = offsets[-1] + 1
        self.next_offset += tail
        self.fates.update(dict.fromkeys(offsets, "waits"))
        self.queue.add([message(offset) for offset in offsets], next_offset=self.next_offset)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        taken = offsets_of(self.queue.take_batch(count, now_ms=self.clock_ms))

        assert ([] if self.is_revoked else self.under("waits")[:count]) == taken
        self.fates.update(dict.fromkeys(taken, "taken"))

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        taken = self.under("taken")
        if not taken:
            return
        chosen = data.draw(st.lists(st.sampled_from(taken), min_size=1, unique=True))
        self.fates.update(dict.fromkeys(chosen, "done"))
        commit = self.queue.complete(chosen)
        if not self.is_dropped:
            assert commit is not None
            self.committed.append(commit)

    @rule(count=st.integers(1, 5))
    def deliver_and_finish(self, count: int) -> None:
        messages = self.queue.take_batch(count, now_ms=self.clock_ms)
        self.fates.update(dict.fromkeys(offsets_of(messages), "done"))
        self.queue.complete_taken(messages)

    @rule(data=st.data())
    def finish_some_of_several_deliveries(self, data: st.DataObject) -> None:
        taken = self.under("taken")
        chosen = taken[: data.draw(st.integers(0, len(taken)))]
        self.fates.update(dict.fromkeys(chosen, "done"))
        self.queue.complete_taken([message(offset) for offset in chosen])

    @precondition(lambda self: not self.is_revoked)
    @rule(data=st.data())
    def pull_again(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.next_offset))
        again = [n for n in self.under("waits") + self.under("taken") if n >= offset]
        self.queue.add([message(n) for n in sorted(again)], next_offset=self.next_offset)

    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        taken = self.under("taken")
        if not taken:
            return
        chosen = data.draw(st.lists(st.sampled_from(taken), min_size=1, unique=True))
        self.fates.update(dict.fromkeys(chosen, "waits"))
        self.queue.put_back(chosen)

    @precondition(lambda self: not self.is_revoked)
    @rule(rarely=st.integers(0, 9))
    def revoke(self, rarely: int) -> None:
        if rarely == 0:
            self.is_revoked = True
            self.queue.revoke()

    @rule(rarely=st.integers(0, 19))
    def drop(self, rarely: int) -> None:
        if rarely == 0:
            self.is_revoked = self.is_dropped = True
            self.queue.drop()

    @invariant()
    def commit_offset_is_the_lowest_unfinished_one(self) -> None:
        if not hasattr(self, "queue"):
            return
        unfinished = self.under("waits") + self.under("taken")
        if self.is_dropped:
            assert self.queue.commit_offset is None
            return
        assert min(unfinished, default=self.next_offset) == self.queue.commit_offset
        assert len(unfinished) == self.queue.count == self.queue.size_bytes
        assert len(self.under("taken")) == self.queue.in_flight_count
        assert (max(unfinished) - min(unfinished) if unfinished else 0) == self.queue.span

    @invariant()
    def commits_never_go_back(self) -> None:
        assert sorted(self.committed) == self.committed


TestCommitPointModel = CommitPointModel.TestCase
