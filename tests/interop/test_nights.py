"""What `check` and the doctor print leads from a fault to its cure on Apache's brokers too."""

from __future__ import annotations

from typing import Any

import pytest

from nights import NIGHTS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.mark.parametrize("name", NIGHTS)
def test_night_ends_by_what_is_printed(apache_cluster: Any, name: str) -> None:
    NIGHTS[name](apache_cluster)
