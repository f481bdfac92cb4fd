"""The run of subcommands that serve until a signal: logging and exit codes.

Tests: dash/test_command.py, exporter/test_command.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import closing
from typing import Any

from sparrowmq.cli.exit_codes import EXIT_USAGE, say
from sparrowmq.errors import ConfigError, SparrowError
from sparrowmq.hosting.descriptor_limit import ensure_descriptors
from sparrowmq.serving.server_log import log_to_stderr

EXIT_NOT_SERVED = 1


def run_server(serving: Coroutine[Any, Any, None]) -> int:
    """Serve until a signal; return the exit code: 0; 1 if serving fails; 2 for a wrong setting."""
    log_to_stderr(logging.WARNING)
    try:
        with closing(serving):
            ensure_descriptors()
            asyncio.run(serving)
    except ConfigError as error:
        say(str(error))
        return EXIT_USAGE
    except (OSError, SparrowError) as error:
        say(str(error) if isinstance(error, SparrowError) else error.strerror or str(error))
        return EXIT_NOT_SERVED
    return 0
