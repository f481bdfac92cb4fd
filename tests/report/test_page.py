from __future__ import annotations

import re

from sparrowmq.report import (
    Check,
    Table,
    Tile,
    figure,
    list_checks,
    list_tiles,
    page,
    section,
    table,
    tag,
)


def make_page(*parts: str) -> str:
    return page("A title", *parts, lead="what it is")


def test_page_is_self_contained() -> None:
    html = make_page(section("One", "words"), figure(tag("svg"), caption="c", legend=[("a", "c1")]))

    assert html.startswith("<!doctype html>")
    assert re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?(?!#)""", html) == []
    assert "<script" not in html
    assert 'http-equiv="Content-Security-Policy" content="default-src &#x27;none&#x27;;' in html
    assert "prefers-color-scheme: dark" in html


def test_names_are_escaped() -> None:
    html = make_page(
        table(["<h>"], [["<img>"]]), section("<s>", "<p>"), list_tiles([Tile("<", "")])
    )

    assert "<img>" not in html
    assert "&lt;img&gt;" in html
    assert "&lt;s&gt;" in html


def test_checks_say_which_fail() -> None:
    checks = [Check("this", True, "1 = 1"), Check("that", False, "1 = 2")]

    assert "all well" in list_checks(checks[:1], good="all well", bad="not so")
    html = list_checks(checks, good="all well", bad="not so")
    assert "not so" in html
    assert html.count('<li class="bad">') == 1


def test_table_shows_some_rows_and_counts_the_rest() -> None:
    rows = [[f"row {n}"] for n in range(3)]

    short, whole = (section("s", Table(["name"], rows, rows_max=n)) for n in (2, 3))
    assert "row 1" in short
    assert "row 2" not in short
    assert "Not shown: 1 more." in short
    assert "Not shown" not in whole


def test_numbers_stand_right() -> None:
    html = table(["name", "count"], [["a", "1"]], numeric=[1])

    assert '<td>a</td><td class="number">1</td>' in html
    values = Table(["name", "rate", "unknown"], [["a", 12.345, None], ["b", None, None]])
    assert values.numeric == [1]
    assert values.shown == [["a", "12.35", ""], ["b", "", ""]]
