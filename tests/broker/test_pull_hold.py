from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.broker.message_filter import MessageFilter
from sparrowmq.broker.pull_hold import HeldPull, PullHold
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.headers import PullMessageRequestHeader
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
    header = PullMessageRequestHeader(
        consumer_group="G",
        topic="T",
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=2,
        commit_offset=0,
        suspend_timeout_ms=15_000,
        sub_version=0,
    )
    return HeldPull(connection, RemotingCommand(code=11), header, MessageFilter(tags), deadline_ms)


def test_message_at_the_wanted_offset_wakes_the_pull_once() -> None:
    hold = PullHold()
    pull = held(offset=5)
    hold.hold(pull)

    assert [] == hold.wake("T", 0, next_offset=5, tags_code=0)
    assert [pull] == hold.wake("T", 0, next_offset=6, tags_code=0)
    assert [] == hold.wake("T", 0, next_offset=7, tags_code=0)
    assert 0 == len(hold)


def test_message_of_another_queue_wakes_nobody() -> None:
    hold = PullHold()
    hold.hold(held(queue_id=0))

    assert [] == hold.wake("T", 1, next_offset=9, tags_code=0)
    assert [] == hold.wake("U", 0, next_offset=9, tags_code=0)


def test_unwanted_tag_leaves_the_pull_held_until_its_deadline() -> None:
    hold = PullHold()
    pull = held(tags=frozenset({65}), deadline_ms=100)
    hold.hold(pull)

    assert [] == hold.wake("T", 0, next_offset=6, tags_code=66)
    assert [] == hold.due(99)
    assert [pull] == hold.due(100)


def test_pulls_of_a_closed_connection_are_forgotten() -> None:
    hold = PullHold()
    stays = held(connection=OTHER)
    for pull in (held(), stays, held(queue_id=1)):
        hold.hold(pull)

    hold.discard(PEER)

    assert 1 == len(hold)
    assert [stays] == hold.wake("T", 0, next_offset=6, tags_code=0)
    assert [] == hold.due(1 << 40)


def test_full_table_gives_up_the_pull_with_the_nearest_deadline() -> None:
    hold = PullHold(held_max=2)
    early, late, new = held(deadline_ms=10), held(deadline_ms=30), held(deadline_ms=20)
    assert (None, None) == (hold.hold(late), hold.hold(early))

    assert early is hold.hold(new)
    assert 2 == len(hold)


@given(
    st.lists(
        st.tuples(st.sampled_from("hwdc"), st.integers(0, 3), st.integers(0, 20)), max_size=150
    )
)
def test_every_pull_leaves_the_table_exactly_once(steps: list[tuple[str, int, int]]) -> None:
    hold = PullHold(held_max=40)
    connections = [PEER, OTHER]
    inside: list[HeldPull] = []
    for action, queue_id, number in steps:
        left: list[HeldPull] = []
        if action == "h":
            pull = held(
                queue_id=queue_id,
                offset=number,
                deadline_ms=number,
                connection=connections[number % 2],
            )
            evicted = hold.hold(pull)
            inside.append(pull)
            left = [] if evicted is None else [evicted]
        elif action == "w":
            left = hold.wake("T", queue_id, next_offset=number, tags_code=0)
        elif action == "d":
            left = hold.due(number)
        else:
            connection = connections[number % 2]
            hold.discard(connection)
            left = [pull for pull in inside if pull.connection is connection]
        for pull in left:
            inside.remove(pull)

        assert len(inside) == len(hold)
        assert all(pull.is_held for pull in inside)
