"""What is counted of a group from view to view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from prometheus_client import Metric

from group_views import Q0, Q1, view_at
from sparrowmq.client.operations.overview import BrokerOverview, Overview, TopicOverview
from sparrowmq.doctor import Finding, Severity
from sparrowmq.doctor.group_view import GroupView, make_view
from sparrowmq.exporter import group_counts, watch
from sparrowmq.exporter.group_counts import GroupCounts
from sparrowmq.exporter.watch import make_families

BOTH = {"a": 1, "b": 1}


def view(
    timestamp_ms: int,
    *owners: tuple[str, ...],
    members: dict[str, int] | None = None,
    offsets: int = 100,
) -> GroupView:
    named = dict(zip((Q0, Q1), owners, strict=True))
    return view_at(timestamp_ms, named, members=members, offsets=offsets)


def counts_of(*views: GroupView) -> GroupCounts:
    counts = GroupCounts()
    for each in views:
        counts.note(each, ())
    return counts


def test_member_that_joins_is_one_rebalance_until_every_queue_has_one_owner() -> None:
    counts = counts_of(
        view(0, ("a",), ("a",)),
        view(15_000, ("a",), (), members=BOTH),
        view(16_000, ("a",), (), members=BOTH),
    )
    assert counts.is_moving

    for ms in (17_000, 22_000, 22_001):
        assert counts.is_moving
        counts.note(view(ms, ("a",), ("b",)), ())

    assert not counts.is_moving
    assert dict(counts.rebalances) == {"joined": 1}
    assert counts.rebalance_s_sum == 17.0
    assert dict(counts.rebalance_s) == {20.0: 1}


def test_rebalance_is_counted_once_from_its_first_change_on() -> None:
    views = [view(0, ("a",), ("a",)), view(15_000, ("a",), (), members=BOTH)]
    begun = counts_of(*views)
    unsettled = counts_of(*views, *(view(ms, ("a",), (), members=BOTH) for ms in (16_000, 17_000)))

    assert [dict(each.rebalances) for each in (begun, unsettled)] == [{"joined": 1}] * 2
    assert unsettled.rebalance_s.total() == 0


def test_group_that_never_rests_is_counted_anew_after_so_many_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group_counts, "SEEN_MAX", 10)
    counts = counts_of()
    for number in range(50):
        counts.note(view(1_000 * number, ("ab"[number % 2],), ("a",), members=BOTH), ())
        assert len(counts._seen) <= 10

    assert counts.rebalances.total() > 1


def test_queues_beyond_the_bound_have_no_series_and_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "QUEUES_MAX", 3)
    groups = {name: counts_of(view(0, ("a",), ("a",))) for name in ("G1", "G2")}

    families = {each.name: each.samples for each in make_families(None, groups, is_up=True)}

    assert len(families["sparrowmq_queue_owners"]) == 2
    assert [each.value for each in families["sparrowmq_queues_left_out"]] == [2]


def test_first_view_and_views_without_a_change_count_nothing() -> None:
    counts = counts_of(view(0, ("a",), ("b",)), view(1_000, ("a",), ("b",)))

    assert (counts.rebalances.total(), counts.rebalance_s.total()) == (0, 0)
    assert not counts.is_moving


def test_group_whose_last_member_left_has_no_handover_time() -> None:
    counts = counts_of(view(0, ("a",), ("a",)), view(1_000, (), ()))

    assert dict(counts.rebalances) == {"left": 1}
    assert counts.rebalance_s.total() == 0
    assert not counts.is_moving


def test_queues_that_move_long_after_an_event_do_so_for_an_unknown_reason() -> None:
    three = {"a": 1, "b": 1, "c": 1}
    counts = counts_of(
        view(0, ("a",), ("b",), members=BOTH),
        view(1_000, ("a",), ("b",), members=three),
        view(60_000, ("b",), ("a",), members=three),
    )

    assert dict(counts.rebalances) == {"unknown": 1}


def test_event_is_the_reason_of_a_rebalance_that_begins_at_a_later_view() -> None:
    counts = counts_of(
        view(0, ("a",), ("a",)),
        view(1_000, ("a",), ("a",), members=BOTH),
        view(9_000, ("a",), ("b",)),
    )

    assert dict(counts.rebalances) == {"joined": 1}


def test_what_came_through_a_queue_with_two_owners_may_be_consumed_twice() -> None:
    counts = counts_of(view(0, ("a", "b"), ("b",)), view(1_000, ("a", "b"), ("b",), offsets=107))

    assert counts.possible_duplicates == 7


def test_duration_counts_in_the_bucket_whose_bound_it_reaches() -> None:
    counts = GroupCounts()
    for seconds in (0.5, 0.501, 300, 301):
        counts._observe(seconds)

    assert counts.rebalance_s == {0.5: 1, 1.0: 1, 300.0: 1, float("inf"): 1}


@pytest.mark.parametrize(("count_max", "left_out"), [(2, 0), (1, 2)])
def test_queues_up_to_the_bound_have_series(
    count_max: int, left_out: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "QUEUES_MAX", count_max)
    groups = {"G": counts_of(view(0, ("a",), ("a",)))}

    values = {
        sample.name: sample.value
        for family in make_families(None, groups, is_up=True)
        for sample in family.samples
    }
    assert values["sparrowmq_queues_left_out"] == left_out


def samples_of(families: Iterable[Metric]) -> dict[tuple[str, ...], float]:
    """Return the value of each sample by its name and the values of its labels."""
    return {
        (sample.name.removeprefix("sparrowmq_"), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_buckets_of_rebalances_count_all_that_are_no_longer() -> None:
    counts = counts_of(view(0, ("a",), ("a",)))
    for seconds in (0.4, 17.0, 400.0):
        counts._observe(seconds)

    found = samples_of(make_families(None, {"G": counts}, is_up=True))

    bounds = ("0.5", "10.0", "20.0", "300.0", "+Inf")
    buckets = [found["rebalance_seconds_bucket", "G", bound] for bound in bounds]
    assert buckets == [1, 1, 2, 2, 3]
    assert found["rebalance_seconds_sum", "G"] == 417.4


def test_what_may_be_consumed_twice_adds_up() -> None:
    looks = ((0, 100), (1_000, 107), (2_000, 112))
    counts = counts_of(*(view(ms, ("a", "b"), ("b",), offsets=at) for ms, at in looks))

    assert counts.possible_duplicates == 12


def test_waits_are_in_seconds_and_findings_by_their_own_severity() -> None:
    seen = view(0, ("a",), ("a",))
    (sample,) = seen.snapshot.samples
    progress = tuple(
        each._replace(wait_ms=15_000, in_flight=2, oldest_timestamp_ms=1)
        for each in sample.progress
    )
    later = replace(sample, timestamp_ms=30_001, progress=progress)
    counts = GroupCounts()
    findings = tuple(
        Finding(rule=rule, severity=severity, title="")
        for rule, severity in (
            ("R01", Severity.ERROR),
            ("R02", Severity.ERROR),
            ("R08", Severity.WARN),
        )
    )
    counts.note(make_view(replace(seen.snapshot, samples=(later,)), seen.ownership), findings)

    found = samples_of(make_families(None, {"G": counts}, is_up=True))

    assert found["group_lag_seconds", "G", "T"] == 15
    assert found["group_oldest_in_flight_seconds", "G"] == 30
    assert [found["findings", "G", each] for each in ("info", "warn", "error")] == [0, 1, 2]
    assert found["queue_owners", "G", "T", "broker-a", "1"] == 1


def test_queues_of_a_group_that_consumes_by_message_have_no_owners() -> None:
    seen = view(0, (), ())
    by_message = make_view(seen.snapshot, replace(seen.ownership, is_by_message=True))
    counts = counts_of(by_message)

    names = {name for name, *_ in samples_of(make_families(None, {"G": counts}, is_up=True))}

    assert "queue_lag" in names
    assert "queue_owners" not in names


def test_cluster_is_described_by_its_brokers_own_reports() -> None:
    runtime = {
        "putTps": "1.5 9 9",
        "getTransferedTps": "2.5 9 9",
        "commitLogDiskRatio": "0.25",
        "dispatchBehindBytes": "7",
    }
    overview = Overview(
        at_ms=0,
        timestamp_ms=1_700_000_000_500,
        brokers=(BrokerOverview(name="b", cluster="C", address="a:1", runtime=runtime),),
        topics=tuple(
            TopicOverview(topic=topic, places=(), is_internal=topic != "T", ends_at={"b": 5})
            for topic in ("T", "%RETRY%G")
        ),
        groups=(),
    )

    found = samples_of(make_families(overview, {}, is_up=True))

    assert found["last_snapshot_timestamp_seconds",] == 1_700_000_000.5
    names = ("puts_per_second", "gets_per_second", "disk_used_ratio", "dispatch_behind_bytes")
    assert [found[f"broker_{name}", "b", "C"] for name in names] == [1.5, 2.5, 0.25, 7]
    assert found["topic_end_offset", "T", "b"] == 5
    assert ("topic_end_offset", "%RETRY%G", "b") not in found
