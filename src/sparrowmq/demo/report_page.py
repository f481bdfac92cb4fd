"""The report: the outcome of a run as one HTML page, a function of the figures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sparrowmq.demo.outcome import DemoOutcome, GroupFigure
from sparrowmq.doctor.owner_history import DURATION_TITLES, describe_durations
from sparrowmq.report import (
    Band,
    BandRow,
    Bar,
    Cell,
    Markup,
    PlotMark,
    Series,
    Table,
    Tile,
    band_chart,
    bar_figure,
    figure,
    line_chart,
    list_checks,
    list_tiles,
    page,
    section,
    tag,
    value_table,
)
from sparrowmq.words import count_of
from sparrowmq.words.amounts import format_duration

_SECONDS = "seconds since the demo began"
_MIB = 1024 * 1024


def render_report(outcome: DemoOutcome) -> str:
    """Return the whole page."""
    production = outcome.production
    kind = "a run limited to the first" if production.is_limited else "all"
    failed = sum(not check.holds for check in outcome.checks)
    return page(
        f"SparrowMQ: the main job on {production.flights:,} flights",
        list_checks(
            outcome.checks,
            good=f"All {len(outcome.checks)} conditions hold",
            bad=f"{failed} of {len(outcome.checks)} conditions fail",
        ),
        _tiles(outcome),
        _production(outcome),
        _balance(outcome),
        _twins(outcome),
        _backlog(outcome),
        _pipeline(outcome),
        section("What the batch job answers", carriers_table(outcome)),
        _machine(outcome),
        lead=f"Run of {outcome.begun}: {kind} {production.flights:,} flights that left New York "
        f"City in 2013, on {outcome.machine['cores']} cores. Every figure here was computed from "
        "what happened in this run, and stands in figures.json too.",
    )


def _tiles(outcome: DemoOutcome) -> Markup:
    production, events, twins = outcome.production, outcome.events, outcome.twins
    settled = [event.rebalance.settled_ms for event in events[1:]]
    worst = None if None in settled else max((ms for ms in settled if ms is not None), default=0)
    memory = outcome.memory_peak_mib
    return list_tiles(
        [
            Tile(
                f"{production.flights:,}",
                "flights produced",
                f"{production.sending_rate:,.0f} a second while sending",
            ),
            Tile(
                format_duration(worst, none="never"),
                "to one owner a queue",
                "the slowest of: leave, join, kill -9",
            ),
            Tile(
                f"{sum(event.duplicates for event in events):,}",
                "messages delivered twice",
                f"of {outcome.first_group.deliveries:,} deliveries",
            ),
            Tile(
                f"{len(twins.unowned)} of {len(twins.backlog_at_remedy)}",
                "queues that nobody owned",
                "while two members shared an id",
            ),
            Tile(
                format_duration(outcome.duration_ms),
                "from start to verified",
                "" if memory is None else f"{memory / 1024:.1f} GiB of memory at most",
            ),
        ]
    )


def _production(outcome: DemoOutcome) -> Markup:
    production, found = outcome.production, outcome.table
    bars = [Bar(f"queue {queue_id}", count) for queue_id, count in enumerate(found.per_queue)]
    elapsed = format_duration(production.end_ms - production.begin_ms)
    return section(
        "Producing: each flight once, each aircraft in one queue",
        f"{production.flights:,} flights in {elapsed}, {production.rate:,.0f} a second. The pace "
        f"was held at {production.rate_max:,} a second so that messages flow while members come "
        f"and go; while sending, the producer reached {production.sending_rate:,.0f} a second, "
        "each batch flushed to the disk before it was acknowledged.",
        f"The sharding key is the aircraft: the legs of {found.order.aircraft:,} aircraft stand in "
        f"{len(bars)} queues, each aircraft's in one.",
        bar_figure("Flights per queue: the hash of the aircraft decides", bars),
    )


def events_table(outcome: DemoOutcome) -> Table:
    """Return the table of the first group's events."""
    header = [
        *("event", *DURATION_TITLES, "moved", "delivered twice"),
        *("at", "produced until the next", "shares after"),
    ]
    rows: list[list[Cell]] = [
        [
            event.name,
            *describe_durations(event.rebalance),
            len(event.rebalance.moves),
            event.duplicates,
            f"{outcome.seconds(event.at_ms):.1f} s",
            event.produced_meanwhile,
            "/".join(str(len(queues)) for queues in event.queues_after.values()),
        ]
        for event in outcome.events
    ]
    return Table(header, rows, "The first group, event by event")


def _balance(outcome: DemoOutcome) -> Markup:
    group = outcome.first_group
    marks = [PlotMark(outcome.seconds(event.at_ms), event.name) for event in outcome.events]
    return section(
        "The group keeps its balance",
        f"Group {group.group} divides the queues by strategy AVG: members in the order of their "
        "ids take neighbouring queues, equally many. While messages flow, one member leaves "
        "gracefully, one joins, and one is killed with kill -9.",
        _ownership(outcome, group, marks=marks, caption="Who owned which queue"),
        events_table(outcome),
        "Delivered twice counts every delivery of a message after its first: the job duplicates "
        "counts them in the members' logbooks.",
        _consumption(outcome),
    )


