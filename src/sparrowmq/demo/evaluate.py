"""From the board, the logbooks, the table and the answers to the outcome: every figure once."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import msgspec

from sparrowmq.demo import figures, outcome
from sparrowmq.demo.board import Board
from sparrowmq.demo.cast import FIRST_GROUP, QUEUE_COUNT, SECOND_GROUP, TOPIC
from sparrowmq.demo.deliveries import Deliveries, read_deliveries
from sparrowmq.demo.directory import DemoDirectory
from sparrowmq.demo.flights import Flights, load_airlines
from sparrowmq.demo.spark_job import Answers
from sparrowmq.demo.stages import TWIN_INSTANCE, TWIN_IP, Ending, StageTime, TwinStaging
from sparrowmq.demo.verify import TableFacts, examine_table, find_missing
from sparrowmq.doctor.timeline import Holding, Span, list_spans, measure
from sparrowmq.model import MessageQueue
from sparrowmq.processes.member_log import MemberLog

_STRATEGY = "AVG"
# Which broker does not matter: there is one.
_QUEUES = [MessageQueue(TOPIC, "", queue_id) for queue_id in range(QUEUE_COUNT)]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that figures are computed from."""

    board: Board
    twins: TwinStaging
    ending: Ending
    times: Sequence[StageTime]
    flights: Flights
    is_limited: bool
    facts: TableFacts
    answers: Answers
    first: Deliveries
    second: Deliveries

    def seconds(self, at_ms: int) -> float:
        """Return an instant as seconds since the demo began."""
        return round((at_ms - self.board.begun_ms) / 1000, 3)


def gather_evidence(
    directory: DemoDirectory,
    board: Board,
    *,
    flights: Flights,
    twins: TwinStaging,
    ending: Ending,
    times: Sequence[StageTime],
    is_limited: bool,
) -> Evidence:
    """Read what the run left behind."""
    first, second = (
        read_deliveries([m.consumed_path for m in board.members_of(group)])
        for group in (FIRST_GROUP, SECOND_GROUP)
    )
    return Evidence(
        board=board,
        twins=twins,
        ending=ending,
        times=times,
        flights=flights,
        is_limited=is_limited,
        facts=examine_table(directory.table, flights, queue_count=QUEUE_COUNT),
        answers=msgspec.json.decode(directory.answers.read_bytes(), type=Answers),
        first=first,
        second=second,
    )


def evaluate(evidence: Evidence, *, begun: str, end_ms: int) -> outcome.Outcome:
    """Compute every figure.

    Args:
        evidence: what they are computed from.
        begun: when the demo began, by the wall clock, for people.
        end_ms: when it ended, by the monotonic clock.
    """
    board, answers = evidence.board, evidence.answers
    names = load_airlines()
    return outcome.Outcome(
        begun=begun,
        duration_s=evidence.seconds(end_ms),
        memory_peak_mib=board.usage.memory_peak_mib,
        cpu_s=board.usage.cpu_s,
        machine=_describe_machine(board),
        stages=[
            outcome.Stage(
                name=time.name,
                begin_s=evidence.seconds(time.begin_ms),
                end_s=evidence.seconds(time.end_ms),
            )
            for time in evidence.times
        ],
        production=_production(evidence),
        first_group=_group(evidence, FIRST_GROUP, evidence.first),
        events=_events(evidence),
        second_group=_group(evidence, SECOND_GROUP, evidence.second),
        twins=_twins(evidence),
        backlog=[
            outcome.BacklogSample(
                at_s=evidence.seconds(lag.at_ms), first=lag.first, second=lag.second
            )
            for lag in board.lags
        ],
        ingest=_ingest(evidence),
        carriers=[
            outcome.CarrierFigure(
                carrier=row.carrier,
                name=names.get(row.carrier, ""),
                flights=row.flights,
                mean_departure_delay=row.mean_departure_delay,
                mean_arrival_delay=row.mean_arrival_delay,
            )
            for row in answers.carriers
        ],
        consumption=[
            outcome.ConsumptionFigure(
                queue_id=row.queue_id, member=row.member, deliveries=row.deliveries
            )
            for row in answers.consumption
        ],
        order=outcome.OrderFigure(**evidence.facts.order._asdict()),
        checks=check(evidence),
    )


