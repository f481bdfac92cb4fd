"""Work that is repeated as long as a process serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

LOG = logging.getLogger("sparrowmq.calling")


async def repeat(
    work: Callable[[], Awaitable[object]], *, name: str, pause_s: Callable[[], float]
) -> None:
    """Do some work again and again until cancelled; no failure of it ends the repetition.

    A failure is logged with its traceback, once until the work succeeds or fails otherwise.

    Args:
        name: the work's name in the log.
        pause_s: returns the pause after each time, in seconds.
    """
    logged = ""
    while True:
        try:
            await work()
            logged = ""
        except Exception as error:
            if (text := repr(error)) != logged:
                LOG.exception("%s failed, and is repeated", name)
                logged = text
        await asyncio.sleep(pause_s())
