"""What a consumer's log says of its notices."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from sparrowmq.calling.bounded_log import BoundedLog
from sparrowmq.client import notices
from sparrowmq.client.listener_calls import ListenersStuck
from sparrowmq.client.notices import MESSAGES_SHOWN_MAX, NoticeLog
from sparrowmq.client.publisher import ProducerNotice
from sparrowmq.client.subscriber import (
    GivenUp,
    ListenerFailed,
    MessagePassedOver,
    Notice,
    RequestFailed,
)
from sparrowmq.client.transaction_outcomes import CheckFailed, EndFailed
from sparrowmq.errors import InvokeTimeout, UnreadableMessage
from sparrowmq.membership.actions import DrainTimedOut, OffsetCorrected, QueueLost
from sparrowmq.model import MessageExt, MessageQueue, TransactionState, UnreadablePolicy

QUEUE = MessageQueue("T", "broker-a", 3)
LOGS_PAGE = Path(__file__).parents[2] / "docs/reference/logs.md"


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
    NoticeLog("GID_x").report(
        ListenerFailed(QUEUE, 40, 3, ended_count, is_broadcasting, ValueError("no such flight"))
    )

    (line,) = caplog.messages
    assert fate.format(queue=QUEUE) in line


@pytest.mark.parametrize(("count", "messages"), [(1, "1 message,"), (2, "2 messages,")])
def test_messages_that_listeners_still_have_are_counted(
    caplog: pytest.LogCaptureFixture, count: int, messages: str
) -> None:
    NoticeLog("GID_x").report(DrainTimedOut(QUEUE, count))

    assert f"while a listener still has {messages} to be delivered again" in caplog.messages[0]


def test_dead_letter_is_logged_though_the_listener_failed_with_it_a_moment_ago(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, error = NoticeLog("GID_x"), ValueError("no such flight")

    log.report(ListenerFailed(QUEUE, 40, 1, 0, is_broadcasting=False, error=error))
    log.report(ListenerFailed(QUEUE, 40, 1, 1, is_broadcasting=False, error=error))
    log.report(GivenUp(QUEUE, (message(7, reconsume_times=2),), is_broadcasting=False))

    again, kept, dead = caplog.messages
    assert "to be delivered again" in again
    assert "to be kept as dead letters" in kept
    assert "1 message of " in dead
    assert "is now a dead letter in %DLQ%GID_x" in dead
    assert "after 3 deliveries: ID7 of T;" in dead
    assert dead.endswith("send the message again")
    assert {entry.levelno for entry in caplog.records} == {logging.WARNING}


def test_members_of_a_process_share_the_lines_about_a_silent_broker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "SHARED", BoundedLog(notices.LOG))
    members = [NoticeLog("GID_x") for _ in range(200)]
    silence = InvokeTimeout("late", address="10.0.0.1:1")

    for log in members:
        log.report(RequestFailed("start offset", QUEUE, silence))
        log.report(RequestFailed("heartbeat", None, silence))
    NoticeLog("GID_y").report(RequestFailed("heartbeat", None, silence))

    line = "consumer group {}: no answer to {} from 10.0.0.1:1; it is tried again: late"
    asked = [("GID_x", "start offset"), ("GID_x", "heartbeat"), ("GID_y", "heartbeat")]
    assert caplog.messages == [line.format(*each) for each in asked]


def test_line_of_many_dead_letters_names_a_few(caplog: pytest.LogCaptureFixture) -> None:
    letters = tuple(message(number) for number in range(MESSAGES_SHOWN_MAX + 5))

    NoticeLog("GID_x").report(GivenUp(QUEUE, letters, is_broadcasting=False))

    (line,) = caplog.messages
    assert "15 messages of" in line
    assert f"ID{MESSAGES_SHOWN_MAX - 1} of T and 5 more;" in line
    assert f"ID{MESSAGES_SHOWN_MAX} of" not in line


def make_notice(kind: type[Any]) -> Any:
    """Make a notice of a kind, with some value for each of its fields."""
    values: dict[str, Any] = {
        "queue": QUEUE,
        "error": ValueError("no such flight"),
        "message": message(7),
        "messages": (message(7),),
        "cid_all": ("a", "a"),
        "addresses": ("127.0.0.1:1",),
        "policy": UnreadablePolicy.SKIP,
        "outcome": TransactionState.COMMIT,
        "topics": ("T",),
        "assigned": (QUEUE,),
        "gained": (QUEUE,),
        "revoked": (),
        "is_broadcasting": False,
        **dict.fromkeys(("topic", "client_id", "reason", "what", "strategy"), "text"),
        "msg_id": "ID7",
        "group": "GID_x",
        "address": "127.0.0.1:1",
        "delay": timedelta(seconds=45),
        "level": timedelta(seconds=30),
    }
    if kind is ListenersStuck:
        values["messages"] = ("T/broker-a/3/7",)
    return kind(**{name: values.get(name, 5) for name in kind._fields})


def test_page_of_log_lines_has_every_event_with_its_level_and_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "sparrowmq.client")
    usual = {*vars(logging.makeLogRecord({})), "message", "event", "group"}
    rows = {
        event: (level.split(",")[0], set(re.findall(r"`(\w+)`", fields)))
        for event, level, fields in re.findall(
            r"^\| `(\w+)` \| ([^|]+?) \| ([^|]*?) ?\|", LOGS_PAGE.read_text(), re.M
        )
    }
    kinds = [*get_args(Notice), CheckFailed, EndFailed, *get_args(ProducerNotice)]

    for kind in kinds:
        NoticeLog("GID_x").report(make_notice(kind))

    assert len(kinds) == len(caplog.records)
    written = {
        vars(record)["event"]: (record.levelname, set(vars(record)) - usual)
        for record in caplog.records
    }
    alone = {"no_subscription", "not_started", "not_closed"}
    assert written == {event: row for event, row in rows.items() if event not in alone}
    assert alone <= rows.keys()
    assert {vars(record)["group"] for record in caplog.records} == {"GID_x"}


def test_queue_that_stands_still_is_a_line_for_each_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = NoticeLog("GID_x")
    for offset in (5, 5, 5, 6):
        log.report(RequestFailed("pull", QUEUE, UnreadableMessage(f"at {offset}")))

    assert [line[-4:] for line in caplog.messages] == ["at 5", "at 6"]


@pytest.mark.parametrize(
    ("notice", "words"),
    [
        (OffsetCorrected(QUEUE, 5, 9), "no offset 5 any more, because its messages expired;"),
        (OffsetCorrected(QUEUE, 9, 5), "no offset 9; continuing at 5, and messages from there"),
        (QueueLost(QUEUE), "was lost; the messages that listeners have now come again"),
        (QueueLost(QUEUE, 700), "was lost, as this consumer stood still for 700 ms; the"),
        (
            MessagePassedOver(QUEUE, message(7), "no zlib", UnreadablePolicy.SKIP),
            "cannot be read and was skipped: no zlib",
        ),
        (
            MessagePassedOver(QUEUE, message(7), "no zlib", UnreadablePolicy.DEAD_LETTER),
            "cannot be read and went to the dead letters: no zlib",
        ),
    ],
)
def test_line_says_what_becomes_of_messages(
    caplog: pytest.LogCaptureFixture, notice: Notice, words: str
) -> None:
    NoticeLog("GID_x").report(notice)

    (line,) = caplog.messages
    assert words in line
