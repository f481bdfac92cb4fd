from __future__ import annotations

import itertools
from xml.etree import ElementTree

from sparrowmq.report import Band, BandRow, Bar, Markup, PlotMark, Series
from sparrowmq.report import band_chart as draw_bands
from sparrowmq.report import bar_chart as draw_bars
from sparrowmq.report import line_chart as draw_lines
from sparrowmq.report.plot import WIDTH


def parse(chart: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(chart)


def with_class(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if name in (element.get("class") or "").split()]


def bands(*owners: tuple[str, ...]) -> ElementTree.Element:
    row = [Band(index * 10, index * 10 + 10, names) for index, names in enumerate(owners)]
    return parse(
        draw_bands(
            [BandRow("queue 0", row)],
            title="t",
            description="d",
            x_label="seconds",
            tones={"a": "c1"},
            x_range=(0, 10 * len(owners)),
        )
    )


def lines(*series: Series, marks: list[PlotMark] | None = None) -> ElementTree.Element:
    chart = draw_lines(
        series, title="t", description="d", x_label="x", y_label="y", marks=marks or []
    )
    return parse(chart)


def test_band_of_one_owner_has_its_tone_and_its_name() -> None:
    root = bands(("a",))

    assert len(with_class(root, "tone-c1")) == 1
    assert [element.text for element in with_class(root, "band-name")] == ["a"]
    assert with_class(root, "trouble") == []


def test_nobody_and_two_owners_are_hatched_differently() -> None:
    root = bands((), ("a", "b"))

    fills = [element.get("fill") for element in root.iter("rect") if element.get("fill")]
    assert fills == ["url(#hatch-none)", "url(#hatch-both)"]
    assert [element.text for element in with_class(root, "band-name")] == ["nobody", "a + b"]


def test_trouble_is_drawn_over_the_bands_beside_it() -> None:
    root = bands(("a",), (), ("a",))

    drawn = [e.get("class") for e in root.iter("rect") if e.get("class") in ("band", "trouble")]
    assert drawn == ["band", "band", "trouble"]
    titles = [element.text for element in root.iter("title")]
    assert titles == ["t", "queue 0: a, 10 s", "queue 0: a, 10 s", "queue 0: nobody, 10 s"]


def test_bands_end_where_the_plot_ends() -> None:
    chart = draw_bands(
        [BandRow("q", [Band(-50, 50, ("a",)), Band(50, 150, ("b",)), Band(150, 200, ("a",))])],
        title="t",
        description="d",
        x_label="seconds",
        tones={},
        x_range=(0, 100),
    )

    first, second = with_class(parse(chart), "band")
    assert first.get("width") == second.get("width")
    assert float(second.get("x") or 0) + float(second.get("width") or 0) < WIDTH


def test_gap_of_a_moment_stays_visible() -> None:
    chart = draw_bands(
        [BandRow("q", [Band(0, 50, ("a",)), Band(50, 50.001, ()), Band(50.001, 100, ("a",))])],
        title="t",
        description="d",
        x_label="seconds",
        tones={},
        x_range=(0, 100),
    )

    (trouble,) = with_class(parse(chart), "trouble")
    assert float(trouble.get("width") or 0) >= 2


def test_step_line_goes_level_first() -> None:
    root = lines(Series("s", [(0, 0), (1, 10)], is_step=True, has_area=False))

    (line,) = with_class(root, "line")
    corners = [tuple(map(float, p.split())) for p in (line.get("d") or "")[1:].split("L")]
    assert len(corners) == 3
    assert corners[0][1] == corners[1][1] > corners[2][1]


def test_lines_of_one_path_show_in_turn_and_others_whole() -> None:
    root = lines(
        Series("a", [(0, 0), (1, 5), (2, 5)], has_area=False),
        Series("b", [(0, 0), (1, 5), (2, 9)], has_area=False),
    )

    found = with_class(root, "line")
    assert [(line.get("stroke-dasharray"), line.get("stroke-dashoffset")) for line in found] == [
        ("12 12", None),
        (None, None),
        ("12 12", "-12"),
        (None, None),
    ]
    assert found[0].get("d") == found[2].get("d")


def test_names_of_lines_do_not_touch() -> None:
    root = lines(*(Series(name, [(0, 0), (1, 0)]) for name in "abc"))

    heights = sorted(float(name.get("y") or 0) for name in with_class(root, "name"))
    assert all(below - above >= 15 for above, below in itertools.pairwise(heights))
    (_, end) = with_class(root, "line")[0].get("d", "").split("L")
    assert heights[-1] <= float(end.split()[1]) + 5, "they move up from the axis, not below it"


def test_crowded_marks_take_several_rows_and_stay_inside() -> None:
    marks = [PlotMark(x, "a rather long name") for x in (1, 2, 99, 100)]
    root = lines(Series("s", [(0, 0), (100, 5)]), marks=marks)

    names = with_class(root, "mark-name")
    assert len(names) == 4
    heights = [float(name.get("y") or 0) for name in names]
    assert heights[0] < heights[1]
    assert heights[2] < heights[3]
    assert names[-1].get("text-anchor") == "end"
    assert all(0 <= float(name.get("x") or 0) <= WIDTH for name in names)


def test_no_line_strikes_the_name_of_a_mark_through() -> None:
    root = lines(
        Series("s", [(0, 0), (100, 5)]), marks=[PlotMark(8, "both"), PlotMark(9, "b leaves")]
    )

    classes = [element.get("class") or "" for element in root.iter()]
    marks = [name for name in classes if name.startswith("mark")]
    assert marks == ["mark", "mark", "mark-name", "mark-name"]


def test_chart_without_points_is_still_a_chart() -> None:
    assert lines(Series("s", [])).findtext("title") == "t"
    assert parse(draw_bars([])).tag == "ul"


def test_bars_are_as_long_as_their_values() -> None:
    root = parse(draw_bars([Bar("x", 150), Bar("y", 50, "note"), Bar("z", 0), Bar("w", -9)]))

    assert [bar.get("style") for bar in with_class(root, "band")] == [
        "width:100%",
        "width:33.33%",
        "width:0%",
        "width:0%",
    ]
    assert [element.text for element in with_class(root, "value")] == ["150", "50", "0", "-9"]


def test_bars_of_nothing_have_no_length() -> None:
    root = parse(draw_bars([Bar("x", 0), Bar("y", 0)]))

    assert [bar.get("style") for bar in with_class(root, "band")] == ["width:0%", "width:0%"]


def test_titles_say_how_long_a_band_lasts_and_how_a_line_ends() -> None:
    band, line = bands(("a",)), lines(Series("lag", [(0, 3), (1, 7)]))

    assert "queue 0: a, 10 s" in [title.text for title in band.iter("title")]
    assert "lag: 7 at the end" in [title.text for title in line.iter("title")]
