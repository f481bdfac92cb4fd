"""Two looks at a group of one topic: a member has its four queues, and a second one joins."""

from __future__ import annotations

from dataclasses import replace

from sparrowmq.doctor.looks import Look
from sparrowmq.model import MessageQueue

QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]
Q0, Q1, Q2, Q3 = QUEUES
BEFORE = Look(
    timestamp_ms=1_000,
    members={"a": 1},
    marked=frozenset(),
    owners=dict.fromkeys(QUEUES, ("a",)),
    in_hand={Q2: 7, Q3: 5},
    offsets=dict.fromkeys(QUEUES, 100),
    queue_counts={"T": 4},
    subscriptions={"T": "*"},
    strategy="AVG",
    lag=0,
    unowned=0,
    double=0,
)
JOINED = replace(
    BEFORE,
    timestamp_ms=2_000,
    members={"a": 1, "b": 1},
    owners={Q0: ("a",), Q1: ("a",), Q2: ("b",), Q3: ()},
    offsets=dict.fromkeys(QUEUES, 120),
)
