"""The catalogue: every text has its Chinese, and values fit into both languages.

`tests/test_generated.py` compares the catalogue's keys with the texts in the code.
"""

from __future__ import annotations

import ast
import io
import json
import re
from pathlib import Path

import pytest
from babel.messages.pofile import read_po

from sparrowmq import doctor
from sparrowmq.doctor import RULES, Severity
from sparrowmq.doctor.finding import Finding, describe_queues
from sparrowmq.model import MessageQueue
from sparrowmq.words import Phrase, count_of, decode_phrase, encode_phrase
from sparrowmq.words.catalog import DOMAIN, LOCALE, Words, choose_language, find_language

CATALOG = read_po(io.BytesIO((LOCALE / f"zh/LC_MESSAGES/{DOMAIN}.po").read_bytes()))
MESSAGES = [message for message in CATALOG if message.id]


def test_every_text_has_its_chinese() -> None:
    assert [message.id for message in MESSAGES if not message.string or message.fuzzy] == []


def test_both_languages_name_the_same_values() -> None:
    def names(text: object) -> list[str]:
        return sorted(re.findall(r"{(\w+)}", str(text)))

    assert [each.id for each in MESSAGES if names(each.id) != names(each.string)] == []


def test_no_translation_has_english_sentences() -> None:
    # Names, options and settings stay as they are.
    wrong = [
        each.string
        for each in MESSAGES
        if re.search("[a-z]+(?: [a-z]+){3}", re.sub("`[^`]*`", "", str(each.string)))
    ]

    assert wrong == []


def test_every_rule_has_its_remedy_in_chinese() -> None:
    remedies = {each.id: str(each.string) for each in MESSAGES if each.context == "remedy"}

    assert remedies.keys() == set(RULES)
    for rule, remedy in remedies.items():
        assert re.search("[\u4e00-\u9fff]", remedy), rule
        assert remedy.endswith("。"), rule


def test_titles_and_consequences_of_findings_are_phrases_which_have_their_chinese() -> None:
    plain = [
        ast.unparse(each.value)
        for path in Path(doctor.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Finding"
        for each in call.keywords
        if each.arg in ("title", "consequence")
        and not re.search(r"Phrase\(|_consequence\(", ast.unparse(each.value))
    ]

    assert plain == []


def test_what_was_seen_is_said_in_the_language_of_the_page() -> None:
    queues = describe_queues([MessageQueue("orders", "broker-a", n) for n in (0, 1, 2, 5)])
    seen = Phrase("{queue}: {state}", queue=queues, state=count_of(1_200, "message"))

    assert Words("en").phrase(seen) == seen == "orders at broker-a: 0-2, 5: 1,200 messages"
    assert Words("zh").phrase(seen) == "broker-a 上的 orders：0-2, 5，1,200 条消息"
    assert Words("zh").phrase("10.0.0.1@{n}") == "10.0.0.1@{n}"


def test_what_a_drill_saw_is_said_in_chinese_from_its_json() -> None:
    queues = describe_queues([MessageQueue("orders", broker, 0) for broker in ("a", "b")])
    told = json.loads(json.dumps(encode_phrase((queues, "10.0.0.1@1"))))

    assert decode_phrase(told) == ("orders at a: 0; orders at b: 0", "10.0.0.1@1")
    assert Words("zh").phrase(decode_phrase(told)[0]) == "a 上的 orders：0；b 上的 orders：0"


def test_findings_are_in_the_doctors_own_words_in_english() -> None:
    found = Finding(
        rule="Q04", severity=Severity.ERROR, title="nobody", remedy="start its consumers"
    )

    assert Words("en").remedy(found.rule, found.remedy) == "start its consumers"
    assert "NameServer" in Words("zh").remedy(found.rule, found.remedy)


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


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "C", "LANGUAGE": "zh:en"}, "zh"),
        ({}, "en"),
    ],
)
def test_the_language_of_a_command_is_that_of_its_variables(
    environ: dict[str, str], expected: str
) -> None:
    assert find_language(environ) == expected
