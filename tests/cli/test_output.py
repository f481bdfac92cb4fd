"""Tables that fit, and values as people read them."""

from __future__ import annotations

import json
import sys
import time
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.console import Console

from sparrowmq.cli.output import OutputColumn, format_value, print_json, print_rows

ROWS = [
    {"group": "GID_a_rather_long_name_of_a_group", "lag": 1_234_567, "topics": ["x" * 30, "y" * 30]}
]
COLUMNS = [OutputColumn("group"), OutputColumn("lag"), OutputColumn("topics", optional=True)]


def printed(width: int, *, is_terminal: bool = True) -> list[str]:
    file = StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, color_system=None)
    print_rows(ROWS, COLUMNS, console=console)
    return file.getvalue().splitlines()


def test_optional_columns_go_before_anything_is_folded() -> None:
    wide, narrow, tiny = printed(200), printed(80), printed(24)

    assert "topics" in wide[0]
    assert "topics" not in narrow[0]
    assert "GID_a_rather_long_name_of_a_group" in narrow[2]
    assert "1,234,567" in tiny[2]
    assert all(len(line) <= 24 for line in tiny)


def test_optional_column_of_which_nothing_is_known_is_left_out() -> None:
    file = StringIO()
    rows = [{"group": "a", "topics": []}]
    columns = [COLUMNS[0], COLUMNS[2]]

    print_rows(rows, columns, console=Console(file=file, width=80))

    assert "topics" not in file.getvalue()


def test_a_narrow_terminal_names_what_it_leaves_out_and_keeps_the_trouble(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = StringIO()
    rows = [ROWS[0] | {"trouble": "nobody consumes"}]
    columns = [*COLUMNS, OutputColumn("trouble", optional=True, keeps=True)]

    print_rows(rows, columns, console=Console(file=file, width=60, force_terminal=True))

    assert "nobody consumes" in file.getvalue()
    assert "too narrow for topics" in capsys.readouterr().err


def test_values_are_written_for_people() -> None:
    values = [None, "", [], True, 12_345, 1.25, {"a": 1, "b": None}, ["x", "y"]]

    words = ["–", "–", "–", "yes", "12,345", "1.2", "a=1, b=–", "x, y"]
    assert list(map(format_value, values)) == words
    assert format_value(1_700_000_000_123, "at_timestamp_ms").endswith(".123")


@pytest.mark.parametrize("timestamp_ms", [2**63 - 1, -(2**63), 10**14 * 4])
def test_a_time_that_no_calendar_has_is_written_as_its_number(timestamp_ms: int) -> None:
    assert format_value(timestamp_ms, "born_timestamp_ms") == f"{timestamp_ms:,} ms"


def test_json_is_json_in_every_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    for encoding in ("ascii", "latin-1", "utf-8"):
        stdout = TextIOWrapper(BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", stdout)

        print_json({"body": "é 标签 🐦"})

        stdout.seek(0)
        assert json.load(stdout) == {"body": "é 标签 🐦"}


def test_times_are_those_of_this_machines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        shown = format_value(1_700_000_000_123, "born_timestamp_ms")
    finally:
        monkeypatch.undo()
        time.tzset()

    assert shown == "2023-11-15 06:13:20.123"
