from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.golden("constants.jsonl", prefix="Request")
def test_marker_gives_the_cases_with_the_prefix(case: dict[str, Any]) -> None:
    assert case["id"] == "RequestCode"


@pytest.mark.golden_files("store-clean.tar.gz")
def test_marker_gives_the_files_of_the_pattern(golden_file: Any) -> None:
    assert golden_file.name == "store-clean.tar.gz"
