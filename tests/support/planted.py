"""Mistakes in rooms that the simulation does not enter, and the tests that find them.

With `-p planted` pytest plants the mistake that the variable PLANTED names.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, NamedTuple

import pytest

from sparrowmq.calling.channel import Channel
from sparrowmq.client.local_offsets import LocalOffsets
from sparrowmq.nameserver.route_table import RouteTable
from sparrowmq.serving import access_control, access_file
from sparrowmq.serving.access_control import AccessControl, Account
from sparrowmq.serving.addresses import AddressPattern
from sparrowmq.store.file_storage import FileStorage


class Planted(NamedTuple):
    """What stands in the place of an attribute, and the test that finds it."""

    owner: Any
    attribute: str
    instead: Any
    found_by: str

    @property
    def room(self) -> str:
        name: str = getattr(self.owner, "__module__", None) or self.owner.__name__
        return name.split(".")[1]


def _yes(*_: Any, **__: Any) -> bool:
    return True


def _nothing(*_: Any, **__: Any) -> None: ...


def _none_of_them(*_: Any, **__: Any) -> list[Any]:
    return []


def _no_topics(*_: Any) -> Generator[None, None, list[str]]:
    yield from ()
    return []


_RULES = "tests/serving/test_access_control.py::test_"
_FILE = "tests/serving/test_access_file.py::test_"
_ROUTES = "tests/nameserver/test_route_table.py::test_"
MISTAKES = {
    "signature that nobody compares": Planted(
        *(access_control, "is_signature_valid", _yes),
        f"{_RULES}only_a_right_signature_lets_in",
    ),
    "permission that every account has": Planted(
        *(Account, "may", _yes), f"{_RULES}a_code_needs_what_it_is_about"
    ),
    "address that every pattern allows": Planted(
        *(AddressPattern, "matches", _yes),
        f"{_RULES}addresses_narrow_who_may_come_and_let_nobody_in_unsigned",
    ),
    "revoked account that stays": Planted(
        *(AccessControl, "replace", _nothing),
        f"{_FILE}changes_are_taken_and_a_wrong_one_leaves_the_old_rules",
    ),
    "revoked account that a power cut brings back": Planted(
        *(access_file, "sync_names", _nothing),
        f"{_FILE}power_cut_does_not_bring_back_a_revoked_account",
    ),
    "silent broker that stays in routes": Planted(
        *(RouteTable, "expire", _none_of_them),
        f"{_ROUTES}silent_broker_is_forgotten_after_the_expiry",
    ),
    "broker that stays after its connection": Planted(
        *(RouteTable, "unregister_connection", _none_of_them),
        f"{_ROUTES}closed_connection_takes_its_brokers_with_it",
    ),
    "new topics that no route names": Planted(
        *(RouteTable, "_take_topics", _no_topics),
        f"{_ROUTES}topics_are_taken_only_when_their_version_changes",
    ),
    "broker that anybody unregisters": Planted(
        *(RouteTable, "may_unregister", _yes),
        "tests/nameserver/test_name_server.py::test_broker_is_not_unregistered_from_another_host",
    ),
    "late end of a request that ends a later wait": Planted(
        *(Channel, "forget", _nothing),
        "tests/calling/test_channel.py::test_one_way_request_that_timed_out_ends_no_later_wait",
    ),
    "offset of a BROADCASTING member that no file has": Planted(
        *(LocalOffsets, "put", _nothing),
        "tests/client/test_local_offsets.py::test_offset_is_lowered_as_by_a_seek",
    ),
    "names in a directory that a power cut takes": Planted(
        *(FileStorage, "_with_parents", _none_of_them),
        "tests/store/test_file_storage.py::"
        "test_all_files_and_their_directories_up_to_the_root_are_synced_once",
    ),
}


def pytest_configure() -> None:
    """Plant the mistake."""
    if name := os.environ.get("PLANTED"):
        mistake = MISTAKES[name]
        # It refuses a name that is not there, in whose place nothing would be planted.
        pytest.MonkeyPatch().setattr(mistake.owner, mistake.attribute, mistake.instead)
