"""The Grafana dashboard and the table of series name the same things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asked_series import wrong_names

DASHBOARD = Path(__file__).parents[2] / "packaging/grafana/sparrowmq.json"


def test_board_asks_for_series_that_exist_by_labels_that_they_have() -> None:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [each["query"]["query"] for each in dashboard["templating"]["list"][1:]]

    assert wrong_names(asked) == []
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
