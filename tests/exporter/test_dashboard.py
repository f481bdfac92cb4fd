"""The Grafana dashboard and the table of series name the same things."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from sparrowmq.client.sight.series import CLIENT_SERIES
from sparrowmq.exporter.cluster_series import CLUSTER_SERIES

DASHBOARD = Path(__file__).parents[2] / "packaging/grafana/sparrowmq.json"


def labels_by_name() -> dict[str, set[str]]:
    known = {}
    for series in (*CLUSTER_SERIES, *CLIENT_SERIES):
        known[series.sample_name] = set(series.labels)
        if series.kind == "histogram":
            known[f"{series.name}_bucket"] = {*series.labels, "le"}
    return known


def test_board_asks_for_series_that_exist_by_labels_that_they_have() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    known = labels_by_name()
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"][1:]]

    wrong = []
    for expression in asked:
        names = re.findall(r"\bsparrowmq_\w+", expression)
        labels = set(re.findall(r"(\w+)[!=]=?~?\"", expression))
        for inside in re.findall(r"by \(([^)]*)\)", expression):
            labels |= {each.strip() for each in inside.split(",")}
        wrong += [(expression, name) for name in names if name not in known]
        wrong += [
            (expression, label)
            for name in names
            for label in labels
            if label not in known.get(name, ())
        ]
    assert wrong == []
    assert len(asked) > 15


def test_panels_have_ids_and_places_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    taken = {
        (place["x"] + x, place["y"] + y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["w"])
        for y in range(place["h"])
    }

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(taken) == sum(p["gridPos"]["w"] * p["gridPos"]["h"] for p in panels)
