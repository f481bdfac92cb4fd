"""The command `sparrowmq` (and `smq`): one subcommand for each thing to run."""

from __future__ import annotations

import importlib

import typer

from sparrowmq.cli import up

# Subcommands whose modules are imported only when they are asked for: they need further packages.
_LATE = {
    "demo": "sparrowmq.cli.demo",
    "pipeline": "sparrowmq.cli.pipeline",
    "rebalance": "sparrowmq.cli.rebalance",
    "snapshot": "sparrowmq.cli.snapshot",
}


def build_app(arguments: list[str]) -> typer.Typer:
    """Make the application, with those late subcommands that the arguments may need."""
    app = typer.Typer(
        name="sparrowmq",
        help="Apache RocketMQ for Python: broker, client, load balancing, Spark data source.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.command("up")(up.up)
    app.command("nameserver")(up.nameserver)
    app.command("broker")(up.broker)
    named = [argument for argument in arguments if argument in _LATE]
    for name in named or _LATE:
        try:
            module = importlib.import_module(_LATE[name])
        except ModuleNotFoundError:
            if named:
                raise
            continue
        found = getattr(module, name)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return app


def main() -> None:
    """Run the command line."""
    import sys

    build_app(sys.argv[1:])()


if __name__ == "__main__":
    main()
