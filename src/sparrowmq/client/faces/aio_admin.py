"""The asyncio face of administration: each method awaits one operation on an asyncio driver.

The synchronous face, `blocking_admin.py`, is generated from this file by `make generate`.
Tests: client/test_admin.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Self, TypeVar, Unpack

from sparrowmq.client.directory import QueueLag
from sparrowmq.client.directory_setup import make_directory
from sparrowmq.client.faces.task_host import open_driver
from sparrowmq.client.faces.user_calls import for_administrators
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
from sparrowmq.model.names import check_new_topic
from sparrowmq.protocol.bodies import ConsumerConnection

T = TypeVar("T")


@for_administrators
class AsyncAdmin:
    """Administers topics, groups, offsets, brokers and accounts.

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

    async def __aenter__(self) -> Self:
        self._driver.check_usable()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        cluster: str | None = None,
        message_type: str | None = None,
    ) -> TopicRoute:
        """Create a topic at every master that does not have it; wait until clients can use it.

        A topic that a broker has stays as it is there; `update_topic` changes it.

        Args:
            queues: the number of queues on each broker.
            cluster: create the topic only at the brokers of this cluster; None for all.
            message_type: the type of the messages that clients of RocketMQ 5 may send: NORMAL,
                FIFO, DELAY, TRANSACTION or MIXED; None for NORMAL. Other clients send any.

        Raises: ConfigError for a bad name, and for one that RocketMQ itself uses.
        """
        operation = administer.create_topic(
            self._directory,
            check_new_topic(topic),
            queues=queues,
            cluster=cluster,
            message_type=message_type,
        )
        return await self._driver.run(operation)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic at every broker and name server."""
        await self._driver.run(administer.delete_topic(self._directory, topic))

    async def route(self, topic: str) -> TopicRoute:
        """Return a topic's route. Raises: TopicRouteNotFound."""
        return await self._driver.run(administer.show_route(self._directory, topic))

    async def list_topics(self) -> list[str]:
        """Return the topics that the name server knows, by name, RocketMQ's own included."""
        return await self._driver.run(topics.list_topics(self._directory))

    async def topic_status(self, topic: str) -> TopicStatus:
        """Return a topic's brokers, the offsets of each queue, and the groups that read it.

        Raises: TopicRouteNotFound.
        """
        return await self._driver.run(topics.topic_status(self._directory, topic))

    async def list_groups(self) -> list[str]:
        """Return the consumer groups that any broker knows, by name, without RocketMQ's own."""
        return await self._driver.run(groups.list_groups(self._directory))

    async def delete_group(self, group: str) -> None:
        """Delete a group at every broker: settings, offsets, retries and dead letters.

        Raises: UsageError for a group of RocketMQ's own.
        """
        await self._driver.run(groups.delete_group(self._directory, group))

    async def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: str | None = None,
        dry_run: bool = False,
    ) -> list[TopicChange]:
        """Change a topic at every broker that has it, and return its former and new settings there.

        Args:
            read_queues, write_queues: the number on each broker; None does not change it.
            perm: "rw", "r", "w" or "none"; None does not change it.
            dry_run: return the changes without making them.

        Raises: TopicRouteNotFound; ConfigError.
        """
        changes = await self._driver.run(
            topics.plan_topic_update(
                self._directory,
                topic,
                read_queues=read_queues,
                write_queues=write_queues,
                perm=None if perm is None else topics.parse_perm(perm),
            )
        )
        if not dry_run:
            await self._driver.run(topics.update_topic(self._directory, changes))
        return changes

    async def update_group(
        self,
        group: str,
        *,
        is_enabled: bool | None = None,
        max_reconsume_times: int | None = None,
        retry_queues: int | None = None,
        is_orderly: bool | None = None,
        dry_run: bool = False,
    ) -> list[GroupChange]:
        """Change a group's settings at every broker, and return the former and new settings there.

        A broker that does not know the group creates it.

        Args:
            is_enabled: whether brokers deliver messages to the group; None does not change it.
            max_reconsume_times: how often a failed message is delivered again before it becomes a
                dead letter.
            retry_queues: the number of queues of the retry topic at each broker.
            is_orderly: whether the group's clients of RocketMQ 5 consume in order.
            dry_run: return the changes without making them.

        Raises: ConfigError; UsageError for a group of RocketMQ's own, which may only be enabled.
        """
        changes = await self._driver.run(
            groups.plan_group_update(
                self._directory,
                group,
                is_enabled=is_enabled,
                max_reconsume_times=max_reconsume_times,
                retry_queues=retry_queues,
                is_orderly=is_orderly,
            )
        )
        if not dry_run:
            await self._driver.run(groups.update_group(self._directory, changes))
        return changes

    async def group_snapshot(self, group: str) -> GroupSnapshot:
        """Return the state of a group: its members, their queues and activity, its progress.

        `sparrowmq.doctor.diagnose` finds what is wrong in the snapshot. Raises: UsageError for a
        group that no broker knows.
        """
        return await self._driver.run(take_snapshot(self._directory, group))

    async def clone_offsets(self, group: str, to_group: str, topic: str) -> dict[MessageQueue, int]:
        """Copy a group's committed offsets of a topic to another group; return them by queue.

        Raises: UsageError if members of `to_group` are connected; TopicRouteNotFound.
        """
        return await self._driver.run(
            administer.clone_offsets(self._directory, group, to_group, topic)
        )

    async def list_brokers(self) -> list[BrokerAt]:
        """Return the brokers that name servers list, by name, each with its cluster and master."""
        directory = self._directory
        return await self._driver.run(
            find_brokers(directory.name_servers, timeout_ms=directory.timeout_ms)
        )

    async def broker_stats(self, broker: str) -> Mapping[str, str]:
        """Return a broker's own report of its state and counts, under RocketMQ's names.

        Args:
            broker: the broker's name or address.

        Raises: UsageError if there is no such broker.
        """
        at = await self._driver.run(brokers.find_broker(self._directory, broker))
        return await self._driver.run(brokers.runtime_info(self._directory, at))

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return a broker's settings, under RocketMQ's names. Raises: as `broker_stats`."""
        at = await self._driver.run(brokers.find_broker(self._directory, broker))
        return await self._driver.run(brokers.broker_config(self._directory, at))

    async def update_broker_config(self, broker: str, settings: Mapping[str, str]) -> None:
        """Change settings of a broker while it runs. Raises: as `broker_stats`; ConfigError."""
        at = await self._driver.run(brokers.find_broker(self._directory, broker))
        await self._driver.run(brokers.set_broker_config(self._directory, at, settings))

    async def set_broker_writable(self, broker: str, *, is_writable: bool) -> int:
        """Let producers send to a broker, or stop them; return the number of topics affected.

        Raises: as `broker_stats`.
        """
        at = await self._driver.run(brokers.find_broker(self._directory, broker))
        operation = brokers.set_write_permission(self._directory, at, is_writable=is_writable)
        return await self._driver.run(operation)

    async def list_accounts(self) -> list[BrokerAccount]:
        """Return the accounts of every broker, without secrets.

        Raises: BrokerError where access control is off.
        """
        return await self._driver.run(accounts.list_accounts(self._directory))

    async def put_account(
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
        """Create an account at every broker, or change the given fields of one.

        Args:
            secret_key: a new account needs one; Apache's brokers ask for it at every change.
            is_admin: whether the account may administer brokers.
            white_remote_address: the addresses that the account may connect from, such as
                `10.0.0.*`.
            default_topic_perm, default_group_perm: "DENY", "PUB", "SUB" or "PUB|SUB".
            topic_perms, group_perms: exceptions from these, such as `["orders=PUB|SUB"]`.
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
        await self._driver.run(accounts.put_account(self._directory, change))

    async def delete_account(self, access_key: str) -> None:
        """Delete an account at every broker."""
        await self._driver.run(accounts.delete_account(self._directory, access_key))

    async def overview(self) -> Overview:
        """Return brokers, topics and the lag of all groups, with at most 123 requests a broker.

        Members and dead letters are counted for the 12 groups that need attention first.
        `group_flows` and `topic_rates` of `sparrowmq.client.operations.overview` compute rates from
        two overviews.
        """
        return await self._driver.run(take_overview(self._directory))

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        timestamp_ms: int | None = None,
        offset: int | None = None,
        dry_run: bool = False,
    ) -> ResetPlan:
        """Move a group's offsets in a topic; brokers notify the connected members.

        Args:
            to: the oldest message of each queue, or its end.
            timestamp_ms: instead of `to`: the first message stored since this wall-clock time.
            offset: instead of `to`: this offset of each queue.
            dry_run: return the changes without making them.

        Raises: UsageError unless one of the three is given, or for an offset while members are
        connected; TopicRouteNotFound.
        """
        target = Target(
            is_earliest=to == "earliest",
            is_latest=to == "latest",
            timestamp_ms=timestamp_ms,
            offset=offset,
        )
        plan = await self._driver.run(plan_reset(self._directory, group, topic, target=target))
        if not dry_run:
            await self._driver.run(apply_reset(self._directory, plan))
        return plan

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        return await self._driver.run(administer.queue_max_offset(self._directory, queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        return await self._driver.run(administer.queue_min_offset(self._directory, queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end.

        RocketMQ 4's brokers answer with the message stored nearest to it, which may be older.

        Args:
            timestamp_ms: wall-clock milliseconds since 1970.
        """
        operation = administer.queue_offset_at(self._directory, queue, timestamp_ms=timestamp_ms)
        return await self._driver.run(operation)

    async def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's committed offset of a queue, or None.

        Apache's brokers answer 0 instead of nothing while the queue's first message is in memory.
        """
        return await self._driver.run(administer.committed_offset(self._directory, group, queue))

    async def update_committed_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set a group's committed offset; its members do not notice until they rebalance."""
        operation = administer.set_committed_offset(
            self._directory, group, queue=queue, offset=offset
        )
        await self._driver.run(operation)

    async def group_lag(self, group: str, topic: str) -> list[QueueLag]:
        """Return a group's offsets and lag in each queue of a topic, in queue order."""
        return await self._driver.run(administer.group_lag(self._directory, group, topic))

    async def consumer_ids(self, group: str) -> list[str]:
        """Return the group's client ids as a broker lists them, duplicates included."""
        return await self._driver.run(administer.consumer_ids(self._directory, group))

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return a group's connected members and its subscriptions."""
        return await self._driver.run(administer.group_connections(self._directory, group))

    async def query_message(
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
            key: a key of the messages, or the producer's message id (`MessageExt.msg_id`).
            count_max: the most messages from each broker, up to 64.
            begin_timestamp_ms: the earliest store time, in wall-clock milliseconds.
            end_timestamp_ms: the latest store time; None for no end.
        """
        operation = administer.query_message(
            self._directory,
            topic,
            key,
            count_max=count_max,
            begin_timestamp_ms=begin_timestamp_ms,
            end_timestamp_ms=end_timestamp_ms,
        )
        return await self._driver.run(operation)

    async def view_message(self, topic: str, msg_id: str) -> MessageExt | None:
        """Return the message with an id, None if no broker has it any more.

        Args:
            msg_id: the producer's message id, or `SendResult.offset_msg_id`.
        """
        return await self._driver.run(administer.view_message(self._directory, topic, msg_id))

    async def message_trace(self, msg_id: str) -> tuple[TraceStep, ...]:
        """Return the trace of a message by its producer and consumers, the oldest step first.

        Args:
            msg_id: the producer's message id.

        Returns: () if `trace` was off everywhere, or the trace is not stored yet.
        """
        return await self._driver.run(message_trace(self._directory, msg_id))

    async def messages_at(
        self, queue: MessageQueue, offset: int, count_max: int = 1
    ) -> list[MessageExt]:
        """Return messages of a queue from an offset on, [] if there are none.

        Args:
            count_max: the most messages to return, up to 10,000.
        """
        operation = browse.read_at(self._directory, queue, offset, count_max=count_max)
        return await self._driver.run(operation)

    async def messages_since(
        self, topic: str, timestamp_ms: int, count_max: int = 64
    ) -> list[MessageExt]:
        """Return a topic's messages stored at or after a wall-clock time, the oldest first.

        Args:
            count_max: the most messages to return, up to 10,000.

        Raises: TopicRouteNotFound.
        """
        operation = browse.read_since(self._directory, topic, timestamp_ms, count_max=count_max)
        return await self._driver.run(operation)

    async def dead_letters(self, group: str, count_max: int = 1_000) -> list[MessageExt]:
        """Return a group's newest dead letters that can be read, in the order of storing.

        Args:
            count_max: the most messages from each broker's queue, and in all.
        """
        return await self._driver.run(
            dead_letters.read_dead_letters(self._directory, group, count_max=count_max)
        )

    async def resend_dead_letters(
        self, group: str, messages: Sequence[MessageExt], *, by: str = ""
    ) -> int:
        """Send dead letters again, to their own group only, and return how many were sent.

        They are delivered as retries, and may fail as often as new messages; on RocketMQ 5 only
        once. They also stay among the dead letters: sent twice, they are delivered twice.

        Args:
            messages: as `dead_letters` returns them.
            by: who sends them, for the property `RESENT_BY` and the broker's record of changes.

        Raises: SendFailed if some were sent, which says how many, and names the others; if none
        was, its first error: UsageError for a message that is not a dead letter of the group.
        """
        return await self._driver.run(
            dead_letters.resend_dead_letters(self._directory, group, messages, by=by)
        )

    async def close(self) -> None:
        """Close the connections. A second call does nothing."""
        await self._driver.aclose()
