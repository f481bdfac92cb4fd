"""The temporary directory of a cluster for tests. Tests: test_embedded.py."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref


class OwnDirectory:
    """A temporary directory, removed at the end of the process that made it.

    The end of a forked process leaves it, unlike a `tempfile.TemporaryDirectory`.

    Attributes:
        name: the path.
        remove: removes the directory; a second call does nothing.
    """

    def __init__(self) -> None:
        self.name = tempfile.mkdtemp(prefix="sparrowmq-")
        self.remove = weakref.finalize(self, _remove, self.name, os.getpid())


def _remove(name: str, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(name, ignore_errors=True)
