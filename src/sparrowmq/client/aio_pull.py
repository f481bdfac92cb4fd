"""The asyncio face of polling: each method awaits one operation, and nothing more.

The methods are those of the synchronous face (`sparrowmq.client.blocking_pull`), where each is
described with its errors.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from sparrowmq.client.assembly import (
    add_subscription,
    make_lite_pull,
    make_subscription,
    remove_subscription,
)
from sparrowmq.client.lite_pull import PullResult
from sparrowmq.client.member_task import MemberTask
from sparrowmq.client.operations import administer, poll
from sparrowmq.client.operations.poll import POLL_TIMEOUT_MS
from sparrowmq.client.subscriber import AsyncRebalanceListener, ConsumeCounters, RebalanceCallbacks
from sparrowmq.errors import UsageError
from sparrowmq.membership.client_id import ClientIdRule
from sparrowmq.model import (
    ConsumeFromWhere,
    MessageExt,
    MessageModel,
    MessageQueue,
    MessageSelector,
    UnreadablePolicy,
)
from sparrowmq.strategies.registry import StrategyChoice

# Callbacks on queues, and beside them the file of a BROADCASTING consumer's offsets.
POOL_SIZE = 2


class AsyncLitePullConsumer:
    """A consumer that is asked for messages; see `sparrowmq.LitePullConsumer`.

    One task polls at a time.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str],
        strategy: StrategyChoice = "AVG",
        consume_from_where: ConsumeFromWhere = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        message_model: MessageModel = MessageModel.CLUSTERING,
        local_offset_dir: Path | str | None = None,
        auto_commit: bool = True,
        pull_batch_size: int = 32,
        pull_threshold_for_queue: int = 1_000,
        unreadable_policy: UnreadablePolicy = UnreadablePolicy.STOP,
        drain_timeout_ms: int = 10_000,
        client_ip: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        client_id_rule: ClientIdRule = ClientIdRule.V4_9,
        namespace: str | None = None,
        tls: ssl.SSLContext | None = None,
        on_assign: AsyncRebalanceListener | None = None,
        on_revoke: AsyncRebalanceListener | None = None,
        on_lost: AsyncRebalanceListener | None = None,
    ) -> None:
        self._state = make_lite_pull(
            group,
            name_server=name_server,
            strategy=strategy,
            consume_from_where=consume_from_where,
            consume_timestamp_ms=consume_timestamp_ms,
            message_model=message_model,
            local_offset_dir=local_offset_dir,
            auto_commit=auto_commit,
            pull_batch_size=pull_batch_size,
            pull_threshold_for_queue=pull_threshold_for_queue,
            unreadable_policy=unreadable_policy,
            drain_timeout_ms=drain_timeout_ms,
            client_ip=client_ip,
            instance_name=instance_name,
            unit_name=unit_name,
            client_id_rule=client_id_rule,
            namespace=namespace,
            callbacks=RebalanceCallbacks(on_assign, on_revoke, on_lost),
            is_async=True,
        )
        self._member = MemberTask(
            self._state.subscriber, partial(poll.serve, self._state), pool_size=POOL_SIZE, tls=tls
        )
        self._is_polling = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A message on which the program failed is not done.
        await self._close(is_done=error is None)

    async def __aiter__(self) -> AsyncIterator[MessageExt]:
        """Give one message after the other, until the consumer is closed."""
        self._member.check_running()
        while found := await self._poll(1, None):
            yield found[0]

    @property
    def client_id(self) -> str:
        """How the members of the group name this one."""
        return self._state.subscriber.config.client_id

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._state.subscriber.user_group

    @property
    def counters(self) -> ConsumeCounters:
        """What this consumer has done so far."""
        return self._state.subscriber.counters

    async def subscribe(self, topic: str, expression: str | MessageSelector = "*") -> None:
        """Consume a share of a topic's queues, before or after the start."""
        self._state.note_subscribing()
        subscription = make_subscription(self._state.subscriber, topic, expression)
        self._member.call(partial(add_subscription, self._state.subscriber, subscription))

    async def unsubscribe(self, topic: str) -> None:
        """Stop consuming a topic; its queues are committed and given up."""
        self._member.call(partial(remove_subscription, self._state.subscriber, topic))

    async def assign(self, queues: Sequence[MessageQueue]) -> None:
        """Consume these queues and no others, whatever other members of the group do."""
        await self._member.run(poll.assign(self._state, queues))

    async def start(self) -> None:
        """Join the group, in a thread of its own. It goes on until `close`, whatever fails."""
        self._member.start()

    async def getone(self, timeout_ms: int | None = None) -> MessageExt | None:
        """Return the next message; None if there is none in time, or the consumer is closed."""
        self._member.check_running()
        found = await self._poll(1, timeout_ms)
        return found[0] if found else None

    async def getmany(
        self, count_max: int = 500, timeout_ms: int = POLL_TIMEOUT_MS
    ) -> list[MessageExt]:
        """Return the next messages as soon as there are any; [] if there are none in time."""
        self._member.check_running()
        return await self._poll(count_max, timeout_ms)

    async def poll(self, timeout_ms: int = POLL_TIMEOUT_MS) -> list[MessageExt]:
        """Return the next messages, at most `pull_batch_size`, as RocketMQ's poll does."""
        return await self.getmany(self._state.subscriber.config.pull_batch_size, timeout_ms)

    async def _poll(self, count_max: int, timeout_ms: int | None) -> list[MessageExt]:
        if self._is_polling:
            raise UsageError(f"consumer {self.client_id} is polled already; make one for each user")
        state = self._state
        self._is_polling = True
        try:
            while not (found := state.take(count_max)):
                operation = poll.fetch(state, count_max, timeout_ms=timeout_ms)
                if state.is_closed or not await self._member.driver.run(operation):
                    break
            return found
        finally:
            self._is_polling = False

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit all that was given so far, or these offsets, and wait for the answers."""
        await self._member.run(poll.commit(self._state, offsets))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return what the group has committed for a queue; None for nothing."""
        return await self._member.run(poll.committed(self._state, queue))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues this consumer has now, in order."""
        unwrap = self._state.namespace.unwrap_queue
        return [unwrap(queue) for queue in self._state.subscriber.member.assigned]

    async def pause(self, *queues: MessageQueue) -> None:
        """Give no more messages of these queues until `resume`; they stay ours."""
        await self._member.run(poll.pause(self._state, queues))

    async def resume(self, *queues: MessageQueue) -> None:
        """Give messages of these queues again."""
        await self._member.run(poll.resume(self._state, queues))

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset of a queue."""
        await self._member.run(poll.seek(self._state, queue, offset))

    async def seek_to_begin(self, *queues: MessageQueue) -> None:
        """Go on at the oldest message of each queue."""
        await self._member.run(poll.seek_to_begin(self._state, queues))

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Go on behind the newest message of each queue."""
        await self._member.run(poll.seek_to_end(self._state, queues))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message stored at or after a wall-clock time."""
        return await self._member.run(
            administer.queue_offset_at(self._state.directory, queue, timestamp_ms=timestamp_ms)
        )

    async def fetch_subscribe_queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read, in order, as `assign` wants them."""
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
        """Pull once, from any queue at any offset; also without `start`."""
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
        """Leave the group: commit what is done, tell the brokers, close; polls that wait return."""
        await self._close(is_done=True)

    async def _close(self, *, is_done: bool) -> None:
        await self._member.close(partial(self._state.end, is_done=is_done))
