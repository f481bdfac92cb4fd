from __future__ import annotations

from pathlib import Path

from sparrowmq.demo import evaluate
from sparrowmq.demo.events import Answers, ConsumptionAnswer, Produced, ProducerEvent, SparkEvent
from sparrowmq.demo.progress import DemoState, IngestState, ProductionState
from sparrowmq.processes.child_processes import ChildProcesses
from sparrowmq.processes.group_members import Members
from sparrowmq.processes.logbook import EventTail


def make_state(directory: Path) -> DemoState:
    """A run with three reports of the producer, two events and no members."""
    produced = EventTail[ProducerEvent](directory, "producer", ProducerEvent)
    state = DemoState(
        begun_ms=0,
        first_group=evaluate.FIRST_GROUP,
        second_group=evaluate.SECOND_GROUP,
        members=Members(ChildProcesses(directory), directory, evaluate.QUEUES),
        production=ProductionState(produced),
        ingest=IngestState(EventTail[SparkEvent](directory, "spark", SparkEvent)),
        events=[(1_000, "a starts"), (3_000, "b joins")],
        ended_ms=9_000,
    )
    state.production.reports += [
        Produced(at_ms=at_ms, count=count, total=300, sending_ms=sending_ms, rate_max=50)
        for at_ms, count, sending_ms in ((1_000, 0, 0), (2_000, 100, 200), (4_000, 300, 500))
    ]
    return state


def test_rates_begin_with_the_first_flight(tmp_path: Path) -> None:
    found = evaluate._production(make_state(tmp_path), is_limited=True)

    assert (found.begin_ms, found.end_ms, found.flights) == (2_000, 4_000, 300)
    assert (found.rate, found.sending_rate, found.rate_max) == (150.0, 600.0, 50)


def test_what_follows_an_event_is_of_the_event_and_what_is_before_the_first_of_the_first(
    tmp_path: Path,
) -> None:
    consumption = [
        ConsumptionAnswer(
            queue_id=0, member="a", event_index=index, deliveries=9, duplicates=2**index
        )
        for index in range(3)
    ]
    answers = Answers(at_ms=9_000, carriers=[], consumption=consumption)

    first, second = evaluate._events(make_state(tmp_path), answers)

    assert (first.duplicates, second.duplicates) == (1 + 2, 4)
    assert (first.produced_meanwhile, second.produced_meanwhile) == (100, 200)
