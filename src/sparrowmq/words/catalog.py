"""The translations of texts: `locale/*/LC_MESSAGES/sparrowmq.po`, compiled by `make generate`.

The English text is the key. A text without a translation stays English; a test ensures that every
text has one.
"""

from __future__ import annotations

import gettext
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from sparrowmq.words.amounts import count_of, format_duration
from sparrowmq.words.phrase import Phrase

DOMAIN = "sparrowmq"
LOCALE = Path(__file__).parent / "locale"
LANGUAGES: Mapping[str, str] = MappingProxyType({"en": "English", "zh": "中文"})


class Words:
    """The texts of one language, `en` or `zh`."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._catalog = _load(language)

    def __call__(self, text: str, /, **values: object) -> str:
        """Return one of our texts in this language, with its values."""
        found = self._catalog.gettext(text)
        return found.format(**values) if values else found

    def phrase(self, text: str) -> str:
        """Return a phrase in this language, with the phrases in it, and other texts unchanged."""
        if not isinstance(text, Phrase):
            return text
        values = {
            name: self.phrase(value)
            if isinstance(value, str)
            else self("; ").join(map(self.phrase, value))
            for name, value in text.values.items()
        }
        return self(text.template).format(**values)

    def remedy(self, rule: str, english: str) -> str:
        """Return the remedy of a rule; a translated remedy names nothing of a case."""
        found = self._catalog.pgettext("remedy", rule)
        return english if found == rule else found

    def count(self, count: int, noun: str) -> str:
        """Write a count with its noun: `1 queue`, `2,000 queues`, `2,000 个队列`."""
        return self.phrase(count_of(count, noun))

    def duration(self, milliseconds: float | None) -> str:
        """Write a duration: `12 s`, `12 秒`."""
        return self.phrase(format_duration(milliseconds))


@cache
def _load(language: str) -> gettext.NullTranslations:
    return gettext.translation(DOMAIN, LOCALE, languages=[language], fallback=language == "en")


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


def find_language(environ: Mapping[str, str]) -> str:
    """Return the language of a command line, by the variables that gettext reads."""
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        if environ.get(name):
            language = environ[name][:2].lower()
            return language if language in LANGUAGES else "en"
    return "en"
