"""A topic that gets more queues and fewer: each queue has an owner, and nothing in it is lost."""

from __future__ import annotations

from typing import Any

import pytest

from mistakes import Mistakes, run_calm
from sparrowmq.broker.state import BrokerState
from sparrowmq.model import MessageQueue
from sparrowmq.nameserver.route_table import RouteTable
from sparrowmq.protocol.bodies import TopicConfig
from sparrowmq.simulation.faults import Faults

pytestmark = pytest.mark.slow

CHANGING = Faults(queues_grow=10.0, queues_shrink=10.0)
BUSY: dict[str, Any] = {"message_count": 400, "pause_ms_max": 100, "fault_ms": 40_000}
IN_ORDER: dict[str, Any] = BUSY | {
    "is_orderly": True,
    "delayed_share": 0.3,
    "transaction_count": 60,
}
AGAIN = ": delivered again after a handover"
mistake = Mistakes()


@pytest.mark.parametrize("is_orderly", [False, True])
def test_queues_come_and_go_and_no_message_is_skipped_or_comes_again(is_orderly: bool) -> None:
    settings: dict[str, Any] = IN_ORDER | {"is_orderly": is_orderly}
    found = run_calm(CHANGING, seeds=6, **settings)

    assert [outcome.violation for outcome in found] == [None] * 6
    assert {"queues_grow", "queues_shrink"} <= {name for each in found for name in each.struck}


@mistake(BrokerState, "has_queue", CHANGING, AGAIN, seeds=20, tried_first=5, **IN_ORDER)
def last_commit_of_a_hidden_queue_refused(_: Any, state: BrokerState, queue: MessageQueue) -> bool:
    topic = state.topics.find(queue.topic)
    return topic is not None and 0 <= queue.queue_id < topic.read_queue_nums


@mistake(BrokerState, "put_topic", CHANGING, AGAIN, **BUSY)
def offsets_of_hidden_queues_forgotten(
    put_topic: Any, state: BrokerState, topic: TopicConfig, **settings: Any
) -> None:
    put_topic(state, topic, **settings)
    for key, known in state.offsets._offsets.items():
        for queue_id in [each for each in known if each >= topic.read_queue_nums]:
            if key.startswith(f"{topic.topic_name}@"):
                del known[queue_id]


@mistake(RouteTable, "_take_topics", CHANGING, " after the heal: ", **BUSY)
def number_of_queues_that_a_name_server_does_not_change(
    take: Any, table: RouteTable, live: Any, topics: Any
) -> Any:
    before = {name: dict(queues) for name, queues in table._topics.items()}
    left_out = yield from take(table, live, topics)
    for name, queues in before.items():
        table._topics[name].update(queues)
    return left_out


test_mistake_is_caught = mistake.make_test()
