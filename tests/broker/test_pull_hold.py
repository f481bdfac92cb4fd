from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processor_time import measuring, takes_less_than
from sparrowmq.broker.message_filter import MessageFilter
from sparrowmq.broker.pull_hold import RELEASED_MAX, HeldPull, PullHold
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Connection

PEER = Connection(1, "10.0.0.1:5", bytes(8))
OTHER = Connection(2, "10.0.0.1:6", bytes(8))


def held(
    *,
    offset: int = 5,
    queue_id: int = 0,
    tags: frozenset[int] | None = None,
    deadline_ms: int = 15_000,
    connection: Connection = PEER,
) -> HeldPull:
    return HeldPull(
        connection,
        RemotingCommand(code=11),
        ("T", queue_id),
        offset,
        MessageFilter(tags),
        deadline_ms,
        lambda _: (),
    )


def drain(hold: PullHold) -> list[HeldPull]:
    """Return all pulls that no longer wait."""
    released: list[HeldPull] = []
    while hold.has_ended:
        released += hold.release()
    return released


def wake(hold: PullHold, queue_id: int, *, next_offset: int, tags_code: int = 0) -> list[HeldPull]:
    hold.wake("T", queue_id, next_offset=next_offset, tags_codes=[tags_code])
    return drain(hold)


def due(hold: PullHold, now_ms: int) -> list[HeldPull]:
    hold.expire(now_ms)
    return drain(hold)


def test_message_at_the_wanted_offset_wakes_the_pull_once() -> None:
    hold = PullHold()
    pull = held(offset=5)
    hold.hold(pull)

    assert wake(hold, 0, next_offset=5) == []
    assert wake(hold, 0, next_offset=6) == [pull]
    assert wake(hold, 0, next_offset=7) == []
    assert len(hold) == 0


def test_pull_that_was_woken_leaves_the_next_one_at_its_place_waiting() -> None:
    hold = PullHold()
    first, second = held(), held(connection=OTHER)
    hold.hold(first)
    hold.wake("T", 0, next_offset=6, tags_codes=[0])
    hold.hold(second)

    assert drain(hold) == [first]
    assert wake(hold, 0, next_offset=6) == [second]


def test_message_of_another_queue_wakes_nobody() -> None:
    hold = PullHold()
    hold.hold(held(queue_id=0))
    hold.wake("U", 0, next_offset=9, tags_codes=[0])

    assert wake(hold, 1, next_offset=9) == []


def test_unwanted_tag_leaves_the_pull_held_until_its_deadline() -> None:
    hold = PullHold()
    pull = held(tags=frozenset({65}), deadline_ms=100)
    hold.hold(pull)

    assert wake(hold, 0, next_offset=6, tags_code=66) == []
    assert due(hold, 99) == []
    assert due(hold, 100) == [pull]
    assert hold.is_overdue(pull)


def test_pulls_of_a_closed_connection_are_forgotten() -> None:
    hold = PullHold()
    stays = held(connection=OTHER)
    for pull in (held(), stays, held(queue_id=1)):
        hold.hold(pull)

    hold.discard(PEER)

    assert len(hold) == 1
    assert wake(hold, 0, next_offset=6) == [stays]
    assert due(hold, 1 << 40) == []


def test_full_table_gives_up_the_pull_with_the_nearest_deadline() -> None:
    hold = PullHold(held_max=2)
    early, late, new = held(deadline_ms=10), held(deadline_ms=30), held(deadline_ms=20)
    assert (hold.hold(late), hold.hold(early)) == (None, None)

    assert early is hold.hold(new)
    assert hold.is_overdue(early)
    assert len(hold) == 2


def test_connection_is_full_once_and_drained_once() -> None:
    hold = PullHold(per_connection_max=4)
    full: list[bool] = []
    for queue_id in range(6):
        hold.hold(held(queue_id=queue_id))
        full.append(hold.is_now_full(PEER))

    before = [wake(hold, queue_id, next_offset=6) and hold.take_drained() for queue_id in range(3)]
    after = wake(hold, 3, next_offset=6) and hold.take_drained()

    assert full == [False, False, False, True, False, False]
    assert before == [[], [], []]
    assert after == [PEER]
    assert hold.take_drained() == []


