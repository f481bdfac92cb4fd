"""The page of the job `ingest`: the messages, those that do not fit, and the times of batches.

Tests: pipeline/test_ingest.py.
"""

from __future__ import annotations

from sparrowmq.pipeline.ingest.job import IngestResult
from sparrowmq.report import (
    Bar,
    Check,
    Markup,
    Series,
    Table,
    Tile,
    bar_figure,
    figure,
    line_chart,
    list_checks,
    list_tiles,
    page,
    section,
)
from sparrowmq.words import count_of
from sparrowmq.words.amounts import format_compact, format_number

# More bars are unreadable; the newest dates are shown.
_DATES_SHOWN = 60
_GAPS_SHOWN = 20


def render(result: IngestResult) -> str:
    """Return the HTML file."""
    settings, counts = result.settings, result.counts
    seconds = sum(batch.seconds for batch in result.batches)
    messages = sum(batch.messages for batch in result.batches)
    return page(
        f"Ingested: {settings.topic}",
        _check(result),
        list_tiles(
            [
                Tile(f"{counts.rows:,}", "rows in the table"),
                Tile(
                    f"{counts.put_aside:,}",
                    "messages in quarantine" if settings.dlq_group is None else "dead letters",
                ),
                Tile.of(len(counts.by_date), "date"),
                Tile.of(result.files, "file", f"{format_compact(result.size / 1e6)} MB"),
                Tile(
                    f"{result.batch_count:,}",
                    "batches of this run",
                    f"{messages / seconds:,.0f} messages/s" if seconds else "nothing was new",
                ),
            ]
        ),
        _gaps(result),
        _dates(result),
        _put_aside(result),
        _batches(result),
        lead=f"Topic {settings.topic}, a row a message, partitioned by the date of "
        f"{settings.date_column}.",
    )


def main_table(result: IngestResult) -> Table:
    """Return the table of messages put aside, by reason."""
    counts, settings = result.counts, result.settings
    rows = [(each.reason, each.messages, each.example) for each in counts.reasons]
    caption = f"{count_of(counts.rows, 'row')} of {count_of(len(counts.by_date), 'date')}"
    return Table(
        ["put aside because of", "messages", "one of the bodies"],
        rows or [("nothing", 0, "")],
        f"{caption} in {settings.out}" + ("" if _is_complete(result) else "; messages are missing"),
        rows_max=40,
    )


def _is_complete(result: IngestResult) -> bool:
    return result.is_filtered or not result.counts.gap_count


def _check(result: IngestResult) -> Markup:
    counts = result.counts
    if result.is_filtered:
        return section(
            "Nothing can be said about missing messages",
            "A filter leaves messages out, so offsets do not say how many must come. "
            f"{count_of(counts.messages, 'message')} came.",
        )
    if counts.has_assumed_letters and not counts.gap_count:
        return section(
            "Nothing can be said about messages that were missing earlier",
            "The counts were lost, and dead letters are not counted again: up to then each offset "
            "without a row counts as a dead letter.",
        )
    kept = "quarantine" if result.settings.dlq_group is None else "dead letters"
    check = Check(
        f"Offsets read = rows of the table + {kept}",
        counts.gap_count == 0,
        f"{counts.offsets:,} and {counts.rows:,} + {counts.put_aside:,}; "
        f"{count_of(counts.gap_count, 'queue')} not whole"
        if counts.gap_count
        else f"{counts.offsets:,} = {counts.rows:,} + {counts.put_aside:,}",
    )
    return list_checks(
        [check],
        good="Every message that was read is in the table or put aside, once.",
        bad="Messages are missing, or came more than once.",
    )


def _gaps(result: IngestResult) -> Markup:
    counts = result.counts
    if _is_complete(result):
        return Markup("")
    rows = [
        (
            *(f"{gap.topic} {gap.broker_name}:{gap.queue_id}", gap.batch_id),
            *(gap.start, gap.end, gap.end - gap.start, gap.found),
        )
        for gap in reversed(counts.gaps)
    ]
    return section(
        "Queues that did not come whole",
        "The broker had removed messages before they were read, and option failOnDataLoss is "
        "false; or messages cannot be read, and option unreadablePolicy is skip or dead-letter.",
        Table(
            ["queue", "batch", "from offset", "to before", "messages", "of which came"],
            rows,
            rows_max=_GAPS_SHOWN,
        ),
    )


def _dates(result: IngestResult) -> Markup:
    by_date = list(result.counts.by_date.items())
    if not by_date:
        return section("Rows by date", "The table is empty: nothing has been ingested yet.")
    left_out = len(by_date) - _DATES_SHOWN
    note = [f"Earlier dates are not shown: {left_out:,}."] if left_out > 0 else []
    bars = [Bar(date, float(count)) for date, count in by_date[-_DATES_SHOWN:]]
    return section("Rows by date", *note, bar_figure("Rows of each date", bars))


def _put_aside(result: IngestResult) -> Markup:
    group, counts = result.settings.dlq_group, result.counts
    title = "Quarantine" if group is None else "Dead letters"
    if not counts.put_aside:
        return section(title, "Every body fits the schema.")
    where = (
        "They are kept with body and reason in the table quarantine"
        if group is None
        else f"They were sent to topic %DLQ%{group}, each with the reason as a property"
    )
    return section(
        title,
        f"These messages do not fit the schema. {where}; the offsets are behind them.",
        main_table(result),
    )


def _batches(result: IngestResult) -> Markup:
    batches = result.batches
    if not batches:
        return section("Batches of this run", "There was nothing new to ingest.")
    total, points, elapsed = 0, [(0.0, 0.0)], 0.0
    for batch in batches:
        elapsed += batch.seconds
        total += batch.messages
        points.append((round(elapsed, 3), float(total)))
    plot = line_chart(
        [Series("messages", points)],
        title="Messages ingested",
        description="Messages written, against the seconds spent writing.",
        x_label="seconds spent on batches",
        y_label="messages",
    )
    left_out = result.batch_count - len(batches)
    note = (
        [f"Earlier batches are not shown, and are not in the speed: {left_out:,}."]
        if left_out
        else []
    )
    longest = max(batches, key=lambda batch: batch.seconds)
    return section(
        "Batches of this run",
        f"The longest was batch {longest.batch_id}: {count_of(longest.messages, 'message')} in "
        f"{format_number(longest.seconds)} s.",
        *note,
        figure(plot, caption="Messages written"),
    )
