"""Texts for people: phrases that can be translated, amounts with their units, and the catalogue."""

from __future__ import annotations

from sparrowmq.words.amounts import count_of, format_duration, format_number, format_rate
from sparrowmq.words.phrase import Phrase, decode_phrase, encode_phrase

__all__ = [
    "Phrase",
    "count_of",
    "decode_phrase",
    "encode_phrase",
    "format_duration",
    "format_number",
    "format_rate",
]
