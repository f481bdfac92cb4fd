"""The outcome of a run: every figure of the report, and nothing that the report does not show.

`figures.json` is this, encoded; the report is a function of it. Instants (`*_s`) are seconds since
the demo began, by the machine's monotonic clock; durations are milliseconds (`*_ms`).
"""

from __future__ import annotations

import msgspec


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it ran."""

    cpu_count: int
    python: str
    sparrowmq: str
    spark: str
    java: str
    system: str


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage and when it ran; stages may overlap."""

    name: str
    begin_s: float
    end_s: float


class Production(msgspec.Struct, frozen=True, kw_only=True):
    """How the flights were produced.

    `sending_rate` counts only the time spent waiting for acknowledgements; `rate` all of it, pauses
    and pace included. `rate_max` is the pace the producer was held to.
    """

    flights: int
    is_limited: bool
    begin_s: float
    end_s: float
    rate: float
    sending_rate: float
    rate_max: int
    per_queue: list[int]
    aircraft: int


class SpanFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which a queue had the same owners."""

    queue_id: int
    begin_s: float
    end_s: float
    owners: list[str]


class EventFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A rebalance event of the first group. Its window ends when the next event begins.

    `unowned_ms` and `double_ms` are how long some queue had no owner, or two.
    `produced_meanwhile` counts the flights produced in the window.
    `duplicates` were counted here, `duplicates_by_spark` by the batch job, from the same logbooks.
    """

    name: str
    member: str
    at_s: float
    settled_ms: int | None
    unowned_ms: int
    double_ms: int
    queues_moved: int
    produced_meanwhile: int
    duplicates: int
    duplicates_by_spark: int | None
    queues_after: dict[str, list[int]]


class MemberFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A member of a group."""

    name: str
    client_id: str
    deliveries: int
    per_queue: list[int]


class GroupFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer group from its first member to the end."""

    group: str
    strategy: str
    members: list[MemberFigure]
    spans: list[SpanFigure]
    deliveries: int
    distinct: int
    owners_at_end: list[list[str]]
    lag_at_end: list[int]


class TwinFigure(msgspec.Struct, frozen=True, kw_only=True):
    """The staged failure and its remedy.

    Args:
        client_id: the id that both twins had.
        cid_all: the group's client ids as the broker listed them.
        taken: which queues each twin took.
        unowned: the queues that nobody took.
        backlog_at_remedy: of each queue, when the remedy began.
        begin_s: when both twins ran.
        remedy_s: when the twins were told to leave.
        healed_s: when every queue had exactly one owner.
        drained_s: when the backlog had become zero after production ended.
        remedy_client_ids: the ids of the members that replaced them.
        duplicates: deliveries beyond the first while the twins ran.
    """

    client_id: str
    cid_all: list[str]
    taken: dict[str, list[int]]
    unowned: list[int]
    backlog_at_remedy: list[int]
    begin_s: float
    remedy_s: float
    healed_s: float
    drained_s: float
    remedy_client_ids: list[str]
    duplicates: int


class BacklogSample(msgspec.Struct, frozen=True, kw_only=True):
    """How far both groups were behind in each queue at an instant."""

    at_s: float
    first: list[int]
    second: list[int]


class BatchFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch; `written_s` is None for an attempt that was killed."""

    batch_id: int
    begun_s: float
    written_s: float | None


class IngestFigure(msgspec.Struct, frozen=True, kw_only=True):
    """How Spark ingested the topic."""

    sessions_s: list[float]
    batches: list[BatchFigure]
    runs: int
    killed_s: float | None
    killed_batch_id: int | None
    files_of_killed_batch: int
    end_s: float
    rows: int
    distinct: int
    columns: list[str]
    months: int
    files: int
    size_bytes: int


class CarrierFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A carrier's flights and mean delays in minutes."""

    carrier: str
    name: str
    flights: int
    mean_departure_delay: float | None
    mean_arrival_delay: float | None


class ConsumptionFigure(msgspec.Struct, frozen=True, kw_only=True):
    """How much a member consumed of a queue, by the batch job."""

    queue_id: int
    member: str
    deliveries: int


class OrderFigure(msgspec.Struct, frozen=True, kw_only=True):
    """Whether each aircraft's legs stand in the order they were produced."""

    aircraft: int
    legs: int
    aircraft_in_several_queues: int
    legs_out_of_order: int
    legs_unknown: int


class CheckFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A condition of success."""

    name: str
    holds: bool
    found: str


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything.

    `cpu_s` is the processor time by process, most first; `memory_peak_mib` that of all together.
    """

    begun: str
    duration_s: float
    memory_peak_mib: int | None
    cpu_s: dict[str, float]
    machine: Machine
    stages: list[Stage]
    production: Production
    first_group: GroupFigure
    events: list[EventFigure]
    second_group: GroupFigure
    twins: TwinFigure
    backlog: list[BacklogSample]
    ingest: IngestFigure
    carriers: list[CarrierFigure]
    consumption: list[ConsumptionFigure]
    order: OrderFigure
    checks: list[CheckFigure]

    @property
    def holds(self) -> bool:
        """Whether every condition holds."""
        return all(check.holds for check in self.checks)


def encode_outcome(outcome: Outcome) -> bytes:
    """Return the content of `figures.json`."""
    return msgspec.json.format(msgspec.json.encode(outcome), indent=2) + b"\n"


def decode_outcome(data: bytes) -> Outcome:
    """Read a `figures.json` back."""
    return msgspec.json.decode(data, type=Outcome)
