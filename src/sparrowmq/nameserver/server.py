"""The name server on sockets and disks."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path

from sparrowmq.calling import clock
from sparrowmq.nameserver.name_server import KVConfig, NameServer
from sparrowmq.serving.access_control import AccessControl
from sparrowmq.serving.limits import ServerLimits
from sparrowmq.serving.remoting_server import RemotingServer
from sparrowmq.store.config_file import read_config, write_config
from sparrowmq.store.file_storage import FileStorage

LOG = logging.getLogger("sparrowmq.nameserver")

TICK_MS = 1_000
# NamesrvConfig.kvConfigPath.
KV_CONFIG_FILE = "kvConfig.json"


class NameServerServer:
    """One running name server.

    Args:
        root: the directory of its files.
        limits: the bounds on peers.
        tls: the TLS context; None for a server without TLS.
        takes_plain: whether a server with TLS also serves peers without TLS.
        access: the rules of access control; None allows everything.

    Raises: StoreError if the directory is in use or its file is damaged.
    """

    def __init__(
        self,
        root: Path,
        *,
        limits: ServerLimits | None = None,
        tls: ssl.SSLContext | None = None,
        takes_plain: bool = False,
        access: AccessControl | None = None,
    ) -> None:
        self._storage = FileStorage(root)
        self._storage.lock()
        try:
            kv_config = read_config(self._storage, KV_CONFIG_FILE, KVConfig.decode)
            if kv_config.damage is not None:
                LOG.error("the configuration was damaged: %s", kv_config.damage)
        except BaseException:
            self._storage.unlock()
            raise
        self._machine = NameServer(kv_config.value, access=access, save=self._save)
        self._server = RemotingServer(
            self._machine, limits=limits, tls=tls, takes_plain=takes_plain
        )
        self._ticker: asyncio.TimerHandle | None = None
        self._is_damaged = kv_config.damage is not None

    def use_tls(self, tls: ssl.SSLContext) -> None:
        """Use another TLS context for new connections."""
        self._server.use_tls(tls)

    async def start(self, listening: socket.socket) -> None:
        """Serve on a bound socket."""
        await self._server.start(listening)
        self._tick()

    async def stop(self) -> None:
        """Close every connection and release the directory."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self._server.stop()
        self._storage.unlock()

    def _tick(self) -> None:
        # First of all: a failed tick must not be the last.
        self._ticker = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        self._server.perform(self._machine.tick(now_ms=clock.monotonic_ms()))

    def _save(self, data: bytes) -> None:
        # The file is small and only operators change it: a thread would gain nothing.
        write_config(self._storage, KV_CONFIG_FILE, data, keeps_backup=self._is_damaged)
        self._is_damaged = False
