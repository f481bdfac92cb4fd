"""The report: the outcome of a run as one HTML page. Pure: a function of the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparrowmq.demo.outcome import GroupFigure, Outcome
from sparrowmq.report import (
    Band,
    BandRow,
    Bar,
    Check,
    Mark,
    Markup,
    Series,
    Tile,
    band_chart,
    bar_chart,
    figure,
    line_chart,
    list_checks,
    list_tiles,
    page,
    section,
    table,
    tag,
)
from sparrowmq.report.scale import format_duration_ms, format_number

_SECONDS = "seconds since the demo began"
_MIB = 1024 * 1024


def render_report(outcome: Outcome) -> str:
    """Return the whole page."""
    production, machine = outcome.production, outcome.machine
    kind = "a run limited to the first" if production.is_limited else "all"
    lead = (
        f"Run of {outcome.begun}: {kind} {production.flights:,} flights that left New York City "
        f"in 2013, on {machine.cpu_count} cores. Every figure here was computed from what happened "
        "in this run, and stands in figures.json too."
    )
    return page(
        f"SparrowMQ: the main job on {production.flights:,} flights",
        _checks(outcome),
        _tiles(outcome),
        _production(outcome),
        _balance(outcome),
        _twins(outcome),
        _backlog(outcome),
        _pipeline(outcome),
        _answers(outcome),
        _machine(outcome),
        lead=lead,
    )


def _checks(outcome: Outcome) -> Markup:
    checks = [Check(check.name, check.holds, check.found) for check in outcome.checks]
    failed = sum(not check.holds for check in checks)
    return list_checks(
        checks,
        good=f"All {len(checks)} conditions hold",
        bad=f"{failed} of {len(checks)} conditions fail",
    )


def _tiles(outcome: Outcome) -> Markup:
    production, events, twins = outcome.production, outcome.events, outcome.twins
    settled = [event.settled_ms for event in events[1:]]
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
                format_duration_ms(worst),
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
                format_duration_ms(outcome.duration_s * 1000),
                "from start to verified",
                "" if memory is None else f"{memory / 1024:.1f} GiB of memory at most",
            ),
        ]
    )


def _production(outcome: Outcome) -> Markup:
    production = outcome.production
    bars = [Bar(f"queue {queue_id}", count) for queue_id, count in enumerate(production.per_queue)]
    elapsed = format_duration_ms((production.end_s - production.begin_s) * 1000)
    return section(
        "Producing: each flight once, each aircraft in one queue",
        f"{production.flights:,} flights in {elapsed}, {production.rate:,.0f} a second. The pace "
        f"was held at {production.rate_max:,} a second so that messages flow while members come "
        f"and go; while sending, the producer reached {production.sending_rate:,.0f} a second, "
        "each batch flushed to the disk before it was acknowledged.",
        f"The sharding key is the aircraft: the legs of {production.aircraft:,} aircraft stand in "
        "8 queues, each aircraft's in one.",
        figure(
            bar_chart(bars, title="Flights per queue", description="Bars, one a queue.", tone="c1"),
            caption="Flights per queue: the hash of the aircraft decides",
        ),
    )


def _balance(outcome: Outcome) -> Markup:
    group = outcome.first_group
    marks = [Mark(event.at_s, event.name) for event in outcome.events]
    rows = [
        [
            event.name,
            f"{event.at_s:.1f} s",
            format_duration_ms(event.settled_ms),
            format_duration_ms(event.unowned_ms),
            format_duration_ms(event.double_ms),
            str(event.queues_moved),
            f"{event.produced_meanwhile:,}",
            f"{event.duplicates:,}",
            "/".join(str(len(queues)) for queues in event.queues_after.values()),
        ]
        for event in outcome.events
    ]
    header = [
        *("event", "at", "one owner each after", "some queue without owner", "some queue with two"),
        *("queues moved", "produced until the next", "delivered twice", "shares after"),
    ]
    return section(
        "The group keeps its balance",
        f"Group {group.group} divides the queues by {group.strategy}. While messages flow, one "
        "member leaves gracefully, one joins, and one is killed with kill -9.",
        _ownership(group, marks=marks, caption="Who owned which queue"),
        table(header, rows, caption="Each event, until the next one", numeric=range(1, 9)),
        "Delivered twice counts every delivery of a message after its first. It was counted from "
        "the members' logbooks twice, here and by Spark: " + _agreement(outcome),
        _consumption(outcome),
    )


def _agreement(outcome: Outcome) -> str:
    ours = [event.duplicates for event in outcome.events]
    sparks = [event.duplicates_by_spark for event in outcome.events]
    if ours == sparks:
        return "both counts agree."
    return f"the counts differ, {ours} here and {sparks} by Spark."


def _consumption(outcome: Outcome) -> Markup:
    members = [member.name for member in outcome.first_group.members]
    counts = {(row.queue_id, row.member): row.deliveries for row in outcome.consumption}
    queue_ids = range(len(outcome.production.per_queue))
    rows = [
        [
            f"queue {queue_id}",
            *(_count_or_blank(counts.get((queue_id, member), 0)) for member in members),
            f"{sum(counts.get((queue_id, member), 0) for member in members):,}",
        ]
        for queue_id in queue_ids
    ]
    return table(
        ["", *(f"by {member}" for member in members), "deliveries"],
        rows,
        caption="Consumption per queue, by Spark's batch job",
        numeric=range(1, len(members) + 2),
    )


def _count_or_blank(count: int) -> str:
    return f"{count:,}" if count else "·"


def _twins(outcome: Outcome) -> Markup:
    twins, group = outcome.twins, outcome.second_group
    marks = [Mark(twins.begin_s, "both twins run"), Mark(twins.remedy_s, "the remedy")]
    takers = {
        queue_id: [name for name, queue_ids in twins.taken.items() if queue_id in queue_ids]
        for queue_id in range(len(twins.backlog_at_remedy))
    }
    rows = [
        [f"queue {queue_id}", " and ".join(takers[queue_id]) or "nobody", f"{behind:,}"]
        for queue_id, behind in enumerate(twins.backlog_at_remedy)
    ]
    listed = tag("p", "The broker's list of the group (cidAll): ", *_code_list(twins.cid_all))
    remedied = tag("p", "Their client ids: ", *_code_list(twins.remedy_client_ids))
    return section(
        "The failure: two members with one client id",
        f"Two containers on Docker's host network had the same client id, {twins.client_id}, as "
        "RocketMQ 4.7 made it from the address and the process number. Each member finds itself "
        "at the first place of the sorted list, so both take the first share, and nobody the "
        "second.",
        listed,
        _ownership(group, marks=marks, caption="Two owners, or none: until the remedy"),
        table(
            ["", "taken by", "messages behind"],
            rows,
            caption="What the twins had taken, and how far each queue was behind, at the remedy",
            numeric=[2],
        ),
        f"While the twins ran, {twins.duplicates:,} messages were delivered twice, and the queues "
        f"that nobody owned fell {sum(twins.backlog_at_remedy):,} messages behind.",
        "The remedy is the instance name that RocketMQ has made since 4.9, process number and "
        f"nanoseconds. With it each queue had one owner after "
        f"{format_duration_ms((twins.healed_s - twins.remedy_s) * 1000)}, and the backlog was zero "
        f"after {format_duration_ms((twins.drained_s - twins.remedy_s) * 1000)}.",
        remedied,
    )


def _code_list(texts: Sequence[str]) -> list[Markup]:
    parts: list[Markup] = []
    for text in texts:
        parts += [tag("code", text), Markup(", ")]
    return parts[:-1]


def _backlog(outcome: Outcome) -> Markup:
    unowned = set(outcome.twins.unowned)
    samples = outcome.backlog
    second = [sample for sample in samples if sample.at_s >= _first_span_s(outcome.second_group)]
    orphaned = [
        (s.at_s, sum(lag for queue_id, lag in enumerate(s.second) if queue_id in unowned))
        for s in second
    ]
    taken = [
        (s.at_s, sum(lag for queue_id, lag in enumerate(s.second) if queue_id not in unowned))
        for s in second
    ]
    total = [(sample.at_s, sum(sample.second)) for sample in second]
    marks = [Mark(event.at_s, event.name) for event in outcome.events[1:]]
    marks += [
        Mark(outcome.twins.begin_s, "both twins run"),
        Mark(outcome.production.end_s, "all produced"),
        Mark(outcome.twins.remedy_s, "the remedy"),
    ]
    first = Series(outcome.first_group.group, [(s.at_s, sum(s.first)) for s in samples], tone="c1")
    both = line_chart(
        [first, Series(outcome.second_group.group, total, tone="c2")],
        title="Backlog of both groups over time",
        description="Two lines: messages that each group has not committed yet.",
        x_label=_SECONDS,
        y_label="messages not yet committed",
        marks=marks,
    )
    halves = line_chart(
        [
            Series("nobody's queues", orphaned, tone="danger", is_dashed=True),
            Series("the twins' queues", taken, tone="c2"),
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


def _first_span_s(group: GroupFigure) -> float:
    return min((span.begin_s for span in group.spans), default=0.0)


def _pipeline(outcome: Outcome) -> Markup:
    ingest = outcome.ingest
    written = {batch.batch_id for batch in ingest.batches if batch.written_s is not None}
    if ingest.killed_s is None or ingest.killed_batch_id is None:
        kill = "Spark was not killed in mid-batch: every batch was faster."
    else:
        files = _count(ingest.files_of_killed_batch, "data file")
        kill = (
            f"At {ingest.killed_s:.1f} s, in the middle of batch {ingest.killed_batch_id}, Spark "
            f"with its Python workers was killed with kill -9, with {files} "
            "of that batch on the disk. A new process went on from the checkpoint."
        )
    rows = [
        [
            str(batch.batch_id),
            f"{batch.begun_s:.1f} s",
            "killed"
            if batch.written_s is None
            else format_duration_ms((batch.written_s - batch.begun_s) * 1000),
        ]
        for batch in ingest.batches
    ]
    return section(
        "The pipeline: exactly once for any Parquet reader",
        f"Structured Streaming read the topic in {len(written)} micro-batches. "
        f"{_count(ingest.runs, 'AvailableNow run')} came to the end, which each freezes when it "
        f"begins. {kill}",
        f"A reader that knows nothing of Spark (Arrow) finds {ingest.rows:,} rows, "
        f"{ingest.distinct:,} distinct by broker, queue and offset, in {ingest.files} files of "
        f"{ingest.months} months, {ingest.size_bytes / _MIB:,.0f} MiB, with "
        f"{len(ingest.columns)} columns: {', '.join(ingest.columns)}.",
        table(
            ["batch", "began at", "took"], rows, caption="Each attempt at a batch", numeric=[1, 2]
        ),
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _answers(outcome: Outcome) -> Markup:
    bars = [Bar(f"{row.name or ''} {row.carrier}", row.flights) for row in outcome.carriers]
    rows = [
        [
            row.carrier,
            row.name,
            f"{row.flights:,}",
            _minutes(row.mean_departure_delay),
            _minutes(row.mean_arrival_delay),
        ]
        for row in outcome.carriers
    ]
    return section(
        "What the batch job answers",
        figure(
            bar_chart(
                bars, title="Rows per carrier", description="Bars, one a carrier.", tone="c3"
            ),
            caption="Rows per carrier in the Parquet table",
        ),
        table(
            ["", "carrier", "flights", "mean departure delay", "mean arrival delay"],
            rows,
            caption="Flights and mean delays in minutes; flights that were cancelled have none",
            numeric=[2, 3, 4],
        ),
    )


def _minutes(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f}"


def _machine(outcome: Outcome) -> Markup:
    machine, ingest = outcome.machine, outcome.ingest
    begin = ingest.sessions_s[0] if ingest.sessions_s else 0.0
    times = [(stage.name, stage.begin_s, stage.end_s) for stage in outcome.stages]
    times.append(("Spark ingests, beside", begin, ingest.end_s))
    bands = [
        BandRow(name, [Band(begin_s, end_s, (format_duration_ms((end_s - begin_s) * 1000),))])
        for name, begin_s, end_s in times
    ]
    plot = band_chart(
        bands,
        title="Stages over time",
        description="One band a stage.",
        x_label=_SECONDS,
        tones={},
        x_range=(0.0, outcome.duration_s),
        left=270.0,
    )
    memory = "unknown" if outcome.memory_peak_mib is None else f"{outcome.memory_peak_mib:,} MiB"
    facts = [
        ["cores", str(machine.cpu_count)],
        ["system", machine.system],
        ["Python", machine.python],
        ["SparrowMQ", machine.sparrowmq],
        ["Spark", machine.spark],
        ["Java", machine.java],
        ["memory at most, all processes", memory],
        ["processor time, all processes", f"{sum(outcome.cpu_s.values()):,.0f} s"],
        ["in total", format_number(outcome.duration_s) + " s"],
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


def _ownership(group: GroupFigure, *, marks: Sequence[Mark], caption: str) -> Markup:
    tones = _tones(group)
    queue_ids = sorted({span.queue_id for span in group.spans})
    rows = [
        BandRow(
            f"queue {queue_id}",
            [
                Band(span.begin_s, span.end_s, tuple(span.owners))
                for span in group.spans
                if span.queue_id == queue_id
            ],
        )
        for queue_id in queue_ids
    ]
    begin, end = _first_span_s(group), max((span.end_s for span in group.spans), default=1.0)
    plot = band_chart(
        rows,
        title=caption,
        description="A row a queue; bands show which member owned it, hatches nobody or two.",
        x_label=_SECONDS,
        tones=tones,
        marks=marks,
        x_range=(begin, end),
    )
    legend = [*tones.items(), ("nobody", "none"), ("two owners", "both")]
    return figure(plot, caption=caption, legend=legend)


def _tones(group: GroupFigure) -> Mapping[str, str]:
    return {member.name: f"c{index + 1}" for index, member in enumerate(group.members)}
