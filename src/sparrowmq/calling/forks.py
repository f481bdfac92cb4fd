"""What a forked process must not use: its copies of connections, and of what waits for them.

A question for the process id, a call of the kernel, would cost each send as much as its ids. So the
child tells the copies once. Tests: client/test_batches.py, calling/test_blocking_driver.py.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Copied(Protocol):
    """What must know that it is a copy in a forked process."""

    def become_copy(self) -> None:
        """Refuse to be used from now on."""


_COPIED: WeakSet[Copied] = WeakSet()


def tell_in_forks(each: Copied) -> None:
    """Have an object's copy told in each process that is forked from this one."""
    _COPIED.add(each)


def _tell() -> None:
    for each in _COPIED:
        each.become_copy()


# No other system than POSIX has forks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_tell)
