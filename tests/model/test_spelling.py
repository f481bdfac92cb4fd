from __future__ import annotations

import pytest

from sparrowmq.errors import UsageError
from sparrowmq.model import MessageQueue
from sparrowmq.model.spelling import parse_queue, spell_queue


def test_a_queue_is_its_broker_and_its_number() -> None:
    assert parse_queue("broker-a:3") == ("broker-a", 3)
    assert parse_queue("::1:0") == ("::1", 0)
    assert spell_queue(MessageQueue("T", "broker-a", 3)) == "broker-a:3"


@pytest.mark.parametrize(
    "text",
    ["", "3", ":3", "a:", "a:-1", "a:\u0663", pytest.param("a:" + "9" * 5_000, id="digits")],
)
def test_other_texts_are_no_queue(text: str) -> None:
    with pytest.raises(UsageError, match="write BROKER:ID"):
        parse_queue(text)
