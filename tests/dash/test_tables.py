"""Tables as the URL wants them, and as files."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sparrowmq.dash.tables import (
    PAGE_ROWS,
    Cell,
    PageTable,
    TableColumn,
    arrange,
    with_problems,
    write_csv,
    write_json,
)

TABLE = PageTable(
    name="groups",
    title="Groups",
    columns=(TableColumn("group", "group"), TableColumn("lag", "lag", "number")),
    rows=[
        [Cell("GID_b"), Cell(5)],
        [Cell("GID_a"), Cell(None)],
        [Cell("other"), Cell(40)],
        [Cell("GID_c"), Cell(-1)],
    ],
)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["GID_b", "GID_a", "other", "GID_c"]),
        ({"sort": "group"}, ["GID_a", "GID_b", "GID_c", "other"]),
        ({"sort": "-lag"}, ["other", "GID_b", "GID_c", "GID_a"]),
        ({"sort": "lag"}, ["GID_c", "GID_b", "other", "GID_a"]),
        ({"sort": "none"}, ["GID_b", "GID_a", "other", "GID_c"]),
        ({"q": "gid_"}, ["GID_b", "GID_a", "GID_c"]),
        ({"q": "<script>"}, []),
        ({"page": "9"}, ["GID_b", "GID_a", "other", "GID_c"]),
        ({"page": "-1"}, ["GID_b", "GID_a", "other", "GID_c"]),
        ({"page": "9" * 500}, ["GID_b", "GID_a", "other", "GID_c"]),
    ],
)
def test_rows_are_those_that_the_url_wants(query: Mapping[str, str], expected: list[str]) -> None:
    assert [row[0].value for row in arrange(TABLE, query).rows] == expected


def test_a_search_keeps_what_else_the_url_says() -> None:
    query = {"window": "900", "sort": "lag", "q": "gid_", "page": "2", "format": "csv"}

    assert arrange(TABLE, query).others == {"window": "900", "sort": "lag"}


def test_a_long_table_has_pages_and_files_have_all_of_it() -> None:
    rows = [[Cell(f"G{number:04}"), Cell(number)] for number in range(2 * PAGE_ROWS + 1)]
    table = PageTable(name="groups", title="Groups", columns=TABLE.columns, rows=rows)

    last = arrange(table, {"page": "3"})

    assert [[cell.value for cell in row] for row in last.rows] == [["G0200", 200]]
    assert (last.page, last.page_count, last.row_count) == (3, 3, 201)
    assert len(arrange(table, {"page": "3"}, turns=False).rows) == 201


def test_csv_runs_no_formula_and_keeps_its_rows_apart() -> None:
    hostile = ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", 'a "quoted", b', "two\nlines"]
    table = PageTable(
        name="groups", title="Groups", columns=TABLE.columns[:1], rows=[[Cell(x)] for x in hostile]
    )

    lines = write_csv(table).splitlines()

    assert lines[:5] == ["group", "'=1+1", "'+1", "'-1", "'@SUM(A1)"]
    assert '"a ""quoted"", b"' in lines


def test_numbers_below_zero_stay_numbers_in_csv() -> None:
    assert "GID_c,-1" in write_csv(TABLE)


def test_a_file_names_what_is_missing_after_its_rows() -> None:
    table = with_problems(TABLE, ["broker-b: silent"])

    rows = json.loads(write_json(table))
    assert rows[0] == {"group": "GID_b", "lag": 5, "problem": None}
    assert rows[4:] == [{"group": None, "lag": None, "problem": "broker-b: silent"}]
    assert write_csv(table).splitlines()[-1] == ",,broker-b: silent"
    assert with_problems(TABLE, []) is TABLE


def test_json_has_the_values_by_their_columns_keys() -> None:
    assert json.loads(write_json(TABLE))[1] == {"group": "GID_a", "lag": None}
