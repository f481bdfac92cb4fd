"""The command `sparrowmq` (and `smq`): one subcommand for each thing to run.

A subcommand's module is imported when the subcommand runs. `--help` reads a table, and servers
start without the imports of other subcommands.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import shlex
import sys
from collections import UserDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from sparrowmq.cli.guesses import GUESSED_WITHIN, translate_guess
from sparrowmq.cli.language import translate_help, words
from sparrowmq.errors import install_command

if TYPE_CHECKING:
    import typer


# As in `exit_codes`, which needs typer.
_EXIT_FAILED = 3
# The reader of a pipe has gone: the exit code that typer has for the same.
_EXIT_UNREAD = 1
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class _Command(NamedTuple):
    """A subcommand: its module, its line in `--help`, and the extras that it needs."""

    module: str
    summary: str
    extras: str = "cli"


COMMANDS = {
    "up": _Command("sparrowmq.cli.up", "Run a name server and a broker in one process."),
    "nameserver": _Command("sparrowmq.cli.up", "Run a name server."),
    "broker": _Command("sparrowmq.cli.broker", "Run a broker, or look at a cluster's brokers."),
    "store": _Command("sparrowmq.cli.store", "Check or copy a broker's directory."),
    "context": _Command("sparrowmq.cli.context", "Name clusters; choose the one to talk to."),
    "ls": _Command("sparrowmq.cli.cluster", "List brokers, topics and groups, with their lag."),
    "top": _Command("sparrowmq.cli.top", "Watch all consumer groups on a live screen."),
    "check": _Command(
        "sparrowmq.cli.check", "Check a cluster's health; the exit code gives the result."
    ),
    "topic": _Command("sparrowmq.cli.topic", "List, show, create, update and delete topics."),
    "group": _Command(
        "sparrowmq.cli.group", "List, show, reset, update and delete consumer groups."
    ),
    "tail": _Command("sparrowmq.cli.messages", "Print a topic's last messages; follow it."),
    "send": _Command("sparrowmq.cli.send", "Send a message, or one for each line of a file."),
    "msg": _Command(
        "sparrowmq.cli.messages", "Find messages by id, key, place or time; send one again."
    ),
    "dlq": _Command("sparrowmq.cli.dead_letters", "Dead letters: list, show, send again."),
    "acl": _Command("sparrowmq.cli.acl", "Accounts of access control: list, put, delete."),
    "rebalance": _Command(
        "sparrowmq.cli.rebalance",
        "Show the owners of a group's queues, the reason, and what is wrong.",
    ),
    "dash": _Command(
        "sparrowmq.cli.dash", "Show a cluster in a browser: the live page.", "cli,dash"
    ),
    "metrics": _Command(
        "sparrowmq.cli.metrics", "Serve a cluster's metrics to Prometheus.", "cli,prometheus"
    ),
    "snapshot": _Command(
        "sparrowmq.cli.snapshot", "Write the state of a cluster to tables.", "cli,spark"
    ),
    "pipeline": _Command(
        "sparrowmq.cli.pipeline",
        "Run a job on Spark: ingest, backlog, duplicates or balance.",
        "cli,spark",
    ),
    "demo": _Command(
        "sparrowmq.cli.demo", "Balance two groups over real flights; read them with Spark.", "demo"
    ),
}
# With no subcommand behind them.
_SERVERS = ("up", "nameserver", "broker", "dash", "metrics")


class _LateCommands(UserDict[str, Any]):
    """The subcommands by name, each made when it is looked up; `on_loaded` is called then."""

    def __init__(self, on_loaded: Callable[[], None]) -> None:
        super().__init__(COMMANDS)
        self._on_loaded = on_loaded

    def __getitem__(self, name: str) -> Any:
        import typer

        from sparrowmq.cli.command_classes import use_classes

        found = getattr(importlib.import_module(COMMANDS[name].module), name)
        app = found
        if not isinstance(found, typer.Typer):
            app = typer.Typer(rich_markup_mode=None, add_completion=False)
            app.command(name)(found)
        use_classes(app)
        made: Any = typer.main.get_group(app) if app is found else typer.main.get_command(app)
        translate_help(made)
        self._on_loaded()
        return made


def _ignore() -> None:
    """Do nothing."""


def build_app(on_loaded: Callable[[], None] = _ignore) -> typer.Typer:
    """Make the application. Raises: ModuleNotFoundError without typer.

    Args:
        on_loaded: called once the modules of a subcommand are loaded.
    """
    import typer

    from sparrowmq.cli.command_classes import Group

    class Commands(Group):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            translate_help(self)
            self.commands = _LateCommands(on_loaded)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section(words()("Commands")):
                formatter.write_dl([(n, words()(each.summary)) for n, each in COMMANDS.items()])

    app = typer.Typer(
        name="sparrowmq",
        cls=Commands,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )

    def print_version(is_asked: bool) -> None:
        if is_asked:
            # Reading packages' metadata takes a sixth of the time that --help may take.
            from importlib import metadata

            typer.echo(f"sparrowmq {metadata.version('sparrowmq')}")
            raise typer.Exit

    @app.callback()
    def sparrowmq(
        version: bool = typer.Option(
            False, "--version", callback=print_version, is_eager=True, help="Show the version."
        ),
    ) -> None:
        """Apache RocketMQ for Python: broker, client, load balancing, Spark data source."""

    return app


def main(on_loaded: Callable[[], None] = _ignore) -> None:
    """Run the command line, whose first word may also be mqadmin's, or a guess."""
    arguments = sys.argv[1:]
    _replace_closed_streams(arguments)
    try:
        if arguments and (arguments[0] not in COMMANDS or arguments[0] in GUESSED_WITHIN):
            arguments = _translate(arguments)
        with _writing_output():
            build_app(on_loaded)(arguments)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "sparrowmq"):
            raise
        asked = COMMANDS.get(next(iter(arguments), ""))
        extras = "cli" if asked is None else asked.extras
        sys.exit(f"sparrowmq: {missing} is not installed; {install_command(extras)}")


