"""The doctor on live groups of Apache's broker: what it says of a group on ours holds there too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sick_groups import SICK, alarms, examine
from sparrowmq.doctor import Severity

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def test_sick_groups_have_one_finding_and_healthy_ones_none(
    apache_cluster: Any, tmp_path: Path
) -> None:
    found = examine(apache_cluster, tmp_path)

    said = {
        group: [(each.rule, each.severity) for each in findings if each.severity > Severity.INFO]
        for group, findings in found.items()
        if group in SICK
    }
    assert alarms(found) == {}
    assert said == {group: [finding] for group, finding in SICK.items()}
