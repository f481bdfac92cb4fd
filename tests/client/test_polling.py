"""The state of a poll consumer, and its operations, without sockets."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from hostile import record
from play import Play
from sparrowmq import (
    MessageExt,
    MessageQueue,
)
from sparrowmq.calling.effects import Wait
from sparrowmq.client.assembly import make_polling
from sparrowmq.client.operations import poll
from sparrowmq.client.polling import PolledBatch, Polling
from sparrowmq.client.subscriber import Notice, RebalanceCallbacks
from sparrowmq.errors import ConnectFailed, UsageError
from sparrowmq.membership.actions import (
    Acquire,
    AssignmentChanged,
    Commit,
    Deliver,
    OffsetCorrected,
    OffsetReset,
    QueueLost,
)
from sparrowmq.membership.member import TopicShare
from sparrowmq.protocol.bodies import (
    BrokerData,
    TopicRouteData,
    encode_body,
)
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

MINE, OTHER = (MessageQueue("T", "a", queue_id) for queue_id in range(2))


def make_state(**settings: Any) -> Polling:
    return make_polling(
        "G", name_server="ns:1", callbacks=RebalanceCallbacks(), is_async=False, **settings
    )


def batch_of(queue: MessageQueue) -> PolledBatch:
    message = MessageExt("T", b"x", {}, "a", queue.queue_id, 5, 0)
    return PolledBatch(Deliver(queue, 1, 1, ((message,),)), 0)


def test_queue_that_was_given_up_is_not_paused_when_it_comes_back() -> None:
    state = make_state()
    state.paused.update((MINE, OTHER))
    state.note(AssignmentChanged(assigned=(OTHER,), gained=(), revoked=(MINE,)))

    assert state.paused == {OTHER}


@pytest.mark.parametrize(("corrected_offset", "is_kept"), [(7, True), (3, False)])
def test_messages_in_hand_are_withdrawn_where_they_come_again(
    corrected_offset: int, is_kept: bool
) -> None:
    state = make_state()
    state.in_hand.append(batch_of(MINE))
    state.note(OffsetCorrected(MINE, wanted_offset=6, corrected_offset=corrected_offset))

    assert bool(state.take(1)) == is_kept


@pytest.mark.parametrize(("committed", "is_committed"), [(None, False), (5, False), (6, True)])
def test_queue_waits_for_the_users_commit_of_what_was_given(
    committed: int | None, is_committed: bool
) -> None:
    state = make_state(auto_commit=False)
    state.in_hand.append(batch_of(MINE))
    assert state.is_committed(MINE)
    state.take(1)
    if committed is not None:
        state.committed[MINE] = committed

    assert state.is_committed(MINE) == is_committed


def test_automatic_commit_does_not_go_back_behind_the_users() -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        return response_to(request, body=encode_body(TopicRouteData(broker_datas=[broker])))

    broker, state = BrokerData(broker_name="a", broker_addrs={0: "a:1"}), make_state()
    run = Play(answer)
    state.committed[MINE] = 9
    run(poll._commit(state, state.subscriber, Commit(MINE, 1, 7, is_last=False)))

    assert (run.requests[-1][1].ext_fields or {})["commitOffset"] == "9"


def test_broker_that_is_away_keeps_no_commit_from_another() -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, body=encode_body(TopicRouteData(broker_datas=brokers)))
        if address == "a:1":
            raise ConnectFailed("away", address=address)
        return response_to(request)

    brokers = [BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"}) for name in "ab"]
    offsets = {MessageQueue("T", name, number): 5 + number for name in "ab" for number in range(3)}
    state, run = make_state(auto_commit=False), Play(answer)
    state.assigned = tuple(offsets)

    with pytest.raises(ConnectFailed):
        run(poll.commit(state, offsets))

    commits = [
        (address, (each.ext_fields or {})["commitOffset"])
        for address, each in run.requests
        if each.code == RequestCode.UPDATE_CONSUMER_OFFSET
    ]
    # One of a broker that is away is enough to know.
    assert sorted(commits) == [("a:1", "5"), ("b:1", "5"), ("b:1", "6"), ("b:1", "7")]
    assert state.committed == {q: n for q, n in offsets.items() if q.broker_name == "b"}


def batches_of(queue: MessageQueue, *sizes: int) -> list[Deliver]:
    """Return deliveries of a queue's messages from offset 0 on, so many in each."""
    found: list[Deliver] = []
    offset = 0
    for size in sizes:
        ends = range(offset, offset + size)
        messages = tuple(MessageExt("T", b"", {}, "a", queue.queue_id, n, 0) for n in ends)
        found.append(Deliver(queue, 1, offset, (messages,)))
        offset += size
    return found


