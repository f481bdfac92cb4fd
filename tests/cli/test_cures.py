"""What `check` and the doctor print leads from a fault to its cure, typed as it is printed."""

from __future__ import annotations

import pytest

from nights import NIGHTS
from sparrowmq.testing import EmbeddedCluster

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NIGHTS)
def test_night_ends_by_what_is_printed(shared_cluster: EmbeddedCluster, name: str) -> None:
    NIGHTS[name](shared_cluster)
