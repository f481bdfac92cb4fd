"""The simulator: the moves of queues when members come and go, by two strategies and by all.

Tests: test_pages.py, test_pictures.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparrowmq.dash.matrix import TONE_COUNT, letter_of
from sparrowmq.dash.tables import Cell, PageTable, TableColumn
from sparrowmq.dash.web import View, Visit
from sparrowmq.doctor.whatif import (
    ALL_NAMES,
    Plan,
    Step,
    StrategyRun,
    check_strategy,
    parse_events,
    simulate,
    simulate_all,
)
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageQueue

# The page's bounds are lower than the command's: a larger picture is unreadable, and a longer
# simulation delays other pages.
QUEUES_MAX, MEMBERS_MAX, EVENTS_MAX = 256, 64, 12
_DEFAULTS = {
    "queues": "8",
    "members": "3",
    "brokers": "1",
    "rooms": "1",
    "events": "join,leave",
    "strategy": "AVG",
    "versus": "MINIMAL_MOVE",
}


class Owner(NamedTuple):
    """A member in a picture."""

    letter: str
    tone: str


class SimulatorSquare(NamedTuple):
    """The owners of a queue after an event, and whether the event moved the queue."""

    owners: tuple[Owner, ...]
    has_moved: bool


class Picture(NamedTuple):
    """One strategy through all events: a row for each queue, a column for each event.

    `moved` has for each event the number of queues that staying members lost.
    """

    strategy: str
    school: str
    events: tuple[str, ...]
    rows: tuple[tuple[str, tuple[SimulatorSquare, ...]], ...]
    moved: tuple[int, ...]
    members: tuple[tuple[Owner, str], ...]


async def show_simulator(visit: Visit) -> View:
    """Simulate the plan in the URL. Raises: ConfigError or UsageError for a wrong plan."""
    asked = _DEFAULTS | {name: visit.query[name] for name in _DEFAULTS if visit.query.get(name)}
    plan = Plan(
        queue_count=_number(asked, "queues", QUEUES_MAX),
        member_count=_number(asked, "members", MEMBERS_MAX),
        events=parse_events(asked["events"]),
        broker_count=_number(asked, "brokers", QUEUES_MAX),
        room_count=_number(asked, "rooms", QUEUES_MAX),
        has_duplicate_id=visit.query.get("twin") == "yes",
    )
    if len(plan.events) > EVENTS_MAX:
        raise UsageError(f"{len(plan.events)} events; the page simulates {EVENTS_MAX} at most")
    chosen = [check_strategy(asked["strategy"]), check_strategy(asked["versus"])]
    # Thousands of allocations would block the loop that serves the other pages.
    pictures, runs = await asyncio.to_thread(_simulate, plan, chosen)
    return View(
        template="simulator.html",
        title="Simulator",
        tables=(_comparison(runs, visit),),
        news=None,
        context={
            "asked": asked,
            "has_twin": plan.has_duplicate_id,
            "names": ALL_NAMES,
            "pictures": pictures,
        },
    )


def _simulate(plan: Plan, chosen: Sequence[str]) -> tuple[list[Picture], list[StrategyRun]]:
    return [_draw(plan, simulate(plan, name)) for name in chosen], simulate_all(plan)


def _number(asked: Mapping[str, str], name: str, highest: int) -> int:
    text = asked[name].strip()
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= highest):
        raise UsageError(f"{name} is {text!r}; it must be a number from 1 to {highest}")
    return int(text)


def _owner(number: int) -> Owner:
    return Owner(letter_of(number), f"c{number % TONE_COUNT + 1}")


def _draw(plan: Plan, run: StrategyRun) -> Picture:
    members = {member.number: member for step in run.steps for member in step.members}
    return Picture(
        strategy=run.strategy,
        school=run.school,
        events=tuple(str(step.event) if step.event else "" for step in run.steps),
        rows=tuple((_name(plan, queue), _squares(run.steps, queue)) for queue in plan.queues),
        moved=tuple(step.moved for step in run.steps),
        members=tuple((_owner(n), members[n].client_id) for n in sorted(members)),
    )


def _name(plan: Plan, queue: MessageQueue) -> str:
    broker = queue.broker_name if plan.room_count > 1 else queue.broker_name.partition("@")[2]
    return f"{broker}:{queue.queue_id}"


def _squares(steps: Sequence[Step], queue: MessageQueue) -> tuple[SimulatorSquare, ...]:
    squares = []
    before: tuple[int, ...] | None = None
    for step in steps:
        owners = step.owners.get(queue, ())
        squares.append(
            SimulatorSquare(
                tuple(map(_owner, owners)), before is not None and set(owners) != set(before)
            )
        )
        before = owners
    return tuple(squares)


def _comparison(runs: Sequence[StrategyRun], visit: Visit) -> PageTable:
    return PageTable(
        name="strategies",
        title="All strategies",
        columns=(
            TableColumn("strategy", "strategy"),
            TableColumn("of", "whose"),
            TableColumn("moved", "queues moved", "number"),
            TableColumn("needless", "needlessly", "number"),
            TableColumn("skew", "skew", "number"),
            TableColumn("idle", "idle members", "number"),
            TableColumn("unowned", "queues without owner", "number"),
            TableColumn("double", "queues with several owners", "number"),
            TableColumn("messages", "requests and answers", "number"),
            TableColumn("wait_ms", "longest wait", "duration"),
            TableColumn("stopped", "paused meanwhile", "number"),
            TableColumn("overlapping", "two owners meanwhile", "number"),
        ),
        rows=[_row(run, visit) for run in runs],
    )


def _row(run: StrategyRun, visit: Visit) -> list[Cell]:
    steps, events = run.steps, run.steps[1:]
    idle = max(step.idle for step in steps)
    unowned = max(len(step.unowned) for step in steps)
    double = max(len(step.double) for step in steps)
    return [
        Cell(run.strategy),
        Cell(visit.words(run.school)),
        Cell(sum(step.moved for step in events)),
        Cell(sum(step.needless for step in events)),
        Cell(max(step.skew for step in steps)),
        Cell(idle, tone="warn" if idle else ""),
        Cell(unowned, tone="bad" if unowned else ""),
        Cell(double, tone="bad" if double else ""),
        Cell(sum(step.cost.messages for step in events)),
        Cell(max((step.cost.wait_ms_max for step in events), default=0)),
        Cell(sum(step.cost.stopped for step in events)),
        Cell(sum(step.cost.overlapping for step in events)),
    ]
