"""The page on limits says what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from sparrowmq.broker import (
    consumer_groups,
    lock_waits,
    message_filter,
    pop_queues,
    pull_hold,
    relays,
    subscription_groups,
    topic_configs,
    transaction_checks,
)
from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.processors import pop
from sparrowmq.grpc_service import client_table, route_calls, server, sessions
from sparrowmq.model import message, names
from sparrowmq.protocol import bodies, fastjson, framing, properties
from sparrowmq.serving import descriptors
from sparrowmq.serving.limits import ServerLimits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "server-limits.md"
PLACES = (
    ServerLimits(),
    descriptors,
    framing,
    pull_hold,
    pop_queues,
    pop,
    consumer_groups,
    lock_waits,
    bodies,
    fastjson,
    message_filter,
    relays,
    subscription_groups,
    topic_configs,
    transaction_checks,
    server,
    client_table,
    route_calls,
    sessions,
    message,
    properties,
    names,
    BrokerConfig(),
)


def test_page_names_the_bounds_as_they_are() -> None:
    rows = re.findall(r"^\|[^|]*\(`(\w+)`\)[^|]*\| ([\d,]+) \|", PAGE.read_text(), re.M)
    documented = {name: int(value.replace(",", "")) for name, value in rows}

    actual = {
        name: next(getattr(place, name) for place in PLACES if hasattr(place, name))
        for name in documented
    }

    assert len(documented) == 42
    assert actual == documented
