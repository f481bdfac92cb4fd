"""The drills that take their time: a graceful leave, a member cut off, a slow listener."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from sparrowmq.cli.main import build_app

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]


def drill(kind: str) -> Any:
    result = CliRunner().invoke(build_app(), ["rebalance", "drill", kind, "--json"])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def found(report: Any, rule: str) -> Any:
    return next(finding for finding in report["findings"] if finding["rule"] == rule)


def test_member_leaves_gracefully() -> None:
    report = drill("leave")

    assert report["phases"][0]["settled_ms"] < 5_000
    assert (len(report["before"]["members"]), len(report["after"]["members"])) == (3, 2)
    assert report["messages"]["sent"] == report["messages"]["consumed"]


def test_member_is_cut_off_and_comes_back() -> None:
    report = drill("partition")

    cut, back = report["phases"]
    # Forgotten after 15 s without a word; its lease of 10 s was over by then.
    assert 10_000 < cut["settled_ms"] < 30_000
    assert back["settled_ms"] < 5_000
    assert cut["longest_double_ms"] == 0
    assert back["longest_double_ms"] < 500
    late = report["late_work"]
    # What was in its hands it finished, and nothing was delivered once its lease was over.
    assert late["again"] == late["delivered"] > 0
    assert late["last_ms"] < 10_500 < late["healed_ms"]
    # One by one or at once, and perhaps with a new share in between.
    assert {each["member"] for each in report["changes"] if each["is_lost"]} == {"member-1"}
    assert found(report, "R28")["members"] == ["172.17.0.1@1"]
    assert report["messages"]["sent"] == report["messages"]["consumed"]


def test_slow_listener_is_named_and_keeps_its_queues() -> None:
    report = drill("slow")

    assert report["phases"][0]["moved"] == 0
    assert found(report, "Q12")["members"] == ["172.17.0.1@1"]
    assert report["messages"]["consumed"] < report["messages"]["sent"]