def _consumption(outcome: DemoOutcome) -> Markup:
    members = list(outcome.first_group.members)
    counts: Counter[tuple[int, str]] = Counter()
    for row in outcome.answers.consumption:
        counts[row.queue_id, row.member] += row.deliveries
    rows = []
    for queue_id in range(len(outcome.table.per_queue)):
        by_member = [counts[queue_id, member] or None for member in members]
        rows.append((f"queue {queue_id}", *by_member, sum(filter(None, by_member))))
    return value_table(
        Table(
            ["", *(f"by {member}" for member in members), "deliveries"],
            rows,
            caption="Consumption per queue, by Spark's batch job",
        )
    )


def twins_table(outcome: DemoOutcome) -> Table:
    """Return the table of the queues that the twins had taken."""
    twins = outcome.twins
    rows = [
        (
            f"queue {queue_id}",
            " and ".join(n for n, ids in twins.taken.items() if queue_id in ids) or "nobody",
            behind,
        )
        for queue_id, behind in enumerate(twins.backlog_at_remedy)
    ]
    caption = "What two members with one client id had taken, and how far each queue was behind"
    return Table(["", "taken by", "messages behind"], rows, caption)


def describe_remedy(outcome: DemoOutcome) -> str:
    """Say in a sentence what unique client ids changed."""
    twins = outcome.twins
    return (
        "With it each queue had one owner after "
        f"{format_duration(twins.healed_ms - twins.remedy_ms)}, and the backlog was zero after "
        f"{format_duration(twins.drained_ms - twins.remedy_ms)}."
    )


def _twins(outcome: DemoOutcome) -> Markup:
    twins, group = outcome.twins, outcome.second_group
    marks = [
        PlotMark(outcome.seconds(twins.begin_ms), "both twins run"),
        PlotMark(outcome.seconds(twins.remedy_ms), "the remedy"),
    ]
    remedies = [client_id for name, client_id in group.members.items() if name not in twins.taken]
    return section(
        "The failure: two members with one client id",
        f"Two containers on Docker's host network had the same client id, {twins.cid_all[0]}, as "
        "RocketMQ 4.7 made it from the address and the process number. Each member finds itself "
        "at the first place of the sorted list, so both take the first share, and nobody the "
        "second.",
        tag(
            "p",
            "The client ids that the broker lists for the group (cidAll in RocketMQ's source): ",
            *_code_list(twins.cid_all),
        ),
        _ownership(outcome, group, marks=marks, caption="Two owners, or none: until the remedy"),
        twins_table(outcome),
        f"While the twins ran, {outcome.twin_duplicates:,} messages were delivered twice, and the "
        f"queues that nobody owned fell {sum(twins.backlog_at_remedy):,} messages behind.",
        "The remedy is the instance name that RocketMQ has made since 4.9, process number and "
        f"nanoseconds. {describe_remedy(outcome)}",
        tag("p", "Their client ids: ", *_code_list(remedies)),
        _describe_by_message(outcome),
    )


def _describe_by_message(outcome: DemoOutcome) -> str:
    """Say what two members with one client id did with the same backlog by messages."""
    twins = outcome.twins
    shares = " and ".join(f"{count:,}" for count in twins.by_message.values())
    return (
        "Beside it, two members with the twins' one client id consumed the same backlog once more, "
        'by messages (balance="messages"). There no queue has an owner, so no client id decides '
        f"who gets it: they took {shares} messages, and all queues were drained after "
        f"{format_duration(twins.by_message_drained_ms - twins.remedy_ms)}."
    )


def _code_list(texts: Sequence[str]) -> list[Markup]:
    parts: list[Markup] = []
    for text in texts:
        parts += [tag("code", text), Markup(", ")]
    return parts[:-1]


def _backlog(outcome: DemoOutcome) -> Markup:
    twins, second = outcome.twins, outcome.second_group
    begin_ms = min((span.start_ms for span in second.spans), default=0)
    late = [sample for sample in outcome.lags if sample.at_ms >= begin_ms]
    halves: dict[bool, list[tuple[float, float]]] = {
        is_unowned: [
            (
                outcome.seconds(sample.at_ms),
                sum(n for i, n in enumerate(sample.second) if (i in twins.unowned) == is_unowned),
            )
            for sample in late
        ]
        for is_unowned in (True, False)
    }
    first = [(outcome.seconds(sample.at_ms), sum(sample.first)) for sample in outcome.lags]
    by_message = [
        (outcome.seconds(sample.at_ms), sum(sample.by_message))
        for sample in outcome.lags
        if sample.by_message
    ]
    happened = (
        *((event.at_ms, event.name) for event in outcome.events[1:]),
        (twins.begin_ms, "both twins run"),
        (outcome.production.end_ms, "all produced"),
        (twins.remedy_ms, "the remedy"),
    )
    plot = line_chart(
        [
            Series(outcome.first_group.group, first, tone="c1"),
            Series(f"{second.group}: the twins' queues", halves[False], tone="c2"),
            Series(f"{second.group}: nobody's", halves[True], tone="danger", is_dashed=True),
            Series("by messages", by_message, tone="c3"),
        ],
        title="Backlog of the groups over time",
        description="Four lines: messages that each group has not committed yet.",
        x_label=_SECONDS,
        y_label="messages not yet committed",
        marks=[PlotMark(outcome.seconds(at_ms), name) for at_ms, name in happened],
    )
    caption = "Backlog of the groups: it stays where nobody owns the queues, until the remedy"
    return section("How far the groups were behind", figure(plot, caption=caption))


