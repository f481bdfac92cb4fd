"""An outcome small enough to read, for the tests of what is made of it."""

from __future__ import annotations

import pytest

from sparrowmq.demo import outcome as o


def _group(name: str, *members: str) -> o.GroupFigure:
    first, second = members[0], members[-1]
    return o.GroupFigure(
        group=name,
        strategy="AVG",
        members=[
            o.MemberFigure(name=m, client_id=f"10.0.0.1@{m}", deliveries=60, per_queue=[30, 30])
            for m in members
        ],
        spans=[
            o.SpanFigure(queue_id=0, begin_s=1.0, end_s=20.0, owners=[first]),
            o.SpanFigure(queue_id=1, begin_s=1.0, end_s=9.0, owners=[second]),
            o.SpanFigure(queue_id=1, begin_s=9.0, end_s=9.5, owners=[]),
            o.SpanFigure(queue_id=1, begin_s=9.5, end_s=20.0, owners=sorted({first, second})),
        ],
        deliveries=120,
        distinct=100,
        owners_at_end=[[first], [second]],
        lag_at_end=[0, 0],
    )


def _event(name: str, at_s: float, *, settled_ms: int | None) -> o.EventFigure:
    return o.EventFigure(
        name=name,
        member=name[0],
        at_s=at_s,
        settled_ms=settled_ms,
        unowned_ms=500,
        double_ms=0,
        queues_moved=1,
        produced_meanwhile=40,
        duplicates=10,
        duplicates_by_spark=10,
        queues_after={"a": [0], "b": [1]},
    )


@pytest.fixture
def outcome() -> o.Outcome:
    return o.Outcome(
        begun="2026-11-21 12:00:00+00:00",
        duration_s=42.5,
        memory_peak_mib=2048,
        cpu_s={"spark": 50.5, "broker": 12.5},
        machine=o.Machine(
            cpu_count=2, python="3.11", sparrowmq="0.1", spark="4.3.0", java="17", system="Linux"
        ),
        stages=[o.Stage(name="three members share the queues", begin_s=1.0, end_s=5.0)],
        production=o.Production(
            flights=100,
            is_limited=True,
            begin_s=5.0,
            end_s=15.0,
            rate=10.0,
            sending_rate=50.0,
            rate_max=11,
            per_queue=[60, 40],
            aircraft=7,
        ),
        first_group=_group("GID_board", "a", "b"),
        events=[
            _event("the group starts", 1.0, settled_ms=30),
            _event("b is killed (kill -9)", 9.0, settled_ms=500),
        ],
        second_group=_group("GID_twins", "twin-1", "twin-2", "new-1"),
        twins=o.TwinFigure(
            client_id="172.17.0.1@9",
            cid_all=["172.17.0.1@9", "172.17.0.1@9"],
            taken={"twin-1": [0], "twin-2": [0]},
            unowned=[1],
            backlog_at_remedy=[0, 40],
            begin_s=8.0,
            remedy_s=16.0,
            healed_s=16.5,
            drained_s=18.0,
            remedy_client_ids=["10.0.0.1@77#123"],
            duplicates=60,
        ),
        backlog=[
            o.BacklogSample(at_s=float(at_s), first=[at_s, 1], second=[at_s, 2 * at_s])
            for at_s in range(20)
        ],
        ingest=o.IngestFigure(
            sessions_s=[4.0, 15.0],
            batches=[
                o.BatchFigure(batch_id=0, begun_s=5.0, written_s=6.0),
                o.BatchFigure(batch_id=1, begun_s=7.0, written_s=None),
                o.BatchFigure(batch_id=1, begun_s=16.0, written_s=17.5),
            ],
            runs=2,
            killed_s=7.2,
            killed_batch_id=1,
            files_of_killed_batch=3,
            end_s=20.0,
            rows=100,
            distinct=100,
            columns=["topic", "carrier"],
            months=1,
            files=2,
            size_bytes=3_000_000,
        ),
        carriers=[
            o.CarrierFigure(
                carrier="UA",
                name="United <Air> Lines",
                flights=100,
                mean_departure_delay=12.25,
                mean_arrival_delay=None,
            )
        ],
        consumption=[o.ConsumptionFigure(queue_id=0, member="a", deliveries=61)],
        order=o.OrderFigure(
            aircraft=7,
            legs=100,
            aircraft_in_several_queues=0,
            legs_out_of_order=0,
            legs_unknown=0,
        ),
        checks=[
            o.CheckFigure(name="rows are there", holds=True, found="100 = 100"),
            o.CheckFigure(name="lag is zero", holds=True, found="0 and 0"),
        ],
    )
