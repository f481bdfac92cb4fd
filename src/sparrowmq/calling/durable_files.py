"""Files that a power cut leaves whole: synced before a name leads to them. An edge.

The store has its own form of these steps, over its `Storage`.
Tests: client/test_local_offsets.py, serving/test_access_file.py, cli/test_contexts.py.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file's whole content and sync it, so that it can take another file's place.

    Args:
        mode: the permissions of a new file, less those that the process's umask takes.

    Raises: OSError.
    """
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_names(directory: Path) -> None:
    """Make the names in a directory durable. Raises: OSError; Windows opens no directory."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
