"""The page of the job `ingest`: what came, what did not fit, and how long batches took."""

from __future__ import annotations

from collections.abc import Sequence

from sparrowmq.pipeline.ingest import Batch, Contents, IngestSettings
from sparrowmq.report import (
    Bar,
    Check,
    Markup,
    Series,
    Tile,
    bar_chart,
    figure,
    line_chart,
    list_checks,
    list_tiles,
    page,
    section,
    table,
)
from sparrowmq.report.scale import format_compact, format_number

# More bars than this cannot be read; the newest dates are shown.
_DATES_SHOWN = 60
_REASONS_SHOWN = 40


def ingest_page(settings: IngestSettings, batches: Sequence[Batch], contents: Contents) -> str:
    """Return the HTML file.

    Args:
        settings: what was ingested.
        batches: those of this run.
        contents: what the tables hold now.
    """
    seconds = sum(batch.seconds for batch in batches)
    rows = sum(batch.rows for batch in batches)
    rate = f"{rows / seconds:,.0f} messages/s" if seconds else "nothing was new"
    return page(
        f"Ingested: {settings.topic}",
        list_checks(
            [
                Check(
                    "Rows in the table = distinct (topic, broker, queue, offset)",
                    contents.rows == contents.distinct,
                    f"{contents.rows:,} = {contents.distinct:,}"
                    if contents.rows == contents.distinct
                    else f"{contents.rows:,} and {contents.distinct:,}",
                )
            ],
            good="Every message is in the table once.",
            bad="Some messages are in the table more than once.",
        ),
        list_tiles(
            [
                Tile(f"{contents.rows:,}", "rows in the table"),
                _put_aside(settings, batches, contents),
                Tile(f"{len(contents.by_date):,}", "dates"),
                Tile(f"{contents.files:,}", "files", f"{format_compact(contents.size / 1e6)} MB"),
                Tile(f"{len(batches):,}", "batches of this run", rate),
            ]
        ),
        _dates(contents),
        _dead_letters(settings, batches) if settings.dlq_group else _reasons(contents),
        _batches(batches),
        lead=f"Topic {settings.topic}, a row a message, partitioned by the date of "
        f"{settings.date_column}.",
    )


def _put_aside(settings: IngestSettings, batches: Sequence[Batch], contents: Contents) -> Tile:
    if settings.dlq_group is None:
        return Tile(f"{contents.quarantined:,}", "messages in quarantine")
    return Tile(f"{sum(batch.quarantined for batch in batches):,}", "dead letters of this run")


def _dates(contents: Contents) -> Markup:
    if not contents.by_date:
        return section("Rows by date", "The table is empty: nothing has been ingested yet.")
    shown = contents.by_date[-_DATES_SHOWN:]
    left_out = len(contents.by_date) - len(shown)
    plot = bar_chart(
        [Bar(date, float(count)) for date, count in shown],
        title="Rows by date",
        description="A bar a date.",
    )
    note = [f"The {left_out:,} dates before are not shown."] if left_out else []
    return section("Rows by date", *note, figure(plot, caption="Rows of each date"))


def _dead_letters(settings: IngestSettings, batches: Sequence[Batch]) -> Markup:
    count = sum(batch.quarantined for batch in batches)
    return section(
        "Dead letters",
        f"{count:,} messages of this run do not fit the schema. They were sent to topic "
        f"%DLQ%{settings.dlq_group}, each with the reason as a property.",
    )


def _reasons(contents: Contents) -> Markup:
    if not contents.reasons:
        return section("Quarantine", "Every body fits the schema.")
    shown = contents.reasons[:_REASONS_SHOWN]
    left_out = len(contents.reasons) - len(shown)
    note = [f"{left_out:,} rarer reasons are not shown."] if left_out else []
    return section(
        "Quarantine",
        "These messages do not fit the schema. They are kept with body and reason in the table "
        "quarantine; the offsets are behind them.",
        table(
            ["reason", "messages"],
            [[reason.reason, f"{reason.messages:,}"] for reason in shown],
            numeric=[1],
        ),
        *note,
    )


def _batches(batches: Sequence[Batch]) -> Markup:
    if not batches:
        return section("Batches of this run", "There was nothing new to ingest.")
    total, points, elapsed = 0, [(0.0, 0.0)], 0.0
    for batch in batches:
        elapsed += batch.seconds
        total += batch.rows
        points.append((round(elapsed, 3), float(total)))
    plot = line_chart(
        [Series("messages", points)],
        title="Messages ingested",
        description="Messages written, against the seconds spent writing.",
        x_label="seconds spent on batches",
        y_label="messages",
    )
    longest = max(batches, key=lambda batch: batch.seconds)
    return section(
        "Batches of this run",
        f"The longest was batch {longest.batch_id}: {longest.rows:,} messages in "
        f"{format_number(longest.seconds)} s.",
        figure(plot, caption="Messages written"),
    )
