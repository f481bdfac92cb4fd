"""The keeper: a small process that ends the others if the process that started them is killed.

`kill -9` leaves a process no time to clean up. `ChildProcesses` therefore names every session that
it starts to the keeper, through a pipe. When the pipe ends without `bye`, the keeper kills all
sessions.

    line          meaning
    +SESSION      a session, named by the process id of its leader, has begun
    -SESSION      the session has ended and was reaped
    bye           the parent has cleaned up itself

A bare interpreter runs this file: it imports nothing but the standard library.
Tests: test_child_processes.py.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Keep watch until the pipe on standard input ends."""
    # A terminal sends Ctrl-C to all foreground processes; the keeper must outlive its parent.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sessions: set[int] = set()
    for line in sys.stdin:
        if line.startswith("+"):
            sessions.add(int(line[1:]))
        elif line.startswith("-"):
            sessions.discard(int(line[1:]))
        else:
            return
    kill_sessions(sessions)


def kill_sessions(sessions: Collection[int]) -> None:
    """Kill every process of these sessions, whatever its process group."""
    for session in sorted(sessions):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(session, signal.SIGKILL)
    # Spark's Python workers have a process group of their own within the session.
    for process_id in find_processes(sessions):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process_id, signal.SIGKILL)


def find_processes(sessions: Collection[int]) -> dict[int, int]:
    """Return the running processes of these sessions, each with its session.

    The result is empty on systems without /proc.
    """
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            # A name may end amid a character.
            stat = (directory / "stat").read_text(errors="replace")
        except OSError:
            continue
        # The name, in brackets, may hold blanks and brackets: state, parent, group, session follow.
        state, _, _, session = stat[stat.rindex(")") + 2 :].split()[:4]
        if state != "Z" and int(session) in sessions:
            found[int(directory.name)] = int(session)
    return found


if __name__ == "__main__":
    main()
