"""The log of a server's process, on stderr.

Peers choose parts of many messages, such as access keys and the names of brokers. A message is one
line whatever they choose, and controls no terminal. Tests: test_server_log.py.
"""

from __future__ import annotations

import logging
import sys

from sparrowmq.model.plain_text import escape


class OneLineFormatter(logging.Formatter):
    """Writes each message on one line; a traceback may follow."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Write the line of a record."""
        record.message = escape(record.message)
        return super().formatMessage(record)


def log_to_stderr(level: int, *, label: str = "") -> None:
    """Write the log of this process to stderr, from a level on.

    Args:
        label: stands behind the time in each line.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        OneLineFormatter(f"%(asctime)s{label} %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level, handlers=[handler])
