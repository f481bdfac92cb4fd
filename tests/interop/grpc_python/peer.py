"""The official Python client of RocketMQ 5: sends all there is, and tells what its consumers get.

Tells one JSON object a line: `sent` after the first messages, `got` for each delivery. After a line
on its standard input it sends more, and after another one it ends. The programs of the other
languages do the same. Runs in an environment of its own, without SparrowMQ.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
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

LOCK = threading.Lock()


def tell(event: str, **fields: Any) -> None:
    with LOCK:
        print(json.dumps({"event": event, **fields}), flush=True)


def got(by: str, message: Any) -> str:
    body: str = message.body.decode()
    at_ms = int(time.time() * 1000)
    tell("got", by=by, body=body, attempt=message.delivery_attempt, ms=at_ms)
    return body


def message(topic: str, body: str, **fields: Any) -> Message:
    made = Message()
    made.topic, made.body = topic, body.encode()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self, by: str) -> None:
        self.by = by
        self.seen: set[str] = set()

    def consume(self, message: Any) -> Any:
        body = got(self.by, message)
        # A client tries a step again by itself, and may not count that.
        with LOCK:
            fails = body == "poison" or (body.startswith("fails") and body not in self.seen)
            self.seen.add(body)
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, message: Any) -> Any:
        return TransactionResolution.COMMIT


def receive(configuration: Any) -> None:
    consumer = SimpleConsumer(configuration, "GID_simple", {"T": FilterExpression("*")})
    consumer.startup()
    while True:
        try:
            for each in consumer.receive(32, 15) or []:
                got("simple", each)
                consumer.ack(each)
        except Exception as error:  # the broker restarts
            tell("failed", what="receive", error=str(error))
            time.sleep(0.5)


def send_surely(producer: Any, made: Message) -> None:
    end_s = time.time() + 60
    while True:
        try:
            producer.send(made)
            return
        except Exception as error:  # the broker restarts
            tell("failed", what="send", error=str(error))
            if time.time() > end_s:
                raise
            time.sleep(0.5)


def main() -> None:
    configuration = ClientConfiguration(sys.argv[1], Credentials("", ""))
    topics = ("T", "T_delay", "T_transaction")
    expressions = {topic: FilterExpression("*") for topic in topics}
    push = PushConsumer(configuration, "GID_push", Listener("push"), expressions)
    push.startup()
    steps = {"T_fifo": FilterExpression("*")}
    PushConsumer(configuration, "GID_fifo", Listener("fifo"), steps).startup()
    threading.Thread(target=receive, args=[configuration], daemon=True).start()
    producer = Producer(configuration, ("T", "T_delay", "T_fifo"))
    producer.startup()
    for number in range(20):
        producer.send(message("T", f"plain {number}", tag="a", keys=f"key-{number}"))
    producer.send(message("T", "fails once"))
    producer.send(message("T", "poison"))
    for number in range(10):
        name = f"fails at step {number}" if number == 4 else f"step {number}"
        producer.send(message("T_fifo", name, message_group="ride-7"))
    due_s = int(time.time()) + 3
    producer.send(message("T_delay", f"due {due_s * 1000}", delivery_timestamp=due_s))
    recalled = producer.send(message("T_delay", "recalled", delivery_timestamp=due_s))
    producer.recall_message("T_delay", recalled.recall_handle)
    transactional = Producer(configuration, ("T_transaction",), Checker())
    transactional.startup()
    for name in ("committed", "rolled back", "undecided"):
        transaction = transactional.begin_transaction()
        transactional.send(message("T_transaction", name), transaction)
        if name == "committed":
            transaction.commit()
        elif name == "rolled back":
            transaction.rollback()
    tell("sent")
    sys.stdin.readline()
    for number in range(10):
        send_surely(producer, message("T", f"later {number}"))
    tell("sent")
    sys.stdin.readline()
    os._exit(0)


if __name__ == "__main__":
    main()
