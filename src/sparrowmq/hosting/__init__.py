"""Servers in a process: from settings to sockets, and to a clean end."""

from __future__ import annotations

import sys

from sparrowmq.errors import UsageError

if sys.platform == "win32":
    raise UsageError(
        "name servers and brokers need Linux or macOS; on Windows run them in WSL or in a "
        "container, and clients where you like"
    )
