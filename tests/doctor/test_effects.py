"""What a fault explains is folded under its finding, by every drawer."""

from __future__ import annotations

import shlex
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader
from rich.console import Console

import sparrowmq.dash
from sparrowmq.cli.plain_text import PlainTable
from sparrowmq.cli.rebalance_json import json_of_findings, json_of_group
from sparrowmq.cli.rebalance_view import (
    CommandLine,
    render_explanation,
    render_findings,
    render_group,
)
from sparrowmq.doctor import Finding, diagnose
from sparrowmq.doctor.explain import explain
from sparrowmq.doctor.group_snapshot import ProgressChange, TopicPace
from sparrowmq.doctor.group_view import GroupView, examine
from sparrowmq.model import MessageQueue
from sparrowmq.model.plain_text import escape
from sparrowmq.words.catalog import Words

SLOW = "10.0.0.1@1"
EFFECT = "1 of 2 members: the backlog does not shrink"


@pytest.fixture
def slow_group(seen_group: Any) -> tuple[GroupView, list[Finding]]:
    """A member whose listener is slow (Q12), so that the member is behind (Q07)."""
    group = seen_group()
    group.flow(0, 1, then=(1_000, 100), now=(1_003, 103))
    group.report(SLOW, paces=(TopicPace("T", 2_400.0, 0.4),))
    snapshot = group.snapshot()
    return examine(snapshot), diagnose(snapshot)


def test_a_finding_has_its_effects_and_their_evidence(
    slow_group: tuple[GroupView, list[Finding]],
) -> None:
    (cause,) = slow_group[1]

    assert cause.rule == "Q12"
    assert [(effect.rule, effect.title) for effect in cause.effects] == [("Q07", EFFECT)]
    assert cause.effects[0].evidence[0].startswith(f"{SLOW}: ")
    assert not any("Q07" in line for line in cause.evidence)


def test_a_fault_of_no_member_in_particular_explains_what_members_do(seen_group: Any) -> None:
    group = seen_group()
    group.flow(0, 1, 2, 3, then=(300, 100), now=(300, 100))
    group.now["broker-a"] = replace(group.now["broker-a"], is_disabled=True)

    (cause,) = diagnose(group.snapshot())

    assert (cause.rule, [effect.rule for effect in cause.effects]) == ("Q16", ["Q06"])
    assert not cause.members
    assert cause.effects[0].members


def test_the_greater_backlog_comes_first(seen_group: Any) -> None:
    group, ids = seen_group(), ("10.0.0.1@1", "10.0.0.2@1")
    group.flow(0, then=(300, 100), now=(300, 100))
    group.flow(2, then=(900, 100), now=(900, 100))
    for client_id in ids:
        group.report(client_id, is_silent=True, failure="no answer")

    assert [finding.members for finding in diagnose(group.snapshot())] == [(ids[1],), (ids[0],)]


