"""Adapters and Spark's source on Apache's masters with a slave each, one of which is killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

pytest.importorskip("pyspark")

from celery import Celery
from kombu import pools
from kombu.exceptions import OperationalError
from pyspark.sql.streaming.datasource import ReadAllAvailable

import sparrowmq.adapters.kombu  # noqa: F401
from sparrowmq.adapters.faststream import RocketBroker
from sparrowmq.spark.options import parse_options
from sparrowmq.spark.stream_reader import RocketMQStreamReader
from sparrowmq.spark.topic_queues import disconnect
from steady_traffic import TWICE_MAX, SteadyTraffic
from waiting import JVM_LIMIT_S

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


class Consumed:
    """What a consumer in a thread of this process got."""

    def __init__(self, run: Callable[[Consumed], None]) -> None:
        self.bodies: list[str] = []
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=run, args=(self,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._thread.join(JVM_LIMIT_S)

    def named(self, _: str) -> list[dict[str, str]]:
        return [{"body": body} for body in tuple(self.bodies)]


def stream(name_server: str, topic: str, consumed: Consumed) -> None:
    """Call the data source as a streaming query of Spark does, one micro-batch after the other."""
    given = {"nameServer": name_server, "topic": topic, "startingOffsets": "earliest"}
    reader = RocketMQStreamReader(parse_options(given, scope="stream"))
    begin = reader.initialOffset()
    while not consumed.stopped.wait(0.1):
        end = reader.latestOffset(begin, ReadAllAvailable())
        batches = [batch for part in reader.partitions(begin, end) for batch in reader.read(part)]
        consumed.bodies += [body.decode() for each in batches for body in each["body"].to_pylist()]
        begin = end
    disconnect()


def handle(name_server: str, topic: str, consumed: Consumed) -> None:
    """Run a handler of FastStream's."""

    async def run() -> None:
        async with RocketBroker(name_server) as broker:

            @broker.subscriber(topic, group="GID_handler", start="first")  # type: ignore[untyped-decorator]
            async def note(body: str) -> None:
                consumed.bodies.append(body)

            await broker.start()
            await asyncio.to_thread(consumed.stopped.wait)

    asyncio.run(run())


@pytest.mark.parametrize("run", [handle, stream], ids=["FastStream", "Spark's source"])
def test_adapters_lose_nothing_when_a_master_is_killed(
    java: Any, masters_and_slaves: Any, run: Callable[[str, str, Consumed], None]
) -> None:
    brokers, topic = masters_and_slaves
    name_server = brokers["broker-b-0"].name_server
    producer = java.python_peer("produce", nameServer=name_server, topic=topic, rate=100)
    try:
        with Consumed(partial(run, name_server, topic)) as consumed:
            told = kill_a_master(brokers, SteadyTraffic(producer, [consumed]))
    finally:
        producer.kill()
    print(f"\n{java.version}, {run.__name__}, a master killed: {told}")


class Tasks:
    """Sends tasks of Celery's, some dozens a second."""

    def __init__(self, name_server: str, topic: str) -> None:
        self._app = Celery("tasks", broker=f"rocketmq://{name_server}")
        self._app.conf.task_default_queue = topic
        self._told: dict[str, list[dict[str, str]]] = {"sent": [], "failed": []}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        number = 0
        while not self._stopped.wait(0.02):
            try:
                self._app.send_task("celery_app.add", (number, 0), retry=False)
            except OperationalError:
                self._told["failed"].append({})
                continue
            self._told["sent"].append({"body": f"add {number}"})
            number += 1

    def named(self, event: str) -> list[dict[str, str]]:
        return list(self._told[event])

    def stop(self) -> int:
        self._stopped.set()
        self._thread.join()
        self._app.pool.force_close_all()
        pools.reset()
        return 0


class Worker:
    """A worker of Celery's: a process that notes the tasks that it runs."""

    def __init__(self, name_server: str, topic: str, home: Path) -> None:
        self._notes, self.log = home / "notes", home / "worker.log"
        command = (sys.executable, "-m", "celery", "-A", "celery_app", "worker", "--pool", "solo")
        settings = {"RMQ": name_server, "NOTES": str(self._notes), "QUEUE": topic}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=Path(__file__).parents[1] / "adapters",
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
            )

    def named(self, _: str) -> list[dict[str, str]]:
        lines = self._notes.read_text().splitlines() if self._notes.exists() else ()
        return [{"body": line.split(maxsplit=2)[2]} for line in lines]


def test_tasks_are_run_when_a_master_is_killed(
    java: Any, masters_and_slaves: Any, tmp_path: Path
) -> None:
    brokers, topic = masters_and_slaves
    name_server = brokers["broker-b-0"].name_server
    worker, tasks = Worker(name_server, topic, tmp_path), Tasks(name_server, topic)
    try:
        told = kill_a_master(brokers, SteadyTraffic(tasks, [worker]))
    finally:
        tasks.stop()
        worker.process.terminate()
        code = worker.process.wait(JVM_LIMIT_S)
    print(f"\n{java.version}, Celery, a master killed: {told}")
    assert (code, "Traceback" in worker.log.read_text()) == (0, False)


def kill_a_master(brokers: dict[str, Any], traffic: SteadyTraffic) -> str:
    """Kill a master and start it again; return the counts, of which few are twice."""
    traffic.send_more(200)
    brokers["broker-a-0"].kill_broker()
    traffic.send_more(300)
    traffic.wait_consumed("without the master")
    brokers["broker-a-0"].start_broker()
    traffic.send_more(300)
    told = traffic.stop()
    assert traffic.twice_count <= TWICE_MAX, told
    return told
