"""A member of a consumer group in a process of its own.

One process refuses a second consumer of a group under one client id, so tests of what two of them
do to each other need two processes.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from live_groups import LiveCluster
from sparrowmq.processes.child_processes import ChildProcesses
from sparrowmq.processes.group_members import Members

CLIENT_IP = "172.17.0.1"
CLOSE_LIMIT_MS = 30_000


class MemberProcess:
    """A push consumer of one topic as `172.17.0.1@INSTANCE`, started and listening."""

    def __init__(self, cluster: LiveCluster, group: str, *, topic: str, instance: str) -> None:
        self._held = ExitStack()
        directory = Path(self._held.enter_context(tempfile.TemporaryDirectory()))
        self._members = Members(
            self._held.enter_context(ChildProcesses(directory)), directory, queues=()
        )
        self._log = self._members.start(
            "member",
            group,
            name_server=cluster.name_server,
            topic=topic,
            client_ip=CLIENT_IP,
            instance_name=instance,
        )
        self._consumed: list[tuple[int, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self._members.required[0].pid

    @property
    def queue_ids(self) -> list[int]:
        """The queues it has, sorted."""
        self._log.read()
        return list(self._log.owned)

    @property
    def consumed(self) -> list[tuple[int, int]]:
        """Queue id and offset of every message that it got, in its order."""
        self._consumed += [(d.queue_id, d.queue_offset) for d in self._log.read_deliveries()]
        return self._consumed

    def close(self) -> None:
        """Have it leave the group and end, unless it has."""
        with self._held:
            if self._log.state.is_over:
                return
            self._members.leave("member", limit_ms=CLOSE_LIMIT_MS)
