"""The file system of a job on Spark, without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sparrowmq.pipeline.files import DirectoryEntry, DirectoryUsage


class Killed(BaseException):
    """The process has ended before a change."""


class LocalFiles:
    """Directories of this machine, without a JVM, in a process that may be killed.

    Args:
        changes_left: the changes until the process is killed; None for any number.
    """

    def __init__(self, changes_left: int | None = None) -> None:
        self.changes_left = changes_left
        self.sizes: dict[str, int] = {}

    def _change(self) -> None:
        if self.changes_left is not None:
            if self.changes_left == 0:
                raise Killed
            self.changes_left -= 1

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def list(self, path: str) -> list[DirectoryEntry]:
        found = Path(path).iterdir() if Path(path).exists() else ()
        return sorted(DirectoryEntry(each.name, each.is_dir(), 0) for each in found)

    def usage(self, path: str) -> DirectoryUsage:
        return DirectoryUsage(1, self.sizes[Path(path).name])

    def read_text(self, path: str) -> str | None:
        return Path(path).read_text() if Path(path).exists() else None

    def read_json(self, path: str) -> Any:
        try:
            return json.loads(self.read_text(path) or "null")
        except ValueError:
            return None

    def remove(self, path: str) -> None:
        self._change()
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def sync_names(self, path: str) -> None:
        """Do nothing: no power is cut."""

    def move(self, source: str, target: str) -> None:
        self._change()
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        # As Hadoop: into a directory that is there already.
        shutil.move(source, target)
