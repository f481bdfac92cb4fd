"""Our producers beside Kafka's Python clients: `python benchmarks/kafka_clients.py --kafka DIR`.

    python benchmarks/kafka_clients.py --kafka DIR [--python PYTHON] [--rounds N] [--count N]

The benchmark measures the processor time of the client's process for a message of 128 bytes, to our
broker and to Kafka's in turn. Each figure is the median of the rounds. Producers have their default
settings: confluent-kafka gathers messages for 5 ms, aiokafka and ours what waits.

`--kafka` names a directory as for `spark_read.py`. The interpreter of `--python` needs
confluent-kafka, aiokafka, msgspec and SparrowMQ; by default it is the one that runs this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from against_apache import describe_machine, describe_run
from sparrowmq import AsyncProducer, Message, Producer, SendResult
from sparrowmq.testing import EmbeddedCluster

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "load"
BODY = bytes(128)
# Messages under way at once; a fifth of all messages comes before the measurement.
UNDER_WAY = 1_000
QUEUED = 10_000


class Row(NamedTuple):
    """One way to send, ours and the peer's, and the aim for the ratio of processor time."""

    name: str
    ours: str
    peer: str
    wanted: float


ROWS = (
    Row("a thread queues messages", "send_nowait", "confluent-kafka produce", 2.0),
    Row("a coroutine queues messages", "asyncio send_nowait", "aiokafka send", 0.8),
    Row("1,000 tasks await each message", "asyncio send", "aiokafka send_and_wait", 1.0),
)


class Meter:
    """Measures the processor time of all messages behind the first fifth."""

    def __init__(self, count: int) -> None:
        self.count, self._warm, self._seen = count, count // 5, 0
        self._begin = (0.0, 0.0)

    def note(self) -> None:
        """Note a message that is about to be sent."""
        if self._seen == self._warm:
            self._begin = time.process_time(), time.perf_counter()
        self._seen += 1

    def end(self) -> dict[str, float]:
        """Return the microseconds for a message, and the messages a second."""
        counted = self.count - self._warm
        cpu_s, wall_s = time.process_time() - self._begin[0], time.perf_counter() - self._begin[1]
        return {"cpu_us": cpu_s / counted * 1e6, "rate": counted / wall_s}


def send_nowait(address: str, meter: Meter) -> None:
    with Producer("GID_load", name_server=address) as producer:
        under_way: deque[Future[SendResult]] = deque()
        for _ in range(meter.count):
            meter.note()
            under_way.append(producer.send_nowait(Message(TOPIC, BODY)))
            if len(under_way) >= QUEUED:
                under_way.popleft().result()
        for future in under_way:
            future.result()


def confluent_produce(address: str, meter: Meter) -> None:
    import confluent_kafka  # type: ignore[import-not-found]

    failed: list[Any] = []
    left = meter.count

    def done(error: Any, _: Any) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            failed.append(error)

    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    for number in range(meter.count):
        meter.note()
        producer.produce(TOPIC, BODY, on_delivery=done)
        producer.poll(0)
        while number - (meter.count - left) >= QUEUED:
            producer.poll(0.01)
    producer.flush()
    assert not failed, failed[0]
    assert left == 0


async def asyncio_send_nowait(address: str, meter: Meter) -> None:
    async with AsyncProducer("GID_load", name_server=address) as producer:
        under_way: deque[asyncio.Future[SendResult]] = deque()
        for _ in range(meter.count):
            meter.note()
            under_way.append(producer.send_nowait(Message(TOPIC, BODY)))
            if len(under_way) >= QUEUED:
                await under_way.popleft()
        await asyncio.gather(*under_way)


async def aiokafka_send(address: str, meter: Meter) -> None:
    import aiokafka  # type: ignore[import-not-found]

    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address) as producer:
        under_way: deque[asyncio.Future[Any]] = deque()
        for _ in range(meter.count):
            meter.note()
            under_way.append(await producer.send(TOPIC, BODY))
            if len(under_way) >= QUEUED:
                await under_way.popleft()
        await asyncio.gather(*under_way)


