"""Which messages go in one batch, and when."""

from __future__ import annotations

from typing import Any

import pytest

from play import Play, make_publisher
from sending_servers import Servers
from sparrowmq import Message, MessageQueue
from sparrowmq.calling.effects import Wait
from sparrowmq.client.batcher import FREE_LANES, Batcher, Pending
from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.operations.batches import flush
from sparrowmq.client.operations.send import send
from sparrowmq.client.outgoing import make_parts
from sparrowmq.model.namespace import Namespace
from sparrowmq.protocol.message_id import UniqIdGenerator

QUEUES = [MessageQueue("T", "b", number) for number in range(4)]


def batcher_of(**settings: Any) -> Batcher:
    config = ProducerConfig(group="G", client_id="c", **settings)
    return Batcher(config, lambda pendings, outcome: None)


def pending(body: bytes, queue: MessageQueue | None = None, **fields: Any) -> Pending:
    return Pending(Message("T", body, **fields), queue, None)


def bodies(batcher: Batcher, now_ms: int) -> list[list[bytes]]:
    return [[p.message.body for p in batch] for _, _, batch in batcher.begin(now_ms)]


def test_batch_goes_when_its_first_message_has_lingered() -> None:
    batcher = batcher_of(linger_ms=10)
    batcher.place([pending(b"1")], QUEUES, 0)
    batcher.place([pending(b"2")], QUEUES, 9)

    assert bodies(batcher, 9) == []
    assert batcher.next_due_ms() == 10
    assert bodies(batcher, 10) == [[b"1", b"2"]]


@pytest.mark.parametrize("bound", [{"batch_count_max": 3}, {"batch_bytes_max": 3}], ids=str)
def test_full_batch_goes_at_once_and_the_next_fills_another_lane(bound: dict[str, int]) -> None:
    batcher = batcher_of(linger_ms=1_000, **bound)
    batcher.place([pending(b"%d" % number) for number in range(7)], QUEUES, 0)

    assert bodies(batcher, 0) == [[b"0", b"1", b"2"], [b"3", b"4", b"5"]]
    assert bodies(batcher, 1_000) == [[b"6"]]


def test_free_lanes_are_bounded() -> None:
    batcher = batcher_of(linger_ms=0, batch_count_max=1)
    batcher.place([pending(b"%d" % number) for number in range(10)], QUEUES, 0)

    assert len(bodies(batcher, 0)) == FREE_LANES
    assert bodies(batcher, 0) == []


def test_queue_has_one_batch_under_way_and_keeps_its_order() -> None:
    batcher = batcher_of(linger_ms=0, batch_count_max=2)
    batcher.place([pending(b"%d" % number, QUEUES[1]) for number in range(5)], QUEUES, 0)

    sent = []
    while found := list(batcher.begin(0)):
        ((key, queue, batch),) = found
        assert (QUEUES[1], []) == (queue, list(batcher.begin(0)))
        sent.append([p.message.body for p in batch])
        batcher.end(key)

    assert sent == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert batcher.is_empty


def test_messages_of_one_sharding_key_go_to_its_queue() -> None:
    batcher = batcher_of(linger_ms=0)
    batcher.place(
        [pending(b"%d" % number, sharding_key=f"k{number % 8}") for number in range(32)], QUEUES, 0
    )

    by_queue = {queue: [p.message for p in batch] for _, queue, batch in batcher.begin(0)}

    assert set(by_queue) <= set(QUEUES)
    assert len(by_queue) > 1
    for key in (f"k{number}" for number in range(8)):
        homes = [q for q, found in by_queue.items() if any(m.sharding_key == key for m in found)]
        assert len(homes) == 1


def test_delayed_message_and_one_beyond_the_bound_go_alone() -> None:
    batcher = batcher_of(linger_ms=0, batch_bytes_max=4)
    queue = QUEUES[0]
    delayed = pending(b"2", queue, delay_level=3)
    for message in (pending(b"1", queue), delayed, pending(b"3", queue)):
        batcher.place([message], QUEUES, 0)
    batcher.place([pending(b"large", queue), pending(b"4", queue)], QUEUES, 0)

    sent = []
    while found := list(batcher.begin(0)):
        sent.append([p.message.body for p in found[0][2]])
        batcher.end(found[0][0])

    assert sent == [[b"1"], [b"2"], [b"3"], [b"large"], [b"4"]]


def test_long_properties_fill_a_batch_too() -> None:
    batcher = batcher_of(linger_ms=0, batch_bytes_max=700)
    long = [pending(b"%d" % number, QUEUES[0], keys=("k" * 80,)) for number in range(3)]
    batcher.place(long, QUEUES, 0)

    assert bodies(batcher, 0) == [[b"0", b"1"]]