def _pipeline(outcome: DemoOutcome) -> Markup:
    ingest, found = outcome.ingest, outcome.table
    if ingest.kill is None:
        kill = "Spark was not killed in mid-batch: every batch was faster."
    else:
        kill = (
            f"At {outcome.seconds(ingest.kill.at_ms):.1f} s, in the middle of batch "
            f"{ingest.kill.batch_id}, Spark with its Python workers was killed with kill -9, with "
            f"{count_of(ingest.kill.files, 'data file')} of that batch on the disk. A new process "
            "went on from the checkpoint."
        )
    rows = [
        (
            f"batch {batch.batch_id}",
            batch.messages,
            f"{outcome.seconds(batch.at_ms):.1f} s",
            format_duration(batch.seconds * 1000),
        )
        for batch in ingest.batches
    ]
    return section(
        "The pipeline: exactly once for any Parquet reader",
        f"The job ingest read the topic in {len({b.batch_id for b in ingest.batches})} "
        f"micro-batches, following the producer. {kill}",
        f"A reader that knows nothing of Spark (Arrow) finds {found.rows:,} rows, "
        f"{found.distinct:,} distinct by broker, queue and offset, in "
        f"{count_of(found.files, 'file')}, {found.size_bytes / _MIB:,.1f} MiB, with "
        f"{len(found.columns)} columns: {', '.join(found.columns)}.",
        Table(["", "messages", "written at", "took"], rows),
    )


def carriers_table(outcome: DemoOutcome) -> Table:
    """Return the table of the carriers, by Spark's batch job."""

    def minutes(delay: float | None) -> str:
        return "unknown" if delay is None else f"{delay:.1f}"

    rows = [
        (
            row.carrier,
            outcome.carriers.get(row.carrier, ""),
            row.flights,
            minutes(row.mean_departure_delay),
            minutes(row.mean_arrival_delay),
        )
        for row in outcome.answers.carriers
    ]
    return Table(
        ["", "carrier", "flights", "mean departure delay", "mean arrival delay"],
        rows,
        "Flights and mean delays in minutes, by Spark; flights that were cancelled have none",
    )


def _machine(outcome: DemoOutcome) -> Markup:
    ingest, memory = outcome.ingest, outcome.memory_peak_mib
    session = ingest.sessions[0]
    times = [(stage.name, stage.begin_ms, stage.end_ms) for stage in outcome.stages]
    times.append(("Spark ingests, beside", session.at_ms, ingest.end_ms))
    facts = {
        **outcome.machine,
        "Spark": session.spark_version,
        "Java": session.java,
        "memory at most, all processes": "unknown" if memory is None else f"{memory:,} MiB",
        "processor time, all processes": f"{sum(outcome.cpu_s.values()):,.0f} s",
        "in total": format_duration(outcome.duration_ms),
    }
    stages = [
        (name, f"{outcome.seconds(begin_ms):.1f} s", format_duration(end_ms - begin_ms))
        for name, begin_ms, end_ms in times
    ]
    return section(
        "Time, memory, machine",
        Table(["", "begins at", "takes"], stages),
        Table(["", ""], list(facts.items())),
        Table(["process", "processor seconds"], list(outcome.cpu_s.items())),
    )


def _ownership(
    outcome: DemoOutcome, group: GroupFigure, *, marks: Sequence[PlotMark], caption: str
) -> Markup:
    tones = {name: f"c{place}" for place, name in enumerate(group.members, 1)}
    bands: dict[int, list[Band]] = {}
    for span in group.spans:
        begin_s, end_s = outcome.seconds(span.start_ms), outcome.seconds(span.end_ms)
        band = Band(begin_s, end_s, span.owners or ())
        bands.setdefault(span.queue.queue_id, []).append(band)
    everything = [band for row in bands.values() for band in row]
    plot = band_chart(
        [BandRow(f"queue {queue_id}", row) for queue_id, row in sorted(bands.items())],
        title=caption,
        description="A row a queue; bands show which member owned it, hatches nobody or two.",
        x_label=_SECONDS,
        tones=tones,
        marks=marks,
        x_range=(
            min((band.start for band in everything), default=0.0),
            max((band.end for band in everything), default=1.0),
        ),
    )
    legend = [*tones.items(), ("nobody", "none"), ("two owners", "both")]
    return figure(plot, caption=caption, legend=legend)
