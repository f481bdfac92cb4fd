"""How many descriptors the process may have, and how many of them peers may take.

A descriptor gets the lowest number that is free. So an accepted connection whose number reaches a
bound shows that as many descriptors are open, whoever opened them: two servers of one process need
no common count.
"""

from __future__ import annotations

import resource
from contextlib import suppress

# Enough for two servers with all the connections they take (`ServerLimits.connections_max`).
DESCRIPTORS_WANTED = 65_536
# Kept from peers: for the store's files (512 of queues and each one of the log), for those that a
# flush opens, and for connections to name servers. Where the process may have few, half of them.
DESCRIPTORS_RESERVED = 1_024
# OPEN_MAX: macOS shows an infinite hard limit and may refuse more than this.
_MACOS_LIMIT = 10_240


def raise_descriptor_limit() -> None:
    """Raise the soft limit to `DESCRIPTORS_WANTED`, as far as the hard one allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(DESCRIPTORS_WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    for limit in (wanted, _MACOS_LIMIT):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
            return


def peer_descriptors_max() -> int:
    """Return the number that the descriptor of a peer's connection must stay below."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = DESCRIPTORS_WANTED
    return soft - min(DESCRIPTORS_RESERVED, soft // 2)
