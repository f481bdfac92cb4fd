"""The extension in C, built from the tree for a test run, whether or not one is installed."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from sparrowmq.protocol.speedups import Speedups

SOURCE = Path(__file__).resolve().parents[2] / "speedups"


def build_speedups(directory: Path) -> Speedups:
    """Compile the extension in a directory and load it; skips the test without a C compiler."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc")
    shutil.copytree(SOURCE, directory, dirs_exist_ok=True)
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, cwd=directory, check=True)
    (built,) = directory.glob("sparrowmq_speedups*.so")
    spec = importlib.util.spec_from_file_location("sparrowmq_speedups", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Speedups, module)
