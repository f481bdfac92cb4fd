"""The tutorial is walked as a reader walks it: its files are saved, its commands run, in order.

`title="terminal 2"` of a block says where. A block of commands runs there, `# Ctrl-C` ends what
runs; each line of a block of text comes up there, where `...` stands for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from sparrowmq.testing import EmbeddedCluster
from waiting import wait_until

TUTORIAL = Path(__file__).resolve().parent.parent / "docs/tutorial.md"
BLOCK = re.compile(r'^```(python|sh|text) title="([^"]+)"\n(.*?)^```$', re.S | re.M)
COMMAND_S_MAX = 200.0
SHOWN_S_MAX = 150.0


class Terminal:
    """One of the reader's terminals: it runs one command at a time."""

    def __init__(self, directory: Path, name: str, name_server: str) -> None:
        self._directory = directory
        self._output = directory / f"{name}.log"
        self._environment = {
            **os.environ,
            "NAMESRV_ADDR": name_server,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        self._process: subprocess.Popen[bytes] | None = None
        # In the last command's output: where a block begins, and the end of what was seen.
        self._begun = self._seen = 0

    def type(self, line: str) -> None:
        """Run a command once the one before has ended, or end what runs."""
        if line == "# Ctrl-C":
            self.interrupt()
            return
        self.wait()
        self._begun = self._seen = 0
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                shlex.split(line),
                cwd=self._directory,
                env=self._environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def interrupt(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self.wait()

    def wait(self) -> None:
        if self._process is not None:
            assert self._process.wait(COMMAND_S_MAX) == 0, self._output.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def begin_block(self) -> None:
        """Look from now on only at what came after all that was seen."""
        self._begun = self._seen

    def shows(self, line: str) -> bool:
        """Return whether the last command printed the line in this block."""
        pattern = ".*".join(map(re.escape, line.split("...")))
        found = re.compile(f"^{pattern}$", re.M).search(self._output.read_text(), self._begun)
        if found is not None:
            self._seen = max(self._seen, found.end())
        return found is not None


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    with EmbeddedCluster() as cluster, ExitStack() as stack:
        # Terminal 1 runs the broker at a fixed port; the embedded one stands for it.
        terminals = {
            f"terminal {number}": stack.enter_context(
                Terminal(tmp_path, f"terminal {number}", cluster.name_server)
            )
            for number in (2, 3, 4)
        }
        for kind, where, text in BLOCK.findall(TUTORIAL.read_text()):
            if kind == "python":
                (tmp_path / where).write_text(text.replace("127.0.0.1:9876", cluster.name_server))
            elif where in terminals:
                walk(terminals[where], kind, text.splitlines())


def walk(terminal: Terminal, kind: str, lines: list[str]) -> None:
    """Type a block's commands, or wait for a block's lines, whichever comes first."""
    terminal.begin_block()
    for line in lines:
        if kind == "sh":
            terminal.type(line)
        else:
            wait_until(f"shown: {line!r}", partial(terminal.shows, line), timeout_s=SHOWN_S_MAX)


def test_the_tutorial_has_a_block_for_each_terminal() -> None:
    places = {where for _, where, _ in BLOCK.findall(TUTORIAL.read_text())}

    assert {f"terminal {number}" for number in (1, 2, 3, 4)} < places
    assert {"board.py", "produce.py", "count.py"} < places
