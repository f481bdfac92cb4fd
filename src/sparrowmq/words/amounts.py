"""Numbers, durations and counts for people, in one way everywhere. Pure."""

from __future__ import annotations

from sparrowmq.words.phrase import Phrase

# The sign of a value that is unknown or does not exist.
NOTHING = "–"


def format_number(value: float | None) -> str:
    """Write a number: 336,776 or 12.5 or 0.25."""
    if value is None:
        return NOTHING
    if abs(value - round(value)) < 1e-9:
        return f"{round(value):,}"
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def format_compact(value: float) -> str:
    """Write a number in little room, as for an axis: 50 k, 1.2 M."""
    for limit, unit in ((1_000_000, " M"), (1_000, " k")):
        if abs(value) >= limit:
            return format_number(round(value / limit, 2)) + unit
    return format_number(value)


def format_rate(per_s: float | None) -> str:
    """Write a rate: one decimal below 10."""
    if per_s is None:
        return NOTHING
    return f"{per_s:,.1f}" if 0 < abs(per_s) < 10 else f"{per_s:,.0f}"


def format_duration(milliseconds: float | None, *, none: str = NOTHING) -> str:
    """Write a duration: `400 ms`, `1.25 s`, `12 s`, `5 min`, `3.2 h`, `4 days`."""
    if milliseconds is None:
        return none
    # Two machines' clocks may differ.
    milliseconds = max(0, milliseconds)
    seconds = milliseconds / 1000
    if seconds < 1:
        return Phrase("{n} ms", n=f"{milliseconds:.0f}")
    if seconds < 10:
        return Phrase("{n} s", n=format_number(seconds))
    if seconds < 120:
        return Phrase("{n} s", n=f"{seconds:.0f}")
    if seconds < 3_600:
        return Phrase("{n} min", n=f"{seconds / 60:.0f}")
    if seconds < 172_800:
        return Phrase("{n} h", n=f"{seconds / 3600:.1f}".removesuffix(".0"))
    return Phrase("{n} days", n=f"{seconds / 86_400:.1f}".removesuffix(".0"))


def count_of(count: int, noun: str) -> Phrase:
    """Write a count with its noun: `1 queue`, `2,000 queues`."""
    return Phrase(f"{{n}} {noun}{'' if count == 1 else 's'}", n=f"{count:,}")
