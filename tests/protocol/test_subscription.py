from __future__ import annotations

from typing import Any

import pytest

from golden import each_case
from sparrowmq.errors import LocalProtocolError
from sparrowmq.protocol.subscription import (
    java_hash,
    parse_subscription,
    tags_code,
)
from sparrowmq.store.index_file import slot_hash
from sparrowmq.store.key_hash import hash_text


@each_case("tags.jsonl", "tag-")
def test_hashes_are_those_of_java(case: dict[str, Any]) -> None:
    tag = case["tag"]

    if tag is not None:
        assert case["hashCode"] == java_hash(tag)
        assert case["indexKeyHash"] == slot_hash(hash_text(tag))
    codes = [case["tagsCode"], case["tagsCodeMulti"], case["tagsCodeNullType"]]
    assert codes == [tags_code(tag)] * 3


@each_case("tags.jsonl", "sub-")
def test_subscription_is_parsed_as_in_java(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(LocalProtocolError):
            parse_subscription("T", case["subString"], sub_version=1)
        return

    data = parse_subscription("T", case["subString"], sub_version=1)

    assert case["outSubString"] == data.sub_string
    assert case["expressionType"] == data.expression_type
    assert sorted(case["tagsSet"]) == sorted(data.tags_set)
    assert sorted(case["codeSet"]) == sorted(data.code_set)


def test_only_javas_blanks_are_cut_off_a_tag() -> None:
    # Java's trim leaves the blanks of Unicode, as the ideographic one.
    data = parse_subscription("T", "a\x1f ||\u3000b", sub_version=1)

    assert data.tags_set == {"a", "\u3000b"}


def test_no_tag_has_code_zero() -> None:
    assert [tags_code(None), tags_code("")] == [0, 0]


def test_expression_of_another_type_is_kept() -> None:
    data = parse_subscription("T", "a > 5 || b", sub_version=1, expression_type="SQL92")

    assert ("a > 5 || b", "SQL92", frozenset()) == (
        data.sub_string,
        data.expression_type,
        data.tags_set,
    )
