"""Checks the local paths of a job before Spark starts, which takes seconds.

A path with a scheme, such as `hdfs:` or `file:`, and a glob are left to Spark.
Tests: pipeline/test_local_paths.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from sparrowmq.errors import ConfigError

_SCHEME = r"[A-Za-z][\w+.-]*:"
_RELATIVE = re.compile(_SCHEME + r"(?!/)")
_LEFT_TO_SPARK = re.compile(_SCHEME + r"|.*[*?\[{]", re.DOTALL)


def check_paths(out: str, inputs: Iterable[str]) -> None:
    """Check that the inputs exist and that the output's directory can be written or made.

    Raises: ConfigError that names the path.
    """
    for path in (out, *inputs):
        if _RELATIVE.match(path):
            # As `run-12:00`: to Spark `run-12` is a scheme, which needs a whole path behind it.
            raise ConfigError(f"{path} has a colon in its first part; give its absolute path")
    for path in inputs:
        # `Path.exists` raises an error for a path that the system refuses.
        if not _LEFT_TO_SPARK.match(path) and not os.path.exists(path):
            raise ConfigError(f"cannot read {path}: there is no such file or directory")
    if not out.strip():
        # As of a shell's variable that is not set: the tables would be in the root directory.
        raise ConfigError("cannot write the output: its directory is an empty text; name one")
    if _LEFT_TO_SPARK.match(out):
        return
    wanted = Path(out).absolute()
    found = next(each for each in (wanted, *wanted.parents) if os.path.exists(each))
    if not found.is_dir():
        raise ConfigError(f"cannot write to {out}: {found} is a file; choose another directory")
    if not os.access(found, os.W_OK | os.X_OK):
        raise ConfigError(
            f"cannot write to {out}: this user may not write to {found}; choose another directory"
        )


def check_apart(inputs: Iterable[str], tables: Iterable[str]) -> None:
    """Check that no input is in a table that a job replaces.

    Raises: ConfigError that names the input.
    """
    replaced = [_resolve(table) for table in tables]
    for path in inputs:
        found = _resolve(path)
        for table in replaced:
            if found == table or found.startswith(f"{table}/"):
                raise ConfigError(
                    f"the input {path} is in {table}, a table that this job replaces; choose "
                    f"another directory for the output"
                )


def _resolve(path: str) -> str:
    """Return a path that is equal for equal places, as far as this machine can tell."""
    return path.rstrip("/") if re.match(_SCHEME, path) else os.path.realpath(path)
