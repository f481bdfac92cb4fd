"""Every view names the same owners of each queue, and the same time without, while queues move.

The snapshots are taken of a live group at ten moments: of a handover, of a frozen member, and of a
client id that two processes have.
"""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console, RenderableType
from textual.app import App
from textual.widgets import Static

from live_groups import LiveGroups
from sparrowmq import ConsumeStatus
from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.cli.rebalance_json import json_of_group
from sparrowmq.cli.rebalance_view import render_group
from sparrowmq.cli.top import GroupScreen
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.dash.history import History
from sparrowmq.dash.lab import Drill, Lab, show_lab
from sparrowmq.dash.matrix import make_columns, make_matrix
from sparrowmq.dash.web import View, Visit
from sparrowmq.doctor.group_view import GroupView, examine
from sparrowmq.doctor.owner_history import (
    UNSETTLED_MS,
    Holding,
    OwnedSpan,
    list_rebalances,
    list_seen_spans,
    list_spans,
    measure,
)
from sparrowmq.doctor.ownership import OwnerState
from sparrowmq.drills.drill import Phase, Report
from sparrowmq.drills.kinds import DrillKind
from sparrowmq.drills.stage import LEAD_MS
from sparrowmq.exporter.group_counts import GroupCounts
from sparrowmq.exporter.watch import make_families
from sparrowmq.model import MessageQueue
from sparrowmq.pipeline.snapshot_tables import tables_of
from sparrowmq.testing import EmbeddedCluster
from sparrowmq.words.catalog import Words
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), pytest.mark.xdist_group("one owner")]

GROUP, TOPIC, QUEUES = "one-owner", "owned", 8
Owners = dict[int, list[str]]


class Moments:
    """Takes snapshots of the group."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._driver = BlockingDriver()
        self._directory = make_directory(cluster.name_server, timeout_ms=1_000)
        self.views: list[tuple[str, GroupView]] = []

    def look(self) -> GroupView:
        known = self.views[-1][1].standings if self.views else {}
        return examine(self._driver.run(take_snapshot(self._directory, GROUP)), known)

    def note(self, what: str) -> GroupView:
        """Keep a moment."""
        self.views.append((what, self.look()))
        return self.views[-1][1]

    def note_when(self, what: str, is_so: Callable[[GroupView], bool]) -> None:
        """Keep the first look for which a condition holds."""
        found: list[GroupView] = []

        def looked() -> bool:
            found.append(self.look())
            return is_so(found[-1])

        wait_until(what, looked, timeout_s=40)
        self.views.append((what, found[-1]))

    def close(self) -> None:
        self._driver.close()


def is_even(view: GroupView) -> bool:
    return all(each.state is OwnerState.OWNED for each in view.queues.values())


def members(view: GroupView) -> int:
    return len(view.ownership.connections)


@pytest.fixture(scope="module")
def views() -> Iterator[list[tuple[str, GroupView]]]:
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
            moments.note_when("one member", lambda view: members(view) == 1 and is_even(view))
            groups.join(GROUP, TOPIC, instance="2", listener=listen)
            moments.note_when("the second is listed", lambda view: members(view) == 2)
            moments.note("the first drains")
            moments.note_when("two members", is_even)
            third = groups.start_process(GROUP, TOPIC, instance="3")
            moments.note_when("three members", lambda view: members(view) == 3 and is_even(view))
            third.send_signal(signal.SIGSTOP)
            moments.note("the third is frozen")
            moments.note_when("it is dropped", lambda view: members(view) == 2)
            moments.note_when("its queues are taken", is_even)
            groups.start_process(GROUP, TOPIC, instance="1")
            moments.note_when("a duplicate id", lambda view: members(view) == 3)
            moments.note("the duplicate id stays")
            yield moments.views
        finally:
            released.set()
            moments.close()


def by_json(view: GroupView) -> tuple[Owners, dict[int, str]]:
    rows = [row for row in json_of_group(view)["queues"] if row["topic"] == TOPIC]
    return (
        {row["queue_id"]: [each["client_id"] for each in row["owners"]] for row in rows},
        {row["queue_id"]: row["state"] for row in rows},
    )


def counts_by_json(view: GroupView) -> dict[str, int]:
    return {each["client_id"]: each["queues"] for each in json_of_group(view)["members"]}


def counts_by_page(view: GroupView) -> dict[str, int]:
    ids = dict.fromkeys(c.client_id for c in view.ownership.connections)
    columns = make_columns(view, (), {client_id: number for number, client_id in enumerate(ids)})
    return {client_id: column.queue_count for client_id, column in columns.items()}


def counts_by_terminal(view: GroupView) -> dict[str, int]:
    """Return the numbers of queues beside the members, but for ids that are in use twice."""
    rows = [line.split() for line in draw(view).splitlines()]
    return {row[1]: int(row[4]) for row in rows if len(row) > 4 and row[-1] in ("queue", "queues")}


def by_page(view: GroupView) -> tuple[Owners, dict[int, str]]:
    ids = dict.fromkeys(c.client_id for c in view.ownership.connections)
    numbers = {client_id: number for number, client_id in enumerate(ids)}
    matrix = make_matrix(view, (), make_columns(view, (), numbers), topic=TOPIC)
    return (
        {row.view.queue.queue_id: [owner.client_id for owner in row.owners] for row in matrix.rows},
        {row.view.queue.queue_id: row.view.state for row in matrix.rows},
    )


def by_tables(view: GroupView) -> Owners:
    rows = tables_of([view.snapshot], timestamp_ms=0)["queues"].to_pylist()
    return {row["queueId"]: row["owners"] for row in rows if row["topic"] == TOPIC}


def by_exporter(view: GroupView) -> Owners:
    counts = GroupCounts()
    counts.note(view, ())
    found: Owners = {queue_id: [] for queue_id in range(QUEUES)}
    for family in make_families(None, {GROUP: counts}, is_up=True):
        for sample in family.samples:
            if sample.name == "sparrowmq_queue_owner" and sample.labels["topic"] == TOPIC:
                ids = [sample.labels["client_id"]] * int(sample.value)
                found[int(sample.labels["queue"])] += ids
    return found


def draw(view: GroupView) -> str:
    """Draw the group on a wide terminal, as the command line does."""
    return on_terminal(render_group(view, Console(width=200)))


def on_terminal(drawn: RenderableType) -> str:
    file = StringIO()
    Console(file=file, width=200).print(drawn)
    return file.getvalue()


def by_terminal(text: str) -> dict[int, str]:
    """Return the last cell of each queue's row."""
    lines = text.splitlines()
    begin = next(at for at, line in enumerate(lines) if line.strip() == TOPIC)
    shown = [line.split() for line in lines[begin + 1 : begin + 1 + QUEUES]]
    return {int(row[0].partition(":")[2]): row[-1] for row in shown}


