"""Celery on Apache's name server and broker, by our kombu transport."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import pools

import sparrowmq.adapters.kombu  # noqa: F401
from waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]
APP = Path(__file__).parents[1] / "adapters"


def test_worker_runs_a_task_and_one_with_a_countdown(apache_cluster: Any, tmp_path: Path) -> None:
    notes, log = tmp_path / "notes", tmp_path / "worker.log"
    environment = {"RMQ": apache_cluster.name_server, "NOTES": str(notes), "QUEUE": "jobs"}
    command = (sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-l", "INFO")

    def attempts() -> list[list[str]]:
        return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []

    with Celery("tasks", broker=f"rocketmq://{apache_cluster.name_server}") as app:
        app.conf.task_default_queue = "jobs"
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [*command, "--pool", "solo"],
                cwd=APP,
                env={**os.environ, **environment},
                stdout=out,
                stderr=out,
            )
        try:
            wait_until("ready", lambda: b" ready." in log.read_bytes() or worker.poll() is not None)
            assert worker.poll() is None, log.read_text()
            app.send_task("celery_app.add", (1, 1))
            app.send_task("celery_app.add", (2, 2), countdown=3)
            app.send_task("celery_app.fail_twice")
            wait_until("all run", lambda: len(attempts()) >= 5, timeout_s=60)
        finally:
            worker.terminate()
            assert worker.wait(30) == 0
            app.pool.force_close_all()
            pools.reset()

    told = {" ".join(words): float(time) for time, _, *words in attempts()}
    assert told.keys() == {"add 2", "add 4", "attempt 0", "attempt 1", "attempt 2"}
    assert told["add 4"] - told["add 2"] > 2
    assert told["attempt 0"] + 1 <= told["attempt 1"] <= told["attempt 2"] - 1
    assert "Traceback" not in log.read_text()
