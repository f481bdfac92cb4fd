"""The tasks that a real worker runs in the tests of the kombu transport.

Each writes a line to a file: when, in which process, what.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery

import sparrowmq.adapters.kombu  # noqa: F401

app = Celery("tasks", broker=f"rocketmq://{os.environ['RMQ']}")
app.conf.update(
    broker_transport_options=json.loads(os.environ.get("OPTIONS", "{}")),
    task_default_queue=os.environ.get("QUEUE", "celery"),
    worker_prefetch_multiplier=int(os.environ.get("PREFETCH", "1")),
    broker_connection_retry_on_startup=True,
)


def note(*words: object) -> None:
    line = " ".join(map(str, (time.time(), os.getpid(), *words)))
    descriptor = os.open(os.environ["NOTES"], os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@app.task  # type: ignore[untyped-decorator]
def add(left: int, right: int) -> int:
    note("add", left + right)
    return left + right


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def fail_twice(self: Any) -> None:
    note("attempt", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=1)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def wait_for(path: str) -> None:
    note("begun", path)
    deadline_s = time.monotonic() + 60
    while not os.path.exists(path) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    note("ended", path)
