"""The asyncio face: each method awaits one operation on an asyncio driver, and nothing more.

The usual send is the exception: it goes around the operation (`AsyncProducer.send`).

Sends that are awaited at the same time overlap on one connection. A listener is a coroutine
function, which runs on the loop, or a plain function, which runs in a thread.

The synchronous face, `blocking.py`, is generated from this file by `make generate`.
Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Self, TypeVar, Unpack

from sparrowmq.calling.effects import Operation, bounded
from sparrowmq.client.arguments import check_message
from sparrowmq.client.assembly import (
    LEAVE_TIMEOUT_MS,
    add_subscription,
    make_publisher,
    make_subscriber,
    make_subscription,
    remove_subscription,
    resume,
    subscribe_topics,
    suspend,
)
from sparrowmq.client.faces.aio_batches import AsyncBatches
from sparrowmq.client.faces.aio_member import AsyncMember
from sparrowmq.client.faces.task_host import (
    TAKES_COROUTINES,
    Future,
    open_instance,
)
from sparrowmq.client.faces.user_calls import for_users
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.operations import recall as recalling
from sparrowmq.client.operations import (
    request_reply,
    waiting,
)
from sparrowmq.client.operations import send as sending
from sparrowmq.client.operations.consumer_health import ConsumerHealth
from sparrowmq.client.operations.observe import observe, observe_batch
from sparrowmq.client.operations.pop_loop import push_loop
from sparrowmq.client.operations.trace_reports import find_tracer, finish
from sparrowmq.client.operations.waiting import WAIT_MS
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.setting_types import ProducerSettings, PushConsumerSettings
from sparrowmq.client.subscriber import (
    AsyncListener,
    AsyncOrderlyListener,
    AsyncRebalanceListener,
    ConsumeCounters,
    RebalanceCallbacks,
    Topics,
)
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model import (
    Message,
    MessageExt,
    MessageQueue,
    MessageSelector,
    SendResult,
)
from sparrowmq.model.names import check_topic

T = TypeVar("T")


@for_users
class AsyncProducer:
    """Sends messages. Tasks may share one.

    Args:
        group: the producer group.
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        settings: see `ProducerSettings`.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str] | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._publisher = make_publisher(group, name_server=name_server, **settings)
        config = self._publisher.config
        self._instance = open_instance(
            config.client_id, self._publisher.name_servers, config.client
        )
        self._instance.watch(self._publisher)
        self._driver = self._instance.driver
        self._batches = AsyncBatches(self._publisher, self._driver)
        self._is_closed = False
        self._dropped = weakref.finalize(self, self._batches.drop)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        group = self._publisher.config.group
        return f"<{type(self).__name__} of {group}: {self.client_id}, {state}>"

    async def __aenter__(self) -> Self:
        self._check_open()
        self._driver.check_usable()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The producer's client id at brokers."""
        return self._publisher.config.client_id

    async def send(self, message: Message, *, queue: QueueChoice | None = None) -> SendResult:
        """Send a message and return its place in the broker's store.

        A message with a sharding key or a `queue` waits for the answers to those that `send_nowait`
        has queued for its queue.

        Args:
            queue: the queue, or a function of (queues, message) that quickly returns one of the
                queues; None for the sharding key's queue, or else the next in turn.

        Raises: UsageError or ConfigError if the message is not valid; SendFailed if every attempt
        failed (one of them may have stored the message); RouteError or ConnectFailed if the topic
        or the name server is not found; BrokerError if the broker refuses the message for good.
        """
        publisher = self._publisher
        self._check_open()
        driver = self._driver
        direct = sending.prepare(
            publisher,
            message,
            queue,
            timestamp_ms=driver.timestamp_ms(),
            now_ms=driver.monotonic_ms(),
        )
        if direct is None:
            send = partial(sending.send, publisher, queue=queue)
            return await self._run(observe(publisher, message, send))
        outcome = await driver.ask(direct.invoke)
        result = sending.read_outcome(publisher, direct.load, direct.target, outcome)
        if result is not None:
            return result
        return await driver.run(sending.go_on(publisher, direct, outcome))

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None
    ) -> SendResult:
        """Send messages of one topic to one queue, in order, in requests as large as brokers take.

        A request takes 512 messages and `body_bytes_max`; the messages of one request are stored
        one after another.

        Returns: `msg_id` and `offset_msg_id` are comma lists, `queue_offset` is the first's.
        Raises: as `send`; UsageError if the messages are of several topics, or one is delayed. If
        a later request fails, SendFailed says how many of the first messages are stored.
        """
        publisher = self._publisher
        self._check_open()
        driver = self._driver
        direct = sending.prepare_batch(
            publisher,
            messages,
            queue,
            timestamp_ms=driver.timestamp_ms(),
            now_ms=driver.monotonic_ms(),
        )
        if direct is None:
            send = partial(sending.send_batch, publisher, queue=queue)
            return await self._run(observe_batch(publisher, messages, send))
        outcome = await driver.ask(direct.invoke)
        result = sending.read_outcome(publisher, direct.load, direct.target, outcome)
        if result is not None:
            return result
        return await driver.run(sending.go_on(publisher, direct, outcome))

    async def send_oneway(self, message: Message, *, queue: QueueChoice | None = None) -> None:
        """Write a message to the connection, without an answer; the message may be lost.

        Raises: as `send`, without the errors of an answer; TransportError if the message could not
        be written.
        """
        check_message(message)
        send = partial(sending.send_oneway, self._publisher, queue=queue)
        await self._run(observe(self._publisher, message, send))

    def send_nowait(
        self, message: Message, *, queue: QueueChoice | None = None
    ) -> Future[SendResult]:
        """Queue a message to be sent soon, with others of its queue as one request.

        Messages of one sharding key, or of one `queue`, keep their order. A batch is sent once it
        is full (`batch_bytes_max`, `batch_count_max`) or its first message has waited for
        `linger_ms`; meanwhile the queue's next batch collects.

        Args:
            queue: as of `send`; None for the sharding key's queue, or else any.

        Returns: a future of the result or error of `send`.
        Raises: UsageError or ConfigError for a message that `send` would refuse, and after
        `close`; BufferFull if `buffer_bytes_max` of bodies wait already.
        """
        self._check_open()
        return self._batches.add(message, queue)

    async def flush(self) -> None:
        """Send the messages of `send_nowait` so far at once, and wait for their answers.

        A message's error stands in its future. Raises: UsageError after `close`.
        """
        self._check_open()
        await self._batches.flush()

    async def request(
        self,
        message: Message,
        *,
        queue: QueueChoice | None = None,
        timeout_ms: int = 3_000,
    ) -> MessageExt:
        """Send a message and return the reply that its consumer sends by `reply`.

        Args:
            queue: as of `send`.
            timeout_ms: the time limit for sending and for the reply together.

        Raises: as `send`; InvokeTimeout if no reply came in time: the message may still be
        consumed.
        """
        check_message(message)
        ask = partial(
            request_reply.request,
            self._publisher,
            self._instance.replies,
            queue=queue,
            timeout_ms=timeout_ms,
        )
        return await self._run(observe(self._publisher, message, ask))

    async def reply(
        self, message: MessageExt, body: bytes, *, properties: Mapping[str, str] | None = None
    ) -> SendResult:
        """Reply to a received message that a client, SparrowMQ's or Java's, sent by `request`.

        Args:
            properties: the properties of the reply.

        Raises: UsageError if it was not sent by `request`; as `send`; BrokerError if the requesting
        client is gone.
        """
        return await self._run(
            request_reply.reply(self._publisher, message, body, properties or {})
        )

    async def recall(self, recall_handle: str) -> None:
        """Take back a delayed message before it is due: no consumer gets it.

        Brokers of RocketMQ 5.3.2 and newer can do this if `recallMessageEnable` is set.

        Args:
            recall_handle: `SendResult.recall_handle` of a message with a `delay`, of this producer
                or another.

        Raises: UsageError if this is not a handle; RouteError, TransportError; BrokerError if the
        message is due, or the broker cannot recall.
        """
        await self._run(recalling.recall(self._publisher, recall_handle))

    async def fetch_publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return a topic's writable queues, in the order of the round robin.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return await self._run(sending.fetch_publish_queues(self._publisher, topic))

    async def select_queue(self, message: Message) -> MessageQueue:
        """Return the queue that `send` would choose; round robin moves on.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return await self._run(sending.select_queue(self._publisher, message))

    async def _run(self, operation: Operation[T]) -> T:
        self._check_open()
        return await self._driver.run(operation)

    def _check_open(self) -> None:
        if self._is_closed:
            # Other clients of the same id may keep the driver running.
            raise UsageError(f"producer {self.client_id} is closed; make a new one")

    async def close(self) -> None:
        """Unregister at the brokers and close the connections. A second call does nothing.

        Messages of `send_nowait` are sent first, for at most `send_timeout_ms` and 1 s; the rest
        fail with an error.
        """
        if self._is_closed:
            return
        self._driver.check_outside()
        self._is_closed = True
        self._dropped.detach()
        try:
            await self._batches.close()
            await self._driver.run(
                bounded(sending.leave(self._publisher), timeout_ms=LEAVE_TIMEOUT_MS, name="leave")
            )
            await self._driver.run(finish(find_tracer(self._publisher)))
        except SparrowError:
            # Brokers notice the closed connection anyway.
            pass
        finally:
            if INSTANCES.close(self._instance):
                await self._driver.aclose()


@for_users
class AsyncPushConsumer:
    """A member of a consumer group that calls a listener with messages.

    With `topics`, entering a `with` block starts the consumer and waits for its share, at most
    10 s; topics that do not exist yet are not waited for. Without `topics`, call `start`.

    Args:
        group: the consumer group.
        topics: a topic, a list of topics, or topics with their expressions, such as
            `{"orders": "new || paid"}`; None leaves them to `subscribe`.
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        listener: called with a list of messages of one queue and a `ConsumeContext`, in up to
            `consume_thread_count` calls at once. A coroutine function runs on the loop, a plain
            function in a thread.
            After None or CONSUME_SUCCESS the messages are done; after RECONSUME_LATER or an
            exception they are delivered again later (in BROADCASTING they are not). With `orderly`
            the context is a `ConsumeOrderlyContext`: after None or SUCCESS the messages are done;
            after SUSPEND_CURRENT_QUEUE_A_MOMENT or an exception they are delivered again after a
            moment, before any later message of their queue.
        on_assign: called with queues that this member has gained, except those of the retry topic.
            Their messages are delivered after it returns, or after 10 s.
        on_revoke: called with queues that this member gives up, after their last delivery. The next
            owner begins after it returns, or after 10 s.
        on_lost: called with queues that went to another member while this one stood still or was
            cut off. The other member gets uncommitted messages again.
        settings: see `PushConsumerSettings`.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
        topics: Topics | None = None,
        *,
        name_server: str | Sequence[str] | None = None,
        listener: AsyncListener | AsyncOrderlyListener,
        on_assign: AsyncRebalanceListener | None = None,
        on_revoke: AsyncRebalanceListener | None = None,
        on_lost: AsyncRebalanceListener | None = None,
        **settings: Unpack[PushConsumerSettings],
    ) -> None:
        self._subscriber = make_subscriber(
            group,
            name_server=name_server,
            listener=listener,
            callbacks=RebalanceCallbacks(on_assign, on_revoke, on_lost),
            is_async=TAKES_COROUTINES,
            **settings,
        )
        self._has_topics = subscribe_topics(self._subscriber, topics)
        self._member = AsyncMember(
            self._subscriber,
            push_loop(self._subscriber),
            # One thread more than listeners, so that slow listeners do not delay the callbacks.
            pool_size=self._subscriber.config.consume_thread_count + 1,
        )

    def __repr__(self) -> str:
        return self._member.describe(type(self).__name__)

    async def __aenter__(self) -> Self:
        self._member.check_open()
        if self._has_topics:
            await self._member.enter(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def client_id(self) -> str:
        """The member's client id in the group."""
        return self._subscriber.config.client_id

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._subscriber.user_group

    @property
    def counters(self) -> ConsumeCounters:
        """The consumer's counts of messages so far."""
        return self._subscriber.counters

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Consume a topic, before or after the start.

        Args:
            expression: `*` for all messages, tags such as `TagA || TagB`, or
                `MessageSelector.by_sql(...)`. All members of a group must have the same
                subscriptions.

        Raises: ConfigError for a bad topic name; UsageError for a bad expression and after
        `close`.
        """
        subscription = make_subscription(self._subscriber, topic, expression)
        self._member.call(partial(add_subscription, self._subscriber, subscription))

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are drained and committed."""
        self._member.call(partial(remove_subscription, self._subscriber, check_topic(topic)))

    async def start(self) -> None:
        """Join the group, in a separate task, which runs until `close` despite failures.

        Raises: UsageError if the consumer was started or closed before, or if another consumer of
        its group runs under its client id in this process; ConfigError if a consumer of its group
        in this process has other subscriptions, or if the strategy CONFIG gives queues of topics
        that are not subscribed.
        """
        self._member.start(self)

    async def suspend(self) -> None:
        """Begin no pull or call of the listener until `resume`; the member keeps its queues."""
        self._member.call(partial(suspend, self._subscriber))

    async def resume(self) -> None:
        """Pull and call the listener again after `suspend`."""
        self._member.call(partial(resume, self._subscriber))

    async def health(self) -> ConsumerHealth:
        """Return the consumer's health, for a readiness or liveness probe."""
        return await self._member.health()

    def assignment(self) -> list[MessageQueue]:
        """Return this member's share, in order, without queues of the retry topic.

        A queue belongs to the share from the rebalance on; `on_assign` is called when consumption
        begins, after the member has the queue's lock and start position.
        """
        return self._subscriber.user_queues(self._subscriber.member.assigned)

    async def wait_assigned(self, timeout_ms: int = WAIT_MS) -> list[MessageQueue]:
        """Wait until this member has queues and consumes all of them; return the queues, in order.

        Messages sent afterwards are delivered, also with `start="last"`.

        Returns: [] if the time runs out first; in a group with more members than queues, some
        members get no queue.
        Raises: UsageError before `start` and after `close`.
        """
        self._member.check_running()
        return await self._member.run(
            waiting.wait_assigned(self._subscriber, timeout_ms=timeout_ms)
        )

    async def wait_idle(self, timeout_ms: int = WAIT_MS) -> bool:
        """Wait until all messages that this member's queues hold now are consumed and committed.

        Messages to be delivered again later count as consumed. Queues that go to another member
        meanwhile do not count.

        Returns: False if the time runs out first, or the member has no queues by then.
        Raises: UsageError before `start` and after `close`; RouteError, TransportError,
        BrokerError.
        """
        self._member.check_running()
        return await self._member.run(waiting.wait_idle(self._subscriber, timeout_ms=timeout_ms))

    async def close(self) -> None:
        """Leave the group: drain, commit, unregister, close. A second call does nothing.

        Closing waits for running listeners, at most `drain_timeout_ms` and 8 s. Called by the
        listener or a callback, it returns at once: no further call begins, and the consumer closes
        once the running calls have returned, and commits their messages. `close` elsewhere, as at
        the end of a `with` block, waits for that.
        """
        await self._member.close()
