"""The page that moves a group's offsets, and previews the move. Tests: test_pages.py."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.client.operations.reset import ResetPlan, Target, apply_reset, plan_reset
from sparrowmq.dash.tables import Cell, PageTable, TableColumn
from sparrowmq.dash.watcher import Watcher
from sparrowmq.dash.web import Site, View, Visit, group_href
from sparrowmq.model.names import check_topic
from sparrowmq.model.spelling import parse_time, spell_queue


async def show_reset(watcher: Watcher, visit: Visit) -> View:
    """Ask for the new position, and preview the move. Raises: SparrowError."""
    group = await watcher.find(visit.request.path_params["group"])
    assert group.view is not None
    topics = [topic.topic for topic in group.view.snapshot.user_topics]
    topic, target = visit.query.get("topic", ""), visit.query.get("to", "").strip()
    moment = fix_target(target) if topic and target else ""
    plan = await _plan(watcher, group.name, topic, moment) if moment else None
    return View(
        template="reset.html",
        name=group.name,
        tables=() if plan is None else (_table(plan),),
        news=None,
        context={
            "group": group.name,
            "href": group_href(group.name),
            "topics": topics,
            "topic": topic,
            "target": target,
            "moment": moment,
            "plan": plan,
        },
    )


async def reset(site: Site, visit: Visit) -> Response:
    """Move the offsets as previewed. Raises: UsageError on a page that only reads; SparrowError."""
    site.check_writes(visit.session)
    form, watcher = visit.form, site.watcher
    group = visit.request.path_params["group"]
    plan = await _plan(watcher, group, form.get("topic", ""), form.get("to", ""))
    await watcher.driver.run(apply_reset(watcher.directory, plan))
    await watcher.look_now(group)
    return RedirectResponse(group_href(group), status_code=303)


def fix_target(text: str) -> str:
    """Return a target that is the same place at the second click, when `30m` is another time."""
    at_ms = _read_target(text).timestamp_ms
    # The milliseconds that `parse_time` reads have 11 to 14 digits.
    return text if at_ms is None else f"{min(at_ms, 10**14 - 1):011}"


async def _plan(watcher: Watcher, group: str, topic: str, target: str) -> ResetPlan:
    check_topic(topic)
    return await watcher.driver.run(
        plan_reset(watcher.directory, group, topic, target=_read_target(target))
    )


def _read_target(text: str) -> Target:
    if text in ("earliest", "latest"):
        return Target(is_earliest=text == "earliest", is_latest=text == "latest")
    now_ms = timestamp_ms()
    return Target(
        timestamp_ms=parse_time(text, now_timestamp_ms=now_ms, others="earliest, latest, ")
    )


def _table(plan: ResetPlan) -> PageTable:
    # No broker knows what members in BROADCASTING have consumed.
    is_known = not plan.is_broadcasting
    return PageTable(
        name="reset",
        title="What the move would do",
        columns=(
            TableColumn("queue", "queue"),
            TableColumn("before", "continues at", "number"),
            TableColumn("after", "would continue at", "number"),
            TableColumn("end", "end", "number"),
            TableColumn("skipped", "never consumed", "number"),
            TableColumn("again", "consumed again", "number"),
        ),
        rows=[
            [
                Cell(spell_queue(each.queue)),
                Cell(each.before if is_known else None),
                Cell(each.after),
                Cell(each.end),
                *(_counts(each.skipped) if is_known else (Cell(None), Cell(None))),
            ]
            for each in plan.queues
        ],
    )


def _counts(skipped: int) -> tuple[Cell, Cell]:
    return (
        Cell(max(0, skipped), tone="bad" if skipped > 0 else ""),
        Cell(max(0, -skipped), tone="warn" if skipped < 0 else ""),
    )
