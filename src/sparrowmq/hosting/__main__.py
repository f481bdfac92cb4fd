"""`python -m sparrowmq.hosting`: `sparrowmq up` without the packages that the command needs.

The options are the rows of `HostSettings`; no file and no variable is read.
`sparrowmq.testing.EmbeddedCluster` runs this module.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

from sparrowmq.config import with_settings
from sparrowmq.errors import ConfigError
from sparrowmq.hosting.servers import run_both
from sparrowmq.hosting.settings import UP, HostSettings, settings_of


def parse_settings(arguments: list[str]) -> HostSettings:
    """Read the options of a command line; exit with code 2 for a wrong option."""
    parser = argparse.ArgumentParser(
        prog="python -m sparrowmq.hosting",
        description=__doc__,
        argument_default=argparse.SUPPRESS,
    )
    for row in settings_of(UP).values():
        how: dict[str, Any] = {"type": row.kind}
        if row.kind is bool:
            how = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(f"--{row.option}", help=row.help.replace("%", "%%"), **how)
    parser.add_argument("--stop-with-stdin", action="store_true", default=False)
    given = vars(parser.parse_args(arguments))
    settings = replace(HostSettings(), stop_with_stdin=given.pop("stop_with_stdin"))
    try:
        return with_settings(settings, given)
    except ConfigError as error:
        parser.error(str(error))


if __name__ == "__main__":
    sys.exit(run_both(parse_settings(sys.argv[1:])))
