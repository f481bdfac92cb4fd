"""The first pages: all clusters, and the groups of one, those in trouble first.

Tests: test_pages.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.client.operations.overview import GroupOverview, Overview
from sparrowmq.dash.group_page import GroupTile
from sparrowmq.dash.matrix import falls_behind
from sparrowmq.dash.tables import Cell, PageTable, TableColumn
from sparrowmq.dash.watcher import WatchedGroup, Watcher
from sparrowmq.dash.web import (
    FOLLOWED,
    ShownCluster,
    Site,
    View,
    Visit,
    group_href,
    letters_href,
    topic_href,
)
from sparrowmq.doctor import Finding, Severity
from sparrowmq.words import format_number
from sparrowmq.words.catalog import Words

_COLUMNS = (
    TableColumn("group", "group"),
    TableColumn("lag", "lag", "number"),
    TableColumn("trouble", "trouble", "prose"),
    TableColumn("retry_lag", "to retry", "number"),
    TableColumn("dead_letters", "dead letters", "number"),
    TableColumn("produced_per_s", "in/s", "rate"),
    TableColumn("consumed_per_s", "out/s", "rate"),
    TableColumn("members", "members", "number"),
    TableColumn("unowned", "queues without owner", "number"),
    TableColumn("double", "queues with several owners", "number"),
    TableColumn("twins", "duplicate client ids", "number"),
    TableColumn("topics", "topics"),
)


_CLUSTER_COLUMNS = (
    TableColumn("cluster", "cluster"),
    TableColumn("trouble", "trouble", "prose"),
    TableColumn("lag", "lag", "number"),
    TableColumn("dead_letters", "dead letters", "number"),
    TableColumn("produced_per_s", "in/s", "rate"),
    TableColumn("consumed_per_s", "out/s", "rate"),
    TableColumn("groups", "groups", "number"),
    TableColumn("topics", "topics", "number"),
    TableColumn("brokers", "brokers report"),
    TableColumn("name_servers", "name servers"),
)


async def show_clusters(sites: Sequence[Site], visit: Visit) -> View:
    """Show all clusters beside each other."""
    table = PageTable(
        name="clusters",
        title="Clusters",
        columns=_CLUSTER_COLUMNS,
        rows=[_cluster_row(site.cluster, site.watcher, visit.words) for site in sites],
    )
    return View(template="table.html", title="Clusters", tables=(table,), news=FOLLOWED)


def _cluster_row(cluster: ShownCluster, watcher: Watcher, words: Words) -> list[Cell]:
    home, seen, flows = f"{cluster.root}/", watcher.overview, watcher.flows.values()
    findings = [f for group in watcher.groups.values() for f in group.findings]
    findings.sort(key=lambda finding: finding.severity, reverse=True)
    trouble = _trouble(findings, None, None, words)
    if trouble.value:
        trouble = trouble._replace(href=f"{cluster.root}/doctor")
    if watcher.failure:
        trouble = Cell(words("does not answer"), tone="bad", note=watcher.failure)
    if seen is None:
        return [Cell(cluster.name, home), trouble, *[Cell(None)] * 7, Cell(cluster.name_server)]
    reporting = sum(not broker.failure for broker in seen.brokers)
    return [
        Cell(cluster.name, home),
        trouble,
        Cell(sum(group.lag for group in seen.groups)),
        Cell(sum(group.dead_letters or 0 for group in seen.groups)),
        Cell(sum(flow.produced_per_s for flow in flows)),
        Cell(sum(flow.consumed_per_s for flow in flows)),
        Cell(len(watcher.names)),
        Cell(sum(not topic.is_internal for topic in seen.topics)),
        Cell(
            f"{reporting} / {len(seen.brokers)}",
            tone="bad" if reporting < len(seen.brokers) else "",
        ),
        Cell(cluster.name_server),
    ]


async def show_overview(watcher: Watcher, visit: Visit) -> View:
    """Show the cluster."""
    seen = watcher.overview
    words = visit.words
    of_name = {group.group: group for group in watcher.seen_groups}
    rows = [
        (
            _weight(watcher.groups.get(name), of_name.get(name)),
            _row(watcher, name, of_name.get(name), words),
        )
        for name in watcher.names
    ]
    rows.sort(key=lambda row: row[0], reverse=True)
    table = PageTable(
        name="groups",
        title="Groups",
        columns=_COLUMNS,
        rows=[row for _, row in rows],
        empty="No group has consumed anything yet.",
    )
    return View(
        template="overview.html",
        title="Overview",
        tables=(table,),
        context={
            "seen": seen,
            "tiles": () if seen is None else _tiles(watcher, seen, words),
        },
    )


def _weight(watched: WatchedGroup | None, glance: GroupOverview | None) -> tuple[int, int, int]:
    """Return a group's sort key; a greater key needs attention sooner."""
    view = None if watched is None else watched.view
    severity = max((f.severity for f in watched.findings), default=0) if watched else 0
    if watched and watched.failure:
        severity = Severity.ERROR
    lag = glance.lag if glance else 0
    if glance and (glance.duplicate_ids or glance.is_abandoned):
        severity = max(severity, Severity.ERROR)
    return severity, view.unowned + view.double if view else 0, lag


