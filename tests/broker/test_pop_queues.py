"""The state of pops: what a table and the log's changes restore is what was in memory."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparrowmq.broker import pop_queues
from sparrowmq.broker.pop_changes import (
    Flight,
    Moved,
    PopChange,
    PopTable,
    QueueKey,
    decode_pop_changes,
    encode_pop_changes,
)
from sparrowmq.broker.pop_queues import PopQueues
from sparrowmq.errors import StoreError
from sparrowmq.protocol.bodies import decode_file, encode_body
from sparrowmq.serving.connections import Connection

KEYS = [QueueKey("G", "T", 0), QueueKey("G", "T", 1), QueueKey("H", "T", 0)]
WALL_MS = 1_700_000_000_000


def flights(pops: PopQueues) -> dict[QueueKey, tuple[int, dict[int, Flight]]]:
    return {queue.key: (queue.next_offset, dict(queue.flights)) for queue in pops.all()}


def act(pops: PopQueues, dice: random.Random, now_ms: int, ends: dict[QueueKey, int]) -> None:
    """Do one random change."""
    key = dice.choice(KEYS)
    queue = pops.get(key)
    offsets = [] if queue is None else list(queue.flights)
    match dice.choice(["pop", "pop", "finish", "finish", "change", "move", "time"]):
        case "pop":
            begin = ends.get(key, 0)
            new = range(begin, begin + dice.randrange(1, 4))
            again = [] if queue is None else queue.find_ready(2)
            ends[key] = new.stop
            pops.pop(
                key,
                [*again, *new],
                next_offset=new.stop,
                pop_timestamp_ms=WALL_MS + now_ms,
                invisible_ms=dice.randrange(5_000),
                now_ms=now_ms,
            )
        case "finish" if queue is not None:
            pops.finish(queue, dice.sample(offsets, dice.randrange(1, len(offsets) + 1)))
        case "change" if queue is not None:
            pops.change(
                queue,
                dice.choice(offsets),
                pop_timestamp_ms=WALL_MS + now_ms,
                invisible_ms=dice.randrange(5_000),
                is_suspended=dice.random() < 0.5,
                now_ms=now_ms,
            )
        case "move":
            pops.move(key, dice.choice([None, ends.get(key, 0)]))
        case "time":
            for found, offset in pops.take_due(now_ms, 100):
                pops.show(found, offset)
        case _:
            pass


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 79))
def test_table_and_later_changes_restore_the_state(seed: int, table_at: int) -> None:
    dice = random.Random(seed)
    pops, ends = PopQueues(), dict[QueueKey, int]()
    table, log = PopTable(), list[PopChange]()
    for step in range(80):
        act(pops, dice, step * 500, ends)
        if step == table_at:
            # The table may be ahead of the log by changes that the log has not taken yet.
            table = decode_file(PopTable, encode_body(pops.table()))
        log += decode_pop_changes(encode_pop_changes(pops.peek_changes()))
        if step < table_at:
            log.clear()
        pops.changes_logged(step, now_ms=0)
    restored = PopQueues()
    committed = restored.load(
        table,
        log,
        log_offset=80,
        now_ms=0,
        timestamp_ms=WALL_MS,
        end_of=lambda *_: 1_000,
    )

    assert flights(restored) == flights(pops)
    assert len(restored) == len(pops) == sum(len(each) for _, each in flights(pops).values())
    for queue in pops.all():
        assert list(queue.flights) == sorted(queue.flights)
        assert committed[queue.key] == min(queue.flights)


def popped(count: int = 1, *, invisible_ms: int = 1_000, now_ms: int = 0) -> PopQueues:
    pops = PopQueues()
    pops.pop(
        KEYS[0],
        list(range(count)),
        next_offset=count,
        pop_timestamp_ms=WALL_MS,
        invisible_ms=invisible_ms,
        now_ms=now_ms,
    )
    return pops


def test_message_is_due_once_and_not_after_a_change() -> None:
    pops = popped(2)
    queue = pops.get(KEYS[0])
    assert queue is not None
    pops.change(
        queue, 1, pop_timestamp_ms=WALL_MS + 5, invisible_ms=3_000, is_suspended=False, now_ms=0
    )

    assert pops.take_due(999, 10) == []
    assert pops.take_due(1_000, 10) == [(queue, 0)]
    assert pops.take_due(2_999, 10) == []
    assert pops.take_due(3_000, 10) == [(queue, 1)]


def test_a_longer_time_is_a_renewal_until_the_message_ends_or_is_popped_again() -> None:
    pops = popped(2)
    queue = pops.get(KEYS[0])
    assert queue is not None
    for offset, invisible_ms in ((0, 3_000), (0, 2_000), (1, 5_000), (1, 6_000)):
        pops.change(
            queue,
            offset,
            pop_timestamp_ms=WALL_MS + 5,
            invisible_ms=invisible_ms,
            is_suspended=False,
            now_ms=0,
        )
    assert queue.renewals == {0: 1, 1: 2}

    pops.finish(queue, [1])
    pops.pop(
        KEYS[0],
        [0],
        next_offset=2,
        pop_timestamp_ms=WALL_MS + 9_000,
        invisible_ms=1_000,
        now_ms=9_000,
    )

    assert queue.renewals == {}


def test_messages_that_are_due_together_come_a_bounded_number_at_a_time() -> None:
    pops = popped(5)
    assert [len(pops.take_due(1_000, 2)) for _ in range(4)] == [2, 2, 1, 0]


def test_outdated_times_do_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queues, "_OUTDATED_MAX", 8)
    pops = popped()
    queue = pops.get(KEYS[0])
    assert queue is not None
    for number in range(1, 100):
        pops.change(
            queue,
            0,
            pop_timestamp_ms=WALL_MS + number,
            invisible_ms=1_000,
            is_suspended=True,
            now_ms=number,
        )
        assert len(pops._due) <= 2 + 8
    assert len(pops.take_due(2_000, 200)) == 1


@pytest.mark.parametrize(("clock_step_ms", "left_ms"), [(400, 600), (-5_000, 1_000), (9_000, 0)])
def test_restart_keeps_the_rest_of_the_time_and_at_most_all_of_it(
    clock_step_ms: int, left_ms: int
) -> None:
    restored = PopQueues()
    restored.load(
        popped().table(),
        (),
        log_offset=0,
        now_ms=50,
        timestamp_ms=WALL_MS + clock_step_ms,
        end_of=lambda *_: 1,
    )

    assert len(restored.take_due(50 + left_ms - 1, 9)) == 0
    assert len(restored.take_due(50 + left_ms, 9)) == 1


def test_table_is_due_so_long_after_the_first_change_that_it_lacks() -> None:
    pops = popped()
    pops.changes_logged(1, now_ms=0)
    queue = pops.get(KEYS[0])
    assert queue is not None
    pops.finish(queue, [0])
    pops.changes_logged(2, now_ms=pop_queues.TABLE_INTERVAL_MS - 1)

    pops.note_time(pop_queues.TABLE_INTERVAL_MS - 1)
    before = pops.is_changed
    pops.note_time(pop_queues.TABLE_INTERVAL_MS)

    assert (before, pops.is_changed) == (False, True)


def test_move_after_a_change_while_the_table_was_written_is_logged() -> None:
    pops = popped()
    pops.changes_logged(1, now_ms=0)
    pops.table()
    queue = pops.get(KEYS[0])
    assert queue is not None
    pops.finish(queue, [0])
    pops.changes_logged(2, now_ms=0)

    pops.table_written()
    pops.move(KEYS[0], 0)

    assert pops.peek_changes() == [Moved(KEYS[0], 0)]


def test_messages_that_a_power_cut_took_are_not_in_flight_afterwards() -> None:
    restored = PopQueues()
    committed = restored.load(
        popped(5).table(),
        (),
        log_offset=0,
        now_ms=0,
        timestamp_ms=WALL_MS,
        end_of=lambda *_: 3,
    )

    queue = restored.get(KEYS[0])
    assert queue is not None
    assert (queue.next_offset, list(queue.flights)) == (3, [0, 1, 2])
    assert committed == {KEYS[0]: 0}


@pytest.mark.parametrize(("log_offset", "is_changed"), [(5, False), (3, True), (7, True)])
def test_table_is_written_anew_unless_it_ends_where_the_log_does(
    log_offset: int, is_changed: bool
) -> None:
    restored = PopQueues()
    restored.load(
        PopTable(log_offset=5),
        (),
        log_offset=log_offset,
        now_ms=0,
        timestamp_ms=WALL_MS,
        end_of=lambda *_: 0,
    )

    # The log's next records would lie before the end that the table names, and be passed over.
    assert restored.is_changed is is_changed


def test_changes_that_a_failed_log_has_twice_lead_to_the_first_message_in_flight() -> None:
    pops = popped(3)
    queue = pops.get(KEYS[0])
    assert queue is not None
    pops.pop(KEYS[0], [3, 4], next_offset=5, pop_timestamp_ms=WALL_MS, invisible_ms=1_000, now_ms=0)
    pops.finish(queue, [0, 1])
    changes = pops.peek_changes()
    restored = PopQueues()
    committed = restored.load(
        PopTable(),
        [*changes, *changes[:1]],
        log_offset=2,
        now_ms=0,
        timestamp_ms=WALL_MS,
        end_of=lambda *_: 5,
    )

    assert committed == {KEYS[0]: 0}
    restored_queue = restored.get(KEYS[0])
    assert restored_queue is not None
    assert (restored_queue.next_offset, list(restored_queue.flights)) == (5, [0, 1, 2, 3, 4])


def test_messages_of_all_groups_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queues, "POPPED_MAX", 7)
    pops = popped(5)
    assert pops.room("other", None) == 2


def test_group_leaves_others_as_many_messages_as_it_has_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group that acknowledged nothing could have all, and no other group got new messages."""
    monkeypatch.setattr(pop_queues, "POPPED_MAX", 11)
    pops, group = popped(5), KEYS[0].group
    queue = pops.get(KEYS[0])
    assert queue is not None

    before = pops.room(group, queue), pops.room("other", None)
    pops.finish(queue, [0, 1])
    after_end = pops.room(group, queue)
    pops.move(KEYS[0], 9)

    assert (before, after_end, pops.room(group, None)) == ((1, 6), 5, 11)


