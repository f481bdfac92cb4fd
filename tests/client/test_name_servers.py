"""Addresses of name servers, and which is asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from processor_time import takes_less_than
from sparrowmq.client.name_servers import NameServers, parse_name_servers
from sparrowmq.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1:9876",)),
        ("a:1;b:2, c:3;", ("a:1", "b:2", "c:3")),
        (["a:1", "a:1"], ("a:1",)),
        ("[::1]:9876", ("[::1]:9876",)),
    ],
)
def test_addresses_are_parsed(value: str | Sequence[str], expected: tuple[str, ...]) -> None:
    assert parse_name_servers(value) == expected


@pytest.mark.parametrize("value", ["", ";", "host", "host:", ":9876", "h:0", "h:70000", "h:9 876"])
def test_what_is_no_address_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="name_server"):
        parse_name_servers(value)


def test_the_server_that_answered_is_asked_first() -> None:
    servers = NameServers(("a:1", "b:2", "c:3"), start=4)
    assert servers.in_order() == ("b:2", "c:3", "a:1")

    servers.mark_answered("c:3")

    assert servers.in_order() == ("c:3", "a:1", "b:2")


def test_a_long_text_that_is_no_address_is_refused_at_once_and_tells_no_password() -> None:
    with takes_less_than(1), pytest.raises(ConfigError, match="is not an address"):
        parse_name_servers("a" * 40_000)
    with pytest.raises(ConfigError, match=r"'rocketmq://[*]{3}@[*]{3}@host:1' is not") as refused:
        parse_name_servers("rocketmq://me:hush@more@host:1")

    assert "hush" not in str(refused.value)
