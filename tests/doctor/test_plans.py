"""A live group that divides by load: each view says why a queue moved, and how full members are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from live_groups import LiveGroups
from sparrowmq import ConsumeStatus
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.cli.rebalance_json import json_of_group
from sparrowmq.cli.rebalance_view import render_group
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.dash.matrix import make_columns
from sparrowmq.doctor import Severity, diagnose
from sparrowmq.doctor.explain import explain
from sparrowmq.doctor.group_view import GroupView, examine
from sparrowmq.doctor.owner_history import SeenEventKind, describe_reason, list_events
from sparrowmq.exporter.group_counts import GroupCounts
from sparrowmq.exporter.watch import make_families
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.xdist_group("plans")]

GROUP, TOPIC, QUEUES = "by-load", "loaded", 8
SLOW, FAST = "172.17.0.1@1", "172.17.0.1@2"


@pytest.fixture(scope="module")
def views() -> Iterator[tuple[GroupView, GroupView]]:
    """The group before its first plan, and once a plan has moved queues of the slow member."""
    stopped = threading.Event()

    def listen_slowly(messages: Any, context: Any) -> ConsumeStatus:
        stopped.wait(0.1 * len(messages))
        return ConsumeStatus.CONSUME_SUCCESS

    with EmbeddedCluster(flush="async") as cluster, LiveGroups(cluster) as groups:
        driver = BlockingDriver()
        directory = make_directory(cluster.name_server, timeout_ms=10_000)
        seen: list[GroupView] = []

        def look() -> GroupView:
            return examine(driver.run(take_snapshot(directory, GROUP)))

        def has_moved() -> bool:
            seen.append(look())
            plan = seen[-1].snapshot.plan
            shares = all(each.owners == each.share for each in seen[-1].queues.values())
            return plan is not None and bool(plan.moved) and bool(seen[-1].loads) and shares

        try:
            topic = groups.topic(TOPIC, queues=QUEUES, per_s=30)
            both: dict[str, Any] = {"strategy": "AVG_BY_LOAD", "consume_thread_count": 1}
            groups.join(GROUP, topic, instance="1", listener=listen_slowly, **both)
            groups.join(GROUP, topic, instance="2", **both)
            wait_until("the group", lambda: GROUP in groups.admin.list_groups(), timeout_s=30)
            wait_until("two members", lambda: len(look().ownership.connections) == 2, timeout_s=30)
            before = look()
            wait_until("a plan has moved queues", has_moved, timeout_s=120)
            yield before, seen[-1]
        finally:
            stopped.set()
            driver.close()


def test_the_snapshot_has_the_plan_that_members_follow(views: tuple[GroupView, GroupView]) -> None:
    plan = views[1].snapshot.plan
    assert plan is not None

    assert {queue: view.owner_ids for queue, view in views[1].queues.items()} == {
        queue: (owner,) for queue, owner in plan.owners
    }
    assert len(views[1].owned_by(SLOW)) < QUEUES / 2 < len(views[1].owned_by(FAST))
    assert plan.load_after < plan.load_before
    # By numbers of queues, the plan's division would look like queues of wrong members.
    assert [f for f in diagnose(views[1].snapshot) if f.severity > Severity.WARN] == []


def test_every_view_says_that_queues_moved_for_load(views: tuple[GroupView, GroupView]) -> None:
    before, after = views
    plan = after.snapshot.plan
    assert plan is not None
    assert before.snapshot.plan is not None
    events = [e for e in list_events(before, after) if e.kind is SeenEventKind.LOAD]
    counts = GroupCounts()
    counts.note(before, ())
    counts.note(after, ())
    file = StringIO()
    console = Console(file=file, width=200)
    console.print(render_group(after, console))

    assert describe_reason(events) == f"for load: {plan.load_before:.2f} → {plan.load_after:.2f}"
    assert counts.rebalances == {"load": 1}
    assert json_of_group(after)["plan"]["load_after"] == plan.load_after
    assert str(after.describe_plan()).endswith(f"ago: {plan.fall}")
    assert plan.fall in file.getvalue().splitlines()[0]
    (why,) = explain(after.snapshot, plan.moved[0])
    assert any(f"the fullest member's load {plan.fall}" in step for step in why.steps)


def test_every_view_shows_the_same_loads(views: tuple[GroupView, GroupView]) -> None:
    after = views[1]
    exported = {
        sample.labels["client_id"]: sample.value
        for family in make_families(None, {GROUP: GroupCounts(view=after)}, is_up=True)
        for sample in family.samples
        if sample.name == "sparrowmq_member_load"
    }
    columns = make_columns(after, (), {SLOW: 0, FAST: 1})

    assert exported.keys() == {SLOW, FAST}
    assert {client_id: column.load for client_id, column in columns.items()} == exported
    assert {each["client_id"]: each["load"] for each in json_of_group(after)["members"]} == {
        client_id: round(load, 3) for client_id, load in exported.items()
    }
    assert exported[FAST] < exported[SLOW]
