"""`sparrowmq rebalance doctor --since`: what happened to groups, from the live page's history.

The cluster is not asked: the answer is there also while the cluster is down. Tests:
test_past_groups.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sparrowmq.cli.language import words
from sparrowmq.cli.output import format_time
from sparrowmq.cli.plain_text import PlainTable
from sparrowmq.dash.history import FILE_NAME, SAMPLE_MS, History, LagSample
from sparrowmq.doctor.owner_history import (
    DURATION_TITLES,
    DURATIONS,
    GroupRebalance,
    describe_durations,
    describe_moves,
    describe_reason,
    list_rebalances,
)
from sparrowmq.errors import UsageError, did_you_mean
from sparrowmq.words import encode_phrase

# The times of looks that a line names: the last ones.
_SPANS_SHOWN_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PastGroup:
    """What the history has of a group in a time.

    Args:
        watched: the times in which the page looked, as (start, end), the oldest first.
        rebalances: the oldest first.
        worst: the sample with the greatest lag; None if no lag is known.
        last_ms: the last look at the group, which may be before the time; None if there is none.
    """

    name: str
    since_ms: int
    until_ms: int
    watched: Sequence[tuple[int, int]]
    rebalances: Sequence[GroupRebalance]
    worst: LagSample | None
    last_ms: int | None

    @property
    def unwatched_ms(self) -> int:
        """The time in which nobody looked."""
        looked_ms = sum(end - begin for begin, end in self.watched)
        return self.until_ms - self.since_ms - looked_ms


def read_past(
    data: Path, cluster: str, group: str | None, *, since_ms: int, until_ms: int
) -> list[PastGroup]:
    """Read what happened to a group, or to all groups, those with the most rebalances first.

    Args:
        data: the directory of the page. cluster: the name servers, as the page was given them.

    Raises: UsageError if there is no history of the cluster or the group, with what keeps one;
        ConfigError if the file cannot be opened.
    """
    path = data / FILE_NAME
    command = shlex.join(["sparrowmq", "dash", "-n", cluster, "--data", str(data)])
    advice = f"`{command}` keeps one from its start on, while it runs"
    if not path.exists():
        raise UsageError(f"there is no history at {path}: no live page looked; {advice}")
    with closing(History(path, cluster)) as history:
        known = history.groups()
        if not known:
            others = ", ".join(history.clusters()) or "no cluster"
            raise UsageError(f"the history at {path} has {others}, not {cluster}; {advice}")
        if group is not None and group not in known:
            seen = "a page watches the groups that need attention most, and those that are shown"
            hint = did_you_mean(group, known, seen)
            raise UsageError(f"the history at {path} does not have group {group}{hint}")
        names = known if group is None else [group]
        found = [_read(history, name, since_ms=since_ms, until_ms=until_ms) for name in names]
    return sorted(found, key=lambda past: (-len(past.rebalances), past.name))


def _read(history: History, name: str, *, since_ms: int, until_ms: int) -> PastGroup:
    seen, watched = history.look_back(name, since_ms=since_ms)
    samples = history.samples(name, since_ms=since_ms, bucket_ms=SAMPLE_MS)
    last = watched or history.watched(name, since_ms=0)
    return PastGroup(
        name=name,
        since_ms=since_ms,
        until_ms=until_ms,
        watched=watched,
        rebalances=list_rebalances(seen, until_ms=until_ms, offsets={})[::-1],
        worst=max(
            (sample for sample in samples if sample.lag is not None),
            key=lambda sample: sample.lag or 0,
            default=None,
        ),
        last_ms=last[-1][1] if last else None,
    )


def render_past(past: PastGroup) -> RenderableType:
    """Render a group: what was watched, and each rebalance with its reason, moves and cost."""
    count = sum(len(each.moves) for each in past.rebalances)
    head = words()(
        "since {time}: {rebalances}, {queues} moved",
        time=format_time(past.since_ms),
        rebalances=words().count(len(past.rebalances), "rebalance"),
        queues=words().count(count, "queue"),
    )
    parts: list[RenderableType] = [Text.assemble((past.name, "bold"), f"  {head}")]
    facts = _facts()
    facts.add_row(words()("watched"), _spell_watched(past))
    if past.worst is not None:
        worst = words()(
            "{n} at {time}", n=f"{past.worst.lag:,}", time=format_time(past.worst.at_ms)
        )
        facts.add_row(words()("greatest lag"), worst)
    parts.append(Padding(facts, (0, 0, 1, 2)))
    for each in past.rebalances:
        reason = words().phrase(describe_reason(each.events))
        parts.append(Text.assemble((format_time(each.begun_ms), "bold"), f"  {reason}"))
        parts.append(Padding(_cost(each), (0, 0, 1, 2)))
    return Group(*parts)


def _facts() -> PlainTable:
    facts = PlainTable(box=None, pad_edge=False, show_header=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column()
    return facts


def _spell_watched(past: PastGroup) -> str:
    if not past.watched:
        if past.last_ms is None:
            return words()("never")
        return words()("not once; the last snapshot was at {time}", time=format_time(past.last_ms))
    shown = past.watched[-_SPANS_SHOWN_MAX:]
    spans = ", ".join(f"{format_time(begin)} – {format_time(end)}" for begin, end in shown)
    if len(shown) < len(past.watched):
        spans = f"… {spans}"
    left = words().duration(past.unwatched_ms)
    return words()("{spans}; not watched: {time}", spans=spans, time=left)


def _cost(rebalance: GroupRebalance) -> PlainTable:
    def name(owners: Sequence[str]) -> str:
        return " + ".join(owners) or words()("nobody")

    lines = _facts()
    lines.add_row(words()("moved"), describe_moves(rebalance.moves, name) or words()("nothing"))
    if not rebalance.changed:
        return lines
    for title, duration in zip(DURATION_TITLES, describe_durations(rebalance), strict=True):
        lines.add_row(words()(title), words().phrase(duration))
    twice = f"{rebalance.at_risk:,}"
    if rebalance.lost_gap_ms is not None:
        gap = words().duration(rebalance.lost_gap_ms)
        twice = words()("{n} that former owners had in hand {time} before", n=twice, time=gap)
    if any(len(move.after) > 1 for move in rebalance.moves):
        twice += words()(", and what came later through queues with several owners")
    lines.add_row(words()("perhaps twice"), twice)
    return lines


def json_of_past(past: PastGroup) -> dict[str, Any]:
    """Return a group's past as plain values under stable names."""
    return {
        "group": past.name,
        "since_timestamp_ms": past.since_ms,
        "until_timestamp_ms": past.until_ms,
        "watched": [
            {"from_timestamp_ms": begin, "until_timestamp_ms": end} for begin, end in past.watched
        ],
        "unwatched_ms": past.unwatched_ms,
        "lag_max": past.worst and past.worst.lag,
        "lag_max_timestamp_ms": past.worst and past.worst.at_ms,
        "rebalances": [_json_of_rebalance(each) for each in past.rebalances],
    }


def _json_of_rebalance(rebalance: GroupRebalance) -> dict[str, Any]:
    reason = describe_reason(rebalance.events)
    return {
        "timestamp_ms": rebalance.begun_ms,
        "reason": reason,
        "reason_parts": encode_phrase(reason),
        "moves": [
            {
                "topic": move.queue.topic,
                "broker": move.queue.broker_name,
                "queue_id": move.queue.queue_id,
                "before": list(move.before),
                "after": list(move.after),
            }
            for move in rebalance.moves
        ],
        **{name: getattr(rebalance, name) for name in DURATIONS},
        "gap_ms": rebalance.gap_ms,
        "perhaps_consumed_twice": rebalance.at_risk,
    }
