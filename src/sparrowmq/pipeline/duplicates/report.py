"""The page of the job `duplicates`: groups, events, strategies, and messages never consumed.

Tests: pipeline/test_duplicates.py.
"""

from __future__ import annotations

from dataclasses import astuple

from sparrowmq.pipeline.duplicates.job import DuplicatesResult, EventFigures, LostMessage
from sparrowmq.pipeline.duplicates.judging import UNKNOWN
from sparrowmq.report import (
    Bar,
    Check,
    Markup,
    Table,
    Tile,
    bar_figure,
    list_checks,
    list_tiles,
    page,
    section,
)
from sparrowmq.words import count_of

_EVENTS_PLOTTED = 30


def render(result: DuplicatesResult) -> str:
    """Return the HTML file."""
    groups, strategies = result.groups, result.strategies
    deliveries = sum(group.deliveries for group in groups)
    duplicates = sum(group.duplicates for group in groups)
    share = f"{100 * duplicates / deliveries:.2f} of a hundred" if deliveries else ""
    return page(
        "What was consumed more than once, or never",
        _losses(result),
        list_tiles(
            [
                Tile(f"{deliveries:,}", "deliveries", f"to {count_of(len(groups), 'group')}"),
                Tile.of(duplicates, "duplicate", share),
                Tile.of(sum(each.events for each in strategies), "rebalance event"),
                Tile(f"{max((g.most_often for g in groups), default=0):,}", "times at most"),
            ]
        ),
        _groups(result),
        _lost(result),
        _events(result),
        *([_strategies(result)] if any(s.strategy != UNKNOWN for s in strategies) else []),
        lead="Of a message's deliveries to a group the first is meant; each later one is a "
        "duplicate, put down to the last rebalance event before it.",
    )


def main_table(result: DuplicatesResult) -> Table:
    """Return the table of groups."""
    header = [
        *("group", "deliveries", "messages", "duplicates", "most often"),
        *(("lost", "pending") if result.knows_produced else ()),
    ]
    rows = [astuple(group)[: len(header)] for group in result.groups]
    return Table(header, rows, "deliveries, duplicates and losses")


def _losses(result: DuplicatesResult) -> Markup:
    if not result.knows_produced:
        return Markup("")
    lost = sum(group.lost or 0 for group in result.groups)
    pending = sum(group.pending or 0 for group in result.groups)
    first = f", the first {_place(result.lost[0])}" if result.lost else ""
    return list_checks(
        [Check("Messages passed over", lost == 0, f"{lost:,} lost{first}; {pending:,} pending")],
        good="Nothing was lost.",
        bad=f"{count_of(lost, 'message')} lost: later ones of the same queues were consumed.",
    )


def _groups(result: DuplicatesResult) -> Markup:
    if not result.groups:
        return section("Groups", "No delivery is old enough yet to be judged.")
    note = (
        "Lost: a later message of the same queue was consumed. Pending: none was yet."
        if result.knows_produced
        else "What was produced is not known, so losses were not looked for."
    )
    return section("Groups", main_table(result), note)


def _place(lost: LostMessage) -> str:
    place = f"{lost.topic} {lost.broker_name}:{lost.queue_id} at {lost.queue_offset}"
    return place if lost.queue_offset is not None else f"{lost.topic} {lost.msg_id}"


def _lost(result: DuplicatesResult) -> Markup:
    if not result.lost:
        return Markup("")
    rows = [(each.consumer_group, _place(each), each.msg_id) for each in result.lost]
    count = sum(group.lost or 0 for group in result.groups)
    more = "" if count == len(rows) else f"All {count:,} are in the table missing."
    return section(
        "Lost messages",
        Table(["group", "message", "msgId"], rows),
        *([more] if more else []),
    )


def _name(event: EventFigures) -> str:
    return f"{event.event_index}. {event.event}" if event.event_index else event.event


def _events(result: DuplicatesResult) -> Markup:
    guilty = [event for event in result.events if event.duplicates]
    if not guilty:
        return section("Events", "No event was followed by a duplicate.")
    shown = sorted(guilty, key=lambda event: -event.duplicates)[:_EVENTS_PLOTTED]
    shown.sort(key=lambda event: (event.consumer_group, event.event_index))
    is_one_group = len({event.consumer_group for event in shown}) == 1
    bars = [
        Bar(
            _name(event) if is_one_group else f"{event.consumer_group}: {_name(event)}",
            float(event.duplicates),
        )
        for event in shown
    ]
    rows = [
        (
            *(event.consumer_group, _name(event)),
            event.at.strftime("%H:%M:%S.%f")[:-3] if event.at else "",
            *(event.strategy, event.deliveries, event.duplicates, event.by_same_member),
            event.queues,
        )
        for event in result.events
    ]
    left_out = sum(each.events for each in result.strategies) - sum(
        event.event_index > 0 for event in result.events
    )
    more = f"{count_of(left_out, 'event')} with fewer duplicates, or none, are not shown."
    header = [
        *("group", "event", "at (UTC)", "strategy", "deliveries", "duplicates"),
        *("same member", "queues"),
    ]
    return section(
        "Events",
        bar_figure("Duplicates from each event to the next", bars),
        Table(header, rows),
        *([more] if left_out else []),
        "Same member: it had the message before itself, so nothing moved, or it moved away and "
        "back. Queues: those that duplicates are of.",
    )


def _strategies(result: DuplicatesResult) -> Markup:
    rows = [
        (*astuple(each), each.duplicates / each.events if each.events else None)
        for each in result.strategies
    ]
    header = ["strategy", "events", "deliveries", "duplicates", "an event"]
    return section("Strategies", Table(header, rows))
