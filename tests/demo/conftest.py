"""An outcome small enough to read, for the tests of what is made of it."""

from __future__ import annotations

import pytest

from sparrowmq.demo import outcome as o
from sparrowmq.demo.events import (
    Answers,
    BatchWritten,
    CarrierAnswer,
    ConsumptionAnswer,
    SessionStarted,
)
from sparrowmq.demo.progress import Kill, QueueLagSample, StageTime, TwinStaging
from sparrowmq.demo.verify import OrderCheck, TableFacts
from sparrowmq.doctor.owner_history import GroupRebalance, OwnedSpan, QueueMove
from sparrowmq.model import MessageQueue
from sparrowmq.report import Check


def _group(name: str, **client_ids: str) -> o.GroupFigure:
    first, *_, second = client_ids
    owned: tuple[tuple[int, int, int, tuple[str, ...]], ...] = (
        (0, 1_000, 20_000, (first,)),
        (1, 1_000, 9_000, (second,)),
        (1, 9_000, 9_500, ()),
        (1, 9_500, 20_000, tuple(sorted({first, second}))),
    )
    return o.GroupFigure(
        group=name,
        members=client_ids,
        spans=[
            OwnedSpan(MessageQueue("flights", "", queue_id), begin_ms, end_ms, owners)
            for queue_id, begin_ms, end_ms, owners in owned
        ],
        deliveries=120,
    )


def _event(name: str, at_ms: int, *, settled_ms: int | None) -> o.EventFigure:
    return o.EventFigure(
        name=name,
        at_ms=at_ms,
        rebalance=GroupRebalance(
            begun_ms=at_ms,
            ended_ms=at_ms + 500,
            moves=(QueueMove(MessageQueue("flights", "", 1), ("b",), ("a",)),),
            settled_ms=settled_ms,
            longest_unowned_ms=400,
            any_unowned_ms=500,
        ),
        produced_meanwhile=40,
        duplicates=10,
        queues_after={"a": [0], "b": [1]},
    )


@pytest.fixture
def outcome() -> o.DemoOutcome:
    return o.DemoOutcome(
        begun="2026-11-21 12:00:00+00:00",
        begun_ms=0,
        end_ms=42_500,
        memory_peak_mib=2048,
        cpu_s={"spark": 50.5, "broker": 12.5},
        machine={"cores": "2", "system": "Linux"},
        stages=[StageTime("three members share the queues", 1_000, 5_000)],
        production=o.Production(
            flights=100,
            is_limited=True,
            begin_ms=5_000,
            end_ms=15_000,
            rate=10.0,
            sending_rate=50.0,
            rate_max=11,
        ),
        first_group=_group("GID_board", a="10.0.0.1@a", b="10.0.0.1@b"),
        events=[
            _event("the group starts", 1_000, settled_ms=30),
            _event("b is killed (kill -9)", 9_000, settled_ms=500),
        ],
        second_group=_group("GID_twins", twin="172.17.0.1@9", new="10.0.0.1@77#123"),
        twins=TwinStaging(
            begin_ms=8_000,
            cid_all=["172.17.0.1@9", "172.17.0.1@9"],
            taken={"twin": [0], "twin-2": [0]},
            unowned=[1],
            backlog_at_remedy=[0, 40],
            remedy_ms=16_000,
            healed_ms=16_500,
            drained_ms=18_000,
            by_message={"free-1": 18, "free-2": 22},
            by_message_drained_ms=17_500,
        ),
        twin_duplicates=60,
        lags=[
            QueueLagSample(1_000 * at_s, first=[at_s, 1], second=[at_s, 2 * at_s])
            for at_s in range(20)
        ],
        ingest=o.IngestFigure(
            sessions=[
                SessionStarted(at_ms=at_ms, spark_version="4.3.0", java="17")
                for at_ms in (4_000, 15_000)
            ],
            batches=[
                BatchWritten(at_ms=6_000, batch_id=0, messages=60, seconds=1.0),
                BatchWritten(at_ms=17_500, batch_id=1, messages=40, seconds=1.5),
            ],
            kill=Kill(7_200, 1, 3),
            end_ms=20_000,
        ),
        table=TableFacts(
            rows=100,
            distinct=100,
            columns=("topic", "carrier"),
            files=2,
            size_bytes=3_000_000,
            per_queue=[60, 40],
            order=OrderCheck(7, 100, 0, 0, 0),
        ),
        carriers={"UA": "United <Air> Lines"},
        answers=Answers(
            at_ms=40_000,
            carriers=[
                CarrierAnswer(
                    carrier="UA",
                    flights=100,
                    mean_departure_delay=12.25,
                    mean_arrival_delay=None,
                )
            ],
            consumption=[
                ConsumptionAnswer(
                    queue_id=0, member="a", event_index=event, deliveries=30 + event, duplicates=10
                )
                for event in range(2)
            ],
        ),
        checks=[
            Check("rows are there", holds=True, found="100 = 100"),
            Check("lag is zero", holds=True, found="0 and 0"),
        ],
    )
