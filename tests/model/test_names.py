from __future__ import annotations

from collections.abc import Callable
from typing import Any

from golden import each_case
from sparrowmq.errors import ConfigError
from sparrowmq.model.names import (
    NOT_ALLOWED_SEND_TOPICS,
    check_group,
    check_topic,
    is_legal_name,
    is_system_topic,
)


def passes(check: Callable[[str], str], name: str) -> bool:
    try:
        return check(name) == name
    except ConfigError:
        return False


@each_case("tags.jsonl", "name-")
def test_name_passes_the_checks_that_it_passes_in_java(case: dict[str, Any]) -> None:
    name = case["name"]

    # An empty name has no illegal character, and is refused by the checks below.
    assert case["illegalChars"] == (name != "" and not is_legal_name(name))
    assert case["brokerTopicValid"] == case["clientTopicOk"] == passes(check_topic, name)
    assert case["clientGroupOk"] == passes(check_group, name)
    assert case["systemTopic"] == is_system_topic(name)
    assert case["notAllowedSend"] == (name in NOT_ALLOWED_SEND_TOPICS)
