from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.errors import LocalProtocolError, RemoteProtocolError
from sparrowmq.model import MessageQueue
from sparrowmq.protocol.fastjson import BYTES_PER_MARK, DEPTH_MAX, MARKS_MAX, dumps, loads

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
QUEUES = st.builds(MessageQueue, TEXTS, TEXTS, st.integers(-(2**31), 2**31 - 1))
INTS = st.integers(-(2**63), 2**63 - 1)
KEYS = TEXTS.filter(lambda text: text != "$ref") | INTS | QUEUES
# Keys of another type may be equal on the wire: 1 and "1" differ, and so must they here.
VALUES = st.recursive(
    st.booleans() | INTS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS | QUEUES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


def same(value: Any) -> Any:
    """Let values differ that Python takes for equal: 1, 1.0 and True."""
    if isinstance(value, MessageQueue):
        return value
    if isinstance(value, dict):
        return {key: same(item) for key, item in value.items()}
    if isinstance(value, list):
        return [same(item) for item in value]
    return (type(value), value)


@given(VALUES, st.booleans())
def test_value_survives_writing_and_reading(value: Any, pretty: bool) -> None:
    assert same(value) == same(loads(dumps(value, pretty=pretty)))


@given(VALUES)
def test_plain_json_is_read_as_json(value: Any) -> None:
    text = dumps(value)
    try:
        plain = json.loads(text)
    except ValueError:
        return

    assert same(loads(json.dumps(plain))) == same(loads(text))


@given(st.binary(max_size=100) | st.text(alphabet="{}[]\":,\\'0123ea$ref.-", max_size=60))
def test_arbitrary_input_raises_only_protocol_errors(data: bytes | str) -> None:
    with contextlib.suppress(RemoteProtocolError):
        loads(data)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{a:1}", {"a": 1}),
        ("{'a':'b'}", {"a": "b"}),
        ('{"a":1,}', {"a": 1}),
        ("[1,2,]", [1, 2]),
        ("{0:1,-5:2}", {0: 1, -5: 2}),
        ('{"0":1}', {"0": 1}),
        ("{1.5:1}", {"1.5": 1}),
        ('{{"a":1,"b":[2]}:3}', {(("a", 1), ("b", (2,))): 3}),
        ("{'a':null,b:1}", {"b": 1}),
        ('{"a":null}', {}),
        ("[null,{'a':5L}]", [None, {"a": 5}]),
        (r"'\u4e2d\x41\/\t\'\"'", "中A/\t'\""),
        (r"'\ud83d\ude00'", "😀"),
        ("[1.5e3,-0.5,'x']", [1500.0, -0.5, "x"]),
        ("{true:false}", {"true": False}),
        (" \t\r\n{ a : 1 } ", {"a": 1}),
        ("'" + "1" * 30 + "'", "1" * 30),
        ('"' + "1" * 30 + '"', "1" * 30),
    ],
)
def test_dialect_is_read(text: str, expected: Any) -> None:
    assert same(expected) == same(loads(text))


QUEUE_TEXT = '{"brokerName":"b","queueId":1,"topic":"T"}'
QUEUE = MessageQueue("T", "b", 1)


def test_object_of_a_queue_is_a_queue_as_key_and_value() -> None:
    text = f'{{"table":{{{QUEUE_TEXT}:5}},"set":[{QUEUE_TEXT}]}}'

    assert loads(text) == {"table": {QUEUE: 5}, "set": [QUEUE]}


@pytest.mark.parametrize("text", [QUEUE_TEXT.replace("1", '"1"'), QUEUE_TEXT.replace("}", ",x:1}")])
def test_object_that_is_almost_a_queue_is_an_object(text: str) -> None:
    assert isinstance(loads(text), dict)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":[{"x":1},2],"b":{"$ref":"$.a[0]"}}', {"a": [{"x": 1}, 2], "b": {"x": 1}}),
        (f'{{a:[{QUEUE_TEXT}],b:[{{"$ref":"$.a[0]"}}]}}', {"a": [QUEUE], "b": [QUEUE]}),
    ],
)
def test_reference_is_replaced_by_its_value(text: str, expected: Any) -> None:
    assert loads(text) == expected