def check(evidence: Evidence) -> list[outcome.CheckFigure]:
    """Judge the conditions of success."""
    facts, ending, total = evidence.facts, evidence.ending, len(evidence.flights)
    produced = evidence.board.production.count
    missing = find_missing(evidence.flights, evidence.first.flight_ids)
    lags = [sum(ending.lags[group]) for group in (FIRST_GROUP, SECOND_GROUP)]
    wrong_owners = sum(
        len(owners) != 1 for group in ending.owners for owners in ending.owners[group]
    )
    order = facts.order
    wrong_legs = order.legs_out_of_order + order.legs_unknown
    return [
        outcome.CheckFigure(
            name="Rows in Parquet = distinct (broker, queue, offset) = flights",
            holds=facts.rows == facts.distinct == produced == total,
            found=f"{facts.rows:,} = {facts.distinct:,} = {total:,}"
            if facts.rows == facts.distinct == produced == total
            else f"{facts.rows:,} rows, {facts.distinct:,} distinct, {produced:,} of {total:,} "
            "produced",
        ),
        outcome.CheckFigure(
            name="Every flight was consumed at least once by the first group",
            holds=missing == 0,
            found=f"{total - missing:,} of {total:,}",
        ),
        outcome.CheckFigure(
            name="Every queue had exactly one owner at the end, in both groups",
            holds=wrong_owners == 0,
            found=f"{2 * QUEUE_COUNT - wrong_owners} of {2 * QUEUE_COUNT}",
        ),
        outcome.CheckFigure(
            name="Both groups' lag is 0",
            holds=not any(lags),
            found=f"{lags[0]:,} and {lags[1]:,}",
        ),
        outcome.CheckFigure(
            name="Each aircraft's legs are stored in the order they were produced",
            holds=order.holds,
            found=f"{order.legs:,} legs of {order.aircraft:,} aircraft"
            if order.holds
            else f"{wrong_legs:,} legs wrong, {order.aircraft_in_several_queues:,} aircraft split",
        ),
    ]


def _describe_machine(board: Board) -> outcome.Machine:
    session = board.ingest.sessions[0]
    return outcome.Machine(
        cpu_count=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        python=platform.python_version(),
        sparrowmq=version("sparrowmq"),
        spark=session.spark_version,
        java=session.java,
        system=f"{platform.system()} {platform.machine()}",
    )


def _production(evidence: Evidence) -> outcome.Production:
    reports = evidence.board.production.reports
    # The first report says that the flights are loaded; what counts begins with the next.
    begin, last = reports[0], reports[-1]
    moving = [report for report in reports if report.count > 0]
    begin_ms = moving[0].at_ms if moving else begin.at_ms
    elapsed_ms = max(last.at_ms - begin_ms, 1)
    return outcome.Production(
        flights=last.count,
        is_limited=evidence.is_limited,
        begin_s=evidence.seconds(begin_ms),
        end_s=evidence.seconds(last.at_ms),
        rate=round(1000 * last.count / elapsed_ms, 1),
        sending_rate=round(1000 * last.count / max(last.sending_ms, 1), 1),
        rate_max=last.rate_max,
        per_queue=evidence.facts.per_queue,
        aircraft=evidence.facts.order.aircraft,
    )


def _group(evidence: Evidence, group: str, deliveries: Deliveries) -> outcome.GroupFigure:
    members = evidence.board.members_of(group)
    until_ms = evidence.ending.at_ms
    start_ms = min(member.started_ms or until_ms for member in members)
    spans = list_spans(_holdings(evidence, group), _QUEUES, since_ms=start_ms, until_ms=until_ms)
    return outcome.GroupFigure(
        group=group,
        strategy=_STRATEGY,
        members=[_member(member) for member in members],
        spans=[
            outcome.SpanFigure(
                queue_id=span.queue.queue_id,
                begin_s=evidence.seconds(span.start_ms),
                end_s=evidence.seconds(span.end_ms),
                owners=list(span.owners),
            )
            for span in spans
        ],
        deliveries=len(deliveries),
        distinct=figures.count_distinct(deliveries.queue_ids, deliveries.queue_offsets),
        owners_at_end=evidence.ending.owners[group],
        lag_at_end=evidence.ending.lags[group],
    )


