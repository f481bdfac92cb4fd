"""The page of request codes says what the servers serve, and by which tests that is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sparrowmq.broker.broker import PROCESSORS as OF_BROKER
from sparrowmq.nameserver.name_server import PROCESSORS as OF_NAME_SERVER
from sparrowmq.protocol.codes import RequestCode, ResponseCode
from sparrowmq.protocol.command import RemotingCommand
from sparrowmq.serving.connections import Connection, Reply
from sparrowmq.serving.requests import Request, serve

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "protocol.md"
CHINESE_PAGE = PAGE.with_name("protocol.zh.md")
BROKER, NAME_SERVER, CLIENT = "broker", "name server", "client"
# As RequestCode.java of both versions counts them.
CODES_OF = {"4.9.7": 96, "5.5.0": 164}


class Row(NamedTuple):
    code: int
    name: str
    versions: list[str]
    answered_by: set[str]
    last: str


def read_rows(page: Path) -> list[Row]:
    rows = []
    for line in page.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and cells[0].isdigit():
            who = {each for each in cells[3].split(", ") if each != "–"}
            rows.append(Row(int(cells[0]), cells[1], cells[2].split(", "), who, cells[4]))
    return rows


ROWS = read_rows(PAGE)


def codes_answered_by(who: str) -> set[int]:
    return {row.code for row in ROWS if who in row.answered_by}


def test_the_page_lists_each_code_of_both_versions_once() -> None:
    codes = [row.code for row in ROWS]

    assert sorted(set(codes)) == codes
    assert {
        version: len([row for row in ROWS if version in row.versions]) for version in CODES_OF
    } == CODES_OF
    assert {(code.value, code.name) for code in RequestCode} <= {(r.code, r.name) for r in ROWS}


def test_the_chinese_page_lists_the_same_codes() -> None:
    chinese = read_rows(CHINESE_PAGE)

    assert [row[:3] for row in ROWS] == [row[:3] for row in chinese]


def test_servers_serve_what_the_page_says() -> None:
    assert set(OF_BROKER) == codes_answered_by(BROKER)
    assert set(OF_NAME_SERVER) == codes_answered_by(NAME_SERVER)
    assert set.union(*(row.answered_by for row in ROWS)) == {BROKER, NAME_SERVER, CLIENT}


def test_each_code_that_is_answered_names_tests_that_name_it() -> None:
    for row in ROWS:
        paths = re.findall(r"`(tests/[\w/]+\.py)`", row.last)
        if row.answered_by:
            assert paths, row
        for path in paths:
            assert row.name in (ROOT / path).read_text(), (row.name, path)


def test_each_code_that_is_not_says_why() -> None:
    for row in ROWS:
        if not row.answered_by:
            assert re.match(r"left out: |no server ", row.last), row


@pytest.mark.parametrize(
    ("who", "processors"), [(BROKER, OF_BROKER), (NAME_SERVER, OF_NAME_SERVER)]
)
def test_what_a_server_does_not_serve_is_refused_as_such(who: str, processors: Any) -> None:
    connection = Connection(1, "10.0.0.1:1", bytes(8))
    for row in ROWS:
        if row.code in processors:
            continue
        request = Request(RemotingCommand(code=row.code), connection, 0, 0)
        (reply,) = serve(processors, None, request)
        assert isinstance(reply, Reply)
        assert reply.command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
