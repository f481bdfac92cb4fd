# Made of aio_transaction.py by `make generate`; change that file.
"""The synchronous face of transactions: each method runs one operation, and nothing more.
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
from sparrowmq.client.faces.thread_host import TAKES_COROUTINES, ThreadHost, open_instance
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.operations import transactions
from sparrowmq.client.operations.trace_reports import find_tracer, finish
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.setting_types import ProducerSettings
from sparrowmq.client.transaction_outcomes import CHECKS_AT_ONCE, Check, HalfMessage
from sparrowmq.errors import UsageError
from sparrowmq.model import Message, TransactionState

T = TypeVar("T")

LOG = logging.getLogger("sparrowmq.client")


class TransactionProducer:
    """Sends messages that consumers see only once their transactions are committed.

    Threads may share one. A transaction is a half message, the user's own work, and `commit` or
    `rollback`. If neither reaches the broker, the broker asks any producer of the group for the
    outcome, also one of another process, so that a producer answers from `start` to `close`.

    Args:
        group: the producer group.
        name_server: `host:port`, several separated by ';', or a list of them; None for the
            environment's NAMESRV_ADDR.
        check: called with a half message whose outcome a broker asks for; returns COMMIT, ROLLBACK,
            or UNKNOWN. After UNKNOWN or an exception the broker asks again. By `message.msg_id` the
            function finds the result of the user's own work. Up to 4 calls run at once.
        settings: see `ProducerSettings`.

    Raises: ConfigError.
    """

    def __init__(
        self,
        group: str,
        *,
        name_server: str | Sequence[str] | None = None,
        check: Check,
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
        self._host = ThreadHost(self._driver)
        self._is_closed = False

    def __repr__(self) -> str:
        state = "running" if self._host.is_started else "not started"
        if self._is_closed:
            state = "closed"
        group = self._publisher.config.group
        return f"<{type(self).__name__} of {group}: {self.client_id}, {state}>"

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
        """The producer's client id at brokers."""
        return self._publisher.config.client_id

    def start(self) -> None:
        """Register at all brokers and answer their checks, in a separate thread, until `close`.

        Raises: UsageError if the producer was started or closed before, or if another producer of
        its group runs under its client id in this process.
        """
        if self._host.is_started or self._is_closed:
            raise UsageError(f"producer {self.client_id} was started before; make a new producer")
        group = self._publisher.config.group
        INSTANCES.register_coordinator(self._coordinator, self._instance)
        self._host.start(self._loop, name=f"sparrowmq-transactions-{group}")

    def send_half(
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
        return self._run(transactions.send_half(self._coordinator, message, queue=queue))

    def commit(self, half: HalfMessage) -> TransactionState:
        """Have consumers get the message.

        Returns: COMMIT, or UNKNOWN if the broker did not confirm it: it will ask `check`.
        """
        return self._end(half, TransactionState.COMMIT)

    def rollback(self, half: HalfMessage) -> TransactionState:
        """Have nobody get the message.

        Returns: ROLLBACK, or UNKNOWN if the broker did not confirm it: it will ask `check`.
        """
        return self._end(half, TransactionState.ROLLBACK)

    def _end(self, half: HalfMessage, outcome: TransactionState) -> TransactionState:
        return self._run(transactions.end(self._coordinator, half, outcome))

    def _run(self, operation: Operation[T]) -> T:
        self._check_running()
        return self._driver.run(operation)

    def _check_running(self) -> None:
        if not self._host.is_started or self._is_closed:
            state = "closed; make a new one" if self._is_closed else "not started; call start first"
            raise UsageError(f"producer {self.client_id} is {state}")

    def close(self) -> None:
        """Unregister at the brokers and close the connections. A second call does nothing.

        Half messages without an end stay so: another producer of the group is asked for them.
        """
        if self._is_closed:
            return
        self._is_closed = True
        if self._host.is_started:
            end = self._coordinator.close
            self._host.call(end)
            self._host.end(CLOSE_MARGIN_MS / 1000, give_up=end)
            INSTANCES.unregister_coordinator(self._coordinator, self._instance)
            self._driver.run(finish(find_tracer(self._publisher)))
        if INSTANCES.close(self._instance):
            self._driver.close()

    def _loop(self) -> None:
        while not self._coordinator.is_closing:
            try:
                self._driver.run(transactions.serve(self._coordinator), name="transactions")
            except Exception:
                if self._is_closed:
                    return
                # Outermost: a producer must not fall silent.
                LOG.exception("producer %s failed and goes on", self.client_id)
                self._host.pause(RESTART_S)
