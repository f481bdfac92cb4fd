"""`pytest --golden DIR` itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent


def collect(directory: Path, *paths: str) -> subprocess.CompletedProcess[str]:
    options = ["--golden", str(directory), "--collect-only", *paths]
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_directory_without_golden_files_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    found = collect(tmp_path)

    assert 4 == found.returncode
    assert f"ERROR: --golden: {tmp_path} holds no golden file; it should hold" in found.stderr
    assert "allocate.jsonl" in found.stderr


def test_missing_directory_is_one_clear_error(tmp_path: Path) -> None:
    found = collect(tmp_path / "missing")

    assert 4 == found.returncode
    assert f"ERROR: --golden: {tmp_path / 'missing'} is not a directory" in found.stderr


def test_golden_tests_alone_are_run() -> None:
    paths = ["tests/protocol/test_message_id.py", "tests/protocol/test_session.py"]
    found = collect(GOLDEN, *paths)

    assert 0 == found.returncode
    assert "test_message_id.py" in found.stdout
    assert "test_session.py" not in found.stdout
