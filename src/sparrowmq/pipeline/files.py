"""Directories and small files of every file system that Spark can write to.

All calls go through Hadoop's file systems in the JVM, so that `hdfs:` and `s3a:` work like local
paths. Tests: spark/test_parquet.py.
"""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from sparrowmq.errors import UsageError
from sparrowmq.spark.local_session import require_classic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A batch may have hundreds of small files, whose syncs a file system's journal combines.
_SYNCS_AT_ONCE = 16


class DirectoryEntry(NamedTuple):
    """A file with its size in bytes, or a directory."""

    name: str
    is_directory: bool
    size: int


class DirectoryUsage(NamedTuple):
    """The files below a directory: their number and their size in bytes."""

    files: int
    size: int


class Files:
    """The file system of a path.

    Raises: UsageError if the session has no JVM, as with Spark Connect.
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
        """Return whether a file or directory with this path exists."""
        return bool(self._files.exists(self._path(path)))

    def list(self, path: str) -> list[DirectoryEntry]:
        """Return a directory's entries, sorted by name; empty if the directory does not exist."""
        if not self.exists(path):
            return []
        found = [
            DirectoryEntry(status.getPath().getName(), status.isDirectory(), status.getLen())
            for status in self._files.listStatus(self._path(path))
        ]
        return sorted(found)

    def usage(self, path: str) -> DirectoryUsage:
        """Count the files below a directory and their bytes; zeros if it does not exist.

        Hadoop counts in one call: a call for each of a thousand files would take half a second.
        """
        if not self.exists(path):
            return DirectoryUsage(0, 0)
        found = self._files.getContentSummary(self._path(path))
        return DirectoryUsage(int(found.getFileCount()), int(found.getLength()))

    def move(self, source: str, target: str) -> None:
        """Rename a file or directory; create the target's directory if it does not exist.

        Raises: UsageError if the file system refuses, as for a target that exists.
        """
        target_path = self._path(target)
        self._files.mkdirs(target_path.getParent())
        if not self._files.rename(self._path(source), target_path):
            raise UsageError(f"cannot rename {source} to {target}; look at the directory's rights")

    def sync(self, path: str) -> None:
        """Make a file, or a directory with everything below, durable on a disk of this machine.

        Otherwise a power cut may leave a file's name without its content. Other file systems see
        to that when a file is closed.

        Raises: OSError.
        """
        if self._files.getScheme() != "file":
            return
        root = self._local(path)
        below = [root]
        for directory, names, file_names in os.walk(root):
            below += [os.path.join(directory, name) for name in (*names, *file_names)]
        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as threads:
            # The lowest come first.
            for _ in threads.map(_sync, reversed(below)):
                pass

    def sync_names(self, path: str) -> None:
        """Make the names in a directory durable, as `sync` does. Raises: OSError."""
        if self._files.getScheme() == "file":
            _sync(self._local(path))

    def _local(self, path: str) -> str:
        return str(self._files.makeQualified(self._path(path)).toUri().getPath())

    def remove(self, path: str) -> None:
        """Remove a file or a whole directory, if it exists."""
        self._files.delete(self._path(path), True)

    def read_text(self, path: str) -> str | None:
        """Return a file's text; None if the file does not exist."""
        if not self.exists(path):
            return None
        stream = self._files.open(self._path(path))
        try:
            return str(self._gateway.jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def read_json(self, path: str) -> Any:
        """Return the content of a file of JSON; None if it does not exist, or is torn.

        Every file is synced before it gets its name, but not by earlier versions, and perhaps not
        by the disk: a power cut may leave an empty file.
        """
        try:
            return json.loads(self.read_text(path) or "null")
        except ValueError:
            return None

    def write_text(self, path: str, text: str) -> None:
        """Replace a file atomically: readers see the old file or the whole new file.

        A local file is synced and renamed over the old one, without Hadoop's checksum file, which
        could not change at the same moment. Elsewhere Hadoop's rename replaces the file: atomically
        on HDFS, and as one whole object in an object store.
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
            self.sync(f"{path}.fresh")
            self._files.delete(self._path(f"{target.getParent()}/.{target.getName()}.crc"), False)
            if not files.rename(fresh, target):
                raise UsageError(f"cannot write {path}; look at the directory's rights")
            return
        rename = self._hadoop.Options.Rename
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        context = self._hadoop.FileContext.getFileContext(target.toUri(), self._conf)
        context.rename(context.makeQualified(fresh), context.makeQualified(target), options)


def _sync(path: str) -> None:
    """Sync a file or directory, unless the file system has no such operation."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some mounted object stores; Windows opens no directory.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise
