"""Make the state of a client without an id from the user's arguments.

Apart from `assembly`, which needs what producers and consumers need: a command of a second that
only asks would spend a third of that second with their imports. Tests: test_config.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from sparrowmq.client.config import KINDS, AdminConfig, ClientConfig, take
from sparrowmq.client.directory import Directory
from sparrowmq.client.identity import random_start
from sparrowmq.client.name_servers import NameServers, parse_name_servers
from sparrowmq.errors import ConfigError
from sparrowmq.model.namespace import check_namespace

# MixAll.NAMESRV_ADDR_ENV, MixAll.java.
NAMESRV_ADDR = "NAMESRV_ADDR"


def find_name_servers(name_server: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the given addresses, or those of the environment. Raises: ConfigError."""
    if name_server is None:
        name_server = os.environ.get(NAMESRV_ADDR)
    if name_server is None:
        raise ConfigError(
            f"name_server is not given, and the environment has no {NAMESRV_ADDR}; give host:port, "
            f"such as 127.0.0.1:9876, or a list of these"
        )
    return parse_name_servers(name_server)


def make_directory(
    name_server: str | Sequence[str] | None, *, kind: str = "Admin", **settings: Any
) -> Directory:
    """Make the state of a new client of a kind without an id. Raises: ConfigError."""
    KINDS[kind].check_names(settings)
    client = take(ClientConfig, settings)
    return Directory(
        name_servers=NameServers(find_name_servers(name_server), start=random_start()),
        timeout_ms=take(AdminConfig, settings).timeout_ms,
        namespace=check_namespace(client.namespace),
        client=client,
    )
