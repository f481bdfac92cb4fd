"""Drills: a failure staged with real processes on an embedded cluster, measured and diagnosed.

A drill starts a name server, a broker, a producer and members, and stages the failure. Then it
follows the owners until every queue has one owner again, or until a time limit, and runs the
doctor. No process outlives its drill, even after an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.doctor import Finding, diagnose
from sparrowmq.doctor.group_snapshot import GroupSnapshot
from sparrowmq.doctor.owner_history import GroupRebalance, OwnedSpan
from sparrowmq.drills.kinds import DrillKind
from sparrowmq.drills.stage import START_LIMIT_MS, Change, LateWork, Stage, set_stage

# The time between the doctor's looks: in a drill whose failure lasts, and in any other.
LONG_LOOK_MS, SHORT_LOOK_MS = 6_000, 1_000
SLOW_LISTENER_MS = 5_000
# The listener is slow enough that the member has messages in hand when it is cut off.
CUT_LISTENER_MS = 400


class Script(NamedTuple):
    """The events of a drill.

    Args:
        story: the failure, in one line.
        member_count: the number of members at the start.
        is_lasting: whether the failure lasts until its cure.
        cure: the cure, in one line; "" if none is staged.
        listener_ms: the time that the first member's listener takes for a message.
    """

    story: str
    member_count: int
    is_lasting: bool = False
    cure: str = ""
    listener_ms: int = 0


SCRIPTS: Mapping[DrillKind, Script] = MappingProxyType(
    {
        DrillKind.KILL: Script("one of three members is killed (kill -9)", 3),
        DrillKind.JOIN: Script("a third member joins two", 2),
        DrillKind.LEAVE: Script("one of three members leaves gracefully", 3),
        DrillKind.DUPLICATE_ID: Script(
            "a third member joins two, with the client id of the first",
            2,
            is_lasting=True,
            cure="the third member leaves",
        ),
        DrillKind.PARTITION: Script(
            "one of three members is cut off: its process runs, but no data passes",
            3,
            cure="the cut is healed",
            listener_ms=CUT_LISTENER_MS,
        ),
        DrillKind.SLOW: Script(
            f"the listener of one of two members takes {SLOW_LISTENER_MS / 1000:.0f} s a message",
            2,
            is_lasting=True,
            listener_ms=SLOW_LISTENER_MS,
        ),
    }
)


class Phase(NamedTuple):
    """One event of a drill, and its effect on the group."""

    event: str
    rebalance: GroupRebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a drill, which `encode_report` and `decode_report` carry between processes.

    Args:
        phases: the failure, and the cure if one was staged.
        before, after: the group seen from outside.
        sent, consumed, twice: numbers of messages; a message consumed more than once counts once
            in `consumed` and once in `twice`.
        changes: the members' changes of queues from the first event on.
        spans: the owners of each queue from `LEAD_MS` before the first event on, at which 0 is.
        late_work: the work of the cut-off member; None if no member was cut off.
    """

    kind: DrillKind
    phases: tuple[Phase, ...]
    before: GroupSnapshot
    after: GroupSnapshot
    sent: int
    consumed: int
    twice: int
    changes: tuple[Change, ...]
    spans: tuple[OwnedSpan, ...]
    late_work: LateWork | None

    @property
    def findings(self) -> list[Finding]:
        """The doctor's findings after the failure."""
        return diagnose(self.after)


_DECODER = msgspec.json.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """Return the report as one line of JSON."""
    return msgspec.json.encode(report)


def decode_report(data: bytes) -> Report:
    """Return the report. Raises: msgspec.DecodeError for other data."""
    return _DECODER.decode(data)


def run_drill(
    kind: DrillKind, *, queue_count: int, rate: int, on_event: Callable[[str], None]
) -> Report:
    """Stage a failure, measure its effect, diagnose the group, and end all processes.

    Args:
        queue_count: the number of the topic's queues.
        rate: the messages a second that the producer sends.
        on_event: called with one line at each event.

    Raises: NotReached if the group does not reach a state that the drill needs; DrillFailed if the
        producer failed; errors of the processes and of the cluster.
    """
    script = SCRIPTS[kind]
    with set_stage(queue_count=queue_count, rate=rate) as stage:
        on_event(f"starting a broker and {script.member_count} members")
        is_cut = kind is DrillKind.PARTITION
        stage.start_member("1", listener_ms=script.listener_ms, can_be_cut=is_cut)
        for number in range(1, script.member_count):
            stage.start_member(str(number + 1))
        stage.wait("even share for each member", stage.is_balanced, limit_ms=START_LIMIT_MS)
        before = stage.look(SHORT_LOOK_MS)
        on_event(script.story)
        since_ms = _strike(kind, stage)
        looks_long = script.is_lasting or is_cut
        if not looks_long:
            stage.settle()
        on_event("the doctor looks")
        after = stage.look(LONG_LOOK_MS if looks_long else SHORT_LOOK_MS)
        if not script.is_lasting:
            stage.settle()
        phases = [Phase(script.story, stage.measure(since_ms))]
        struck_ms = since_ms
        if script.cure:
            on_event(script.cure)
            since_ms = stage.heal() if kind is DrillKind.PARTITION else stage.part(-1)
            stage.settle()
            phases.append(Phase(script.cure, stage.measure(since_ms)))
        spans = stage.list_spans(struck_ms)
        sent, got = stage.finish(waits=kind is not DrillKind.SLOW)
        changes = stage.list_changes(struck_ms)
        late_work = stage.find_late_work(struck_ms, since_ms) if is_cut else None
    return Report(
        kind=kind,
        phases=tuple(phases),
        before=before,
        after=after,
        sent=len(sent),
        consumed=len(sent & got.keys()),
        twice=sum(count > 1 for count in got.values()),
        changes=changes,
        spans=spans,
        late_work=late_work,
    )


def _strike(kind: DrillKind, stage: Stage) -> int:
    """Stage the failure; return its monotonic time."""
    if kind is DrillKind.KILL:
        return stage.kill()
    if kind is DrillKind.PARTITION:
        return stage.cut()
    if kind is DrillKind.LEAVE:
        return stage.part(0)
    if kind is DrillKind.SLOW:
        # The listener was slow from the start; the measurement begins now.
        return monotonic_ms()
    at_ms = stage.start_member("1" if kind is DrillKind.DUPLICATE_ID else "3")
    stage.wait("share of the new member", stage.has_share, limit_ms=START_LIMIT_MS)
    return at_ms