async def await_each(meter: Meter, send: Callable[[], Any]) -> None:
    left = meter.count

    async def sender() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            meter.note()
            await send()

    await asyncio.gather(*(sender() for _ in range(UNDER_WAY)))


async def asyncio_send(address: str, meter: Meter) -> None:
    async with AsyncProducer("GID_load", name_server=address) as producer:
        await await_each(meter, lambda: producer.send(Message(TOPIC, BODY)))


async def aiokafka_send_and_wait(address: str, meter: Meter) -> None:
    import aiokafka  # pyright: ignore[reportMissingImports]

    async with aiokafka.AIOKafkaProducer(bootstrap_servers=address) as producer:
        await await_each(meter, lambda: producer.send_and_wait(TOPIC, BODY))


THREADS = {"send_nowait": send_nowait, "confluent-kafka produce": confluent_produce}
LOOPS = {
    "asyncio send_nowait": asyncio_send_nowait,
    "aiokafka send": aiokafka_send,
    "asyncio send": asyncio_send,
    "aiokafka send_and_wait": aiokafka_send_and_wait,
}


def load(way: str, address: str, count: int) -> dict[str, float]:
    """Send messages one way; return what they cost this process."""
    meter = Meter(count)
    if way in THREADS:
        THREADS[way](address, meter)
    else:
        asyncio.run(LOOPS[way](address, meter))
    return meter.end()


def main() -> None:
    """Measure, print the table and write it."""
    parser = argparse.ArgumentParser(description="our producers beside Kafka's")
    parser.add_argument("--kafka", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results")
    parser.add_argument("--load", nargs=2, metavar=("WAY", "ADDRESS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        way, address = arguments.load
        print(json.dumps(load(way, address, arguments.count)))
        return
    if arguments.kafka is None:
        print("without --kafka DIR there is nothing to compare with")
        return
    # It needs PySpark, which the interpreter of a load may lack.
    from spark_read import Kafka

    samples: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as place, EmbeddedCluster(flush="async") as ours:
        ours.create_topic(TOPIC, queues=8)
        kafka = Kafka(arguments.kafka, Path(place))
        try:
            for _ in range(arguments.rounds):
                for row in ROWS:
                    for way, address in ((row.ours, ours.name_server), (row.peer, kafka.address)):
                        command = [arguments.python, __file__, "--load", way, address]
                        command += ["--count", f"{arguments.count}"]
                        told = subprocess.run(command, capture_output=True, text=True, check=True)
                        samples.setdefault(way, []).append(json.loads(told.stdout))
                        print(f"{way:28}{samples[way][-1]}", flush=True)
        finally:
            kafka.close()
    table = describe(samples, arguments.python, arguments.rounds)
    print(table)
    (arguments.out / "kafka-clients.md").write_text(table)


VERSIONS = (
    "import platform, aiokafka, confluent_kafka; print('Python', platform.python_version() + ',',"
    "'confluent-kafka', confluent_kafka.__version__ + ', aiokafka', aiokafka.__version__)"
)


def describe(samples: dict[str, list[dict[str, float]]], python: str, rounds: int) -> str:
    """Return the table of results."""
    versions = subprocess.run(
        [python, "-c", VERSIONS], capture_output=True, text=True, check=True
    ).stdout.strip()
    head = "| µs of the client's processor | SparrowMQ | Kafka's | ratio | wanted | messages/s |"
    lines = [
        describe_run(describe_machine(), versions, rounds),
        "",
        head,
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        (ours, our_rate), (peer, peer_rate) = (
            [statistics.median(each[name] for each in samples[way]) for name in ("cpu_us", "rate")]
            for way in (row.ours, row.peer)
        )
        lines.append(
            f"| {row.name}: `{row.ours}`, {row.peer} | {ours:.1f} | {peer:.1f} "
            f"| {ours / peer:.2f} | ≤ {row.wanted} | {our_rate:,.0f} / {peer_rate:,.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
