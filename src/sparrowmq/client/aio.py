"""The asyncio face: each method awaits one operation on an asyncio driver, and nothing more.

The methods are those of the synchronous face (`sparrowmq.client.blocking`), where each is
described with its errors. Sends that are awaited at the same time overlap on one connection. A
listener is a coroutine function, which runs on the loop, or a plain function, which runs in a
thread.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sparrowmq.calling.async_driver import AsyncDriver
from sparrowmq.calling.effects import Operation
from sparrowmq.client.assembly import (
    LEAVE_TIMEOUT_MS,
    add_subscription,
    make_directory,
    make_publisher,
    make_subscriber,
    make_subscription,
    remove_subscription,
    resume,
    suspend,
)
from sparrowmq.client.directory import QueueLag
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.member_task import MemberTask, loop_scope
from sparrowmq.client.operations import administer, send
from sparrowmq.client.operations import trace as trace_of
from sparrowmq.client.operations.consume import consume
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.client.subscriber import (
    AsyncListener,
    AsyncOrderlyListener,
    AsyncRebalanceListener,
    ConsumeCounters,
    RebalanceCallbacks,
)
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.membership.client_id import ClientIdRule
from sparrowmq.model import (
    CompressionType,
    ConsumeFromWhere,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    SendResult,
    UnreadablePolicy,
)
from sparrowmq.protocol.bodies import ConsumerConnection
from sparrowmq.strategies.registry import StrategyChoice

T = TypeVar("T")


class AsyncProducer:
    """Sends messages; see `sparrowmq.Producer`."""

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        client_ip: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        client_id_rule: ClientIdRule = ClientIdRule.V4_9,
        namespace: str | None = None,
        trace: bool = False,
        tls: ssl.SSLContext | None = None,
        send_timeout_ms: int = 3_000,
        retry_times: int = 2,
        compress_bytes_min: int = 4096,
        compress_type: CompressionType = CompressionType.ZLIB,
        compress_level: int = 5,
    ) -> None:
        self._publisher = make_publisher(
            group,
            name_server=name_server,
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            client_id_rule=client_id_rule,
            namespace=namespace,
            trace=trace,
            send_timeout_ms=send_timeout_ms,
            retry_times=retry_times,
            compress_bytes_min=compress_bytes_min,
            compress_type=compress_type,
            compress_level=compress_level,
        )
        config = self._publisher.config
        self._instance = INSTANCES.open(
            AsyncDriver,
            config.client_id,
            addresses=self._publisher.name_servers.addresses,
            scope=loop_scope(),
            tls=tls,
        )
        self._driver = self._instance.driver
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """How brokers name this producer."""
        return self._publisher.config.client_id

    async def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message and return where it was stored."""
        return await self._run(trace_of.send_traced(self._publisher, message, queue=queue))

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic as one request; they are stored one after another."""
        return await self._run(trace_of.send_batch_traced(self._publisher, messages, queue=queue))

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Write a message to the connection and hear nothing of it: it may be lost."""
        await self._run(send.send_oneway(self._publisher, message, queue=queue))

    async def fetch_publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that take messages of a topic, in round robin's order."""
        return await self._run(send.fetch_publish_queues(self._publisher, topic))

    async def select_queue(self, message: Message) -> MessageQueue:
        """Return the queue that `send` would choose; round robin moves on."""
        return await self._run(send.select_queue(self._publisher, message))

    async def _run(self, operation: Operation[T]) -> T:
        if self._is_closed:
            # The driver may live on, of other clients of the same id.
            raise UsageError(f"producer {self.client_id} is closed; make a new one")
        return await self._driver.run(operation)

    async def close(self) -> None:
        """Tell the brokers and close the connections. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_MS / 1000):
                await self._driver.run(send.leave(self._publisher))
            await self._driver.run(trace_of.finish(self._publisher.tracer))
        except (SparrowError, TimeoutError):
            # Brokers notice the closed connection anyway.
            pass
        finally:
            if INSTANCES.close(self._instance):
                await self._driver.aclose()


class AsyncPushConsumer:
    """A member of a consumer group, whose listener is called; see `sparrowmq.PushConsumer`."""

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        listener: AsyncListener | AsyncOrderlyListener,
        orderly: bool = False,
        strategy: StrategyChoice = "AVG",
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        local_offset_dir: Path | str | None = None,
        pull_batch_size: int = 32,
        consume_message_batch_max_size: int = 1,
        consume_thread_count: int = 20,
        max_reconsume_times: int | None = None,
        unreadable_policy: UnreadablePolicy = UnreadablePolicy.STOP,
        consume_timeout_ms: int = 15 * 60 * 1000,
        drain_timeout_ms: int = 10_000,
        client_ip: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        client_id_rule: ClientIdRule = ClientIdRule.V4_9,
        namespace: str | None = None,
        trace: bool = False,
        tls: ssl.SSLContext | None = None,
        on_assign: AsyncRebalanceListener | None = None,
        on_revoke: AsyncRebalanceListener | None = None,
        on_lost: AsyncRebalanceListener | None = None,
    ) -> None:
        self._subscriber = make_subscriber(
            group,
            name_server=name_server,
            listener=listener,
            orderly=orderly,
            strategy=strategy,
            consume_from_where=consume_from_where,
            consume_timestamp_ms=consume_timestamp_ms,
            message_model=message_model,
            local_offset_dir=local_offset_dir,
            pull_batch_size=pull_batch_size,
            consume_message_batch_max_size=consume_message_batch_max_size,
            consume_thread_count=consume_thread_count,
            max_reconsume_times=max_reconsume_times,
            unreadable_policy=unreadable_policy,
            consume_timeout_ms=consume_timeout_ms,
            drain_timeout_ms=drain_timeout_ms,
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            client_id_rule=client_id_rule,
            namespace=namespace,
            trace=trace,
            callbacks=RebalanceCallbacks(on_assign, on_revoke, on_lost),
            is_async=True,
        )
        self._member = MemberTask(
            self._subscriber,
            partial(consume, self._subscriber),
            # One more than listeners, so that slow ones do not hold up the callbacks.
            pool_size=consume_thread_count + 1,
            tls=tls,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """How the members of the group name this one."""
        return self._subscriber.config.client_id

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._subscriber.user_group

    @property
    def counters(self) -> ConsumeCounters:
        """What this consumer has done so far."""
        return self._subscriber.counters

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Consume a topic, before or after the start; `*`, or tags: `TagA || TagB`."""
        subscription = make_subscription(self._subscriber, topic, expression)
        self._member.call(partial(add_subscription, self._subscriber, subscription))

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are drained and committed."""
        self._member.call(partial(remove_subscription, self._subscriber, topic))

    async def start(self) -> None:
        """Join the group, in a task of its own. It goes on until `close`, whatever fails."""
        self._member.start()

    async def suspend(self) -> None:
        """Begin no pull and no call of the listener until `resume`; the queues stay ours."""
        self._member.call(partial(suspend, self._subscriber))

    async def resume(self) -> None:
        """Go on after `suspend`."""
        self._member.call(partial(resume, self._subscriber))

    def assignment(self) -> list[MessageQueue]:
        """Return this member's share, in order, without queues of the retry topic.

        A queue belongs to it from the rebalance that gave it; `on_assign` tells when consumption
        begins, after its lock and start position were asked for.
        """
        return self._subscriber.user_queues(self._subscriber.member.assigned)

    async def close(self) -> None:
        """Leave the group: drain, commit, tell the brokers, close. A second call does nothing."""
        await self._member.close()


class AsyncAdmin:
    """Looks after topics and groups; see `sparrowmq.Admin`."""

    def __init__(
        self,
        *,
        name_server: str | Sequence[str],
        timeout_ms: int = 3_000,
        namespace: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._directory = make_directory(name_server, timeout_ms=timeout_ms, namespace=namespace)
        self._driver = AsyncDriver(tls=tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def create_topic(
        self, topic: str, queues: int = 8, *, cluster: str | None = None
    ) -> TopicRoute:
        """Create a topic at every master, or change its queues; wait until it can be used."""
        operation = administer.create_topic(self._directory, topic, queues=queues, cluster=cluster)
        return await self._driver.run(operation)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic at every broker and name server."""
        await self._driver.run(administer.delete_topic(self._directory, topic))

    async def route(self, topic: str) -> TopicRoute:
        """Return where a topic is served."""
        return await self._driver.run(administer.show_route(self._directory, topic))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        return await self._driver.run(administer.queue_max_offset(self._directory, queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that the queue still has."""
        return await self._driver.run(administer.queue_min_offset(self._directory, queue))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a wall-clock time."""
        operation = administer.queue_offset_at(self._directory, queue, timestamp_ms=timestamp_ms)
        return await self._driver.run(operation)

    async def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return what a group has committed for a queue, or None."""
        return await self._driver.run(administer.committed_offset(self._directory, group, queue))

    async def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Set what a group has committed; its members do not notice until they rebalance."""
        operation = administer.set_committed_offset(
            self._directory, group, queue=queue, offset=offset
        )
        await self._driver.run(operation)

    async def group_lag(self, group: str, topic: str) -> list[QueueLag]:
        """Return how far a group is in each queue of a topic, in queue order."""
        return await self._driver.run(administer.group_lag(self._directory, group, topic))

    async def consumer_ids(self, group: str) -> list[str]:
        """Return the group's client ids as a broker lists them, duplicates included."""
        return await self._driver.run(administer.consumer_ids(self._directory, group))

    async def consumer_connections(self, group: str) -> ConsumerConnection:
        """Return who is connected for a group, and what the group subscribes to."""
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
        """Return the latest messages of a topic that have a key or an id; see `Admin`."""
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
        """Return the message of an id, None if no broker has it any more."""
        return await self._driver.run(administer.view_message(self._directory, topic, msg_id))

    async def close(self) -> None:
        """Close the connections. A second call does nothing."""
        await self._driver.aclose()
