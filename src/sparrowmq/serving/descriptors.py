"""The process's limit of descriptors, and the part of them that peers may take.

A new descriptor gets the lowest free number. If an accepted connection's number reaches a bound, at
least as many descriptors are therefore open, whichever server opened them. Two servers of one
process need no common count. Tests: test_limits.py.
"""

from __future__ import annotations

import resource

# The count where the system sets none: enough for two servers with all their connections
# (`ServerLimits.connections_max`).
DESCRIPTORS_WANTED = 65_536
# Descriptors that peers may not take. They serve the store's files (512 of queues and all of the
# log), the files that a flush opens, and connections to name servers. If the process may have few
# descriptors, half of them are reserved.
DESCRIPTORS_RESERVED = 1_024


def descriptor_limit() -> int:
    """Return how many descriptors the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft


def peer_descriptors_max(limit: int) -> int:
    """Return the bound of the descriptors of peers' connections: theirs must be lower.

    Args:
        limit: how many descriptors the process may have open.
    """
    return limit - min(DESCRIPTORS_RESERVED, limit // 2)
