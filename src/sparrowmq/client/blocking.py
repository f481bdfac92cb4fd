"""The synchronous face: each method runs one operation on a blocking driver, and nothing more.

`Producer` and `Admin` have no thread of their own: the calling thread does the I/O, and threads
that share one overlap on the same connections. A `PushConsumer` has one thread for its I/O, and
its listener runs in a bounded pool.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from sparrowmq.calling.blocking_driver import BlockingDriver
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
from sparrowmq.client.member_thread import SCOPE, MemberThread
from sparrowmq.client.operations import administer, send
from sparrowmq.client.operations import trace as trace_of
from sparrowmq.client.operations.consume import consume
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.client.subscriber import (
    ConsumeCounters,
    Listener,
    OrderlyListener,
    RebalanceCallbacks,
    RebalanceListener,
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


class Producer:
    """Sends messages. Threads may share one.

    Args:
        group: the producer group.
        name_server: `host:port`, several separated by ';', or a list of them.
        client_ip: the address in the client id; None finds this machine's.
        instance_name: the instance in the client id; None makes one that is unique.
        unit_name: the unit in the client id.
        client_id_rule: whose rules make what is not given of the client id; V4_7 repeats ids in
            containers that share an address, to show what comes of it.
        namespace: a prefix that keeps topics and groups apart from those of others, on the wire:
            `ns%orders`; None for none.
        trace: tell of each message to the topic RMQ_SYS_TRACE_TOPIC, as Java's clients do: beside
            the traffic, and what finds no room or no broker is dropped.
        tls: connect by TLS, to name servers and brokers: an `ssl.SSLContext`, such as
            `ssl.create_default_context(cafile="ca.pem")`; None connects without.
        send_timeout_ms: for all attempts of one send together.
        retry_times: attempts after the first.
        compress_bytes_min: bodies from this size are compressed, but never those of a batch.
        compress_type: how; LZ4 and ZSTD need the extra `compression`, and consumers from
            RocketMQ 4.9.4 on.
        compress_level: 1, the fastest, to 9 of ZLIB or 22 of ZSTD; LZ4 has no levels.

    Raises: ConfigError.
    """

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
            BlockingDriver,
            config.client_id,
            addresses=self._publisher.name_servers.addresses,
            scope=SCOPE,
            tls=tls,
        )
        self._driver = self._instance.driver
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def client_id(self) -> str:
        """How brokers name this producer."""
        return self._publisher.config.client_id

    def send(self, message: Message, *, queue: MessageQueue | None = None) -> SendResult:
        """Send a message and return where it was stored.

        Args:
            queue: where to send it; None for the sharding key's queue, or else the next in turn.

        Raises: UsageError or ConfigError if the message cannot be sent as it is; SendFailed if
        every attempt failed (one of them may have stored it); RouteError or ConnectFailed if the
        topic or the name server is not found; BrokerError if the broker refuses it for good.
        """
        return self._run(trace_of.send_traced(self._publisher, message, queue=queue))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic as one request; they are stored one after another.

        Raises: as `send`; UsageError if the messages do not make a batch: at most 512 of one
        topic and 4 MiB, none of them delayed.
        """
        return self._run(trace_of.send_batch_traced(self._publisher, messages, queue=queue))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Write a message to the connection and hear nothing of it: it may be lost."""
        self._run(send.send_oneway(self._publisher, message, queue=queue))

    def fetch_publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that take messages of a topic, in round robin's order.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return self._run(send.fetch_publish_queues(self._publisher, topic))

    def select_queue(self, message: Message) -> MessageQueue:
        """Return the queue that `send` would choose; round robin moves on.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return self._run(send.select_queue(self._publisher, message))

    def _run(self, operation: Operation[T]) -> T:
        if self._is_closed:
            # The driver may live on, of other clients of the same id.
            raise UsageError(f"producer {self.client_id} is closed; make a new one")
        return self._driver.run(operation)

    def close(self) -> None:
        """Tell the brokers and close the connections. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._driver.run(send.leave(self._publisher), timeout_ms=LEAVE_TIMEOUT_MS)
            self._driver.run(trace_of.finish(self._publisher.tracer))
        except SparrowError:
            # Brokers notice the closed connection anyway.
            pass
        finally:
            if INSTANCES.close(self._instance):
                self._driver.close()


class PushConsumer:
    """A member of a consumer group, whose listener is called with messages.

    Args:
        group: the consumer group.
        name_server: `host:port`, several separated by ';', or a list of them.
        listener: called with a list of messages of one queue and a `ConsumeContext`, in up to
            `consume_thread_count` threads at once. None or CONSUME_SUCCESS means done;
            RECONSUME_LATER or an exception has the messages delivered again later.
        orderly: consume each queue in order, one call at a time, under its lock at the broker. The
            context is a `ConsumeOrderlyContext`; None or SUCCESS means done,
            SUSPEND_CURRENT_QUEUE_A_MOMENT or an exception has the same messages delivered again
            after a moment, before any later one of their queue.
        strategy: how queues are divided: a name, a strategy, or a function. All members of the
            group must use the same.
        consume_from_where: where to begin in a queue without a committed offset.
        consume_timestamp_ms: the wall-clock time of CONSUME_FROM_TIMESTAMP; None: 30 minutes ago.
        message_model: CLUSTERING shares the queues, BROADCASTING gives every member all and
            keeps its offsets in a file of the member's.
        local_offset_dir: where that file is, below the client id; None: `~/.rocketmq_offsets`.
        pull_batch_size: messages asked for at once.
        consume_message_batch_max_size: messages the listener gets at once, at most.
        consume_thread_count: how many calls of the listener run at once.
        max_reconsume_times: how often a message comes again before it is a dead letter; None
            means 16 times, and, in order, for ever.
        unreadable_policy: what becomes of a message whose body cannot be read: its queue stops
            there, or the message is skipped, or goes to the group's dead letters.
        consume_timeout_ms: a call of the listener that runs longer has its messages sent back, for
            another member or another call to consume; in order it is waited for.
        drain_timeout_ms: how long a queue that is given up waits for listeners that run.
        client_ip: the address in the client id; None finds this machine's.
        instance_name: the instance in the client id; None makes one that is unique.
        unit_name: the unit in the client id.
        client_id_rule: whose rules make what is not given of the client id; V4_7 repeats ids in
            containers that share an address, to show what comes of it.
        namespace: a prefix that keeps topics and groups apart from those of others, on the wire:
            `ns%orders`; None for none.
        trace: tell of each message to the topic RMQ_SYS_TRACE_TOPIC, as Java's clients do: beside
            the traffic, and what finds no room or no broker is dropped.
        tls: connect by TLS, to name servers and brokers: an `ssl.SSLContext`, such as
            `ssl.create_default_context(cafile="ca.pem")`; None connects without.
        on_assign: called with queues that are ours from now on (those of the retry topic are never
            told); nothing of them is delivered before it returns, for 10 s at most.
        on_revoke: called with queues that are given up, after their last delivery; they go to the
            next owner once it has returned, or after 10 s.
        on_lost: called with queues that went to another member while this one stood still or was
            cut off; what was not committed comes again there.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        listener: Listener | OrderlyListener,
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
        on_assign: RebalanceListener | None = None,
        on_revoke: RebalanceListener | None = None,
        on_lost: RebalanceListener | None = None,
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
            is_async=False,
        )
        self._member = MemberThread(
            self._subscriber,
            partial(consume, self._subscriber),
            # One more than listeners, so that slow ones do not hold up the callbacks.
            pool_size=consume_thread_count + 1,
            tls=tls,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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

    def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Consume a topic, before or after the start.

        Args:
            expression: `*` for all messages, tags such as `TagA || TagB`, or
                `MessageSelector.by_sql(...)`. All members of a group must subscribe the same.

        Raises: ConfigError for a bad topic name; LocalProtocolError for a bad expression;
        UsageError after `close`.
        """
        subscription = make_subscription(self._subscriber, topic, expression)
        self._member.call(partial(add_subscription, self._subscriber, subscription))

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are drained and committed."""
        self._member.call(partial(remove_subscription, self._subscriber, topic))

    def start(self) -> None:
        """Join the group, in a thread of its own. It goes on until `close`, whatever fails.

        Raises: UsageError if it was started or closed before, or if a consumer of its group runs
        under its client id in this process; ConfigError if one of its group here subscribes
        something else, or the strategy CONFIG gives queues of topics that are not subscribed.
        """
        self._member.start()

    def suspend(self) -> None:
        """Begin no pull and no call of the listener until `resume`; the queues stay ours."""
        self._member.call(partial(suspend, self._subscriber))

    def resume(self) -> None:
        """Go on after `suspend`."""
        self._member.call(partial(resume, self._subscriber))

    def assignment(self) -> list[MessageQueue]:
        """Return this member's share, in order, without queues of the retry topic.

        A queue belongs to it from the rebalance that gave it; `on_assign` tells when consumption
        begins, after its lock and start position were asked for.
        """
        return self._subscriber.user_queues(self._subscriber.member.assigned)

    def close(self) -> None:
        """Leave the group: drain, commit, tell the brokers, close. A second call does nothing.

        It takes as long as the listeners that run, at most `drain_timeout_ms` and 8 s.
        """
        self._member.close()


class Admin:
    """Looks after topics and groups.

    Args:
        name_server: `host:port`, several separated by ';', or a list of them.
        timeout_ms: for each single answer.
        namespace: as of `Producer`.
        tls: as of `Producer`.

    Raises: ConfigError. Every method raises ConnectFailed if the name server does not answer,
    TransportError if a broker does not, BrokerError if one refuses.
    """

    def __init__(
        self,
        *,
        name_server: str | Sequence[str],
        timeout_ms: int = 3_000,
        namespace: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._directory = make_directory(name_server, timeout_ms=timeout_ms, namespace=namespace)
        self._driver = BlockingDriver(tls=tls)

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

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the queue's next message will get."""
        return self._driver.run(administer.queue_max_offset(self._directory, queue))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message that the queue still has."""
        return self._driver.run(administer.queue_min_offset(self._directory, queue))

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a wall-clock time."""
        operation = administer.queue_offset_at(self._directory, queue, timestamp_ms=timestamp_ms)
        return self._driver.run(operation)

    def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return what a group has committed for a queue, or None.

        Apache's brokers say 0 instead of nothing while the queue's first message is in memory.
        """
        return self._driver.run(administer.committed_offset(self._directory, group, queue))

    def update_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
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

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._driver.close()
