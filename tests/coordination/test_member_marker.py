"""The marker in a member's version."""

from __future__ import annotations

import pytest

from sparrowmq.coordination.member_marker import is_marked, mark_version, unmark_version
from sparrowmq.protocol.codes import MQ_VERSION

# The versions of 4.7.1, 4.9.7 and 5.5.0, and the last that MQVersion.java names.
ORDINALS = [355, MQ_VERSION, 407, 500, 999]


@pytest.mark.parametrize("version", ORDINALS)
def test_marked_version_is_told_from_every_release(version: int) -> None:
    assert not is_marked(version)
    assert is_marked(mark_version(version))
    assert version == unmark_version(mark_version(version)) == unmark_version(version)


def test_marked_version_fits_into_a_binary_header() -> None:
    assert mark_version(999) <= 0x7FFF


def test_versions_beyond_all_marked_ones_are_not_marked() -> None:
    beyond = mark_version(0x1000)

    assert not is_marked(beyond)
    assert unmark_version(beyond) == beyond