def _replace_closed_streams(arguments: list[str]) -> None:
    """Put files in the places of the standard streams that the shell closed, as by `>&-`.

    `print` drops what it is to write to no stdout, and writes to stdout what is for no stderr.
    """
    stdin, stdout, stderr = cast("tuple[TextIO | None, ...]", (sys.stdin, sys.stdout, sys.stderr))
    if stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    if stdout is None:
        # Writing fails, but not of a server, whose output is one line for whoever started it.
        command, more = [*arguments, "", ""][:2]
        is_server = command in _SERVERS and (not more or more.startswith("-"))
        mode = os.O_WRONLY if is_server else os.O_RDONLY
        sys.stdout = os.fdopen(os.open(os.devnull, mode), "w")
    if stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


@contextmanager
def _writing_output() -> Generator[None]:
    """Escape what the terminal's encoding lacks; end with one line if stdout cannot be written."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            # Python itself would flush after the last place that can catch an error.
            sys.stdout.flush()
    except OSError as error:
        is_unread = error.errno == errno.EPIPE
        # A file that a command writes has a name in its error.
        if not is_unread and (error.errno not in _WRITE_ERRORS or error.filename is not None):
            raise
        # What is still in the buffer would raise the same error at the end of the process.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not is_unread:
            print(f"sparrowmq: cannot write to stdout: {error.strerror}", file=sys.stderr)
        sys.exit(_EXIT_UNREAD if is_unread else _EXIT_FAILED)


def _translate(arguments: list[str]) -> list[str]:
    """Return the arguments, with a command of mqadmin or a guess translated."""
    from sparrowmq.cli.mqadmin import ALIASES, WrongOption, translate

    try:
        ours = translate(arguments) if arguments[0] in ALIASES else translate_guess(arguments)
    except WrongOption as error:
        print(f"sparrowmq: {error}", file=sys.stderr)
        sys.exit(2)
    if ours is None:
        return arguments
    said = shlex.join(arguments[: 2 if arguments[0] in GUESSED_WITHIN else 1])
    print(f"sparrowmq: {said} is: sparrowmq {shlex.join(ours)}", file=sys.stderr)
    return ours