def test_a_text_without_blanks_is_folded_and_not_cut() -> None:
    remedy = "查明监听器为什么失败（它的日志记有每条消息的错误）；" * 5
    table = PlainTable(box=None, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    table.add_row("do", f"{remedy} Topic")
    console = Console(width=100, file=(file := StringIO()))

    console.print(table)

    assert "".join(file.getvalue().split()) == f"do{remedy}Topic"


def test_a_finding_does_not_stand_below_a_milder_one(seen_group: Any) -> None:
    group = seen_group()
    group.flow(0, then=(5_000, 1_000), now=(5_100, 1_100))
    at_ms = group.snapshot().last.timestamp_ms
    moved = ProgressChange(at_ms, "reset", "10.0.0.9:1", "T", moves=((0, 5_000, 1_000),))
    group.now["broker-a"] = replace(group.now["broker-a"], changes=(moved,))

    found = {finding.rule: finding for finding in diagnose(group.snapshot())}

    assert [effect.rule for effect in found["Q11"].effects] == ["Q07", "R17"]
    assert found["Q08"].severity < found["Q11"].severity
    assert found["Q08"].effects == ()


def test_the_command_line_names_effects_below_the_remedy(
    slow_group: tuple[GroupView, list[Finding]],
) -> None:
    out = StringIO()
    Console(file=out, width=100).print(render_findings(*slow_group, ()))

    last = [line for line in out.getvalue().splitlines() if line.strip()][-1]
    assert last.split() == ["explains", "Q07", *EFFECT.split()]


@pytest.mark.parametrize("client_id", ["[fd00::ab:1]@12", "[/x]@12", "\x1b[2J]@12"])
def test_the_command_line_shows_names_as_they_are(seen_group: Any, client_id: str) -> None:
    group = seen_group([client_id])
    group.flow(0, then=(1_000, 100), now=(1_003, 103))
    group.report(client_id, paces=(TopicPace("T", 2_400.0, 0.4),))
    snapshot = group.snapshot()
    view, out = examine(snapshot), StringIO()
    console = Console(file=out, width=200)

    console.print(render_group(view, console), render_findings(view, diagnose(snapshot), ()))
    for explained in explain(snapshot, MessageQueue("T", "broker-a", 0)):
        console.print(render_explanation(explained))

    # In the list of members, in titles, in evidence, and in the steps.
    assert out.getvalue().count(escape(client_id)) >= 5
    assert out.getvalue().count("]@12") == out.getvalue().count(escape(client_id))
    assert "\x1b" not in out.getvalue()


def test_table_and_json_name_a_broker_that_denies_access(seen_group: Any) -> None:
    group = seen_group(brokers=("broker-a", "broker-b"))
    group.listing("broker-b", [], failure="No default permission")
    group.now["broker-b"] = replace(group.now["broker-b"], is_denied=True)
    view, out = examine(group.snapshot()), StringIO()
    console = Console(file=out, width=200)

    console.print(render_group(view, console))

    # It does answer.
    assert "no report from broker-b" in out.getvalue()
    assert json_of_group(view)["failures"] == {"broker-b": "No default permission"}


def test_a_table_says_how_often_an_id_is_in_use(seen_group: Any) -> None:
    view, out = examine(seen_group(["10.0.0.1@1"] * 3).snapshot()), StringIO()
    console = Console(file=out, width=200)

    console.print(render_group(view, console))

    assert out.getvalue().count("id in use 3 times") == 3


def test_a_table_counts_no_members_where_consumers_only_pop(seen_group: Any) -> None:
    group = seen_group([])
    group.now["broker-a"] = replace(group.now["broker-a"], is_popped=True)
    view, out = examine(group.snapshot()), StringIO()
    console = Console(file=out, width=200)

    console.print(render_group(view, console))

    assert "0 members" not in out.getvalue()


def test_prose_is_folded_on_a_terminal_only(slow_group: tuple[GroupView, list[Finding]]) -> None:
    lines: dict[bool, list[str]] = {}
    for is_terminal in (True, False):
        out = StringIO()
        Console(file=out, width=1_000, force_terminal=is_terminal, color_system=None).print(
            render_findings(*slow_group, ())
        )
        lines[is_terminal] = [line.rstrip() for line in out.getvalue().splitlines()]

    remedy = slow_group[1][0].remedy
    assert max(map(len, lines[True])) <= 100
    assert [line for line in lines[False] if line.endswith(f"do        {remedy}")]


def test_a_command_is_folded_between_its_words() -> None:
    words = ["sparrowmq", "group", "reset", "G", "--tls-ca", "/home/a b c d/ca.pem"]
    out = StringIO()

    Console(file=out, width=30).print(CommandLine(shlex.join(words)))

    assert max(map(len, out.getvalue().splitlines())) <= 30
    assert shlex.split(out.getvalue().replace("\\\n", "")) == words


def test_json_has_effects_as_findings(slow_group: tuple[GroupView, list[Finding]]) -> None:
    (cause,) = json_of_findings(*slow_group)["findings"]
    (effect,) = cause["effects"]

    assert (effect["rule"], effect["title"], effect["effects"]) == ("Q07", EFFECT, [])
    assert effect.keys() == cause.keys()


def test_the_page_folds_effects_under_their_cause(
    slow_group: tuple[GroupView, list[Finding]],
) -> None:
    templates = Path(sparrowmq.dash.__file__).parent / "templates"
    pages: Any = Environment(loader=FileSystemLoader(templates), autoescape=True)
    pages.globals["cluster"] = {"options": ()}
    pages.filters["code"] = str
    draw = pages.get_template("parts.html").module

    page = str(draw.finding(slow_group[1][0], "warn", Words("en")))

    assert page.count("<details") == page.count("</details>") == 2
    assert page.index("Remedy") < page.index("Explains") < page.index(EFFECT)
    # The first cause's remedy is the only one, and only the cause is a place to link to.
    assert page.count("Remedy") == page.count('id="finding-') == 1


def test_a_slow_listener_comes_before_its_queues_that_stand_still(seen_group: Any) -> None:
    group = seen_group()
    group.flow(0, then=(1_000, 100), now=(1_000, 100))
    group.flow(1, then=(1_000, 100), now=(1_000, 101))
    group.report(SLOW, paces=(TopicPace("T", 8_000.0, 0.1),), thread_count=1)

    (cause,) = diagnose(group.snapshot())

    assert cause.title == f"the listener of {SLOW} is slow: 8 s a call, 1 thread"
    assert "R30" in [effect.rule for effect in cause.effects]
