"""Names in expressions of Prometheus, held against the tables of series."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparrowmq.client.sight.series import CLIENT_SERIES
from sparrowmq.exporter.cluster_series import CLUSTER_SERIES


def wrong_names(expressions: Iterable[str]) -> list[tuple[str, str]]:
    """Return each expression with a series that does not exist, or a label that it has not."""
    known = _labels_by_name()
    wrong = []
    for expression in expressions:
        names = re.findall(r"\bsparrowmq_\w+", expression)
        labels = set(re.findall(r"(\w+)[!=]=?~?\"", expression))
        for inside in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            labels |= {each.strip() for each in inside.split(",")}
        wrong += [(expression, name) for name in names if name not in known]
        wrong += [
            (expression, label)
            for name in names
            for label in labels
            if label not in known.get(name, ())
        ]
    return wrong


def _labels_by_name() -> dict[str, set[str]]:
    known = {}
    for series in (*CLUSTER_SERIES, *CLIENT_SERIES):
        known[series.sample_name] = set(series.labels)
        if series.kind == "histogram":
            known[f"{series.name}_bucket"] = {*series.labels, "le"}
    return known
