"""The connection of subcommands that look at a cluster: its options and their effect.

A command takes a `CommandCluster` as its first parameter and is decorated by `on_cluster`, which
replaces that parameter by the options of every such command: `--nameserver`, `--context`,
`--tls-ca`, `--timeout` and `--json`. Tests: test_brokers_and_contexts.py.
"""

from __future__ import annotations

import functools
import inspect
import os
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.calling.tls import client_context
from sparrowmq.cli.contexts import Chosen, Context, choose_context
from sparrowmq.cli.exit_codes import reporting_errors
from sparrowmq.client.assembly import make_directory
from sparrowmq.client.directory import Directory
from sparrowmq.client.faces.thread_host import open_driver
from sparrowmq.client.operations.groups import list_groups
from sparrowmq.client.operations.topics import list_topics
from sparrowmq.errors import ConnectFailed, SparrowError, TopicRouteNotFound, UsageError
from sparrowmq.model.names import find_nearest, is_system_topic

T = TypeVar("T")

NameServer = Annotated[
    str | None,
    typer.Option("--nameserver", "-n", help="host:port of name servers, separated by ';'"),
]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context", "-c", help="the name of a cluster, as `sparrowmq context ls` lists it"
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option("--tls-ca", help="connect by TLS, and trust the authorities in this PEM file"),
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, max=60.0, help="seconds to wait for each answer")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON on stdout")]

# A shell blocks while it waits for the names that complete a word.
COMPLETION_TIMEOUT_S = 1.0


def complete_from(
    list_names: Callable[[Directory], Operation[list[str]]],
) -> Callable[[typer.Context, str], list[str]]:
    """Return a completer of names from the command's cluster, which offers none if it is silent."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            with open_cluster(
                nameserver=ctx.params.get("nameserver"),
                context=ctx.params.get("context"),
                tls_ca=ctx.params.get("tls_ca"),
                timeout=COMPLETION_TIMEOUT_S,
            ) as cluster:
                names = cluster.run(list_names(cluster.directory))
        except SparrowError:
            return []
        return [name for name in names if name.startswith(incomplete) and not is_system_topic(name)]

    return complete


complete_topic, complete_group = complete_from(list_topics), complete_from(list_groups)

TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="the topic", autocompletion=complete_topic)
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="the consumer group", autocompletion=complete_group)
]

# The options of every command of `on_cluster`: parameter, option, default.
CLUSTER_OPTIONS: tuple[tuple[str, Any, object], ...] = (
    ("nameserver", NameServer, None),
    ("context", ContextName, None),
    ("tls_ca", TlsCa, None),
    ("timeout", Timeout, 3.0),
    ("as_json", AsJson, False),
)


@dataclass(frozen=True, slots=True)
class CommandCluster:
    """The cluster of a command.

    Args:
        context: the cluster's address and credentials. directory, driver: run the operations.
        as_json: whether the command is to print JSON.
    """

    context: Context
    directory: Directory
    driver: BlockingDriver
    as_json: bool

    def run(self, operation: Operation[T]) -> T:
        """Run an operation. Raises: what the operation raises."""
        return self.driver.run(operation)

    @property
    def client_settings(self) -> dict[str, Any]:
        """Return the settings that connect a client as this command connects."""
        return {"name_server": self.context.name_server, **client_settings(self.context)}


def client_settings(context: Context) -> dict[str, Any]:
    """Return the settings by which clients connect to a context's cluster.

    Raises: ConfigError that names the file or variable that is missing.
    """
    return {
        "namespace": context.namespace or None,
        "tls": make_tls(context),
        "access_key": context.access_key or None,
        "secret_key": context.read_secret(os.environ),
    }


def directory_of_all(context: Context, *, timeout_s: float) -> Directory:
    """Return a directory of a context's cluster that shows every namespace, by whole names.

    Raises: ConfigError as `client_settings`.
    """
    connecting: dict[str, Any] = {**client_settings(context), "namespace": None}
    return make_directory(context.name_server, timeout_ms=round(timeout_s * 1000), **connecting)


def make_tls(context: Context) -> ssl.SSLContext | None:
    """Return clients' `tls` setting, None without TLS. Raises: ConfigError that names the file."""
    if not context.tls_ca:
        return None
    return client_context(
        ca_file=context.tls_ca,
        certificate_file=context.tls_cert or None,
        key_file=context.tls_key or None,
    )


@contextmanager
def open_cluster(
    *,
    nameserver: str | None,
    context: str | None,
    tls_ca: str | None,
    timeout: float,
    as_json: bool = False,
) -> Generator[CommandCluster]:
    """Connect by the options, and close the connections at the end.

    Raises: ConfigError; ConnectFailed, which then says where the address came from.
    """
    chosen = choose_context(name_server=nameserver, name=context, tls_ca=tls_ca, environ=os.environ)
    where = chosen.context
    directory = make_directory(
        where.name_server, timeout_ms=round(timeout * 1000), **client_settings(where)
    )
    driver = open_driver(directory.client)
    try:
        yield CommandCluster(where, directory, driver, as_json)
    except ConnectFailed as error:
        raise ConnectFailed(_why(error, chosen), address=error.address) from error
    finally:
        driver.close()


def _why(error: ConnectFailed, chosen: Chosen) -> str:
    if chosen.source == "the default":
        return (
            f"{error}; no address was given, so the default was used; `sparrowmq up` starts a "
            "cluster there, and --nameserver gives another"
        )
    return f"{error}; the address comes from {chosen.source}"


def on_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Pass a command a `CommandCluster` as its first argument, and give the command its options.

    Errors become one line on stderr and an exit code; see `reporting_errors`.
    """
    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]

    @functools.wraps(command)
    def connected(**arguments: Any) -> None:
        settings = {name: arguments.pop(name) for name, _, _ in CLUSTER_OPTIONS}
        with reporting_errors(), open_cluster(**settings) as cluster:
            command(cluster, **arguments)

    shared = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, annotation, default in CLUSTER_OPTIONS
    ]
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + shared
    del connected.__wrapped__
    connected.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    connected.__annotations__ = {each.name: each.annotation for each in parameters}
    return connected


@contextmanager
def naming_topic(cluster: CommandCluster, topic: str) -> Generator[None]:
    """Turn the error of an unknown topic into one that names the nearest topic.

    Raises: UsageError in place of TopicRouteNotFound.
    """
    try:
        yield
    except TopicRouteNotFound:
        nearest = find_nearest(topic, cluster.run(list_topics(cluster.directory)))
        hint = f"did you mean {nearest}? " if nearest else ""
        raise UsageError(
            f"there is no topic {topic!r} at {cluster.context.name_server}; {hint}"
            f"`sparrowmq topic ls` lists the topics, `sparrowmq topic create {topic}` makes it"
        ) from None
