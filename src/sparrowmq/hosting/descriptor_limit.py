"""The process's limit of descriptors at the start of a server: raised, or found too low.

Below the limit a server would start and then serve nobody. Tests: test_descriptor_limit.py.
"""

from __future__ import annotations

import resource
from contextlib import suppress

from sparrowmq.errors import ConfigError
from sparrowmq.serving.descriptors import (
    DESCRIPTORS_WANTED,
    descriptor_limit,
    peer_descriptors_max,
)
from sparrowmq.store.file_storage import open_files_max

# The descriptors that remain for peers after the servers' own.
_PEERS_MIN = 16
# What servers open for themselves, besides the store's files: loops, ports, locks, threads of gRPC.
_OWN_MAX = 48
# A limit is a multiple of this in errors.
_STEP = 64
# OPEN_MAX: macOS reports an infinite hard limit and may refuse more than this.
_MACOS_LIMIT = 10_240


def ensure_descriptors(*, log_files: int = 0) -> None:
    """Raise the soft limit as far as is useful and allowed.

    Args:
        log_files: the number of files of the store's log, which all stay open.

    Raises: ConfigError if the limit leaves peers too few descriptors.
    """
    needed = descriptors_needed(log_files)
    _raise_limit(max(DESCRIPTORS_WANTED, needed))
    limit = descriptor_limit()
    if limit >= needed:
        return
    cause = f" with the {log_files:,} files of this log" if log_files else ""
    raise ConfigError(
        f"this process may have {limit:,} files and connections open at once, which is too few: "
        f"a server{cause} needs {needed:,} or more; raise the limit (ulimit -n {needed}; "
        f"LimitNOFILE={needed} in a systemd unit)"
    )


def descriptors_needed(log_files: int = 0) -> int:
    """Return the lowest limit with which a server starts."""
    limit = _STEP
    while peer_descriptors_max(limit) - open_files_max(limit) < _OWN_MAX + log_files + _PEERS_MIN:
        limit += _STEP
    return limit


def _raise_limit(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    for limit in (wanted, _MACOS_LIMIT):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
            return
