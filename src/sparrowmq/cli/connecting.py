"""The connection of subcommands that look at a cluster: its options and their effect.

A command takes a `CommandCluster` as its first parameter and is decorated by `on_cluster`, which
replaces that parameter by the options of every such command: `--nameserver`, `--context`,
`--tls-ca`, `--timeout` and `--json`. Tests: test_brokers_and_contexts.py.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

from sparrowmq.calling.blocking_driver import BlockingDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.calling.tls import client_context
from sparrowmq.cli.contexts import Chosen, Context, choose_context
from sparrowmq.cli.exit_codes import reporting_errors
from sparrowmq.cli.option_sets import declare, options_of, parameters_of, take, with_option_sets
from sparrowmq.client.directory import Directory
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.operations.groups import look_at_groups
from sparrowmq.client.operations.routes import find_all_brokers, find_masters
from sparrowmq.client.operations.topics import list_topics
from sparrowmq.errors import (
    ConnectFailed,
    SparrowError,
    TopicRouteNotFound,
    UsageError,
    did_you_mean,
)
from sparrowmq.model.names import is_system_topic
from sparrowmq.model.plain_text import write_argument

T = TypeVar("T")

NameServer = Annotated[
    str | None,
    typer.Option("--nameserver", "-n", help="host:port of name servers, separated by ';'"),
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
            given = {name: ctx.params.get(name) for name in ("nameserver", "context", "tls_ca")}
            where = ConnectionOptions(**given, timeout=COMPLETION_TIMEOUT_S)
            with open_cluster(where) as cluster:
                names = cluster.run(list_names(cluster.directory))
        except SparrowError:
            return []
        # The topics of retries and dead letters are only offered to who begins to type one.
        return [
            name
            for name in names
            if name.startswith(incomplete)
            and not is_system_topic(name)
            and (incomplete.startswith("%") or not name.startswith("%"))
        ]

    return complete


def _list_groups(directory: Directory) -> Operation[list[str]]:
    """Return the groups that brokers name, also while others are silent."""
    found, _ = yield from look_at_groups(directory)
    return found


complete_topic, complete_group = complete_from(list_topics), complete_from(_list_groups)

TopicName = Annotated[
    str, typer.Argument(metavar="TOPIC", help="the topic", autocompletion=complete_topic)
]
TopicOption = Annotated[
    str, typer.Option("--topic", "-t", help="the topic", autocompletion=complete_topic)
]
OneTopicOption = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        help="the topic, needed if the group reads several",
        autocompletion=complete_topic,
    ),
]
QueueOption = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", help="only this queue, as BROKER:ID, such as broker-a:3; may be repeated"
    ),
]
SamplesInterval = Annotated[
    float,
    typer.Option(
        "--interval",
        min=0.0,
        max=600.0,
        help="seconds between the two samples from which rates are computed",
    ),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        "-g",
        help="only this group; may be repeated",
        autocompletion=complete_group,
    ),
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="only at the brokers of this cluster")
]
GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="the consumer group", autocompletion=complete_group)
]


class ConnectionOptions(NamedTuple):
    """The options that say which cluster a command looks at."""

    nameserver: NameServer = None
    context: Annotated[
        str | None,
        typer.Option(
            "--context", "-c", help="the name of a cluster, as `sparrowmq context ls` lists it"
        ),
    ] = None
    tls_ca: TlsCa = None
    timeout: Timeout = 3.0

    def written(self) -> tuple[str, ...]:
        """Return the options as given."""
        given = (
            ("--nameserver", self.nameserver),
            ("--context", self.context),
            ("--tls-ca", self.tls_ca),
        )
        return tuple(word for name, value in given if value for word in (name, value))

    def choose(self) -> Chosen:
        """Return the chosen context. Raises: ConfigError."""
        return choose_context(
            name_server=self.nameserver, name=self.context, tls_ca=self.tls_ca, environ=os.environ
        )


class _Output(NamedTuple):
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class CommandCluster:
    """The cluster of a command.

    Args:
        context: the cluster's address and credentials. directory, driver: run the operations.
        as_json: whether the command is to print JSON.
        options: the options by which another command reaches the same cluster.
    """

    context: Context
    directory: Directory
    driver: BlockingDriver
    as_json: bool
    options: tuple[str, ...] = ()

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
def open_cluster(connection: ConnectionOptions, as_json: bool = False) -> Generator[CommandCluster]:
    """Connect by the options, and close the connections at the end.

    Raises: ConfigError; ConnectFailed, which then says where the address came from.
    """
    chosen = connection.choose()
    where = chosen.context
    directory = make_directory(
        where.name_server, timeout_ms=round(connection.timeout * 1000), **client_settings(where)
    )
    driver = BlockingDriver(tls=directory.client.tls, credentials=directory.client.credentials)
    try:
        yield CommandCluster(where, directory, driver, as_json, connection.written())
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
    command = with_option_sets(command)
    cluster_parameter, *own = parameters_of(command)

    def start(**given: Any) -> None:
        connection = take(ConnectionOptions, given)
        with reporting_errors(), open_cluster(connection, *take(_Output, given)) as cluster:
            command(**{cluster_parameter.name: cluster}, **given)

    return declare(start, command, [*own, *options_of(ConnectionOptions), *options_of(_Output)])


def find_broker_names(cluster: CommandCluster, name: str | None) -> set[str]:
    """Return the brokers of one of the clusters, or of all, for a change at each of them.

    Raises: UsageError for another name; RouteError if a broker has no master.
    """
    found = cluster.run(find_masters(cluster.directory, cluster=name))
    return {broker.name for broker in found}


@contextmanager
def naming_topic(cluster: CommandCluster, topic: str) -> Generator[None]:
    """Turn the error of an unknown topic into one that names the nearest topic.

    Raises: UsageError in place of TopicRouteNotFound; RouteError if no broker is known.
    """
    try:
        yield
    except TopicRouteNotFound:
        # Name servers forget the topics of brokers that are gone.
        directory = cluster.directory
        cluster.run(find_all_brokers(directory.name_servers, timeout_ms=directory.timeout_ms))
        create = f"sparrowmq topic create {write_argument(topic)}"
        then = f"`sparrowmq topic ls` lists the topics, `{create}` makes it"
        hint = did_you_mean(topic, cluster.run(list_topics(cluster.directory)), then)
        raise UsageError(
            f"there is no topic {topic!r} at {cluster.context.name_server}{hint}"
        ) from None
