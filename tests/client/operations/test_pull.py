"""A pull's answers, without sockets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile import altered, record
from play import Handler, Play, make_unrun_subscriber
from sparrowmq.client.operations.pull import (
    PullReply,
    PullStatus,
    check_messages,
    check_records,
    corrected_offset,
    make_pull_header,
    pull,
)
from sparrowmq.client.operations.pull_loop import keep_pulling
from sparrowmq.client.route_cache import route_from
from sparrowmq.client.subscriber import RequestFailed, Subscriber
from sparrowmq.errors import BrokerError, RemoteProtocolError
from sparrowmq.membership.actions import Acquire, Deliver, Pull
from sparrowmq.membership.member import TopicShare
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.bodies import BrokerData, QueueData, TopicRouteAnswer
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand, response_to
from sparrowmq.protocol.record import decode_messages

QUEUE = MessageQueue("T", "a", 3)


def answering(code: int, *, next_offset: int = 7, body: bytes | None = None) -> Handler:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": "2",
            "maxOffset": "9",
        }
        return response_to(request, code, ext_fields=fields, body=body)

    return answer


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "FOUND"), (19, "NO_NEW_MSG"), (20, "NO_MATCHED_MSG"), (21, "OFFSET_ILLEGAL")],
)
def test_codes_that_tell_of_the_queue_are_results(
    play: Callable[[Handler], Play], code: int, status: str
) -> None:
    header = make_pull_header("G", QUEUE, offset=5, count_max=32)

    result = play(answering(code, body=b"records"))(pull("a:1", header))

    records = b"records" if code == 0 else b""
    assert result == PullReply(PullStatus[status], 7, 2, 9, records)


def test_records_of_a_static_topics_queue_get_the_queues_numbers(
    play: Callable[[Handler], Play],
) -> None:
    stored = record("T", 0, 5) + record("T", 0, 6)
    header = make_pull_header("G", QUEUE, offset=10_005, count_max=32)

    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        honest = answering(0, next_offset=10_006, body=stored)(address, request)
        return altered(honest, offsetDelta="10000", maxOffset="10009")

    result = play(answer)(pull("a:1", header))

    messages = decode_messages(result.records, broker_name="a").messages
    assert [(m.queue_id, m.queue_offset) for m in messages] == [(3, 10_005), (3, 10_006)]
    # The former broker stored the last one while the queue moved, and ends the queue before it.
    assert result.next_offset == 10_007
    check_records(QUEUE, result, offset=10_005)


def test_other_codes_are_errors(play: Callable[[Handler], Play]) -> None:
    with pytest.raises(BrokerError) as caught:
        play(answering(24))(pull("a:1", make_pull_header("G", QUEUE, offset=5, count_max=32)))

    assert (caught.value.code, caught.value.address) == (24, "a:1")


@pytest.mark.parametrize(
    ("code", "fields", "body", "what"),
    [
        (0, {"nextBeginOffset": "6"}, None, "but without a message"),
        (0, {"nextBeginOffset": "5"}, b"r", "says to go on at 5"),
        (19, {"nextBeginOffset": "4"}, None, "says to go on at 4"),
        (19, {"nextBeginOffset": "900"}, None, "behind the end of the queue, 9"),
        (20, {"nextBeginOffset": "900"}, None, "behind the end of the queue, 9"),
        (0, {"nextBeginOffset": str(1 << 62)}, b"r", "offsets that no queue has"),
        (20, {"nextBeginOffset": "6", "maxOffset": str(1 << 62)}, None, "offsets that no queue"),
        (21, {"nextBeginOffset": str(1 << 62)}, None, "offsets that no queue has"),
        (19, {"minOffset": "12"}, None, "first 12, end 9"),
    ],
)
def test_answer_that_cannot_be_right_is_refused(
    play: Callable[[Handler], Play],
    code: int,
    fields: dict[str, str],
    body: bytes | None,
    what: str,
) -> None:
    def answer(address: str, request: RemotingCommand) -> RemotingCommand:
        return altered(answering(code, body=body)(address, request), **fields)

    with pytest.raises(RemoteProtocolError, match=f"broker a:1 answers a pull of T .*{what}"):
        play(answer)(pull("a:1", make_pull_header("G", QUEUE, offset=5, count_max=32)))


@pytest.mark.parametrize(("count_max", "following"), [(32, 805), (1_000, 1_005)])
def test_queue_may_grow_while_its_broker_answers(
    play: Callable[[Handler], Play], count_max: int, following: int
) -> None:
    """RocketMQ's brokers read the end of the queue before they look at its entries."""
    header = make_pull_header("G", QUEUE, offset=5, count_max=count_max)

    assert play(answering(20, next_offset=following))(pull("a:1", header)).next_offset == following


GOOD = [record("T", 3, offset) for offset in (5, 6, 8)]


def result_of(records: list[bytes]) -> PullReply:
    return PullReply(PullStatus.FOUND, 9, 2, 9, b"".join(records))


