"""The file system of a job on Spark, without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sparrowmq.errors import UsageError
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

    def write_text(self, path: str, text: str) -> None:
        self._change()
        Path(path).write_text(text)

    def sync_names(self, path: str) -> None:
        """Do nothing: no power is cut."""

    def move(self, source: str, target: str) -> None:
        self._change()
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        # As Hadoop: into a directory that is there already.
        shutil.move(source, target)


class CopiedFiles(LocalFiles):
    """An object store, whose rename copies and removes a directory's files one after another."""

    def move(self, source: str, target: str) -> None:
        if any(self.list(target)):
            # As Hadoop's client of S3.
            raise UsageError(f"cannot rename {source} to {target}")
        files = [each for each in sorted(Path(source).rglob("*")) if each.is_file()]
        for each in files or [Path(source)]:
            at = Path(target) / each.relative_to(source)
            at.parent.mkdir(parents=True, exist_ok=True)
            self._change()
            shutil.copyfile(each, at)
            self._change()
            each.unlink()
        shutil.rmtree(source, ignore_errors=True)

    def remove(self, path: str) -> None:
        for each in sorted(Path(path).rglob("*")):
            if each.is_file():
                self._change()
                each.unlink()
        super().remove(path)
