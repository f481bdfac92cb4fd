"""The JSON of `sparrowmq rebalance`: each number stands under its own name."""

from __future__ import annotations

from dataclasses import replace

from group_views import Q0, Q1, Q2, Q3, QUEUES, view_at
from sparrowmq.cli.rebalance_json import json_of_findings, json_of_group, json_of_runs
from sparrowmq.doctor.group_snapshot import GroupSnapshot, PlanSnapshot, QueueProgress, Sample
from sparrowmq.doctor.group_view import examine, make_view
from sparrowmq.doctor.whatif import Plan, parse_events, simulate
from sparrowmq.model import MessageQueue


def looked_at_twice(
    first: QueueProgress, last: QueueProgress, interval_ms: int = 10_000
) -> GroupSnapshot:
    """Return a snapshot of two samples, in which all queues go on alike."""
    snapshot = view_at(0).snapshot
    (sample,) = snapshot.samples

    def sample_of(each: QueueProgress, at_ms: int) -> Sample:
        progress = tuple(each._replace(queue=queue) for queue in QUEUES)
        return replace(sample, at_ms=at_ms, timestamp_ms=at_ms, progress=progress)

    return replace(snapshot, samples=(sample_of(first, 0), sample_of(last, interval_ms)))


def test_offsets_rates_and_lag() -> None:
    view = examine(looked_at_twice(QueueProgress(Q0, 100, 90), QueueProgress(Q0, 150, 110)))

    queue, found = json_of_group(view)["queues"][0], json_of_findings(view, [])

    expected = {
        "max_offset": 150,
        "committed_offset": 110,
        "lag": 40,
        "produced_per_second": 5.0,
        "consumed_per_second": 2.0,
    }
    assert {name: queue[name] for name in expected} == expected
    assert (found["lag"], found["growth_per_second"]) == (160, 12.0)


def test_messages_in_flight() -> None:
    expected = {
        "in_flight": 3,
        "visible_timestamp_ms": 5,
        "deliveries": 2,
        "renewals": 1,
        "oldest_in_flight_timestamp_ms": 7,
    }
    progress = QueueProgress(
        Q0,
        10,
        4,
        in_flight=3,
        visible_timestamp_ms=5,
        deliveries=2,
        renewals=1,
        oldest_timestamp_ms=7,
    )

    queue = json_of_group(examine(looked_at_twice(progress, progress)))["queues"][0]

    assert {name: queue[name] for name in expected} == expected


def test_members_have_their_queues_and_queues_their_share_and_their_owners() -> None:
    owners: dict[MessageQueue, tuple[str, ...]] = {Q0: ("a",), Q1: ("a",), Q2: ("b",), Q3: ()}
    view = view_at(0, owners, marked=True)
    first, *_, last = view.ownership.connections
    falls_to = dict.fromkeys(QUEUES, (last,))
    shared = make_view(view.snapshot, replace(view.ownership, falls_to=falls_to), {})

    found = json_of_group(shared)

    members = {each["client_id"]: each["queues"] for each in found["members"]}
    assert members == {"a": 2, "b": 1}
    assert {each["runs_sparrowmq"] for each in found["members"]} == {True}
    assert [each["share"] for each in found["queues"]] == [["b"]] * 4
    assert [[c["client_id"] for c in each["owners"]] for each in found["queues"]] == [
        [first.client_id],
        ["a"],
        ["b"],
        [],
    ]
    foreign = json_of_group(view_at(0, owners))["members"]
    assert {each["runs_sparrowmq"] for each in foreign} == {False}


def test_plan_of_a_group_that_divides_by_load() -> None:
    view = view_at(0)
    plan = PlanSnapshot(epoch=7, moved=(Q1,), load_before=1.2, load_after=0.8)

    found = json_of_group(make_view(replace(view.snapshot, plan=plan), view.ownership, {}))["plan"]

    moved = [{"topic": "T", "broker": "broker-a", "queue_id": 1}]
    assert found == {"epoch": 7, "moved": moved, "load_before": 1.2, "load_after": 0.8}


def test_steps_of_a_simulation() -> None:
    plan = Plan(queue_count=12, member_count=5, events=parse_events("join,leave:0,kill"))
    run = simulate(plan, "AVG")

    (found,) = json_of_runs(plan, [run])["strategies"]

    names = ("moved", "needless", "skew", "idle")
    numbers = [tuple(step[name] for name in names) for step in found["steps"]]
    assert numbers == [(s.moved, s.needless, s.skew, s.idle) for s in run.steps]
    assert any(0 < step.needless < step.moved for step in run.steps)
