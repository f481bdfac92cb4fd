"""The trace of one message, as its producers and consumers have recorded it.

Source: QueryMsgTraceByIdSubCommand, TraceView. Tests: cli/test_messages.py, client/test_trace.py.
"""

from __future__ import annotations

from typing import NamedTuple

from sparrowmq.calling.effects import Operation
from sparrowmq.client.directory import Directory
from sparrowmq.client.operations.administer import query_message
from sparrowmq.model.names import TRACE_TOPIC
from sparrowmq.protocol.trace import (
    ConsumedCode,
    ConsumedEntry,
    DeliveredEntry,
    SentEntry,
    TransactionEntry,
    read_entries,
)


class TraceStep(NamedTuple):
    """One step in a message's trace.

    Args:
        timestamp_ms: when the step began, by the client's wall clock.
        what: `sent`, `committed`, `rolled back`, `consumed`.
        group: the producer's or the consumer's group.
        client: the address of the client that recorded the step, as `ip:port`.
        cost_ms: the duration of the step; None for a delivery whose end is not recorded.
        outcome: `SUCCESS` or the failure; "" while the outcome is not known.
        reconsume_times: how often the message had come before.
    """

    timestamp_ms: int
    what: str
    group: str
    client: str
    cost_ms: int | None
    outcome: str
    reconsume_times: int = 0


def message_trace(directory: Directory, msg_id: str) -> Operation[tuple[TraceStep, ...]]:
    """Return the recorded steps of a message, oldest first; () for a message without trace.

    Each broker returns the latest 64 trace messages that name the message.

    Raises: as `query_message`.
    """
    written = yield from query_message(directory, TRACE_TOPIC, msg_id)
    steps: list[TraceStep] = []
    deliveries: dict[str, tuple[DeliveredEntry, str]] = {}
    ends: dict[str, ConsumedEntry] = {}
    for message in written:
        for entry in read_entries(message.body):
            if entry.msg_id != msg_id:
                continue
            if isinstance(entry, DeliveredEntry):
                deliveries[entry.request_id] = entry, message.born_host
            elif isinstance(entry, ConsumedEntry):
                ends[entry.request_id] = entry
            else:
                steps.append(_producers_step(entry, message.born_host))
    for request_id, (delivered, client) in deliveries.items():
        steps.append(_delivery(delivered, ends.get(request_id), client))
    return tuple(sorted(steps, key=lambda step: step.timestamp_ms))


def _producers_step(entry: SentEntry | TransactionEntry, client: str) -> TraceStep:
    if isinstance(entry, SentEntry):
        outcome = "SUCCESS" if entry.is_success else "FAILED"
        return TraceStep(entry.timestamp_ms, "sent", entry.group, client, entry.cost_ms, outcome)
    what = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back"}
    outcome = "after a check" if entry.is_checked else "SUCCESS"
    return TraceStep(
        entry.timestamp_ms, what.get(entry.state, entry.state), entry.group, client, None, outcome
    )


def _delivery(begun: DeliveredEntry, end: ConsumedEntry | None, client: str) -> TraceStep:
    outcome = ""
    if end is not None:
        code = end.code or (ConsumedCode.SUCCESS if end.is_success else ConsumedCode.FAILED)
        outcome = code.name
    return TraceStep(
        timestamp_ms=begun.timestamp_ms,
        what="consumed",
        group=begun.group,
        client=client,
        cost_ms=None if end is None else end.cost_ms,
        outcome=outcome,
        reconsume_times=begun.reconsume_times,
    )
