"""Clients against servers that answer what they like: nothing impossible is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from hostile import HostileCluster, Lie, altered, record
from sparrowmq import ConsumeFromWhere, Message, MessageQueue, Producer, PushConsumer
from sparrowmq.client.operations.locks import lock_batch
from sparrowmq.errors import RemoteProtocolError
from sparrowmq.protocol.bodies import LockBatchResponseBody, encode_body
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from waiting import wait_until

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
IMPOSSIBLE = str(1 << 62)


class Seen:
    """What a listener was given."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def __call__(self, messages: list[Any], _: object) -> None:
        self.bodies += [message.body for message in messages]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def consumer(hostile: HostileCluster, seen: Seen) -> Iterator[PushConsumer]:
    """A consumer of the topic, not started yet."""
    with PushConsumer(
        "GID_c",
        name_server=hostile.address,
        listener=seen,
        consume_from_where=FIRST,
        consume_thread_count=1,
    ) as made:
        made.subscribe("T")
        yield made


@pytest.fixture
def producer(hostile: HostileCluster) -> Iterator[Producer]:
    with Producer("GID_p", name_server=hostile.address) as made:
        yield made


def at_first(count: int, lie: Lie) -> Lie:
    """Lie so many times, and be honest then."""
    times = iter(range(count))

    def answer(request: RemotingCommand, honest: RemotingCommand | None) -> Any:
        return honest if next(times, None) is None else lie(request, honest)

    return answer


def found(*records: bytes, **fields: str) -> Lie:
    """Find these records in the place of what is there."""
    return lambda _, honest: msgspec.structs.replace(
        altered(honest, **fields), code=ResponseCode.SUCCESS, body=b"".join(records) or None
    )


def code(number: int, **fields: str) -> Lie:
    """Answer with a code, and no body."""
    return lambda _, honest: msgspec.structs.replace(
        altered(honest, **fields), code=number, body=None
    )


def test_servers_that_do_not_lie_serve_a_producer_and_a_consumer(
    hostile: HostileCluster, producer: Producer, consumer: PushConsumer, seen: Seen
) -> None:
    offsets = [producer.send(Message("T", body)).queue_offset for body in (b"1", b"2")]
    consumer.start()
    wait_until("consumed", lambda: len(seen.bodies) == 2)
    consumer.close()

    assert [0, 1] == offsets
    assert [b"1", b"2"] == seen.bodies
    assert {("GID_c", "T", 0): 2} == hostile.broker.committed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "logged"),
    [
        (found(), "but without a message"),
        (found(record("U", 0, 0)), "with a message of 'U' queue 0"),
        (found(record("T", 7, 0)), "with a message of 'T' queue 7"),
        (found(record("T", 0, 5)), "with a message at offset 5"),
        (found(record("T", 0, 1), record("T", 0, 0)), "with a message at offset 0"),
        (found(record("T", 0, 0), nextBeginOffset=IMPOSSIBLE), "offsets that no queue has"),
        (
            code(ResponseCode.PULL_NOT_FOUND, nextBeginOffset="100000"),
            "behind the end of the queue",
        ),
        (code(ResponseCode.PULL_RETRY_IMMEDIATELY, nextBeginOffset=IMPOSSIBLE), "no queue has"),
        (code(ResponseCode.PULL_OFFSET_MOVED, maxOffset=IMPOSSIBLE), "offsets that no queue has"),
    ],
    ids=[
        *("nothing found", "other topic", "other queue", "offset beyond", "out of order"),
        *("found up to 2^62", "nothing new up to", "none matches up to 2^62", "moved to 2^62"),
    ],
)
def test_pull_answer_that_cannot_be_right_delivers_and_commits_nothing(
    hostile: HostileCluster,
    consumer: PushConsumer,
    seen: Seen,
    caplog: pytest.LogCaptureFixture,
    lie: Lie,
    logged: str,
) -> None:
    hostile.broker.add_messages("T", b"1", b"2")
    hostile.broker.lies[RequestCode.PULL_MESSAGE] = at_first(3, lie)

    consumer.start()
    wait_until("consumed", lambda: len(seen.bodies) >= 2)
    consumer.close()

    assert [b"1", b"2"] == seen.bodies
    assert {("GID_c", "T", 0): 2} == hostile.broker.committed
    assert {0, 1, 2} >= set(hostile.broker.commits)
    assert logged in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    ],
    ids=lambda number: number.name,
)
def test_broker_that_has_the_same_offset_pulled_again_and_again_is_not_flooded(
    hostile: HostileCluster, consumer: PushConsumer, number: ResponseCode
) -> None:
    hostile.broker.add_messages("T", b"1")
    hostile.broker.lies[RequestCode.PULL_MESSAGE] = code(number, nextBeginOffset="0")

    consumer.start()
    wait_until("the first pull", lambda: hostile.broker.count(RequestCode.PULL_MESSAGE) >= 1)
    elapsed_s = wait_until("six", lambda: hostile.broker.count(RequestCode.PULL_MESSAGE) >= 6)

    # At once, and then after 100, 200, 400 and 800 ms.
    assert 1.4 < elapsed_s


@pytest.mark.parametrize("answered", ["-9", "3"])
def test_send_answer_with_another_queue_is_an_error(
    hostile: HostileCluster, producer: Producer, answered: str
) -> None:
    hostile.broker.lies[RequestCode.SEND_MESSAGE_V2] = lambda _, honest: altered(
        honest, queueId=answered
    )

    with pytest.raises(RemoteProtocolError, match=f"names queue {answered}"):
        producer.send(Message("T", b"x"))


@pytest.mark.slow
@pytest.mark.parametrize("offset", ["-7", IMPOSSIBLE, "9" * 5_000])
def test_committed_offset_that_no_queue_can_have_is_asked_for_again(
    hostile: HostileCluster, consumer: PushConsumer, seen: Seen, offset: str
) -> None:
    hostile.broker.add_messages("T", b"1", b"2")
    hostile.broker.lies[RequestCode.QUERY_CONSUMER_OFFSET] = at_first(
        2, code(ResponseCode.SUCCESS, offset=offset)
    )

    consumer.start()
    wait_until("consumed", lambda: len(seen.bodies) == 2)

    assert 3 == hostile.broker.count(RequestCode.QUERY_CONSUMER_OFFSET)


@pytest.mark.parametrize("expiry", ["0", "1", "9" * 5_000, "-1", "x"])
def test_expiry_that_would_flood_the_broker_with_heartbeats_is_not_believed(
    hostile: HostileCluster, consumer: PushConsumer, expiry: str
) -> None:
    hostile.broker.lies[RequestCode.HEART_BEAT] = lambda _, honest: altered(
        honest, sparrowmqExpiryMs=expiry
    )

    consumer.start()
    wait_until("a pull", lambda: hostile.broker.count(RequestCode.PULL_MESSAGE))

    assert hostile.broker.count(RequestCode.HEART_BEAT) <= 2


def test_lock_that_was_not_asked_for_is_not_ours(play: Callable[..., Any]) -> None:
    """It would stand for a queue whose lock was refused."""
    answered = LockBatchResponseBody(lock_ok_mq_set=[MessageQueue("U", "b", 0)])
    ask = lock_batch("b:1", "G", client_id="c", queues=[MessageQueue("T", "b", 0)])

    held = play(lambda _, request: response_to(request, body=encode_body(answered)))(ask)

    assert frozenset() == held
