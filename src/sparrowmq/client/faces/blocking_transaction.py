# Made of aio_transaction.py by `make generate`; change that file.
"""The synchronous face of transactions: each method runs one operation, and nothing more.
Tests: broker/test_transactions.py.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Self, Unpack

from sparrowmq.client.arguments import check_function, check_message
from sparrowmq.client.assembly import CLOSE_MARGIN_MS, RESTART_S, make_coordinator
from sparrowmq.client.faces.blocking import Producer
from sparrowmq.client.faces.thread_host import TAKES_COROUTINES, ThreadHost
from sparrowmq.client.faces.user_calls import for_users
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.operations import transactions
from sparrowmq.client.queue_selector import QueueChoice
from sparrowmq.client.setting_types import ProducerSettings
from sparrowmq.client.transaction_outcomes import CHECKS_AT_ONCE, Check, HalfMessage
from sparrowmq.errors import UsageError
from sparrowmq.model import Message, TransactionState

LOG = logging.getLogger("sparrowmq.client")


@for_users
class TransactionProducer(Producer):
    """A producer that also sends messages which consumers see only once they are committed.

    A transaction is a half message, the user's own work, and `commit` or `rollback`; `transaction`
    is all of these as one block. If neither end reaches the broker, the broker asks any producer of
    the group for the outcome, also one of another process. A producer answers from the beginning of
    its `with` block, or from `start`, until `close`.

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
        check_function("check", check, ("message",), is_async=TAKES_COROUTINES)
        super().__init__(group, name_server=name_server, **settings)
        self._coordinator = make_coordinator(self._publisher, check)
        self._driver.grow_pool(CHECKS_AT_ONCE)
        self._host = ThreadHost(self._driver)
        self._is_leaving = False

    def __enter__(self) -> Self:
        runs_already = self._host.is_started
        try:
            self.start()
        except BaseException:
            if not runs_already:
                self.close()
            raise
        return self

    def start(self) -> None:
        """Register at all brokers and answer their checks, in a separate thread, until `close`.

        Entering a `with` block starts the producer.

        Raises: UsageError if the producer was started or closed before, or if another producer of
        its group runs under its client id in this process.
        """
        if self._host.is_started or self._is_closed:
            raise UsageError(f"producer {self.client_id} was started before; make a new producer")
        self._driver.check_outside()
        group = self._publisher.config.group
        INSTANCES.register_coordinator(self._coordinator, self._instance)
        try:
            self._host.start(self._loop, name=f"sparrowmq-transactions-{group}")
        except RuntimeError:
            # The system refuses a thread, perhaps for a moment: `start` may be called again.
            INSTANCES.unregister_coordinator(self._coordinator, self._instance)
            raise

    @contextmanager
    def transaction(
        self, message: Message, *, queue: QueueChoice | None = None
    ) -> Generator[HalfMessage]:
        """Send a half message, and end its transaction with the block, which does the work.

        The message is committed at the end of the block, and rolled back if the block raises an
        `Exception`. If anything else ends the block, such as Ctrl-C, or if the broker does not
        confirm the end, the broker asks `check`. `commit` or `rollback` inside the block ends the
        transaction there.

        Args:
            queue: where the message belongs, as of `Producer.send`.

        Raises: as `send_half`.
        """
        half = self.send_half(message, queue=queue)
        undecided = self._coordinator.undecided
        undecided.add(half)
        try:
            yield half
        except Exception:
            if half in undecided:
                self.rollback(half)
            raise
        else:
            if half in undecided:
                self.commit(half)
        finally:
            undecided.discard(half)

    def send_half(self, message: Message, *, queue: QueueChoice | None = None) -> HalfMessage:
        """Send a message that waits for `commit` or `rollback`.

        Args:
            queue: where the message belongs, as of `Producer.send`.

        Raises: UsageError before `start`, after `close`, or if the message is delayed; else as
        `Producer.send`. After SendFailed a half message may be stored, and `check` asked for it.
        """
        check_message(message)
        self._check_running()
        if self._host.has_ended and not self._is_leaving:
            raise UsageError(
                f"producer {self.client_id} has failed, and answers no broker that asks for an "
                f"outcome; close it and start a new one"
            )
        return self._run(transactions.send_half(self._coordinator, message, queue=queue))

    def commit(self, half: HalfMessage) -> TransactionState:
        """Have consumers get the message.

        Returns: COMMIT, or UNKNOWN if the broker did not confirm it: it will ask `check`.
        Raises: UsageError if `rollback` was called for the message before, before `start` and after
        `close`.
        """
        return self._end(half, TransactionState.COMMIT)

    def rollback(self, half: HalfMessage) -> TransactionState:
        """Have nobody get the message.

        Returns: ROLLBACK, or UNKNOWN if the broker did not confirm it: it will ask `check`.
        Raises: UsageError if `commit` was called for the message before, before `start` and after
        `close`.
        """
        return self._end(half, TransactionState.ROLLBACK)

    def _end(self, half: HalfMessage, outcome: TransactionState) -> TransactionState:
        self._check_running()
        return self._run(transactions.end(self._coordinator, half, outcome))

    def _check_running(self) -> None:
        self._check_open()
        if not self._host.is_started:
            raise UsageError(f"producer {self.client_id} is not started; call start first")

    def close(self) -> None:
        """Unregister at the brokers and close the connections. A second call does nothing.

        Messages of `send_nowait` are sent first, for at most `send_timeout_ms` and 1 s; the rest
        fail with an error. Half messages without an end stay so: another producer of the group is
        asked for them. Called by `check`, it returns at once, and the producer closes after the
        answer.
        """
        if self._host.is_started and self._driver.is_in_call:
            if not self._is_leaving:
                self._host.close_beside(self._close)
            return
        self._host.wait_closed_beside()
        self._close()

    def _close(self) -> None:
        if self._host.is_started and not self._is_leaving:
            self._driver.check_outside()
            self._is_leaving = True
            end = self._coordinator.close
            self._host.call(end)
            try:
                self._host.end(CLOSE_MARGIN_MS / 1000, give_up=end)
            finally:
                # A call that is cut short has the next one go on here.
                INSTANCES.unregister_coordinator(self._coordinator, self._instance)
            # The loop has unregistered it everywhere.
            self._publisher.heartbeat_due_ms = None
        super().close()

    def _loop(self) -> None:
        while not self._coordinator.is_closing:
            try:
                self._driver.run(transactions.serve(self._coordinator), name="transactions")
            except Exception:
                if self._is_leaving:
                    return
                # Outermost: a producer must not fall silent.
                LOG.exception("producer %s failed and goes on", self.client_id)
                self._host.pause(RESTART_S)
