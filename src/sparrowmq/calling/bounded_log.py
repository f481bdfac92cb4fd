"""A logger that bounds its repeated lines (`line_bound.py`). Tests: test_line_bound.py."""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable, Mapping

from sparrowmq.calling import clock
from sparrowmq.calling.line_bound import LineBound


class BoundedLog:
    """Writes the lines that its bound admits; a line says how many were left out before it.

    Several threads may share it.

    Args:
        logger: takes the lines.
        lines_max: the most lines of a kind in a period.
    """

    def __init__(self, logger: logging.Logger, *, lines_max: int = 1) -> None:
        self._logger = logger
        self._bound = LineBound(lines_max=lines_max)
        # The cyclic collector may log the end of a client wherever the lock is held.
        self._lock = threading.RLock()

    def log(
        self,
        level: int,
        kind: Hashable,
        text: str,
        *args: object,
        error: BaseException | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """Write a line, unless there were too many of its kind a moment ago.

        Args:
            kind: bounds the line together with all others of this kind; a value that a peer
                chooses must not be part of it.
            error: the error whose traceback follows.
            fields: fields for logs in JSON.
        """
        with self._lock:
            left_out = self._bound.admit(kind, clock.monotonic_ms())
        if left_out is not None:
            more = f" ({left_out} more like this were left out)" if left_out else ""
            self._logger.log(
                level, text + "%s", *args, more, exc_info=error, extra=fields, stacklevel=2
            )
