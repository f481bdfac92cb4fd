"""Every view names the same owner and the same state of each queue, also while queues move.

The snapshots are taken of a live group at ten moments: of a handover, of a frozen member, and of a
client id that two processes have.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from live_groups import LiveGroups
from sparrowmq import ConsumeStatus
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.cli.rebalance_json import json_of_group
from sparrowmq.cli.rebalance_view import render_group
from sparrowmq.client.assembly import make_directory
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.dash.matrix import make_columns, make_matrix
from sparrowmq.doctor.case import Case, examine
from sparrowmq.doctor.looks import look_of
from sparrowmq.doctor.ownership import OwnerState
from sparrowmq.exporter.course import GroupCourse
from sparrowmq.exporter.watch import make_families
from sparrowmq.model import MessageQueue
from sparrowmq.pipeline.snapshot_tables import tables_of
from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

GROUP, TOPIC, QUEUES = "one-owner", "owned", 8
Owners = dict[int, list[str]]


class Moments:
    """Takes snapshots of the group."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._driver = BlockingDriver()
        self._directory = make_directory(cluster.name_server, timeout_ms=1_000)
        self.cases: list[tuple[str, Case]] = []

    def look(self) -> Case:
        return examine(self._driver.run(take_snapshot(self._directory, GROUP)))

    def note(self, what: str) -> Case:
        """Keep a moment."""
        self.cases.append((what, self.look()))
        return self.cases[-1][1]

    def note_when(self, what: str, is_so: Callable[[Case], bool]) -> None:
        """Keep the first look for which a condition holds."""
        found: list[Case] = []

        def looked() -> bool:
            found.append(self.look())
            return is_so(found[-1])

        wait_until(what, looked, timeout_s=40)
        self.cases.append((what, found[-1]))

    def close(self) -> None:
        self._driver.close()


def is_even(case: Case) -> bool:
    return case.ownership.count_of(OwnerState.OWNED) == len(case.ownership.owners)


def members(case: Case) -> int:
    return len(case.ownership.connections)


@pytest.fixture(scope="module")
def cases() -> Iterator[list[tuple[str, Case]]]:
    released = threading.Event()

    def listen(messages: Any, context: Any) -> ConsumeStatus:
        released.wait(2)
        return ConsumeStatus.CONSUME_SUCCESS

    with EmbeddedCluster(flush="async") as cluster, LiveGroups(cluster) as groups:
        moments = Moments(cluster)
        try:
            groups.join(GROUP, groups.topic(TOPIC, queues=QUEUES), listener=listen)
            # Before the first heartbeat no broker knows the group.
            wait_until("the group", lambda: GROUP in groups.admin.list_groups(), timeout_s=30)
            moments.note_when("one member", lambda case: members(case) == 1 and is_even(case))
            groups.join(GROUP, TOPIC, instance="2", listener=listen)
            moments.note_when("the second is listed", lambda case: members(case) == 2)
            moments.note("the first drains")
            moments.note_when("two members", is_even)
            third = groups.start_process(GROUP, TOPIC, instance="3")
            moments.note_when("three members", lambda case: members(case) == 3 and is_even(case))
            third.send_signal(signal.SIGSTOP)
            moments.note("the third is frozen")
            moments.note_when("it is dropped", lambda case: members(case) == 2)
            moments.note_when("its queues are taken", is_even)
            groups.start_process(GROUP, TOPIC, instance="1")
            moments.note_when("a duplicate id", lambda case: members(case) == 3)
            moments.note("the duplicate id stays")
            yield moments.cases
        finally:
            released.set()
            moments.close()


def by_json(case: Case) -> tuple[Owners, dict[int, str]]:
    rows = [row for row in json_of_group(case)["queues"] if row["topic"] == TOPIC]
    return (
        {row["queue_id"]: [each["client_id"] for each in row["owners"]] for row in rows},
        {row["queue_id"]: row["state"] for row in rows},
    )


def by_page(case: Case) -> tuple[Owners, dict[int, str]]:
    ids = dict.fromkeys(c.client_id for c in case.ownership.connections)
    numbers = {client_id: number for number, client_id in enumerate(ids)}
    matrix = make_matrix(case, (), make_columns(case, (), numbers), {}, topic=TOPIC)
    return (
        {row.queue.queue_id: [owner.client_id for owner in row.owners] for row in matrix.rows},
        {row.queue.queue_id: row.state for row in matrix.rows},
    )


def by_tables(case: Case) -> Owners:
    rows = tables_of([case.snapshot], timestamp_ms=0)["queues"].to_pylist()
    return {row["queueId"]: row["owners"] for row in rows if row["topic"] == TOPIC}


def by_exporter(case: Case) -> Owners:
    course = GroupCourse()
    course.note(case, (), look_of(case))
    found: Owners = {queue_id: [] for queue_id in range(QUEUES)}
    for family in make_families(None, {GROUP: course}, is_up=True):
        for sample in family.samples:
            if sample.name == "sparrowmq_queue_owner" and sample.labels["topic"] == TOPIC:
                ids = [sample.labels["client_id"]] * int(sample.value)
                found[int(sample.labels["queue"])] += ids
    return found


def by_terminal(case: Case) -> dict[int, str]:
    """Return the last cell of each queue's row on a wide terminal."""
    file = StringIO()
    console = Console(file=file, width=200)
    console.print(render_group(case, console))
    lines = file.getvalue().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.strip() == TOPIC)
    shown = [line.split() for line in lines[begin + 1 : begin + 1 + QUEUES]]
    return {int(row[0].partition(":")[2]): row[-1] for row in shown}


def test_ten_moments_are_seen(cases: list[tuple[str, Case]]) -> None:
    assert len(cases) == 10
    states = {state for _, case in cases for state in map(case.ownership.state_of, queues())}
    assert states >= {OwnerState.OWNED, OwnerState.UNOWNED, OwnerState.DOUBLE}
    # In a handover the owner is not yet the member to whom the queue falls.
    moving = [what for what, case in cases if case.ownership.owners != case.ownership.falls_to]
    assert moving != []


def queues() -> list[MessageQueue]:
    return [MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in range(QUEUES)]


def test_every_view_names_the_same_owners(cases: list[tuple[str, Case]]) -> None:
    for what, case in cases:
        owners, states = by_json(case)

        assert by_page(case) == (owners, states), what
        assert by_tables(case) == owners, what
        exported = by_exporter(case)
        assert {q: sorted(ids) for q, ids in exported.items()} == {
            q: sorted(ids) for q, ids in owners.items()
        }, what
        look = look_of(case)
        assert {q.queue_id: list(ids) for q, ids in look.owners.items()} == owners, what
        assert look.unowned == sum(not ids for ids in owners.values()), what
        ending = by_terminal(case)
        assert [q for q, last in ending.items() if last == "nobody"] == [
            q for q, state in states.items() if state == "unowned"
        ], what
        assert [q for q, last in ending.items() if last == "twice"] == [
            q for q, state in states.items() if state == "double"
        ], what