def take_offsets(state: Polling, count_max: int) -> list[int]:
    state.fetch(count_max)
    return [message.queue_offset for message in state.take(count_max)]


def test_poll_gives_no_more_than_it_was_asked_for_and_each_message_once() -> None:
    state = make_state()
    state.deliver(batches_of(MINE, 3, 1, 4))

    assert [take_offsets(state, n) for n in (1, 4, 2, 9)] == [[0], [1, 2, 3, 4], [5, 6], [7]]
    assert state.take(1) == []
    assert not state.fetch(1)
    assert (state.in_hand, state.subscriber.counters.succeeded) == ([], 8)


def test_paused_queue_goes_on_in_its_order() -> None:
    state = make_state()
    state.deliver(batches_of(MINE, 2, 2, 2))
    assert take_offsets(state, 1) == [0]
    state.paused.add(MINE)
    state.deliver([*batches_of(OTHER, 1), *batches_of(MINE, 6, 2)[1:]])

    # Others of the queue stand behind the one that is given.
    assert take_offsets(state, 1) == [0]
    assert not state.fetch(9)
    state.paused.clear()
    assert take_offsets(state, 9) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    "notice",
    [
        OffsetReset(MINE, 5, 3),
        QueueLost(MINE),
        AssignmentChanged(assigned=(), gained=(), revoked=(MINE,)),
    ],
    ids=["reset", "lost", "revoked"],
)
def test_messages_of_a_queue_that_is_not_ours_as_before_are_not_given(notice: Notice) -> None:
    state = make_state()
    state.deliver([*batches_of(MINE, 2, 2), *batches_of(OTHER, 1)])
    assert take_offsets(state, 1) == [0]

    state.note(notice)

    assert [message.queue_id for message in state.take(9)] == []
    state.fetch(9)
    assert [message.queue_id for message in state.take(9)] == [OTHER.queue_id]
    # The one given counts as done then, and nothing is left.
    assert state.take(9) == []
    assert not state.fetch(9)
    assert state.in_hand == []
    assert state.subscriber.counters.succeeded == 2


def test_offsets_of_a_queue_that_comes_back_begin_anew() -> None:
    state = make_state(auto_commit=False)
    state.positions[MINE] = state.committed[MINE] = 6
    # A queue that is not in hand is another member's.
    assert state.offsets_to_commit(None) == {}
    state.note(AssignmentChanged(assigned=(MINE,), gained=(MINE,), revoked=()))

    assert state.is_untouched(MINE)
    state.assigned = (MINE,)
    # Nobody else begins at the start of a queue that was assigned.
    assert not state.is_untouched(MINE)


def test_seek_drops_what_had_come_and_the_offset_of_what_was_given() -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        raise AssertionError(f"nothing is asked of {address}")

    state, run = make_state(), Play(answer)
    member = state.subscriber.member
    member.subscribe("T", now_ms=run.now_ms)
    cid_all = (state.subscriber.config.client_id,)
    member.rebalanced([TopicShare("T", (MINE,), cid_all, (MINE,))], run.now_ms)
    (begun,) = [each for each in member.due(run.now_ms) if isinstance(each, Acquire)]
    member.acquired(MINE, begun.epoch, offset=0, is_committed=True, now_ms=run.now_ms)
    state.deliver(batches_of(MINE, 2, 2))
    assert take_offsets(state, 1) == [0]
    run(poll._go_on_at(state, MINE, 7))

    assert take_offsets(state, 9) == []
    assert state.offsets_to_commit(None) == {}


@pytest.mark.parametrize(("offset", "is_there"), [(2, False), (3, True), (9, True), (10, False)])
def test_seek_goes_to_any_offset_between_the_ends_of_a_queue(
    offset: int, *, is_there: bool
) -> None:
    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, body=encode_body(TopicRouteData(broker_datas=[broker])))
        is_end = request.code == RequestCode.GET_MAX_OFFSET
        return response_to(request, ext_fields={"offset": "9" if is_end else "3"})

    broker = BrokerData(broker_name="a", broker_addrs={0: "a:1"})
    state, run = make_state(), Play(answer)
    state.assigned, sought = (MINE,), list[int]()

    def seek(_: MessageQueue, offset: int, **__: int) -> bool:
        sought.append(offset)
        return True

    member: Any = SimpleNamespace(seek=seek)
    state.subscriber.member = member
    if is_there:
        run(poll.seek(state, MINE, offset))
    else:
        with pytest.raises(UsageError, match=f"has the offsets 3 to 9; {offset} is not among"):
            run(poll.seek(state, MINE, offset))

    assert sought == [offset] * is_there


