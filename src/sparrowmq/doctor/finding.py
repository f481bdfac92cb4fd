"""What the doctor says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order


class Severity(IntEnum):
    """How bad it is; the greater, the worse."""

    INFO = 1
    WARN = 2
    ERROR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong, or worth knowing.

    Args:
        rule: `R01` ... as in `docs/howto/messages-pile-up.md`.
        severity: ERROR if messages are not consumed, or consumed twice, now.
        title: one line.
        evidence: what was seen: ids, addresses, queues, offsets.
        consequence: what it does to the messages.
        remedy: what to change.
        unowned: queues that nobody consumes because of it.
        double: queues that more than one member consumes because of it.
        members: the client ids concerned.
    """

    rule: str
    severity: Severity
    title: str
    evidence: tuple[str, ...] = ()
    consequence: str = ""
    remedy: str = ""
    unowned: tuple[MessageQueue, ...] = ()
    double: tuple[MessageQueue, ...] = ()
    members: tuple[str, ...] = ()


def describe_queues(queues: Iterable[MessageQueue]) -> str:
    """Write queues briefly: `flights at broker-a: 2, 5-7; at broker-b: 0`."""
    places: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues, key=queue_order):
        places.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    if not places:
        return "none"
    return "; ".join(
        f"{topic} at {broker}: {describe_runs(ids)}" for (topic, broker), ids in places.items()
    )


def describe_runs(numbers: Sequence[int]) -> str:
    """Write ascending numbers, runs of three and more as `first-last`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def count_of(count: int, noun: str) -> str:
    """Write a count with its noun: `1 queue`, `2,000 queues`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def describe_age(seconds: float) -> str:
    """Write a duration: `12 s`, `5 min`, `3.2 h`, `4.0 days`."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"


def describe_time(milliseconds: float) -> str:
    """Write how long something takes: `35 ms`, `2.4 s`."""
    return f"{milliseconds:.0f} ms" if milliseconds < 1_000 else f"{milliseconds / 1000:.1f} s"
