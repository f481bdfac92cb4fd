from __future__ import annotations

import pytest

from sparrowmq.words.amounts import (
    count_of,
    format_compact,
    format_duration,
    format_number,
    format_rate,
)
from sparrowmq.words.catalog import Words


@pytest.mark.parametrize(
    ("milliseconds", "english", "chinese"),
    [
        (None, "–", "–"),
        (-2_500, "0 ms", "0 毫秒"),
        (0, "0 ms", "0 毫秒"),
        (400, "400 ms", "400 毫秒"),
        (1_250, "1.25 s", "1.25 秒"),
        (1_500, "1.5 s", "1.5 秒"),
        (59_000, "59 s", "59 秒"),
        (300_000, "5 min", "5 分钟"),
        (3_600_000, "1 h", "1 小时"),
        (5_400_000, "1.5 h", "1.5 小时"),
        (345_600_000, "4 days", "4 天"),
    ],
)
def test_durations(milliseconds: float | None, english: str, chinese: str) -> None:
    assert format_duration(milliseconds) == english
    assert Words("zh").duration(milliseconds) == chinese


def test_numbers_are_written_for_people() -> None:
    numbers = [format_number(value) for value in (None, 336_776, 12.5, 0.25, 0)]
    compact = [format_compact(value) for value in (50_000, 1_200_000, 999)]
    rates = [format_rate(value) for value in (None, 0, 4.68, 1234.4)]

    assert numbers == ["–", "336,776", "12.5", "0.25", "0"]
    assert compact == ["50 k", "1.2 M", "999"]
    assert rates == ["–", "0", "4.7", "1,234"]


def test_counts_have_their_nouns_in_both_languages() -> None:
    assert [count_of(n, "queue") for n in (1, 2_000)] == ["1 queue", "2,000 queues"]
    assert Words("zh").count(2_000, "queue") == "2,000 个队列"
