from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import each_case
from sparrowmq.errors import LocalProtocolError
from sparrowmq.protocol.properties import StoredProperties, encode_properties, parse_properties

NAMES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1)


@each_case("properties.jsonl", "enc-")
def test_properties_are_written_as_java_writes_them(case: dict[str, Any]) -> None:
    # Up to 4.9.0 and from 5.2.0, Java ends the text with a separator; 4.9.3 does not.
    assert case["string"] == encode_properties(case["map"])


@each_case("properties.jsonl")
def test_properties_are_parsed_as_java_parses_them(case: dict[str, Any]) -> None:
    assert case["parsed"] == parse_properties(case["string"])


@given(st.dictionaries(NAMES, NAMES))
def test_properties_survive_with_and_without_a_last_separator(properties: dict[str, str]) -> None:
    text = encode_properties(properties)

    assert properties == parse_properties(text) == parse_properties(text + "\x02")


@given(st.dictionaries(NAMES, NAMES))
def test_stored_properties_are_the_mapping_that_their_text_stands_for(
    properties: dict[str, str],
) -> None:
    stored = StoredProperties(encode_properties(properties).encode())

    assert stored == properties == dict(stored)
    assert properties == stored
    assert stored == copy.deepcopy(stored)
    assert repr(properties) == repr(stored)


@pytest.mark.parametrize("pair", [("a\x01", "b"), ("a", "b\x02c"), ("a\x02", "b")])
def test_separator_inside_a_property_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(LocalProtocolError, match="separate properties"):
        encode_properties(dict([("ok", "ok"), pair]))
