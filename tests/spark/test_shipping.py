"""What Spark carries to other processes, and what these import for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

pytest.importorskip("pyspark")

from sparrowmq.spark import shipping

PLAN = """
import sys
from pyspark import cloudpickle
heavy = ("numpy", "pyarrow", "pandas", "sparrowmq.client.publisher", "sparrowmq.spark.columns")
before = {name for name in heavy if name in sys.modules}
for packed in sys.stdin.buffer.read().split(b"<>"):
    cloudpickle.loads(packed)
print(sorted({name for name in heavy if name in sys.modules} - before))
"""


@pytest.mark.slow
def test_processes_that_only_plan_import_nothing_that_only_tasks_need() -> None:
    from pyspark.cloudpickle import dumps as untyped_dumps

    from sparrowmq.spark.batch_reader import RocketMQReader
    from sparrowmq.spark.options import parse_options
    from sparrowmq.spark.source import RocketMQDataSource
    from sparrowmq.spark.stream_reader import RocketMQStreamReader

    dumps: Callable[[object], bytes] = untyped_dumps
    given = {"nameServer": "127.0.0.1:9876", "topic": "T"}
    objects = [
        RocketMQDataSource(given),
        RocketMQReader(parse_options(given, scope="batch")),
        RocketMQStreamReader(parse_options(given, scope="stream")),
    ]

    result = subprocess.run(
        [sys.executable, "-c", PLAN],
        input=b"<>".join(dumps(each) for each in objects),
        capture_output=True,
        check=True,
    )

    assert result.stdout.decode().strip() == "[]"


def test_a_process_that_unpacks_often_freezes_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is frozen is never collected.
    froze: list[None] = []
    monkeypatch.setattr("gc.freeze", lambda: froze.append(None))
    monkeypatch.setattr(shipping, "_freezes_left", 3)

    for _ in range(9):
        shipping.settle()

    assert len(froze) == 3
