"""The command `sparrowmq` (and `smq`): one subcommand for each thing to run."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

# Subcommands by name, each with its module. The late ones are imported only if they are asked for:
# they need further packages, and servers should start soon.
_SERVERS = dict.fromkeys(("up", "nameserver", "broker"), "sparrowmq.cli.up")
_LATE = {
    "demo": "sparrowmq.cli.demo",
    "pipeline": "sparrowmq.cli.pipeline",
    "rebalance": "sparrowmq.cli.rebalance",
    "snapshot": "sparrowmq.cli.snapshot",
}
_MODULES = {**_SERVERS, **_LATE}
# The extras that bring what a subcommand needs; all others need `cli` alone.
_EXTRAS = {"demo": "demo", "pipeline": "cli,spark", "snapshot": "cli,spark"}


def build_app(arguments: list[str]) -> typer.Typer:
    """Make the application, with the subcommand that is asked for, or with all.

    Raises: ModuleNotFoundError if a package is missing that it needs.
    """
    import typer

    app = typer.Typer(
        name="sparrowmq",
        help="Apache RocketMQ for Python: broker, client, load balancing, Spark data source.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    asked = arguments[0] if arguments and arguments[0] in _MODULES else None
    # The servers are always there: an application with one command would take its name for an
    # argument of it.
    for name in dict.fromkeys((*_SERVERS, asked) if asked else _MODULES):
        try:
            found = getattr(importlib.import_module(_MODULES[name]), name)
        except ModuleNotFoundError:
            if asked:
                raise
            continue
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def main() -> None:
    """Run the command line."""
    try:
        build_app(sys.argv[1:])()
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "sparrowmq"):
            raise
        extras = _EXTRAS.get(next(iter(sys.argv[1:]), ""), "cli")
        sys.exit(f"sparrowmq: {missing} is not installed; pip install 'sparrowmq[{extras}]'")


if __name__ == "__main__":
    main()
