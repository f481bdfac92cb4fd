"""`python -m sparrowmq.hosting`: `sparrowmq up` without the packages that the command needs.

The options are the rows of `sparrowmq.config`; no file and no variable is read.
`sparrowmq.testing.EmbeddedCluster` runs this module.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from sparrowmq.broker.config import DuplicateClientIdPolicy
from sparrowmq.config import SETTINGS
from sparrowmq.hosting.servers import Flush, HostSettings, TlsMode, run_both

_KINDS: dict[str, Any] = {
    "data": Path,
    "flush": Flush,
    "tls-mode": TlsMode,
    "duplicate-client-id": DuplicateClientIdPolicy,
}


def parse_settings(arguments: list[str]) -> HostSettings:
    """Read the options of a command line; exit with code 2 for a wrong option."""
    parser = argparse.ArgumentParser(prog="python -m sparrowmq.hosting", description=__doc__)
    taken = {field.name for field in fields(HostSettings)}
    for setting in SETTINGS:
        name = setting.name.replace("-", "_")
        if name not in taken:
            continue
        if setting.kind is bool:
            parser.add_argument(
                f"--{setting.name}", action=argparse.BooleanOptionalAction, help=setting.help
            )
        else:
            kind = _KINDS.get(setting.name, setting.kind)
            parser.add_argument(f"--{setting.name}", type=kind, help=setting.help)
    parser.add_argument("--stop-with-stdin", action="store_true")
    given = vars(parser.parse_args(arguments))
    return HostSettings(**{name: value for name, value in given.items() if value is not None})


if __name__ == "__main__":
    sys.exit(run_both(parse_settings(sys.argv[1:])))
