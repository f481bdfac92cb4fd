"""The asyncio face of transactions: each method awaits one operation, and nothing more.

The synchronous face, `blocking_transaction.py`, is generated from this file by `make generate`.
Tests: broker/test_transactions.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import Never, Self, TypeVar, Unpack

from sparrowmq.calling.effects import Operation
from sparrowmq.client.arguments import check_message
from sparrowmq.client.assembly import CLOSE_MARGIN_MS, RESTART_S, make_coordinator
from sparrowmq.client.faces.task_host import TAKES_COROUTINES, TaskHost, open_instance
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.operations import transactions
from sparrowmq.client.operations.trace_reports import find_tracer, finish
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.setting_types import ProducerSettings
from sparrowmq.client.transaction_outcomes import CHECKS_AT_ONCE, AsyncCheck, HalfMessage
from sparrowmq.errors import UsageError
from sparrowmq.model import Message, TransactionState

T = TypeVar("T")

LOG = logging.getLogger("sparrowmq.client")


class AsyncTransactionProducer:
    """Sends messages that consumers see only once their transactions are committed.

    Tasks may share one. A transaction is a half message, the user's own work, and `commit` or
    `rollback`. If neither reaches the broker, the broker asks any producer of the group for the
    outcome, also one of another process, so that a producer answers from `start` to `close`.

    Args:
        group: the producer group.
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        check: called with a half message whose outcome a broker asks for; returns COMMIT, ROLLBACK,
            or UNKNOWN. After UNKNOWN or an exception the broker asks again. By `message.msg_id` the
            function finds the result of the user's own work. Up to 4 calls run at once. A coroutine
            function runs on the loop, a plain function in a thread.
        settings: see `ProducerSettings`.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str] | None = None,
        check: AsyncCheck,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self._coordinator = make_coordinator(
            group, name_server=name_server, check=check, is_async=TAKES_COROUTINES, **settings
        )
        self._publisher = self._coordinator.publisher
        config = self._publisher.config
        self._instance = open_instance(
            config.client_id, self._publisher.name_servers, config.client
        )
        self._driver = self._instance.driver
        self._driver.grow_pool(CHECKS_AT_ONCE)
        self._host = TaskHost(self._driver)
        self._is_closed = False

    def __repr__(self) -> str:
        state = "running" if self._host.is_started else "not started"
        if self._is_closed:
            state = "closed"
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
        """The producer's client id at brokers."""
        return self._publisher.config.client_id

    async def start(self) -> None:
        """Register at all brokers and answer their checks, in a separate task, until `close`.

        Raises: UsageError if the producer was started or closed before, or if another producer of
        its group runs under its client id in this process.
        """
        if self._host.is_started or self._is_closed:
            raise UsageError(f"producer {self.client_id} was started before; make a new producer")
        group = self._publisher.config.group
        INSTANCES.register_coordinator(self._coordinator, self._instance)
        self._host.start(self._loop, name=f"sparrowmq-transactions-{group}")

    async def send_half(
        self, message: Message, *more: Never, queue: QueueChoice | None = None
    ) -> HalfMessage:
        """Send a message that waits for `commit` or `rollback`.

        Args:
            queue: where it belongs, as of `Producer.send`.

        Raises: UsageError before `start`, after `close`, or if the message is delayed; else as
        `Producer.send`. After SendFailed a half message may be stored, and `check` asked for it.
        """
        check_message(message, *more)
        self._check_running()
        return await self._run(transactions.send_half(self._coordinator, message, queue=queue))

    async def commit(self, half: HalfMessage) -> TransactionState:
        """Have consumers get the message.

        Returns: COMMIT, or UNKNOWN if the broker did not confirm it: it will ask `check`.
        """
        return await self._end(half, TransactionState.COMMIT)

    async def rollback(self, half: HalfMessage) -> TransactionState:
        """Have nobody get the message.

        Returns: ROLLBACK, or UNKNOWN if the broker did not confirm it: it will ask `check`.
        """
        return await self._end(half, TransactionState.ROLLBACK)

    async def _end(self, half: HalfMessage, outcome: TransactionState) -> TransactionState:
        return await self._run(transactions.end(self._coordinator, half, outcome))

    async def _run(self, operation: Operation[T]) -> T:
        self._check_running()
        return await self._driver.run(operation)

    def _check_running(self) -> None:
        if not self._host.is_started or self._is_closed:
            state = "closed; make a new one" if self._is_closed else "not started; call start first"
            raise UsageError(f"producer {self.client_id} is {state}")

    async def close(self) -> None:
        """Unregister at the brokers and close the connections. A second call does nothing.

        Half messages without an end stay so: another producer of the group is asked for them.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._host.is_started:
            end = self._coordinator.close
            self._host.call(end)
            await self._host.end(CLOSE_MARGIN_MS / 1000, give_up=end)
            INSTANCES.unregister_coordinator(self._coordinator, self._instance)
            await self._driver.run(finish(find_tracer(self._publisher)))
        if INSTANCES.close(self._instance):
            await self._driver.aclose()

    async def _loop(self) -> None:
        while not self._coordinator.is_closing:
            try:
                await self._driver.run(transactions.serve(self._coordinator), name="transactions")
            except Exception:
                if self._is_closed:
                    return
                # Outermost: a producer must not fall silent.
                LOG.exception("producer %s failed and goes on", self.client_id)
                await self._host.pause(RESTART_S)
