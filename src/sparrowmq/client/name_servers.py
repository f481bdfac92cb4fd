"""The choice of a name server: one of the list, until it fails, then the next.

Every client begins at a random place of the list, which the face passes in, so that the load
spreads. The client stays with that server, as RocketMQ's clients do.
Source: NettyRemotingClient.getAndCreateNameserverChannel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sparrowmq.errors import ConfigError

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^\s:;,\[\]]+):(?P<port>[0-9]{1,5})")
_PORT_MAX = 65_535
# How long a server that gave no answer is not asked about a topic that another one does not know.
SILENT_MS = 5_000


def parse_name_servers(value: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port`, also with commas, or in a list.

    Raises: ConfigError if there is no address, or one is not `host:port`.
    """
    texts: list[str] = []
    if isinstance(value, str):
        texts = re.split(r"[;,]", value)
    elif isinstance(value, Sequence):
        texts = list(value)
    if not all(isinstance(text, str) for text in texts) or not isinstance(value, Sequence):
        raise ConfigError(
            f"name_server is {value!r}; give host:port, such as 127.0.0.1:9876, or a list of these"
        )
    addresses = tuple(text.strip() for text in texts if text.strip())
    if not addresses:
        raise ConfigError("name_server is empty; give host:port, such as 127.0.0.1:9876")
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match["port"]) <= _PORT_MAX:
            # A URL may hold a password. Beginning only after a separator takes linear time.
            shown = re.sub(r"(?<![^/@])[^/@]+@", "***@", address)
            raise ConfigError(
                f"name_server {shown!r} is not an address; give host:port, such as "
                "127.0.0.1:9876, "
                f"without http:// or a path, and separate several by ';' or ','"
            )
    return tuple(dict.fromkeys(addresses))


class NameServers:
    """The list of name servers, and the one in use.

    Args:
        addresses: at least one.
        start: the index of the first server, modulo the length of the list.
    """

    __slots__ = ("_index", "_silent_ms", "addresses")

    def __init__(self, addresses: Sequence[str], *, start: int = 0) -> None:
        self.addresses = tuple(addresses)
        assert self.addresses
        self._index = start % len(self.addresses)
        # When a server last gave no answer, by its address.
        self._silent_ms: dict[str, int] = {}

    def in_order(self) -> tuple[str, ...]:
        """Return every address, the one in use first."""
        return self.addresses[self._index :] + self.addresses[: self._index]

    def mark_answered(self, address: str) -> None:
        """Stay with an address that has answered."""
        self._index = self.addresses.index(address)

    def note_silent(self, address: str, now_ms: int) -> None:
        """Record that an address was waited for, and has given no answer."""
        self._silent_ms[address] = now_ms

    def was_silent(self, address: str, now_ms: int) -> bool:
        """Return whether an address has given no answer of late."""
        silent_ms = self._silent_ms.get(address)
        return silent_ms is not None and now_ms - silent_ms < SILENT_MS
