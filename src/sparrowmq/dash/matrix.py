"""The queue × client matrix: each queue's owners, backlog and findings. Pure.

Tests: test_matrix.py, test_pages.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparrowmq.client.operations.overview import FlowRates
from sparrowmq.coordination.member_marker import is_marked
from sparrowmq.doctor import Finding
from sparrowmq.doctor.group_view import GroupView, QueueRate, QueueView
from sparrowmq.model import MessageQueue
from sparrowmq.model.names import retry_topic

# The report's colours c1 to c8.
TONE_COUNT = 8
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
# A larger matrix is unreadable: beyond so many columns it names owners in words, and it leaves out
# further rows.
COLUMNS_MAX, ROWS_MAX = 26, 500
_HEAT_MAX = 5


class Badge(NamedTuple):
    """A mark of a finding at a queue or member: the rule, and the name of the severity."""

    rule: str
    severity: str


class MatrixColumn(NamedTuple):
    """A member: its letter, its colour and its state.

    `process_count` is the number of connections with its id; `load` is None unless the group
    divides by load; `is_silent` is True if the member did not answer.
    """

    client_id: str
    letter: str
    tone: str
    process_count: int = 0
    addresses: tuple[str, ...] = ()
    language: str = ""
    is_sparrow: bool = False
    queue_count: int = 0
    lag: int = 0
    load: float | None = None
    is_silent: bool = False
    badges: tuple[Badge, ...] = ()


class Square(NamedTuple):
    """One queue at one member.

    `kind` is "has" (the member holds its queue), "due" (the member should hold the queue and has
    not taken it), "keeps" (the member holds a queue of another's share) or "".
    """

    kind: str
    is_locked: bool = False
    cached_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One queue.

    Args:
        view: its state, lag, rates and owners.
        heat: the lag as a colour, from 0 for none to 5.
        drain_s: the seconds until the lag is 0 at the present rates; None if never, or unknown.
        grows: whether the lag grows.
    """

    view: QueueView
    heat: int
    drain_s: float | None
    grows: bool
    owners: tuple[MatrixColumn, ...]
    badges: tuple[Badge, ...]
    squares: tuple[Square, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The whole matrix; `rows_left_out` is the number of queues not shown."""

    columns: tuple[MatrixColumn, ...]
    rows: tuple[MatrixRow, ...]
    has_squares: bool
    rows_left_out: int = 0


def letter_of(number: int) -> str:
    """Return the letter of a number from 0 on: A to Z, then A2 to Z2 and so on."""
    turn, place = divmod(number, len(_LETTERS))
    return _LETTERS[place] + (str(turn + 1) if turn else "")


def make_columns(
    view: GroupView, findings: Sequence[Finding], numbers: Mapping[str, int]
) -> dict[str, MatrixColumn]:
    """Return the columns by client id, also of members in `numbers` that have left."""
    connections = view.ownership.connections
    counts = Counter(c.client_id for c in connections)
    silent = {r.client_id for r in view.snapshot.reports if r.is_silent}
    loads = view.loads
    columns = {}
    for client_id, number in sorted(numbers.items(), key=lambda item: item[1]):
        mine = [c for c in connections if c.client_id == client_id]
        queues = view.owned_by(client_id)
        columns[client_id] = MatrixColumn(
            client_id=client_id,
            letter=letter_of(number),
            tone=f"c{number % TONE_COUNT + 1}",
            process_count=counts[client_id],
            addresses=tuple(c.address for c in mine if c.address),
            language=next((c.language for c in mine if c.language), ""),
            is_sparrow=any(is_marked(c.version) for c in mine),
            queue_count=len(queues),
            lag=view.lag(queues),
            load=loads.get(client_id),
            is_silent=client_id in silent,
            badges=_badges(f for f in findings if client_id in f.members),
        )
    return columns


def make_matrix(
    view: GroupView,
    findings: Sequence[Finding],
    columns: Mapping[str, MatrixColumn],
    *,
    topic: str | None = None,
    only_trouble: bool = False,
) -> Matrix:
    """Make the matrix of a group.

    Args:
        columns: the members' columns by client id.
        topic: show only this topic's queues; None shows all.
        only_trouble: show only queues with a lag, or without exactly one owner.
    """
    present = tuple(column for column in columns.values() if column.process_count)
    has_squares = len(present) <= COLUMNS_MAX
    squares_of = _Squares(view) if has_squares else None
    rows = []
    # The queues of the retry topic come last.
    for queue in sorted(view.queues.values(), key=lambda each: is_retry(view, each.queue)):
        if topic is not None and queue.queue.topic != topic:
            continue
        if only_trouble and queue.state in ("owned", "broadcast", "shared") and not queue.lag:
            continue
        rows.append(
            _row(
                queue,
                owners=tuple(columns[each] for each in queue.owner_ids if each in columns),
                badges=_badges(f for f in findings if queue.queue in (*f.unowned, *f.double)),
                squares=squares_of.of(queue, present) if squares_of else (),
            )
        )
    return Matrix(
        columns=present,
        rows=tuple(rows[:ROWS_MAX]),
        has_squares=has_squares,
        rows_left_out=max(0, len(rows) - ROWS_MAX),
    )


def falls_behind(lag: int, flow: FlowRates | QueueRate) -> bool:
    """Return whether a queue or group falls behind; a lag of one second's input does not count."""
    return lag > flow.produced_per_s > 1.05 * flow.consumed_per_s


def is_retry(view: GroupView, queue: MessageQueue) -> bool:
    """Return whether a queue belongs to the group's retry topic."""
    return queue.topic == retry_topic(view.snapshot.group)


def _row(
    view: QueueView,
    *,
    owners: tuple[MatrixColumn, ...],
    badges: tuple[Badge, ...],
    squares: tuple[Square, ...],
) -> MatrixRow:
    lag, rate = view.lag, view.rate
    growth = 0.0 if rate is None else rate.growth_per_s
    return MatrixRow(
        view=view,
        heat=min(_HEAT_MAX, len(str(lag))) if lag else 0,
        drain_s=lag / -growth if lag and growth < 0 else None,
        grows=rate is not None and falls_behind(lag or 0, rate),
        owners=owners,
        badges=badges,
        squares=squares,
    )


class _Squares:
    """The squares of one view."""

    def __init__(self, view: GroupView) -> None:
        self._held = {
            (report.client_id, each.queue): each
            for report in view.snapshot.reports
            for each in report.held
        }

    def of(self, queue: QueueView, columns: Sequence[MatrixColumn]) -> tuple[Square, ...]:
        share = {c.client_id for c in queue.share}
        return tuple(self._square(queue, share, column.client_id) for column in columns)

    def _square(self, queue: QueueView, share: set[str], client_id: str) -> Square:
        held = self._held.get((client_id, queue.queue))
        falls_here = client_id in share
        if client_id in queue.owner_ids:
            kind = "has" if falls_here else "keeps"
        else:
            kind = "due" if falls_here else ""
        return Square(kind, held is not None and held.is_locked, held.cached_count if held else 0)


def _badges(findings: Iterable[Finding]) -> tuple[Badge, ...]:
    return tuple(Badge(f.rule, f.severity.name.lower()) for f in findings)
