"""Computes every figure of the outcome from the state, the logs, the table and the answers.

Tests: test_main_job.py.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version

import pyarrow as pa

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.demo import outcome
from sparrowmq.demo.events import Answers
from sparrowmq.demo.flights import Flights, load_airlines, load_flights
from sparrowmq.demo.progress import DemoState, StageTime
from sparrowmq.demo.run_directory import DemoDirectory
from sparrowmq.demo.verify import (
    TableFacts,
    count_repeated,
    examine_table,
    find_missing,
    read_deliveries,
)
from sparrowmq.doctor.owner_history import OwnedSpan, list_spans, measure
from sparrowmq.model import MessageQueue
from sparrowmq.report import Check

TOPIC, QUEUE_COUNT = "flights", 8
FIRST_GROUP, SECOND_GROUP = "GID_board", "GID_twins"
# The second group's backlog once more, consumed by messages.
BY_MESSAGE_GROUP = "GID_twins_by_message"
# The broker's name does not matter: there is one broker.
QUEUES = [MessageQueue(TOPIC, "", queue_id) for queue_id in range(QUEUE_COUNT)]


def evaluate(
    directory: DemoDirectory, state: DemoState, *, begun: str, limit: int | None
) -> outcome.DemoOutcome:
    """Read the files of a run, and compute every figure.

    Args:
        begun: the begin of the demo by the wall clock, for readers.
        limit: the most flights produced; None for all.
    """
    ingest, twins = state.ingest, state.twins
    assert ingest.ingested_ms is not None
    assert ingest.answers is not None, "the run has reached its end"
    verifying = StageTime("the table is verified", monotonic_ms())
    state.stages.append(verifying)
    flights = load_flights(limit=limit)
    table = examine_table(directory.table, flights, queue_count=QUEUE_COUNT)
    first, second = (
        read_deliveries([member.consumed_path for member in state.members.of(group)])
        for group in (FIRST_GROUP, SECOND_GROUP)
    )
    checks = _check(state, flights, table, missing=find_missing(flights, first))
    twin_duplicates = count_repeated(second, until_ms=twins.remedy_ms)
    verifying.end_ms = monotonic_ms()
    return outcome.DemoOutcome(
        begun=begun,
        begun_ms=state.begun_ms,
        end_ms=verifying.end_ms,
        memory_peak_mib=state.usage.memory_peak_mib,
        cpu_s=state.usage.cpu_s,
        machine=_describe_machine(),
        stages=state.stages,
        production=_production(state, is_limited=limit is not None),
        first_group=_group(state, FIRST_GROUP, first),
        events=_events(state, ingest.answers),
        second_group=_group(state, SECOND_GROUP, second),
        twins=twins,
        twin_duplicates=twin_duplicates,
        lags=state.lags,
        ingest=outcome.IngestFigure(
            sessions=ingest.sessions,
            batches=ingest.batches,
            kill=ingest.kill,
            end_ms=ingest.ingested_ms,
        ),
        table=table,
        carriers=load_airlines(),
        answers=ingest.answers,
        checks=checks,
    )


def _check(state: DemoState, flights: Flights, table: TableFacts, *, missing: int) -> list[Check]:
    """Judge the conditions of success."""
    total, produced, order = len(flights), state.production.count, table.order
    lags = list(state.end_lags.values())
    wrong_owners = sum(len(owners) != 1 for group in state.owners.values() for owners in group)
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
        Check("The lag of all groups is 0", not any(lags), ", ".join(f"{lag:,}" for lag in lags)),
        Check(
            "Each aircraft's legs are stored in the order they were produced",
            not order.wrong,
            f"{order.wrong:,} legs or aircraft wrong"
            if order.wrong
            else f"{order.legs:,} legs of {order.aircraft:,} aircraft",
        ),
    ]


def _describe_machine() -> dict[str, str]:
    affinity = getattr(os, "sched_getaffinity", None)
    return {
        "cores": str(len(affinity(0)) if affinity else os.cpu_count() or 1),
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "SparrowMQ": version("sparrowmq"),
    }


def _production(state: DemoState, *, is_limited: bool) -> outcome.Production:
    # The first report says that the flights are loaded; the count begins with the second.
    reports = state.production.reports
    begin = next((report for report in reports if report.count > 0), reports[0])
    last = reports[-1]
    return outcome.Production(
        flights=last.count,
        is_limited=is_limited,
        begin_ms=begin.at_ms,
        end_ms=last.at_ms,
        rate=round(1000 * last.count / max(last.at_ms - begin.at_ms, 1), 1),
        sending_rate=round(1000 * last.count / max(last.sending_ms, 1), 1),
        rate_max=last.rate_max,
    )


def _group(state: DemoState, group: str, deliveries: pa.Table) -> outcome.GroupFigure:
    members = state.members.of(group)
    since_ms = min(member.started_ms or state.ended_ms for member in members)
    holdings = state.members.holdings(group)
    return outcome.GroupFigure(
        group=group,
        members={member.name: member.client_id for member in members},
        spans=list_spans(holdings, QUEUES, since_ms=since_ms, until_ms=state.ended_ms),
        deliveries=len(deliveries),
    )


def _events(state: DemoState, answers: Answers) -> list[outcome.EventFigure]:
    production, holdings = state.production, state.members.holdings(FIRST_GROUP)
    # The effects of the next event belong to the next event; the first has what comes before it.
    ends = [*(at_ms - 1 for at_ms, _ in state.events[1:]), state.ended_ms]
    events = []
    for index, ((at_ms, name), end_ms) in enumerate(zip(state.events, ends, strict=True), 1):
        spans = list_spans(holdings, QUEUES, since_ms=at_ms, until_ms=end_ms)
        events.append(
            outcome.EventFigure(
                name=name,
                at_ms=at_ms,
                rebalance=measure(holdings, QUEUES, since_ms=at_ms, until_ms=end_ms),
                produced_meanwhile=production.count_at(end_ms) - production.count_at(at_ms),
                duplicates=sum(
                    row.duplicates
                    for row in answers.consumption
                    if max(row.event_index, 1) == index
                ),
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
