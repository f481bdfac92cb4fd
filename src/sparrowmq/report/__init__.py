"""Self-contained HTML reports with inline SVG plots, without scripts or links, light and dark."""

from __future__ import annotations

from sparrowmq.report.band_chart import Band, BandRow, band_chart
from sparrowmq.report.bar_chart import Bar, bar_chart
from sparrowmq.report.line_chart import Series, line_chart
from sparrowmq.report.markup import Markup, tag
from sparrowmq.report.page import (
    Cell,
    Check,
    Table,
    Tile,
    bar_figure,
    figure,
    list_checks,
    list_tiles,
    page,
    section,
    table,
    value_table,
)
from sparrowmq.report.plot import PlotMark

__all__ = [
    "Band",
    "BandRow",
    "Bar",
    "Cell",
    "Check",
    "Markup",
    "PlotMark",
    "Series",
    "Table",
    "Tile",
    "band_chart",
    "bar_chart",
    "bar_figure",
    "figure",
    "line_chart",
    "list_checks",
    "list_tiles",
    "page",
    "section",
    "table",
    "tag",
    "value_table",
]
