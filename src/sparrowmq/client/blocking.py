"""The synchronous face: each method runs one operation on a blocking driver, and nothing more.

`Producer` and `Admin` have no thread of their own: the calling thread does the I/O, and threads
that share one overlap on the same connections. A `PushConsumer` has one thread for its I/O, and
its listener runs in a bounded pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from sparrowmq.client.config import ProducerConfig
from sparrowmq.client.directory import Directory, QueueLag
from sparrowmq.client.identity import make_client_id, make_id_generator, random_start
from sparrowmq.client.name_servers import NameServers, parse_name_servers
from sparrowmq.client.operations import administer, send
from sparrowmq.client.publisher import Publisher
from sparrowmq.client.queue_selector import QueueSelector
from sparrowmq.client.route_cache import TopicRoute
from sparrowmq.errors import SparrowError
from sparrowmq.model import Message, MessageQueue, SendResult
from sparrowmq.protocol.bodies import ConsumerConnection
from sparrowmq.runtime.blocking_driver import BlockingDriver

# How long closing a producer waits for brokers to take note.
LEAVE_TIMEOUT_MS = 1_000


def make_publisher(
    group: str,
    *,
    name_server: str | Sequence[str],
    client_ip: str | None,
    instance_name: str | None,
    unit_name: str | None,
    send_timeout_ms: int,
    retry_times: int,
) -> Publisher:
    """Make the state of a new producer. Raises: ConfigError."""
    addresses = parse_name_servers(name_server)
    config = ProducerConfig(
        group=group,
        client_id=make_client_id(
            client_ip=client_ip, instance_name=instance_name, unit_name=unit_name
        ),
        send_timeout_ms=send_timeout_ms,
        retry_times=retry_times,
    )
    return Publisher(
        config=config,
        name_servers=NameServers(addresses, start=random_start()),
        ids=make_id_generator(client_ip),
        selector=QueueSelector(start=random_start()),
    )


class Producer:
    """Sends messages. Threads may share one.

    Args:
        group: the producer group.
        name_server: `host:port`, several separated by ';', or a list of them.
        client_ip: the address in the client id; None finds this machine's.
        instance_name: the instance in the client id; None makes one that is unique.
        unit_name: the unit in the client id.
        send_timeout_ms: for all attempts of one send together.
        retry_times: attempts after the first.

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
        send_timeout_ms: int = 3_000,
        retry_times: int = 2,
    ) -> None:
        self._publisher = make_publisher(
            group,
            name_server=name_server,
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            send_timeout_ms=send_timeout_ms,
            retry_times=retry_times,
        )
        self._driver = BlockingDriver()
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
        return self._driver.run(send.send(self._publisher, message, queue=queue))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic as one request; they are stored one after another.

        Raises: as `send`; UsageError if the messages do not make a batch (4 MiB at most).
        """
        return self._driver.run(send.send_batch(self._publisher, messages, queue=queue))

    def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Write a message to the connection and hear nothing of it: it may be lost."""
        self._driver.run(send.send_oneway(self._publisher, message, queue=queue))

    def fetch_publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that take messages of a topic, in round robin's order.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return self._driver.run(send.fetch_publish_queues(self._publisher, topic))

    def select_queue(self, message: Message) -> MessageQueue:
        """Return the queue that `send` would choose; round robin moves on.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return self._driver.run(send.select_queue(self._publisher, message))

    def close(self) -> None:
        """Tell the brokers and close the connections. A second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._driver.run(send.leave(self._publisher), timeout_ms=LEAVE_TIMEOUT_MS)
        except SparrowError:
            # Brokers notice the closed connection anyway.
            pass
        finally:
            self._driver.close()


class Admin:
    """Looks after topics and groups.

    Args:
        name_server: `host:port`, several separated by ';', or a list of them.
        timeout_ms: for each single answer.

    Raises: ConfigError. Every method raises ConnectFailed if the name server does not answer,
    TransportError if a broker does not, BrokerError if one refuses.
    """

    def __init__(self, *, name_server: str | Sequence[str], timeout_ms: int = 3_000) -> None:
        addresses = parse_name_servers(name_server)
        self._directory = Directory(
            name_servers=NameServers(addresses, start=random_start()), timeout_ms=timeout_ms
        )
        self._driver = BlockingDriver()

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
        return self._driver.run(administer.get_route(self._directory, topic, is_fresh=True))

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

    def close(self) -> None:
        """Close the connections. A second call does nothing."""
        self._driver.close()
