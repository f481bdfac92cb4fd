"""`sparrowmq dash` as a process, and a browser that logs in to it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Page, expect

from sparrowmq.testing import EmbeddedCluster


class Dash(NamedTuple):
    """A running page: its process, where it is, and its password."""

    process: subprocess.Popen[str]
    base: str
    password: str

    def log_in(self, page: Page) -> None:
        """Give the password."""
        page.goto("/login")
        page.fill("input[name=password]", self.password)
        page.click("main button")
        expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


def start_dash(held: ExitStack, cluster: EmbeddedCluster, data: Path, *options: str) -> Dash:
    """Start it on a free port unless the options name one; it ends with `held`."""
    command = [sys.executable, "-m", "sparrowmq", "dash", "--data", str(data)]
    port = () if "--port" in options else ("--port", "0")
    process = held.enter_context(
        subprocess.Popen(
            [*command, "--nameserver", cluster.name_server, *port, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    held.callback(process.kill)
    assert process.stdout is not None
    assert process.stderr is not None
    base = process.stdout.readline().removeprefix("ready dash=").strip("/\n")
    password = process.stderr.readline().rpartition(" ")[2].strip()
    return Dash(process, base, password)
