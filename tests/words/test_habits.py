"""Habits of prose that readers stumble over stand in no message, docstring or page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if ".zh." not in path.name and path.name != "CHANGELOG.md"
]
# Each habit, and what to write.
HABITS = {
    r"(?<!here )\b(is|are) no (?!longer|more|faster|slower|less|such|one\b)[\w`\'{]": "is not a",
    r"\b(are the most\b|(is|which is) the most\b(?! [a-z]))": "the limit is",
    r"\b[Tt]ake in (?!the form)\b": "process, apply, record, add",
    r"\b[Tt]ake note\b": "record",
    r"\b(put|puts) away\b": "discard",
    r"\b0 for ever\b": "0 for no limit",
}


CHINESE_PAGES = [
    *ROOT.glob("*.zh.md"),
    *ROOT.glob("docs/**/*.zh.md"),
    *ROOT.glob("src/sparrowmq/words/locale/**/*.po"),
]
# The one Chinese word for each thing, by the words that stand for it elsewhere.
CHINESE_TERMS = {
    "主题": "Topic",
    "消费组|消费分组|消费者分组": "消费者组",
    "重试主题|重试队列": "重试 Topic",
    "死信主题|死信 Topic": "死信队列",
    "偏移量": "位点",
}


@pytest.mark.parametrize("other", CHINESE_TERMS)
def test_chinese_has_one_word_for_each_thing(other: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: ...{line[max(0, m.start() - 20) : m.end() + 20]}..."
        for path in CHINESE_PAGES
        for line in path.read_text().splitlines()
        for m in re.finditer(other, line)
    ]

    assert found == [], f"write: {CHINESE_TERMS[other]}"


@pytest.mark.parametrize("habit", HABITS)
def test_habit_is_unlearned(habit: str) -> None:
    found = []
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("src/**/*.html"), *PAGES]:
        # A text may go on in the next line, behind quotes or the mark of a comment.
        text = re.sub(r"[\"']?\n\s*(?:f?[\"']|# )?", " ", path.read_text())
        found += [f"{path.relative_to(ROOT)}: ...{m[0]}..." for m in re.finditer(habit, text)]

    assert found == [], f"write: {HABITS[habit]}"
