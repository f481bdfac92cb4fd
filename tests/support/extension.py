"""The extension in C, built from the tree for a test run, whether or not one is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from sparrowmq.protocol.speedups import Speedups

SOURCE = Path(__file__).resolve().parents[2] / "speedups"


# A fault ends the process, and libFuzzer hears of comparisons. The runtime is not linked: the
# process has it from its start.
SANITIZED = {
    "CC": "cc -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined"
    " -fno-sanitize-recover=all -fsanitize-coverage=trace-cmp",
    "LDSHARED": "cc -shared",
}


def build_speedups(directory: Path, *, sanitized: bool = False) -> Speedups:
    """Compile the extension in a directory and load it; skips the test without a C compiler.

    Args:
        sanitized: with the sanitizers of addresses and of undefined behaviour.
    """
    if shutil.which("cc") is None:
        pytest.skip("no C compiler: cc")
    shutil.copytree(SOURCE, directory, dirs_exist_ok=True)
    command = [sys.executable, "-W", "ignore", "setup.py", "-q", "build_ext", "--inplace"]
    # The compiler itself is not run under this process's sanitizer.
    environment = {name: text for name, text in os.environ.items() if name != "LD_PRELOAD"}
    environment |= SANITIZED if sanitized else {}
    subprocess.run(command, cwd=directory, check=True, env=environment)
    (built,) = directory.glob("sparrowmq_speedups*.so")
    spec = importlib.util.spec_from_file_location("sparrowmq_speedups", built)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast(Speedups, module)
