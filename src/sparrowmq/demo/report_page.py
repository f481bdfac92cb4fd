"""The report: the outcome of a run as one HTML page, a function of the figures. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparrowmq.demo.outcome import DemoOutcome, GroupFigure
from sparrowmq.doctor.owner_history import DURATION_TITLES, describe_durations
from sparrowmq.report import (
    Band,
    BandRow,
    Bar,
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
    table,
    tag,
    value_table,
)
from sparrowmq.report.plot import text_width
from sparrowmq.words import count_of
from sparrowmq.words.amounts import format_duration

_SECONDS = "seconds since the demo began"
_MIB = 1024 * 1024


def render_report(outcome: DemoOutcome) -> str:
    """Return the whole page."""
    production, machine = outcome.production, outcome.machine
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
        _answers(outcome),
        _machine(outcome),
        lead=f"Run of {outcome.begun}: {kind} {production.flights:,} flights that left New York "
        f"City in 2013, on {machine.cpu_count} cores. Every figure here was computed from what "
        "happened in this run, and stands in figures.json too.",
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


def _balance(outcome: DemoOutcome) -> Markup:
    group, events = outcome.first_group, outcome.events
    rows = [
        [
            event.name,
            f"{outcome.seconds(event.at_ms):.1f} s",
            *describe_durations(event.rebalance),
            str(len(event.rebalance.moves)),
            f"{event.produced_meanwhile:,}",
            f"{event.duplicates:,}",
            "/".join(str(len(queues)) for queues in event.queues_after.values()),
        ]
        for event in events
    ]
    header = [
        *("event", "at", *DURATION_TITLES, "queues moved"),
        *("produced until the next", "delivered twice", "shares after"),
    ]
    ours = [event.duplicates for event in events]
    sparks = [event.duplicates_by_spark for event in events]
    agreement = (
        "both counts agree."
        if ours == sparks
        else f"the counts differ, {ours} here and {sparks} by Spark."
    )
    marks = [PlotMark(outcome.seconds(event.at_ms), event.name) for event in events]
    return section(
        "The group keeps its balance",
        f"Group {group.group} divides the queues by {_explain(group.strategy)}. While messages "
        "flow, one member leaves gracefully, one joins, and one is killed with kill -9.",
        _ownership(outcome, group, marks=marks, caption="Who owned which queue"),
        table(header, rows, caption="Each event, until the next one", numeric=range(1, 9)),
        "Delivered twice counts every delivery of a message after its first. It was counted from "
        f"the members' logbooks twice, here and by Spark: {agreement}",
        _consumption(outcome),
    )


def _explain(strategy: str) -> str:
    """Return a strategy's name, with an explanation of RocketMQ's default."""
    if strategy != "AVG":
        return strategy
    return "strategy AVG: members in the order of their ids take neighbouring queues, equally many"


def _consumption(outcome: DemoOutcome) -> Markup:
    members = [member.name for member in outcome.first_group.members]
    counts = {(row.queue_id, row.member): row.deliveries for row in outcome.answers.consumption}
    rows = []
    for queue_id in range(len(outcome.table.per_queue)):
        by_member = [counts.get((queue_id, member)) for member in members]
        rows.append((f"queue {queue_id}", *by_member, sum(filter(None, by_member))))
    return value_table(
        Table(
            ["", *(f"by {member}" for member in members), "deliveries"],
            rows,
            caption="Consumption per queue, by Spark's batch job",
        )
    )


def _twins(outcome: DemoOutcome) -> Markup:
    twins, group = outcome.twins, outcome.second_group
    marks = [
        PlotMark(outcome.seconds(twins.begin_ms), "both twins run"),
        PlotMark(outcome.seconds(twins.remedy_ms), "the remedy"),
    ]
    rows = [
        (
            f"queue {queue_id}",
            " and ".join(n for n, ids in twins.taken.items() if queue_id in ids) or "nobody",
            behind,
        )
        for queue_id, behind in enumerate(twins.backlog_at_remedy)
    ]
    remedies = [member.client_id for member in group.members if member.name not in twins.taken]
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
        value_table(
            Table(
                ["", "taken by", "messages behind"],
                rows,
                "What the twins had taken, and how far each queue was behind, at the remedy",
            )
        ),
        f"While the twins ran, {outcome.twin_duplicates:,} messages were delivered twice, and the "
        f"queues that nobody owned fell {sum(twins.backlog_at_remedy):,} messages behind.",
        "The remedy is the instance name that RocketMQ has made since 4.9, process number and "
        "nanoseconds. With it each queue had one owner after "
        f"{format_duration(twins.healed_ms - twins.remedy_ms)}, and the backlog was zero "
        f"after {format_duration(twins.drained_ms - twins.remedy_ms)}.",
        tag("p", "Their client ids: ", *_code_list(remedies)),
    )


def _code_list(texts: Sequence[str]) -> list[Markup]:
    parts: list[Markup] = []
    for text in texts:
        parts += [tag("code", text), Markup(", ")]
    return parts[:-1]


def _backlog(outcome: DemoOutcome) -> Markup:
    twins, first, second = outcome.twins, outcome.first_group, outcome.second_group
    begin_ms = min((span.start_ms for span in second.spans), default=0)
    late = [sample for sample in outcome.lags if sample.at_ms >= begin_ms]
    marks = [PlotMark(outcome.seconds(event.at_ms), event.name) for event in outcome.events[1:]]
    ends = (
        (twins.begin_ms, "both twins run"),
        (outcome.production.end_ms, "all produced"),
        (twins.remedy_ms, "the remedy"),
    )
    marks += [PlotMark(outcome.seconds(at_ms), name) for at_ms, name in ends]

    def backlog(is_shown: Mapping[bool, bool]) -> list[tuple[float, float]]:
        return [
            (
                outcome.seconds(sample.at_ms),
                sum(n for i, n in enumerate(sample.second) if is_shown[i in twins.unowned]),
            )
            for sample in late
        ]

    all_first = [(outcome.seconds(sample.at_ms), sum(sample.first)) for sample in outcome.lags]
    both = line_chart(
        [
            Series(first.group, all_first, tone="c1"),
            Series(second.group, backlog({True: True, False: True}), tone="c2"),
        ],
        title="Backlog of both groups over time",
        description="Two lines: messages that each group has not committed yet.",
        x_label=_SECONDS,
        y_label="messages not yet committed",
        marks=marks,
    )
    orphaned = backlog({True: True, False: False})
    halves = line_chart(
        [
            Series("nobody's queues", orphaned, tone="danger", is_dashed=True),
            Series("the twins' queues", backlog({True: False, False: True}), tone="c2"),
        ],
        title="Backlog of the second group by who owned the queues",
        description="Two lines: queues that the twins took, and queues that nobody owned.",
        x_label=_SECONDS,
        y_label="messages not yet committed",
        marks=marks[-3:],
    )
    return section(
        "How far the groups were behind",
        figure(both, caption="Backlog of both groups: the second starts with everything to read"),
        figure(halves, caption="The second group's backlog stays where nobody owns the queues"),
    )


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
        [
            str(batch.batch_id),
            f"{batch.messages:,}",
            f"{outcome.seconds(batch.at_ms):.1f} s",
            format_duration(batch.seconds * 1000),
        ]
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
        table(
            ["batch", "messages", "written at", "took"],
            rows,
            caption="Each batch of the table",
            numeric=[1, 2, 3],
        ),
    )


def _answers(outcome: DemoOutcome) -> Markup:
    carriers = outcome.answers.carriers
    names = outcome.carriers
    bars = [Bar(f"{names.get(row.carrier, '')} {row.carrier}", row.flights) for row in carriers]
    rows = [
        [
            row.carrier,
            names.get(row.carrier, ""),
            f"{row.flights:,}",
            *(
                "unknown" if minutes is None else f"{minutes:.1f}"
                for minutes in (row.mean_departure_delay, row.mean_arrival_delay)
            ),
        ]
        for row in carriers
    ]
    return section(
        "What the batch job answers",
        bar_figure("Rows per carrier in the Parquet table", bars, tone="c3"),
        table(
            ["", "carrier", "flights", "mean departure delay", "mean arrival delay"],
            rows,
            caption="Flights and mean delays in minutes; flights that were cancelled have none",
            numeric=[2, 3, 4],
        ),
    )


def _machine(outcome: DemoOutcome) -> Markup:
    machine, ingest = outcome.machine, outcome.ingest
    session = ingest.sessions[0]
    times = [(stage.name, stage.begin_ms, stage.end_ms) for stage in outcome.stages]
    times.append(("Spark ingests, beside", session.at_ms, ingest.end_ms))
    bands = [
        BandRow(
            name,
            [
                Band(
                    outcome.seconds(begin_ms),
                    outcome.seconds(end_ms),
                    (format_duration(end_ms - begin_ms),),
                )
            ],
        )
        for name, begin_ms, end_ms in times
    ]
    plot = band_chart(
        bands,
        title="Stages over time",
        description="One band a stage.",
        x_label=_SECONDS,
        tones={},
        x_range=(0.0, outcome.seconds(outcome.end_ms)),
        left=max(text_width(band.label) for band in bands) + 20,
    )
    memory = "unknown" if outcome.memory_peak_mib is None else f"{outcome.memory_peak_mib:,} MiB"
    facts = [
        ["cores", str(machine.cpu_count)],
        ["system", machine.system],
        ["Python", machine.python],
        ["SparrowMQ", machine.sparrowmq],
        ["Spark", session.spark_version],
        ["Java", session.java],
        ["memory at most, all processes", memory],
        ["processor time, all processes", f"{sum(outcome.cpu_s.values()):,.0f} s"],
        ["in total", format_duration(outcome.duration_ms)],
    ]
    return section(
        "Time, memory, machine",
        figure(plot, caption="What ran when"),
        table(["", ""], facts),
        table(
            ["process", "processor time"],
            [[name, f"{cpu_s:.1f} s"] for name, cpu_s in outcome.cpu_s.items()],
            caption="Processor time by process",
            numeric=[1],
        ),
    )


def _ownership(
    outcome: DemoOutcome, group: GroupFigure, *, marks: Sequence[PlotMark], caption: str
) -> Markup:
    tones = {member.name: f"c{place}" for place, member in enumerate(group.members, 1)}
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