@pytest.mark.parametrize(
    "path",
    ["$", "$.b", "..", "@", "$.c", "$.a[9]", "$.a.x", "$.a[-1]", "", "$x", "$.a[0][0]", "$..a"],
)
def test_reference_to_itself_or_to_nothing_is_refused(path: str) -> None:
    with pytest.raises(RemoteProtocolError, match=r"\$ref"):
        loads(f'{{"a":[1],"b":{{"$ref":"{path}"}}}}')


def test_references_cannot_blow_up_a_text() -> None:
    references = ",".join(['{"$ref":"$.a"}'] * 1_000)
    text = f'{{"a":{[0] * 1_000},"b":[{references}]}}'

    with pytest.raises(RemoteProtocolError, match="too many"):
        loads(text)
    with pytest.raises(RemoteProtocolError, match=r"holds a \$ref"):
        loads('{"a":[1],"b":[{"$ref":"$.a"}],"c":{"$ref":"$.b"}}')


@pytest.mark.parametrize(
    ("start", "item", "end", "marks"),
    [
        ("[0,", "1,", "]", 1),
        ("{a:0,", "b%d:1,", "}", 2),
        ("['", r"\n", "']", 1),
        ("[0,", '{"$ref":"$[0]"},', "]", 6),
    ],
    ids=["values", "keys", "escapes", "references"],
)
def test_what_there_is_to_read_is_bounded(start: str, item: str, end: str, marks: int) -> None:
    def text(count: int) -> str:
        items = (item % n for n in range(count)) if "%" in item else [item] * count
        return start + "".join(items) + end

    at_most = MARKS_MAX // marks - 4
    loads(text(at_most))
    loads(text(2 * at_most), marks_max=None)
    with pytest.raises(RemoteProtocolError, match="the limit is 16384"):
        loads(text(at_most + 8))


def test_bytes_of_a_text_are_bounded() -> None:
    longest = "x" * (MARKS_MAX * BYTES_PER_MARK - 2)

    assert longest == loads(f"'{longest}'")
    with pytest.raises(RemoteProtocolError, match="JSON of 1048577 bytes; the limit is 1048576"):
        loads(f"'{longest}x'")


@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_nesting_is_bounded(brackets: str) -> None:
    def nested(depth: int) -> str:
        opening = "[" if brackets == "[]" else '{"a":'
        return opening * depth + "1" + brackets[1] * depth

    loads(nested(DEPTH_MAX))
    with pytest.raises(RemoteProtocolError, match="nested deeper than 16"):
        loads(nested(DEPTH_MAX + 1))


def test_brackets_in_strings_do_not_count_as_nesting() -> None:
    assert loads(json.dumps(["[{" * 20, '"]'])) == ["[{" * 20, '"]']


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[1", "'a", '"a', "{a}", "{a:}", "{:1}", "{,}", "[,]", "1 2", "[1 2]", "nul"),
        *("-", "+1", "01x", "NaN", "Infinity", "1e999", "[1e999]", "{a:1 b:2}", "٣", "{٣:1}"),
        *(r"'\q'", r"'\u12'", r"'\ud800'", r'"\uD800"', "\ud800", "{a:1,a:2}", '{"a":1,"a":2}'),
        *("1" * 21, "-" + "1" * 21, "1e" + "1" * 40, "0." + "1" * 5_000),
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(text)


@pytest.mark.parametrize(
    "text",
    [
        '"' + '\\"' * 1_000_000,
        '["' + '\\"' * 1_000_000,
        "[" * 2_000_000,
        "{" * 2_000_000,
        '"a' * 1_000_000,
        "9" * 2_000_000,
        "[" + "1," * 100_000,
        "{a:" + "'" * 1_000_001,
    ],
    ids=range(8),
)
def test_hostile_text_is_refused_in_linear_time(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        loads(text)


def test_error_names_the_byte() -> None:
    with pytest.raises(RemoteProtocolError, match="at byte 8") as raised:
        loads("{'é':1 b:2}")

    assert raised.value.position == 8


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, b"bytes", {None: 1}, {1.5: 1}, "\ud800", ["\ud800"], object(), {True: 1}],
)
def test_what_the_dialect_cannot_carry_is_refused(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        dumps(value)


def test_sets_are_written_sorted_and_null_members_left_out() -> None:
    assert dumps({"a": {3, 1, 2}, "b": None, "c": [None]}) == b'{"a":[1,2,3],"c":[null]}'
