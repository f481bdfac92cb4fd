"""`sparrowmq broker`: run a broker; its subcommands look at the brokers of a cluster.

Tests: test_brokers_and_contexts.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from sparrowmq.broker.config import BrokerConfig
from sparrowmq.broker.processors.status import change_settings
from sparrowmq.cli.cluster import BROKER_COLUMNS, broker_row
from sparrowmq.cli.confirmation import Yes, arrow, carry_out
from sparrowmq.cli.connecting import CommandCluster, on_cluster
from sparrowmq.cli.exit_codes import say
from sparrowmq.cli.option_sets import parse_pairs
from sparrowmq.cli.output import Json, columns_of, print_json, print_rows
from sparrowmq.cli.up import broker
from sparrowmq.client.operations import brokers
from sparrowmq.client.operations.overview import take_overview
from sparrowmq.client.operations.routes import check_masters
from sparrowmq.errors import UsageError
from sparrowmq.serving.requests import Refusal

__all__ = ["broker"]

BrokerName = Annotated[str, typer.Argument(metavar="BROKER", help="the broker's name or host:port")]


@broker.command("ls")
@on_cluster
def list_brokers(cluster: CommandCluster) -> None:
    """List the brokers, with the messages that each stores and delivers a second."""
    seen = cluster.run(take_overview(cluster.directory))
    rows = [broker_row(each) for each in seen.brokers]
    for each in seen.brokers:
        if each.failure:
            say(f"{each.name}: {each.failure}")
    if cluster.as_json:
        print_json(rows)
    else:
        print_rows(rows, BROKER_COLUMNS, empty="no broker is registered")


@broker.command("show")
@on_cluster
def show_broker(cluster: CommandCluster, name: BrokerName) -> None:
    """Show a broker's own report, under RocketMQ's names."""
    at = cluster.run(brokers.find_broker(cluster.directory, name))
    _print_table(cluster, dict(cluster.run(brokers.runtime_info(cluster.directory, at))))


@broker.command("config")
@on_cluster
def show_config(
    cluster: CommandCluster,
    name: BrokerName,
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="settings to change")
    ] = None,
    yes: Yes = False,
) -> None:
    """Show a broker's settings, or change some of them while the broker runs.

    SparrowMQ's brokers change only some settings over the network, and only until they stop; their
    refusal of another names these.

    \b
    Examples:
      sparrowmq broker config broker-a
      sparrowmq broker config broker-a fileReservedTime=48 --yes
    """
    at = cluster.run(brokers.find_broker(cluster.directory, name))
    known = cluster.run(brokers.broker_config(cluster.directory, at))
    if not changes:
        _print_table(cluster, known)
        return
    wanted = parse_pairs("the change", changes)
    check_masters([at])
    check_config(known, wanted)
    rows: list[Json] = [
        {"setting": setting, "value": arrow(known.get(setting), value)}
        for setting, value in wanted.items()
        if known.get(setting) != value
    ]
    carry_out(
        cluster,
        rows,
        columns_of("setting", "value"),
        is_confirmed=yes,
        apply=lambda: cluster.run(brokers.set_broker_config(cluster.directory, at, wanted)),
        done=f"{at.name} was changed",
        unchanged=f"{at.name} has these values",
    )


def check_config(known: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise a UsageError for settings that the broker would refuse or, if Apache's, pass over."""
    if not brokers.lists_all_settings(known):
        try:
            change_settings(BrokerConfig(), wanted)
        except Refusal as error:
            raise UsageError(error.remark) from None
    brokers.check_setting_names(known, wanted)


@broker.command("drain")
@on_cluster
def drain_broker(
    cluster: CommandCluster,
    name: BrokerName,
    undo: Annotated[
        bool, typer.Option("--undo", help="let producers send to the broker again")
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop producers from sending to a broker. Stop the broker once its messages are consumed.

    \b
    Examples:
      sparrowmq broker drain broker-a --yes
      sparrowmq broker drain broker-a --undo --yes
    """
    at = cluster.run(brokers.find_broker(cluster.directory, name))
    takes = cluster.run(brokers.takes_messages(cluster.directory, at))
    operation = brokers.set_write_permission(cluster.directory, at, is_writable=undo)
    carry_out(
        cluster,
        [{"broker": at.name, "address": at.address, "takes_messages": arrow(takes, undo)}],
        columns_of("broker", "address", "takes_messages"),
        is_confirmed=yes,
        apply=lambda: say(f"{cluster.run(operation):,} topics"),
        done=f"producers {'come back to' if undo else 'leave'} {at.name} within 30 s",
    )


def _print_table(cluster: CommandCluster, table: dict[str, str]) -> None:
    if cluster.as_json:
        print_json(table)
        return
    rows = [{"name": name, "value": table[name]} for name in sorted(table)]
    print_rows(rows, columns_of("name", "value"))
