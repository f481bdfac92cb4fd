"""Computes every figure of the outcome from the state, the logs, the table and the answers."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version

import msgspec

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo import figures, outcome
from sparrowmq.demo.delivery_columns import DeliveryColumns, read_deliveries
from sparrowmq.demo.events import Answers
from sparrowmq.demo.flights import Flights, load_airlines, load_flights
from sparrowmq.demo.progress import DemoState, Ending, StageTime
from sparrowmq.demo.run_directory import DemoDirectory
from sparrowmq.demo.verify import TableFacts, examine_table, find_missing
from sparrowmq.doctor.owner_history import OwnedSpan, list_spans, measure
from sparrowmq.model import MessageQueue
from sparrowmq.report import Check

TOPIC, QUEUE_COUNT = "flights", 8
FIRST_GROUP, SECOND_GROUP = "GID_board", "GID_twins"
# The broker's name does not matter: there is one broker.
QUEUES = [MessageQueue(TOPIC, "", queue_id) for queue_id in range(QUEUE_COUNT)]
_STRATEGY = "AVG"


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of all figures.

    Args:
        begun: the begin of the demo by the wall clock, for readers.
        first, second: the deliveries to the members of both groups.
    """

    begun: str
    state: DemoState
    ending: Ending
    flights: Flights
    is_limited: bool
    table: TableFacts
    answers: Answers
    first: DeliveryColumns
    second: DeliveryColumns


def gather_evidence(
    directory: DemoDirectory, state: DemoState, *, begun: str, limit: int | None
) -> Evidence:
    """Read the files of the run."""
    assert state.ending is not None, "the run has reached its end"
    verifying = StageTime("the table is verified", monotonic_ms())
    state.stages.append(verifying)
    flights = load_flights(limit=limit)
    first, second = (
        read_deliveries([m.consumed_path for m in state.members.of(group)])
        for group in (FIRST_GROUP, SECOND_GROUP)
    )
    evidence = Evidence(
        begun=begun,
        state=state,
        ending=state.ending,
        flights=flights,
        is_limited=limit is not None,
        table=examine_table(directory.table, flights, queue_count=QUEUE_COUNT),
        answers=msgspec.json.decode(directory.answers.read_bytes(), type=Answers),
        first=first,
        second=second,
    )
    verifying.end_ms = monotonic_ms()
    return evidence


def evaluate(evidence: Evidence) -> outcome.DemoOutcome:
    """Compute every figure."""
    state, twins, second = evidence.state, evidence.state.twins, evidence.second
    ingest, begun_twice = state.ingest, figures.find_duplicates(*second.places)
    assert ingest.end is not None, "Spark answers after it has ingested everything"
    return outcome.DemoOutcome(
        begun=evidence.begun,
        begun_ms=state.begun_ms,
        end_ms=state.stages[-1].end_ms,
        memory_peak_mib=state.usage.memory_peak_mib,
        cpu_s=state.usage.cpu_s,
        machine=_describe_machine(),
        stages=state.stages,
        production=_production(evidence),
        first_group=_group(evidence, FIRST_GROUP, evidence.first),
        events=_events(evidence),
        second_group=_group(evidence, SECOND_GROUP, second),
        twins=twins,
        twin_duplicates=int((begun_twice < twins.remedy_ms).sum()),
        lags=state.lags,
        ingest=outcome.IngestFigure(
            sessions=ingest.sessions,
            batches=ingest.batches,
            kill=ingest.kill,
            end_ms=ingest.end.at_ms,
        ),
        table=evidence.table,
        carriers=load_airlines(),
        answers=evidence.answers,
        checks=check(evidence),
    )


