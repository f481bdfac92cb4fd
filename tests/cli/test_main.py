"""The command line without the packages that it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

RUN = """
import sys
for name in {missing!r}:
    sys.modules[name] = None
sys.argv = ["sparrowmq", *{arguments!r}]
from sparrowmq.cli.main import main
main()
"""


def run(missing: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    program = RUN.format(missing=missing, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("missing", "command", "words"),
    [
        ("typer", "up", "typer is not installed; pip install 'sparrowmq[cli]'"),
        ("rich", "demo", "rich is not installed; pip install 'sparrowmq[demo]'"),
    ],
)
def test_missing_package_is_one_line_that_says_what_to_install(
    missing: str, command: str, words: str
) -> None:
    found = run([missing], command)

    assert (1, "", f"sparrowmq: {words}\n") == (found.returncode, found.stdout, found.stderr)


def test_help_lists_what_the_installed_packages_allow() -> None:
    found = run([], "--help")

    assert (0, "") == (found.returncode, found.stderr)
    names = ["up", "nameserver", "broker", "demo", "pipeline", "rebalance", "snapshot"]
    assert [] == [name for name in names if f"  {name} " not in found.stdout]