def test_time_of_a_poll_does_not_begin_anew_with_each_message_that_others_take() -> None:
    class Woken(Play):
        def carry_out(self, effect: Any) -> Any:
            if isinstance(effect, Wait):
                assert effect.timeout_ms is not None
                self.now_ms += min(600, effect.timeout_ms)
                return effect.timeout_ms > 600
            return super().carry_out(effect)

    state, run = make_state(), Woken(lambda _, request: response_to(request))
    state.has_subscribed = True
    begun_ms = run.now_ms

    assert not run(poll.fetch(state, 1, timeout_ms=1_000))
    assert run.now_ms - begun_ms == 1_000


class Waking(Play):
    """Does something while a poll waits, once."""

    def __init__(self, happens: Callable[[Play], None]) -> None:
        super().__init__(lambda _, request: response_to(request))
        self._happens = [happens]

    def carry_out(self, effect: Any) -> Any:
        if isinstance(effect, Wait) and self._happens:
            self._happens.pop()(self)
        return super().carry_out(effect)


def test_poll_that_waits_gets_the_messages_of_a_queue_that_is_resumed() -> None:
    state = make_state()
    state.has_subscribed = True
    state.paused.add(MINE)
    state.deliver(batches_of(MINE, 2))
    run = Waking(lambda run: run(poll.resume(state, [MINE])))

    assert run(poll.fetch(state, 1, timeout_ms=None))
    assert [message.queue_offset for message in state.take(9)] == [0, 1]


def test_queue_that_is_given_up_does_not_wait_for_the_next_message_of_another() -> None:
    state = make_state()
    state.has_subscribed = True
    state.deliver(batches_of(MINE, 2))
    assert take_offsets(state, 1) == [0]
    # The user asks for the next one: the first is done, the other is not given any more.
    state.paused.add(MINE)
    assert state.take(1) == []
    revoked = AssignmentChanged(assigned=(), gained=(), revoked=(MINE,))
    run = Waking(lambda _: state.note(revoked))

    assert not run(poll.fetch(state, 1, timeout_ms=None))
    assert (state.in_hand, state.subscriber.counters.succeeded) == ([], 1)


def test_pull_by_hand_leaves_out_a_tag_with_the_hash_code_of_a_wanted_one() -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return response_to(request, body=encode_body(TopicRouteData(broker_datas=[broker])))
        fields = {"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2"}
        fields["suggestWhichBrokerId"] = "0"
        stored = [record("T", 0, n, properties=f"TAGS\x01{tag}") for n, tag in enumerate(tags)]
        return response_to(request, ext_fields=fields, body=b"".join(stored))

    broker, tags = BrokerData(broker_name="a", broker_addrs={0: "a:1"}), ("Aa", "BB")
    run = Play(answer)
    pulled = run(
        poll.pull_queue(make_state(), MINE, 0, count_max=9, expression="BB", suspend_ms=60_000)
    )

    # The answer comes after the broker has held the pull.
    assert run.waits_ms[-1] > 60_000
    assert ([message.tags for message in pulled.messages], pulled.next_offset) == (["BB"], 2)


def test_queues_of_assign_are_consumed_without_their_locks() -> None:
    state = make_state()
    Play(lambda _, request: response_to(request))(poll.assign(state, [MINE]))

    assert not state.subscriber.member.locks_queues
    assert list(state.subscriber.subscriptions) == ["T"]
    # Its group's other members share queues by their subscriptions.
    assert state.subscriber.consumer_data.subscription_data_set == []


@pytest.mark.parametrize(
    ("is_last", "is_closed", "committed", "ends"),
    [
        (True, False, None, False),
        (True, False, 6, True),
        (True, True, None, True),
        (False, False, None, True),
    ],
)
def test_queue_that_is_given_up_waits_for_the_users_commit_unless_the_consumer_closes(
    committed: int | None, *, is_last: bool, is_closed: bool, ends: bool
) -> None:
    told: list[bool] = []
    owned = SimpleNamespace(commit_failed=lambda _: told.append(False))
    member: Any = SimpleNamespace(
        committed=lambda *_, **__: told.append(True),
        find_queue=lambda *_: owned,
        committed_offset=lambda _: 0,
    )
    state, run = make_state(auto_commit=False), Play(lambda _, request: response_to(request))
    state.subscriber.member, state.is_closed, state.positions[MINE] = member, is_closed, 6
    if committed is not None:
        state.committed[MINE] = committed
    run(poll._commit(state, state.subscriber, Commit(MINE, 1, 9, is_last=is_last)))

    assert (told, run.requests) == ([ends], [])
