"""The series of clients: their names, kinds, labels and meanings. Tests: client/test_metrics.py."""

from __future__ import annotations

from typing import NamedTuple


class MetricSeries(NamedTuple):
    """A series: its name (a counter's without `_total`), its kind, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    @property
    def sample_name(self) -> str:
        """The name of the series in queries."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


SENT = MetricSeries(
    "sparrowmq_client_sent_messages",
    "counter",
    ("group", "topic", "outcome"),
    "messages that a producer sent, by outcome: ok, or failed, which may be stored all the same",
)
SEND_SECONDS = MetricSeries(
    "sparrowmq_client_send_seconds",
    "histogram",
    ("group", "topic"),
    "from a send's call to its end, retries included",
)
CONSUMED = MetricSeries(
    "sparrowmq_client_consumed_messages",
    "counter",
    ("group", "outcome"),
    "messages of a consumer: pulled, delivered, succeeded, failed, sent_back, unreadable",
)
PROCESS_SECONDS = MetricSeries(
    "sparrowmq_client_process_seconds",
    "histogram",
    ("group", "topic", "outcome"),
    "a call of the listener: ok, or failed, which leaves messages undone",
)
QUEUES = MetricSeries(
    "sparrowmq_client_queues",
    "gauge",
    ("group", "topic", "client_id"),
    "queues that a member of a group has",
)
EVENTS = MetricSeries(
    "sparrowmq_client_events",
    "counter",
    ("group", "event"),
    "what is worth a line in the log, by kind: AssignmentChanged, QueueLost, ListenerFailed ...",
)
CLIENT_SERIES = (SENT, SEND_SECONDS, CONSUMED, PROCESS_SECONDS, QUEUES, EVENTS)