def _row(watcher: Watcher, name: str, glance: GroupOverview | None, words: Words) -> list[Cell]:
    watched = watcher.groups.get(name)
    view = None if watched is None else watched.view
    flow = watcher.flows.get(name)
    members: int | None = None
    twins: int | None = None
    if view is not None:
        members = view.member_count
        twins = sum(count > 1 for count in view.members.values())
    elif glance is not None and glance.members is not None:
        members, twins = glance.member_count, len(glance.duplicate_ids)
    lag = glance.known_lag if glance else view.known_lag if view else None
    topics = [topic.topic for topic in glance.topics] if glance else []
    trouble = _trouble(watched.findings if watched else (), members, lag, words)
    if watched is not None and watched.failure:
        trouble = Cell(words("cannot be looked at"), tone="bad", note=watched.failure)
    letters = glance.dead_letters if glance else None
    if view is not None:
        letters = view.snapshot.last.dead_letter_count
    return [
        Cell(name, group_href(name)),
        Cell(lag, tone="bad" if flow and falls_behind(lag or 0, flow) else ""),
        trouble,
        Cell(glance.retry_lag if glance else None),
        Cell(letters, letters_href(name) if letters else None),
        Cell(flow.produced_per_s if flow else None),
        Cell(flow.consumed_per_s if flow else None),
        Cell(members, tone="bad" if members == 0 and lag else ""),
        _count(view.unowned if view else None),
        _count(view.double if view else None),
        _count(twins),
        Cell(", ".join(topics) or None, topic_href(topics[0]) if len(topics) == 1 else None),
    ]


def _count(count: int | None) -> Cell:
    return Cell(count, tone="bad" if count else "quiet")


def _trouble(
    findings: Sequence[Finding], members: int | None, lag: int | None, words: Words
) -> Cell:
    """Name the worst finding, the first; without any, whether messages wait and nobody consumes."""
    serious = [finding for finding in findings if finding.severity > Severity.INFO]
    if serious:
        worst, *others = serious
        tone = "bad" if worst.severity is Severity.ERROR else "warn"
        note = words("and {n} more", n=len(others)) if others else ""
        return Cell(f"{worst.rule} {words.phrase(worst.title)}", tone=tone, note=note)
    if members == 0 and lag:
        return Cell(words("nobody consumes"), tone="bad")
    return Cell(None)


def _tiles(watcher: Watcher, seen: Overview, words: Words) -> list[GroupTile]:
    views = [group.view for group in watcher.groups.values() if group.view is not None]
    unowned = sum(view.unowned for view in views)
    double = sum(view.double for view in views)
    twins = {c for view in views for c, count in view.members.items() if count > 1}
    twins |= {client_id for group in seen.groups for client_id in group.duplicate_ids}
    silent = sum(bool(broker.failure) for broker in seen.brokers)
    behind = sum(group.lag for group in seen.groups)
    return [
        GroupTile(format_number(behind), words("messages behind")),
        GroupTile(
            format_number(unowned), words("queues without owner"), "bad" if unowned else "good"
        ),
        GroupTile(
            format_number(double), words("queues with several owners"), "bad" if double else "good"
        ),
        GroupTile(
            format_number(len(twins)), words("duplicate client ids"), "bad" if twins else "good"
        ),
        GroupTile(format_number(len(watcher.names)), words("groups")),
        GroupTile(
            format_number(sum(not topic.is_internal for topic in seen.topics)),
            words("topics"),
        ),
        GroupTile(
            f"{len(seen.brokers) - silent} / {len(seen.brokers)}",
            words("brokers report"),
            "bad" if silent else "good",
        ),
    ]
