"""A member of a consumer group in a process of its own.

One process refuses a second consumer of a group under one client id, so tests of what two of them
do to each other need two processes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any, Self

from sparrowmq.testing.embedded import EmbeddedCluster

CLIENT_IP = "172.17.0.1"
CLOSE_TIMEOUT_S = 30


class MemberProcess:
    """A push consumer of one topic as `172.17.0.1@INSTANCE`, started and listening."""

    def __init__(self, cluster: EmbeddedCluster, group: str, *, topic: str, instance: str) -> None:
        settings = {
            "--nameserver": cluster.name_server,
            "--group": group,
            "--topic": topic,
            "--ip": CLIENT_IP,
            "--instance": instance,
        }
        command = [sys.executable, "-m", "sparrowmq.cli.rebalance_drill_member"]
        self._process = subprocess.Popen(
            [*command, *(word for pair in settings.items() for word in pair)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(json.loads(line))

    def _told(self, event: str) -> list[dict[str, Any]]:
        return [line for line in list(self._lines) if line["event"] == event]

    @property
    def queue_ids(self) -> list[int]:
        """The queues it has, sorted."""
        told = self._told("holds")
        return told[-1]["queue_ids"] if told else []

    @property
    def consumed(self) -> list[tuple[int, int]]:
        """Queue id and offset of every message that it got, in its order."""
        return [
            (line["queue_id"], offset) for line in self._told("messages") for offset in line["ids"]
        ]

    def close(self) -> None:
        """Have it leave the group and end."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(CLOSE_TIMEOUT_S)
        finally:
            self._process.kill()
            self._reader.join()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process.wait()
