# Made of aio_member.py by `make generate`; change that file.
"""The part of a consumer that runs its membership from `start` to `close`.

Tests: client/test_push_consumer.py.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from sparrowmq.calling import clock
from sparrowmq.calling.call_pool import CLOSE_TIMEOUT_MS
from sparrowmq.calling.effects import Operation
from sparrowmq.calling.forks import tell_in_forks
from sparrowmq.client.assembly import (
    CLOSE_MARGIN_MS,
    DRIVER_CLOSE_MS,
    RESTART_S,
    check_start,
    give_up,
)
from sparrowmq.client.faces.thread_host import ThreadHost, open_instance
from sparrowmq.client.instances import INSTANCES
from sparrowmq.client.member_events import begin_leaving
from sparrowmq.client.notices import warn_no_subscription, warn_not_closed, warn_not_started
from sparrowmq.client.operations.consumer_health import ConsumerHealth, MemberState, look
from sparrowmq.client.operations.waiting import wait_share
from sparrowmq.client.subscriber import ConsumerFailed, LeftGroup, Subscriber
from sparrowmq.errors import UsageError

T = TypeVar("T")

LOG = logging.getLogger("sparrowmq.client")


class Member:
    """A consumer's membership of its group.

    Args:
        subscriber: the consumer's state.
        serve: makes the operation of the membership, and makes it anew if it fails.
        pool_size: the number of threads for the user's functions.
        on_failure: called on the driver's thread if the loop ends without `close`.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        serve: Callable[[], Operation[None]],
        *,
        pool_size: int,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self._subscriber = subscriber
        self._serve = serve
        self._on_failure = on_failure
        config = subscriber.config
        self._instance = open_instance(config.client_id, subscriber.name_servers, config.client)
        self.driver = self._instance.driver
        self.driver.grow_pool(pool_size)
        self._host = ThreadHost(self.driver)
        self.is_closed = False
        # Whether a call of `close` was cancelled or interrupted; and whether the group was left.
        self._is_cut_short = self._has_left = False
        # What ended the loop of a consumer that was not closed.
        self._failure: BaseException | None = None
        # A consumer without `start` does nothing and raises no error.
        self._forgotten = weakref.finalize(self, warn_not_started, subscriber)
        self._dropped: weakref.finalize[..., Any] | None = None
        tell_in_forks(self)

    def become_copy(self) -> None:
        """Log nothing of the parent's consumer when a forked process ends."""
        self._forgotten.detach()
        if self._dropped is not None:
            self._dropped.detach()

    def start(self, consumer: object) -> None:
        """Begin a consumer's membership; a consumer dropped without `close` is logged.

        Raises: UsageError if it was started or closed before; as `check_start` and
        `ClientInstances.register`.
        """
        config = self._subscriber.config
        if self._host.is_started or self.is_closed:
            raise UsageError(f"consumer {config.client_id} was started before; make a new consumer")
        self.driver.check_outside()
        check_start(self._subscriber)
        warn_no_subscription(self._subscriber)
        self._forgotten.detach()
        INSTANCES.register(self._subscriber, self._instance)
        self._dropped = weakref.finalize(consumer, warn_not_closed, self._subscriber)
        try:
            self._host.start(self._loop, name=f"sparrowmq-consumer-{config.group}")
        except RuntimeError:
            # The system refuses a thread, perhaps for a moment: `start` may be called again.
            self._dropped.detach()
            INSTANCES.unregister(self._subscriber)
            raise

    def enter(self, consumer: AbstractContextManager[object]) -> None:
        """Start a consumer and wait until it consumes its share; if that fails, close it.

        Raises: as `start`; a consumer that runs already goes on then.
        """
        self.driver.check_outside()
        runs_already = self._host.is_started
        try:
            self.start(consumer)
            try:
                self.driver.run(wait_share(self._subscriber))
            except UsageError:
                # The listener may close the consumer at its first message.
                if not self.is_closed:
                    raise
        except BaseException:
            if not runs_already:
                consumer.__exit__(*sys.exc_info())
            raise

    @property
    def state(self) -> MemberState:
        """The state of the membership's loop."""
        if self.is_closed:
            return "closed"
        if self._host.has_ended:
            return "failed"
        return "running" if self._host.is_started else "not started"

    def health(self) -> ConsumerHealth:
        """Return the consumer's health, also after `close`."""
        if self.is_closed:
            return ConsumerHealth("closed")
        return self.driver.run(look(self._subscriber, self.state))

    def describe(self, kind: str) -> str:
        """Return the consumer as a text: its kind, group, id and state."""
        subscriber, state = self._subscriber, str(self.state)
        if state == "failed" and self._failure is not None:
            state = f"failed: {self._failure!r}"
        elif state == "running":
            state = f"running, {len(subscriber.user_queues(subscriber.member.assigned))} queues"
        return f"<{kind} of {subscriber.user_group}: {subscriber.config.client_id}, {state}>"

    def check_running(self) -> None:
        """Raise a UsageError before `start`, after `close`, and if the consumer has failed."""
        self.check_open()
        # A thread that fails lives on for a moment.
        if self._host.has_ended or self._failure is not None:
            client_id = self._subscriber.config.client_id
            raise UsageError(
                f"consumer {client_id} has failed; close it and start a new one"
            ) from self._failure
        if not self._host.is_started:
            client_id = self._subscriber.config.client_id
            raise UsageError(f"consumer {client_id} is not started; call start first")

    def check_open(self) -> None:
        """Raise a UsageError after `close`."""
        if self.is_closed:
            # Other clients of the same id may keep the driver running.
            client_id = self._subscriber.config.client_id
            raise UsageError(f"consumer {client_id} is closed; make a new one")

    def run(self, operation: Operation[T]) -> T:
        """Run an operation, also before `start`; a UsageError after `close`."""
        self.check_open()
        return self.driver.run(operation)

    def call(self, change: Callable[[], None]) -> None:
        """Run a function that changes the state, now or soon. Raises: UsageError after `close`."""
        self.check_open()
        self._host.call(change)

    def close(self, end: Callable[[], None] | None = None) -> None:
        """Leave the group and close the connections. A second call does nothing.

        If a call was cancelled or interrupted, the next call continues with the rest. Closing takes
        at most `drain_timeout_ms` and CLOSE_MARGIN_MS, whatever the loop is doing. The listener or
        a callback, which closing waits for, does not wait: `close` elsewhere then waits for the
        end.

        Args:
            end: called on the driver's thread before the membership ends.

        Raises: UsageError where the client's driver cannot be waited for.
        """
        if self.driver.is_in_call:
            if not self.is_closed:
                self.is_closed = True
                self._host.close_beside(partial(self._close, end))
            return
        self._host.wait_closed_beside()
        if self.is_closed and not self._is_cut_short:
            return
        self.driver.check_outside()
        self.is_closed = True
        try:
            self._close(None if self._is_cut_short else end)
        except BaseException:
            self._is_cut_short = True
            raise
        self._is_cut_short = False

    def _close(self, end: Callable[[], None] | None) -> None:
        if self._dropped is not None:
            self._dropped.detach()
        timeout_ms = self._subscriber.config.drain_timeout_ms + CLOSE_MARGIN_MS
        deadline_ms = clock.monotonic_ms() + timeout_ms
        # A consumer that was never started is logged now.
        self._forgotten()
        if self._host.is_started:
            if end is not None:
                self._host.call(end)
            self._host.call(self._begin_leaving)
            self._host.end(
                (timeout_ms - DRIVER_CLOSE_MS) / 1000, give_up=partial(give_up, self._subscriber)
            )
        if self._has_left:
            return
        self._has_left = True
        if self._host.is_started:
            INSTANCES.unregister(self._subscriber)
            if self._subscriber.has_joined:
                config, counters = self._subscriber.config, self._subscriber.counters
                left = LeftGroup(config.client_id, counters.succeeded, counters.failed)
                self._subscriber.report(left)
        if INSTANCES.close(self._instance):
            left_ms = max(0, deadline_ms - clock.monotonic_ms())
            self.driver.close(timeout_ms=min(left_ms, CLOSE_TIMEOUT_MS))

    def _begin_leaving(self) -> None:
        begin_leaving(self._subscriber, now_ms=clock.monotonic_ms())

    def _loop(self) -> None:
        try:
            self._serve_on()
        except BaseException as error:
            if not self.is_closed:
                self._failure = error
                if self._dropped is not None:
                    self._dropped.detach()
                self._subscriber.report(ConsumerFailed(self._subscriber.config.client_id, error))
                if self._on_failure is not None:
                    self._host.call(self._on_failure)
            raise

    def _serve_on(self) -> None:
        while not self._subscriber.member.is_done:
            try:
                self._host.serve(self._serve())
            except Exception:
                if self.is_closed:
                    # The driver was closed because the loop did not end in time.
                    return
                # The outermost loop: the member keeps its state, and a consumer must not fall
                # silent.
                LOG.exception(
                    "consumer %s failed, and continues", self._subscriber.config.client_id
                )
                self._host.pause(RESTART_S)
