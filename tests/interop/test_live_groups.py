"""The doctor on live groups of Apache's broker: what it says of a group on ours holds there too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sick_groups import SICK, alarms, examine, misjudged

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_sick_groups_have_one_finding_and_healthy_ones_none(
    java: Any, rig: Any, tmp_path: Path
) -> None:
    cluster = rig.ApacheCluster(java, tmp_path / "store", enablePropertyFilter="true")
    try:
        cluster.start()
        found = examine(cluster, tmp_path, is_ours=False)
    finally:
        cluster.kill()

    wrong = [misjudged(found, group) for group, each in SICK.items() if not each.is_ours]
    assert alarms(found) == {}
    assert [each for each in wrong if each] == []
