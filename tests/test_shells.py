"""The tests pass from any shell: also from a script's background, which ignores Ctrl-C."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENDED_BY_CTRL_C = "tests/cli/test_messages.py::test_follow_prints_what_comes_until_ctrl_c"


@pytest.mark.slow
def test_children_take_ctrl_c_where_the_shell_ignores_it() -> None:
    command = f"trap '' INT; exec '{sys.executable}' -m pytest {ENDED_BY_CTRL_C}"

    ended = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, text=True)

    assert ended.returncode == 0, ended.stdout