def test_ten_moments_are_seen(views: list[tuple[str, GroupView]]) -> None:
    assert len(views) == 10
    states = {view.queues[queue].state for _, view in views for queue in queues()}
    assert states >= {OwnerState.OWNED, OwnerState.UNOWNED, OwnerState.DOUBLE}
    # In a handover the owner is not yet the member to whom the queue falls.
    moving = [what for what, view in views if view.ownership.owners != view.ownership.falls_to]
    assert moving != []


def queues() -> list[MessageQueue]:
    return [MessageQueue(TOPIC, "broker-a", queue_id) for queue_id in range(QUEUES)]


def test_every_view_names_the_same_owners(views: list[tuple[str, GroupView]]) -> None:
    for what, view in views:
        owners, states = by_json(view)

        assert by_page(view) == (owners, states), what
        assert by_tables(view) == owners, what
        exported = by_exporter(view)
        assert {q: sorted(ids) for q, ids in exported.items()} == {
            q: sorted(ids) for q, ids in owners.items()
        }, what
        assert view.unowned == sum(not ids for ids in owners.values()), what
        ending = by_terminal(draw(view))
        assert [q for q, last in ending.items() if last == "nobody"] == [
            q for q, state in states.items() if state == "unowned"
        ], what
        assert [q for q, last in ending.items() if last == "twice"] == [
            q for q, state in states.items() if state == "double"
        ], what


def test_every_view_gives_a_member_the_same_number_of_queues(
    views: list[tuple[str, GroupView]],
) -> None:
    for what, view in views:
        owned = Counter(each for queue in queues() for each in set(view.queues[queue].owner_ids))
        counts = counts_by_json(view)

        assert counts == {client_id: owned[client_id] for client_id in view.members}, what
        assert counts_by_page(view) == counts, what
        once = {each for each, count in view.members.items() if count == 1}
        assert counts_by_terminal(view) == {each: counts[each] for each in once}, what


async def test_top_draws_the_owners_of_the_command_line(views: list[tuple[str, GroupView]]) -> None:
    app = App[None]()
    async with app.run_test(size=(200, 60)):
        for what, view in views:
            screen = GroupScreen(GROUP, ())
            await app.push_screen(screen)
            screen.update(view, [])
            shown = cast(RenderableType, screen.query_one("#matrix", Static).content)

            assert by_terminal(on_terminal(shown)) == by_terminal(draw(view)), what


def unowned_ms(spans: Iterable[OwnedSpan]) -> dict[int, int]:
    """Return how long each queue had no owner."""
    found = dict.fromkeys(range(QUEUES), 0)
    for span in spans:
        if span.owners == ():
            found[span.queue.queue_id] += span.end_ms - span.start_ms
    return found


