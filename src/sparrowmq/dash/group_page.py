"""The page of a group: the doctor's findings, the matrix, the timeline, the rebalances.

Tests: test_pages.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from markupsafe import Markup

from sparrowmq.calling.clock import timestamp_ms
from sparrowmq.client.operations.overview import FlowRates
from sparrowmq.dash.history import History
from sparrowmq.dash.matrix import (
    Matrix,
    MatrixColumn,
    MatrixRow,
    falls_behind,
    is_retry,
    make_columns,
    make_matrix,
)
from sparrowmq.dash.strips import BarChart, TimeBar, TimeWindow, draw_bands, draw_bars
from sparrowmq.dash.tables import Cell, PageTable, TableColumn
from sparrowmq.dash.watcher import OTHERS_MS, SHOWN_MS, TURNS_MAX, WatchedGroup, Watcher
from sparrowmq.dash.web import View, Visit
from sparrowmq.doctor.explain import Explanation, explain, find_queue
from sparrowmq.doctor.finding import describe_queues
from sparrowmq.doctor.group_view import GroupView
from sparrowmq.doctor.owner_history import (
    FLAPPING_COUNT,
    GroupRebalance,
    OwnedSpan,
    count_recent,
    describe_moves,
    describe_reason,
    list_rebalances,
    list_seen_spans,
)
from sparrowmq.errors import UsageError
from sparrowmq.model.names import retry_topic
from sparrowmq.model.queue import queue_order
from sparrowmq.model.spelling import spell_queue
from sparrowmq.words import format_duration, format_number, format_rate
from sparrowmq.words.catalog import Words

WINDOWS_S = (300, 900, 3_600, 21_600, 86_400)
# A timeline of more queues is unreadable; nobody reads more rebalances.
LINES_MAX, REBALANCES_MAX = 48, 200
_BARS = 120
# The heights of charts in pixels.
_LAG_HEIGHT, RATE_HEIGHT = 90, 45
_QUEUE_KEYS = (
    "topic",
    "broker",
    "queue_id",
    "state",
    "owners",
    "lag",
    "since_ms",
    "since_is_exact",
    "produced_per_s",
    "consumed_per_s",
    "drain_s",
    "findings",
)
# How long a rebalance took, on each page that has one.
DURATION_COLUMNS = (
    TableColumn("settled_ms", "one owner each after", "duration"),
    TableColumn("longest_unowned_ms", "one queue without owner, longest", "duration"),
    TableColumn("any_unowned_ms", "some queue without owner", "duration"),
    TableColumn("longest_double_ms", "one queue with several owners, longest", "duration"),
    TableColumn("any_double_ms", "some queue with several owners", "duration"),
)
_TICKS = 6
# The moved offsets that a row of the changes names.
_MOVES_SHOWN_MAX = 8


class GroupTile(NamedTuple):
    """A key figure."""

    value: str
    what: str
    tone: str = ""


class Line(NamedTuple):
    """A queue of the timeline; `spoken` describes its picture in words."""

    label: str
    strip: Markup
    spoken: str


async def show_group(watcher: Watcher, visit: Visit) -> View:
    """Show a group. Raises: as `Watcher.find`."""
    words, query = visit.words, visit.query
    group = await watcher.find(visit.request.path_params["group"])
    view = group.view
    assert view is not None
    now_ms = timestamp_ms()
    known = watcher.history.numbers(group.name)
    columns = make_columns(view, group.findings, known)
    topics = [topic.topic for topic in view.snapshot.topics]
    topic = query.get("topic") if query.get("topic") in topics else None
    only_trouble = query.get("queues") == "trouble"
    matrix = make_matrix(view, group.findings, columns, topic=topic, only_trouble=only_trouble)
    window_s = choose_window(query)
    chart = _Chart(watcher.history, group, columns, now_ms=now_ms, window_s=window_s)
    offsets = {queue: view.offset_of(queue) for queue in view.user_queues}
    rebalances = list_rebalances(chart.seen, until_ms=now_ms, offsets=offsets)[:REBALANCES_MAX]
    lines, left_out = chart.draw_lines(view, rebalances, words, topic=topic)
    recent_count = count_recent(rebalances, until_ms=now_ms)
    return View(
        template="group.html",
        name=group.name,
        group=group.name,
        tables=(
            _rebalance_table(rebalances, columns, words),
            _change_table(view, words),
            _queue_table(matrix),
        ),
        context={
            "failure": group.failure,
            "seen_ms": view.snapshot.last.timestamp_ms,
            "tiles": _tiles(view, group, matrix, words),
            "findings": group.findings,
            "sees_standstill": view.can_see_standstill,
            "matrix": matrix,
            "is_by_message": view.ownership.is_by_message,
            "sections": _sections(matrix),
            "retry": retry_topic(group.name),
            "topics": topics,
            "topic": topic,
            "only_trouble": only_trouble,
            "windows": WINDOWS_S,
            "window_s": window_s,
            "look_every_ms": SHOWN_MS,
            "others_every_ms": OTHERS_MS,
            "looked_at_max": TURNS_MAX,
            "lines": lines,
            "lines_left_out": left_out,
            "charts": chart.draw_bars(words),
            "ticks": name_ticks(window_s, words),
            "recent_count": recent_count,
            "is_flapping": recent_count >= FLAPPING_COUNT,
            **_explain(view, query),
        },
    )


def choose_window(query: Mapping[str, str]) -> int:
    """Return the seconds that charts show, as the URL asks."""
    asked = query.get("window", "")
    return int(asked) if asked in map(str, WINDOWS_S) else WINDOWS_S[0]


def bucket_of(window_s: int) -> int:
    """Return the milliseconds that a bar of a chart stands for."""
    return max(10_000, window_s * 1000 // _BARS)


def _explain(view: GroupView, query: Mapping[str, str]) -> dict[str, object]:
    """Return the explanation of the queue in the URL, or the reason why there is none."""
    asked = query.get("explain", "")
    steps: Sequence[Explanation] = ()
    problem = ""
    if asked:
        try:
            steps = explain(view.snapshot, find_queue(view.snapshot, asked, topic=query.get("of")))
        except UsageError as error:
            problem = str(error)
    return {"explained": asked, "explanation": steps, "unexplained": problem}


def _tiles(view: GroupView, group: WatchedGroup, matrix: Matrix, words: Words) -> list[GroupTile]:
    lag = view.known_lag
    twins = sum(column.process_count > 1 for column in matrix.columns)
    rates = view.rates.values()
    flow = (
        FlowRates(sum(r.produced_per_s for r in rates), sum(r.consumed_per_s for r in rates))
        if rates
        else None
    )
    retries = view.lag([q for q in view.progress if is_retry(view, q)])
    letters = view.snapshot.last.dead_letter_count
    snapshot = view.snapshot
    model = "BROADCASTING" if snapshot.is_broadcasting else snapshot.strategy
    is_assumed = snapshot.divides_queues and not snapshot.strategy_is_known
    owners = [
        GroupTile(
            format_number(view.unowned),
            words("queues without owner"),
            "bad" if view.unowned else "good",
        ),
        GroupTile(
            format_number(view.double),
            words("queues with several owners"),
            "bad" if view.double else "good",
        ),
        GroupTile(format_number(twins), words("duplicate client ids"), "bad" if twins else "good"),
        GroupTile(model, words("strategy, assumed") if is_assumed else words("strategy")),
    ]
    if snapshot.is_by_message:
        owners = [GroupTile(format_number(view.in_flight), words("messages in flight"))]
        if (oldest := view.oldest_in_flight) is not None:
            age = words.phrase(format_duration(oldest[1]))
            owners += [
                GroupTile(
                    age,
                    words(
                        "age of the oldest, in {queue}",
                        queue=words.phrase(describe_queues([oldest[0]])),
                    ),
                ),
                GroupTile(format_number(view.renewals), words("renewals of those in flight")),
            ]
    return [
        GroupTile(
            format_number(lag),
            words("messages behind"),
            "bad" if flow and falls_behind(lag or 0, flow) else "",
        ),
        GroupTile(
            f"{format_rate(flow.produced_per_s)} / "
            f"{'–' if snapshot.is_broadcasting else format_rate(flow.consumed_per_s)}"
            if flow
            else "–",
            words("in and out a second"),
        ),
        GroupTile(
            f"{format_number(retries)} / {format_number(letters)}", words("to retry / dead letters")
        ),
        GroupTile(format_number(view.member_count), words("members")),
        GroupTile(format_number(len(view.user_queues)), words("queues")),
        *owners,
    ]


def _sections(matrix: Matrix) -> list[tuple[str, list[MatrixRow]]]:
    """Return the rows by topic, in the order given."""
    return [
        (topic, list(rows))
        for topic, rows in groupby(matrix.rows, key=lambda row: row.view.queue.topic)
    ]


class _Chart:
    """The window of a group's history that a page shows."""

    def __init__(
        self,
        history: History,
        group: WatchedGroup,
        columns: Mapping[str, MatrixColumn],
        *,
        now_ms: int,
        window_s: int,
    ) -> None:
        since_ms = now_ms - window_s * 1000
        bucket_ms = bucket_of(window_s)
        self._columns = columns
        self._span = TimeWindow(since_ms, now_ms)
        self.seen, self._watched = history.look_back(group.name, since_ms=since_ms)
        self._bucket_ms = bucket_ms
        self._samples = history.samples(group.name, since_ms=since_ms, bucket_ms=bucket_ms)
        self._rates = history.rates(
            group.name, is_topic=False, since_ms=since_ms, bucket_ms=bucket_ms
        )

    def draw_bars(self, words: Words) -> list[BarChart]:
        """Draw the lag, and the messages a second in and out."""
        lags = [TimeBar(s.at_ms, s.lag or 0, bool(s.unowned or s.double)) for s in self._samples]
        ins = [TimeBar(s.at_ms, s.in_per_s) for s in self._rates]
        outs = [TimeBar(s.at_ms, s.out_per_s) for s in self._rates]
        fastest = max((bar.value for bar in (*ins, *outs)), default=0)
        return [
            draw_bars(label, bars, self._span, bucket_ms=self._bucket_ms, height=height, full=full)
            for label, bars, height, full in (
                (words("lag"), lags, _LAG_HEIGHT, 0),
                (words("in/s"), ins, RATE_HEIGHT, fastest),
                (words("out/s"), outs, RATE_HEIGHT, fastest),
            )
        ]

    def draw_lines(
        self,
        view: GroupView,
        rebalances: Sequence[GroupRebalance],
        words: Words,
        *,
        topic: str | None,
    ) -> tuple[list[Line], int]:
        """Draw the queues, the moved ones first if there are too many; count those left out.

        Of a group that does not divide its queues, there is none to draw.
        """
        if not view.snapshot.divides_queues:
            return [], 0
        moved = {move.queue for rebalance in rebalances for move in rebalance.moves}
        queues = [q for q in view.user_queues if topic is None or q.topic == topic]
        chosen = sorted(queues, key=lambda queue: queue not in moved)[:LINES_MAX]
        chosen.sort(key=queue_order)
        marks = [rebalance.begun_ms for rebalance in rebalances if rebalance.moves]
        has_topics = len({queue.topic for queue in chosen}) > 1
        lines = []
        for queue in chosen:
            spans = list_seen_spans(
                queue,
                view.queues[queue].owner_ids,
                self.seen,
                self._watched,
                since_ms=self._span.since_ms,
                until_ms=self._span.until_ms,
            )
            strip = draw_bands(
                spans, self._columns, self._span, marks=marks, nobody=words("nobody")
            )
            label = spell_queue(queue)
            label = f"{queue.topic} {label}" if has_topics else label
            lines.append(Line(label, strip, speak_spans(spans, self._columns, words)))
        return lines, len(queues) - len(chosen)


