"""The broker's rounds of work: what happens when one of them fails."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Fact

SEND = {"a": "GID_p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}


@pytest.fixture
def sent(rig: Any) -> Any:
    """Returns a rig with one message that waits for its flush."""
    rig.holds_work = True
    command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, ext_fields=SEND, body=b"x")
    assert rig.handle(rig.connect(), command) == []
    rig.outputs.clear()
    return rig


@pytest.mark.parametrize(
    "code", [errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR]
)
def test_send_whose_flush_lacks_a_thread_descriptor_or_memory_is_answered_by_the_next(
    sent: Any, code: int
) -> None:
    sent.work(error=OSError(code, "short"))
    sent.work(error=OSError(code, "and short again"))
    before = sent.replies(sent.outputs)

    sent.advance(100)

    assert before == []
    assert [reply.code for reply in sent.replies(sent.outputs)] == [ResponseCode.SUCCESS]
    assert len(sent.records("T")) == 1


def test_flush_rests_after_a_shortage_until_the_next_tick(sent: Any) -> None:
    sent.work(error=OSError(errno.EMFILE, "short"))
    rests = sent.broker.flush_work(now_ms=sent.now_ms)
    sent.broker.tick(now_ms=sent.now_ms, timestamp_ms=sent.timestamp_ms)

    assert rests is None
    assert sent.broker.flush_work(now_ms=sent.now_ms) is not None


def test_shortage_is_logged_once_until_a_flush_succeeds(sent: Any) -> None:
    for _ in range(3):
        sent.broker.tick(now_ms=sent.now_ms, timestamp_ms=sent.timestamp_ms)
        sent.work(error=OSError(errno.EMFILE, "short"))

    facts = [output for output in sent.outputs if isinstance(output, Fact)]

    text = "the flush is put off, and tried again every tick: [Errno 24] short"
    assert [fact for fact in facts if "flush" in fact.text] == [Fact(text, warning=True)]


def test_send_waits_no_longer_than_a_slow_flush_may_take(sent: Any) -> None:
    for _ in range(51):
        sent.now_ms += 100
        sent.outputs += sent.broker.tick(now_ms=sent.now_ms, timestamp_ms=sent.timestamp_ms)
        sent.work(error=OSError(errno.EMFILE, "short"))

    replies = sent.replies(sent.outputs)

    assert [reply.code for reply in replies] == [ResponseCode.FLUSH_DISK_TIMEOUT]
