"""Drills: a failure staged with real processes on an embedded cluster, measured and diagnosed.

Each drill starts a name server, a broker, a producer and members, strikes, watches who holds what
until every queue has one owner again (or a bound passes), and has the doctor look. Whatever
happens, no process outlives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.doctor import Finding, diagnose
from sparrowmq.doctor.case import Case
from sparrowmq.doctor.timeline import Episode
from sparrowmq.drills.stage import START_LIMIT_MS, Change, LateWork, Stage, set_stage

# Between the doctor's looks, where something stands still and where nothing should.
LONG_LOOK_MS, SHORT_LOOK_MS = 6_000, 1_000
SLOW_LISTENER_MS = 5_000
# A member that is cut off should have something in hand.
CUT_LISTENER_MS = 400


class DrillKind(StrEnum):
    """What is staged."""

    KILL = "kill"
    JOIN = "join"
    LEAVE = "leave"
    DUPLICATE_ID = "duplicate-id"
    PARTITION = "partition"
    SLOW = "slow"


class Script(NamedTuple):
    """What happens in a drill.

    Args:
        story: what is staged, in a line.
        member_count: members at first.
        is_lasting: whether the group stays ill until it is healed.
        cure: what heals it, "" if nothing has to.
        listener_ms: how long the first member's listener takes for a message.
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
    """One event of a drill and what it did to the group."""

    event: str
    episode: Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a drill showed.

    Args:
        before, after: the group as seen from outside; `after` is what the doctor looked at.
        sent, consumed, twice: messages; those consumed more than once count in both.
        changes: who held what when, from the first event on.
        watched_ms: how long after the first event the last measure was taken.
        late_work: of the member that was cut off, None if none was.
    """

    kind: DrillKind
    phases: tuple[Phase, ...]
    before: Case
    after: Case
    findings: tuple[Finding, ...]
    sent: int
    consumed: int
    twice: int
    changes: tuple[Change, ...]
    watched_ms: int
    late_work: LateWork | None


def run_drill(
    kind: DrillKind, *, queue_count: int, rate: int, on_event: Callable[[str], None]
) -> Report:
    """Stage a failure, watch, diagnose, clean up.

    Args:
        rate: messages a second that the producer sends.
        on_event: called with a line when something happens.

    Raises: DrillFailed, or what the cluster raises.
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
            since_ms = _cure(kind, stage)
            stage.settle()
            phases.append(Phase(script.cure, stage.measure(since_ms)))
        watched_ms = monotonic_ms() - struck_ms
        sent, got = stage.finish(waits=kind is not DrillKind.SLOW)
        changes = stage.list_changes(struck_ms)
        late_work = stage.find_late_work(struck_ms, since_ms) if is_cut else None
    return Report(
        kind=kind,
        phases=tuple(phases),
        before=before,
        after=after,
        findings=tuple(diagnose(after.snapshot)),
        sent=len(sent),
        consumed=len(sent & got.keys()),
        twice=sum(count > 1 for count in got.values()),
        changes=changes,
        watched_ms=watched_ms,
        late_work=late_work,
    )


def _strike(kind: DrillKind, stage: Stage) -> int:
    """Do what the drill is about; return when it was done."""
    if kind is DrillKind.KILL:
        return stage.kill()
    if kind is DrillKind.PARTITION:
        return stage.cut()
    if kind is DrillKind.LEAVE:
        return stage.part(0)
    if kind is DrillKind.SLOW:
        # It was slow from the start: what counts is what follows.
        return monotonic_ms()
    at_ms = stage.start_member("1" if kind is DrillKind.DUPLICATE_ID else "3")
    stage.wait("share of the new member", stage.has_share, limit_ms=START_LIMIT_MS)
    return at_ms


def _cure(kind: DrillKind, stage: Stage) -> int:
    return stage.heal() if kind is DrillKind.PARTITION else stage.part(-1)
