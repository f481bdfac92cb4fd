"""Directories and small files of any file system that Spark writes to, through Hadoop's.

Everything is asked of the JVM, so that `hdfs:` and `s3a:` work as local paths do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from sparrowmq.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class DirectoryEntry(NamedTuple):
    """A file or directory: its name and, of a file, its bytes."""

    name: str
    is_directory: bool
    size: int


class DirectoryUsage(NamedTuple):
    """What is below a directory."""

    files: int
    size: int


def require_classic(session: SparkSession) -> None:
    """Raise a UsageError where the session has no JVM to ask, as with Spark Connect."""
    if not hasattr(session, "_jsc"):
        raise UsageError("the jobs need a classic Spark session; Spark Connect has no JVM here")


class Files:
    """The file system of a path.

    Raises: UsageError where the session has no JVM to ask, as with Spark Connect.
    """

    def __init__(self, session: SparkSession, path: str) -> None:
        require_classic(session)
        context: Any = session.sparkContext
        self._gateway: Any = context._gateway
        hadoop = self._gateway.jvm.org.apache.hadoop.fs
        self._conf = context._jsc.hadoopConfiguration()
        self._path = hadoop.Path
        self._files = self._path(path).getFileSystem(self._conf)
        self._hadoop = hadoop

    def exists(self, path: str) -> bool:
        """Return whether something is there."""
        return bool(self._files.exists(self._path(path)))

    def list(self, path: str) -> list[DirectoryEntry]:
        """Return what is in a directory, by name; nothing if it is not there."""
        if not self.exists(path):
            return []
        found = [
            DirectoryEntry(status.getPath().getName(), status.isDirectory(), status.getLen())
            for status in self._files.listStatus(self._path(path))
        ]
        return sorted(found)

    def usage(self, path: str, *, suffix: str) -> DirectoryUsage:
        """Count the files below a directory whose names end so, and their bytes."""
        files = size = 0
        if self.exists(path):
            found = self._files.listFiles(self._path(path), True)
            while found.hasNext():
                status = found.next()
                if status.getPath().getName().endswith(suffix):
                    files, size = files + 1, size + status.getLen()
        return DirectoryUsage(files, size)

    def size(self, path: str) -> int:
        """Return the bytes of all files below a directory, which must be there."""
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
            return str(self._gateway.jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write_text(self, path: str, text: str) -> None:
        """Write a file that appears whole or not at all, and of which one is there at any moment.

        A local file is renamed over the one before, without Hadoop's checksum file, which could
        not change in the same moment. Elsewhere Hadoop's own renaming replaces a file, at once on
        HDFS; an object store takes the new file in one piece.
        """
        fresh, target = self._path(f"{path}.fresh"), self._path(path)
        is_local = self._files.getScheme() == "file"
        files = self._files.getRaw() if is_local else self._files
        stream = files.create(fresh, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if is_local:
            self._files.delete(self._path(f"{target.getParent()}/.{target.getName()}.crc"), False)
            if not files.rename(fresh, target):
                raise UsageError(f"cannot write {path}; look at the directory's rights")
            return
        rename = self._hadoop.Options.Rename
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        context = self._hadoop.FileContext.getFileContext(target.toUri(), self._conf)
        context.rename(context.makeQualified(fresh), context.makeQualified(target), options)
