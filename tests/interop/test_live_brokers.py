"""The doctor on live groups of two of Apache's brokers: what it says of ours holds there too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sick_brokers import SICK_BROKERS, Brokers, alarms_of_healthy, examine_brokers

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def brokers(java: Any, rig: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    home: Path = tmp_path_factory.mktemp("brokers")
    names = ("east-a", "west-a", "broker-x")
    clusters = {n: rig.ApacheCluster(java, home / n / "store", brokerName=n) for n in names}
    east, west, elsewhere = clusters.values()
    try:
        east.start()
        west.start(name_server=east.name_server)
        elsewhere.start()
        pair = {"east-a": east, "west-a": west}
        yield Brokers(
            east.name_server,
            {name: each.broker for name, each in pair.items()},
            {name: each.broker_pid for name, each in pair.items()},
            elsewhere.name_server,
        )
    finally:
        for cluster in (west, east, elsewhere):
            cluster.kill()


@pytest.mark.parametrize("fault", SICK_BROKERS)
def test_a_fault_of_brokers_is_one_finding(brokers: Brokers, fault: str) -> None:
    assert examine_brokers(brokers, fault) == ""


def test_members_at_all_brokers_raise_no_alarm(brokers: Brokers) -> None:
    assert alarms_of_healthy(brokers) == []
