"""`sparrowmq topic`: list, show, create, update and delete topics.

Tests: test_topics_and_groups.py.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sparrowmq.cli.cluster import TOPIC_COLUMNS, say_troubles, topic_row
from sparrowmq.cli.command_classes import make_group
from sparrowmq.cli.confirmation import Yes, arrow, carry_out
from sparrowmq.cli.connecting import (
    ClusterOption,
    CommandCluster,
    TopicName,
    naming_topic,
    on_cluster,
)
from sparrowmq.cli.exit_codes import say, say_missing
from sparrowmq.cli.output import OutputColumn, columns_of, make_console, print_json, print_rows
from sparrowmq.client.operations import administer, topics
from sparrowmq.client.operations.overview import take_overview
from sparrowmq.errors import UsageError
from sparrowmq.model.names import check_new_topic
from sparrowmq.words import count_of

topic = make_group("List, show, create, update and delete topics.")


@topic.command("ls")
@on_cluster
def list_topics(
    cluster: CommandCluster,
    every: Annotated[
        bool, typer.Option("--all", "-a", help="also show RocketMQ's internal topics")
    ] = False,
) -> None:
    """List topics, with their queues and the groups that read them."""
    seen = cluster.run(take_overview(cluster.directory))
    rows = [topic_row(t, None) for t in seen.topics if every or not t.is_internal]
    say_troubles(seen)
    if cluster.as_json:
        print_json(rows)
    else:
        columns = [column for column in TOPIC_COLUMNS if column.key != "in_per_s"]
        where = cluster.context.name_server
        print_rows(rows, columns, empty=f"there is no topic at {where}")


@topic.command("show")
@on_cluster
def show_topic(cluster: CommandCluster, name: TopicName) -> None:
    """Show a topic: its brokers, the offsets of each queue, and the groups that read it."""
    with naming_topic(cluster, name):
        status, failures = cluster.run(topics.look_at_topic(cluster.directory, name))
    say_missing(failures)
    brokers = [
        {
            "broker": place.broker_name,
            "addresses": {
                str(k): v for k, v in status.addresses.get(place.broker_name, {}).items()
            },
            "read_queues": place.read_queue_nums,
            "write_queues": place.write_queue_nums,
            "perm": topics.perm_name(place.perm),
        }
        for place in status.places
    ]
    queues = [
        {
            "broker": at.queue.broker_name,
            "queue": at.queue.queue_id,
            "min_offset": at.min_offset,
            "max_offset": at.max_offset,
            "messages": at.max_offset - at.min_offset,
            "last_timestamp_ms": at.last_timestamp_ms,
        }
        for at in status.queues
    ]
    if cluster.as_json:
        print_json(
            {
                "topic": status.topic,
                "brokers": brokers,
                "queues": queues,
                "groups": list(status.groups),
                "failures": {name: str(error) for name, error in failures.items()},
            }
        )
        return
    console = make_console()
    columns = (
        *columns_of("broker", "addresses", "read_queues", "write_queues"),
        OutputColumn("perm", optional=True),
    )
    print_rows(brokers, columns, title=status.topic, console=console)
    queue_columns = (
        OutputColumn("broker"),
        OutputColumn("queue"),
        OutputColumn("min_offset", "first", optional=True),
        OutputColumn("max_offset", "end"),
        OutputColumn("messages"),
        OutputColumn("last_timestamp_ms", "last message", optional=True),
    )
    print_rows(queues, queue_columns, title="Queues", console=console)
    print_rows(
        [{"group": g} for g in status.groups],
        columns_of("group"),
        title="Read by",
        console=console,
    )


@topic.command("create")
@on_cluster
def create_topic(
    cluster: CommandCluster,
    name: TopicName,
    queues: Annotated[int, typer.Option("--queues", "-q", min=1, help="queues at each broker")] = 8,
    cluster_name: Annotated[
        str | None,
        typer.Option("--cluster", help="create the topic only at the brokers of this cluster"),
    ] = None,
    message_type: Annotated[
        str | None,
        typer.Option(
            "--message-type",
            help="what clients of RocketMQ 5 may send: NORMAL (default), FIFO, DELAY, "
            "TRANSACTION or MIXED",
        ),
    ] = None,
) -> None:
    """Create a topic, and wait until clients can use it.

    \b
    Examples:
      sparrowmq topic create orders --queues 16
    """
    if check_new_topic(name) in cluster.run(topics.list_topics(cluster.directory)):
        raise UsageError(f"topic {name!r} exists already; `sparrowmq topic update` changes it")
    operation = administer.create_topic(
        cluster.directory,
        name,
        queues=queues,
        cluster=cluster_name,
        message_type=None if message_type is None else message_type.upper(),
    )
    route = cluster.run(operation)
    if cluster.as_json:
        print_json({"topic": name, "queues": len(route.publish_queues)})
    else:
        say(f"topic {name} has {count_of(len(route.publish_queues), 'queue')}")


@topic.command("update")
@on_cluster
def update_topic(
    cluster: CommandCluster,
    name: TopicName,
    queues: Annotated[
        int | None, typer.Option("--queues", "-q", min=1, help="queues to read and to write")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option("--read-queues", min=1, help="queues that consumers read")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option("--write-queues", min=1, help="queues that producers write to")
    ] = None,
    perm: Annotated[str | None, typer.Option("--perm", help="r, w, rw or none")] = None,
    cluster_name: ClusterOption = None,
    yes: Yes = False,
) -> None:
    """Change a topic's queues or permissions, at every broker that has it.

    To remove queues without losing messages, first lower --write-queues. Lower --read-queues only
    once the removed queues are consumed.

    \b
    Examples:
      sparrowmq topic update orders --queues 32 --yes
    """
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise UsageError("give --queues, or --read-queues and --write-queues")
    if queues is None and read_queues is None and write_queues is None and perm is None:
        raise UsageError(
            "nothing to change: give --queues, --read-queues, --write-queues or --perm"
        )
    operation = topics.plan_topic_update(
        cluster.directory,
        name,
        read_queues=queues or read_queues,
        write_queues=queues or write_queues,
        perm=None if perm is None else topics.parse_perm(perm),
        cluster=cluster_name,
    )
    with naming_topic(cluster, name):
        planned = [each for each in cluster.run(operation) if each[1] != each[2]]
    rows = [
        {
            "broker": broker.name,
            "read_queues": arrow(before.read_queue_nums, after.read_queue_nums),
            "write_queues": arrow(before.write_queue_nums, after.write_queue_nums),
            "perm": arrow(topics.perm_name(before.perm), topics.perm_name(after.perm)),
        }
        for broker, before, after in planned
    ]
    columns = columns_of("broker", "read_queues", "write_queues", "perm")
    if any(after.read_queue_nums < before.read_queue_nums for _, before, after in planned):
        say(
            "no member gets what its group has not consumed of the queues that are no longer read; "
            "lower --write-queues first, and --read-queues once they are consumed"
        )
    carry_out(
        cluster,
        rows,
        columns,
        is_confirmed=yes,
        apply=lambda: cluster.run(topics.update_topic(cluster.directory, planned)),
        done=f"topic {name} was changed",
        unchanged=f"every broker has these settings of topic {name}",
    )


@topic.command("delete")
@on_cluster
def delete_topic(
    cluster: CommandCluster, name: TopicName, cluster_name: ClusterOption = None, yes: Yes = False
) -> None:
    """Delete a topic at every broker and name server, with the offsets of its groups.

    \b
    Examples:
      sparrowmq topic delete orders          # shows what would be lost
      sparrowmq topic delete orders --yes
    """
    with naming_topic(cluster, name):
        plan = topics.plan_topic_deletion(cluster.directory, name, cluster=cluster_name)
        losses, groups = cluster.run(plan)
    rows = [
        {
            "topic": name,
            "broker": loss.broker_name,
            "queues": loss.queue_count,
            "messages": loss.message_count,
            "groups": list(groups),
        }
        for loss in losses
    ]
    of_cluster = "" if cluster_name is None else f" of cluster {cluster_name}"
    columns = columns_of("topic", "broker", "queues", "messages", "groups")
    carry_out(
        cluster,
        rows,
        columns,
        is_confirmed=yes,
        apply=lambda: cluster.run(
            administer.delete_topic(cluster.directory, name, cluster=cluster_name)
        ),
        done=f"topic {name} was deleted",
        unchanged=f"no broker{of_cluster} has topic {name}",
    )