@pytest.mark.parametrize(
    ("size_max", "body", "fields"),
    [
        (3_000, bytes(900), {}),
        (4 * 1024 * 1024, b"x", {"tags": "t" * 10_000}),
        (4 * 1024 * 1024, b"x", {"sharding_key": "é" * 5_000}),
        (4_000, b"x", {"keys": ("k" * 100,), "properties": {"name": "é" * 100}}),
    ],
    ids=["bodies", "tags", "sharding keys", "properties"],
)
def test_batch_fits_into_one_request(size_max: int, body: bytes, fields: dict[str, Any]) -> None:
    batcher = batcher_of(linger_ms=0, body_bytes_max=size_max, namespace=Namespace("n" * 100))
    given = [pending(body, QUEUES[0], **fields) for _ in range(512)]
    batcher.place(given, QUEUES, 0)

    ((_, _, batch),) = batcher.begin(0)

    messages = [each.message for each in batch]
    ids = UniqIdGenerator(bytes(4), 1, process_number=2)
    parts = make_parts(messages, ids, 1_000, config=batcher.config, has_queue=True)
    assert len(batch) > 1
    assert len(parts) == 1


def test_messages_for_a_retry_topic_go_alone() -> None:
    batcher = batcher_of(linger_ms=0)
    queue = MessageQueue("%RETRY%GID", "b", 0)
    batcher.place(
        [Pending(Message(queue.topic, body), queue, None) for body in (b"1", b"2")], [], 0
    )

    assert bodies(batcher, 0) == [[b"1"]]


def test_batch_under_way_does_not_fill_the_next() -> None:
    batcher = batcher_of(linger_ms=1_000, batch_bytes_max=4)
    batcher.place([pending(b"1234", QUEUES[0])], QUEUES, 0)
    ((lane, _, _),) = batcher.begin(0)
    batcher.place([pending(b"56", QUEUES[0])], QUEUES, 0)
    batcher.end(lane)

    assert bodies(batcher, 0) == []
    assert bodies(batcher, 1_000) == [[b"56"]]


def test_nothing_lingers_while_somebody_flushes_or_closes() -> None:
    for name in ("flush_count", "is_closing"):
        batcher = batcher_of(linger_ms=1_000)
        batcher.place([pending(b"1")], QUEUES, 0)
        setattr(batcher, name, 1)

        assert bodies(batcher, 0) == [[b"1"]]


def test_messages_linger_again_after_a_flush_and_after_a_send_of_another_queue() -> None:
    batcher, publisher = batcher_of(linger_ms=1_000), make_publisher()
    publisher.batcher = batcher
    batcher.place([pending(b"1", QUEUES[1])], QUEUES, 0)
    run = Play(Servers("b"))
    run(send(publisher, Message("T", b"2"), queue=QUEUES[0]))
    run(flush(batcher, lambda: True))

    assert bodies(batcher, 0) == []


def test_keyed_messages_wait_for_those_in_the_queue_of_an_earlier_route() -> None:
    batcher = batcher_of(linger_ms=0)
    earlier, later = QUEUES[:1], QUEUES[1:2]
    batcher.place([pending(body, sharding_key="k") for body in (b"0", b"1")], earlier, 0)
    ((lane, _, _),) = batcher.begin(0)

    batcher.place([pending(b"2", sharding_key="k"), pending(b"3", sharding_key="l")], later, 0)
    # Nor does a message overtake those held, when its queue is the earlier again.
    batcher.place([pending(b"4", sharding_key="k")], earlier, 0)

    assert bodies(batcher, 0) == [[b"3"]]
    assert batcher.has_unplaced("T")
    assert batcher.find_lane(later[0], "k") is batcher.find_lane(earlier[0], None)
    batcher.hand_over(pending(b"5", sharding_key="k"))
    batcher.end(lane)
    batcher.end(("T", later[0]))
    assert batcher.take_in() == ["T"]
    batcher.place(batcher.take_unplaced("T"), later, 0)
    assert bodies(batcher, 0) == [[b"2", b"4", b"5"]]


def test_message_with_a_queue_and_a_sharding_key_holds_no_later_one_of_its_key() -> None:
    batcher = batcher_of(linger_ms=0)
    batcher.place([pending(b"1", QUEUES[0], sharding_key="k")], QUEUES, 0)
    ((lane, _, _),) = batcher.begin(0)
    batcher.end(lane)
    batcher.place([pending(b"2", sharding_key="k")], QUEUES[1:2], 0)

    assert bodies(batcher, 0) == [[b"2"]]


