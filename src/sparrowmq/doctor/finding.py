"""The doctor's findings and the texts in them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order


class Phrase(str):
    """An English text that keeps its template and values, so that a page can translate it.

    A phrase is a `str`: callers that want English use it as any other text.

    Args:
        template: a format string of `str.format`.
        values: texts by name, which may be phrases; a tuple of texts is joined by `; `.
    """

    __slots__ = ("template", "values")

    template: str
    values: dict[str, str | tuple[str, ...]]

    def __new__(cls, template: str, /, **values: str | tuple[str, ...]) -> Self:
        """Format the English text."""
        english = {k: v if isinstance(v, str) else "; ".join(v) for k, v in values.items()}
        phrase = super().__new__(cls, template.format(**english))
        phrase.template, phrase.values = template, values
        return phrase


def encode_phrase(text: str | tuple[str, ...]) -> Any:
    """Return a text as a JSON value; a phrase becomes an object of its template and values."""
    if isinstance(text, tuple):
        return [encode_phrase(each) for each in text]
    if not isinstance(text, Phrase):
        return text
    values = {name: encode_phrase(value) for name, value in text.values.items()}
    return {"template": text.template, "values": values}


def decode_phrase(found: Any) -> Any:
    """Return the text, or tuple of texts, that `encode_phrase` encoded."""
    if isinstance(found, list):
        return tuple(decode_phrase(each) for each in found)
    if not isinstance(found, dict):
        return found
    values = {name: decode_phrase(value) for name, value in found["values"].items()}
    return Phrase(found["template"], **values)


class Severity(IntEnum):
    """The severity of a finding; a greater value is worse."""

    INFO = 1
    WARN = 2
    ERROR = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fault of a group, or one fact that its operator should know.

    Args:
        rule: the rule's name, such as `R01`; `docs/howto/messages-pile-up.md` lists the rules.
        severity: ERROR if messages are now consumed twice or not at all.
        title: the finding in one line.
        evidence: the facts seen: ids, addresses, queues, offsets.
        consequence: the effect on the messages.
        remedy: the change to make.
        unowned: the queues that nobody consumes because of the fault.
        double: the queues that more than one member consumes because of the fault.
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


def describe_queues(queues: Iterable[MessageQueue]) -> Phrase:
    """Write queues briefly: `flights at broker-a: 2, 5-7; at broker-b: 0`."""
    places: dict[tuple[str, str], list[int]] = {}
    for queue in sorted(queues, key=queue_order):
        places.setdefault((queue.topic, queue.broker_name), []).append(queue.queue_id)
    if not places:
        return Phrase("none")
    each = tuple(
        Phrase("{topic} at {broker}: {ids}", topic=topic, broker=broker, ids=describe_runs(ids))
        for (topic, broker), ids in places.items()
    )
    return Phrase("{places}", places=each)


def describe_runs(numbers: Sequence[int]) -> str:
    """Write ascending numbers; a run of three or more becomes `first-last`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def count_of(count: int, noun: str) -> Phrase:
    """Write a count with its noun: `1 queue`, `2,000 queues`."""
    return Phrase(f"{{n}} {noun}{'' if count == 1 else 's'}", n=f"{count:,}")


def describe_age(seconds: float) -> Phrase:
    """Write a number of seconds: `12 s`, `5 min`, `3.2 h`, `4.0 days`."""
    if seconds < 120:
        return Phrase("{n} s", n=f"{max(0.0, seconds):.0f}")
    if seconds < 7_200:
        return Phrase("{n} min", n=f"{seconds / 60:.0f}")
    if seconds < 172_800:
        return Phrase("{n} h", n=f"{seconds / 3600:.1f}")
    return Phrase("{n} days", n=f"{seconds / 86_400:.1f}")


def describe_time(milliseconds: float) -> Phrase:
    """Write a number of milliseconds: `35 ms`, `2.4 s`."""
    if milliseconds < 1_000:
        return Phrase("{n} ms", n=f"{milliseconds:.0f}")
    return Phrase("{n} s", n=f"{milliseconds / 1000:.1f}")
