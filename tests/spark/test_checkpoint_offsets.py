from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparrowmq.errors import ConfigError
from sparrowmq.model import MessageQueue
from sparrowmq.spark.checkpoint_offsets import (
    EARLIEST,
    LATEST,
    decode_offsets,
    encode_offsets,
    number_queues,
    parse_offsets,
    parse_queues,
)

names = st.text(alphabet="abcXYZ019-_%", min_size=1, max_size=6)
queues = st.builds(MessageQueue, names, names, st.integers(0, 40))


@given(st.dictionaries(queues, st.integers(0, 2**63 - 1)))
def test_offsets_survive_the_json_of_a_checkpoint(offsets: dict[MessageQueue, int]) -> None:
    text = json.dumps(encode_offsets(offsets))

    assert offsets == parse_offsets(text)


@given(st.dictionaries(queues, st.integers(0, 100)), st.randoms())
def test_equal_offsets_are_equal_texts(offsets: dict[MessageQueue, int], random: object) -> None:
    shuffled = list(offsets.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert json.dumps(encode_offsets(offsets)) == json.dumps(encode_offsets(dict(shuffled)))


def test_queues_stand_in_the_order_of_their_numbers() -> None:
    offsets = {MessageQueue("T", "b", number): number for number in (10, 9, 2)}

    assert json.dumps(encode_offsets(offsets)) == '{"T": {"b": {"2": 2, "9": 9, "10": 10}}}'


def test_stand_ins_are_accepted() -> None:
    parsed = parse_offsets('{"T": {"b": {"0": -2, "1": -1}}}')

    assert parsed == {MessageQueue("T", "b", 0): EARLIEST, MessageQueue("T", "b", 1): LATEST}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "a JSON object is needed"),
        ('{"T": 3}', "topic 'T'"),
        ('{"T": {"b": [1]}}', "broker 'b' of 'T'"),
        ('{"T": {"b": {"x": 1}}}', "'x' is not a queue id"),
        (f'{{"T": {{"b": {{"{"9" * 5_000}": 1}}}}}}', "is not a queue id"),
        ('{"T": {"b": {"0": -3}}}', "the offset of queue T/b/0 is -3"),
        ('{"T": {"b": {"0": 1.5}}}', "the offset of queue T/b/0 is 1.5"),
        ('{"T": {"b": {"0": true}}}', "the offset of queue T/b/0 is True"),
    ],
)
def test_wrong_offsets_name_the_place(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_offsets(text)

    assert words in str(caught.value)


def test_assigned_queues_are_parsed() -> None:
    parsed = parse_queues('{"T": {"a": [1, 0]}, "U": {"b": [7]}}')

    assert (parsed) == {
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("U", "b", 7),
    }


@pytest.mark.parametrize("text", ["{}", '{"T": {"a": 1}}', '{"T": {"a": [true]}}', "no"])
def test_wrong_assignment_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_queues(text)


def test_partition_numbers_are_dense_per_topic_over_sorted_queues() -> None:
    given_queues = [
        MessageQueue("T", "b", 0),
        MessageQueue("T", "a", 10),
        MessageQueue("T", "a", 9),
        MessageQueue("S", "z", 4),
    ]

    numbers = number_queues(given_queues)

    assert numbers == {
        MessageQueue("S", "z", 4): 0,
        MessageQueue("T", "a", 9): 0,
        MessageQueue("T", "a", 10): 1,
        MessageQueue("T", "b", 0): 2,
    }


def test_decode_refuses_what_is_no_object() -> None:
    with pytest.raises(ConfigError):
        decode_offsets(None)
