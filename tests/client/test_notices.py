"""What a consumer's log says of its notices."""

from __future__ import annotations

import logging

import pytest

from sparrowmq.client.notices import MESSAGES_SHOWN_MAX, NoticeLog
from sparrowmq.client.subscriber import GivenUp, ListenerFailed
from sparrowmq.model import MessageExt, MessageQueue

QUEUE = MessageQueue("T", "broker-a", 3)


def message(number: int, *, reconsume_times: int = 0) -> MessageExt:
    return MessageExt(
        topic="T",
        body=b"x",
        properties={"UNIQ_KEY": f"ID{number}"},
        broker_name="broker-a",
        queue_id=3,
        queue_offset=number,
        commit_log_position=0,
        reconsume_times=reconsume_times,
    )


@pytest.mark.parametrize(
    ("ended_count", "is_broadcasting", "fate"),
    [
        (
            0,
            False,
            "with 3 messages of {queue} from offset 40 on, to be delivered again: ValueError",
        ),
        (
            3,
            False,
            "of {queue} from offset 40 on, to be kept as dead letters in %DLQ%GID_x: ValueError",
        ),
        (
            1,
            False,
            "1 to be kept as dead letters in %DLQ%GID_x and 2 to be delivered again: ValueError",
        ),
        (3, True, "not to be delivered again (BROADCASTING has no retries): ValueError"),
    ],
)
def test_failed_listener_is_logged_with_what_becomes_of_its_messages(
    caplog: pytest.LogCaptureFixture, ended_count: int, fate: str, *, is_broadcasting: bool
) -> None:
    NoticeLog("GID_x").tell(
        ListenerFailed(QUEUE, 40, 3, ended_count, is_broadcasting, ValueError("no such flight"))
    )

    (line,) = caplog.messages
    assert fate.format(queue=QUEUE) in line


def test_dead_letter_is_logged_though_the_listener_failed_with_it_a_moment_ago(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, error = NoticeLog("GID_x"), ValueError("no such flight")

    log.tell(ListenerFailed(QUEUE, 40, 1, 0, is_broadcasting=False, error=error))
    log.tell(ListenerFailed(QUEUE, 40, 1, 1, is_broadcasting=False, error=error))
    log.tell(GivenUp(QUEUE, (message(7, reconsume_times=2),), is_broadcasting=False))

    again, kept, dead = caplog.messages
    assert "to be delivered again" in again
    assert "to be kept as dead letters" in kept
    assert "are dead letters in %DLQ%GID_x now" in dead
    assert "after 3 deliveries: ID7 of T;" in dead
    assert {logging.WARNING} == {entry.levelno for entry in caplog.records}


def test_line_of_many_dead_letters_names_a_few(caplog: pytest.LogCaptureFixture) -> None:
    letters = tuple(message(number) for number in range(MESSAGES_SHOWN_MAX + 5))

    NoticeLog("GID_x").tell(GivenUp(QUEUE, letters, is_broadcasting=False))

    (line,) = caplog.messages
    assert "15 messages of" in line
    assert f"ID{MESSAGES_SHOWN_MAX - 1} of T and 5 more;" in line
    assert f"ID{MESSAGES_SHOWN_MAX} of" not in line
