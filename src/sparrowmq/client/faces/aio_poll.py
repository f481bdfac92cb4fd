"""The asyncio face of polling: each method awaits one operation, and nothing more.

The synchronous face, `blocking_poll.py`, is generated from this file by `make generate`.
Tests: client/test_poll_consumer.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Self, Unpack

from sparrowmq.calling import clock
from sparrowmq.client.assembly import (
    add_subscription,
    make_polling,
    make_subscription,
    remove_subscription,
    subscribe_topics,
)
from sparrowmq.client.faces.aio_member import AsyncMember
from sparrowmq.client.faces.task_host import TAKES_COROUTINES
from sparrowmq.client.faces.user_calls import for_users
from sparrowmq.client.operations import administer, poll
from sparrowmq.client.operations.consumer_health import ConsumerHealth
from sparrowmq.client.operations.poll import POLL_TIMEOUT_MS
from sparrowmq.client.operations.waiting import WAIT_MS, wait_assigned
from sparrowmq.client.polling import PullResult
from sparrowmq.client.setting_types import PollConsumerSettings
from sparrowmq.client.subscriber import (
    AsyncRebalanceListener,
    ConsumeCounters,
    RebalanceCallbacks,
    Topics,
)
from sparrowmq.errors import UsageError
from sparrowmq.model import MessageExt, MessageQueue, MessageSelector
from sparrowmq.model.names import check_topic

# Threads for the callbacks, and beside them for a BROADCASTING consumer's offset file.
POOL_SIZE = 2


@for_users
class AsyncPollConsumer:
    """A consumer that the program polls: `async for message in consumer`, `getone`, `getmany`.

    Either give `topics`, or `subscribe` them, and the group's members share the queues; or `assign`
    queues by hand. One task polls at a time. A message is done when the program asks for the next
    one, so a program that dies while it works on a message gets the message again.

    With `topics`, entering a `with` block starts the consumer and waits for its share, at most
    10 s; topics that do not exist yet are not waited for. Without `topics`, call `start`.

    Args:
        group: the consumer group.
        topics: a topic, a list of topics, or topics with their expressions, such as
            `{"orders": "new || paid"}`; None leaves them to `subscribe` or `assign`.
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        on_assign: called with queues that this consumer has gained, before their first message.
        on_revoke: called with queues that this consumer gives up, after their last message.
        on_lost: called with queues that went to another member while this one stood still or was
            cut off.
        settings: see `PollConsumerSettings`.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
        topics: Topics | None = None,
        *,
        name_server: str | Sequence[str] | None = None,
        on_assign: AsyncRebalanceListener | None = None,
        on_revoke: AsyncRebalanceListener | None = None,
        on_lost: AsyncRebalanceListener | None = None,
        **settings: Unpack[PollConsumerSettings],
    ) -> None:
        self._state = make_polling(
            group,
            name_server=name_server,
            callbacks=RebalanceCallbacks(on_assign, on_revoke, on_lost),
            is_async=TAKES_COROUTINES,
            **settings,
        )
        self._has_topics = subscribe_topics(self._state.subscriber, topics)
        self._state.has_subscribed = self._has_topics
        self._member = AsyncMember(
            self._state.subscriber,
            partial(poll.serve, self._state),
            pool_size=POOL_SIZE,
            on_failure=self._state.fail,
        )
        # The polls under way: a second one at the same time gets an error.
        self._pollers: set[object] = set()

    def __repr__(self) -> str:
        return self._member.describe(type(self).__name__)

    async def __aenter__(self) -> Self:
        self._member.check_open()
        if self._has_topics:
            await self._member.enter(self)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # A message is not done if the program failed while it worked on the message.
        await self._close(is_done=error is None)

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Yield one message after another, until the consumer is closed."""
        self._member.check_running()
        while found := await self._poll(1, None):
            yield found[0]

    @property
    def client_id(self) -> str:
        """The member's client id in the group."""
        return self._state.subscriber.config.client_id

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._state.subscriber.user_group

    @property
    def counters(self) -> ConsumeCounters:
        """The consumer's counts of messages so far."""
        return self._state.subscriber.counters

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Consume a share of a topic's queues, before or after the start.

        Args:
            expression: `*` for all messages, tags such as `TagA || TagB`, or
                `MessageSelector.by_sql(...)`. All members of a group must have the same
                subscriptions.

        Raises: ConfigError for a bad topic name; UsageError for a bad expression and after
        `assign` or `close`.
        """
        self._state.note_subscribing()
        subscription = make_subscription(self._state.subscriber, topic, expression)
        self._member.call(partial(add_subscription, self._state.subscriber, subscription))

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are committed and given up."""
        self._member.call(partial(remove_subscription, self._state.subscriber, check_topic(topic)))

    async def assign(self, queues: Sequence[MessageQueue]) -> None:
        """Consume these queues and no others, without regard to other members of the group.

        Raises: UsageError after `subscribe` or `close`.
        """
        await self._member.run(poll.assign(self._state, queues))

    async def start(self) -> None:
        """Join the group, in a separate task, which runs until `close` despite failures.

        Raises: as `PushConsumer.start`.
        """
        self._member.start(self)

    async def getone(self, timeout_ms: int | None = None) -> MessageExt | None:
        """Return the next message; None if none comes in time, or the consumer is closed.

        Args:
            timeout_ms: the longest wait; None waits without a limit.

        Raises: UsageError before `start`, after `close`, and while another task polls.
        """
        self._member.check_running()
        found = await self._poll(1, timeout_ms)
        return found[0] if found else None

    async def getmany(
        self, count_max: int = 500, timeout_ms: int = POLL_TIMEOUT_MS
    ) -> list[MessageExt]:
        """Return the next messages as soon as there are any; [] if none comes in time.

        Raises: UsageError as `getone`.
        """
        self._member.check_running()
        return await self._poll(count_max, timeout_ms)

    async def poll(self, timeout_ms: int = POLL_TIMEOUT_MS) -> list[MessageExt]:
        """Return the next messages, at most `pull_batch_size`, as RocketMQ's poll does."""
        return await self.getmany(self._state.subscriber.config.pull_batch_size, timeout_ms)

    async def _poll(self, count_max: int, timeout_ms: int | None) -> list[MessageExt]:
        state, poller = self._state, object()
        try:
            # Ctrl-C may come between any two calls: a lock could stay locked.
            self._pollers.add(poller)
            if len(self._pollers) > 1:
                raise UsageError(
                    f"consumer {self.client_id} is being polled already; make a consumer for each "
                    "poller"
                )
            begun_timestamp_ms = clock.timestamp_ms()
            while not (found := state.take(count_max)):
                operation = poll.fetch(state, count_max, timeout_ms=timeout_ms)
                if state.is_closed or not await self._member.driver.run(operation):
                    break
            if not found and state.has_failed and not state.is_closed:
                self._member.check_running()
            if found and state.received is not None:
                state.received(found, begun_timestamp_ms)
            return found
        finally:
            self._pollers.discard(poller)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all messages given so far, or these offsets, and wait for the answers.

        Args:
            offsets: by queue, the offset of the next message to consume. None leaves out queues
                that were given up meanwhile: another member gets their messages again.

        Raises: UsageError for a queue that this consumer does not have; TransportError,
            BrokerError, once the queues of other brokers are committed.
        """
        await self._member.run(poll.commit(self._state, offsets))

    async def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None if there is none.

        Raises: RouteError, TransportError, BrokerError.
        """
        return await self._member.run(poll.committed(self._state, queue))

    async def health(self) -> ConsumerHealth:
        """Return the consumer's health, for a readiness or liveness probe."""
        return await self._member.health()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues this consumer has now, in order."""
        unwrap = self._state.namespace.unwrap_queue
        return [unwrap(queue) for queue in self._state.subscriber.member.assigned]

    async def wait_assigned(self, timeout_ms: int = WAIT_MS) -> list[MessageQueue]:
        """Wait until this consumer has queues and consumes all of them; return them, in order.

        Returns: [] if the time runs out first.
        Raises: UsageError before `start` and after `close`.
        """
        self._member.check_running()
        return await self._member.run(wait_assigned(self._state.subscriber, timeout_ms=timeout_ms))

    async def pause(self, *queues: MessageQueue) -> None:
        """Give no more messages of these queues until `resume`; this consumer keeps the queues.

        Raises: UsageError for a queue that this consumer does not have.
        """
        await self._member.run(poll.pause(self._state, queues))

    async def resume(self, *queues: MessageQueue) -> None:
        """Give messages of these queues again."""
        await self._member.run(poll.resume(self._state, queues))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at another offset of a queue.

        Messages that have arrived are dropped, and messages already given are not committed: with
        `auto_commit` the new offset is.

        Raises: UsageError before `start`, or if this consumer does not have the queue, or the queue
        has no such offset; RouteError, TransportError, BrokerError.
        """
        self._member.check_running()
        await self._member.run(poll.seek(self._state, queue, offset))

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Continue at the oldest message of each queue."""
        self._member.check_running()
        await self._member.run(poll.seek_to_begin(self._state, queues))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Continue after the newest message of each queue."""
        self._member.check_running()
        await self._member.run(poll.seek_to_end(self._state, queues))

    async def seek_to_time(self, timestamp_ms: int, *queues: MessageQueue) -> None:
        """Continue at the first message of each queue stored at or after a wall-clock time.

        RocketMQ 4's brokers answer with the message stored nearest to it, which may be older.

        Raises: as `seek`.
        """
        self._member.check_running()
        await self._member.run(poll.seek_to_time(self._state, queues, timestamp_ms=timestamp_ms))

    async def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a time, or the queue's end.

        RocketMQ 4's brokers answer with the message stored nearest to it, which may be older.

        Args:
            timestamp_ms: wall-clock milliseconds since 1970.

        Raises: RouteError, TransportError, BrokerError.
        """
        return await self._member.run(
            administer.queue_offset_at(self._state.directory, queue, timestamp_ms=timestamp_ms)
        )

    async def fetch_subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, in order, as `assign` takes them.

        Raises: TopicRouteNotFound; ConnectFailed, BrokerError.
        """
        return await self._member.run(poll.subscribe_queues(self._state, topic))

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count_max: int = 32,
        *,
        expression: str | MessageSelector = "*",
        suspend_ms: int = 0,
    ) -> PullResult:
        """Pull once from any queue at any offset, also without `start`.

        The pull commits nothing and changes no position.

        Args:
            expression: as of `subscribe`.
            suspend_ms: how long the broker may hold the pull while no message comes; the broker
                looks every 5 s.

        Raises: RouteError, TransportError, BrokerError; UnreadableMessage if the first message
        cannot be read and `unreadable_policy` is STOP.
        """
        return await self._member.run(
            poll.pull_queue(
                self._state,
                queue,
                offset,
                count_max=count_max,
                expression=expression,
                suspend_ms=suspend_ms,
            )
        )

    async def close(self) -> None:
        """Leave the group: commit what is done, unregister, close; polls that wait return.

        Messages given count as done. A second call does nothing. Called by a callback, it returns
        at once, and the consumer closes after the callback.
        """
        await self._close(is_done=True)

    async def _close(self, *, is_done: bool) -> None:
        await self._member.close(partial(self._state.end, is_done=is_done))
