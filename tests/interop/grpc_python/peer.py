"""A program of the official Python client of RocketMQ 5: what it sends comes to its consumers.

Prints one JSON object. Runs in an environment of its own, without SparrowMQ.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (  # pyright: ignore[reportMissingImports]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

TOPICS = ("T", "T_delay", "T_transaction", "T_fifo")


def message(topic: str, body: bytes, **fields: Any) -> Message:
    made = Message()
    made.topic, made.body = topic, body
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.attempts: dict[str, int] = {}
        self.order: list[str] = []
        self.at_s: dict[str, float] = {}

    def consume(self, message: Any) -> Any:
        body = message.body.decode()
        with self.lock:
            self.attempts[body] = message.delivery_attempt
            self.at_s[body] = time.time()
            if message.topic == "T_fifo":
                self.order.append(body)
        fails = body == "fails twice" and message.delivery_attempt < 3
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        return TransactionResolution.COMMIT


def wait_for(is_so: Callable[[], bool], timeout_s: float = 60) -> bool:
    end_s = time.time() + timeout_s
    while time.time() < end_s and not is_so():
        time.sleep(0.1)
    return is_so()


def receive_all(configuration: Any, count: int) -> list[str]:
    consumer = SimpleConsumer(configuration, "GID_simple", {"T": FilterExpression("*")})
    consumer.startup()
    found: dict[str, None] = {}

    def has_all() -> bool:
        for each in consumer.receive(32, 15) or []:
            found[each.body.decode()] = None
            consumer.ack(each)
        return len(found) >= count

    wait_for(has_all)
    consumer.shutdown()
    return sorted(found)


def main() -> None:
    configuration = ClientConfiguration(sys.argv[1], Credentials("", ""))
    listener = Listener()
    expressions = {topic: FilterExpression("*") for topic in TOPICS if topic != "T_fifo"}
    push = PushConsumer(configuration, "GID_push", listener, expressions)
    push.startup()
    fifo = PushConsumer(configuration, "GID_fifo", listener, {"T_fifo": FilterExpression("*")})
    fifo.startup()
    producer = Producer(configuration, ("T", "T_delay", "T_fifo"))
    producer.startup()
    for number in range(20):
        producer.send(message("T", b"%d" % number, tag="a", keys=f"key-{number}"))
    producer.send(message("T", b"fails twice"))
    for number in range(10):
        producer.send(message("T_fifo", b"step %d" % number, message_group="ride-7"))
    due_s = int(time.time()) + 3
    producer.send(message("T_delay", b"delayed", delivery_timestamp=due_s))
    recalled = producer.send(message("T_delay", b"recalled", delivery_timestamp=due_s))
    producer.recall_message("T_delay", recalled.recall_handle)
    transactional = Producer(configuration, ("T_transaction",), Checker())
    transactional.startup()
    for name in ("committed", "rolled back", "undecided"):
        transaction = transactional.begin_transaction()
        transactional.send(message("T_transaction", name.encode()), transaction)
        if name == "committed":
            transaction.commit()
        elif name == "rolled back":
            transaction.rollback()
    wanted = {"fails twice", "delayed", "committed", "undecided"}
    wait_for(
        lambda: (
            wanted <= listener.attempts.keys()
            and listener.attempts["fails twice"] == 3
            and len(listener.order) == 10
        )
    )
    simple = receive_all(configuration, 21)
    print(
        json.dumps(
            {
                "simple": simple,
                "attempts": listener.attempts,
                "order": listener.order,
                "early_s": due_s - listener.at_s.get("delayed", 0.0),
            }
        ),
        flush=True,
    )
    for client in (push, fifo, producer, transactional):
        client.shutdown()


if __name__ == "__main__":
    main()
