"""`pytest --golden DIR` itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from golden import GoldenDirectory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Other plugins take longer to import than these tests take.
    plugins = [
        f"-p{name}" for name in ("sparrowmq-golden", "pytest_asyncio.plugin", "pytest_timeout")
    ]
    command = [sys.executable, "-m", "pytest", *plugins, "--golden", str(directory), *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_directory_without_golden_files_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    found = run(tmp_path, "--collect-only")

    assert found.returncode == 4
    assert f"ERROR: --golden: {tmp_path} holds no golden file; it should hold" in found.stderr
    assert "allocate.jsonl" in found.stderr


def test_missing_directory_is_one_clear_error(tmp_path: Path) -> None:
    found = run(tmp_path / "missing", "--collect-only")

    assert found.returncode == 4
    assert f"ERROR: --golden: {tmp_path / 'missing'} is not a directory" in found.stderr


def test_golden_tests_alone_are_run() -> None:
    paths = ["tests/protocol/test_message_id.py", "tests/protocol/test_session.py"]
    found = run(GOLDEN, "--collect-only", *paths)

    assert found.returncode == 0
    assert "test_message_id.py" in found.stdout
    assert "test_session.py" not in found.stdout


def test_cases_that_differ_are_listed_with_their_differences(tmp_path: Path) -> None:
    cases = GoldenDirectory(GOLDEN).cases("msgid.jsonl")
    first, second = cases[4]["id"], cases[3]["id"]
    wrong = {first: {"msgId": "wrong"}, second: {"msgId": "wrong"}}
    text = "\n".join(json.dumps(case | wrong.get(case["id"], {})) for case in reversed(cases))
    (tmp_path / "msgid.jsonl").write_text(text)
    found = run(tmp_path, "tests/protocol/test_message_id.py", "tests/protocol/test_codes.py")

    assert found.returncode == 1
    assert f"2 of 400 cases differ: {first} {second}\n--- {first}\n" in found.stdout
    assert "assert 'wrong' == '" in found.stdout
    assert "1 failed, 1 passed, 1 skipped" in found.stdout
