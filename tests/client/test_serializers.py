"""Values as bodies of messages, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from sparrowmq import JsonSerializer
from sparrowmq.errors import UnreadableMessage, UsageError
from sparrowmq.model import MessageExt


class Flight(msgspec.Struct):
    number: str
    seats: int


@dataclass
class Booking:
    flight: str
    seat: str


class Guest(pydantic.BaseModel):
    name: str
    age: int


class Seat(TypedDict):
    row: int


def arrived(body: bytes) -> MessageExt:
    return MessageExt(
        topic="T",
        body=body,
        properties={"UNIQ_KEY": "ID7"},
        broker_name="b",
        queue_id=3,
        queue_offset=7,
        commit_log_position=0,
    )


@pytest.mark.parametrize(
    ("kind", "value", "body"),
    [
        (Flight, Flight("LH1234", 180), b'{"number":"LH1234","seats":180}'),
        (Booking, Booking("LH1234", "12A"), b'{"flight":"LH1234","seat":"12A"}'),
        (Guest, Guest(name="Ada", age=36), b'{"name":"Ada","age":36}'),
        (dict[str, int], {"seats": 180}, b'{"seats":180}'),
        (Seat, {"row": 12}, b'{"row":12}'),
    ],
)
def test_value_comes_back_as_it_was_sent(kind: Any, value: Any, body: bytes) -> None:
    serializer: JsonSerializer[Any] = JsonSerializer(kind)

    message = serializer.message("T", value, keys=("k",), tags="paid")

    assert (message.body, message.keys, message.tags) == (body, ("k",), "paid")
    assert value == serializer.read(arrived(message.body))


def test_without_a_type_it_is_whatever_json_has() -> None:
    assert JsonSerializer().read(arrived(b'[1,{"a":null}]')) == [1, {"a": None}]


@pytest.mark.parametrize("kind", [Flight, Guest])
def test_body_of_another_type_is_an_error_that_names_the_message(kind: Any) -> None:
    serializer: JsonSerializer[Any] = JsonSerializer(kind)

    for body in (b'{"number":7}', b"no json"):
        with pytest.raises(UnreadableMessage) as caught:
            serializer.read(arrived(body))
        words = f"message ID7 of topic 'T' at offset 7 of queue 3 holds no {kind.__name__}: "
        assert str(caught.value).startswith(words)
        assert "make the message a dead letter" in str(caught.value)


def test_what_cannot_be_written_or_read_is_a_usage_error() -> None:
    wrong: Any = Booking("LH1234", "12A")
    with pytest.raises(UsageError, match="is not a Flight"):
        JsonSerializer(Flight).encode(wrong)
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        JsonSerializer().encode(object())
    with pytest.raises(UsageError, match="cannot be read from JSON"):
        JsonSerializer(dict[complex, list[complex | bytes | str]])
    # Python counts True as an int; its JSON cannot be read as one.
    with pytest.raises(UsageError, match="True is not a int"):
        JsonSerializer(int).encode(True)
    with pytest.raises(UsageError, match=r"\[\] is not a Seat"):
        JsonSerializer(Seat).encode([])  # type: ignore[arg-type]


def test_what_is_nested_too_deeply_is_refused_on_both_sides() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(UsageError, match="a list cannot be written as JSON"):
        JsonSerializer().encode(deep)
    for kind in (Any, Guest):
        with pytest.raises(UnreadableMessage, match="message ID7 of topic 'T'"):
            JsonSerializer(kind).read(arrived(b'{"name":' + b"[" * 100_000))
    # Python ends lists in lists one within the other.
    while deep:
        deep = deep.pop()
