"""A pull's answers, without sockets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparrowmq.client.operations.pull import (
    PullResult,
    PullStatus,
    corrected_offset,
    make_pull_header,
    pull,
)
from sparrowmq.errors import BrokerError, RemoteProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand, response_to

QUEUE = MessageQueue("T", "a", 3)


def answering(code: int, *, next_offset: int = 7, body: bytes | None = None) -> Callable:
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
def test_codes_that_tell_of_the_queue_are_results(play: Callable, code: int, status: str) -> None:
    header = make_pull_header("G", QUEUE, offset=5, count_max=32)

    result = play(answering(code, body=b"records"))(pull("a:1", header))

    records = b"records" if code == 0 else b""
    assert PullResult(PullStatus[status], 7, 2, 9, records) == result


def test_other_codes_are_errors(play: Callable) -> None:
    with pytest.raises(BrokerError) as caught:
        play(answering(24))(pull("a:1", make_pull_header("G", QUEUE, offset=5, count_max=32)))

    assert (24, "a:1") == (caught.value.code, caught.value.address)


def test_answer_that_does_not_go_on_is_refused(play: Callable) -> None:
    """It would be pulled for ever."""
    with pytest.raises(RemoteProtocolError, match="says to go on at 5"):
        play(answering(0, next_offset=5))(
            pull("a:1", make_pull_header("G", QUEUE, offset=5, count_max=32))
        )


def test_header_carries_what_was_asked(play: Callable) -> None:
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
    assert ("a:1", RequestCode.PULL_MESSAGE) == (address, request.code)
    assert {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": "3",
        "queueOffset": "5",
        "maxMsgNums": "32",
        "sysFlag": "2",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": "8",
    } == request.ext_fields


@pytest.mark.parametrize(
    ("offset", "advice", "expected"),
    [(100, 0, 9), (100, 9, 9), (1, 2, 2), (5, 6, 6)],
)
def test_illegal_offset_is_corrected_into_the_queue(
    offset: int, advice: int, expected: int
) -> None:
    """Apache's 4.x brokers send who is ahead of the queue to 0, which is all of it again."""
    result = PullResult(PullStatus.OFFSET_ILLEGAL, advice, 2, 9, b"")

    assert expected == corrected_offset(offset, result)