def test_records_of_the_queue_in_order_are_taken() -> None:
    hosts_v6 = record("T", 3, 8, born_host=bytes(20), store_host=bytes(20))

    check_records(QUEUE, result_of(GOOD), offset=5)
    check_records(QUEUE, result_of([*GOOD[:2], hosts_v6]), offset=5)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (record("U", 3, 7), "'U' queue 3"),
        (record("T", 2, 7), "'T' queue 2"),
        (record("T", 3, 6), "at offset 6, where only 7 to 8 can be"),
        (record("T", 3, 9), "at offset 9, where only 7 to 8 can be"),
        (record("T", 3, 4), "at offset 4, where only 7 to 8 can be"),
        (record("U", 3, 7, sys_flag=1), "'U' queue 3"),
    ],
    ids=["topic", "queue", "twice", "behind the next pull", "before the pull", "not inflatable"],
)
def test_records_that_were_not_asked_for_are_refused(wrong: bytes, what: str) -> None:
    result = result_of([*GOOD[:2], wrong])

    with pytest.raises(RemoteProtocolError, match=what):
        check_records(QUEUE, result, offset=5)
    messages = decode_messages(result.records, broker_name="a")
    read = [*messages.messages, *(m.message for m in [messages.unreadable] if m)]
    with pytest.raises(RemoteProtocolError, match=what):
        check_messages(QUEUE, result, read, offset=5)


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=400))
def test_damaged_records_are_left_to_their_decoder(noise: bytes, at: int) -> None:
    """The check ends where no record stands; it neither hangs nor raises anything else."""
    records = b"".join(GOOD)
    damaged = records[:at] + noise + records[at + len(noise) :]

    with contextlib.suppress(RemoteProtocolError):
        check_records(QUEUE, result_of([damaged]), offset=5)


def test_header_carries_what_was_asked(play: Callable[[Handler], Play]) -> None:
    driver = play(answering(19))
    driver(
        pull(
            "a:1",
            make_pull_header(
                "G",
                QUEUE,
                offset=5,
                count_max=32,
                suspend_ms=15_000,
                expression=None,
                sub_version=8,
            ),
        )
    )

    ((address, request),) = driver.requests
    assert (address, request.code) == ("a:1", RequestCode.PULL_MESSAGE)
    assert request.ext_fields == {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "3",
        "queueOffset": "5",
        "maxMsgNums": "32",
        "sysFlag": "2",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "8",
    }


@pytest.mark.parametrize(
    ("offset", "advice", "expected"),
    [
        (100, 0, 9),
        (100, 9, 9),
        (1, 2, 2),
        (2, 6, 6),
        (5, 6, 6),
        (9, 6, 6),
        (5, 0, 2),
        (5, 10**9, 9),
    ],
)
def test_illegal_offset_is_corrected_into_the_queue(
    offset: int, advice: int, expected: int
) -> None:
    """Apache's 4.x brokers send who is ahead of the queue to 0, which is all of it again."""
    result = PullReply(PullStatus.OFFSET_ILLEGAL, advice, 2, 9, b"")

    assert corrected_offset(offset, result) == expected


MINE = MessageQueue("T", "a", 0)


@pytest.fixture
def subscriber() -> Subscriber:
    """A member that is to pull a queue from offset 9 on, for messages with the tag BB."""
    made = make_unrun_subscriber("GID_s", "T", expression="BB")
    route = TopicRouteAnswer(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={0: "a:1"})],
        queue_datas=[QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=6)],
    )
    made.routes.update(route_from("T", route, now_ms=0))
    member = made.member
    member.rebalanced([TopicShare("T", (MINE,), ("me",), (MINE,))], 0)
    (begun,) = [each for each in member.due(0) if isinstance(each, Acquire)]
    member.acquired(MINE, begun.epoch, offset=9, is_committed=True, now_ms=0)
    return made


def pull_on(subscriber: Subscriber, code: int, body: bytes = b"", **fields: str) -> list[str]:
    """Answer a member's first pull so, and the others with nothing; return the offsets asked."""
    asked: list[str] = []

    def answer(_: str, request: RemotingCommand) -> RemotingCommand:
        offset = (request.ext_fields or {})["queueOffset"]
        asked.append(offset)
        nothing = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "30"}
        nothing["nextBeginOffset"] = offset
        if len(asked) == 1:
            return response_to(request, code, ext_fields=nothing | fields, body=body)
        return response_to(request, ResponseCode.PULL_NOT_FOUND, ext_fields=nothing)

    run = Play(answer)
    run.now_ms = 0
    (pulling,) = [each for each in subscriber.member.due(0) if isinstance(each, Pull)]
    run(keep_pulling(subscriber, pulling))
    return asked


def test_message_with_the_hash_code_of_a_wanted_tag_is_not_delivered(
    subscriber: Subscriber,
) -> None:
    tags = {9: "Aa", 10: "BB", 11: "Aa"}
    body = b"".join(record("T", 0, at, properties=f"TAGS\x01{tag}") for at, tag in tags.items())

    assert pull_on(subscriber, 0, body, nextBeginOffset="12")[:2] == ["9", "12"]
    given = [each for each in subscriber.member.due(0) if isinstance(each, Deliver)]
    assert [m.queue_offset for each in given for batch in each.batches for m in batch] == [10]


def test_pull_goes_on_at_the_first_message_that_there_is(subscriber: Subscriber) -> None:
    # Brokers of 4.x advise 0.
    asked = pull_on(subscriber, 21, nextBeginOffset="0", minOffset="20")

    assert asked[:2] == ["9", "20"]


@pytest.mark.parametrize(
    ("code", "is_reported"),
    [
        (ResponseCode.SUBSCRIPTION_NOT_LATEST, False),
        (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, False),
        (ResponseCode.NO_PERMISSION, True),
    ],
)
def test_broker_that_does_not_know_the_member_yet_is_no_failure(
    subscriber: Subscriber, code: int, *, is_reported: bool
) -> None:
    reported: list[object] = []
    subscriber.report = reported.append

    assert pull_on(subscriber, code) == ["9"]
    assert [type(each) for each in reported] == [RequestFailed] * is_reported
