"""The pytest option `--golden DIR` of SparrowMQ's own tests.

pytest knows the options of `tests/conftest.py` only after it has chosen its root directory from
the paths on the command line. In `pytest --golden DIR` it would take DIR for such a path, and find
neither our settings nor that conftest. This plug-in is known earlier, because `make setup` installs
it, and starts pytest again with `--golden=DIR`.
"""

from __future__ import annotations

import subprocess
import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden",
        metavar="DIR",
        default=None,
        help="take SparrowMQ's golden vectors from DIR, which holds files as tests/golden does",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Start again with `--golden=DIR` where option and value came apart."""
    arguments = list(config.invocation_params.args)
    if "--golden" not in arguments:
        return None
    at = arguments.index("--golden")
    arguments[at : at + 2] = [f"--golden={arguments[at + 1]}"]
    return subprocess.call(
        [sys.executable, "-m", "pytest", *arguments], cwd=config.invocation_params.dir
    )
