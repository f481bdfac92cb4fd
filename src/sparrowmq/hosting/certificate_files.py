"""TLS contexts that follow their files: servers show a renewed certificate without a restart.

Tests: cli/test_tls.py.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable

from sparrowmq.errors import ConfigError
from sparrowmq.serving.watched_files import WatchedFiles

LOG = logging.getLogger("sparrowmq.hosting")


class CertificateFiles:
    """A context made of files, and made anew when the files change.

    Args:
        make: makes the context; raises ConfigError; called in a thread.

    Raises: ConfigError, as `make`.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[str]) -> None:
        self._make = make
        self._paths = [path for path in files if path]
        self._files = WatchedFiles(self._paths, what="the certificates", log=LOG)
        self.context = make()

    async def look(self, use: Callable[[ssl.SSLContext], None]) -> None:
        """Make the context anew if a file has changed, and pass it to `use`."""
        stamps = self._files.find_change()
        if stamps is None:
            return
        try:
            context = await asyncio.to_thread(self._make)
        except ConfigError as error:
            # The key is often written after its certificate: a later look finds both.
            self._files.note_failure(stamps, error)
            return
        if not self._files.are_still(stamps):
            return
        self.context = context
        use(context)
        self._files.note_used(stamps)
        LOG.info("certificates were read again: %s", ", ".join(self._paths))
