"""Tests and `make` from any shell, whether it ignores Ctrl-C or not, in directories of any name."""

from __future__ import annotations

import shutil
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


def test_make_hands_on_a_directory_of_any_name(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    name = "my out/it's 50% #1 $HOME"
    (tmp_path / name).mkdir(parents=True)

    subprocess.run(["make", "clean", "OUT=" + name.replace("$", "$$")], cwd=tmp_path, check=True)

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["Makefile", "my out"]
