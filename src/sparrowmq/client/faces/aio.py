"""The asyncio face: each method awaits one operation on an asyncio driver, and nothing more.

Sends that are awaited at the same time overlap on one connection. A listener is a coroutine
function, which runs on the loop, or a plain function, which runs in a thread.

The synchronous face, `blocking.py`, is made of this file by `make generate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, Unpack

from sparrowmq.calling import clock
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
    suspend,
)
from sparrowmq.client.faces.aio_batches import AsyncBatches
from sparrowmq.client.faces.aio_member import AsyncMember
from sparrowmq.client.faces.task_host import TAKES_COROUTINES, Future, open_instance
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.operations import recall as recalling
from sparrowmq.client.operations import (
    request_reply,
    waiting,
)
from sparrowmq.client.operations import send as sending
from sparrowmq.client.operations import trace as trace_of
from sparrowmq.client.operations.member_loop import run_member
from sparrowmq.client.operations.observe import observe, observe_batch, observe_later
from sparrowmq.client.operations.waiting import WAIT_MS
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.setting_types import ProducerSettings, PushConsumerSettings
from sparrowmq.client.subscriber import (
    AsyncListener,
    AsyncOrderlyListener,
    AsyncRebalanceListener,
    ConsumeCounters,
    RebalanceCallbacks,
)
from sparrowmq.errors import SparrowError, UsageError
from sparrowmq.model import (
    Message,
    MessageExt,
    MessageQueue,
    MessageSelector,
    SendResult,
)

T = TypeVar("T")


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
        self._driver = self._instance.driver
        self._batches = AsyncBatches(self._publisher, self._driver)
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        group = self._publisher.config.group
        return f"<{type(self).__name__} of {group}: {self.client_id}, {state}>"

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

    async def send(self, message: Message, *, queue: QueueChoice | None = None) -> SendResult:
        """Send a message and return where it was stored.

        Args:
            queue: where to send it, or a function of (queues, message) that returns one of the
                queues, quickly; None for the sharding key's queue, or else the next in turn.

        Raises: UsageError or ConfigError if the message cannot be sent as it is; SendFailed if
        every attempt failed (one of them may have stored it); RouteError or ConnectFailed if the
        topic or the name server is not found; BrokerError if the broker refuses it for good.
        """
        publisher = self._publisher
        self._check_open()
        now_ms = clock.monotonic_ms()
        direct = sending.prepare(
            publisher, message, queue, timestamp_ms=clock.timestamp_ms(), now_ms=now_ms
        )
        if direct is None:
            send = partial(trace_of.send_traced, publisher, queue=queue)
            return await self._run(observe(publisher, message, send))
        return await self._send(direct, now_ms)

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
        now_ms = clock.monotonic_ms()
        direct = sending.prepare_batch(
            publisher, messages, queue, timestamp_ms=clock.timestamp_ms(), now_ms=now_ms
        )
        if direct is None:
            send = partial(trace_of.send_batch_traced, publisher, queue=queue)
            return await self._run(observe_batch(publisher, messages, send))
        return await self._send(direct, now_ms)

    async def send_oneway(self, message: Message, *, queue: QueueChoice | None = None) -> None:
        """Write a message to the connection and wait for no answer; it may be lost."""
        send = partial(sending.send_oneway, self._publisher, queue=queue)
        await self._run(observe(self._publisher, message, send))

    def send_nowait(
        self, message: Message, *, queue: QueueChoice | None = None
    ) -> Future[SendResult]:
        """Hand a message over to be sent soon, with others of its queue as one request.

        Messages of one sharding key, or of one `queue`, keep their order. A batch goes once it is
        full (`batch_bytes_max`, `batch_count_max`) or its first message has waited for `linger_ms`;
        while a queue's batch is under way, the next collects.

        Args:
            queue: as of `send`; None for the sharding key's queue, or else any.

        Returns: a future of where the message was stored, or of its error, as of `send`.
        Raises: UsageError for what is no message, and after `close`; BufferFull if bodies of
        `buffer_bytes_max` wait already.
        """
        check_message(message)
        self._check_open()
        return observe_later(
            self._publisher, message, lambda message: self._batches.add(message, queue)
        )

    async def flush(self) -> None:
        """Have what `send_nowait` took sent at once, and wait until all of it is answered."""
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
            timeout_ms: for sending and for the reply together.

        Raises: as `send`; InvokeTimeout if no reply came in time, though the message may be
        consumed all the same.
        """
        ask = partial(
            request_reply.request,
            self._publisher,
            self._instance.replies,
            queue=queue,
            timeout_ms=timeout_ms,
        )
        return await self._run(observe(self._publisher, message, ask))

    async def reply(self, message: MessageExt, body: bytes) -> SendResult:
        """Reply to a message that came and was sent by `request`, of this client or Java's.

        Raises: UsageError if it was not sent so; as `send`; BrokerError if who asked is gone.
        """
        return await self._run(request_reply.reply(self._publisher, message, body))

    async def recall(self, recall_handle: str) -> None:
        """Take a delayed message back before it is due: nobody gets it.

        Brokers of RocketMQ 5.3.2 and newer can, where `recallMessageEnable` is set.

        Args:
            recall_handle: `SendResult.recall_handle` of a message with a `delay`, of this producer
                or another.

        Raises: UsageError for what is no handle; RouteError, TransportError; BrokerError if the
        message is due, or the broker does not recall.
        """
        await self._run(recalling.recall(self._publisher, recall_handle))

    async def fetch_publish_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that take messages of a topic, in round robin's order.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return await self._run(sending.fetch_publish_queues(self._publisher, topic))

    async def select_queue(self, message: Message) -> MessageQueue:
        """Return the queue that `send` would choose; round robin moves on.

        Raises: RouteError, ConnectFailed, BrokerError.
        """
        return await self._run(sending.select_queue(self._publisher, message))

    async def _send(self, direct: sending.DirectSend, now_ms: int) -> SendResult:
        publisher = self._publisher
        outcome = await self._driver.ask(
            direct.address,
            direct.request,
            now_ms=now_ms,
            timeout_ms=publisher.config.send_timeout_ms,
        )
        if (result := sending.read_outcome(publisher, direct, outcome)) is not None:
            return result
        return await self._driver.run(sending.go_on(publisher, direct, outcome))

    async def _run(self, operation: Operation[T]) -> T:
        self._check_open()
        return await self._driver.run(operation)

    def _check_open(self) -> None:
        if self._is_closed:
            # The driver may live on, of other clients of the same id.
            raise UsageError(f"producer {self.client_id} is closed; make a new one")

    async def close(self) -> None:
        """Unregister at the brokers and close the connections. A second call does nothing.

        What `send_nowait` took is sent before, for `send_timeout_ms` and 1 s at most; the rest
        gets an error.
        """
        if self._is_closed:
            return
        self._is_closed = True
        await self._batches.close()
        try:
            await self._driver.run(
                bounded(sending.leave(self._publisher), timeout_ms=LEAVE_TIMEOUT_MS, name="leave")
            )
            await self._driver.run(trace_of.finish(self._publisher.tracer))
        except SparrowError:
            # Brokers notice the closed connection anyway.
            pass
        finally:
            if INSTANCES.close(self._instance):
                await self._driver.aclose()


