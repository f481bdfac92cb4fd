"""The members of a topic's consumer groups, as processes: started, ended, seen by their logs.

Tests: test_group_members.py, drills/test_drill.py, demo/test_progress.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sparrowmq.calling.clock import monotonic_ms
from sparrowmq.doctor.owner_history import Holding
from sparrowmq.errors import SparrowError
from sparrowmq.model import MessageQueue
from sparrowmq.processes.child_processes import Child, ChildProcesses, ProcessFailed
from sparrowmq.processes.member_log import MemberLog, is_balanced

_POLL_S = 0.02


class NotReached(SparrowError):
    """A state did not come within its time limit."""


class Members:
    """The members of all groups of a topic.

    Args:
        queues: the topic's queues, by their ids.

    Attributes:
        logs: each member's log by its name, in the order of the starts.
        required: the processes whose end is a failure.
        beside: called in each round of a wait.
    """

    def __init__(
        self, processes: ChildProcesses, directory: Path, queues: Sequence[MessageQueue]
    ) -> None:
        self.logs: dict[str, MemberLog] = {}
        self.required: list[Child] = []
        self.beside: Callable[[], None] | None = None
        self.queues = queues
        self._processes = processes
        self._directory = directory
        self._children: dict[str, Child] = {}

    def start(self, name: str, group: str, **options: str | int | None) -> MemberLog:
        """Start a member as a process.

        Args:
            options: options of `processes.member_process`; None leaves an option out.
        """
        given = {"name": name, "group": group, "logbooks": str(self._directory), **options}
        words = [
            word
            for key, value in given.items()
            if value is not None
            for word in (f"--{key.replace('_', '-')}", str(value))
        ]
        child = self._processes.start(name, ["-m", "sparrowmq.processes.member_process", *words])
        self._children[name] = child
        self.required.append(child)
        self.logs[name] = log = MemberLog(name, group, self._directory)
        return log

    def begin_event(self) -> int:
        """Return the monotonic time, in a later millisecond than each change that was read.

        A change in the event's own millisecond counts as its effect.
        """
        read = [log.assignments[-1].at_ms for log in self.logs.values() if log.assignments]
        pause = threading.Event()
        while (at_ms := monotonic_ms()) <= max(read, default=0):
            pause.wait(0.001)
        return at_ms

    def kill(self, name: str) -> int:
        """Kill a member with SIGKILL; return the monotonic time."""
        # The time before the kill: once the process is reaped, others may hold its queues.
        at_ms = self.begin_event()
        self.required.remove(self._children[name])
        self._children[name].kill()
        self.logs[name].mark_killed(at_ms)
        return at_ms

    def leave(self, *names: str, limit_ms: int) -> int:
        """Let members leave gracefully; return the monotonic time at which they were asked."""
        at_ms = self.begin_event()
        for name in names:
            self.required.remove(self._children[name])
            self.logs[name].mark_leaving()
            self._children[name].ask_to_end()
        self.wait(
            f"graceful end of {' and '.join(names)}",
            lambda: all(self.logs[name].state.is_over for name in names),
            limit_ms=limit_ms,
        )
        return at_ms

    def wait(self, what: str, is_so: Callable[[], object], *, limit_ms: int) -> None:
        """Wait until `is_so()` holds.

        Raises: NotReached after the limit, naming `what`; ProcessFailed if a required process ended
            or a member logged its failure.
        """
        deadline_ms = monotonic_ms() + limit_ms
        pause = threading.Event()
        while True:
            self.read()
            if is_so():
                return
            if monotonic_ms() > deadline_ms:
                said = [
                    f"; {child.name} said: {tail[-300:]}"
                    for child in self.required
                    if (tail := child.output_tail())
                ]
                raise NotReached(f"no {what} within {limit_ms / 1000:.0f} s{''.join(said)}")
            pause.wait(_POLL_S)

    def read(self) -> None:
        """Read what the members have logged, and check that all required processes run."""
        for log in self.logs.values():
            log.read()
            if log.failure:
                raise ProcessFailed(f"{log.name} failed: {log.failure}")
        self._processes.check(self.required)
        if self.beside is not None:
            self.beside()

    def of(self, group: str) -> list[MemberLog]:
        """Return a group's members in the order of their starts."""
        return [log for log in self.logs.values() if log.group == group]

    def owners(self, group: str) -> list[list[str]]:
        """Return, for each queue, the names of its present owners."""
        return [
            [log.name for log in self.of(group) if queue.queue_id in log.owned]
            for queue in self.queues
        ]

    def holdings(self, group: str) -> list[Holding]:
        """Return the queues that each member held and when, in the order of time."""
        found = [holding for log in self.of(group) for holding in log.holdings(self.queues)]
        return sorted(found, key=lambda holding: holding.at_ms)

    def is_balanced(self, group: str, *, without: str = "") -> bool:
        """Return whether the living members, without one, have even shares of all queues."""
        logs = [log for log in self.of(group) if log.name != without]
        return is_balanced(logs, queue_count=len(self.queues))
