"""The client's speed: sends (single, pipelined, queued, in batches) and a push consumer.

Usage: python benchmarks/client.py [COUNT]. Broker and client share the machine. The broker runs in
a process of its own and flushes asynchronously: the client is the slower part. Other load on the
machine changes the rates, and the processor's microseconds little.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future

from sparrowmq import AsyncProducer, Message, Producer, PushConsumer, SendResult
from sparrowmq.testing.embedded import EmbeddedCluster

BODY = bytes(300)
BATCH = 128
PIPELINE = 256
# The messages of `send_nowait` under way.
QUEUED = 4_000


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def report(name: str, count: int, start: tuple[float, float]) -> None:
    """Print the rate, and what a message costs the client's process."""
    seconds, cpu = (now - then for now, then in zip(clocks(), start, strict=True))
    print(f"{name:<44} {count / seconds:>10,.0f} msg/s {cpu / count * 1e6:>8.1f} µs")


def send_singly(name_server: str, count: int) -> None:
    with Producer("GID_bench", name_server=name_server) as producer:
        producer.send(Message("B", BODY))
        start = clocks()
        for _ in range(count):
            producer.send(Message("B", BODY))
        report("sync sends, one after another", count, start)


async def send_pipelined(name_server: str, count: int) -> None:
    async with AsyncProducer("GID_bench", name_server=name_server) as producer:
        await producer.send(Message("B", BODY))
        left = count

        async def sender() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await producer.send(Message("B", BODY))

        start = clocks()
        await asyncio.gather(*(sender() for _ in range(PIPELINE)))
        report(f"async sends, {PIPELINE} at a time", count, start)


def send_queued(name_server: str, count: int) -> None:
    with Producer("GID_bench", name_server=name_server) as producer:
        producer.send(Message("B", BODY))
        waiting: deque[Future[SendResult]] = deque()
        start = clocks()
        for _ in range(count):
            waiting.append(producer.send_nowait(Message("B", BODY)))
            if len(waiting) > QUEUED:
                waiting.popleft().result()
        while waiting:
            waiting.popleft().result()
        report("sync send_nowait", count, start)


async def send_queued_on_loop(name_server: str, count: int) -> None:
    async with AsyncProducer("GID_bench", name_server=name_server) as producer:
        await producer.send(Message("B", BODY))
        free = asyncio.Semaphore(QUEUED)

        def done(future: asyncio.Future[SendResult]) -> None:
            future.result()
            free.release()

        start = clocks()
        for _ in range(count):
            await free.acquire()
            producer.send_nowait(Message("B", BODY)).add_done_callback(done)
        await producer.flush()
        report("asyncio send_nowait", count, start)


def send_batches(name_server: str, count: int) -> None:
    with Producer("GID_bench", name_server=name_server) as producer:
        producer.send(Message("B", BODY))
        start = clocks()
        for _ in range(count // BATCH):
            producer.send_batch([Message("B", BODY, tags="T") for _ in range(BATCH)])
        report(f"sync batches of {BATCH}", count // BATCH * BATCH, start)


def consume(name_server: str, count: int, *, pull_batch: int, consume_batch: int) -> None:
    done = threading.Event()
    lock = threading.Lock()
    seen = 0

    def listener(messages: list[object], _: object) -> None:
        nonlocal seen
        with lock:
            seen += len(messages)
            if seen >= count:
                done.set()

    with PushConsumer(
        f"GID_{pull_batch}_{consume_batch}",
        name_server=name_server,
        listener=listener,  # type: ignore[arg-type]
        start="first",
        pull_batch_size=pull_batch,
        consume_message_batch_max_size=consume_batch,
    ) as consumer:
        consumer.subscribe("B")
        start = clocks()
        consumer.start()
        done.wait(60)
        report(f"push consumer, pulls of {pull_batch}, batches of {consume_batch}", seen, start)


def main() -> None:
    """Run all measurements."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    with EmbeddedCluster(flush="async") as cluster:
        cluster.create_topic("B", queues=8)
        send_singly(cluster.name_server, count // 10)
        asyncio.run(send_pipelined(cluster.name_server, count // 2))
        send_queued(cluster.name_server, count)
        asyncio.run(send_queued_on_loop(cluster.name_server, count))
        send_batches(cluster.name_server, count * 2)
        consume(cluster.name_server, count * 2, pull_batch=1024, consume_batch=256)
        consume(cluster.name_server, count * 2, pull_batch=256, consume_batch=256)
        consume(cluster.name_server, count, pull_batch=32, consume_batch=1)


if __name__ == "__main__":
    main()
