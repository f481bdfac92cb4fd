"""The page's texts: everything has its Chinese, and values fit into both languages."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from sparrowmq import doctor
from sparrowmq.dash import web
from sparrowmq.dash.chinese import CHINESE, CHINESE_COUNTS
from sparrowmq.dash.chinese_findings import CHINESE_PHRASES, CHINESE_REMEDIES
from sparrowmq.dash.words import Words, choose_language, number, rate
from sparrowmq.doctor import RULES, Finding, Severity
from sparrowmq.doctor.finding import (
    Phrase,
    count_of,
    decode_phrase,
    describe_queues,
    encode_phrase,
)
from sparrowmq.drills.drill import SCRIPTS
from sparrowmq.model import MessageQueue

ROOM = Path(web.__file__).parent
# Texts that are chosen by a value.
CHOSEN = {
    *(name for _, name in web.PAGES),
    *web.THEMES,
    *(severity.name.lower() for severity in Severity),
    *(text for script in SCRIPTS.values() for text in (script.story, script.cure) if text),
    *(f"starting a broker and {count} members" for count in (2, 3)),
    *("sent", "committed", "rolled back", "consumed"),
    "the doctor looks",
    "rocketmq",
    "sparrowmq",
    "kafka",
}


# What the doctor counts in what it saw.
NOUNS = ("queue", "member", "message", "broker", "connection")


def doctor_calls(name: str) -> list[ast.Call]:
    """Return the calls of a name in the doctor's room."""
    return [
        node
        for path in Path(doctor.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    ]


def phrases() -> set[str]:
    """Return the template of every phrase in which the doctor says what it saw."""
    found = {f"{{n}} {noun}{end}" for noun in NOUNS for end in ("", "s")}
    given = [call.args[0] for call in doctor_calls("Phrase")]
    return found | {str(each.value) for each in given if isinstance(each, ast.Constant)}


def texts() -> set[str]:
    """Return every text that a page may say."""
    found = set(CHOSEN)
    for path in ROOM.glob("templates/*.html"):
        found |= set(re.findall(r"_\('([^']+)'", path.read_text()))
        found |= set(re.findall(r'_\("([^"]+)"', path.read_text()))
    for path in ROOM.glob("*.py"):
        code = path.read_text()
        found |= set(re.findall(r'(?:words|self)\(\s*"([^"]+)"', code))
        found |= set(re.findall(r'(?:Column|Field)\("[^"]+",\s*"([^"]+)"', code))
        found |= set(
            re.findall(r'(?:title|empty|empty: str|problem, status)\s?=\s?"([^"]+)"', code)
        )
    return found


def test_every_text_has_its_chinese() -> None:
    assert set() == texts() - CHINESE.keys()


def test_the_catalogue_has_no_text_that_no_page_says() -> None:
    assert set() == CHINESE.keys() - texts()


def test_all_that_the_doctor_sees_is_said_in_chinese() -> None:
    assert phrases() == CHINESE_PHRASES.keys()


def test_what_was_seen_is_said_in_the_language_of_the_page() -> None:
    queues = describe_queues([MessageQueue("orders", "broker-a", n) for n in (0, 1, 2, 5)])
    seen = Phrase("{queue}: {state}", queue=queues, state=count_of(1_200, "message"))

    assert "orders at broker-a: 0-2, 5: 1,200 messages" == seen == Words("en").phrase(seen)
    assert Words("zh").phrase(seen) == "broker-a 上的 orders：0-2, 5，1,200 条消息"
    assert Words("zh").phrase("10.0.0.1@{n}") == "10.0.0.1@{n}"


def test_what_a_drill_saw_is_said_in_chinese_from_its_json() -> None:
    queues = describe_queues([MessageQueue("orders", broker, 0) for broker in ("a", "b")])
    told = json.loads(json.dumps(encode_phrase((queues, "10.0.0.1@1"))))

    assert decode_phrase(told) == ("orders at a: 0; orders at b: 0", "10.0.0.1@1")
    assert Words("zh").phrase(decode_phrase(told)[0]) == "a 上的 orders：0；b 上的 orders：0"


def test_both_languages_name_the_same_values() -> None:
    def names(text: str) -> list[str]:
        return sorted(re.findall(r"{(\w+)}", text))

    both = {**CHINESE, **CHINESE_PHRASES}
    assert [text for text, chinese in both.items() if names(text) != names(chinese)] == []


def test_every_rule_has_its_remedy_in_chinese() -> None:
    assert set(RULES) == set(CHINESE_REMEDIES)
    for rule, remedy in CHINESE_REMEDIES.items():
        assert re.search("[\u4e00-\u9fff]", remedy), rule
        assert remedy.endswith("。"), rule


def test_titles_and_consequences_of_findings_are_phrases_which_have_their_chinese() -> None:
    plain = [
        ast.unparse(each.value)
        for call in doctor_calls("Finding")
        for each in call.keywords
        if each.arg in ("title", "consequence")
        and not re.search(r"Phrase\(|_consequence\(", ast.unparse(each.value))
    ]

    assert plain == []


def test_findings_are_in_the_doctors_own_words_in_english() -> None:
    found = Finding(
        rule="Q04", severity=Severity.ERROR, title="nobody", remedy="start its consumers"
    )

    assert Words("en").remedy(found) == "start its consumers"
    assert "NameServer" in Words("zh").remedy(found)


def test_every_noun_that_is_counted_has_its_chinese() -> None:
    counted: set[str] = set()
    for path in [*ROOM.glob("templates/*.html"), *ROOM.glob("*.py")]:
        counted |= set(re.findall(r"""words\.count\([^,]+, ['"](\w+)['"]\)""", path.read_text()))

    assert counted == set(CHINESE_COUNTS)


@pytest.mark.parametrize(
    ("milliseconds", "english", "chinese"),
    [
        (None, "–", "–"),
        (0, "0 ms", "0 毫秒"),
        (400, "400 ms", "400 毫秒"),
        (1_500, "1.5 s", "1.5 秒"),
        (59_000, "59 s", "59 秒"),
        (300_000, "5 min", "5 分钟"),
        (3_600_000, "1 h", "1 小时"),
        (5_400_000, "1.5 h", "1.5 小时"),
        (345_600_000, "4 d", "4 天"),
    ],
)
def test_durations(milliseconds: float | None, english: str, chinese: str) -> None:
    assert english == Words("en").duration(milliseconds)
    assert chinese == Words("zh").duration(milliseconds)


def test_counts_and_rates() -> None:
    assert [Words("en").count(n, "queue") for n in (1, 2_000)] == ["1 queue", "2,000 queues"]
    assert Words("zh").count(2_000, "queue") == "2,000 个队列"
    assert [rate(value) for value in (None, 0, 4.68, 1234.4)] == ["–", "0", "4.7", "1,234"]
    assert [number(None), number(1234)] == ["–", "1,234"]


@pytest.mark.parametrize(
    ("asked", "kept", "accepted", "expected"),
    [
        ("zh", "en", "en", "zh"),
        ("xx", "zh", "en", "zh"),
        (None, None, "fr-CH, fr;q=0.9, zh-CN;q=0.8", "zh"),
        (None, None, "fr", "en"),
        (None, None, "", "en"),
    ],
)
def test_the_language_is_asked_for_kept_or_the_browsers(
    asked: str | None, kept: str | None, accepted: str, expected: str
) -> None:
    assert choose_language(asked, kept, accepted) == expected
