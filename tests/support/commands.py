"""The command line within this process, against a cluster, and as processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from typer.testing import CliRunner, Result

from sparrowmq.cli.main import build_app


@dataclass(frozen=True)
class Commands:
    """Runs commands against a cluster."""

    name_server: str

    def __call__(self, *arguments: str, stdin: str | None = None) -> Result:
        options = ["--nameserver", self.name_server, "--timeout", "10"]
        return CliRunner().invoke(build_app(), [*arguments, *options], input=stdin)

    def json(self, *arguments: str, stdin: str | None = None) -> Any:
        """Run a command with --json and return what it printed."""
        result = self(*arguments, "--json", stdin=stdin)
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)


class Start(Protocol):
    """Starts the command line as a process."""

    def __call__(self, *arguments: str) -> subprocess.Popen[str]: ...


@contextmanager
def starting() -> Generator[Start]:
    """Yield a function that starts commands; those that still run after the block are killed."""
    with ExitStack() as held:

        def start(*arguments: str) -> subprocess.Popen[str]:
            process = held.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "sparrowmq", *arguments],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            held.callback(process.kill)
            return process

        yield start