def _member(member: MemberLog) -> outcome.MemberFigure:
    own = read_deliveries([member.consumed_path])
    return outcome.MemberFigure(
        name=member.name,
        client_id=member.client_id,
        deliveries=len(own),
        per_queue=figures.count_per_queue(own.queue_ids, queue_count=QUEUE_COUNT),
    )


def _holdings(evidence: Evidence, group: str) -> list[Holding]:
    members = evidence.board.members_of(group)
    return [holding for member in members for holding in member.holdings(_QUEUES)]


def _events(evidence: Evidence) -> list[outcome.EventFigure]:
    happenings, production = evidence.board.happenings, evidence.board.production
    starts = [happening.at_ms for happening in happenings]
    # What the next event does counts to that one.
    ends = [*(start - 1 for start in starts[1:]), evidence.ending.at_ms]
    holdings, first = _holdings(evidence, FIRST_GROUP), evidence.first
    duplicates = figures.count_by_window(
        figures.find_duplicates(first.queue_ids, first.queue_offsets, first.at_ms), starts
    )
    by_spark = {row.event_index: row.duplicates for row in evidence.answers.duplicates}
    events = []
    for index, (happening, end_ms) in enumerate(zip(happenings, ends, strict=True)):
        since_ms = happening.at_ms
        episode = measure(holdings, _QUEUES, since_ms=since_ms, until_ms=end_ms)
        spans = list_spans(holdings, _QUEUES, since_ms=since_ms, until_ms=end_ms)
        events.append(
            outcome.EventFigure(
                name=happening.name,
                member=happening.member,
                at_s=evidence.seconds(since_ms),
                settled_ms=episode.settled_ms,
                unowned_ms=episode.unowned_ms,
                double_ms=episode.double_ms,
                queues_moved=episode.moved,
                produced_meanwhile=production.count_at(end_ms) - production.count_at(since_ms),
                duplicates=duplicates[index],
                duplicates_by_spark=by_spark.get(index),
                queues_after=_shares(span for span in spans if span.end_ms == end_ms),
            )
        )
    return events


def _shares(spans: Iterable[Span]) -> dict[str, list[int]]:
    shares: dict[str, list[int]] = {}
    for span in spans:
        for name in span.owners:
            shares.setdefault(name, []).append(span.queue.queue_id)
    return dict(sorted(shares.items()))


def _twins(evidence: Evidence) -> outcome.TwinFigure:
    twins, second = evidence.twins, evidence.second
    instants = figures.find_duplicates(second.queue_ids, second.queue_offsets, second.at_ms)
    replaced = [m for m in evidence.board.members_of(SECOND_GROUP) if m.name not in twins.taken]
    return outcome.TwinFigure(
        client_id=f"{TWIN_IP}@{TWIN_INSTANCE}",
        cid_all=twins.cid_all,
        taken=twins.taken,
        unowned=twins.unowned,
        backlog_at_remedy=twins.backlog_at_remedy,
        begin_s=evidence.seconds(twins.begin_ms),
        remedy_s=evidence.seconds(twins.remedy_ms),
        healed_s=evidence.seconds(twins.healed_ms),
        drained_s=evidence.seconds(twins.drained_ms),
        remedy_client_ids=[member.client_id for member in replaced],
        duplicates=int((instants < twins.remedy_ms).sum()),
    )


def _ingest(evidence: Evidence) -> outcome.IngestFigure:
    ingest, facts = evidence.board.ingest, evidence.facts
    return outcome.IngestFigure(
        sessions_s=[evidence.seconds(session.at_ms) for session in ingest.sessions],
        batches=[
            outcome.BatchFigure(
                batch_id=batch.batch_id,
                begun_s=evidence.seconds(batch.begun_ms),
                written_s=None if batch.written_ms is None else evidence.seconds(batch.written_ms),
            )
            for batch in ingest.batches
        ],
        runs=ingest.runs,
        killed_s=None if ingest.killed_ms is None else evidence.seconds(ingest.killed_ms),
        killed_batch_id=ingest.killed_batch_id,
        files_of_killed_batch=ingest.files_of_killed_batch,
        end_s=evidence.seconds(ingest.ended_ms or 0),
        rows=facts.rows,
        distinct=facts.distinct,
        columns=list(facts.columns),
        months=facts.months,
        files=facts.files,
        size_bytes=facts.size_bytes,
    )