def holdings_of(views: list[tuple[str, GroupView]]) -> list[Holding]:
    """Return the views as the members' logs that drills and the demo read."""
    names = {
        owner for _, view in views for queue in queues() for owner in view.queues[queue].owners
    }
    return [
        Holding(
            view.timestamp_ms,
            str(name),
            frozenset(queue for queue in queues() if name in view.queues[queue].owners),
        )
        for _, view in views
        for name in names
    ]


def view_after(view: GroupView) -> GroupView:
    """Return the same view at a later time, at which every rebalance is over."""
    (sample,) = view.snapshot.samples
    later = replace(sample, timestamp_ms=sample.timestamp_ms + UNSETTLED_MS + 1)
    return replace(view, snapshot=replace(view.snapshot, samples=(later,)))


def test_every_view_names_the_same_time_without_owner(views: list[tuple[str, GroupView]]) -> None:
    since_ms, until_ms = views[0][1].timestamp_ms, views[-1][1].timestamp_ms
    history, counts, before = History(None, "one"), GroupCounts(), None
    for _, view in views:
        history.note(GROUP, view, before)
        counts.note(view, ())
        before = view
    seen = history.seen(GROUP, since_ms=0)
    history.close()
    holdings = holdings_of(views)

    drawn: dict[int, int] = {}
    for queue in queues():
        owners = views[-1][1].queues[queue].owner_ids
        spans = list_seen_spans(
            queue, owners, seen, [(since_ms, until_ms)], since_ms=since_ms, until_ms=until_ms
        )
        drawn |= {queue.queue_id: unowned_ms(spans)[queue.queue_id]}
    logged = list_spans(holdings, queues(), since_ms=since_ms, until_ms=until_ms)
    whole = measure(holdings, queues(), since_ms=since_ms, until_ms=until_ms)
    offsets = {queue: views[-1][1].offset_of(queue) for queue in queues()}
    listed = list_rebalances(seen, until_ms=until_ms, offsets=offsets)

    assert drawn == unowned_ms(logged)
    assert any(drawn.values())
    assert sum(each.any_unowned_ms for each in listed) == whole.any_unowned_ms
    assert max(each.longest_unowned_ms for each in listed) <= whole.longest_unowned_ms
    assert whole.longest_unowned_ms == max(drawn.values())
    began = [each for each in listed if each.changed]
    assert counts.rebalances.total() == len(began)
    settled = [each.settled_ms for each in began if each.settled_ms is not None]
    counts.note(view_after(views[-1][1]), ())
    assert counts.rebalance_s_sum == pytest.approx(sum(settled) / 1000)


async def test_lab_draws_the_time_without_owner_that_a_drill_measured(
    views: list[tuple[str, GroupView]],
) -> None:
    holdings, since_ms = holdings_of(views), views[0][1].timestamp_ms
    until_ms = views[-1][1].timestamp_ms
    measured = measure(holdings, queues(), since_ms=since_ms, until_ms=until_ms)
    spans = list_spans(holdings, queues(), since_ms=since_ms - LEAD_MS, until_ms=until_ms)
    seen = views[-1][1].snapshot
    lab = Lab(cast(Any, None))
    lab.drill = Drill(kind=DrillKind.JOIN)
    lab.drill.result = Report(
        kind=DrillKind.JOIN,
        phases=(Phase("a member joins", measured),),
        before=seen,
        after=seen,
        sent=0,
        consumed=0,
        twice=0,
        changes=(),
        spans=tuple(
            OwnedSpan(s.queue, s.start_ms - since_ms, s.end_ms - since_ms, s.owners) for s in spans
        ),
        late_work=None,
    )

    shown = await show_lab(
        lab, Visit(request=cast(Any, None), session=cast(Any, None), words=Words("en"), query={})
    )

    assert isinstance(shown, View)
    (table,) = shown.tables
    cells = {
        column.key: cell.value for column, cell in zip(table.columns, table.rows[0], strict=True)
    }
    assert cells["longest_unowned_ms"] == measured.longest_unowned_ms
    assert cells["any_unowned_ms"] == measured.any_unowned_ms
    without = unowned_ms(span for span in spans if span.end_ms > since_ms)
    lines = cast(Any, shown.context["lines"])
    assert {int(line.label) for line in lines if "nobody" in line.spoken} >= {
        queue_id for queue_id, ms in without.items() if ms
    }


def test_json_and_page_name_the_same_time_since_when(views: list[tuple[str, GroupView]]) -> None:
    for what, view in views:
        columns = make_columns(view, (), {})
        page = {
            row.view.queue: row.view.standing.since_ms if row.view.standing.is_exact else None
            for row in make_matrix(view, (), columns).rows
        }
        rows = json_of_group(view)["queues"]

        assert {
            MessageQueue(row["topic"], row["broker"], row["queue_id"]): row["since_timestamp_ms"]
            for row in rows
        } == page, what