def test_loop_does_not_end_while_queues_are_looked_up() -> None:
    batcher = batcher_of(linger_ms=0)
    batcher.hand_over(pending(b"1"))
    batcher.take_in()

    assert not batcher.is_empty


def test_what_is_abandoned_keeps_nobody_waiting() -> None:
    batcher = batcher_of(linger_ms=0)
    batcher.place([pending(b"1", QUEUES[0]), pending(b"2", QUEUES[1])], QUEUES, 0)
    under_way, _ = [key for key, _, _ in batcher.begin(0)]
    batcher.place([pending(b"3", QUEUES[0]), pending(b"4", QUEUES[2])], QUEUES, 0)
    batcher.incoming.append(pending(b"5"))
    batcher.place([pending(b"6", sharding_key="k")], QUEUES[3:], 0)
    batcher.place([pending(b"7", sharding_key="k")], QUEUES[2:3], 0)

    abandoned = [p.message.body for p in batcher.abandon()]
    assert abandoned == [b"5", b"3", b"4", b"6", b"7"]
    assert not batcher.is_empty
    batcher.end(under_way)
    batcher.end(("T", QUEUES[1]))
    assert batcher.is_empty


def test_loop_is_woken_once_for_a_batch() -> None:
    batcher = batcher_of(linger_ms=10, batch_count_max=3)

    assert batcher.begin_rest(0) is None
    assert [batcher.hand_over(pending(b"%d" % number)) for number in range(2)] == [True, False]
    assert batcher.take_in() == ["T"]
    batcher.place(batcher.take_unplaced("T"), QUEUES, 0)
    assert batcher.begin_rest(4) == 6
    assert [batcher.hand_over(pending(b"x")) for _ in range(4)] == [False, False, True, False]


def test_message_that_comes_while_the_loop_looks_waits_for_no_other() -> None:
    batcher = batcher_of(linger_ms=10)
    assert batcher.hand_over(pending(b"1"))
    batcher.take_in()
    assert not batcher.hand_over(pending(b"2"))

    assert batcher.begin_rest(0) == 0


def test_message_that_comes_while_others_linger_lingers_no_longer_than_it_should() -> None:
    batcher = batcher_of(linger_ms=10)
    batcher.place([pending(b"1")], QUEUES, 0)
    assert batcher.begin_rest(5) == 5
    assert not batcher.hand_over(pending(b"2", QUEUES[1]))
    assert bodies(batcher, 10) == [[b"1"]]
    batcher.take_in()
    batcher.place(batcher.take_unplaced("T"), QUEUES, 10)

    assert batcher.next_due_ms() == 15


def test_send_goes_after_all_messages_that_were_queued_for_its_queue() -> None:
    class Ending(Play):
        """Ends a batch of each lane whenever somebody waits."""

        def carry_out(self, effect: Any) -> Any:
            if isinstance(effect, Wait):
                for key, _, batch in list(batcher.begin(0)):
                    ended.extend(pending.message.body for pending in batch)
                    batcher.end(key)
                return True
            return super().carry_out(effect)

    batcher, publisher, ended = batcher_of(batch_count_max=1), make_publisher(), list[bytes]()
    publisher.batcher = batcher
    batcher.place([pending(b"%d" % number, QUEUES[0]) for number in range(3)], QUEUES, 0)
    Ending(Servers("b"))(send(publisher, Message("T", b"last"), queue=QUEUES[0]))

    assert ended == [b"0", b"1", b"2"]


def test_message_of_the_users_queue_lets_none_that_its_key_holds_go() -> None:
    batcher = batcher_of(linger_ms=0)
    batcher.place([pending(b"0", sharding_key="k")], QUEUES[:1], 0)
    batcher.place([pending(b"1", QUEUES[1], sharding_key="k")], QUEUES, 0)
    batcher.place([pending(b"2", sharding_key="k")], QUEUES[2:3], 0)
    first, other = [key for key, _, _ in batcher.begin(0)]

    batcher.end(other)
    assert (batcher.take_in(), batcher.has_unplaced("T")) == ([], True)
    batcher.end(first)
    assert batcher.take_in() == ["T"]


def test_messages_that_fill_a_batch_while_the_loop_looks_do_not_linger() -> None:
    batcher = batcher_of(linger_ms=10, batch_count_max=2)
    batcher.place([pending(b"1")], QUEUES, 0)
    assert batcher.hand_over(pending(b"2"))
    batcher.hand_over(pending(b"3"))

    assert batcher.begin_rest(0) == 0
