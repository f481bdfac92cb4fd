"""TLS contexts that follow their files: servers show a renewed certificate without a restart."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable, Iterable

from sparrowmq.errors import ConfigError

LOG = logging.getLogger("sparrowmq.hosting")


class CertificateFiles:
    """A context made of files, and made anew when the files change.

    Args:
        make: makes the context; raises ConfigError.
        files: the paths of the files.

    Raises: ConfigError, as `make`.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[str]) -> None:
        self._make = make
        self._files = [path for path in files if path]
        self._stamp = self._look()
        self.context = make()

    def reload(self, use: Callable[[ssl.SSLContext], None]) -> None:
        """Make the context anew if a file has changed, and pass it to `use`."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.context = self._make()
        except ConfigError as error:
            # The key is often written after its certificate: the next look finds both.
            LOG.error("the certificates stay as they were: %s", error)
            return
        use(self.context)
        LOG.info("certificates were read again: %s", ", ".join(self._files))

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp_of(path) for path in self._files]


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
