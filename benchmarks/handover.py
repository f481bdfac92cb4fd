"""Duplicates and pauses while members of a group come and go under load.

Claim: between SparrowMQ members a graceful join or leave redelivers nothing, and no queue pauses
for longer than the listeners that were running, plus 100 ms.

Two members stay; a third joins and leaves in turn, by `close`. Every queue gets a message every
20 ms or so, and a listener takes 5 ms. Counted: deliveries of a message beyond its first; per
queue, the longest time from a message's send to its first delivery, which holds the queue's
pause. Producer and members share one process, so what they take of its interpreter's lock counts
too; the longest wait of a group that nobody joins is printed beside it.

    python benchmarks/handover.py [--events 100] [--name-server HOST:PORT]

Without a name server's address it starts a cluster of its own. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections import Counter, defaultdict
from contextlib import ExitStack

from sparrowmq import (
    Admin,
    ConsumeContext,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from sparrowmq.testing import EmbeddedCluster

TOPIC = "handover"
QUEUE_COUNT = 8
MESSAGE_INTERVAL_S = 0.02
LISTENER_S = 0.005
# Between a change and the next, so that the group is settled.
SETTLED_S = 0.2
PATIENCE_S = 30.0


class Deliveries:
    """What was delivered, and when."""

    def __init__(self) -> None:
        self.bodies: Counter[bytes] = Counter()
        self.longest_ms: dict[int, int] = defaultdict(int)
        self._lock = threading.Lock()

    def __call__(self, messages: list[MessageExt], context: ConsumeContext) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        queue_id = context.queue.queue_id
        with self._lock:
            for message in messages:
                self.bodies[message.body] += 1
                if self.bodies[message.body] == 1:
                    wait_ms = now_ms - int(message.properties["sent"])
                    self.longest_ms[queue_id] = max(self.longest_ms[queue_id], wait_ms)
        time.sleep(LISTENER_S)

    def take_longest_ms(self) -> list[int]:
        """Return the longest wait of a message of each queue since the last call."""
        with self._lock:
            found = [wait_ms for _, wait_ms in sorted(self.longest_ms.items())]
            self.longest_ms.clear()
        return found


class Load:
    """Sends to every queue in turn until it is told to stop."""

    def __init__(self, name_server: str, queues: list[MessageQueue]) -> None:
        self._queues = queues
        self._stop = threading.Event()
        self._producer = Producer("GID_handover_p", name_server=name_server)
        self._thread = threading.Thread(target=self._run)
        self.sent = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        while not self._stop.wait(MESSAGE_INTERVAL_S):
            for queue in self._queues:
                sent = {"sent": str(time.monotonic_ns() // 1_000_000)}
                message = Message(TOPIC, b"%d" % self.sent, properties=sent)
                self._producer.send(message, queue=queue)
                self.sent += 1


def wait_for(members: list[PushConsumer]) -> None:
    """Wait until every queue has one owner among the members."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        counts = [len(member.assignment()) for member in members]
        if sum(counts) == QUEUE_COUNT and min(counts) > 0:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"not balanced within {PATIENCE_S} s: {counts}")
        time.sleep(0.005)


def measure(name_server: str, events: int) -> dict[str, object]:
    """Have a member join and leave in turn; return the figures."""
    deliveries = Deliveries()

    def make() -> PushConsumer:
        consumer = PushConsumer(
            "GID_handover",
            name_server=name_server,
            listener=deliveries,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        consumer.subscribe(TOPIC)
        consumer.start()
        return consumer

    with ExitStack() as stack:
        with Admin(name_server=name_server) as admin:
            route = admin.create_topic(TOPIC, QUEUE_COUNT)
        staying = [stack.enter_context(make()) for _ in range(2)]
        wait_for(staying)
        load = Load(name_server, list(route.publish_queues))
        load.start()
        time.sleep(10 * SETTLED_S)
        deliveries.take_longest_ms()
        time.sleep(10 * SETTLED_S)
        quiet_ms = max(deliveries.take_longest_ms())
        for _ in range(events // 2):
            with make() as third:
                wait_for([*staying, third])
                time.sleep(SETTLED_S)
            wait_for(staying)
            time.sleep(SETTLED_S)
        load.stop()
        deadline = time.monotonic() + PATIENCE_S
        while len(deliveries.bodies) < load.sent and time.monotonic() < deadline:
            time.sleep(0.01)
    waits_ms = deliveries.take_longest_ms()
    return {
        "joins_and_leaves": events // 2 * 2,
        "messages": load.sent,
        "missing": load.sent - len(deliveries.bodies),
        "duplicates": sum(deliveries.bodies.values()) - len(deliveries.bodies),
        "longest_wait_ms": max(waits_ms),
        "longest_wait_ms_by_queue": waits_ms,
        "longest_wait_when_quiet_ms": quiet_ms,
        "listener_ms": round(1_000 * LISTENER_S),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--name-server")
    options = parser.parse_args()
    with ExitStack() as stack:
        name_server = options.name_server
        if name_server is None:
            name_server = stack.enter_context(EmbeddedCluster(flush="async")).name_server
        print(json.dumps(measure(name_server, options.events)))


if __name__ == "__main__":
    main()
