"""Processes started in sessions of their own, ended and reaped in every case.

A terminal's Ctrl-C does not reach a process in a session of its own: `ChildProcesses` ends its
processes itself, in order, and kills a session's whole tree, such as Spark's JVM with its Python
workers.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType

from sparrowmq.errors import SparrowError
from sparrowmq.processes import keeper

_END_PATIENCE_S = 5.0
_REAP_PATIENCE_S = 5.0
_LOG_TAIL_LINES = 15


class ProcessFailed(SparrowError):
    """A process ended when it should have run; the text has the end of its output."""


class Child:
    """A process that leads a session of its own.

    Args:
        name: the process's name in logs and errors.
        output: the file with the process's output.
        may_finish: whether the process may end with exit code 0.
    """

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        *,
        output: Path,
        may_finish: bool = False,
    ) -> None:
        self.name = name
        self.output = output
        self._process = process
        self._may_finish = may_finish

    @property
    def pid(self) -> int:
        """The process id, which is the id of its session and process group too."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while the process runs; minus the signal's number if a signal ended the process."""
        return self._process.poll()

    @property
    def has_failed(self) -> bool:
        """Whether the process ended when it should have run."""
        return self.exit_code is not None and not (self._may_finish and self.exit_code == 0)

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process, which ends its own children."""
        if self.exit_code is None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process and its process group with SIGKILL, and reap the process."""
        if self.exit_code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(_REAP_PATIENCE_S)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; return whether it ended in time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def send_line(self, line: str) -> None:
        """Write a line to the process's standard input, if the process still reads."""
        pipe = self._process.stdin
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.write(line.encode() + b"\n")
                pipe.flush()

    def close_input(self) -> None:
        """Close the pipe to the process's standard input, if there is one."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def output_tail(self) -> str:
        """Return the last lines of the process's output."""
        lines = self.output.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


class ChildProcesses:
    """All processes of a drill or a demo. Leaving the `with` block ends every one of them.

    Args:
        output_directory: the directory of the outputs; each process writes to NAME.log.
    """

    def __init__(self, output_directory: Path) -> None:
        self._directory = output_directory
        self._children: list[Child] = []
        self._sessions: set[int] = set()
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ChildProcesses:
        """Start the keeper."""
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End everything: ask, wait, kill, reap. Another Ctrl-C does not cut this short."""
        with _handling_signals(signal.SIG_IGN):
            self.end_all()
            self._notify_keeper("bye")
            if self._keeper is not None and self._keeper.stdin is not None:
                with suppress(BrokenPipeError):
                    self._keeper.stdin.close()
                self._keeper.wait(_REAP_PATIENCE_S)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        has_input: bool = False,
        may_finish: bool = False,
    ) -> Child:
        """Start `python ARGUMENTS`, its output appended to NAME.log."""
        path = self._directory / f"{name}.log"
        # If a signal raised between the start and the note of the child, no one would end the
        # child.
        with _postponing_signals(), path.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
            self._sessions.add(process.pid)
            self._notify_keeper(f"+{process.pid}")
            child = Child(name, process, output=path, may_finish=may_finish)
            self._children.append(child)
        return child

    def check(self, children: Sequence[Child]) -> None:
        """Raise ProcessFailed if one of these ended when it should have run."""
        for child in children:
            if child.has_failed:
                raise ProcessFailed(
                    f"{child.name} ended with exit code {child.exit_code}; the end of its output "
                    f"({child.output}):\n{child.output_tail()}"
                )

    def find_processes(self) -> dict[int, str]:
        """Return the ids of all running processes, each with its child's name."""
        names = {child.pid: child.name for child in self._children}
        found = keeper.find_processes(self._sessions)
        return {process_id: names[session] for process_id, session in found.items()}

    def end_all(self) -> None:
        """Ask every process to end, the latest first; kill those that do not; reap all."""
        for child in reversed(self._children):
            child.close_input()
            child.ask_to_end()
        deadline = time.monotonic() + _END_PATIENCE_S
        for child in reversed(self._children):
            child.wait(max(0.0, deadline - time.monotonic()))
        keeper.kill_sessions(self._sessions)
        for child in self._children:
            child.wait(_REAP_PATIENCE_S)
            self._notify_keeper(f"-{child.pid}")
        self._children.clear()
        # init adopted the grandchildren, and reaps them later.
        deadline = time.monotonic() + _REAP_PATIENCE_S
        while keeper.find_processes(self._sessions) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._sessions.clear()

    def _notify_keeper(self, line: str) -> None:
        if self._keeper is None or self._keeper.stdin is None:
            return
        with suppress(BrokenPipeError):
            self._keeper.stdin.write(line.encode() + b"\n")
            self._keeper.stdin.flush()


@contextmanager
def ending_on_sigterm() -> Generator[None]:
    """Let SIGTERM unwind the program as Ctrl-C does: every process is then ended."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _postponing_signals() -> Generator[None]:
    """Delay Ctrl-C and SIGTERM until after the block; new processes have the defaults."""
    arrived: list[int] = []
    with _handling_signals(lambda number, frame: arrived.append(number)):
        yield
    if arrived:
        signal.raise_signal(arrived[0])


@contextmanager
def _handling_signals(
    handler: Callable[[int, FrameType | None], None] | signal.Handlers,
) -> Generator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handler) for number in numbers]
    try:
        yield
    finally:
        for number, previous in zip(numbers, before, strict=True):
            signal.signal(number, previous)
