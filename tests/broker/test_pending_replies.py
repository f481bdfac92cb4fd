from __future__ import annotations

import pytest

from sparrowmq.broker.pending_replies import FLUSH_TIMEOUT_MS, IN_FLIGHT_MAX, PendingReplies
from sparrowmq.broker.rounds import Rounds
from sparrowmq.protocol.codes import ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.protocol.framing import frame_json_header
from sparrowmq.serving.connections import (
    Connection,
    Output,
    PauseReading,
    Reply,
    ResumeReading,
    Written,
)

PEER = Connection(1, "10.0.0.1:5", bytes(8))


def make() -> PendingReplies:
    return PendingReplies(Rounds(), Rounds(), Rounds())


def reply(opaque: int = 0) -> Reply:
    return Reply(PEER, RemotingCommand(code=0, opaque=opaque))


def test_reply_goes_out_when_its_position_is_flushed() -> None:
    pending = make()
    first, second = reply(1), reply(2)
    assert list(pending.add(first, position=10, waits_for_flush=True, now_ms=0)) == []
    assert list(pending.add(second, position=20, waits_for_flush=True, now_ms=0)) == []

    assert pending.note_flushed(9, now_ms=0) == []
    assert pending.note_flushed(10, now_ms=0) == [first]
    assert pending.note_flushed(30, now_ms=0) == [second]


def test_reply_for_a_flushed_position_goes_out_at_once() -> None:
    pending = make()
    pending.note_flushed(10, now_ms=0)
    given = reply()

    assert list(pending.add(given, position=10, waits_for_flush=True, now_ms=0)) == [given]


def test_failed_flush_answers_flush_disk_timeout_to_all() -> None:
    pending = make()
    list(pending.add(reply(), position=10, waits_for_flush=True, now_ms=0))
    list(pending.add(reply(), position=20, waits_for_flush=True, now_ms=0))

    outputs = pending.fail_flush()

    assert [output.command.code for output in outputs if isinstance(output, Reply)] == [
        ResponseCode.FLUSH_DISK_TIMEOUT
    ] * 2
    assert len(pending) == 0


def test_slow_flush_answers_flush_disk_timeout_after_its_time() -> None:
    pending = make()
    list(pending.add(reply(), position=10, waits_for_flush=True, now_ms=0))

    assert pending.expire_flush(FLUSH_TIMEOUT_MS) == []
    (late,) = pending.expire_flush(FLUSH_TIMEOUT_MS + 1)

    assert isinstance(late, Reply)
    assert late.command.code == ResponseCode.FLUSH_DISK_TIMEOUT


