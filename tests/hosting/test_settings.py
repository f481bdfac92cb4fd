"""The table of servers' settings: its rows, and the value that a row's name changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.config import with_settings
from sparrowmq.errors import ConfigError
from sparrowmq.hosting.settings import BROKER, NAME_SERVER, SETTINGS, UP, HostSettings, settings_of
from sparrowmq.store.retention import RetentionConfig


def test_every_setting_has_a_help_and_a_default_of_its_kind() -> None:
    for row in SETTINGS.values():
        assert row.help, row.name
        assert row.default is None or isinstance(row.default, row.kind), row.name


def test_each_command_has_the_settings_of_its_servers() -> None:
    up, names, broker = (settings_of(each).keys() for each in (UP, NAME_SERVER, BROKER))

    assert up - broker == {"nameserver_port", "brokers", "grpc_port"}
    assert broker - up == {"nameserver", "tls_ca", "acl_credentials"}
    assert names - broker == {"nameserver_port"}
    assert {"host", "data", "acl", "tls_mode"} <= names
    assert not {"flush", "retention_hours", "salvage"} & names


def test_names_of_rows_reach_nested_tables() -> None:
    given = {"data": Path("here"), "delete_when": "05", "broker_name": "broker-z"}

    assert with_settings(HostSettings(), given) == HostSettings(
        data=Path("here"),
        retention=RetentionConfig(delete_when="05"),
        broker=BrokerConfig(broker_name="broker-z"),
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"brokers": 17}, "brokers is 17; it must be a whole number from 1 to 16"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms is 0"),
        ({"flush": "later"}, "flush is 'later'; it must be a FlushMode, such as sync"),
        ({"broker_name": "a/b"}, "broker_name 'a/b'"),
    ],
)
def test_wrong_value_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        with_settings(HostSettings(), given)
