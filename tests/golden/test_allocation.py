"""Allocation, hash ring and orderings, against what Apache RocketMQ's own classes answered."""

from __future__ import annotations

from typing import Any

import pytest

from golden import Case, GoldenDirectory, check_cases, each_case
from sparrowmq.model.queue import java_order, queue_order
from sparrowmq.strategies import STRATEGIES, AllocateMessageQueueStrategy, MessageQueue
from sparrowmq.strategies.consistent_hash import ConsistentHashRing


def make_queues(topic: str, pairs: list[list[Any]] | None) -> list[MessageQueue] | None:
    if pairs is None:
        return None
    return [MessageQueue(topic, broker, queue_id) for broker, queue_id in pairs]


def make_strategy(case: dict[str, Any]) -> AllocateMessageQueueStrategy:
    name, config = case["strategy"], case["config"]
    strategy_class = STRATEGIES[name]
    strategy: AllocateMessageQueueStrategy
    if name == "CONFIG":
        strategy = strategy_class(make_queues(case["topic"], config["messageQueueList"]))
    elif name == "MACHINE_ROOM":
        strategy = strategy_class(config["consumeridcs"])
    elif name == "MACHINE_ROOM_NEARBY":
        strategy = strategy_class(STRATEGIES[config["inner"]]())
    elif name == "CONSISTENT_HASH":
        strategy = strategy_class(config["virtualNodeCnt"])
    else:
        strategy = strategy_class()
    return strategy


def allocate(case: dict[str, Any]) -> Any:
    strategy = make_strategy(case)
    mq_all = make_queues(case["topic"], case["mqAll"])
    try:
        return strategy.allocate(case["group"], case["current"], mq_all, case["cidAll"])
    except ValueError as error:
        return ("java.lang.IllegalArgumentException", str(error))
    except TypeError:
        return ("java.lang.NullPointerException", None)


def wanted(case: dict[str, Any]) -> Any:
    if "error" in case:
        return (case["error"]["type"], case["error"].get("message"))
    return make_queues(case["topic"], case["result"])


def check_allocation(case: Case) -> None:
    assert wanted(case) == allocate(case)
    assert case["name"] == make_strategy(case).name


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_allocation_equals_java(golden: GoldenDirectory, strategy: str) -> None:
    cases = golden.cases("allocate.jsonl")
    check_cases([case for case in cases if case["strategy"] == strategy], check_allocation)


@each_case("ring.jsonl")
def test_owners_on_the_ring_equal_java(case: Case) -> None:
    ring = ConsistentHashRing(case["cidAll"], virtual_node_cnt=case["virtualNodeCnt"])
    keys = [str(queue) for queue in make_queues(case["topic"], case["mqAll"]) or []]

    assert case["routeKeys"] == keys
    assert case["owner"] == [ring.find_owner(key) for key in keys]


@each_case("sort.jsonl")
def test_orderings_equal_java(case: Case) -> None:
    queues = sorted((MessageQueue(*queue) for queue in case["mq"]), key=queue_order)

    assert case["mqSorted"] == [list(queue) for queue in queues]
    assert case["mqToString"] == [str(queue) for queue in queues]
    assert case["cidSorted"] == sorted(case["cid"], key=java_order)
