"""Directories and small files of any file system that Spark writes to, through Hadoop's.

Everything is asked of the JVM, so that `hdfs:` and `s3a:` work as local paths do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sparrowmq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Entry(NamedTuple):
    """A file or directory: its name and, of a file, its bytes."""

    name: str
    is_directory: bool
    size: int


class Files:
    """The file system of a path."""

    def __init__(self, session: SparkSession, path: str) -> None:
        jvm: Any = session._jvm
        context: Any = session._jsc
        self._path = jvm.org.apache.hadoop.fs.Path
        self._files = self._path(path).getFileSystem(context.hadoopConfiguration())
        self._io = jvm.org.apache.commons.io.IOUtils

    def exists(self, path: str) -> bool:
        """Tell whether something is there."""
        return bool(self._files.exists(self._path(path)))

    def list(self, path: str) -> list[Entry]:
        """Return what is in a directory, by name; nothing if it is not there."""
        if not self.exists(path):
            return []
        found = [
            Entry(status.getPath().getName(), status.isDirectory(), status.getLen())
            for status in self._files.listStatus(self._path(path))
        ]
        return sorted(found)

    def size(self, path: str) -> int:
        """Return the bytes of all files below a directory."""
        return int(self._files.getContentSummary(self._path(path)).getLength())

    def move(self, source: str, target: str) -> None:
        """Rename; the target's directory is made, and the target must not be there.

        Raises: UsageError if it cannot be done.
        """
        target_path = self._path(target)
        self._files.mkdirs(target_path.getParent())
        if not self._files.rename(self._path(source), target_path):
            raise UsageError(f"cannot rename {source} to {target}; look at the directory's rights")

    def remove(self, path: str) -> None:
        """Remove a file or a whole directory; nothing happens if it is not there."""
        self._files.delete(self._path(path), True)

    def read_text(self, path: str) -> str | None:
        """Return a file's text, or None if it is not there."""
        if not self.exists(path):
            return None
        stream = self._files.open(self._path(path))
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a file that appears whole or not at all."""
        fresh = f"{path}.fresh"
        stream = self._files.create(self._path(fresh), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self.remove(path)
        self.move(fresh, path)
