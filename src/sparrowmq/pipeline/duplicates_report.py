"""The page of the job `duplicates`: groups, events, strategies, and what was never consumed."""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.pipeline.duplicates import UNKNOWN, EventFigures, GroupFigures, StrategyFigures
from sparrowmq.report import (
    Bar,
    Check,
    Markup,
    Tile,
    bar_chart,
    figure,
    list_checks,
    list_tiles,
    page,
    section,
    table,
)
from sparrowmq.report.scale import format_number

_EVENTS_PLOTTED = 30


def duplicates_page(
    groups: Sequence[GroupFigures],
    events: Sequence[EventFigures],
    strategies: Sequence[StrategyFigures],
    *,
    knows_produced: bool,
) -> str:
    """Return the HTML file.

    Args:
        groups: all groups.
        events: all events, by group and time.
        strategies: all strategies.
        knows_produced: whether losses could be looked for.
    """
    deliveries = sum(group.deliveries for group in groups)
    duplicates = sum(group.duplicates for group in groups)
    lost = sum(group.lost for group in groups)
    return page(
        "What was consumed more than once, or never",
        *(
            [
                list_checks(
                    [
                        Check(
                            "No message was passed over",
                            lost == 0,
                            f"{lost:,} lost, {sum(g.pending for g in groups):,} pending",
                        )
                    ],
                    good="Nothing was lost.",
                    bad="Messages were lost: later ones of their queues were consumed.",
                )
            ]
            if knows_produced
            else []
        ),
        list_tiles(
            [
                Tile(f"{deliveries:,}", "deliveries", f"to {len(groups):,} groups"),
                Tile(f"{duplicates:,}", "duplicates", _share(duplicates, deliveries)),
                Tile(f"{sum(event.event_index > 0 for event in events):,}", "rebalance events"),
                Tile(f"{max((g.most_often for g in groups), default=0):,}", "times at most"),
            ]
        ),
        _groups(groups, knows_produced=knows_produced),
        _events(events),
        *([_strategies(strategies)] if any(s.strategy != UNKNOWN for s in strategies) else []),
        lead="Of a message's deliveries to a group the first is meant; each later one is a "
        "duplicate, put down to the last rebalance event before it.",
    )


def _groups(groups: Sequence[GroupFigures], *, knows_produced: bool) -> Markup:
    header = ["group", "deliveries", "messages", "duplicates", "of a hundred", "most often"]
    absent = ["lost", "pending"] if knows_produced else []
    rows = []
    for group in groups:
        share = format_number(round(100 * group.duplicates / group.deliveries, 2))
        cells = [group.deliveries, group.messages, group.duplicates]
        missing = [f"{group.lost:,}", f"{group.pending:,}"] if knows_produced else []
        rows.append(
            [
                group.consumer_group,
                *(f"{cell:,}" for cell in cells),
                share,
                f"{group.most_often:,}",
                *missing,
            ]
        )
    note = (
        "Lost: a later message of the same queue was consumed. Pending: none was yet."
        if knows_produced
        else "What was produced is not known, so losses were not looked for."
    )
    return section(
        "Groups",
        table([*header, *absent], rows, numeric=list(range(1, len(header) + len(absent)))),
        note,
    )


def _events(events: Sequence[EventFigures]) -> Markup:
    guilty = [event for event in events if event.duplicates]
    if not guilty:
        return section("Events", "No event was followed by a duplicate.")
    shown = sorted(guilty, key=lambda event: -event.duplicates)[:_EVENTS_PLOTTED]
    shown.sort(key=lambda event: (event.consumer_group, event.event_index))
    is_one_group = len({event.consumer_group for event in shown}) == 1

    def name(event: EventFigures) -> str:
        number = f"{event.event_index}. {event.event}" if event.event_index else event.event
        return number if is_one_group else f"{event.consumer_group}: {number}"

    plot = bar_chart(
        [Bar(name(event), float(event.duplicates)) for event in shown],
        title="Duplicates by event",
        description="A bar an event: duplicates from it to the next one.",
    )
    rows = [
        [
            event.consumer_group,
            f"{event.event_index}. {event.event}" if event.event_index else event.event,
            event.at.strftime("%H:%M:%S.%f")[:-3] if event.at else "",
            event.strategy,
            f"{event.deliveries:,}",
            f"{event.duplicates:,}",
            f"{event.by_same_member:,}",
            f"{event.queues:,}",
        ]
        for event in events
    ]
    header = ["group", "event", "at (UTC)", "strategy", "deliveries", "duplicates",
              "same member", "queues"]  # fmt: skip
    return section(
        "Events",
        figure(plot, caption="Duplicates from each event to the next"),
        table(header, rows, numeric=[4, 5, 6, 7]),
        "Same member: it had the message before itself, so nothing moved, or it moved away and "
        "back. Queues: those that duplicates are of.",
    )


def _strategies(strategies: Sequence[StrategyFigures]) -> Markup:
    rows = [
        [
            each.strategy,
            f"{each.events:,}",
            f"{each.deliveries:,}",
            f"{each.duplicates:,}",
            format_number(round(each.duplicates / each.events, 1)) if each.events else "",
        ]
        for each in strategies
    ]
    header = ["strategy", "events", "deliveries", "duplicates", "an event"]
    return section("Strategies", table(header, rows, numeric=[1, 2, 3, 4]))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f} of a hundred" if whole else ""
