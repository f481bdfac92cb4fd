"""Apache's C++ client as its users use it: `python peer.py nameServer=... check=... topic=...`.

The package `rocketmq` has the client compiled, and calls it by ctypes. Each check is a function
that raises what went wrong; what was found is told as a line of JSON. Runs in an environment of its
own, without SparrowMQ.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq.client import (  # pyright: ignore[reportMissingImports]
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendStatus,
)
from rocketmq.ffi import MessageModel  # pyright: ignore[reportMissingImports]

OPTIONS = dict(argument.split("=", 1) for argument in sys.argv[1:])
WAIT_S = 100
_count = 0


def connect(client: Any) -> Any:
    """Give a client its name server and, if there is one, its account; start it."""
    client.set_namesrv_addr(OPTIONS["nameServer"])
    if "accessKey" in OPTIONS:
        client.set_session_credentials(OPTIONS["accessKey"], OPTIONS["secretKey"], "ALIYUN")
    client.start()
    return client


def produce(
    topic: str, bodies: list[str], *, change: Callable[[Any], None] | None = None
) -> list[Any]:
    """Send bodies, one after another, with tags A, B, C in turn; return the results."""
    producer = connect(Producer(f"GID_{topic}-producer"))
    results = []
    for number, body in enumerate(bodies):
        message = make(topic, body, number)
        if change is not None:
            change(message)
        results.append(producer.send_sync(message))
    assert {result.status for result in results} == {SendStatus.OK}
    producer.shutdown()
    return results


def make(topic: str, body: str, number: int) -> Any:
    message = Message(topic)
    message.set_keys(f"k{number}")
    message.set_tags("ABC"[number % 3])
    message.set_body(body)
    return message


class Consumer:
    """A push consumer and the messages that its listener was given."""

    def __init__(
        self,
        topic: str,
        expression: str = "*",
        listener: Callable[[Any], None] | None = None,
        *,
        orderly: bool = False,
        model: Any = MessageModel.CLUSTERING,
    ) -> None:
        global _count
        _count += 1
        self.got: list[tuple[str, str, str, str, int, int, int, int]] = []
        self._changed = threading.Condition()

        def consume(message: Any) -> None:
            with self._changed:
                self.got.append(
                    (
                        message.body.decode(),
                        message.tags.decode(),
                        message.keys.decode(),
                        message.id,
                        message.queue_id,
                        message.queue_offset,
                        message.reconsume_times,
                        message.store_timestamp,
                    )
                )
                self._changed.notify_all()
            if listener is not None:
                listener(message)

        self._consumer = PushConsumer(f"GID_{topic}", orderly, model)
        self._consumer.set_instance_name(f"cpp-{os.getpid()}-{_count}")
        self._consumer.subscribe(topic, consume, expression)
        connect(self._consumer)

    def expect(self, bodies: list[str]) -> None:
        """Wait for these messages, in any order, and for no others."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.got) >= len(bodies), WAIT_S)
            self._changed.wait(0.5)
        found = sorted(each[0] for each in self.got)
        assert found == sorted(bodies), f"expected {bodies}, got {found}"

    def close(self) -> None:
        self._consumer.shutdown()


def numbered(count: int) -> list[str]:
    return [f"m-{number}" for number in range(count)]


def check_send(topic: str) -> None:
    """Each message keeps its id, place, keys and tags."""
    results = produce(topic, numbered(30))
    consumer = Consumer(topic)
    consumer.expect(numbered(30))
    for body, tags, keys, name, _, offset, *_ in consumer.got:
        number = int(body[2:])
        sent = results[number]
        expected = ("ABC"[number % 3], f"k{number}", sent.msg_id, sent.offset)
        assert (tags, keys, name, offset) == expected
    consumer.close()


def check_async(topic: str) -> None:
    producer = connect(Producer(f"GID_{topic}-producer"))
    failures: list[Exception] = []
    for number, body in enumerate(numbered(20)):
        producer.send_async(make(topic, body, number), lambda _: None, failures.append)
    consumer = Consumer(topic)
    consumer.expect(numbered(20))
    assert failures == []
    consumer.close()
    producer.shutdown()