def test_closed_connection_counts_as_full_no_longer() -> None:
    hold = PullHold(per_connection_max=1)
    found = []
    for _ in range(2):
        hold.hold(held())
        found.append(hold.is_now_full(PEER))
        hold.discard(PEER)

    assert found == [True, True]


@pytest.mark.parametrize("end", ["message", "deadline", "close"])
def test_many_pulls_that_end_at_once_end_some_at_a_time_and_in_linear_time(end: str) -> None:
    def fill(count: int) -> PullHold:
        hold = PullHold()
        for _ in range(count):
            hold.hold(held())
        return hold

    def run_out(count: int) -> list[float]:
        """End all of them at once; return how long each step took."""
        hold = fill(count)
        seconds = []
        with measuring() as taken:
            if end == "message":
                hold.wake("T", 0, next_offset=6, tags_codes=[0])
            elif end == "deadline":
                hold.expire(15_000)
            else:
                hold.discard(PEER)
        released = 0
        while hold.has_ended:
            seconds.append(taken.seconds)
            with measuring() as taken:
                step = len(hold.release())
            assert step <= RELEASED_MAX
            released += step
        assert (0 if end == "close" else count) == released
        return [*seconds, taken.seconds]

    # The quickest of several runs: another process may have the memory for itself meanwhile.
    few, many = (min((run_out(count) for _ in range(3)), key=sum) for count in (10_000, 40_000))

    # A millisecond is meant, and a third of it is taken on a quiet machine.
    assert sorted(few)[len(few) // 2] < 0.002
    # Four times as much to do; in quadratic time it would take sixteen times as long.
    assert sum(many) < 10 * sum(few)


@given(
    st.lists(
        st.tuples(st.sampled_from("hwdcr"), st.integers(0, 3), st.integers(0, 20)), max_size=150
    )
)
def test_every_pull_leaves_the_table_exactly_once(
    steps: list[tuple[str, int, int]],
) -> None:
    hold = PullHold(held_max=40)
    connections = [PEER, OTHER]
    inside: list[HeldPull] = []
    now_ms = 0
    for action, queue_id, number in steps:
        left: list[HeldPull] = []
        if action == "h":
            pull = held(
                queue_id=queue_id,
                offset=number,
                deadline_ms=now_ms + 1 + number,
                connection=connections[number % 2],
            )
            evicted = hold.hold(pull)
            inside.append(pull)
            left = [] if evicted is None else [evicted]
        elif action == "w":
            hold.wake("T", queue_id, next_offset=number, tags_codes=[0])
        elif action == "d":
            now_ms += number
            hold.expire(now_ms)
        elif action == "r":
            left = hold.release(number)
        else:
            connection = connections[number % 2]
            hold.discard(connection)
            left = [pull for pull in inside if pull.connection is connection]
        for pull in left:
            inside.remove(pull)

        assert len(inside) == len(hold)
    left = drain(hold)
    assert all(pull in inside for pull in left)
    assert len(inside) - len(left) == len(hold) == len(due(hold, 1 << 40))
    assert not any((hold._by_queue, hold._by_connection, hold._by_deadline))


def test_a_batch_of_many_tags_wakes_pulls_of_many_tags_in_linear_time() -> None:
    hold = PullHold(per_connection_max=100_000)
    for tag in range(20_000):
        hold.hold(held(tags=frozenset((tag,))))
    with takes_less_than(0.25):
        hold.wake("T", 0, next_offset=6, tags_codes=range(19_000, 20_000 + 500))

    assert len(drain(hold)) == 1_000


def test_a_batch_wakes_one_pop_for_each_of_its_tags() -> None:
    hold = PullHold()
    wanted = [frozenset((1, 2)), frozenset((2,)), frozenset((3,)), frozenset((4,)), None, None]
    pops = [held(tags=tags) for tags in wanted]
    for pop in pops:
        hold.hold(pop)

    hold.wake_first(("T", 0), tags_codes=(1, 2, 3, 9))
    first = drain(hold)
    hold.wake_first(("T", 0), tags_codes=(4,))
    second = drain(hold)
    hold.wake_first(("T", 0))

    assert [first, second, drain(hold)] == [[pops[0], pops[2], pops[4]], [pops[3]], [pops[1]]]
