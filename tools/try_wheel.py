"""Try the built wheels as a new user would: a fresh environment, and the first minute.

`make try-wheel` runs this trial, with the dependencies from the package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str | Path, stdin: str | None = None) -> str:
    """Run a command and return its output; a failure ends this program."""
    return subprocess.run(
        list(map(str, command)), check=True, text=True, stdout=subprocess.PIPE, input=stdin
    ).stdout


def main() -> None:
    """Build, install, and send, find and consume a message."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", directory)
        (wheel,) = directory.glob("*.whl")
        venv.create(directory / "env", with_pip=True)
        bin_ = directory / "env" / "bin"
        pip = bin_ / "pip"
        run(pip, "wheel", "--quiet", "--no-deps", "-w", directory, ROOT / "speedups")
        run(pip, "install", "--quiet", "--find-links", directory, f"{wheel}[cli,speedups]")
        run(bin_ / "python", "-c", "from sparrowmq.protocol.speedups import *; assert functions")
        smq = bin_ / "smq"
        print(run(smq, "--version").strip())
        servers = subprocess.Popen(
            [
                *(smq, "up", "--data", directory / "data", "--stop-with-stdin"),
                *("--nameserver-port", "0", "--broker-port", "0"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert servers.stdout is not None
            address = servers.stdout.readline().split()[1].removeprefix("nameserver=")
            at = ("--nameserver", address)
            run(smq, "topic", "create", "flights", *at)
            run(smq, "send", "flights", *at, stdin="JFK-LAX\nLHR-CDG\n")
            bodies = run(smq, "tail", "flights", "--body", *at).splitlines()
            assert sorted(bodies) == ["JFK-LAX", "LHR-CDG"], bodies
            found = json.loads(run(smq, "ls", "--json", *at))
            assert [topic["topic"] for topic in found["topics"]] == ["flights"], found
            print(run(smq, "ls", *at))
        finally:
            servers.communicate(timeout=30)
    print("the wheel works")


if __name__ == "__main__":
    main()