def check_oneway(topic: str) -> None:
    producer = connect(Producer(f"GID_{topic}-producer"))
    for number, body in enumerate(numbered(20)):
        producer.send_oneway(make(topic, body, number))
    consumer = Consumer(topic)
    consumer.expect(numbered(20))
    consumer.close()
    producer.shutdown()


def check_compressed(topic: str) -> None:
    body = "compress me " * 10_000
    produce(topic, [body])
    consumer = Consumer(topic)
    consumer.expect([body])
    consumer.close()


def check_tags(topic: str) -> None:
    produce(topic, numbered(9))
    consumer = Consumer(topic, "A || C")
    consumer.expect(["m-0", "m-2", "m-3", "m-5", "m-6", "m-8"])
    consumer.close()


def check_delay(topic: str) -> None:
    consumer = Consumer(topic)
    begun_ms = time.time() * 1000
    produce(topic, ["late"], change=lambda message: message.set_delay_time_level(2))
    consumer.expect(["late"])
    waited_ms = consumer.got[0][7] - begun_ms
    assert waited_ms >= 4_900, f"level 2, 5 s, took {waited_ms} ms"
    consumer.close()


def check_orderly(topic: str) -> None:
    """Messages of a key go to one queue and come in order."""
    producer = connect(Producer(f"GID_{topic}-producer"))
    for number, body in enumerate(numbered(40)):
        result = producer.send_orderly(make(topic, body, number), number % 4)
        assert result.status == SendStatus.OK
    consumer = Consumer(topic, orderly=True)
    consumer.expect(numbered(40))
    for key in range(4):
        numbers = [int(each[0][2:]) for each in consumer.got if int(each[0][2:]) % 4 == key]
        assert numbers == list(range(key, 40, 4))
    assert len({(int(each[0][2:]) % 4, each[4]) for each in consumer.got}) == 4
    consumer.close()
    producer.shutdown()


def check_broadcast(topic: str) -> None:
    consumers = [Consumer(topic, model=MessageModel.BROADCASTING) for _ in range(2)]
    produce(topic, numbered(12))
    for consumer in consumers:
        consumer.expect(numbered(12))
        consumer.close()


def check_share(topic: str) -> None:
    """Two members of a group get each message once, both some."""
    consumers = [Consumer(topic) for _ in range(2)]
    time.sleep(3)
    produce(topic, numbered(40))
    deadline = time.monotonic() + WAIT_S
    while sum(len(consumer.got) for consumer in consumers) < 40 and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [each[0] for consumer in consumers for each in consumer.got]
    assert sorted(found) == sorted(numbered(40))
    assert all(consumer.got for consumer in consumers)
    for consumer in consumers:
        consumer.close()


def check_resume(topic: str) -> None:
    """Who comes next in a group begins where the last one ended."""
    produce(topic, numbered(12))
    first = Consumer(topic)
    first.expect(numbered(12))
    first.close()
    produce(topic, ["late"])
    following = Consumer(topic)
    following.expect(["late"])
    following.close()


def check_retry(topic: str) -> None:
    def refuse_once(message: Any) -> None:
        if message.reconsume_times == 0:
            raise ValueError("not yet")

    produce(topic, ["again"])
    consumer = Consumer(topic, listener=refuse_once)
    consumer.expect(["again", "again"])
    assert [each[6] for each in consumer.got] == [0, 1]
    consumer.close()


def check_pull(topic: str) -> None:
    produce(topic, numbered(12))
    consumer = connect(PullConsumer(f"GID_{topic}"))
    assert sorted(message.body.decode() for message in consumer.pull(topic)) == sorted(numbered(12))
    consumer.shutdown()


def main() -> None:
    failure = None
    try:
        globals()[f"check_{OPTIONS['check']}"](OPTIONS["topic"])
    except BaseException as error:  # The caller wants to know of whatever it was.
        failure = repr(error)
    sys.stdout.write(json.dumps({"event": "checked", "failure": failure}) + "\n")
    sys.stdout.flush()
    # The client's threads may not end.
    os._exit(0)


main()