def speak_spans(
    spans: Sequence[OwnedSpan], columns: Mapping[str, MatrixColumn], words: Words
) -> str:
    """Describe the owners over time for screen readers."""
    return "; ".join(
        f"{_letters(span.owners, columns, words)} {words.duration(span.end_ms - span.start_ms)}"
        for span in spans
        if span.owners is not None
    )


def name_ticks(window_s: int, words: Words) -> list[str]:
    """Return the age of each tick of the axis, from the left."""
    ago = [window_s * 1000 * (_TICKS - 1 - place) // (_TICKS - 1) for place in range(_TICKS)]
    return [f"−{words.duration(ms)}" if ms else words("now") for ms in ago]


def _letters(owners: Sequence[str], columns: Mapping[str, MatrixColumn], words: Words) -> str:
    names = [columns[each].letter if each in columns else each for each in owners]
    return " + ".join(names) or words("nobody")


def _rebalance_table(
    rebalances: Sequence[GroupRebalance], columns: Mapping[str, MatrixColumn], words: Words
) -> PageTable:
    def name(client_id: str) -> str:
        column = columns.get(client_id)
        return client_id if column is None else f"{column.letter} ({client_id})"

    rows = []
    for each in rebalances:
        rows.append(
            [
                Cell(each.begun_ms),
                Cell(words.phrase(describe_reason(each.events, name))),
                Cell(len(each.moves)),
                Cell(describe_moves(each.moves, lambda owners: _letters(owners, columns, words))),
                *duration_cells(each),
                Cell(each.at_risk, tone="bad" if each.at_risk else ""),
            ]
        )
    return PageTable(
        name="rebalances",
        title="Rebalances",
        columns=(
            TableColumn("at_ms", "when", "time"),
            TableColumn("reason", "why", "prose"),
            TableColumn("moved", "queues moved", "number"),
            TableColumn("moves", "from → to", "prose"),
            *DURATION_COLUMNS,
            TableColumn("at_risk", "perhaps consumed twice", "number"),
        ),
        rows=rows,
        empty="No queue has changed hands in this window.",
    )


def duration_cells(rebalance: GroupRebalance) -> list[Cell]:
    """Return the cells of `DURATION_COLUMNS`."""
    durations = (getattr(rebalance, column.key) for column in DURATION_COLUMNS[1:])
    is_unsettled = rebalance.settled_ms is None and rebalance.changed > 0
    return [
        Cell(rebalance.settled_ms, tone="bad" if is_unsettled else ""),
        *(Cell(each or None, tone="bad" if each else "") for each in durations),
    ]


def _change_table(view: GroupView, words: Words) -> PageTable:
    """Return the changes of the group's progress that no member made."""
    return PageTable(
        name="changes",
        title="Changed by operators",
        columns=(
            TableColumn("at_ms", "when", "time"),
            TableColumn("kind", "what", "prose"),
            TableColumn("who", "who"),
            TableColumn("topic", "topic"),
            TableColumn("offsets", "queue: from → to", "prose"),
            TableColumn("detail", "detail", "prose"),
        ),
        rows=[
            [
                Cell(change.timestamp_ms),
                Cell(words(change.kind), note=f"× {n}" if (n := change.request_count) > 1 else ""),
                Cell(change.who),
                Cell(change.topic or None),
                Cell(
                    ", ".join(
                        f"{broker}:{queue_id}: {_number_of(before)} → {_number_of(after)}"
                        for queue_id, before, after in change.moves[:_MOVES_SHOWN_MAX]
                    )
                    + (" …" if len(change.moves) > _MOVES_SHOWN_MAX else "")
                ),
                Cell(change.detail or None),
            ]
            for broker, change in view.snapshot.last.changes
        ],
        empty="No operator has changed the group's progress.",
    )


def _number_of(offset: int | None) -> str:
    return "–" if offset is None else str(offset)


def _queue_table(matrix: Matrix) -> PageTable:
    """Return the matrix as a table for CSV and JSON."""
    return PageTable(
        name="queues",
        title="Who holds which queue",
        columns=tuple(TableColumn(key, key) for key in _QUEUE_KEYS),
        rows=[
            [
                *map(Cell, (row.view.queue.topic, row.view.queue.broker_name)),
                Cell(row.view.queue.queue_id),
                Cell(row.view.state),
                Cell(" ".join(column.client_id for column in row.owners)),
                Cell(row.view.lag),
                Cell(row.view.standing.since_ms),
                Cell(row.view.standing.is_exact),
                Cell(row.view.rate and row.view.rate.produced_per_s),
                Cell(row.view.consumed_per_s),
                Cell(row.drain_s),
                Cell(" ".join(badge.rule for badge in row.badges)),
            ]
            for row in matrix.rows
        ],
    )