class AsyncPushConsumer:
    """A member of a consumer group, whose listener is called with messages.

    Args:
        group: the consumer group.
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        listener: called with a list of messages of one queue and a `ConsumeContext`, in up to
            `consume_thread_count` calls at once. A coroutine function runs on the loop, a plain
            function in a thread.
            None or CONSUME_SUCCESS means done; RECONSUME_LATER or an exception has the messages
            delivered again later. With `orderly` the context is a `ConsumeOrderlyContext`; None or
            SUCCESS means done, SUSPEND_CURRENT_QUEUE_A_MOMENT or an exception has the same
            messages delivered again after a moment, before any later one of their queue.
        on_assign: called with queues that are ours from now on, except those of the retry topic;
            nothing of them is delivered before it returns, for 10 s at most.
        on_revoke: called with queues that are given up, after their last delivery; they go to the
            next owner once it has returned, or after 10 s.
        on_lost: called with queues that went to another member while this one stood still or was
            cut off; what was not committed comes again there.
        settings: see `PushConsumerSettings`.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
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
        self._member = AsyncMember(
            self._subscriber,
            partial(run_member, self._subscriber),
            # One more than listeners, so that slow ones do not hold up the callbacks.
            pool_size=self._subscriber.config.consume_thread_count + 1,
        )

    def __repr__(self) -> str:
        return self._member.describe(type(self).__name__)

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
        """Consume a topic, before or after the start.

        Args:
            expression: `*` for all messages, tags such as `TagA || TagB`, or
                `MessageSelector.by_sql(...)`. All members of a group must subscribe the same.

        Raises: ConfigError for a bad topic name; LocalProtocolError for a bad expression;
        UsageError after `close`.
        """
        subscription = make_subscription(self._subscriber, topic, expression)
        self._member.call(partial(add_subscription, self._subscriber, subscription))

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are drained and committed."""
        self._member.call(partial(remove_subscription, self._subscriber, topic))

    async def start(self) -> None:
        """Join the group, in a task of its own. It goes on until `close`, whatever fails.

        Raises: UsageError if it was started or closed before, or if a consumer of its group runs
        under its client id in this process; ConfigError if one of its group here subscribes
        something else, or the strategy CONFIG gives queues of topics that are not subscribed.
        """
        self._member.start(self)

    async def suspend(self) -> None:
        """Begin no pull and no call of the listener until `resume`; the queues stay ours."""
        self._member.call(partial(suspend, self._subscriber))

    async def resume(self) -> None:
        """Go on after `suspend`."""
        self._member.call(partial(resume, self._subscriber))

    def assignment(self) -> list[MessageQueue]:
        """Return this member's share, in order, without queues of the retry topic.

        A queue belongs to it from the rebalance that gave it; `on_assign` is called when
        consumption begins, after its lock and start position were asked for.
        """
        return self._subscriber.user_queues(self._subscriber.member.assigned)

    async def wait_assigned(self, timeout_ms: int = WAIT_MS) -> list[MessageQueue]:
        """Wait until this member has queues and consumes every one; return them, in order.

        What is sent after that is delivered, also under CONSUME_FROM_LAST_OFFSET.

        Returns: [] if the time runs out first; a group with more members than queues leaves some
        without any.
        Raises: UsageError before `start` and after `close`.
        """
        self._member.check_running()
        return await self._member.run(
            waiting.wait_assigned(self._subscriber, timeout_ms=timeout_ms)
        )

    async def wait_idle(self, timeout_ms: int = WAIT_MS) -> bool:
        """Wait until all that this member's queues have now is consumed and committed.

        Messages to be delivered again later count as consumed. A queue that goes to another member
        meanwhile is not waited for.

        Returns: False if the time runs out first, or the member has no queues by then.
        Raises: UsageError before `start` and after `close`; RouteError, TransportError,
        BrokerError.
        """
        self._member.check_running()
        return await self._member.run(waiting.wait_idle(self._subscriber, timeout_ms=timeout_ms))

    async def close(self) -> None:
        """Leave the group: drain, commit, unregister, close. A second call does nothing.

        It takes as long as the listeners that run, at most `drain_timeout_ms` and 8 s.
        """
        await self._member.close()
