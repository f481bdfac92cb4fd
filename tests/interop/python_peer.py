"""Our client as a process of its own: the counterpart of `java/Peer.java`.

It is told what to do by arguments `key=value` and tells what happens as JSON lines on standard
output, each with the wall-clock time `at`, in ms.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from sparrowmq import (
    Admin,
    AsyncPushConsumer,
    ConsumeContext,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
)
from sparrowmq.errors import SparrowError
from sparrowmq.membership.queue_state import QueueState
from sparrowmq.strategies import AllocateMessageQueueByConfig, AllocateMessageQueueByMachineRoom

_output = threading.Lock()
WATCH_PERIOD_S = 0.002
# The shortest time between two tales of the queues of a crowd.
CROWD_PERIOD_S = 0.005


def main(verb: str, *arguments: str) -> None:
    options = dict(argument.split("=", 1) for argument in arguments)
    verbs = {
        "create-topic": create_topic,
        "produce": produce,
        "produce-by-key": produce_by_key,
        "consume": consume,
        "crowd": run_crowd,
    }
    verbs[verb](options)


def tell(event: str, **facts: Any) -> None:
    line = json.dumps({"event": event, "at": time.time() * 1000, **facts})
    with _output:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def create_topic(options: Mapping[str, str]) -> None:
    with Admin(name_server=options["nameServer"]) as admin:
        admin.create_topic(options["topic"], int(options["queues"]))
    tell("created")


def produce(options: Mapping[str, str]) -> None:
    """Send `<prefix><number>`, `rate` a second, `count` in all or until standard input ends."""
    stopped = threading.Event()

    def stop() -> None:
        wait_for_stop()
        stopped.set()

    threading.Thread(target=stop, daemon=True).start()
    prefix, period_s = options.get("prefix", "m-"), 1 / float(options.get("rate", "200"))
    number, count = 0, int(options.get("count", sys.maxsize))
    with Producer("GID_peer_producer", name_server=options["nameServer"]) as producer:
        begun = time.monotonic()
        while number < count and not stopped.is_set():
            try:
                producer.send(Message(options["topic"], f"{prefix}{number}".encode()))
            except SparrowError as error:
                # Sent again under the same name: a body may then be stored twice, never lost.
                tell("failed", body=f"{prefix}{number}", error=str(error))
                stopped.wait(0.1)
                continue
            tell("sent", body=f"{prefix}{number}")
            number += 1
            stopped.wait(max(0.0, begun + number * period_s - time.monotonic()))
    tell("done", count=number)


def produce_by_key(options: Mapping[str, str]) -> None:
    """Send `<key>-<number>`, `rate` a second in all, until standard input ends.

    Each of `keys` sharding keys has a thread, which sends a message once the one before is stored.
    """
    stopped = threading.Event()
    keys = int(options["keys"])

    def send(key: int) -> None:
        number = 0
        while not stopped.is_set():
            body = f"{key}-{number}"
            try:
                producer.send(Message(options["topic"], body.encode(), sharding_key=f"key-{key}"))
            except SparrowError as error:
                tell("failed", body=body, error=str(error))
                stopped.wait(0.1)
                continue
            tell("sent", body=body)
            number += 1
            stopped.wait(keys / float(options["rate"]))

    with Producer("GID_peer_producer", name_server=options["nameServer"]) as producer:
        threads = [threading.Thread(target=send, args=(key,)) for key in range(keys)]
        for thread in threads:
            thread.start()
        wait_for_stop()
        stopped.set()
        for thread in threads:
            thread.join()
    tell("done")


def consume(options: Mapping[str, str]) -> None:
    """Run a push consumer until standard input says `stop` or ends."""

    def listen(messages: list[MessageExt], _: ConsumeContext) -> None:
        for message in messages:
            tell(
                "message",
                body=message.body.decode(),
                broker=message.broker_name,
                queueId=message.queue_id,
                offset=message.queue_offset,
                reconsumeTimes=message.reconsume_times,
            )
            time.sleep(float(options.get("workMs", "0")) / 1000)

    consumer = PushConsumer(
        options["group"],
        name_server=options["nameServer"],
        listener=listen,
        orderly=options.get("orderly") == "true",
        strategy=strategy(options),
        start="first",
        client_ip=options.get("clientIp"),
        instance_name=options.get("instance"),
    )
    if options.get("locks") == "no":
        # RocketMQ's way, to be compared with; a consumer's user has no choice.
        consumer._subscriber.member.locks_queues = False
    with consumer:
        consumer.subscribe(options["topic"], "*")
        tell("starting")
        consumer.start()
        tell("started", clientId=consumer.client_id)
        watcher = threading.Thread(
            target=watch_assignment, args=(consumer, options["topic"]), daemon=True
        )
        watcher.start()
        wait_for_stop()
        tell("stopping")
    tell("stopped")


def run_crowd(options: Mapping[str, str]) -> None:
    asyncio.run(crowd(options))


async def crowd(options: Mapping[str, str]) -> None:
    """Run `count` push consumers until standard input ends; tell the queues of all of them."""
    owned: list[MessageQueue] = []
    changed = asyncio.Event()

    async def listen(messages: list[MessageExt], _: ConsumeContext) -> None: ...

    async def take(queues: list[MessageQueue]) -> None:
        owned.extend(queues)
        changed.set()

    async def give_up(queues: list[MessageQueue]) -> None:
        for queue in queues:
            owned.remove(queue)
        changed.set()

    async def tell_changes() -> None:
        while True:
            await changed.wait()
            changed.clear()
            tell("assignment", queues=sorted(f"{q.broker_name}:{q.queue_id}" for q in owned))
            await asyncio.sleep(CROWD_PERIOD_S)

    telling = asyncio.create_task(tell_changes())
    for number in range(int(options["count"])):
        member = AsyncPushConsumer(
            options["group"],
            name_server=options["nameServer"],
            instance_name=f"crowd-{number:05}",
            listener=listen,
            start="first",
            on_assign=take,
            on_revoke=give_up,
            on_lost=give_up,
        )
        await member.subscribe(options["topic"])
        await member.start()
    tell("started")
    # The process ends with its members: nobody waits for five hundred to leave one by one.
    await asyncio.to_thread(wait_for_stop)
    telling.cancel()


def strategy(options: Mapping[str, str]) -> Any:
    name = options.get("strategy", "AVG")
    if name == "CONFIG":
        pairs = [queue.split(":") for queue in options["queues"].split(",")]
        return AllocateMessageQueueByConfig(
            [MessageQueue(options["topic"], broker, int(queue_id)) for broker, queue_id in pairs]
        )
    if name == "MACHINE_ROOM":
        return AllocateMessageQueueByMachineRoom(set(options["rooms"].split(",")))
    return name


def watch_assignment(consumer: PushConsumer, topic: str) -> None:
    """Tell which queues are being consumed: what Java has in its table and not dropped."""
    last: list[str] | None = None
    while True:
        # What a queue is doing is not public; a test may look.
        try:
            held = list(consumer._subscriber.member._queues.values())
        except RuntimeError:  # The owner's thread changed it meanwhile.
            continue
        now = sorted(
            f"{owned.queue.broker_name}:{owned.queue.queue_id}"
            for owned in held
            if owned.queue.topic == topic and owned.state is QueueState.CONSUMING
        )
        if now != last:
            tell("assignment", queues=now)
            last = now
        time.sleep(WATCH_PERIOD_S)


def wait_for_stop() -> None:
    for line in sys.stdin:
        if line == "stop\n":
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
