"""How long puts took, in the minute that runs and the one before."""

from __future__ import annotations

from typing import Any

from tests.broker.conftest import send_fields

from sparrowmq.broker.put_latency import STEPS_MS, WINDOW_MS, PutLatency
from sparrowmq.protocol.bodies import KVTable, decode_body
from sparrowmq.protocol.codes import RequestCode
from sparrowmq.protocol.command import RemotingCommand


def shown(rig: Any) -> tuple[str, str, str]:
    reply = rig.call(rig.connect(), RequestCode.GET_BROKER_RUNTIME_INFO)
    table = decode_body(KVTable, reply.body).table
    return table["putLatency99"], table["putLatency999"], table["putMessageEntireTimeMax"]


def test_percentiles_are_steps_that_so_many_did_not_exceed() -> None:
    latency = PutLatency()
    latency.note(980, 3, now_ms=0)
    latency.note(10, 51, now_ms=1)
    latency.note(9, 1_001, now_ms=2)
    latency.note(1, 60_000, now_ms=3)

    found = [latency.percentile_ms(share, now_ms=4) for share in (0.5, 0.99, 0.999, 1)]

    assert found == [3, 55, 2_000, 60_000]
    assert latency.max_ms == 60_000


def test_one_put_alone_is_every_percentile() -> None:
    latency = PutLatency()
    assert latency.percentile_ms(0.99, now_ms=0) == 0

    latency.note(1, 51, now_ms=0)

    assert [latency.percentile_ms(share, now_ms=0) for share in (0.01, 0.99)] == [51, 51]


def test_puts_are_forgotten_after_a_minute_or_two_but_not_the_longest() -> None:
    latency = PutLatency()
    latency.note(1, 20, now_ms=5)
    latency.note(1, 3, now_ms=5 + WINDOW_MS)

    both = latency.percentile_ms(1, now_ms=4 + 2 * WINDOW_MS)
    later = latency.percentile_ms(1, now_ms=5 + 2 * WINDOW_MS)
    in_silence = latency.percentile_ms(1, now_ms=5 + 4 * WINDOW_MS)

    assert (both, later, in_silence, latency.max_ms) == (20, 3, 0, 20)

    latency.note(1, 20, now_ms=10 * WINDOW_MS)
    assert latency.percentile_ms(1, now_ms=12 * WINDOW_MS) == 0


def test_steps_are_as_fine_as_apaches() -> None:
    # 0-20 by 1, to 50 by 2, to 100 by 5, to 200 by 10, to 500 by 50, to 1 s by 100, to 10 s by 1 s.
    assert len(STEPS_MS) == 1 + 20 + 15 + 10 + 10 + 6 + 5 + 9
    assert list(STEPS_MS) == sorted(set(STEPS_MS))


def test_runtime_info_tells_how_long_answers_waited_for_the_flush(rig: Any) -> None:
    rig.create_topic("T")
    assert shown(rig) == ("0.00", "0.00", "0")
    connection = rig.connect()
    rig.holds_work = True
    for opaque in range(2):
        command = RemotingCommand(
            code=RequestCode.SEND_MESSAGE_V2,
            ext_fields=send_fields("T", 0),
            body=b"body",
            opaque=opaque,
        )
        assert rig.replies(rig.handle(connection, command)) == []
        rig.now_ms += 20
    rig.holds_work = False
    rig.work()

    # The first of the group waited for 40 ms, the second for 20.
    assert shown(rig) == ("40.00", "40.00", "40")