def test_places_of_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queues, "PLACES_PER_CONNECTION_MAX", 2)
    pops, peer = PopQueues(), Connection(1, "10.0.0.1:5", bytes(8))
    for number in range(3):
        pops.note_waiting(peer, (f"T@G{number}", -1))
    assert list(pops.forget_waiting(peer)) == [("T@G1", -1), ("T@G2", -1)]
    assert list(pops.forget_waiting(peer)) == []


def test_ways_of_consuming_are_forgotten() -> None:
    pops = PopQueues()
    assert pops.may_pull("G", "T", now_ms=0)
    pops.note_pop("H", "T", now_ms=0)
    pops.forget_ways(pop_queues.WAY_MS)
    assert pops.waiting_groups("T") == []
    assert not pops.is_pulled("G", "T", now_ms=pop_queues.WAY_MS - 1)


def test_queues_beyond_those_of_the_topic_are_known_by_their_messages_in_flight() -> None:
    pops = PopQueues()
    for key in KEYS[:2]:
        pops.pop(key, [0], next_offset=1, pop_timestamp_ms=WALL_MS, invisible_ms=1_000, now_ms=0)

    assert [pops.hidden_ids("G", "T", count=count) for count in range(3)] == [[0, 1], [1], []]
    queue = pops.get(KEYS[1])
    assert queue is not None
    pops.finish(queue, [0])
    assert pops.hidden_ids("G", "T", count=1) == []


def test_unknown_change_asks_for_the_later_version() -> None:
    with pytest.raises(StoreError, match="later version"):
        decode_pop_changes(msgspec.msgpack.encode([[9, ["G", "T", 0]]]))


def test_every_queue_is_looked_at_for_expired_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queues, "LOOKED_AT_ONCE_MAX", 2)
    pops = PopQueues()
    for key in KEYS:
        pops.pop(
            key,
            [4, 5, 6],
            next_offset=7,
            pop_timestamp_ms=WALL_MS,
            invisible_ms=60_000,
            now_ms=0,
        )

    looks = [pops.find_expired(lambda _, queue_id: 6 - queue_id) for _ in range(2)]
    found = {queue.key: offsets for look in looks for queue, offsets in look}

    assert [len(look) for look in looks] == [2, 1]
    assert found == {KEYS[0]: [4, 5], KEYS[1]: [4], KEYS[2]: [4, 5]}
    assert [pops.find_expired(lambda *_: 4) for _ in range(2)] == [[], []]
