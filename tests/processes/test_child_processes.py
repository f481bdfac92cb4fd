from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sparrowmq.processes import keeper
from sparrowmq.processes.child_processes import ChildProcesses, ProcessFailed
from sparrowmq.processes.keeper import find_processes

# Starts a process of its own in another process group, as Spark's Python daemon does. Its name is
# one that the kernel has cut amid a character.
PARENT = """
import pathlib, subprocess, sys, time
if pathlib.Path("/proc/self/comm").exists():
    pathlib.Path("/proc/self/comm").write_bytes(bytes([0xE5]))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print("child", child.pid, flush=True)
time.sleep(600)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
# Sends the signal back to its parent.
AVENGER = """
import os, signal, sys
def end(*_):
    os.kill(os.getppid(), signal.SIGTERM)
    sys.exit(7)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
signal.pause()
"""
SLEEPER = "import time; time.sleep(600)  # of the test of signals"
DEMO = """
import pathlib, sys, time
from sparrowmq.processes.child_processes import ChildProcesses
with ChildProcesses(pathlib.Path(sys.argv[1])) as processes:
    print(processes.start("parent", ["-c", sys.argv[2]]).pid, flush=True)
    time.sleep(600)
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def find_sleepers() -> dict[int, str]:
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            command = (directory / "cmdline").read_text()
            parent = (directory / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            continue
        if SLEEPER in command and int(parent) == os.getpid():
            found[int(directory.name)] = command
    return found


@pytest.mark.slow
@needs_proc
def test_leaving_the_block_ends_every_process_and_its_children(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path) as processes:
        parent = processes.start("parent", ["-c", PARENT])
        wait_until(lambda: "child" in parent.output.read_text())
        assert len(find_processes([parent.pid])) == 2

    assert find_processes([parent.pid]) == {}
    assert parent.exit_code == -signal.SIGTERM


@pytest.mark.slow
@needs_proc
def test_processes_end_when_the_demo_itself_is_killed(tmp_path: Path) -> None:
    demo = subprocess.Popen(
        [sys.executable, "-c", DEMO, str(tmp_path), PARENT], stdout=subprocess.PIPE
    )
    assert demo.stdout is not None
    parent = int(demo.stdout.readline())
    wait_until(lambda: "child" in (tmp_path / "parent.log").read_text())
    assert len(find_processes([parent])) == 2

    demo.kill()
    demo.wait()
    demo.stdout.close()

    wait_until(lambda: find_processes([parent]) == {})


@pytest.mark.slow
@needs_proc
def test_keeper_leaves_alone_a_session_that_has_ended() -> None:
    """Its number may be that of another process by then."""
    command = [sys.executable, "-I", "-S", "-c", SLEEPER]
    kept, ended = (subprocess.Popen(command, start_new_session=True) for _ in range(2))
    try:
        lines = f"+{kept.pid}\n+{ended.pid}\n-{ended.pid}\n"
        subprocess.run(
            [sys.executable, "-I", "-S", keeper.__file__], input=lines, text=True, check=True
        )

        assert kept.wait(20) == -signal.SIGKILL
        assert ended.poll() is None
    finally:
        for each in (kept, ended):
            each.kill()
            each.wait()


def start_sleepers(directory: Path, timer: threading.Timer) -> None:
    with ChildProcesses(directory) as processes:
        timer.start()
        for index in range(100):
            processes.start(f"sleeper-{index}", ["-I", "-S", "-c", SLEEPER])


@pytest.mark.slow
@needs_proc
def test_signal_while_a_process_starts_leaves_none_behind(tmp_path: Path) -> None:
    def end(number: int, frame: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, end)
    try:
        for tenths_of_ms in range(20, 220, 5):
            delay_s = tenths_of_ms / 10_000
            timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGTERM))
            with pytest.raises(SystemExit):
                start_sleepers(tmp_path, timer)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert find_sleepers() == {}


@pytest.mark.slow
@needs_proc
def test_signal_that_comes_while_processes_end_does_not_cut_that_short(tmp_path: Path) -> None:
    def end(number: int, frame: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGTERM, end)
    try:
        with ChildProcesses(tmp_path) as processes:
            others = [processes.start(f"other-{n}", ["-c", SLEEPER]) for n in range(2)]
            last = processes.start("last", ["-c", AVENGER])
            wait_until(lambda: "ready" in last.output.read_text())
    finally:
        signal.signal(signal.SIGTERM, before)

    assert last.exit_code == 7
    assert find_processes([each.pid for each in others]) == {}


@pytest.mark.slow
def test_killing_a_child_kills_its_process_group(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path) as processes:
        child = processes.start("deaf", ["-c", DEAF])
        wait_until(lambda: "deaf" in child.output.read_text())

        child.kill()

        assert child.exit_code == -signal.SIGKILL


@pytest.mark.slow
def test_process_that_ends_early_is_reported_with_its_output(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path) as processes:
        child = processes.start("hasty", ["-c", "print('out of here'); raise SystemExit(3)"])
        assert child.wait(60)

        with pytest.raises(ProcessFailed, match=r"(?s)hasty ended with exit code 3.*out of here"):
            processes.check([child])


@pytest.mark.slow
@pytest.mark.parametrize(("exit_code", "has_failed"), [(0, False), (1, True)])
def test_process_that_may_finish_fails_by_its_exit_code(
    tmp_path: Path, exit_code: int, has_failed: bool
) -> None:
    with ChildProcesses(tmp_path) as processes:
        child = processes.start("brief", ["-c", f"raise SystemExit({exit_code})"], may_finish=True)
        assert child.wait(60)

        assert has_failed == child.has_failed


@pytest.mark.slow
def test_child_reads_the_lines_it_is_sent(tmp_path: Path) -> None:
    with ChildProcesses(tmp_path) as processes:
        child = processes.start("echo", ["-c", "print(input())"], has_input=True)
        child.send_line("hello")
        assert child.wait(60)

        child.send_line("nobody reads this any more")
        assert child.output.read_text() == "hello\n"
