"""Files that are in use, and that others may change meanwhile. An edge."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from typing import TypeAlias

from sparrowmq.errors import ConfigError

# Time of change, time of change of the inode, size and inode of each file; None without the file.
_Stamp: TypeAlias = tuple[int, int, int, int]
Stamps: TypeAlias = tuple[_Stamp | None, ...]
# The stamp of a pipe, a device or a folder: reading it may never end, and its times say nothing.
_NO_FILE: _Stamp = (-1, -1, -1, -1)


class WatchedFiles:
    """Finds out when files have changed and are whole.

    Whoever writes a file in place passes through its beginnings, which may be sound and say
    something else than the whole. So files are read only when two looks in turn find them alike.

    Args:
        what: what is made of the files, for the log: a plural.
        log: where failures are logged.
    """

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], *, what: str, log: logging.Logger
    ) -> None:
        self._paths = tuple(paths)
        self._what = what
        self._log = log
        self._used = self._seen = self._stamps()
        self._failure: tuple[Stamps, str] | None = None

    def find_change(self) -> Stamps | None:
        """Look at the files; return their stamps if it is time to read them, None if not."""
        before, self._seen = self._seen, self._stamps()
        if self._seen != before or self._seen == self._used:
            return None
        try:
            self._check_regular(self._seen)
        except ConfigError as error:
            self.note_failure(self._seen, error)
            return None
        return self._seen

    def find_unused(self) -> Stamps | None:
        """Return the files' stamps, None if their content is in use.

        Raises: ConfigError if one of them is not a regular file.
        """
        stamps = self._stamps()
        if self._failure is None and stamps == self._used:
            return None
        self._check_regular(stamps)
        return stamps

    def _check_regular(self, stamps: Stamps) -> None:
        if _NO_FILE in stamps:
            raise ConfigError(f"{self._paths[stamps.index(_NO_FILE)]} is not a regular file")

    def are_still(self, stamps: Stamps) -> bool:
        """Return whether the files are as they were when a look found these stamps."""
        return self._stamps() == stamps

    def note_used(self, stamps: Stamps | None = None) -> None:
        """Note that the files' content is in use; None stands for the files as they are now."""
        self._used = self._stamps() if stamps is None else stamps
        self._failure = None

    def note_failure(self, stamps: Stamps, error: ConfigError) -> None:
        """Log why files cannot be used, once; files that could not be read are read again."""
        if not isinstance(error.__cause__, OSError):
            self._used = stamps
        if (failure := (stamps, str(error))) != self._failure:
            self._failure = failure
            self._log.error("%s stay as they were: %s", self._what, error)

    def _stamps(self) -> Stamps:
        return tuple(map(_stamp_of, self._paths))


def _stamp_of(path: str | os.PathLike[str]) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return _NO_FILE
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