def test_connection_with_too_much_in_flight_is_paused_until_half_is_answered() -> None:
    pending = make()
    outputs = [
        output
        for at in range(IN_FLIGHT_MAX)
        for output in pending.add(reply(at), position=at + 1, waits_for_flush=True, now_ms=0)
    ]
    assert outputs == [PauseReading(PEER)]

    quarter = pending.note_flushed(IN_FLIGHT_MAX // 4, now_ms=0)
    half = pending.note_flushed(IN_FLIGHT_MAX // 2, now_ms=0)

    assert ResumeReading(PEER) not in quarter
    assert half[-1] == ResumeReading(PEER)


def test_paused_connection_is_paused_no_second_time_until_it_is_resumed_or_closed() -> None:
    pending = make()
    outputs: list[Output] = []
    for at in range(IN_FLIGHT_MAX + 1):
        outputs += pending.add(reply(at), position=at + 1, waits_for_flush=True, now_ms=0)
        if at == IN_FLIGHT_MAX - 1:
            pending.note_flushed(1, now_ms=0)
    assert outputs == [PauseReading(PEER)]

    pending.forget(PEER)
    for at in range(IN_FLIGHT_MAX):
        outputs += pending.add(reply(at), position=1_000 + at, waits_for_flush=True, now_ms=0)
    assert outputs == [PauseReading(PEER)] * 2


def test_reply_waits_for_both_rounds_and_then_for_the_flush() -> None:
    journal, registrations = Rounds(), Rounds()
    pending = PendingReplies(journal, registrations, Rounds())
    given = reply()
    pending.add_for_rounds(
        given,
        journal_round=journal.ask(),
        registration_round=registrations.ask(),
        position=10,
        waits_for_flush=True,
        now_ms=0,
    )

    journal.begin()
    journal.finish()
    after_journal = pending.note_rounds()
    registrations.begin()
    registrations.finish()
    after_registration = pending.note_rounds()

    assert (after_journal, after_registration) == ([], [])
    assert pending.note_flushed(10, now_ms=0) == [given]


def test_failed_journal_answers_an_error_to_what_waited_for_it_alone() -> None:
    pending = PendingReplies(Rounds(), Rounds(), Rounds())
    pending.add_for_rounds(reply(1), journal_round=1, now_ms=0)
    pending.add_for_rounds(reply(2), journal_round=2, now_ms=0)
    pending.add_for_rounds(reply(3), registration_round=1, now_ms=0)
    pending.add_for_rounds(reply(4), offsets_round=1, now_ms=0)

    (failed,) = pending.fail_journal(1, "disk full")

    assert isinstance(failed, Reply)
    assert failed.command.code == ResponseCode.SYSTEM_ERROR
    assert "disk full" in (failed.command.remark or "")
    assert len(pending) == 3


@pytest.mark.parametrize("is_written", [False, True], ids=["Reply", "Written"])
def test_failed_journal_leaves_records_stored_that_waited_for_it(is_written: bool) -> None:
    pending = PendingReplies(Rounds(), Rounds(), Rounds())
    given = Written(PEER, frame_json_header(b'{"code":0,"opaque":7}')) if is_written else reply(7)
    pending.add_for_rounds(given, journal_round=1, position=10, waits_for_flush=True, now_ms=0)

    (failed,) = pending.fail_journal(1, "disk full")

    assert isinstance(failed, Reply)
    assert (failed.command.code, failed.command.opaque) == (ResponseCode.FLUSH_DISK_TIMEOUT, 7)
    assert "disk full" in (failed.command.remark or "")


def test_replies_behind_what_was_written_say_that_the_message_is_lost() -> None:
    pending = make()
    kept, lost, lost_in_sync = reply(1), reply(2), reply(3)
    pending.add(kept, position=10, waits_for_flush=False, now_ms=0)
    pending.add(lost, position=20, waits_for_flush=False, now_ms=0)
    pending.add(lost_in_sync, position=30, waits_for_flush=True, now_ms=0)
    lost_in_a_round = reply(4)
    pending.add_for_rounds(lost_in_a_round, journal_round=1, position=40, now_ms=0)

    outputs = pending.fail_unwritten(10, "no space left", now_ms=0)

    assert outputs == [kept, lost, lost_in_sync, lost_in_a_round]
    codes = [output.command.code for output in outputs if isinstance(output, Reply)]
    assert codes == [0, 14, 14, 14]
    assert lost.command.remark == "no space left"
    assert len(pending) == 0


@pytest.mark.parametrize("is_sync", [False, True])
def test_lost_message_is_told_though_a_reply_that_waited_for_a_round_came_behind_it(
    *, is_sync: bool
) -> None:
    journal = Rounds()
    pending = PendingReplies(journal, Rounds(), Rounds())
    kept, lost = reply(1), reply(2)
    pending.add_for_rounds(
        kept, journal_round=journal.ask(), position=10, waits_for_flush=is_sync, now_ms=0
    )
    pending.add(reply(0), position=5, waits_for_flush=is_sync, now_ms=0)
    pending.add(lost, position=20, waits_for_flush=is_sync, now_ms=0)
    journal.begin()
    journal.finish()
    assert pending.note_rounds() == []

    outputs = pending.fail_unwritten(10, "no space left", now_ms=0)
    outputs += pending.note_flushed(10, now_ms=0)

    codes = {each.command.opaque: each.command.code for each in outputs if isinstance(each, Reply)}
    assert codes == {0: 0, 1: 0, 2: ResponseCode.SERVICE_NOT_AVAILABLE}
    assert len(pending) == 0


def test_latency_counts_a_group_with_the_time_of_its_first() -> None:
    pending = make()
    for at in range(4):
        pending.add(reply(at), position=at + 1, waits_for_flush=True, now_ms=10 * at)

    pending.note_flushed(3, now_ms=50)
    pending.note_flushed(3, now_ms=80)

    found = [pending.latency.percentile_ms(share, now_ms=80) for share in (0.01, 1)]
    assert [*found, pending.latency.max_ms] == [50, 50, 50]
    pending.note_flushed(4, now_ms=35)
    assert pending.latency.percentile_ms(0.25, now_ms=80) == 5


def test_latency_counts_what_waits_for_the_write_and_what_waits_too_long() -> None:
    pending = make()
    pending.add(reply(), position=1, waits_for_flush=False, now_ms=0)
    pending.add(reply(), position=2, waits_for_flush=False, now_ms=2)
    pending.add(reply(), position=3, waits_for_flush=True, now_ms=0)

    pending.note_written(1, now_ms=4)
    pending.note_written(1, now_ms=9_999)
    pending.note_flushed(1, now_ms=9_999)
    pending.note_written(2, now_ms=4)
    late_ms = FLUSH_TIMEOUT_MS + 1
    assert len(pending.expire_flush(late_ms)) == 1

    found = [pending.latency.percentile_ms(share, now_ms=late_ms) for share in (0.3, 0.6, 1)]
    assert found == [2, 4, late_ms]
    assert late_ms == pending.latency.max_ms
