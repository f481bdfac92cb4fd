"""What the reference of load balancing names is there: files, classes, functions, tests, rules."""

from __future__ import annotations

import re
from pathlib import Path

from sparrowmq.doctor import RULES

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "docs/reference/load-balancing.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", TEXT)


def test_every_row_names_code_and_tests() -> None:
    rows = [line.split(" | ") for line in TEXT.splitlines() if re.match(r"\| \d+ \|", line)]

    assert [str(number) for number in range(1, 12)] == [row[0].strip("| ") for row in rows]
    for row in rows:
        assert len(row) == 5, row[0]
        assert ".py" in row[2], row[0]
        assert "tests/" in row[3], row[0]


def test_files_classes_functions_and_tests_exist() -> None:
    missing = []
    for path, name in NAMED:
        file = ROOT / path if path.startswith("tests/") else ROOT / "src/sparrowmq" / path
        if not file.is_file():
            missing.append(path)
        elif name and not re.search(rf"^(class|def|async def) {name}\b", file.read_text(), re.M):
            missing.append(f"{path}::{name}")

    assert len(NAMED) > 40
    assert missing == []


def test_every_rule_of_the_doctor_is_listed() -> None:
    listed = {
        rule
        for line in TEXT.splitlines()
        if re.match(r"\| [RQ]\d\d", line)
        for rule in re.findall(r"[RQ]\d\d", line.split("|")[1])
    }

    assert set(RULES) == listed
