"""What the doctor says. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from sparrowmq.model import MessageQueue
from sparrowmq.model.queue import queue_order


class Phrase(str):
    """English that remembers its template and values, so that a page can say it in Chinese.

    It is a text, so that everybody who wants English needs to know nothing of this.

    Args:
        template: as `str.format` takes it.
        values: texts by name, which may be phrases too; a tuple of them is written with `; `.
    """

    __slots__ = ("template", "values")

    template: str
    values: dict[str, str | tuple[str, ...]]

    def __new__(cls, template: str, /, **values: str | tuple[str, ...]) -> Self:
        """Write the English."""
        english = {k: v if isinstance(v, str) else "; ".join(v) for k, v in values.items()}
        phrase = super().__new__(cls, template.format(**english))
        phrase.template, phrase.values = template, values
        return phrase


def encode_phrase(text: str | tuple[str, ...]) -> Any:
    """Return a text as JSON takes it; of a phrase its template and values."""
    if isinstance(text, tuple):
        return [encode_phrase(each) for each in text]
    if not isinstance(text, Phrase):
        return text
    values = {name: encode_phrase(value) for name, value in text.values.items()}
    return {"template": text.template, "values": values}


def decode_phrase(found: Any) -> Any:
    """Return the text, or the tuple of texts, that `encode_phrase` was given."""
    if isinstance(found, list):
        return tuple(decode_phrase(each) for each in found)
    if not isinstance(found, dict):
        return found
    values = {name: decode_phrase(value) for name, value in found["values"].items()}
    return Phrase(found["template"], **values)


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


def count_of(count: int, noun: str) -> Phrase:
    """Write a count with its noun: `1 queue`, `2,000 queues`."""
    return Phrase(f"{{n}} {noun}{'' if count == 1 else 's'}", n=f"{count:,}")


def describe_age(seconds: float) -> Phrase:
    """Write a duration: `12 s`, `5 min`, `3.2 h`, `4.0 days`."""
    if seconds < 120:
        return Phrase("{n} s", n=f"{max(0.0, seconds):.0f}")
    if seconds < 7_200:
        return Phrase("{n} min", n=f"{seconds / 60:.0f}")
    if seconds < 172_800:
        return Phrase("{n} h", n=f"{seconds / 3600:.1f}")
    return Phrase("{n} days", n=f"{seconds / 86_400:.1f}")


def describe_time(milliseconds: float) -> Phrase:
    """Write how long something takes: `35 ms`, `2.4 s`."""
    if milliseconds < 1_000:
        return Phrase("{n} ms", n=f"{milliseconds:.0f}")
    return Phrase("{n} s", n=f"{milliseconds / 1000:.1f}")
