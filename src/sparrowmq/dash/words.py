"""The page's texts in English and Chinese; the English text is the key in `chinese.py`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sparrowmq.dash.chinese import CHINESE, CHINESE_COUNTS
from sparrowmq.dash.chinese_findings import CHINESE_PHRASES, CHINESE_REMEDIES
from sparrowmq.doctor.finding import Finding, Phrase

LANGUAGES: Mapping[str, str] = MappingProxyType({"en": "English", "zh": "中文"})


class Words:
    """The texts and number formats of one language, `en` or `zh`."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, text: str, /, **values: object) -> str:
        """Return a text in this language with its values.

        A text without a translation stays English; a test ensures that every text has one.
        """
        found = CHINESE.get(text, text) if self.language == "zh" else text
        return found.format(**values) if values else found

    def remedy(self, finding: Finding) -> str:
        """Return a finding's remedy: in English the doctor's text, in Chinese the rule's."""
        return CHINESE_REMEDIES[finding.rule] if self.language == "zh" else finding.remedy

    def phrase(self, text: str) -> str:
        """Return a part of a finding in this language."""
        if self.language != "zh" or not isinstance(text, Phrase):
            return text
        values = {
            name: self.phrase(value)
            if isinstance(value, str)
            else "；".join(map(self.phrase, value))
            for name, value in text.values.items()
        }
        return CHINESE_PHRASES[text.template].format(**values)

    def count(self, count: int, noun: str) -> str:
        """Write a count with its noun: `1 queue`, `2,000 queues`, `2,000 个队列`."""
        if self.language == "zh":
            return f"{count:,} {CHINESE_COUNTS[noun]}"
        return f"{count:,} {noun}{'' if count == 1 else 's'}"

    def duration(self, milliseconds: float | None) -> str:
        """Write a duration for people: `400 ms`, `12 s`, `5 min`, `3.2 h`, `4 d`."""
        if milliseconds is None:
            return "–"
        seconds = max(0.0, milliseconds / 1000)
        if seconds < 1:
            return self("{n} ms", n=round(milliseconds))
        if seconds < 10:
            return self("{n} s", n=f"{seconds:.1f}")
        if seconds < 120:
            return self("{n} s", n=f"{seconds:.0f}")
        if seconds < 3_600:
            return self("{n} min", n=f"{seconds / 60:.0f}")
        if seconds < 172_800:
            return self("{n} h", n=f"{seconds / 3600:.1f}".removesuffix(".0"))
        return self("{n} d", n=f"{seconds / 86_400:.1f}".removesuffix(".0"))


def number(value: float | None) -> str:
    """Write a number with separators; a blank dash for none."""
    return "–" if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Write messages a second: one decimal where it is small."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if 0 < abs(value) < 10 else f"{value:,.0f}"


def choose_language(asked: str | None, kept: str | None, accepted: str) -> str:
    """Return the language of a page: asked for in the URL, kept in a cookie, or the browser's."""
    for choice in (asked, kept):
        if choice is not None and choice in LANGUAGES:
            return choice
    # Browsers name the preferred language first.
    for part in accepted.lower().split(","):
        if part.strip()[:2] in LANGUAGES:
            return part.strip()[:2]
    return "en"
