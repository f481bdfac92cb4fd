# Made of aio_admin.py by `make generate`; change that file.
"""The synchronous face of administration: each method runs one operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, TypeVar, Unpack

from sparrowmq.client.assembly import (
    make_directory,
)
from sparrowmq.client.directory import QueueLag
from sparrowmq.client.faces.thread_host import open_driver
from sparrowmq.client.operations import (
    accounts,
    administer,
    brokers,
    browse,
    dead_letters,
    groups,
    topics,
)
from sparrowmq.client.operations.accounts import AccountChange, BrokerAccount
from sparrowmq.client.operations.groups import GroupChange
from sparrowmq.client.operations.message_trace import TraceStep, message_trace
from sparrowmq.client.operations.overview import Overview, take_overview
from sparrowmq.client.operations.reset import ResetPlan, Target, apply_reset, plan_reset
from sparrowmq.client.operations.routes import BrokerAt, find_brokers
from sparrowmq.client.operations.snapshot import take_snapshot
from sparrowmq.client.operations.topics import TopicChange, TopicStatus
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.client.setting_types import AdminSettings
from sparrowmq.doctor import GroupSnapshot
from sparrowmq.model import (
    MessageExt,
    MessageQueue,
)
from sparrowmq.protocol.bodies import ConsumerConnection

T = TypeVar("T")


class Admin:
    """Looks after topics and groups.

    Args:
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        settings: see `AdminSettings`.

    Raises: ConfigError. Every method raises ConnectFailed if the name server does not answer,
    TransportError if a broker does not, BrokerError if one refuses.
    """

    def __init__(
        self, *, name_server: str | Sequence[str] | None = None, **settings: Unpack[AdminSettings]
    ) -> None:
        self._directory = make_directory(name_server, **settings)
        self._driver = open_driver(self._directory.client)

    def __repr__(self) -> str:
        addresses = ";".join(self._directory.name_servers.addresses)
        return f"<{type(self).__name__} of {addresses}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def create_topic(
        self, topic: str, queues: int = 8, *, cluster: str | None = None
    ) -> TopicRoute:
        """Create a topic at every master, or change its queues; wait until it can be used.

        Args:
            queues: how many it has on each broker.
            cluster: only the brokers of this cluster; None for all.
        """
        operation = administer.create_topic(self._directory, topic, queues=queues, cluster=cluster)
        return self._driver.run(operation)

    def delete_topic(self, topic: str) -> None:
        """Delete a topic at every broker and name server."""
        self._driver.run(administer.delete_topic(self._directory, topic))

    def route(self, topic: str) -> TopicRoute:
        """Return where a topic is served. Raises: TopicRouteNotFound."""
        return self._driver.run(administer.show_route(self._directory, topic))

    def list_topics(self) -> list[str]:
        """Return the topics that the name server knows, by name, RocketMQ's own included."""
        return self._driver.run(topics.list_topics(self._directory))

    def topic_status(self, topic: str) -> TopicStatus:
        """Return a topic's brokers, what each queue holds, and who reads it.

        Raises: TopicRouteNotFound.
        """
        return self._driver.run(topics.topic_status(self._directory, topic))

    def list_groups(self) -> list[str]:
        """Return the consumer groups that any broker knows, by name, without RocketMQ's own."""
        return self._driver.run(groups.list_groups(self._directory))

    def delete_group(self, group: str) -> None:
        """Delete a group at every broker: settings, offsets, retries and dead letters."""
        self._driver.run(groups.delete_group(self._directory, group))

    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: str | None = None,
        dry_run: bool = False,
    ) -> list[TopicChange]:
        """Change a topic at every broker that has it, and return what it was and is there.

        Args:
            read_queues, write_queues: how many each broker has; None leaves them.
            perm: "rw", "r", "w" or "none"; None leaves it.
            dry_run: only say what would change.

        Raises: TopicRouteNotFound; ConfigError.
        """
        changes = self._driver.run(
            topics.plan_topic_update(
                self._directory,
                topic,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=None if perm is None else topics.parse_perm(perm),
            )
        )
        if not dry_run:
            self._driver.run(topics.update_topic(self._directory, changes))
        return changes

    def update_group(
        self,
        group: str,
        *,
        is_enabled: bool | None = None,
        max_reconsume_times: int | None = None,
        retry_queues: int | None = None,
        dry_run: bool = False,
    ) -> list[GroupChange]:
        """Change a group's settings at every broker, and return what they were and are there.

        A group that a broker does not know is made.

        Args:
            is_enabled: whether brokers give messages to the group; None leaves it.
            max_reconsume_times: how often a failed message comes again before it is a dead letter.
            retry_queues: how many queues the retry topic has at each broker.
            dry_run: only say what would change.

        Raises: ConfigError.
        """
        changes = self._driver.run(
            groups.plan_group_update(
                self._directory,
                group,
                is_enabled=is_enabled,
                max_reconsume_times=max_reconsume_times,
                retry_queues=retry_queues,
            )
        )
        if not dry_run:
            self._driver.run(groups.update_group(self._directory, changes))
        return changes

    def group_snapshot(self, group: str) -> GroupSnapshot:
        """Return all that can be seen of a group: members, what each holds and does, progress.

        `sparrowmq.doctor.diagnose` finds what is wrong in it. Raises: UsageError for a group that
        no broker knows.
        """
        return self._driver.run(take_snapshot(self._directory, group))

    def clone_offsets(self, group: str, to_group: str, topic: str) -> dict[MessageQueue, int]:
        """Commit for a group what another has committed of a topic; return that, by queue.

        Raises: UsageError if members of that group are connected; TopicRouteNotFound.
        """
        return self._driver.run(administer.clone_offsets(self._directory, group, to_group, topic))

    def list_brokers(self) -> list[BrokerAt]:
        """Return the brokers that name servers know, by name, each with its cluster and master."""
        directory = self._directory
        return self._driver.run(
            find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
        )

    def broker_stats(self, broker: str) -> Mapping[str, str]:
        """Return what a broker says of itself and has done, under RocketMQ's names.

        Args:
            broker: its name, or its address.

        Raises: UsageError if there is none.
        """
        at = self._driver.run(brokers.find_broker(self._directory, broker))
        return self._driver.run(brokers.runtime_info(self._directory, at))

    def broker_config(self, broker: str) -> dict[str, str]:
        """Return a broker's settings, under RocketMQ's names. Raises: as `broker_stats`."""
        at = self._driver.run(brokers.find_broker(self._directory, broker))
        return self._driver.run(brokers.broker_config(self._directory, at))

    def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs. Raises: as `broker_stats`; ConfigError."""
        at = self._driver.run(brokers.find_broker(self._directory, broker))
        self._driver.run(brokers.set_broker_config(self._directory, at, settings))

    def set_broker_writable(self, broker: str, *, is_writable: bool) -> int:
        """Have producers send to a broker, or leave it; return how many topics that concerns.

        Raises: as `broker_stats`.
        """
        at = self._driver.run(brokers.find_broker(self._directory, broker))
        change = brokers.add_write_permission if is_writable else brokers.wipe_write_permission
        return self._driver.run(change(self._directory, at))

    def list_accounts(self) -> list[BrokerAccount]:
        """Return the accounts of every broker, without secrets.

        Raises: BrokerError where access control is off.
        """
        return self._driver.run(accounts.list_accounts(self._directory))

    def put_account(
        self,
        access_key: str,
        *,
        secret_key: str | None = None,
        is_admin: bool | None = None,
        white_remote_address: str | None = None,
        default_topic_perm: str | None = None,
        default_group_perm: str | None = None,
        topic_perms: Sequence[str] | None = None,
        group_perms: Sequence[str] | None = None,
    ) -> None:
        """Make an account at every broker, or change what is given of it.

        Args:
            secret_key: a new account needs one; Apache's brokers ask for it at every change.
            is_admin: whether it may change everything.
            white_remote_address: the addresses it may come from, such as `10.0.0.*`.
            default_topic_perm, default_group_perm: "DENY", "PUB", "SUB" or "PUB|SUB".
            topic_perms, group_perms: what differs from these, such as `["orders=PUB|SUB"]`.
        """
        change = AccountChange(
            access_key=access_key,
            secret_key=secret_key,
            admin=is_admin,
            white_remote_address=white_remote_address,
            default_topic_perm=default_topic_perm,
            default_group_perm=default_group_perm,
            topic_perms=None if topic_perms is None else ",".join(topic_perms),
            group_perms=None if group_perms is None else ",".join(group_perms),
        )
        self._driver.run(accounts.put_account(self._directory, change))

    def delete_account(self, access_key: str) -> None:
        """Delete an account at every broker."""
        self._driver.run(accounts.delete_account(self._directory, access_key))

    def overview(self) -> Overview:
        """Return brokers, topics and the lag of all groups, with at most 15 requests a broker.

        Members are counted for the 12 groups that need attention first. `group_flows` and
        `topic_rates` of `sparrowmq.client.operations.overview` computes rates from two of them.
        """
        return self._driver.run(take_overview(self._directory))

    def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        timestamp_ms: int | None = None,
        offset: int | None = None,
        dry_run: bool = False,
    ) -> ResetPlan:
        """Move a group in a topic; brokers notify the members that are connected.

        Args:
            to: the oldest message of each queue, or its end.
            timestamp_ms: or the message stored nearest to this wall-clock time.
            offset: or this offset of each queue.
            dry_run: only say what would change.

        Raises: UsageError unless one of the three is given, or for an offset while members are
        connected; TopicRouteNotFound.
        """
        target = Target(
            is_earliest=to == "earliest",
            is_latest=to == "latest",
            timestamp_ms=timestamp_ms,
            offset=offset,
        )
        plan = self._driver.run(plan_reset(self._directory, group, topic, target=target))
        if not dry_run:
            self._driver.run(apply_reset(self._directory, plan))
        return plan

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        return self._driver.run(administer.queue_max_offset(self._directory, queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that the queue still has."""
        return self._driver.run(administer.queue_min_offset(self._directory, queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the message stored nearest to a wall-clock time.

        The message may be older than the time. RocketMQ 5's brokers answer with the first one that
        is not.
        """
        operation = administer.queue_offset_at(self._directory, queue, timestamp_ms=timestamp_ms)
        return self._driver.run(operation)

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return what a group has committed for a queue, or None.

        Apache's brokers say 0 instead of nothing while the queue's first message is in memory.
        """
        return self._driver.run(administer.committed_offset(self._directory, group, queue))

    def update_committed_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set what a group has committed; its members do not notice until they rebalance."""
        operation = administer.set_committed_offset(
            self._directory, group, queue=queue, offset=offset
        )
        self._driver.run(operation)

    def group_lag(self, group: str, topic: str) -> list[QueueLag]:
        """Return how far a group is in each queue of a topic, in queue order."""
        return self._driver.run(administer.group_lag(self._directory, group, topic))

    def consumer_ids(self, group: str) -> list[str]:
        """Return the group's client ids as a broker lists them, duplicates included."""
        return self._driver.run(administer.consumer_ids(self._directory, group))

    def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return who is connected for a group, and what the group subscribes to."""
        return self._driver.run(administer.group_connections(self._directory, group))

    def query_message(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_timestamp_ms: int = 0,
        end_timestamp_ms: int | None = None,
    ) -> list[MessageExt]:
        """Return the latest messages of a topic that have a key or an id, in the order of storing.

        Args:
            key: one of a message's keys, or the id that its producer gave (`MessageExt.msg_id`).
            count_max: the most of each broker; 64 is the most that brokers return.
            begin_timestamp_ms: the earliest store time, in wall-clock milliseconds.
            end_timestamp_ms: the latest; None for no end.
        """
        operation = administer.query_message(
            self._directory,
            topic,
            key,
            count_max=count_max,
            begin_timestamp_ms=begin_timestamp_ms,
            end_timestamp_ms=end_timestamp_ms,
        )
        return self._driver.run(operation)

    def view_message(self, topic: str, msg_id: str) -> MessageExt | None:
        """Return the message of an id, None if no broker has it any more.

        Args:
            msg_id: the id that its producer gave, or `SendResult.offset_msg_id`.
        """
        return self._driver.run(administer.view_message(self._directory, topic, msg_id))

    def message_trace(self, msg_id: str) -> tuple[TraceStep, ...]:
        """Return a message's way as its producer and consumers traced it, oldest first.

        Args:
            msg_id: the id that its producer gave.

        Returns: () where nobody had `trace` on, or it is not written yet.
        """
        return self._driver.run(message_trace(self._directory, msg_id))

    def messages_at(self, queue: MessageQueue, offset: int, count_max: int = 1) -> list[MessageExt]:
        """Return messages of a queue from an offset on, [] if it has none there.

        Args:
            count_max: the most, up to 10,000.
        """
        operation = browse.read_at(self._directory, queue, offset, count_max=count_max)
        return self._driver.run(operation)

    def messages_since(
        self, topic: str, timestamp_ms: int, count_max: int = 64
    ) -> list[MessageExt]:
        """Return a topic's messages stored at or after a wall-clock time, the oldest first.

        Args:
            count_max: the most, up to 10,000.

        Raises: TopicRouteNotFound.
        """
        operation = browse.read_since(self._directory, topic, timestamp_ms, count_max=count_max)
        return self._driver.run(operation)

    def dead_letters(self, group: str, count_max: int = 1_000) -> list[MessageExt]:
        """Return a group's newest dead letters that can be read, in the order of storing.

        Args:
            count_max: the most of each broker's queue, and of all together.
        """
        return self._driver.run(
            dead_letters.read_dead_letters(self._directory, group, count_max=count_max)
        )

    def resend_dead_letters(self, group: str, messages: Sequence[MessageExt]) -> int:
        """Send dead letters to their group again, and return how many; no other group gets them.

        They come as retries, and may fail as often as new messages; on RocketMQ 5 once. They also
        stay among the dead letters: sent twice, they are delivered twice.

        Args:
            messages: as `dead_letters` returns them.

        Raises: UsageError for a message that is no dead letter of the group.
        """
        return self._driver.run(dead_letters.resend_dead_letters(self._directory, group, messages))

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._driver.close()