def check(evidence: Evidence) -> list[Check]:
    """Judge the conditions of success."""
    table, ending, total = evidence.table, evidence.ending, len(evidence.flights)
    produced = evidence.state.production.count
    missing = find_missing(evidence.flights, evidence.first.flight_ids)
    lags = [sum(ending.lags[group]) for group in (FIRST_GROUP, SECOND_GROUP)]
    wrong_owners = sum(
        len(owners) != 1 for group in ending.owners for owners in ending.owners[group]
    )
    order = table.order
    wrong_legs = order.legs_out_of_order + order.legs_unknown
    is_once = table.rows == table.distinct == produced == total
    return [
        Check(
            "Rows in Parquet = distinct (broker, queue, offset) = flights",
            is_once,
            f"{table.rows:,} = {table.distinct:,} = {total:,}"
            if is_once
            else f"{table.rows:,} rows, {table.distinct:,} distinct, {produced:,} of {total:,} "
            "produced",
        ),
        Check(
            "Every flight was consumed at least once by the first group",
            missing == 0,
            f"{total - missing:,} of {total:,}",
        ),
        Check(
            "Every queue had exactly one owner at the end, in both groups",
            wrong_owners == 0,
            f"{2 * QUEUE_COUNT - wrong_owners} of {2 * QUEUE_COUNT}",
        ),
        Check("Both groups' lag is 0", not any(lags), f"{lags[0]:,} and {lags[1]:,}"),
        Check(
            "Each aircraft's legs are stored in the order they were produced",
            order.holds,
            f"{order.legs:,} legs of {order.aircraft:,} aircraft"
            if order.holds
            else f"{wrong_legs:,} legs wrong, {order.aircraft_in_several_queues:,} aircraft split",
        ),
    ]


def _describe_machine() -> outcome.MachineFacts:
    return outcome.MachineFacts(
        cpu_count=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1,
        python=platform.python_version(),
        sparrowmq=version("sparrowmq"),
        system=f"{platform.system()} {platform.machine()}",
    )


def _production(evidence: Evidence) -> outcome.Production:
    # The first report says that the flights are loaded; the count begins with the second.
    reports = evidence.state.production.reports
    begin = next((report for report in reports if report.count > 0), reports[0])
    last = reports[-1]
    return outcome.Production(
        flights=last.count,
        is_limited=evidence.is_limited,
        begin_ms=begin.at_ms,
        end_ms=last.at_ms,
        rate=round(1000 * last.count / max(last.at_ms - begin.at_ms, 1), 1),
        sending_rate=round(1000 * last.count / max(last.sending_ms, 1), 1),
        rate_max=last.rate_max,
    )


def _group(evidence: Evidence, group: str, deliveries: DeliveryColumns) -> outcome.GroupFigure:
    members = evidence.state.members.of(group)
    until_ms = evidence.ending.at_ms
    spans = list_spans(
        evidence.state.members.holdings(group),
        QUEUES,
        since_ms=min(member.started_ms or until_ms for member in members),
        until_ms=until_ms,
    )
    return outcome.GroupFigure(
        group=group,
        strategy=_STRATEGY,
        members=[outcome.MemberFigure(name=m.name, client_id=m.client_id) for m in members],
        spans=spans,
        deliveries=len(deliveries),
    )


def _events(evidence: Evidence) -> list[outcome.EventFigure]:
    caused, production = evidence.state.events, evidence.state.production
    starts = [event.at_ms for event in caused]
    # The effects of the next event belong to the next event.
    ends = [*(start - 1 for start in starts[1:]), evidence.ending.at_ms]
    holdings = evidence.state.members.holdings(FIRST_GROUP)
    duplicates = figures.count_by_window(figures.find_duplicates(*evidence.first.places), starts)
    events = []
    for index, (event, end_ms) in enumerate(zip(caused, ends, strict=True)):
        since_ms = event.at_ms
        rebalance = measure(holdings, QUEUES, since_ms=since_ms, until_ms=end_ms)
        spans = list_spans(holdings, QUEUES, since_ms=since_ms, until_ms=end_ms)
        events.append(
            outcome.EventFigure(
                name=event.name,
                at_ms=since_ms,
                rebalance=rebalance,
                produced_meanwhile=production.count_at(end_ms) - production.count_at(since_ms),
                duplicates=duplicates[index],
                duplicates_by_spark=evidence.answers.duplicates[index],
                queues_after=_shares(span for span in spans if span.end_ms == end_ms),
            )
        )
    return events


def _shares(spans: Iterable[OwnedSpan]) -> dict[str, list[int]]:
    shares: dict[str, list[int]] = {}
    for span in spans:
        for name in span.owners or ():
            shares.setdefault(name, []).append(span.queue.queue_id)
    return dict(sorted(shares.items()))
