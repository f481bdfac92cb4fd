"""The files that are made of others are what `make generate` makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

GENERATE = Path(__file__).parent.parent / "tools/generate.py"


@pytest.mark.slow
def test_made_files_are_up_to_date() -> None:
    ended = subprocess.run(
        [sys.executable, GENERATE, "--check"], capture_output=True, text=True, check=False
    )

    assert ended.stdout + ended.stderr == "", "run `make generate`"
    assert ended.returncode == 0
