"""The process's limit of descriptors, and the part of them that peers may take.

A new descriptor gets the lowest free number. If an accepted connection's number reaches a bound, at
least as many descriptors are therefore open, whichever server opened them. Two servers of one
process need no common count. Tests: test_limits.py.
"""

from __future__ import annotations

import resource
from contextlib import suppress

# Enough for two servers with all their connections (`ServerLimits.connections_max`).
DESCRIPTORS_WANTED = 65_536
# Descriptors that peers may not take. They serve the store's files (512 of queues and all of the
# log), the files that a flush opens, and connections to name servers. If the process may have few
# descriptors, half of them are reserved.
DESCRIPTORS_RESERVED = 1_024
# OPEN_MAX: macOS reports an infinite hard limit and may refuse more than this.
_MACOS_LIMIT = 10_240


def raise_descriptor_limit() -> None:
    """Raise the soft limit to `DESCRIPTORS_WANTED`, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    for limit in (wanted, _MACOS_LIMIT):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
            return


def peer_descriptors_max() -> int:
    """Return the bound of the descriptors of peers' connections: theirs must be lower."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = DESCRIPTORS_WANTED
    return soft - min(DESCRIPTORS_RESERVED, soft // 2)
