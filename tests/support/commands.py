"""The command line within this process, against a cluster."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

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
