from __future__ import annotations

from typing import Any

from golden import each_case
from sparrowmq.protocol import codes


@each_case("constants.jsonl")
def test_codes_have_the_numbers_of_java(case: dict[str, Any]) -> None:
    if case["id"] == "MQVersion":
        assert case["values"]["V4_9_3"] == codes.MQ_VERSION
        return
    numbers = {code.name: code.value for code in getattr(codes, case["id"])}

    assert case["values"] == {name: numbers.get(name) for name in case["values"]}
